//go:build amd64 && !noasm

package quant

import "unsafe"

// panelCols is the width of a panel: four rows of weights as float32, in which the vectors of the rows take turns, and a tile of x as wide stay
// in the first cache together.
const panelCols = 1024

// dotTile is a block of products of rows of x with rows of w, four of w at a time; strides and steps are in bytes. The generator knows its
// layout.
type dotTile struct {
	dst            *float32
	dstStride      int
	x              *float32
	xStride, xStep int // from row to row, and from vector to vector
	w              *float32
	wStride, wStep int
	quadStep       int // from four rows of w to the next four
	quads, vectors int
	add            int     // 1: add to dst
	scale          float32 // of the products
	prefetch       *byte
	prefetchStride int
	prefetchStep   int // a vector
}

// addTile adds weighted rows of m to a few rows of dst; strides are in bytes. The generator knows its layout.
type addTile struct {
	dst           *float32
	dstStride     int
	weights       *float32
	weightsStride int
	m             *float32
	mStride       int
	rows          int
}

// tileShape returns the elements of a vector, and the rows of x in the largest dotTile.
func tileShape() (lanes, tileRows int) {
	switch path {
	case "avx512":
		return 16, 6
	case "avx2":
		return 8, 3
	}
	return 0, 0
}

// Orders of a vector of x: widenNVFP4AVX512 has its own.
var (
	inOrder  = [16]uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	byEights = [16]uint32{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15}
)

func matMulBlocks(dst, x Matrix, w *weights) bool {
	lanes, most := tileShape()
	if lanes == 0 || x.Cols == 0 || x.Cols%groupSize != 0 {
		return false
	}
	order, scale, rowBytes := &inOrder, float32(1), 2*x.Cols
	if w.scales != nil {
		scale, rowBytes = w.step, x.Cols/2
		if lanes == 16 {
			order = &byEights
		}
	}
	width := min(panelCols, x.Cols)
	p := borrow((4 + dst.Rows) * width)
	defer scratch.Put(p)
	panel, packed := (*p)[:4*width], (*p)[4*width:]
	tiles := (dst.Rows + most - 1) / most
	var rest [6][4]float32 // of less than four rows
	for c := 0; c < x.Cols; c += width {
		n := min(width, x.Cols-c)
		for i := range tiles {
			from, to := i*dst.Rows/tiles, (i+1)*dst.Rows/tiles
			for t := from; t < to; t++ {
				row, at := x.row(t)[c:c+n], &packed[from*n+(t-from)*lanes]
				if lanes == 16 {
					interleaveAVX512(at, &row[0], &order[0], n/lanes, (to-from)*64)
				} else {
					interleaveAVX2(at, &row[0], &order[0], n/lanes, (to-from)*32)
				}
			}
		}
		a := dotTile{w: &panel[0], quads: 1, vectors: n / lanes, scale: scale}
		if c > 0 {
			a.add = 1
		}
		for r := 0; r < dst.Cols; r += 4 {
			rows := min(4, dst.Cols-r)
			for i := range rows {
				w.widen(&panel[i*lanes], (r+i)*x.Cols+c, n, lanes)
			}
			// the same columns of the next four rows come from memory meanwhile, a part of them with each tile
			next, end := (r+4)*rowBytes+c*rowBytes/x.Cols, (dst.Cols-3)*rowBytes
			a.prefetchStride, a.prefetchStep = rowBytes, (lanes*rowBytes/x.Cols+tiles-1)/tiles
			if next >= end {
				next, a.prefetchStride, a.prefetchStep = 0, 0, 0
			}
			for i := range tiles {
				from, to := i*dst.Rows/tiles, (i+1)*dst.Rows/tiles
				a.dst, a.dstStride, a.x = &dst.Data[from*dst.Stride+r], 4*dst.Stride, &packed[from*n]
				a.prefetch = &w.codes[min(next+i*a.vectors*a.prefetchStep, len(w.codes)-1)]
				if rows < 4 {
					a.dst, a.dstStride = &rest[0][0], 16
					for t := from; t < to; t++ {
						copy(rest[t-from][:], dst.row(t)[r:])
					}
				}
				if lanes == 16 {
					panelTileAVX512((*byte)(unsafe.Pointer(&a)), to-from)
				} else {
					panelTileAVX2((*byte)(unsafe.Pointer(&a)), to-from)
				}
				if rows < 4 {
					for t := from; t < to; t++ {
						copy(dst.row(t)[r:], rest[t-from][:])
					}
				}
			}
		}
	}
	return true
}

