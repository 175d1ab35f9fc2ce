package engine

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func session(t testing.TB, m *Model, positions int) *Session {
	s, err := m.NewSession(positions)
	require.NoError(t, err)
	return s
}

func prefill(t testing.TB, m *Model, ids []int32) []float32 {
	logits, err := session(t, m, len(ids)).Prefill(context.Background(), ids)
	require.NoError(t, err)
	return append([]float32(nil), logits...)
}

// The same tokens at a time give the same bits, by however many workers and from wherever the weights come. Another number of tokens at a time
// may take other kernels, which sum in another order.
func TestSameLogitsHoweverItIsRun(t *testing.T) {
	ids := readGeneration(t).EvalIDs[:150]
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801")
	want := prefill(t, load(t, dir, Options{Workers: 1}), ids)
	for _, v := range []struct {
		name string
		opts Options
	}{
		{"three workers", Options{Workers: 3}},
		{"all experts fit, nothing else", Options{Memory: 1 << 20}},
		{"hardly anything fits", Options{Memory: 100 << 10}},
		{"nothing fits", Options{Memory: 1}},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := load(t, dir, v.opts)
			require.Equal(t, want, prefill(t, m, ids))
			if v.opts.Memory == 0 {
				return
			}
			var budgets int64
			for size, k := range m.shared.cache.classes {
				budgets += k.budget
				require.LessOrEqual(t, k.used, max(k.budget, int64(size)), "experts of %d bytes", size)
			}
			require.LessOrEqual(t, budgets, m.shared.cache.budget)
			require.Positive(t, m.shared.cache.reads)
		})
	}
	weightOnly := Options{Activations: W4A16} // quantized activations may jump where sums differ in the last place
	want = prefill(t, load(t, dir, weightOnly), ids)
	t.Run("token by token", func(t *testing.T) {
		s := session(t, load(t, dir, weightOnly), len(ids))
		var logits []float32
		var err error
		for _, id := range ids {
			logits, err = s.Step(context.Background(), id)
			require.NoError(t, err)
		}
		require.InDeltaSlice(t, want, logits, 1e-3)
	})
	t.Run("after a rejected draft", func(t *testing.T) {
		s := session(t, load(t, dir, weightOnly), len(ids)+8)
		_, err := s.Prefill(context.Background(), ids[:140])
		require.NoError(t, err)
		_, err = s.Prefill(context.Background(), []int32{7, 8, 9, 10, 11, 12})
		require.NoError(t, err)
		s.Truncate(140)
		logits, err := s.Prefill(context.Background(), ids[140:])
		require.NoError(t, err)
		require.InDeltaSlice(t, want, logits, 1e-3)
	})
	t.Run("logits of every row", func(t *testing.T) {
		s := session(t, load(t, dir, weightOnly), len(ids))
		next := 0
		require.NoError(t, s.PrefillAll(context.Background(), ids, func(i int, logits []float32) error {
			require.Equal(t, next, i)
			if next++; next == len(ids) {
				require.InDeltaSlice(t, want, logits, 1e-3)
			}
			return nil
		}))
		require.Equal(t, len(ids), next)
	})
}

func TestExpertCache(t *testing.T) {
	size := func(n int) *matrix { return &matrix{codes: extent{size: n}} }
	experts := make([]*expert, 4)
	for i := range experts {
		experts[i] = &expert{id: i, gate: size(10), up: size(10), down: size(20)}
	}
	small := &expert{gate: size(1), up: size(1), down: size(1)}
	c := expertCache{budget: 163}
	c.add(append(experts, small))
	require.Equal(t, int64(3), small.class.budget)
	c.budget = 120 // of which 117 are the four's, room for two
	c.add(nil)
	for _, e := range experts[:2] {
		require.True(t, c.touch(e))
	}
	require.False(t, c.touch(experts[0]))
	require.True(t, c.touch(experts[2]))
	require.Nil(t, experts[1].buf, "used longest ago")
	require.NotNil(t, experts[0].buf)
	require.Equal(t, int64(80), experts[0].class.used)
	experts[0].drop()
	experts[2].drop()
	require.True(t, c.touch(experts[0]))
	require.True(t, c.touch(experts[1]))
	require.NotSame(t, &experts[0].buf[0], &experts[1].buf[0], "a spare buffer goes to one expert")
	require.Equal(t, [2]int64{1, 5}, [2]int64{c.hits, c.reads})
}

