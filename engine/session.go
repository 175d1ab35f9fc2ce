package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lagquant/lagquant/internal/fault"
)

// ErrNotFinite means that the model computes infinities or NaN.
var ErrNotFinite = errors.New("not finite")

// Stats counts what a session has done.
type Stats struct {
	PromptTokens  int           `json:"prompt_tokens"`
	PromptTime    time.Duration `json:"prompt_ns"`
	Steps         int           `json:"steps"` // tokens that went through the model one at a time: without the last generated one
	GenerateTime  time.Duration `json:"generate_ns"`
	PromptBytes   int64         `json:"prompt_weight_bytes"`   // weight bytes that the prompt's products went over
	GenerateBytes int64         `json:"generate_weight_bytes"` // the same of single steps
	WeightBytes   int64         `json:"weight_bytes"`          // of both
	FileBytes     int64         `json:"file_bytes"`            // of those, read from the files and not found in memory
	ExpertHits    int64         `json:"expert_hits"`           // experts found in the cache
	ExpertReads   int64         `json:"expert_reads"`          // experts read from the files
}

// PromptRate returns prompt tokens a second.
func (s Stats) PromptRate() float64 { return rate(s.PromptTokens, s.PromptTime) }

// GenerateRate returns steps a second.
func (s Stats) GenerateRate() float64 { return rate(s.Steps, s.GenerateTime) }

// BytesPerToken returns the weight bytes that one generated token needs.
func (s Stats) BytesPerToken() int64 { return s.GenerateBytes / int64(max(s.Steps, 1)) }

// BytesPerSecond returns the rate at which generation went over weights.
func (s Stats) BytesPerSecond() float64 {
	return float64(s.GenerateBytes) / max(s.GenerateTime.Seconds(), 1e-9)
}

func rate(n int, d time.Duration) float64 { return float64(n) / max(d.Seconds(), 1e-9) }

// chunkRows is the number of prompt tokens that go through the model at once: weights are read once for all of them.
const chunkRows = 512

// Session is one sequence: its keys and values, and the run state of a forward pass over a chunk of T tokens. A session is for one goroutine.
type Session struct {
	Stats Stats

	// OnLayer, where set, sees the residual stream after each layer: rows [T, hidden] of the tokens at positions first to first+T-1. This is
	// where a draft takes its context features. The rows are valid during the call.
	OnLayer func(layer, first int, rows []float32)

	model     *Model
	position  int // tokens in the cache
	positions int // that fit
	cache     []kvCache

	// Run state. Sizes are for the largest chunk so far; T is the chunk's tokens, P the rows of a wave of experts.
	tokens  []int32     // [T]
	x       []float32   // [T, hidden] residual stream
	a       []float32   // [T, hidden] normalised input
	q, o    []float32   // [T, heads*dim] queries, attention output
	k, v    []float32   // [T, kv*dim]
	g       []float32   // [T, heads or heads*dim] gates
	y       []float32   // [T, hidden] what attention or routed experts add
	cos     [][]float32 // by RoPE: [T, dims/2]
	sin     [][]float32
	scores  [][]float32 // by worker: [heads of a key/value head, positions]
	kvBufs  [][]float32 // by worker: [fp8Rows, dim]
	router  []float32   // [T, experts] scores
	picks   []int32     // [T, topK] experts chosen, ascending
	weights []float32   // [T, topK]
	slots   []int32     // [T, topK] where a pick's row stands among all pairs
	counts  []int32     // [experts+1] first pair of each expert
	pairs   []int32     // [T*topK] token of each pair, by expert

	blocks    []block   // of the wave
	rowToken  []int32   // [P]
	rowBlock  []int32   // [P]
	gateIn    []float32 // [P, hidden] the wave's inputs, under W4A4 quantized
	upIn      []float32 // [P, hidden] those of up, where they are not gate's
	h, u      []float32 // [P, width]
	e         []float32 // [P, hidden] what the wave's experts return
	wave      []*expert
	loads     []*expert
	logits    []float32 // [logitRows, vocab]
	embedding []byte    // one row
	products  []product
	streams   [][]byte // by worker
	layer     *layer   // being computed
	index     int      // of it
	kv        *kvCache // of it
	rows      int      // T
	firstPair int      // of the wave
	width     int      // of the wave's experts

	broken atomic.Int32 // first layer whose input is not finite, and 1; 0: none
	errMu  sync.Mutex
	err    error
}

