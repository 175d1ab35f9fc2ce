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
	steps := stepsOf(global, modelopt)
	n := dequantizeBlocks(dst, packed, scales, &steps)
	for g := n; g < len(scales); g++ {
		dequantizeGroup((*[16]float32)(dst[g*groupSize:]), (*[8]byte)(packed[g*groupSize/2:]), steps[scales[g]])
	}
}

// DequantizeBF16 writes the values of Dequantize rounded to BF16, little-endian.
func DequantizeBF16(dst, packed, scales []byte, global float32, modelopt bool) {
	steps := stepsOf(global, modelopt)
	n := dequantizeBF16Blocks(dst, packed, scales, &steps)
	var group [groupSize]float32
	for g := n; g < len(scales); g++ {
		dequantizeGroup(&group, (*[8]byte)(packed[g*groupSize/2:]), steps[scales[g]])
		out := (*[2 * groupSize]byte)(dst[g*groupSize*2:])
		for i, f := range group {
			b := Float32ToBF16(f)
			out[2*i], out[2*i+1] = byte(b), byte(b>>8)
		}
	}
}

func dequantizeGroup(dst *[16]float32, packed *[8]byte, step float32) {
	pairs := pairValues()
	for j, b := range packed {
		w := &pairs[b]
		dst[2*j], dst[2*j+1] = w[0]*step, w[1]*step
	}
}

// stepsOf returns the steps of all scale bytes: 0.3 microseconds a call in portable form, 0.1 with a kernel.
func stepsOf(global float32, modelopt bool) (steps [256]float32) {
	values := scaleValues()
	if stepsBlock(&steps, values, global, modelopt) {
		return steps
	}
	for b, v := range values {
		if modelopt {
			steps[b] = v * global
		} else {
			steps[b] = v / global
		}
	}
	return steps
}