// raceDetector is on in a build with -race, which is slow, and in which sync.Pool forgets at random.
var raceDetector bool

func TestStepsAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("sync.Pool allocates under the race detector")
	}
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801")
	for _, memory := range []int64{0, 1 << 20, 100 << 10} {
		m := load(t, dir, Options{Memory: memory, Activations: W4A4})
		s := session(t, m, 256)
		_, err := s.Prefill(context.Background(), readGeneration(t).EvalIDs[:32])
		require.NoError(t, err)
		step := func() {
			_, err := s.Step(context.Background(), 100+int32(s.Position()))
			require.NoError(t, err)
		}
		for range 20 {
			step()
		}
		require.Zero(t, testing.AllocsPerRun(20, step), "memory %d", memory)
	}
}

func TestFP8KeysAndValues(t *testing.T) {
	ids := readGeneration(t).EvalIDs[:100]
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0722")
	exact := prefill(t, load(t, dir, Options{}), ids)
	fp8 := prefill(t, load(t, dir, Options{KV: KVFP8}), ids)
	require.NotEqual(t, exact, fp8)
	require.Equal(t, argmax(exact), argmax(fp8))

	cache := newKVCache(&Config{KVHeads: 1, HeadDim: 4}, &layer{kScale: 0.031982421875, vScale: 0.00119781494140625}, KVFP8, 2, 1)
	cache.put(1, []float32{0.031982421875, -0.1, 20, 0}, []float32{1, -1, 0.5, 1e-9})
	value, buf := make([]float32, 4), make([]float32, fp8Rows*4)
	cache.sum(matrixOf(value, 4), matrixOf([]float32{1}, 1), 0, 1, buf)
	require.InDeltaSlice(t, []float32{448 * 0.00119781494140625, -448 * 0.00119781494140625, 416 * 0.00119781494140625, 0}, value, 1e-7)
	score := make([]float32, 1)
	cache.dots(matrixOf(score, 1), matrixOf([]float32{1, 0, 0, 0}, 4), 0, 1, buf)
	require.Equal(t, float32(0.031982421875), score[0])
}

// matrixOf is rows without gaps.
func matrixOf(x []float32, cols int) quant.Matrix {
	return quant.Matrix{Data: x, Rows: len(x) / cols, Cols: cols, Stride: cols}
}

func TestLayerInputScales(t *testing.T) {
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0722")
	m := load(t, dir, Options{Activations: W4A4, InputScales: InputScalesLayer})
	for i := range m.layers {
		l := &m.layers[i]
		for j := range l.experts {
			for k, x := range l.experts[j].matrices() {
				least := []float32{l.gateInput, l.gateInput, l.downInput}[k]
				require.LessOrEqual(t, least, x.inputGlobal)
			}
		}
	}
	require.Positive(t, m.layers[1].gateInput)
	require.NotEqual(t, m.layers[1].gateInput, m.layers[1].downInput)
	ids := readGeneration(t).EvalIDs[:40]
	own := prefill(t, load(t, dir, Options{Activations: W4A4}), ids)
	require.NotEqual(t, own, prefill(t, m, ids))
}

