// Package pyre runs regular expressions written for Python's re module, as quantization configs hold them, and those of tokenizer.json.
//
// They come from files that nobody vouches for, so every match has a time limit. The truth is always the backtracking engine of regexp2; where Go's own
// linear engine decides the same question, it is asked first, since a config's rules meet a hundred thousand module names.
package pyre

import (
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"

	"github.com/lagquant/lagquant/internal/fault"
)

const (
	// matchTimeout bounds one call. Honest rules take microseconds and a megabyte of text well under a second; only catastrophic backtracking gets this
	// far.
	matchTimeout = 20 * time.Second

	// backtrackingSlots bounds the engine's stack to 128 MiB. A line of a million newlines under `(?:\r?\n)+(?!\r?\n)` needs four million slots, and the
	// library's default of 100,000 refuses it.
	backtrackingSlots = 16 << 20

	// longestPattern is far above any honest one; the parsers recurse into nested groups.
	longestPattern = 64 << 10
)

// Regexp is a compiled pattern, safe for concurrent use.
type Regexp struct {
	pattern string
	full    *regexp2.Regexp

	// quick accepts every printable ASCII text that the pattern matches from its start, and nothing else if exact holds. nil: unknown.
	quick *regexp.Regexp
	exact bool
	need  literals
}

// Compile reads a pattern in the syntax of Python's re. What re.compile refuses is a fault of kind Refused naming the pattern, and so are the forms
// that no config uses and that are not carried over: verbose and ASCII flags, conditional groups, \N{...}. U+001C to U+001F, spaces to Python alone,
// are none here.
func Compile(pattern string) (*Regexp, error) {
	t, err := translate(pattern)
	if err != nil {
		return nil, refused(pattern, err)
	}
	r, err := compile(pattern, t.full)
	if err != nil {
		return nil, err
	}
	if quick, err := regexp.Compile(`\A(?:` + t.loose + `)`); err == nil {
		r.quick, r.exact, r.need = quick, t.regular, requiredLiterals(t.loose)
	}
	return r, nil
}

// CompileTokenizer reads a pattern of a tokenizer.json, which is written for Oniguruma: \p{L} and the like are known, and nothing is translated.
func CompileTokenizer(pattern string) (*Regexp, error) {
	return compile(pattern, pattern)
}

func compile(pattern, translated string) (*Regexp, error) {
	if len(pattern) > longestPattern {
		return nil, refused(pattern[:40]+"...", fmt.Errorf("%d bytes, at most %d are read", len(pattern), longestPattern))
	}
	full, err := regexp2.Compile(translated, regexp2.OptionMaintainCaptureOrder(), regexp2.OptionMaxBacktrackingStackSize(backtrackingSlots))
	if err != nil {
		return nil, refused(pattern, err)
	}
	full.MatchTimeout = matchTimeout
	return &Regexp{pattern: pattern, full: full}, nil
}

func refused(pattern string, err error) error {
	return &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf("bad regular expression %q: %v", pattern, err), Err: err}
}

// MatchStart says whether the pattern matches s from its first character on, like Python's re.match; the match may end anywhere.
// An error means that the match took too long.
func (r *Regexp) MatchStart(s string) (bool, error) {
	if !r.MayMatch(s) {
		return false, nil
	}
	if r.quick != nil && printable(s) {
		if matches := r.quick.MatchString(s); r.exact || !matches {
			return matches, nil
		}
	}
	// The engine tries the first position to the end before it tries the second, so a match that starts later means that none starts at 0.
	m, err := r.full.FindStringMatch(s)
	if err != nil {
		return false, r.unanswered(s, err)
	}
	return m != nil && m.RuneIndex == 0, nil
}

// MayMatch says whether s has the literal texts without which MatchStart cannot say yes. It runs no expression.
func (r *Regexp) MayMatch(s string) bool { return r.need.in(s) }

// FindAll returns the byte offsets of the successive matches in s that do not overlap. It takes time linear in s where the pattern itself does.
func (r *Regexp) FindAll(s string) ([][2]int, error) {
	var (
		found [][2]int
		bytes = byteOffsets{text: s}
	)
	err := r.full.FindRunesMatches([]rune(s), -1, func(m regexp2.MatchView) bool {
		start, n, _ := m.GroupRange(0)
		found = append(found, [2]int{bytes.of(start), bytes.of(start + n)})
		return true
	})
	if err != nil {
		return nil, r.unanswered(s, err)
	}
	return found, nil
}

// unanswered is the fault of a match that ran out of time or stack. The engine's own message repeats the whole text.
func (r *Regexp) unanswered(text string, err error) error {
	shown, n := text, len(text)
	if n > 100 {
		shown = text[:100] + "..."
	}
	return &fault.Error{
		Kind: fault.Refused, Err: err,
		Problem: fmt.Sprintf("regular expression %q backtracks without end on a text of %d bytes, %q", r.pattern, n, shown),
	}
}

// byteOffsets turns rune offsets that never decrease into byte offsets.
type byteOffsets struct {
	text       string
	rune, byte int
}

func (b *byteOffsets) of(runes int) int {
	for ; b.rune < runes; b.rune++ {
		_, n := utf8.DecodeRuneInString(b.text[b.byte:])
		b.byte += n
	}
	return b.byte
}

// printable says whether s has printable ASCII only. There `$` is `\z`, `.` is any character, and \s, \w, \d and case folding mean the same to Python,
// to regexp2 and to Go's regexp.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
