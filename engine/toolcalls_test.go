package engine

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const weatherTools = `[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
	"city": {"type": "string"}, "days": {"type": "integer"}, "opts": {"type": "object"}}}}},
	{"name": "write", "parameters": {"properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}, {"name": "now"}]`

func parserTools(tb testing.TB) Tools {
	tb.Helper()
	t, err := ParseTools([]byte(weatherTools))
	require.NoError(tb, err)
	return t
}

var outputCases = []struct {
	name     string
	thinking bool
	text     string
	out      Output
}{
	{"content", false, "Paris", Output{Content: "Paris"}},
	{"identity when thinking was not asked for", false, "<think>a</think>b", Output{Content: "<think>a</think>b"}},
	{"reasoning", true, "It is\nasked.</think>\nParis", Output{Reasoning: "It is\nasked.", Content: "\nParis"}},
	{"first close counts", true, "a</think>b</think>c", Output{Reasoning: "a", Content: "b</think>c"}},
	{"echoed think", true, " \n<think>a</think>b", Output{Reasoning: "a", Content: "b"}},
	{"think later is text", true, "a<think>b</think>c", Output{Reasoning: "a<think>b", Content: "c"}},
	{"white space kept", true, "\n a</think>b", Output{Reasoning: "\n a", Content: "b"}},
	{"reasoning never ends", true, "hm, hm</thin", Output{Reasoning: "hm, hm</thin", OpenReasoning: true}},
	{"nothing", true, "", Output{OpenReasoning: true}},
	{
		"the model card's call", false,
		`<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>`,
		Output{Calls: []ToolCall{{Name: "get_weather", Arguments: `{"city": "Paris", "days": 3}`}}},
	},
	{
		"new line after the name, white space anywhere", true,
		"ok</think>Let me see. <tool_call>\n get_weather \n<arg_key> city </arg_key>\n\t<arg_value> Paris\n\"é\" </arg_value>\n</tool_call>\nafter",
		Output{Reasoning: "ok", Content: "Let me see. ", Calls: []ToolCall{{Name: "get_weather", Arguments: `{"city": " Paris\n\"é\" "}`}}},
	},
	{
		"several calls, one without arguments", false, "a<tool_call>now</tool_call>b<tool_call>now\n</tool_call>c",
		Output{Content: "a", Calls: []ToolCall{{Name: "now", Arguments: "{}"}, {Name: "now", Arguments: "{}"}}},
	},
	{
		"later equal keys are ignored", false,
		"<tool_call>get_weather<arg_key>city</arg_key><arg_value>A</arg_value><arg_key>city</arg_key><arg_value>B</arg_value>" +
			"<arg_key>days</arg_key><arg_value>1</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
		Output{Calls: []ToolCall{{Name: "get_weather", Arguments: `{"city": "A", "days": 1}`}}},
	},
	{
		"empty name is dropped", false, "x<tool_call>\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call><tool_call></tool_call><tool_call>now</tool_call>",
		Output{Content: "x", Calls: []ToolCall{{Name: "now", Arguments: "{}"}}},
	},
	{
		"values by schema, JSON, Python, text", false,
		"<tool_call>get_weather<arg_key>city</arg_key><arg_value>3</arg_value><arg_key>days</arg_key><arg_value>three</arg_value>" +
			"<arg_key>opts</arg_key><arg_value>{'a': (1, 2.50,), 'b': [None, True], \"c\": 'it\\'s'}</arg_value>" +
			"<arg_key>free</arg_key><arg_value> {\"x\": [1e5, null]} </arg_value></tool_call>",
		Output{Calls: []ToolCall{{
			Name: "get_weather", Arguments: `{"city": "3", "days": "three", "opts": {"a": [1, 2.5], "b": [null, true], "c": "it's"}, "free": {"x": [1e5, null]}}`,
		}}},
	},
	{
		"unknown tool", false, "<tool_call>f<arg_key>a</arg_key><arg_value>3</arg_value><arg_key>b</arg_key><arg_value> x </arg_value></tool_call>",
		Output{Calls: []ToolCall{{Name: "f", Arguments: `{"a": 3, "b": " x "}`}}},
	},
	{
		"end tags inside a string", false,
		"<tool_call>write<arg_key>content</arg_key><arg_value></tool_call></arg_val<arg_key></arg_value></tool_call>",
		Output{Calls: []ToolCall{{Name: "write", Arguments: `{"content": "</tool_call></arg_val<arg_key>"}`}}},
	},
	{
		"JSON object after the name", false, "<tool_call>get_weather\n{\"city\": \"Paris\", \"days\": 3}\n</tool_call>",
		Output{Calls: []ToolCall{{Name: "get_weather", Arguments: `{"city": "Paris", "days": 3}`}}},
	},
	{
		"JSON object right behind the name", false, "<tool_call>get_weather{'city': 'Paris'}</tool_call>",
		Output{Calls: []ToolCall{{Name: "get_weather", Arguments: `{"city": "Paris"}`}}},
	},
	{
		"JSON object with the name in it", false, `<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call><tool_call>{"name": "now", "arguments": "{}"}</tool_call>`,
		Output{Calls: []ToolCall{{Name: "get_weather", Arguments: `{"city": "Paris"}`}, {Name: "now", Arguments: "{}"}}},
	},
	{
		"JSON object without a name", false, `<tool_call>{"arguments": {}}</tool_call>`, Output{},
	},
	{
		"broken JSON object", false, `<tool_call>f{"a": </tool_call>`, Output{Calls: []ToolCall{{Name: "f", Arguments: "{}", Malformed: true}}},
	},
	{
		"call before the end of reasoning", true, "need it<tool_call>now</tool_call> and so</think>done",
		Output{Reasoning: "need it and so", Content: "done", Calls: []ToolCall{{Name: "now", Arguments: "{}"}}},
	},
	{
		"key without a value", false, "<tool_call>f<arg_key>a</arg_key><arg_key>b</arg_key>\\n<arg_value>1</arg_value></tool_call>",
		Output{Calls: []ToolCall{{Name: "f", Arguments: `{"b": 1}`}}},
	},
	{"cut in the name", false, "<tool_call>get_wea", Output{Calls: []ToolCall{{Name: "get_wea", Arguments: "{}", Malformed: true}}}},
	{
		"cut in a string", false, "<tool_call>write<arg_key>path</arg_key><arg_value>/tmp</arg_va",
		Output{Calls: []ToolCall{{Name: "write", Arguments: `{"path": "/tmp</arg_va"}`, Malformed: true}}},
	},
	{
		"cut in the first value", false, "<tool_call>f<arg_key>a</arg_key><arg_value>12", Output{Calls: []ToolCall{{Name: "f", Arguments: "{}", Malformed: true}}},
	},
	{
		"cut in the second value", true, "x<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value><arg_key>b</arg_key><arg_value>3",
		Output{Reasoning: "x", Calls: []ToolCall{{Name: "f", Arguments: `{"a": 12}`, Malformed: true}}, OpenReasoning: true},
	},
	{
		"cut in an ignored value", false, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>3",
		Output{Calls: []ToolCall{{Name: "f", Arguments: `{"a": 1}`, Malformed: true}}},
	},
	{"beginnings of tags are text", false, "a < b <tool_ <tool_call", Output{Content: "a < b <tool_ <tool_call"}},
}

