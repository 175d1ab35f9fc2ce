package engine

import (
	"fmt"
	"math"

	"github.com/lagquant/lagquant/internal/fault"
)

// Config is the geometry of a Laguna model, with every default filled in and every per-layer list as long as the model is deep.
type Config struct {
	Vocab        int
	Hidden       int
	Intermediate int // width of the dense layers
	KVHeads      int
	HeadDim      int
	Eps          float32
	MaxPositions int
	TiedHead     bool

	Experts       int
	TopK          int
	ExpertWidth   int
	SharedWidth   int
	RoutedScaling float32
	NormTopK      bool
	Softcap       float32 // of the router's logits; 0: off
	Score         Score

	Layers []LayerConfig
}

// LayerConfig is what differs from layer to layer. Two layers with equal values and equal weights compute the same.
type LayerConfig struct {
	Heads  int
	Window int // keys a query sees, itself among them; 0: all before it
	RoPE   RoPE
	Sparse bool // experts and a router instead of one dense MLP
	Gated  bool // the attention output is gated; per head or per element is decided by the rows of g_proj
}

// Score turns router logits into the scores that experts are chosen by.
type Score string

// The router scores that Laguna configs have named so far.
const (
	ScoreSigmoid      Score = "sigmoid"
	ScoreSqrtSoftplus Score = "sqrtsoftplus" // sqrt(softplus(logit))
	ScoreSoftmax      Score = "softmax"      // over all experts: moe_router_use_sigmoid false
)

// rawConfig holds the fields as they stand in config.json. Pointers and raw messages tell "absent" from a value.
type rawConfig struct {
	ModelType      string   `json:"model_type"`
	Architectures  []string `json:"architectures"`
	Vocab          int      `json:"vocab_size"`
	Hidden         int      `json:"hidden_size"`
	Intermediate   int      `json:"intermediate_size"`
	Layers         int      `json:"num_hidden_layers"`
	Heads          int      `json:"num_attention_heads"`
	HeadsPerLayer  []int    `json:"num_attention_heads_per_layer"`
	KVHeads        int      `json:"num_key_value_heads"`
	HeadDim        int      `json:"head_dim"`
	Eps            *float64 `json:"rms_norm_eps"`
	MaxPositions   int      `json:"max_position_embeddings"`
	Tied           bool     `json:"tie_word_embeddings"`
	HiddenAct      string   `json:"hidden_act"`
	AttentionBias  bool     `json:"attention_bias"`
	QKVBias        bool     `json:"qkv_bias"`
	Sinks          bool     `json:"swa_attention_sink_enabled"`
	Gating         any      `json:"gating"`
	LayerTypes     []string `json:"layer_types"`
	Window         *int     `json:"sliding_window"`
	MLPLayerTypes  []string `json:"mlp_layer_types"`
	MLPOnlyLayers  []int    `json:"mlp_only_layers"`
	SparseStep     *int     `json:"decoder_sparse_step"`
	Experts        int      `json:"num_experts"`
	TopK           int      `json:"num_experts_per_tok"`
	ExpertWidth    int      `json:"moe_intermediate_size"`
	SharedWidth    int      `json:"shared_expert_intermediate_size"`
	NormTopK       *bool    `json:"norm_topk_prob"`
	RoutedScaling  *float64 `json:"moe_routed_scaling_factor"`
	Softcap        float64  `json:"moe_router_logit_softcapping"`
	WeightOnInput  bool     `json:"moe_apply_router_weight_on_input"`
	UseSigmoid     *bool    `json:"moe_router_use_sigmoid"`
	ScoreFunc      string   `json:"moe_router_score_func"`
	RoPETheta      *float64 `json:"rope_theta"`
	PartialRotary  *float64 `json:"partial_rotary_factor"`
	RoPEParameters ropeSet  `json:"rope_parameters"`
	RoPEScaling    ropeSet  `json:"rope_scaling"` // the older name of a flat rope_parameters
	SlidingRoPE    *rawRoPE `json:"swa_rope_parameters"`
}

