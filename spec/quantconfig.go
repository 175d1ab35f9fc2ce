// Package spec says what a tensor is: which modules a config quantizes and how, how a family of models names and shapes its tensors, and how a config
// is edited when modules change their state.
package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

// The methods that are read.
const (
	CompressedTensors = "compressed-tensors"
	ModelOpt          = "modelopt"
)

// ErrMethod says that a checkpoint is quantized in a way that is not read here.
var ErrMethod = errors.New("unknown quantization method")

// ErrNoMethod is the ErrMethod of a quantization config that does not say how, which loaders refuse.
var ErrNoMethod = fmt.Errorf("%w: none is named", ErrMethod)

// QuantConfig is a checkpoint's quantization config.
type QuantConfig struct {
	File    string   // that it was read from by ReadQuantConfig
	Method  string   // CompressedTensors or ModelOpt
	Format  string   // compressed-tensors: the top-level format; ModelOpt: the algorithm
	Version string   // of the writer; "" where the config has none
	Places  []string // where configs stand, such as "text_config.quantization_config"; the first one was read
	Groups  []*Group // in the order of the file
	Ignore  []string // rules, which win over the groups' targets
	KVCache *Args    // nil: the KV cache has no scales

	ignore  *ruleSet
	targets *ruleSet
	owners  []*Group // of each rule in targets
}

// Group is how the modules that its targets name are quantized.
type Group struct {
	Name    string
	Format  string // of these modules: the group's own where it has one, as under mixed-precision, else the config's
	Targets []string
	Weights *Args // nil: not quantized
	Inputs  *Args // nil: weight-only, also where the config says null
	Outputs *Args
}

// NVFP4 says whether the weights are 4-bit floats in groups of 16 with a scale each and a global scale over them.
func (g *Group) NVFP4() bool { return g.Weights.nvfp4() }

// NVFP4Inputs says whether the inputs go with NVFP4 weights: they are numbers of the same kind, or left alone.
func (g *Group) NVFP4Inputs() bool { return g.Inputs == nil || g.Inputs.nvfp4() }

// InputScales says whether the modules carry a static scale of their inputs, as under W4A4: activation groups are scaled on the fly ("local"), on
// top of a global scale that is stored.
func (g *Group) InputScales() bool { return g.Inputs != nil && g.Inputs.Dynamic != DynamicTrue }

// Args are the library's QuantizationArgs as far as they say what is stored.
type Args struct {
	NumBits    int
	Type       string // "float", "int"
	Strategy   string // "tensor_group", "group", "tensor", "channel", "block", "token", "attn_head"
	GroupSize  int    // 0: none, -1: a whole row
	Symmetric  bool
	Dynamic    Dynamic
	Observer   string
	ScaleDType string // "" in older files
}

func (a *Args) nvfp4() bool {
	return a != nil && a.NumBits == 4 && a.Type == "float" && a.Strategy == "tensor_group" && a.GroupSize == 16 && a.Symmetric
}

// String gives the arguments in words: "8-bit int in groups of 32".
func (a *Args) String() string {
	if a == nil {
		return "not quantized"
	}
	s := fmt.Sprintf("%d-bit %s", a.NumBits, a.Type)
	if !a.Symmetric {
		s = "asymmetric " + s
	}
	switch a.Strategy {
	case "group":
		return fmt.Sprintf("%s in groups of %d", s, a.GroupSize)
	case "tensor_group":
		return fmt.Sprintf("%s in groups of %d under a global scale", s, a.GroupSize)
	}
	return s + " per " + a.Strategy
}

// Dynamic says when scales are computed.
type Dynamic string

// The values of the config, where false and true are booleans and local is a string.
const (
	DynamicFalse Dynamic = "false" // stored
	DynamicTrue  Dynamic = "true"  // at run time
	DynamicLocal Dynamic = "local" // per group at run time, under a stored global scale
)

// places are where transformers and the library look, in order, and where hf_quant_config.json has it.
var places = [][]string{{"quantization_config"}, {"text_config", "quantization_config"}, {"compression_config"}, {"quantization"}}

type place struct {
	path string
	node *node
}

func placesIn(root *node) (found []place) {
	for _, path := range places {
		if n := root.at(path...); !n.absent() {
			found = append(found, place{strings.Join(path, "."), n})
		}
	}
	return found
}

// parseConfig reads a config file. A checkpoint without one (nil) has an empty one.
func parseConfig(config []byte) (*node, error) {
	if config == nil {
		return &node{kind: objectNode}, nil
	}
	root, err := parseJSON(config)
	if err == nil && root.kind != objectNode {
		err = &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("the config is %v, expected an object", root)}
	}
	return root, err
}

