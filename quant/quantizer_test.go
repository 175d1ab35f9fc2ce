package quant

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// eachPath runs a test on every code path that this machine has.
func eachPath(t *testing.T, test func(t *testing.T)) {
	best := path
	defer func() { path = best }()
	for _, p := range paths() {
		path = p
		t.Run(Path(), test)
	}
}

// TestPath shows which paths the other tests went through.
func TestPath(t *testing.T) {
	t.Logf("best path %q of %q", Path(), paths())
	require.Equal(t, paths()[0], path)
	require.Equal(t, "go", paths()[len(paths())-1])
}

// awkward returns named inputs, each several blocks of groups and a rest.
func awkward() map[string][]byte {
	const groups = 64*5 + 37
	inputs := map[string][]byte{
		"gauss": generate("gauss", 11, 16*groups, 0), "gauss4": generate("gauss4", 12, 16*groups, 0), "wide": generate("wide", 13, 16*groups, 0),
		"zeros": make([]byte, 32*groups), "less than a block": generate("gauss", 14, 16*63, 0), "one group": generate("gauss", 15, 16, 0), "empty": {},
	}
	random := func(seed uint64, pick func(z uint64) uint16) []byte {
		b := make([]byte, 0, 32*groups)
		for i := range uint64(16 * groups) {
			b = binary.LittleEndian.AppendUint16(b, pick(splitmix(seed, i)))
		}
		return b
	}
	inputs["any finite bits"] = random(1, func(z uint64) uint16 { return uint16(z>>63<<15 | z%0x7f80) })
	inputs["subnormal"] = random(2, func(z uint64) uint16 { return uint16(z>>63<<15 | z%0x80) })
	inputs["tiny"] = random(3, func(z uint64) uint16 { return uint16(z>>63<<15 | z%0x800) })
	inputs["huge"] = random(4, func(z uint64) uint16 { return uint16(z>>63<<15 | (0x7f7f - z%0x300)) })
	inputs["one binade"] = random(5, func(z uint64) uint16 { return uint16(z>>63<<15 | 0x3f80 | z&0x7f) })
	inputs["signed zeros"] = random(6, func(z uint64) uint16 { return uint16(z>>63<<15 | z%2*0x3f80) })
	inputs["few bits"] = random(7, func(z uint64) uint16 { return uint16(z>>63<<15 | (0x3c00+z%0x300)&^0x1f) }) // many exact ties
	// quotients that are zero in float32 though the weights are not, beside some that only nearly are
	inputs["least beside huge"] = random(8, func(z uint64) uint16 {
		if z>>8%16 == 0 {
			return uint16(0x4800 + z%0x3000)
		}
		return uint16(z>>63<<15 | z%8)
	})
	// blocks of 16 groups whose largest weight is a power of two, around where error sums change to float64
	for name, middle := range map[string]uint16{"around 2^40": 127 + 40, "around 2^-40": 127 - 40} {
		b := random(9, func(z uint64) uint16 { return uint16(z>>63<<15 | z%0x80) })
		for i := range len(b) / 2 {
			e, top := element(b, i), middle+uint16(i/256%5)-2
			if i%256 == 77 {
				e = top << 7
			} else {
				e |= (top - 1 - e%4) << 7
			}
			binary.LittleEndian.PutUint16(b[2*i:], e)
		}
		inputs[name] = b
	}
	return inputs
}

// globals are a tensor's own global and some that belong to another tensor.
func globals(p Profile, bf16 []byte) []float32 {
	own := p.Global(AbsMax(bf16))
	return []float32{own, own * 3, own / 3, own * 1024, own / 1024, 1, 0x1p-120, 0x1p120, math.SmallestNonzeroFloat32}
}

func TestQuantizerEqualsReference(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for name, bf16 := range awkward() {
			for _, p := range Profiles {
				for _, global := range globals(p, bf16) {
					want, got := member("want", bf16), member("got", bf16)
					ReferenceQuantize(p, global, bf16, want.Packed, want.Scales)
					NewQuantizer(p, global).Quantize(got.Packed, got.Scales, bf16)
					require.Equal(t, want.Scales, got.Scales, "%s %s %g", name, p.Name, global)
					require.Equal(t, want.Packed, got.Packed, "%s %s %g", name, p.Name, global)
				}
			}
		}
	})
}

// TestQuantizerEveryMagnitude puts every magnitude of five binades beside every group maximum of a binade, for globals of every mantissa.
func TestQuantizerEveryMagnitude(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for _, p := range Profiles {
			for mantissa := range uint16(128) {
				if testing.Short() && mantissa%16 != 5 {
					continue
				}
				global := p.Global(BF16ToFloat32(0x3e00 | mantissa))
				q := NewQuantizer(p, global)
				require.True(t, q.hasLadder)
				var bf16 []byte
				amax := uint16(0x3d80) + mantissa*37%128
				for d := uint16(0); d < 640; d += 15 {
					bf16 = binary.LittleEndian.AppendUint16(bf16, amax)
					for i := range uint16(15) {
						bf16 = binary.LittleEndian.AppendUint16(bf16, amax-d-i|i<<15)
					}
				}
				for gap := range uint16(10) { // the same group at every exponent down to where the scale is subnormal
					for i := 0; i < len(bf16); i += 2 {
						binary.LittleEndian.PutUint16(bf16[i:], element(bf16, i/2)-gap%2*0x80)
					}
					want, got := member("want", bf16), member("got", bf16)
					ReferenceQuantize(p, global, bf16, want.Packed, want.Scales)
					q.Quantize(got.Packed, got.Scales, bf16)
					require.Equal(t, want, Member{"want", bf16, got.Packed, got.Scales}, fmt.Sprint(p.Name, mantissa, gap))
				}
			}
		}
	})
}

