package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// Recipe says whether the NVFP4 modules of one checkpoint come out of the BF16 ones of another, byte for byte, under each profile.
type Recipe struct {
	Quantized   string         `json:"quantized"` // the checkpoint that has the modules in NVFP4
	Base        string         `json:"base"`      // the one that has them in BF16
	Modules     int            `json:"modules"`
	InputScales int            `json:"input_scales"` // stored beside them; weights cannot prove these
	Profiles    []ProfileCount `json:"profiles"`
	Proven      []string       `json:"proven"`               // profiles without one differing byte
	Best        string         `json:"best"`                 // of the rest where none is proven: the one with the fewest differing bytes
	Second      string         `json:"second,omitempty"`     // the profile that gives every module that Best does not, where one does
	Convention  string         `json:"convention,omitempty"` // how the codes were chosen instead, where only they differ from Best
	Unproven    []string       `json:"unproven,omitempty"`

	DifferingModules int      `json:"differing_modules"` // under Best
	Differing        []string `json:"differing"`         // the first of them by name
}

// ProfileCount tells how far the bytes of one profile are from the stored ones. All but Exact count differences.
type ProfileCount struct {
	Profile          string `json:"profile"`
	Modules          int    `json:"modules"`            // compared
	Exact            int    `json:"exact"`              // of them equal in every byte
	Unshared         int    `json:"unshared,omitempty"` // of these, modules that have a global scale of their own where their set should share one
	Globals          int    `json:"globals"`            // modules of which the global scale differs
	ScaleBytes       int64  `json:"scale_bytes"`
	PackedBytes      int64  `json:"packed_bytes"`
	TotalScaleBytes  int64  `json:"total_scale_bytes"`
	TotalPackedBytes int64  `json:"total_packed_bytes"`

	differing []string // the modules that are not exact; workers add them in any order
}

func (c *ProfileCount) add(o ProfileCount) {
	c.Modules += o.Modules
	c.Exact += o.Exact
	c.Unshared += o.Unshared
	c.Globals += o.Globals
	c.ScaleBytes += o.ScaleBytes
	c.PackedBytes += o.PackedBytes
	c.TotalScaleBytes += o.TotalScaleBytes
	c.TotalPackedBytes += o.TotalPackedBytes
	c.differing = append(c.differing, o.differing...)
}

// String gives the count as a clause: "ct-fp32-div6: 94 of 120 modules exact, 0 globals, 89 scale bytes and 234 packed bytes differ".
func (c ProfileCount) String() string {
	s := fmt.Sprintf("%s: %d of %s exact", c.Profile, c.Exact, plural(c.Modules, "module"))
	if c.Exact == c.Modules {
		return s
	}
	return s + fmt.Sprintf(", %s, %s and %s differ", plural(c.Globals, "global scale"),
		plural(int(c.ScaleBytes), "scale byte"), plural(int(c.PackedBytes), "packed byte"))
}

// equalPercent is the share of all scale and packed bytes that are equal, rounded down so that only equality is 100.
func (c ProfileCount) equalPercent() float64 {
	total := max(c.TotalScaleBytes+c.TotalPackedBytes, 1)
	return math.Floor(1e6*float64(total-c.ScaleBytes-c.PackedBytes)/float64(total)) / 1e4
}

// packedShare is the share of the packed bytes that are equal.
func (c ProfileCount) packedShare() float64 {
	return 1 - float64(c.PackedBytes)/float64(max(c.TotalPackedBytes, 1))
}

// recipeModule is one module in both forms.
type recipeModule struct {
	name      string
	base      *tensorAt // BF16 [R, C]
	quantized *module
}

// recipeSet is what shares one global scale.
type recipeSet struct {
	name    string
	modules []recipeModule
}

