package pyre

import (
	"regexp/syntax"
	"strings"
)

// literals are texts that every string which a pattern matches from its start must have. Looking for them takes some ten nanoseconds, running the
// expression on a module name a microsecond or more.
type literals struct{ prefix, suffix, inner string }

func (l literals) in(s string) bool {
	ends := strings.HasSuffix(s, l.suffix) || strings.HasSuffix(strings.TrimSuffix(s, "\n"), l.suffix) // `$` holds before a last newline too
	return ends && strings.HasPrefix(s, l.prefix) && strings.Contains(s, l.inner)
}

func requiredLiterals(pattern string) literals {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return literals{}
	}
	re = re.Simplify()
	f := fixed(re)
	if !endsText(re) {
		f.suffix = ""
	}
	return f.literals
}

// fixedParts are what every match of an expression begins with, ends with and contains. whole: it is that text and nothing else.
type fixedParts struct {
	literals
	whole bool
}

func fixed(re *syntax.Regexp) fixedParts {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return fixedParts{}
		}
		s := string(re.Rune)
		return fixedParts{literals{s, s, s}, true}
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return fixedParts{whole: true}
	case syntax.OpCapture:
		return fixed(re.Sub[0])
	case syntax.OpPlus:
		f := fixed(re.Sub[0])
		f.whole = false
		return f
	case syntax.OpConcat:
		all := fixedParts{whole: true}
		for _, sub := range re.Sub {
			all = all.then(fixed(sub))
		}
		return all
	case syntax.OpAlternate:
		any := fixed(re.Sub[0])
		for _, sub := range re.Sub[1:] {
			any = any.or(fixed(sub))
		}
		return any
	}
	return fixedParts{}
}

func (a fixedParts) then(b fixedParts) fixedParts {
	both := fixedParts{literals{a.prefix, b.suffix, longest(a.inner, b.inner, a.suffix+b.prefix)}, a.whole && b.whole}
	if a.whole {
		both.prefix += b.prefix
	}
	if b.whole {
		both.suffix = a.suffix + both.suffix
	}
	return both
}

func (a fixedParts) or(b fixedParts) fixedParts {
	p, s := 0, 0
	for p < min(len(a.prefix), len(b.prefix)) && a.prefix[p] == b.prefix[p] {
		p++
	}
	for s < min(len(a.suffix), len(b.suffix)) && a.suffix[len(a.suffix)-1-s] == b.suffix[len(b.suffix)-1-s] {
		s++
	}
	either := literals{prefix: a.prefix[:p], suffix: a.suffix[len(a.suffix)-s:]}
	either.inner = longest(either.prefix, either.suffix)
	return fixedParts{literals: either}
}

func longest(texts ...string) (l string) {
	for _, t := range texts {
		if len(t) > len(l) {
			l = t
		}
	}
	return l
}

// endsText says whether every match ends where the text ends.
func endsText(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpEndText:
		return true
	case syntax.OpCapture:
		return endsText(re.Sub[0])
	case syntax.OpConcat:
		return endsText(re.Sub[len(re.Sub)-1])
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if !endsText(sub) {
				return false
			}
		}
		return true
	}
	return false
}
