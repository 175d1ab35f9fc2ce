package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lagquant/lagquant/internal/digest"
	"github.com/lagquant/lagquant/safetensors"
)

const (
	scale448    = 0x7e // the largest E4M3, which the group with the absolute maximum of a fused set gets
	scaleEps    = 0x20 // what compressed-tensors stores for a group whose scale would be zero
	scaleOne    = 0x38 // what ModelOpt stores for a group of zeros
	scaleLowest = 0x01 // and for one that is nearly zero
)

// scaleFacts is what the scale bytes of one module tell.
type scaleFacts struct {
	groups           int64
	nan, signed      int64
	firstNaN         int64 // flat index of the group
	firstSigned      int64
	firstNaNByte     byte
	firstSignedByte  byte
	largest          byte // of the lawful bytes
	dead             int64
	deadNeedsPacking bool
}

// values is what was read of the tensors' bytes.
type values struct {
	mu      sync.Mutex
	scalars map[string]float32
	scales  map[string]*scaleFacts // by name of the scale tensor
	files   map[string][]byte      // SHA-256, by name of the shard
	tensors map[string]string      // digests
}

// readValues streams the scale bytes and scalars of all quantized modules, and with a manifest all bytes, one shard a worker.
func (c *checker) readValues(ctx context.Context, m *manifest) (*values, error) {
	v := &values{
		scalars: map[string]float32{}, scales: map[string]*scaleFacts{}, files: map[string][]byte{}, tensors: map[string]string{},
	}
	wanted := map[*safetensors.Shard][]*reader{}
	for _, q := range c.quantized {
		for _, t := range []*tensorAt{q.global(), q.input()} {
			if t != nil && t.DType == safetensors.F32 && t.Len() == 4 {
				wanted[t.shard] = append(wanted[t.shard], &reader{tensorAt: t, take: func(p []byte) { v.setScalar(t.Name, p) }})
			}
		}
		if t := q.scale(); t != nil && t.DType == safetensors.F8E4M3 {
			facts := &scaleFacts{}
			v.scales[t.Name] = facts
			wanted[t.shard] = append(wanted[t.shard], &reader{tensorAt: t, take: facts.take})
		}
	}
	if c.Start != nil {
		c.Start(toRead(c.ckpt.Shards, m, wanted))
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(c.jobs())
	for _, shard := range c.ckpt.Shards {
		group.Go(func() error {
			if m.has(shard.Name) {
				return c.readWhole(inner, shard, wanted[shard], v)
			}
			return c.readParts(inner, shard, wanted[shard])
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return v, c.countDead(ctx, v)
}

// toRead is how many bytes will be read: those of the files in a manifest, and of what is wanted of other shards.
func toRead(shards []*safetensors.Shard, m *manifest, wanted map[*safetensors.Shard][]*reader) (total int64) {
	if m != nil {
		for _, f := range m.Files {
			total += f.Size
		}
	}
	for _, s := range shards {
		if m.has(s.Name) {
			continue
		}
		for _, r := range wanted[s] {
			total += int64(r.Len())
		}
	}
	return total
}

// reader takes the bytes of one tensor as they come.
type reader struct {
	*tensorAt
	take func([]byte)
}

func (v *values) setScalar(name string, p []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.scalars[name] = float32At(p)
}

func (c *checker) readParts(ctx context.Context, s *safetensors.Shard, readers []*reader) error {
	slices.SortFunc(readers, func(a, b *reader) int { return cmp.Compare(a.Begin, b.Begin) })
	for _, r := range readers {
		if err := c.open.stream(ctx, s, r.offset(), r.offset()+int64(r.Len()), c.Options, r.take); err != nil {
			return err
		}
	}
	return nil
}

// readWhole reads a shard from end to end, for the digests of the file and of each tensor.
func (c *checker) readWhole(ctx context.Context, s *safetensors.Shard, readers []*reader, v *values) error {
	taking := map[string]func([]byte){}
	for _, r := range readers {
		taking[r.Name] = r.take
	}
	all := sha256.New()
	feed := func(p []byte) { all.Write(p) }
	if err := c.open.stream(ctx, s, 0, s.Header.DataStart, c.Options, feed); err != nil {
		return err
	}
	digests := make(map[string]string, len(s.Header.Tensors))
	for _, t := range s.Header.Tensors {
		one, take := digest.NewTensor(), taking[t.Name]
		at := &tensorAt{t, s}
		err := c.open.stream(ctx, s, at.offset(), at.offset()+int64(t.Len()), c.Options, func(p []byte) {
			feed(p)
			_, _ = one.Write(p) // a hash takes everything
			if take != nil {
				take(p)
			}
		})
		if err != nil {
			return err
		}
		digests[t.Name] = one.String()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.files[s.Name] = all.Sum(nil)
	maps.Copy(v.tensors, digests)
	return nil
}

// take looks at the next scale bytes.
func (f *scaleFacts) take(p []byte) {
	for i, b := range p {
		if b < 0x7f {
			f.largest = max(f.largest, b)
			switch b {
			case scaleEps, scaleOne, scaleLowest, 0:
				f.deadNeedsPacking = true
			}
			continue
		}
		if b&0x7f == 0x7f {
			if f.nan == 0 {
				f.firstNaN, f.firstNaNByte = f.groups+int64(i), b
			}
			f.nan++
			continue
		}
		if f.signed == 0 {
			f.firstSigned, f.firstSignedByte = f.groups+int64(i), b
		}
		f.signed++
	}
	f.groups += int64(len(p))
}

// countDead counts the groups of which every code is zero, in the modules that have a scale byte that such groups get.
func (c *checker) countDead(ctx context.Context, v *values) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.jobs())
	for _, q := range c.quantized {
		if !q.sound || v.scales[q.scale().Name] == nil || !v.scales[q.scale().Name].deadNeedsPacking {
			continue
		}
		facts, packed := v.scales[q.scale().Name], q.packed()
		group.Go(func() error {
			return c.open.stream(ctx, packed.shard, packed.offset(), packed.offset()+int64(packed.Len()), c.Options, func(p []byte) {
				facts.dead += zeroGroups(p)
			})
		})
	}
	return group.Wait()
}

// zeroGroups counts the groups of 8 bytes that hold zeros of either sign only.
func zeroGroups(packed []byte) (n int64) {
	for ; len(packed) >= 8; packed = packed[8:] {
		var any byte
		for _, b := range packed[:8] {
			any |= b & 0x77
		}
		if any == 0 {
			n++
		}
	}
	return n
}
