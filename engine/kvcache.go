package engine

import "github.com/lagquant/lagquant/quant"

// kvCache keeps the keys and values of one layer. A sliding layer keeps a ring: its window, and one chunk more, so that a chunk can be written
// before its first query looks back.
type kvCache struct {
	heads, slots, dim int
	keys, values      kvRows
}

// kvRows are [heads, slots, dim], in one of two forms.
type kvRows struct {
	f32   []float32
	fp8   []byte // E4M3 of value/scale
	scale float32
}

// kvBytes returns the bytes of all layers' keys and values.
func (m *Model) kvBytes(positions int) (n int64) {
	c, width := m.Config, int64(4)
	if m.options.KV == KVFP8 {
		width = 1
	}
	for _, l := range c.Layers {
		n += 2 * width * int64(c.KVHeads) * int64(c.HeadDim) * int64(l.slots(positions, chunkRows))
	}
	return n
}

// slots returns the positions that a layer keeps.
func (l *LayerConfig) slots(positions, chunk int) int {
	if l.Window > 0 {
		return min(positions, l.Window+chunk)
	}
	return positions
}

func newKVCache(c *Config, l *layer, format KVFormat, positions, chunk int) kvCache {
	cache := kvCache{heads: c.KVHeads, slots: l.slots(positions, chunk), dim: c.HeadDim}
	rows := func(scale float32) kvRows {
		n := cache.heads * cache.slots * cache.dim
		if format == KVFP8 {
			return kvRows{fp8: make([]byte, n), scale: scale}
		}
		return kvRows{f32: make([]float32, n)}
	}
	cache.keys, cache.values = rows(l.kScale), rows(l.vScale)
	return cache
}

func (c *kvCache) at(head, position int) int { return (head*c.slots + position%c.slots) * c.dim }

// put stores the key and the value of one position; k and v are [heads, dim].
func (c *kvCache) put(position int, k, v []float32) {
	for h := range c.heads {
		c.keys.put(c.at(h, position), k[h*c.dim:(h+1)*c.dim])
		c.values.put(c.at(h, position), v[h*c.dim:(h+1)*c.dim])
	}
}

func (r *kvRows) put(at int, row []float32) {
	if r.fp8 == nil {
		copy(r.f32[at:], row)
		return
	}
	for i, f := range row {
		r.fp8[at+i] = toFP8(f / r.scale)
	}
}

// toFP8 saturates, as the engines that write FP8 keys and values do.
func toFP8(f float32) byte { return quant.Float32ToE4M3(min(max(f, -448), 448)) }

// dots writes q . key for every query [queries, dim] and dst.Cols positions from first on: dst [queries, positions].
func (c *kvCache) dots(dst, q quant.Matrix, head, first int, buf []float32) {
	for done := 0; done < dst.Cols; {
		keys := c.rows(&c.keys, head, first+done, dst.Cols-done, buf)
		quant.DotRows(columns(dst, done, keys.Rows), q, keys)
		done += keys.Rows
	}
}

// sum writes the sum of weight * value over weights.Cols positions from first on: weights [queries, positions], dst [queries, dim].
func (c *kvCache) sum(dst, weights quant.Matrix, head, first int, buf []float32) {
	clear(dst.Data)
	for done := 0; done < weights.Cols; {
		values := c.rows(&c.values, head, first+done, weights.Cols-done, buf)
		quant.AddRows(dst, columns(weights, done, values.Rows), values)
		done += values.Rows
	}
}

func columns(m quant.Matrix, from, n int) quant.Matrix {
	return quant.Matrix{Data: m.Data[from:], Rows: m.Rows, Cols: n, Stride: m.Stride}
}

// fp8Rows is how many FP8 rows are made float32 at a time: with their products they stay in a core's first cache.
const fp8Rows = 64

// rows returns n rows from a position on, or fewer: they end where the ring or buf [fp8Rows, dim] does.
func (c *kvCache) rows(r *kvRows, head, position, n int, buf []float32) quant.Matrix {
	at, n := c.at(head, position), min(n, c.slots-position%c.slots)
	if r.fp8 == nil {
		return quant.Matrix{Data: r.f32[at : at+n*c.dim], Rows: n, Cols: c.dim, Stride: c.dim}
	}
	n = min(n, fp8Rows)
	for i, b := range r.fp8[at : at+n*c.dim] {
		buf[i] = e4m3[b] * r.scale
	}
	return quant.Matrix{Data: buf, Rows: n, Cols: c.dim, Stride: c.dim}
}

// copyRange takes over the keys and values of another cache of the same shape.
func (c *kvCache) copyRange(from *kvCache, first, n int) {
	for h := range c.heads {
		for p := first; p < first+n; p++ {
			at, end := c.at(h, p), c.at(h, p)+c.dim
			for _, x := range [][2]*kvRows{{&c.keys, &from.keys}, {&c.values, &from.values}} {
				if x[0].fp8 == nil {
					copy(x[0].f32[at:end], x[1].f32[at:])
				} else {
					copy(x[0].fp8[at:end], x[1].fp8[at:])
				}
			}
		}
	}
}

var e4m3 = func() (table [256]float32) {
	for b := range table {
		table[b] = quant.E4M3ToFloat32(byte(b))
	}
	return table
}()
