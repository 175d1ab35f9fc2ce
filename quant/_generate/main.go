// Command _generate writes the amd64 assembly of package quant: see the go:generate line in quant/generate.go.
//
// It is a module of its own, so that nobody who builds lagquant fetches the assembler. Only VEX and EVEX encodings are used: one legacy SSE
// instruction after a use of the upper register halves costs half the speed of a kernel.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"   //nolint: the assembler's own style
	. "github.com/mmcloughlin/avo/operand" //nolint
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in kernelTables; a test compares them with the Go struct.
const (
	tableRise       = 0
	tableRow        = 128
	tableLow        = 256
	tableHigh       = 384
	tableOrigin     = 512
	tableStairCode  = 768
	tableMultiplier = 784
	tableFactor     = 788
	tableLower      = 792
	tableZeroScale  = 796
	tableDivide     = 800
	tableBF16       = 804
)

// ahead is how far the kernels prefetch, in bytes; 2 to 8 KB measured alike, less and more slower.
const ahead = 4096

// Matrix-vector products, which compute while they read, get more by asking twice: for the second-level cache from far, for the first from
// near. That took BF16 from 91 to 96 % of the read rate, and NVFP4 from 75 to 82 %, on a Xeon (model 207).
const near, far = 1536, 6144

// prefetch asks for the cache line at an offset from a stream's place, twice.
func prefetch(stream reg.Register, offset int) {
	PREFETCHT1(Mem{Base: stream, Disp: far + offset})
	PREFETCHT0(Mem{Base: stream, Disp: near + offset})
}

func main() {
	ConstraintExpr("amd64,!noasm")
	scans()
	quantizeAVX512()
	quantizeAVX2()
	matvecBF16(avx2)
	matvecBF16(avx512)
	matvecNVFP4AVX2()
	fixed512()
	matvecNVFP4AVX512()
	for _, v := range []vector{avx2, avx512} {
		dequantize(v, false)
		dequantize(v, true)
		widenBF16(v)
		interleave(v)
		peak(v)
		reorderBF16(v)
	}
	errorSums(avx2, errorSumsAVX2)
	errorSums(avx512, errorSumsAVX512)
	reorderNVFP4AVX2()
	widenNVFP4AVX2()
	widenNVFP4AVX512()
	stepsAVX2()
	lookupBF16AVX2()
	lookupBF16AVX512()
	dotTiles(avx2, 1, 3, false)
	dotTiles(avx512, 1, 6, false)
	dotTiles(avx2, 2, 3, true) // panels are of three rows or more, shared out evenly
	dotTiles(avx512, 3, 6, true)
	addTiles(avx2, 4)
	addTiles(avx512, 8)
	Generate()
}

var constants = map[string]Mem{}

// bytes returns a read-only 64-byte constant, made from a function of the byte's index.
func bytes(name string, f func(i int) byte) Mem {
	if m, ok := constants[name]; ok {
		return m
	}
	m := GLOBL("quant_"+name, 8|16) // RODATA|NOPTR
	for i := 0; i < 64; i += 8 {
		var v uint64
		for j := range 8 {
			v |= uint64(f(i+j)) << (8 * j)
		}
		DATA(i, U64(v))
	}
	constants[name] = m
	return m
}

// dword returns a read-only constant of 16 equal dwords.
func dword(v uint32) Mem {
	return bytes(fmt.Sprintf("dword%08x", v), func(i int) byte { return byte(v >> (8 * (i % 4))) })
}

func word(v uint16) Mem { return dword(uint32(v)<<16 | uint32(v)) }
