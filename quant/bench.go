package quant

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// Kernel is one kernel at work, for lagquant bench and the Go benchmarks.
type Kernel struct {
	Name string
	// Bytes are counted a call: of BF16 for the kernels that read or write it, of packed codes for the others, of float32 for attention.
	// Products count them once for each token, so that their rates compare with a matrix-vector product's; attention counts them for each head.
	Bytes int
	Run   func(tile int)
}

// benchTile is the BF16 of half a Laguna expert's projection, and a multiple of every kernel's block.
const (
	benchTile = 3 << 20
	benchCols = 3072
)

// Kernels returns the kernels, at work on memory of their own of the given size, a tile a call: tile after tile it comes from memory when
// size is far beyond the caches, and always from the cache when size is one tile or less. Outputs go to one buffer again and again, as in
// the pipeline. "read" and "copy" are the machine's own rates, to form ratios with. Run is for one goroutine at a time.
func Kernels(size int) []Kernel {
	tile := benchTile
	for tile > size && tile > 6*benchCols {
		tile /= 2
	}
	tiles := max(1, size/tile)
	source, packed, scales := make([]byte, tiles*tile), make([]byte, tile/4), make([]byte, tile/32)
	fillGauss(source[:tile])
	for i := 1; i < tiles; i++ {
		copy(source[i*tile:], source[:tile])
	}
	profile := Profiles[0]
	q := NewQuantizer(profile, profile.Global(AbsMax(source[:tile])))
	q.Quantize(packed, scales, source[:tile])

	// the same memory serves as packed codes, any byte being two of them, and scales come as often as they would
	manyScales := make([]byte, tiles*tile/8)
	for i := range manyScales {
		manyScales[i] = scales[i%len(scales)]
	}
	target, floats, x, y := make([]byte, tile), make([]float32, tile/2), make([]float32, benchCols), make([]float32, 2*tile/benchCols)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	const tokens, heads, dim = 64, 6, 128
	few, many := Matrix{Rows: tokens / 4, Cols: benchCols, Stride: benchCols}, Matrix{Rows: tokens, Cols: benchCols, Stride: benchCols}
	many.Data = make([]float32, tokens*benchCols)
	for i := range many.Data {
		many.Data[i] = x[i%benchCols]
	}
	few.Data = many.Data
	product := func(x Matrix, rows int) Matrix { return Matrix{floats, x.Rows, rows, rows} }
	keys := tile / 4 / dim
	matrixOf := func(i int) Matrix { return Matrix{float32s(source[i%tiles*tile:][:tile]), keys, dim, dim} }
	queries, scores := Matrix{many.Data, heads, dim, dim}, Matrix{make([]float32, heads*keys), heads, keys, keys}
	sums := Matrix{make([]float32, heads*dim), heads, dim, dim}
	in := func(i int) []byte { return source[i%tiles*tile:][:tile] }
	scalesOf := func(i int) []byte { return manyScales[i%tiles*tile/8:][:tile/8] }
	return []Kernel{
		{"read", tile, func(i int) { read(in(i)) }},
		{"copy", tile, func(i int) { copy(target, in(i)) }},
		{"absmax", tile, func(i int) { AbsMax(in(i)) }},
		{"quantize", tile, func(i int) { q.Quantize(packed, scales, in(i)) }},
		{"quantize, portable form", tile, func(i int) { q.quantizeGroups(packed, scales, in(i)) }},
		{"error sums", tile, func(i int) { MeasureErrors(profile, q.global, in(i), packed, scales) }},
		{"dequantize to bf16", tile / 4, func(i int) { DequantizeBF16(target, in(i)[:tile/4], scalesOf(i)[:tile/32], q.global, false) }},
		{"dequantize to float32", tile / 4, func(i int) { Dequantize(floats, in(i)[:tile/4], scalesOf(i)[:tile/32], q.global, false) }},
		{"matvec bf16", tile, func(i int) { MatVecBF16(y, x, in(i), tile/2/benchCols, benchCols) }},
		{"matvec nvfp4", tile, func(i int) { MatVecNVFP4(y, x, in(i), scalesOf(i), 1/q.global, 2*tile/benchCols, benchCols) }},
		{"matmul bf16, 16 tokens", few.Rows * tile, func(i int) { MatMulBF16(product(few, tile/2/benchCols), few, in(i)) }},
		{"matmul bf16, 64 tokens", many.Rows * tile, func(i int) { MatMulBF16(product(many, tile/2/benchCols), many, in(i)) }},
		{"matmul nvfp4, 16 tokens", few.Rows * tile / 4, func(i int) {
			MatMulNVFP4(product(few, tile/2/benchCols), few, in(i)[:tile/4], scalesOf(i)[:tile/32], 1/q.global)
		}},
		{"matmul nvfp4, 64 tokens", many.Rows * tile / 4, func(i int) {
			MatMulNVFP4(product(many, tile/2/benchCols), many, in(i)[:tile/4], scalesOf(i)[:tile/32], 1/q.global)
		}},
		{"attention dots, 6 heads", heads * tile, func(i int) { DotRows(scores, queries, matrixOf(i)) }},
		{"attention sums, 6 heads", heads * tile, func(i int) { AddRows(sums, scores, matrixOf(i)) }},
	}
}

