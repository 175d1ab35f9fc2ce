package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/lagquant/lagquant/quant"
)

// A globalForm is a way in which a tool gets the stored global scale from the absolute maximum of a BF16 tensor.
type globalForm struct {
	name     string
	product  float64               // of the scale 2688/A and A
	modelopt bool                  // native gives A/2688
	native   func(float32) float32 // the scale as this tool computes it, for the absolute maximum A
}

// globalForms are told apart by stored globals alone: BF16 is so coarse that at most one A explains a global of an exact form, and the
// forms round differently for about 30 of the 128 mantissas of A. A form of the other layout is compared by its reciprocal, which is what
// converters store.
var globalForms = []globalForm{
	{"fp32 observer", 2688, false, mustProfile("ct-fp32-rcp6").Global},
	{"bf16 observer", 2688, false, mustProfile("ct-bf16").Global},
	{"modelopt on CUDA", 2688, true, mustProfile("modelopt-cuda").Global},
	{"modelopt on CPU", 2688, true, mustProfile("modelopt-cpu").Global},
	{"four-over-six", 1536, true, func(a float32) float32 { return a / 1536 }},
}

func mustProfile(name string) quant.Profile {
	p, ok := quant.ProfileByName(name)
	if !ok {
		panic("verify: no profile " + name) // a mistake in this file, caught by any test
	}
	return p
}

// explains says whether the absolute maximum of some BF16 tensor gives the stored global. A bf16 observer rounds twice to 8 bits, so that
// the true maximum can lie two places off.
func (f globalForm) explains(stored float32, modelopt bool) bool {
	ratio := f.product / float64(stored)
	if modelopt {
		ratio = f.product * float64(stored)
	}
	if !(ratio > 0 && ratio <= math.MaxFloat32) {
		return false
	}
	near := int(quant.Float32ToBF16(float32(ratio)))
	for bits := max(near-3, 1); bits <= min(near+3, 0x7f7f); bits++ {
		g := f.native(quant.BF16ToFloat32(uint16(bits)))
		if modelopt != f.modelopt {
			g = 1 / g
		}
		if math.Float32bits(g) == math.Float32bits(stored) {
			return true
		}
	}
	return false
}

// GlobalEvidence tells what the stored global scales of quantized experts say about the tool that wrote them.
type GlobalEvidence struct {
	Globals  int         `json:"globals"`   // one for each fused set; those that are exactly 1 (zero weights) left out
	LowZero  int         `json:"low_zero"`  // those of which the low 16 bits are zero, as after a bf16 observer
	Explains []FormCount `json:"explained"` // by form
	Form     string      `json:"form"`      // the only form that explains all; "" where none or several do
}

// FormCount is the number of globals that one form explains.
type FormCount struct {
	Form      string `json:"form"`
	Explained int    `json:"explained"`
}

// examineGlobals weighs stored globals: 2688/A, or A/2688 with modelopt.
func examineGlobals(stored []float32, modelopt bool) GlobalEvidence {
	e := GlobalEvidence{Explains: make([]FormCount, len(globalForms))}
	for i, f := range globalForms {
		e.Explains[i].Form = f.name
	}
	for _, g := range stored {
		if g == 1 || !lawfulGlobal(g) {
			continue
		}
		e.Globals++
		if math.Float32bits(g)&0xffff == 0 {
			e.LowZero++
		}
		for i, f := range globalForms {
			if f.explains(g, modelopt) {
				e.Explains[i].Explained++
			}
		}
	}
	for _, c := range e.Explains {
		if c.Explained < e.Globals || e.Globals == 0 {
			continue
		}
		if e.Form != "" {
			e.Form = ""
			break
		}
		e.Form = c.Form
	}
	return e
}

// String gives the evidence as a clause: "the fp32 observer explains 70 of 70 global scales (bf16 observer 3)".
func (e GlobalEvidence) String() string {
	if e.Globals == 0 {
		return "no global scale tells anything"
	}
	best, others := FormCount{}, []string{}
	for _, c := range e.Explains {
		if c.Explained > best.Explained || c.Form == e.Form {
			best = c
		}
	}
	for _, c := range e.Explains {
		if c.Form != best.Form {
			others = append(others, fmt.Sprintf("%s %d", c.Form, c.Explained))
		}
	}
	if best.Explained == 0 {
		return fmt.Sprintf("no known form explains any of %s", plural(e.Globals, "global scale"))
	}
	return fmt.Sprintf("%s explains %d of %s (%s)", best.Form, best.Explained, plural(e.Globals, "global scale"), strings.Join(others, ", "))
}

// lawfulGlobal says whether a loader can use the global scale: finite, above zero, and with a reciprocal that is finite and above zero.
func lawfulGlobal(g float32) bool {
	inverse := 1 / g
	return g > 0 && !math.IsInf(float64(g), 0) && inverse > 0 && !math.IsInf(float64(inverse), 0)
}

// float32At decodes a stored F32 scalar.
func float32At(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
