//go:build arm64 && !noasm

package quant

import (
	"sync"
	"unsafe"
)

//go:noescape
func absMaxNEON(bf16 *byte, blocks int) uint16

//go:noescape
func groupMaximaNEON(dst *uint16, bf16 *byte, groups int)

//go:noescape
func codesNEON(k *kernelTables, packed, scales, bf16 *byte, groups int)

//go:noescape
func matVecBF16NEON(dst, x *float32, w *byte, rows, blocks int)

//go:noescape
func matVecNVFP4NEON(dst, x *float32, packed, scales *byte, values *float32, low, high *byte, step float32, rows, groups int)

// paths lists the code paths of this machine, the best first. Every arm64 has NEON.
func paths() []string { return []string{"neon", "go"} }

func absMaxBlocks(bf16 []byte) (magnitude uint16, n int) {
	if path == "go" {
		return 0, 0
	}
	n = len(bf16) &^ 127
	return absMaxNEON(unsafe.SliceData(bf16), n/128), n
}

func readBlocks([]byte) (sum uint16, n int) { return 0, 0 }

// quantizeBlocks quantizes whole blocks of groups and returns how many groups it did: it stops before a block with a group that the ladder
// cannot hold. A block's maxima and its codes are NEON's; the scales between them are scalar, one in a group.
func quantizeBlocks(k *kernelTables, packed, scales, bf16 []byte) int {
	if path == "go" {
		return 0
	}
	var maxima [blockGroups]uint16
	n := len(scales) &^ (blockGroups - 1)
	_, _ = packed[:n*groupSize/2], bf16[:2*n*groupSize]
	for g := 0; g < n; g += blockGroups {
		groupMaximaNEON(&maxima[0], &bf16[2*g*groupSize], blockGroups)
		block := scales[g:][:blockGroups]
		for i, m := range maxima {
			block[i] = k.scale(BF16ToFloat32(m)) & 0x7f
			if int(m)-int(k.ladder.origin[block[i]]) >= 1024 {
				return g
			}
		}
		codesNEON(k, &packed[g*groupSize/2], &block[0], &bf16[2*g*groupSize], blockGroups)
	}
	return n
}

// matVecBF16Blocks reports whether there is a kernel for the width; the caller checked the lengths.
func matVecBF16Blocks(dst, x []float32, w []byte, rows, cols int) bool {
	if path == "go" || cols%16 != 0 {
		return false
	}
	matVecBF16NEON(&dst[0], &x[0], &w[0], rows, cols/16)
	return true
}

// codeBytes are the two bytes of each code's value as BF16.
var codeBytes = sync.OnceValue(func() (b [2][16]byte) {
	for code := range b[0] {
		v := Float32ToBF16(E2M1ToFloat32(byte(code)))
		b[0][code], b[1][code] = byte(v), byte(v>>8)
	}
	return b
})

func matVecNVFP4Blocks(dst, x []float32, packed, scales []byte, step float32, rows, cols int) bool {
	if path == "go" {
		return false
	}
	values, codes := scaleValues(), codeBytes()
	matVecNVFP4NEON(&dst[0], &x[0], &packed[0], &scales[0], &values[0], &codes[0][0], &codes[1][0], step, rows, cols/groupSize)
	return true
}

func stepsBlock(_, _ *[256]float32, _ float32, _ bool) bool { return false }

func dequantizeBlocks([]float32, []byte, []byte, *[256]float32) int { return 0 }

func dequantizeBF16Blocks(_, _, _ []byte, _ *[256]float32) int { return 0 }

func errorSumsBlocks(_ *errorLanes, _, _, _ []byte, _ *[256]float32) int { return 0 }

func matMulBlocks(dst, x Matrix, w *weights) bool { return false }

func dotRowsBlocks(dst, q, m Matrix) bool { return false }

func addRowsBlocks(dst, weights, m Matrix) bool { return false }
