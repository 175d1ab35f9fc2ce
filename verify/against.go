package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

const comparisonSchema = "lagquant-comparison/1"

// Comparison is the outcome of Against: two checkpoints, called a ("here") and b ("there"), tensor by tensor. Tensors are matched by
// name, so that sharding does not matter. The tensors of a module that is BF16 on one side and NVFP4 on the other stand under Recipes only.
type Comparison struct {
	Schema    string            `json:"schema"`
	A         string            `json:"a"`
	B         string            `json:"b"`
	Sample    string            `json:"sample"` // "all", or the part looked at
	Same      int               `json:"same"`
	Bytes     int64             `json:"bytes"` // compared on each side
	Differing []Difference      `json:"differing"`
	OnlyA     []string          `json:"only_a"`
	OnlyB     []string          `json:"only_b"`
	Layers    []LayerComparison `json:"layers"`
	NVFP4     *CodeDifferences  `json:"nvfp4,omitempty"` // modules that are NVFP4 on both sides
	Recipes   []*Recipe         `json:"recipes,omitempty"`
	Origins   []Origin          `json:"origins,omitempty"` // what the global scales of differing NVFP4 modules tell
	Verdict   []string          `json:"verdict"`

	uncalibrated [2][]string // OnlyA and OnlyB without what calibration adds to a quantized checkpoint
}

// Difference is a tensor of both checkpoints that is not the same.
type Difference struct {
	Tensor string `json:"tensor"`
	What   string `json:"what"` // "bytes", "dtype" or "shape"
	Bytes  int64  `json:"bytes,omitempty"`
	Of     int64  `json:"of,omitempty"`
	A      string `json:"a,omitempty"` // the value, dtype or shape here
	B      string `json:"b,omitempty"`
}

// LayerComparison counts the tensors of one layer; Layer -1 holds those outside of all layers.
type LayerComparison struct {
	Layer       int `json:"layer"`
	Same        int `json:"same"`
	Differing   int `json:"differing"`
	OnlyA       int `json:"only_a"`
	OnlyB       int `json:"only_b"`
	Requantized int `json:"requantized"` // modules in another form, not tensors

	uncalibrated [2]int // OnlyA and OnlyB without what calibration adds
}

// Origin is what the global scales of one side tell about the tool that wrote them.
type Origin struct {
	Checkpoint string         `json:"checkpoint"`
	Globals    GlobalEvidence `json:"globals"`
	Profile    string         `json:"profile"` // "" where they do not tell
	Text       string         `json:"text"`
}

