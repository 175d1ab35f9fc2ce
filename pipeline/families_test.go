package pipeline

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
	"github.com/lagquant/lagquant/verify"
)

// family is how the checkpoints of a kind of model look: the experts of layers 1 and 2 are NVFP4, those of layer 3 are not.
type family struct {
	name          string
	experts       string    // of the names of experts, with the layer as %d
	roles         [3]string // gate, up and down as they are called; no gate: ""
	form          *familyForm
	config        string // with the rules as %s; without %s it has no quantization config
	hfConfig      string // the same of ModelOpt's own file; "": there is none
	rules, edited string // before and after
	beside        []string
	weightsOnly   bool
}

// familyForm is how a tool stores NVFP4.
type familyForm struct {
	profile, packed, global, input string
	scalar                         []uint64
}

var (
	compressedForm = &familyForm{"ct-fp32-rcp6", ".weight_packed", ".weight_global_scale", ".input_global_scale", []uint64{1}}
	modelOptForm   = &familyForm{"modelopt-cuda", ".weight", ".weight_scale_2", ".input_scale", []uint64{}}
	usualRoles     = [3]string{"gate_proj", "up_proj", "down_proj"}
)

const (
	familyRows, familyCols, familyExperts = 32, 64, 3

	fp4      = `{"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": `
	ctScheme = `"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {` +
		`"targets": ["Linear"], "weights": ` + fp4 + `false}, "input_activations": `
	w4a4  = ctScheme + fp4 + `"local"}}}, "ignore": [%s]}}`
	w4a16 = ctScheme + `null}}, "ignore": [%s]}}`

	modelOptConfig   = `{"model_type": "qwen3_moe", "num_hidden_layers": 4, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [%s]}}`
	modelOptHFConfig = `{"producer": {"name": "modelopt", "version": "0.37.0"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": null, "group_size": 16, "exclude_modules": [%s]}}`
)

var families = []family{
	{
		name: "DeepSeek, with a layer that predicts further tokens", experts: "model.layers.%d.mlp.experts", roles: usualRoles, form: compressedForm,
		config: `{"model_type": "deepseek_v3", "num_hidden_layers": 4, "n_routed_experts": 3, ` + w4a4,
		rules:  `"re:model\\.layers\\.4\\..*", "re:.*self_attn.*", "re:model\\.layers\\.3\\..*"`,
		edited: `"re:model\\.layers\\.4\\..*", "re:.*self_attn.*", "model.layers.3.mlp.shared_experts.up_proj"`,
		beside: []string{
			"model.layers.3.mlp.shared_experts.up_proj.weight", "model.layers.3.self_attn.q_a_proj.weight",
			"model.layers.4.mlp.experts.0.gate_proj.weight", "model.layers.4.eh_proj.weight",
		},
	},
	{
		name: "Qwen3-VL, with the language model inside", experts: "model.language_model.layers.%d.mlp.experts", roles: usualRoles, form: compressedForm,
		config: `{"model_type": "qwen3_vl_moe", "text_config": {"num_hidden_layers": 4, "num_experts": 3}, ` + w4a4,
		rules:  `"re:.*visual.*", "re:.*layers\\.[35]\\.mlp\\.experts.*"`, edited: `"re:.*visual.*"`,
		beside: []string{"model.visual.blocks.3.mlp.linear_fc1.weight"},
	},
	{
		name: "Mixtral", experts: "model.layers.%d.block_sparse_moe.experts", roles: [3]string{"w1", "w3", "w2"}, form: compressedForm,
		config: `{"model_type": "mixtral", "num_hidden_layers": 4, ` + w4a4,
		rules:  `"re:.*block_sparse_moe\\.gate$", "re:.*\\.3\\.block_sparse_moe\\.experts\\..*"`, edited: `"re:.*block_sparse_moe\\.gate$"`,
		beside: []string{"model.layers.3.block_sparse_moe.gate.weight"},
	},
	{
		name: "Nemotron-H, without gates", experts: "backbone.layers.%d.mixer.experts", roles: [3]string{"", "up_proj", "down_proj"}, form: compressedForm,
		config: `{"model_type": "nemotron_h", "num_hidden_layers": 4, ` + w4a4,
		rules:  `"lm_head", "re:backbone\\.layers\\.3\\.mixer\\.experts.*"`, edited: `"lm_head"`,
	},
	{
		name: "weights only", experts: "model.layers.%d.mlp.experts", roles: usualRoles, form: compressedForm, weightsOnly: true,
		config: `{"model_type": "glm4_moe", "num_hidden_layers": 4, ` + w4a16,
		rules:  `"lm_head", "re:.*layers\\.3\\.mlp\\.experts.*"`, edited: `"lm_head"`,
	},
	{
		name: "ModelOpt", experts: "model.layers.%d.mlp.experts", roles: usualRoles, form: modelOptForm, config: modelOptConfig, hfConfig: modelOptHFConfig,
		rules: `"lm_head", "*self_attn*", "model.layers.3.mlp.experts*"`, edited: `"lm_head", "*self_attn*"`,
	},
	{
		name: "ModelOpt, told by its own file alone", experts: "model.layers.%d.mlp.experts", roles: usualRoles, form: modelOptForm,
		config: `{"model_type": "qwen3_moe", "num_hidden_layers": 4}`, hfConfig: modelOptHFConfig,
		rules: `"lm_head", "*self_attn*", "model.layers.[3]*"`, edited: `"lm_head", "*self_attn*"`,
	},
}

