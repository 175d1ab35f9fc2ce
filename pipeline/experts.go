package pipeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// expert is one projection of one routed expert as it lies in the source.
type expert struct {
	spec.ExpertTensor
	weight *weight // its BF16; nil where it is quantized
	packed bool
	name   string // of the tensor that holds its weights, for messages
	file   string
}

// inventory is what headers tell about the routed experts of a checkpoint.
type inventory struct {
	layers map[int]map[string]*expert // by layer and module name
	scalar []uint64                   // shape of the stored scalars; nil where there are none
}

// takeInventory sorts the tensors of a checkpoint by layer and module.
func takeInventory(c *safetensors.Checkpoint, s *spec.Nvfp4ExpertSourceSpec) inventory {
	inv := inventory{layers: map[int]map[string]*expert{}}
	for _, shard := range c.Shards {
		for _, t := range shard.Header.Tensors {
			e, ok := s.MatchTensor(t)
			if !ok || e.Bank < 0 {
				continue
			}
			modules := inv.layers[e.Layer]
			if modules == nil {
				modules = map[string]*expert{}
				inv.layers[e.Layer] = modules
			}
			m := modules[e.Module]
			if m == nil {
				m = &expert{ExpertTensor: e}
				modules[e.Module] = m
			}
			switch e.Kind {
			case spec.Weight:
				m.weight, m.name, m.file = &weight{shard, t}, t.Name, shard.Name
			case spec.Packed:
				m.packed, m.name, m.file = true, t.Name, shard.Name
			case spec.Global:
				if inv.scalar == nil {
					inv.scalar = slices.Clone(t.Shape)
				}
			}
		}
	}
	return inv
}

// choose returns the modules to requantize, by name: all experts of the given layers or, when none are given, of every layer that is BF16
// and that only an ignore rule keeps from being NVFP4.
func (inv inventory) choose(layers []int, q *spec.QuantConfig) ([]int, map[string]*expert, error) {
	if layers == nil {
		for layer, modules := range inv.layers {
			if whole, _ := state(modules); whole == "BF16" {
				exempt, err := exempted(modules, q)
				if err != nil {
					return nil, nil, err
				}
				if exempt {
					layers = append(layers, layer)
				}
			}
		}
		if len(layers) == 0 {
			return nil, nil, &fault.Error{
				Kind: fault.Usage, Problem: "nothing to do: no layer has BF16 experts that the config exempts from NVFP4", Hint: "lagquant inspect shows what each layer holds",
			}
		}
		slices.Sort(layers)
	}
	chosen := map[string]*expert{}
	for _, layer := range layers {
		modules := inv.layers[layer]
		if modules == nil {
			return nil, nil, &fault.Error{
				Kind: fault.Usage, Problem: fmt.Sprintf("layer %d has no routed experts", layer),
				Hint: "the layers that have are " + spec.FormatLayers(slices.Sorted(maps.Keys(inv.layers))),
			}
		}
		whole, odd := state(modules)
		switch {
		case whole == "NVFP4":
			return nil, nil, &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("the experts of layer %d are NVFP4 already", layer), Hint: inv.hint()}
		case whole == "":
			return nil, nil, &fault.Error{
				Kind: fault.Refused, File: odd.file, Tensor: odd.name, Problem: fmt.Sprintf("is NVFP4 and BF16 at once, or other experts of layer %d are stored otherwise", layer),
				Hint: "loaders want one form for all experts of a layer: this checkpoint is broken",
			}
		}
		maps.Copy(chosen, modules)
	}
	return layers, chosen, nil
}

// hint lists the layers that could be requantized.
func (inv inventory) hint() string {
	var layers []int
	for layer, modules := range inv.layers {
		if whole, _ := state(modules); whole == "BF16" {
			layers = append(layers, layer)
		}
	}
	if len(layers) == 0 {
		return "no layer has BF16 experts"
	}
	slices.Sort(layers)
	return "the layers with BF16 experts are " + spec.FormatLayers(layers)
}

// state says how all experts of a layer are stored; "" where they differ, with one that does.
func state(modules map[string]*expert) (whole string, odd *expert) {
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m := modules[name]
		s := "NVFP4"
		if m.weight != nil {
			s = "BF16"
		}
		if m.packed == (m.weight != nil) || whole != "" && s != whole {
			return "", m
		}
		whole = s
	}
	return whole, nil
}

// exempted says whether the config would quantize the modules but for its ignore rules.
func exempted(modules map[string]*expert, q *spec.QuantConfig) (bool, error) {
	for name := range modules {
		ignored, err := q.IgnoredBy(name, spec.Linear)
		if err != nil || len(ignored) == 0 {
			return false, err
		}
		g, err := q.Targeted(name, spec.Linear)
		if err != nil || g == nil || !g.NVFP4() {
			return false, err
		}
	}
	return true, nil
}

