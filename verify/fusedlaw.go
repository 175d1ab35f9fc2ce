package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/quant"
)

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