// float32s is the same memory as float32.
func float32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// Rate is how fast a kernel ran.
type Rate struct {
	Kernel         string  `json:"kernel"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// MeasureKernels runs the kernels in turns, each on so many goroutines at once with size bytes among them, for about d in all. A rate is
// the sum over the goroutines of the rate of their median call: other work on the machine disturbs that less than it does a mean.
func MeasureKernels(size, workers int, d time.Duration) []Rate {
	sets := make([][]Kernel, workers)
	for w := range sets {
		sets[w] = Kernels(size / workers)
	}
	const rounds = 8
	times := make([][][]time.Duration, len(sets[0])) // by kernel and worker
	for k := range times {
		times[k] = make([][]time.Duration, workers)
	}
	slot := d / time.Duration(rounds*len(times))
	calls := make([]int, workers) // goes on from tile to tile, so that no kernel finds the tiles of the one before it in a cache
	for range rounds {
		for k := range times {
			var ready, done sync.WaitGroup
			ready.Add(workers)
			for w := range workers {
				done.Go(func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					ready.Done()
					ready.Wait()
					for end := time.Now().Add(slot); ; calls[w]++ {
						start := time.Now()
						sets[w][k].Run(calls[w])
						now := time.Now()
						times[k][w] = append(times[k][w], now.Sub(start))
						if now.After(end) {
							break
						}
					}
				})
			}
			done.Wait()
		}
	}
	rates := make([]Rate, len(times))
	for k := range rates {
		rates[k].Kernel = sets[0][k].Name
		for w, t := range times[k] {
			slices.Sort(t)
			rates[k].BytesPerSecond += float64(sets[w][k].Bytes) / max(t[len(t)/2].Seconds(), 1e-9)
		}
	}
	return rates
}

// read adds up words, the least that can be done with memory.
func read(b []byte) uint64 {
	sum, n := readBlocks(b)
	a := [4]uint64{uint64(sum)}
	for b = b[n:]; len(b) >= 32; b = b[32:] {
		for i := range a {
			a[i] += binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	return a[0] + a[1] + a[2] + a[3]
}

// fillGauss writes weights of about N(0, 0.02): the sum of four uniform numbers.
func fillGauss(bf16 []byte) {
	z := uint64(1)
	for i := 0; i < len(bf16); i += 2 {
		hi, lo := bits.Mul64(z, 0x9e3779b97f4a7c15)
		z = hi ^ lo
		sum := int32(z&0xffff) + int32(z>>16&0xffff) + int32(z>>32&0xffff) + int32(z>>48) - 131070
		binary.LittleEndian.PutUint16(bf16[i:], Float32ToBF16(float32(sum)*0x1p-21))
	}
}
