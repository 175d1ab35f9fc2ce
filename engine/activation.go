package engine

import (
	"math"

	"github.com/lagquant/lagquant/quant"
)

// InputScales says which input scale an expert's projection is computed with under W4A4.
type InputScales string

// The two rules in use.
const (
	InputScalesOwn   InputScales = "own"   // each projection's own input_global_scale
	InputScalesLayer InputScales = "layer" // the smallest of the layer's experts, one for gate and up, one for down, as serving engines fuse them
)

// inputProfile is the arithmetic of dynamic "local" activation quantization: the group scale of compressed-tensors with a true division by six,
// which is what it runs on a CPU.
var inputProfile, _ = quant.ProfileByName("ct-fp32-div6")

// quantizeInput writes the values that x has after quantization to FP4 with a scale for each 16 elements: what the next product sees under W4A4.
// global is the projection's input_global_scale, 2688/amax; 0: x stays as it is.
func quantizeInput(dst, x []float32, global float32) {
	if global == 0 {
		copy(dst, x)
		return
	}
	for g := 0; g+16 <= len(x); g += 16 {
		in, out := x[g:g+16], dst[g:g+16]
		var amax uint32
		for _, v := range in {
			amax = max(amax, math.Float32bits(v)&^(1<<31)) // whole numbers: magnitudes in the same order, and max is quick
		}
		step := inputProfile.Step(inputProfile.GroupScale(math.Float32frombits(amax), global), global)
		for i, v := range in {
			out[i] = quant.E2M1ToFloat32(quant.Code(v, step)) * step
		}
	}
}
