package spec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func TestTinyLagunasConfig(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801", "config.json"))
	require.NoError(t, err)
	for _, text := range []string{
		string(raw), strings.ReplaceAll(string(raw), "\n", "\r\n"), strings.ReplaceAll(string(raw), "  ", "\t"),
		strings.Replace(string(raw), `"max_position_embeddings": 1024`, `"max_position_embeddings": Infinity, "a": NaN, "b": -Infinity`, 1),
		strings.ReplaceAll(string(raw), `"scale_dtype": "torch.float8_e4m3fn",`, ``), // as older versions wrote it
		strings.Replace(string(raw), `"version":`, `"run_compressed": true, "new_key": {}, "version":`, 1),
	} {
		q, err := ParseQuantConfig([]byte(text))
		require.NoError(t, err)
		require.Equal(t, CompressedTensors, q.Method)
		require.False(t, q.ModelOpt())
		require.Equal(t, "nvfp4-pack-quantized", q.Format)
		require.Equal(t, "0.14.0.1", q.Version)
		require.Equal(t, []string{"quantization_config"}, q.Places)
		require.Len(t, q.Ignore, 14)
		require.Equal(t, &Args{NumBits: 8, Type: "float", Strategy: "tensor", Symmetric: true, Dynamic: DynamicFalse, Observer: "minmax"}, q.KVCache)
		g, err := q.Group("model.layers.5.mlp.experts.7.up_proj", Linear)
		require.NoError(t, err)
		require.True(t, g.NVFP4())
		require.True(t, g.InputScales())
		require.Equal(t, DynamicLocal, g.Inputs.Dynamic)
		for _, m := range []string{"model.layers.6.mlp.experts.7.up_proj", "model.layers.5.self_attn.q_proj", "lm_head", "model.layers.1.mlp.gate"} {
			g, err := q.Group(m, Linear)
			require.NoError(t, err)
			require.Nil(t, g, m)
		}
		by, err := q.IgnoredBy("model.layers.6.mlp.experts.7.up_proj", Linear)
		require.NoError(t, err)
		require.Equal(t, []int{13}, by)
	}
}

const nvfp4Weights = `"weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}`

func parse(t *testing.T, config string) *QuantConfig {
	t.Helper()
	q, err := ParseQuantConfig([]byte(config))
	require.NoError(t, err)
	return q
}

func TestPlaces(t *testing.T) {
	at := func(place, format string) string {
		return `"` + place + `": {"format": "` + format + `", "config_groups": {"g": {"targets": ["Linear"]}}}`
	}
	require.Nil(t, parse(t, `{}`))
	require.Nil(t, parse(t, `{"quantization_config": null, "text_config": {}}`))
	q, err := ParseQuantConfig(nil)
	require.NoError(t, err)
	require.Nil(t, q)
	q = parse(t, `{`+at("compression_config", "c")+`}`)
	require.Equal(t, "c", q.Format)
	q = parse(t, `{`+at("compression_config", "c")+`, "text_config": {`+at("quantization_config", "b")+`}}`)
	require.Equal(t, "b", q.Format)
	q = parse(t, `{`+at("compression_config", "c")+`, "text_config": {`+at("quantization_config", "b")+`}, `+at("quantization_config", "a")+`}`)
	require.Equal(t, "a", q.Format)
	require.Equal(t, []string{"quantization_config", "text_config.quantization_config", "compression_config"}, q.Places)
	q = parse(t, `{`+at("quantization_config", "first")+`, `+at("quantization_config", "last")+`}`)
	require.Equal(t, "last", q.Format, "of equal keys Python takes the last")
	q = parse(t, `{"quantization_config": {"config_groups": {"g": {"targets": ["a"]}, "g": {"targets": ["b"]}}}}`)
	require.Len(t, q.Groups, 1)
	require.Equal(t, []string{"b"}, q.Groups[0].Targets)
}

func TestGroups(t *testing.T) {
	q := parse(t, `{"quantization_config": {"format": "mixed-precision", "config_groups": {
		"a": {"targets": ["re:.*experts.*"], "format": "nvfp4-pack-quantized", `+nvfp4Weights+`, "input_activations": null},
		"b": {"targets": ["Linear"], "format": "float-quantized", "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
			"input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}}}}}`)
	g, err := q.Group("model.layers.1.mlp.experts.0.w1", Linear)
	require.NoError(t, err)
	require.Equal(t, "nvfp4-pack-quantized", g.Format)
	require.True(t, g.NVFP4())
	require.False(t, g.InputScales(), "null is weight-only")
	g, err = q.Group("lm_head", Linear)
	require.NoError(t, err)
	require.Equal(t, "float-quantized", g.Format)
	require.False(t, g.NVFP4())
	require.False(t, g.InputScales(), "computed at run time")

	for preset, inputs := range map[string]bool{"NVFP4": true, "nvfp4a16": false} {
		q = parse(t, `{"quantization_config": {"config_groups": {"`+preset+`": ["Linear"]}}}`)
		require.True(t, q.Groups[0].NVFP4())
		require.Equal(t, inputs, q.Groups[0].InputScales())
	}
	for field, strategy := range map[string]string{`"group_size": 32`: "group", `"group_size": -1`: "channel", `"num_bits": 8`: "tensor"} {
		q = parse(t, `{"quantization_config": {"config_groups": {"g": {"targets": [], "weights": {`+field+`}}}}}`)
		require.Equal(t, strategy, q.Groups[0].Weights.Strategy)
	}
}

