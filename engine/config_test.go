package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
)

// The configs of the smaller siblings, as far as they decide how the model computes.
func TestConfigsOfTheFamily(t *testing.T) {
	const common = `"model_type":"laguna","vocab_size":100352,"num_key_value_heads":8,"head_dim":128,"num_experts":256,"eos_token_id":[2,24]`
	fullYarn := RoPE{Theta: 5e5, Dims: 64, Factor: 32, BetaFast: 64, BetaSlow: 1, Original: 4096, Truncate: true, Attention: 1}
	plain := RoPE{Theta: 1e4, Dims: 128, Attention: 1}
	t.Run("S-2.1", func(t *testing.T) {
		c, err := ParseConfig([]byte(realConfig))
		require.NoError(t, err)
		require.Equal(t, LayerConfig{Heads: 72, Window: 512, RoPE: plain, Sparse: true, Gated: true}, c.Layers[3])
		require.Equal(t, 48, c.Layers[0].Heads)
		require.False(t, c.Layers[0].Sparse)
		require.Equal(t, float32(2.5), c.RoutedScaling)
		require.Equal(t, ScoreSigmoid, c.Score)
		low, high := c.Layers[0].RoPE.ramp()
		require.Equal(t, [2]float32{9, 18}, [2]float32{low, high})
	})
	t.Run("XS.2", func(t *testing.T) {
		c, err := ParseConfig([]byte(`{` + common + `,"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":3,"num_attention_heads":48,
"num_attention_heads_per_layer":[48,64,64],"layer_types":["full_attention","sliding_attention","sliding_attention"],"sliding_window":512,
"num_experts_per_tok":8,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"moe_routed_scaling_factor":2.5,"gating":true,
"max_position_embeddings":131072,"partial_rotary_factor":0.5,"moe_router_use_sigmoid":true,"rope_parameters":{
"original_max_position_embeddings":4096,
"full_attention":{"rope_type":"yarn","rope_theta":500000,"factor":32,"original_max_position_embeddings":4096,"beta_fast":64,"beta_slow":1,
"attention_factor":1.0,"partial_rotary_factor":0.5},"sliding_attention":{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":1.0}}}`))
		require.NoError(t, err)
		require.Equal(t, fullYarn, c.Layers[0].RoPE)
		require.Equal(t, plain, c.Layers[1].RoPE)
		require.Equal(t, []bool{false, true, true}, []bool{c.Layers[0].Sparse, c.Layers[1].Sparse, c.Layers[2].Sparse})
		require.True(t, c.Layers[0].Gated)
	})
	t.Run("XS.2 with the older spellings", func(t *testing.T) {
		c, err := ParseConfig([]byte(`{` + common + `,"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":2,"num_attention_heads":48,
"layer_types":["full_attention","sliding_attention"],"sliding_window":512,"num_experts_per_tok":8,"moe_intermediate_size":512,
"shared_expert_intermediate_size":512,"max_position_embeddings":131072,"partial_rotary_factor":0.5,"rope_theta":500000,
"rope_scaling":{"type":"yarn","factor":32,"original_max_position_embeddings":4096,"beta_fast":64,"attention_factor":1.0},
"swa_rope_parameters":{"rope_type":"default","rope_theta":10000,"partial_rotary_factor":1.0}}`))
		require.NoError(t, err)
		require.Equal(t, fullYarn, c.Layers[0].RoPE)
		require.Equal(t, plain, c.Layers[1].RoPE)
	})
	t.Run("M.1", func(t *testing.T) {
		c, err := ParseConfig([]byte(`{` + common + `,"hidden_size":4096,"intermediate_size":12288,"num_hidden_layers":5,"num_attention_heads":64,
"num_experts_per_tok":16,"moe_intermediate_size":1024,"shared_expert_intermediate_size":1024,"mlp_only_layers":[0,1,2],"sliding_window":0,
"gating":"per-element","max_position_embeddings":262144,"moe_router_score_func":"sigmoid","rope_parameters":{"rope_type":"yarn",
"rope_theta":500000,"factor":64,"original_max_position_embeddings":4096,"beta_fast":64,"partial_rotary_factor":1.0}}`))
		require.NoError(t, err)
		require.Equal(t, []bool{false, false, false, true, true}, []bool{
			c.Layers[0].Sparse, c.Layers[1].Sparse, c.Layers[2].Sparse, c.Layers[3].Sparse, c.Layers[4].Sparse,
		})
		require.Equal(t, 64, c.Layers[4].Heads)
		require.Zero(t, c.Layers[4].Window)
		require.Equal(t, 128, c.Layers[4].RoPE.Dims)
		require.InDelta(t, 1.4158883083359672, c.Layers[4].RoPE.Attention, 1e-12, "0.1 ln 64 + 1 where it is not given")
		require.Equal(t, float32(1), c.RoutedScaling)
	})
	t.Run("nothing but the dimensions", func(t *testing.T) {
		c, err := ParseConfig([]byte(`{` + common + `,"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":2,"num_attention_heads":48,
"num_experts_per_tok":8,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"max_position_embeddings":4096}`))
		require.NoError(t, err)
		require.Equal(t, RoPE{Theta: 5e5, Dims: 64, Attention: 1}, c.Layers[1].RoPE)
		require.Equal(t, float32(1e-6), c.Eps)
		require.True(t, c.NormTopK)
	})
}

