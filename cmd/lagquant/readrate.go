package main

import (
	"runtime"
	"sync"
	"time"

	"github.com/lagquant/lagquant/quant"
)

// Below so many bytes a token the weights may come from the caches, and a share of the memory's rate says nothing.
const fromMemory = 64 << 20

// memoryReader returns a function that reads so many bytes of memory, all cores together, and tells how many a second that were.
func memoryReader(bytes int) func() float64 {
	kernels := make([]quant.Kernel, runtime.GOMAXPROCS(0))
	for w := range kernels {
		kernels[w] = quant.Kernels(bytes / len(kernels))[0]
	}
	calls := max(1, bytes/len(kernels)/kernels[0].Bytes)
	return func() float64 {
		began := time.Now()
		var readers sync.WaitGroup
		for _, read := range kernels {
			readers.Go(func() {
				for i := range calls {
					read.Run(i)
				}
			})
		}
		readers.Wait()
		return float64(len(kernels)*calls*kernels[0].Bytes) / max(time.Since(began).Seconds(), 1e-9)
	}
}

// readRate measures for about d how many bytes a second all cores together read from memory.
func readRate(bytes int, d time.Duration) float64 {
	read := memoryReader(bytes)
	var rates []float64
	for began := time.Now(); len(rates) == 0 || time.Since(began) < d; {
		rates = append(rates, read())
	}
	return median(rates)
}