func TestArgsInWords(t *testing.T) {
	require.Equal(t, "not quantized", (*Args)(nil).String())
	for args, want := range map[string]string{
		`"num_bits": 8, "group_size": 32`:                                              "8-bit int in groups of 32",
		`"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16`: "4-bit float in groups of 16 under a global scale",
		`"strategy": "channel", "symmetric": false`:                                    "asymmetric 8-bit int per channel",
	} {
		q := parse(t, `{"quantization_config": {"config_groups": {"g": {"targets": [], "input_activations": {`+args+`}}}}}`)
		require.Equal(t, want, q.Groups[0].Inputs.String())
		require.Equal(t, strings.Contains(args, "tensor_group"), q.Groups[0].NVFP4Inputs())
		require.True(t, (&Group{}).NVFP4Inputs(), "left alone")
	}
}

func TestWhatTheLibraryRefuses(t *testing.T) {
	for group, problem := range map[string]string{
		`{"targets": ["Linear"], "weights": {"num_bits": 4, "scale": 1}}`:       `unknown key "scale"`,
		`{"targets": ["Linear"], "weight": {}}`:                                 `unknown key "weight"`,
		`{"targets": "Linear"}`:                                                 "targets is \"Linear\", expected a list",
		`{"targets": [1]}`:                                                      "targets holds 1",
		`{"targets": [], "weights": 4}`:                                         "g.weights is 4",
		`{"targets": [], "weights": {"num_bits": 4.5}}`:                         "num_bits is 4.5",
		`{"targets": [], "weights": {"dynamic": "global"}}`:                     "dynamic is \"global\"",
		`{"targets": [], "weights": {"dynamic": 1}}`:                            "dynamic is 1",
		`{"targets": [], "weights": {"dynamic": "local"}}`:                      "expected tensor_group",
		`{"targets": [], "weights": {"strategy": "tensor_group"}}`:              "group_size 0",
		`{"targets": [], "weights": {"strategy": "channel", "group_size": 16}}`: "group_size 16",
		`{"targets": [], "weights": {"group_size": -2}}`:                        "group_size is -2",
		`3`: "config_groups.g is 3", `["Linear"]`: "preset",
	} {
		_, err := ParseQuantConfig([]byte(`{"quantization_config": {"config_groups": {"g": ` + group + `}}}`))
		require.Equal(t, fault.Refused, fault.KindOf(err), group)
		require.ErrorContains(t, err, problem, group)
	}
	for config, problem := range map[string]string{
		`{"quantization_config": {"quant_method": "compressed-tensors"}}`: "config_groups is missing",
		`{"quantization_config": {"quant_method": "gptq", "bits": 4}}`:    `quant_method "gptq"`,
		`{"quantization_config": {"quant_method": 4}}`:                    "quant_method is 4",
		`{"quantization_config": 1}`:                                      "quantization_config is 1, expected an object",
		`{"quantization_config": {"bits": 4}}`:                            "quant_method is missing",
		`[]`:                                                              "a list, expected an object",
		`{"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}`: "quantized_layers is missing",
	} {
		_, err := ParseQuantConfig([]byte(config))
		require.Equal(t, fault.Refused, fault.KindOf(err), config)
		require.ErrorContains(t, err, problem, config)
	}
	_, err := ParseQuantConfig([]byte(`{"quantization_config": {"config_groups": {}, "version": 3}}`)) // not looked at by the library
	require.NoError(t, err)
	_, err = ParseQuantConfig([]byte(`{"quantization_config": {"quant_method": "fp8"}}`))
	require.ErrorIs(t, err, ErrMethod)
}

