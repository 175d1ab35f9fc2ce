package verify

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata/goldens"
)

func against(t *testing.T, a, b *safetensors.Checkpoint, o Options) *Comparison {
	t.Helper()
	c, err := Against(t.Context(), a, b, o)
	require.NoError(t, err)
	return c
}

// The vendor's tools made these bytes; the counts are those of the specification and of runs of compressed-tensors itself.
func TestRecipesOfTheTinyCheckpoints(t *testing.T) {
	bf16, nvfp4 := open(t, tinyPath(t, "bf16")), "nvfp4-"
	type counts struct{ exact, globals, scales, packed int }
	cases := []struct {
		revision string
		modules  int
		proven   string
		line     string
		counts   map[string]counts
	}{
		{"0722", 168, "ct-bf16", "168 of 168 modules, byte for byte", map[string]counts{
			"ct-bf16":      {168, 0, 0, 0},
			"ct-fp32-rcp6": {1, 160, 3288, 15707},
			"ct-fp32-div6": {1, 160, 3199, 15477},
		}},
		{"0801", 120, "ct-fp32-rcp6", "120 of 120 modules, byte for byte (the closest other is ct-fp32-div6: 113 of 120 modules exact", map[string]counts{
			"ct-fp32-rcp6": {120, 0, 0, 0},
			"ct-fp32-div6": {113, 0, 52, 152},
			"ct-bf16":      {1, 114, 2245, 10874},
		}},
	}
	for _, c := range cases {
		t.Run(c.revision, func(t *testing.T) {
			for _, sides := range [][2]*safetensors.Checkpoint{{open(t, tinyPath(t, nvfp4+c.revision)), bf16}, {bf16, open(t, tinyPath(t, nvfp4+c.revision))}} {
				got := against(t, sides[0], sides[1], Options{})
				require.Len(t, got.Recipes, 1)
				r := got.Recipes[0]
				require.Equal(t, []string{c.proven}, r.Proven)
				require.Equal(t, c.modules, r.Modules)
				require.Equal(t, c.modules, r.InputScales)
				for profile, want := range c.counts {
					n := r.count(profile)
					require.Equal(t, want, counts{n.Exact, n.Globals, int(n.ScaleBytes), int(n.PackedBytes)}, profile)
				}
				require.True(t, got.Clean())
				require.Empty(t, got.Differing)
				require.Len(t, slices.Concat(got.OnlyA, got.OnlyB), 16, "the KV scales of 8 layers")
				require.Contains(t, strings.Join(got.Verdict, "\n"), "nvfp4-"+c.revision+" was made from bf16 with "+c.proven+": "+c.line)
			}
		})
	}
}

// The whole base: layers 6 and 7 of 0801 are BF16, so the same bytes as the base.
func TestSameLayers(t *testing.T) {
	got := against(t, open(t, tinyPath(t, "nvfp4-0801")), open(t, tinyPath(t, "bf16")), Options{})
	require.Contains(t, got.Verdict, "layers 0,6-7 and tensors outside the layers: the same; layers 1-5: in another form")
	require.Equal(t, 281-120, got.Same)
}

func TestRevisionsOfOneModel(t *testing.T) {
	got := against(t, open(t, tinyPath(t, "nvfp4-0801")), open(t, tinyPath(t, "nvfp4-0722")), Options{})
	require.False(t, got.Clean())
	verdict := strings.Join(got.Verdict, "\n")
	require.Contains(t, verdict, "layers 1-5: different; layers 6-7: in another form")
	require.Contains(t, verdict, "nvfp4-0722 was made from nvfp4-0801 with ct-bf16: 48 of 48 modules, byte for byte")
	require.Equal(t, &CodeDifferences{
		Modules: 120, DifferingModules: 119, Globals: 114,
		ScaleBytes: 2245, ScalesOffByOne: 2245, TotalScaleBytes: 120 * 64 * 192 / 16,
		Codes: 11555, CodesOffByOne: 11555, TotalCodes: 120 * 64 * 192,
	}, got.NVFP4)
	profiles := map[string]string{}
	for _, o := range got.Origins {
		profiles[o.Checkpoint] = o.Profile
	}
	require.Equal(t, map[string]string{"nvfp4-0801": "ct-fp32-rcp6", "nvfp4-0722": "ct-bf16"}, profiles)
}

