package quant

import (
	"flag"
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// every thins the sweeps over float32 between rounding boundaries; 1 visits all four billion. The boundaries are always all visited.
var every = flag.Uint("every", 1009, "in number format sweeps, visit one float32 in this many")

// format is an independent definition of a small float: its magnitudes from the text of the standard, in exact rationals.
type format struct {
	name           string
	values         []*big.Rat // magnitude of code 0, 1, 2 ...; strictly rising, finite
	overflow       uint32     // code from the boundary beyond the last value on
	overflowAt     *big.Rat   // where the last value's interval ends
	overflowClosed bool       // whether overflowAt itself still rounds to the last value
	nan            uint32
	signBit        uint32
	tiesUp         bool // ties go to the upper code instead of the even one
	encode         func(float32) uint32
	decode         func(uint32) float32
}

func rat(f float64) *big.Rat { return new(big.Rat).SetFloat64(f) }

// ieee lists the magnitudes of a format with e exponent bits and m mantissa bits, n codes in all.
func ieee(m, bias, n int) []*big.Rat {
	v := make([]*big.Rat, n)
	for c := range v {
		mantissa, exponent := int64(c%(1<<m)), c>>m
		if exponent > 0 {
			mantissa += 1 << m
		} else {
			exponent = 1
		}
		scale := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(max(exponent-bias-m, 0))))
		if s := exponent - bias - m; s < 0 {
			scale.Inv(new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(-s))))
		}
		v[c] = scale.Mul(scale, new(big.Rat).SetInt64(mantissa))
	}
	return v
}

func formats() []format {
	powers := make([]*big.Rat, 255)
	for i := range powers {
		powers[i] = rat(math.Ldexp(1, i-127))
	}
	return []format{
		{
			"bf16", ieee(7, 127, 0x7f80), 0x7f80, rat(math.Ldexp(511, 119)), false, 0x7fc0, 0x8000, false,
			func(f float32) uint32 { return uint32(Float32ToBF16(f)) }, func(c uint32) float32 { return BF16ToFloat32(uint16(c)) },
		},
		{
			"f16", ieee(10, 15, 0x7c00), 0x7c00, rat(65520), false, 0x7e00, 0x8000, false,
			func(f float32) uint32 { return uint32(Float32ToF16(f)) }, func(c uint32) float32 { return F16ToFloat32(uint16(c)) },
		},
		{
			"e4m3", ieee(3, 7, 0x7f), 0x7f, rat(464), true, 0x7f, 0x80, false,
			func(f float32) uint32 { return uint32(Float32ToE4M3(f)) }, func(c uint32) float32 { return E4M3ToFloat32(byte(c)) },
		},
		{
			"e5m2", ieee(2, 15, 0x7c), 0x7c, rat(61440), false, 0x7f, 0x80, false,
			func(f float32) uint32 { return uint32(Float32ToE5M2(f)) }, func(c uint32) float32 { return E5M2ToFloat32(byte(c)) },
		},
		{
			"e8m0", powers, 0xff, rat(math.Ldexp(3, 126)), false, 0xff, 0, true,
			func(f float32) uint32 { return uint32(Float32ToE8M0(f)) }, func(c uint32) float32 { return E8M0ToFloat32(byte(c)) },
		},
		{
			"e2m1", ieee(1, 1, 8), 7, rat(7), true, 7, 8, false,
			func(f float32) uint32 { return uint32(Float32ToE2M1(f)) }, func(c uint32) float32 { return E2M1ToFloat32(byte(c)) },
		},
	}
}

// TestFormatsDecode holds every code of both signs against the exact value.
func TestFormatsDecode(t *testing.T) {
	for _, f := range formats() {
		for c, v := range f.values {
			want, exact := v.Float32()
			require.True(t, exact, "%s %x", f.name, c)
			require.Equal(t, math.Float32bits(want), math.Float32bits(f.decode(uint32(c))), "%s %x", f.name, c)
			if f.signBit != 0 {
				got := math.Float32bits(f.decode(uint32(c) | f.signBit))
				require.Equal(t, math.Float32bits(want)|1<<31, got, "%s -%x", f.name, c)
			}
		}
		end := f.signBit
		if end == 0 {
			end = 0x100
		}
		for c := uint32(len(f.values)); c < end; c++ {
			got := float64(f.decode(c))
			infinite := c == f.overflow && f.overflow != f.nan
			require.Equal(t, infinite, math.IsInf(got, 1), "%s %x", f.name, c)
			require.Equal(t, !infinite, math.IsNaN(got), "%s %x", f.name, c)
		}
	}
}

// TestFormatsEncode finds, in exact arithmetic, the run of float32 bit patterns that belongs to each code, and holds the ends of every run
// and a sweep of its inside against the encoder, in both signs.
func TestFormatsEncode(t *testing.T) {
	t.Logf("one float32 in %d inside the runs (-every 1 for all), and all their ends", *every)
	for _, f := range formats() {
		t.Run(f.name, func(t *testing.T) {
			next := uint32(0) // first bit pattern not yet seen
			for c := 0; c <= len(f.values); c++ {
				end, code := uint32(0x7f800001), f.overflow
				if c < len(f.values) {
					end, code = runEnd(f, c), uint32(c)
				}
				f.check(t, next, end, code)
				next = end
			}
			for _, b := range []uint32{0x7f800001, 0x7fc00000, 0x7fffffff} {
				got := f.encode(math.Float32frombits(b))
				switch {
				case f.name == "e8m0" || f.name == "e2m1":
					require.Equal(t, f.nan, got)
				default:
					require.True(t, math.IsNaN(float64(f.decode(got))), "%x", b)
				}
			}
		})
	}
}

// runEnd is the first float32 bit pattern above code c's interval.
func runEnd(f format, c int) uint32 {
	middle, closed := f.overflowAt, f.overflowClosed
	if c+1 < len(f.values) {
		middle = new(big.Rat).Add(f.values[c], f.values[c+1])
		middle.Quo(middle, big.NewRat(2, 1))
		closed = c%2 == 0 && !f.tiesUp
	}
	lower, _ := middle.Float64() // exact: boundaries have few bits
	at := float32(lower)         // nearest float32; it may lie on either side of the boundary
	bits := math.Float32bits(at)
	if s := new(big.Rat).Sub(rat(float64(at)), middle).Sign(); s < 0 || s == 0 && closed {
		bits++
	}
	return bits
}

func (f format) check(t *testing.T, from, to, code uint32) {
	t.Helper()
	one := func(b uint32) {
		if got := f.encode(math.Float32frombits(b)); got != code {
			require.Equal(t, code, got, "%08x", b)
		}
		if got := f.encode(math.Float32frombits(b | 1<<31)); got != code|f.signBit {
			require.Equal(t, code|f.signBit, got, "-%08x", b)
		}
	}
	if from == to {
		return
	}
	one(to - 1)
	for b := uint64(from); b < uint64(to); b += uint64(*every) {
		one(uint32(b))
	}
}