func TestConfigsThatAreRefused(t *testing.T) {
	const rest = `"vocab_size":10,"hidden_size":32,"intermediate_size":32,"num_key_value_heads":1,"head_dim":32,"num_attention_heads":1,"max_position_embeddings":8`
	for _, v := range []struct{ config, problem string }{
		{`[]`, "config.json: file: found an array, expected an object"},
		{"{\n\"rope_theta\": NaN}", "config.json: rope_theta: line 2: found NaN, expected a number"},
		{"{\n\"rope_theta\":\n-Infinity}", "config.json: rope_theta: line 3: found -Infinity, expected a number"},
		{`{"model_type":`, "config.json: file: line 1: unexpected end"},
		{`{"model_type":"laguna",` + rest + `}`, "num_hidden_layers is 0"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":2,"layer_types":["full_attention"]}`, "layer_types has 1 entries for 2 layers"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"layer_types":["linear_attention"]}`, `"linear_attention"`},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"layer_types":["sliding_attention"]}`, "sliding_window is 0"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"attention_bias":true}`, "attention_bias"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"moe_apply_router_weight_on_input":true}`, "moe_apply_router_weight_on_input"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"swa_attention_sink_enabled":true}`, "sinks"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"moe_router_score_func":"cosine"}`, `"cosine"`},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":2,"num_experts":4,"num_experts_per_tok":5}`, "num_experts_per_tok is 5, expected 1 to 4"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":2,"num_experts":4,"mlp_layer_types":["dense","thick"]}`, `"thick"`},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"rope_parameters":{"sliding_attention":{}}}`, "no entry for full_attention"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"rope_parameters":{"rope_type":"yarn","factor":-1}}`, "yarn"},
		{`{"model_type":"laguna",` + rest + `,"num_hidden_layers":1,"rope_theta":0}`, "rope_theta"},
	} {
		_, err := ParseConfig([]byte(v.config))
		require.ErrorContains(t, err, v.problem)
		require.Equal(t, fault.Refused, fault.KindOf(err))
		f, _ := errors.AsType[*fault.Error](err)
		require.Equal(t, strings.Contains(v.problem, "NaN") || strings.Contains(v.problem, "Infinity"), strings.HasPrefix(f.Hint, "NaN and Infinity"), v.config)
	}
}

