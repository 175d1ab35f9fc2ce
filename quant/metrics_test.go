package quant

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMetrics holds the known quality of NVFP4 on Gaussian weights (9.51 %, floor 9.41 %) and an independent sum in another order.
func TestMetrics(t *testing.T) {
	const n = 64 * 3072
	bf16 := make([]byte, 0, 2*n)
	for i := range uint64(n) { // Box-Muller
		u, v := float64(splitmix(7, 2*i)>>11)*0x1p-53, float64(splitmix(7, 2*i+1)>>11)*0x1p-53
		bf16 = append(bf16, bf16Bytes(Float32ToBF16(float32(0.02*math.Sqrt(-2*math.Log(1-u))*math.Cos(2*math.Pi*v))))...)
	}
	p := profile(t, "ct-fp32-rcp6")
	global, packed, scales := quantizeReference(p, bf16)
	e := MeasureErrors(p, global, bf16, packed, scales)
	require.InDelta(t, 0.0951, e.RelativeRMS(), 0.0003)
	require.InDelta(t, 0.0941, e.Floor(), 0.0003)

	values := make([]float32, n)
	Dequantize(values, packed, scales, global, false)
	var squares, errors, floors float64
	for i := n - 1; i >= 0; i-- {
		x := float64(BF16ToFloat32(element(bf16, i)))
		squares += x * x
		errors += (x - float64(values[i])) * (x - float64(values[i]))
		ideal := float64(AbsMax(bf16[i/16*32:][:32])) / 6
		nearest := math.Inf(1)
		for _, v := range e2m1Values {
			nearest = min(nearest, math.Abs(math.Abs(x)-float64(v)*ideal))
		}
		floors += nearest * nearest
	}
	require.InEpsilon(t, squares, e.SumSquares, 1e-7)
	require.InEpsilon(t, errors, e.SumSquaredError, 1e-7)
	require.InEpsilon(t, floors, e.SumSquaredFloor, 1e-7)

	twice := e
	twice.Add(e)
	require.Equal(t, Errors{2 * e.SumSquares, 2 * e.SumSquaredError, 2 * e.SumSquaredFloor}, twice)
	require.Zero(t, Errors{}.RelativeRMS())
}
