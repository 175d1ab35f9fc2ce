package engine

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// deepestLiteral bounds nesting, as Python's own parser does.
const deepestLiteral = 100

// pythonLiteral turns a Python literal that JSON can hold into JSON: None, True, False, numbers, strings, lists, tuples and dicts with string keys.
func pythonLiteral(text string) (json string, ok bool) {
	l := literalReader{rest: text}
	var out []byte
	if out, ok = l.value(out, 0); !ok {
		return "", false
	}
	l.space()
	return string(out), l.rest == ""
}

type literalReader struct{ rest string }

func (l *literalReader) space() { l.rest = strings.TrimLeft(l.rest, " \t\r\n") }

func (l *literalReader) take(s string) bool {
	rest, ok := strings.CutPrefix(l.rest, s)
	l.rest = rest
	return ok
}

func (l *literalReader) value(out []byte, depth int) ([]byte, bool) {
	if depth > deepestLiteral {
		return out, false
	}
	l.space()
	if l.rest == "" {
		return out, false
	}
	switch c := l.rest[0]; {
	case c == '"' || c == '\'':
		s, ok := l.text()
		return defaultStyle.appendString(out, s), ok
	case l.take("["):
		return l.list(out, "]", depth)
	case l.take("("):
		return l.list(out, ")", depth)
	case l.take("{"):
		return l.dict(out, depth)
	}
	return l.word(out)
}

// word reads a name or a number, up to what can follow one.
func (l *literalReader) word(out []byte) ([]byte, bool) {
	n := strings.IndexAny(l.rest, ",]}): \t\r\n")
	if n < 0 {
		n = len(l.rest)
	}
	word := l.rest[:n]
	l.rest = l.rest[n:]
	switch word {
	case "None":
		return append(out, "null"...), true
	case "True":
		return append(out, "true"...), true
	case "False":
		return append(out, "false"...), true
	}
	if i, err := strconv.ParseInt(word, 0, 64); err == nil {
		return strconv.AppendInt(out, i, 10), !oldOctal(word)
	}
	digits := strings.TrimLeft(word, "+-")
	if digits == "" || !(digits[0] == '.' || digits[0] >= '0' && digits[0] <= '9') || strings.ContainsAny(digits, "xXpP") {
		return out, false // ParseFloat knows inf and nan by many names, and hexadecimal floats
	}
	f, err := strconv.ParseFloat(word, 64)
	if err != nil || math.IsInf(f, 0) {
		return out, false
	}
	return appendPythonFloat(out, f), true
}

// oldOctal: Python refuses 010, which Go takes for 8.
func oldOctal(word string) bool {
	digits := strings.TrimLeft(word, "+-")
	return len(digits) > 1 && digits[0] == '0' && (digits[1] >= '0' && digits[1] <= '9' || digits[1] == '_') && strings.Trim(digits, "0_") != ""
}

func (l *literalReader) list(out []byte, end string, depth int) ([]byte, bool) {
	out = append(out, '[')
	for first := true; ; first = false {
		l.space()
		if l.take(end) {
			return append(out, ']'), true
		}
		if !first {
			out = append(out, ", "...)
		}
		var ok bool
		if out, ok = l.value(out, depth+1); !ok {
			return out, false
		}
		l.space()
		if l.take(",") {
			continue
		}
		if first && end == ")" { // (x) is x, and Laguna's values are none of these
			return out, false
		}
		return append(out, ']'), l.take(end)
	}
}

func (l *literalReader) dict(out []byte, depth int) ([]byte, bool) {
	out = append(out, '{')
	for first := true; ; first = false {
		l.space()
		if l.take("}") {
			return append(out, '}'), true
		}
		if !first {
			out = append(out, ", "...)
		}
		key, ok := l.text()
		l.space()
		if !ok || !l.take(":") {
			return out, false
		}
		out = append(defaultStyle.appendString(out, key), ": "...)
		if out, ok = l.value(out, depth+1); !ok {
			return out, false
		}
		l.space()
		if l.take(",") {
			continue
		}
		return append(out, '}'), l.take("}")
	}
}

// text reads a string in single or double quotes.
func (l *literalReader) text() (string, bool) {
	if l.rest == "" || l.rest[0] != '\'' && l.rest[0] != '"' {
		return "", false
	}
	quote := l.rest[0]
	l.rest = l.rest[1:]
	var b strings.Builder
	for l.rest != "" {
		if l.take(string(quote)) {
			return b.String(), true
		}
		if l.rest[0] == '\n' {
			return "", false
		}
		if l.take("\\\n") {
			continue
		}
		if l.rest[0] == '\\' && !strings.HasPrefix(l.rest, `\'`) && !strings.HasPrefix(l.rest, `\"`) {
			if len(l.rest) < 2 || !strings.ContainsRune(`\abfnrtvxuU01234567`, rune(l.rest[1])) { // an unknown escape keeps its backslash
				b.WriteByte('\\')
				l.rest = l.rest[1:]
				continue
			}
			r, _, rest, err := strconv.UnquoteChar(l.rest, 0)
			if err != nil {
				return "", false
			}
			b.WriteRune(r)
			l.rest = rest
			continue
		}
		l.take(`\`)
		r, n := utf8.DecodeRuneInString(l.rest)
		b.WriteRune(r)
		l.rest = l.rest[n:]
	}
	return "", false
}
