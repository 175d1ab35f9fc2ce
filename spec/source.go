package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// ErrExpertForm says that routed experts are stored in a form that cannot be requantized.
var ErrExpertForm = errors.New("expert tensors of an unsupported form")

// Role is what a projection does in a gated MLP: down(silu(gate x) * up x). Experts without a gate have up and down alone.
type Role string

// The roles.
const (
	Gate Role = "gate"
	Up   Role = "up"
	Down Role = "down"
)

// Kind is what a tensor of a projection holds. For a projection [R, C]:
type Kind string

// The kinds.
const (
	Weight      Kind = "weight"       // BF16 [R, C]
	Packed      Kind = "packed"       // U8 [R, C/2], two codes a byte
	Scale       Kind = "scale"        // F8_E4M3 [R, C/16], a group's scale
	Global      Kind = "global"       // F32 scalar
	InputGlobal Kind = "input_global" // F32 scalar
	Bias        Kind = "bias"         // copied
)

// ExpertTensor is what the name of a routed expert's tensor says.
type ExpertTensor struct {
	Module string // without the kind: model.layers.3.mlp.experts.5.gate_proj
	Layer  int
	Bank   int // position of Layer among the layers with routed experts; -1: none of the model's layers, such as one for multi-token prediction
	Expert int
	Role   Role
	Kind   Kind
}

// FusedSet names what shares a global scale: gate and up of one expert, down alone.
func (t ExpertTensor) FusedSet() string {
	if t.Role == Down {
		return t.Module
	}
	expert, _ := cutLast(t.Module)
	return expert + ".gate+up"
}

// Synthesis makes the packed form of one fused set of an expert that is stored unpacked, and returns the global scale that the set shares.
type Synthesis func(quant.Backend, quant.Profile, []quant.Member) (float32, error)

// Nvfp4ExpertSourceSpec describes how a checkpoint stores its routed experts: what in its names is layer, expert, projection and kind, and what they mean.
type Nvfp4ExpertSourceSpec struct {
	Family string
	Key    string          // of a tensor's name, with {layer}, {expert}, {proj} and {kind}
	Roles  map[string]Role // by {proj}
	Kinds  map[string]Kind // by {kind}; ModelOpt's ".weight" is Packed where its elements are U8

	// Reciprocal says that globals are stored as ModelOpt does, 1/G for weights and inputs.
	Reciprocal bool

	// Synthesize quantizes the fused sets of layers that are stored unpacked.
	Synthesize Synthesis

	key    key
	hidden int         // layers of the model; those from here on predict further tokens. -1: the config does not say
	banks  map[int]int // by layer
}

// Match reads a tensor's name; false: it is no routed expert's. In a ModelOpt checkpoint use MatchTensor, since there the name does not tell BF16
// from packed.
func (s *Nvfp4ExpertSourceSpec) Match(name string) (ExpertTensor, bool) {
	f, ok := s.key.match(name)
	if !ok {
		return ExpertTensor{}, false
	}
	role, kind := s.Roles[f.proj], s.Kinds[f.kind]
	if role == "" || kind == "" {
		return ExpertTensor{}, false
	}
	bank, ok := s.banks[f.layer]
	if !ok || s.furtherToken(f) {
		bank = -1
	}
	return ExpertTensor{Module: f.module, Layer: f.layer, Bank: bank, Expert: f.expert, Role: role, Kind: kind}, true
}

// MatchTensor is Match with the element type taken into account.
func (s *Nvfp4ExpertSourceSpec) MatchTensor(t safetensors.Tensor) (ExpertTensor, bool) {
	e, ok := s.Match(t.Name)
	if e.Kind == Weight && t.DType == safetensors.U8 {
		e.Kind = Packed
	}
	return e, ok
}

// Name returns the name of a module's tensor of a kind, as this checkpoint spells it.
func (s *Nvfp4ExpertSourceSpec) Name(module string, k Kind) string {
	for suffix, kind := range s.Kinds {
		if kind == k {
			return module + "." + suffix
		}
	}
	if k == Packed { // ModelOpt keeps the name of the weight
		return s.Name(module, Weight)
	}
	return ""
}

// Layers returns the layers that have routed experts, in order.
func (s *Nvfp4ExpertSourceSpec) Layers() []int { return slices.Sorted(maps.Keys(s.banks)) }

// furtherToken says whether a name belongs to a layer for multi-token prediction: one under "mtp", or after the model's last.
func (s *Nvfp4ExpertSourceSpec) furtherToken(f keyFields) bool {
	return s.hidden >= 0 && f.layer >= s.hidden || strings.Contains("."+f.prefix+".", ".mtp.")
}

// Detect finds how a checkpoint stores its routed experts, from config.json and the tensors' names; nil: it has none. Experts in a form that is not read
// are refused with ErrExpertForm, never passed over: a tool that skips them leaves a checkpoint that looks quantized and is not.
func Detect(config []byte, names []string) (*Nvfp4ExpertSourceSpec, error) {
	root, err := parseConfig(config)
	if err != nil {
		return nil, err
	}
	s := familyOf(root).spec(root)
	s.name(config, names)
	prefix, seen := "", false
	for _, name := range names {
		if !strings.Contains(name, "experts.") && !strings.Contains(name, "switch_mlp.") {
			continue
		}
		f, ok := s.key.match(name)
		if !ok || s.Roles[f.proj] == "" || s.Kinds[f.kind] == "" {
			if err := s.unsupported(name); err != nil {
				return nil, err
			}
			continue
		}
		if s.furtherToken(f) {
			continue
		}
		if seen && f.prefix != prefix {
			return nil, &fault.Error{
				Kind: fault.Refused, Tensor: name, Err: ErrExpertForm,
				Problem: fmt.Sprintf("experts under %q and under %q: which of them are the model's is not known", prefix, f.prefix),
			}
		}
		prefix, seen = f.prefix, true
		s.banks[f.layer] = 0
	}
	if !seen {
		return nil, nil
	}
	for bank, layer := range s.Layers() {
		s.banks[layer] = bank
	}
	return s, nil
}

// name chooses the spelling of the tensors: that of the packed experts where there are some, else that of the config.
func (s *Nvfp4ExpertSourceSpec) name(config []byte, names []string) {
	spelled := ""
	for _, name := range names {
		if f, ok := s.key.match(name); ok && (f.kind == "weight_packed" || f.kind == "weight_scale_2") {
			spelled = f.kind
			break
		}
	}
	if spelled == "" {
		if q, err := ParseQuantConfig(config); err == nil && q != nil && q.ModelOpt() {
			spelled = "weight_scale_2"
		}
	}
	s.Reciprocal = spelled == "weight_scale_2"
	s.Kinds = compressedTensorsKinds
	if s.Reciprocal {
		s.Kinds = modelOptKinds
	}
}
