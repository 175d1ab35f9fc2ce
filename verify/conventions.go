package verify

import (
	"context"
	"math"

	"github.com/lagquant/lagquant/quant"
)

// A convention is a way of choosing codes that some release of some tool had for a while, under the group and global scales of a profile.
// None is a profile, since none is to be written; verify names them so that the question "whose bytes are these" has an answer.
type convention struct {
	name string
	code func(g codeGroup, x float32) byte
}

// codeGroup is what the choice of codes in one group depends on.
type codeGroup struct {
	amax, global, scale, step float32
}

var conventions = []convention{
	{"quotients rounded to bfloat16 first", func(g codeGroup, x float32) byte {
		return quant.Code(toBF16(x/g.step), 1)
	}},
	// compressed-tensors' Triton kernels from 2026-07-23 to 2026-08-05, in nightlies only; they kept the sign of an exact zero too.
	{"quotients rounded to bfloat16 first and signed zeros kept", func(g codeGroup, x float32) byte {
		return quant.Code(toBF16(x/g.step), 1) | byte(math.Float32bits(x)>>31<<3)
	}},
	// NVIDIA/Model-Optimizer issue 2243.
	{"quotients by the group scale before it was rounded to E4M3", func(g codeGroup, x float32) byte {
		return quant.Code(x, g.amax/6)
	}},
	{"a multiplication by the reciprocal of the step", func(g codeGroup, x float32) byte {
		return quant.Code(x*(1/g.step), 1)
	}},
	{"a multiplication by the global scale before the division by the group scale", func(g codeGroup, x float32) byte {
		return quant.Code(float32(x*g.global)/g.scale, 1)
	}},
}

func toBF16(f float32) float32 { return quant.BF16ToFloat32(quant.Float32ToBF16(f)) }

// conventionSets is how many fused sets are looked at: enough to tell conventions apart, few enough for scalar code.
const conventionSets = 64

// findConvention looks for the convention that gives every stored code, where the scales are those of the closest profile and the codes are
// not; "" where there is nothing to explain or none does.
func (r *Recipe) findConvention(ctx context.Context, sets []recipeSet, open *files, o Options) (string, error) {
	best := r.count(r.Best)
	if r.Explained() || best.Modules == 0 || best.ScaleBytes > 0 || best.Globals > 0 {
		return "", nil
	}
	p := mustProfile(r.Best)
	left := conventions
	for _, set := range sets[:min(len(sets), conventionSets)] {
		for _, m := range set.modules {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			weights, err := open.read(m.base, o)
			if err != nil {
				return "", err
			}
			s, err := readStored(m.quantized, open, o)
			if err != nil {
				return "", err
			}
			var fit []convention
			for _, c := range left {
				if c.explains(p, s, weights) {
					fit = append(fit, c)
				}
			}
			if left = fit; len(left) == 0 {
				return "", nil
			}
		}
	}
	return left[0].name, nil
}

func (c convention) explains(p quant.Profile, s stored, weights []byte) bool {
	if p.ModelOpt() != s.modelopt {
		return false
	}
	const group = 16
	for i, scale := range s.scales {
		w := weights[i*2*group:][:2*group]
		g := codeGroup{quant.AbsMax(w), s.global, quant.E4M3ToFloat32(scale), p.Step(scale, s.global)}
		for j, b := range s.packed[i*group/2:][:group/2] {
			if c.code(g, weightAt(w, 2*j))|c.code(g, weightAt(w, 2*j+1))<<4 != b {
				return false
			}
		}
	}
	return true
}

func weightAt(bf16 []byte, i int) float32 {
	return quant.BF16ToFloat32(uint16(bf16[2*i]) | uint16(bf16[2*i+1])<<8)
}