// requantized makes 0804 out of 0801 in memory: layers 6 and 7 in NVFP4 under ct-fp32-rcp6, input scales from 0722, the ignore rule removed.
func requantized(t *testing.T) *fixture {
	t.Helper()
	f, donor := load(t, "nvfp4-0801"), load(t, "nvfp4-0722")
	p := mustProfile("ct-fp32-rcp6")
	amax := map[string]float32{}
	modules := map[string]*stub{}
	for _, name := range f.names() {
		module := strings.TrimSuffix(name, ".weight")
		if _, ok := expertsOf(module); ok && module != name {
			modules[module] = f.at(name)
			amax[fusedSet(module)] = max(amax[fusedSet(module)], quant.AbsMax(f.at(name).data))
		}
	}
	for module, w := range modules {
		shard := f.index[module+".weight"]
		f.drop(module + ".weight")
		f.putNVFP4(shard, module, w, p.Global(amax[fusedSet(module)]), reference(p))
		copy(f.at(module+".input_global_scale").data, donor.at(module+".input_global_scale").data)
	}
	f.edit(t, ",\n      \"re:^model\\\\.layers\\\\.[67]\\\\.mlp\\\\.experts(\\\\..*)?$\"", "")
	return f
}

// The job that this tool is for, seen from its end: the result has the vendor's bytes, no finding, and a proof.
func TestRequantizedCheckpoint(t *testing.T) {
	f := requantized(t)
	dir := f.write(t)
	require.Empty(t, structure(t, dir, Options{}).Findings)

	var expected map[string]struct{ SHA256 string }
	require.NoError(t, json.Unmarshal(goldens.Read(t, "tiny/expected-0804.json"), &expected))
	require.Len(t, expected, 801)
	for name, want := range expected {
		require.Equal(t, want.SHA256, sha256Of(f.at(name).data), name)
	}

	base := against(t, open(t, dir), open(t, tinyPath(t, "bf16")), Options{})
	require.True(t, base.Clean())
	require.Equal(t, []string{"ct-fp32-rcp6"}, base.Recipes[0].Proven)
	require.Equal(t, 168, base.Recipes[0].Modules)
	div6 := base.Recipes[0].count("ct-fp32-div6")
	require.EqualValues(t, 0, div6.Globals)
	require.EqualValues(t, 89, div6.ScaleBytes)
	require.EqualValues(t, 234, div6.PackedBytes)

	older := against(t, open(t, dir), open(t, tinyPath(t, "nvfp4-0722")), Options{})
	require.False(t, older.Clean())
	verdict := strings.Join(older.Verdict, "\n")
	require.Contains(t, verdict, "layer 0 and tensors outside the layers: the same; layers 1-7: different")
	require.Contains(t, verdict, "nvfp4-0722: bf16 observer explains 112 of 112 global scales")

	source := against(t, open(t, dir), open(t, tinyPath(t, "nvfp4-0801")), Options{})
	require.Contains(t, strings.Join(source.Verdict, "\n"), "layers 0-5 and tensors outside the layers: the same; layers 6-7: in another form")
	require.True(t, source.Clean())
}

func TestSameCheckpoint(t *testing.T) {
	f := load(t, "nvfp4-0801")
	f.move("model-00001-of-00011.safetensors", f.module("model.layers.3.mlp.experts.2.up_proj")...)
	moved := open(t, f.write(t))
	var read atomic.Int64
	got := against(t, open(t, tinyPath(t, "nvfp4-0801")), moved, Options{Progress: func(n int64) { read.Add(n) }})
	require.True(t, got.Clean())
	require.Equal(t, []string{"all 657 tensors are the same bytes"}, got.Verdict)
	require.EqualValues(t, 6062144, got.Bytes)
	require.EqualValues(t, 2*6062144, read.Load())
}

