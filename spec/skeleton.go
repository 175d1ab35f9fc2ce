package spec

import (
	"errors"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

var errSkeleton = errors.New("not there yet")

type Change struct {
	Line   int      `json:"line"` // of the first line before the edit, from 1
	Before []string `json:"before"`
	After  []string `json:"after"`
}

// all: every Linear module; quantize: those that become NVFP4.
func NarrowIgnore(config []byte, quantize, all []string) ([]byte, []Change, error) {
	return nil, nil, errSkeleton
}

// WeightOnly sets input_activations of the NVFP4 groups to null.
func WeightOnly(config []byte) ([]byte, []Change, error) { return nil, nil, errSkeleton }

type Role string

const (
	Gate Role = "gate"
	Up   Role = "up"
	Down Role = "down"
)

type Kind string

const (
	Weight      Kind = "weight"
	Packed      Kind = "packed"
	Scale       Kind = "scale"
	Global      Kind = "global"
	InputGlobal Kind = "input_global"
	Bias        Kind = "bias"
)

type ExpertTensor struct {
	Module string // name without the kind: model.layers.3.mlp.experts.5.gate_proj
	Layer  int
	Bank   int // index among the layers with routed experts; -1: none of them (dense prefix, multi-token prediction)
	Expert int
	Role   Role
	Kind   Kind
}

// FusedSet names what shares a global scale: gate and up of one expert; down alone.
func (t ExpertTensor) FusedSet() string { return "" }

type Nvfp4ExpertSourceSpec struct {
	Family string
	Key    string          // model.layers.{layer}.mlp.experts.{expert}.{proj}.{kind}
	Roles  map[string]Role // {proj}
	Kinds  map[string]Kind // {kind}
	// ModelOpt: globals are stored as 1/G.
	Reciprocal bool
	Synthesize func(quant.Backend, quant.Profile, []quant.Member) (float32, error)
}

func Detect(config []byte, names []string) (*Nvfp4ExpertSourceSpec, error) { return nil, errSkeleton } // nil, nil: no routed experts
func (s *Nvfp4ExpertSourceSpec) Match(name string) (ExpertTensor, bool)    { return ExpertTensor{}, false }
func (s *Nvfp4ExpertSourceSpec) MatchTensor(t safetensors.Tensor) (ExpertTensor, bool) {
	return ExpertTensor{}, false
}                                                                  // U8 .weight is Packed
func (s *Nvfp4ExpertSourceSpec) Name(module string, k Kind) string { return "" }

type ExpectedTensor struct {
	Name   string
	DTypes []safetensors.DType // accepted, the usual one first
	Shapes [][]uint64          // accepted, the usual one first
}

func (e ExpectedTensor) Accepts(t safetensors.Tensor) bool { return false }

// false: the config is of no family whose tensors are known.
func ExpectedTensors(config []byte) ([]ExpectedTensor, bool, error) { return nil, false, errSkeleton }