// Against compares two checkpoints byte for byte, proves or refutes every recipe by which modules of one could have been made from the
// other, and explains the rest. Differences are in the Comparison; the error is one of reading, names a BF16 weight that is not finite, or
// says that the sample holds nothing.
func Against(ctx context.Context, a, b *safetensors.Checkpoint, o Options) (*Comparison, error) {
	c := &comparer{o: o, a: takeInventory(a), b: takeInventory(b), open: newFiles()}
	defer c.open.close()
	c.Comparison = &Comparison{
		Schema: comparisonSchema, A: o.Names[0], B: o.Names[1], Sample: o.Sample.String(),
		Differing: []Difference{}, OnlyA: []string{}, OnlyB: []string{}, Layers: []LayerComparison{},
	}
	if c.A == "" {
		c.A = label(a)
	}
	if c.B == "" {
		c.B = label(b)
	}
	if c.A == c.B {
		c.A, c.B = a.Dir, b.Dir
	}
	if o.Start != nil {
		o.Start(bytesOf(a) + bytesOf(b))
	}
	claimed, err := c.proveRecipes(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.compareTensors(ctx, claimed); err != nil {
		return nil, err
	}
	if err := c.checkSample(); err != nil {
		return nil, err
	}
	if err := c.findOrigins(); err != nil {
		return nil, err
	}
	c.judge()
	return c.Comparison, nil
}

// checkSample refuses a sample that holds nothing, which would prove nothing and look clean.
func (c *comparer) checkSample() error {
	modules := map[string]*module{}
	for _, inv := range []*inventory{c.a, c.b} {
		for name := range inv.tensors {
			if c.o.Sample.Has(sampleKey(name)) {
				return nil
			}
		}
		maps.Copy(modules, inv.modules)
	}
	if len(c.a.tensors)+len(c.b.tensors) == 0 {
		return nil
	}
	return &fault.Error{
		Kind: fault.Usage, Problem: fmt.Sprintf("sample %s of %s holds none of them", c.Sample, plural(len(modules), "module")),
		Hint: "take a larger part",
	}
}

func bytesOf(c *safetensors.Checkpoint) (n int64) {
	for _, s := range c.Shards {
		n += s.Size
	}
	return n
}

func label(c *safetensors.Checkpoint) string { return filepath.Base(c.Dir) }

// Clean says whether nothing differs: all tensors of both are the same, or made from the other's by a proven recipe. Input and KV scales
// that only the quantized side of a recipe has are no difference, since the other side could not have them.
func (c *Comparison) Clean() bool {
	for _, r := range c.Recipes {
		if !r.Explained() || len(r.Unproven) > 0 {
			return false
		}
	}
	return len(c.Differing) == 0 && len(c.uncalibrated[0]) == 0 && len(c.uncalibrated[1]) == 0
}

type comparer struct {
	o Options
	*Comparison
	a, b   *inventory
	open   *files
	layers map[int]*LayerComparison
}

// layer returns the counts of the layer that a tensor or module belongs to.
func (c *comparer) layer(name string) *LayerComparison {
	n := layerOf(name)
	if c.layers == nil {
		c.layers = map[int]*LayerComparison{}
	}
	if c.layers[n] == nil {
		c.layers[n] = &LayerComparison{Layer: n}
	}
	return c.layers[n]
}

// proveRecipes looks at every module that one side has in BF16 and the other in NVFP4, and returns the tensors that are thereby dealt with.
func (c *comparer) proveRecipes(ctx context.Context) (claimed map[string]bool, err error) {
	claimed = map[string]bool{}
	for _, side := range []struct {
		quantized, base *inventory
		from, to        string
	}{{c.a, c.b, c.A, c.B}, {c.b, c.a, c.B, c.A}} {
		sets, unproven := pairUp(side.quantized, side.base)
		r := &Recipe{Quantized: side.from, Base: side.to}
		for _, name := range unproven {
			c.claim(claimed, name)
			if c.o.Sample.Has(fusedSet(name)) {
				r.Unproven = append(r.Unproven, name)
			}
		}
		chosen := sets[:0:0]
		for _, set := range sets {
			for _, m := range set.modules {
				c.claim(claimed, m.name)
			}
			if !c.o.Sample.Has(set.name) {
				continue
			}
			chosen = append(chosen, set)
			for _, m := range set.modules {
				c.layer(m.name).Requantized++
				if m.quantized.input() != nil {
					r.InputScales++
				}
			}
		}
		if len(chosen) == 0 && len(r.Unproven) == 0 {
			continue
		}
		counts, err := prove(ctx, chosen, r.Base, c.open, c.o)
		if err != nil {
			return nil, err
		}
		r.judge(counts)
		if r.Convention, err = r.findConvention(ctx, chosen, c.open, c.o); err != nil {
			return nil, err
		}
		c.Recipes = append(c.Recipes, r)
	}
	return claimed, nil
}

// claim takes all tensors of a module out of the comparison by name.
func (c *comparer) claim(claimed map[string]bool, module string) {
	for _, inv := range []*inventory{c.a, c.b} {
		for _, t := range inv.modules[module].tensors {
			claimed[t.Name] = true
		}
	}
}

// compareTensors compares what the recipes left, in the order in which it lies in the shards of a.
func (c *comparer) compareTensors(ctx context.Context, claimed map[string]bool) error {
	var both []*tensorAt
	for name, t := range c.a.tensors {
		switch {
		case claimed[name] || !c.o.Sample.Has(sampleKey(name)):
		case c.b.tensors[name] == nil:
			c.OnlyA = append(c.OnlyA, name)
			c.layer(name).OnlyA++
		default:
			both = append(both, t)
		}
	}
	for name := range c.b.tensors {
		if !claimed[name] && c.o.Sample.Has(sampleKey(name)) && c.a.tensors[name] == nil {
			c.OnlyB = append(c.OnlyB, name)
			c.layer(name).OnlyB++
		}
	}
	slices.Sort(c.OnlyA)
	slices.Sort(c.OnlyB)
	c.uncalibrated = [2][]string{withoutCalibration(c.OnlyA, c.b), withoutCalibration(c.OnlyB, c.a)}
	for side, names := range c.uncalibrated {
		for _, name := range names {
			c.layer(name).uncalibrated[side]++
		}
	}
	slices.SortFunc(both, func(x, y *tensorAt) int {
		return cmp.Or(cmp.Compare(x.shard.Name, y.shard.Name), cmp.Compare(x.Begin, y.Begin))
	})
	return c.compareBoth(ctx, both)
}

// sampleKey keeps the tensors of a fused set together.
func sampleKey(tensor string) string {
	if module, _, ok := splitName(tensor); ok {
		return fusedSet(module)
	}
	return tensor
}

// withoutCalibration leaves out the scales that come from calibration, where the other side is not quantized and cannot have them.
func withoutCalibration(names []string, other *inventory) []string {
	if other.hasNVFP4() {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		switch name[strings.LastIndexByte(name, '.')+1:] {
		case "k_scale", "v_scale", "q_scale", "kv_scale", "output_scale":
			return true
		}
		return false
	})
}

