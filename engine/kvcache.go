package engine

import "github.com/lagquant/lagquant/quant"

// kvCache keeps the keys and values of one layer. A sliding layer keeps a ring: its window, and one chunk more, so that a chunk can be written
// before its first query looks back.
type kvCache struct {
	heads, slots, dim int

	k, v           []float32 // [heads, slots, dim]
	k8, v8         []byte    // the same as E4M3 of value/scale, instead
	kScale, vScale float32
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
	cache := kvCache{heads: c.KVHeads, slots: l.slots(positions, chunk), dim: c.HeadDim, kScale: l.kScale, vScale: l.vScale}
	n := cache.heads * cache.slots * cache.dim
	if format == KVFP8 {
		cache.k8, cache.v8 = make([]byte, n), make([]byte, n)
	} else {
		cache.k, cache.v = make([]float32, n), make([]float32, n)
	}
	return cache
}

func (c *kvCache) at(head, position int) int { return (head*c.slots + position%c.slots) * c.dim }

// put stores the key and the value of one position; k and v are [heads, dim].
func (c *kvCache) put(position int, k, v []float32) {
	for h := range c.heads {
		at, from := c.at(h, position), h*c.dim
		if c.k8 == nil {
			copy(c.k[at:at+c.dim], k[from:])
			copy(c.v[at:at+c.dim], v[from:])
			continue
		}
		for i := range c.dim {
			c.k8[at+i] = toFP8(k[from+i] / c.kScale)
			c.v8[at+i] = toFP8(v[from+i] / c.vScale)
		}
	}
}

// toFP8 saturates, as the engines that write FP8 keys and values do.
func toFP8(f float32) byte { return quant.Float32ToE4M3(min(max(f, -448), 448)) }

// run returns where a head's rows from position first on lie, and how many of n stand together before the ring's end.
func (c *kvCache) run(head, first, n int) (from, to int) {
	at := c.at(head, first)
	return at, at + min(n, c.slots-first%c.slots)*c.dim
}

// dots writes q . key for len(dst) positions from first on.
func (c *kvCache) dots(dst, q []float32, head, first int) {
	for len(dst) > 0 {
		from, to := c.run(head, first, len(dst))
		n := (to - from) / c.dim
		if c.k8 == nil {
			dotRows(dst[:n], q, c.k[from:to])
		} else {
			for i := range n {
				dst[i] = dotFP8(q, c.k8[from+i*c.dim:][:c.dim]) * c.kScale
			}
		}
		dst, first = dst[n:], first+n
	}
}

// sum writes the sum of weight * value over len(weights) positions from first on.
func (c *kvCache) sum(dst, weights []float32, head, first int) {
	clear(dst)
	for len(weights) > 0 {
		from, to := c.run(head, first, len(weights))
		n := (to - from) / c.dim
		if c.k8 == nil {
			addRows(dst, weights[:n], c.v[from:to])
		} else {
			for i, w := range weights[:n] {
				addScaledFP8(dst, c.v8[from+i*c.dim:][:c.dim], w*c.vScale)
			}
		}
		weights, first = weights[n:], first+n
	}
}

// copyRange takes over the keys and values of another cache of the same shape.
func (c *kvCache) copyRange(from *kvCache, first, n int) {
	for h := range c.heads {
		for p := first; p < first+n; p++ {
			at := c.at(h, p)
			if c.k8 == nil {
				copy(c.k[at:at+c.dim], from.k[at:])
				copy(c.v[at:at+c.dim], from.v[at:])
			} else {
				copy(c.k8[at:at+c.dim], from.k8[at:])
				copy(c.v8[at:at+c.dim], from.v8[at:])
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

func dotFP8(a []float32, b []byte) (sum float32) {
	b = b[:len(a)]
	for i, v := range a {
		sum += float32(v * e4m3[b[i]])
	}
	return sum
}

// addScaledFP8 adds w*x to dst.
func addScaledFP8(dst []float32, x []byte, w float32) {
	x = x[:len(dst)]
	for i, b := range x {
		dst[i] += float32(w * e4m3[b])
	}
}
