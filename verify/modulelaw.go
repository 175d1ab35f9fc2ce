package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// quantizedModule is a module that is NVFP4 on disk, and the sizes that its weight has or should have.
type quantizedModule struct {
	*module
	group *spec.Group // nil: the config does not quantize it
	sound bool        // tensors present, dtypes and shapes lawful: its values can be judged together
}

// sortModules finds the state of every module on disk and what the config predicts for it.
func (c *checker) sortModules() error {
	c.predicted = map[string]prediction{}
	for _, name := range c.inv.names() {
		m := c.inv.modules[name]
		if !m.nvfp4() && !m.plain() {
			c.report.Modules.Others++
			continue
		}
		p, err := predict(c.config, name)
		if err != nil {
			return err
		}
		if m.nvfp4() && p.otherScheme(m) {
			c.report.Modules.Others++
			continue
		}
		c.predicted[name] = p
		if !m.nvfp4() {
			c.report.Modules.Plain++
			continue
		}
		c.report.Modules.NVFP4++
		c.quantized = append(c.quantized, &quantizedModule{module: m, group: p.group})
	}
	return nil
}

// otherScheme says that the module's packed codes are not NVFP4 at all, such as MXFP4's, which have no global scale.
func (p prediction) otherScheme(m *module) bool {
	return p.group != nil && !p.group.NVFP4() && m.global() == nil
}

// part is one tensor that an NVFP4 module must have.
type part struct {
	slot  slot
	dtype safetensors.DType
	law   func(rows, cols uint64) []uint64 // nil: a scalar, [1] or []
}

func packedShape(rows, cols uint64) []uint64 { return []uint64{rows, cols / 2} }
func scaleShape(rows, cols uint64) []uint64  { return []uint64{rows, cols / 16} }

func (m *quantizedModule) parts() []part {
	if m.modelopt() {
		return []part{{slotWeight, safetensors.U8, packedShape}, {slotScale, safetensors.F8E4M3, scaleShape}, {slotModelOptGlobal, safetensors.F32, nil}}
	}
	return []part{{slotPacked, safetensors.U8, packedShape}, {slotScale, safetensors.F8E4M3, scaleShape}, {slotGlobal, safetensors.F32, nil}}
}

func (m *quantizedModule) inputSlot() slot {
	if m.modelopt() {
		return slotModelOptInput
	}
	return slotInput
}

// checkModules holds every quantized module against the law of its four tensors.
func (c *checker) checkModules() {
	for _, m := range c.quantized {
		m.sound = true
		rows, cols, known := c.sizes(m)
		for _, p := range m.parts() {
			c.checkPart(m, p, rows, cols, known)
		}
		if w := m.tensors[slotWeight]; w != nil && !m.modelopt() {
			c.find(Finding{
				Error, CheckModule, w.shard.Name, w.Name, fmt.Sprintf("a %s weight beside %s", w.DType, slotPacked),
				"one of the two", "remove the one that the config does not ask for",
			})
			c.explain(w.Name)
		}
	}
	c.checkInputScales()
	c.checkFusedLayout()
}

// sizes returns rows and columns of the weight: from the model's config where that says, else from the packed tensor.
func (c *checker) sizes(m *quantizedModule) (rows, cols uint64, known bool) {
	if _, ok := expertsOf(m.name); ok && c.model.hidden > 0 && c.model.expert > 0 {
		switch m.name[strings.LastIndexByte(m.name, '.')+1:] {
		case "gate_proj", "up_proj", "w1", "w3":
			return c.model.expert, c.model.hidden, true
		case "down_proj", "w2":
			return c.model.hidden, c.model.expert, true
		}
	}
	if p := m.packed(); p != nil && len(p.Shape) == 2 && p.Shape[1] <= 1<<62 {
		return p.Shape[0], 2 * p.Shape[1], false
	}
	return 0, 0, false
}

func (c *checker) checkPart(m *quantizedModule, p part, rows, cols uint64, known bool) {
	name := m.name + "." + string(p.slot)
	t := m.tensors[p.slot]
	if t == nil {
		m.sound = false
		if c.missing(name) {
			c.find(Finding{
				Error, CheckModule, "", name, "missing", "the tensors of an NVFP4 module: " + m.partNames(),
				"the weight cannot be told without it; take the module from another copy of the checkpoint",
			})
			c.explain(name)
		}
		return
	}
	broken := func(found, expected, hint string) {
		m.sound = false
		c.find(Finding{Error, CheckModule, t.shard.Name, name, found, expected, hint})
		c.explain(name)
	}
	switch {
	case t.DType != p.dtype:
		broken("dtype "+string(t.DType), string(p.dtype), "")
	case p.law == nil && t.Len() != 4:
		broken("shape "+shape(t.Shape), "one number, [1] or []", "")
	case p.law != nil && len(t.Shape) != 2:
		broken("shape "+shape(t.Shape), "two dimensions", "")
	case p.law != nil && cols == 0:
		m.sound = false
	case p.slot == m.parts()[0].slot && cols%16 != 0:
		broken("shape "+shape(t.Shape), "rows of whole groups of 16 elements, 8 bytes", "")
	case p.law != nil && !slices.Equal(t.Shape, p.law(rows, cols)):
		broken(c.shapeFault(t, p, rows, cols, known))
	}
}

