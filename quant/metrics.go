package quant

import "math"

// Errors are the sums from which the quality of a quantization is told. Sums of several tensors add up.
type Errors struct {
	SumSquares      float64 `json:"squares"`       // of the weights
	SumSquaredError float64 `json:"squared_error"` // of weight - dequantized weight
	SumSquaredFloor float64 `json:"squared_floor"` // the same with the real number amax/6 as group scale: what amax scaling could reach at best
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

// MeasureErrors compares BF16 weights with their quantized form, dequantized to float32. The sums are within a millionth of the exact ones,
// and the same bits on every code path: blocks of 16 groups are added up in float32, element i of a group in lane i, the blocks in float64,
// and then the lanes l and l+8, l and l+4, l and l+2, and the last two. A block whose squares might leave the range of float32 is added up in
// float64.
func MeasureErrors(p Profile, global float32, bf16, packed, scales []byte) Errors {
	var s errorLanes
	steps := stepsOf(global, p.ModelOpt())
	for len(scales) > 0 {
		n := 0
		if abs32(steps[0x7e]) <= errorMost {
			n = errorSumsBlocks(&s, bf16, packed, scales, &steps)
		}
		bf16, packed, scales = bf16[n*groupSize*2:], packed[n*groupSize/2:], scales[n:]
		n = min(errorBlock, len(scales))
		if fitsFloat32(&steps, bf16[:n*groupSize*2]) {
			sumErrorsGo(&s, &steps, bf16, packed, scales[:n])
		} else {
			sumErrors[float64](&s, &steps, bf16, packed, scales[:n], bf16Least)
		}
		bf16, packed, scales = bf16[n*groupSize*2:], packed[n*groupSize/2:], scales[n:]
	}
	return s.errors()
}

// fitsFloat32 reports whether a block may be added up in float32.
func fitsFloat32(steps *[256]float32, bf16 []byte) bool {
	top := BF16ToFloat32(absMaxGo(bf16))
	return abs32(steps[0x7e]) <= errorMost && top <= errorMost && (top == 0 || top >= errorLeast)
}

const (
	errorBlock            = 16
	errorLeast, errorMost = 0x1p-40, 0x1p40 // largest magnitudes of a block between which float32 will do
	bf16Least             = 0x1p-133
)

// errorLanes are the squares of the weights, of the errors, and of the floor's errors times 6: 6x - code*amax is exact where amax/6 is not.
type errorLanes [3][groupSize]float64

func (l *errorLanes) errors() Errors {
	var sums [3]float64
	for i, lanes := range l {
		for n := groupSize / 2; n > 0; n /= 2 {
			for j := range n {
				lanes[j] += lanes[j+n]
			}
		}
		sums[i] = lanes[0]
	}
	return Errors{sums[0], sums[1], sums[2] / 36}
}

func referenceErrorSums(sums *errorLanes, steps *[256]float32, bf16, packed, scales []byte) {
	for len(scales) > 0 {
		n := min(errorBlock, len(scales))
		if fitsFloat32(steps, bf16[:n*groupSize*2]) {
			sumErrors[float32](sums, steps, bf16, packed, scales[:n], float32Min)
		} else {
			sumErrors[float64](sums, steps, bf16, packed, scales[:n], bf16Least)
		}
		bf16, packed, scales = bf16[n*groupSize*2:], packed[n*groupSize/2:], scales[n:]
	}
}

// sumErrors adds a block. Group maxima from least on have a reciprocal; smaller ones beside errorLeast do not matter.
func sumErrors[F float32 | float64](sums *errorLanes, steps *[256]float32, bf16, packed, scales []byte, least F) {
	var lanes [3][groupSize]F
	for g, s := range scales {
		group := bf16[g*2*groupSize:][:2*groupSize]
		amax := F(BF16ToFloat32(maxMagnitude(group)))
		inverse := 1 / max(amax, least)
		for i := range groupSize {
			x := F(BF16ToFloat32(element(group, i)))
			code := packed[g*groupSize/2+i/2] >> (i % 2 * 4) & 15
			e := x - F(E2M1ToFloat32(code)*steps[s])
			six := max(6*x, -6*x)
			floor := six - F(idealValue(F(six*inverse))*amax)
			lanes[0][i] += F(x * x)
			lanes[1][i] += F(e * e)
			lanes[2][i] += F(floor * floor)
		}
	}
	for k := range lanes {
		for i, v := range lanes[k] {
			sums[k][i] += float64(v)
		}
	}
}

// idealValue is the E2M1 value nearest to y, the larger one of two. Where y was rounded to just the middle of two, either is as good.
func idealValue[F float32 | float64](y F) F {
	for k := 6; k >= 0; k-- {
		low, high := F(e2m1Values[k]), F(e2m1Values[k+1])
		if y >= (low+high)/2 {
			return high
		}
	}
	return 0
}

// idealCells has idealValue for the cells that the three lower bits of y's exponent and the two upper bits of its mantissa make, from 1/8 on:
// the middles lie between cells.
var idealCells = func() (cells [32]float32) {
	for b := math.Float32bits(0.125); b < math.Float32bits(8); b += 1 << 21 {
		cells[b>>21&31] = idealValue(math.Float32frombits(b))
	}
	return cells
}()

// sumErrorsGo is sumErrors[float32] without branches.
func sumErrorsGo(sums *errorLanes, steps *[256]float32, bf16, packed, scales []byte) {
	var lanes [3][groupSize]float32
	pairs := pairValues()
	for g, s := range scales {
		group, codes := (*[2 * groupSize]byte)(bf16[g*2*groupSize:]), (*[groupSize / 2]byte)(packed[g*groupSize/2:])
		amax, step := BF16ToFloat32(absMaxGo(group[:])), steps[s]
		inverse := 1 / math.Float32frombits(max(math.Float32bits(amax), math.Float32bits(float32Min)))
		for j, b := range codes {
			pair := &pairs[b]
			for k, code := range pair {
				i := 2*j + k
				bits := uint32(group[2*i])<<16 | uint32(group[2*i+1])<<24
				x, six := math.Float32frombits(bits), 6*math.Float32frombits(bits&^(1<<31))
				e := x - float32(code*step)
				y := max(math.Float32bits(six*inverse), math.Float32bits(0.125))
				floor := six - float32(idealCells[y>>21&31]*amax)
				lanes[0][i] += float32(x * x)
				lanes[1][i] += float32(e * e)
				lanes[2][i] += float32(floor * floor)
			}
		}
	}
	for k := range lanes {
		for i, v := range lanes[k] {
			sums[k][i] += float64(v)
		}
	}
}

func abs32(f float32) float32 { return max(f, -f) }
