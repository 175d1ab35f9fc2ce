package spec

import (
	"fmt"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

// ExpectedTensor is one tensor that a checkpoint of a known family has to have.
type ExpectedTensor struct {
	Name     string
	DTypes   []safetensors.DType // accepted, the usual one first
	Shapes   [][]uint64          // accepted, the usual one first
	Optional bool                // may be absent, such as a head that is tied to the embedding
}

// Accepts says whether a tensor has one of the element types and one of the shapes.
func (e ExpectedTensor) Accepts(t safetensors.Tensor) bool {
	return slices.Contains(e.DTypes, t.DType) && slices.ContainsFunc(e.Shapes, func(s []uint64) bool { return slices.Equal(s, t.Shape) })
}

// ExpectedTensors returns every tensor that a checkpoint has by its config alone, in the model's order; false: the config is of no family, or of no
// variant of one, whose tensors are known. Errors are of kind Refused: the config lacks what the family needs, or contradicts itself.
func ExpectedTensors(config []byte) ([]ExpectedTensor, bool, error) {
	root, err := parseConfig(config)
	if err != nil {
		return nil, false, err
	}
	if !isLaguna(root) {
		return nil, false, nil
	}
	l, known, err := parseLaguna(root)
	if !known || err != nil {
		return nil, false, err
	}
	q, err := ParseQuantConfig(config)
	if err != nil {
		return nil, false, err
	}
	return l.tensors(q)
}

// scalarShapes are those of one number: compressed-tensors writes [1], ModelOpt [], and every reader takes both.
var scalarShapes = [][]uint64{{1}, {}}

// inventory collects expected tensors. known turns false at the first module whose scheme's tensors are not known.
type inventory struct {
	quant *QuantConfig // nil: nothing is quantized
	dtype safetensors.DType
	list  []ExpectedTensor
	known bool
	err   error
}

func (v *inventory) add(name string, dtypes []safetensors.DType, shapes ...[]uint64) {
	v.list = append(v.list, ExpectedTensor{Name: name, DTypes: dtypes, Shapes: shapes})
}

// plain adds a tensor in the model's own element type.
func (v *inventory) plain(name string, shape ...uint64) {
	v.add(name, []safetensors.DType{v.dtype}, shape)
}

// linear adds the tensors of a linear module [rows, cols] in the form that the config gives it.
func (v *inventory) linear(module string, rows, cols uint64) {
	g, err := v.group(module)
	if v.err == nil {
		v.err = err
	}
	switch {
	case g == nil:
		v.plain(module+".weight", rows, cols)
	case !g.NVFP4():
		v.known = false
	case cols%16 != 0:
		if v.err == nil {
			v.err = &fault.Error{
				Kind: fault.Refused, Tensor: module, Problem: fmt.Sprintf("is NVFP4 by the config and has %d columns by it, no multiple of 16", cols),
			}
		}
	default:
		v.nvfp4(module, rows, cols, g.InputScales())
	}
}

func (v *inventory) group(module string) (*Group, error) {
	if v.quant == nil {
		return nil, nil
	}
	return v.quant.Group(module, Linear)
}

func (v *inventory) nvfp4(module string, rows, cols uint64, inputs bool) {
	packed, global, input, scalars := ".weight_packed", ".weight_global_scale", ".input_global_scale", scalarShapes
	if v.quant.ModelOpt() {
		packed, global, input, scalars = ".weight", ".weight_scale_2", ".input_scale", [][]uint64{{}, {1}}
	}
	v.add(module+packed, []safetensors.DType{safetensors.U8}, []uint64{rows, cols / 2})
	v.add(module+".weight_scale", []safetensors.DType{safetensors.F8E4M3}, []uint64{rows, cols / 16})
	v.add(module+global, []safetensors.DType{safetensors.F32}, scalars...)
	if inputs {
		v.add(module+input, []safetensors.DType{safetensors.F32}, scalars...)
	}
}
