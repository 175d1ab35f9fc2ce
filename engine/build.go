package engine

import (
	"fmt"
	"strconv"

	"github.com/lagquant/lagquant/internal/fault"
)

// builder collects the tensors of a model; the first error stays.
type builder struct {
	t         *tensors
	quantized func(module string) (bool, error)
	err       error
}

func (b *builder) matrix(module string, rows, cols int) (m *matrix) {
	if b.err != nil {
		return nil
	}
	var quantized bool
	if quantized, b.err = b.quantized(module); b.err != nil {
		return nil
	}
	m, b.err = b.t.matrix(module, rows, cols, quantized)
	return m
}

// plain is matrix for what is not part of an MLP: its input is not quantized by any released Laguna, nor by this engine.
func (b *builder) plain(module string, rows, cols int) *matrix {
	m := b.matrix(module, rows, cols)
	if b.err == nil && m.inputs.file != nil {
		b.err = &fault.Error{
			Kind: fault.Refused, Tensor: module, Err: ErrDType, Problem: "has a quantized input, which this engine computes for MLPs and experts only",
			Hint: "run it with w4a16 activations",
		}
	}
	return m
}

func (b *builder) vector(name string, shape ...uint64) (v []float32) {
	if b.err == nil {
		v, b.err = b.t.vector(name, shape...)
	}
	return v
}

func (b *builder) mlp(prefix string, width, hidden int) *mlp {
	return &mlp{
		width: width,
		gate:  b.matrix(prefix+"gate_proj", width, hidden),
		up:    b.matrix(prefix+"up_proj", width, hidden),
		down:  b.matrix(prefix+"down_proj", hidden, width),
	}
}

func (b *builder) layer(c *Config, i int) layer {
	l := layer{LayerConfig: c.Layers[i]}
	prefix := "model.layers." + strconv.Itoa(i) + "."
	attention := prefix + "self_attn."
	hidden, dim := uint64(c.Hidden), uint64(c.HeadDim)

	l.inputNorm = b.vector(prefix+"input_layernorm.weight", hidden)
	l.postNorm = b.vector(prefix+"post_attention_layernorm.weight", hidden)
	l.q = b.plain(attention+"q_proj", l.Heads*c.HeadDim, c.Hidden)
	l.k = b.plain(attention+"k_proj", c.KVHeads*c.HeadDim, c.Hidden)
	l.v = b.plain(attention+"v_proj", c.KVHeads*c.HeadDim, c.Hidden)
	l.o = b.plain(attention+"o_proj", c.Hidden, l.Heads*c.HeadDim)
	l.qNorm = b.vector(attention+"q_norm.weight", dim)
	l.kNorm = b.vector(attention+"k_norm.weight", dim)
	if l.Gated {
		l.g = b.gate(attention+"g_proj", l.Heads, l.Heads*c.HeadDim, c.Hidden)
	}
	l.kScale, l.vScale = b.kvScale(attention, "k"), b.kvScale(attention, "v")

	if !l.Sparse {
		l.mlp = b.mlp(prefix+"mlp.", c.Intermediate, c.Hidden)
		return l
	}
	l.router = b.plain(prefix+"mlp.gate", c.Experts, c.Hidden)
	l.bias = b.bias(prefix, c.Experts)
	l.mlp = b.mlp(prefix+"mlp.shared_expert.", c.SharedWidth, c.Hidden)
	l.experts = make([]expert, c.Experts)
	for j := range l.experts {
		x := b.mlp(prefix+"mlp.experts."+strconv.Itoa(j)+".", c.ExpertWidth, c.Hidden)
		l.experts[j] = expert{layer: i, id: j, gate: x.gate, up: x.up, down: x.down}
		if b.err != nil {
			break
		}
	}
	return l
}

// gate finds g_proj, whose rows say what the config spells in too many ways: one gate for a head, or one for each of its elements.
func (b *builder) gate(module string, heads, elements, hidden int) *matrix {
	if b.err != nil {
		return nil
	}
	var rows int
	if rows, b.err = b.t.rowsOf(module); b.err != nil {
		return nil
	}
	if rows != elements {
		rows = heads
	}
	return b.plain(module, rows, hidden)
}

// has says whether the checkpoint has a tensor. One that cannot be looked for is an error and not absent.
func (b *builder) has(name string) bool {
	if b.err != nil {
		return false
	}
	var ok bool
	_, _, ok, b.err = b.t.find(name)
	return ok && b.err == nil
}

// kvScale reads a static FP8 scale under the names in use; 1 where there is none.
func (b *builder) kvScale(attention, which string) float32 {
	for _, name := range []string{which + "_scale", which + "_proj." + which + "_scale"} {
		if !b.has(attention + name) {
			continue
		}
		if v := b.vector(attention + name); b.err == nil {
			if !(v[0] > 0) {
				b.err = &fault.Error{
					Kind: fault.Refused, Tensor: attention + name, Err: ErrScale,
					Problem: fmt.Sprintf("is %v, expected a positive number", v[0]),
				}
			}
			return v[0]
		}
	}
	return 1
}

// bias reads the router's correction bias, which is stored under the experts, or under the gate where transformers renamed it.
func (b *builder) bias(prefix string, experts int) []float32 {
	renamed := prefix + "mlp.gate.e_score_correction_bias"
	if b.has(renamed) {
		return b.vector(renamed, uint64(experts))
	}
	return b.vector(prefix+"mlp.experts.e_score_correction_bias", uint64(experts))
}
