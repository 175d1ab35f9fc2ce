package quant

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkKernels is for benchstat: go test -run - -bench Kernels -count 10. The suffix -2 of a name tells the number of cores of a
// machine, not of a benchmark: "parallel" runs on all of them.
func BenchmarkKernels(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"cached", 384 << 10}, {"memory", 768 << 20}} {
		for _, k := range Kernels(size.bytes) {
			b.Run(size.name+"/"+k.Name, func(b *testing.B) {
				b.SetBytes(int64(k.Bytes))
				for i := 0; b.Loop(); i++ {
					k.Run(i)
				}
			})
		}
	}
}

func BenchmarkNewQuantizer(b *testing.B) {
	for b.Loop() {
		NewQuantizer(Profiles[0], 15000)
	}
}

// TestKernels runs every kernel once, and sees that it allocates nothing.
func TestKernels(t *testing.T) {
	for _, k := range Kernels(96 << 10) {
		require.Positive(t, k.Bytes, k.Name)
		if !testRace {
			require.Zero(t, testing.AllocsPerRun(10, func() { k.Run(1) }), k.Name)
		}
	}
	for _, r := range MeasureKernels(192<<10, 2, 20*time.Millisecond) {
		require.Positive(t, r.BytesPerSecond, r.Kernel)
		require.False(t, math.IsInf(r.BytesPerSecond, 0), r.Kernel)
	}
}
