package quant

// Quantizer quantizes with one profile and one global scale. It is safe for concurrent use.
type Quantizer struct {
	profile Profile
	global  float32
}

// NewQuantizer makes a Quantizer for a stored global scale, as Profile.Global returns it.
func NewQuantizer(p Profile, global float32) *Quantizer { return &Quantizer{p, global} }

// Quantize gives the bytes of ReferenceQuantize.
func (q *Quantizer) Quantize(packed, scales, bf16 []byte) {
	ReferenceQuantize(q.profile, q.global, bf16, packed, scales)
}
