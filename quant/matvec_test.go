package quant

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMatVec holds every path, over widths with and without a kernel, against float64 sums of the exact products.
func TestMatVec(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const rows = 9
		for _, cols := range []int{16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 448, 512, 1856, 3072} {
			bf16 := generate("gauss", uint64(cols), rows*cols, 0)
			x := make([]float32, cols)
			for i := range x {
				x[i] = float32(int64(splitmix(5, uint64(i)))) * 0x1p-60
			}
			p := profile(t, "ct-fp32-rcp6")
			global, packed, scales := quantizeReference(p, bf16)
			values := make([]float32, rows*cols)

			got := make([]float32, rows+1)
			got[rows] = 7
			MatVecNVFP4(got, x, packed, scales, 1/global, rows, cols)
			Dequantize(values, packed, scales, global, false)
			requireProducts(t, values, x, got[:rows])
			require.Equal(t, float32(7), got[rows])

			MatVecBF16(got, x, bf16, rows, cols)
			for i := range values {
				values[i] = BF16ToFloat32(element(bf16, i))
			}
			requireProducts(t, values, x, got[:rows])
		}
	})
}

// TestMatVecPlaces finds each weight's own activation: a swapped order cannot hide in a sum.
func TestMatVecPlaces(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const cols = 512
		for c := range cols {
			x := make([]float32, cols)
			x[c] = 1
			packed, scales, bf16 := make([]byte, cols/2), make([]byte, cols/16), make([]byte, 2*cols)
			for i := range cols {
				packed[i/2] |= byte(i*7%13+1) << (i % 2 * 4)
				copy(bf16[2*i:], bf16Bytes(Float32ToBF16(float32(i)-200)))
			}
			for g := range scales {
				scales[g] = byte(3 * g) // from subnormal scales on
			}
			got := []float32{0}
			MatVecBF16(got, x, bf16, 1, cols)
			require.Equal(t, BF16ToFloat32(element(bf16, c)), got[0], c)
			MatVecNVFP4(got, x, packed, scales, 0.25, 1, cols)
			require.Equal(t, E2M1ToFloat32(packed[c/2]>>(c%2*4)&15)*E4M3ToFloat32(scales[c/16])/4, got[0], c)
		}
	})
}

// TestMatVecRange has activations of every magnitude whose products are float32, some of them alone among small ones.
func TestMatVecRange(t *testing.T) {
	const rows, cols = 3, 512
	p := profile(t, "ct-fp32-rcp6")
	bf16 := generate("gauss", 3, rows*cols, 0)
	global, packed, scales := quantizeReference(p, bf16)
	values := make([]float32, rows*cols)
	Dequantize(values, packed, scales, global, false)
	eachPath(t, func(t *testing.T) {
		for exponent := -120; exponent <= 100; exponent += 8 {
			x, got := make([]float32, cols), make([]float32, rows)
			for i := range x {
				x[i] = float32(math.Ldexp(float64(int64(splitmix(5, uint64(i)))), exponent-63))
				if i%37 == 0 {
					x[i] *= 300
				}
			}
			MatVecNVFP4(got, x, packed, scales, 1/global, rows, cols)
			for r := range got {
				var sum, size float64
				for c, w := range values[r*cols:][:cols] {
					sum += float64(w) * float64(x[c])
					size += math.Abs(float64(w)) * math.Abs(float64(x[c]))
				}
				// below 2^-78 the absolute rounding of fixed-point numbers stays at 2^-101
				require.InDelta(t, sum, got[r], size*0x1p-20+cols*0x1p-101, "2^%d", exponent)
			}
		}
		for _, bad := range []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())} {
			for _, at := range []int{0, 7, 130, cols - 1} {
				x, got := make([]float32, cols), make([]float32, rows)
				x[at] = bad
				MatVecNVFP4(got, x, packed, scales, 1/global, rows, cols)
				for r, v := range got {
					if values[r*cols+at] != 0 {
						require.False(t, math.Abs(float64(v)) <= math.MaxFloat32, "%v at %d: %v", bad, at, v)
					}
				}
			}
		}
	})
}

func requireProducts(t *testing.T, w, x, got []float32) {
	t.Helper()
	for r := range got {
		var sum, size float64
		for c, v := range x {
			term := float64(v) * float64(w[r*len(x)+c])
			sum += term
			size += math.Abs(term)
		}
		require.InDelta(t, sum, got[r], size*0x1p-21, "row %d of %d columns", r, len(x))
	}
}