func (c *comparer) compareBoth(ctx context.Context, both []*tensorAt) error {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.o.jobs())
	for _, t := range both {
		group.Go(func() error {
			d, codes, err := c.compareOne(ctx, t, c.b.tensors[t.Name])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			c.record(t, d, codes)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	slices.SortFunc(c.Differing, func(x, y Difference) int { return cmp.Compare(x.Tensor, y.Tensor) })
	c.countModules()
	return nil
}

func (c *comparer) record(t *tensorAt, d *Difference, codes CodeDifferences) {
	if d == nil || d.What == "bytes" {
		c.Bytes += int64(t.Len())
	}
	layer := c.layer(t.Name)
	if d == nil {
		c.Same++
		layer.Same++
	} else {
		c.Differing = append(c.Differing, *d)
		layer.Differing++
	}
	if codes != (CodeDifferences{}) {
		if c.NVFP4 == nil {
			c.NVFP4 = &CodeDifferences{}
		}
		c.NVFP4.add(codes)
	}
}

// compareOne compares one tensor of both sides. The difference is nil where there is none.
func (c *comparer) compareOne(ctx context.Context, a, b *tensorAt) (*Difference, CodeDifferences, error) {
	kind := c.kind(a)
	switch {
	case a.DType != b.DType:
		return &Difference{Tensor: a.Name, What: "dtype", A: string(a.DType), B: string(b.DType)}, CodeDifferences{}, nil
	case !slices.Equal(a.Shape, b.Shape):
		return &Difference{Tensor: a.Name, What: "shape", A: shape(a.Shape), B: shape(b.Shape)}, CodeDifferences{}, nil
	}
	d := &Difference{Tensor: a.Name, What: "bytes", Of: int64(a.Len())}
	var codes CodeDifferences
	err := c.open.streamPair(ctx, a, b, c.o, func(x, y []byte) {
		d.Bytes += differing(x, y)
		codes.count(kind, x, y)
		if kind == kindGlobal && d.Bytes > 0 {
			d.A, d.B = fmt.Sprint(float32At(x)), fmt.Sprint(float32At(y))
		}
	})
	if err != nil {
		return nil, codes, err
	}
	if d.Bytes == 0 {
		d = nil
	}
	return d, codes, nil
}

// shape writes a shape as headers do.
func shape(s []uint64) string { return strings.ReplaceAll(fmt.Sprint(s), " ", ", ") }
