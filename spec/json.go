package spec

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lagquant/lagquant/internal/fault"
)

// ErrByteOrderMark says that a config begins with a byte order mark. Python's json refuses such a file, so no loader built on it opens the checkpoint.
var ErrByteOrderMark = errors.New("byte order mark")

// node is a JSON value together with the bytes it was read from, since configs are edited in place.
type node struct {
	kind       nodeKind
	begin, end int
	text       string   // of a string: decoded; of a number or a literal: as it stands
	keys       []string // of an object
	items      []*node  // of an object, beside keys, or of an array
}

type nodeKind byte

const (
	objectNode nodeKind = iota
	arrayNode
	stringNode
	numberNode
	literalNode // true, false, null, NaN, Infinity, -Infinity
)

// get returns an object's member. Of equal keys the last one counts, as in Python.
func (n *node) get(key string) *node {
	if n == nil || n.kind != objectNode {
		return nil
	}
	for i := len(n.keys) - 1; i >= 0; i-- {
		if n.keys[i] == key {
			return n.items[i]
		}
	}
	return nil
}

func (n *node) at(path ...string) *node {
	for _, key := range path {
		n = n.get(key)
	}
	return n
}

// absent says that the value is missing or null, which Python's config classes treat alike.
func (n *node) absent() bool { return n == nil || n.kind == literalNode && n.text == "null" }

func (n *node) String() string {
	switch n.kind {
	case objectNode:
		return "an object"
	case arrayNode:
		return "a list"
	case stringNode:
		return strconv.Quote(n.text)
	}
	return n.text
}

// deepest is how far Python's scanner goes before it gives up, in round figures.
const deepest = 900

// parseJSON reads what Python's json.loads reads: NaN and Infinity are values, lone surrogates pass, and the last of equal keys counts.
func parseJSON(b []byte) (*node, error) {
	if bytes.HasPrefix(b, []byte("\xef\xbb\xbf")) {
		return nil, &fault.Error{
			Kind: fault.Refused, Err: ErrByteOrderMark,
			Problem: "begins with a byte order mark, which Python's json refuses",
			Hint:    "save the file as UTF-8 without a byte order mark",
		}
	}
	p := parser{in: string(b)}
	n, err := p.document()
	if err != nil {
		line := 1 + strings.Count(p.in[:p.pos], "\n")
		column := p.pos - strings.LastIndexByte(p.in[:p.pos], '\n')
		return nil, &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("is not JSON: line %d, byte %d: %v", line, column, err)}
	}
	return n, nil
}

// CheckJSON returns what Python's json would mind of a file, of kind Refused.
func CheckJSON(b []byte) error {
	_, err := parseJSON(b)
	return err
}

type parser struct {
	in         string
	pos, depth int
}

func (p *parser) document() (*node, error) {
	if !utf8.ValidString(p.in) {
		for r, n := utf8.DecodeRuneInString(p.in); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRuneInString(p.in[p.pos:]) {
			p.pos += n
		}
		return nil, errors.New("invalid UTF-8")
	}
	n, err := p.value()
	if err != nil {
		return nil, err
	}
	if p.space(); p.pos < len(p.in) {
		return nil, errors.New("something follows the end of the document")
	}
	return n, nil
}

func (p *parser) space() {
	for p.pos < len(p.in) && strings.IndexByte(" \t\r\n", p.in[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *parser) accept(c byte) bool {
	p.space()
	ok := p.pos < len(p.in) && p.in[p.pos] == c
	if ok {
		p.pos++
	}
	return ok
}

var (
	number  = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?`)
	literal = regexp.MustCompile(`^(?:true|false|null|NaN|-?Infinity)`)
)

func (p *parser) value() (*node, error) {
	p.space()
	if p.pos == len(p.in) {
		return nil, errors.New("a value is missing")
	}
	n := &node{begin: p.pos}
	var err error
	switch p.in[p.pos] {
	case '{':
		err = p.members(n)
	case '[':
		err = p.elements(n)
	case '"':
		n.kind = stringNode
		n.text, err = p.string()
	default:
		if n.kind, n.text = literalNode, literal.FindString(p.in[p.pos:]); n.text == "" {
			n.kind, n.text = numberNode, number.FindString(p.in[p.pos:])
		}
		if n.text == "" {
			return nil, errors.New("no value begins here")
		}
		p.pos += len(n.text)
	}
	n.end = p.pos
	return n, err
}

func (p *parser) members(n *node) error {
	n.kind = objectNode
	return p.list(n, '}', func() error {
		p.space()
		if p.pos == len(p.in) || p.in[p.pos] != '"' {
			return errors.New("a key in double quotes is missing")
		}
		key, err := p.string()
		if err != nil {
			return err
		}
		if !p.accept(':') {
			return errors.New("a colon is missing")
		}
		n.keys = append(n.keys, key)
		return nil
	})
}

func (p *parser) elements(n *node) error {
	n.kind = arrayNode
	return p.list(n, ']', func() error { return nil })
}

func (p *parser) list(n *node, end byte, before func() error) error {
	if p.depth++; p.depth > deepest {
		return fmt.Errorf("nested deeper than %d", deepest)
	}
	p.pos++
	for first := true; !p.accept(end); first = false {
		if !first && !p.accept(',') {
			return fmt.Errorf("a comma or %c is missing", end)
		}
		if err := before(); err != nil {
			return err
		}
		item, err := p.value()
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	p.depth--
	return nil
}

// string reads a string in quotes.
func (p *parser) string() (string, error) {
	p.pos++
	var out strings.Builder
	for {
		plain := strings.IndexFunc(p.in[p.pos:], func(r rune) bool { return r == '"' || r == '\\' || r < ' ' })
		if plain < 0 {
			p.pos = len(p.in)
			return "", errors.New("a string has no end")
		}
		out.WriteString(p.in[p.pos : p.pos+plain])
		p.pos += plain
		switch p.in[p.pos] {
		case '"':
			p.pos++
			return out.String(), nil
		case '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			out.WriteRune(r)
		default:
			return "", fmt.Errorf("control character %#02x in a string", p.in[p.pos])
		}
	}
}

func (p *parser) escape() (rune, error) {
	s := p.in[p.pos:]
	if len(s) < 2 {
		return 0, errors.New("a string has no end")
	}
	if s[1] != 'u' {
		i := strings.IndexByte(`"\/bfnrt`, s[1])
		if i < 0 {
			return 0, fmt.Errorf(`unknown escape \%c`, s[1])
		}
		p.pos += 2
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	r, ok := unit(s)
	if !ok {
		return 0, errors.New(`\u without four hexadecimal digits`)
	}
	p.pos += 6
	if low, ok := unit(p.in[p.pos:]); ok && utf16.IsSurrogate(r) {
		if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
			p.pos += 6
			return both, nil
		}
	}
	return r, nil // a lone surrogate becomes U+FFFD when it is written
}

func unit(s string) (rune, bool) {
	if len(s) < 6 || s[:2] != `\u` {
		return 0, false
	}
	v, err := strconv.ParseUint(s[2:6], 16, 16)
	return rune(v), err == nil
}
