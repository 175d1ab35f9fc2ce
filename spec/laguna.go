package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/safetensors"
)

// laguna is what a Laguna config says about the shapes of the model's tensors: S-2.1, XS-2.1, XS.2 and M.1 differ in numbers, in which layers are dense
// and in how attention is gated.
type laguna struct {
	vocab, hidden, intermediate, headDim, keyValueHeads uint64
	experts, expertIntermediate, sharedIntermediate     uint64 // sharedIntermediate 0: no shared expert

	dtype  safetensors.DType
	tied   bool
	layers []lagunaLayer
}

type lagunaLayer struct {
	heads  uint64
	sparse bool
	gate   []gating // accepted
}

// gating is how many values the attention gate has a token: one a head, or one an element of the heads' outputs.
type gating bool

const (
	perHead    gating = false
	perElement gating = true
)

const (
	mostLayers  = 10_000
	mostTensors = 10_000_000
)

// isLaguna says whether a config is of the family's language models. Their DFlash drafts carry the same model_type.
func isLaguna(config *node) bool {
	if (&fields{}).text(config, "model_type", "") != "laguna" {
		return false
	}
	architectures := (&fields{}).texts(config, "architectures")
	return len(architectures) == 0 || slices.Contains(architectures, "LagunaForCausalLM")
}

// parseLaguna reads a config; false: it asks for tensors (biases, attention sinks, no gate) that no released Laguna has, so that their names are not known.
func parseLaguna(c *node) (*laguna, bool, error) {
	f := &fields{where: "config of a laguna model"}
	count := f.integer(c, "num_hidden_layers", 0)
	if count < 1 || count > mostLayers {
		f.fail("num_hidden_layers is %d, expected 1 to %d", count, mostLayers)
		return nil, false, f.err
	}
	l := &laguna{
		vocab:         f.size(c, "vocab_size"),
		hidden:        f.size(c, "hidden_size"),
		keyValueHeads: f.size(c, "num_key_value_heads"),
		tied:          f.boolean(c, "tie_word_embeddings", false),
		dtype:         f.dtype(c),
		layers:        make([]lagunaLayer, count),
	}
	f.layerKinds(c, l)
	f.layerHeads(c, l)
	if slices.ContainsFunc(l.layers, func(layer lagunaLayer) bool { return layer.sparse }) {
		l.experts = f.size(c, "num_experts")
		l.expertIntermediate = f.size(c, "moe_intermediate_size")
		if c.get("shared_expert_intermediate_size").absent() {
			f.fail("shared_expert_intermediate_size is missing")
		}
		if shared := f.integer(c, "shared_expert_intermediate_size", 0); shared != 0 {
			l.sharedIntermediate = f.size(c, "shared_expert_intermediate_size")
		}
	}
	if slices.ContainsFunc(l.layers, func(layer lagunaLayer) bool { return !layer.sparse }) {
		l.intermediate = f.size(c, "intermediate_size")
	}
	if total := uint64(count) * l.experts * 12; total > mostTensors {
		f.fail("%d layers of %d experts have more than %d tensors", count, l.experts, mostTensors)
	}
	known := f.gates(c, l)
	for _, key := range []string{"attention_bias", "qkv_bias", "swa_attention_sink_enabled"} {
		known = known && !f.boolean(c, key, false)
	}
	return l, known, f.err
}

// size reads a dimension, which no config leaves out.
func (f *fields) size(c *node, key string) uint64 {
	const most = 1 << 30
	n := f.integer(c, key, 0)
	if n < 1 || n > most {
		f.fail("%s is %d, expected 1 to %d", key, n, most)
		return 1
	}
	return uint64(n)
}

// perLayer reads a list with an entry for each layer; nil where there is none, or one of another length.
func (f *fields) perLayer(c *node, key string, l *laguna) []string {
	list := f.texts(c, key)
	if list != nil && len(list) != len(l.layers) {
		f.fail("%s has %d entries for %d layers", key, len(list), len(l.layers))
		return nil
	}
	return list
}

func (f *fields) dtype(c *node) safetensors.DType {
	switch d := f.text(c, "dtype", f.text(c, "torch_dtype", "bfloat16")); strings.TrimPrefix(d, "torch.") {
	case "bfloat16":
		return safetensors.BF16
	case "float16":
		return safetensors.F16
	case "float32":
		return safetensors.F32
	default:
		f.fail("dtype %q is not known", d)
		return safetensors.BF16
	}
}

// layerKinds reads which layers are sparse: mlp_layer_types, or mlp_only_layers with decoder_sparse_step in older configs, or all but the first.
func (f *fields) layerKinds(c *node, l *laguna) {
	kinds, dense := f.perLayer(c, "mlp_layer_types", l), c.get("mlp_only_layers")
	f.perLayer(c, "layer_types", l)
	step := f.integer(c, "decoder_sparse_step", 1)
	for i := range l.layers {
		switch {
		case kinds != nil:
			if kinds[i] != "dense" && kinds[i] != "sparse" {
				f.fail("mlp_layer_types[%d] is %q, expected dense or sparse", i, kinds[i])
			}
			l.layers[i].sparse = kinds[i] == "sparse"
		case !dense.absent():
			listed := slices.ContainsFunc(dense.items, func(n *node) bool { return n.text == fmt.Sprint(i) })
			l.layers[i].sparse = !listed && step > 0 && (i+1)%step == 0
		default:
			l.layers[i].sparse = i > 0
		}
	}
}

