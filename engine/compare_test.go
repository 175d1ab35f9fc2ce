package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/testdata/goldens"
)

func float32Bytes(f float32) []byte {
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(f))
}

func TestCompareAgreesWithTheGoldens(t *testing.T) {
	g := readGeneration(t)
	tiny := goldens.TinyLaguna(t)
	bf16 := load(t, filepath.Join(tiny, "bf16"), Options{})
	source := load(t, filepath.Join(tiny, "nvfp4-0801"), Options{Activations: W4A16})
	for _, v := range variants(t, tiny) {
		t.Run(v.name, func(t *testing.T) {
			if raceDetector && strings.HasSuffix(v.name, "w4a4") {
				t.Skip("the same code as without quantized activations, several times over")
			}
			want := g.Variants[v.name]
			for _, of := range []struct {
				reference *Model
				nll, kl   float64
			}{{bf16, g.Variants["bf16"].NLL, want.KL}, {source, g.Variants["0801-w4a16"].NLL, want.KLFrom01}} {
				m := load(t, v.dir, Options{Activations: v.activations, Beside: of.reference})
				runs := reach(t, m, v, func() misses {
					got, err := Compare(context.Background(), m, of.reference, g.EvalIDs, 0)
					require.NoError(t, err)
					missed := misses{}
					missed.within("the reference's NLL", of.nll, got.ReferenceNLL, 1e-4)
					missed.within("KL", of.kl, got.KL, 0.01*of.kl)
					if of.reference == bf16 {
						missed.within("NLL", want.NLL, got.NLL, 1e-4)
						missed.within("top-1 agreement", want.Top1, got.Top1, 0.01*want.Top1)
					}
					return missed
				})
				if runs > 1 {
					t.Logf("%d runs", runs)
				}
			}
		})
	}
}

// The requantized checkpoint shares everything but the experts of layers 6 and 7 with its source.
func TestCompareComputesSharedLayersOnce(t *testing.T) {
	g := readGeneration(t)
	tiny := goldens.TinyLaguna(t)
	source := load(t, filepath.Join(tiny, "nvfp4-0801"), Options{Activations: W4A16})
	beside := requantized(t, tiny).load(t, Options{Activations: W4A16, Beside: source})
	alone := load(t, beside.tensors.ckpt.Dir, Options{Activations: W4A16})
	ids := g.EvalIDs[:160]
	got, err := Compare(context.Background(), beside, source, ids, 0)
	require.NoError(t, err)
	require.Equal(t, 6, got.Once)
	require.Equal(t, 6, got.FirstLayer)
	require.Zero(t, got.Layers[5].MaxAbs)
	require.Positive(t, got.Layers[7].RelativeRMS)
	require.Contains(t, got.Differing, "model.layers.6.mlp.experts.0.gate_proj")

	twice, err := Compare(context.Background(), alone, source, ids, 0)
	require.NoError(t, err)
	require.Zero(t, twice.Once)
	require.Equal(t, got.KL, twice.KL, "computing once must not change a bit")
	require.Equal(t, got.NLL, twice.NLL)
	require.Equal(t, got.Layers[7], twice.Layers[7])

	same, err := Compare(context.Background(), alone, alone, ids[:20], 0)
	require.NoError(t, err)
	require.Zero(t, same.KL)
	require.Equal(t, 1.0, same.Top1)
	require.Equal(t, -1, same.FirstLayer)
	require.Equal(t, -1, same.FirstTop1)
}

