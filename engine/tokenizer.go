package engine

import (
	"fmt"
	"io/fs"
	"sync"
	"unicode/utf8"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

const tokenizerFile = "tokenizer.json"

// Tokenizer is a byte-level BPE read from a checkpoint's tokenizer.json. It gives the ids and the text that Hugging Face's tokenizers gives.
// It is safe for concurrent use.
type Tokenizer struct {
	nfc        bool
	added      addedTokens
	splits     []splitter
	bytePrefix bool // the ByteLevel step puts a space before each piece that has none

	prefix, suffix []int32 // what the post-processor puts around a text

	tokens  []string // by id: the bytes it stands for; "" where there is no such id
	special map[int32]bool

	mu    sync.Mutex
	model bpe
}

// LoadTokenizer reads tokenizer.json of a checkpoint folder. A kind of step that is not known here is refused by its name, since leaving it out
// would give other ids without a word.
func LoadTokenizer(dir string) (*Tokenizer, error) {
	data, err := safetensors.ReadFile(dir, tokenizerFile)
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, &fault.Error{
			Kind: fault.Refused, File: tokenizerFile, Problem: "is missing", Err: fs.ErrNotExist,
			Hint: "copy tokenizer.json and tokenizer_config.json of the original model beside the weights",
		}
	}
	t, err := parseTokenizer(data)
	return t, fault.In(tokenizerFile, err)
}

// Encode returns the ids of a text. special: with what the post-processor adds around it, as a raw prompt needs; a rendered chat brings its own
// beginning and is encoded without. Text that spells an added token becomes that token, in user text too. Text that is not UTF-8 is an error.
func (t *Tokenizer) Encode(text string, special bool) ([]int32, error) {
	if at := invalidUTF8(text); at >= 0 {
		return nil, &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("text is not UTF-8: byte %d is %#02x", at, text[at]), Hint: "save it as UTF-8"}
	}
	ids := make([]int32, 0, len(text)/3+len(t.prefix)+len(t.suffix))
	if special {
		ids = append(ids, t.prefix...)
	}
	ids, err := t.appendText(ids, text)
	if special {
		ids = append(ids, t.suffix...)
	}
	return ids, err
}

func (t *Tokenizer) appendText(ids []int32, text string) ([]int32, error) {
	for _, part := range t.added.raw.split(text) {
		if part.id >= 0 {
			ids = append(ids, part.id)
			continue
		}
		for _, piece := range t.added.normalized.split(t.normalize(part.text)) {
			if piece.id >= 0 {
				ids = append(ids, piece.id)
				continue
			}
			words, err := t.pretokenize(piece.text)
			if err != nil {
				return nil, err
			}
			if ids, err = t.appendWords(ids, words); err != nil {
				return nil, err
			}
		}
	}
	return ids, nil
}

func (t *Tokenizer) appendWords(ids []int32, words []string) (_ []int32, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range words {
		if ids, err = t.model.appendWord(ids, w); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// Decode returns the text of ids. Bytes that form no character become U+FFFD, ids without a token nothing. skipSpecial leaves out the tokens that
// tokenizer.json calls special.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	var text []byte
	for _, id := range ids {
		text = s.Append(text, id)
	}
	return string(s.AppendRest(text))
}

// TokenBytes returns the bytes that an id stands for, and whether there is such an id.
func (t *Tokenizer) TokenBytes(id int32) (string, bool) {
	if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == "" {
		return "", false
	}
	return t.tokens[id], true
}

// TokenID returns the id of an added token, such as "</assistant>".
func (t *Tokenizer) TokenID(content string) (int32, bool) {
	id, ok := t.added.ids[content]
	return id, ok
}

// VocabSize returns one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}
