package engine

import "strings"

// The tags of Laguna's output (parsers poolside_v1).
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
	keyOpen    = "<arg_key>"
	keyClose   = "</arg_key>"
	valueOpen  = "<arg_value>"
	valueClose = "</arg_value>"
	turnOpen   = "<assistant>"
)

// EventKind says what a piece of output is.
type EventKind int

// The kinds of events. A call is a CallBegin with its name, CallArguments whose texts join to one JSON object, and a CallEnd.
const (
	Reasoning EventKind = iota
	Content
	CallBegin
	CallArguments
	CallEnd
)

// Event is a piece of output.
type Event struct {
	Kind EventKind
	Call int // number of the call, from 0
	Text string
}

// ToolCall is one call of a function.
type ToolCall struct {
	Name      string
	Arguments string // a JSON object
	Malformed bool   // it was cut off, or its arguments could not be read
}

// Output is what a model said, taken apart.
type Output struct {
	Reasoning, Content string
	Calls              []ToolCall
	OpenReasoning      bool // the text ended before the reasoning did
}

// OpensReasoning says whether a prompt leaves its reasoning open, so that what the model says next is reasoning up to </think>.
func OpensReasoning(prompt string) bool {
	open := strings.LastIndex(prompt, thinkOpen)
	return open >= 0 && open > strings.LastIndex(prompt, thinkClose) && open > strings.LastIndex(prompt, turnOpen)
}

// ParseOutput takes a whole text apart: an OutputParser fed once.
func ParseOutput(text string, thinking bool, tools Tools) Output {
	p := NewOutputParser(thinking, tools)
	p.Feed(text)
	p.Close()
	return p.Output()
}

// OutputParser takes a text apart as it comes. However the text is cut, the events join to the same texts and Output is the same.
//
// Reasoning, where the prompt asked for it, goes up to the first </think>; a <think> that the model repeats at its beginning is left out. Content ends at
// the first <tool_call>. A call inside the reasoning is a call, and the reasoning goes on behind it.
type OutputParser struct {
	tools  Tools
	state  outputState
	back   outputState // where a call leads back to
	buf    string      // not understood yet
	events []Event
	out    outputBuilder
	call   callParser
}

type outputState int

const (
	atStart outputState = iota // reasoning has not begun: white space and a repeated <think> may come
	inReasoning
	inContent
	afterCalls // text between calls is nobody's
	inCall
)

// outputBuilder collects the events.
type outputBuilder struct {
	reasoning, content strings.Builder
	calls              []ToolCall
	arguments          strings.Builder
}

// NewOutputParser starts a parser for one answer. thinking: the prompt left its reasoning open. tools give the types of arguments.
func NewOutputParser(thinking bool, tools Tools) *OutputParser {
	p := &OutputParser{tools: tools, state: inContent}
	if thinking {
		p.state = atStart
	}
	return p
}

// Feed takes the next piece of text and returns what it completes. The events are valid until the next call.
func (p *OutputParser) Feed(text string) []Event {
	p.events = p.events[:0]
	p.buf += text
	for p.step(false) {
	}
	return p.events
}

// Close ends the text and returns what was held back. A call that was cut off ends as malformed.
func (p *OutputParser) Close() []Event {
	p.events = p.events[:0]
	for p.step(true) {
	}
	if p.state == inCall {
		p.endCall(true)
	}
	return p.events
}

// Output returns everything so far.
func (p *OutputParser) Output() Output {
	return Output{
		Reasoning: p.out.reasoning.String(), Content: p.out.content.String(), Calls: p.out.calls,
		OpenReasoning: p.state == atStart || p.state == inReasoning || p.state == inCall && p.back == inReasoning,
	}
}

func (p *OutputParser) emit(kind EventKind, text string) {
	if text == "" && kind != CallEnd {
		return
	}
	e := Event{Kind: kind, Text: text}
	switch kind {
	case Reasoning:
		p.out.reasoning.WriteString(text)
	case Content:
		p.out.content.WriteString(text)
	case CallBegin:
		p.out.calls = append(p.out.calls, ToolCall{Name: text})
		p.out.arguments.Reset()
		e.Call = len(p.out.calls) - 1
	default:
		p.out.arguments.WriteString(text)
		e.Call = len(p.out.calls) - 1
	}
	p.events = append(p.events, e)
}

// step understands a little more of the buffer. It returns false when more text is needed, or when there is none.
func (p *OutputParser) step(last bool) bool {
	switch p.state {
	case atStart:
		return p.stepStart(last)
	case inReasoning:
		return p.stepText(last, Reasoning, thinkClose, callOpen)
	case inContent:
		return p.stepText(last, Content, callOpen)
	case afterCalls:
		return p.stepText(last, -1, callOpen)
	}
	return p.stepCall(last)
}

func (p *OutputParser) stepStart(last bool) bool {
	text := strings.TrimLeft(p.buf, " \t\r\n")
	switch {
	case strings.HasPrefix(text, thinkOpen):
		p.buf = text[len(thinkOpen):]
	case strings.HasPrefix(thinkOpen, text) && !last:
		return false
	}
	p.state = inReasoning
	return true
}

// stepText passes text on up to the first of tags. kind -1: nobody wants it.
func (p *OutputParser) stepText(last bool, kind EventKind, tags ...string) bool {
	text, tag := p.upTo(last, tags...)
	if kind >= 0 {
		p.emit(kind, text)
	}
	switch tag {
	case thinkClose:
		p.state = inContent
	case callOpen:
		p.back, p.state = p.state, inCall
		if p.back == inContent {
			p.back = afterCalls
		}
		p.call = callParser{}
	}
	return tag != ""
}

// upTo takes the text before the first of tags from the buffer, and the tag. Without a tag it takes what cannot be the beginning of one.
func (p *OutputParser) upTo(last bool, tags ...string) (text, tag string) {
	at := len(p.buf)
	for _, t := range tags {
		if i := strings.Index(p.buf, t); i >= 0 && i < at {
			at, tag = i, t
		}
	}
	if tag == "" && !last {
		for _, t := range tags {
			at = min(at, len(p.buf)-tagBeginning(p.buf, t))
		}
	}
	text, p.buf = p.buf[:at], p.buf[at+len(tag):]
	return text, tag
}

// tagBeginning returns how many bytes at the end of s begin tag.
func tagBeginning(s, tag string) int {
	for n := min(len(s), len(tag)-1); n > 0; n-- {
		if strings.HasSuffix(s, tag[:n]) {
			return n
		}
	}
	return 0
}
