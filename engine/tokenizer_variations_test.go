package engine

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/testdata/goldens"
)

type variation struct {
	Name   string
	Change map[string]json.RawMessage
	Cases  [][4]json.RawMessage // ids, ids with special tokens, the latter decoded without and with special tokens
}

type variationsFile struct {
	Texts      []string
	Variations []variation
	Decoded    [][2]json.RawMessage // ids, text
}

// changed returns the tiny tokenizer.json with the parts of a variation put in.
func (v variation) changed(t *testing.T, base []byte) []byte {
	t.Helper()
	var doc, model map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(base, &doc))
	require.NoError(t, json.Unmarshal(doc["model"], &model))
	for key, raw := range v.Change {
		switch key {
		case "added_tokens":
			doc[key] = append(append(doc[key][:len(doc[key])-1:len(doc[key])-1], ','), raw[1:]...)
		case "vocab":
			model[key] = append(append(model[key][:len(model[key])-1:len(model[key])-1], ','), raw[1:]...)
		case "model":
			require.NoError(t, json.Unmarshal(raw, &model))
		default:
			doc[key] = raw
		}
	}
	var err error
	doc["model"], err = json.Marshal(model)
	require.NoError(t, err)
	data, err := json.Marshal(doc)
	require.NoError(t, err)
	return data
}

func TestEveryStepAgreesWithTheRustTokenizers(t *testing.T) {
	f, err := os.Open("testdata/tokenizers.json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var file variationsFile
	require.NoError(t, json.NewDecoder(z).Decode(&file))

	base, err := os.ReadFile(filepath.Join(goldens.TinyLaguna(t), "bf16", "tokenizer.json"))
	require.NoError(t, err)
	require.Greater(t, len(file.Variations), 40)
	for _, v := range file.Variations {
		t.Run(v.Name, func(t *testing.T) {
			tok, err := parseTokenizer(v.changed(t, base))
			require.NoError(t, err)
			for i, c := range v.Cases {
				checkCase(t, tok, file.Texts[i], c)
			}
		})
	}

	tok, err := parseTokenizer(base)
	require.NoError(t, err)
	for _, c := range file.Decoded {
		var ids []int32
		var text string
		require.NoError(t, json.Unmarshal(c[0], &ids))
		require.NoError(t, json.Unmarshal(c[1], &text))
		require.Equal(t, text, tok.Decode(ids, false), "%v", ids)
	}
}

func checkCase(t *testing.T, tok *Tokenizer, text string, c [4]json.RawMessage) {
	t.Helper()
	var (
		ids, special   []int32
		without, whole string
	)
	for i, into := range []any{&ids, &special, &without, &whole} {
		require.NoError(t, json.Unmarshal(c[i], into))
	}
	got, err := tok.Encode(text, false)
	require.NoError(t, err)
	require.Equal(t, ids, got, "%q", text)
	got, err = tok.Encode(text, true)
	require.NoError(t, err)
	require.Equal(t, special, got, "%q", text)
	require.Equal(t, without, tok.Decode(special, true), "%q", text)
	require.Equal(t, whole, tok.Decode(special, false), "%q", text)
}
