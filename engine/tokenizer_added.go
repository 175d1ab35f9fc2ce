package engine

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedTokens are the tokens that are found in a text before BPE sees it: the raw ones in the text as given, the others in normalized text.
type addedTokens struct {
	raw, normalized tokenFinder
	ids             map[string]int32
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // takes the white space before it along
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// textPart is an added token (id) or text between such tokens (id -1).
type textPart struct {
	id   int32
	text string
}

// tokenFinder is a trie over bytes. The longest token that begins at the leftmost place wins.
type tokenFinder struct {
	nodes  []trieNode
	tokens []addedToken
}

type trieNode struct {
	next  map[byte]int32
	token int32 // index into tokens, -1: none ends here
}

func (f *tokenFinder) add(content string, t addedToken) {
	if len(f.nodes) == 0 {
		f.nodes = []trieNode{{token: -1}}
	}
	at := int32(0)
	for i := range len(content) {
		to, ok := f.nodes[at].next[content[i]]
		if !ok {
			to = int32(len(f.nodes))
			if f.nodes[at].next == nil {
				f.nodes[at].next = map[byte]int32{}
			}
			f.nodes[at].next[content[i]] = to
			f.nodes = append(f.nodes, trieNode{token: -1})
		}
		at = to
	}
	f.nodes[at].token = int32(len(f.tokens))
	f.tokens = append(f.tokens, t)
}

// longest returns the longest token at the beginning of s and its length, or -1.
func (f *tokenFinder) longest(s string) (token int32, n int) {
	token = -1
	at, ok := int32(0), false
	for i := range len(s) {
		if at, ok = f.nodes[at].next[s[i]]; !ok {
			break
		}
		if t := f.nodes[at].token; t >= 0 {
			token, n = t, i+1
		}
	}
	return token, n
}

func (f *tokenFinder) split(s string) []textPart {
	if len(f.nodes) == 0 {
		return []textPart{{-1, s}}
	}
	var (
		parts []textPart
		done  int
	)
	for i := 0; i < len(s); {
		index, n := f.longest(s[i:])
		if index < 0 {
			i++
			continue
		}
		t := &f.tokens[index]
		start, end := i, i+n
		i = end // a token that is passed over is not looked into again
		if t.SingleWord && (endsInWord(s[:start]) || beginsWithWord(s[end:])) {
			continue
		}
		if t.LStrip {
			start = max(done, len(strings.TrimRightFunc(s[:start], unicode.IsSpace)))
		}
		if t.RStrip {
			end = len(s) - len(strings.TrimLeftFunc(s[end:], unicode.IsSpace))
		}
		if done < start {
			parts = append(parts, textPart{-1, s[done:start]})
		}
		parts = append(parts, textPart{t.ID, ""})
		done = end
	}
	if done < len(s) {
		parts = append(parts, textPart{-1, s[done:]})
	}
	return parts
}

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func beginsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of UTS 18, which the reference asks.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.Is(unicode.Nd, r) || unicode.In(r, unicode.Nl, unicode.M, unicode.Pc, unicode.Join_Control, unicode.Other_Alphabetic)
}
