// Package synthetic writes Laguna-shaped checkpoints of random weights, for measurements and for tests of size.
package synthetic

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/safetensors"
)

// Shape says how large a checkpoint is. Layer 0 is dense, as in every Laguna.
type Shape struct {
	Layers       int // layer 0 included
	Experts      int // a layer
	Hidden       int
	Intermediate int // of an expert, and of the shared one
	Heads        int // of 128, over 8 key and value heads
	Vocab        int
	ShardBytes   int64 // a shard is closed when it has reached this
}

// Bench is the shape of the benchmarks: 1.35 GB with the experts of Laguna-S-2.1, [1024, 3072] and [3072, 1024], which are 95 % of it as
// they are 97 % of the real one.
var Bench = Shape{Layers: 2, Experts: 68, Hidden: 3072, Intermediate: 1024, Heads: 8, Vocab: 512, ShardBytes: 350 << 20}

// Write makes dir and puts the checkpoint there: all weights BF16 and drawn from N(0, 0.02), with a config whose ignore rule exempts the
// experts of all layers from an NVFP4 scheme with quantized activations.
func Write(dir string, s Shape) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	shards := s.shards()
	pool := normal(1 << 24)
	weightMap := map[string]string{}
	var total int64
	for i, tensors := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		if err := writeShard(filepath.Join(dir, name), tensors, pool); err != nil {
			return err
		}
		for _, t := range tensors {
			weightMap[t.Name] = name
			total += bytesOf(t)
		}
	}
	index, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": weightMap}, "", "  ")
	if err != nil {
		return err
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), index, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

// shards lists the tensors of each file, layer by layer.
func (s Shape) shards() (shards [][]safetensors.Tensor) {
	var shard []safetensors.Tensor
	var size int64
	for _, t := range s.tensors() {
		shard, size = append(shard, t), size+bytesOf(t)
		if size >= s.ShardBytes {
			shards, shard, size = append(shards, shard), nil, 0
		}
	}
	if len(shard) > 0 {
		shards = append(shards, shard)
	}
	return shards
}

func (s Shape) tensors() []safetensors.Tensor {
	var list []safetensors.Tensor
	add := func(name string, shape ...int) {
		t := safetensors.Tensor{Name: name, DType: "BF16"}
		if strings.HasSuffix(name, "e_score_correction_bias") {
			t.DType = "F32"
		}
		for _, n := range shape {
			t.Shape = append(t.Shape, uint64(n))
		}
		list = append(list, t)
	}
	mlp := func(prefix string, width int) {
		add(prefix+"gate_proj.weight", width, s.Hidden)
		add(prefix+"up_proj.weight", width, s.Hidden)
		add(prefix+"down_proj.weight", s.Hidden, width)
	}
	add("model.embed_tokens.weight", s.Vocab, s.Hidden)
	for l := range s.Layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		add(p+"input_layernorm.weight", s.Hidden)
		add(p+"post_attention_layernorm.weight", s.Hidden)
		add(p+"self_attn.q_proj.weight", s.Heads*headDim, s.Hidden)
		add(p+"self_attn.k_proj.weight", kvHeads*headDim, s.Hidden)
		add(p+"self_attn.v_proj.weight", kvHeads*headDim, s.Hidden)
		add(p+"self_attn.o_proj.weight", s.Hidden, s.Heads*headDim)
		add(p+"self_attn.g_proj.weight", s.Heads, s.Hidden)
		add(p+"self_attn.q_norm.weight", headDim)
		add(p+"self_attn.k_norm.weight", headDim)
		if l == 0 {
			mlp(p+"mlp.", s.Intermediate)
			continue
		}
		add(p+"mlp.gate.weight", s.Experts, s.Hidden)
		add(p+"mlp.experts.e_score_correction_bias", s.Experts)
		mlp(p+"mlp.shared_expert.", s.Intermediate)
		for e := range s.Experts {
			mlp(fmt.Sprintf("%smlp.experts.%d.", p, e), s.Intermediate)
		}
	}
	add("model.norm.weight", s.Hidden)
	add("lm_head.weight", s.Vocab, s.Hidden)
	return list
}