// pairUp finds the modules that are NVFP4 in one inventory and plain in the other. Those that no profile can speak about, because the
// plain form is not BF16, a tensor is missing or the shapes do not fit, come back by name.
func pairUp(quantized, base *inventory) (sets []recipeSet, unproven []string) {
	bySet := map[string][]recipeModule{}
	for _, name := range quantized.names() {
		q, b := quantized.modules[name], base.modules[name]
		if b == nil || !q.nvfp4() || b.nvfp4() || !b.plain() {
			continue
		}
		pair := recipeModule{name, b.tensors[slotWeight], q}
		if !pair.lawful() {
			unproven = append(unproven, name)
			continue
		}
		bySet[fusedSet(name)] = append(bySet[fusedSet(name)], pair)
	}
	for name, modules := range bySet {
		sets = append(sets, recipeSet{name, modules})
	}
	slices.SortFunc(sets, func(a, b recipeSet) int { return cmp.Compare(a.name, b.name) })
	return sets, unproven
}

func (m recipeModule) lawful() bool {
	packed, scale, global := m.quantized.packed(), m.quantized.scale(), m.quantized.global()
	if m.base.DType != safetensors.BF16 || packed == nil || scale == nil || global == nil || global.Len() != 4 {
		return false
	}
	rows, cols := m.base.Shape[0], m.base.Shape[1]
	return cols%16 == 0 && slices.Equal(packed.Shape, []uint64{rows, cols / 2}) && slices.Equal(scale.Shape, []uint64{rows, cols / 16}) &&
		packed.Len() == rows*cols/2 && scale.Len() == rows*cols/16
}

// prove quantizes every set under every profile and counts what differs from the stored bytes. The counts are in the order of quant.Profiles.
// Errors name the base as it is called here.
func prove(ctx context.Context, sets []recipeSet, base string, open *files, o Options) ([]ProfileCount, error) {
	total := make([]ProfileCount, len(quant.Profiles))
	for i, p := range quant.Profiles {
		total[i].Profile = p.Name
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.jobs())
	for _, set := range sets {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			counts, err := set.prove(open, o)
			if err != nil {
				return set.explain(err, base)
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range counts {
				total[i].add(counts[i])
			}
			return nil
		})
	}
	return total, group.Wait()
}

// stored is one quantized module as the checkpoint has it.
type stored struct {
	packed, scales []byte
	global         float32
	modelopt       bool
}

func (s recipeSet) prove(open *files, o Options) ([]ProfileCount, error) {
	backend := o.backend()
	members := make([]quant.Member, len(s.modules))
	found := make([]stored, len(s.modules))
	for i, m := range s.modules {
		var err error
		if found[i], err = readStored(m.quantized, open, o); err != nil {
			return nil, err
		}
		members[i].Name = m.base.Name
		for _, b := range []struct {
			to *[]byte
			n  int
		}{{&members[i].BF16, int(m.base.Len())}, {&members[i].Packed, len(found[i].packed)}, {&members[i].Scales, len(found[i].scales)}} {
			if *b.to, err = backend.Buffer(b.n); err != nil {
				return nil, err
			}
			defer backend.Free(*b.to)
		}
		if err = open.readInto(members[i].BF16, m.base, o); err != nil {
			return nil, err
		}
	}
	counts := make([]ProfileCount, len(quant.Profiles))
	for i, p := range quant.Profiles {
		count, err := s.compare(backend, p, members, found)
		if err != nil {
			return nil, err
		}
		if count.Exact < count.Modules && unshared(found) {
			var alone ProfileCount
			for j := range members {
				one, err := recipeSet{s.name, s.modules[j : j+1]}.compare(backend, p, members[j:j+1], found[j:j+1])
				if err != nil {
					return nil, err
				}
				alone.add(one)
			}
			if alone.Exact > count.Exact {
				alone.Unshared = alone.Exact
				count = alone
			}
		}
		counts[i].add(count)
	}
	return counts, nil
}

