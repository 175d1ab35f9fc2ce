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
	wide := path == "avx512" && cols%32 == 0
	if path == "go" || !wide && cols%16 != 0 {
		return false
	}
	p := borrow(cols)
	defer scratch.Put(p)
	order := &(*p)[0]
	if wide {
		reorderBF16AVX512(order, &x[0], cols/32)
		matVecBF16AVX512(&dst[0], order, &w[0], rows, cols/32)
	} else {
		reorderBF16AVX2(order, &x[0], cols/16)
		matVecBF16AVX2(&dst[0], order, &w[0], rows, cols/16)
	}
	return true
}

// matVecNVFP4Blocks is the same for NVFP4.
func matVecNVFP4Blocks(dst, x []float32, packed, scales []byte, step float32, rows, cols int) bool {
	wide := path == "avx512" && cols%256 == 0
	if path == "go" || !wide && cols%64 != 0 {
		return false
	}
	p := borrow(cols)
	defer scratch.Put(p)
	order := &(*p)[0]
	if wide {
		fixedAVX512(order, &x[0], cols/128)
		matVecNVFP4AVX512(&dst[0], order, &packed[0], &scales[0], step, rows, cols/256)
	} else {
		reorderNVFP4AVX2(order, &x[0], cols/64)
		matVecNVFP4AVX2(&dst[0], order, &packed[0], &scales[0], &scaleValues()[0], step, rows, cols/64)
	}
	return true
}

// stepsBlock reports whether there is a kernel.
func stepsBlock(steps, values *[256]float32, global float32, modelopt bool) bool {
	if path == "go" {
		return false
	}
	multiply := 0
	if modelopt {
		multiply = 1
	}
	stepsAVX2(&steps[0], &values[0], global, multiply)
	return true
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

// lookupGroups is from how many groups on a table of all rounded values saves more than it costs, which is 0.6 microseconds. With it BF16
// comes at 8.3 GB/s of packed bytes in the second cache, on one core of a Xeon (model 207), where rounding each value gave 3.9.
const lookupGroups = 512

func dequantizeBF16Blocks(dst, packed, scales []byte, steps *[256]float32) int {
	n := len(scales)
	_, _ = dst[:2*n*groupSize], packed[:n*groupSize/2]
	d, p, s := unsafe.SliceData(dst), unsafe.SliceData(packed), unsafe.SliceData(scales)
	if path == "go" {
		return 0
	}
	if n < lookupGroups {
		roundedGroups(d, p, s, steps, n)
		return n
	}
	var table [256][2 * groupSize]byte
	roundedGroups(&table[0][0], &everyCode[0][0], &everyScale[0], steps, len(table))
	if path == "avx512" {
		lookupBF16AVX512(d, p, s, &table[0][0], n)
	} else {
		lookupBF16AVX2(d, p, s, &table[0][0], n)
	}
	return n
}

// roundedGroups rounds each value.
func roundedGroups(dst, packed, scales *byte, steps *[256]float32, groups int) {
	if path == "avx512" {
		dequantizeBF16AVX512(dst, packed, scales, &steps[0], groups)
	} else {
		dequantizeBF16AVX2(dst, packed, scales, &steps[0], groups)
	}
}

// everyCode and everyScale are groups of the sixteen codes, one for each scale byte.
var everyCode, everyScale = func() (codes [256][groupSize / 2]byte, scales [256]byte) {
	for i := range codes {
		scales[i] = byte(i)
		for j := range codes[i] {
			codes[i][j] = byte(2*j | (2*j+1)<<4)
		}
	}
	return codes, scales
}()

// errorSumsBlocks adds up whole blocks and returns how many groups those are.
func errorSumsBlocks(sums *errorLanes, bf16, packed, scales []byte, steps *[256]float32) int {
	blocks := len(scales) / errorBlock
	n := blocks * errorBlock
	_, _ = bf16[:2*n*groupSize], packed[:n*groupSize/2]
	b, p, s := unsafe.SliceData(bf16), unsafe.SliceData(packed), unsafe.SliceData(scales)
	switch path {
	case "avx512":
		return errorBlock * errorSumsAVX512(&sums[0][0], b, p, s, &steps[0], blocks)
	case "avx2":
		return errorBlock * errorSumsAVX2(&sums[0][0], b, p, s, &steps[0], blocks)
	}
	return 0
}