// layerHeads reads the query heads of each layer. The nominal num_attention_heads counts only where there is no list.
func (f *fields) layerHeads(c *node, l *laguna) {
	list := c.get("num_attention_heads_per_layer")
	if !list.absent() && len(list.items) != len(l.layers) {
		f.fail("num_attention_heads_per_layer has %d entries for %d layers", len(list.items), len(l.layers))
		return
	}
	nominal := f.size(c, "num_attention_heads")
	l.headDim = l.hidden / nominal
	if !c.get("head_dim").absent() {
		l.headDim = f.size(c, "head_dim")
	}
	for i := range l.layers {
		l.layers[i].heads = nominal
		if !list.absent() {
			entry := &node{kind: objectNode, keys: []string{"num_attention_heads_per_layer"}, items: []*node{list.items[i]}}
			l.layers[i].heads = f.size(entry, entry.keys[0])
		}
		if l.layers[i].heads%l.keyValueHeads != 0 {
			f.fail("layer %d has %d attention heads, no multiple of num_key_value_heads %d", i, l.layers[i].heads, l.keyValueHeads)
		}
	}
}

// gates reads the attention gate's form. true means one value a head in XS.2 and one an element in the code that came with later models, so both shapes
// of g_proj are accepted then, and where nothing is said.
func (f *fields) gates(c *node, l *laguna) (known bool) {
	types := f.perLayer(c, "gating_types", l)
	form := ""
	if g := c.get("gating"); !g.absent() {
		form = g.text
	}
	for i := range l.layers {
		if types != nil {
			form = types[i]
		}
		switch form {
		case "per-head", "per_head":
			l.layers[i].gate = []gating{perHead}
		case "per-element", "per_element":
			l.layers[i].gate = []gating{perElement}
		case "true", "":
			l.layers[i].gate = []gating{perHead, perElement}
		default:
			return false
		}
	}
	return true
}

// tensors lists what the model has on disk. Nothing has a bias, and experts are stored one by one.
func (l *laguna) tensors(q *QuantConfig) ([]ExpectedTensor, bool, error) {
	v := &inventory{quant: q, dtype: l.dtype, known: true}
	v.plain("model.embed_tokens.weight", l.vocab, l.hidden)
	for i, layer := range l.layers {
		name := fmt.Sprintf("model.layers.%d.", i)
		v.plain(name+"input_layernorm.weight", l.hidden)
		l.attention(v, name+"self_attn.", layer)
		v.plain(name+"post_attention_layernorm.weight", l.hidden)
		if layer.sparse {
			l.sparse(v, name+"mlp.")
		} else {
			v.mlp(name+"mlp.", l.hidden, l.intermediate)
		}
		if !v.known || v.err != nil {
			return nil, false, v.err
		}
	}
	v.plain("model.norm.weight", l.hidden)
	v.linear("lm_head", l.vocab, l.hidden)
	v.list[len(v.list)-1].Optional = l.tied
	return v.list, v.known, v.err
}

func (l *laguna) attention(v *inventory, name string, layer lagunaLayer) {
	queries, keys := layer.heads*l.headDim, l.keyValueHeads*l.headDim
	v.linear(name+"q_proj", queries, l.hidden)
	v.linear(name+"k_proj", keys, l.hidden)
	v.linear(name+"v_proj", keys, l.hidden)
	v.linear(name+"o_proj", l.hidden, queries)
	from := len(v.list)
	v.linear(name+"g_proj", layer.heads, l.hidden)
	if layer.gate[0] == perElement {
		v.list = v.list[:from]
		v.linear(name+"g_proj", queries, l.hidden)
	} else if len(layer.gate) > 1 && len(v.list) == from+1 {
		v.list[from].Shapes = append(v.list[from].Shapes, []uint64{queries, l.hidden})
	}
	v.plain(name+"q_norm.weight", l.headDim)
	v.plain(name+"k_norm.weight", l.headDim)
	if v.quant == nil || v.quant.KVCache == nil || v.quant.KVCache.Dynamic == DynamicTrue {
		return
	}
	for _, side := range []string{"k", "v"} {
		scale := name + side + "_scale"
		if v.quant.ModelOpt() {
			scale = name + side + "_proj." + side + "_scale"
		}
		v.add(scale, []safetensors.DType{safetensors.BF16, safetensors.F32}, scalarShapes...)
	}
}

// sparse adds a mixture of experts. The router's bias lies under "experts" on disk; an AWQ repack has it in BF16.
func (l *laguna) sparse(v *inventory, name string) {
	v.linear(name+"gate", l.experts, l.hidden)
	v.add(name+"experts.e_score_correction_bias", []safetensors.DType{safetensors.F32, safetensors.BF16}, []uint64{l.experts})
	for e := range l.experts {
		v.mlp(fmt.Sprintf("%sexperts.%d.", name, e), l.hidden, l.expertIntermediate)
	}
	if l.sharedIntermediate > 0 {
		v.mlp(name+"shared_expert.", l.hidden, l.sharedIntermediate)
	}
}

func (v *inventory) mlp(name string, hidden, intermediate uint64) {
	v.linear(name+"gate_proj", intermediate, hidden)
	v.linear(name+"up_proj", intermediate, hidden)
	v.linear(name+"down_proj", hidden, intermediate)
}
