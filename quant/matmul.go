package quant

import "sync"

// Matrix is rows of float32 in memory: row i begins at element i*Stride.
type Matrix struct {
	Data               []float32
	Rows, Cols, Stride int
}

func (m Matrix) row(i int) []float32 { return m.Data[i*m.Stride:][:m.Cols:m.Cols] }

// rows returns the rows from one to before another.
func (m Matrix) rows(from, to int) Matrix {
	m.Data, m.Rows = m.Data[from*m.Stride:], to-from
	return m
}

// check panics where Data is too short.
func (m Matrix) check() {
	if m.Rows > 0 {
		_ = m.Data[:(m.Rows-1)*m.Stride+m.Cols]
	}
}

// MatMulBF16 computes dst[t][r] = sum over c of w[r][c] * x[t][c] in float32, w being dst.Cols x x.Cols of BF16. x has the rows of dst.
//
// It is MatVecBF16 where dst has one row or two. Otherwise a row of dst does not depend on the other rows. An element never depends on w's
// other rows.
func MatMulBF16(dst, x Matrix, w []byte) {
	matMul(dst, x, &weights{codes: w[:2*dst.Cols*x.Cols]})
}

// MatMulNVFP4 is the same with MatVecNVFP4's weights.
func MatMulNVFP4(dst, x Matrix, packed, scales []byte, step float32) {
	n := dst.Cols * x.Cols
	matMul(dst, x, &weights{packed[:n/2], scales[:n/groupSize], step})
}

func matMul(dst, x Matrix, w *weights) {
	x.Rows = dst.Rows
	dst.check()
	x.check()
	if dst.Rows == 0 || dst.Cols == 0 {
		return
	}
	if dst.Rows <= fewRows {
		matVecs(dst, x, w)
		return
	}
	blocks := (dst.Rows + manyRows - 1) / manyRows
	for i := range blocks {
		from, to := i*dst.Rows/blocks, (i+1)*dst.Rows/blocks
		if d, x := dst.rows(from, to), x.rows(from, to); !matMulBlocks(d, x, w) {
			matMulGo(d, x, w)
		}
	}
}

const (
	// manyRows of x are as many as kernels keep in a core's second cache.
	manyRows = 256
	// fewRows of x take turns with the matrix-vector kernels: two rows take 0.6 to 0.8 of the time of tiles with NVFP4, as long with BF16.
	// Three take 0.86 with NVFP4 in AVX-512 and longer elsewhere.
	fewRows = 2
	// turnBytes of weights stay in a core's second cache from one turn to the next.
	turnBytes = 256 << 10
)

func matVecs(dst, x Matrix, w *weights) {
	block := dst.Cols
	if dst.Rows > 1 {
		block = max(turnBytes*dst.Cols/max(len(w.codes), 1), 1)
	}
	for r := 0; r < dst.Cols; r += block {
		for t := range dst.Rows {
			w.matVec(dst.row(t)[r:min(r+block, dst.Cols)], x.row(t), r)
		}
	}
}

// matVec multiplies the rows from r on.
func (w *weights) matVec(dst, x []float32, r int) {
	rows, cols := len(dst), len(x)
	if w.scales == nil {
		MatVecBF16(dst, x, w.codes[2*r*cols:], rows, cols)
		return
	}
	MatVecNVFP4(dst, x, w.codes[r*cols/2:], w.scales[r*cols/groupSize:], w.step, rows, cols)
}

// weights are BF16, or NVFP4 where there are scales.
type weights struct {
	codes, scales []byte
	step          float32
}

// row writes row r as float32, without the step.
func (w *weights) row(dst []float32, r int) {
	n := len(dst)
	if w.scales == nil {
		codes := w.codes[2*r*n:][:2*n]
		for i := range dst {
			dst[i] = BF16ToFloat32(element(codes, i))
		}
		return
	}
	values := scaleValues()
	codes, scales := w.codes[r*n/2:][:n/2], w.scales[r*n/groupSize:][:n/groupSize]
	for g, s := range scales {
		dequantizeGroup((*[16]float32)(dst[g*groupSize:]), (*[8]byte)(codes[g*groupSize/2:]), values[s])
	}
}