func TestOutputs(t *testing.T) {
	tools := parserTools(t)
	for _, c := range outputCases {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.out, ParseOutput(c.text, c.thinking, tools))
			for _, call := range c.out.Calls {
				require.True(t, json.Valid([]byte(call.Arguments)))
			}
		})
	}
}

// feed takes text in pieces of random length, at most longest characters each, and joins the events.
func feed(text string, longest int, thinking bool, tools Tools, r *rand.Rand) (Output, Output) {
	p := NewOutputParser(thinking, tools)
	var joined Output
	collect := func(events []Event) {
		for _, e := range events {
			switch e.Kind {
			case Reasoning:
				joined.Reasoning += e.Text
			case Content:
				joined.Content += e.Text
			case CallBegin:
				joined.Calls = append(joined.Calls, ToolCall{Name: e.Text})
			case CallArguments:
				joined.Calls[e.Call].Arguments += e.Text
			}
		}
	}
	for chars := []rune(text); len(chars) > 0; {
		n := min(1+r.IntN(longest), len(chars))
		collect(p.Feed(string(chars[:n])))
		chars = chars[n:]
	}
	collect(p.Close())
	return p.Output(), joined
}

func requireSameInPieces(t *testing.T, text string, thinking bool, tools Tools, r *rand.Rand) {
	t.Helper()
	whole := ParseOutput(text, thinking, tools)
	for _, longest := range []int{1, 3, 12} {
		out, joined := feed(text, longest, thinking, tools, r)
		require.Equal(t, whole, out, "%q", text)
		joined.OpenReasoning = whole.OpenReasoning
		for i := range joined.Calls {
			joined.Calls[i].Malformed = whole.Calls[i].Malformed
			require.True(t, json.Valid([]byte(joined.Calls[i].Arguments)), "%q: %s", text, joined.Calls[i].Arguments)
		}
		require.Equal(t, whole, joined, "%q", text)
	}
}

