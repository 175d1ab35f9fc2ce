package engine

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
)

type samplingCase struct {
	Logits  []float32
	History []int32
	Options struct {
		Temperature       float64
		TopK              int      `json:"top_k"`
		TopP              *float64 `json:"top_p"`
		MinP              float64  `json:"min_p"`
		RepetitionPenalty *float64 `json:"repetition_penalty"`
	}
	Kept []int32
	P    []float64
}

func (c samplingCase) options() SamplingOptions {
	o := GreedyOptions()
	o.Temperature, o.TopK, o.MinP = c.Options.Temperature, c.Options.TopK, c.Options.MinP
	if c.Options.TopP != nil {
		o.TopP = *c.Options.TopP
	}
	if c.Options.RepetitionPenalty != nil {
		o.RepetitionPenalty = *c.Options.RepetitionPenalty
	}
	return o
}

func samplingCases(t *testing.T) []samplingCase {
	t.Helper()
	data, err := os.ReadFile("testdata/sampling.json")
	require.NoError(t, err)
	var file struct {
		Order []string
		Cases []samplingCase
	}
	require.NoError(t, json.Unmarshal(data, &file))
	require.Len(t, file.Order, 5)
	require.Len(t, file.Cases, 45)
	return file.Cases
}

func TestFiltersAgreeWithTransformers(t *testing.T) {
	for _, c := range samplingCases(t) {
		s, err := NewSampler(c.options())
		require.NoError(t, err)
		id := s.Next(c.Logits, c.History)
		require.Contains(t, c.Kept, id)

		p := make(map[int32]float64, len(s.kept))
		for _, k := range s.kept {
			p[k.id] = k.p
		}
		require.Len(t, p, len(c.Kept), "%+v", c.Options)
		for i, id := range c.Kept {
			require.InDelta(t, c.P[i], p[id], 2e-6, "%+v: id %d", c.Options, id)
		}
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	const draws = 40000
	logits := []float32{0, 1, -2, 3, float32(math.Inf(-1)), 2}
	o := GreedyOptions()
	o.Temperature, o.TopK, o.Seed = 0.8, 4, 11
	s, err := NewSampler(o)
	require.NoError(t, err)
	counts := make([]float64, len(logits))
	for range draws {
		counts[s.Next(logits, nil)]++
	}
	sum := 0.0
	for _, i := range []int{0, 1, 3, 5} {
		sum += math.Exp(float64(logits[i]) / 0.8)
	}
	for i, n := range counts {
		p := math.Exp(float64(logits[i])/0.8) / sum
		if i == 2 || i == 4 {
			p = 0
		}
		require.InDelta(t, p, n/draws, 5*math.Sqrt(p*(1-p)/draws), "id %d", i) // five standard deviations
	}
}

func TestEqualSeedsGiveEqualTokens(t *testing.T) {
	c := samplingCases(t)[0]
	draw := func(seed uint64) (ids []int32) {
		o := c.options()
		o.Seed = seed
		s, err := NewSampler(o)
		require.NoError(t, err)
		for range 50 {
			ids = append(ids, s.Next(c.Logits, c.History))
		}
		return ids
	}
	require.Equal(t, draw(1), draw(1))
	require.NotEqual(t, draw(1), draw(2))
	require.Equal(t, []int32{13, 20, 2, 19, 37, 22, 6, 0}, draw(1)[:8], "tokens of a seed are the same in every release")
}

func TestGreedy(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		logits  []float32
		history []int32
		penalty float64
		best    int32
	}{
		{[]float32{1, 3, 3, 2}, nil, 1, 1},
		{[]float32{1, 3, 2.5, 2}, []int32{1, 1, 99, -1}, 1.3, 2}, // once, however often it was seen
		{[]float32{-1, -1.1}, []int32{0}, 1.2, 1},
		{[]float32{nan, -1, nan}, nil, 1, 1},
		{[]float32{1, inf, 2}, nil, 1, 1},
		{[]float32{nan, -inf}, nil, 1, -1},
		{nil, nil, 1, -1},
	} {
		for _, temperature := range []float64{0, 1e-6} {
			o := GreedyOptions()
			o.Temperature, o.RepetitionPenalty = temperature, c.penalty
			s, err := NewSampler(o)
			require.NoError(t, err)
			if temperature > 0 && len(c.logits) > 2 && c.logits[1] == c.logits[2] {
				continue // a tie is drawn
			}
			require.Equal(t, c.best, s.Next(c.logits, c.history), "%v", c.logits)
		}
	}
}

// The coldest temperatures overflow float32, or underflow it themselves; that is greedy then, not noise.
func TestColdIsGreedy(t *testing.T) {
	for _, logits := range [][]float32{{1, 9, 3}, {-9, -1, -3}, {-1, 0, -1}} {
		for _, temperature := range []float64{1e-30, 1e-39, 1e-44, 1e-60, 5e-324} {
			o := GreedyOptions()
			o.Temperature = temperature
			s, err := NewSampler(o)
			require.NoError(t, err)
			for range 5 {
				require.EqualValues(t, 1, s.Next(logits, nil), "%v at %g", logits, temperature)
			}
		}
	}
}

func TestSamplingOptionsAreChecked(t *testing.T) {
	nan := math.NaN()
	for problem, change := range map[string]func(*SamplingOptions){
		"--temperature is -1, expected 0 or more":       func(o *SamplingOptions) { o.Temperature = -1 },
		"--temperature is NaN, expected 0 or more":      func(o *SamplingOptions) { o.Temperature = nan },
		"--temperature is +Inf, expected 0 or more":     func(o *SamplingOptions) { o.Temperature = math.Inf(1) },
		"--top-k is -2, expected 0 or more":             func(o *SamplingOptions) { o.TopK = -2 },
		"--top-p is 0, expected above 0, at most 1":     func(o *SamplingOptions) { o.TopP = 0 },
		"--top-p is NaN, expected above 0, at most 1":   func(o *SamplingOptions) { o.TopP = nan },
		"--top-p is 1.5, expected above 0, at most 1":   func(o *SamplingOptions) { o.TopP = 1.5 },
		"--min-p is 2, expected 0 to 1":                 func(o *SamplingOptions) { o.MinP = 2 },
		"--min-p is NaN, expected 0 to 1":               func(o *SamplingOptions) { o.MinP = nan },
		"--repetition-penalty is 0, expected above 0":   func(o *SamplingOptions) { o.RepetitionPenalty = 0 },
		"--repetition-penalty is NaN, expected above 0": func(o *SamplingOptions) { o.RepetitionPenalty = nan },
	} {
		o := GreedyOptions()
		change(&o)
		_, err := NewSampler(o)
		require.EqualError(t, err, problem)
		require.Equal(t, fault.Usage, fault.KindOf(err))
	}
}

func TestSamplingDoesNotAllocate(t *testing.T) {
	c := samplingCases(t)[44]
	o := c.options()
	s, err := NewSampler(o)
	require.NoError(t, err)
	s.Next(c.Logits, c.History)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Next(c.Logits, c.History) }))
}
