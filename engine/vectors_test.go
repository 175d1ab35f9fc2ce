package engine

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// The vectors in this file were taken from the real Laguna-S-2.1-NVFP4 of 2026-07-22.

func real0722(t *testing.T, name string) []byte { return goldens.Read(t, "laguna-0722/"+name+".bin") }

func bf16Floats(raw []byte) []float32 {
	out := make([]float32, len(raw)/2)
	for i := range out {
		out[i] = quant.BF16ToFloat32(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	return out
}

func requireClose(t *testing.T, want, got []float32, relative float64) {
	t.Helper()
	require.Len(t, got, len(want))
	var scale float64
	for _, x := range want {
		scale = max(scale, math.Abs(float64(x)))
	}
	for i := range want {
		require.InDelta(t, want[i], got[i], relative*scale, "element %d", i)
	}
}

// multiplied runs one product on two workers.
func multiplied(t *testing.T, w *matrix, x []float32) []float32 {
	t.Helper()
	p := newPool(2)
	defer p.close()
	s := &Session{model: &Model{shared: &shared{pool: p}}}
	n := len(x) / w.cols
	y := make([]float32, n*w.rows)
	s.add(w, x, y, n)
	require.NoError(t, s.multiply())
	return y
}

func TestRealRMSNorm(t *testing.T) {
	x, w, want := floats(real0722(t, "g3a_x")), bf16Floats(real0722(t, "g3a_w")), floats(real0722(t, "g3a_out"))
	got := make([]float32, len(x))
	for row := 0; row < len(x); row += len(w) {
		require.True(t, rmsNorm(got[row:row+len(w)], x[row:row+len(w)], w, 1e-6))
	}
	requireClose(t, want, got, 1e-6)
}

// The attention parameters of config.json of 2026-07-22.
const realConfig = `{"model_type":"laguna","vocab_size":100352,"hidden_size":3072,"intermediate_size":12288,"num_hidden_layers":4,
"num_attention_heads":48,"num_attention_heads_per_layer":[48,72,72,72],"num_key_value_heads":8,"head_dim":128,"sliding_window":512,
"layer_types":["full_attention","sliding_attention","sliding_attention","sliding_attention"],"mlp_only_layers":[0],"decoder_sparse_step":1,
"num_experts":256,"num_experts_per_tok":10,"moe_intermediate_size":1024,"shared_expert_intermediate_size":1024,"norm_topk_prob":true,
"moe_routed_scaling_factor":2.5,"max_position_embeddings":262144,"gating":"per-head","rope_parameters":{
"full_attention":{"rope_type":"yarn","rope_theta":500000.0,"partial_rotary_factor":0.5,"original_max_position_embeddings":8192,
"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"attention_factor":1.3465735902799727},
"sliding_attention":{"rope_type":"default","rope_theta":10000.0,"partial_rotary_factor":1.0}}}`

func TestRealRoPE(t *testing.T) {
	c, err := ParseConfig([]byte(realConfig))
	require.NoError(t, err)
	var ref map[string]struct {
		Inv   []float32
		Scale float64
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "laguna-0722/rope_ref.json"), &ref))
	for layer, name := range []string{"full", "slide"} {
		r := c.Layers[layer].RoPE
		inv := r.frequencies()
		require.Equal(t, ref[name].Scale, r.Attention)
		for i, want := range ref[name].Inv {
			require.InEpsilon(t, want, inv[i], 3e-7, "%s %d", name, i)
		}
		cos, sin := floats(real0722(t, "g3b_cos_"+name)), floats(real0722(t, "g3b_sin_"+name))
		gotCos, gotSin := make([]float32, len(inv)), make([]float32, len(inv))
		for position := range len(cos) / r.Dims {
			r.table(gotCos, gotSin, inv, position)
			for i := range r.Dims { // the reference repeats the angles for the second half
				require.InDelta(t, cos[position*r.Dims+i], gotCos[i%len(inv)], 5e-7, "%s cos %d %d", name, position, i)
				require.InDelta(t, sin[position*r.Dims+i], gotSin[i%len(inv)], 5e-7, "%s sin %d %d", name, position, i)
			}
		}
	}
}

func TestRealRouter(t *testing.T) {
	c := &Config{Experts: 256, TopK: 10, NormTopK: true, Score: ScoreSigmoid, Hidden: 3072}
	x := floats(real0722(t, "g4_x"))
	for i, v := range x { // the reference rounds the router's input; float32 inputs would flip 15 of the 540 picks
		x[i] = quant.BF16ToFloat32(quant.Float32ToBF16(v))
	}
	raw := real0722(t, "g4_w")
	rows := len(x) / c.Hidden
	s := &Session{
		model: &Model{Config: c}, layer: &layer{bias: floats(real0722(t, "g4_bias"))},
		router: multiplied(t, &matrix{rows: c.Experts, cols: c.Hidden, codes: extent{size: len(raw)}, code: raw}, x),
		picks:  make([]int32, rows*c.TopK), weights: make([]float32, rows*c.TopK),
	}
	sel, wts := real0722(t, "g4_sel"), floats(real0722(t, "g4_wts"))
	for row := range rows {
		s.routeRow(0, row)
		want := map[int32]float32{}
		for i := row * c.TopK; i < (row+1)*c.TopK; i++ {
			want[int32(binary.LittleEndian.Uint32(sel[4*i:]))] = wts[i]
		}
		picks := s.picks[row*c.TopK : (row+1)*c.TopK]
		require.True(t, slices.IsSorted(picks))
		for i, e := range picks {
			require.Contains(t, want, e, "row %d", row)
			require.InDelta(t, want[e], s.weights[row*c.TopK+i], 1e-6, "row %d", row)
		}
	}
}

func TestRealProducts(t *testing.T) {
	packed, scale, q := real0722(t, "g1_packed"), real0722(t, "g1_scale"), real0722(t, "g2_w")
	expert := &matrix{
		rows: 1024, cols: 3072, fp4: true, step: 1 / float32(11520),
		codes: extent{size: len(packed)}, groups: extent{size: len(scale)}, code: packed, group: scale,
	}
	requireClose(t, floats(real0722(t, "g2b_out")), multiplied(t, expert, bf16Floats(real0722(t, "g2b_x"))), 1e-5)
	projection := &matrix{rows: 512, cols: 3072, codes: extent{size: len(q)}, code: q}
	requireClose(t, floats(real0722(t, "g2_out")), multiplied(t, projection, bf16Floats(real0722(t, "g2_x"))), 1e-5)
}

func TestQuantizedInputs(t *testing.T) {
	var golden struct {
		X      []string `json:"x_bits"`
		Global float32  `json:"input_global_scale"`
		Y      []string `json:"y_bits"`
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "tiny/activation.json"), &golden))
	decode := func(words []string) []float32 {
		out := make([]float32, len(words))
		for i, w := range words {
			b, err := strconv.ParseUint(w, 16, 32)
			require.NoError(t, err)
			out[i] = math.Float32frombits(uint32(b))
		}
		return out
	}
	x := decode(golden.X)
	quantizeInput(x, x, golden.Global)
	for i, want := range decode(golden.Y) {
		require.Equal(t, math.Float32bits(want), math.Float32bits(x[i]), "element %d", i)
	}
}
