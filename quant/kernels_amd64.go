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
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VBMI {
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
	kernel := quantizeAVX512
	switch path {
	case "avx2":
		kernel = quantizeAVX2
	case "go":
		return 0
	}
	return blockGroups * kernel((*byte)(unsafe.Pointer(k)), unsafe.SliceData(packed), unsafe.SliceData(scales), unsafe.SliceData(bf16), blocks)
}

// matVecBF16Blocks reports whether there is a kernel for the width; the caller checked the lengths.
func matVecBF16Blocks(dst, x []float32, w []byte, rows, cols int) bool {
	kernel, width := matVecBF16AVX512, 32
	if path == "avx2" || cols%width != 0 {
		kernel, width = matVecBF16AVX2, 16
	}
	if path == "go" || cols%width != 0 {
		return false
	}
	half := width / 2
	p := reordered(x, width, func(i int) int { return i%half*2 + i/half })
	defer scratch.Put(p)
	kernel(&dst[0], &(*p)[0], &w[0], rows, cols/width)
	return true
}

// matVecNVFP4Blocks is the same for NVFP4.
func matVecNVFP4Blocks(dst, x []float32, packed, scales []byte, step float32, rows, cols int) bool {
	kernel, width, from := matVecNVFP4AVX512, 256, laneGroup512
	if path == "avx2" || cols%width != 0 {
		kernel, width, from = matVecNVFP4AVX2, 64, laneElement256
	}
	if path == "go" || cols%width != 0 {
		return false
	}
	p := reordered(x, width, from)
	defer scratch.Put(p)
	kernel(&dst[0], &(*p)[0], &packed[0], &scales[0], step, rows, cols/width)
	return true
}

// laneGroup512: vector i/16 of a block has element i/16 of every group; lanes 4k to 4k+3 are groups 2k, 2k+1, 2k+8 and 2k+9.
func laneGroup512(i int) int {
	lane := i % 16
	return groupSize*(lane/4*2+lane%2+lane/2%2*8) + i/16
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
	kernel := dequantizeAVX512
	switch path {
	case "avx2":
		kernel = dequantizeAVX2
	case "go":
		return 0
	}
	n := len(scales)
	_, _ = dst[:n*groupSize], packed[:n*groupSize/2]
	kernel((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), unsafe.SliceData(packed), unsafe.SliceData(scales), &steps[0], n)
	return n
}

func dequantizeBF16Blocks(dst, packed, scales []byte, steps *[256]float32) int {
	kernel := dequantizeBF16AVX512
	switch path {
	case "avx2":
		kernel = dequantizeBF16AVX2
	case "go":
		return 0
	}
	n := len(scales)
	_, _ = dst[:2*n*groupSize], packed[:n*groupSize/2]
	kernel(unsafe.SliceData(dst), unsafe.SliceData(packed), unsafe.SliceData(scales), &steps[0], n)
	return n
}

func errorSumsBlocks(sums *errorLanes, bf16, packed, scales []byte, steps *[256]float32) int {
	kernel := errorSumsAVX512
	switch path {
	case "avx2":
		kernel = errorSumsAVX2
	case "go":
		return 0
	}
	n := len(scales)
	_, _ = bf16[:2*n*groupSize], packed[:n*groupSize/2]
	kernel(&sums[0][0], unsafe.SliceData(bf16), unsafe.SliceData(packed), unsafe.SliceData(scales), &steps[0], n)
	return n
}
