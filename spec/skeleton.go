package spec

import (
	"errors"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

var errSkeleton = errors.New("not there yet")

type QuantConfig struct {
	Method  string   // "compressed-tensors" or "modelopt"
	Format  string   // compressed-tensors: the top-level format; ModelOpt: the algorithm
	Version string   // of the writer; "" where the config has none
	Places  []string // where it stands, such as "quantization_config"; the first one was read
	Groups  []*Group
	Ignore  []string
	KVCache *Args // nil: none
}

type Group struct {
	Name, Format             string
	Targets                  []string
	Weights, Inputs, Outputs *Args // nil: not quantized
}

type Args struct {
	NumBits    int
	Type       string // "float", "int"
	Strategy   string // "tensor_group", "group", "tensor", "channel", "block", "token"
	GroupSize  int
	Symmetric  bool
	Dynamic    string // "false", "true", "local"
	Observer   string
	ScaleDType string
}

func ParseQuantConfig(config []byte) (*QuantConfig, error)           { return nil, errSkeleton }
func (q *QuantConfig) ModelOpt() bool                                { return false }
func (q *QuantConfig) Group(module, class string) (*Group, error)    { return nil, errSkeleton }
func (q *QuantConfig) Targeted(module, class string) (*Group, error) { return nil, errSkeleton } // ignore left aside
func (q *QuantConfig) IgnoredBy(module, class string) ([]int, error) { return nil, errSkeleton } // indexes into Ignore
func (g *Group) NVFP4() bool                                         { return false }
func (g *Group) InputScales() bool                                   { return false } // modules have input_global_scale (W4A4)

// Linear is the class of every module that a config can quantize here.
const Linear = "Linear"

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
