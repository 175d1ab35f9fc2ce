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