// ParseConfig reads config.json of a Laguna model. What this engine cannot compute is refused by name: a config read half is a model that
// answers wrongly.
func ParseConfig(data []byte) (*Config, error) {
	var raw rawConfig
	if err := decodeJSON(data, &raw, "file"); err != nil {
		return nil, fault.In(configFile, err)
	}
	if err := raw.unsupported(); err != nil {
		return nil, err
	}
	c := &Config{
		Vocab: raw.Vocab, Hidden: raw.Hidden, Intermediate: raw.Intermediate,
		KVHeads: raw.KVHeads, HeadDim: raw.HeadDim, Eps: float32(or(raw.Eps, 1e-6)), MaxPositions: raw.MaxPositions, TiedHead: raw.Tied,
		Experts: raw.Experts, TopK: raw.TopK, ExpertWidth: raw.ExpertWidth, SharedWidth: raw.SharedWidth,
		RoutedScaling: float32(or(raw.RoutedScaling, 1)), NormTopK: or(raw.NormTopK, true), Softcap: float32(raw.Softcap), Score: ScoreSigmoid,
	}
	switch {
	case raw.ScoreFunc != "":
		c.Score = Score(raw.ScoreFunc)
	case !or(raw.UseSigmoid, true):
		c.Score = ScoreSoftmax
	}
	if c.Score != ScoreSigmoid && c.Score != ScoreSqrtSoftplus && c.Score != ScoreSoftmax {
		return nil, refuseConfig("", "moe_router_score_func is %q, which this engine does not know", raw.ScoreFunc)
	}
	if c.HeadDim == 0 && raw.Heads > 0 {
		c.HeadDim = raw.Hidden / raw.Heads
	}
	if raw.Layers < 1 || raw.Layers > maxLayers {
		return nil, refuseConfig("", "num_hidden_layers is %d, expected 1 to %d", raw.Layers, maxLayers)
	}
	c.Layers = make([]LayerConfig, raw.Layers)
	for i := range c.Layers {
		var err error
		if c.Layers[i], err = raw.layer(i, c.HeadDim); err != nil {
			return nil, err
		}
	}
	return c, c.check()
}

const (
	maxLayers = 4096
	maxWidth  = 1 << 24 // of any one dimension: keeps every product of two inside an int
)

func (raw *rawConfig) unsupported() error {
	if raw.ModelType != "laguna" {
		return refuseConfig("only models of type laguna can be run", "model_type is %q, expected \"laguna\"", raw.ModelType)
	}
	for _, r := range []struct {
		bad  bool
		what string
	}{
		{raw.HiddenAct != "" && raw.HiddenAct != "silu", fmt.Sprintf("hidden_act is %q, expected \"silu\"", raw.HiddenAct)},
		{raw.AttentionBias || raw.QKVBias, "attention_bias is true: no released Laguna has biases"},
		{raw.Sinks, "swa_attention_sink_enabled is true: no released Laguna has attention sinks"},
		{raw.gatingUnknown(), fmt.Sprintf("gating is %v, expected true, false, \"per-head\" or \"per-element\"", raw.Gating)},
		{or(raw.SparseStep, 1) < 1, fmt.Sprintf("decoder_sparse_step is %d, expected 1 or more", or(raw.SparseStep, 1))},
		{raw.WeightOnInput, "moe_apply_router_weight_on_input is true, which the reference refuses too"},
		{
			raw.HeadsPerLayer != nil && len(raw.HeadsPerLayer) != raw.Layers,
			fmt.Sprintf("num_attention_heads_per_layer has %d entries for %d layers", len(raw.HeadsPerLayer), raw.Layers),
		},
		{
			raw.LayerTypes != nil && len(raw.LayerTypes) != raw.Layers,
			fmt.Sprintf("layer_types has %d entries for %d layers", len(raw.LayerTypes), raw.Layers),
		},
		{
			raw.MLPLayerTypes != nil && len(raw.MLPLayerTypes) != raw.Layers,
			fmt.Sprintf("mlp_layer_types has %d entries for %d layers", len(raw.MLPLayerTypes), raw.Layers),
		},
	} {
		if r.bad {
			return refuseConfig("", "%s", r.what)
		}
	}
	return nil
}

// gatingUnknown: the rows of g_proj decide between the known spellings, but a value that is none of them means something else.
func (raw *rawConfig) gatingUnknown() bool {
	switch raw.Gating {
	case nil, true, false, "per-head", "per-element":
		return false
	}
	return true
}

