package spec

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// layerExpression writes an expression for a set of numbers and nothing else, short where the numbers lie together: 40 to 45 is 4[0-5], 1 to 39 is
// (?:[1-9]|[1-3][0-9]).
func layerExpression(layers []int) string {
	digits := make([]string, len(layers))
	for i, l := range layers {
		digits[i] = strconv.Itoa(l)
	}
	alternatives := numerals(digits)
	if len(alternatives) == 1 {
		return alternatives[0]
	}
	return "(?:" + strings.Join(alternatives, "|") + ")"
}

// numerals returns alternatives for a set of numerals: those of the same length whose heads can end in the same digits share one.
func numerals(set []string) (alternatives []string) {
	for length := 1; length <= 9; length++ {
		tails := map[string]string{} // by head
		for _, s := range set {
			if len(s) == length {
				tails[s[:length-1]] += s[length-1:]
			}
		}
		heads := map[string][]string{} // by tail
		var order []string
		for head, tail := range tails {
			class := digitClass(tail)
			if heads[class] == nil {
				order = append(order, class)
			}
			heads[class] = append(heads[class], head)
		}
		slices.SortFunc(order, func(a, b string) int { return strings.Compare(slices.Min(heads[a]), slices.Min(heads[b])) })
		for _, class := range order {
			if length == 1 {
				alternatives = append(alternatives, class)
				continue
			}
			for _, head := range numerals(heads[class]) {
				alternatives = append(alternatives, head+class)
			}
		}
	}
	return alternatives
}

// digitClass writes a class of digits: 0 to 5 is [0-5].
func digitClass(digits string) string {
	d := slices.Compact(slices.Sorted(slices.Values([]byte(digits))))
	if len(d) == 1 {
		return string(d)
	}
	var out strings.Builder
	for i := 0; i < len(d); {
		j := i
		for j+1 < len(d) && d[j+1] == d[j]+1 {
			j++
		}
		out.WriteByte(d[i])
		if j > i+1 {
			out.WriteByte('-')
		}
		if j > i {
			out.WriteByte(d[j])
		}
		i = j + 1
	}
	return "[" + out.String() + "]"
}

// layersPart finds in the text of a rule the expression for a layer's number: what follows "layers" and a dot.
var layersPart = regexp.MustCompile(`(layers(?:\\\.|\[\.\]|\.))((?:[0-9]+|\[[0-9-]+\][+*]?|\\d[+*]?|\((?:\?:)?[^()]*\))+)`)

// forLayers rewrites a rule for other layers, in its own style; false: it has no place for a layer's number.
func forLayers(rule string, layers []int) (string, bool) {
	at := layersPart.FindStringSubmatchIndex(rule)
	if at == nil {
		return "", false
	}
	return rule[:at[4]] + layerExpression(layers) + rule[at[5]:], true
}

// layerOf returns the number that follows "layers" in a module's name.
func layerOf(module string) (int, bool) {
	_, after, ok := strings.Cut("."+module, ".layers.")
	if !ok {
		return 0, false
	}
	component, _, _ := strings.Cut(after, ".")
	return decimal(component)
}
