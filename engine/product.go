package engine

import "github.com/lagquant/lagquant/quant"

// product is y = W x for n rows of x.
type product struct {
	w    *matrix
	x, y []float32 // [n, cols], [n, rows]
	n    int

	piece int // rows of W in a piece
	end   int // pieces of this product and of those before it
}

// Each piece of W has all rows of x brought into a kernel's order first. So pieces are as large as leaves each worker a few, within limits: where
// weights pass once, for one row, the limit is soon reached. Rows of y do not depend on the piece that they are computed in.
const (
	fewPieces  = 8
	leastPiece = 64 << 10
	mostPiece  = 1 << 20 // for one row of x, and where reading from the file should be worth its while
	manyPiece  = 4 << 20 // for more
)

// multiply computes all products added since the last call, on all workers at once.
func (s *Session) multiply() error {
	bytes, end := 0, 0
	for i := range s.products {
		bytes += s.products[i].w.bytes()
	}
	share := max(bytes/(fewPieces*s.model.shared.pool.workers), leastPiece)
	for i := range s.products {
		p := &s.products[i]
		s.Stats.WeightBytes += int64(p.w.bytes())
		size, whole := min(share, mostPiece), 8 // rows that kernels do at a time
		if p.n > 1 {
			size, whole = min(share, manyPiece), 64
		}
		if p.w.code == nil {
			s.Stats.FileBytes += int64(p.w.bytes())
			size = mostPiece
		}
		p.piece = max(size*p.w.rows/p.w.bytes()/whole*whole, whole)
		end += (p.w.rows + p.piece - 1) / p.piece
		p.end = end
	}
	s.model.shared.pool.run(s, end, (*Session).multiplyPiece)
	s.products = s.products[:0]
	return s.takeError()
}

func (s *Session) add(w *matrix, x, y []float32, n int) {
	s.products = append(s.products, product{w: w, x: x, y: y, n: n})
}

func (s *Session) multiplyPiece(worker, piece int) {
	i := 0
	for piece >= s.products[i].end {
		i++
	}
	p := &s.products[i]
	if i > 0 {
		piece -= s.products[i-1].end
	}
	w := p.w
	from, to := piece*p.piece, min((piece+1)*p.piece, w.rows)
	code, group, err := s.pieceBytes(worker, w, from, to)
	if err != nil {
		s.fail(err)
		return
	}
	x := quant.Matrix{Data: p.x, Rows: p.n, Cols: w.cols, Stride: w.cols}
	y := quant.Matrix{Data: p.y[from:], Rows: p.n, Cols: to - from, Stride: w.rows}
	if w.fp4 {
		quant.MatMulNVFP4(y, x, code, group, w.step)
	} else {
		quant.MatMulBF16(y, x, code)
	}
}

// pieceBytes returns the bytes of some rows of a matrix, out of memory or read into the worker's buffer.
func (s *Session) pieceBytes(worker int, w *matrix, from, to int) (code, group []byte, err error) {
	codeRow, groupRow := w.codes.size/w.rows, w.groups.size/w.rows
	if w.code != nil {
		return w.code[from*codeRow : to*codeRow], w.group[from*groupRow : to*groupRow], nil
	}
	n := (to - from) * (codeRow + groupRow)
	buf := &s.streams[worker]
	if len(*buf) < n {
		*buf = make([]byte, n)
	}
	code, group = (*buf)[:(to-from)*codeRow], (*buf)[(to-from)*codeRow:n]
	if err := w.codes.read(code, from*codeRow); err != nil || !w.fp4 {
		return code, group, err
	}
	return code, group, w.groups.read(group, from*groupRow)
}

// fail keeps the first error of a job.
func (s *Session) fail(err error) {
	s.errMu.Lock()
	defer s.errMu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *Session) takeError() error {
	s.errMu.Lock()
	defer s.errMu.Unlock()
	err := s.err
	s.err = nil
	return err
}
