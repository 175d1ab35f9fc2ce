package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/internal/fault"
)

// progress shows how far a long job has come: a bar on a terminal, elsewhere a line every ten seconds, or JSON lines every second.
// Workers only add to a counter; a ticker looks at it.
type progress struct {
	show  func(done, total int64, elapsed time.Duration)
	clear func() // takes what is shown away
	every time.Duration
	done  atomic.Int64
	total atomic.Int64
	began time.Time
	stop  func()
	ended chan struct{}
}

func progressFlag() cli.Flag {
	return &cli.StringFlag{Name: "progress", Value: "auto", Usage: "auto, json or none: how to show on stderr how far the job is"}
}

func newProgress(t *terminal, mode, what string) (*progress, error) {
	p := &progress{every: 10 * time.Second, began: time.Now(), clear: func() {}, ended: make(chan struct{})}
	switch {
	case mode == "none" || mode == "auto" && t.quiet:
		p.show = func(int64, int64, time.Duration) {}
	case mode == "json":
		p.every = time.Second
		p.show = func(done, total int64, elapsed time.Duration) {
			line, err := json.Marshal(map[string]any{"progress": what, "done": done, "total": total, "seconds": elapsed.Seconds()})
			if err == nil {
				fmt.Fprintf(t.stderr, "%s\n", line)
			}
		}
	case mode == "auto" && t.bar:
		p.every = 100 * time.Millisecond
		bar := progressbar.NewOptions64(-1, progressbar.OptionSetWriter(t.stderr), progressbar.OptionSetDescription(what),
			progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30), progressbar.OptionShowCount(),
			progressbar.OptionSetSpinnerChangeInterval(0)) // the bar draws nothing by itself, or it would go on after its end
		var mu sync.Mutex // Clear takes no lock of the bar's
		t.clear = func() {
			mu.Lock()
			defer mu.Unlock()
			_ = bar.Clear() // nothing to do about a terminal that went away
		}
		p.clear = t.clear
		p.show = func(done, total int64, _ time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if total > 0 {
				done = min(done, total)
				if bar.GetMax64() != total {
					bar.ChangeMax64(total)
				}
			}
			if done > 0 {
				_ = bar.Set64(done)
			}
		}
	case mode == "auto":
		p.show = func(done, total int64, elapsed time.Duration) {
			of := ""
			if total > 0 {
				of = fmt.Sprintf(" of %s (%d %%)", size(total), percent(done, total))
			}
			t.note("%s: %s%s, %s/s", what, size(done), of, size(int64(float64(done)/elapsed.Seconds())))
		}
	default:
		return nil, &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("--progress %s is not known", mode), Hint: "use auto, json or none"}
	}
	stop := make(chan struct{})
	p.stop = sync.OnceFunc(func() { close(stop) })
	go p.watch(stop)
	return p, nil
}

// Start tells how many bytes there are to do from now on; 0: that is not known.
func (p *progress) Start(total int64) {
	p.done.Store(0)
	p.total.Store(total)
}

// Add tells that n more bytes are done.
func (p *progress) Add(n int64) { p.done.Add(n) }

func (p *progress) watch(stop chan struct{}) {
	defer close(p.ended)
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.show(p.done.Load(), p.total.Load(), time.Since(p.began))
		case <-stop:
			p.clear()
			return
		}
	}
}

// end takes the bar away, before anything is printed where it stood. A second call does nothing.
func (p *progress) end() {
	p.stop()
	<-p.ended
}

func percent(done, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return min(100, 100*done/total)
}

// size writes a number of bytes in decimal units, as disks and model pages count them.
func size(n int64) string {
	f := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB", "TB"} {
		if f < 1000 || unit == "TB" {
			if unit == "B" {
				return fmt.Sprintf("%d B", n)
			}
			return fmt.Sprintf("%.3g %s", f, unit)
		}
		f /= 1000
	}
	return ""
}
