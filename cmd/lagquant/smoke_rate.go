package main

import (
	"runtime"
	"sync"
	"time"

	"github.com/lagquant/lagquant/quant"
)

// Below so many bytes a token the weights may come from the caches, and a share of the memory's rate says nothing.
const fromMemory = 64 << 20

// readRate measures for about d how many bytes a second all cores together read from memory.
func readRate(bytes int, d time.Duration) float64 {
	workers := runtime.GOMAXPROCS(0)
	rates := make([]float64, workers)
	var ready, done sync.WaitGroup
	ready.Add(workers)
	for w := range workers {
		done.Go(func() {
			read := quant.Kernels(bytes / workers)[0]
			ready.Done()
			ready.Wait()
			began, calls := time.Now(), 0
			for ; calls == 0 || time.Since(began) < d; calls++ {
				read.Run(calls)
			}
			rates[w] = float64(calls*read.Bytes) / max(time.Since(began).Seconds(), 1e-9)
		})
	}
	done.Wait()
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum
}
