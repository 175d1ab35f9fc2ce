package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/internal/pyre"
)

// byteLevelPattern is what the ByteLevel step splits by when its use_regex is set: GPT-2's expression.
const byteLevelPattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// tokenizerJSON is the part of tokenizer.json that decides ids. Truncation and padding are a caller's, as transformers has it.
type tokenizerJSON struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// stepJSON is any normalizer, pre-tokenizer, post-processor or decoder.
type stepJSON struct {
	Type             string            `json:"type"`
	Normalizers      []json.RawMessage `json:"normalizers"`
	PreTokenizers    []json.RawMessage `json:"pretokenizers"`
	Processors       []json.RawMessage `json:"processors"`
	Decoders         []json.RawMessage `json:"decoders"`
	Pattern          patternJSON       `json:"pattern"`
	Behavior         string            `json:"behavior"`
	Invert           bool              `json:"invert"`
	IndividualDigits bool              `json:"individual_digits"`
	AddPrefixSpace   bool              `json:"add_prefix_space"`
	UseRegex         *bool             `json:"use_regex"` // absent: true
	Single           []templateJSON    `json:"single"`
	SpecialTokens    map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
}

type patternJSON struct{ String, Regex *string }

type templateJSON struct {
	SpecialToken *struct{ ID string }
	Sequence     *struct{ ID string }
}

func parseTokenizer(data []byte) (*Tokenizer, error) {
	var file tokenizerJSON
	if err := decodeJSON(data, &file, "file"); err != nil {
		return nil, err
	}
	t := &Tokenizer{special: map[int32]bool{}}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
		read func(stepJSON) error
	}{
		{"normalizer", file.Normalizer, t.readNormalizer},
		{"pre_tokenizer", file.PreTokenizer, (&preTokenizerReader{t: t}).read},
		{"post_processor", file.PostProcessor, t.readPostProcessor},
		{"decoder", file.Decoder, readDecoder},
	} {
		step, err := readStep(part.raw, part.name)
		if err != nil {
			return nil, err
		}
		if err := part.read(step); err != nil {
			return nil, err
		}
	}
	vocab, err := t.readModel(file.Model)
	if err != nil {
		return nil, err
	}
	return t, t.readAddedTokens(file.AddedTokens, vocab)
}

func decodeJSON(data []byte, into any, what string) error {
	err := json.Unmarshal(data, into)
	if err == nil {
		return nil
	}
	f := &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("%s: %v", what, err), Err: err}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		f.Problem = fmt.Sprintf("%s: found %s, expected %s", fieldOf(what, e.Field), foundJSON(e.Value), expectedJSON(e.Type))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok && e.Offset > 0 {
		before, rest := data[:e.Offset-1], data[e.Offset-1:]
		f.Problem = fmt.Sprintf("%s: line %d: %v", what, 1+bytes.Count(before, []byte("\n")), err)
		for _, name := range []string{"NaN", "Infinity"} {
			if !bytes.HasPrefix(rest, []byte(name)) {
				continue
			}
			if key := lastKey.FindSubmatch(before); key != nil {
				f.Problem = fmt.Sprintf("%s: line %d: found %s%s, expected a number", fieldOf(what, string(key[1])), 1+bytes.Count(before, []byte("\n")), key[2], name)
			}
			f.Hint = "NaN and Infinity are Python's, not JSON: put a number or null there"
		}
	}
	return f
}

// lastKey finds the key of the value that is to come, and its sign.
var lastKey = regexp.MustCompile(`"([^"\\]*)"\s*:\s*(-?)$`)

// fieldOf names a field; "file" is said only of a whole file.
func fieldOf(what, field string) string {
	switch {
	case field == "":
		return what
	case what == "file":
		return field
	}
	return what + "." + field
}

// oneLine gives JSON for a message without the file's line breaks.
func oneLine(raw []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// foundJSON and expectedJSON say in words what encoding/json says in Go's types.
func foundJSON(value string) string {
	number, ok := strings.CutPrefix(value, "number ")
	switch {
	case ok:
		return number
	case value == "array" || value == "object":
		return "an " + value
	case value == "bool":
		return "true or false"
	}
	return "a " + value
}

func expectedJSON(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Float32, reflect.Float64:
		return fmt.Sprintf("a number of at most %d bits", t.Bits())
	case reflect.Int, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of at most %d bits", t.Bits())
	}
	return "an object"
}

func refuseTokenizer(format string, args ...any) error {
	return &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf(format, args...)}
}

func unknownStep(part, kind string) error {
	return &fault.Error{
		Kind: fault.Refused, Problem: fmt.Sprintf("%s: %q is not supported", part, kind),
		Hint: "this engine reads byte-level BPE tokenizers",
	}
}

func readStep(raw json.RawMessage, part string) (s stepJSON, err error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return stepJSON{}, nil
	}
	if err := decodeJSON(raw, &s, part); err != nil {
		return s, err
	}
	if s.Type == "" {
		return s, refuseTokenizer("%s: has no type", part)
	}
	return s, nil
}

