package quant

import "math/bits"

// The fast quantizers need no division for an element, because the input is BF16: as a function of the 15 magnitude bits, the code of a
// group is a staircase with seven rises, found here with the scalar reference, so exact for every profile by construction.
//
// Scale bytes of equal mantissa have the same staircase, moved by 128 magnitudes for each power of two, so eight staircases do. And in
// units of 64 magnitudes, half a power of two, the rises of every staircase can be made to fall into the same stairs: at an origin chosen
// for each mantissa, code 1 begins within stair 0, code 2 in stair 3, and codes 3 to 7 in stairs 4 to 8. For a magnitude d above the
// origin the code is therefore
//
//	stairCode[d>>6] + (d&63 >= rise[mantissa][d>>6])
//
// with tables small enough for byte shuffles.
type ladder struct {
	rise   [128]byte   // by mantissa<<4 | stair: where in the stair the code rises; 64 where it does not
	row    [128]byte   // by scale byte: mantissa<<4
	low    [128]byte   // by scale byte: origin, low byte
	high   [128]byte   // by scale byte: origin, high byte
	origin [128]uint16 // by scale byte: magnitude bits of the origin; smaller magnitudes are code 0
}

// stairs and stairCode are the same for all ladders: the stair in which the code passes k, and the code at the foot of a stair.
var (
	stairs    = [7]int{0, 3, 4, 5, 6, 7, 8}
	stairCode = [16]byte{0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7, 7}
)

// Ladders exist where all magnitudes that matter are normal numbers: global scales within 2^±90, which is weights of 2^-78 to 2^101.
const ladderMin, ladderMax = 0x1p-90, 0x1p90

// A ladder gives all small negative numbers code 8, also those whose quotient is zero in float32, where the reference has code 0. There are
// none up to this step: the least BF16 magnitude, 2^-133, over 2^16 is the least float32. It is exceeded by weights of 393,216 and more.
const ladderStep = 0x1p16

// build fills the ladder for a profile and global scale and reports whether there is one.
func (l *ladder) build(p Profile, global float32) bool {
	if !(global >= ladderMin && global <= ladderMax) || p.Step(0x7e, global) > ladderStep || p.ZeroScale == 0 {
		return false
	}
	var origins [8]int
	for m := range origins {
		var rises [7]int
		step := p.Step(0x38|byte(m), global)
		for k := range rises {
			rises[k] = firstAbove(byte(k), step)
		}
		// an origin at which no rise lies below its stair, and one magnitude under the first rise so that all lower ones are code 0
		origin := rises[0] - 1
		for k, rise := range rises {
			origin = min(origin, rise-64*stairs[k])
		}
		row := l.rise[m<<4:][:16]
		for i := range row {
			row[i] = 64
		}
		for k, rise := range rises {
			at := rise - origin - 64*stairs[k]
			if at > 63 {
				return false
			}
			row[stairs[k]] = byte(at)
		}
		origins[m] = origin
	}
	for b := 1; b < 127; b++ {
		mantissa, exponent := b&7, b>>3
		if exponent == 0 { // subnormal: shift the leading bit out
			shift := 4 - bits.Len(uint(mantissa))
			mantissa, exponent = mantissa<<shift&7, 1-shift
		}
		origin := origins[mantissa] + 128*(exponent-7)
		l.row[b] = byte(mantissa << 4)
		l.low[b], l.high[b] = byte(origin), byte(origin>>8)
		l.origin[b] = uint16(origin)
	}
	return true
}

// firstAbove returns the least magnitude bits whose code exceeds k: an estimate, corrected with the reference.
func firstAbove(k byte, step float32) int {
	middle := (e2m1Values[k] + e2m1Values[k+1]) / 2
	m := Float32ToBF16(middle * step)
	for Code(BF16ToFloat32(m), step) > k {
		m--
	}
	for Code(BF16ToFloat32(m), step) <= k {
		m++
	}
	return int(m)
}
