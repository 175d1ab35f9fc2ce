package verify

import (
	"fmt"
	"math"
)

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
