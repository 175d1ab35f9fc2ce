package engine

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

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
