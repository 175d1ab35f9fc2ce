package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ardanlabs/jinja"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

const (
	templateFile        = "chat_template.jinja"
	tokenizerConfigFile = "tokenizer_config.json"
)

// ChatTemplate is the checkpoint's own Jinja template, rendered as transformers renders it.
type ChatTemplate struct {
	file     string // where the template stands, for errors
	template *jinja.Template
	tokens   map[string]string // bos_token and the like, which templates may print
}

// RenderOptions are what apply_chat_template takes beside messages and tools.
type RenderOptions struct {
	NoGenerationPrompt bool           // leave out the beginning of the assistant's turn
	Kwargs             map[string]any // such as enable_thinking; see GenerationConfig.ChatTemplateKwargs for the checkpoint's defaults
}

// LoadChatTemplate reads chat_template.jinja of a checkpoint folder or, where there is none, the template inside tokenizer_config.json.
func LoadChatTemplate(dir string) (*ChatTemplate, error) {
	config, err := readTokenizerConfig(dir)
	if err != nil {
		return nil, err
	}
	file, source := templateFile, ""
	data, err := safetensors.ReadFile(dir, templateFile)
	switch {
	case err != nil:
		return nil, err
	case data != nil:
		source = string(data)
	default:
		file = tokenizerConfigFile
		if file, source, err = config.template(dir); err != nil {
			return nil, fault.In(tokenizerConfigFile, err)
		}
	}
	t, err := newChatTemplate(file, source)
	if err != nil {
		return nil, err
	}
	t.tokens = config.tokens
	return t, nil
}

func newChatTemplate(file, source string) (t *ChatTemplate, err error) {
	t = &ChatTemplate{file: file}
	defer t.recoverTo(&err)
	t.template, err = jinja.Compile(withPythonFilters(asJinja2Reads(source)))
	if err != nil {
		return nil, t.broken(err)
	}
	return t, nil
}

// Render returns the prompt for a conversation. Encode it without special tokens, since the template prints the first one itself.
func (t *ChatTemplate) Render(messages Messages, tools Tools, o RenderOptions) (prompt string, err error) {
	defer t.recoverTo(&err)
	data := map[string]jinja.Value{}
	for name, text := range t.tokens {
		data[name] = jinja.NewString(text)
	}
	for name, v := range o.Kwargs {
		data[name] = jinja.FromGoValue(v)
	}
	for name, v := range pythonGlobals() {
		data[name] = v
	}
	data["messages"] = messages.value()
	data["tools"] = tools.value()
	data["documents"] = jinja.None()
	data["add_generation_prompt"] = jinja.NewBool(!o.NoGenerationPrompt)
	prompt, err = t.template.RenderValues(data)
	if err != nil {
		return "", t.broken(err)
	}
	return prompt, nil
}

// broken says that the template does not work, or passes on what the template itself has to say about the messages.
func (t *ChatTemplate) broken(err error) error {
	if raised, ok := errors.AsType[*raisedByTemplate](err); ok {
		return &fault.Error{Kind: fault.Usage, Problem: "the chat template refuses these messages: " + raised.message, Err: err}
	}
	return &fault.Error{Kind: fault.Refused, File: t.file, Problem: "broken chat template: " + err.Error(), Err: err}
}

// recoverTo turns a panic of the template engine into an error: templates come from files that nobody vouches for.
func (t *ChatTemplate) recoverTo(err *error) {
	if p := recover(); p != nil {
		*err = t.broken(fmt.Errorf("the template engine failed: %v", p))
	}
}

// tokenizerConfig is what tokenizer_config.json has for a chat.
type tokenizerConfig struct {
	tokens map[string]string
	raw    json.RawMessage // chat_template
}

func readTokenizerConfig(dir string) (c tokenizerConfig, err error) {
	data, err := safetensors.ReadFile(dir, tokenizerConfigFile)
	if data == nil || err != nil {
		return c, err
	}
	var fields map[string]json.RawMessage
	if err := decodeJSON(data, &fields, "file"); err != nil {
		return c, fault.In(tokenizerConfigFile, err)
	}
	c.raw, c.tokens = fields["chat_template"], map[string]string{}
	for name, raw := range fields {
		if strings.HasSuffix(name, "_token") {
			if text, ok := tokenText(raw); ok {
				c.tokens[name] = text
			}
		}
	}
	return c, nil
}

// tokenText reads a token written as its text or as an object with its content. Flags such as add_bos_token are neither.
func tokenText(raw json.RawMessage) (string, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, !bytes.Equal(raw, []byte("null"))
	}
	var object struct {
		Content *string `json:"content"`
	}
	if json.Unmarshal(raw, &object) == nil && object.Content != nil {
		return *object.Content, true
	}
	return "", false
}

var includeStatement = regexp.MustCompile(`^\s*\{%-?\s*include\s+['"]([^'"]*)['"]\s*-?%\}\s*$`)

// template returns the template inside the config, a text or the one called default among several, and the file it came from: the text may do nothing
// but include one.
func (c tokenizerConfig) template(dir string) (file, source string, err error) {
	const hint = "copy " + templateFile + " of the original model beside the weights, or give a raw --prompt"
	if len(c.raw) == 0 || bytes.Equal(c.raw, []byte("null")) {
		return "", "", &fault.Error{Kind: fault.Refused, Problem: "has no chat_template, and there is no " + templateFile, Hint: hint}
	}
	if json.Unmarshal(c.raw, &source) != nil {
		if source, err = defaultTemplate(c.raw); err != nil {
			return "", "", err
		}
	}
	m := includeStatement.FindStringSubmatch(source)
	if m == nil {
		return tokenizerConfigFile, source, nil
	}
	if !filepath.IsLocal(m[1]) {
		return "", "", &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("chat_template includes %q, which leads out of the folder", m[1])}
	}
	data, err := safetensors.ReadFile(dir, m[1])
	if data == nil && err == nil {
		err = &fault.Error{
			Kind: fault.Refused, Problem: fmt.Sprintf("chat_template includes %q, which is not there", m[1]), Hint: hint, Err: fs.ErrNotExist,
		}
	}
	return m[1], string(data), err
}

func defaultTemplate(raw json.RawMessage) (string, error) {
	var several []struct{ Name, Template string }
	if err := decodeJSON(raw, &several, "chat_template"); err != nil {
		return "", err
	}
	for _, one := range several {
		if one.Name == "default" {
			return one.Template, nil
		}
	}
	return "", refuseTokenizer("chat_template: has %d templates, none called default", len(several))
}
