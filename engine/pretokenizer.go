package engine

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/lagquant/lagquant/internal/pyre"
)

// splitter is one step of the pre-tokenizer: find cuts a piece into matches and what lies between, behavior says what becomes of them.
type splitter struct {
	find     func(s string) ([]pieceSpan, error)
	invert   bool
	behavior string
}

// pieceSpan is a part of a text. The spans that find returns lie end to end.
type pieceSpan struct {
	start, end int
	match      bool
}

func (t *Tokenizer) normalize(s string) string {
	if t.nfc {
		return norm.NFC.String(s)
	}
	return s
}

// pretokenize cuts text into the words that BPE works on, each a part of the text itself.
func (t *Tokenizer) pretokenize(text string) ([]string, error) {
	pieces := []string{text}
	for _, step := range t.splits {
		var next []string
		for _, p := range pieces {
			parts, err := step.split(p)
			if err != nil {
				return nil, err
			}
			next = append(next, parts...)
		}
		pieces = next
	}
	if t.bytePrefix {
		for i, p := range pieces {
			if !strings.HasPrefix(p, " ") {
				pieces[i] = " " + p
			}
		}
	}
	return pieces, nil
}

func (p splitter) split(s string) ([]string, error) {
	spans, err := p.find(s)
	if err != nil {
		return nil, err
	}
	if p.invert {
		for i := range spans {
			spans[i].match = !spans[i].match
		}
	}
	var parts []string
	for _, sp := range behaviors[p.behavior](spans) {
		if sp.start < sp.end {
			parts = append(parts, s[sp.start:sp.end])
		}
	}
	return parts, nil
}

// behaviors are the delimiter behaviours of tokenizers' Split, by name.
var behaviors = map[string]func([]pieceSpan) []pieceSpan{
	"Isolated":           func(spans []pieceSpan) []pieceSpan { return spans },
	"Removed":            removed,
	"MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext":     mergedWithNext,
	"Contiguous":         contiguous,
}

func removed(spans []pieceSpan) (kept []pieceSpan) {
	for _, s := range spans {
		if !s.match {
			kept = append(kept, s)
		}
	}
	return kept
}

// mergedWithPrevious gives each match to what stands before it. Of several matches in a row only the first is given away.
func mergedWithPrevious(spans []pieceSpan) (merged []pieceSpan) {
	afterMatch := false
	for _, s := range spans {
		if s.match && !afterMatch && len(merged) > 0 {
			merged[len(merged)-1].end = s.end
		} else {
			merged = append(merged, s)
		}
		afterMatch = s.match
	}
	return merged
}

// mergedWithNext gives each match to what stands after it. Of several matches in a row only the last is given away.
func mergedWithNext(spans []pieceSpan) (merged []pieceSpan) {
	for i, s := range spans {
		if i > 0 && spans[i-1].match && !s.match {
			merged[len(merged)-1].end = s.end
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// contiguous joins matches that follow each other.
func contiguous(spans []pieceSpan) (merged []pieceSpan) {
	afterMatch := false
	for _, s := range spans {
		if s.match == afterMatch && len(merged) > 0 {
			merged[len(merged)-1].end = s.end
		} else {
			merged = append(merged, s)
		}
		afterMatch = s.match
	}
	return merged
}

func findRegex(re *pyre.Regexp) func(string) ([]pieceSpan, error) {
	return func(s string) ([]pieceSpan, error) {
		found, err := re.FindAll(s)
		if err != nil {
			return nil, err
		}
		return cover(s, found), nil
	}
}

func findString(literal string) func(string) ([]pieceSpan, error) {
	return func(s string) ([]pieceSpan, error) {
		var found [][2]int
		for at := 0; ; {
			i := strings.Index(s[at:], literal)
			if i < 0 {
				return cover(s, found), nil
			}
			found = append(found, [2]int{at + i, at + i + len(literal)})
			at += i + len(literal)
		}
	}
}

// findDigits matches each numeric character alone (Unicode's Nd, Nl and No).
func findDigits(s string) ([]pieceSpan, error) {
	var found [][2]int
	for i, r := range s {
		if unicode.IsNumber(r) {
			found = append(found, [2]int{i, i + utf8.RuneLen(r)})
		}
	}
	return cover(s, found), nil
}

// cover fills the gaps between matches with spans that are none.
func cover(s string, found [][2]int) []pieceSpan {
	spans := make([]pieceSpan, 0, 2*len(found)+1)
	at := 0
	for _, m := range found {
		if at < m[0] {
			spans = append(spans, pieceSpan{at, m[0], false})
		}
		spans = append(spans, pieceSpan{m[0], m[1], true})
		at = m[1]
	}
	if at < len(s) {
		spans = append(spans, pieceSpan{at, len(s), false})
	}
	return spans
}
