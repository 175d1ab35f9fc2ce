package spec

import (
	"fmt"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
)

// The makers' names of the tensors of one projection.
var (
	compressedTensorsKinds = map[string]Kind{
		"weight": Weight, "weight_packed": Packed, "weight_scale": Scale, "weight_global_scale": Global, "input_global_scale": InputGlobal, "bias": Bias,
	}
	modelOptKinds = map[string]Kind{
		"weight": Weight, "weight_scale": Scale, "weight_scale_2": Global, "input_scale": InputGlobal, "bias": Bias,
	}
)

// family is how the checkpoints of one kind of model name their routed experts.
type family struct {
	name      string
	modelType string // of config.json; "": any
	key       string
	roles     map[string]Role
}

// families are tried in order. The last one knows any prefix: model., language_model.model., model.language_model., backbone.; mlp, block_sparse_moe, ffn,
// mixer or nothing between the layer and its experts.
var families = []family{
	{
		name: "laguna", modelType: "laguna", key: "**.layers.{layer}.mlp.experts.{expert}.{proj}.{kind}",
		roles: map[string]Role{"gate_proj": Gate, "up_proj": Up, "down_proj": Down},
	},
	{
		name: "per-expert", key: "**.{layer}.**.experts.{expert}.{proj}.{kind}",
		roles: map[string]Role{"gate_proj": Gate, "up_proj": Up, "down_proj": Down, "w1": Gate, "w3": Up, "w2": Down},
	},
}

func familyOf(config *node) family {
	modelType := (&fields{}).text(config, "model_type", "")
	for _, f := range families {
		if f.modelType == modelType {
			return f
		}
	}
	return families[len(families)-1]
}

// spec makes a family's description, without what only a checkpoint's names can say.
func (f family) spec(config *node) *Nvfp4ExpertSourceSpec {
	hidden := config.get("num_hidden_layers")
	if hidden.absent() {
		hidden = config.at("text_config", "num_hidden_layers")
	}
	s := &Nvfp4ExpertSourceSpec{
		Family: f.name, Key: f.key, Roles: f.roles,
		Synthesize: func(b quant.Backend, p quant.Profile, set []quant.Member) (float32, error) {
			return b.QuantizeSet(p, set)
		},
		key: newKey(f.key), hidden: -1, banks: map[int]int{},
	}
	if !hidden.absent() {
		if n, ok := decimal(hidden.text); ok {
			s.hidden = n
		}
	}
	return s
}

// otherForms are the forms of routed experts that are known and not read.
var otherForms = []struct {
	key  key
	what string
}{
	{newKey("**.experts.{proj}"), "fused 3-D experts"},
	{newKey("**.experts.{proj}.{kind}"), "fused 3-D experts"},
	{newKey("**.switch_mlp.{proj}.{kind}"), "stacked experts of an MLX repack"},
	{newKey("**.experts.{proj}_blocks"), "MXFP4 blocks of fused experts"},
	{newKey("**.experts.{proj}_scales"), "MXFP4 scales of fused experts"},
	{newKey("**.experts.{proj}_bias"), "biases of fused experts"},
	{newKey("**.experts.{proj}_scale_inv"), "FP8 block scales of fused experts"},
	{newKey("**.experts.{expert}.{proj}.weight_scale_inv"), "FP8 experts with block scales"},
	{newKey("**.experts.{expert}.{proj}.scale"), "experts with E8M0 block scales"},
	{newKey("**.experts.{expert}.{proj}.weight_scale_2"), "ModelOpt names beside those of compressed-tensors"},
	{newKey("**.experts.{expert}.{proj}.weight_packed"), "compressed-tensors names beside those of ModelOpt"},
	{newKey("**.experts.{expert}.{proj}.pre_quant_scale"), "experts whose weights ModelOpt scaled before quantizing (AWQ)"},
	{newKey("**.experts.{expert}.{proj}.qweight"), "integer-quantized experts (AWQ or GPTQ)"},
	{newKey("**.experts.{expert}.{proj}.{kind}"), "an expert tensor of an unknown kind"},
}

// unsupported says why a name that is not an expert's in the form looked for makes the checkpoint unfit; nil: it is something else, such as a router's
// bias under "experts", a shared expert, or part of a layer for multi-token prediction, which is copied.
func (s *Nvfp4ExpertSourceSpec) unsupported(name string) error {
	for _, form := range otherForms {
		f, ok := form.key.match(name)
		if !ok || f.expert < 0 && !projection(f.proj) || s.furtherToken(layerBefore(name)) {
			continue
		}
		return &fault.Error{
			Kind: fault.Refused, Tensor: name, Err: ErrExpertForm,
			Problem: fmt.Sprintf("%s cannot be requantized, expected experts.N.gate_proj.weight and the like", form.what),
			Hint:    "split or dequantize the experts into one BF16 weight a projection first",
		}
	}
	return nil
}

// layerBefore finds the layer in a name of another form: the last number before the experts.
func layerBefore(name string) keyFields {
	before, _, _ := strings.Cut(name, "experts.")
	before, _, _ = strings.Cut(before, "switch_mlp.")
	for rest := strings.TrimSuffix(before, "."); rest != ""; {
		var last string
		rest, last = cutLast(rest)
		if layer, ok := decimal(last); ok {
			return keyFields{prefix: rest, layer: layer}
		}
	}
	return keyFields{prefix: before, layer: -1}
}

// projection says whether a component names a projection, in any of the makers' spellings.
func projection(component string) bool {
	return strings.HasSuffix(component, "_proj") || component == "w1" || component == "w2" || component == "w3"
}
