package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// parseOrdered reads JSON into template values and keeps the order of keys, which decides the tokens of a prompt. Of equal keys the last value counts,
// at the first one's place, as in Python. Half of a surrogate pair, which Python reads and no tokenizer takes, is refused.
func parseOrdered(data []byte) (jinja.Value, error) {
	if half := halfSurrogate(data); half != "" {
		return jinja.None(), fmt.Errorf("a string holds %s, half of a character", half)
	}
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil { // the whole syntax at once, and a bound on the depth
		return jinja.None(), err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return orderedValue(d)
}

var escape = regexp.MustCompile(`(?i)\\(u[0-9a-f]{4}|[^u])`)

// halfSurrogate returns the first escape of half of a surrogate pair without its other half, or "".
func halfSurrogate(data []byte) string {
	high, end := "", 0 // the last escape, if it needs another at end
	for _, m := range escape.FindAllIndex(data, -1) {
		text := string(data[m[0]:m[1]])
		code := uint64(0)
		if len(text) == 6 {
			code, _ = strconv.ParseUint(text[2:], 16, 32)
		}
		low := code >= 0xdc00 && code < 0xe000
		switch {
		case high != "" && (!low || m[0] != end):
			return high
		case high == "" && low:
			return text
		}
		high = ""
		if code >= 0xd800 && code < 0xdc00 {
			high, end = text, m[1]
		}
	}
	return high
}

func orderedValue(d *json.Decoder) (jinja.Value, error) {
	token, err := d.Token()
	if err != nil {
		return jinja.None(), err
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return orderedList(d)
		}
		return orderedDict(d)
	case json.Number:
		return numberValue(token)
	}
	return jinja.FromGoValue(token), nil
}

func orderedList(d *json.Decoder) (jinja.Value, error) {
	var items []jinja.Value
	for d.More() {
		v, err := orderedValue(d)
		if err != nil {
			return v, err
		}
		items = append(items, v)
	}
	_, err := d.Token()
	return jinja.NewList(items), err
}

func orderedDict(d *json.Decoder) (jinja.Value, error) {
	dict := jinja.NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return dict, err
		}
		v, err := orderedValue(d)
		if err != nil {
			return v, err
		}
		dict.AsDict().Set(key.(string), v) // the decoder gives nothing else in this place
	}
	_, err := d.Token()
	return dict, err
}

func numberValue(n json.Number) (jinja.Value, error) {
	if !strings.ContainsAny(n.String(), ".eE") {
		i, err := n.Int64()
		if err != nil {
			return jinja.None(), fmt.Errorf("integer %.40s does not fit 64 bits", n)
		}
		return jinja.NewInt(i), nil
	}
	f, err := n.Float64()
	if err != nil {
		return jinja.None(), fmt.Errorf("number %.40s is out of range", n)
	}
	return jinja.NewFloat(f), nil
}

// jsonStyle is how json.dumps writes.
type jsonStyle struct {
	item, key string
	indent    string // for one level; used when lines is set
	lines     bool
	ascii     bool
	sorted    bool
}

var defaultStyle = jsonStyle{item: ", ", key: ": "}

// dumpsFilter is tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False) as transformers defines it.
func dumpsFilter(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	names := []string{"ensure_ascii", "indent", "separators", "sort_keys"}
	given := map[string]jinja.Value{}
	for i, a := range args[1:] {
		if i >= len(names) {
			return jinja.Undefined(), fmt.Errorf("tojson takes at most %d options", len(names))
		}
		given[names[i]] = a
	}
	for name, v := range named {
		if !slices.Contains(names, name) {
			return jinja.Undefined(), fmt.Errorf("tojson has no option %q", name)
		}
		given[name] = v
	}
	style := defaultStyle
	style.ascii, style.sorted = given["ensure_ascii"].IsTruthy(), given["sort_keys"].IsTruthy()
	if in := given["indent"]; in.IsInt() {
		style.lines, style.item = true, ","
		style.indent = strings.Repeat(" ", int(min(max(in.AsInt(), 0), 16)))
	} else if in.IsString() {
		style.lines, style.item, style.indent = true, ",", in.AsString()
	}
	if s := given["separators"]; s.IsList() {
		pair := s.AsList().Items
		if len(pair) != 2 || !pair[0].IsString() || !pair[1].IsString() {
			return jinja.Undefined(), errors.New("tojson: separators are two texts")
		}
		style.item, style.key = pair[0].AsString(), pair[1].AsString()
	}
	out, err := style.append(nil, args[0], 0)
	return jinja.NewString(string(out)), err
}

func (j jsonStyle) append(dst []byte, v jinja.Value, depth int) ([]byte, error) {
	switch {
	case v.IsNone():
		return append(dst, "null"...), nil
	case v.IsBool():
		return strconv.AppendBool(dst, v.AsBool()), nil
	case v.IsInt():
		return strconv.AppendInt(dst, v.AsInt(), 10), nil
	case v.IsFloat():
		return appendPythonFloat(dst, v.AsFloat()), nil
	case v.IsString():
		return j.appendString(dst, v.AsString()), nil
	case v.IsList():
		items := v.AsList().Items
		return j.appendMembers(dst, '[', ']', len(items), depth, func(dst []byte, i int) ([]byte, error) {
			return j.append(dst, items[i], depth+1)
		})
	case v.IsDict():
		d := v.AsDict()
		keys := d.OrderedKeys()
		if j.sorted {
			slices.Sort(keys)
		}
		return j.appendMembers(dst, '{', '}', len(keys), depth, func(dst []byte, i int) ([]byte, error) {
			dst = append(j.appendString(dst, keys[i]), j.key...)
			return j.append(dst, d.Data[keys[i]], depth+1)
		})
	case v.IsUndefined():
		return dst, errors.New("tojson of an undefined value")
	}
	return dst, errors.New("tojson of a function")
}

func (j jsonStyle) appendMembers(dst []byte, open, shut byte, n, depth int, member func([]byte, int) ([]byte, error)) ([]byte, error) {
	dst = append(dst, open)
	var err error
	for i := range n {
		if i > 0 {
			dst = append(dst, j.item...)
		}
		dst = j.newLine(dst, depth+1)
		if dst, err = member(dst, i); err != nil {
			return dst, err
		}
	}
	if n > 0 {
		dst = j.newLine(dst, depth)
	}
	return append(dst, shut), nil
}

func (j jsonStyle) newLine(dst []byte, depth int) []byte {
	if j.lines {
		dst = append(dst, '\n')
		for range depth {
			dst = append(dst, j.indent...)
		}
	}
	return dst
}

func (j jsonStyle) appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = j.appendEscaped(dst, s)
	return append(dst, '"')
}

// appendEscaped writes s as the inside of a JSON string. Python escapes what JSON demands and nothing else, unless ensure_ascii is set.
func (j jsonStyle) appendEscaped(dst []byte, s string) []byte {
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == '\b':
			dst = append(dst, `\b`...)
		case r == '\f':
			dst = append(dst, `\f`...)
		case r < ' ', j.ascii && r >= 0x7F && r <= 0xFFFF:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		case j.ascii && r > 0xFFFF:
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, 0xD800+(r-0x10000)>>10, 0xDC00+(r-0x10000)&0x3FF)
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// appendPythonFloat writes repr(f): the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on, and always a point or exponent.
func appendPythonFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !bytes.ContainsRune(dst[start:], '.') {
		dst = append(dst, ".0"...)
	}
	return dst
}
