package quant

import "math"

// Errors are the sums from which the quality of a quantization is told. Sums of several tensors add up.
type Errors struct {
	SumSquares      float64 // of the weights
	SumSquaredError float64 // of weight - dequantized weight
	SumSquaredFloor float64 // the same with the real number amax/6 as group scale: what amax scaling could reach at best
}

// Add adds the sums of another tensor.
func (e *Errors) Add(o Errors) {
	e.SumSquares += o.SumSquares
	e.SumSquaredError += o.SumSquaredError
	e.SumSquaredFloor += o.SumSquaredFloor
}

// RelativeRMS is the Frobenius norm of the error over that of the weights; about 0.0951 for Gaussian weights. It is 0 for zero weights.
func (e Errors) RelativeRMS() float64 { return relative(e.SumSquaredError, e.SumSquares) }

// Floor is the RelativeRMS of the same codes with unrounded group scales; about 0.0941 for Gaussian weights.
func (e Errors) Floor() float64 { return relative(e.SumSquaredFloor, e.SumSquares) }

func relative(e, of float64) float64 {
	if of == 0 {
		return 0
	}
	return math.Sqrt(e / of)
}

// MeasureErrors compares BF16 weights with their quantized form, dequantized to float32. All sums are float64 in eight lanes, element i in
// lane i mod 8, and the lanes are added as ((0+4)+(2+6)) + ((1+5)+(3+7)), so that every code path gives the same bits.
func MeasureErrors(p Profile, global float32, bf16, packed, scales []byte) Errors {
	var s errorLanes
	steps := stepsOf(global, p.ModelOpt())
	n := errorSumsBlocks(&s, bf16, packed, scales, &steps)
	referenceErrorSums(&s, p, global, bf16[n*groupSize*2:], packed[n*groupSize/2:], scales[n:])
	return Errors{s[0].sum(), s[1].sum(), s[2].sum() / 36}
}

// errorLanes are the squares of the weights, of the errors, and of the floor's errors times 6: 6x - code*amax is exact where amax/6 is not.
type errorLanes [3]lanes

type lanes [8]float64

func (l *lanes) add(i int, v float64) { l[i%8] += float64(v * v) }

func (l *lanes) sum() float64 {
	return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

func referenceErrorSums(sums *errorLanes, p Profile, global float32, bf16, packed, scales []byte) {
	for g, s := range scales {
		group := bf16[g*2*groupSize:][:2*groupSize]
		step := p.Step(s, global)
		amax := float64(BF16ToFloat32(maxMagnitude(group)))
		for i := range groupSize {
			x := float64(BF16ToFloat32(element(group, i)))
			code := packed[g*groupSize/2+i/2] >> (i % 2 * 4) & 15
			sums[0].add(i, x)
			sums[1].add(i, x-float64(E2M1ToFloat32(code)*step))
			six := math.Abs(6 * x)
			sums[2].add(i, six-float64(idealValue(six, amax)*amax))
		}
	}
}

// idealValue is the magnitude of the code nearest to x/step, ties to the even code, without a division.
func idealValue(x, step float64) float64 {
	for k := 6; k >= 0; k-- {
		low, high := float64(e2m1Values[k]), float64(e2m1Values[k+1])
		if middle := (low + high) / 2 * step; x > middle || x == middle && k%2 == 1 {
			return high
		}
	}
	return 0
}
