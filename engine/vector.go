package engine

import "math"

// dot sums in eight lanes, so that the additions do not wait for one another.
func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s [8]float32
	i := 0
	for ; i+8 <= len(a); i += 8 {
		x, y := a[i:i+8:i+8], b[i:i+8:i+8]
		s[0] += float32(x[0] * y[0])
		s[1] += float32(x[1] * y[1])
		s[2] += float32(x[2] * y[2])
		s[3] += float32(x[3] * y[3])
		s[4] += float32(x[4] * y[4])
		s[5] += float32(x[5] * y[5])
		s[6] += float32(x[6] * y[6])
		s[7] += float32(x[7] * y[7])
	}
	sum := ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
	for ; i < len(a); i++ {
		sum += float32(a[i] * b[i])
	}
	return sum
}

// addScaled adds w*x to dst.
func addScaled(dst, x []float32, w float32) {
	x = x[:len(dst)]
	for i, v := range x {
		dst[i] += float32(v * w)
	}
}

// rmsNorm writes x / rms(x) * weight and reports whether the mean square was finite.
func rmsNorm(dst, x, weight []float32, eps float32) bool {
	mean := dot(x, x) / float32(len(x))
	scale := float32(1 / math.Sqrt(float64(mean+eps)))
	weight = weight[:len(x)]
	for i, v := range x {
		dst[i] = float32(v*scale) * weight[i]
	}
	return mean <= math.MaxFloat32
}

// softmax turns scores into probabilities in place.
func softmax(x []float32) {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top { // max() is ten times slower: it asks about NaN and zeros
			top = v
		}
	}
	var sum float32
	for i, v := range x {
		x[i] = exp(v - top)
		sum += x[i]
	}
	scale := 1 / sum
	for i := range x {
		x[i] *= scale
	}
}

// exp is within two units in the last place: a prompt needs it for every pair of tokens in every head,
// and math.Exp takes longer. exp(x) = 2^n * exp(r), r being at most ln(2)/2, and exp(r) a polynomial (Cephes).
func exp(x float32) float32 {
	const shift = 3 << 22 // beside it a float32 has no fraction: adding it rounds, and its low bits are the whole number
	if !(x > -87 && x < 88) {
		return float32(math.Exp(float64(x)))
	}
	shifted := float32(x*math.Log2E) + shift
	n := shifted - shift
	r := x - float32(n*0.693359375) - float32(n*-2.12194440e-4)
	y := float32(1.9875691500e-4*r) + 1.3981999507e-3
	y = float32(y*r) + 8.3334519073e-3
	y = float32(y*r) + 4.1665795894e-2
	y = float32(y*r) + 1.6666665459e-1
	y = float32(y*r) + 5.0000001201e-1
	y = float32(y*float32(r*r)) + r + 1
	return y * math.Float32frombits((math.Float32bits(shifted)-math.Float32bits(shift)+127)<<23)
}

func sigmoid(x float32) float32 { return 1 / (1 + exp(-x)) }
func silu(x float32) float32    { return x / (1 + exp(-x)) }

func softplus(x float32) float32 {
	if x > 20 { // as the reference: exp(-20) is below float32's resolution there
		return x
	}
	return float32(math.Log1p(math.Exp(float64(x))))
}
