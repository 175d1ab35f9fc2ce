package verify

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// want is a finding: its severity and law, the tensor, and words of its line.
type want struct {
	severity Severity
	check    Check
	tensor   string
	words    string
}

const (
	expert = "model.layers.1.mlp.experts.1."
	gate   = expert + "gate_proj"
	up     = expert + "up_proj"
	down   = expert + "down_proj"
)

// A reportCase is a public report of a damaged checkpoint, built small, and what verify says of it. No wanted finding means that the
// checkpoint is sound, however odd it looks.
type reportCase struct {
	report string
	what   string
	build  func(testing.TB) *fixture // nil: synthetic
	damage func(testing.TB, *fixture)
	want   []want
}

func tiny(name string) func(testing.TB) *fixture {
	return func(tb testing.TB) *fixture { return load(tb, name) }
}

var reports = []reportCase{
	{
		report: "https://github.com/vllm-project/llm-compressor/pull/2566", what: "gate and up in different shards, one global scale",
		damage: func(_ testing.TB, f *fixture) { f.move(syntheticRest, f.module(up)...) },
	},
	{
		report: "https://github.com/vllm-project/llm-compressor/pull/2566", what: "gate and up in different shards, own global scales",
		damage: func(_ testing.TB, f *fixture) {
			f.move(syntheticRest, f.module(up)...)
			f.setScalar(up+".weight_global_scale", 3000)
		},
		want: []want{{Error, CheckFused, expert + "{gate_proj,up_proj}", "up_proj 3000"}},
	},
	{
		report: "https://github.com/vllm-project/compressed-tensors/pull/595", what: "infinite scales",
		damage: func(_ testing.TB, f *fixture) {
			f.setScalar(down+".weight_global_scale", float32(math.Inf(1)))
			f.setScalar(up+".input_global_scale", float32(math.Inf(1)))
		},
		want: []want{
			{Error, CheckGlobal, down + ".weight_global_scale", "value +Inf"},
			{Error, CheckGlobal, up + ".input_global_scale", "value +Inf"},
		},
	},
	{
		report: "https://github.com/vllm-project/compressed-tensors/pull/595", what: "an expert of zeros beside others, as compressed-tensors 0.15 stores it",
		damage: func(tb testing.TB, f *fixture) {
			zero(f, gate)
			zero(f, up)
			f.setScalar(gate+".weight_global_scale", 1)
			f.setScalar(up+".weight_global_scale", 1)
		},
	},
	{
		report: "https://github.com/vllm-project/compressed-tensors/pull/595", what: "an up of zeros beside a gate that is not, under one global scale",
		damage: func(_ testing.TB, f *fixture) { zero(f, up) },
	},
	{
		report: "https://github.com/vllm-project/compressed-tensors/pull/595", what: "an up of zeros whose global scale of 1 was taken for itself alone",
		damage: func(_ testing.TB, f *fixture) {
			zero(f, up)
			f.setScalar(up+".weight_global_scale", 1)
		},
		want: []want{{Error, CheckFused, expert + "{gate_proj,up_proj}", "up_proj 1 and"}},
	},
	{
		report: "https://github.com/NVIDIA/Model-Optimizer/issues/1633", what: "a NaN scale byte",
		damage: func(_ testing.TB, f *fixture) { f.at(down + ".weight_scale").data[2*5+1] = 0x7f },
		want:   []want{{Error, CheckScale, down + ".weight_scale", "NaN (0x7f) at row 5, group 1, 1 of 128"}},
	},
	{
		report: "https://github.com/vllm-project/vllm-omni/issues/4025", what: "NaN scale bytes with a sign, as a modelopt function writes for zeros",
		damage: func(_ testing.TB, f *fixture) {
			s := f.at(down + ".weight_scale").data
			s[0], s[127] = 0xff, 0xff
		},
		want: []want{{Error, CheckScale, down + ".weight_scale", "NaN (0xff) at row 0, group 0, 2 of 128"}},
	},
	{
		report: "https://github.com/vllm-project/compressed-tensors/issues/832", what: "NaN where the largest scale was: one finding",
		damage: func(_ testing.TB, f *fixture) {
			s := f.at(down + ".weight_scale").data
			for i, b := range s {
				if b == scale448 {
					s[i] = 0x7f
				}
			}
		},
		want: []want{{Error, CheckScale, down + ".weight_scale", "NaN (0x7f)"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/37464", what: "negative scale bytes",
		damage: func(_ testing.TB, f *fixture) { f.at(down + ".weight_scale").data[7] |= 0x80 },
		want:   []want{{Error, CheckScale, down + ".weight_scale", "sign bit set"}},
	},
	{
		report: "https://github.com/NVIDIA/Model-Optimizer/issues/1633", what: "global scales of 0, below 0 and NaN",
		damage: func(_ testing.TB, f *fixture) {
			f.setScalar(down+".weight_global_scale", 0)
			f.setScalar("model.layers.0.mlp.experts.0.down_proj.weight_global_scale", -3072)
			f.setScalar("model.layers.0.mlp.experts.1.down_proj.weight_global_scale", float32(math.NaN()))
		},
		want: []want{
			{Error, CheckGlobal, down + ".weight_global_scale", "value 0"},
			{Error, CheckGlobal, "model.layers.0.mlp.experts.0.down_proj.weight_global_scale", "value -3072"},
			{Error, CheckGlobal, "model.layers.0.mlp.experts.1.down_proj.weight_global_scale", "value NaN"},
		},
	},
	{
		report: "https://github.com/NVIDIA/Model-Optimizer/issues/2011", what: "fused 3-D experts left BF16 by a tool that quantizes matrices",
		damage: func(_ testing.TB, f *fixture) {
			f.dropExperts("model.layers.1.")
			f.put(syntheticMain, "model.layers.1.mlp.experts.gate_up_proj", bf16(1, 2, 2*inter, hidden))
			f.put(syntheticMain, "model.layers.1.mlp.experts.down_proj", bf16(2, 2, hidden, inter))
		},
		want: []want{
			{Error, CheckFusedLayout, "model.layers.1.mlp.experts.gate_up_proj", "fused in one BF16 tensor [2, 64, 64]"},
			{Error, CheckFusedLayout, "model.layers.1.mlp.experts.down_proj", "fused in one BF16 tensor [2, 64, 32]"},
		},
	},
	{
		report: "https://github.com/vllm-project/llm-compressor/issues/2939", what: "fused 3-D experts left BF16 and exempt: named, no fault",
		damage: func(tb testing.TB, f *fixture) {
			f.dropExperts("model.layers.1.")
			f.put(syntheticMain, "model.layers.1.mlp.experts.down_proj", bf16(2, 2, hidden, inter))
			f.edit(tb, `"lm_head", `, `"lm_head", "re:.*layers.1.mlp.experts", `)
		},
		want: []want{{Info, CheckFusedLayout, "model.layers.1.mlp.experts.down_proj", "not quantized"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/54974", what: "gate and up with a ratio of 2",
		damage: func(_ testing.TB, f *fixture) {
			f.setScalar(gate+".weight_global_scale", 4000)
			f.setScalar(up+".weight_global_scale", 2000)
		},
		want: []want{{Error, CheckFused, expert + "{gate_proj,up_proj}", "up_proj 2000 and gate_proj 4000, ratio 2"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/45212", what: "one input scale missing",
		damage: func(_ testing.TB, f *fixture) { f.drop(up + ".input_global_scale") },
		want:   []want{{Error, CheckInputScale, up + ".input_global_scale", "missing"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/54444", what: "the input scales of a layer missing",
		damage: func(_ testing.TB, f *fixture) {
			for _, e := range []string{"0", "1"} {
				for _, p := range []string{"gate", "up", "down"} {
					f.drop("model.layers.1.mlp.experts." + e + "." + p + "_proj.input_global_scale")
				}
			}
		},
		want: []want{{Error, CheckInputScale, "model.layers.1.mlp.experts", "input scales missing in all 6 modules"}},
	},
	{
		report: "https://forums.developer.nvidia.com/t/370068", what: "static inputs declared, no input scale written, ModelOpt layout",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			for _, name := range f.names() {
				if strings.HasSuffix(name, ".input_scale") {
					f.drop(name)
				}
			}
		},
		want: []want{
			{Error, CheckInputScale, "model.layers.0.mlp.experts", "in all 6 modules"},
			{Error, CheckInputScale, "model.layers.1.mlp.experts", "in all 6 modules"},
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/45212", what: "input scales of 0, below 0 and NaN",
		damage: func(_ testing.TB, f *fixture) {
			f.setScalar(gate+".input_global_scale", 0)
			f.setScalar(up+".input_global_scale", -1)
			f.setScalar(down+".input_global_scale", float32(math.NaN()))
		},
		want: []want{
			{Error, CheckGlobal, gate + ".input_global_scale", "value 0"},
			{Error, CheckGlobal, up + ".input_global_scale", "value -1"},
			{Error, CheckGlobal, down + ".input_global_scale", "value NaN"},
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/42601", what: "a denormal input scale of a dead expert: its reciprocal is infinite",
		damage: func(_ testing.TB, f *fixture) { f.setScalar(down+".input_global_scale", 1e-39) },
		want:   []want{{Error, CheckGlobal, down + ".input_global_scale", "finite reciprocal"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/54189", what: "weight-only config beside input scales",
		damage: func(tb testing.TB, f *fixture) {
			i := strings.Index(f.config, `"input_activations": {`)
			f.config = f.config[:i] + `"input_activations": null}},` + "\n" + f.config[strings.Index(f.config, `  "ignore"`):]
			for _, name := range f.names() {
				if strings.HasSuffix(name, ".input_global_scale") && name != down+".input_global_scale" {
					f.drop(name)
				}
			}
		},
		want: []want{{Error, CheckInputScale, down + ".input_global_scale", "leaves activations alone"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/54189", what: "weight-only config beside the input scales of every module",
		damage: func(_ testing.TB, f *fixture) {
			i := strings.Index(f.config, `"input_activations": {`)
			f.config = f.config[:i] + `"input_activations": null}},` + "\n" + f.config[strings.Index(f.config, `  "ignore"`):]
		},
		want: []want{
			{Error, CheckInputScale, "model.layers.0.mlp.experts", "leaves activations alone, in all 6 modules"},
			{Error, CheckInputScale, "model.layers.1.mlp.experts", "leaves activations alone, in all 6 modules"},
		},
	},
	{
		report: "https://github.com/sgl-project/sglang/issues/25501", what: "weight-only: input_activations null and no input scale is sound",
		damage: func(_ testing.TB, f *fixture) {
			i := strings.Index(f.config, `"input_activations": {`)
			f.config = f.config[:i] + `"input_activations": null}},` + "\n" + f.config[strings.Index(f.config, `  "ignore"`):]
			for _, name := range f.names() {
				if strings.HasSuffix(name, ".input_global_scale") {
					f.drop(name)
				}
			}
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/41994", what: "BF16 experts of a multi-token-prediction layer that no rule exempts",
		damage: func(_ testing.TB, f *fixture) {
			for i, p := range []string{"gate_proj", "up_proj"} {
				f.put(syntheticRest, "mtp.layers.0.mlp.experts.0."+p+".weight", bf16(uint64(i), inter, hidden))
			}
			f.put(syntheticRest, "mtp.layers.0.mlp.experts.0.down_proj.weight", bf16(9, hidden, inter))
		},
		want: []want{{Error, CheckRule, "mtp.layers.0.mlp.experts", "weights that are not quantized in all 3 modules"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/49187", what: "the same with mtp in the ignore list is sound",
		damage: func(tb testing.TB, f *fixture) {
			f.put(syntheticRest, "mtp.layers.0.mlp.experts.0.down_proj.weight", bf16(9, hidden, inter))
			f.edit(tb, `"lm_head"`, `"lm_head", "re:^mtp.*"`)
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/37059", what: "NVFP4 tensors that an ignore rule exempts: layer requantized, rule left",
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"lm_head"`, `"lm_head", "re:^model\\.layers\\.1\\.mlp\\.experts(\\..*)?$"`)
		},
		want: []want{{Error, CheckRule, "model.layers.1.mlp.experts", "NVFP4 tensors in all 6 modules"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/53387", what: "one plain attention weight that no rule exempts, target Linear",
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"`, `"Linear"`)
			f.edit(tb, `"re:.*self_attn.*"`, `"model.layers.0.self_attn.q_proj"`)
		},
		want: []want{{Error, CheckRule, "model.layers.1.self_attn.q_proj", "a BF16 weight"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/40252", what: "an ignore list with names of another era",
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"re:.*self_attn.*"`, `"re:.*self_attn.*", "model.layers.0.mlp.router", "re:^vision_tower\\."`)
		},
		want: []want{
			{Warning, CheckUnusedRule, `ignore rule "model.layers.0.mlp.router"`, "matches no module"},
			{Warning, CheckUnusedRule, `ignore rule "re:^vision_tower\\."`, "matches no module"},
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/40252", what: "an ignore rule of no text",
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"lm_head"`, `"lm_head", ""`) },
		want:   []want{{Warning, CheckUnusedRule, `ignore rule ""`, "matches no module"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/40252", what: "a target that matches nothing leaves NVFP4 tensors without a scheme",
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"re:.*experts`, `"re:^language_model.*experts`) },
		want: []want{
			{Error, CheckRule, "model.layers.0.mlp.experts", "no target of the config matches it"},
			{Error, CheckRule, "model.layers.1.mlp.experts", "no target of the config matches it"},
			{Warning, CheckUnusedRule, "target", "matches no module"},
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/41994", what: "quantized tensors and no quantization_config at all",
		damage: func(_ testing.TB, f *fixture) { f.config = syntheticBase().config },
		want:   []want{{Error, CheckRule, "quantization_config", "missing; expected there, since 12 modules NVFP4"}},
	},
	{
		report: "spec of vLLM's fused MoE: expert 0 decides for all", what: "some experts of a layer plain, and exempt one by one",
		damage: func(tb testing.TB, f *fixture) {
			f.drop(f.module(down)...)
			f.put(syntheticMain, down+".weight", bf16(3, hidden, inter))
			f.edit(tb, `"lm_head"`, `"lm_head", "`+down+`"`)
		},
		want: []want{{Error, CheckExperts, "model.layers.1.mlp.experts", "5 modules are NVFP4 and 1 are not"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/41994", what: "one expert's module left plain among NVFP4 ones: named once",
		damage: func(_ testing.TB, f *fixture) {
			f.drop(f.module(down)...)
			f.put(syntheticMain, down+".weight", bf16(3, hidden, inter))
		},
		want: []want{{Error, CheckRule, down, "a BF16 weight"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/50925", what: "a plain weight beside the packed one",
		damage: func(_ testing.TB, f *fixture) { f.put(syntheticMain, down+".weight", bf16(3, hidden, inter)) },
		want:   []want{{Error, CheckModule, down + ".weight", "a BF16 weight beside weight_packed"}},
	},
	{
		report: "https://github.com/sgl-project/sglang/pull/26701", what: "scale bytes stored as U8",
		damage: func(_ testing.TB, f *fixture) { f.at(down + ".weight_scale").dtype = safetensors.U8 },
		want:   []want{{Error, CheckModule, down + ".weight_scale", "dtype U8; expected F8_E4M3"}},
	},
	{
		report: "a global scale per row, as FreeToken's banks have it", what: "global and input scales of two numbers, and a BF16 one",
		damage: func(_ testing.TB, f *fixture) {
			for _, s := range []*stub{f.at(down + ".weight_global_scale"), f.at(up + ".input_global_scale")} {
				s.shape, s.data = []uint64{2}, append(s.data, s.data...)
			}
			f.at(gate + ".input_global_scale").dtype = safetensors.I32
		},
		want: []want{
			{Error, CheckModule, down + ".weight_global_scale", "shape [2]; expected one number"},
			{Error, CheckModule, up + ".input_global_scale", "shape [2]; expected one number"},
			{Error, CheckModule, gate + ".input_global_scale", "dtype I32; expected F32"},
		},
	},
	{
		report: "compressed-tensors' MXFP4", what: "packed codes in groups of 32 without a global scale are another form, and sound",
		damage: func(tb testing.TB, f *fixture) {
			for _, name := range f.names() {
				switch module, s, _ := splitName(name); s {
				case slotGlobal, slotInput:
					f.drop(name)
				case slotScale:
					rows := f.at(module + ".weight_packed").shape[0]
					groups := f.at(module + ".weight_packed").shape[1] / 16
					f.put(syntheticMain, name, &stub{safetensors.U8, []uint64{rows, groups}, make([]byte, rows*groups)})
				}
			}
			f.config = strings.NewReplacer(`"strategy": "tensor_group", "group_size": 16`, `"strategy": "group", "group_size": 32`,
				`"dynamic": "local"`, `"dynamic": true`, "nvfp4-pack", "mxfp4-pack").Replace(f.config)
		},
	},
	{
		report: "https://github.com/modular/modular/issues/6600", what: "the global scale of the other layout, its reciprocal",
		damage: func(_ testing.TB, f *fixture) { f.setScalar(down+".weight_global_scale", 1./2688) },
		want:   []want{{Error, CheckGlobal, down + ".weight_global_scale", "looks like its own reciprocal"}},
	},
	{
		report: "https://github.com/FlashML-org/FreeToken/issues/263", what: "names under language_model.model. are sound",
		damage: func(_ testing.TB, f *fixture) { f.rename("model.", "language_model.model.") },
	},
	{
		report: "FlashML-org/FreeToken#343", what: "format mixed-precision with the form at the group is sound",
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"format": "nvfp4-pack-quantized"`, `"format": "mixed-precision"`)
			f.edit(tb, `"targets"`, `"format": "nvfp4-pack-quantized", "targets"`)
		},
	},
	{
		report: "FlashML-org/FreeToken#343", what: "format mixed-precision, and a group that does not say which",
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"nvfp4-pack-quantized"`, `"mixed-precision"`) },
		want:   []want{{Error, CheckRule, "config group group_0", "format mixed-precision, but 12 modules NVFP4 on disk"}},
	},
	{
		report: "llm-compressor's model_free_ptq", what: "no format at all is sound",
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"format": "nvfp4-pack-quantized", `, ``) },
	},
	{
		report: "FlashML-org/FreeToken#394", what: "ModelOpt names, with quantized_layers under MIXED_PRECISION, are sound",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.config = `{"model_type": "synthetic", "hidden_size": 64, "moe_intermediate_size": 32, "quantization_config": {"quant_method": "modelopt",
			 "quant_algo": "MIXED_PRECISION", "quantized_layers": {
			  "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}, "model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}}}`
		},
	},
	{
		report: "NVIDIA/Model-Optimizer's NVFP4_AWQ", what: "an algorithm of ModelOpt that is known by name alone, with input scales, is sound",
		build:  func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"NVFP4"`, `"NVFP4_AWQ"`) },
	},
	{
		report: "NVIDIA/Model-Optimizer's quant_algo", what: "ModelOpt's FP8 over NVFP4 tensors",
		build:  func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"NVFP4"`, `"FP8"`) },
		want:   []want{{Error, CheckRule, "config group group_0", "quant_algo FP8, but 12 modules NVFP4 on disk"}},
	},
	{
		report: "NVIDIA/Model-Optimizer's quant_algo", what: "ModelOpt's NVFP4 in groups of 32 over groups of 16",
		build:  func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"NVFP4"`, `"NVFP4", "group_size": 32`) },
		want:   []want{{Error, CheckRule, "config group group_0", "weights 4-bit float in groups of 32 under a global scale, but"}},
	},
	{
		report: "FlashML-org/FreeToken#394", what: "ModelOpt's config in hf_quant_config.json alone is sound",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.config = syntheticBase().config
			f.after = append(f.after, create("hf_quant_config.json", `{"producer": {"name": "modelopt", "version": "0.39"},
			 "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": null, "group_size": 16, "exclude_modules": ["lm_head", "*self_attn*"]}}`))
		},
	},
	{
		report: "NVIDIA/Model-Optimizer's two configs", what: "hf_quant_config.json exempts what config.json quantizes",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, create("hf_quant_config.json", `{"producer": {"name": "modelopt"},
			 "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "*self_attn*", "model.layers.1*"]}}`))
		},
		want: []want{{Error, CheckRule, "quantization", "leaves alone 6 modules (the first is model.layers.1.mlp.experts.0.down_proj); expected quantized, as config.json says"}},
	},
	{
		report: "NVIDIA/Model-Optimizer's two configs", what: "hf_quant_config.json quantizes what config.json exempts",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, create("hf_quant_config.json", `{"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}`))
		},
		want: []want{{Error, CheckRule, "quantization", "quantizes 2 modules (the first is model.layers.0.self_attn.q_proj); expected left alone"}},
	},
	{
		report: "NVIDIA/Model-Optimizer's two configs", what: "hf_quant_config.json says FP8 where config.json says NVFP4",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, create("hf_quant_config.json", `{"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]}}`))
		},
		want: []want{{Error, CheckRule, "quantization", "has another scheme for 12 modules (the first is model.layers.0.mlp.experts.0.down_proj)"}},
	},
	{
		report: "NVIDIA/Model-Optimizer's two configs", what: "a damaged hf_quant_config.json beside a good config.json",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, create("hf_quant_config.json", `{"quantization": `))
		},
		want: []want{{Error, CheckConfig, "", "hf_quant_config.json: "}},
	},
	{
		report: "NVIDIA/Model-Optimizer's two configs", what: "two that agree are sound",
		build: func(testing.TB) *fixture { return synthetic().toModelOpt() },
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, create("hf_quant_config.json", `{"producer": {"name": "modelopt"},
			 "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "*self_attn*"]}}`))
		},
	},
	{
		report: "FlashML-org/FreeToken#124", what: "no index and two numbered shards: the headers tell, but not every loader reads them",
		damage: func(_ testing.TB, f *fixture) { f.index = nil },
		want:   []want{{Warning, CheckFiles, "", "model.safetensors.index.json: missing; expected there, since the checkpoint has 2 shards"}},
	},
	{
		report: "FlashML-org/FreeToken#124", what: "an index that cannot be read is not missing",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, create(safetensors.IndexName, "{"))
		},
		want: []want{{Error, CheckFiles, "", "model.safetensors.index.json: "}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/40765", what: "a stale consolidated.safetensors with the same names",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, copyFile(syntheticRest, "consolidated.safetensors"))
		},
		want: []want{{Error, CheckFiles, "", "consolidated.safetensors: 4 of its 4 tensors are in the checkpoint's own shards too"}},
	},
	{
		report: "https://github.com/FlashML-org/FreeToken/pull/336", what: "a file that the index does not name, with tensors of its own",
		damage: func(_ testing.TB, f *fixture) {
			f.shards["extra.safetensors"] = map[string]*stub{"draft.weight": bf16(1, 2, 2)}
			f.metadata["extra.safetensors"] = map[string]string{"format": "pt"}
			f.total = -8
		},
		want: []want{{Warning, CheckFiles, "", "extra.safetensors: a file that is no part of the checkpoint"}},
	},
	{
		report: "https://github.com/FlashML-org/FreeToken/pull/336", what: "a folder with the name of a shard",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, func(dir string) {
				if err := os.Mkdir(filepath.Join(dir, "extra.safetensors"), 0o755); err != nil {
					panic(err)
				}
			})
		},
		want: []want{{Warning, CheckFiles, "", "cannot be read (not a regular file)"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/41811", what: "a shard of the index that is not there",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, func(dir string) { os.Remove(filepath.Join(dir, syntheticRest)) })
		},
		want: []want{{Error, CheckFiles, "", syntheticRest + ": the file is not there"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/34930", what: "the same for a model whose tensors are known",
		build: tiny("nvfp4-0801"),
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, func(dir string) { os.Remove(filepath.Join(dir, "model-00005-of-00011.safetensors")) })
		},
		want: []want{{Error, CheckFiles, "", "model-00005-of-00011.safetensors: the file is not there"}},
	},
	{
		report: "https://github.com/Blaizzy/mlx-vlm/pull/1827", what: "a stale index: one tensor not in it, one nowhere, one in another shard",
		damage: func(_ testing.TB, f *fixture) {
			delete(f.index, "model.embed_tokens.weight")
			f.index["model.norm.weight"] = syntheticRest
			f.index["lm_head.weight"] = syntheticMain
		},
		want: []want{
			{Error, CheckFiles, "model.embed_tokens.weight", "not in the index"},
			{Error, CheckFiles, "model.norm.weight", "no shard has it"},
			{Error, CheckFiles, "lm_head.weight", "but the index says " + syntheticMain},
		},
	},
	{
		report: "https://github.com/JustVugg/colibri/issues/1479", what: "a tensor in two shards",
		damage: func(_ testing.TB, f *fixture) {
			f.shards[syntheticMain]["lm_head.weight"] = f.at("lm_head.weight")
			f.total = -2 * 32 * hidden
		},
		want: []want{
			{Error, CheckFiles, "lm_head.weight", "the tensor is in two shards"},
			{Warning, CheckFiles, "total_size", ""},
		},
	},
	{
		report: "https://github.com/safetensors/safetensors/issues/401", what: "a key twice in one header",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(syntheticRest, func(b []byte) []byte {
				return []byte(strings.Replace(string(b), `"lm_head.weight"`, `"model.embed_tokens.weight"`, 1))[:len(b)]
			}))
		},
		want: []want{{Error, CheckFiles, "", "duplicate key"}},
	},
	{
		report: "https://github.com/deepseek-ai/DeepSeek-V3/issues/557", what: "a Git LFS pointer for a shard",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(syntheticRest, func([]byte) []byte {
				return []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 12345\n")
			}))
		},
		want: []want{{Error, CheckFiles, "", "LFS pointer"}},
	},
	{
		report: "https://github.com/safetensors/safetensors/issues/414", what: "a pickle under the name of a shard",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(syntheticRest, func([]byte) []byte { return []byte("\x80\x02}q\x00X\x05\x00\x00\x00hello and more.") }))
		},
		want: []want{{Error, CheckFiles, "", "pickle"}},
	},
	{
		report: "https://github.com/safetensors/safetensors/issues/414", what: "a zip archive under the name of a shard",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(syntheticRest, func([]byte) []byte { return []byte("PK\x03\x04 archive/data.pkl and so on") }))
		},
		want: []want{{Error, CheckFiles, "", "zip"}},
	},
	{
		report: "https://github.com/safetensors/safetensors/issues/668", what: "a header of 126 MB",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(syntheticRest, func(b []byte) []byte {
				return append([]byte{0x80, 0x9b, 0x82, 0x07, 0, 0, 0, 0}, b[8:]...)
			}))
		},
		want: []want{{Error, CheckFiles, "", "126000000"}},
	},
	{
		report: "measured: a shard cut short hides behind another error elsewhere", what: "a shard cut short",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(syntheticRest, func(b []byte) []byte { return b[:len(b)-100] }))
		},
		want: []want{{Error, CheckFiles, "", syntheticRest}},
	},
	{
		report: "https://github.com/ml-explore/mlx/issues/743", what: "no __metadata__",
		damage: func(_ testing.TB, f *fixture) { f.metadata[syntheticRest] = nil },
		want:   []want{{Warning, CheckMetadata, "__metadata__", syntheticRest + ": __metadata__: absent"}},
	},
	{
		report: "https://github.com/foundation-model-stack/fastsafetensors/pull/89", what: "__metadata__ {}",
		damage: func(_ testing.TB, f *fixture) { f.metadata[syntheticRest] = map[string]string{} },
		want:   []want{{Warning, CheckMetadata, "__metadata__", "{}"}},
	},
	{
		report: "https://github.com/radixark/miles/pull/2044", what: "I8 experts with E8M0 scales are MXFP4, not NVFP4 and not FP8",
		damage: func(_ testing.TB, f *fixture) {
			f.put(syntheticRest, "layers.0.ffn.experts.0.w1.weight", &stub{safetensors.I8, []uint64{4, 32}, make([]byte, 128)})
			f.put(syntheticRest, "layers.0.ffn.experts.0.w1.scale", &stub{safetensors.F8E8M0, []uint64{4, 2}, make([]byte, 8)})
		},
	},
	{
		report: "https://github.com/huggingface/candle/issues/2875", what: "dtypes that few readers know, and one that none knows",
		damage: func(_ testing.TB, f *fixture) {
			f.put(syntheticRest, "a", &stub{safetensors.F8E8M0, []uint64{4}, make([]byte, 4)})
			f.put(syntheticRest, "b", &stub{safetensors.F4, []uint64{2, 4}, make([]byte, 4)})
			f.put(syntheticRest, "c", &stub{"F12_NEW", []uint64{2}, make([]byte, 3)})
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/45544", what: "tied, head not stored: sound",
		damage: func(tb testing.TB, f *fixture) {
			tie(tb, f)
			f.drop("lm_head.weight")
			f.edit(tb, `"lm_head", `, ``)
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/45544", what: "tied, head not stored, exempted all the same as llm-compressor does: sound",
		damage: func(tb testing.TB, f *fixture) {
			tie(tb, f)
			f.drop("lm_head.weight")
		},
	},
	{
		report: "https://github.com/vllm-project/vllm/pull/48670", what: "tied, head stored with the embedding's bytes",
		damage: func(tb testing.TB, f *fixture) {
			tie(tb, f)
			copy(f.at("lm_head.weight").data, f.at("model.embed_tokens.weight").data)
		},
		want: []want{{Warning, CheckHead, "lm_head.weight", "stored again"}},
	},
	{
		report: "https://github.com/RobTand/prismaquant/issues/9", what: "tied, head stored with other bytes",
		damage: tie,
		want:   []want{{Error, CheckHead, "lm_head.weight", "other values than model.embed_tokens.weight"}},
	},
	{
		report: "https://github.com/ModelCloud/GPTQModel/pull/3050", what: "tied by the text_config of a multimodal model",
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"tie_word_embeddings": false`, `"text_config": {"tie_word_embeddings": true}`)
		},
		want: []want{{Error, CheckHead, "lm_head.weight", "other values than model.embed_tokens.weight"}},
	},
	{
		report: "https://github.com/sgl-project/sglang/issues/35358", what: "tied, head quantized",
		damage: func(tb testing.TB, f *fixture) {
			tie(tb, f)
			quantizeHead(tb, f)
		},
		want: []want{{Error, CheckHead, "lm_head", "no head of its own"}},
	},
	{
		report: "https://github.com/sgl-project/sglang/issues/35358", what: "head quantized because it is Linear",
		damage: quantizeHead,
		want:   []want{{Warning, CheckHead, "lm_head", "names a class only"}},
	},
	{
		report: "https://github.com/vllm-project/llm-compressor/issues/1630", what: "tensors of the family dropped on save",
		build: tiny("nvfp4-0801"),
		damage: func(_ testing.TB, f *fixture) {
			f.drop("model.layers.3.self_attn.k_scale", "model.layers.3.mlp.gate.weight")
		},
		want: []want{
			{Error, CheckTensorSet, "model.layers.3.self_attn.k_scale", "missing"},
			{Error, CheckTensorSet, "model.layers.3.mlp.gate.weight", "missing"},
		},
	},
	{
		report: "https://github.com/ml-explore/mlx-lm/pull/1704", what: "a tensor that the family does not have",
		build: tiny("nvfp4-0801"),
		damage: func(_ testing.TB, f *fixture) {
			f.put("model-00011-of-00011.safetensors", "model.layers.3.mlp.gate.bias", f32(1))
		},
		want: []want{{Error, CheckTensorSet, "model.layers.3.mlp.gate.bias", "does not have"}},
	},
	{
		report: "https://github.com/NVIDIA/Model-Optimizer/pull/2038", what: "weight_scale with half of the columns",
		damage: func(_ testing.TB, f *fixture) {
			s := f.at(gate + ".weight_scale")
			s.shape, s.data = []uint64{inter, hidden / 32}, s.data[:len(s.data)/2]
		},
		want: []want{{Error, CheckModule, gate + ".weight_scale", "shape [32, 2]; expected [32, 4]"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/50577", what: "packed weight of down_proj transposed",
		damage: func(_ testing.TB, f *fixture) { f.at(down + ".weight_packed").shape = []uint64{inter / 2, hidden} },
		want:   []want{{Error, CheckModule, down + ".weight_packed", "it looks transposed"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/31782", what: "experts without a gate are sound",
		build: func(testing.TB) *fixture {
			f := syntheticBase()
			for _, name := range f.names() {
				if strings.Contains(name, "gate_proj") {
					f.drop(name)
				}
			}
			return f.quantizeExperts(nil)
		},
		damage: func(testing.TB, *fixture) {},
	},
	{
		report: "https://github.com/NVIDIA/Model-Optimizer/pull/2008", what: "tensors laid out and never filled",
		damage: func(_ testing.TB, f *fixture) {
			clear(f.at(down + ".weight_packed").data)
			clear(f.at(down + ".weight_scale").data)
		},
		want: []want{{Error, CheckScale, down, "zeros only, beside a global scale of"}},
	},
	{
		report: "https://github.com/vllm-project/vllm/issues/45212", what: "each of the tensors of a module missing",
		damage: func(_ testing.TB, f *fixture) {
			f.drop(gate+".weight_packed", up+".weight_scale", down+".weight_global_scale")
		},
		want: []want{
			{Error, CheckModule, gate + ".weight_packed", "missing"},
			{Error, CheckModule, up + ".weight_scale", "missing"},
			{Error, CheckModule, down + ".weight_global_scale", "missing"},
		},
	},
	{
		report: "four-over-six of ModelOpt", what: "a fused set without a scale of 448",
		damage: func(_ testing.TB, f *fixture) { capScales(f.at(down+".weight_scale").data, 0x78) },
		want:   []want{{Warning, CheckScale, down, "largest group scale 256 (0x78)"}},
	},
	{
		report: "four-over-six of ModelOpt", what: "a whole checkpoint without scales of 448",
		damage: func(_ testing.TB, f *fixture) {
			for _, name := range f.names() {
				if strings.HasSuffix(name, ".weight_scale") {
					capScales(f.at(name).data, 0x78)
				}
			}
		},
		want: []want{{Warning, CheckScale, "", "8 of 8 fused sets have no group scale of 448"}},
	},
	{
		report: "measured: model_free_ptq on gate and up of one expert", what: "own global scales in most pairs: counted, worst named",
		damage: func(_ testing.TB, f *fixture) {
			for i, e := range []string{"0.mlp.experts.0", "0.mlp.experts.1", "1.mlp.experts.0"} {
				f.setScalar("model.layers."+e+".up_proj.weight_global_scale", 8000*float32(i+1))
			}
		},
		want: []want{
			{Error, CheckFused, "model.layers.0.mlp.experts.0.{gate_proj,up_proj}", "ratio"},
			{Error, CheckFused, "model.layers.0.mlp.experts.1.{gate_proj,up_proj}", "ratio"},
			{Error, CheckFused, "model.layers.1.mlp.experts.0.{gate_proj,up_proj}", "ratio"},
		},
	},
	{
		report: "measured: Inf weight under model_free_ptq", what: "global 0 and a tensor destroyed",
		damage: func(_ testing.TB, f *fixture) { f.setScalar(down+".weight_global_scale", 0) },
		want:   []want{{Error, CheckGlobal, down + ".weight_global_scale", "value 0"}},
	},
	{
		report: "measured: half-quantized source under model_free_ptq", what: "layer quantized, rule left, no input scale: the contradiction is named once",
		build: tiny("nvfp4-0722"),
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"lm_head"`, `"lm_head",
   "re:^model\\.layers\\.[67]\\.mlp\\.experts(\\..*)?$"`)
			for _, name := range f.names() {
				if strings.HasSuffix(name, ".input_global_scale") && (layerOf(name) == 6 || layerOf(name) == 7) {
					f.drop(name)
				}
			}
		},
		want: []want{
			{Error, CheckRule, "model.layers.6.mlp.experts", "NVFP4 tensors in all 24 modules"},
			{Error, CheckRule, "model.layers.7.mlp.experts", "NVFP4 tensors in all 24 modules"},
		},
	},
	{
		report: "measured: kill -9 of model_free_ptq", what: "a finished shard beside the source's own index and config",
		build: tiny("nvfp4-0801"),
		damage: func(tb testing.TB, f *fixture) {
			f.drop("model.layers.7.mlp.experts.3.down_proj.weight")
			f.index["model.layers.7.mlp.experts.3.down_proj.weight"] = "model-00008-of-00011.safetensors"
			f.shards["model-00008-of-00011.safetensors"]["model.layers.7.mlp.experts.3.down_proj.weight_packed"] = &stub{safetensors.U8, []uint64{192, 32}, make([]byte, 192*32)}
		},
		want: []want{
			{Error, CheckFiles, "model.layers.7.mlp.experts.3.down_proj.weight", "no shard has it"},
			{Error, CheckFiles, "model.layers.7.mlp.experts.3.down_proj.weight_packed", "not in the index"},
		},
	},
	{
		report: "total_size off, which nothing minds", what: "total_size of the index off",
		damage: func(_ testing.TB, f *fixture) { f.total = 8 },
		want:   []want{{Warning, CheckFiles, "total_size", "the bytes of all tensors"}},
	},
	{
		report: "total_size off, which nothing minds", what: "total_size of the index is no number",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, rewrite(safetensors.IndexName, func(b []byte) []byte {
				return []byte(strings.Replace(string(b), `"total_size":`, `"total_size":"abc", "was":`, 1))
			}))
		},
		want: []want{{Warning, CheckFiles, "total_size", `"abc"; expected a whole number, the bytes of all tensors`}},
	},
	{
		report: "a config saved by a Windows editor", what: "byte order mark",
		damage: func(_ testing.TB, f *fixture) { f.config = "\xef\xbb\xbf" + f.config },
		want:   []want{{Error, CheckConfig, "", "config.json: begins with a byte order mark"}},
	},
	{
		report: "a config that Python reads", what: "Infinity, NaN, tabs and CRLF are sound",
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"num_hidden_layers"`, "\t\"x\": [Infinity, -Infinity, NaN, \"NaN\\\"Infinity\"],\r\n \"num_hidden_layers\"")
		},
	},
	{
		report: "a config that Python's loaders refuse", what: "config.json is a list",
		damage: func(_ testing.TB, f *fixture) { f.config = "[]" },
		want:   []want{{Error, CheckConfig, "", "config.json: is not the JSON of a model config: unexpected array |"}},
	},
	{
		report: "a config that Python's loaders refuse", what: "quantization_config is a string",
		damage: func(_ testing.TB, f *fixture) { f.config = `{"quantization_config": "nvfp4"}` },
		want:   []want{{Error, CheckConfig, "", `quantization_config is "nvfp4", expected an object`}},
	},
	{
		report: "a config that Python's loaders refuse", what: "no quant_method beside NVFP4 tensors",
		damage: func(_ testing.TB, f *fixture) {
			f.config = `{"quantization_config": {"format": "nvfp4-pack-quantized"}}`
		},
		want: []want{{Error, CheckConfig, "", "quant_method is missing"}},
	},
	{
		report: "quantized by another method", what: "MLX names no quant_method, and has no NVFP4 tensors of our kinds",
		build: func(testing.TB) *fixture { return syntheticBase() },
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"model_type"`, `"quantization_config": {"bits": 4}, "model_type"`)
		},
		want: []want{{Info, CheckConfig, "", "quant_method is missing"}},
	},
	{
		report: "a download that broke off", what: "pointers, cut files and links to nothing beside the shards",
		damage: func(tb testing.TB, f *fixture) {
			f.beside(tb, "tokenizer.model", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
			f.beside(tb, safetensors.IndexName, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7b\nsize 12345\n")
			f.beside(tb, "tokenizer.json", `{"version": "1.0", "model": {"vo`)
			f.beside(tb, "tokenizer_config.json", "")
			f.beside(tb, "trainer_state.json", `{"loss": }`)
			f.after = append(f.after, func(dir string) {
				require.NoError(tb, os.Symlink("../../blobs/1234", filepath.Join(dir, "special_tokens_map.json")))
			})
			f.after = append(f.after, func(dir string) { require.NoError(tb, os.Symlink("loop", filepath.Join(dir, "loop"))) })
		},
		want: []want{
			{Error, CheckFiles, "", "model.safetensors.index.json: index byte 0"},
			{Error, CheckFiles, "", "model.safetensors.index.json: a git LFS pointer"},
			{Error, CheckFiles, "", "special_tokens_map.json: a link to a file that is not there"},
			{Error, CheckFiles, "", "tokenizer.json: is not JSON: line 1, byte 33: a string has no end"},
			{Error, CheckFiles, "", "tokenizer.model: a git LFS pointer"},
			{Error, CheckFiles, "", "tokenizer_config.json: is not JSON: line 1, byte 1: a value is missing"},
			{Warning, CheckFiles, "", "loop: cannot be read"},
			{Warning, CheckFiles, "", "trainer_state.json: is not JSON: line 1, byte 10: no value begins here"},
		},
	},
	{
		report: "a download that broke off", what: "files beside the shards that are sound, though Go's JSON would not read all of them",
		damage: func(tb testing.TB, f *fixture) {
			f.beside(tb, "generation_config.json", `{"temperature": NaN, "x": [-Infinity]}`)
			f.beside(tb, "tokenizer.json", `{"version": "1.0"}`)
			f.beside(tb, "README.md", "{")
			f.beside(tb, ".gitattributes.json", "{")
			f.after = append(f.after, func(dir string) { require.NoError(tb, os.Mkdir(filepath.Join(dir, "assets.json"), 0o755)) })
		},
	},
	{
		report: "quantized by another method", what: "an unknown quant_method beside NVFP4 tensors that are not checked",
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"compressed-tensors"`, `"compressed_tensors"`) },
		want:   []want{{Warning, CheckConfig, "", `quant_method "compressed_tensors" is not known`}},
	},
	{
		report: "quantized by another method", what: "an unknown quant_method without NVFP4 tensors is none of our business",
		build: func(testing.TB) *fixture { return syntheticBase() },
		damage: func(tb testing.TB, f *fixture) {
			f.edit(tb, `"model_type"`, `"quantization_config": {"quant_method": "gptq"}, "model_type"`)
		},
		want: []want{{Info, CheckConfig, "", `quant_method "gptq" is not known`}},
	},
	{
		report: "a checkpoint without a config", what: "no config.json",
		damage: func(_ testing.TB, f *fixture) {
			f.after = append(f.after, func(dir string) { os.Remove(filepath.Join(dir, "config.json")) })
		},
		want: []want{{Error, CheckConfig, "", "config.json: missing"}},
	},
	{
		report: "wrong sizes in config or file", what: "more experts than there can be",
		build:  tiny("nvfp4-0801"),
		damage: func(tb testing.TB, f *fixture) { f.edit(tb, `"num_experts": 8`, `"num_experts": 1000000000000`) },
		want:   []want{{Error, CheckConfig, "", "num_experts is 1000000000000, expected 1 to 1073741824"}},
	},
	{
		report: "wrong sizes in config or file", what: "a shared expert of another size than the config's",
		build: tiny("nvfp4-0801"),
		damage: func(_ testing.TB, f *fixture) {
			f.at("model.layers.2.mlp.shared_expert.up_proj.weight").shape = []uint64{192, 64}
		},
		want: []want{{Error, CheckTensorSet, "model.layers.2.mlp.shared_expert.up_proj.weight", "BF16 [192, 64]"}},
	},
}

func TestReports(t *testing.T) {
	for _, c := range reports {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			build := c.build
			if build == nil {
				build = func(testing.TB) *fixture { return synthetic() }
			}
			f := build(t)
			c.damage(t, f)
			report, err := Structure(t.Context(), f.write(t), Options{Jobs: 2})
			require.NoError(t, err, c.report)
			requireFindings(t, c, report)
		})
	}
}

// A config that says another scheme than the stored one, on the vendor's own checkpoint: one finding, whatever the number of modules.
func TestSchemeOfAGroup(t *testing.T) {
	weights, inputs := `"weights": {`, `"input_activations": {`
	numbers := "4-bit float in groups of 16 under a global scale"
	for _, c := range []struct{ in, from, to, found, expected string }{
		{weights, weights, `"weights": null, "output_activations": {`, "weights not quantized", "weights " + numbers},
		{weights, `"num_bits": 4`, `"num_bits": 8`, "weights 8-bit float in groups of 16 under a global scale", "weights " + numbers},
		{weights, `"float"`, `"int"`, "weights 4-bit int in groups of 16 under a global scale", "weights " + numbers},
		{weights, `"tensor_group"`, `"group"`, "weights 4-bit float in groups of 16", "weights " + numbers},
		{weights, `"group_size": 16`, `"group_size": 32`, "weights 4-bit float in groups of 32 under a global scale", "weights " + numbers},
		{weights, `"symmetric": true`, `"symmetric": false`, "weights asymmetric " + numbers, "weights " + numbers},
		{inputs, `"num_bits": 4`, `"num_bits": 8`, "input_activations 8-bit float in groups of 16 under a global scale", "input_activations " + numbers + ", or null"},
		{
			inputs, `4,
          "type": "float",
          "strategy": "tensor_group",
          "group_size": 16,
          "symmetric": true,
          "dynamic": "local"`, `8, "type": "int", "strategy": "token", "dynamic": true`,
			"input_activations 8-bit int per token", "input_activations " + numbers + ", or null",
		},
		{`"targets"`, `"nvfp4-pack-quantized"`, `"pack-quantized"`, "format pack-quantized", "format nvfp4-pack-quantized"},
		{`"targets"`, `"format": "nvfp4-pack-quantized",`, ``, "", ""},
		{`"quant_method"`, `"format": "nvfp4-pack-quantized"`, `"format": "mixed-precision"`, "", ""},
	} {
		f := load(t, "nvfp4-0801")
		before, after, _ := strings.Cut(f.config, c.in)
		require.Contains(t, c.in+after, c.from)
		f.config = before + strings.Replace(c.in+after, c.from, c.to, 1)
		var lines []string
		for _, found := range structure(t, f.write(t), Options{}).Findings {
			lines = append(lines, string(found.Severity)+" "+string(found.Check)+" "+found.String())
		}
		if c.found == "" {
			require.Empty(t, lines, c.to)
			continue
		}
		require.Equal(t, []string{
			"error config-rule config.json: config group group_0: " + c.found +
				", but 120 modules NVFP4 on disk (the first is model.layers.1.mlp.experts.0.down_proj); expected " + c.expected,
		}, lines)
	}
}

// requireFindings wants each finding once and no other, but for what is only worth knowing.
func requireFindings(t *testing.T, c reportCase, r *Report) {
	t.Helper()
	var lines []string
	for _, f := range r.Findings {
		lines = append(lines, string(f.Severity)+" "+string(f.Check)+" "+f.String()+" | "+f.Hint)
	}
	all := c.report + "\n" + strings.Join(lines, "\n")
	loud := 0
	for _, w := range c.want {
		found := 0
		for i, f := range r.Findings {
			if f.Severity == w.severity && f.Check == w.check && strings.HasPrefix(f.Tensor, w.tensor) && strings.Contains(lines[i], w.words) {
				found++
			}
		}
		require.Equal(t, 1, found, "%v in\n%s", w, all)
		if w.severity != Info {
			loud++
		}
	}
	require.Equal(t, loud, r.Errors+r.Warnings, all)
	require.Equal(t, loud == 0, r.Sound(true), all)
}

// module lists the tensors of a module.
func (f *fixture) module(name string) []string {
	var names []string
	for _, n := range f.names() {
		if m, _, ok := splitName(n); ok && m == name {
			names = append(names, n)
		}
	}
	return names
}

func (f *fixture) move(shard string, names ...string) {
	for _, name := range names {
		s := f.at(name)
		f.drop(name)
		f.put(shard, name, s)
	}
}

func (f *fixture) rename(from, to string) {
	for _, name := range f.names() {
		if rest, ok := strings.CutPrefix(name, from); ok {
			s, shard := f.at(name), f.index[name]
			f.drop(name)
			f.put(shard, to+rest, s)
		}
	}
}

func (f *fixture) dropExperts(prefix string) {
	for _, name := range f.names() {
		if strings.HasPrefix(name, prefix) && strings.Contains(name, ".experts.") {
			f.drop(name)
		}
	}
}

// toModelOpt stores the same codes in ModelOpt's layout.
func (f *fixture) toModelOpt() *fixture {
	for _, name := range f.names() {
		module, s, _ := splitName(name)
		t, shard := f.at(name), f.index[name]
		switch s {
		case slotPacked:
			f.drop(name)
			f.put(shard, module+".weight", t)
		case slotGlobal:
			f.drop(name)
			scalar := f32(1 / float32At(t.data))
			scalar.shape = []uint64{}
			f.put(shard, module+".weight_scale_2", scalar)
		case slotInput:
			f.drop(name)
			f.put(shard, module+".input_scale", f32(1/float32At(t.data)))
		}
	}
	f.config = `{"model_type": "synthetic", "hidden_size": 64, "moe_intermediate_size": 32, "quantization_config": {"quant_method": "modelopt",
	 "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}}`
	return f
}

// zero stores a module of zeros: codes 0 under scales of 0.125.
func zero(f *fixture, module string) {
	clear(f.at(module + ".weight_packed").data)
	for i := range f.at(module + ".weight_scale").data {
		f.at(module + ".weight_scale").data[i] = 0x20
	}
}

func capScales(scales []byte, largest byte) {
	for i, b := range scales {
		scales[i] = min(b, largest)
	}
}

func tie(tb testing.TB, f *fixture) {
	tb.Helper()
	f.edit(tb, `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
}

// quantizeHead makes the output head NVFP4 as a config does that targets Linear and does not exempt it.
func quantizeHead(tb testing.TB, f *fixture) {
	tb.Helper()
	w := f.at("lm_head.weight")
	f.drop("lm_head.weight")
	p := mustProfile("ct-fp32-rcp6")
	f.putNVFP4(syntheticRest, "lm_head", w, p.Global(quant.AbsMax(w.data)), reference(p))
	f.edit(tb, `"re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"`, `"Linear"`)
	f.edit(tb, `"lm_head", `, ``)
}

func create(name, text string) func(string) {
	return func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			panic(err)
		}
	}
}

func copyFile(from, to string) func(string) {
	return func(dir string) {
		b, err := os.ReadFile(filepath.Join(dir, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), b, 0o644)
		}
		if err != nil {
			panic(err)
		}
	}
}

func rewrite(name string, change func([]byte) []byte) func(string) {
	return func(dir string) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), change(b), 0o644)
		}
		if err != nil {
			panic(err)
		}
	}
}
