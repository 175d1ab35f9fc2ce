package quant

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzQuantize holds all paths of this machine against the reference, on a block of 64 groups made of the input.
func FuzzQuantize(f *testing.F) {
	f.Add([]byte{3, 0x80, 0x54, 0x61}, byte(0), uint32(0))
	f.Add(generate("gauss", 1, 64, 0), byte(1), math.Float32bits(8192))
	f.Add(generate("gauss4", 2, 640, 0), byte(3), math.Float32bits(1e-4))
	f.Fuzz(func(t *testing.T, seed []byte, profile byte, bits uint32) {
		if len(seed) < 2 {
			return
		}
		p := Profiles[int(profile)%len(Profiles)]
		bf16 := bytes.Repeat(seed, 1+2*groupSize*(blockGroups+1)/len(seed))[:2*groupSize*(blockGroups+1)]
		if _, bad := FirstNonFinite(bf16); bad {
			return
		}
		global := math.Float32frombits(bits &^ (1 << 31))
		if !(global > 0 && global <= math.MaxFloat32) {
			global = p.Global(AbsMax(bf16))
		}
		want := member("want", bf16)
		ReferenceQuantize(p, global, bf16, want.Packed, want.Scales)
		best := path
		defer func() { path = best }()
		for _, path = range paths() {
			got := member("want", bf16)
			NewQuantizer(p, global).Quantize(got.Packed, got.Scales, bf16)
			require.Equal(t, want, got, "%s %s %g", path, p.Name, global)
		}
	})
}
