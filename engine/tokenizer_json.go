package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/internal/pyre"
)

// maxTokenID bounds the table of tokens. The largest vocabularies have a quarter of a million.
const maxTokenID = 1 << 22

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

type modelJSON struct {
	Type         string           `json:"type"`
	Vocab        map[string]int64 `json:"vocab"`
	Merges       []mergeJSON      `json:"merges"`
	IgnoreMerges bool             `json:"ignore_merges"`
	Dropout      float64          `json:"dropout"`
	ByteFallback bool             `json:"byte_fallback"`
	SubwordMark  string           `json:"continuing_subword_prefix"`
	WordEndMark  string           `json:"end_of_word_suffix"`
}

// mergeJSON is "a b" in older files and ["a", "b"] in newer ones.
type mergeJSON [2]string

func (m *mergeJSON) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var parts []string
		if err := json.Unmarshal(data, &parts); err != nil || len(parts) != 2 {
			return fmt.Errorf("merge %.60s is not a pair", data)
		}
		copy(m[:], parts)
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	var ok bool
	if m[0], m[1], ok = strings.Cut(text, " "); !ok || strings.Contains(m[1], " ") {
		return fmt.Errorf("merge %.60q is not a pair", text)
	}
	return nil
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
	if err := json.Unmarshal(data, into); err != nil {
		return &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("%s: %v", what, err), Err: err}
	}
	return nil
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

func (t *Tokenizer) readModel(raw json.RawMessage) (vocab map[string]int64, err error) {
	var m modelJSON
	if err := decodeJSON(raw, &m, "model"); err != nil {
		return nil, err
	}
	switch {
	case m.Type != "BPE" && m.Type != "": // old files have no type
		return nil, unknownStep("model", m.Type)
	case m.ByteFallback:
		return nil, unknownStep("model", "byte_fallback")
	case m.SubwordMark != "":
		return nil, unknownStep("model", "continuing_subword_prefix")
	case m.WordEndMark != "":
		return nil, unknownStep("model", "end_of_word_suffix")
	case m.Dropout != 0:
		return nil, unknownStep("model", "dropout")
	case len(m.Vocab) == 0 || len(m.Merges) > math.MaxInt32:
		return nil, refuseTokenizer("model: has %d tokens and %d merges", len(m.Vocab), len(m.Merges))
	}
	if err := t.readVocab(m.Vocab); err != nil {
		return nil, err
	}
	t.model.ignoreMerges = m.IgnoreMerges
	t.model.cache = map[string][]int32{}
	return m.Vocab, t.readMerges(m.Vocab, m.Merges)
}

func (t *Tokenizer) readVocab(vocab map[string]int64) error {
	largest := int64(-1)
	for token, id := range vocab {
		if id < 0 || id >= maxTokenID {
			return refuseTokenizer("model: token %.40q has id %d, expected 0 to %d", token, id, maxTokenID-1)
		}
		largest = max(largest, id)
	}
	t.tokens = make([]string, largest+1)
	t.model.words = make(map[string]int32, len(vocab))
	for i := range t.model.bytes {
		t.model.bytes[i] = -1
	}
	owner := make([]string, largest+1)
	for token, id := range vocab {
		if owner[id] != "" {
			return refuseTokenizer("model: id %d stands for both %.40q and %.40q", id, min(token, owner[id]), max(token, owner[id]))
		}
		owner[id] = token
		text, ok := symbolBytes(token)
		t.tokens[id] = text
		if !ok {
			continue // out of reach for BPE, unless an added token says otherwise
		}
		t.model.words[text] = int32(id)
		if len(text) == 1 {
			t.model.bytes[text[0]] = int32(id)
		}
	}
	return nil
}

func (t *Tokenizer) readMerges(vocab map[string]int64, merges []mergeJSON) error {
	t.model.merges = make(map[uint64]merge, len(merges))
	for rank, m := range merges {
		for _, token := range []string{m[0], m[1], m[0] + m[1]} {
			if _, ok := vocab[token]; !ok {
				return refuseTokenizer("model: merge %d (%.40q, %.40q): %.40q is not in the vocabulary", rank, m[0], m[1], token)
			}
		}
		t.model.merges[mergeKey(int32(vocab[m[0]]), int32(vocab[m[1]]))] = merge{rank: int32(rank), id: int32(vocab[m[0]+m[1]])}
	}
	return nil
}

func (t *Tokenizer) readAddedTokens(added []addedToken, vocab map[string]int64) error {
	t.added.ids = make(map[string]int32, len(added))
	for _, a := range added {
		if a.Content == "" {
			continue
		}
		if a.ID < 0 || a.ID >= maxTokenID {
			return refuseTokenizer("added token %.40q has id %d, expected 0 to %d", a.Content, a.ID, maxTokenID-1)
		}
		if id, ok := vocab[a.Content]; ok && id != int64(a.ID) {
			return refuseTokenizer("added token %.40q has id %d, and %d in the vocabulary", a.Content, a.ID, id)
		}
		for int(a.ID) >= len(t.tokens) {
			t.tokens = append(t.tokens, "")
		}
		finder, content := &t.added.raw, a.Content
		if a.Normalized {
			finder, content = &t.added.normalized, t.normalize(a.Content)
		}
		text, _ := symbolBytes(content)
		if known := t.tokens[a.ID]; known != "" && known != text {
			return refuseTokenizer("added token %.40q has id %d, which stands for %.40q", a.Content, a.ID, known)
		}
		finder.add(content, a)
		t.tokens[a.ID] = text
		t.added.ids[a.Content] = a.ID
		if a.Special && content == a.Content { // the reference looks for the text as normalized among the texts as written
			t.special[a.ID] = true
		}
	}
	return nil
}

// byteOf is GPT-2's alphabet turned round: printable Latin-1 characters stand for themselves, U+0100 and what follows for the 68 other bytes.
var byteOf = func() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		switch {
		case b >= '!' && b <= '~', b >= 0xA1 && b <= 0xAC, b >= 0xAE:
			m[rune(b)] = byte(b)
		default:
			m[next] = byte(b)
			next++
		}
	}
	return m
}()

// symbolBytes returns the bytes that a token of the vocabulary stands for. A token with any character outside the alphabet stands for its own text,
// and ok is false.
func symbolBytes(token string) (text string, ok bool) {
	b := make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := byteOf[r]
		if !ok {
			return token, false
		}
		b = append(b, c)
	}
	return string(b), true
}
