package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/internal/pyre"
)

// Linear is the class of the modules that a config can quantize: rules that name it match every one of them.
const Linear = "Linear"

// ruleSet is a list of rules that are matched against module names, as compressed_tensors.utils.match does:
//
//	re:PATTERN   Python's re.match, anchored at the start only: re:.*experts takes everything below experts, re:lm_head does not take model.lm_head
//	NAME         the whole module name, without prefixes and wildcards
//	CLASS        the module's class, Linear here
//
// ModelOpt's rules are names and globs. The experts of a layer are one module to it and to loaders: a rule for model.layers.2.mlp.experts takes
// them all.
//
// A config written by a tool may hold thousands of plain names, so those are looked up and only patterns are tried one by one.
type ruleSet struct {
	texts     []string
	plain     map[string][]int // rules without a pattern, by text
	patterns  []pattern
	ancestors bool // as under ModelOpt: a plain name stands for the modules below it too, and a pattern for the experts below what it matches
}

type pattern struct {
	index int // of the rule
	*pyre.Regexp
}

// newRuleSet compiles rules; toRegexp gives the expression of one that is a pattern.
func newRuleSet(texts []string, toRegexp func(string) (string, bool)) (*ruleSet, error) {
	s := &ruleSet{texts: texts, plain: map[string][]int{}}
	for i, text := range texts {
		expression, ok := toRegexp(text)
		if !ok {
			s.plain[text] = append(s.plain[text], i)
			continue
		}
		compiled, err := pyre.Compile(expression)
		if err != nil {
			return nil, &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("rule %q: %v", text, err), Err: err}
		}
		s.patterns = append(s.patterns, pattern{i, compiled})
	}
	return s, nil
}

// pythonRule takes the expression out of a rule of compressed-tensors.
func pythonRule(text string) (string, bool) { return strings.CutPrefix(text, "re:") }

// named returns the plain rules for a module, those of its nearest ancestor where it has none itself.
func (s *ruleSet) named(module string) []int {
	for {
		found := s.plain[module]
		dot := strings.LastIndexByte(module, '.')
		if len(found) > 0 || !s.ancestors || dot < 0 {
			return found
		}
		module = module[:dot]
	}
}

// matching returns the indexes of every rule that matches, in order.
func (s *ruleSet) matching(module, class string) ([]int, error) {
	found := slices.Clone(s.named(module))
	if class != module {
		found = append(found, s.plain[class]...)
	}
	for _, p := range s.patterns {
		ok, err := s.takes(p, module)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, p.index)
		}
	}
	slices.Sort(found)
	return found, nil
}

// any says whether a rule matches; it stops at the first.
func (s *ruleSet) any(module, class string) (bool, error) {
	if len(s.named(module)) > 0 || len(s.plain[class]) > 0 {
		return true, nil
	}
	for _, p := range s.patterns {
		if ok, err := s.takes(p, module); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// takes says whether a pattern matches a module, or the experts that it is one of.
func (s *ruleSet) takes(p pattern, module string) (bool, error) {
	ok, err := p.MatchStart(module)
	if i := strings.LastIndex(module, ".experts."); !ok && err == nil && s.ancestors && i >= 0 {
		return p.MatchStart(module[:i+len(".experts")])
	}
	return ok, err
}

// first returns the index of the rule that decides, in the library's order: the module's name, then patterns in the order of their texts, then the
// class. -1: none matches. Of rules with the same text the last one counts, since the library keeps them as the keys of a dict.
func (s *ruleSet) first(module, class string) (int, error) {
	if i := s.named(module); len(i) > 0 {
		return i[len(i)-1], nil
	}
	best := -1
	for _, p := range s.patterns {
		if best >= 0 && s.texts[p.index] > s.texts[best] {
			continue
		}
		ok, err := s.takes(p, module)
		if err != nil {
			return -1, err
		}
		if ok {
			best = p.index
		}
	}
	if best >= 0 {
		return best, nil
	}
	if i := s.plain[class]; len(i) > 0 {
		return i[len(i)-1], nil
	}
	return -1, nil
}