// mistakes are ways in which tools got the arithmetic wrong; a comparison with the weights must refute each and count what differs.
var mistakes = []struct {
	report     string
	quantize   quantizer
	best       string
	scales     bool // scale bytes differ too
	convention string
}{
	{
		report: "https://github.com/vllm-project/compressed-tensors/pull/824", best: "ct-fp32-rcp6",
		convention: "quotients rounded to bfloat16 first",
		quantize:   withCodes(func(x, step, _ float32) byte { return quant.Code(toBF16(x/step), 1) }),
	},
	{
		report: "https://github.com/NVIDIA/Model-Optimizer/issues/2243", best: "ct-fp32-rcp6",
		convention: "quotients by the group scale before it was rounded to E4M3",
		quantize:   withCodes(func(x, _, amax float32) byte { return quant.Code(x, amax/6) }),
	},
	{
		report: "https://github.com/radixark/miles/pull/1054", best: "ct-fp32-rcp6", scales: true,
		quantize: func(global float32, bf16, packed, scales []byte) {
			p := mustProfile("ct-fp32-rcp6")
			quant.ReferenceQuantize(p, global, bf16, packed, scales)
			for g := range scales { // rounded down instead of to nearest
				exact := global * quant.AbsMax(bf16[32*g:][:32]) / 6
				if quant.E4M3ToFloat32(scales[g]) > exact {
					scales[g]--
				}
			}
		},
	},
}

// withCodes chooses codes by another rule, under the scales of ct-fp32-rcp6.
func withCodes(code func(x, step, amax float32) byte) quantizer {
	return func(global float32, bf16, packed, scales []byte) {
		p := mustProfile("ct-fp32-rcp6")
		quant.ReferenceQuantize(p, global, bf16, packed, scales)
		for i := range packed {
			g := i / 8
			amax, step := quant.AbsMax(bf16[32*g:][:32]), p.Step(scales[g], global)
			packed[i] = code(weightAt(bf16, 2*i), step, amax) | code(weightAt(bf16, 2*i+1), step, amax)<<4
		}
	}
}

func TestMistakesAreRefuted(t *testing.T) {
	base := open(t, syntheticBase().write(t))
	for _, m := range mistakes {
		t.Run(m.report, func(t *testing.T) {
			made := open(t, syntheticBase().quantizeExperts(m.quantize).write(t))
			got := against(t, made, base, Options{})
			require.False(t, got.Clean())
			r := got.Recipes[0]
			require.Empty(t, r.Proven)
			require.Equal(t, m.best, r.Best)
			require.Equal(t, m.convention, r.Convention)
			require.Equal(t, m.scales, r.count(r.Best).ScaleBytes > 0)
			if !m.scales {
				require.Positive(t, r.count(r.Best).PackedBytes)
			}
			require.Contains(t, strings.Join(got.Verdict, "\n"), "under any profile; the closest is "+m.best)
		})
	}
}

func TestOtherWeightsAreNoRecipe(t *testing.T) {
	// SGLang pull 32119: the target's weights were replaced under a moving branch.
	f := syntheticBase()
	for i, name := range f.names() {
		copy(f.at(name).data, bf16(uint64(1000+i), f.at(name).shape...).data)
	}
	got := against(t, open(t, synthetic().write(t)), open(t, f.write(t)), Options{})
	require.Contains(t, strings.Join(got.Verdict, "\n"), "was not made from the weights of")
	require.False(t, got.Clean())
}

