package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Comparison is how a model differs from a reference over one text.
type Comparison struct {
	Tokens int `json:"tokens"`

	KL           float64 `json:"kl"`     // mean over the tokens of KL(reference || model), in nats
	MaxKL        float64 `json:"max_kl"` // its largest value, and at which token
	MaxKLAt      int     `json:"max_kl_at"`
	Top1         float64 `json:"top1_agreement"`     // share of tokens after which both find the same token best
	FirstTop1    int     `json:"first_disagreement"` // first token, from the one asked for on, after which they do not; -1: none
	NLL          float64 `json:"nll"`                // mean negative log likelihood of each next token, in nats
	ReferenceNLL float64 `json:"reference_nll"`      // the same under the reference
	FirstLayer   int     `json:"first_layer"`        // first layer that leaves another residual stream; -1: none does
	Once         int     `json:"layers_once"`        // layers computed once for both
	// Differing names modules of the first layer, used here, whose weights or scales differ; known where weights are shared.
	Differing []string          `json:"differing_modules"`
	Layers    []LayerDifference `json:"layers"`
	Time      time.Duration     `json:"ns"`
}

// LayerDifference is the difference of the residual streams after one layer.
type LayerDifference struct {
	Layer       int     `json:"layer"`
	RelativeRMS float64 `json:"relative_rms"` // rms(model - reference) / rms(reference)
	MaxAbs      float64 `json:"max_abs"`
	squares     [2]float64
}

// Compare runs two models over the same tokens. What both compute alike is computed once: a layer whose input is the same bit by bit so far,
// and whose weights are, as far as the tokens use them. For that the model must have been loaded beside the reference.
// from is the first token that FirstTop1 looks at: with the last token of a prompt, FirstTop1 is where a greedy answer of the model first
// differs from that of the reference.
func Compare(ctx context.Context, model, reference *Model, ids []int32, from int) (*Comparison, error) {
	start := time.Now()
	if model.Config.Vocab != reference.Config.Vocab {
		return nil, refuseConfig("only checkpoints of one model can be compared", "vocab_size is %d here and %d there",
			model.Config.Vocab, reference.Config.Vocab)
	}
	if len(model.layers) != len(reference.layers) || model.Config.Hidden != reference.Config.Hidden {
		return nil, refuseConfig("only checkpoints of one model can be compared", "%d layers of width %d here, %d of width %d there",
			len(model.layers), model.Config.Hidden, len(reference.layers), reference.Config.Hidden)
	}
	p := comparer{alikeSoFar: make([]bool, len(model.layers)), out: &Comparison{Tokens: len(ids), FirstTop1: -1, FirstLayer: -1}, from: from}
	for i := range p.alikeSoFar {
		p.alikeSoFar[i] = true
	}
	p.out.Layers = make([]LayerDifference, len(model.layers))
	for _, x := range []struct {
		s *(*Session)
		m *Model
	}{{&p.a, model}, {&p.b, reference}} {
		var err error
		if *x.s, err = x.m.NewSession(max(len(ids), 1)); err != nil {
			return nil, err
		}
		if err := (*x.s).check(ids); err != nil {
			return nil, err
		}
	}
	reference.shared.mu.Lock()
	defer reference.shared.mu.Unlock()
	if model.shared != reference.shared {
		model.shared.mu.Lock()
		defer model.shared.mu.Unlock()
	}
	for at := 0; at < len(ids); at += chunkRows {
		if err := p.chunk(ctx, ids, at, min(at+chunkRows, len(ids))); err != nil {
			return nil, err
		}
	}
	p.finish()
	p.out.Time = time.Since(start)
	return p.out, nil
}

// comparer runs two sessions side by side: a is the model's, b the reference's.
type comparer struct {
	a, b       *Session
	alikeSoFar []bool // by layer: all earlier chunks went in alike, so keys and values are
	once       []bool
	from       int
	out        *Comparison
	agree      int
}

func (p *comparer) chunk(ctx context.Context, ids []int32, from, to int) error {
	T, a, b := to-from, p.a, p.b
	n := T * a.model.Config.Hidden
	for _, s := range []*Session{a, b} {
		if err := s.begin(ids[from:to]); err != nil {
			return err
		}
	}
	if p.once == nil {
		p.once = slices.Repeat([]bool{true}, len(a.model.layers))
	}
	alike := equalFloats(a.x[:n], b.x[:n])
	for i := range a.model.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.runLayer(i, T); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		p.alikeSoFar[i] = p.alikeSoFar[i] && alike
		same := false
		if p.alikeSoFar[i] {
			var err error
			if same, err = p.sameLayer(i); err != nil {
				return err
			}
		}
		if same {
			copy(a.x[:n], b.x[:n])
			a.cache[i].copyRange(&b.cache[i], a.position, T)
			continue
		}
		p.once[i] = false
		if err := a.runLayer(i, T); err != nil {
			return err
		}
		p.difference(i, a.x[:n], b.x[:n])
		alike = alike && equalFloats(a.x[:n], b.x[:n])
	}
	a.position, b.position = to, to
	return p.tokens(ids, from, to)
}

