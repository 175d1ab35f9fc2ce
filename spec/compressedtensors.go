package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
)

// fields reads members of a config's objects and keeps the first thing that is wrong.
type fields struct {
	where string
	err   error
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = &fault.Error{Kind: fault.Refused, Problem: f.where + ": " + fmt.Sprintf(format, args...)}
	}
}

func (f *fields) text(n *node, key, missing string) string {
	v := n.get(key)
	if v.absent() {
		return missing
	}
	if v.kind != stringNode {
		f.fail("%s is %v, expected a string", key, v)
	}
	return v.text
}

func (f *fields) texts(n *node, key string) []string {
	v := n.get(key)
	if v.absent() {
		return nil
	}
	if v.kind != arrayNode {
		f.fail("%s is %v, expected a list of strings", key, v)
	}
	out := []string{}
	for _, item := range v.items {
		if item.kind != stringNode {
			f.fail("%s holds %v, expected strings", key, item)
		}
		out = append(out, item.text)
	}
	return out
}

func (f *fields) integer(n *node, key string, missing int) int {
	v := n.get(key)
	if v.absent() {
		return missing
	}
	i, err := strconv.Atoi(v.text)
	if v.kind != numberNode || err != nil {
		f.fail("%s is %v, expected a whole number", key, v)
	}
	return i
}

func (f *fields) boolean(n *node, key string, missing bool) bool {
	v := n.get(key)
	if v.absent() {
		return missing
	}
	if v.kind != literalNode || v.text != "true" && v.text != "false" {
		f.fail("%s is %v, expected true or false", key, v)
	}
	return v.text == "true"
}

// only refuses members that are not named, as the library's classes do.
func (f *fields) only(n *node, what string, keys string) {
	for _, key := range n.keys {
		if !strings.Contains(" "+keys+" ", " "+key+" ") {
			f.fail("%s has the unknown key %q, which compressed-tensors refuses", what, key)
		}
	}
}

// compressedTensors reads the library's QuantizationConfig. Unknown keys at this level are ignored there and here.
func (f *fields) compressedTensors(q *QuantConfig, n *node) {
	q.Format = f.text(n, "format", "dense")
	q.Version = (&fields{}).text(n, "version", "") // which the library does not look at
	q.Ignore = f.texts(n, "ignore")
	q.KVCache = f.args(n, "kv_cache_scheme", "kv_cache_scheme")
	groups := n.get("config_groups")
	if groups == nil || groups.kind != objectNode {
		f.fail("config_groups is missing or no object")
		return
	}
	for i, name := range groups.keys {
		if groups.get(name) == groups.items[i] { // else an equal key follows, and wins
			q.Groups = append(q.Groups, f.group(q, name, groups.items[i], groups))
		}
	}
}

func (f *fields) group(q *QuantConfig, name string, n, groups *node) *Group {
	g := &Group{Name: name, Format: q.Format}
	if n.kind == arrayNode {
		return f.preset(g, groups)
	}
	if n.kind != objectNode {
		f.fail("config_groups.%s is %v, expected an object", name, n)
		return g
	}
	f.only(n, "config_groups."+name, "targets weights input_activations output_activations format")
	g.Format = f.text(n, "format", q.Format)
	g.Targets = f.texts(n, "targets")
	g.Weights = f.args(n, "weights", name+".weights")
	g.Inputs = f.args(n, "input_activations", name+".input_activations")
	g.Outputs = f.args(n, "output_activations", name+".output_activations")
	return g
}

// preset reads the short form {"NVFP4": ["Linear"]}, where the group's name stands for its scheme.
func (f *fields) preset(g *Group, groups *node) *Group {
	nvfp4 := Args{NumBits: 4, Type: "float", Strategy: "tensor_group", GroupSize: 16, Symmetric: true, Dynamic: DynamicFalse}
	g.Targets, g.Weights = f.texts(groups, g.Name), &nvfp4
	switch strings.ToUpper(g.Name) {
	case "NVFP4":
		inputs := nvfp4
		inputs.Dynamic = DynamicLocal
		g.Inputs = &inputs
	case "NVFP4A16":
	default:
		f.fail("config_groups.%s: the preset is not known, expected NVFP4 or NVFP4A16", g.Name)
	}
	return g
}

const argsKeys = "num_bits type symmetric group_size strategy block_structure dynamic actorder scale_dtype zp_dtype observer observer_kwargs"

// args reads QuantizationArgs; nil where they are missing or null. Files written before compressed-tensors 0.13 have neither scale_dtype nor zp_dtype.
func (f *fields) args(n *node, key, what string) *Args {
	v := n.get(key)
	if v.absent() {
		return nil
	}
	if v.kind != objectNode {
		f.fail("%s is %v, expected an object", what, v)
		return nil
	}
	f.only(v, what, argsKeys)
	a := &Args{
		NumBits:    f.integer(v, "num_bits", 8),
		Type:       strings.ToLower(f.text(v, "type", "int")),
		Strategy:   strings.ToLower(f.text(v, "strategy", "")),
		GroupSize:  f.integer(v, "group_size", 0),
		Symmetric:  f.boolean(v, "symmetric", true),
		Dynamic:    f.dynamic(v, what),
		Observer:   f.text(v, "observer", ""),
		ScaleDType: f.text(v, "scale_dtype", ""),
	}
	if a.Strategy == "" {
		a.Strategy = defaultStrategy(a.GroupSize)
	}
	grouped := a.Strategy == "group" || a.Strategy == "tensor_group"
	switch {
	case !slices.Contains(strategies, a.Strategy):
		f.fail("%s: strategy %q is not known, expected one of %v", what, a.Strategy, strategies)
	case a.GroupSize < -1:
		f.fail("%s: group_size is %d, expected a positive number or -1", what, a.GroupSize)
	case grouped != (a.GroupSize > 0):
		f.fail("%s: strategy %s does not go with group_size %d", what, a.Strategy, a.GroupSize)
	case a.Dynamic == DynamicLocal && a.Strategy != "tensor_group":
		f.fail("%s: dynamic is local under strategy %s, expected tensor_group", what, a.Strategy)
	}
	return a
}

var strategies = []string{"tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"}

// defaultStrategy is what the library infers where none is given.
func defaultStrategy(groupSize int) string {
	switch {
	case groupSize > 0:
		return "group"
	case groupSize < 0:
		return "channel"
	}
	return "tensor"
}

func (f *fields) dynamic(n *node, what string) Dynamic {
	v := n.get("dynamic")
	if v != nil && v.kind == stringNode {
		if strings.ToLower(v.text) != string(DynamicLocal) {
			f.fail("%s: dynamic is %v, expected false, true or local", what, v)
		}
		return DynamicLocal
	}
	if f.boolean(n, "dynamic", false) {
		return DynamicTrue
	}
	return DynamicFalse
}