// NewSession makes an empty sequence with room for so many positions. Their keys and values are set aside at once, beside Options.Memory.
func (m *Model) NewSession(positions int) (*Session, error) {
	if err := m.checkPositions(positions); err != nil {
		return nil, err
	}
	c, workers := m.Config, m.shared.pool.workers
	s := &Session{model: m, positions: positions, cache: make([]kvCache, len(m.layers))}
	for i := range s.cache {
		s.cache[i] = newKVCache(c, &m.layers[i], m.options.KV, positions, chunkRows)
	}
	s.scores, s.kvBufs, s.streams = make([][]float32, workers), make([][]float32, workers), make([][]byte, workers)
	scores := m.scores(positions)
	for i := range s.scores {
		s.scores[i] = make([]float32, scores)
		if m.options.KV == KVFP8 {
			s.kvBufs[i] = make([]float32, fp8Rows*c.HeadDim)
		}
	}
	s.cos, s.sin = make([][]float32, len(m.ropes)), make([][]float32, len(m.ropes))
	s.counts = make([]int32, c.Experts+1)
	s.logits = make([]float32, logitRows*c.Vocab)
	s.embedding = make([]byte, 2*c.Hidden)
	return s, nil
}

// checkPositions refuses a session that is longer than the context, or too large for memory.
func (m *Model) checkPositions(positions int) error {
	if positions < 1 || positions > m.options.Context {
		return contextError(positions, m.options.Context)
	}
	return m.fits(positions, freeMemory())
}

// scores returns how many attention scores a worker computes at once: those of the heads that share one key/value head, over all keys of a layer.
func (m *Model) scores(positions int) (n int) {
	for _, l := range m.Config.Layers {
		n = max(n, l.Heads/m.Config.KVHeads*l.slots(positions, chunkRows))
	}
	return n
}

// fits refuses a session whose keys, values and attention scores are larger than the memory that is free.
func (m *Model) fits(positions int, free int64) error {
	need := m.kvBytes(positions) + 4*int64(m.shared.pool.workers)*int64(m.scores(positions))
	if need <= free {
		return nil
	}
	return &fault.Error{
		Kind: fault.Usage, Err: ErrContext,
		Problem: fmt.Sprintf("attention over %d tokens takes %d MiB, and %d MiB are free", positions, need>>20, free>>20),
		Hint:    "ask for fewer tokens, less memory for weights or fp8 keys and values",
	}
}

func contextError(positions, context int) error {
	return &fault.Error{
		Kind: fault.Usage, Err: ErrContext, Problem: fmt.Sprintf("%d tokens do not fit into the context of %d", positions, context),
		Hint: "shorten the prompt or --max-tokens; the context is max_position_embeddings of config.json",
	}
}

// Position returns the number of tokens in the session.
func (s *Session) Position() int { return s.position }

// Snapshot returns the session's statistics, with those of the expert cache, which all sessions share.
func (s *Session) Snapshot() Stats {
	cache := &s.model.shared.cache
	s.Stats.ExpertHits, s.Stats.ExpertReads = cache.hits, cache.reads
	return s.Stats
}

// Truncate forgets the tokens from position on. Only what the last chunk added can be forgotten: sliding layers keep no more.
func (s *Session) Truncate(position int) { s.position = min(max(position, 0), s.position) }

// Prefill appends tokens and returns the logits [vocab] after the last one, valid until the session is used again.
func (s *Session) Prefill(ctx context.Context, ids []int32) ([]float32, error) {
	return s.append(ctx, ids, nil)
}

// PrefillAll appends tokens and visits the logits after each of them in order. The logits are valid during the call.
func (s *Session) PrefillAll(ctx context.Context, ids []int32, visit func(i int, logits []float32) error) error {
	_, err := s.append(ctx, ids, visit)
	return err
}

