//go:build amd64 && !noasm

package quant

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// paths lists the code paths of this machine, the best first.
func paths() []string {
	p := []string{"go"}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		p = append([]string{"avx2"}, p...)
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VBMI && cpu.X86.HasAVX512VNNI {
		p = append([]string{"avx512"}, p...)
	}
	return p
}

// scanKernel runs a kernel over the whole blocks of b and returns how many bytes those are.
func scanKernel(b []byte, wide, narrow func(*byte, int) uint16) (result uint16, n int) {
	switch path {
	case "avx512":
		n = len(b) &^ 511
		return wide(unsafe.SliceData(b), n/512), n
	case "avx2":
		n = len(b) &^ 255
		return narrow(unsafe.SliceData(b), n/256), n
	}
	return 0, 0
}

func absMaxBlocks(bf16 []byte) (magnitude uint16, n int) {
	return scanKernel(bf16, absMaxAVX512, absMaxAVX2)
}

func readBlocks(b []byte) (sum uint16, n int) { return scanKernel(b, readAVX512, readAVX2) }

// quantizeBlocks quantizes whole blocks of groups and returns how many groups it did.
func quantizeBlocks(k *kernelTables, packed, scales, bf16 []byte) int {
	blocks := len(scales) / blockGroups
	_, _ = packed[:blocks*blockGroups*8], bf16[:blocks*blockGroups*32]
	t, p, sc, b := (*byte)(unsafe.Pointer(k)), unsafe.SliceData(packed), unsafe.SliceData(scales), unsafe.SliceData(bf16)
	switch path {
	case "avx512":
		return blockGroups * quantizeAVX512(t, p, sc, b, blocks)
	case "avx2":
		return blockGroups * quantizeAVX2(t, p, sc, b, blocks)
	}
	return 0
}

// The kernels below are called by name and not through a variable, so that the compiler knows that their arguments stay on the stack.

// matVecBF16Blocks reports whether there is a kernel for the width; the caller checked the lengths.
func matVecBF16Blocks(dst, x []float32, w []byte, rows, cols int) bool {
	width := 16
	if path == "avx512" && cols%32 == 0 {
		width = 32
	}
	if path == "go" || cols%width != 0 {
		return false
	}
	half := width / 2
	p := reordered(x, width, func(i int) int { return i%half*2 + i/half })
	defer scratch.Put(p)
	if width == 32 {
		matVecBF16AVX512(&dst[0], &(*p)[0], &w[0], rows, cols/width)
	} else {
		matVecBF16AVX2(&dst[0], &(*p)[0], &w[0], rows, cols/width)
	}
	return true
}

// matVecNVFP4Blocks is the same for NVFP4.
func matVecNVFP4Blocks(dst, x []float32, packed, scales []byte, step float32, rows, cols int) bool {
	switch {
	case path == "avx512" && cols%256 == 0:
		p := borrow(len(x))
		defer scratch.Put(p)
		fixedAVX512(&(*p)[0], &x[0], cols/128)
		matVecNVFP4AVX512(&dst[0], &(*p)[0], &packed[0], &scales[0], step, rows, cols/256)
		return true
	case path != "go" && cols%64 == 0:
		p := reordered(x, 64, laneElement256)
		defer scratch.Put(p)
		matVecNVFP4AVX2(&dst[0], &(*p)[0], &packed[0], &scales[0], step, rows, cols/64)
		return true
	}
	return false
}

// reordered returns x in another order, n elements a block: element i of a block is the block's x[from(i)].
// Give the result back to scratch.
func reordered(x []float32, n int, from func(i int) int) *[]float32 {
	p := borrow(len(x))
	for i := range n {
		at := from(i)
		for b := 0; b < len(x); b += n {
			(*p)[b+i] = x[b+at]
		}
	}
	return p
}

// laneElement256: vectors 0-3 are of groups 0 and 2, vectors 4-7 of groups 1 and 3, a group in each half. A vector's half has four elements
// of its group: every fourth, beginning with element 0, 2, 1 and 3.
func laneElement256(i int) int {
	vector, lane := i/8, i%8
	group := vector/4 + lane/4*2
	return groupSize*group + lane%4*4 + []int{0, 2, 1, 3}[vector%4]
}

// dequantizeBlocks dequantizes all groups, or none.
func dequantizeBlocks(dst []float32, packed, scales []byte, steps *[256]float32) int {
	n := len(scales)
	_, _ = dst[:n*groupSize], packed[:n*groupSize/2]
	d, p, s := (*byte)(unsafe.Pointer(unsafe.SliceData(dst))), unsafe.SliceData(packed), unsafe.SliceData(scales)
	switch path {
	case "avx512":
		dequantizeAVX512(d, p, s, &steps[0], n)
		return n
	case "avx2":
		dequantizeAVX2(d, p, s, &steps[0], n)
		return n
	}
	return 0
}

func dequantizeBF16Blocks(dst, packed, scales []byte, steps *[256]float32) int {
	n := len(scales)
	_, _ = dst[:2*n*groupSize], packed[:n*groupSize/2]
	d, p, s := unsafe.SliceData(dst), unsafe.SliceData(packed), unsafe.SliceData(scales)
	switch path {
	case "avx512":
		dequantizeBF16AVX512(d, p, s, &steps[0], n)
		return n
	case "avx2":
		dequantizeBF16AVX2(d, p, s, &steps[0], n)
		return n
	}
	return 0
}

// errorSumsBlocks adds up all groups, or none.
func errorSumsBlocks(sums *errorLanes, bf16, packed, scales []byte, steps *[256]float32) int {
	n := len(scales)
	_, _ = bf16[:2*n*groupSize], packed[:n*groupSize/2]
	b, p, s := unsafe.SliceData(bf16), unsafe.SliceData(packed), unsafe.SliceData(scales)
	switch path {
	case "avx512":
		errorSumsAVX512(&sums[0][0], b, p, s, &steps[0], n)
		return n
	case "avx2":
		errorSumsAVX2(&sums[0][0], b, p, s, &steps[0], n)
		return n
	}
	return 0
}
