package engine

import "sync/atomic"

// pool is a fixed set of goroutines that share the pieces of one job at a time. A job is a method of Session and its pieces are numbered;
// which worker takes which piece is left to chance, so a piece must write only what belongs to it. Running a job allocates nothing.
//
// A token has some ten jobs a layer, microseconds apart: whoever waits looks again for a while before it sleeps.
type pool struct {
	workers int // the caller among them
	helpers []helper
	waiting atomic.Bool // the caller sleeps
	done    chan struct{}

	// The job. Its fields are still while a piece is not done, and read only by who has taken a piece.
	n       int
	session *Session
	job     func(s *Session, worker, piece int)
	open    atomic.Int64 // pieces that nobody has taken
	undone  atomic.Int64
}

type helper struct {
	asleep atomic.Bool
	wake   chan struct{}
}

// looks is how often whoever waits looks before it sleeps: about 50 microseconds, of the 80 that being woken takes on a virtual machine.
const looks = 100_000

func newPool(workers int) *pool {
	p := &pool{workers: max(workers, 1), done: make(chan struct{}, 1)}
	p.helpers = make([]helper, p.workers-1)
	for i := range p.helpers {
		p.helpers[i].wake = make(chan struct{}, 1)
		go p.help(&p.helpers[i], i+1)
	}
	return p
}

// run does pieces 0 to n-1 of a job and returns when all are done.
func (p *pool) run(s *Session, n int, job func(s *Session, worker, piece int)) {
	if n < 1 {
		return
	}
	p.n, p.session, p.job = n, s, job
	p.undone.Store(int64(n))
	p.open.Store(int64(n))
	for i := range p.helpers[:min(len(p.helpers), n-1)] {
		if h := &p.helpers[i]; h.asleep.CompareAndSwap(true, false) {
			h.wake <- struct{}{}
		}
	}
	p.take(0)
	for i := 0; i < looks && p.undone.Load() > 0; i++ {
	}
	for p.undone.Load() > 0 {
		p.waiting.Store(true)
		if p.undone.Load() == 0 && p.waiting.CompareAndSwap(true, false) {
			break
		}
		<-p.done // may also come late from the job before
	}
	p.session, p.job = nil, nil
}

func (p *pool) take(worker int) {
	for {
		open := p.open.Load()
		if open < 1 {
			return
		}
		if !p.open.CompareAndSwap(open, open-1) {
			continue
		}
		p.job(p.session, worker, p.n-int(open))
		if p.undone.Add(-1) == 0 && p.waiting.CompareAndSwap(true, false) {
			p.done <- struct{}{}
		}
	}
}

func (p *pool) help(h *helper, worker int) {
	for {
		p.take(worker)
		for i := 0; i < looks && p.open.Load() < 1; i++ {
		}
		h.asleep.Store(true)
		if p.open.Load() > 0 && h.asleep.CompareAndSwap(true, false) {
			continue
		}
		if _, ok := <-h.wake; !ok {
			return
		}
	}
}

// close ends the helpers; it is called when no job runs, and a helper that is awake sees it when it goes to sleep.
func (p *pool) close() {
	for i := range p.helpers {
		close(p.helpers[i].wake)
	}
}
