package engine

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
)

// SamplingOptions choose the next token. GreedyOptions has the values that change nothing.
type SamplingOptions struct {
	Temperature       float64 // 0: the best token, without chance
	TopK              int     // keep the best k; 0: all
	TopP              float64 // keep the fewest best tokens that together have this probability; 1: all
	MinP              float64 // keep tokens with at least this share of the best one's probability; 0: all
	RepetitionPenalty float64 // divides positive logits of tokens seen so far and multiplies negative ones; 1: none
	Seed              uint64
}

// GreedyOptions takes the best token each time.
func GreedyOptions() SamplingOptions { return SamplingOptions{TopP: 1, RepetitionPenalty: 1} }

func (o SamplingOptions) check() error {
	for _, v := range []struct {
		option   string
		value    float64
		ok       bool
		expected string
	}{
		{"--temperature", o.Temperature, o.Temperature >= 0, "0 or more"},
		{"--top-k", float64(o.TopK), o.TopK >= 0, "0 or more"},
		{"--top-p", o.TopP, o.TopP > 0 && o.TopP <= 1, "above 0, at most 1"},
		{"--min-p", o.MinP, o.MinP >= 0 && o.MinP <= 1, "0 to 1"},
		{"--repetition-penalty", o.RepetitionPenalty, o.RepetitionPenalty > 0, "above 0"},
	} {
		if !v.ok || math.IsInf(v.value, 0) {
			return &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("%s is %v, expected %s", v.option, v.value, v.expected)}
		}
	}
	return nil
}

// Sampler draws tokens for one sequence. Equal options, seed and logits give equal tokens on every machine. After its first token it allocates nothing.
// It is not safe for concurrent use.
type Sampler struct {
	o      SamplingOptions
	random *rand.Rand

	scores []float32 // logits after the penalty and the temperature
	kept   []scored  // what the filters leave
	seen   []bool    // by id, false between calls
}

// scored is a token with its score, then its probability.
type scored struct {
	id    int32
	score float32
	p     float64
}

// NewSampler checks the options: the errors are of kind Usage and name the option.
func NewSampler(o SamplingOptions) (*Sampler, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Sampler{o: o, random: rand.New(rand.NewPCG(o.Seed, 0))}, nil
}

// Next returns the next token. logits has one value for each id and is left as it is; history is the prompt and what was generated so far. The order is
// that of transformers 5.17: repetition penalty, temperature, top-k, top-p, min-p. Without a logit above minus infinity (a broken model gives NaN) it is -1.
func (s *Sampler) Next(logits []float32, history []int32) int32 {
	s.scores = append(s.scores[:0], logits...)
	s.penalize(history)
	best := bestToken(s.scores)
	if s.o.Temperature == 0 || best < 0 || math.IsInf(float64(s.scores[best]), 1) {
		return best
	}
	s.scale()
	if top := float64(s.scores[best]); math.IsInf(top, 0) || math.IsNaN(top) {
		return best // so cold that float32 cannot tell
	}
	s.keep(best)
	return s.draw()
}

// bestToken returns the first of the largest values. NaN and minus infinity are passed over: -1 if there is nothing else.
func bestToken(v []float32) int32 {
	best, top := int32(-1), float32(math.Inf(-1))
	for i, x := range v {
		if x > top {
			best, top = int32(i), x
		}
	}
	return best
}

func (s *Sampler) penalize(history []int32) {
	if s.o.RepetitionPenalty == 1 {
		return
	}
	if len(s.seen) < len(s.scores) {
		s.seen = make([]bool, len(s.scores))
	}
	penalty := float32(s.o.RepetitionPenalty)
	for _, id := range history {
		if id < 0 || int(id) >= len(s.scores) || s.seen[id] {
			continue
		}
		s.seen[id] = true
		if s.scores[id] < 0 {
			s.scores[id] *= penalty
		} else {
			s.scores[id] /= penalty
		}
	}
	for _, id := range history {
		if id >= 0 && int(id) < len(s.seen) {
			s.seen[id] = false
		}
	}
}

func (s *Sampler) scale() {
	if s.o.Temperature == 1 {
		return
	}
	t := float32(s.o.Temperature)
	for i := range s.scores {
		s.scores[i] /= t
	}
}

// keep leaves the tokens that pass the filters in s.kept, with their probabilities, from the best down where an order was needed.
func (s *Sampler) keep(best int32) {
	s.kept = s.kept[:0]
	if s.o.TopK > 0 && s.o.TopK < len(s.scores) {
		s.keepTop(s.o.TopK)
	} else {
		for id, x := range s.scores {
			if x > float32(math.Inf(-1)) {
				s.kept = append(s.kept, scored{id: int32(id), score: x})
			}
		}
	}
	s.softmax(s.scores[best])
	if s.o.TopP < 1 {
		s.keepMass(s.o.TopP)
		s.softmax(s.scores[best])
	}
	if s.o.MinP > 0 {
		s.keepShare(s.o.MinP)
		s.softmax(s.scores[best])
	}
}

// keepTop keeps the k best tokens and all that tie with the last of them: one pass with a small heap whose root is the worst kept.
func (s *Sampler) keepTop(k int) {
	heap := s.kept[:0]
	for id, x := range s.scores {
		switch {
		case !(x > float32(math.Inf(-1))):
		case len(heap) < k:
			heap = append(heap, scored{id: int32(id), score: x})
			for i := len(heap) - 1; i > 0 && heap[i].score < heap[(i-1)/2].score; i = (i - 1) / 2 {
				heap[i], heap[(i-1)/2] = heap[(i-1)/2], heap[i]
			}
		case x > heap[0].score:
			heap[0] = scored{id: int32(id), score: x}
			siftDown(heap)
		}
	}
	if len(heap) < k {
		s.kept = heap
		return
	}
	worst := heap[0].score
	heap = heap[:0]
	for id, x := range s.scores {
		if x >= worst {
			heap = append(heap, scored{id: int32(id), score: x})
		}
	}
	s.kept = heap
}

func siftDown(h []scored) {
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(h) {
			return
		}
		if down+1 < len(h) && h[down+1].score < h[down].score {
			down++
		}
		if h[i].score <= h[down].score {
			return
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

// softmax fills in the probabilities among the kept tokens, of which top is the largest score.
func (s *Sampler) softmax(top float32) {
	sum := 0.0
	for i := range s.kept {
		s.kept[i].p = math.Exp(float64(s.kept[i].score) - float64(top))
		sum += s.kept[i].p
	}
	for i := range s.kept {
		s.kept[i].p /= sum
	}
}

// keepMass drops the worst tokens as long as the dropped ones together have at most 1-p. The best one stays.
func (s *Sampler) keepMass(p float64) {
	slices.SortFunc(s.kept, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.id, b.id))
	})
	dropped, n := 0.0, len(s.kept)
	for n > 1 && dropped+s.kept[n-1].p <= 1-p {
		n--
		dropped += s.kept[n].p
	}
	s.kept = s.kept[:n]
}

func (s *Sampler) keepShare(share float64) {
	top := 0.0
	for _, c := range s.kept {
		top = max(top, c.p)
	}
	s.kept = slices.DeleteFunc(s.kept, func(c scored) bool { return c.p < share*top })
}

func (s *Sampler) draw() int32 {
	u := s.random.Float64()
	for _, c := range s.kept {
		if u -= c.p; u < 0 {
			return c.id
		}
	}
	return s.kept[len(s.kept)-1].id // rounding: the probabilities sum to a little less than 1
}
