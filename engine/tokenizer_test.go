package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func tinyTokenizer(tb testing.TB) *Tokenizer {
	tb.Helper()
	t, err := LoadTokenizer(goldens.TinyLaguna(tb) + "/bf16")
	require.NoError(tb, err)
	return t
}

func TestTokenizerAgreesWithTheRustOne(t *testing.T) {
	var cases []struct {
		Text       string  `json:"text"`
		IDs        []int32 `json:"ids"`
		IDsSpecial []int32 `json:"ids_special"`
		Decoded    string  `json:"decoded"`
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "tiny/tokenizer.json"), &cases))
	require.Len(t, cases, 330)
	tok := tinyTokenizer(t)
	for _, c := range cases {
		ids, err := tok.Encode(c.Text, false)
		require.NoError(t, err)
		require.Equal(t, c.IDs, ids, "%q", c.Text)
		ids, err = tok.Encode(c.Text, true)
		require.NoError(t, err)
		require.Equal(t, c.IDsSpecial, ids, "%q", c.Text)
		require.Equal(t, c.Decoded, tok.Decode(c.IDs, false), "%q", c.Text)
	}
}

// The real vocabulary is not at hand, but what its ids say without one is: spec of the layout is 70 added tokens, then the 256 byte symbols by code
// point, then merges. The tiny model has the same layout.
func TestRealVectorsKeepTheIDLayout(t *testing.T) {
	var cases []struct {
		Text string
		IDs  []int32
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "laguna-0722/tok_ref.json"), &cases))
	require.Len(t, cases, 18)
	tok := tinyTokenizer(t)
	known, added := 0, 0
	for _, c := range cases {
		pattern := `^(?s)`
		for _, id := range c.IDs {
			if id >= 326 { // a merge of the real vocabulary: two bytes or more
				pattern += `.{2,}?`
				continue
			}
			token, ok := tok.TokenBytes(id)
			require.True(t, ok)
			pattern += regexp.QuoteMeta(latin1(token))
			known++
			if id < 70 {
				added++
			}
		}
		require.Regexp(t, pattern+`$`, latin1(c.Text))
	}
	require.Equal(t, 5, added)
	require.Equal(t, 63, known)
}

// latin1 makes a character of each byte: tokens may end inside a character.
func latin1(s string) string {
	var r []rune
	for i := range len(s) {
		r = append(r, rune(s[i]))
	}
	return string(r)
}

