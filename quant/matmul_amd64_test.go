//go:build amd64 && !noasm

package quant

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestMatMulTakesItsKernels: a kernel that declines leaves its work to the portable form, which no comparison of results can tell.
func TestMatMulTakesItsKernels(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		assembly := Path() != "go"
		for _, cols := range []int{1024, 3072, 12288} {
			x, dst := matrix(1, 3, cols, 0), matrix(2, 3, 5, 0)
			bf16, packed, scales := make([]byte, 2*5*cols), make([]byte, 5*cols/2), make([]byte, 5*cols/groupSize)
			require.Equal(t, assembly, matMulBlocks(dst, x, &weights{codes: bf16}), cols)
			require.Equal(t, assembly, matMulBlocks(dst, x, &weights{packed, scales, 1}), cols)
		}
		for _, dim := range []int{64, 128} {
			q, m, dots := matrix(1, 6, dim, 0), matrix(2, 9, dim, 0), matrix(3, 6, 9, 0)
			require.Equal(t, assembly, dotRowsBlocks(dots, q, m), dim)
			require.Equal(t, assembly, addRowsBlocks(q, dots, m), dim)
		}
	})
}

// TestKernelsLeaveTilesAlone: the garbage collector reads the pointers of a tile while a product is under way. One that a kernel had moved
// behind its object ended the process.
func TestKernelsLeaveTilesAlone(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		lanes, most := tileShape()
		if lanes == 0 {
			return // no kernels
		}
		memory := make([]float32, 4096)
		at := &memory[0]
		unchanged := func(run func(tile *byte)) {
			tile := dotTile{
				dst: &memory[2048], dstStride: 16, x: at, xStride: 256, xStep: 4 * lanes, w: at, wStride: 256, wStep: 4 * lanes, quadStep: 1024, quads: 2,
				vectors: 64 / lanes, scale: 1, prefetch: (*byte)(unsafe.Pointer(at)), prefetchStride: 256, prefetchStep: 64,
			}
			before := tile
			run((*byte)(unsafe.Pointer(&tile)))
			require.True(t, before == tile) // the pointers, not what they point to
		}
		for rows := 1; rows <= most; rows++ {
			if lanes == 16 {
				unchanged(func(tile *byte) { panelTileAVX512(tile, rows) })
				unchanged(func(tile *byte) { dotTileAVX512(tile, rows) })
			} else {
				unchanged(func(tile *byte) { panelTileAVX2(tile, rows) })
				unchanged(func(tile *byte) { dotTileAVX2(tile, rows) })
			}
		}
		for rows := 1; rows <= 3; rows++ {
			for _, vectors := range []int{1, lanes / 2} {
				tile := addTile{dst: &memory[2048], dstStride: 1024, weights: at, weightsStride: 64, m: at, mStride: 1024, rows: 2}
				before := tile
				if lanes == 16 {
					addTileAVX512((*byte)(unsafe.Pointer(&tile)), rows, vectors)
				} else {
					addTileAVX2((*byte)(unsafe.Pointer(&tile)), rows, vectors)
				}
				require.True(t, before == tile) // the pointers, not what they point to
			}
		}
	})
}
