package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
)

// This file is the model: T tokens go through it from top to bottom. Everything is float32; shapes are in brackets, row-major. Functions that
// end in Row are jobs: they handle one token, or one row of a wave, on some worker.

// ---------------------------------------------------------------------------------------------------------------------------------------
// The pass

// forward appends the tokens to the session and leaves the residual stream after the last layer in s.x [T, hidden].
func (s *Session) forward(ctx context.Context, ids []int32) error {
	if err := s.begin(ids); err != nil {
		return err
	}
	for i := range s.model.layers {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.runLayer(i, len(ids)); err != nil {
			return err
		}
	}
	s.position += len(ids)
	return nil
}

// begin embeds the tokens (plain rows, no scaling) and computes the angles of their positions.
func (s *Session) begin(ids []int32) error {
	m, hidden := s.model, s.model.Config.Hidden
	s.grow(len(ids))
	s.broken.Store(0)
	for t, id := range ids {
		if err := m.embedding.read(s.embedding, int(id)*len(s.embedding)); err != nil {
			return err
		}
		for i := range hidden {
			s.x[t*hidden+i] = quant.BF16ToFloat32(uint16(s.embedding[2*i]) | uint16(s.embedding[2*i+1])<<8)
		}
		for r, table := range m.ropes {
			n := len(table.inverse)
			table.table(s.cos[r][t*n:(t+1)*n], s.sin[r][t*n:(t+1)*n], table.inverse, s.position+t)
		}
	}
	return nil
}

// runLayer is h = x + attention(norm(x)); x = h + mlp(norm(h)).
func (s *Session) runLayer(i, T int) error {
	s.index, s.layer, s.kv = i, &s.model.layers[i], &s.cache[i]
	if err := s.attention(T); err != nil {
		return err
	}
	if err := s.feedForward(T); err != nil {
		return err
	}
	if n := s.broken.Load(); n > 0 {
		return notFinite(int(n) - 1)
	}
	if s.OnLayer != nil {
		s.OnLayer(i, s.position, s.x[:T*s.model.Config.Hidden])
	}
	return nil
}

func notFinite(layer int) error {
	return &fault.Error{
		Kind: fault.Findings, Tensor: fmt.Sprintf("model.layers.%d", layer), Err: ErrNotFinite,
		Problem: "the residual stream that goes into this layer or its MLP is infinite or NaN",
		Hint:    "a scale of this layer or of the one before is wrong; see lagquant verify",
	}
}

// readLogits is the final norm and the head for some rows of s.x: [n, vocab].
func (s *Session) readLogits(row, n int) ([]float32, error) {
	m, c := s.model, s.model.Config
	for t := range n {
		x := s.x[(row+t)*c.Hidden:][:c.Hidden]
		if !rmsNorm(s.a[t*c.Hidden:][:c.Hidden], x, m.norm, c.Eps) {
			return nil, notFinite(len(m.layers) - 1)
		}
	}
	logits := s.logits[:n*c.Vocab]
	s.add(m.head, s.a, logits, n)
	return logits, s.multiply()
}

// logitRows bounds the logits in memory: 16 rows of the full vocabulary are 6 MB.
const logitRows = 16

// ---------------------------------------------------------------------------------------------------------------------------------------
// Attention

func (s *Session) attention(T int) error {
	l, pool := s.layer, s.model.shared.pool
	pool.run(s, T, (*Session).inputNormRow)
	s.add(l.q, s.a, s.q, T) // [T, heads*dim]
	s.add(l.k, s.a, s.k, T) // [T, kv*dim]
	s.add(l.v, s.a, s.v, T) // [T, kv*dim]
	if l.g != nil {
		s.add(l.g, s.a, s.g, T) // [T, heads] or [T, heads*dim]
	}
	if err := s.multiply(); err != nil {
		return err
	}
	pool.run(s, T, (*Session).positionRow)
	s.rows = T
	pool.run(s, T*s.model.Config.KVHeads, (*Session).attend)
	s.add(l.o, s.o, s.y, T) // [T, hidden]
	if err := s.multiply(); err != nil {
		return err
	}
	pool.run(s, T, (*Session).postNormRow)
	return nil
}

