package quant

import "testing"

func BenchmarkQuantize(b *testing.B) {
	bf16 := generate("gauss", 1, 1<<19, 0)
	m := member("x", bf16)
	p := Profiles[0]
	q := NewQuantizer(p, p.Global(AbsMax(bf16)))
	b.SetBytes(int64(len(bf16)))
	for b.Loop() {
		q.Quantize(m.Packed, m.Scales, bf16)
	}
}

func BenchmarkNewQuantizer(b *testing.B) {
	p := Profiles[0]
	for b.Loop() {
		NewQuantizer(p, 15000)
	}
}
