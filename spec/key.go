package spec

import "strings"

// key is a pattern of tensor names, matched component by component:
//
//	**.layers.{layer}.mlp.experts.{expert}.{proj}.{kind}
//
// {layer} and {expert} take a number, {kind} any one component, {proj} too but for a suffix that may follow it in the key, ** any number of components,
// none included. Matching goes from the right, where expert names differ, and allocates nothing: a checkpoint has more than a hundred thousand names.
type key []string

func newKey(pattern string) key { return strings.Split(pattern, ".") }

// keyFields are the parts of a name that a key's fields took. A number that the key does not have is -1.
type keyFields struct {
	prefix     string // what stands before {layer}
	module     string // all but {kind}
	layer      int
	expert     int
	proj, kind string
}

func (k key) match(name string) (keyFields, bool) {
	f := keyFields{layer: -1, expert: -1}
	rest := name
	for i := len(k) - 1; i >= 0; i-- {
		if k[i] == "**" {
			if i == 0 {
				return f, true
			}
			continue
		}
		taken := false
		for !taken {
			if rest == "" {
				return f, false
			}
			var last string
			rest, last = cutLast(rest)
			taken = f.take(k[i], last, rest)
			if !taken && (i+1 == len(k) || k[i+1] != "**") {
				return f, false
			}
		}
	}
	return f, rest == ""
}

// take fills the field that a part of a key stands for with a component; before is what precedes it in the name.
func (f *keyFields) take(part, component, before string) (ok bool) {
	switch part {
	case "{layer}":
		f.prefix = before
		f.layer, ok = decimal(component)
	case "{expert}":
		f.expert, ok = decimal(component)
	case "{kind}":
		f.module, f.kind, ok = before, component, true
	default:
		suffix, isProj := strings.CutPrefix(part, "{proj}")
		if !isProj {
			return part == component
		}
		f.proj, ok = strings.CutSuffix(component, suffix)
	}
	return ok
}

// cutLast cuts a name at its last dot.
func cutLast(name string) (before, last string) {
	dot := strings.LastIndexByte(name, '.')
	return name[:max(dot, 0)], name[dot+1:]
}

// decimal reads a number as module names have it: digits alone, without leading zeros.
func decimal(s string) (int, bool) {
	if s == "" || len(s) > 9 || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = 10*n + int(s[i]-'0')
	}
	return n, true
}
