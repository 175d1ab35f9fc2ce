package engine

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/testdata/goldens"
)

func TestCompareAgreesWithTheGoldens(t *testing.T) {
	g := readGeneration(t)
	tiny := goldens.TinyLaguna(t)
	bf16 := load(t, filepath.Join(tiny, "bf16"), Options{})
	for _, v := range []struct {
		name, dir   string
		activations Activations
	}{
		{"0722-w4a16", "nvfp4-0722", W4A16},
		{"0801-w4a4", "nvfp4-0801", W4A4},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := load(t, filepath.Join(tiny, v.dir), Options{Activations: v.activations, Beside: bf16})
			got, err := Compare(context.Background(), m, bf16, g.EvalIDs, 0)
			require.NoError(t, err)
			want := g.Variants[v.name]
			require.InDelta(t, want.NLL, got.NLL, 1e-4)
			require.InDelta(t, g.Variants["bf16"].NLL, got.ReferenceNLL, 1e-4)
			require.InEpsilon(t, want.KL, got.KL, 0.01)
			require.InEpsilon(t, want.Top1, got.Top1, 0.01)
		})
	}
}