func (s *Session) inputNormRow(_, t int) {
	n, eps := s.model.Config.Hidden, s.model.Config.Eps
	if !rmsNorm(s.a[t*n:(t+1)*n], s.x[t*n:(t+1)*n], s.layer.inputNorm, eps) {
		s.broken.CompareAndSwap(0, int32(s.index+1))
	}
}

// positionRow normalises each head of q and k, turns them by their position, scales q for the softmax, and stores k and v.
func (s *Session) positionRow(_, t int) {
	c, l := s.model.Config, s.layer
	half, dim := len(l.rope.inverse), c.HeadDim
	cos, sin := s.cos[l.rope.index][t*half:(t+1)*half], s.sin[l.rope.index][t*half:(t+1)*half]
	q, k := s.q[t*l.Heads*dim:(t+1)*l.Heads*dim], s.k[t*c.KVHeads*dim:(t+1)*c.KVHeads*dim]
	for h := 0; h < len(q); h += dim {
		rmsNorm(q[h:h+dim], q[h:h+dim], l.qNorm, c.Eps)
		rotate(q[h:h+dim], cos, sin)
	}
	scale := float32(1 / math.Sqrt(float64(dim)))
	for i := range q {
		q[i] *= scale
	}
	for h := 0; h < len(k); h += dim {
		rmsNorm(k[h:h+dim], k[h:h+dim], l.kNorm, c.Eps)
		rotate(k[h:h+dim], cos, sin)
	}
	s.kv.put(s.position+t, k, s.v[t*len(k):(t+1)*len(k)])
}

// attend computes the heads of one token that share one key/value head, gated: rows of s.o [T, heads*dim]. All tokens of one such head come
// one after the other, while its keys and values are in a core's cache.
func (s *Session) attend(worker, piece int) {
	c, l := s.model.Config, s.layer
	kvHead, t, dim := piece/s.rows, piece%s.rows, c.HeadDim
	position, first := s.position+t, 0
	if l.Window > 0 {
		first = max(position-l.Window+1, 0) // a query sees Window keys, its own among them
	}
	group, keys := l.Heads/c.KVHeads, position-first+1
	from := t*l.Heads + kvHead*group
	rows := func(x []float32) quant.Matrix {
		return quant.Matrix{Data: x[from*dim : (from+group)*dim], Rows: group, Cols: dim, Stride: dim}
	}
	p := quant.Matrix{Data: s.scores[worker][:group*keys], Rows: group, Cols: keys, Stride: keys}
	s.kv.dots(p, rows(s.q), kvHead, first, s.kvBufs[worker])
	for h := range group {
		softmax(p.Data[h*keys : (h+1)*keys])
	}
	out := rows(s.o)
	s.kv.sum(out, p, kvHead, first, s.kvBufs[worker])
	if l.g == nil {
		return
	}
	elements := l.Heads * dim / l.g.rows // that one gate is for: a head's, or one
	for i := 0; i < len(out.Data); i += elements {
		gate := softplus(s.g[(from*dim+i)/elements])
		for j := range elements {
			out.Data[i+j] *= gate
		}
	}
}

// postNormRow adds the attention's output to the residual stream and normalises for the MLP.
func (s *Session) postNormRow(_, t int) {
	n, eps := s.model.Config.Hidden, s.model.Config.Eps
	x := s.x[t*n : (t+1)*n]
	for i, v := range s.y[t*n : (t+1)*n] {
		x[i] += v
	}
	if !rmsNorm(s.a[t*n:(t+1)*n], x, s.layer.postNorm, eps) {
		s.broken.CompareAndSwap(0, int32(s.index+1))
	}
}

// ---------------------------------------------------------------------------------------------------------------------------------------
// MLP and experts

// feedForward is x += mlp(a), or x += scaling * routed(a) + shared(a).
func (s *Session) feedForward(T int) error {
	if s.layer.Sparse {
		if err := s.routed(T); err != nil { // s.y [T, hidden]
			return err
		}
	}
	s.blocks = append(s.blocks[:0], block{gate: s.layer.mlp.gate, up: s.layer.mlp.up, down: s.layer.mlp.down, rows: T})
	for t := range T {
		s.rowToken[t], s.rowBlock[t] = int32(t), 0
	}
	if err := s.swiglu(s.layer.mlp.width, T); err != nil { // s.e [T, hidden]
		return err
	}
	s.model.shared.pool.run(s, T, (*Session).residualRow)
	return nil
}

