package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func tinyTemplate(tb testing.TB) *ChatTemplate {
	tb.Helper()
	t, err := LoadChatTemplate(filepath.Join(goldens.TinyLaguna(tb), "bf16"))
	require.NoError(tb, err)
	return t
}

func render(t *testing.T, template *ChatTemplate, messages, tools json.RawMessage, kwargs map[string]any) string {
	t.Helper()
	m, err := ParseMessages(messages)
	require.NoError(t, err)
	var available Tools
	if len(tools) > 0 && string(tools) != "null" {
		available, err = ParseTools(tools)
		require.NoError(t, err)
	}
	prompt, err := template.Render(m, available, RenderOptions{Kwargs: kwargs})
	require.NoError(t, err)
	return prompt
}

func TestRenderingAgreesWithTransformers(t *testing.T) {
	var cases []struct {
		Messages, Tools json.RawMessage
		Think           bool
		Rendered        string
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "tiny/chat.json"), &cases))
	require.Len(t, cases, 13)
	template := tinyTemplate(t)
	for _, c := range cases {
		require.Equal(t, c.Rendered, render(t, template, c.Messages, c.Tools, map[string]any{"enable_thinking": c.Think}))
	}
}

// The vectors of the real model were made by its own template. The tiny one says the same in each of them.
func TestRenderingAgreesWithTheRealModel(t *testing.T) {
	var cases []struct {
		Name string
		KW   struct {
			Messages, Tools json.RawMessage
			Think           bool `json:"enable_thinking"`
		}
		Rendered string
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "laguna-0722/chat_ref.json"), &cases))
	require.Len(t, cases, 7)
	template := tinyTemplate(t)
	for _, c := range cases {
		require.Equal(t, c.Rendered, render(t, template, c.KW.Messages, c.KW.Tools, map[string]any{"enable_thinking": c.KW.Think}), c.Name)
	}
}

