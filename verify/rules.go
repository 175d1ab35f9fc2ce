package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/spec"
)

// prediction is what the config says about a module.
type prediction struct {
	group   *spec.Group // nil: not quantized
	ignored []int       // rules that exempt it from the group that targets it; nil where no group does
}

// classOf guesses the class of a module with a weight of two dimensions. Embeddings are the ones that no config quantizes as Linear.
func classOf(module string) string {
	last := module[strings.LastIndexByte(module, '.')+1:]
	if strings.Contains(last, "embed") || last == "wte" || last == "wpe" {
		return "Embedding"
	}
	return spec.Linear
}

func predict(config *spec.QuantConfig, module string) (prediction, error) {
	if config == nil {
		return prediction{}, nil
	}
	group, err := config.Targeted(module, classOf(module))
	if group == nil || err != nil {
		return prediction{}, err
	}
	ignored, err := config.IgnoredBy(module, classOf(module))
	if err != nil || len(ignored) > 0 {
		return prediction{ignored: ignored}, err
	}
	return prediction{group: group}, nil
}

// checkRules compares what the config says with what the tensors are, both ways, and looks for rules that say nothing.
func (c *checker) checkRules() {
	if !c.readable {
		return
	}
	if c.config == nil {
		if n := len(c.quantized); n > 0 {
			c.find(Finding{
				Error, CheckRule, "config.json", "quantization_config", "missing",
				fmt.Sprintf("there, since %s NVFP4 (the first is %s)", plural(n, "module"), c.quantized[0].name), "",
			})
		}
		return
	}
	c.checkBothWays()
	c.checkSchemes()
	if err := c.checkUnusedRules(); err != nil {
		c.find(Finding{Severity: Error, Check: CheckUnusedRule, File: c.config.File, Found: err.Error()})
	}
	if err := c.checkSecondConfig(); err != nil {
		c.find(configFinding(spec.ModelOptConfigName, err))
	}
}

// checkSecondConfig compares what ModelOpt's own file says of the modules with what config.json says where both are there: loaders read one
// or the other.
func (c *checker) checkSecondConfig() error {
	if c.config.File == spec.ModelOptConfigName {
		return nil
	}
	second, err := spec.ReadModelOptConfig(c.dir)
	if second == nil || err != nil {
		return err
	}
	var more, less, other []string
	for _, name := range slices.Sorted(maps.Keys(c.predicted)) {
		p, err := predict(second, name)
		if err != nil {
			return err
		}
		switch first := c.predicted[name].group; {
		case first == nil && p.group != nil:
			more = append(more, name)
		case first != nil && p.group == nil:
			less = append(less, name)
		case first != nil && first.NVFP4() != p.group.NVFP4():
			other = append(other, name)
		}
	}
	for _, d := range []struct {
		verb, expected string
		modules        []string
	}{{"quantizes", "left alone", more}, {"leaves alone", "quantized", less}, {"has another scheme for", "the same scheme", other}} {
		if n := len(d.modules); n > 0 {
			c.find(Finding{
				Error, CheckRule, second.File, "quantization", fmt.Sprintf("%s %s (the first is %s)", d.verb, plural(n, "module"), d.modules[0]),
				d.expected + ", as " + c.config.File + " says", "loaders read one file or the other: make both say the same, or remove this one",
			})
		}
	}
	return nil
}

func (c *checker) checkBothWays() {
	var plain, packed []moduleFinding
	for _, name := range slices.Sorted(maps.Keys(c.predicted)) {
		p, m := c.predicted[name], c.inv.modules[name]
		switch {
		case p.group != nil && !m.nvfp4():
			w := m.tensors[slotWeight]
			plain = append(plain, moduleFinding{name, Finding{
				Error, CheckRule, w.shard.Name, name, fmt.Sprintf("a %s weight", w.DType), "a quantized one, since config group " + p.group.Name + " targets it",
				"a loader looks for tensors that are not there: add the module to the config's ignore list, or quantize it",
			}})
		case p.group == nil && m.nvfp4():
			packed = append(packed, moduleFinding{name, Finding{
				Error, CheckRule, c.file(c.anyTensor(m)), name, "NVFP4 tensors", "a plain weight, since " + c.exemption(p),
				"a loader has no place for them: remove or narrow the rule, or add a target",
			}})
		default:
			continue
		}
		c.explainModule(name)
	}
	c.findByExperts(plain, "weights that are not quantized")
	c.findByExperts(packed, "NVFP4 tensors")
}

// checkSchemes compares what each config group says with the NVFP4 modules that it takes, and reports once a group: loaders choose by the
// group how they read all of them.
func (c *checker) checkSchemes() {
	taken := map[*spec.Group][]string{}
	for _, m := range c.quantized {
		taken[m.group] = append(taken[m.group], m.name)
	}
	for _, g := range c.config.Groups {
		said, expected := c.refuted(g)
		if len(taken[g]) == 0 || len(said) == 0 {
			continue
		}
		c.find(Finding{
			Error, CheckRule, c.config.File, "config group " + g.Name,
			fmt.Sprintf("%s, but %s NVFP4 on disk (the first is %s)", strings.Join(said, ", "), plural(len(taken[g]), "module"), taken[g][0]),
			strings.Join(expected, ", "), "loaders read the tensors as the group says: correct it, or take the config that came with these weights",
		})
	}
}