// What the goldens' config does not have, against the same weights under other names and forms.
func TestOtherFormsOfTheSameModel(t *testing.T) {
	ids := readGeneration(t).EvalIDs[:60]
	source := tinyWeights(t, "nvfp4-0722")
	want := prefill(t, source.load(t, Options{Activations: W4A4}), ids)
	for _, v := range []struct {
		name   string
		delta  float64
		change func(m *weightMap)
	}{
		{"scalars of shape []", 0, func(m *weightMap) {
			for name, w := range m.tensors {
				if strings.HasSuffix(name, "global_scale") || strings.HasSuffix(name, "k_scale") {
					w.Shape = nil
					m.tensors[name] = w
				}
			}
		}},
		{"bias under the gate's name", 0, func(m *weightMap) {
			for name, w := range m.tensors {
				if strings.HasSuffix(name, ".experts.e_score_correction_bias") {
					delete(m.tensors, name)
					m.tensors[strings.Replace(name, ".experts.", ".gate.", 1)] = w
				}
			}
		}},
		{"ModelOpt's names and reciprocal globals", 2e-3, func(m *weightMap) {
			for name, w := range m.tensors {
				module, kind := name[:strings.LastIndex(name, ".")], name[strings.LastIndex(name, "."):]
				renamed := map[string]string{".weight_packed": ".weight", ".weight_global_scale": ".weight_scale_2", ".input_global_scale": ".input_scale"}[kind]
				if renamed == "" {
					continue
				}
				delete(m.tensors, name)
				if w.DType == "F32" {
					w.data, w.Shape = float32Bytes(1/floats(w.data)[0]), nil
				}
				m.tensors[module+renamed] = w
			}
		}},
		{"one gate for each element", 0, func(m *weightMap) {
			for name, w := range m.tensors {
				if !strings.HasSuffix(name, "g_proj.weight") {
					continue
				}
				var rows []byte
				for head := range w.Shape[0] {
					for range 32 {
						rows = append(rows, w.data[head*192*2:(head+1)*192*2]...)
					}
				}
				m.put(name, "BF16", rows, w.Shape[0]*32, 192)
			}
		}},
		{"gating by the older spelling", 0, func(m *weightMap) { m.edit(t, `"gating": "per-head"`, `"gating": true`) }},
		{"dense layers by mlp_only_layers", 0, func(m *weightMap) {
			from := strings.Index(string(m.config), `"mlp_layer_types"`)
			to := from + strings.Index(string(m.config[from:]), "]")
			m.edit(t, string(m.config[from:to+1]), `"mlp_only_layers": [0], "decoder_sparse_step": 1`)
		}},
		{"full attention under its older name", 0, func(m *weightMap) { m.edit(t, `"full_attention"`, `"global_attention"`) }},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := &weightMap{source.config, map[string]weight{}}
			for name, w := range source.tensors {
				m.tensors[name] = w
			}
			v.change(m)
			got := prefill(t, m.load(t, Options{Activations: W4A4}), ids)
			require.InDeltaSlice(t, want, got, v.delta+1e-9)
		})
	}
}

func TestWithoutGates(t *testing.T) {
	m := tinyWeights(t, "bf16")
	ids := readGeneration(t).EvalIDs[:20]
	gated := prefill(t, m.load(t, Options{}), ids)
	for name := range m.tensors {
		if strings.HasSuffix(name, "g_proj.weight") {
			delete(m.tensors, name)
		}
	}
	ckpt, err := safetensors.OpenCheckpoint(m.write(t))
	require.NoError(t, err)
	_, err = Load(ckpt, Options{})
	require.ErrorIs(t, err, ErrMissingTensor)
	m.edit(t, `"gating": "per-head"`, `"gating": false`)
	require.NotEqual(t, gated, prefill(t, m.load(t, Options{}), ids))
}

