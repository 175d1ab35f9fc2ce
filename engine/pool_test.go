package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every piece is done once and before run returns, whether the helpers are awake or asleep.
func TestPool(t *testing.T) {
	for _, workers := range []int{1, 2, 5} {
		p := newPool(workers)
		var taken [64]atomic.Int32
		sum, want := 0, 0
		for round := range 3000 {
			n := round * 7 % len(taken)
			if round%500 == 0 {
				time.Sleep(2 * time.Millisecond)
			}
			p.run(nil, n, func(_ *Session, worker, piece int) {
				if worker >= workers {
					panic("no such worker")
				}
				if worker > 0 && round%200 == 1 { // so long that the caller goes to sleep
					time.Sleep(time.Millisecond)
				}
				taken[piece].Add(1)
			})
			want += n
			for i := range taken {
				sum += int(taken[i].Swap(0))
			}
			require.Equal(t, want, sum, "round %d", round)
		}
		p.close()
	}
}