func TestTemplatePlaces(t *testing.T) {
	for name, c := range map[string]struct {
		files    map[string]string
		rendered string
		problem  string
	}{
		"file first": {
			files:    map[string]string{"chat_template.jinja": "file", "tokenizer_config.json": `{"chat_template": "config"}`},
			rendered: "file",
		},
		"in the config": {
			files:    map[string]string{"tokenizer_config.json": `{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ eos_token }}"}`},
			rendered: "<s></s>",
		},
		"one of several": {
			files:    map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]}`},
			rendered: "yes",
		},
		"included": {
			files:    map[string]string{"chat_template.jinja": "it", "tokenizer_config.json": `{"chat_template": "{% include 'chat_template.jinja' %}"}`},
			rendered: "it",
		},
		"included by another name": {
			files:    map[string]string{"v8.jinja": "v8", "tokenizer_config.json": `{"chat_template": "{%- include \"v8.jinja\" -%}"}`},
			rendered: "v8",
		},
		"included, absent": {
			files:   map[string]string{"tokenizer_config.json": `{"chat_template": "{% include 'chat_template.jinja' %}"}`},
			problem: `tokenizer_config.json: chat_template includes "chat_template.jinja", which is not there`,
		},
		"included from outside": {
			files:   map[string]string{"tokenizer_config.json": `{"chat_template": "{% include '../x' %}"}`},
			problem: `tokenizer_config.json: chat_template includes "../x", which leads out of the folder`,
		},
		"none": {problem: "tokenizer_config.json: has no chat_template, and there is no chat_template.jinja"},
		"unclosed": {
			files:   map[string]string{"chat_template.jinja": "{% if x %}"},
			problem: "chat_template.jinja: broken chat template: jinja parse: unclosed if block",
		},
		"unknown filter": {
			files:   map[string]string{"chat_template.jinja": "{{ messages | frobnicate }}"},
			problem: `chat_template.jinja: broken chat template: unknown filter "frobnicate"`,
		},
		"engine panics": {
			files:   map[string]string{"chat_template.jinja": "{{ messages | select | list }}"},
			problem: "chat_template.jinja: broken chat template: the template engine failed: runtime error: slice bounds out of range [2:1]",
		},
		"endless range": {
			files:   map[string]string{"chat_template.jinja": "{% for i in range(100000000000) %}{% endfor %}"},
			problem: "chat_template.jinja: broken chat template: range has more than 100000 members",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
			}
			template, err := LoadChatTemplate(dir)
			var prompt string
			if err == nil {
				prompt, err = template.Render(UserMessage("hi"), Tools{}, RenderOptions{})
			}
			if c.problem != "" {
				require.EqualError(t, err, c.problem)
				require.Equal(t, fault.Refused, fault.KindOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.rendered, prompt)
		})
	}
}

func TestTemplateMayRefuseMessages(t *testing.T) {
	template, err := newChatTemplate("t", `{{ raise_exception("roles must alternate") }}`)
	require.NoError(t, err)
	_, err = template.Render(UserMessage("hi"), Tools{}, RenderOptions{})
	require.EqualError(t, err, "the chat template refuses these messages: roles must alternate")
	require.Equal(t, fault.Usage, fault.KindOf(err))
}

func TestMessagesOfUnknownShape(t *testing.T) {
	for text, problem := range map[string]string{
		`{"role": "user"}`:                 "messages: found an object, expected an array of objects",
		`[]`:                               "messages: there are none",
		`["hi"]`:                           "messages[0]: found a string, expected an object",
		`[{"content": "hi"}]`:              "messages[0].role: found nothing, expected system, user, assistant or tool",
		`[{"role": "user", "content": 3}]`: "messages[0].content: found a number, expected a string",
		`[{"role": "user", "content": [{"text": ""}]}]`:                                           "messages[0].content[0].type: found nothing, expected a string",
		`[{"role": "user", "content": ["a"]}]`:                                                    "messages[0].content[0]: found a string, expected an object",
		`[{"role": "user", "content": [{"type": "text"}]}]`:                                       "messages[0].content[0].text: found nothing, expected a string",
		`[{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "image_url"}]}]`:    `messages[0].content[1].type: found "image_url", expected "text": this engine reads text alone`,
		`[{"role": "assistant", "reasoning": {}}]`:                                                "messages[0].reasoning: found an object, expected a string",
		`[{"role": "assistant", "tool_calls": {}}]`:                                               "messages[0].tool_calls: found an object, expected an array",
		`[{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]`:                    "messages[0].tool_calls[0].function.arguments: found nothing, expected an object",
		`[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}]`: "messages[0].tool_calls[0].function.arguments: the text is not JSON: invalid character 'x' looking for beginning of object key string",
		`[{"role": "user", "n": 12345678901234567890}]`:                                           "messages: not JSON: integer 12345678901234567890 does not fit 64 bits",
		`[{"role": "user"}`:    "messages: not JSON: unexpected end of JSON input",
		`[{"role": "user"}] x`: "messages: not JSON: invalid character 'x' after top-level value",
	} {
		_, err := ParseMessages([]byte(text))
		require.EqualError(t, err, problem, text)
		require.Equal(t, fault.Usage, fault.KindOf(err))
	}
	_, err := ParseTools([]byte(`[{"type": "function", "function": {}}]`))
	require.EqualError(t, err, "tools[0].function.name: found nothing, expected a string")
}

func TestArgumentsAsTextRenderLikeAnObject(t *testing.T) {
	template := tinyTemplate(t)
	object := render(t, template, []byte(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"b":1,"a":[2.0,"x"]}}}]}]`), nil, nil)
	text := render(t, template, []byte(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"b\":1,\"a\":[2.0,\"x\"]}"}}]}]`), nil, nil)
	require.Equal(t, object, text)
	require.Contains(t, text, "<arg_key>b</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>[2.0, \"x\"]</arg_value>")
}

func TestContentInPartsRendersLikeItsLines(t *testing.T) {
	template := tinyTemplate(t)
	parts := `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\n"}]},{"role":"assistant","content":[]}]`
	lines := `[{"role":"user","content":"a\nb\n"},{"role":"assistant","content":""}]`
	require.Equal(t, render(t, template, []byte(lines), nil, nil), render(t, template, []byte(parts), nil, nil))
}

// A parameter may be called as a method of dictionaries is.
func TestArgumentCalledItems(t *testing.T) {
	text := render(t, tinyTemplate(t), []byte(`[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"items":[1],"b":2}}}]}]`), nil, nil)
	require.Contains(t, text, "<arg_key>items</arg_key><arg_value>[1]</arg_value><arg_key>b</arg_key><arg_value>2</arg_value>")
}

// Expected texts are those of Jinja2 3.1, which drops one line break at the end and knows \n alone.
func TestLineBreaksOfATemplate(t *testing.T) {
	for source, expected := range map[string]string{
		"{{ 'a' }}\n": "a", "{{ 'a' }}\n\n": "a\n", "a\r\nb\rc\r\n": "a\nb\nc",
	} {
		template, err := newChatTemplate("t", source)
		require.NoError(t, err)
		require.Equal(t, expected, render(t, template, []byte(`[{"role": "user"}]`), nil, nil), "%q", source)
	}
}