const (
	headDim = 128
	kvHeads = 8
)

func bytesOf(t safetensors.Tensor) int64 {
	bits, _ := t.DType.Bits()
	n := int64(bits / 8)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// writeShard fills tensors from a pool of numbers, each from a place of its own. Norms are ones and biases zeros, so that the model runs.
func writeShard(path string, tensors []safetensors.Tensor, pool []byte) error {
	random := rand.New(rand.NewPCG(uint64(len(tensors)), 1))
	sources := make([]safetensors.Source, len(tensors))
	for i, t := range tensors {
		size := bytesOf(t)
		var r io.Reader = &cycle{pool, 32 * random.IntN(len(pool)/32)}
		switch {
		case strings.Contains(t.Name, "norm"):
			r = &cycle{[]byte{0x80, 0x3f}, 0} // BF16 1.0
		case t.DType == "F32":
			r = &cycle{[]byte{0}, 0}
		}
		sources[i] = safetensors.Source{Tensor: t, Open: func() (io.Reader, error) { return io.LimitReader(r, size), nil }}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := safetensors.Write(f, sources, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	return f.Close()
}

// cycle reads a block over and over.
type cycle struct {
	block []byte
	at    int
}

func (c *cycle) Read(b []byte) (int, error) {
	n := copy(b, c.block[c.at:])
	c.at = (c.at + n) % len(c.block)
	return n, nil
}

// normal gives n bytes of BF16 drawn from N(0, 0.02).
func normal(n int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 0, n)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(random.NormFloat64()*0.02))>>16))
	}
	return b
}

func (s Shape) config() ([]byte, error) {
	scheme := func(dynamic any, observer string) map[string]any {
		return map[string]any{
			"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": dynamic, "observer": observer,
		}
	}
	types := slices.Repeat([]string{"sliding_attention"}, s.Layers)
	types[0] = "full_attention"
	mlps := slices.Repeat([]string{"sparse"}, s.Layers)
	mlps[0] = "dense"
	config := map[string]any{
		"architectures": []string{"LagunaForCausalLM"}, "model_type": "laguna", "dtype": "bfloat16", "vocab_size": s.Vocab, "hidden_size": s.Hidden,
		"intermediate_size": s.Intermediate, "moe_intermediate_size": s.Intermediate, "shared_expert_intermediate_size": s.Intermediate,
		"num_hidden_layers": s.Layers, "num_attention_heads": s.Heads, "num_key_value_heads": kvHeads, "head_dim": headDim,
		"num_experts": s.Experts, "num_experts_per_tok": min(10, s.Experts), "layer_types": types, "mlp_layer_types": mlps, "sliding_window": 512,
		"rms_norm_eps": 1e-6, "hidden_act": "silu", "gating": "per-head", "moe_routed_scaling_factor": 2.5, "tie_word_embeddings": false,
		"attention_bias": false, "max_position_embeddings": 8192, "bos_token_id": 2, "eos_token_id": []int{2, 24},
		"rope_parameters": map[string]any{
			"full_attention":    map[string]any{"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
			"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
		},
		"quantization_config": map[string]any{
			"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "quantization_status": "compressed",
			"config_groups": map[string]any{"group_0": map[string]any{
				"targets": []string{`re:.*experts\.[0-9]+\.(gate_proj|up_proj|down_proj)$`},
				"weights": scheme(false, "memoryless_minmax"), "input_activations": scheme("local", "static_minmax"),
			}},
			"ignore":  []string{"lm_head", `re:.*\.self_attn\..*`, `re:.*\.mlp\.gate$`, `re:.*shared_expert\..*`, `re:.*\.mlp\.experts(\..*)?$`},
			"version": "0.14.0.1",
		},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(config)
	return b.Bytes(), err
}