func TestCompareFindsDamage(t *testing.T) {
	g := readGeneration(t)
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0722")
	ids := g.EvalIDs[:96]
	const expert = "model.layers.3.mlp.experts.1."
	for _, damage := range []struct {
		name        string
		activations Activations
		minKL       float64
		modules     []string
		change      func(m *weightMap)
	}{
		{"inverted global scale", W4A16, 0.1, []string{expert + "down_proj"}, func(m *weightMap) {
			w := m.tensors[expert+"down_proj.weight_global_scale"]
			global := math.Float32frombits(binary.LittleEndian.Uint32(w.data))
			w.data = float32Bytes(1 / global)
			m.tensors[expert+"down_proj.weight_global_scale"] = w
		}},
		{"gate and up swapped", W4A16, 0.001, []string{expert + "gate_proj", expert + "up_proj"}, func(m *weightMap) {
			for _, kind := range []string{"weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"} {
				gate, up := expert+"gate_proj."+kind, expert+"up_proj."+kind
				m.tensors[gate], m.tensors[up] = m.tensors[up], m.tensors[gate]
			}
		}},
		{"input scale times 100", W4A4, 0.001, []string{expert + "gate_proj"}, func(m *weightMap) {
			w := m.tensors[expert+"gate_proj.input_global_scale"]
			w.data = float32Bytes(100 * math.Float32frombits(binary.LittleEndian.Uint32(w.data)))
			m.tensors[expert+"gate_proj.input_global_scale"] = w
		}},
	} {
		t.Run(damage.name, func(t *testing.T) {
			whole := load(t, dir, Options{Activations: damage.activations})
			broken := readWeights(t, dir)
			damage.change(broken)
			m := broken.load(t, Options{Activations: damage.activations, Beside: whole})
			got, err := Compare(context.Background(), m, whole, ids, 0)
			require.NoError(t, err)
			require.Greater(t, got.KL, damage.minKL)
			require.Equal(t, 3, got.FirstLayer)
			require.Equal(t, 3, got.Once)
			require.Equal(t, damage.modules, got.Differing)
			require.Zero(t, got.Layers[2].RelativeRMS)
			require.Positive(t, got.Layers[3].RelativeRMS)
		})
	}
}

// A layer that goes in alike in a later chunk must still be computed twice when an earlier chunk left other keys and values in it.
func TestCompareRemembersEarlierChunks(t *testing.T) {
	g := readGeneration(t)
	ids := g.Prompts[11].IDs[:chunkRows+1]
	dir := filepath.Join(goldens.TinyLaguna(t), "bf16")
	whole := load(t, dir, Options{})
	s := session(t, whole, len(ids))
	var last []int32
	s.OnLayer = func(layer, first int, rows []float32) {
		if layer == 2 && first == chunkRows {
			last = append(last, s.picks[:whole.Config.TopK]...)
		}
	}
	_, err := s.Prefill(context.Background(), ids)
	require.NoError(t, err)
	broken := readWeights(t, dir)
	for e := range int32(8) {
		if !slices.Contains(last, e) { // all that the last token does not use
			name := fmt.Sprintf("model.layers.2.mlp.experts.%d.down_proj.weight", e)
			w := broken.tensors[name]
			w.data = make([]byte, len(w.data))
			broken.tensors[name] = w
		}
	}
	path := broken.write(t)
	once, err := Compare(context.Background(), load(t, path, Options{Beside: whole}), whole, ids, chunkRows)
	require.NoError(t, err)
	twice, err := Compare(context.Background(), load(t, path, Options{}), whole, ids, chunkRows)
	require.NoError(t, err)
	require.Equal(t, twice.KL, once.KL)
	require.Equal(t, twice.NLL, once.NLL)
	require.Equal(t, 2, once.FirstLayer)
	require.Equal(t, 2, once.Once)
	require.NotEmpty(t, once.Differing)
}

func TestCompareRefuses(t *testing.T) {
	tiny := goldens.TinyLaguna(t)
	bf16 := load(t, filepath.Join(tiny, "bf16"), Options{})
	for _, v := range []struct {
		ids     []int32
		change  func(c *Config)
		problem string
	}{
		{nil, nil, "the prompt has no tokens"},
		{[]int32{2, 2048}, nil, "token 1 has id 2048 but vocab_size is 2048"},
		{[]int32{2, -1}, nil, "token 1 has id -1 but vocab_size is 2048"},
		{[]int32{2}, func(c *Config) { c.Vocab = 100352 }, "config.json: vocab_size is 100352 here and 2048 there"},
		{[]int32{2}, func(c *Config) { c.Hidden = 3072 }, "config.json: 8 layers of width 3072 here, 8 of width 192 there"},
	} {
		m := load(t, filepath.Join(tiny, "nvfp4-0801"), Options{})
		if v.change != nil {
			v.change(m.Config)
		}
		_, err := Compare(context.Background(), m, bf16, v.ids, 0)
		require.EqualError(t, err, v.problem)
	}
}