func TestHalfSurrogates(t *testing.T) {
	for text, half := range map[string]string{
		`"\ud83d\ude00"`: "", `"\\ud83d"`: "", `"\u00e9\n\\\u0041"`: "",
		`"\ud83d"`: `\ud83d`, `"\uDE00"`: `\uDE00`, `"\ud83d \ude00"`: `\ud83d`, `"\ud83d\n"`: `\ud83d`, `"\ud83d\ud83d\ude00"`: `\ud83d`,
	} {
		require.Equal(t, half, halfSurrogate([]byte(text)), text)
	}
	_, err := ParseMessages([]byte(`[{"role": "user", "content": "a\ud800b"}]`))
	require.EqualError(t, err, `messages: not JSON: a string holds \ud800, half of a character`)
}

// Expected texts are those of Python 3.11's json.dumps.
func TestJSONIsPythons(t *testing.T) {
	const value = `{"z": [1, -0.0, 1e16, 1e15, 0.0001, 1e-5, 2.50, 1E5, 123456789012345680.0], "a": {"é\u2028<&>": "\u007f\u0001\b\f\n\r\t\"\\/😀"}, "e": [], "o": {}, "n": null, "t": true}`
	for filter, expected := range map[string]string{
		"tojson": "{\"z\": [1, -0.0, 1e+16, 1000000000000000.0, 0.0001, 1e-05, 2.5, 100000.0, 1.2345678901234568e+17], " +
			"\"a\": {\"é\u2028<&>\": \"\x7f\\u0001\\b\\f\\n\\r\\t\\\"\\\\/😀\"}, \"e\": [], \"o\": {}, \"n\": null, \"t\": true}",
		"tojson(ensure_ascii=true, sort_keys=true)": `{"a": {"\u00e9\u2028<&>": "\u007f\u0001\b\f\n\r\t\"\\/\ud83d\ude00"}, "e": [], "n": null, "o": {}, "t": true, ` +
			`"z": [1, -0.0, 1e+16, 1000000000000000.0, 0.0001, 1e-05, 2.5, 100000.0, 1.2345678901234568e+17]}`,
		"tojson(separators=(',', ':'))": "{\"z\":[1,-0.0,1e+16,1000000000000000.0,0.0001,1e-05,2.5,100000.0,1.2345678901234568e+17]," +
			"\"a\":{\"é\u2028<&>\":\"\x7f\\u0001\\b\\f\\n\\r\\t\\\"\\\\/😀\"},\"e\":[],\"o\":{},\"n\":null,\"t\":true}",
	} {
		require.Equal(t, expected, tojson(t, value, filter), filter)
	}
	require.Equal(t, "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}", tojson(t, `{"b": [1, {}], "a": []}`, "tojson(indent=2)"))
	require.Equal(t, `{"a": 2, "b": 3}`, tojson(t, `{"a": 1, "b": 3, "a": 2}`, "tojson"))
}

func tojson(t *testing.T, value, filter string) string {
	t.Helper()
	template, err := newChatTemplate("t", "{{ messages[0].v | "+filter+" }}")
	require.NoError(t, err)
	return render(t, template, []byte(`[{"role": "user", "v": `+value+`}]`), nil, nil)
}

func TestOnlyTheFilterIsRenamed(t *testing.T) {
	const source = `tojson | tojson {# x | tojson #}{{ "a | tojson" }}{{ x|tojson }}{% if (y | tojson_) and x  |  tojson(indent=2) %}{{ tojson }}{{ '}}' ~ x | tojson }}{{ ".items()" ~ x['a'].items() }}`
	require.Equal(t,
		`tojson | tojson {# x | tojson #}{{ "a | tojson" }}{{ x|python_json_dumps }}{% if (y | tojson_) and x  |  python_json_dumps(indent=2) %}{{ tojson }}`+
			`{{ '}}' ~ x | python_json_dumps }}{{ ".items()" ~ x['a']|items }}`,
		withPythonFilters(source))
}

func TestStrftime(t *testing.T) {
	at := time.Date(2026, 8, 1, 15, 4, 5, 0, time.UTC)
	text, err := strftime(at, "%d %B %Y, %A %H:%M, day %j, 100%% Jan 2006")
	require.NoError(t, err)
	require.Equal(t, "01 August 2026, Saturday 15:04, day 213, 100% Jan 2006", text)
	_, err = strftime(at, "%Q")
	require.EqualError(t, err, `strftime_now: format "%Q" is not supported`)
}
