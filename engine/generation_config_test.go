package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func TestGenerationConfigOfTheTinyModel(t *testing.T) {
	g, err := LoadGenerationConfig(filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801"))
	require.NoError(t, err)
	require.Equal(t, &GenerationConfig{
		BOS: 2, PAD: 9, EOS: []int32{2, 24},
		Sampling:           SamplingOptions{Temperature: 1, TopK: 20, TopP: 1, RepetitionPenalty: 1},
		ChatTemplateKwargs: map[string]any{"enable_thinking": true},
	}, g)
	require.True(t, g.ThinksByDefault())
	require.True(t, g.Stops(24))
	require.False(t, g.Stops(23))
}

func TestGenerationConfigForms(t *testing.T) {
	load := func(generation, config string) (*GenerationConfig, error) {
		dir := t.TempDir()
		for file, text := range map[string]string{"generation_config.json": generation, "config.json": config} {
			if text != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
			}
		}
		return LoadGenerationConfig(dir)
	}
	greedy := GreedyOptions()
	for _, c := range []struct {
		generation, config string
		expected           GenerationConfig
	}{
		{"", "", GenerationConfig{BOS: -1, PAD: -1, Sampling: greedy}},
		{`{"eos_token_id": 7}`, `{"eos_token_id": [1], "bos_token_id": 3}`, GenerationConfig{BOS: 3, PAD: -1, EOS: []int32{7}, Sampling: greedy}},
		{`{"eos_token_id": null, "temperature": 0.5}`, `{"eos_token_id": [2, 24]}`, GenerationConfig{BOS: -1, PAD: -1, EOS: []int32{2, 24}, Sampling: greedy}},
		{
			`{"do_sample": true, "top_p": 0.9, "min_p": 0.02}`, "",
			GenerationConfig{BOS: -1, PAD: -1, Sampling: SamplingOptions{Temperature: 1, TopK: 50, TopP: 0.9, MinP: 0.02, RepetitionPenalty: 1}},
		},
	} {
		g, err := load(c.generation, c.config)
		require.NoError(t, err)
		require.Equal(t, &c.expected, g)
	}
	for text, problem := range map[string]string{
		`{"eos_token_id": "x"}`:               `generation_config.json: eos_token_id: found "x", expected an id or a list of ids`,
		`{"eos_token_id": [2, "24"]}`:         `generation_config.json: eos_token_id: found [2,"24"], expected an id or a list of ids`,
		`{"eos_token_id": [null]}`:            `generation_config.json: eos_token_id: found [null], expected an id or a list of ids`,
		`{"eos_token_id": -1}`:                `generation_config.json: eos_token_id: found -1, expected an id or a list of ids`,
		`{"eos_token_id": 3e9}`:               `generation_config.json: eos_token_id: found 3e9, expected an id or a list of ids`,
		`{"temperature": NaN}`:                `generation_config.json: temperature: line 1: found NaN, expected a number`,
		`{"temperature": "1"}`:                `generation_config.json: temperature: found a string, expected a number of at most 64 bits`,
		`{"top_k": 1.5}`:                      `generation_config.json: top_k: found 1.5, expected a whole number of at most 64 bits`,
		`{"default_chat_template_kwargs": 3}`: `generation_config.json: default_chat_template_kwargs: found a number, expected an object`,
		`[]`:                                  "generation_config.json: file: found an array, expected an object",
		`{`:                                   "generation_config.json: file: line 1: unexpected end of JSON input",
	} {
		_, err := load(text, "")
		require.EqualError(t, err, problem)
		require.Equal(t, fault.Refused, fault.KindOf(err))
	}
}

func FuzzGenerationConfig(f *testing.F) {
	f.Add([]byte(`{"eos_token_id": [2, 24], "bos_token_id": 2, "do_sample": true, "temperature": 1.0, "top_k": 20, "default_chat_template_kwargs": {"a": true}}`))
	f.Add([]byte(`{"eos_token_id": 7, "pad_token_id": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := &GenerationConfig{BOS: -1, PAD: -1}
		if err := g.read(data, true); err != nil {
			require.Equal(t, fault.Refused, fault.KindOf(err))
			return
		}
		for _, id := range g.EOS {
			require.GreaterOrEqual(t, id, int32(0))
		}
	})
}
