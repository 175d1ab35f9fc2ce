package quant

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// matrix has numbers of about +-8 and a gap between its rows.
func matrix(seed uint64, rows, cols, gap int) Matrix {
	m := Matrix{make([]float32, max(rows*(cols+gap)-gap, 0)), rows, cols, cols + gap}
	for i := range m.Data {
		m.Data[i] = float32(int64(splitmix(seed, uint64(i)))) * 0x1p-60
	}
	return m
}

// gaps returns what lies between a matrix's rows.
func (m Matrix) gaps() (between []float32) {
	for i := range max(m.Rows-1, 0) {
		between = append(between, m.Data[i*m.Stride+m.Cols:(i+1)*m.Stride]...)
	}
	return between
}

// TestMatMul holds every path against float64 sums of the exact products.
func TestMatMul(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for _, size := range [][3]int{
			{0, 3, 32},
			{3, 0, 32},
			{1, 7, 64},
			{2, 4, 16},
			{2, 9, 48},
			{3, 5, 64},
			{4, 8, 1024},
			{5, 1, 1040},
			{6, 130, 96},
			{7, 67, 2064},
			{8, 3, 3072},
			{13, 6, 192},
			{29, 66, 128},
			{300, 5, 32},
		} {
			tokens, rows, cols := size[0], size[1], size[2]
			bf16 := generate("gauss", uint64(cols), rows*cols, 0)
			global, packed, scales := quantizeReference(profile(t, "ct-fp32-rcp6"), bf16)
			x, got := matrix(5, tokens, cols, 5), matrix(6, tokens, rows, 3)
			between := got.gaps()
			MatMulBF16(got, x, bf16)
			for i := range tokens {
				requireProducts(t, bf16Values(bf16), x.row(i), got.row(i))
			}
			values := make([]float32, rows*cols)
			Dequantize(values, packed, scales, global, false)
			MatMulNVFP4(got, x, packed, scales, 1/global)
			for i := range tokens {
				requireProducts(t, values, x.row(i), got.row(i))
			}
			require.Equal(t, between, got.gaps(), size)
		}
	})
}

func bf16Values(bf16 []byte) []float32 {
	values := make([]float32, len(bf16)/2)
	for i := range values {
		values[i] = BF16ToFloat32(element(bf16, i))
	}
	return values
}

// TestMatMulWidths: where columns do not fill a vector. NVFP4 always has whole groups.
func TestMatMulWidths(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for cols := range 40 {
			bf16, x, got := generate("gauss", 3, 6*cols, 0), matrix(1, 5, cols, 0), matrix(2, 5, 6, 0)
			MatMulBF16(got, x, bf16)
			for i := range 5 {
				requireProducts(t, bf16Values(bf16), x.row(i), got.row(i))
			}
		}
	})
}

// TestMatMulPlaces finds each weight's own activation and place: a swapped order cannot hide in a sum.
func TestMatMulPlaces(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const tokens, rows, cols = 5, 6, 1024 + 64
		packed, scales, bf16 := make([]byte, rows*cols/2), make([]byte, rows*cols/16), generate("gauss", 1, rows*cols, 0)
		for i := range packed {
			packed[i] = byte(splitmix(3, uint64(i)))
		}
		for g := range scales {
			scales[g] = byte(3*g) & 0x7f % 0x7f
		}
		values := make([]float32, rows*cols)
		Dequantize(values, packed, scales, 1, false)
		got := matrix(2, tokens, rows, 0)
		for c := range cols {
			x := Matrix{make([]float32, tokens*cols), tokens, cols, cols}
			for i := range tokens {
				x.row(i)[c] = float32(int(2) << i)
			}
			MatMulNVFP4(got, x, packed, scales, 0.25)
			for i := range tokens {
				for r := range rows {
					require.Equal(t, values[r*cols+c]*float32(int(2)<<i)/4, got.row(i)[r], "%d %d %d", c, i, r)
				}
			}
			MatMulBF16(got, x, bf16)
			for i := range tokens {
				for r := range rows {
					require.Equal(t, BF16ToFloat32(element(bf16, r*cols+c))*float32(int(2)<<i), got.row(i)[r], "%d %d %d", c, i, r)
				}
			}
		}
	})
}