func TestConvertedFromModelOpt(t *testing.T) {
	// A converter stores the reciprocal of ModelOpt's global scale and moves scales and codes as they are.
	p := mustProfile("modelopt-cuda")
	f := syntheticBase()
	amax := map[string]float32{}
	for _, name := range f.names() {
		if module, ok := strings.CutSuffix(name, ".weight"); ok && strings.Contains(name, ".experts.") {
			amax[fusedSet(module)] = max(amax[fusedSet(module)], quant.AbsMax(f.at(name).data))
		}
	}
	for set, a := range amax {
		global := p.Global(a)
		for _, name := range f.names() {
			module, ok := strings.CutSuffix(name, ".weight")
			if !ok || fusedSet(module) != set {
				continue
			}
			w := f.at(name)
			f.drop(name)
			f.putNVFP4(syntheticMain, module, w, global, reference(p))
			f.setScalar(module+".weight_global_scale", 1/global)
		}
	}
	f.config = syntheticConfig
	got := against(t, open(t, f.write(t)), open(t, syntheticBase().write(t)), Options{})
	require.Equal(t, []string{"modelopt-cuda"}, got.Recipes[0].Proven)
}

func TestDamagedWeightsCannotProve(t *testing.T) {
	f := syntheticBase()
	w := f.at(down + ".weight").data
	w[2*35], w[2*35+1] = 0xc0, 0x7f
	made, base := open(t, synthetic().write(t)), open(t, f.write(t))
	for _, sides := range [][2]*safetensors.Checkpoint{{made, base}, {base, made}} {
		names := [2]string{"made", "base"}
		if sides[0] == base {
			names = [2]string{"base", "made"}
		}
		_, err := Against(t.Context(), sides[0], sides[1], Options{Names: names})
		require.EqualError(t, err, "base/"+syntheticMain+": "+down+".weight: element [1, 3] is NaN")
		require.Equal(t, fault.Refused, fault.KindOf(err))
		e, _ := errors.AsType[*fault.Error](err)
		require.Equal(t, "the source tensor is damaged; compare it with another download (lagquant verify)", e.Hint)
	}
	w[2*35], w[2*35+1] = 0x80, 0xff
	_, err := DetectProfile(t.Context(), made, open(t, f.write(t)), Options{})
	require.ErrorContains(t, err, down+".weight: element [1, 3] is -Inf")
}

func TestGlobalAloneDiffers(t *testing.T) {
	f := synthetic()
	f.setScalar(down+".weight_global_scale", 4000)
	r := against(t, open(t, f.write(t)), open(t, syntheticBase().write(t)), Options{}).Recipes[0]
	require.Empty(t, r.Proven)
	require.Equal(t, ProfileCount{
		Profile: "ct-fp32-rcp6", Modules: 12, Exact: 11, Globals: 1, TotalScaleBytes: 12 * hidden * inter / 16, TotalPackedBytes: 12 * hidden * inter / 2,
		differing: []string{down},
	}, r.count(r.Best))
}

// Where a few modules differ they are damaged, and named; where many do, the arithmetic is another one.
func TestFewModulesDiffer(t *testing.T) {
	base := open(t, tinyPath(t, "bf16"))
	for _, c := range []struct {
		damaged int
		words   string
	}{
		{1, "with ct-fp32-rcp6 but for 1 of 120 modules, damaged or changed rather than made by another arithmetic: model.layers.1.mlp.experts.0.down_proj (ct-fp32-rcp6: 119 of 120"},
		{3, "but for 3 of 120 modules, damaged or changed rather than"},
		{4, "does not match bf16 under any profile; the closest is ct-fp32-rcp6: 116 of 120"},
	} {
		f := load(t, "nvfp4-0801")
		var damaged []string
		for _, name := range f.names() {
			if module, s, _ := splitName(name); s == slotPacked && len(damaged) < c.damaged {
				f.at(name).data[7] ^= 1
				damaged = append(damaged, module)
			}
		}
		got := against(t, open(t, f.write(t)), base, Options{Jobs: 2})
		require.False(t, got.Clean())
		require.Equal(t, damaged, got.Recipes[0].Differing)
		require.Equal(t, c.damaged, got.Recipes[0].DifferingModules)
		require.Contains(t, strings.Join(got.Verdict, "\n"), c.words)
	}
	r := against(t, open(t, syntheticBase().quantizeExperts(mistakes[0].quantize).write(t)), open(t, syntheticBase().write(t)), Options{}).Recipes[0]
	require.Len(t, r.Differing, min(8, r.DifferingModules))
	require.True(t, slices.IsSorted(r.Differing))
}