// eachStep reads the members of a Sequence.
func eachStep(members []json.RawMessage, part string, read func(stepJSON) error) error {
	for _, raw := range members {
		step, err := readStep(raw, part)
		if err != nil {
			return err
		}
		if err := read(step); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tokenizer) readNormalizer(s stepJSON) error {
	switch s.Type {
	case "":
		return nil
	case "NFC":
		t.nfc = true
		return nil
	case "Sequence":
		return eachStep(s.Normalizers, "normalizer", t.readNormalizer)
	}
	return unknownStep("normalizer", s.Type)
}

// preTokenizerReader keeps whether ByteLevel has been met. It turns bytes into symbols, so nothing may follow it.
type preTokenizerReader struct {
	t         *Tokenizer
	depth     int
	byteLevel bool
}

func (r *preTokenizerReader) read(s stepJSON) error {
	if s.Type != "Sequence" {
		if err := r.readOne(s); err != nil {
			return err
		}
	} else {
		r.depth++
		if err := eachStep(s.PreTokenizers, "pre_tokenizer", r.read); err != nil {
			return err
		}
		r.depth--
	}
	if r.depth == 0 && !r.byteLevel {
		return refuseTokenizer("pre_tokenizer: has no ByteLevel step, so this is no byte-level BPE")
	}
	return nil
}

func (r *preTokenizerReader) readOne(s stepJSON) error {
	if r.byteLevel {
		return refuseTokenizer("pre_tokenizer: %q stands after ByteLevel", s.Type)
	}
	switch s.Type {
	case "":
		return nil
	case "Split":
		return r.readSplit(s)
	case "Digits":
		behavior := "Contiguous"
		if s.IndividualDigits {
			behavior = "Isolated"
		}
		r.t.splits = append(r.t.splits, splitter{find: findDigits, behavior: behavior})
		return nil
	case "ByteLevel":
		r.byteLevel = true
		return r.readByteLevel(s)
	}
	return unknownStep("pre_tokenizer", s.Type)
}

func (r *preTokenizerReader) readSplit(s stepJSON) error {
	split := splitter{invert: s.Invert, behavior: s.Behavior}
	if behaviors[s.Behavior] == nil {
		return unknownStep("pre_tokenizer: Split: behavior", s.Behavior)
	}
	switch {
	case s.Pattern.Regex != nil:
		re, err := pyre.CompileTokenizer(*s.Pattern.Regex)
		if err != nil {
			return fmt.Errorf("pre_tokenizer: Split: %w", err)
		}
		split.find = findRegex(re)
	case s.Pattern.String != nil && *s.Pattern.String != "":
		split.find = findString(*s.Pattern.String)
	default:
		return refuseTokenizer("pre_tokenizer: Split: pattern is neither a Regex nor a String")
	}
	r.t.splits = append(r.t.splits, split)
	return nil
}

func (r *preTokenizerReader) readByteLevel(s stepJSON) error {
	r.t.bytePrefix = s.AddPrefixSpace
	if s.UseRegex != nil && !*s.UseRegex {
		return nil
	}
	if s.AddPrefixSpace {
		return refuseTokenizer("pre_tokenizer: ByteLevel with both add_prefix_space and use_regex is not supported")
	}
	re, err := pyre.CompileTokenizer(byteLevelPattern)
	if err != nil {
		return err
	}
	r.t.splits = append(r.t.splits, splitter{find: findRegex(re), behavior: "Isolated"})
	return nil
}

// readPostProcessor collects what is put around a single text. In a sequence later processors stand outside the earlier ones.
func (t *Tokenizer) readPostProcessor(s stepJSON) error {
	switch s.Type {
	case "", "ByteLevel": // ByteLevel moves offsets only
		return nil
	case "Sequence":
		return eachStep(s.Processors, "post_processor", t.readPostProcessor)
	case "TemplateProcessing":
		return t.readTemplate(s)
	}
	return unknownStep("post_processor", s.Type)
}

func (t *Tokenizer) readTemplate(s stepJSON) error {
	var before, after []int32
	texts := 0
	for _, piece := range s.Single {
		switch {
		case piece.Sequence != nil && piece.Sequence.ID == "A":
			texts++
		case piece.SpecialToken != nil:
			token, ok := s.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return refuseTokenizer("post_processor: TemplateProcessing: %q is not among its special_tokens", piece.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, token.IDs...)
			} else {
				after = append(after, token.IDs...)
			}
		default:
			return refuseTokenizer("post_processor: TemplateProcessing: unknown piece in single")
		}
	}
	if texts != 1 {
		return refuseTokenizer("post_processor: TemplateProcessing: single has the text %d times, expected once", texts)
	}
	t.prefix = append(before, t.prefix...)
	t.suffix = append(t.suffix, after...)
	return nil
}

func readDecoder(s stepJSON) error {
	switch s.Type {
	case "ByteLevel":
		return nil
	case "Sequence":
		if len(s.Decoders) != 1 {
			return refuseTokenizer("decoder: a Sequence of %d decoders is not supported", len(s.Decoders))
		}
		return eachStep(s.Decoders, "decoder", readDecoder)
	case "":
		return refuseTokenizer("decoder: is missing, expected ByteLevel")
	}
	return unknownStep("decoder", s.Type)
}
