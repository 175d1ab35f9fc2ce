package engine

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/synthetic"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func TestSuite(t *testing.T) {
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801")
	m := load(t, dir, Options{})
	tokenizer, err := LoadTokenizer(dir)
	require.NoError(t, err)
	chat, err := LoadChatTemplate(dir)
	require.NoError(t, err)
	config, err := LoadGenerationConfig(dir)
	require.NoError(t, err)
	prompts, err := ParseSuite([]byte("capital of France? one word\n\n" +
		`{"name":"short","chat":"capital of Japan? one word","max_tokens":4}` + "\n" +
		`{"messages":[{"role":"user","content":"2+3?"}],"think":false}` + "\n"))
	require.NoError(t, err)
	done := 0
	report, err := RunSuite(context.Background(), m, tokenizer, chat, prompts, SuiteOptions{
		Sampling: GreedyOptions(), Think: true, MaxTokens: 24, Stop: config.Stops, Done: func(SuiteAnswer) { done++ },
	})
	require.NoError(t, err)
	require.Equal(t, 3, done)
	require.Equal(t, [4]int{3, 2, 1, 1}, [4]int{report.Prompts, report.Finished, report.OutOfBudget, report.InReasoning})
	require.Equal(t, "The user asks for the capital of France. It is Paris.</think>Paris", report.Answers[0].Text)
	require.Equal(t, "line 1", report.Answers[0].Name)
	require.True(t, report.Answers[1].OpenReasoning)
	require.Equal(t, "5", report.Answers[2].Text)
	require.Zero(t, report.Repeating)
}

func TestSuiteFiles(t *testing.T) {
	for _, v := range []struct{ text, problem string }{
		{"\n \n", "no prompts"},
		{`{"chat":"a","budget":3}`, `unknown field "budget"`},
		{"a\n{}", `line 2 of the suite needs either "chat" or "messages"`},
		{`{"chat":"a","messages":[]}`, "either"},
		{`{"chat":"a","max_tokens":-1}`, "max_tokens is -1"},
	} {
		_, err := ParseSuite([]byte(v.text))
		require.ErrorContains(t, err, v.problem)
	}
}

func TestRepetition(t *testing.T) {
	count := func(n, period int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(i % period)
		}
		return ids
	}
	require.Equal(t, Repetition{}, FindRepetition(nil))
	require.Equal(t, Repetition{}, FindRepetition(count(100, 100)))
	require.Equal(t, Repetition{Share: 0, Loop: 0}, FindRepetition(count(7, 1)))
	require.Equal(t, Repetition{Share: 24.0 / 25, Loop: 1}, FindRepetition(count(32, 1)))
	require.Equal(t, Repetition{Share: 83.0 / 93, Loop: 10}, FindRepetition(count(100, 10)))
	require.Equal(t, 0, FindRepetition(count(39, 10)).Loop, "not yet four times")
	require.Equal(t, 3, FindRepetition(append(count(50, 50), count(33, 3)...)).Loop)
	require.Equal(t, 0, FindRepetition(append(count(40, 3), 99)).Loop, "it got out of it")
}

// The benchmark's model at a size that a test can afford has the real one's names and runs.
func TestBench(t *testing.T) {
	config := tinyWeights(t, "nvfp4-0801").config
	dir, again := t.TempDir(), t.TempDir()
	require.NoError(t, synthetic.WriteConfig(dir, config, 1<<20))
	require.NoError(t, synthetic.WriteConfig(again, config, 1<<20))
	require.Equal(t, readWeights(t, dir), readWeights(t, again))
	r, err := Bench(context.Background(), dir, 32, 4, func() float64 { return 3e9 }, Options{Workers: 2})
	require.NoError(t, err)
	require.Equal(t, 2, r.Workers)
	require.Positive(t, r.DecodeRate)
	// Of the 8 experts of a sparse layer a token needs 2, and no embedding but one row.
	require.Less(t, r.BytesPerToken, r.ModelBytes*2/3)
	require.Greater(t, r.BytesPerToken, r.ModelBytes/3)

	c, err := ParseConfig(BenchConfig(1_350_000_000))
	require.NoError(t, err)
	require.InDelta(t, 25, c.Experts, 5)
	require.True(t, c.Layers[3].Sparse)
}
