// Package quant turns BF16 weights into NVFP4 and back, byte for byte as the known exporters do.
//
// reference.go is the truth: one scalar line for each line of the arithmetic. Everything faster in this package is tested against it bit
// for bit, over every profile. Weights are little-endian BF16, two bytes an element; every 16 elements along a row are a group with one
// E4M3 scale byte, and two 4-bit codes share a byte, the even column in the low half. So n elements have 2n bytes of BF16, n/2 packed
// bytes and n/16 scale bytes, and n is a multiple of 16.
package quant

import "math"

// ReferenceQuantize quantizes whole groups with a given global scale, one element at a time.
func ReferenceQuantize(p Profile, global float32, bf16, packed, scales []byte) {
	for g := range scales {
		group := bf16[g*2*groupSize:][:2*groupSize]
		scales[g] = p.GroupScale(BF16ToFloat32(maxMagnitude(group)), global)
		step := p.Step(scales[g], global)
		for j := range groupSize / 2 {
			even := Code(BF16ToFloat32(element(group, 2*j)), step)
			odd := Code(BF16ToFloat32(element(group, 2*j+1)), step)
			packed[g*groupSize/2+j] = even | odd<<4
		}
	}
}

// Global returns the global scale as it is stored, for the absolute maximum of a tensor or of a fused set.
// An overflow gives 1, which compressed-tensors does since 0.15.0; an underflow of ModelOpt's form gives 1 here too, where ModelOpt
// itself would go on to write NaN scales.
func (p Profile) Global(amax float32) float32 {
	var g float32
	switch p.GlobalForm {
	case GlobalReciprocalTimes:
		g = p.observed(p.observed(1/max(amax, float32Min)) * globalMax)
	case GlobalTimesReciprocal:
		g = amax * reciprocal2688
	case GlobalDivided:
		g = amax / globalMax
	}
	if g == 0 || math.IsInf(float64(g), 0) {
		return 1
	}
	return g
}

// GroupScale returns the E4M3 byte stored for a group whose absolute maximum is amax.
func (p Profile) GroupScale(amax, global float32) byte {
	var s float32
	switch p.ScaleForm {
	case ScaleTimesSixth:
		s = global * p.observed(amax*sixth)
	case ScaleDividedBy6:
		s = global * p.observed(amax/6)
	case ScaleDividedBy6W:
		s = amax / (6 * global)
	}
	if s == 0 {
		return p.ZeroScale
	}
	b := Float32ToE4M3(min(max(s, p.LowerClamp), scaleMax)) // clamp first: 465 and above would round to NaN
	if b == 0 {
		return p.ZeroScale
	}
	return b
}

// Step returns the value of code 1.0 in a group with the given scale byte.
func (p Profile) Step(scale byte, global float32) float32 {
	return step(scale, global, p.ModelOpt())
}

func step(scale byte, global float32, modelopt bool) float32 {
	if modelopt {
		return E4M3ToFloat32(scale) * global
	}
	return E4M3ToFloat32(scale) / global
}

// Code returns the 4-bit code of x: the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 to x/step, ties to the even code, and the sign in bit 3.
// A negative x that rounds to zero keeps its sign (code 8); an exact zero of either sign is code 0.
func Code(x, step float32) byte {
	y := x / step
	switch {
	case y > 0:
		return e2m1Magnitude(y)
	case y < 0:
		return 8 | e2m1Magnitude(-y)
	}
	return 0 // zero, and 0/0 where the step underflowed
}

// referenceDequantize is the truth for Dequantize.
func referenceDequantize(dst []float32, packed, scales []byte, global float32, modelopt bool) {
	for g, s := range scales {
		step := step(s, global, modelopt)
		for j, b := range packed[g*groupSize/2:][:groupSize/2] {
			dst[g*groupSize+2*j] = E2M1ToFloat32(b&15) * step
			dst[g*groupSize+2*j+1] = E2M1ToFloat32(b>>4) * step
		}
	}
}

// observed rounds to the observer's dtype.
func (p Profile) observed(f float32) float32 {
	if p.BF16Observer {
		return BF16ToFloat32(Float32ToBF16(f))
	}
	return f
}

// element returns the bits of element i.
func element(bf16 []byte, i int) uint16 { return uint16(bf16[2*i]) | uint16(bf16[2*i+1])<<8 }

// maxMagnitude returns the largest magnitude bits: finite magnitudes order as integers, with infinity and NaN above them.
func maxMagnitude(bf16 []byte) uint16 {
	var m uint16
	for i := range len(bf16) / 2 {
		m = max(m, element(bf16, i)&0x7fff)
	}
	return m
}
