package verify

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lagquant/lagquant/safetensors"
)

// A slot is the place of one tensor in a module, named by the end of the tensor's name.
type slot string

// Slots of a linear module. ModelOpt keeps the packed codes under slotWeight.
const (
	slotWeight slot = "weight"
	slotPacked slot = "weight_packed"
	slotScale  slot = "weight_scale"
	slotGlobal slot = "weight_global_scale"
	slotInput  slot = "input_global_scale"

	slotModelOptGlobal slot = "weight_scale_2"
	slotModelOptInput  slot = "input_scale"
)

var slots = []slot{slotWeight, slotPacked, slotScale, slotGlobal, slotInput, slotModelOptGlobal, slotModelOptInput}

// module is a linear layer: the tensors whose names differ in the last component only.
type module struct {
	name    string
	tensors map[slot]*tensorAt
}

// modelopt says whether the module is NVFP4 in ModelOpt's layout.
func (m *module) modelopt() bool {
	w := m.tensors[slotWeight]
	return m.tensors[slotModelOptGlobal] != nil && (w == nil || w.DType == safetensors.U8)
}

// nvfp4 says whether anything of the module is NVFP4, be it complete or not.
func (m *module) nvfp4() bool {
	if m.modelopt() || m.tensors[slotGlobal] != nil {
		return true
	}
	p := m.tensors[slotPacked]
	return p != nil && p.DType == safetensors.U8
}

// plain says whether the module has a weight of two dimensions in a float type of 16 or 32 bits.
func (m *module) plain() bool {
	w := m.tensors[slotWeight]
	if w == nil || len(w.Shape) != 2 {
		return false
	}
	return w.DType == safetensors.BF16 || w.DType == safetensors.F16 || w.DType == safetensors.F32
}

func (m *module) packed() *tensorAt {
	if m.modelopt() {
		return m.tensors[slotWeight]
	}
	return m.tensors[slotPacked]
}

func (m *module) scale() *tensorAt { return m.tensors[slotScale] }

func (m *module) global() *tensorAt {
	if m.modelopt() {
		return m.tensors[slotModelOptGlobal]
	}
	return m.tensors[slotGlobal]
}

func (m *module) input() *tensorAt {
	if m.modelopt() {
		return m.tensors[slotModelOptInput]
	}
	return m.tensors[slotInput]
}

// inventory is a checkpoint by modules.
type inventory struct {
	ckpt    *safetensors.Checkpoint
	tensors map[string]*tensorAt
	modules map[string]*module
}

// hasNVFP4 says whether any module is NVFP4.
func (inv *inventory) hasNVFP4() bool {
	for _, m := range inv.modules {
		if m.nvfp4() {
			return true
		}
	}
	return false
}

func takeInventory(ckpt *safetensors.Checkpoint) *inventory {
	inv := &inventory{ckpt, map[string]*tensorAt{}, map[string]*module{}}
	for _, name := range ckpt.Names() {
		shard, t, ok := ckpt.Lookup(name)
		if !ok {
			continue
		}
		at := &tensorAt{t, shard}
		inv.tensors[name] = at
		if name, s, ok := splitName(name); ok {
			m := inv.modules[name]
			if m == nil {
				m = &module{name, map[slot]*tensorAt{}}
				inv.modules[name] = m
			}
			m.tensors[s] = at
		}
	}
	return inv
}

// names returns the names of all modules, sorted.
func (inv *inventory) names() []string { return slices.Sorted(maps.Keys(inv.modules)) }

// splitName cuts a tensor name into module and slot.
func splitName(tensor string) (string, slot, bool) {
	i := strings.LastIndexByte(tensor, '.')
	if i < 0 {
		return "", "", false
	}
	s := slot(tensor[i+1:])
	return tensor[:i], s, slices.Contains(slots, s)
}

// partners are the projections that loaders fuse into one matrix, so that they must share a global scale.
var partners = [][]string{
	{"gate_proj", "up_proj"}, {"w1", "w3"}, {"q_proj", "k_proj", "v_proj"}, {"q_a_proj", "kv_a_proj_with_mqa"},
}

// fusedSet names the set to which a module belongs: "path.{gate_proj,up_proj}", and the module's own name where it stands alone.
func fusedSet(module string) string {
	i := strings.LastIndexByte(module, '.') + 1
	for _, p := range partners {
		if slices.Contains(p, module[i:]) {
			return module[:i] + "{" + strings.Join(p, ",") + "}"
		}
	}
	return module
}

var (
	layerPattern  = regexp.MustCompile(`(?:^|\.)layers\.(\d+)\.`)
	expertPattern = regexp.MustCompile(`^(.*\.experts)\.(\d+)\.([^.]+)$`)
)

// layerOf returns the number of the decoder layer in a name, and -1 where there is none.
func layerOf(name string) int {
	m := layerPattern.FindStringSubmatch(name)
	if m == nil {
		return -1
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return -1
	}
	return n
}

// expertsOf returns the path of the experts ("model.layers.3.mlp.experts") to which a routed expert's module belongs.
func expertsOf(module string) (string, bool) {
	m := expertPattern.FindStringSubmatch(module)
	if m == nil {
		return "", false
	}
	return m[1], true
}
