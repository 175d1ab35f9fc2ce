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

func (c *checker) predict(module string) (prediction, error) {
	if c.config == nil {
		return prediction{}, nil
	}
	group, err := c.config.Targeted(module, classOf(module))
	if group == nil || err != nil {
		return prediction{}, err
	}
	ignored, err := c.config.IgnoredBy(module, classOf(module))
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
	if err := c.checkUnusedRules(); err != nil {
		c.find(Finding{Severity: Error, Check: CheckUnusedRule, File: "config.json", Found: err.Error()})
	}
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
		class := ""
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
			Warning, CheckUnusedRule, "config.json", fmt.Sprintf("ignore rule %q", c.config.Ignore[i]), "matches no module", "at least one",
			"the names of the checkpoint may have another prefix than the rule expects",
		})
	}
	for _, i := range slices.Sorted(maps.Keys(unusedTargets)) {
		c.find(Finding{
			Warning, CheckUnusedRule, "config.json", fmt.Sprintf("target %q", targets[i]), "matches no module", "at least one",
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
				Error, CheckExperts, "config.json", set, fmt.Sprintf("%d modules are NVFP4 and %d are not", s.nvfp4, s.plain), "one form for all",
				"loaders give a layer's experts, and projections that they fuse, one scheme: narrow the rule to whole layers",
			})
		}
	}
}
