package safetensors

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner walks over a JSON text without building anything: strings without escapes are slices of the text. It is as strict as serde_json,
// with which the reference reads, and stricter than encoding/json, which replaces lone surrogates and lets the last of two equal keys win.
// Its caller has checked that the text is valid UTF-8.
type scanner struct {
	what string // "header" or "index", for messages
	text string
	pos  int
}

// maxDepth is serde_json's limit of nesting.
const maxDepth = 128

func (s *scanner) fail(cause error, at int, format string, args ...any) error {
	e := refuse(cause, hintDamaged, format, args...)
	e.Problem = s.what + " byte " + strconv.Itoa(at) + ": " + e.Problem
	return e
}

// unexpected says what stands at the scanner's position instead of what was wanted.
func (s *scanner) unexpected(wanted string) error {
	if s.pos >= len(s.text) {
		return s.fail(ErrJSON, s.pos, "the %s ends where %s is expected", s.what, wanted)
	}
	r, _ := utf8.DecodeRuneInString(s.text[s.pos:])
	return s.fail(ErrJSON, s.pos, "found %q, expected %s", r, wanted)
}

// peek skips white space and returns the byte that follows it, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// take skips white space and then the byte c, and reports whether it was there.
func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.pos++
	return true
}

// word skips one of the words true, false and null.
func (s *scanner) word(w string) bool {
	s.peek()
	if !strings.HasPrefix(s.text[s.pos:], w) {
		return false
	}
	s.pos += len(w)
	return true
}

// end refuses anything but white space.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.text) {
		return s.unexpected("the end")
	}
	return nil
}

// object calls each with every key of an object and the key's position; each must consume the value.
func (s *scanner) object(each func(key string, at int) error) error {
	if !s.take('{') {
		return s.unexpected("an object")
	}
	if s.take('}') {
		return nil
	}
	for {
		s.peek()
		at := s.pos
		key, err := s.str()
		if err != nil {
			return err
		}
		if !s.take(':') {
			return s.unexpected("':'")
		}
		if err := each(key, at); err != nil {
			return err
		}
		if s.take('}') {
			return nil
		}
		if !s.take(',') {
			return s.unexpected("',' or '}'")
		}
	}
}

// array calls each before every element of an array; each must consume the element.
func (s *scanner) array(each func() error) error {
	if !s.take('[') {
		return s.unexpected("an array")
	}
	if s.take(']') {
		return nil
	}
	for {
		if err := each(); err != nil {
			return err
		}
		if s.take(']') {
			return nil
		}
		if !s.take(',') {
			return s.unexpected("',' or ']'")
		}
	}
}

// str reads a string.
func (s *scanner) str() (string, error) {
	if !s.take('"') {
		return "", s.unexpected("a string")
	}
	for i := s.pos; i < len(s.text); i++ {
		switch c := s.text[i]; {
		case c == '"':
			text := s.text[s.pos:i]
			s.pos = i + 1
			return text, nil
		case c == '\\':
			return s.escaped(i)
		case c < ' ':
			return "", s.fail(ErrJSON, i, "control character 0x%02x in a string", c)
		}
	}
	return "", s.openString()
}

func (s *scanner) openString() error {
	return s.fail(ErrJSON, len(s.text), "the %s ends inside a string", s.what)
}

// escaped reads the rest of a string whose first backslash stands at i.
func (s *scanner) escaped(i int) (string, error) {
	var b strings.Builder
	b.WriteString(s.text[s.pos:i])
	for s.pos = i; s.pos < len(s.text); {
		switch c := s.text[s.pos]; {
		case c == '"':
			s.pos++
			return b.String(), nil
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case c < ' ':
			return "", s.fail(ErrJSON, s.pos, "control character 0x%02x in a string", c)
		default:
			b.WriteByte(c)
			s.pos++
		}
	}
	return "", s.openString()
}

// escape reads one escape sequence, or two that make a surrogate pair.
func (s *scanner) escape() (rune, error) {
	at := s.pos
	s.pos++
	if s.pos < len(s.text) {
		c := s.text[s.pos]
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			s.pos++
			return rune("\"\\/\b\f\n\r\t"[i]), nil
		}
		if c == 'u' {
			s.pos++
			return s.unicodeEscape(at)
		}
	}
	return 0, s.fail(ErrJSON, at, "unknown escape sequence")
}

