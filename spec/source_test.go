package spec

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

func TestFamiliesNames(t *testing.T) {
	const laguna, other = `{"model_type": "laguna", "num_hidden_layers": 48}`, `{"num_hidden_layers": 48}`
	for _, c := range []struct {
		config, name string
		want         ExpertTensor
	}{
		{laguna, "model.layers.40.mlp.experts.255.down_proj.weight_packed", ExpertTensor{Layer: 40, Expert: 255, Role: Down, Kind: Packed}},
		{laguna, "language_model.model.layers.4.mlp.experts.0.gate_proj.weight", ExpertTensor{Layer: 4, Role: Gate, Kind: Weight}},
		{other, "model.language_model.layers.3.experts.5.up_proj.weight", ExpertTensor{Layer: 3, Expert: 5, Role: Up, Kind: Weight}}, // Gemma 4: no mlp
		{other, "model.layers.2.block_sparse_moe.experts.7.w1.weight", ExpertTensor{Layer: 2, Expert: 7, Role: Gate, Kind: Weight}},
		{other, "language_model.model.layers.2.block_sparse_moe.experts.7.w3.bias", ExpertTensor{Layer: 2, Expert: 7, Role: Up, Kind: Bias}},
		{other, "layers.11.ffn.experts.1.w2.weight_global_scale", ExpertTensor{Layer: 11, Expert: 1, Role: Down, Kind: Global}},
		{other, "backbone.layers.11.mixer.experts.1.up_proj.input_global_scale", ExpertTensor{Layer: 11, Expert: 1, Role: Up, Kind: InputGlobal}},
	} {
		s, err := Detect([]byte(c.config), []string{c.name, "lm_head.weight"})
		require.NoError(t, err, c.name)
		require.NotNil(t, s, c.name)
		got, ok := s.Match(c.name)
		require.True(t, ok, c.name)
		c.want.Module, _ = cutLast(c.name)
		require.Equal(t, c.want, got)
		_, last := cutLast(c.name)
		require.Equal(t, c.name, s.Name(got.Module, got.Kind), last)
	}
}

// The names that a sloppy pattern takes for a routed expert's.
func TestWhatIsNoRoutedExpert(t *testing.T) {
	names := []string{
		"model.layers.1.mlp.experts.0.gate_proj.weight",
		"model.layers.1.mlp.experts.e_score_correction_bias", "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate.e_score_correction_bias",
		"model.layers.1.mlp.shared_expert.gate_proj.weight", "model.layers.1.mlp.shared_experts.up_proj.weight", "model.layers.0.mlp.gate_proj.weight",
		"model.layers.1.self_attn.q_proj.weight", "experts.0.gate_proj.weight", "model.experts.gate", "",
		"model.layers.01.mlp.experts.0.gate_proj.weight", "model.layers.1.mlp.experts.00.gate_proj.weight", "model.layers.1.mlp.experts.0x1.gate_proj.weight",
	}
	for _, config := range []string{`{"model_type":"laguna"}`, `{}`} {
		s, err := Detect([]byte(config), names[:8])
		require.NoError(t, err)
		for _, name := range names[1:] {
			_, ok := s.Match(name)
			require.False(t, ok, name)
		}
	}
	s, err := Detect([]byte(`{}`), names[1:8])
	require.NoError(t, err)
	require.Nil(t, s, "a model without routed experts")
}

func TestFusedSets(t *testing.T) {
	s, err := Detect(nil, []string{"layers.1.experts.0.w1.weight"})
	require.NoError(t, err)
	sets := map[string]string{}
	for _, proj := range []string{"w1", "w2", "w3"} {
		e, ok := s.Match("layers.1.experts.0." + proj + ".weight")
		require.True(t, ok)
		sets[proj] = e.FusedSet()
	}
	require.Equal(t, sets["w1"], sets["w3"])
	require.NotEqual(t, sets["w1"], sets["w2"])
	e, _ := s.Match("layers.1.experts.1.w1.weight")
	require.NotEqual(t, sets["w1"], e.FusedSet())
}

func TestBanksLeaveOutFurtherTokens(t *testing.T) {
	name := func(prefix string, layer int) string {
		return fmt.Sprintf("%slayers.%d.mlp.experts.0.gate_proj.weight", prefix, layer)
	}
	s, err := Detect([]byte(`{"text_config": {"num_hidden_layers": 46}}`), []string{
		name("model.", 3), name("model.", 45), name("model.", 46), name("mtp.", 0), "model.layers.46.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.down_proj",
	})
	require.NoError(t, err)
	require.Equal(t, []int{3, 45}, s.Layers())
	for at, bank := range map[string]int{name("model.", 3): 0, name("model.", 45): 1, name("model.", 46): -1, name("mtp.", 0): -1, name("mtp.", 3): -1} {
		e, ok := s.Match(at)
		require.True(t, ok)
		require.Equal(t, bank, e.Bank, at)
	}
}