// TestMatMulRowsAreAlone: neither the number of tokens nor the piece of the weights changes a bit; one token and two are matrix-vector products.
func TestMatMulRowsAreAlone(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const tokens, rows, cols = 23, 270, 2112 // more than one turn of few rows
		bf16 := generate("gauss", 9, rows*cols, 0)
		global, packed, scales := quantizeReference(Profiles[0], bf16)
		x := matrix(4, tokens, cols, 0)
		for _, form := range []struct {
			multiply func(dst, x Matrix, row int)
			vector   func(dst, x []float32)
		}{
			{
				func(dst, x Matrix, row int) { MatMulBF16(dst, x, bf16[2*row*cols:]) },
				func(dst, x []float32) { MatVecBF16(dst, x, bf16, rows, cols) },
			},
			{
				func(dst, x Matrix, row int) {
					MatMulNVFP4(dst, x, packed[row*cols/2:], scales[row*cols/16:], 1/global)
				},
				func(dst, x []float32) { MatVecNVFP4(dst, x, packed, scales, 1/global, rows, cols) },
			},
		} {
			whole, vectors := matrix(1, tokens, rows, 0), matrix(1, tokens, rows, 0)
			form.multiply(whole, x, 0)
			for i := range tokens {
				form.vector(vectors.row(i), x.row(i))
			}
			for _, n := range []int{1, 2, 3, 7, 12, 17, 22} {
				want := whole
				if n <= 2 {
					want = vectors
				}
				for _, row := range []int{0, 1, 7, 62, 269} {
					for _, count := range []int{9, rows} {
						part, from := matrix(2, n, min(rows-row, count), 0), tokens-n
						form.multiply(part, x.rows(from, tokens), row)
						for i := range n {
							require.Equal(t, want.row(from + i)[row:][:part.Cols], part.row(i), "%d tokens from row %d", n, row)
						}
					}
				}
			}
		}
	})
}

// TestFloatRows holds DotRows and AddRows against float64.
func TestFloatRows(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for queries := range 9 {
			for _, rows := range []int{0, 1, 3, 4, 5, 8, 23, 70} {
				for _, cols := range []int{0, 1, 7, 8, 16, 24, 31, 32, 64, 80, 96, 128, 136, 192, 256} {
					name := fmt.Sprint(queries, " queries, ", rows, " rows of ", cols)
					q, m := matrix(1, queries, cols, 3), matrix(2, rows, cols, 5)
					got := matrix(3, queries, rows, 2)
					between := got.gaps()
					DotRows(got, q, m)
					require.Equal(t, between, got.gaps(), name)
					dense := make([]float32, 0, rows*cols)
					transposed := make([]float32, rows*cols)
					for r := range rows {
						dense = append(dense, m.row(r)...)
						for c, v := range m.row(r) {
							transposed[c*rows+r] = v
						}
					}
					for i := range queries {
						requireProducts(t, dense, q.row(i), got.row(i))
					}

					weights, sum := matrix(4, queries, rows, 1), matrix(5, queries, cols, 4)
					between = sum.gaps()
					for i := range queries {
						clear(sum.row(i))
					}
					AddRows(sum, weights, m)
					require.Equal(t, between, sum.gaps(), name)
					for i := range queries {
						requireProducts(t, transposed, weights.row(i), sum.row(i))
					}
					twice := append([]float32(nil), sum.Data...)
					AddRows(Matrix{twice, queries, cols, sum.Stride}, weights, m)
					for i := range queries {
						for c, v := range sum.row(i) {
							require.InDelta(t, 2*v, twice[i*sum.Stride+c], float64(rows+1)*64*0x1p-20, name)
						}
					}
				}
			}
		}
	})
}

// TestMatMulAllocatesNothing: scratch is of a pool, and neither path of a call takes anything else.
func TestMatMulAllocatesNothing(t *testing.T) {
	if testRace {
		t.Skip("sync.Pool forgets at random under the race detector")
	}
	eachPath(t, func(t *testing.T) {
		const cols = 2048
		w, scales := make([]byte, 2*6*cols), make([]byte, 6*cols/groupSize)
		for _, tokens := range []int{1, 2, 13} {
			x, y, m, dots := matrix(1, tokens, cols, 0), matrix(2, tokens, 6, 0), matrix(3, 6, cols, 0), matrix(4, tokens, 6, 0)
			require.Zero(t, testing.AllocsPerRun(10, func() {
				MatMulBF16(y, x, w)
				MatMulNVFP4(y, x, w, scales, 1)
				DotRows(dots, x, m)
				AddRows(x, dots, m)
			}), "%d tokens", tokens)
		}
	})
}