func TestModelOptConfigs(t *testing.T) {
	for _, config := range []string{
		`{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}, "producer": {"version": "0.37"},
			"ignore": ["lm_head", "model.layers.0.self_attn*", "*.mlp.gate", "model.layers.4.mlp.experts", "*.5.mlp.experts"]}}`,
		`{"producer": {"name": "modelopt", "version": "0.37"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
			"exclude_modules": ["lm_head", "model.layers.0.self_attn*", "*.mlp.gate", "model.layers.4.mlp.experts", "*.5.mlp.experts"]}}`,
	} {
		q := parse(t, config)
		require.True(t, q.ModelOpt())
		require.Equal(t, "0.37", q.Version)
		require.NotNil(t, q.KVCache)
		for module, quantized := range map[string]bool{
			"model.layers.0.self_attn.q_proj": false, "model.layers.1.self_attn.q_proj": true, "lm_head": false, "model.lm_head": true,
			"model.layers.3.mlp.gate": false, "model.layers.3.mlp.gate_proj": true,
			// the experts of a layer are one module to ModelOpt and to loaders
			"model.layers.4.mlp.experts.0.up_proj": false, "model.layers.5.mlp.experts.0.up_proj": false, "model.layers.3.mlp.experts.0.up_proj": true,
			"model.layers.4.mlp.shared_experts.up_proj": true, "model.layers.14.mlp.experts.0.up_proj": true,
		} {
			g, err := q.Group(module, Linear)
			require.NoError(t, err)
			require.Equal(t, quantized, g != nil, module)
			if g != nil {
				require.True(t, g.NVFP4())
				require.True(t, g.InputScales())
			}
		}
	}
	q := parse(t, `{"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
		"model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}, "model.layers.1.mlp.experts.5": {"quant_algo": "W4A16_NVFP4"},
		"model.layers.1.self_attn.q_proj": {"quant_algo": "FP8"}, "model.layers.2.mlp.experts": {"quant_algo": "NVFP4_AWQ"}}}}`)
	for module, want := range map[string]string{
		"model.layers.1.mlp.experts.0.up_proj": "NVFP4", "model.layers.1.mlp.experts.5.up_proj": "W4A16_NVFP4", "model.layers.1.self_attn.q_proj": "FP8",
		"model.layers.2.mlp.experts.0.up_proj": "NVFP4_AWQ", "model.layers.1.mlp.gate": "", "model.layers.11.mlp.experts.0.up_proj": "",
	} {
		g, err := q.Group(module, Linear)
		require.NoError(t, err)
		if want == "" {
			require.Nil(t, g, module)
			continue
		}
		require.Equal(t, want, g.Format, module)
		require.Equal(t, strings.HasSuffix(want, "NVFP4"), g.NVFP4(), module)
		require.Equal(t, want == "NVFP4" || want == "FP8", g.InputScales(), module)
	}
	require.Empty(t, parse(t, `{"quantization_config": {"quant_method": "modelopt_fp4", "quant_algo": null}}`).Groups)
}

func TestJSONIsPythons(t *testing.T) {
	_, err := parseJSON([]byte("\xef\xbb\xbf{}"))
	require.ErrorIs(t, err, ErrByteOrderMark)
	for text, want := range map[string]string{
		`"\u00e9\n\/\ud83d\ude00"`: "é\n/😀", `"\ud800"`: "\ufffd", `"\ud800\u0041"`: "\ufffdA", `NaN`: "NaN", `-Infinity`: "-Infinity", ` 1e5 `: "1e5", "\t-0.5E+3\r\n": "-0.5E+3",
	} {
		n, err := parseJSON([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, want, n.text)
	}
	for _, text := range []string{
		``, ` `, `{`, `[`, `"`, `"\`, `"\u12`, `"\x"`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,}`, `[1,]`, `[1 2]`, `01`, `1.`, `.5`, `+1`, `-`, `nan`, `-NaN`, `tru`, `1 2`, "\"\n\"",
		"\"\x00\"", `{"a":1]`, "\"\xff\"", `// x`, strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
	} {
		_, err := parseJSON([]byte(text))
		require.Error(t, err, "%.30q", text)
		require.Equal(t, fault.Refused, fault.KindOf(err))
	}
	_, err = parseJSON([]byte("{\n  \"a\": ,\n}"))
	require.ErrorContains(t, err, "line 2, byte 8: no value begins here")
}

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, -2.5e3, "x\u00e9\n", true, null, {}]}`, `[NaN, Infinity]`, ` "\ud800" `, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parseJSON(text)
		if json.Valid(text) && utf8.Valid(text) && err != nil && !strings.Contains(err.Error(), "nested deeper") {
			t.Fatalf("%q: encoding/json reads it: %v", text, err)
		}
		if err == nil && !json.Valid(text) && !strings.Contains(string(text), "NaN") && !strings.Contains(string(text), "Infinity") {
			t.Fatalf("%q: encoding/json refuses it", text)
		}
		if err == nil && (n.begin < 0 || n.end > len(text) || n.begin >= n.end) {
			t.Fatalf("%q: [%d, %d)", text, n.begin, n.end)
		}
	})
}

func FuzzParseQuantConfig(f *testing.F) {
	f.Add([]byte(`{"quantization_config": {"config_groups": {"g": {"targets": ["Linear", "re:a.*"], `+nvfp4Weights+`}}, "ignore": ["re:(?!x)"]}}`), "model.layers.1")
	f.Add([]byte(`{"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "NVFP4"}}, "exclude_modules": ["[!a]*"]}}`), "a.b")
	f.Fuzz(func(t *testing.T, config []byte, module string) {
		q, err := ParseQuantConfig(config)
		if err != nil || q == nil {
			return
		}
		g, err := q.Group(module, Linear)
		if err != nil {
			return
		}
		by, err := q.IgnoredBy(module, Linear)
		if err == nil && g != nil && len(by) > 0 {
			t.Fatalf("%q: %q is quantized and ignored", config, module)
		}
		_, _, _ = ExpectedTensors(config)
	})
}