func TestTiedHead(t *testing.T) {
	source := tinyWeights(t, "bf16")
	source.tensors["lm_head.weight"] = source.tensors["model.embed_tokens.weight"]
	ids := readGeneration(t).EvalIDs[:20]
	want := prefill(t, source.load(t, Options{}), ids)
	delete(source.tensors, "lm_head.weight")
	source.edit(t, `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
	require.Equal(t, want, prefill(t, source.load(t, Options{}), ids))
}

func (m *weightMap) edit(t *testing.T, old, new string) {
	require.Contains(t, string(m.config), old)
	m.config = []byte(strings.ReplaceAll(string(m.config), old, new))
}

func TestRefusals(t *testing.T) {
	const down = "model.layers.6.mlp.experts.3.down_proj."
	for _, v := range []struct {
		name   string
		kind   fault.Kind
		cause  error
		text   string
		change func(m *weightMap)
	}{
		{"missing matrix", fault.Refused, ErrMissingTensor, "model.layers.2.self_attn.k_proj.weight: is missing", func(m *weightMap) {
			delete(m.tensors, "model.layers.2.self_attn.k_proj.weight")
		}},
		{"missing norm", fault.Refused, ErrMissingTensor, "model.norm.weight: is missing", func(m *weightMap) { delete(m.tensors, "model.norm.weight") }},
		{"missing bias", fault.Refused, ErrMissingTensor, "e_score_correction_bias: is missing", func(m *weightMap) {
			delete(m.tensors, "model.layers.5.mlp.experts.e_score_correction_bias")
		}},
		{"missing group scales", fault.Refused, ErrMissingTensor, down + "weight_scale: is missing", func(m *weightMap) { delete(m.tensors, down+"weight_scale") }},
		{"missing input scale", fault.Refused, ErrMissingTensor, down + "input_global_scale: is missing", func(m *weightMap) {
			delete(m.tensors, down+"input_global_scale")
		}},
		{"other shape", fault.Refused, ErrShape, "lm_head.weight: shape is [192 2048], expected [2048 192]", func(m *weightMap) {
			m.put("lm_head.weight", "BF16", m.tensors["lm_head.weight"].data, 192, 2048)
		}},
		{"other dtype", fault.Refused, ErrDType, "dtype is F16", func(m *weightMap) {
			m.put("lm_head.weight", "F16", m.tensors["lm_head.weight"].data, 2048, 192)
		}},
		{"global scale of zero", fault.Refused, ErrScale, "down_proj: global scale is 0, expected a positive number", func(m *weightMap) {
			for e := range 8 { // whichever is chosen first
				m.put(strings.Replace(down, ".3.", "."+string(rune('0'+e))+".", 1)+"weight_global_scale", "F32", float32Bytes(0), 1)
			}
		}},
		{"infinite weights", fault.Findings, ErrNotFinite, "model.layers.", func(m *weightMap) {
			w := append([]byte(nil), m.tensors["model.layers.4.self_attn.o_proj.weight"].data...)
			w[0], w[1] = 0x80, 0x7f
			m.put("model.layers.4.self_attn.o_proj.weight", "BF16", w, 192, 128)
		}},
		{"another family", fault.Refused, nil, "model_type is \"llama\"", func(m *weightMap) { m.edit(t, `"model_type": "laguna"`, `"model_type": "llama"`) }},
		{"another activation", fault.Refused, nil, "hidden_act is \"gelu\"", func(m *weightMap) { m.edit(t, `"hidden_act": "silu"`, `"hidden_act": "gelu"`) }},
		{"another rope", fault.Refused, nil, "rope_type is \"longrope\"", func(m *weightMap) { m.edit(t, `"rope_type": "yarn"`, `"rope_type": "longrope"`) }},
		{"heads that do not divide", fault.Refused, nil, "layer 0 has 4 attention heads", func(m *weightMap) {
			m.edit(t, `"num_key_value_heads": 2`, `"num_key_value_heads": 3`)
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			m := tinyWeights(t, "nvfp4-0722")
			v.change(m)
			ckpt, err := safetensors.OpenCheckpoint(m.write(t))
			require.NoError(t, err)
			model, err := Load(ckpt, Options{Activations: W4A4})
			if err == nil {
				defer model.Close()
				_, err = session(t, model, 8).Prefill(context.Background(), []int32{2, 5, 6})
			}
			require.ErrorContains(t, err, v.text)
			require.Equal(t, v.kind, fault.KindOf(err))
			if v.cause != nil {
				require.ErrorIs(t, err, v.cause)
			}
		})
	}
}

func TestWrongUse(t *testing.T) {
	dir := filepath.Join(goldens.TinyLaguna(t), "nvfp4-0722")
	m := load(t, dir, Options{})
	_, err := m.NewSession(600)
	require.ErrorIs(t, err, ErrContext)
	require.ErrorContains(t, err, "600 tokens do not fit into the context of 512")
	require.Equal(t, fault.Usage, fault.KindOf(err))
	// Two full layers keep all positions, six keep a window of 64 and a chunk; 2 heads of 32 in float32, keys and values.
	require.Equal(t, int64(2*4*2*32*(2*1000+6*576)), m.kvBytes(1000))
	require.ErrorIs(t, m.fits(1000, 1<<20), ErrContext)
	// Of 4 and 6 heads over 2 key/value heads, 2 in the full layers and 3 over 576 positions in the others.
	require.Equal(t, 2*1000, m.scores(1000))
	need := m.kvBytes(1000) + 4*int64(m.shared.pool.workers)*2000
	require.ErrorIs(t, m.fits(1000, need-1), ErrContext)
	require.NoError(t, m.fits(1000, need))
	s := session(t, m, 4)
	_, err = s.Prefill(context.Background(), []int32{2, 3, 4, 5, 6})
	require.ErrorIs(t, err, ErrContext)
	_, err = s.Prefill(context.Background(), nil)
	require.ErrorContains(t, err, "no tokens")
	_, err = s.Step(context.Background(), 2048)
	require.ErrorContains(t, err, "id 2048 but vocab_size is 2048")

	ctx, cancel := context.WithCancel(context.Background())
	s.OnLayer = func(layer, _ int, _ []float32) {
		if layer == 2 {
			cancel()
		}
	}
	_, err = s.Prefill(ctx, []int32{2, 3})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, s.Position())

	ckpt, err := safetensors.OpenCheckpoint(dir)
	require.NoError(t, err)
	for _, o := range []Options{{Activations: "w8"}, {KV: "int4"}, {InputScales: "all"}, {Memory: -1}, {Workers: -1}, {Context: -1}} {
		_, err := Load(ckpt, o)
		require.Equal(t, fault.Usage, fault.KindOf(err), "%+v: %v", o, err)
	}
}

func TestGenerate(t *testing.T) {
	tiny := goldens.TinyLaguna(t)
	dir := filepath.Join(tiny, "nvfp4-0801")
	m := requantized(t, tiny).load(t, Options{})
	tokenizer, err := LoadTokenizer(dir)
	require.NoError(t, err)
	config, err := LoadGenerationConfig(dir)
	require.NoError(t, err)
	prompt := readGeneration(t).Prompts[0].IDs
	ctx, cancel := context.WithCancel(context.Background())
	run := func(max int, emit func(string) error) (Result, error) {
		sampler, err := NewSampler(GreedyOptions())
		require.NoError(t, err)
		return Generate(ctx, session(t, m, len(prompt)+8), tokenizer, sampler, prompt,
			GenerateOptions{MaxTokens: max, Stop: config.Stops, Emit: emit})
	}
	var pieces strings.Builder
	r, err := run(8, func(piece string) error { pieces.WriteString(piece); return nil })
	require.NoError(t, err)
	require.Equal(t, "Paris", r.Text)
	require.Equal(t, "Paris", pieces.String())
	require.Equal(t, FinishStop, r.Finish)
	require.Equal(t, int32(24), r.IDs[len(r.IDs)-1])
	require.Equal(t, len(prompt), r.Stats.PromptTokens)
	require.Positive(t, r.Stats.BytesPerToken())
	require.Positive(t, r.Stats.ExpertReads)

	r, err = run(1, nil)
	require.NoError(t, err)
	require.Equal(t, FinishLength, r.Finish)
	require.Len(t, r.IDs, 1)

	r, err = run(8, func(string) error { return io.ErrClosedPipe })
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.NotEmpty(t, r.IDs)

	r, err = run(8, func(string) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "P", r.Text, "what came before it was cancelled is not lost")

	_, err = Generate(context.Background(), session(t, m, len(prompt)), tokenizer, nil, prompt, GenerateOptions{MaxTokens: 1})
	require.ErrorIs(t, err, ErrContext)
}

// A shard that shrinks under a running model is an error of reading and not a crash.
func TestShardCutWhileRunning(t *testing.T) {
	m := tinyWeights(t, "nvfp4-0722").load(t, Options{Memory: 1})
	for _, f := range m.tensors.files {
		require.NoError(t, os.Truncate(f.Name(), 1000))
	}
	_, err := session(t, m, 8).Prefill(context.Background(), []int32{2, 5})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, fault.IO, fault.KindOf(err))
	require.ErrorContains(t, err, "model.safetensors: reading")
}

func TestVectorArithmetic(t *testing.T) {
	require.Equal(t, float32(1000), softplus(1000))
	require.InDelta(t, math.Ln2, softplus(0), 1e-7)
	for x := float32(-110); x < 88.7; x += 0.0037 {
		want := math.Exp(float64(x))
		require.InDelta(t, want, exp(x), want*2e-7+1e-45)
	}
	require.Equal(t, float32(1), exp(0))
	require.Zero(t, exp(float32(math.Inf(-1))))
	require.True(t, math.IsNaN(float64(exp(float32(math.NaN())))))
	require.True(t, math.IsInf(float64(exp(100)), 1))
	require.InDelta(t, 0.73105858*1, silu(1), 1e-6)
	require.Equal(t, float32(55), dot([]float32{1, 2, 3, 4, 5}, []float32{1, 2, 3, 4, 5}))
	require.Equal(t, float32(285), dot([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}))

	c := Config{Softcap: 2, Score: ScoreSqrtSoftplus}
	x := []float32{1, -30}
	c.score(x)
	require.InDelta(t, math.Sqrt(math.Log1p(math.Exp(2*math.Tanh(0.5)))), x[0], 1e-6)
	require.InDelta(t, math.Sqrt(math.Log1p(math.Exp(-2))), x[1], 1e-6)
	c = Config{Score: ScoreSoftmax}
	x = []float32{0, float32(math.Log(3))}
	c.score(x)
	require.InDeltaSlice(t, []float32{0.25, 0.75}, x, 1e-6)

	picks := make([]int32, 2)
	choose(picks, []float32{0.5, 0.9, 0.5, 0.1}, []float32{0, 0, 0, 0})
	require.Equal(t, []int32{0, 1}, picks, "of equals the first")
	choose(picks, []float32{0.5, 0.9, 0.5, 0.1}, []float32{0, -1, 0, 0.45})
	require.Equal(t, []int32{0, 3}, picks, "the bias chooses")
}

// Round the end of a ring or not, in both forms and for several queries at a time.
func TestKeysAndValuesInARing(t *testing.T) {
	const dim, slots, queries = 6, 2*fp8Rows + 7, 3
	row := func(position, head int) []float32 {
		out := make([]float32, dim)
		for i := range out {
			out[i] = float32(math.Sin(float64(position*31 + head*7 + i)))
		}
		return out
	}
	q := make([]float32, queries*dim)
	for i := range q {
		q[i] = float32(i%7) - 3
	}
	for format, delta := range map[KVFormat]float64{KVFloat32: 1e-4, KVFP8: 0.5} {
		cache := newKVCache(&Config{KVHeads: 2, HeadDim: dim}, &layer{kScale: 0.01, vScale: 0.01}, format, slots, 1)
		for position := range 3 * slots / 2 {
			cache.put(position, append(row(position, 0), row(position, 1)...), append(row(-position, 0), row(-position, 1)...))
		}
		for n := 1; n <= slots; n += 5 {
			first := 3*slots/2 - n
			scores, sums := make([]float32, queries*n), make([]float32, queries*dim)
			cache.dots(matrixOf(scores, n), matrixOf(q, dim), 1, first, make([]float32, fp8Rows*dim))
			for i := range scores {
				require.InDelta(t, dot(q[i/n*dim:][:dim], row(first+i%n, 1)), scores[i], delta)
				scores[i] = float32(i%5) / float32(n)
			}
			cache.sum(matrixOf(sums, dim), matrixOf(scores, n), 1, first, make([]float32, fp8Rows*dim))
			for j := range queries {
				want := make([]float32, dim)
				for i, w := range scores[j*n : (j+1)*n] {
					addScaled(want, row(-(first+i), 1), w)
				}
				require.InDeltaSlice(t, want, sums[j*dim:(j+1)*dim], delta)
			}
		}
	}
}
