package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// transformers replaces Jinja's tojson by json.dumps and adds raise_exception and strftime_now. The Go engine has filters of those names that differ in
// floats, indents, key order and separators. It looks for a filter among its own first and then among the variables, so ours go by a name of their own.
const pythonJSONFilter = "python_json_dumps"

// maxRange is the sandbox's limit on range(), which keeps a template from filling memory.
const maxRange = 100_000

// raisedByTemplate is raise_exception: the template says what it does not like about the messages.
type raisedByTemplate struct{ message string }

func (e *raisedByTemplate) Error() string { return e.message }

// asJinja2Reads drops one line break at the end of a template and takes all line breaks for \n, as Jinja2 does by default.
func asJinja2Reads(source string) string {
	return strings.TrimSuffix(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source), "\n")
}

// withPythonFilters renames the filter tojson inside tags, and leaves text, comments and string literals alone. The method items() becomes the
// filter of that name: the Go engine takes x.items for the key "items" where a dict has one, as the arguments of a tool may.
func withPythonFilters(source string) string {
	const name, items = "tojson", ".items()"
	var out strings.Builder
	for {
		open := nextTag(source)
		if open < 0 {
			out.WriteString(source)
			return out.String()
		}
		end := tagEnd(source, open)
		tag := source[open:end]
		out.WriteString(source[:open])
		source = source[end:]

		piped := false // a | and perhaps white space stand before
		for i := 0; i < len(tag); {
			c := tag[i]
			switch {
			case c == '\'' || c == '"':
				n := literalEnd(tag, i)
				out.WriteString(tag[i:n])
				i, piped = n, false
			case strings.HasPrefix(tag[i:], items):
				out.WriteString("|items")
				i, piped = i+len(items), false
			case piped && strings.HasPrefix(tag[i:], name) && !(i+len(name) < len(tag) && isNameByte(tag[i+len(name)])):
				out.WriteString(pythonJSONFilter)
				i, piped = i+len(name), false
			default:
				piped = c == '|' || piped && (c == ' ' || c == '\n' || c == '\t' || c == '\r')
				out.WriteByte(c)
				i++
			}
		}
	}
}

// nextTag returns where the next {{ or {% begins, past comments, or -1.
func nextTag(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] != '{' {
			continue
		}
		switch s[i+1] {
		case '{', '%':
			return i
		case '#':
			end := strings.Index(s[i:], "#}")
			if end < 0 {
				return -1
			}
			i += end + 1
		}
	}
	return -1
}

// tagEnd returns where the tag that begins at open ends. Ends inside string literals are none.
func tagEnd(s string, open int) int {
	closer := "}}"
	if s[open+1] == '%' {
		closer = "%}"
	}
	for i := open + 2; i < len(s); {
		switch {
		case s[i] == '\'' || s[i] == '"':
			i = literalEnd(s, i)
		case strings.HasPrefix(s[i:], closer):
			return i + len(closer)
		default:
			i++
		}
	}
	return len(s)
}

func literalEnd(s string, start int) int {
	for i := start + 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[start]:
			return i + 1
		}
	}
	return len(s)
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func pythonGlobals() map[string]jinja.Value {
	return map[string]jinja.Value{
		pythonJSONFilter:  jinja.NewCallable("tojson", dumpsFilter),
		"raise_exception": jinja.NewCallable("raise_exception", raiseException),
		"strftime_now":    jinja.NewCallable("strftime_now", strftimeNow),
		"range":           jinja.NewCallable("range", boundedRange),
	}
}

func raiseException(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	message := "no reason given"
	if len(args) > 0 {
		message = templateText(args[0])
	}
	return jinja.Undefined(), &raisedByTemplate{message}
}

func templateText(v jinja.Value) string {
	if v.IsString() {
		return v.AsString()
	}
	return v.String()
}

func boundedRange(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	bounds := [3]int64{0, 0, 1}
	for i, a := range args {
		if !a.IsInt() || i > 2 {
			return jinja.Undefined(), errors.New("range takes one to three integers")
		}
		bounds[i] = a.AsInt()
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	switch {
	case len(args) == 0 || step == 0:
		return jinja.Undefined(), errors.New("range takes one to three integers, and a step other than 0")
	case len(args) == 1:
		start, stop = 0, bounds[0]
	}
	var items []jinja.Value
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(items) == maxRange {
			return jinja.Undefined(), fmt.Errorf("range has more than %d members", maxRange)
		}
		items = append(items, jinja.NewInt(i))
	}
	return jinja.NewList(items), nil
}

// strftimeDirectives are C's, in Go's layouts. The rest of the format is taken as it is.
var strftimeDirectives = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002",
	'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'F': "2006-01-02", 'T': "15:04:05",
}

func strftimeNow(args []jinja.Value, _ map[string]jinja.Value) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsString() {
		return jinja.Undefined(), errors.New("strftime_now takes a format")
	}
	text, err := strftime(time.Now(), args[0].AsString())
	return jinja.NewString(text), err
}

func strftime(at time.Time, format string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			out.WriteByte(format[i])
			continue
		}
		i++
		switch {
		case i < len(format) && format[i] == '%':
			out.WriteByte('%')
		case i < len(format) && strftimeDirectives[format[i]] != "":
			out.WriteString(at.Format(strftimeDirectives[format[i]]))
		default:
			return "", fmt.Errorf("strftime_now: format %s is not supported", strconv.Quote(format))
		}
	}
	return out.String(), nil
}