// Two profiles that give every module between them are an explanation, as for a router that was quantized in float32 beside experts in BF16.
func TestTwoProfiles(t *testing.T) {
	base, f := open(t, tinyPath(t, "bf16")), load(t, "nvfp4-0801")
	p := mustProfile("ct-bf16")
	const module = "model.layers.1.mlp.experts.0.down_proj"
	s, w, ok := base.Lookup(module + ".weight")
	require.True(t, ok)
	bf16, err := s.ReadTensor(w)
	require.NoError(t, err)
	global := p.Global(quant.AbsMax(bf16))
	f.setScalar(module+".weight_global_scale", global)
	quant.ReferenceQuantize(p, global, bf16, f.at(module+".weight_packed").data, f.at(module+".weight_scale").data)
	mixed := open(t, f.write(t))

	got := against(t, mixed, base, Options{})
	require.Equal(t, "ct-bf16", got.Recipes[0].Second)
	require.Empty(t, got.Recipes[0].Proven)
	require.Contains(t, strings.Join(got.Verdict, "\n"), "with ct-fp32-rcp6 but for 1 of 120 modules, which were made with ct-bf16, byte for byte: "+module)
	require.Equal(t, "ct-fp32-rcp6", detect(t, mixed, base).Profile)

	f.at(module + ".weight_packed").data[7] ^= 1
	require.Empty(t, against(t, open(t, f.write(t)), base, Options{}).Recipes[0].Second)
}

// What no profile can speak about is named, and no proof.
func TestUnproven(t *testing.T) {
	base, made := syntheticBase(), synthetic()
	base.at(down + ".weight").dtype = safetensors.F16
	base.put(syntheticMain, "model.layers.1.odd.weight", bf16(1, 1, 24))
	made.put(syntheticMain, "model.layers.1.odd.weight_packed", &stub{safetensors.U8, []uint64{1, 12}, make([]byte, 12)})
	made.put(syntheticMain, "model.layers.1.odd.weight_scale", &stub{safetensors.F8E4M3, []uint64{1, 1}, make([]byte, 1)})
	made.put(syntheticMain, "model.layers.1.odd.weight_global_scale", f32(1))
	made.drop(gate + ".weight_scale")
	got := against(t, open(t, made.write(t)), open(t, base.write(t)), Options{})
	require.Equal(t, []string{down, gate, "model.layers.1.odd"}, got.Recipes[0].Unproven)
	require.False(t, got.Clean())
	require.Contains(t, strings.Join(got.Verdict, "\n"), "3 modules of ")
}

// Two quantized checkpoints of which one lacks a KV scale are not the same; a base that is not quantized cannot have one.
func TestCalibrationScales(t *testing.T) {
	f := synthetic()
	f.put(syntheticRest, "model.layers.1.self_attn.k_scale", f32(1))
	with, without, base := open(t, f.write(t)), open(t, synthetic().write(t)), open(t, syntheticBase().write(t))
	for _, c := range []struct {
		a, b  *safetensors.Checkpoint
		clean bool
	}{{with, without, false}, {without, with, false}, {with, base, true}, {base, with, true}, {without, without, true}} {
		require.Equal(t, c.clean, against(t, c.a, c.b, Options{}).Clean())
	}
}

// A convention explains what no profile does; weights of which one in a module is not zero come out alike under all of them.
func TestProvenNeedsNoConvention(t *testing.T) {
	lonely := func() *fixture {
		f := syntheticBase()
		for _, name := range f.names() {
			clear(f.at(name).data)
			f.at(name).data[1] = 0x40
		}
		return f
	}
	r := against(t, open(t, lonely().quantizeExperts(nil).write(t)), open(t, lonely().write(t)), Options{}).Recipes[0]
	require.Contains(t, r.Proven, "ct-fp32-rcp6")
	require.Empty(t, r.Convention)
}