func TestPiecesGiveTheSameAsTheWhole(t *testing.T) {
	tools, r := parserTools(t), rand.New(rand.NewPCG(1, 2))
	for _, c := range outputCases {
		requireSameInPieces(t, c.text, c.thinking, tools, r)
	}
	parts := []string{
		thinkOpen, thinkClose, callOpen, callClose, keyOpen, keyClose, valueOpen, valueClose, "get_weather", "write", "city", "content", "days",
		"\n", " ", "{", "}", `{"a": 1}`, "'", "é", "<", "3", "</", `\`,
	}
	for range 3000 {
		var text strings.Builder
		for range 1 + r.IntN(14) {
			text.WriteString(parts[r.IntN(len(parts))])
		}
		requireSameInPieces(t, text.String(), r.IntN(2) == 0, tools, r)
	}
}

func TestStringsStream(t *testing.T) {
	p := NewOutputParser(false, parserTools(t))
	p.Feed("<tool_call>write<arg_key>content</arg_key><arg_value>")
	require.Equal(t, []Event{{Kind: CallArguments, Text: `line\n`}}, p.Feed("line\n"))
	require.Empty(t, p.Feed("</arg_"))
	require.Equal(t, []Event{{Kind: CallArguments, Text: `</arg_x`}}, p.Feed("x"))
}

func FuzzOutputParser(f *testing.F) {
	for _, c := range outputCases {
		f.Add(c.text, c.thinking)
	}
	tools, err := ParseTools([]byte(weatherTools))
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string, thinking bool) {
		text = strings.ToValidUTF8(text, "?")
		requireSameInPieces(t, text, thinking, tools, rand.New(rand.NewPCG(3, 4)))
	})
}

func TestOpensReasoning(t *testing.T) {
	for prompt, open := range map[string]bool{
		"<user>x</user>\n<assistant><think>":                       true,
		"<user>x</user>\n<assistant></think>":                      false,
		"<assistant><think>a</think>b</assistant>\n<assistant>":    false,
		"<user><think></user><assistant>":                          false,
		"raw prompt":                                               false,
		"<assistant></think>a</assistant><assistant><think>well, ": true,
	} {
		require.Equal(t, open, OpensReasoning(prompt), prompt)
	}
}

// Expected values are what Python's ast.literal_eval and json.dumps give.
func TestPythonLiterals(t *testing.T) {
	for text, expected := range map[string]string{
		"None": "null", "True": "true", "-3": "-3", "1_000": "1000", "0x1F": "31", "0b101": "5", "00": "0", "1.": "1.0", ".5": "0.5", "1e3": "1000.0",
		"+1.5": "1.5", "'a\"b'": `"a\"b"`, `"\u00e9\x41\n\q\\"`: `"éA\n\\q\\"`, "[]": "[]", "[1, 'a',]": `[1, "a"]`, "(1,)": "[1]", "()": "[]",
		"{}": "{}", "{'a': {'b': (1, 2)}}": `{"a": {"b": [1, 2]}}`, " [ 1 ,\n2 ] ": "[1, 2]",
	} {
		got, ok := pythonLiteral(text)
		require.True(t, ok, text)
		require.Equal(t, expected, got, text)
	}
	for _, text := range []string{
		"", "none", "010", "inf", "nan", "Infinity", "1 2", "[1", "[1 2]", "[,]", "{'a'}", "{1: 2}", "{'a': }", "'a", "'a\nb'", "a", "f(x)", "(1)", "0x", "1e999",
		strings.Repeat("[", 1000),
	} {
		_, ok := pythonLiteral(text)
		require.False(t, ok, text)
	}
}