func (s *Session) residualRow(_, t int) {
	n := s.model.Config.Hidden
	x, e := s.x[t*n:(t+1)*n], s.e[t*n:(t+1)*n]
	if !s.layer.Sparse {
		for i, v := range e {
			x[i] += v
		}
		return
	}
	y, scaling := s.y[t*n:(t+1)*n], s.model.Config.RoutedScaling
	for i, v := range e {
		x[i] += float32(y[i]*scaling) + v
	}
}

// routed computes the weighted sum of the chosen experts: s.y [T, hidden]. Tokens are grouped by expert, and the experts are computed in waves, in
// ascending order, so that each is read once for all its tokens.
func (s *Session) routed(T int) error {
	c := s.model.Config
	s.add(s.layer.router, s.a, s.router, T) // [T, experts]
	if err := s.multiply(); err != nil {
		return err
	}
	s.model.shared.pool.run(s, T, (*Session).routeRow)
	s.group(T)
	clear(s.y[:T*c.Hidden])
	for next := 0; next < c.Experts; {
		rows := s.nextWave(&next)
		if rows == 0 {
			continue
		}
		if err := s.fetch(s.wave); err != nil {
			return err
		}
		for i, e := range s.wave {
			b := &s.blocks[i]
			b.gate, b.up, b.down = e.gate, e.up, e.down
		}
		if err := s.swiglu(c.ExpertWidth, rows); err != nil { // s.e [rows, hidden]
			return err
		}
		s.model.shared.pool.run(s, T, (*Session).gatherRow)
	}
	return nil
}

// routeRow chooses the experts of a token by score plus bias, and weighs them by the score alone.
func (s *Session) routeRow(_, t int) {
	c := s.model.Config
	scores := s.router[t*c.Experts : (t+1)*c.Experts]
	c.score(scores)
	picks, weights := s.picks[t*c.TopK:(t+1)*c.TopK], s.weights[t*c.TopK:(t+1)*c.TopK]
	choose(picks, scores, s.layer.bias)
	var sum float32
	for i, e := range picks {
		weights[i] = scores[e]
		sum += weights[i]
	}
	if c.NormTopK {
		for i := range weights {
			weights[i] /= sum
		}
	}
}

// score turns router logits into scores in place.
func (c *Config) score(x []float32) {
	if cap := c.Softcap; cap > 0 {
		for i, v := range x {
			x[i] = cap * float32(math.Tanh(float64(v/cap)))
		}
	}
	switch c.Score {
	case ScoreSigmoid:
		for i, v := range x {
			x[i] = sigmoid(v)
		}
	case ScoreSqrtSoftplus:
		for i, v := range x {
			x[i] = float32(math.Sqrt(float64(softplus(v))))
		}
	case ScoreSoftmax:
		softmax(x)
	}
}

// choose writes the indexes of the largest score+bias in ascending order; of equals the first ones.
func choose(picks []int32, scores, bias []float32) {
	n := 0
	for e, score := range scores {
		value := score + bias[e]
		if n == len(picks) {
			worst := 0
			for i, p := range picks {
				if scores[p]+bias[p] <= scores[picks[worst]]+bias[picks[worst]] {
					worst = i
				}
			}
			if !(value > scores[picks[worst]]+bias[picks[worst]]) {
				continue
			}
			copy(picks[worst:], picks[worst+1:])
			n--
		}
		picks[n] = int32(e)
		n++
	}
}

// group orders the pairs of token and expert by expert: s.counts [experts+1], s.pairs [T*topK], s.slots [T, topK].
func (s *Session) group(T int) {
	picks := s.picks[:T*s.model.Config.TopK]
	clear(s.counts)
	for _, e := range picks {
		s.counts[e+1]++
	}
	for e := range s.model.Config.Experts {
		s.counts[e+1] += s.counts[e]
	}
	// Filling moves each expert's start to its end, which is the next one's start: shift back afterwards.
	for i, e := range picks {
		s.slots[i] = s.counts[e]
		s.pairs[s.counts[e]] = int32(i / s.model.Config.TopK)
		s.counts[e]++
	}
	copy(s.counts[1:], s.counts)
	s.counts[0] = 0
}

// waveExperts bounds a wave; the cache may bound it further.
const waveExperts = 32