func (p *comparer) difference(layer int, a, b []float32) {
	d := &p.out.Layers[layer]
	for i, x := range b {
		diff := float64(a[i]) - float64(x)
		d.squares[0] += diff * diff
		d.squares[1] += float64(x) * float64(x)
		d.MaxAbs = max(d.MaxAbs, math.Abs(diff))
	}
	if first := p.out.FirstLayer; d.squares[0] > 0 && (first < 0 || layer <= first) {
		if p.out.FirstLayer = layer; layer != first {
			p.out.Differing = nil
		}
		p.name(layer)
	}
}

// name lists what differs in a layer, as far as the tokens used it.
func (p *comparer) name(layer int) {
	l := &p.a.model.layers[layer]
	add := func(module string) {
		if !slices.Contains(p.out.Differing, module) {
			p.out.Differing = append(p.out.Differing, module)
		}
	}
	for _, m := range l.matrices() {
		if p.a.model.options.Beside == p.b.model && !m.same {
			add(m.module)
		}
	}
	for i := range l.experts {
		if e := &l.experts[i]; e.same == different {
			for j, m := range e.matrices() {
				if same, err := m.sameAs(e.twin.matrices()[j]); err == nil && !same {
					add(m.module)
				}
			}
		}
	}
}

// sameLayer reports whether a layer of the model is known to compute what the reference's did just now.
func (p *comparer) sameLayer(i int) (bool, error) {
	a, b := p.a.model, p.b.model
	x, y := &a.layers[i], &b.layers[i]
	if a.options.Beside != b || x.LayerConfig != y.LayerConfig || a.options.KV != b.options.KV ||
		x.gateInput != y.gateInput || x.downInput != y.downInput || !a.Config.sameArithmetic(b.Config) {
		return false, nil
	}
	if a.options.KV == KVFP8 && (x.kScale != y.kScale || x.vScale != y.vScale) {
		return false, nil
	}
	for _, v := range [][2][]float32{{x.inputNorm, y.inputNorm}, {x.postNorm, y.postNorm}, {x.qNorm, y.qNorm}, {x.kNorm, y.kNorm}, {x.bias, y.bias}} {
		if !equalFloats(v[0], v[1]) {
			return false, nil
		}
	}
	for _, m := range x.matrices() {
		if !m.same {
			return false, nil
		}
	}
	for j := range x.experts {
		if p.b.counts[j] == p.b.counts[j+1] { // no token chose it
			continue
		}
		e := &x.experts[j]
		if e.same == unknown {
			if err := e.compareTwin(); err != nil {
				return false, err
			}
		}
		if e.same == different {
			return false, nil
		}
	}
	return true, nil
}

func (c *Config) sameArithmetic(d *Config) bool {
	return c.KVHeads == d.KVHeads && c.HeadDim == d.HeadDim && c.Eps == d.Eps && c.Experts == d.Experts && c.TopK == d.TopK &&
		c.RoutedScaling == d.RoutedScaling && c.NormTopK == d.NormTopK && c.Softcap == d.Softcap && c.Score == d.Score
}

func equalFloats(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// tokens compares the logits after each token of a chunk.
func (p *comparer) tokens(ids []int32, from, to int) error {
	vocab := p.a.model.Config.Vocab
	for row := from; row < to; row += logitRows {
		n := min(logitRows, to-row)
		a, err := p.a.readLogits(row-from, n)
		if err != nil {
			return err
		}
		b, err := p.b.readLogits(row-from, n)
		if err != nil {
			return fmt.Errorf("reference: %w", err)
		}
		for i := range n {
			if err := p.token(ids, row+i, a[i*vocab:(i+1)*vocab], b[i*vocab:(i+1)*vocab]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *comparer) token(ids []int32, at int, a, b []float32) error {
	for _, x := range [][]float32{a, b} {
		if err := finite(x, len(p.a.model.layers)-1); err != nil {
			return err
		}
	}
	out := p.out
	bestA, bestB := bestToken(a), bestToken(b)
	if bestA == bestB {
		p.agree++
	} else if out.FirstTop1 < 0 && at >= p.from {
		out.FirstTop1 = at
	}
	logA, logB := logSum(a), logSum(b)
	var kl float64
	for i, x := range b {
		lb := float64(x) - logB
		kl += math.Exp(lb) * (lb - (float64(a[i]) - logA))
	}
	kl = max(kl, 0) // rounding may leave -1e-16
	out.KL += kl
	if kl > out.MaxKL {
		out.MaxKL, out.MaxKLAt = kl, at
	}
	if at+1 < len(ids) {
		next := ids[at+1]
		out.NLL += logA - float64(a[next])
		out.ReferenceNLL += logB - float64(b[next])
	}
	return nil
}

// logSum is log(sum(exp(x))).
func logSum(x []float32) float64 {
	top := float64(slices.Max(x))
	var sum float64
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

func (p *comparer) finish() {
	n := float64(p.out.Tokens)
	p.out.KL /= n
	p.out.Top1 = float64(p.agree) / n
	if n > 1 {
		p.out.NLL /= n - 1
		p.out.ReferenceNLL /= n - 1
	}
	for i := range p.out.Layers {
		d := &p.out.Layers[i]
		if d.Layer = i; d.squares[1] > 0 {
			d.RelativeRMS = math.Sqrt(d.squares[0] / d.squares[1])
		}
		if p.once[i] {
			p.out.Once++
		}
	}
}
