package engine

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// patience is a context that is cancelled when it has been asked so many times.
type patience struct {
	context.Context
	left int
}

func (p *patience) Err() error {
	if p.left--; p.left < 0 {
		return context.Canceled
	}
	return nil
}

// Wherever a pass is cancelled, in which layer of a prompt or of a token, nothing of it stays, and the session goes on as if it had not been begun.
func TestCancelledAnywhere(t *testing.T) {
	ids := readGeneration(t).EvalIDs[:24]
	m := load(t, filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801"), Options{})
	passes := func(s *Session) []func(ctx context.Context) ([]float32, error) {
		return []func(ctx context.Context) ([]float32, error){
			func(ctx context.Context) ([]float32, error) { return s.Prefill(ctx, ids[:20]) },
			func(ctx context.Context) ([]float32, error) { return s.Step(ctx, ids[20]) },
			func(ctx context.Context) ([]float32, error) {
				return nil, s.PrefillAll(ctx, ids[21:23], func(int, []float32) error { return nil })
			},
			func(ctx context.Context) ([]float32, error) { return s.Step(ctx, ids[23]) },
		}
	}
	cancelled, undisturbed := session(t, m, len(ids)), session(t, m, len(ids))
	want := passes(undisturbed)
	for i, pass := range passes(cancelled) {
		position := cancelled.Position()
		for layer := range m.layers {
			_, err := pass(&patience{context.Background(), layer})
			require.ErrorIs(t, err, context.Canceled, "pass %d, layer %d", i, layer)
			require.Equal(t, position, cancelled.Position())
		}
		got, err := pass(&patience{context.Background(), len(m.layers)})
		require.NoError(t, err)
		logits := slices.Clone(got) // before the other session's
		same, err := want[i](context.Background())
		require.NoError(t, err)
		require.True(t, slices.Equal(same, logits), "pass %d", i)
	}
	require.Equal(t, len(ids), cancelled.Position())

	// Between two chunks of a prompt.
	long := readGeneration(t).Prompts[11].IDs[:chunkRows+2]
	s := session(t, m, len(long))
	_, err := s.Prefill(&patience{context.Background(), len(m.layers)}, long)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, chunkRows, s.Position())
}

func TestCancelledAnswers(t *testing.T) {
	g := readGeneration(t)
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801")
	m := load(t, dir, Options{})
	tokenizer, err := LoadTokenizer(dir)
	require.NoError(t, err)
	chat, err := LoadChatTemplate(dir)
	require.NoError(t, err)
	sampler, err := NewSampler(GreedyOptions())
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	prompt := g.Prompts[9].IDs
	r, err := Generate(ctx, session(t, m, len(prompt)+30), tokenizer, sampler, prompt, GenerateOptions{MaxTokens: 20, Emit: func(string) error {
		cancel()
		return nil
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.NotEmpty(t, r.IDs, "what was generated until then")
	require.Less(t, len(r.IDs), 20)
	require.Equal(t, g.Variants["0801-w4a4"].Prompts[9].Greedy[:len(r.IDs)], r.IDs)

	prompts, err := ParseSuite([]byte("2+3?\n2+3?\n"))
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(context.Background())
	report, err := RunSuite(ctx, m, tokenizer, chat, prompts, SuiteOptions{
		Sampling: GreedyOptions(), MaxTokens: 4, Done: func(SuiteAnswer) { cancel() },
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "line 2: ")
	require.Len(t, report.Answers, 1, "what was answered until then")

	deep := len(m.layers)
	for _, n := range []int{0, deep - 1, deep, 2*deep - 1} { // layers of the first chunk and of the second
		_, err = Compare(&patience{context.Background(), n}, m, m, g.Prompts[11].IDs[:chunkRows+1], 0)
		require.ErrorIs(t, err, context.Canceled, "check %d", n)
	}
	_, err = Compare(&patience{context.Background(), 2 * deep}, m, m, g.Prompts[11].IDs[:chunkRows+1], 0)
	require.NoError(t, err)
}

// A prompt that does not fit is refused before anything is computed, whoever is asked.
func TestLongerThanTheContext(t *testing.T) {
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0722")
	m, wide := load(t, dir, Options{}), load(t, dir, Options{Context: 1024})
	ids := readGeneration(t).Prompts[11].IDs
	_, err := Compare(context.Background(), m, wide, ids, 0)
	require.EqualError(t, err, "700 tokens do not fit into the context of 512")
	_, err = Compare(context.Background(), wide, m, ids, 0)
	require.EqualError(t, err, "700 tokens do not fit into the context of 512")
	require.Equal(t, fault.Usage, fault.KindOf(err))

	tokenizer, err := LoadTokenizer(dir)
	require.NoError(t, err)
	chat, err := LoadChatTemplate(dir)
	require.NoError(t, err)
	prompts, err := ParseSuite([]byte("2+3?\n" + strings.Repeat("word ", 600)))
	require.NoError(t, err)
	_, err = RunSuite(context.Background(), m, tokenizer, chat, prompts, SuiteOptions{
		Sampling: GreedyOptions(), MaxTokens: 2, Done: func(a SuiteAnswer) { t.Errorf("%s was answered first", a.Name) },
	})
	require.ErrorIs(t, err, ErrContext)
	require.ErrorContains(t, err, "line 2: ")
}
