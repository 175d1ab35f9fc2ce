package pyre

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// translation is a Python pattern in the syntax of the two engines.
type translation struct {
	full    string // for regexp2: the same language
	loose   string // for regexp: the same language without look-around, back references and atomic groups, so the same or a larger one
	regular bool   // full and loose are the same language
}

// translator walks a pattern once. It refuses what Python refuses and the engines would take for something else (`\p{L}`, `\Q`, `(?<n>`), and rewrites
// what they spell differently: `(?P<n>`, `(?P=n)`, `\Z`, `{,n}`, octal escapes, and brackets inside a class, which would begin a POSIX class in one
// engine and a subtraction in the other.
type translator struct {
	in          string
	pos         int
	full, loose strings.Builder
	global      string // the flags of (?ims) at the start
	groups      []group
	captures    []capture // of all groups with a number, in order
	place       bool      // the last item matches a place (^, \b) and no text
	hidden      int       // how many open groups are look-arounds
	irregular   bool
}

// group is an open parenthesis.
type group struct {
	look    bool // a look-around
	capture int  // place among the captures; -1: it has no number
}

// capture is a group that can be referred to once it is closed.
type capture struct {
	name   string
	closed bool
}

func translate(pattern string) (translation, error) {
	if !utf8.ValidString(pattern) {
		return translation{}, errors.New("not UTF-8")
	}
	t := &translator{in: pattern}
	for t.pos < len(t.in) {
		if err := t.item(); err != nil {
			return translation{}, fmt.Errorf("%w at position %d", err, t.pos)
		}
	}
	if len(t.groups) > 0 {
		return translation{}, errors.New("missing )")
	}
	return translation{full: t.global + t.full.String(), loose: t.global + t.loose.String(), regular: !t.irregular}, nil
}

func (t *translator) rest() string { return t.in[t.pos:] }

func (t *translator) emit(s string) { t.emitBoth(s, s) }

// emitBoth writes what each engine gets. Inside a look-around the loose pattern gets nothing.
func (t *translator) emitBoth(full, loose string) {
	t.full.WriteString(full)
	if t.hidden == 0 {
		t.loose.WriteString(loose)
	}
}

func (t *translator) next() rune {
	r, n := utf8.DecodeRuneInString(t.rest())
	t.pos += n
	return r
}

func (t *translator) accept(prefix string) bool {
	ok := strings.HasPrefix(t.rest(), prefix)
	if ok {
		t.pos += len(prefix)
	}
	return ok
}

func (t *translator) item() error {
	place := t.place
	t.place = false
	if q, ok := t.quantifier(); ok {
		if place {
			return errors.New("nothing to repeat")
		}
		return t.repeat(q)
	}
	switch r := t.next(); r {
	case '\\':
		return t.escape()
	case '[':
		return t.class()
	case '(':
		return t.open()
	case ')':
		return t.close()
	case '.', '|':
		t.emit(string(r))
	case '^', '$':
		t.place = true
		t.emit(string(r))
	default:
		t.emit(regexp.QuoteMeta(string(r)))
	}
	return nil
}

var bounds = regexp.MustCompile(`^\{(\d*)(?:(,)(\d*))?\}`)

// quantifier takes a quantifier from the input. Python reads {,n} as {0,n}; a brace that begins none is a literal.
func (t *translator) quantifier() (string, bool) {
	s := t.rest()
	switch s[0] {
	case '*', '+', '?':
		t.pos++
		return s[:1], true
	case '{':
		m := bounds.FindStringSubmatch(s)
		if m == nil || m[0] == "{}" {
			return "", false
		}
		t.pos += len(m[0])
		if m[1] == "" {
			m[1] = "0"
		}
		return "{" + m[1] + m[2] + m[3] + "}", true
	}
	return "", false
}

func (t *translator) repeat(q string) error {
	switch {
	case t.accept("?"):
		t.emit(q + "?")
	case t.accept("+"):
		t.irregular = true
		t.emitBoth(q+"+", q)
	default:
		t.emit(q)
	}
	if t.pos < len(t.in) {
		if _, again := t.quantifier(); again {
			return errors.New("multiple repeat")
		}
	}
	return nil
}