func (raw *rawConfig) layer(i, headDim int) (LayerConfig, error) {
	l := LayerConfig{Heads: raw.Heads, Gated: raw.Gating != false}
	if raw.HeadsPerLayer != nil {
		l.Heads = raw.HeadsPerLayer[i]
	}
	kind := "full_attention"
	if raw.LayerTypes != nil {
		kind = raw.LayerTypes[i]
	}
	switch kind {
	case "full_attention", "global_attention":
		kind = "full_attention"
	case "sliding_attention":
		if l.Window = or(raw.Window, 0); l.Window < 1 {
			return l, refuseConfig("", "layer %d is sliding_attention but sliding_window is %d", i, l.Window)
		}
	default:
		return l, refuseConfig("", "layer_types[%d] is %q, expected \"full_attention\" or \"sliding_attention\"", i, kind)
	}
	rope, err := raw.rope(kind)
	if err != nil {
		return l, err
	}
	if l.RoPE, err = rope.resolve(headDim, raw.MaxPositions); err != nil {
		return l, err
	}
	l.Sparse, err = raw.sparse(i)
	return l, err
}

// sparse follows the three generations of the field: mlp_layer_types, then mlp_only_layers with decoder_sparse_step, then "the first is dense".
func (raw *rawConfig) sparse(i int) (bool, error) {
	switch {
	case raw.MLPLayerTypes != nil:
		switch raw.MLPLayerTypes[i] {
		case "sparse":
			if raw.Experts == 0 {
				return false, refuseConfig("", "mlp_layer_types[%d] is \"sparse\" but num_experts is 0", i)
			}
			return true, nil
		case "dense":
			return false, nil
		}
		return false, refuseConfig("", "mlp_layer_types[%d] is %q, expected \"dense\" or \"sparse\"", i, raw.MLPLayerTypes[i])
	case raw.Experts == 0:
		return false, nil
	case raw.MLPOnlyLayers != nil:
		for _, dense := range raw.MLPOnlyLayers {
			if dense == i {
				return false, nil
			}
		}
		step := or(raw.SparseStep, 1)
		return step > 0 && (i+1)%step == 0, nil
	}
	return i > 0, nil
}

func (c *Config) check() error {
	for _, d := range []struct {
		name  string
		value int
	}{
		{"vocab_size", c.Vocab},
		{"hidden_size", c.Hidden},
		{"num_key_value_heads", c.KVHeads},
		{"head_dim", c.HeadDim},
		{"max_position_embeddings", c.MaxPositions},
	} {
		if d.value < 1 || d.value > maxWidth {
			return refuseConfig("", "%s is %d, expected 1 to %d", d.name, d.value, maxWidth)
		}
	}
	for _, d := range []struct {
		name  string
		value float32
	}{
		{"rms_norm_eps", c.Eps},
		{"moe_routed_scaling_factor", c.RoutedScaling},
		{"moe_router_logit_softcapping", c.Softcap},
	} {
		if d.value < 0 || math.IsInf(float64(d.value), 0) {
			return refuseConfig("", "%s is %v, expected a number from 0 that float32 holds", d.name, d.value)
		}
	}
	for i, l := range c.Layers {
		if l.Heads < 1 || l.Heads > maxWidth/c.HeadDim || l.Heads%c.KVHeads != 0 {
			return refuseConfig("", "num_attention_heads: layer %d has %d attention heads, expected a multiple of the %d key/value heads", i, l.Heads, c.KVHeads)
		}
		if a := float32(l.RoPE.Attention); math.IsInf(float64(a), 0) {
			return refuseConfig("", "attention_factor is %v, expected a number that float32 holds", l.RoPE.Attention)
		}
		if !l.Sparse {
			if c.Intermediate < 1 || c.Intermediate > maxWidth {
				return refuseConfig("", "intermediate_size is %d but layer %d is dense", c.Intermediate, i)
			}
			continue
		}
		for _, d := range []struct {
			name       string
			value, top int
		}{
			{"num_experts", c.Experts, 1 << 16},
			{"num_experts_per_tok", c.TopK, c.Experts},
			{"moe_intermediate_size", c.ExpertWidth, maxWidth},
			{"shared_expert_intermediate_size", c.SharedWidth, maxWidth},
		} {
			if d.value < 1 || d.value > d.top {
				return refuseConfig("", "%s is %d, expected 1 to %d", d.name, d.value, d.top)
			}
		}
	}
	return nil
}

func or[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

const configFile = "config.json"

func refuseConfig(hint, format string, args ...any) error {
	return &fault.Error{Kind: fault.Refused, File: configFile, Problem: fmt.Sprintf(format, args...), Hint: hint}
}
