//go:build amd64 && !noasm

package quant

import (
	"testing"

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