// Every kind of difference between two tensors of one name, and names that only one side has.
func TestDifferences(t *testing.T) {
	a, b := synthetic(), synthetic()
	b.at("lm_head.weight").data[5] ^= 1
	b.at("model.embed_tokens.weight").shape = []uint64{hidden, 32}
	b.at("model.layers.0.self_attn.q_proj.weight").dtype = safetensors.F16
	b.setScalar(gate+".weight_global_scale", 4000)
	b.at(down + ".weight_scale").data[9]++
	b.at(down + ".weight_scale").data[10] -= 5
	b.at(down + ".weight_packed").data[0] = a.at(down + ".weight_packed").data[0] ^ 0x88
	a.put(syntheticRest, "only.here", f32(1))
	b.put(syntheticRest, up+".weight", bf16(1, inter, hidden)) // left behind beside the packed one: still NVFP4 on both sides
	got := against(t, open(t, a.write(t)), open(t, b.write(t)), Options{Jobs: 3})
	require.Equal(t, []string{"only.here"}, got.OnlyA)
	require.Equal(t, []string{up + ".weight"}, got.OnlyB)
	require.Empty(t, got.Recipes)
	what := map[string]Difference{}
	for _, d := range got.Differing {
		what[d.Tensor] = d
	}
	require.Len(t, what, 6)
	require.Equal(t, Difference{Tensor: "lm_head.weight", What: "bytes", Bytes: 1, Of: 2 * 32 * hidden}, what["lm_head.weight"])
	require.Equal(t, Difference{Tensor: "model.embed_tokens.weight", What: "shape", A: "[32, 64]", B: "[64, 32]"}, what["model.embed_tokens.weight"])
	require.Equal(t, "dtype", what["model.layers.0.self_attn.q_proj.weight"].What)
	require.Equal(t, "4000", what[gate+".weight_global_scale"].B)
	require.EqualValues(t, 1, got.NVFP4.Globals)
	require.EqualValues(t, 2, got.NVFP4.ScaleBytes)
	require.EqualValues(t, 1, got.NVFP4.ScalesOffByOne)
	require.EqualValues(t, 2, got.NVFP4.Codes)
	require.Equal(t, 2, got.NVFP4.DifferingModules)
	require.False(t, got.Clean())
}

// A module that is NVFP4 on both sides can differ in more than bytes.
func TestShapesOfNVFP4Modules(t *testing.T) {
	b := synthetic()
	b.at(down + ".weight_scale").shape = []uint64{inter / 16, hidden}
	b.at(down + ".weight_packed").dtype = safetensors.I8
	b.setScalar(gate+".weight_global_scale", 4000)
	got := against(t, open(t, synthetic().write(t)), open(t, b.write(t)), Options{})
	require.Contains(t, got.Verdict, "different beside the bytes of NVFP4 modules: "+
		down+".weight_packed (dtype U8, I8), "+down+".weight_scale (shape [64, 2], [2, 64])")
	require.Contains(t, strings.Join(got.Verdict, "\n"), "0 group scales (0.000 %, none off by one), 0 codes (0.000 %, none off by one)")
}

// Every way in which the tensors of a layer can be here and there.
func TestLayersOfOneSide(t *testing.T) {
	a, b := synthetic(), synthetic()
	for name, sides := range map[string][]*fixture{
		"model.layers.2.norm.weight": {a}, "model.layers.3.norm.weight": {b}, // only in one
		"model.layers.4.norm.weight": {a, b}, "model.layers.4.norm.bias": {b}, // partly
		"model.layers.5.norm.weight": {a}, "model.layers.5.norm.bias": {b},
		"model.layers.6.norm.weight": {a, b},
	} {
		for _, f := range sides {
			f.put(syntheticRest, name, bf16(1, 1, 16))
		}
	}
	names := [2]string{"here", "there\x1b"}
	got := against(t, open(t, a.write(t)), open(t, b.write(t)), Options{Names: names})
	require.Contains(t, got.Verdict, "layers 0-1,6 and tensors outside the layers: the same; layers 4-5: in part on one side only; "+
		`layer 2: only in here; layer 3: only in there\x1b`)
	require.Contains(t, got.Verdict, `only in there\x1b: model.layers.3.norm.weight, model.layers.4.norm.bias, model.layers.5.norm.bias`)
}