func TestUnsupportedExpertsAreRefusedByName(t *testing.T) {
	good := "model.layers.1.mlp.experts.0.gate_proj.weight"
	for name, what := range map[string]string{
		"model.layers.2.mlp.experts.gate_up_proj":                     "fused 3-D",
		"model.layers.2.mlp.experts.down_proj":                        "fused 3-D",
		"model.layers.2.mlp.experts.gate_up_proj.weight_packed":       "fused 3-D",
		"model.layers.2.mlp.experts.gate_up_proj_blocks":              "MXFP4",
		"model.layers.2.mlp.experts.down_proj_scales":                 "MXFP4",
		"model.layers.2.mlp.experts.gate_up_proj_bias":                "biases",
		"model.layers.2.mlp.experts.gate_up_proj_scale_inv":           "FP8",
		"model.layers.2.mlp.experts.0.gate_proj.weight_scale_inv":     "FP8",
		"layers.2.ffn.experts.0.w1.scale":                             "E8M0",
		"language_model.model.layers.2.mlp.switch_mlp.up_proj.weight": "MLX",
		"model.layers.2.mlp.experts.0.up_proj.qweight":                "integer",
		"model.layers.2.mlp.experts.0.up_proj.weight_scale_2":         "ModelOpt names beside",
		"model.layers.2.mlp.experts.0.linear_fc1.weight":              "unknown kind",
		"model.layers.2.mlp.experts.0.up_proj.svd_a":                  "unknown kind",
	} {
		// A packed name first: the other makers' scale beside it is then out of place.
		_, err := Detect([]byte(`{}`), []string{good, "model.layers.1.mlp.experts.0.gate_proj.weight_packed", name})
		require.ErrorIs(t, err, ErrExpertForm, name)
		require.Equal(t, fault.Refused, fault.KindOf(err))
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, what)
	}
	_, err := Detect([]byte(`{}`), []string{good, "vision.layers.1.mlp.experts.0.gate_proj.weight"})
	require.ErrorIs(t, err, ErrExpertForm)
}

func TestModelOptNames(t *testing.T) {
	m := "model.layers.1.mlp.experts.0.gate_proj"
	byNames := []string{m + ".input_scale", m + ".weight", m + ".weight_scale", m + ".weight_scale_2"}
	for _, c := range []struct {
		config string
		names  []string
	}{{`{}`, byNames}, {`{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}`, byNames[1:2]}} {
		s, err := Detect([]byte(c.config), c.names)
		require.NoError(t, err)
		require.True(t, s.Reciprocal)
		require.Equal(t, m+".weight", s.Name(m, Packed))
		require.Equal(t, m+".weight", s.Name(m, Weight))
		require.Equal(t, m+".weight_scale_2", s.Name(m, Global))
		for dtype, kind := range map[safetensors.DType]Kind{"U8": Packed, "BF16": Weight} {
			e, ok := s.MatchTensor(safetensors.Tensor{Name: m + ".weight", DType: dtype})
			require.True(t, ok)
			require.Equal(t, kind, e.Kind)
		}
	}
}

// lagunaNames are the expert names of a checkpoint like Laguna-S-2.1: 47 layers, 256 experts.
func lagunaNames() (names []string) {
	for layer := 1; layer < 48; layer++ {
		for expert := range 256 {
			for _, proj := range []string{"gate_proj", "up_proj", "down_proj"} {
				for _, kind := range []string{"weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"} {
					names = append(names, fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s.%s", layer, expert, proj, kind))
				}
			}
		}
	}
	return names
}

func TestMatchingAllocatesNothing(t *testing.T) {
	s, err := Detect([]byte(`{"model_type":"laguna"}`), []string{"model.layers.1.mlp.experts.0.gate_proj.weight"})
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Match("model.layers.40.mlp.experts.255.down_proj.weight_packed") }))
}

// 144,384 names. Measured on two cores of a Xeon: Match 26 ms, Detect 26 ms.
func BenchmarkMatch(b *testing.B) {
	names := lagunaNames()
	s, err := Detect([]byte(`{"model_type":"laguna"}`), names)
	require.NoError(b, err)
	for b.Loop() {
		for _, name := range names {
			s.Match(name)
		}
	}
}

func BenchmarkDetect(b *testing.B) {
	names := lagunaNames()
	for b.Loop() {
		_, _ = Detect([]byte(`{"model_type":"laguna"}`), names)
	}
}
