package quant

import "math"

// BF16ToFloat32 widens a bfloat16; every value is exact.
func BF16ToFloat32(bits uint16) float32 { return math.Float32frombits(uint32(bits) << 16) }

// Float32ToBF16 rounds to the nearest bfloat16, ties to even; NaN becomes a quiet NaN of the same sign.
func Float32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// F16ToFloat32 widens an IEEE half; every value is exact.
func F16ToFloat32(bits uint16) float32 {
	return widen(uint32(bits&0x7fff), 10, 15, 0x1f, bits&0x8000 != 0)
}

// Float32ToF16 rounds to the nearest IEEE half, ties to even; 65520 and above become infinity.
func Float32ToF16(f float32) uint16 {
	sign, magnitude, nan := split(f)
	if nan {
		return uint16(sign<<15) | 0x7e00
	}
	return uint16(sign<<15) | uint16(min(narrow(magnitude, 10, 15), 0x7c00))
}

// E4M3ToFloat32 widens a float8_e4m3fn: 4 exponent bits of bias 7, 3 mantissa bits, no infinity, 0x7f and 0xff NaN.
func E4M3ToFloat32(b byte) float32 {
	if b&0x7f == 0x7f {
		return float32(math.NaN())
	}
	return widen(uint32(b&0x7f), 3, 7, 0x10, b&0x80 != 0)
}

// Float32ToE4M3 rounds to the nearest float8_e4m3fn, ties to even. It does not saturate: above 464 the result is NaN, as in torch.
func Float32ToE4M3(f float32) byte {
	sign, magnitude, nan := split(f)
	if nan {
		return byte(sign<<7) | 0x7f
	}
	return byte(sign<<7) | byte(min(narrow(magnitude, 3, 7), 0x7f))
}

// E5M2ToFloat32 widens a float8_e5m2, which is the upper half of an IEEE half.
func E5M2ToFloat32(b byte) float32 { return F16ToFloat32(uint16(b) << 8) }

// Float32ToE5M2 rounds to the nearest float8_e5m2, ties to even; 61440 and above become infinity.
func Float32ToE5M2(f float32) byte {
	sign, magnitude, nan := split(f)
	if nan {
		return byte(sign<<7) | 0x7f
	}
	return byte(sign<<7) | byte(min(narrow(magnitude, 2, 15), 0x7c))
}

// E8M0ToFloat32 returns 2^(b-127), and NaN for 0xff.
func E8M0ToFloat32(b byte) float32 {
	switch b {
	case 0:
		return 0x1p-127
	case 0xff:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(b) << 23)
}

// Float32ToE8M0 returns the power of two nearest to |f|, the upper one for a tie. Zero gives 2^-127; NaN, infinity and what lies nearer
// to 2^128 than to 2^127 give 0xff.
func Float32ToE8M0(f float32) byte {
	b := math.Float32bits(f) & 0x7fffffff
	if b < 0x00800000 { // below 2^-126: the tie between 2^-127 and 2^-126 is at 0.75 * 2^-126
		if b >= 0x00600000 {
			return 1
		}
		return 0
	}
	return byte(min((b+0x00400000)>>23, 0xff))
}

var e2m1Values = [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}

// E2M1ToFloat32 returns the value of a 4-bit code: sign in bit 3, then 0, 0.5, 1, 1.5, 2, 3, 4 or 6.
func E2M1ToFloat32(code byte) float32 {
	v := e2m1Values[code&7]
	if code&8 != 0 {
		return float32(math.Copysign(float64(v), -1))
	}
	return v
}

// Float32ToE2M1 rounds to the nearest code, ties to the even code, and saturates at 6. The sign is kept, also that of -0 and NaN;
// the magnitude of NaN is 6. Code is the form of it that quantization uses.
func Float32ToE2M1(f float32) byte {
	b := math.Float32bits(f)
	return byte(b>>31<<3) | e2m1Magnitude(math.Float32frombits(b&0x7fffffff))
}

// e2m1Magnitude is the table of the specification: the comparisons are closed where the even code is the lower one.
func e2m1Magnitude(y float32) byte {
	switch {
	case y <= 0.25:
		return 0
	case y < 0.75:
		return 1
	case y <= 1.25:
		return 2
	case y < 1.75:
		return 3
	case y <= 2.5:
		return 4
	case y < 3.5:
		return 5
	case y <= 5:
		return 6
	}
	return 7
}

func split(f float32) (sign, magnitude uint32, nan bool) {
	b := math.Float32bits(f)
	return b >> 31, b & 0x7fffffff, b&0x7fffffff > 0x7f800000
}

// widen turns the magnitude bits of a small float (mantissa bits m, exponent bias, exponent field of infinity and NaN) into a float32.
func widen(bits, m, bias, top uint32, negative bool) float32 {
	mantissa, exponent := bits&(1<<m-1), bits>>m
	var v float64
	switch {
	case exponent == top && mantissa != 0:
		v = math.NaN()
	case exponent == top:
		v = math.Inf(1)
	case exponent == 0:
		v = math.Ldexp(float64(mantissa), 1-int(bias)-int(m))
	default:
		v = math.Ldexp(float64(mantissa|1<<m), int(exponent)-int(bias)-int(m))
	}
	if negative {
		v = math.Copysign(v, -1)
	}
	return float32(v)
}

// narrow rounds the magnitude bits of a float32 to m mantissa bits at the given bias, ties to even. The result may pass the largest
// finite code: the caller caps it.
func narrow(magnitude, m, bias uint32) uint32 {
	drop := 23 - m
	rebias := (127 - bias) << 23
	if magnitude >= rebias+1<<23 { // normal in the small format
		magnitude -= rebias
		return (magnitude + 1<<(drop-1) - 1 + magnitude>>drop&1) >> drop
	}
	// Subnormal: adding a power of two whose last place is the small format's last place lets the float32 adder round.
	anchor := math.Float32frombits((127 - bias + 1 + drop) << 23)
	return math.Float32bits(math.Float32frombits(magnitude)+anchor) - math.Float32bits(anchor)
}
