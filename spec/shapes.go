package spec

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// shape is a set of modules that differ in their layer, in other numbers and in their last component.
type shape struct {
	head   string // components before the layer, with the dot after them
	middle string // between the layer and the last component, with dots around; other numbers are #
	layers []int
	leaves []string
	names  []string
}

// shapesOf sorts modules into shapes. Every shape is meant to be ruled by one expression: all its leaves occur in all its layers. Modules without a
// layer come back as they are.
func shapesOf(modules []string) (shapes []shape, rest []string) {
	type place struct{ head, middle, leaf string }
	layers := map[place]map[int]bool{}
	names := map[place][]string{}
	for _, m := range modules {
		layer, ok := layerOf(m)
		if !ok {
			rest = append(rest, m)
			continue
		}
		head, after, _ := strings.Cut("."+m, ".layers.")
		_, after, _ = strings.Cut(after, ".")
		middle, leaf := cutLast(after)
		components := strings.Split(middle, ".")
		for i, c := range components {
			if _, number := decimal(c); number {
				components[i] = "#"
			}
		}
		p := place{strings.TrimPrefix(head+".layers.", "."), "." + strings.Join(components, ".") + ".", leaf}
		if middle == "" {
			p.middle = "."
		}
		if layers[p] == nil {
			layers[p] = map[int]bool{}
		}
		layers[p][layer] = true
		names[p] = append(names[p], m)
	}
	byLayers := map[string]*shape{}
	for p, set := range layers {
		numbers := slices.Sorted(maps.Keys(set))
		key := fmt.Sprint(p.head, p.middle, numbers)
		s := byLayers[key]
		if s == nil {
			s = &shape{head: p.head, middle: p.middle, layers: numbers}
			byLayers[key] = s
		}
		s.leaves = append(s.leaves, p.leaf)
		s.names = append(s.names, names[p]...)
	}
	for _, key := range slices.Sorted(maps.Keys(byLayers)) {
		s := byLayers[key]
		slices.Sort(s.leaves)
		slices.Sort(s.names)
		shapes = append(shapes, *s)
	}
	return shapes, rest
}

// pythonRules writes a shape as a rule of compressed-tensors.
func (s shape) pythonRules() []string {
	leaves := make([]string, len(s.leaves))
	for i, l := range s.leaves {
		leaves[i] = regexp.QuoteMeta(l)
	}
	leaf := strings.Join(leaves, "|")
	if len(leaves) > 1 {
		leaf = "(" + leaf + ")"
	}
	middle := strings.ReplaceAll(regexp.QuoteMeta(s.middle), "#", "[0-9]+")
	return []string{"re:^" + regexp.QuoteMeta(s.head) + layerExpression(s.layers) + middle + leaf + "$"}
}

// globRules writes a shape as rules of ModelOpt, one a layer and leaf, since globs have no alternatives.
func (s shape) globRules() (rules []string) {
	for _, layer := range s.layers {
		for _, leaf := range s.leaves {
			rules = append(rules, fmt.Sprint(s.head, layer, strings.ReplaceAll(s.middle, "#", "*"), leaf))
		}
	}
	return rules
}
