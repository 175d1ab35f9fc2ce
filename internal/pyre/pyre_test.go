package pyre

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
)

// Python's re.match decides every pair; testdata/gen/pyre_python.py wrote the file.
func TestMatchStartIsPythonsMatch(t *testing.T) {
	var golden struct {
		Names []string
		Rows  []struct {
			Pattern, Error string
			Matches        []int
		}
	}
	raw, err := os.ReadFile("testdata/python.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	// Python knows the widths of look-behinds and wants them fixed; regexp2 takes any. Nothing is lost by reading more.
	lenient := map[string]bool{`(?<=a*)b`: true}
	for _, row := range golden.Rows {
		r, err := Compile(row.Pattern)
		if row.Error != "" && !lenient[row.Pattern] {
			require.Errorf(t, err, "%q: Python: %s", row.Pattern, row.Error)
			require.Equal(t, fault.Refused, fault.KindOf(err))
			require.Contains(t, err.Error(), "bad regular expression")
			continue
		}
		require.NoErrorf(t, err, "%q", row.Pattern)
		if row.Error != "" {
			continue
		}
		want := map[int]bool{}
		for _, i := range row.Matches {
			want[i] = true
		}
		full := &Regexp{pattern: r.pattern, full: r.full}
		for i, name := range golden.Names {
			got, err := r.MatchStart(name)
			require.NoError(t, err)
			require.Equalf(t, want[i], got, "%q on %q (full %q)", row.Pattern, name, r.full)
			got, err = full.MatchStart(name)
			require.NoError(t, err)
			require.Equalf(t, want[i], got, "backtracking: %q on %q (full %q)", row.Pattern, name, r.full)
		}
	}
}

func TestUnsupportedFormsAreRefusedNotMisread(t *testing.T) {
	for _, pattern := range []string{`(?x)a b`, `(?a)\w`, `(?L)a`, `(a)(?(1)b|c)`, `\N{DASH}`, "\xff", nested(70000)} {
		_, err := Compile(pattern)
		require.Errorf(t, err, "%.20q", pattern)
		require.Equal(t, fault.Refused, fault.KindOf(err))
	}
}

func nested(n int) string { return strings.Repeat("(", n) + "a" + strings.Repeat(")", n) }

// The engines' parsers recurse; the longest pattern that is read must not exhaust their stack.
func TestDeepNesting(t *testing.T) {
	r, err := Compile(nested(5000))
	require.NoError(t, err)
	ok, err := r.MatchStart("ab")
	require.NoError(t, err)
	require.True(t, ok)
	_, err = Compile(nested(longestPattern / 2))
	require.Error(t, err)
}

func TestRequiredLiterals(t *testing.T) {
	for pattern, want := range map[string]literals{
		`lm_head`:                {"lm_head", "", "lm_head"},
		`lm_head$`:               {"lm_head", "lm_head", "lm_head"},
		`.*\.self_attn\.q_proj$`: {"", ".self_attn.q_proj", ".self_attn.q_proj"},
		`.*experts\.[0-9]+\.(gate_proj|up_proj)$`:      {"", "_proj", "experts."},
		`^model\.layers\.4[0-7]\.mlp\.experts(\..*)?$`: {"model.layers.4", "", "model.layers.4"},
		`(?:model|mtp)\.layers`:                        {"m", "", ".layers"},
		`(?i)model\.layers`:                            {},
		`(?!.*experts).*mlp`:                           {"", "", "mlp"},
		`(ab)+c`:                                       {"ab", "", "abc"},
		`a|b$`:                                         {},
		`(a)\1b$`:                                      {"a", "b", "a"},
		`model\.layers\.(?=4)\d+\.(?:mlp|attn)\.x_proj`: {"model.layers.", "", "model.layers."},
	} {
		r, err := Compile(pattern)
		require.NoError(t, err)
		require.Equalf(t, want, r.need, "%q", pattern)
	}
}

func TestFindAllGivesByteOffsets(t *testing.T) {
	r, err := CompileTokenizer(`(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)
	require.NoError(t, err)
	for text, want := range map[string][]string{
		"it's a café":   {"it", "'s", " a", " café"},
		"日本 12":         {"日本", " ", "1", "2"},
		"x  y\n\n z":    {"x", " ", " y", "\n\n", " z"},
		"a\xffb\xc3 é!": {"a", "\xffb", "\xc3", " é", "!"},
		"":              nil,
	} {
		found, err := r.FindAll(text)
		require.NoError(t, err)
		var got []string
		for _, f := range found {
			got = append(got, text[f[0]:f[1]])
		}
		require.Equalf(t, want, got, "%q", text)
	}
	empty, err := CompileTokenizer(`x*`)
	require.NoError(t, err)
	found, err := empty.FindAll("éx")
	require.NoError(t, err)
	require.Equal(t, [][2]int{{0, 0}, {2, 3}, {3, 3}}, found)
}

// A million characters in one line, of the kinds that make a backtracking engine go back: quadratic work would meet the time limit.
func TestFindAllOnLongLines(t *testing.T) {
	const n = 1 << 20
	words, err := CompileTokenizer(`[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`)
	require.NoError(t, err)
	lines, err := CompileTokenizer(`(?:\r?\n)+(?!\r?\n)`)
	require.NoError(t, err)
	for _, c := range []struct {
		r    *Regexp
		unit string
		want int
	}{{words, " ", 1}, {words, "a", 1}, {words, "ab ", n/3 + 2}, {lines, "\n", 1}, {lines, "x\n", n / 2}, {lines, "\r\n", 1}} {
		text := strings.Repeat(c.unit, n/len(c.unit))
		found, err := c.r.FindAll(text)
		require.NoErrorf(t, err, "%q", c.unit)
		require.InDelta(t, c.want, len(found), 2, "%q", c.unit)
	}
}

func TestCatastrophicPatternTimesOut(t *testing.T) {
	r, err := Compile(`(?=(a+)+$)a`)
	require.NoError(t, err)
	r.full.MatchTimeout = 1 // the shortest that the engine's clock can tell
	_, err = r.MatchStart(strings.Repeat("a", 5000) + "b")
	var f *fault.Error
	require.True(t, errors.As(err, &f))
	require.Equal(t, fault.Refused, f.Kind)
	require.Contains(t, err.Error(), "(a+)+")
}

func FuzzCompile(f *testing.F) {
	for _, p := range []string{`re`, `(?P<a>b)(?P=a)`, `[[a]-[b]]`, `a{,2}+`, `(?!x)\1`, `(?i)\u00e9`} {
		f.Add(p, "model.layers.1")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		r, err := Compile(pattern)
		if err != nil {
			return
		}
		fast, err := r.MatchStart(text)
		if err != nil {
			return
		}
		slow, err := (&Regexp{pattern: pattern, full: r.full}).MatchStart(text)
		if err == nil && fast != slow {
			t.Fatalf("%q on %q: fast %v, backtracking %v", pattern, text, fast, slow)
		}
	})
}
