package quant

import "encoding/binary"

// AbsMax returns the largest magnitude. Infinity or NaN in the input comes out as such.
func AbsMax(bf16 []byte) float32 {
	m, n := absMaxBlocks(bf16)
	return BF16ToFloat32(max(m, absMaxGo(bf16[n:])))
}

// absMaxGo keeps sixteen running maxima.
func absMaxGo(bf16 []byte) uint16 {
	var a, b, c, d uint64
	for len(bf16) >= 32 {
		w := (*[32]byte)(bf16)
		a = max4(a, binary.LittleEndian.Uint64(w[0:])&magnitudes)
		b = max4(b, binary.LittleEndian.Uint64(w[8:])&magnitudes)
		c = max4(c, binary.LittleEndian.Uint64(w[16:])&magnitudes)
		d = max4(d, binary.LittleEndian.Uint64(w[24:])&magnitudes)
		bf16 = bf16[32:]
	}
	return max(foldMax(max4(max4(a, b), max4(c, d))), maxMagnitude(bf16))
}

// FirstNonFinite returns the index of the first element that is infinite or NaN.
func FirstNonFinite(bf16 []byte) (index int, ok bool) {
	for i := range len(bf16) / 2 {
		if element(bf16, i)&0x7fff >= bf16Inf {
			return i, true
		}
	}
	return 0, false
}

// Dequantize writes the float32 value of every code: fl(code * fl(scale/G)), or fl(code * fl(scale*ws2)) for a ModelOpt global.
func Dequantize(dst []float32, packed, scales []byte, global float32, modelopt bool) {
	referenceDequantize(dst, packed, scales, global, modelopt)
}

// DequantizeBF16 writes the values of Dequantize rounded to BF16, little-endian.
func DequantizeBF16(dst, packed, scales []byte, global float32, modelopt bool) {
	var group [groupSize]float32
	for g := range scales {
		referenceDequantize(group[:], packed[g*groupSize/2:][:groupSize/2], scales[g:g+1], global, modelopt)
		for i, f := range group {
			b := Float32ToBF16(f)
			dst[(g*groupSize+i)*2], dst[(g*groupSize+i)*2+1] = byte(b), byte(b>>8)
		}
	}
}
