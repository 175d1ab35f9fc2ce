//go:build linux

package quant

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// guarded returns n bytes that end where an unreadable page begins.
func guarded(t *testing.T, n int) []byte {
	page := os.Getpagesize()
	size := (n+page-1)/page*page + page
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	require.NoError(t, syscall.Mprotect(b[size-page:], syscall.PROT_NONE))
	return b[size-page-n : size-page]
}

// TestKernelsStayInside: a kernel that reads or writes one byte too many dies here.
func TestKernelsStayInside(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for _, cols := range []int{16, 64, 192, 256, 1024, 16 * 67, 16 * 301} {
			const rows = 3
			n := rows * cols
			bf16, packed, scales, out := guarded(t, 2*n), guarded(t, n/2), guarded(t, n/16), guarded(t, 2*n)
			copy(bf16, generate("gauss", 1, n, 0))
			p := Profiles[0]
			q := NewQuantizer(p, p.Global(AbsMax(bf16)))
			q.Quantize(packed, scales, bf16)
			MeasureErrors(p, q.global, bf16, packed, scales)
			DequantizeBF16(out, packed, scales, q.global, false)
			Dequantize(make([]float32, n), packed, scales, q.global, false)
			read(bf16)
			x, y := make([]float32, cols), make([]float32, rows)
			MatVecBF16(y, x, bf16, rows, cols)
			MatVecNVFP4(y, x, packed, scales, 1, rows, cols)

			many := func(rows, cols int) Matrix {
				b := guarded(t, 4*rows*cols)
				return Matrix{unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4), rows, cols, cols}
			}
			for _, tokens := range []int{2, 7, 13} {
				x, y := many(tokens, cols), many(tokens, rows)
				MatMulBF16(y, x, bf16)
				MatMulNVFP4(y, x, packed, scales, 1)
				for _, cols := range []int{cols, cols - 1, 1} {
					q, m, dots := many(tokens, cols), many(6, cols), many(tokens, 6)
					DotRows(dots, q, m)
					AddRows(q, dots, m)
				}
			}
		}
	})
}