// matMulGo widens four rows of weights at a time for all of x.
func matMulGo(dst, x Matrix, w *weights) {
	n := x.Cols
	p := borrow(4 * n)
	defer scratch.Put(p)
	panel := Matrix{*p, 4, n, n}
	step := w.step
	if w.scales == nil {
		step = 1
	}
	var sums [4]float32
	for r := 0; r < dst.Cols; r += 4 {
		rows := min(4, dst.Cols-r)
		for i := range rows {
			w.row(panel.row(i), r+i)
		}
		for t := range dst.Rows {
			dot4(&sums, x.row(t), panel.Data, n)
			out := dst.row(t)[r:][:rows]
			for i := range out {
				out[i] = sums[i] * step
			}
		}
	}
}

// dot4 multiplies x by four rows, which are stride apart.
func dot4(sums *[4]float32, x, rows []float32, stride int) {
	n := len(x)
	a, b, c, d := rows[:n], rows[stride:][:n], rows[2*stride:][:n], rows[3*stride:][:n]
	var p, q, r, s float32
	for i, v := range x {
		p += float32(v * a[i])
		q += float32(v * b[i])
		r += float32(v * c[i])
		s += float32(v * d[i])
	}
	*sums = [4]float32{p, q, r, s}
}

// DotRows computes dst[i][j] = q[i] . m[j] in float32.
func DotRows(dst, q, m Matrix) {
	dst.Rows, dst.Cols = q.Rows, m.Rows
	dst.check()
	q.check()
	m.check()
	if q.Cols != m.Cols {
		panic("quant: rows of different length")
	}
	if q.Rows > 0 && m.Rows > 0 && !dotRowsBlocks(dst, q, m) {
		dotRowsGo(dst, q, m)
	}
}

func dotRowsGo(dst, q, m Matrix) {
	var sums [4]float32
	for i := range q.Rows {
		x, out := q.row(i), dst.row(i)
		j := 0
		for ; j+4 <= m.Rows; j += 4 {
			dot4(&sums, x, m.Data[j*m.Stride:], m.Stride)
			copy(out[j:], sums[:])
		}
		for ; j < m.Rows; j++ {
			out[j] = dot(x, m.row(j))
		}
	}
}

func dot(a, b []float32) (sum float32) {
	b = b[:len(a)]
	for i, v := range a {
		sum += float32(v * b[i])
	}
	return sum
}

// AddRows adds to dst[i] the sum over j of weights[i][j] * m[j], in float32.
func AddRows(dst, weights, m Matrix) {
	dst.Rows, weights.Cols = weights.Rows, m.Rows
	dst.check()
	weights.check()
	m.check()
	if dst.Cols != m.Cols {
		panic("quant: rows of different length")
	}
	if dst.Rows > 0 && m.Rows > 0 && !addRowsBlocks(dst, weights, m) {
		addRowsGo(dst, weights, m)
	}
}

func addRowsGo(dst, weights, m Matrix) {
	for i := range dst.Rows {
		out, w := dst.row(i), weights.row(i)
		j := 0
		for ; j+4 <= len(w); j += 4 {
			a, b, c, d := m.row(j)[:len(out)], m.row(j + 1)[:len(out)], m.row(j + 2)[:len(out)], m.row(j + 3)[:len(out)]
			p, q, r, s := w[j], w[j+1], w[j+2], w[j+3]
			for k := range out {
				out[k] += (float32(p*a[k]) + float32(q*b[k])) + (float32(r*c[k]) + float32(s*d[k]))
			}
		}
		for ; j < len(w); j++ {
			row := m.row(j)[:len(out)]
			for k, v := range row {
				out[k] += float32(w[j] * v)
			}
		}
	}
}

// scratch holds float32 between calls.
var scratch = sync.Pool{New: func() any { return new([]float32) }}

// borrow returns n elements of scratch, with anything in them. Put them back.
func borrow(n int) *[]float32 {
	p := scratch.Get().(*[]float32)
	if cap(*p) < n {
		*p = make([]float32, n)
	}
	*p = (*p)[:n]
	return p
}