// sets groups the chosen modules by what shares a global scale and checks that each set is complete.
func sets(chosen map[string]*expert) (map[string][]string, error) {
	roles := map[string]map[spec.Role]string{}
	for name, e := range chosen {
		key := e.FusedSet()
		if roles[key] == nil {
			roles[key] = map[spec.Role]string{}
		}
		roles[key][e.Role] = name
	}
	gated := false // some experts (Nemotron-H) have no gate at all; where one has, all have
	for _, r := range roles {
		gated = gated || r[spec.Gate] != ""
	}
	out := map[string][]string{}
	for key, r := range roles {
		for _, want := range []struct{ have, lack spec.Role }{{spec.Gate, spec.Up}, {spec.Up, spec.Gate}} {
			if r[want.have] != "" && r[want.lack] == "" && gated {
				e := chosen[r[want.have]]
				return nil, broken(e.file, e.name, "its %s projection is missing: gate and up share a global scale", want.lack)
			}
		}
		out[key] = slices.Sorted(maps.Values(r))
	}
	return out, nil
}

// checkExpected holds the chosen layers against what the config says of their experts, for the models whose tensors are known by it.
func checkExpected(src *Source, s *spec.Nvfp4ExpertSourceSpec, layers []int) error {
	expected, known, err := spec.ExpectedTensors(src.Config)
	if err != nil || !known {
		return fault.In(configName, err)
	}
	for _, want := range expected {
		e, ok := s.Match(want.Name)
		if !ok || want.Optional || e.Bank < 0 || !slices.Contains(layers, e.Layer) {
			continue
		}
		shard, t, ok := src.Lookup(want.Name)
		if !ok {
			return broken("", want.Name, "is missing, though %s says that layer %d has it", configName, e.Layer)
		}
		if !want.Accepts(t) {
			return broken(shard.Name, want.Name, "is %s %v, expected %s %v by the sizes in %s", t.DType, t.Shape, want.DTypes[0], want.Shapes[0], configName)
		}
	}
	return nil
}

// checkLayers refuses layers whose experts do not fit together, whatever the model: one is missing, or another's shape is not that of the rest.
func checkLayers(chosen map[string]*expert) error {
	type projections struct {
		layer int
		role  spec.Role
	}
	of := map[projections][]*expert{}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		e := chosen[name]
		of[projections{e.Layer, e.Role}] = append(of[projections{e.Layer, e.Role}], e)
	}
	byPlace := func(a, b projections) int { return cmp.Or(cmp.Compare(a.layer, b.layer), cmp.Compare(a.role, b.role)) }
	for _, p := range slices.SortedFunc(maps.Keys(of), byPlace) {
		experts := of[p]
		slices.SortFunc(experts, func(a, b *expert) int { return cmp.Compare(a.Expert, b.Expert) })
		first := experts[0].weight.tensor.Shape
		for i, e := range experts {
			if e.Expert != i {
				return broken(e.file, e.name, "is there, but layer %d has no %s projection of expert %d", p.layer, p.role, i)
			}
			if shape := e.weight.tensor.Shape; !slices.Equal(shape, first) {
				return broken(e.file, e.name, "has shape %v, expected %v as expert 0 has", shape, first)
			}
		}
		downs := of[projections{p.layer, spec.Down}]
		if len(downs) != len(experts) {
			return broken("", "", "layer %d has %d %s projections and %d down projections", p.layer, len(experts), p.role, len(downs))
		}
		if down := downs[0].weight.tensor.Shape; p.role != spec.Down && (first[0] != down[1] || first[1] != down[0]) {
			return broken(experts[0].file, experts[0].name, "has shape %v, expected [%d %d] for a down projection of %v", first, down[1], down[0], down)
		}
	}
	return nil
}

// broken is the error for a checkpoint that no loader would take.
func broken(file, tensor, format string, args ...any) error {
	return &fault.Error{
		Kind: fault.Refused, File: file, Tensor: tensor, Problem: fmt.Sprintf(format, args...),
		Hint: "the checkpoint is not whole; compare it with another download (lagquant verify)",
	}
}

// checkWeight refuses what cannot be requantized.
func checkWeight(e *expert) error {
	t := e.weight.tensor
	problem := func(format string, args ...any) error {
		return &fault.Error{Kind: fault.Refused, File: e.file, Tensor: e.name, Problem: fmt.Sprintf(format, args...)}
	}
	switch {
	case t.DType != safetensors.BF16:
		return problem("is %s, expected BF16", t.DType)
	case len(t.Shape) != 2:
		return problem("has shape %v, expected two dimensions", t.Shape)
	case t.Shape[1] == 0 || t.Shape[1]%16 != 0:
		return problem("has %d columns, expected a multiple of the group size 16", t.Shape[1])
	case t.Shape[0] == 0:
		return problem("has no rows")
	}
	return nil
}
