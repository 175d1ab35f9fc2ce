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

// row returns where a head's row for the i-th position from first on begins.
func (c *kvCache) row(head, first, i int) int { return (head*c.slots + (first+i)%c.slots) * c.dim }

// dots writes q . key * scale for len(dst) positions from first on.
func (c *kvCache) dots(dst, q []float32, head, first int, scale float32) {
	i, dim := 0, c.dim
	if c.k8 == nil && dim%2 == 0 {
		for ; i+4 <= len(dst); i += 4 {
			a, b, d, e := c.k[c.row(head, first, i):], c.k[c.row(head, first, i+1):], c.k[c.row(head, first, i+2):], c.k[c.row(head, first, i+3):]
			w, x, y, z := dot4(q, a, b, d, e)
			dst[i], dst[i+1], dst[i+2], dst[i+3] = w*scale, x*scale, y*scale, z*scale
		}
	}
	for ; i < len(dst); i++ {
		at := c.row(head, first, i)
		if c.k8 == nil {
			dst[i] = dot(q, c.k[at:at+dim]) * scale
		} else {
			dst[i] = dotFP8(q, c.k8[at:at+dim]) * c.kScale * scale
		}
	}
}

// sum writes the sum of weight * value over len(weights) positions from first on.
func (c *kvCache) sum(dst, weights []float32, head, first int) {
	clear(dst)
	i := 0
	if c.k8 == nil {
		for ; i+4 <= len(weights); i += 4 {
			a, b, d, e := c.v[c.row(head, first, i):], c.v[c.row(head, first, i+1):], c.v[c.row(head, first, i+2):], c.v[c.row(head, first, i+3):]
			addScaled4(dst, a, b, d, e, weights[i:i+4])
		}
	}
	for ; i < len(weights); i++ {
		at := c.row(head, first, i)
		if c.k8 == nil {
			addScaled(dst, c.v[at:at+c.dim], weights[i])
			continue
		}
		w := weights[i] * c.vScale
		for j, b := range c.v8[at : at+c.dim] {
			dst[j] += float32(w * e4m3[b])
		}
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
