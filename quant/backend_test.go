package quant

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
)

func member(name string, bf16 []byte) Member {
	return Member{Name: name, BF16: bf16, Packed: make([]byte, len(bf16)/4), Scales: make([]byte, len(bf16)/32)}
}

// TestQuantizeSet: the set's members share the global of the larger one, and a zero member does not disturb it.
func TestQuantizeSet(t *testing.T) {
	small, large := generate("gauss", 1, 1024, 0), generate("gauss4", 2, 1024, 0)
	for _, p := range Profiles {
		set := []Member{member("gate", small), member("up", large), member("zero", make([]byte, 2048))}
		global, err := CPU().QuantizeSet(p, set)
		require.NoError(t, err)
		require.Equal(t, p.Global(AbsMax(large)), global)
		for _, m := range set {
			want := member("want", m.BF16)
			ReferenceQuantize(p, global, m.BF16, want.Packed, want.Scales)
			require.Equal(t, want.Packed, m.Packed, "%s %s", p.Name, m.Name)
			require.Equal(t, want.Scales, m.Scales, "%s %s", p.Name, m.Name)
		}
	}
}

func TestQuantizeSetRefusesNonFinite(t *testing.T) {
	for bits, want := range map[uint16]string{
		0x7fc0: "up: element 801 is NaN (bf16 0x7fc0)", 0xff81: "up: element 801 is NaN (bf16 0xff81)",
		0x7f80: "up: element 801 is +Inf", 0xff80: "up: element 801 is -Inf",
	} {
		up := member("up", generate("gauss", 2, 1024, 0))
		copy(up.BF16[1602:], bf16Bytes(bits))
		copy(up.BF16[1802:], bf16Bytes(0x7fff))
		_, err := CPU().QuantizeSet(Profiles[0], []Member{member("gate", generate("gauss", 1, 1024, 0)), up})
		require.EqualError(t, err, want)
		require.Equal(t, fault.Refused, fault.KindOf(err))
		e, ok := errors.AsType[*NonFiniteError](err)
		require.True(t, ok)
		require.Equal(t, NonFiniteError{801, bits}, *e)
	}
}