var (
	groupName  = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_]*`)
	groupFlags = regexp.MustCompile(`^[imsu]*(?:-[ims]+)?[:)]`)
)

// open reads what follows an opening parenthesis.
func (t *translator) open() error {
	if !t.accept("?") {
		return t.pushCapture("(", "")
	}
	switch {
	case t.accept("#"):
		end := strings.IndexByte(t.rest(), ')')
		if end < 0 {
			return errors.New("missing ), unterminated comment")
		}
		t.pos += end + 1
		return nil
	case t.accept("P<"):
		name := groupName.FindString(t.rest())
		if !t.accept(name + ">") {
			return errors.New("bad group name")
		}
		return t.pushCapture("(?<"+name+">", name)
	case t.accept("P="):
		name := groupName.FindString(t.rest())
		if !t.accept(name + ")") {
			return errors.New("bad group name")
		}
		return t.backReference(name)
	case t.accept(">"):
		t.irregular = true
		return t.push("(?>", "(?:", false)
	}
	for _, look := range []string{"=", "!", "<=", "<!"} {
		if t.accept(look) {
			t.irregular = true
			return t.push("(?"+look, "", true)
		}
	}
	if flags := groupFlags.FindString(t.rest()); flags != "" {
		return t.flags(flags)
	}
	return errors.New("unknown or unsupported group extension")
}

// flags reads (?ims) at the start of the pattern and (?ims-ims:...) anywhere. u is Python's default and means something else to regexp2.
func (t *translator) flags(s string) error {
	t.pos += len(s)
	group := "(?" + strings.ReplaceAll(s, "u", "")
	switch {
	case strings.HasSuffix(s, ":"):
		return t.push(group, group, false)
	case t.full.Len() > 0 || s == ")" || strings.Contains(s, "-"):
		return errors.New("global flags not at the start of the expression")
	case group != "(?)":
		t.global += group
	}
	return nil
}

func (t *translator) push(full, loose string, look bool) error {
	if look {
		t.hidden++
	}
	t.emitBoth(full, loose)
	t.groups = append(t.groups, group{look, -1})
	return nil
}

func (t *translator) pushCapture(full, name string) error {
	if name != "" && slices.ContainsFunc(t.captures, func(c capture) bool { return c.name == name }) {
		return fmt.Errorf("redefinition of group %s", name)
	}
	t.emitBoth(full, "(?:")
	t.groups = append(t.groups, group{false, len(t.captures)})
	t.captures = append(t.captures, capture{name: name})
	return nil
}

func (t *translator) close() error {
	last := len(t.groups) - 1
	if last < 0 {
		return errors.New("unbalanced parenthesis")
	}
	t.emit(")")
	if t.groups[last].look {
		t.hidden--
	}
	if n := t.groups[last].capture; n >= 0 {
		t.captures[n].closed = true
	}
	t.groups = t.groups[:last]
	return nil
}

// backReference refers to a closed group by its name or number; the engines would take others, too.
func (t *translator) backReference(group string) error {
	known := slices.ContainsFunc(t.captures, func(c capture) bool { return c.closed && c.name == group })
	if n, err := strconv.Atoi(group); err == nil {
		known = n <= len(t.captures) && t.captures[n-1].closed
	}
	if !known {
		return fmt.Errorf("reference to group %s, which is not there or not closed", group)
	}
	t.irregular = true
	t.emitBoth(`\k<`+group+`>`, `(?s:.*)`)
	return nil
}

// escape reads what follows a backslash outside a class.
func (t *translator) escape() error {
	if m := decimal.FindString(t.rest()); m != "" && !octal.MatchString(t.rest()) {
		t.pos += len(m)
		return t.backReference(m)
	}
	for _, place := range []struct{ python, ours string }{{"Z", `\z`}, {"A", `\A`}, {"b", `\b`}, {"B", `\B`}} {
		if t.accept(place.python) {
			t.place = true
			t.emit(place.ours)
			return nil
		}
	}
	s, err := t.character()
	t.emit(s)
	return err
}

var (
	octal   = regexp.MustCompile(`^(?:0[0-7]{0,2}|[0-3][0-7]{2})`)
	decimal = regexp.MustCompile(`^[1-9][0-9]?`)
	coded   = regexp.MustCompile(`^(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))`)
)

// character reads an escape that stands for a character or a class of them, in a class or outside.
func (t *translator) character() (string, error) {
	if t.pos == len(t.in) {
		return "", errors.New("trailing backslash")
	}
	if m := octal.FindString(t.rest()); m != "" {
		t.pos += len(m)
		return codepoint(m, 8), nil
	}
	if m := coded.FindStringSubmatch(t.rest()); m != nil {
		t.pos += len(m[0])
		return codepoint(m[1]+m[2]+m[3], 16), nil
	}
	r := t.next()
	switch {
	case strings.ContainsRune("dDsSwWafnrtv", r):
		return `\` + string(r), nil
	case r < utf8.RuneSelf && (r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z'):
		return "", fmt.Errorf(`bad escape \%c`, r)
	}
	return literal(r), nil
}

func codepoint(digits string, base int) string {
	v, _ := strconv.ParseUint(digits, base, 32) // the patterns above let nothing else through
	return literal(rune(v))
}

// literal writes a character so that it stands for itself in both engines, in a class and outside.
func literal(r rune) string {
	if r < ' ' || r == 0x7f {
		return fmt.Sprintf(`\x%02x`, r)
	}
	if strings.ContainsRune(`\.+*?()|[]{}^$-`, r) {
		return `\` + string(r)
	}
	return string(r)
}

// class reads a character class, the opening bracket being taken.
func (t *translator) class() error {
	t.emit("[")
	if t.accept("^") {
		t.emit("^")
	}
	for first := true; ; first = false {
		if t.pos == len(t.in) {
			return errors.New("unterminated character set")
		}
		switch r := t.next(); {
		case r == ']' && !first:
			t.emit("]")
			return nil
		case r == '-':
			t.emit("-")
		case r != '\\':
			t.emit(literal(r))
		case t.accept("b"):
			t.emit(`\x08`)
		default:
			s, err := t.character()
			if err != nil {
				return err
			}
			t.emit(s)
		}
	}
}