// unshared says whether the members of a set have global scales of their own. llm-compressor's model_free_ptq gives routed experts such ones:
// its list of what is fused has mlp.gate_proj and not mlp.experts.N.gate_proj.
func unshared(found []stored) bool {
	return slices.ContainsFunc(found, func(s stored) bool { return math.Float32bits(s.global) != math.Float32bits(found[0].global) })
}

// compare quantizes members under one global scale and counts what differs from the stored bytes.
func (s recipeSet) compare(backend quant.Backend, p quant.Profile, members []quant.Member, found []stored) (total ProfileCount, err error) {
	global, err := backend.QuantizeSet(p, members)
	if err != nil {
		return total, err
	}
	for i, m := range members {
		count := found[i].compare(p, global, m)
		if count.Exact == 0 {
			count.differing = []string{s.modules[i].name}
		}
		total.add(count)
	}
	return total, nil
}

// explain says where in the base the weights are that a backend refused.
func (s recipeSet) explain(err error, base string) error {
	bad, ok1 := errors.AsType[*quant.NonFiniteError](err)
	f, ok2 := errors.AsType[*fault.Error](err)
	if !ok1 || !ok2 {
		return err
	}
	i := slices.IndexFunc(s.modules, func(m recipeModule) bool { return m.base.Name == f.Tensor })
	t := s.modules[i].base
	return bad.In(base+"/"+t.shard.Name, t.Name, t.Shape[1])
}

func readStored(m *module, open *files, o Options) (s stored, err error) {
	if s.packed, err = open.read(m.packed(), o); err != nil {
		return s, err
	}
	if s.scales, err = open.read(m.scale(), o); err != nil {
		return s, err
	}
	global, err := open.read(m.global(), o)
	if err != nil {
		return s, err
	}
	s.global, s.modelopt = float32At(global), m.modelopt()
	return s, nil
}

// compare counts the differences of one module. Where the profile's global is the reciprocal of the stored kind, its reciprocal is what a
// converter would have stored.
func (s stored) compare(p quant.Profile, global float32, m quant.Member) ProfileCount {
	if p.ModelOpt() != s.modelopt {
		global = 1 / global
	}
	c := ProfileCount{
		Modules:          1,
		ScaleBytes:       differing(s.scales, m.Scales),
		PackedBytes:      differing(s.packed, m.Packed),
		TotalScaleBytes:  int64(len(s.scales)),
		TotalPackedBytes: int64(len(s.packed)),
	}
	if math.Float32bits(global) != math.Float32bits(s.global) {
		c.Globals = 1
	}
	if c.Globals == 0 && c.ScaleBytes == 0 && c.PackedBytes == 0 {
		c.Exact = 1
	}
	return c
}

// differing counts the bytes that differ.
func differing(a, b []byte) int64 {
	if bytes.Equal(a, b) {
		return 0
	}
	var n int64
	for i, x := range a {
		if x != b[i] {
			n++
		}
	}
	return n
}

// judge fills in which profiles are proven and which comes closest.
func (r *Recipe) judge(counts []ProfileCount) {
	r.Profiles, r.Proven, r.Differing = counts, []string{}, []string{}
	var best *ProfileCount
	for i, c := range counts {
		slices.Sort(c.differing)
		if c.Modules > 0 && c.Exact == c.Modules {
			r.Proven = append(r.Proven, c.Profile)
		}
		if best == nil || c.closer(*best) {
			best = &counts[i]
		}
		r.Modules = c.Modules
	}
	if best != nil && r.Modules > 0 {
		const most = 8
		r.Best = best.Profile
		r.DifferingModules = len(best.differing)
		r.Differing = append(r.Differing, best.differing[:min(most, len(best.differing))]...)
	}
	if len(r.Proven) == 0 && r.Best != "" {
		r.Second = r.complement(*best)
	}
}

// complement finds a profile that gives every module that best does not: a model's modules may have been in different precisions when they were
// quantized, as routers in float32 are, or its layers come from different releases.
func (r *Recipe) complement(best ProfileCount) string {
	for _, c := range r.Profiles {
		if !slices.ContainsFunc(best.differing, func(name string) bool { _, differs := slices.BinarySearch(c.differing, name); return differs }) {
			return c.Profile
		}
	}
	return ""
}

