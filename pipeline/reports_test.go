package pipeline

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// editable is a checkpoint that a test changes tensor by tensor before lagquant sees it.
type editable struct {
	t   testing.TB
	dir string
}

// shard rewrites one shard with what change makes of its tensors, and the index with it.
func (e editable) shard(name string, change func(tensors map[string]*blob)) {
	tensors, metadata := e.read(name)
	change(tensors)
	e.write(name, tensors, metadata)
}

// remeta gives a shard another __metadata__.
func (e editable) remeta(name string, metadata map[string]string) {
	tensors, _ := e.read(name)
	e.write(name, tensors, metadata)
}

func (e editable) read(name string) (map[string]*blob, map[string]string) {
	path := filepath.Join(e.dir, name)
	raw, err := os.ReadFile(path)
	require.NoError(e.t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(raw), int64(len(raw)))
	require.NoError(e.t, err)
	tensors := map[string]*blob{}
	for _, t := range h.Tensors {
		tensors[t.Name] = &blob{t.DType, t.Shape, bytes.Clone(raw[h.DataStart+int64(t.Begin):][:t.Len()])}
	}
	return tensors, h.Metadata
}

type blob struct {
	dtype safetensors.DType
	shape []uint64
	data  []byte
}

func writeShard(t testing.TB, path string, tensors map[string]*blob, metadata map[string]string) {
	var sources []safetensors.Source
	for name, b := range tensors {
		sources = append(sources, safetensors.Source{
			Tensor: safetensors.Tensor{Name: name, DType: b.dtype, Shape: b.shape},
			Open:   func() (io.Reader, error) { return bytes.NewReader(b.data), nil },
		})
	}
	var out bytes.Buffer
	require.NoError(t, safetensors.Write(&out, sources, metadata))
	require.NoError(t, os.WriteFile(path, out.Bytes(), 0o644))
}

func (e editable) write(name string, tensors map[string]*blob, metadata map[string]string) {
	writeShard(e.t, filepath.Join(e.dir, name), tensors, metadata)
	e.reindex(name, tensors)
}

