package spec

import (
	"fmt"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
)

// NarrowIgnore edits a config.json, or a hf_quant_config.json, so that the modules in quantize are no longer exempted from quantization and every other
// one stays as it was. all names every linear module of the checkpoint (its weight has two dimensions). It changes nothing but the ignore rules that
// hit quantize: such a rule goes, or gives way to rules for just those other modules that nothing else exempts. All other bytes stay. A config that
// stands in several places is edited in each.
//
// A module in quantize that no target covers is refused, since the config does not say how it would be quantized.
func NarrowIgnore(config []byte, quantize, all []string) ([]byte, []Change, error) {
	var edits []edit
	err := eachPlace(config, func(q *QuantConfig, n *node) error {
		p, err := newNarrowing(q, quantize, all)
		if err != nil {
			return err
		}
		replaced, err := p.replacements()
		if err != nil {
			return err
		}
		edits = append(edits, ruleEdits(config, n, replaced)...)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	edited, changes := apply(config, edits)
	return edited, changes, nil
}

func eachPlace(config []byte, do func(*QuantConfig, *node) error) error {
	root, err := parseConfig(config)
	if err != nil {
		return err
	}
	for _, p := range placesIn(root) {
		q, err := parsePlace(root, p)
		if err != nil {
			return err
		}
		if err := do(q, p.node); err != nil {
			return err
		}
	}
	return nil
}

// ruleEdits turns replacements by the index of the rule into edits of the lists that hold the rules.
func ruleEdits(config []byte, n *node, replaced map[int][]string) (edits []edit) {
	first := 0
	for _, key := range []string{"ignore", "exclude_modules"} { // in the order in which they were read
		list := n.get(key)
		if list.absent() {
			continue
		}
		with := map[int][]string{}
		for i := range list.items {
			if rules, ok := replaced[first+i]; ok {
				with[i] = rules
			}
		}
		if len(with) > 0 {
			edits = append(edits, replaceItems(config, list, with)...)
		}
		first += len(list.items)
	}
	return edits
}

// narrowing works out what becomes of the ignore rules of one config.
type narrowing struct {
	q    *QuantConfig
	hit  map[int][]string // modules that are to be quantized, by the rules that exempt them
	keep map[int][]string // modules to go on exempting, by the rule that has done so
	free []string         // modules that no rule may exempt
}

func newNarrowing(q *QuantConfig, quantize, all []string) (*narrowing, error) {
	p := &narrowing{q: q, hit: map[int][]string{}, keep: map[int][]string{}, free: slices.Clone(quantize)}
	chosen := map[string]bool{}
	for _, m := range quantize {
		chosen[m] = true
		g, err := q.Targeted(m, Linear)
		if err != nil {
			return nil, err
		}
		if g == nil {
			return nil, &fault.Error{Kind: fault.Refused, Tensor: m, Problem: "no target of the quantization config covers the module"}
		}
		hits, err := q.IgnoredBy(m, Linear)
		if err != nil {
			return nil, err
		}
		for _, i := range hits {
			p.hit[i] = append(p.hit[i], m)
		}
	}
	if len(p.hit) == 0 {
		return p, nil
	}
	for _, m := range all {
		if chosen[m] {
			continue
		}
		hits, err := q.IgnoredBy(m, Linear)
		if err != nil {
			return nil, err
		}
		switch {
		case len(hits) == 0:
			p.free = append(p.free, m)
		case !slices.ContainsFunc(hits, func(i int) bool { return p.hit[i] == nil }):
			p.keep[hits[0]] = append(p.keep[hits[0]], m)
		}
	}
	return p, nil
}

// replacements returns what comes in the stead of each rule that has to go.
func (p *narrowing) replacements() (map[int][]string, error) {
	replaced := map[int][]string{}
	for i := range p.hit {
		rules, err := p.narrower(i)
		if err != nil {
			return nil, err
		}
		replaced[i] = rules
	}
	return replaced, nil
}

// narrower returns rules that exempt the modules in keep and none that is free: the rule itself for fewer layers where that does it, else an expression
// for each shape of name, else the names. What is proposed is tried on every module before it is taken.
func (p *narrowing) narrower(rule int) (rules []string, err error) {
	keep := p.keep[rule]
	if layers := otherLayers(keep, p.hit[rule]); len(layers) > 0 {
		if narrow, ok := forLayers(p.q.Ignore[rule], layers); ok {
			left, ok, err := p.try([]string{narrow}, keep)
			if err != nil {
				return nil, err
			}
			if ok && !inLayers(left, layers) {
				rules, keep = append(rules, narrow), left
			}
		}
	}
	shapes, names := shapesOf(keep)
	for _, s := range shapes {
		proposed := s.names
		if len(s.names) > 1 {
			if proposed = s.pythonRules(); p.q.ModelOpt() {
				proposed = s.globRules()
			}
			left, ok, err := p.try(proposed, s.names)
			if err != nil {
				return nil, err
			}
			if !ok || len(left) > 0 {
				proposed = s.names
			}
		}
		rules = append(rules, proposed...)
	}
	return append(rules, names...), nil
}

// otherLayers returns the layers of modules in which none of those lies that are to be quantized.
func otherLayers(modules, quantize []string) (layers []int) {
	mixed := map[int]bool{}
	for _, m := range quantize {
		if layer, ok := layerOf(m); ok {
			mixed[layer] = true
		}
	}
	for _, m := range modules {
		if layer, ok := layerOf(m); ok && !mixed[layer] {
			layers = append(layers, layer)
		}
	}
	slices.Sort(layers)
	return slices.Compact(layers)
}

func inLayers(modules []string, layers []int) bool {
	return slices.ContainsFunc(modules, func(m string) bool {
		layer, ok := layerOf(m)
		return ok && slices.Contains(layers, layer)
	})
}

// try says whether rules exempt no module that is to be free, and which of the modules in keep they leave out.
func (p *narrowing) try(rules, keep []string) (left []string, ok bool, err error) {
	to := pythonRule
	if p.q.ModelOpt() {
		to = globRule
	}
	set, err := newRuleSet(rules, to)
	if err != nil {
		return nil, false, err
	}
	set.ancestors = p.q.ModelOpt()
	for _, m := range p.free {
		if hit, err := set.any(m, Linear); hit || err != nil {
			return nil, false, err
		}
	}
	for _, m := range keep {
		hit, err := set.any(m, Linear)
		if err != nil {
			return nil, false, err
		}
		if !hit {
			left = append(left, m)
		}
	}
	return left, true, nil
}

// WeightOnly edits a config so that its NVFP4 groups no longer quantize their inputs: input_activations becomes null, and NVFP4 becomes W4A16_NVFP4 in
// ModelOpt's spelling. All other bytes stay.
func WeightOnly(config []byte) ([]byte, []Change, error) {
	var edits []edit
	err := eachPlace(config, func(q *QuantConfig, n *node) error {
		for _, g := range q.Groups {
			if !g.NVFP4() || g.Inputs == nil {
				continue
			}
			group := n.at("config_groups", g.Name)
			inputs := group.get("input_activations")
			if inputs.absent() && !q.ModelOpt() {
				return &fault.Error{
					Kind: fault.Refused, Problem: fmt.Sprintf("config_groups.%s is the name of a preset, which has no input_activations to take away", g.Name),
					Hint: "write the group out, with input_activations null",
				}
			}
			if !inputs.absent() {
				edits = append(edits, edit{inputs.begin, inputs.end, "null"})
			}
		}
		if q.ModelOpt() {
			edits = append(edits, weightOnlyAlgorithms(n)...)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	edited, changes := apply(config, edits)
	return edited, changes, nil
}

func weightOnlyAlgorithms(n *node) (edits []edit) {
	holders := []*node{n}
	if layers := n.get("quantized_layers"); layers != nil {
		holders = append(holders, layers.items...)
	}
	for _, h := range holders {
		if algorithm := h.get("quant_algo"); !algorithm.absent() && algorithm.text == "NVFP4" {
			edits = append(edits, edit{algorithm.begin, algorithm.end, `"W4A16_NVFP4"`})
		}
	}
	return edits
}