// Names gives the profiles that explain every module in words; "" where none do.
func (r *Recipe) Names() string {
	if r.Second != "" {
		return r.Best + " and " + r.Second
	}
	return strings.Join(r.Proven, " or ")
}

// Explained says whether every module was made by a profile, one or two for all.
func (r *Recipe) Explained() bool { return len(r.Proven) > 0 || r.Second != "" }

func (c ProfileCount) closer(o ProfileCount) bool {
	if c.Exact != o.Exact {
		return c.Exact > o.Exact
	}
	return c.ScaleBytes+c.PackedBytes+int64(c.Globals) < o.ScaleBytes+o.PackedBytes+int64(o.Globals)
}

// count returns the counts of one profile.
func (r *Recipe) count(profile string) ProfileCount {
	i := slices.IndexFunc(r.Profiles, func(c ProfileCount) bool { return c.Profile == profile })
	if i < 0 {
		return ProfileCount{}
	}
	return r.Profiles[i]
}

// closestOther returns the counts of the profile that comes closest without being proven.
func (r *Recipe) closestOther() (next ProfileCount, ok bool) {
	for _, c := range r.Profiles {
		if c.Exact < c.Modules && (!ok || c.closer(next)) {
			next, ok = c, true
		}
	}
	return next, ok
}

// unrelated is the share of equal packed bytes below which the weights, not the arithmetic, differ: two NVFP4 forms of the same weights
// have at least 95 % in common, of unrelated ones about 1 %.
const unrelated = 0.7

// few says that so few modules differ that they, and not the arithmetic of all, are the matter.
func (r *Recipe) few() bool {
	n := r.DifferingModules
	return r.Convention == "" && 2*n < r.Modules && n <= max(3, r.Modules/100)
}

// String gives the verdict on the recipe as one line.
func (r *Recipe) String() string {
	if r.Modules == 0 {
		return fmt.Sprintf("%s: no module of %s could be compared", r.Quantized, r.Base)
	}
	if len(r.Proven) > 0 {
		s := fmt.Sprintf("%s was made from %s with %s: %d of %s, byte for byte",
			r.Quantized, r.Base, r.Names(), r.Modules, plural(r.Modules, "module"))
		if n := r.count(r.Proven[0]).Unshared; n > 0 {
			s += fmt.Sprintf(", %d of them under global scales of their own where gate and up should share one", n)
		}
		if next, ok := r.closestOther(); ok {
			s += fmt.Sprintf(" (the closest other is %s)", next)
		}
		return s
	}
	best := r.count(r.Best)
	if r.Second != "" {
		return fmt.Sprintf("%s was made from %s with %s but for %d of %s, which were made with %s, byte for byte: %s",
			r.Quantized, r.Base, r.Best, r.DifferingModules, plural(r.Modules, "module"), r.Second, fewOf(best.differing))
	}
	if r.few() {
		return fmt.Sprintf("%s was made from %s with %s but for %d of %s, damaged or changed rather than made by another arithmetic: %s (%s)",
			r.Quantized, r.Base, r.Best, r.DifferingModules, plural(r.Modules, "module"), fewOf(best.differing), best)
	}
	if best.packedShare() < unrelated {
		return fmt.Sprintf("%s was not made from the weights of %s: at best %.1f %% of the packed bytes are equal (%s)",
			r.Quantized, r.Base, 100*best.packedShare(), best)
	}
	s := fmt.Sprintf("%s does not match %s under any profile; the closest is %s: %.4f %% of the bytes equal means another arithmetic, not noise",
		r.Quantized, r.Base, best, best.equalPercent())
	if r.Convention != "" {
		s += "; it has the scales of " + r.Best + " and codes from " + r.Convention
	}
	return s
}
