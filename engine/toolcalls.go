package engine

import (
	"encoding/json"
	"strings"
)

// callParser is the state inside one <tool_call>:
//
//	name, perhaps a new line, then pairs <arg_key>K</arg_key> <arg_value>V</arg_value>, then </tool_call>
//
// Instead of pairs a JSON object may follow the name, or stand alone as {"name": ..., "arguments": {...}}.
type callParser struct {
	state   callState
	name    strings.Builder
	dropped bool // the name is empty: the call is read and forgotten
	seen    map[string]bool
	key     strings.Builder
	value   strings.Builder // a value that is no string, or the JSON object
	textual bool            // the value goes out as it comes
	ignored bool            // the value of a key that was there before
}

type callState int

const (
	inName callState = iota
	betweenPairs
	inKey
	afterKey
	inValue
	inObject
)

// stepCall is step inside a call.
func (p *OutputParser) stepCall(last bool) bool {
	c := &p.call
	switch c.state {
	case inName:
		return p.stepName(last)
	case betweenPairs:
		return p.stepBetween(last)
	case inKey:
		text, tag := p.upTo(last, keyClose, callClose)
		c.key.WriteString(text)
		switch tag {
		case keyClose:
			c.state = afterKey
		case callClose:
			p.endCall(true)
		}
		return tag != ""
	case afterKey:
		_, tag := p.upTo(last, valueOpen, keyOpen, callClose)
		switch tag {
		case valueOpen:
			p.beginValue()
		case keyOpen: // a key without a value
			c.key.Reset()
			c.state = inKey
		case callClose:
			p.endCall(true)
		}
		return tag != ""
	case inValue:
		text, tag := p.upTo(last, valueClose)
		p.addToValue(text)
		if tag != "" {
			p.endValue()
		}
		return tag != ""
	}
	text, tag := p.upTo(last, callClose)
	c.value.WriteString(text)
	if tag != "" {
		p.endCall(false)
	}
	return tag != ""
}

// stepName reads the name: it ends at a new line, a pair, an object or the end. White space before it does not count.
func (p *OutputParser) stepName(last bool) bool {
	c := &p.call
	if c.name.Len() == 0 {
		p.buf = strings.TrimLeft(p.buf, " \t\r\n")
	}
	text, tag := p.upTo(last, "\n", "{", keyOpen, callClose)
	c.name.WriteString(text)
	if tag == "" {
		return false
	}
	name := strings.TrimSpace(c.name.String())
	if c.dropped = name == ""; !c.dropped {
		p.emit(CallBegin, name)
	}
	p.afterBetween(tag)
	return true
}

// stepBetween skips to the next pair. An object is one only where no pair came before.
func (p *OutputParser) stepBetween(last bool) bool {
	tags := []string{keyOpen, callClose, "{"}
	if p.call.seen != nil {
		tags = tags[:2]
	}
	_, tag := p.upTo(last, tags...)
	p.afterBetween(tag)
	return tag != ""
}

func (p *OutputParser) afterBetween(tag string) {
	c := &p.call
	switch tag {
	case "\n":
		c.state = betweenPairs
	case "{":
		c.value.WriteString(tag)
		c.state = inObject
	case keyOpen:
		c.key.Reset()
		c.state = inKey
	case callClose:
		p.endCall(false)
	}
}

func (p *OutputParser) beginValue() {
	c := &p.call
	key := strings.TrimSpace(c.key.String())
	if c.ignored = c.seen[key]; !c.ignored {
		if c.seen == nil {
			c.seen = map[string]bool{}
		}
		c.seen[key] = true
	}
	c.value.Reset()
	c.textual = false
	if !c.dropped {
		c.textual = p.tools.textual[p.out.calls[len(p.out.calls)-1].Name][key]
	}
	if c.textual {
		p.arguments(c.pairStart(key) + `"`)
	}
	c.state = inValue
}

// pairStart is what stands before a value in the JSON object.
func (c *callParser) pairStart(key string) string {
	start := ", "
	if len(c.seen) == 1 {
		start = "{"
	}
	return start + quoteJSON(key) + ": "
}

func (p *OutputParser) arguments(text string) {
	if !p.call.dropped && !p.call.ignored {
		p.emit(CallArguments, text)
	}
}

func (p *OutputParser) addToValue(text string) {
	if p.call.textual {
		p.arguments(string(defaultStyle.appendEscaped(nil, text)))
	} else {
		p.call.value.WriteString(text)
	}
}

func (p *OutputParser) endValue() {
	c := &p.call
	if c.textual {
		p.arguments(`"`)
	} else {
		p.arguments(c.pairStart(strings.TrimSpace(c.key.String())) + typedValue(c.value.String()))
	}
	c.state = betweenPairs
}

// endCall closes what is open and leads back into the text. cut: the call did not end as it should.
func (p *OutputParser) endCall(cut bool) {
	c := &p.call
	p.state = p.back
	if c.state == inName && !c.dropped && cut { // the name itself may be cut off
		if name := strings.TrimSpace(c.name.String()); name != "" {
			p.emit(CallBegin, name)
		} else {
			c.dropped = true
		}
	}
	rest := "}"
	switch {
	case c.state == inObject:
		var ok bool
		if rest, ok = p.objectArguments(); !ok {
			cut = true
		}
	case c.state == inValue && c.textual && !c.ignored:
		rest = `"}`
	case c.state == inValue && !c.textual && !c.ignored && len(c.seen) == 1, len(c.seen) == 0:
		rest = "{}"
	}
	if c.dropped {
		return
	}
	c.ignored = false
	p.arguments(rest)
	call := &p.out.calls[len(p.out.calls)-1]
	call.Arguments, call.Malformed = p.out.arguments.String(), cut
	p.emit(CallEnd, "")
}

// objectArguments reads the JSON object of a call, and the name where it stands in there.
func (p *OutputParser) objectArguments() (arguments string, ok bool) {
	c := &p.call
	text := typedValue(c.value.String())
	if !strings.HasPrefix(text, "{") {
		return "{}", false
	}
	if !c.dropped {
		return text, true
	}
	var named struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal([]byte(text), &named) != nil || strings.TrimSpace(named.Name) == "" {
		return "{}", false
	}
	c.dropped = false
	p.emit(CallBegin, strings.TrimSpace(named.Name))
	var quoted string
	if json.Unmarshal(named.Arguments, &quoted) == nil && quoted != "" {
		named.Arguments = json.RawMessage(quoted)
	}
	if len(named.Arguments) == 0 {
		return "{}", true
	}
	text = typedValue(string(named.Arguments))
	if !strings.HasPrefix(text, "{") {
		return "{}", false
	}
	return text, true
}

// typedValue is the JSON of a value whose schema does not say string: JSON as it stands, else a Python literal, else a string.
func typedValue(text string) string {
	trimmed := strings.TrimSpace(text)
	if json.Valid([]byte(trimmed)) {
		return trimmed
	}
	if v, ok := pythonLiteral(trimmed); ok {
		return v
	}
	return quoteJSON(text)
}

func quoteJSON(s string) string { return string(defaultStyle.appendString(nil, s)) }
