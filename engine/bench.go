package engine

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lagquant/lagquant/safetensors"
)

// BenchResult is how fast this machine decodes a model of the real one's layers.
type BenchResult struct {
	ModelBytes    int64   `json:"model_bytes"`
	Workers       int     `json:"workers"`
	PromptTokens  int     `json:"prompt_tokens"`
	PromptRate    float64 `json:"prompt_tokens_per_second"`
	DecodeTokens  int     `json:"decode_tokens"`
	DecodeRate    float64 `json:"decode_tokens_per_second"`
	BytesPerToken int64   `json:"bytes_per_token"`       // weights that one decoded token needs
	BytesPerSec   float64 `json:"bytes_per_second"`      // at which decoding went over them: to be held against the memory's read rate
	PromptSpeedup float64 `json:"prompt_per_decode"`     // prompt rate over decode rate
	Read          float64 `json:"read_bytes_per_second"` // of the memory, between the steps
}

// benchConfig has Laguna-S-2.1's layers: one dense and three sparse ones, a smaller vocabulary, and as many experts as the size asks for.
const benchConfig = `{"architectures":["LagunaForCausalLM"],"model_type":"laguna","dtype":"bfloat16","vocab_size":16384,"hidden_size":3072,
"intermediate_size":12288,"num_hidden_layers":4,"num_attention_heads":48,"num_attention_heads_per_layer":[48,72,72,72],
"num_key_value_heads":8,"head_dim":128,"sliding_window":512,"hidden_act":"silu","rms_norm_eps":1e-06,"tie_word_embeddings":false,
"layer_types":["full_attention","sliding_attention","sliding_attention","sliding_attention"],
"mlp_layer_types":["dense","sparse","sparse","sparse"],"num_experts":EXPERTS,"num_experts_per_tok":10,"moe_intermediate_size":1024,
"shared_expert_intermediate_size":1024,"norm_topk_prob":true,"moe_routed_scaling_factor":2.5,"max_position_embeddings":8192,"gating":"per-head",
"attention_bias":false,"rope_parameters":{"full_attention":{"rope_type":"yarn","rope_theta":500000.0,"partial_rotary_factor":0.5,
"original_max_position_embeddings":8192,"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"attention_factor":1.3465735902799727},
"sliding_attention":{"rope_type":"default","rope_theta":10000.0,"partial_rotary_factor":1.0}},
"quantization_config":{"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","quantization_status":"compressed",
"config_groups":{"group_0":{"targets":["re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"],"format":"nvfp4-pack-quantized",
"weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,"symmetric":true,"dynamic":false},
"input_activations":null,"output_activations":null}},"ignore":[]}}`

// BenchConfig returns the config of the model that Bench runs, for about so many bytes of weights.
func BenchConfig(bytes int64) []byte {
	const (
		rest   = 950_000_000                     // of everything but routed experts
		expert = 3 * 3 * 1024 * 3072 / 2 * 9 / 8 // of one expert in all three layers: codes and scales
	)
	experts := max((bytes-rest)/expert, 10)
	count, _ := json.Marshal(experts) // an integer always marshals
	return []byte(strings.Replace(benchConfig, "EXPERTS", string(count), 1))
}

// Bench runs a prompt and then single steps of random tokens, a few times over, on a checkpoint made of BenchConfig. After each step, so that
// both see the same machine, read is called: it reads memory and returns the bytes a second.
func Bench(ctx context.Context, dir string, prompt, steps int, read func() float64, opts Options) (*BenchResult, error) {
	ckpt, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	m, err := Load(ckpt, opts)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	s, err := m.NewSession(prompt + steps)
	if err != nil {
		return nil, err
	}
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32(i * 7919 % m.Config.Vocab)
	}
	// The first round fills the expert cache and the buffers, the others count, with their median prompt and their median step: other work on
	// the machine disturbs those less.
	var prompts, times []time.Duration
	var reads []float64
	for round := range 4 {
		s.Truncate(0)
		s.Stats = Stats{}
		if _, err := s.Prefill(ctx, ids); err != nil {
			return nil, err
		}
		if round > 0 {
			prompts = append(prompts, s.Stats.PromptTime)
		}
		for i := range steps {
			start := time.Now()
			if _, err := s.Step(ctx, ids[i%prompt]); err != nil {
				return nil, err
			}
			if round > 0 {
				times = append(times, time.Since(start))
				reads = append(reads, read())
			}
		}
	}
	slices.Sort(prompts)
	slices.Sort(times)
	slices.Sort(reads)
	r := &BenchResult{
		Workers: m.shared.pool.workers, PromptTokens: prompt, PromptRate: rate(prompt, prompts[len(prompts)/2]), DecodeTokens: steps,
		DecodeRate: rate(1, times[len(times)/2]), BytesPerToken: s.Stats.BytesPerToken(), Read: reads[len(reads)/2],
	}
	r.BytesPerSec = float64(r.BytesPerToken) * r.DecodeRate
	for _, shard := range ckpt.Shards {
		r.ModelBytes += shard.Size
	}
	r.PromptSpeedup = r.PromptRate / max(r.DecodeRate, 1e-9)
	return r, nil
}