// widen writes n weights from element at on as a row of a panel.
func (w *weights) widen(dst *float32, at, n, lanes int) {
	switch {
	case w.scales == nil && lanes == 16:
		widenBF16AVX512(dst, &w.codes[2*at], n/16)
	case w.scales == nil:
		widenBF16AVX2(dst, &w.codes[2*at], n/8)
	case lanes == 16:
		widenNVFP4AVX512(dst, &w.codes[at/2], &w.scales[at/groupSize], &scaleValues()[0], n/groupSize)
	default:
		widenNVFP4AVX2(dst, &w.codes[at/2], &w.scales[at/groupSize], &scaleValues()[0], n/groupSize)
	}
}

func (a *dotTile) run(rows, lanes int) {
	if lanes == 16 {
		dotTileAVX512((*byte)(unsafe.Pointer(a)), rows)
	} else {
		dotTileAVX2((*byte)(unsafe.Pointer(a)), rows)
	}
}

// dotRowsBlocks has kernels for at least four rows; four rows less than four from the end are done again. Columns that do not fill a vector
// are added in the end.
func dotRowsBlocks(dst, q, m Matrix) bool {
	lanes, tileRows := tileShape()
	if lanes == 0 || m.Rows < 4 || q.Cols < lanes {
		return false
	}
	vectors := q.Cols / lanes
	count := (q.Rows + tileRows - 1) / tileRows
	for i := range count {
		from, to := i*q.Rows/count, (i+1)*q.Rows/count
		a := dotTile{
			dst: &dst.Data[from*dst.Stride], dstStride: 4 * dst.Stride, x: &q.Data[from*q.Stride], xStride: 4 * q.Stride, xStep: 4 * lanes,
			w: &m.Data[0], wStride: 4 * m.Stride, wStep: 4 * lanes, quadStep: 16 * m.Stride, quads: m.Rows / 4, vectors: vectors, scale: 1,
		}
		a.run(to-from, lanes)
		if m.Rows%4 != 0 {
			a.dst, a.w, a.quads = &dst.Data[from*dst.Stride+m.Rows-4], &m.Data[(m.Rows-4)*m.Stride], 1
			a.run(to-from, lanes)
		}
	}
	if done := vectors * lanes; done < q.Cols {
		for i := range q.Rows {
			rest, out := q.row(i)[done:], dst.row(i)
			for j := range out {
				out[j] += dot(rest, m.row(j)[done:])
			}
		}
	}
	return true
}

// addRowsBlocks takes eight (AVX-512) or four vectors of columns at a time, then one, and leaves the rest of the columns to the portable form.
func addRowsBlocks(dst, weights, m Matrix) bool {
	lanes, wide := 16, 8
	switch path {
	case "avx2":
		lanes, wide = 8, 4
	case "go":
		return false
	}
	c := 0
	for c+lanes <= m.Cols {
		vectors := 1
		if c+wide*lanes <= m.Cols {
			vectors = wide
		}
		for i := 0; i < dst.Rows; i += 3 {
			a := addTile{
				dst: &dst.Data[i*dst.Stride+c], dstStride: 4 * dst.Stride, weights: &weights.Data[i*weights.Stride], weightsStride: 4 * weights.Stride,
				m: &m.Data[c], mStride: 4 * m.Stride, rows: m.Rows,
			}
			if path == "avx512" {
				addTileAVX512((*byte)(unsafe.Pointer(&a)), min(3, dst.Rows-i), vectors)
			} else {
				addTileAVX2((*byte)(unsafe.Pointer(&a)), min(3, dst.Rows-i), vectors)
			}
		}
		c += vectors * lanes
	}
	if c < m.Cols {
		dst.Data, dst.Cols, m.Data, m.Cols = dst.Data[c:], dst.Cols-c, m.Data[c:], m.Cols-c
		addRowsGo(dst, weights, m)
	}
	return true
}