func (m *quantizedModule) partNames() string {
	var names []string
	for _, p := range m.parts() {
		names = append(names, string(p.slot))
	}
	return strings.Join(names, ", ")
}

func (c *checker) shapeFault(t *tensorAt, p part, rows, cols uint64, known bool) (found, expected, hint string) {
	want := p.law(rows, cols)
	why := fmt.Sprintf("%s for a weight of [%d, %d]", shape(want), rows, cols)
	if known {
		why += " as the config's sizes say"
	} else {
		why += " as packed"
	}
	transposed := []uint64{t.Shape[1], t.Shape[0]}
	turned := p.law(cols, rows)
	if slices.Equal(transposed, want) || slices.Equal(t.Shape, turned) {
		hint = "it looks transposed"
	}
	return "shape " + shape(t.Shape), why, hint
}

// checkInputScales looks for input scales exactly where the config says that activations are quantized with a stored scale.
func (c *checker) checkInputScales() {
	var absent, idle []moduleFinding
	for _, m := range c.quantized {
		name := m.name + "." + string(m.inputSlot())
		t, group := m.tensors[m.inputSlot()], m.group
		if group != nil && !(group.NVFP4() && group.NVFP4Inputs()) {
			group = nil // refuted, or known by name alone: it says nothing about these scales
			c.explain(name)
		}
		switch {
		case t == nil:
			if group != nil && group.InputScales() && c.missing(name) {
				absent = append(absent, moduleFinding{m.name, Finding{
					Error, CheckInputScale, "", name, "missing", "an input scale, since config group " + group.Name + " quantizes activations",
					"loaders read memory that nobody wrote; requantize with --input-scales, or set input_activations to null (W4A16)",
				}})
				c.explain(name)
			}
			continue
		case t.DType != safetensors.F32:
			c.find(Finding{Error, CheckModule, t.shard.Name, name, "dtype " + string(t.DType), "F32", ""})
		case t.Len() != 4:
			c.find(Finding{Error, CheckModule, t.shard.Name, name, "shape " + shape(t.Shape), "one number, [1] or []", ""})
		case group != nil && !group.InputScales():
			idle = append(idle, moduleFinding{m.name, Finding{
				Error, CheckInputScale, t.shard.Name, name, "an input scale, though config group " + group.Name + " leaves activations alone",
				"none", "one of the two is wrong; loaders refuse the tensor or fold it in",
			}})
		default:
			continue
		}
		c.explain(name)
	}
	c.findByExperts(absent, "input scales missing")
	c.findByExperts(idle, "input scales, though the config leaves activations alone,")
}

// moduleFinding is a finding about one module.
type moduleFinding struct {
	module string
	Finding
}

// findByExperts reports findings of one kind: once for all experts of a layer where all of their modules have it, else one by one.
func (c *checker) findByExperts(findings []moduleFinding, what string) {
	size := map[string]int{}
	for name := range c.predicted {
		if experts, ok := expertsOf(name); ok {
			size[experts]++
		}
	}
	having := map[string]int{}
	for _, f := range findings {
		if experts, ok := expertsOf(f.module); ok {
			having[experts]++
		}
	}
	done := map[string]bool{}
	for _, f := range findings {
		experts, ok := expertsOf(f.module)
		if !ok || having[experts] < size[experts] || size[experts] == 1 {
			c.find(f.Finding)
			continue
		}
		if !done[experts] {
			done[experts] = true
			f.Tensor, f.Found = experts, fmt.Sprintf("%s in all %d modules", what, size[experts])
			c.find(f.Finding)
		}
	}
}

// checkFusedLayout names experts that lie in one tensor of three dimensions, which tools that look for matrices pass over in silence.
func (c *checker) checkFusedLayout() {
	for _, name := range c.ckpt.Names() {
		t := c.inv.tensors[name]
		i := strings.LastIndexByte(name, '.') + 1
		if t == nil || len(t.Shape) != 3 || !strings.HasSuffix(name[:i], ".experts.") || c.config == nil {
			continue
		}
		if t.DType != safetensors.BF16 && t.DType != safetensors.F16 && t.DType != safetensors.F32 {
			continue
		}
		probe := name[:i] + "0.down_proj"
		if name[i:] == "gate_up_proj" {
			probe = name[:i] + "0.gate_proj"
		}
		f := Finding{
			Info, CheckFusedLayout, t.shard.Name, name,
			fmt.Sprintf("experts fused in one %s tensor %s, %d bytes, not quantized", t.DType, shape(t.Shape), t.Len()), "", "",
		}
		if group, err := c.config.Group(probe, spec.Linear); err == nil && group != nil {
			f.Severity = Error
			f.Expected = fmt.Sprintf("quantized experts, since config group %s takes %s", group.Name, probe)
			f.Hint = "a tool that quantizes matrices only has passed these over; convert them, or exempt them in the config"
		}
		c.find(f)
		c.explain(name)
	}
}
