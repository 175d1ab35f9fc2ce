package engine

import (
	"encoding/json"
	"math"
)

// RoPE is one resolved rotary embedding. Comparable, so that equal layers can be recognised.
type RoPE struct {
	Theta     float64
	Dims      int     // rotated dimensions of a head, the first ones; even
	Factor    float64 // YaRN's; 0: no YaRN
	BetaFast  float64
	BetaSlow  float64
	Original  float64 // original_max_position_embeddings
	Truncate  bool    // round the ramp's ends to whole dimensions
	Attention float64 // scales both cosine and sine
}

// frequencies returns the Dims/2 angles per position. All steps are rounded to float32 as the reference's are: at position 1e6 a
// frequency that is more exact turns by another angle than the one that the model was trained with.
func (r RoPE) frequencies() []float32 {
	inv := make([]float32, r.Dims/2)
	low, high := r.ramp()
	for i := range inv {
		period := float32(math.Pow(r.Theta, float64(float32(2*i)/float32(r.Dims))))
		inv[i] = 1 / period
		if r.Factor == 0 {
			continue
		}
		ramp := min(max((float32(i)-low)/(high-low), 0), 1)
		slow, keep := 1/(float32(r.Factor)*period), 1-ramp
		inv[i] = float32(slow*(1-keep)) + float32(inv[i]*keep)
	}
	return inv
}

