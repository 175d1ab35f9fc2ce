package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// maxTokenID bounds the table of tokens. The largest vocabularies have a quarter of a million.
const maxTokenID = 1 << 22

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
			return fmt.Errorf("merge %.60s is not a pair", oneLine(data))
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