func (e editable) reindex(shard string, tensors map[string]*blob) {
	path := filepath.Join(e.dir, "model.safetensors.index.json")
	var index struct {
		Metadata  map[string]any    `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	b, err := os.ReadFile(path)
	require.NoError(e.t, err)
	require.NoError(e.t, json.Unmarshal(b, &index))
	for name, s := range index.WeightMap {
		if s == shard && tensors[name] == nil {
			delete(index.WeightMap, name)
		}
	}
	for name := range tensors {
		index.WeightMap[name] = shard
	}
	b, err = json.Marshal(index)
	require.NoError(e.t, err)
	require.NoError(e.t, os.WriteFile(path, b, 0o644))
}

func (e editable) config(old, new string) {
	path := filepath.Join(e.dir, "config.json")
	b, err := os.ReadFile(path)
	require.NoError(e.t, err)
	require.Equal(e.t, 1, strings.Count(string(b), old), old)
	require.NoError(e.t, os.WriteFile(path, []byte(strings.Replace(string(b), old, new, 1)), 0o644))
}

func (e editable) file(name, text string) {
	require.NoError(e.t, os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o644))
}

// home finds the shard of a tensor.
func (e editable) home(tensor string) string {
	s, _, ok := openSource(e.t, e.dir).Lookup(tensor)
	require.True(e.t, ok, tensor)
	return s.Name
}

// tensor changes the bytes of one tensor in place.
func (e editable) tensor(name string, change func(b []byte)) {
	e.shard(e.home(name), func(tensors map[string]*blob) { change(tensors[name].data) })
}

const expert3 = "model.layers.6.mlp.experts.3."

// Each case is a public report of what such tools do wrong, or a measurement of the nearest ones: the checkpoint that shows it, and what
// lagquant does instead.
func TestReports(t *testing.T) {
	cases := []struct {
		report  string
		change  func(src, donor editable)
		scales  InputScales // the zero value: from the donor
		kind    fault.Kind  // 0: it works
		message []string    // of the refusal
		check   func(t *testing.T, before, after *Source)
	}{
		{
			report: "vllm-project/llm-compressor#2566: gate and up in different shards",
			check: func(t *testing.T, _, after *Source) {
				requireSharedGlobals(t, after)
			},
		},
		{
			report: "vllm-project/compressed-tensors#595, nearest tools: an all-zero expert beside others",
			change: func(src, _ editable) {
				for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
					src.tensor(expert3+p+".weight", func(b []byte) { clear(b) })
				}
			},
			check: func(t *testing.T, _, after *Source) {
				for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
					require.Equal(t, float32(1), scalar(t, after, expert3+p+".weight_global_scale"))
					scales, err := after.ReadTensor(expert3 + p + ".weight_scale")
					require.NoError(t, err)
					require.Equal(t, bytes.Repeat([]byte{0x20}, len(scales)), scales)
					packed, err := after.ReadTensor(expert3 + p + ".weight_packed")
					require.NoError(t, err)
					require.Equal(t, make([]byte, len(packed)), packed)
				}
			},
		},
		{
			report: "vllm-project/compressed-tensors#595: a zero gate must not touch its partner's global scale",
			change: func(src, _ editable) { src.tensor(expert3+"gate_proj.weight", func(b []byte) { clear(b) }) },
			check: func(t *testing.T, before, after *Source) {
				up, err := before.ReadTensor(expert3 + "up_proj.weight")
				require.NoError(t, err)
				want := quant.Profiles[0].Global(quant.AbsMax(up))
				require.Equal(t, want, scalar(t, after, expert3+"up_proj.weight_global_scale"))
				require.Equal(t, want, scalar(t, after, expert3+"gate_proj.weight_global_scale"))
			},
		},
		{
			report: "vllm-project/compressed-tensors#832, nearest tools: a NaN weight is quantized in silence",
			change: func(src, _ editable) {
				src.tensor(expert3+"up_proj.weight", func(b []byte) { binary.LittleEndian.PutUint16(b[2*(12*192+7):], 0x7fc1) })
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj.weight", "element [12, 7] is NaN", "model-000"},
		},
		{
			report: "an expert of another shape than its peers: the output would look whole",
			change: func(src, _ editable) {
				src.shard(src.home(expert3+"up_proj.weight"), func(tensors map[string]*blob) {
					tensors[expert3+"up_proj.weight"].shape = []uint64{192, 64}
				})
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj.weight", "has shape [192 64], expected [64 192] as expert 0 has", "model-000"},
		},
		{
			report: "an expert in the middle is missing, of a model whose config is not known",
			change: func(src, _ editable) {
				src.config(`"model_type": "laguna"`, `"model_type": "other"`)
				for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
					src.shard(src.home(expert3+p+".weight"), func(tensors map[string]*blob) { delete(tensors, expert3+p+".weight") })
				}
			},
			kind: fault.Refused, message: []string{"layer 6 has no down projection of expert 3"},
		},
		{
			report: "hf_quant_config.json says FP8 where config.json says NVFP4",
			change: func(src, _ editable) {
				src.file(spec.ModelOptConfigName, `{"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}`)
			},
			kind: fault.Refused, message: []string{spec.ModelOptConfigName, "model.layers.6.mlp.experts.0.down_proj", "says 8-bit float", "expected NVFP4"},
		},
		{
			report: "a scale left over from another revision, in another shard than the BF16 weight",
			change: func(src, _ editable) {
				src.shard("model-00001-of-00011.safetensors", func(tensors map[string]*blob) {
					tensors[expert3+"up_proj.input_global_scale"] = &blob{safetensors.F32, []uint64{1}, []byte{0, 0, 0x80, 0x43}}
				})
			},
			kind: fault.Refused, message: []string{
				"model-00001-of-00011.safetensors: " + expert3 + "up_proj.input_global_scale: is there already", "BF16 (in model-00007-of-00011.safetensors)",
			},
		},
		{
			report: "one projection of the last expert is missing, of a model whose config is not known",
			change: func(src, _ editable) {
				src.config(`"model_type": "laguna"`, `"model_type": "other"`)
				last := "model.layers.6.mlp.experts.7.down_proj.weight"
				src.shard(src.home(last), func(tensors map[string]*blob) { delete(tensors, last) })
			},
			kind: fault.Refused, message: []string{"layer 6 has 8 gate projections and 7 down projections"},
		},
		{
			report: "all experts' gates and ups have another width than their downs",
			change: func(src, _ editable) {
				src.config(`"model_type": "laguna"`, `"model_type": "other"`)
				for expert := range 8 {
					down := fmt.Sprintf("model.layers.6.mlp.experts.%d.down_proj.weight", expert)
					src.shard(src.home(down), func(tensors map[string]*blob) { tensors[down].shape = []uint64{96, 128} })
				}
			},
			kind: fault.Refused, message: []string{"experts.0.gate_proj.weight", "has shape [64 192], expected [128 96] for a down projection of [96 128]"},
		},
		{
			report: "the last expert is missing, which only the config tells",
			change: func(src, _ editable) {
				for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
					last := "model.layers.6.mlp.experts.7." + p + ".weight"
					src.shard(src.home(last), func(tensors map[string]*blob) { delete(tensors, last) })
				}
			},
			kind: fault.Refused, message: []string{"experts.7.gate_proj.weight", "is missing, though config.json says that layer 6 has it"},
		},
		{
			report: "a config of impossible numbers",
			change: func(src, _ editable) { src.config(`"num_experts": 8`, `"num_experts": "eight"`) },
			kind:   fault.Refused, message: []string{"config.json", `num_experts is "eight"`},
		},
		{
			report: "vllm-project/compressed-tensors#832, nearest tools: an Inf weight destroys the tensor",
			change: func(src, _ editable) {
				src.tensor(expert3+"down_proj.weight", func(b []byte) { binary.LittleEndian.PutUint16(b[2*(191*64+63):], 0xff80) })
			},
			kind: fault.Refused, message: []string{expert3 + "down_proj.weight", "element [191, 63] is -Inf"},
		},
		{
			report: "NVIDIA/Model-Optimizer#2011, vllm-project/llm-compressor#2939: fused 3-D experts are passed over in silence",
			change: func(src, _ editable) {
				src.shard(src.home("lm_head.weight"), func(tensors map[string]*blob) {
					tensors["model.layers.6.mlp.experts.gate_up_proj"] = &blob{"BF16", []uint64{2, 8, 32}, make([]byte, 1024)}
				})
			},
			kind: fault.Refused, message: []string{"model.layers.6.mlp.experts.gate_up_proj"},
		},
		{
			report: "vllm-project/vllm#45212: input scales are missing and nothing says so",
			scales: InputScales{From: "unset"},
			kind:   fault.Usage, message: []string{"weights alone cannot give their scales"},
		},
		{
			report: "vllm-project/vllm#54189: the donor lacks one input scale",
			change: func(_, donor editable) {
				donor.shard(donor.home(expert3+"up_proj.input_global_scale"), func(tensors map[string]*blob) {
					delete(tensors, expert3+"up_proj.input_global_scale")
				})
			},
			kind: fault.Refused, message: []string{"nvfp4-0722", expert3 + "up_proj.input_global_scale", "is not there"},
		},
		{
			report: "vllm-project/compressed-tensors#595: 14 of 92,400 input scales were Inf",
			change: func(_, donor editable) {
				donor.tensor(expert3+"up_proj.input_global_scale", func(b []byte) { binary.LittleEndian.PutUint32(b, 0x7f800000) })
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj.input_global_scale", "is +Inf"},
		},
		{
			report: "vllm-project/vllm#42601: an input scale whose reciprocal is not finite",
			change: func(_, donor editable) {
				donor.tensor(expert3+"up_proj.input_global_scale", func(b []byte) { binary.LittleEndian.PutUint32(b, 1) })
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj.input_global_scale", "reciprocal is finite"},
		},
		{
			report: "safetensors/safetensors#549, ml-explore/mlx#743: absent metadata stays absent, whatever else is there stays",
			change: func(src, _ editable) {
				for name, metadata := range map[string]map[string]string{
					src.home(expert3 + "up_proj.weight"):                      nil,
					src.home("model.layers.7.mlp.experts.3.down_proj.weight"): {"format": "pt", "note": "<kept & whole>"},
				} {
					src.remeta(name, metadata)
				}
			},
			check: func(t *testing.T, before, after *Source) {
				for i, s := range before.Shards {
					require.Equal(t, s.Header.Metadata, after.Shards[i].Header.Metadata, s.Name)
				}
			},
		},
		{
			report: "radixark/miles#1640: FP8 weights without a scale must not be taken for numbers",
			change: func(src, _ editable) {
				name := expert3 + "up_proj.weight"
				src.shard(src.home(name), func(tensors map[string]*blob) {
					tensors[name] = &blob{"F8_E4M3", tensors[name].shape, tensors[name].data[:len(tensors[name].data)/2]}
				})
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj.weight", "F8_E4M3"},
		},
		{
			report: "vllm-project/llm-compressor#1630, huggingface/candle#2875, radixark/miles#2044: what is not understood survives bit for bit",
			change: func(src, _ editable) {
				src.shard(src.home(expert3+"up_proj.weight"), func(tensors map[string]*blob) {
					tensors["mtp.0.e_proj.weight"] = &blob{"F8_E4M3", []uint64{4, 8}, bytes.Repeat([]byte{0x7f, 1}, 16)}
					tensors["mtp.0.scale"] = &blob{"F8_E8M0", []uint64{3}, []byte{0, 127, 255}}
					tensors["mtp.0.fp4"] = &blob{"F4", []uint64{2, 3}, []byte{1, 2, 3}}
					tensors["mtp.0.empty"] = &blob{"I64", []uint64{0, 7}, nil}
				})
			},
			check: func(t *testing.T, before, after *Source) {
				for _, name := range []string{"mtp.0.e_proj.weight", "mtp.0.scale", "mtp.0.fp4", "mtp.0.empty"} {
					was, err := before.ReadTensor(name)
					require.NoError(t, err)
					is, err := after.ReadTensor(name)
					require.NoError(t, err)
					require.Equal(t, was, is, name)
				}
			},
		},
		{
			report: "vllm-project/vllm#45544, GPTQModel#3050: tied heads and embeddings are never touched",
			change: func(src, _ editable) {
				src.config(`"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
				src.shard(src.home("lm_head.weight"), func(tensors map[string]*blob) { delete(tensors, "lm_head.weight") })
			},
			check: func(t *testing.T, before, after *Source) {
				_, _, ok := after.Lookup("lm_head.weight")
				require.False(t, ok)
				require.Len(t, after.Names(), len(before.Names())+48*3)
			},
		},
		{
			report: "sgl-project/sglang#25501: input_activations null is a scheme like any other",
			change: func(src, _ editable) {
				b, err := os.ReadFile(filepath.Join(src.dir, "config.json"))
				require.NoError(src.t, err)
				from := strings.Index(string(b), `"input_activations": {`)
				to := from + strings.Index(string(b)[from:], "}") // of observer_kwargs
				to += 1 + strings.Index(string(b)[to+1:], "}")
				require.NoError(src.t, os.WriteFile(filepath.Join(src.dir, "config.json"), []byte(string(b)[:from]+`"input_activations": null`+string(b)[to+1:]), 0o644))
			},
			scales: InputScales{From: "unset"},
			check: func(t *testing.T, before, after *Source) {
				_, _, ok := after.Lookup(expert3 + "up_proj.input_global_scale")
				require.False(t, ok)
				require.Len(t, after.Names(), len(before.Names())+48*2)
			},
		},
		{
			report: "NVIDIA/TensorRT-LLM#16867: experts that are partly quantized already",
			change: func(src, _ editable) {
				name := expert3 + "up_proj."
				src.shard(src.home(name+"weight"), func(tensors map[string]*blob) {
					tensors[name+"weight_packed"] = &blob{"U8", []uint64{64, 96}, make([]byte, 64*96)}
				})
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj", "layer 6"},
		},
		{
			report: "a pair without its other half",
			change: func(src, _ editable) {
				src.shard(src.home(expert3+"up_proj.weight"), func(tensors map[string]*blob) { delete(tensors, expert3+"up_proj.weight") })
			},
			kind: fault.Refused, message: []string{expert3 + "gate_proj.weight", "its up projection is missing"},
		},
		{
			report: "vllm-project/vllm#49949: columns that do not fill groups of 16",
			change: func(src, _ editable) {
				name := expert3 + "up_proj.weight"
				src.shard(src.home(name), func(tensors map[string]*blob) {
					tensors[name] = &blob{"BF16", []uint64{64 * 8, 24}, tensors[name].data}
				})
			},
			kind: fault.Refused, message: []string{expert3 + "up_proj.weight", "has 24 columns", "multiple of the group size 16"},
		},
	}
	for _, c := range cases {
		t.Run(c.report, func(t *testing.T) {
			dir := goldens.TinyLaguna(t)
			src, donor := editable{t, filepath.Join(dir, "nvfp4-0801")}, editable{t, filepath.Join(dir, "nvfp4-0722")}
			if c.change != nil {
				c.change(src, donor)
			}
			if c.scales.From == "" {
				c.scales.From = FromDonor
			} else if c.scales.From == "unset" {
				c.scales.From = ""
			}
			out := filepath.Join(dir, "out")
			before := openSource(t, src.dir)
			err := requantize(before, openSource(t, donor.dir), c.scales, out)
			if c.kind == 0 {
				require.NoError(t, err)
				c.check(t, before, openSource(t, out))
				return
			}
			require.Error(t, err)
			require.Equal(t, c.kind, fault.KindOf(err), err)
			for _, part := range c.message {
				require.Contains(t, err.Error(), part)
			}
			require.NoFileExists(t, filepath.Join(out, "config.json"), "nothing half-written looks whole")
			require.NoFileExists(t, filepath.Join(out, "model.safetensors.index.json"))
		})
	}
}

// requantize does what the command does with layers 6-7.
func requantize(src, donor *Source, scales InputScales, out string) error {
	plan, err := MakePlan(src, donor, PlanOptions{Layers: []int{6, 7}, InputScales: scales})
	if err != nil {
		return err
	}
	if err := plan.SetProfile(quant.Profiles[0], nil); err != nil {
		return err
	}
	_, err = Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: out})
	return err
}

func requireSharedGlobals(t *testing.T, c *Source) {
	t.Helper()
	pairs := 0
	for _, name := range c.Names() {
		if module, ok := strings.CutSuffix(name, "gate_proj.weight_global_scale"); ok {
			require.Equal(t, scalar(t, c, name), scalar(t, c, module+"up_proj.weight_global_scale"), module)
			pairs++
		}
	}
	require.Equal(t, 7*8, pairs)
}

func scalar(t *testing.T, c *Source, name string) float32 {
	t.Helper()
	s, tensor, ok := c.Lookup(name)
	require.True(t, ok, name)
	v, err := readScalar(weight{s, tensor})
	require.NoError(t, err)
	return v
}
