package quant

import "sync"

// MatVecBF16 computes dst[r] = sum over c of w[r][c] * x[c] in float32, w being rows x cols of BF16.
//
// The order of the sum, and whether a product is rounded before it is added, depend on the code path: paths differ by a few units in the
// last place of the sum of magnitudes.
func MatVecBF16(dst, x []float32, w []byte, rows, cols int) {
	dst, x, w = dst[:rows], x[:cols], w[:2*rows*cols]
	if rows == 0 || cols == 0 || !matVecBF16Blocks(dst, x, w, rows, cols) {
		matVecBF16Go(dst, x, w, rows, cols)
	}
}

// MatVecNVFP4 computes dst[r] = sum over c of w[r][c] * x[c] in float32, w being rows x cols of codes with a scale byte a group.
// step is the value of code 1.0 at group scale 1: 1/G, or ws2. Each group's sum is multiplied by its scale, the row's by step; the orders
// are MatVecBF16's. With AVX-512, x is rounded to 2^-22 of the largest of each eight elements before that, which is less than the sums lose.
// Scale bytes that no quantizer writes (0x7f and the negative ones) give undefined sums.
func MatVecNVFP4(dst, x []float32, packed, scales []byte, step float32, rows, cols int) {
	dst, x, packed, scales = dst[:rows], x[:cols], packed[:rows*cols/2], scales[:rows*cols/groupSize]
	if rows == 0 || cols == 0 || !matVecNVFP4Blocks(dst, x, packed, scales, step, rows, cols) {
		matVecNVFP4Go(dst, x, packed, scales, step, rows, cols)
	}
}

// matVecBF16Go has four partial sums.
func matVecBF16Go(dst, x []float32, w []byte, rows, cols int) {
	for r := range rows {
		row := w[2*r*cols:][:2*cols]
		var a, b, c, d float32
		v := x
		for len(v) >= 4 && len(row) >= 8 {
			a += float32(BF16ToFloat32(element(row, 0)) * v[0])
			b += float32(BF16ToFloat32(element(row, 1)) * v[1])
			c += float32(BF16ToFloat32(element(row, 2)) * v[2])
			d += float32(BF16ToFloat32(element(row, 3)) * v[3])
			row, v = row[8:], v[4:]
		}
		for i, f := range v {
			a += float32(BF16ToFloat32(element(row, i)) * f)
		}
		dst[r] = (a + c) + (b + d)
	}
}

// pairValues are the two values in a packed byte.
var pairValues = sync.OnceValue(func() *[256][2]float32 {
	var t [256][2]float32
	for b := range t {
		t[b] = [2]float32{E2M1ToFloat32(byte(b & 15)), E2M1ToFloat32(byte(b >> 4))}
	}
	return &t
})

// scaleValues are the values of the scale bytes.
var scaleValues = sync.OnceValue(func() *[256]float32 {
	var t [256]float32
	for b := range t {
		t[b] = E4M3ToFloat32(byte(b))
	}
	return &t
})

func matVecNVFP4Go(dst, x []float32, packed, scales []byte, step float32, rows, cols int) {
	pairs, values := pairValues(), scaleValues()
	for r := range rows {
		var sum float32
		for g, s := range scales[r*cols/groupSize:][:cols/groupSize] {
			v, codes := (*[16]float32)(x[g*groupSize:]), (*[8]byte)(packed[(r*cols+g*groupSize)/2:])
			var even, odd float32
			for j, b := range codes {
				w := &pairs[b]
				even += float32(w[0] * v[2*j])
				odd += float32(w[1] * v[2*j+1])
			}
			sum += float32((even + odd) * values[s])
		}
		dst[r] = sum * step
	}
}
