package spec

import (
	"regexp"
	"slices"
	"strings"
)

// modelOpt reads NVIDIA Model-Optimizer's config, in config.json (where root carries more about it than n) or in hf_quant_config.json.
func (f *fields) modelOpt(q *QuantConfig, root, n *node) {
	producer := n.get("producer")
	if producer.absent() {
		producer = root.get("producer")
	}
	q.Version = (&fields{}).text(producer, "version", "")
	q.Format = f.text(n, "quant_algo", "")
	q.Ignore = append(f.texts(n, "ignore"), f.texts(n, "exclude_modules")...)
	if f.text(n, "kv_cache_quant_algo", "") == "FP8" || !n.get("kv_cache_scheme").absent() {
		q.KVCache = &Args{NumBits: 8, Type: "float", Strategy: "tensor", Symmetric: true, Dynamic: DynamicFalse}
	}
	size := f.integer(n, "group_size", 16)
	switch q.Format {
	case "":
	case "MIXED_PRECISION":
		f.quantizedLayers(q, n.get("quantized_layers"), size)
	default:
		q.Groups = []*Group{f.algorithm("group_0", q.Format, size, []string{Linear})}
	}
}

// quantizedLayers reads {name: {quant_algo, group_size}}. A name stands for a module or for everything below it. Layers that are quantized alike make
// one group.
func (f *fields) quantizedLayers(q *QuantConfig, layers *node, size int) {
	if layers == nil || layers.kind != objectNode {
		f.fail("quantized_layers is missing or no object, under MIXED_PRECISION")
		return
	}
	type form struct {
		algorithm string
		size      int
	}
	groups := map[form]*Group{}
	for i, name := range layers.keys {
		to := form{f.text(layers.items[i], "quant_algo", ""), f.integer(layers.items[i], "group_size", size)}
		if groups[to] == nil {
			groups[to] = f.algorithm(to.algorithm, to.algorithm, to.size, nil)
			q.Groups = append(q.Groups, groups[to])
		}
		groups[to].Targets = append(groups[to].Targets, name)
	}
}

// algorithm describes a quant_algo. Those that change the weights first (NVFP4_AWQ, NVFP4_SVD) or store more beside them are known by name alone: their
// groups are not NVFP4.
func (f *fields) algorithm(name, algorithm string, size int, targets []string) *Group {
	g := &Group{Name: name, Format: algorithm, Targets: targets, Weights: &Args{Symmetric: true, Dynamic: DynamicFalse}}
	nvfp4 := &Args{NumBits: 4, Type: "float", Strategy: "tensor_group", GroupSize: size, Symmetric: true, Dynamic: DynamicFalse}
	switch algorithm {
	case "NVFP4":
		g.Weights, g.Inputs = nvfp4, nvfp4
	case "W4A16_NVFP4":
		g.Weights = nvfp4
	case "FP8":
		g.Weights = &Args{NumBits: 8, Type: "float", Strategy: "tensor", Symmetric: true, Dynamic: DynamicFalse}
		g.Inputs = g.Weights
	}
	return g
}

// globRule turns a rule of ModelOpt, a file name pattern as in Python's fnmatch, into an expression. Rules without a wildcard are plain names.
func globRule(text string) (string, bool) {
	if !strings.ContainsAny(text, "*?[") {
		return "", false
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			out.WriteString(".*")
		case '?':
			out.WriteString(".")
		case '[':
			class, n := globClass(text[i:])
			out.WriteString(class)
			i += n - 1
		default:
			// Bytes of a longer character are written one by one and come out whole.
			if c < 0x80 {
				out.WriteString(regexp.QuoteMeta(string(c)))
			} else {
				out.WriteByte(c)
			}
		}
	}
	return "(?s:" + out.String() + `)\Z`, true
}

// globClass translates [seq] and [!seq] at the start of s and returns how many bytes of s it took. A bracket without an end stands for itself.
func globClass(s string) (string, int) {
	body := strings.TrimPrefix(s[1:], "!")
	skip := len(s) - len(body)
	end := -1
	if len(body) > 0 {
		end = strings.IndexByte(body[1:], ']') // a ] that comes first is a member
	}
	if end < 0 {
		return `\[`, 1
	}
	body = body[:end+1]
	not := ""
	if slices.Contains([]byte(s[:skip]), '!') {
		not = "^"
	}
	body = strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(body)
	return "[" + not + body + "]", skip + end + 2
}