// unicodeEscape reads what follows the \u at position at.
func (s *scanner) unicodeEscape(at int) (rune, error) {
	r, err := s.hex4(at)
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if strings.HasPrefix(s.text[s.pos:], `\u`) {
		s.pos += 2
		low, err := s.hex4(at)
		if err != nil {
			return 0, err
		}
		if r := utf16.DecodeRune(r, low); r != utf8.RuneError {
			return r, nil
		}
	}
	return 0, s.fail(ErrJSON, at, "half of a surrogate pair")
}

func (s *scanner) hex4(at int) (rune, error) {
	var r rune
	for range 4 {
		if s.pos >= len(s.text) {
			return 0, s.fail(ErrJSON, at, "escape sequence is cut short")
		}
		switch c := s.text[s.pos]; {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, s.fail(ErrJSON, at, "escape sequence without four hexadecimal digits")
		}
		s.pos++
	}
	return r, nil
}

// uint reads a whole number of at most 64 bits, written with digits only: no sign, no fraction, no exponent, no leading zero.
func (s *scanner) uint() (uint64, error) {
	s.peek()
	at := s.pos
	var n uint64
	for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		digit := uint64(s.text[s.pos] - '0')
		if n > (1<<64-1-digit)/10 {
			return 0, s.notWhole(at)
		}
		n = n*10 + digit
		s.pos++
	}
	switch {
	case s.pos < len(s.text) && strings.IndexByte("-.eE", s.text[s.pos]) >= 0:
		return 0, s.notWhole(at)
	case s.pos == at:
		return 0, s.unexpected("a whole number")
	case s.text[at] == '0' && s.pos > at+1:
		return 0, s.fail(ErrJSON, at, "number with a leading zero")
	}
	return n, nil
}

// notWhole refuses the number at position at.
func (s *scanner) notWhole(at int) error {
	s.pos = at
	s.skipNumber()
	return s.fail(ErrEntry, at, "found %s, expected a whole number of at most 64 bits", s.text[at:min(s.pos, at+32)])
}

// skip passes over any value and returns its text.
func (s *scanner) skip() (string, error) {
	s.peek()
	at := s.pos
	err := s.skipValue(1)
	return s.text[at:s.pos], err
}

func (s *scanner) skipValue(depth int) error {
	if depth > maxDepth {
		return s.fail(ErrJSON, s.pos, "nested deeper than %d", maxDepth)
	}
	switch c := s.peek(); {
	case c == '{':
		return s.object(func(string, int) error { return s.skipValue(depth + 1) })
	case c == '[':
		return s.array(func() error { return s.skipValue(depth + 1) })
	case c == '"':
		_, err := s.str()
		return err
	case s.word("true"), s.word("false"), s.word("null"), s.skipNumber():
		return nil
	}
	return s.unexpected("a value")
}

// skipNumber passes over a number of any form that JSON has.
func (s *scanner) skipNumber() bool {
	digits := func() bool {
		at := s.pos
		for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
			s.pos++
		}
		return s.pos > at
	}
	one := func(set string) bool {
		if s.pos < len(s.text) && strings.IndexByte(set, s.text[s.pos]) >= 0 {
			s.pos++
			return true
		}
		return false
	}
	one("-")
	if !one("0") && !digits() {
		return false
	}
	if one(".") && !digits() {
		return false
	}
	if one("eE") {
		one("+-")
		return digits()
	}
	return true
}

// appendString writes a string as serde_json does: the short escapes where JSON has one, \u00xx for other control characters, all else as it is.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ':
			b = append(b, c)
		default:
			if j := strings.IndexByte("\b\f\n\r\t", c); j >= 0 {
				b = append(b, '\\', "bfnrt"[j])
			} else {
				b = append(b, `\u00`...)
				b = append(b, hex[c>>4], hex[c&15])
			}
		}
	}
	return append(b, '"')
}