// ParseQuantConfig reads the quantization config in a config.json or a hf_quant_config.json; nil where there is none. It accepts the JSON that Python
// accepts. Errors are of kind Refused; among their causes are ErrByteOrderMark and ErrMethod.
func ParseQuantConfig(config []byte) (*QuantConfig, error) {
	root, err := parseConfig(config)
	if err != nil {
		return nil, err
	}
	found := placesIn(root)
	if len(found) == 0 {
		return nil, nil
	}
	q, err := parsePlace(root, found[0])
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		q.Places = append(q.Places, p.path)
	}
	return q, nil
}

// ModelOptConfigName is the file in which Model-Optimizer says what it quantized. Some loaders read it, some config.json, some both.
const ModelOptConfigName = "hf_quant_config.json"

// ReadQuantConfig returns how the checkpoint in a folder is quantized: as its config.json says, else as ModelOpt's own file does; nil: not at all.
// Errors name the file.
func ReadQuantConfig(dir string, config []byte) (*QuantConfig, error) {
	q, err := parseFile("config.json", config)
	if q != nil || err != nil {
		return q, err
	}
	return ReadModelOptConfig(dir)
}

// ReadModelOptConfig returns what ModelOpt's own file in a folder says; nil where there is none, or where it says nothing of quantization.
func ReadModelOptConfig(dir string) (*QuantConfig, error) {
	raw, err := safetensors.ReadFile(dir, ModelOptConfigName)
	if raw == nil || err != nil {
		return nil, err
	}
	return parseFile(ModelOptConfigName, raw)
}

func parseFile(name string, config []byte) (*QuantConfig, error) {
	q, err := ParseQuantConfig(config)
	if q != nil {
		q.File = name
	}
	return q, fault.In(name, err)
}

func parsePlace(root *node, p place) (*QuantConfig, error) {
	if p.node.kind != objectNode {
		return nil, &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("%s is %v, expected an object", p.path, p.node)}
	}
	f := &fields{where: p.path}
	method := f.text(p.node, "quant_method", "")
	var (
		q  = &QuantConfig{}
		to = pythonRule
	)
	switch {
	case f.err != nil:
	case p.path == "quantization", method == ModelOpt, method == "modelopt_fp4":
		q.Method, to = ModelOpt, globRule
		f.modelOpt(q, root, p.node)
	case method == CompressedTensors, method == "" && p.node.get("config_groups") != nil:
		q.Method = CompressedTensors
		f.compressedTensors(q, p.node)
	case method == "":
		return nil, &fault.Error{
			Kind: fault.Refused, Err: ErrNoMethod, Problem: fmt.Sprintf("%s: quant_method is missing, expected %s or %s", p.path, CompressedTensors, ModelOpt),
		}
	default:
		return nil, &fault.Error{
			Kind: fault.Refused, Err: ErrMethod,
			Problem: fmt.Sprintf("%s: quant_method %q is not known, expected %s or %s", p.path, method, CompressedTensors, ModelOpt),
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	return q, q.compile(to)
}

// compile readies the rules for matching.
func (q *QuantConfig) compile(toRegexp func(string) (string, bool)) (err error) {
	if q.ignore, err = newRuleSet(q.Ignore, toRegexp); err != nil {
		return err
	}
	var targets []string
	for _, g := range q.Groups {
		targets = append(targets, g.Targets...)
		q.owners = append(q.owners, slices.Repeat([]*Group{g}, len(g.Targets))...)
	}
	if q.targets, err = newRuleSet(targets, toRegexp); err != nil {
		return err
	}
	q.ignore.ancestors, q.targets.ancestors = q.ModelOpt(), q.ModelOpt()
	return nil
}

// Group returns how a module is quantized; nil: it is not. Ignore rules win over targets. The module's name goes without ".weight"; class is Linear for
// every module that can be quantized. An error means that matching a rule took too long.
func (q *QuantConfig) Group(module, class string) (*Group, error) {
	if ignored, err := q.ignore.any(module, class); ignored || err != nil {
		return nil, err
	}
	return q.Targeted(module, class)
}

// Targeted returns the group whose targets name a module, whether or not it is ignored. Of several groups the one decides whose target is the most
// specific: a name before a pattern before a class.
func (q *QuantConfig) Targeted(module, class string) (*Group, error) {
	i, err := q.targets.first(module, class)
	if i < 0 || err != nil {
		return nil, err
	}
	return q.owners[i], nil
}

// IgnoredBy returns the indexes of the Ignore rules that match a module.
func (q *QuantConfig) IgnoredBy(module, class string) ([]int, error) {
	return q.ignore.matching(module, class)
}

// TargetedBy returns the indexes of the targets that match a module, counted through the groups in order.
func (q *QuantConfig) TargetedBy(module, class string) ([]int, error) {
	return q.targets.matching(module, class)
}

// ModelOpt says whether Model-Optimizer wrote the config, so that globals are stored as their reciprocals and rules are globs.
func (q *QuantConfig) ModelOpt() bool { return q.Method == ModelOpt }