// ramp returns the dimensions between which YaRN goes over from the trained frequencies to the stretched ones.
func (r RoPE) ramp() (low, high float32) {
	if r.Factor == 0 {
		return 0, 1
	}
	dims := float64(r.Dims)
	at := func(rotations float64) float64 {
		return dims * math.Log(r.Original/(rotations*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	l, h := at(r.BetaFast), at(r.BetaSlow)
	if r.Truncate {
		l, h = math.Floor(l), math.Ceil(h)
	}
	l, h = max(l, 0), min(h, dims-1)
	if l == h {
		h += 0.001 // as the reference avoids the division by zero
	}
	return float32(l), float32(h)
}

// table writes cosine and sine of the Dims/2 angles of one position, both scaled by Attention.
func (r RoPE) table(cos, sin, inv []float32, position int) {
	scale := float32(r.Attention)
	for i, f := range inv {
		s, c := math.Sincos(float64(float32(position) * f))
		cos[i], sin[i] = float32(c)*scale, float32(s)*scale
	}
}

// ropeTable is a RoPE of a model with its frequencies; index tells it from the model's other ones.
type ropeTable struct {
	RoPE
	index   int
	inverse []float32 // [dims/2]
}

// rope returns the table of a RoPE, the same one for all layers that have it.
func (m *Model) rope(r RoPE) *ropeTable {
	for _, t := range m.ropes {
		if t.RoPE == r {
			return t
		}
	}
	t := &ropeTable{r, len(m.ropes), r.frequencies()}
	m.ropes = append(m.ropes, t)
	return t
}

// rotate turns the first 2*len(cos) elements of one head: pairs are (i, i+len(cos)), as in rotate_half.
func rotate(head, cos, sin []float32) {
	half := len(cos)
	lo, hi := head[:half], head[half:2*half]
	sin = sin[:half]
	for i, c := range cos {
		a, b := lo[i], hi[i]
		lo[i] = float32(a*c) - float32(b*sin[i])
		hi[i] = float32(b*c) + float32(a*sin[i])
	}
}

// rawRoPE is one RoPE object of config.json.
type rawRoPE struct {
	Type         string   `json:"rope_type"`
	OldType      string   `json:"type"`
	Theta        *float64 `json:"rope_theta"`
	Partial      *float64 `json:"partial_rotary_factor"`
	Factor       *float64 `json:"factor"`
	Original     *float64 `json:"original_max_position_embeddings"`
	BetaFast     *float64 `json:"beta_fast"`
	BetaSlow     *float64 `json:"beta_slow"`
	Attention    *float64 `json:"attention_factor"`
	MScale       *float64 `json:"mscale"`
	MScaleAllDim *float64 `json:"mscale_all_dim"`
	Truncate     *bool    `json:"truncate"`
}

// ropeSet is rope_parameters in either form: one object for all layers, or one for each layer type. XS.2 has a stray number beside the
// two objects, so only objects count as layer types.
type ropeSet struct {
	flat    *rawRoPE
	byLayer map[string]*rawRoPE
}

func (s *ropeSet) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return err
	}
	for name, value := range fields {
		if len(value) == 0 || value[0] != '{' {
			continue
		}
		r := new(rawRoPE)
		if err := json.Unmarshal(value, r); err != nil {
			return err
		}
		if s.byLayer == nil {
			s.byLayer = map[string]*rawRoPE{}
		}
		if name == "global_attention" {
			name = "full_attention"
		}
		s.byLayer[name] = r
	}
	if s.byLayer == nil {
		s.flat = new(rawRoPE)
		return json.Unmarshal(data, s.flat)
	}
	return nil
}

// rope finds the parameters of a layer type: its own object first, then the older spellings, then the reference's defaults.
func (raw *rawConfig) rope(kind string) (rawRoPE, error) {
	theta, partial := 5e5, 0.5
	if kind == "sliding_attention" {
		theta, partial = 1e4, 1
	}
	var found *rawRoPE
	switch own, nested := raw.RoPEParameters.byLayer[kind], raw.RoPEParameters.byLayer != nil; {
	case own != nil:
		found = own
	case kind == "sliding_attention" && raw.SlidingRoPE != nil:
		found = raw.SlidingRoPE
	case nested:
		return rawRoPE{}, refuseConfig("", "rope_parameters has no entry for %s", kind)
	case raw.RoPEParameters.flat != nil:
		found = raw.RoPEParameters.flat
	case kind == "full_attention":
		found = raw.RoPEScaling.flat
	}
	var r rawRoPE
	if found != nil {
		r, partial = *found, 1 // the reference's default inside an object; 0.5 holds only where there is no object
	}
	if kind == "full_attention" { // the top-level fields describe the full layers
		theta, partial = or(raw.RoPETheta, theta), or(raw.PartialRotary, partial)
	}
	r.Theta, r.Partial = new(or(r.Theta, theta)), new(or(r.Partial, partial))
	return r, nil
}

func (r rawRoPE) resolve(headDim, maxPositions int) (RoPE, error) {
	out := RoPE{Theta: *r.Theta, Dims: int(float64(headDim) * *r.Partial), Attention: 1}
	if !(out.Theta > 1) || math.IsInf(out.Theta, 0) || out.Dims < 2 || out.Dims > headDim || out.Dims%2 != 0 {
		return out, refuseConfig("", "rope_theta %v with partial_rotary_factor %v of head_dim %d is not a rotation", out.Theta, *r.Partial, headDim)
	}
	kind := r.Type
	if kind == "" {
		kind = r.OldType
	}
	switch kind {
	case "", "default":
		return out, nil
	case "yarn":
	default:
		return out, refuseConfig("", "rope_type is %q, expected \"default\" or \"yarn\"", kind)
	}
	out.Original = or(r.Original, float64(maxPositions))
	out.Factor = or(r.Factor, float64(maxPositions)/out.Original)
	out.BetaFast, out.BetaSlow, out.Truncate = or(r.BetaFast, 32), or(r.BetaSlow, 1), or(r.Truncate, true)
	switch {
	case r.Attention != nil:
		out.Attention = *r.Attention
	case or(r.MScale, 0) != 0 && or(r.MScaleAllDim, 0) != 0:
		out.Attention = yarnScale(out.Factor, *r.MScale) / yarnScale(out.Factor, *r.MScaleAllDim)
	default:
		out.Attention = yarnScale(out.Factor, 1)
	}
	if !(out.Factor >= 1) || !(out.Original >= 1) || !(out.BetaFast > 0) || !(out.BetaSlow > 0) || !(out.Attention > 0) ||
		math.IsInf(out.Factor+out.Original+out.BetaFast+out.BetaSlow+out.Attention, 0) {
		return out, refuseConfig("", "the yarn parameters factor %v, original_max_position_embeddings %v, beta_fast %v, beta_slow %v, "+
			"attention_factor %v are not usable", out.Factor, out.Original, out.BetaFast, out.BetaSlow, out.Attention)
	}
	return out, nil
}

func yarnScale(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(factor) + 1
}
