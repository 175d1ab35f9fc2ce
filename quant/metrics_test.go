package quant

import (
	"encoding/binary"
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

	requireErrors(t, exactErrors(global, bf16, packed, scales), e, 1e-7)

	twice := e
	twice.Add(e)
	require.Equal(t, Errors{2 * e.SumSquares, 2 * e.SumSquaredError, 2 * e.SumSquaredFloor}, twice)
	require.Zero(t, Errors{}.RelativeRMS())
}

// exactErrors is the definition, in float64 and without regard to order or speed.
func exactErrors(global float32, bf16, packed, scales []byte) (e Errors) {
	values := make([]float32, len(bf16)/2)
	Dequantize(values, packed, scales, global, false)
	for i := len(values) - 1; i >= 0; i-- {
		x := float64(BF16ToFloat32(element(bf16, i)))
		e.SumSquares += x * x
		e.SumSquaredError += (x - float64(values[i])) * (x - float64(values[i]))
		ideal := float64(AbsMax(bf16[i/16*32:][:32])) / 6
		nearest := math.Inf(1)
		for _, v := range e2m1Values {
			nearest = min(nearest, math.Abs(math.Abs(x)-float64(float64(v)*ideal))) // rounded: arm64 would multiply and subtract at once
		}
		e.SumSquaredFloor += nearest * nearest
	}
	return e
}

func requireErrors(t *testing.T, want, got Errors, relative float64, name ...any) {
	t.Helper()
	require.InDelta(t, want.SumSquares, got.SumSquares, relative*want.SumSquares, name...)
	require.InDelta(t, want.SumSquaredError, got.SumSquaredError, relative*want.SumSquaredError, name...)
	require.InDelta(t, want.SumSquaredFloor, got.SumSquaredFloor, relative*want.SumSquaredFloor, name...)
}

// TestErrorSumsAreAccurate holds the definition over inputs of every kind and size, also where float32 would not do.
func TestErrorSumsAreAccurate(t *testing.T) {
	p := Profiles[0]
	eachPath(t, func(t *testing.T) {
		for name, bf16 := range awkward() {
			for _, shift := range []uint16{0, 20 << 7, 50 << 7, 80 << 7} {
				scaled := append([]byte(nil), bf16...)
				for i := 0; i < len(scaled); i += 2 {
					e := element(scaled, i/2)
					binary.LittleEndian.PutUint16(scaled[i:], e-min(shift, e&0x7f80))
				}
				global, packed, scales := quantizeReference(p, scaled)
				requireErrors(t, exactErrors(global, scaled, packed, scales), MeasureErrors(p, global, scaled, packed, scales), 1e-6, name, shift)
			}
		}
	})
}