// refuted lists what a group says that is not so where its modules are NVFP4, and what it would say then. A format that is missing reads as
// dense, which llm-compressor writes too.
func (c *checker) refuted(g *spec.Group) (said, expected []string) {
	const format, numbers = "nvfp4-pack-quantized", "4-bit float in groups of 16 under a global scale"
	refute := func(what, found, want string) {
		said, expected = append(said, what+" "+found), append(expected, what+" "+want)
	}
	modelopt := c.config.ModelOpt()
	switch {
	case modelopt && !strings.Contains(g.Format, "NVFP4"):
		refute("quant_algo", g.Format, "NVFP4")
	case modelopt && g.Weights.NumBits == 0: // such as NVFP4_AWQ, which is known by name alone
	case !g.NVFP4():
		refute("weights", g.Weights.String(), numbers)
	}
	if !modelopt && !g.NVFP4Inputs() {
		refute("input_activations", g.Inputs.String(), numbers+", or null")
	}
	if !modelopt && g.Format != format && g.Format != "dense" {
		refute("format", g.Format, format)
	}
	return said, expected
}

func (c *checker) anyTensor(m *module) string {
	for _, s := range slots {
		if t := m.tensors[s]; t != nil {
			return t.Name
		}
	}
	return ""
}

// exemption says why the config does not quantize a module.
func (c *checker) exemption(p prediction) string {
	if len(p.ignored) == 0 {
		return "no target of the config matches it"
	}
	return fmt.Sprintf("ignore rule %q exempts it", c.config.Ignore[p.ignored[0]])
}

// explainModule marks every tensor that the module has or could have as dealt with.
func (c *checker) explainModule(name string) {
	for _, s := range slots {
		c.explain(name + "." + string(s))
	}
}

// checkUnusedRules looks for targets and ignore rules that match neither a module nor the path of one. Half of the names of a stale list are
// worse than none: what they were meant to exempt is quantized.
func (c *checker) checkUnusedRules() error {
	var targets []string
	for _, g := range c.config.Groups {
		targets = append(targets, g.Targets...)
	}
	unusedIgnore, unusedTargets := allOf(len(c.config.Ignore)), allOf(len(targets))
	for _, path := range c.modulePaths() {
		if len(unusedIgnore)+len(unusedTargets) == 0 {
			return nil
		}
		class := path // no class at all: an empty one would be that of an empty rule
		if _, ok := c.predicted[path]; ok {
			class = classOf(path)
		}
		if err := strike(unusedIgnore, path, class, c.config.IgnoredBy); err != nil {
			return err
		}
		if err := strike(unusedTargets, path, class, c.config.TargetedBy); err != nil {
			return err
		}
	}
	for _, i := range slices.Sorted(maps.Keys(unusedIgnore)) {
		c.find(Finding{
			Warning, CheckUnusedRule, c.config.File, fmt.Sprintf("ignore rule %q", c.config.Ignore[i]), "matches no module", "at least one",
			"the names of the checkpoint may have another prefix than the rule expects",
		})
	}
	for _, i := range slices.Sorted(maps.Keys(unusedTargets)) {
		c.find(Finding{
			Warning, CheckUnusedRule, c.config.File, fmt.Sprintf("target %q", targets[i]), "matches no module", "at least one",
			"the names of the checkpoint may have another prefix than the target expects",
		})
	}
	return nil
}

func allOf(n int) map[int]bool {
	m := make(map[int]bool, n)
	for i := range n {
		m[i] = true
	}
	return m
}

// strike removes the rules that match from the unused ones.
func strike(unused map[int]bool, path, class string, matching func(string, string) ([]int, error)) error {
	if len(unused) == 0 {
		return nil
	}
	found, err := matching(path, class)
	for _, i := range found {
		delete(unused, i)
	}
	return err
}

// modulePaths returns every module of the checkpoint and every path above one, also of tensors that could not be read.
func (c *checker) modulePaths() []string {
	paths := map[string]bool{}
	for _, name := range c.ckpt.Names() {
		for i := strings.LastIndexByte(name, '.'); i >= 0 && !paths[name[:i]]; i = strings.LastIndexByte(name[:i], '.') {
			paths[name[:i]] = true
		}
	}
	if c.model.tied {
		paths["lm_head"] = true // has no tensors of its own, and tools exempt it all the same
	}
	return slices.Sorted(maps.Keys(paths))
}

// checkExperts looks for sets that must be of one kind and are not, where the config agrees with the tensors: otherwise the contradiction
// was reported. Loaders look at expert 0 alone and give the whole layer its scheme; fused projections must share theirs.
func (c *checker) checkExperts() {
	if !c.readable || c.config == nil {
		return
	}
	type count struct {
		nvfp4, plain int
		explained    bool
	}
	sets := map[string]*count{}
	for name := range c.predicted {
		set, ok := expertsOf(name)
		if !ok {
			if set = fusedSet(name); set == name {
				continue
			}
		}
		if sets[set] == nil {
			sets[set] = &count{}
		}
		s, m := sets[set], c.inv.modules[name]
		if m.nvfp4() {
			s.nvfp4++
		} else {
			s.plain++
		}
		s.explained = s.explained || c.known[c.anyTensor(m)]
	}
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		s := sets[set]
		if s.nvfp4 > 0 && s.plain > 0 && !s.explained {
			c.find(Finding{
				Error, CheckExperts, c.config.File, set, fmt.Sprintf("%d modules are NVFP4 and %d are not", s.nvfp4, s.plain), "one form for all",
				"loaders give a layer's experts, and projections that they fuse, one scheme: narrow the rule to whole layers",
			})
		}
	}
}
