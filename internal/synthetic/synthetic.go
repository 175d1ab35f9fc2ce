// Package synthetic writes Laguna-shaped checkpoints of random weights, for measurements and for tests of size.
package synthetic

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
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

// Bench is the shape of the benchmarks: 1.38 GB with the experts of Laguna-S-2.1, [1024, 3072] and [3072, 1024], which are 95 % of it as
// they are 97 % of the real one.
var Bench = Shape{Layers: 2, Experts: 68, Hidden: 3072, Intermediate: 1024, Heads: 8, Vocab: 512, ShardBytes: 350 << 20}

// Write makes dir and puts the checkpoint there: all weights BF16, with a config whose ignore rule exempts the experts of all layers from an
// NVFP4 scheme with quantized activations.
func Write(dir string, s Shape) error {
	config, err := s.config()
	if err != nil {
		return err
	}
	return WriteConfig(dir, config, s.ShardBytes)
}

// WriteConfig makes dir and puts a checkpoint there that has the tensors of a config, with values of the real ones' magnitudes. A shard is closed
// when it has reached shardBytes. The same config gives the same bytes.
func WriteConfig(dir string, config []byte, shardBytes int64) error {
	expected, known, err := spec.ExpectedTensors(config)
	if err != nil {
		return err
	}
	if !known {
		return &fault.Error{Kind: fault.Refused, File: "config.json", Problem: "the tensors of this model are not known"}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	shards := split(expected, shardBytes)
	fill := newValues()
	weightMap := map[string]string{}
	var total int64
	for i, tensors := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		if err := writeShard(filepath.Join(dir, name), tensors, fill); err != nil {
			return err
		}
		for _, t := range tensors {
			weightMap[t.Name] = name
			total += int64(t.Len())
		}
	}
	index, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": weightMap}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), index, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

// split deals the tensors into shards, in the model's order.
func split(expected []spec.ExpectedTensor, shardBytes int64) (shards [][]safetensors.Tensor) {
	var size int64
	for _, e := range expected {
		if e.Optional {
			continue
		}
		t := safetensors.Tensor{Name: e.Name, DType: e.DTypes[0], Shape: e.Shapes[0]}
		bits, _ := t.DType.Bits()
		t.End = bits / 8
		for _, n := range t.Shape {
			t.End *= n
		}
		if size == 0 {
			shards = append(shards, nil)
		}
		last := len(shards) - 1
		shards[last], size = append(shards[last], t), size+int64(t.Len())
		if size >= shardBytes {
			size = 0
		}
	}
	return shards
}

const (
	headDim = 128
	kvHeads = 8
)

func writeShard(path string, tensors []safetensors.Tensor, fill *values) error {
	sources := make([]safetensors.Source, len(tensors))
	for i, t := range tensors {
		sources[i] = safetensors.Source{Tensor: t, Open: func() (io.Reader, error) { return io.LimitReader(fill.of(t), int64(t.Len())), nil }}
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

// values are pools that tensors are cut from, each from a place of its own.
type values struct {
	normal []byte // BF16 from N(0, 0.02)
	codes  []byte // any byte is two codes
	scales []byte // E4M3 0.5 to 1.875
}

func newValues() *values {
	random := rand.New(rand.NewPCG(1, 2))
	v := &values{normal: make([]byte, 0, 1<<24), codes: make([]byte, 1<<24), scales: make([]byte, 1<<20)}
	for len(v.normal) < cap(v.normal) {
		v.normal = binary.LittleEndian.AppendUint16(v.normal, uint16(math.Float32bits(float32(random.NormFloat64()*0.02))>>16))
	}
	for i := range v.codes {
		v.codes[i] = byte(random.Uint32())
	}
	for i := range v.scales {
		v.scales[i] = 0x30 | v.codes[i]&15
	}
	return v
}

// of returns endless values for a tensor: norms are ones and biases zeros, so that the model runs, and scales what a quantizer would have found.
func (v *values) of(t safetensors.Tensor) io.Reader {
	number := func(f float32) io.Reader {
		b := binary.LittleEndian.AppendUint32(nil, math.Float32bits(f))
		if t.DType == safetensors.BF16 {
			b = b[2:]
		}
		return &cycle{b, 0}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.Name)) // a hash does not fail
	at := int(h.Sum32()&math.MaxInt32) &^ 31
	switch {
	case strings.HasSuffix(t.Name, "norm.weight"):
		return number(1)
	case strings.HasSuffix(t.Name, "_correction_bias"):
		return number(0)
	case strings.HasSuffix(t.Name, "k_scale"), strings.HasSuffix(t.Name, "v_scale"):
		return number(0.0625)
	case strings.HasSuffix(t.Name, "input_global_scale"):
		return number(512)
	case strings.HasSuffix(t.Name, "weight_global_scale"):
		return number(256)
	case t.DType == safetensors.F8E4M3:
		return &cycle{v.scales, at % len(v.scales)}
	case t.DType == safetensors.U8:
		return &cycle{v.codes, at % len(v.codes)}
	}
	return &cycle{v.normal, at % len(v.normal)}
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
