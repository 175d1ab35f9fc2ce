package pipeline

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/lagquant/lagquant/quant"
)

// arenas are the buffers in which fused sets are quantized, all of one size and used over and over: allocating 20 MB for each set, and
// zeroing it, took as long as quantizing it. The semaphore keeps them within the job's memory.
type arenas struct {
	backend quant.Backend
	size    int64 // of one: what the largest fused set needs
	memory  *semaphore.Weighted

	mu   sync.Mutex
	free [][]byte
	all  [][]byte
}

// get waits for room and returns an arena whose contents are left over from its last use.
func (a *arenas) get(ctx context.Context) ([]byte, error) {
	if err := a.memory.Acquire(ctx, a.size); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.free); n > 0 {
		b := a.free[n-1]
		a.free = a.free[:n-1]
		return b, nil
	}
	b, err := a.backend.Buffer(int(a.size))
	if err != nil {
		a.memory.Release(a.size)
		return nil, err
	}
	a.all = append(a.all, b)
	return b, nil
}

func (a *arenas) put(b []byte) {
	a.mu.Lock()
	a.free = append(a.free, b)
	a.mu.Unlock()
	a.memory.Release(a.size)
}

func (a *arenas) close() {
	for _, b := range a.all {
		a.backend.Free(b)
	}
}

// alignment keeps members from sharing a cache line, and suits what GPUs copy.
const alignment = 64

// carve takes the buffers of one member from an arena and returns the rest of it. weights is the size of its BF16.
func carve(arena []byte, name string, weights int) (quant.Member, []byte) {
	take := func(n int) []byte {
		b := arena[:n:n]
		arena = arena[aligned(n):]
		return b
	}
	m := quant.Member{Name: name, BF16: take(weights), Packed: take(weights / 4), Scales: take(weights / 32)}
	return m, arena
}

// memberSize is what carve takes.
func memberSize(weights int) int { return aligned(weights) + aligned(weights/4) + aligned(weights/32) }

func aligned(n int) int { return (n + alignment - 1) &^ (alignment - 1) }
