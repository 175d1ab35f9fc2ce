package engine

import (
	"sync"
	"sync/atomic"
)

// pool is a fixed set of goroutines that share the pieces of one job at a time. A job is a method of Session and its pieces are numbered;
// which worker takes which piece is left to chance, so a piece must write only what belongs to it. Running a job allocates nothing.
type pool struct {
	workers int // the caller among them
	wake    []chan struct{}
	next    atomic.Int64
	done    sync.WaitGroup

	n       int
	session *Session
	job     func(s *Session, worker, piece int)
}

func newPool(workers int) *pool {
	p := &pool{workers: max(workers, 1)}
	p.wake = make([]chan struct{}, p.workers-1)
	for i := range p.wake {
		p.wake[i] = make(chan struct{}, 1)
		go func() {
			for range p.wake[i] {
				p.take(i + 1)
				p.done.Done()
			}
		}()
	}
	return p
}

// run does pieces 0 to n-1 of a job and returns when all are done.
func (p *pool) run(s *Session, n int, job func(s *Session, worker, piece int)) {
	p.n, p.session, p.job = n, s, job
	p.next.Store(0)
	helpers := min(len(p.wake), n-1)
	for i := range max(helpers, 0) {
		p.done.Add(1)
		p.wake[i] <- struct{}{}
	}
	p.take(0)
	p.done.Wait()
	p.session, p.job = nil, nil
}

func (p *pool) take(worker int) {
	for {
		i := int(p.next.Add(1)) - 1
		if i >= p.n {
			return
		}
		p.job(p.session, worker, i)
	}
}

func (p *pool) close() {
	for _, c := range p.wake {
		close(c)
	}
}