// with writes a config with some rules.
func with(config, rules string) string { return strings.Replace(config, "%s", rules, 1) }

// modules of one expert, by role.
func (f family) modules(layer, expert int) map[spec.Role]string {
	prefix := fmt.Sprintf(f.experts, layer) + fmt.Sprintf(".%d.", expert)
	m := map[spec.Role]string{}
	for i, role := range []spec.Role{spec.Gate, spec.Up, spec.Down} {
		if f.roles[i] != "" {
			m[role] = prefix + f.roles[i]
		}
	}
	return m
}

// weights of a module, of which the largest is larger in each.
func familyWeights(module string, seed int) []byte {
	b := make([]byte, 2*familyRows*familyCols)
	for i := range familyRows * familyCols {
		v := float32(math.Sin(float64(i*(seed+3))+float64(len(module)))) * (1 + 0.1*float32(seed))
		binary.LittleEndian.PutUint16(b[2*i:], quant.Float32ToBF16(v))
	}
	return b
}

// quantized gives the tensors of an expert's modules as the profile makes them.
func (f family) quantized(layer, expert int) map[string]*blob {
	p, _ := quant.ProfileByName(f.form.profile)
	out := map[string]*blob{}
	modules := f.modules(layer, expert)
	for _, set := range [][]spec.Role{{spec.Gate, spec.Up}, {spec.Down}} {
		var amax float32
		for _, role := range set {
			if name := modules[role]; name != "" {
				amax = max(amax, quant.AbsMax(familyWeights(name, layer*10+expert+len(role))))
			}
		}
		global := p.Global(amax)
		for _, role := range set {
			name := modules[role]
			if name == "" {
				continue
			}
			w := familyWeights(name, layer*10+expert+len(role))
			packed, scales := make([]byte, len(w)/4), make([]byte, len(w)/32)
			quant.ReferenceQuantize(p, global, w, packed, scales)
			rows, cols := shapeOf(role)
			out[name+f.form.packed] = &blob{safetensors.U8, []uint64{rows, cols / 2}, packed}
			out[name+".weight_scale"] = &blob{safetensors.F8E4M3, []uint64{rows, cols / 16}, scales}
			out[name+f.form.global] = &blob{safetensors.F32, f.form.scalar, binary.LittleEndian.AppendUint32(nil, math.Float32bits(global))}
			if !f.weightsOnly {
				out[name+f.form.input] = &blob{safetensors.F32, f.form.scalar, binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.5))}
			}
		}
	}
	return out
}

