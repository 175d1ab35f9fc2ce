package engine

import (
	"fmt"
	"strings"

	"github.com/ardanlabs/jinja"

	"github.com/lagquant/lagquant/internal/fault"
)

// Messages is a conversation, its keys in the order they were written.
type Messages struct{ list []jinja.Value }

// Tools are function descriptions for the prompt, and the types of their parameters for reading calls back. The zero value: none.
type Tools struct {
	list    []jinja.Value
	textual map[string]map[string]bool // by function and parameter: its schema says string
}

// UserMessage is a conversation of one turn.
func UserMessage(content string) Messages {
	m := jinja.NewDict()
	m.AsDict().Set("role", jinja.NewString("user"))
	m.AsDict().Set("content", jinja.NewString(content))
	return Messages{[]jinja.Value{m}}
}

func (m Messages) value() jinja.Value { return jinja.NewList(m.list) }

// value is None without tools: templates ask `if tools`, and some `if tools is none`.
func (t Tools) value() jinja.Value {
	if len(t.list) == 0 {
		return jinja.None()
	}
	return jinja.NewList(t.list)
}

// ParseMessages reads a JSON array of messages: role and content, and for an assistant reasoning (or reasoning_content) and tool_calls. Arguments of a
// call may be an object or, as servers send them, its JSON text; content may be in parts of type text. Other keys are passed on to the template.
// Errors are of kind Usage.
func ParseMessages(data []byte) (Messages, error) {
	list, err := objectList(data, "messages")
	if err != nil {
		return Messages{}, err
	}
	if len(list) == 0 {
		return Messages{}, badChat("messages: there are none")
	}
	for i, m := range list {
		if err := checkMessage(m.AsDict(), fmt.Sprintf("messages[%d]", i)); err != nil {
			return Messages{}, err
		}
	}
	return Messages{list}, nil
}

func badChat(format string, args ...any) error {
	return &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf(format, args...)}
}

func objectList(data []byte, what string) ([]jinja.Value, error) {
	v, err := parseOrdered(data)
	if err != nil {
		return nil, badChat("%s: not JSON: %v", what, err)
	}
	if !v.IsList() {
		return nil, badChat("%s: found %s, expected an array of objects", what, kindName(v))
	}
	for i, item := range v.AsList().Items {
		if !item.IsDict() {
			return nil, badChat("%s[%d]: found %s, expected an object", what, i, kindName(item))
		}
	}
	return v.AsList().Items, nil
}

func kindName(v jinja.Value) string {
	switch {
	case v.IsUndefined():
		return "nothing"
	case v.IsNone():
		return "null"
	case v.IsBool():
		return "a boolean"
	case v.IsNumber():
		return "a number"
	case v.IsString():
		return "a string"
	case v.IsList():
		return "an array"
	}
	return "an object"
}

func checkMessage(m *jinja.Dict, where string) error {
	role, _ := m.Get("role")
	if !role.IsString() || role.AsString() == "" {
		return badChat("%s.role: found %s, expected system, user, assistant or tool", where, kindName(role))
	}
	for _, key := range []string{"content", "reasoning", "reasoning_content"} {
		v, ok := m.Get(key)
		switch {
		case !ok || v.IsNone() || v.IsString():
		case v.IsList() && key == "content":
			text, err := joinParts(v.AsList().Items, where+".content")
			if err != nil {
				return err
			}
			m.Set(key, jinja.NewString(text))
		default:
			return badChat("%s.%s: found %s, expected a string", where, key, kindName(v))
		}
	}
	calls, ok := m.Get("tool_calls")
	if !ok || calls.IsNone() {
		return nil
	}
	if !calls.IsList() {
		return badChat("%s.tool_calls: found %s, expected an array", where, kindName(calls))
	}
	for i, call := range calls.AsList().Items {
		if err := checkCall(call, fmt.Sprintf("%s.tool_calls[%d]", where, i)); err != nil {
			return err
		}
	}
	return nil
}

// joinParts gives the text of a content in parts, a line for each, as vLLM does for templates that print one string.
func joinParts(parts []jinja.Value, where string) (string, error) {
	texts := make([]string, len(parts))
	for i, part := range parts {
		if !part.IsDict() {
			return "", badChat("%s[%d]: found %s, expected an object", where, i, kindName(part))
		}
		kind, _ := part.AsDict().Get("type")
		text, _ := part.AsDict().Get("text")
		switch {
		case !kind.IsString():
			return "", badChat("%s[%d].type: found %s, expected a string", where, i, kindName(kind))
		case kind.AsString() != "text":
			return "", badChat("%s[%d].type: found %q, expected \"text\": this engine reads text alone", where, i, kind.AsString())
		case !text.IsString():
			return "", badChat("%s[%d].text: found %s, expected a string", where, i, kindName(text))
		}
		texts[i] = text.AsString()
	}
	return strings.Join(texts, "\n"), nil
}

func checkCall(call jinja.Value, where string) error {
	if !call.IsDict() {
		return badChat("%s: found %s, expected an object", where, kindName(call))
	}
	if fn, ok := call.AsDict().Get("function"); ok {
		call, where = fn, where+".function"
		if !call.IsDict() {
			return badChat("%s: found %s, expected an object", where, kindName(call))
		}
	}
	fn := call.AsDict()
	if name, _ := fn.Get("name"); !name.IsString() {
		return badChat("%s.name: found %s, expected a string", where, kindName(name))
	}
	args, _ := fn.Get("arguments")
	if args.IsString() {
		parsed, err := argumentObject(args.AsString())
		if err != nil {
			return badChat("%s.arguments: %v", where, err)
		}
		args = parsed
		fn.Set("arguments", args)
	}
	if !args.IsDict() {
		return badChat("%s.arguments: found %s, expected an object", where, kindName(args))
	}
	return nil
}

func argumentObject(text string) (jinja.Value, error) {
	if text == "" {
		return jinja.NewDict(), nil
	}
	v, err := parseOrdered([]byte(text))
	if err != nil {
		return v, fmt.Errorf("the text is not JSON: %w", err)
	}
	return v, nil
}

// ParseTools reads a JSON array of tools, each {"type": "function", "function": {"name", "parameters"}} or the function alone.
func ParseTools(data []byte) (Tools, error) {
	list, err := objectList(data, "tools")
	if err != nil {
		return Tools{}, err
	}
	t := Tools{list: list, textual: map[string]map[string]bool{}}
	for i, tool := range list {
		fn, where := tool.AsDict(), fmt.Sprintf("tools[%d]", i)
		if inner, ok := fn.Get("function"); ok {
			where += ".function"
			if !inner.IsDict() {
				return Tools{}, badChat("%s: found %s, expected an object", where, kindName(inner))
			}
			fn = inner.AsDict()
		}
		name, _ := fn.Get("name")
		if !name.IsString() || name.AsString() == "" {
			return Tools{}, badChat("%s.name: found %s, expected a string", where, kindName(name))
		}
		t.textual[name.AsString()] = stringParameters(fn)
	}
	return t, nil
}

// stringParameters are the parameters whose schema says that they are strings.
func stringParameters(fn *jinja.Dict) map[string]bool {
	found := map[string]bool{}
	parameters, _ := fn.Get("parameters")
	if !parameters.IsDict() {
		return found
	}
	properties, _ := parameters.AsDict().Get("properties")
	if !properties.IsDict() {
		return found
	}
	for name, schema := range properties.AsDict().Data {
		if schema.IsDict() {
			kind, _ := schema.AsDict().Get("type")
			found[name] = kind.IsString() && kind.AsString() == "string"
		}
	}
	return found
}