// Step appends one token and returns the logits [vocab] after it, valid until the session is used again.
func (s *Session) Step(ctx context.Context, id int32) ([]float32, error) {
	start, before := time.Now(), s.Stats.WeightBytes
	s.tokens = append(s.tokens[:0], id)
	if err := s.check(s.tokens); err != nil {
		return nil, err
	}
	s.model.shared.mu.Lock()
	defer s.model.shared.mu.Unlock()
	if err := s.forward(ctx, s.tokens); err != nil {
		return nil, err
	}
	logits, err := s.readLogits(0, 1)
	s.Stats.Steps++
	s.Stats.GenerateTime += time.Since(start)
	s.Stats.GenerateBytes += s.Stats.WeightBytes - before
	return logits, err
}

func (s *Session) append(ctx context.Context, ids []int32, visit func(i int, logits []float32) error) (logits []float32, err error) {
	start, before := time.Now(), s.Stats.WeightBytes
	if err := s.check(ids); err != nil {
		return nil, err
	}
	s.model.shared.mu.Lock()
	defer s.model.shared.mu.Unlock()
	for from := 0; from < len(ids); from += chunkRows {
		chunk := ids[from:min(from+chunkRows, len(ids))]
		if err := s.forward(ctx, chunk); err != nil {
			return nil, err
		}
		if visit == nil {
			if from+len(chunk) == len(ids) {
				logits, err = s.readLogits(len(chunk)-1, 1)
			}
			continue
		}
		for row := 0; row < len(chunk) && err == nil; row += logitRows {
			n := min(logitRows, len(chunk)-row)
			logits, err = s.readLogits(row, n)
			for i := 0; i < n && err == nil; i++ {
				err = visit(from+row+i, logits[i*s.model.Config.Vocab:][:s.model.Config.Vocab])
			}
		}
		if err != nil {
			return nil, err
		}
	}
	s.Stats.PromptTokens += len(ids)
	s.Stats.PromptTime += time.Since(start)
	s.Stats.PromptBytes += s.Stats.WeightBytes - before
	return logits, err
}

// check refuses what would leave the cache or the vocabulary.
func (s *Session) check(ids []int32) error {
	if len(ids) == 0 {
		return &fault.Error{Kind: fault.Usage, Problem: "the prompt has no tokens"}
	}
	if n := s.position + len(ids); n > s.positions {
		return contextError(n, s.positions)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= s.model.Config.Vocab {
			return &fault.Error{
				Kind: fault.Refused, Problem: fmt.Sprintf("token %d has id %d but vocab_size is %d", i, id, s.model.Config.Vocab),
				Hint: "tokenizer.json and config.json are of different models",
			}
		}
	}
	return nil
}

// grow makes the run state large enough for a chunk.
func (s *Session) grow(rows int) {
	c := s.model.Config
	if len(s.x) >= rows*c.Hidden {
		return
	}
	heads, gates, width := 0, 0, 0
	for i := range s.model.layers {
		l := &s.model.layers[i]
		heads, width = max(heads, l.Heads), max(width, l.mlp.width)
		if l.g != nil {
			gates = max(gates, l.g.rows)
		}
	}
	floats := func(n int) []float32 { return make([]float32, n) }
	s.x, s.a, s.y = floats(rows*c.Hidden), floats(rows*c.Hidden), floats(rows*c.Hidden)
	s.q, s.o, s.g = floats(rows*heads*c.HeadDim), floats(rows*heads*c.HeadDim), floats(rows*gates)
	s.k, s.v = floats(rows*c.KVHeads*c.HeadDim), floats(rows*c.KVHeads*c.HeadDim)
	for i, r := range s.model.ropes {
		s.cos[i], s.sin[i] = floats(rows*len(r.inverse)), floats(rows*len(r.inverse))
	}
	s.router, s.weights = floats(rows*c.Experts), floats(rows*c.TopK)
	s.picks, s.slots, s.pairs = make([]int32, rows*c.TopK), make([]int32, rows*c.TopK), make([]int32, rows*c.TopK)

	p := max(2*rows, c.TopK)
	s.rowToken, s.rowBlock = make([]int32, p), make([]int32, p)
	s.gateIn, s.upIn, s.e = floats(p*c.Hidden), floats(p*c.Hidden), floats(p*c.Hidden)
	n := max(rows*width, p*c.ExpertWidth)
	s.h, s.u = floats(n), floats(n)
}