// One field of the real config is changed: the error names it, what was found and what was expected.
func TestConfigFieldsThatAreRefused(t *testing.T) {
	for _, v := range []struct{ field, instead, problem string }{
		{`"head_dim":128`, `"head_dim":NaN`, "head_dim: line 2: found NaN, expected a number"},
		{`"head_dim":128`, `"head_dim": -Infinity`, "head_dim: line 2: found -Infinity, expected a number"},
		{`,72]`, `,Infinity]`, "file: line 2: invalid character 'I' looking for beginning of value"},
		{`"hidden_size":3072`, `"hidden_size":"3072"`, "hidden_size: found a string, expected a whole number of at most 64 bits"},
		{`"hidden_size":3072`, `"hidden_size":3072.5`, "hidden_size: found 3072.5, expected a whole number of at most 64 bits"},
		{`"hidden_size":3072`, `"hidden_size":99999999999999999999`, "hidden_size: found 99999999999999999999, expected a whole number of at most 64 bits"},
		{`"hidden_size":3072`, `"hidden_size":null`, "hidden_size is 0, expected 1 to 16777216"},
		{`"hidden_size":3072,`, ``, "hidden_size is 0, expected 1 to 16777216"},
		{`"vocab_size":100352`, `"vocab_size":-1`, "vocab_size is -1, expected 1 to 16777216"},
		{`"norm_topk_prob":true`, `"norm_topk_prob":"yes"`, "norm_topk_prob: found a string, expected true or false"},
		{`"model_type":"laguna"`, `"model_type":["laguna"]`, "model_type: found an array, expected a string"},
		{`[48,72,72,72]`, `48`, "num_attention_heads_per_layer: found a number, expected an array"},
		{`[48,72,72,72]`, `[48,72,"72",72]`, "num_attention_heads_per_layer: found a string, expected a whole number of at most 64 bits"},
		{`[48,72,72,72]`, `[48,72]`, "num_attention_heads_per_layer has 2 entries for 4 layers"},
		{`[48,72,72,72]`, `[48,72,72,0]`, "num_attention_heads: layer 3 has 0 attention heads, expected a multiple of the 8 key/value heads"},
		{`"num_key_value_heads":8`, `"num_key_value_heads":7`, "num_attention_heads: layer 0 has 48 attention heads, expected a multiple of the 7 key/value heads"},
		{`"num_hidden_layers":4,`, `"num_hidden_layers":5,`, "num_attention_heads_per_layer has 4 entries for 5 layers"},
		{`"num_hidden_layers":4,`, ``, "num_attention_heads_per_layer has 4 entries for 0 layers"},
		{`"moe_routed_scaling_factor":2.5`, `"moe_routed_scaling_factor":1e39`, "moe_routed_scaling_factor is +Inf, expected a number from 0 that float32 holds"},
		{`"moe_routed_scaling_factor":2.5`, `"moe_routed_scaling_factor":1e999`, "moe_routed_scaling_factor: found 1e999, expected a number of at most 64 bits"},
		{`"moe_routed_scaling_factor":2.5`, `"rms_norm_eps":-1`, "rms_norm_eps is -1, expected a number from 0 that float32 holds"},
		{`"moe_routed_scaling_factor":2.5`, `"moe_router_logit_softcapping":-3`, "moe_router_logit_softcapping is -3, expected a number from 0 that float32 holds"},
		{`"gating":"per-head"`, `"gating":"per-layer"`, `gating is per-layer, expected true, false, "per-head" or "per-element"`},
		{`"gating":"per-head"`, `"gating":{"a":[1]}`, `gating is map[a:[1]], expected true, false, "per-head" or "per-element"`},
		{`"decoder_sparse_step":1`, `"decoder_sparse_step":0`, "decoder_sparse_step is 0, expected 1 or more"},
		{`"num_experts":256`, `"num_experts":100000`, "num_experts is 100000, expected 1 to 65536"},
		{`"num_experts":256`, `"num_experts":0,"mlp_layer_types":["dense","sparse","sparse","sparse"]`, `mlp_layer_types[1] is "sparse" but num_experts is 0`},
		{`"num_experts_per_tok":10`, `"num_experts_per_tok":257`, "num_experts_per_tok is 257, expected 1 to 256"},
		{`"intermediate_size":12288,`, ``, "intermediate_size is 0 but layer 0 is dense"},
		{`"rope_theta":10000.0`, `"rope_theta":"10000"`, "rope_parameters.rope_theta: found a string, expected a number of at most 64 bits"},
		{`"attention_factor":1.3465735902799727`, `"attention_factor":1e308`, "attention_factor is 1e+308, expected a number that float32 holds"},
		{`"max_position_embeddings":262144`, `"max_position_embeddings":1e30`, "max_position_embeddings: found 1e30, expected a whole number of at most 64 bits"},
	} {
		require.Contains(t, realConfig, v.field)
		_, err := ParseConfig([]byte(strings.Replace(realConfig, v.field, v.instead, 1)))
		require.EqualError(t, err, "config.json: "+v.problem)
		require.Equal(t, fault.Refused, fault.KindOf(err))
	}

	// How many layers there are is asked before anything is made for each of them.
	_, err := ParseConfig([]byte(`{"model_type":"laguna","num_hidden_layers":1000000000000}`))
	require.EqualError(t, err, "config.json: num_hidden_layers is 1000000000000, expected 1 to 4096")
}

// A config is refused, or it is whole: what the engine divides by, allocates and indexes with is in its range.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(realConfig))
	f.Add([]byte(`{"model_type":"laguna","num_hidden_layers":2,"gating":null,"rope_parameters":[],"rope_scaling":{"type":"yarn"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			require.Equal(t, fault.Refused, fault.KindOf(err))
			return
		}
		for _, l := range c.Layers {
			require.Zero(t, l.Heads%c.KVHeads)
			require.Positive(t, l.Heads)
			require.GreaterOrEqual(t, l.Window, 0)
			require.Len(t, l.RoPE.frequencies(), l.RoPE.Dims/2)
			require.True(t, l.RoPE.Dims >= 2 && l.RoPE.Dims <= c.HeadDim)
			require.True(t, !l.Sparse || c.TopK >= 1 && c.TopK <= c.Experts)
		}
	})
}
