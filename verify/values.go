package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lagquant/lagquant/quant"
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
	files   map[string][]byte      // digests, by name of the shard
	tensors map[string][]byte      // digests
}

// readValues streams the scale bytes and scalars of all quantized modules, and with a manifest all bytes, one shard a worker.
func (c *checker) readValues(ctx context.Context, m *manifest) (*values, error) {
	v := &values{
		scalars: map[string]float32{}, scales: map[string]*scaleFacts{}, files: map[string][]byte{}, tensors: map[string][]byte{},
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
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(c.jobs())
	for _, shard := range c.ckpt.Shards {
		group.Go(func() error {
			if m != nil && m.has(shard.Name) {
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
	digests := make(map[string][]byte, len(s.Header.Tensors))
	for _, t := range s.Header.Tensors {
		one, take := sha256.New(), taking[t.Name]
		at := &tensorAt{t, s}
		err := c.open.stream(ctx, s, at.offset(), at.offset()+int64(t.Len()), c.Options, func(p []byte) {
			feed(p)
			one.Write(p)
			if take != nil {
				take(p)
			}
		})
		if err != nil {
			return err
		}
		digests[t.Name] = one.Sum(nil)
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

// checkValues judges the scalars and scale bytes of each module.
func (c *checker) checkValues(v *values) {
	for _, q := range c.quantized {
		for _, t := range []*tensorAt{q.global(), q.input()} {
			if t == nil {
				continue
			}
			if g, ok := v.scalars[t.Name]; ok {
				c.checkGlobal(t, g, q.modelopt(), t == q.global())
			}
		}
		s := q.scale()
		if s == nil || v.scales[s.Name] == nil || len(s.Shape) != 2 || s.Shape[1] == 0 {
			continue
		}
		c.checkScaleBytes(s, v.scales[s.Name])
	}
}

// absurd is an absolute maximum that no weight has: the largest float16.
const absurd = 65504

func (c *checker) checkGlobal(t *tensorAt, g float32, modelopt, weight bool) {
	f := Finding{Severity: Error, Check: CheckGlobal, File: t.shard.Name, Tensor: t.Name, Found: fmt.Sprintf("value %v (0x%08x)", g, math.Float32bits(g))}
	amax := 2688 / g
	if modelopt {
		amax = 2688 * g
	}
	switch {
	case !lawfulGlobal(g):
		f.Expected = "a finite number above 0 with a finite reciprocal"
		f.Hint = "loaders divide by it: everything behind it becomes NaN, infinite or zero"
	case weight && amax > absurd:
		f.Found += fmt.Sprintf(", which says that the largest weight is %v", amax)
		f.Expected = "2688 divided by the largest weight"
		if modelopt {
			f.Expected = "the largest weight divided by 2688"
		}
		f.Hint = "it looks like its own reciprocal: compressed-tensors and ModelOpt store one the inverse of the other"
	default:
		return
	}
	c.find(f)
}

func (c *checker) checkScaleBytes(s *tensorAt, f *scaleFacts) {
	at := func(group int64) string {
		return fmt.Sprintf("row %d, group %d", group/int64(s.Shape[1]), group%int64(s.Shape[1]))
	}
	if f.nan > 0 {
		c.find(Finding{
			Error, CheckScale, s.shard.Name, s.Name, fmt.Sprintf("NaN (0x%02x) at %s, %d of %d scale bytes", f.firstNaNByte, at(f.firstNaN), f.nan, f.groups),
			"0x00 to 0x7e", "an exporter divided by the zero of an empty group; quantize the module again",
		})
	}
	if f.signed > 0 {
		c.find(Finding{
			Error, CheckScale, s.shard.Name, s.Name,
			fmt.Sprintf("sign bit set (0x%02x) at %s, %d of %d scale bytes", f.firstSignedByte, at(f.firstSigned), f.signed, f.groups),
			"0x00 to 0x7e", "kernels take scales for numbers without a sign",
		})
	}
	if f.dead > 0 {
		c.find(Finding{
			Info, CheckDeadGroups, s.shard.Name, s.Name, fmt.Sprintf("%d of %d groups hold zeros only", f.dead, f.groups), "",
			"",
		})
	}
}

// checkFused compares the global scales inside every fused set and looks for its largest group scale.
func (c *checker) checkFused(v *values) {
	sets := map[string][]*quantizedModule{}
	for _, q := range c.quantized {
		set := fusedSet(q.name)
		sets[set] = append(sets[set], q)
	}
	var weak []Finding
	judged := 0
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		modules := sets[set]
		if len(modules) > 1 {
			c.report.Fused.Sets++
			c.checkOneGlobal(set, modules, v)
		}
		if f, ok := c.largestScale(set, modules, v); ok {
			judged++
			if f.Severity != "" {
				weak = append(weak, f)
			}
		}
	}
	c.findWeak(weak, judged)
}

func (c *checker) checkOneGlobal(set string, modules []*quantizedModule, v *values) {
	var low, high *tensorAt
	for _, q := range modules {
		t := q.global()
		if t == nil {
			continue
		}
		g, ok := v.scalars[t.Name]
		if !ok || !lawfulGlobal(g) {
			return
		}
		if low == nil || g < v.scalars[low.Name] {
			low = t
		}
		if high == nil || g > v.scalars[high.Name] {
			high = t
		}
	}
	if low == nil || v.scalars[low.Name] == v.scalars[high.Name] {
		return
	}
	ratio := float64(v.scalars[high.Name]) / float64(v.scalars[low.Name])
	c.report.Fused.Mismatched++
	if ratio > c.report.Fused.WorstRatio {
		c.report.Fused.WorstRatio, c.report.Fused.Worst = ratio, set
	}
	c.find(Finding{
		Error, CheckFused, low.shard.Name, set,
		fmt.Sprintf("%s %v and %s %v, ratio %.4g", leaf(low.Name), v.scalars[low.Name], leaf(high.Name), v.scalars[high.Name], ratio), "one global scale for all",
		"loaders take one of them for all: quantize the set again with the largest absolute maximum",
	})
}

// leaf names the projection of a tensor.
func leaf(tensor string) string {
	parts := strings.Split(tensor, ".")
	return parts[max(0, len(parts)-2)]
}

// largestScale looks for a group scale of 448 in a set. ok: the set could be judged, and has groups that are not zero.
func (c *checker) largestScale(set string, modules []*quantizedModule, v *values) (f Finding, ok bool) {
	var largest byte
	live := false
	for _, q := range modules {
		if !q.sound || v.scales[q.scale().Name] == nil {
			return Finding{}, false
		}
		s := v.scales[q.scale().Name]
		if s.nan+s.signed > 0 {
			return Finding{}, false
		}
		largest = max(largest, s.largest)
		live = live || s.dead < s.groups
	}
	if !live {
		return c.emptySet(set, modules, v)
	}
	if largest == scale448 {
		return Finding{}, true
	}
	return Finding{
		Warning, CheckScale, modules[0].scale().shard.Name, set, fmt.Sprintf("largest group scale %v (0x%02x)", quant.E4M3ToFloat32(largest), largest), "448 (0x7e) somewhere in the set",
		"the global scale is not the one that these group scales were made for, or the exporter searched for scales",
	}, true
}

// emptySet looks at a set of zeros, whose global scale is 1 where an exporter saw zeros. Another one was made for weights that are not there.
func (c *checker) emptySet(set string, modules []*quantizedModule, v *values) (Finding, bool) {
	global := modules[0].global()
	if g, ok := v.scalars[global.Name]; ok && g != 1 && lawfulGlobal(g) && v.scales[modules[0].scale().Name].groups > 0 {
		c.find(Finding{
			Error, CheckScale, global.shard.Name, set, fmt.Sprintf("zeros only, beside a global scale of %v", g), "codes, or a global scale of 1",
			"the tensors were laid out and never filled; take them from another copy of the checkpoint",
		})
	}
	return Finding{}, false
}

// findWeak reports sets without a group scale of 448: one by one, and as one where most are so, since then the exporter does it that way.
func (c *checker) findWeak(weak []Finding, judged int) {
	if len(weak) < 8 || 2*len(weak) < judged {
		for _, f := range weak {
			c.find(f)
		}
		return
	}
	c.find(Finding{
		Warning, CheckScale, "", "", fmt.Sprintf("%d of %d fused sets have no group scale of 448 (the first is %s: %s)", len(weak), judged, weak[0].Tensor, weak[0].Found),
		"448 (0x7e) somewhere in each set", "the exporter searched for scales (four-over-six stops at 256 or 384); no profile gives its bytes",
	})
}