// TestLadderExists: every global of weights up to 393,216 has a ladder, so that no ordinary tensor takes the slow way.
func TestLadderExists(t *testing.T) {
	for _, p := range Profiles {
		least, most, middle := float32(ladderMin), float32(ladderStep/scaleMax), uint32(0x39000000)
		if !p.ModelOpt() {
			least, most, middle = scaleMax/ladderStep, ladderMax, 0x46000000
		}
		var l ladder
		for m := range uint32(1 << 14) {
			require.True(t, l.build(p, math.Float32frombits(middle|m<<9|m&1)), "%s %x", p.Name, m)
		}
		require.True(t, l.build(p, least))
		require.True(t, l.build(p, most))
		require.False(t, l.build(p, math.Nextafter32(least, 0)))
		require.False(t, l.build(p, math.Nextafter32(most, math.MaxFloat32)))
	}
}

// A negative weight whose quotient is zero in float32 has code 0, not the 8 of other small negative ones.
func TestQuotientOfZero(t *testing.T) {
	p := Profiles[0]
	bf16 := make([]byte, 2*groupSize)
	for i := range groupSize {
		binary.LittleEndian.PutUint16(bf16[2*i:], 0x8003)
	}
	binary.LittleEndian.PutUint16(bf16[2:], 0x6154)
	eachPath(t, func(t *testing.T) {
		blocks := bytes.Repeat(bf16, 2*blockGroups)
		m := member("m", blocks)
		NewQuantizer(p, p.Global(AbsMax(blocks))).Quantize(m.Packed, m.Scales, blocks)
		require.Equal(t, bytes.Repeat([]byte{0x70, 0, 0, 0, 0, 0, 0, 0}, 2*blockGroups), m.Packed)
	})
}

// TestAbsMaxEqualsReference includes lengths around the kernels' blocks and the maximum at every place.
func TestAbsMaxEqualsReference(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for name, bf16 := range awkward() {
			require.Equal(t, maxMagnitude(bf16), Float32ToBF16(AbsMax(bf16)), name)
		}
		for _, n := range []int{0, 2, 16, 30, 32, 254, 256, 258, 512, 770, 1024, 1600} {
			bf16 := generate("gauss", 3, n/2, 0)
			require.Equal(t, maxMagnitude(bf16), Float32ToBF16(AbsMax(bf16)), n)
			for i := 0; i < n; i += 2 {
				b := append([]byte(nil), bf16...)
				binary.LittleEndian.PutUint16(b[i:], 0xc123)
				require.Equal(t, BF16ToFloat32(0x4123), AbsMax(b), "%d of %d", i, n)
			}
		}
	})
}

// TestDequantizeEqualsReference runs over all scale bytes, each with all codes, NaN compared as NaN; few groups and many, which take different
// kernels.
func TestDequantizeEqualsReference(t *testing.T) {
	const most = 3*256 + 3
	packed, scales := make([]byte, 8*most), make([]byte, most)
	for i := range packed {
		packed[i] = byte(splitmix(9, uint64(i)))
		if i/8/256 == 1 {
			packed[i] = byte(0x10 + i%8*0x22)
		}
	}
	for i := range scales {
		scales[i] = byte(i)
	}
	eachPath(t, func(t *testing.T) {
		for _, groups := range []int{1, 256 + 70, most} {
			packed, scales := packed[:8*groups], scales[:groups]
			for _, global := range []float32{1, 12345.678, 1e-20, 3e38, 1e-45} {
				for _, modelopt := range []bool{false, true} {
					want, got := make([]float32, 16*groups), make([]float32, 16*groups)
					referenceDequantize(want, packed, scales, global, modelopt)
					Dequantize(got, packed, scales, global, modelopt)
					bf16 := make([]byte, 32*groups)
					DequantizeBF16(bf16, packed, scales, global, modelopt)
					for i, w := range want {
						b := BF16ToFloat32(element(bf16, i))
						if math.IsNaN(float64(w)) {
							require.True(t, math.IsNaN(float64(got[i])) && math.IsNaN(float64(b)))
							continue
						}
						require.Equal(t, math.Float32bits(w), math.Float32bits(got[i]), "%d %g", i, global)
						require.Equal(t, Float32ToBF16(w), element(bf16, i), "%d %g", i, global)
					}
				}
			}
		}
	})
}

func TestErrorSumsEqualReference(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		for name, bf16 := range awkward() {
			for _, p := range Profiles {
				for _, global := range globals(p, bf16) {
					m := member("", bf16)
					NewQuantizer(p, global).Quantize(m.Packed, m.Scales, bf16)
					var s errorLanes
					steps := stepsOf(global, p.ModelOpt())
					referenceErrorSums(&s, &steps, bf16, m.Packed, m.Scales)
					want := s.errors()
					got := MeasureErrors(p, global, bf16, m.Packed, m.Scales)
					if math.IsNaN(want.SumSquaredError) { // a step beyond float32, times code 0
						require.True(t, math.IsNaN(got.SumSquaredError))
						want.SumSquaredError, got.SumSquaredError = 0, 0
					}
					require.Equal(t, want, got, "%s %s %g", name, p.Name, global)
				}
			}
		}
	})
}