func TestSample(t *testing.T) {
	a, b := open(t, tinyPath(t, "nvfp4-0801")), open(t, tinyPath(t, "bf16"))
	all := against(t, a, b, Options{})
	same, modules := 0, 0
	for _, text := range []string{"1/3", "2/3", "3/3"} {
		s, err := ParseSample(text)
		require.NoError(t, err)
		part := against(t, a, b, Options{Sample: s})
		require.Equal(t, text, part.Sample)
		require.NotZero(t, part.Same)
		require.Less(t, part.Same, all.Same)
		same += part.Same
		modules += part.Recipes[0].Modules
	}
	require.Equal(t, all.Same, same)
	require.Equal(t, 120, modules)

	older := open(t, tinyPath(t, "nvfp4-0722"))
	modules = 0
	for _, text := range []string{"1/2", "2/2"} {
		s, err := ParseSample(text)
		require.NoError(t, err)
		codes := against(t, a, older, Options{Sample: s}).NVFP4
		require.EqualValues(t, codes.Modules*64*192/16, codes.TotalScaleBytes, "modules are in a sample with all of their tensors")
		modules += codes.Modules
	}
	require.Equal(t, 120, modules)

	for _, other := range []*safetensors.Checkpoint{a, b, older} {
		s, err := ParseSample("1/1000000")
		require.NoError(t, err)
		_, err = Against(t.Context(), a, other, Options{Sample: s})
		require.EqualError(t, err, "sample 1/1000000 of 274 modules holds none of them")
		require.Equal(t, fault.Usage, fault.KindOf(err))
	}

	s, err := ParseSample("25%")
	require.NoError(t, err)
	first, second := against(t, a, b, Options{Sample: s}), against(t, a, b, Options{Sample: s, Jobs: 1})
	require.Equal(t, first, second)
	require.InDelta(t, 30, first.Recipes[0].Modules, 20)
	for _, bad := range []string{"", "0/3", "4/3", "1/0", "x/3", "0%", "101%", "NaN%", "-5%", "5"} {
		_, err := ParseSample(bad)
		require.Error(t, err, bad)
		require.Equal(t, fault.Usage, fault.KindOf(err), bad)
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Against(ctx, open(t, tinyPath(t, "nvfp4-0801")), open(t, tinyPath(t, "bf16")), Options{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = Structure(ctx, tinyPath(t, "nvfp4-0801"), Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestComparisonIsJSON(t *testing.T) {
	got := against(t, open(t, tinyPath(t, "nvfp4-0801")), open(t, tinyPath(t, "nvfp4-0722")), Options{})
	b, err := json.Marshal(got)
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(b, &doc))
	require.Equal(t, "lagquant-comparison/1", doc["schema"])
	for _, field := range []string{"a", "b", "same", "differing", "only_a", "only_b", "layers", "nvfp4", "recipes", "origins", "verdict"} {
		require.Contains(t, doc, field)
	}

	made := synthetic()
	made.drop(gate + ".weight_scale")
	for _, c := range []*Comparison{
		against(t, open(t, tinyPath(t, "bf16")), open(t, tinyPath(t, "bf16")), Options{}),
		against(t, open(t, made.write(t)), open(t, syntheticBase().write(t)), Options{}),
	} {
		b, err := json.Marshal(c)
		require.NoError(t, err)
		require.NotContains(t, string(b), "null")
	}
}