// nextWave takes the next experts that have tokens, as many as the buffers hold, and returns the rows of the wave.
func (s *Session) nextWave(next *int) int {
	s.wave, s.blocks = s.wave[:0], s.blocks[:0]
	s.firstPair = int(s.counts[*next])
	rows, limit := 0, len(s.rowToken)
	for ; *next < s.model.Config.Experts && len(s.wave) < waveExperts; *next++ {
		e := &s.layer.experts[*next]
		from, to := int(s.counts[*next]), int(s.counts[*next+1])
		if from == to {
			continue
		}
		if rows+to-from > limit || len(s.wave) > 0 && int64(len(s.wave)+1)*int64(e.class.size) > e.class.budget {
			break
		}
		for _, t := range s.pairs[from:to] {
			s.rowToken[rows], s.rowBlock[rows] = t, int32(len(s.wave))
			rows++
		}
		s.wave = append(s.wave, e)
		s.blocks = append(s.blocks, block{rows: to - from, gateInput: s.layer.gateInput, downInput: s.layer.downInput})
	}
	return rows
}

// gatherRow adds what the wave's experts return for one token, in ascending order of experts.
func (s *Session) gatherRow(_, t int) {
	c := s.model.Config
	rows := 0
	for i := range s.blocks {
		rows += s.blocks[i].rows
	}
	y := s.y[t*c.Hidden : (t+1)*c.Hidden]
	for i := t * c.TopK; i < (t+1)*c.TopK; i++ {
		if row := int(s.slots[i]) - s.firstPair; row >= 0 && row < rows {
			addScaled(y, s.e[row*c.Hidden:(row+1)*c.Hidden], s.weights[i])
		}
	}
}

// ---------------------------------------------------------------------------------------------------------------------------------------
// SwiGLU

// block is one SwiGLU of a wave: its matrices, and how many of the wave's rows are its.
type block struct {
	gate, up, down *matrix
	rows           int
	// Input scales that stand for the matrices' own; 0: their own.
	gateInput, downInput float32
}

func (b *block) inputs() (gate, up, down float32) {
	gate, up, down = b.gate.inputGlobal, b.up.inputGlobal, b.down.inputGlobal
	if b.gateInput != 0 {
		gate, up = b.gateInput, b.gateInput
	}
	if b.downInput != 0 {
		down = b.downInput
	}
	return gate, up, down
}

// swiglu computes down(silu(gate a) * up a) for the rows of the wave: s.e [rows, hidden].
func (s *Session) swiglu(width, rows int) error {
	hidden := s.model.Config.Hidden
	s.width = width
	s.model.shared.pool.run(s, rows, (*Session).inputRow)
	at := 0
	for i := range s.blocks {
		b := &s.blocks[i]
		x := s.gateIn[at*hidden:]
		s.add(b.gate, x, s.h[at*width:], b.rows) // [rows, width]
		if gate, up, _ := b.inputs(); up != gate {
			x = s.upIn[at*hidden:]
		}
		s.add(b.up, x, s.u[at*width:], b.rows) // [rows, width]
		at += b.rows
	}
	if err := s.multiply(); err != nil {
		return err
	}
	s.model.shared.pool.run(s, rows, (*Session).activateRow)
	at = 0
	for i := range s.blocks {
		b := &s.blocks[i]
		s.add(b.down, s.h[at*width:], s.e[at*hidden:], b.rows) // [rows, hidden]
		at += b.rows
	}
	return s.multiply()
}

// inputRow brings the input of one row of the wave to its place, quantized under W4A4: once where gate and up share their scale.
func (s *Session) inputRow(_, row int) {
	n := s.model.Config.Hidden
	gate, up, _ := s.blocks[s.rowBlock[row]].inputs()
	a := s.a[int(s.rowToken[row])*n:][:n]
	quantizeInput(s.gateIn[row*n:(row+1)*n], a, gate)
	if up != gate {
		quantizeInput(s.upIn[row*n:(row+1)*n], a, up)
	}
}

// activateRow is h = silu(h) * u, quantized under W4A4.
func (s *Session) activateRow(_, row int) {
	h, u := s.h[row*s.width:(row+1)*s.width], s.u[row*s.width:(row+1)*s.width]
	for i, v := range h {
		h[i] = silu(v) * u[i]
	}
	_, _, down := s.blocks[s.rowBlock[row]].inputs()
	quantizeInput(h, h, down)
}