func shapeOf(role spec.Role) (rows, cols uint64) {
	if role == spec.Down {
		return familyCols, familyRows
	}
	return familyRows, familyCols
}

// write makes the checkpoint in one shard without an index.
func (f family) write(t *testing.T) string {
	dir := t.TempDir()
	tensors := map[string]*blob{"model.embed_tokens.weight": {safetensors.BF16, []uint64{8, familyCols}, make([]byte, 2*8*familyCols)}}
	for layer := 1; layer <= 3; layer++ {
		for expert := range familyExperts {
			if layer < 3 {
				for name, b := range f.quantized(layer, expert) {
					tensors[name] = b
				}
				continue
			}
			for role, name := range f.modules(layer, expert) {
				rows, cols := shapeOf(role)
				tensors[name+".weight"] = &blob{safetensors.BF16, []uint64{rows, cols}, familyWeights(name, layer*10+expert+len(role))}
			}
		}
	}
	for _, name := range f.beside {
		tensors[name] = &blob{safetensors.BF16, []uint64{familyRows, familyCols}, familyWeights(name, 1)}
	}
	writeShard(t, filepath.Join(dir, "model.safetensors"), tensors, map[string]string{"format": "pt"})
	require.NoError(t, os.WriteFile(filepath.Join(dir, configName), []byte(with(f.config, f.rules)), 0o644))
	if f.hfConfig != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, spec.ModelOptConfigName), []byte(with(f.hfConfig, f.rules)), 0o644))
	}
	return dir
}

// Every family's names, layouts and configs: the layer becomes what its neighbours are, byte for byte by the scalar reference, and nothing
// else changes.
func TestFamilies(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			src := openSource(t, f.write(t))
			options := PlanOptions{}
			if !f.weightsOnly {
				options.InputScales = InputScales{From: FromPeers}
			}
			plan, err := MakePlan(src, nil, options)
			require.NoError(t, err)
			require.Equal(t, []int{3}, plan.Layers)
			p, _ := quant.ProfileByName(f.form.profile)
			require.NoError(t, plan.SetProfile(p, nil))
			dir := filepath.Join(t.TempDir(), "out")
			_, err = Run(context.Background(), plan, src.Checkpoint, nil, RunOptions{Out: dir})
			require.NoError(t, err)

			out := openSource(t, dir)
			made := map[string]bool{}
			for expert := range familyExperts {
				for name, want := range f.quantized(3, expert) {
					_, tensor, ok := out.Lookup(name)
					require.True(t, ok, name)
					require.Equal(t, want.dtype, tensor.DType, name)
					require.True(t, slices.Equal(want.shape, tensor.Shape), "%s: %v", name, tensor.Shape)
					b, err := out.ReadTensor(name)
					require.NoError(t, err)
					require.Equal(t, want.data, b, name)
					made[name] = true
				}
			}
			for _, name := range src.Names() {
				if strings.HasPrefix(name, fmt.Sprintf(f.experts, 3)+".") {
					continue
				}
				was, err := src.ReadTensor(name)
				require.NoError(t, err)
				is, err := out.ReadTensor(name)
				require.NoError(t, err, name)
				require.Equal(t, was, is, name)
				made[name] = true
			}
			require.Len(t, out.Names(), len(made))
			for file, config := range map[string]string{configName: f.config, spec.ModelOptConfigName: f.hfConfig} {
				if config == "" {
					require.NoFileExists(t, filepath.Join(dir, file))
					continue
				}
				b, err := os.ReadFile(filepath.Join(dir, file))
				require.NoError(t, err)
				require.Equal(t, with(config, f.edited), string(b))
			}

			report, err := verify.Structure(context.Background(), dir, verify.Options{})
			require.NoError(t, err)
			for _, found := range report.Findings {
				require.NotEqual(t, verify.Error, found.Severity, found.String())
			}
		})
	}
}