func TestWhatIsUnknownIsRefusedByName(t *testing.T) {
	base, err := os.ReadFile(filepath.Join(goldens.TinyLaguna(t), "bf16", "tokenizer.json"))
	require.NoError(t, err)
	for problem, change := range map[string]string{
		`normalizer: "Lowercase" is not supported`:                                       `{"normalizer": {"type": "Lowercase"}}`,
		`normalizer: has no type`:                                                        `{"normalizer": {}}`,
		`normalizer: "NFKC" is not supported`:                                            `{"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]}}`,
		`pre_tokenizer: "Metaspace" is not supported`:                                    `{"pre_tokenizer": {"type": "Metaspace"}}`,
		`pre_tokenizer: has no ByteLevel step, so this is no byte-level BPE`:             `{"pre_tokenizer": {"type": "Digits"}}`,
		`pre_tokenizer: "Digits" stands after ByteLevel`:                                 `{"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}}`,
		`pre_tokenizer: Split: behavior: "Sideways" is not supported`:                    `{"pre_tokenizer": {"type": "Split", "pattern": {"String": "x"}, "behavior": "Sideways"}}`,
		`pre_tokenizer: Split: pattern is neither a Regex nor a String`:                  `{"pre_tokenizer": {"type": "Split", "pattern": {}, "behavior": "Isolated"}}`,
		`post_processor: "BertProcessing" is not supported`:                              `{"post_processor": {"type": "BertProcessing"}}`,
		`post_processor: TemplateProcessing: "X" is not among its special_tokens`:        `{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "X"}}]}}`,
		`post_processor: TemplateProcessing: single has the text 0 times, expected once`: `{"post_processor": {"type": "TemplateProcessing", "single": []}}`,
		`decoder: "Metaspace" is not supported`:                                          `{"decoder": {"type": "Metaspace"}}`,
		`decoder: is missing, expected ByteLevel`:                                        `{"decoder": null}`,
		`model: "WordPiece" is not supported`:                                            `{"model": {"type": "WordPiece"}}`,
		`model: "byte_fallback" is not supported`:                                        `{"model": {"byte_fallback": true}}`,
		`model: "dropout" is not supported`:                                              `{"model": {"dropout": 0.1}}`,
		`model: "continuing_subword_prefix" is not supported`:                            `{"model": {"continuing_subword_prefix": "##"}}`,
		`model: "end_of_word_suffix" is not supported`:                                   `{"model": {"end_of_word_suffix": "</w>"}}`,
		`model: has 0 tokens and 1 merges`:                                               `{"model": {"vocab": null, "merges": ["a b"]}}`,
		`model: merge 0 ("a", "zzz"): "zzz" is not in the vocabulary`:                    `{"model": {"merges": ["a zzz"]}}`,
		`model: merge "a b c" is not a pair`:                                             `{"model": {"merges": ["a b c"]}}`,
		"model: merge [\"a\"] is not a pair":                                             "{\"model\": {\"merges\": [[\n  \"a\"\n]]}}",
		`model: id 134 stands for both "a" and "zz"`:                                     `{"vocab": {"zz": 134}}`,
		`model: token "zz" has id 4194304, expected 0 to 4194303`:                        `{"vocab": {"zz": 4194304}}`,
		`added token "int" has id 3000, and 442 in the vocabulary`:                       `{"added_tokens": [{"id": 3000, "content": "int"}]}`,
		`added token "<x>" has id 442, which stands for "int"`:                           `{"added_tokens": [{"id": 442, "content": "<x>"}]}`,
		`added token "<x>" has id -1, expected 0 to 4194303`:                             `{"added_tokens": [{"id": -1, "content": "<x>"}]}`,
	} {
		v := variation{}
		require.NoError(t, json.Unmarshal([]byte(change), &v.Change))
		_, err := parseTokenizer(v.changed(t, base))
		require.EqualError(t, err, problem)
		require.Equal(t, fault.Refused, fault.KindOf(err))
	}

	_, err = LoadTokenizer(t.TempDir())
	require.EqualError(t, err, "tokenizer.json: is missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestMergesInBothSpellings(t *testing.T) {
	base, err := os.ReadFile(filepath.Join(goldens.TinyLaguna(t), "bf16", "tokenizer.json"))
	require.NoError(t, err)
	v := variation{Change: map[string]json.RawMessage{"model": json.RawMessage(`{"merges": ["i n", ["in", "t"]]}`)}}
	tok, err := parseTokenizer(v.changed(t, base))
	require.NoError(t, err)
	ids, err := tok.Encode("int", false)
	require.NoError(t, err)
	require.Equal(t, []int32{442}, ids)
}

func TestTextMustBeUTF8(t *testing.T) {
	_, err := tinyTokenizer(t).Encode("ab\xffc", false)
	require.EqualError(t, err, "text is not UTF-8: byte 2 is 0xff")
	require.Equal(t, fault.Usage, fault.KindOf(err))
}

// Long lines: quadratic merging would take hours here, not the second that this takes; the test's own time limit is the check.
func TestLongLines(t *testing.T) {
	tok := tinyTokenizer(t)
	for name, text := range map[string]string{
		"letters":           strings.Repeat("a", 1<<20),
		"spaces":            strings.Repeat(" ", 1<<18),
		"spaces and a word": strings.Repeat(" ", 1<<16) + "x",
		"new lines":         strings.Repeat("\n", 1<<16),
		"digits":            strings.Repeat("7", 1<<16),
		"added tokens":      strings.Repeat("<think>", 1<<13),
		"almost tokens":     strings.Repeat("<thin", 1<<13),
	} {
		start := time.Now()
		ids, err := tok.Encode(text, false)
		require.NoError(t, err, name)
		require.True(t, tok.Decode(ids, false) == text, name)
		t.Logf("%s: %d bytes, %d ids, %v", name, len(text), len(ids), time.Since(start))
	}
}

func TestStreamsNeverCutACharacter(t *testing.T) {
	tok := tinyTokenizer(t)
	const text = "naïve 日本語 🙂👩‍👧 e\u0301 <think>x</think>"
	ids, err := tok.Encode(text, true)
	require.NoError(t, err)
	stream := tok.NewStream(true)
	var got strings.Builder
	for _, id := range ids {
		piece := stream.Push(id)
		require.True(t, utf8.ValidString(piece))
		require.NotContains(t, piece, "\uFFFD")
		got.WriteString(piece)
	}
	require.Empty(t, stream.Flush())
	require.Equal(t, text, got.String())

	require.Equal(t, "", stream.Push(ids[len(ids)-1]+100000)) // no such id
	require.Equal(t, "", stream.Push(2))                      // special
	cut, err := tok.Encode("🙂", false)
	require.NoError(t, err)
	require.Empty(t, stream.Push(cut[0]))
	require.Equal(t, "\uFFFD", stream.Flush())
	require.Empty(t, stream.Flush())
}

func FuzzTokenizer(f *testing.F) {
	for _, text := range []string{"", "Hello, world!", "\r\n\r\n\n x  ", "it's IT'S", "日本語🙂\u0301", "<think>\x00\x7f</think>", "  \u00a0\u2028\t1２½"} {
		f.Add(text)
	}
	tok := tinyTokenizer(f)
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := tok.Encode(text, false)
		if !utf8.ValidString(text) {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, text, tok.Decode(ids, false))
		stream, got := tok.NewStream(false), ""
		for _, id := range ids {
			got += stream.Push(id)
		}
		require.Equal(t, text, got+stream.Flush())
	})
}
