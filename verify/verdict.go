package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// judge writes the verdict, the plainest line first.
func (c *comparer) judge() {
	for _, n := range slices.Sorted(maps.Keys(c.layers)) {
		c.Layers = append(c.Layers, *c.layers[n])
	}
	say := func(format string, args ...any) { c.Verdict = append(c.Verdict, fmt.Sprintf(format, args...)) }
	of := ""
	if c.o.Sample.of != 0 {
		of = fmt.Sprintf(" (sample %s)", c.Sample)
	}
	if len(c.Differing)+len(c.OnlyA)+len(c.OnlyB)+len(c.Recipes) == 0 {
		say("all %s are the same bytes%s", plural(c.Same, "tensor"), of)
		return
	}
	say("same bytes: %s; different: %d; only in %s: %d; only in %s: %d%s",
		plural(c.Same, "tensor"), len(c.Differing), c.A, len(c.OnlyA), c.B, len(c.OnlyB), of)
	for _, only := range []struct {
		names []string
		in    string
	}{{c.OnlyA, c.A}, {c.OnlyB, c.B}} {
		if len(only.names) > 0 {
			say("only in %s: %s", only.in, fewOf(only.names))
		}
	}
	if others := c.otherDifferences(); len(others) > 0 {
		say("different beside NVFP4 modules: %s", fewOf(others))
	}
	say("%s", c.layerText())
	if c.NVFP4 != nil && c.NVFP4.DifferingModules > 0 {
		say("%s", c.NVFP4)
	}
	for _, r := range c.Recipes {
		say("%s", r)
		if r.InputScales > 0 {
			say("the %s of %s come from calibration, which weights cannot prove", plural(r.InputScales, "input scale"), r.Quantized)
		}
		if len(r.Unproven) > 0 {
			say("%s of %s could not be compared: %s", plural(len(r.Unproven), "module"), r.Quantized, fewOf(r.Unproven))
		}
	}
	for _, o := range c.Origins {
		say("%s", o.Text)
	}
}

// fewOf lists the first names and counts the rest.
func fewOf(names []string) string {
	const few = 4
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few-1], ", "), len(names)-few+1)
}

// otherDifferences describes the differing tensors that the line about NVFP4 modules does not cover.
func (c *comparer) otherDifferences() []string {
	var out []string
	for _, d := range c.Differing {
		switch {
		case c.kind(c.a.tensors[d.Tensor]) != kindOther:
		case d.What == "bytes":
			out = append(out, fmt.Sprintf("%s (%d of %d bytes)", d.Tensor, d.Bytes, d.Of))
		default:
			out = append(out, fmt.Sprintf("%s (%s %s, %s)", d.Tensor, d.What, d.A, d.B))
		}
	}
	return out
}

// layerText says which layers are the same, which differ and which are there in two forms.
func (c *comparer) layerText() string {
	classes := []struct {
		text   string
		has    func(LayerComparison) bool
		layers []int
		loose  bool
	}{
		{text: "the same", has: func(l LayerComparison) bool { return l.Differing+l.Requantized == 0 }},
		{text: "different", has: func(l LayerComparison) bool { return l.Differing > 0 }},
		{text: "in another form", has: func(l LayerComparison) bool { return l.Requantized > 0 && l.Differing == 0 }},
	}
	var parts []string
	for _, class := range classes {
		for _, l := range c.Layers {
			if !class.has(l) {
				continue
			}
			if l.Layer < 0 {
				class.loose = true
			} else {
				class.layers = append(class.layers, l.Layer)
			}
		}
		var what []string
		if len(class.layers) > 0 {
			what = append(what, layersText(class.layers))
		}
		if class.loose {
			what = append(what, "tensors outside the layers")
		}
		if len(what) > 0 {
			parts = append(parts, strings.Join(what, " and ")+": "+class.text)
		}
	}
	return strings.Join(parts, "; ")
}

func layersText(layers []int) string {
	if len(layers) == 1 {
		return fmt.Sprintf("layer %d", layers[0])
	}
	return "layers " + layerRanges(layers)
}

// layerRanges writes numbers of layers the way --layers takes them: "1-5,7".
func layerRanges(layers []int) string {
	var parts []string
	for i := 0; i < len(layers); {
		j := i
		for j+1 < len(layers) && layers[j+1] == layers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(layers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", layers[i], layers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// findOrigins weighs the global scales of the NVFP4 modules that differ on both sides, since no BF16 base is there to prove anything.
func (c *comparer) findOrigins() error {
	if c.NVFP4 == nil || c.NVFP4.DifferingModules == 0 {
		return nil
	}
	for _, side := range []struct {
		name string
		inv  *inventory
	}{{c.A, c.a}, {c.B, c.b}} {
		d, err := detectByGlobals(side.inv, c.open, c.o)
		if err != nil {
			return err
		}
		if d.Globals != nil {
			c.Origins = append(c.Origins, Origin{side.name, *d.Globals, d.byGlobals, side.name + ": " + d.Evidence})
		}
	}
	return nil
}
