package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/spec"
)

// judge writes the verdict, the plainest line first.
func (c *comparer) judge() {
	for _, n := range slices.Sorted(maps.Keys(c.layers)) {
		c.Layers = append(c.Layers, *c.layers[n])
	}
	say := func(format string, args ...any) {
		c.Verdict = append(c.Verdict, fault.Printable(fmt.Sprintf(format, args...)))
	}
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
		say("different beside the bytes of NVFP4 modules: %s", fewOf(others))
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
		case d.What != "bytes":
			out = append(out, fmt.Sprintf("%s (%s %s, %s)", d.Tensor, d.What, d.A, d.B))
		case c.kind(c.a.tensors[d.Tensor]) == kindOther:
			out = append(out, fmt.Sprintf("%s (%d of %d bytes)", d.Tensor, d.Bytes, d.Of))
		}
	}
	return out
}

// layerText says which layers are the same, which differ, and which are there in two forms or on one side only.
func (c *comparer) layerText() string {
	layers, loose := map[string][]int{}, map[string]bool{}
	for _, l := range c.Layers {
		if class := c.class(l); l.Layer < 0 {
			loose[class] = true
		} else {
			layers[class] = append(layers[class], l.Layer)
		}
	}
	var parts []string
	for _, class := range []string{classSame, classDifferent, classOtherForm, classPartial, classOnlyIn + c.A, classOnlyIn + c.B} {
		var what []string
		if len(layers[class]) > 0 {
			what = append(what, layersText(layers[class]))
		}
		if loose[class] {
			what = append(what, "tensors outside the layers")
		}
		if len(what) > 0 {
			parts = append(parts, strings.Join(what, " and ")+": "+class)
		}
	}
	return strings.Join(parts, "; ")
}

// Classes of layers.
const (
	classSame      = "the same"
	classDifferent = "different"
	classOtherForm = "in another form"
	classPartial   = "in part on one side only"
	classOnlyIn    = "only in " // and the name of the side
)

// class says how a layer compares. What calibration adds to one side makes no difference.
func (c *comparer) class(l LayerComparison) string {
	onlyA, onlyB := l.uncalibrated[0] > 0, l.uncalibrated[1] > 0
	switch both := l.Same+l.Requantized > 0; {
	case l.Differing > 0:
		return classDifferent
	case onlyA && onlyB, both && (onlyA || onlyB):
		return classPartial
	case onlyA:
		return classOnlyIn + c.A
	case onlyB:
		return classOnlyIn + c.B
	case l.Requantized > 0:
		return classOtherForm
	}
	return classSame
}

func layersText(layers []int) string {
	if len(layers) == 1 {
		return fmt.Sprintf("layer %d", layers[0])
	}
	return "layers " + spec.FormatLayers(layers)
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
