package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/digest"
	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// openSource opens one checkpoint of the tiny set.
func openSource(t testing.TB, dir string) *Source {
	t.Helper()
	c, err := safetensors.OpenCheckpoint(dir)
	require.NoError(t, err)
	return &Source{Checkpoint: c}
}

// planTiny plans what made the 0804 checkpoint: layers 6-7 of 0801, input scales from 0722.
func planTiny(t testing.TB, dir string) (plan *Plan, src, donor *Source) {
	t.Helper()
	src, donor = openSource(t, filepath.Join(dir, "nvfp4-0801")), openSource(t, filepath.Join(dir, "nvfp4-0722"))
	plan, err := MakePlan(src, donor, PlanOptions{Layers: []int{6, 7}, InputScales: InputScales{From: FromDonor}})
	require.NoError(t, err)
	rcp6, ok := quant.ProfileByName("ct-fp32-rcp6")
	require.True(t, ok)
	require.NoError(t, plan.SetProfile(rcp6, []string{"test"}))
	return plan, src, donor
}

func runTiny(t testing.TB, dir, out string, opts RunOptions) *Result {
	t.Helper()
	plan, src, donor := planTiny(t, dir)
	opts.Out = out
	r, err := Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, opts)
	require.NoError(t, err)
	return r
}

// fileDigests gives the SHA-256 of every file below dir.
func fileDigests(t testing.TB, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		sum := sha256.Sum256(b)
		name, _ := filepath.Rel(dir, path)
		sums[filepath.ToSlash(name)] = hex.EncodeToString(sum[:])
		return err
	}))
	return sums
}

// The bytes that compressed-tensors 0.14.0.1 gave on CUDA for layers 6-7, and the source's own for everything else.
func TestAllTensorsAreTheToolsOwn(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	out := filepath.Join(dir, "out")
	r := runTiny(t, dir, out, RunOptions{Jobs: 2})
	require.Equal(t, 48, r.Modules)
	require.InDelta(t, 0.095, r.Errors.RelativeRMS(), 0.002)
	require.Less(t, r.Errors.Floor(), r.Errors.RelativeRMS())

	var expected map[string]struct {
		DType  string   `json:"dtype"`
		Shape  []uint64 `json:"shape"`
		SHA256 string   `json:"sha256"`
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "tiny/expected-0804.json"), &expected))
	require.Len(t, expected, 801)
	dtypes := map[string]safetensors.DType{"bfloat16": "BF16", "float32": "F32", "uint8": "U8", "float8_e4m3fn": "F8_E4M3"}
	c, err := safetensors.OpenCheckpoint(out)
	require.NoError(t, err)
	require.Len(t, c.Names(), len(expected))
	for name, want := range expected {
		_, tensor, ok := c.Lookup(name)
		require.True(t, ok, name)
		require.Equal(t, dtypes[want.DType], tensor.DType, name)
		require.Equal(t, want.Shape, tensor.Shape, name)
		b, err := c.ReadTensor(name)
		require.NoError(t, err)
		sum := sha256.Sum256(b)
		require.Equal(t, want.SHA256, hex.EncodeToString(sum[:]), name)
	}
}

// What the output says of itself is true: index, manifest, config, untouched files.
func TestOutputAroundTheTensors(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	out := filepath.Join(dir, "out")
	src := filepath.Join(dir, "nvfp4-0801")
	require.NoError(t, os.Chmod(filepath.Join(src, "model-00001-of-00011.safetensors"), 0o604))
	require.NoError(t, os.Chmod(filepath.Join(src, "model-00010-of-00011.safetensors"), 0o640))
	require.NoError(t, os.WriteFile(filepath.Join(src, "consolidated.safetensors"), []byte("stale"), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(src, "figures"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(src, "figures", "a.txt"), []byte("a"), 0o644))
	before := fileDigests(t, src)
	plan, _, _ := planTiny(t, dir)
	require.Equal(t, []LeftOut{{"consolidated.safetensors", "the index does not name it"}}, plan.LeftOut)
	runTiny(t, dir, out, RunOptions{})
	require.Equal(t, before, fileDigests(t, src), "the source is not touched")

	after := fileDigests(t, out)
	require.NotContains(t, after, "consolidated.safetensors")
	rewritten := 0
	for _, u := range plan.Units {
		if u.Copied() {
			require.Equal(t, before[u.Shard], after[u.Shard], u.Shard)
		} else {
			rewritten++
			require.NotEqual(t, before[u.Shard], after[u.Shard], u.Shard)
		}
		was, err := os.Stat(filepath.Join(src, u.Shard))
		require.NoError(t, err)
		is, err := os.Stat(filepath.Join(out, u.Shard))
		require.NoError(t, err)
		require.Equal(t, was.Mode(), is.Mode(), u.Shard)
		require.Equal(t, u.SizeOut, is.Size())
	}
	require.Positive(t, rewritten)
	for _, name := range []string{"tokenizer.json", "chat_template.jinja", "generation_config.json", "figures/a.txt"} {
		require.Equal(t, before[name], after[name], name)
	}

	// config.json: one rule less, and the comma before it.
	old, err := os.ReadFile(filepath.Join(src, "config.json"))
	require.NoError(t, err)
	config, err := os.ReadFile(filepath.Join(out, "config.json"))
	require.NoError(t, err)
	rule := ",\n      \"re:^model\\\\.layers\\\\.[67]\\\\.mlp\\\\.experts(\\\\..*)?$\""
	require.Equal(t, 1, strings.Count(string(old), rule))
	require.Equal(t, strings.Replace(string(old), rule, "", 1), string(config))

	// The manifest names every file but itself with its digest, and every tensor.
	var m Manifest
	b, err := os.ReadFile(filepath.Join(out, ManifestName))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &m))
	require.Len(t, m.Files, len(after)-1)
	for _, f := range m.Files {
		require.Equal(t, after[f.Name], f.SHA256, f.Name)
	}
	c, err := safetensors.OpenCheckpoint(out)
	require.NoError(t, err)
	origins := map[string]int{}
	for _, name := range c.Names() {
		b, err := c.ReadTensor(name)
		require.NoError(t, err)
		require.Equal(t, digest.OfTensor(b), m.Tensors[name].XXH3, name)
		origins[m.Tensors[name].Origin]++
	}
	require.Equal(t, map[string]int{"copied": 801 - 4*48, "requantized": 3 * 48, "input scale from " + m.InputScales.Donor.String(): 48}, origins)

	// The index is the form that Python writes, and right.
	total, ok := c.TotalSize()
	require.True(t, ok)
	require.EqualValues(t, plan.TotalSize, total)
	require.False(t, Unfinished(out))
}

// One more worker, another folder and another way of copying change no byte of any file.
func TestSameBytesHoweverItRuns(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	first := filepath.Join(dir, "first")
	runTiny(t, dir, first, RunOptions{Jobs: 1})
	want := fileDigests(t, first)
	for _, opts := range []RunOptions{{Jobs: 2}, {Jobs: 7}, {Jobs: 7, Memory: 64 << 10}, {Link: LinkCopy}, {Link: LinkHard}} {
		out := filepath.Join(t.TempDir(), "out")
		if opts.Link == LinkHard {
			out = filepath.Join(dir, "hard") // on the source's volume
		}
		runTiny(t, dir, out, opts)
		require.Equal(t, want, fileDigests(t, out), "%+v", opts)
	}
	elsewhere := filepath.Join(t.TempDir(), "another", "place")
	require.NoError(t, os.MkdirAll(filepath.Dir(elsewhere), 0o755))
	require.NoError(t, os.Rename(dir, elsewhere))
	defer func() { require.NoError(t, os.Rename(elsewhere, dir)) }()
	out := filepath.Join(t.TempDir(), "out")
	runTiny(t, elsewhere, out, RunOptions{})
	require.Equal(t, want, fileDigests(t, out))
}

// reader is a backend that counts the sets whose weights it got in an arena, and can have a source cut when it gets the first.
type reader struct {
	quant.Backend
	mapped bool
	arena  []byte
	read   atomic.Int32
	cut    func()
	once   sync.Once
}

func (r *reader) Mapped() bool { return r.mapped }

func (r *reader) Buffer(n int) ([]byte, error) {
	b, err := r.Backend.Buffer(n)
	r.arena = b
	return b, err
}

func (r *reader) QuantizeSet(p quant.Profile, set []quant.Member) (float32, error) {
	if &set[0].BF16[0] == &r.arena[0] {
		r.read.Add(1)
	}
	if r.cut != nil {
		r.once.Do(r.cut)
	}
	return r.Backend.QuantizeSet(p, set)
}

func TestWeightsMappedAndRead(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	runTiny(t, dir, filepath.Join(dir, "expected"), RunOptions{})
	mapped, read := &reader{Backend: quant.CPU(), mapped: true}, &reader{Backend: quant.CPU()}
	for out, b := range map[string]*reader{"mapped": mapped, "read": read} {
		runTiny(t, dir, filepath.Join(dir, out), RunOptions{Backend: b, Jobs: 1})
		require.Equal(t, fileDigests(t, filepath.Join(dir, "expected")), fileDigests(t, filepath.Join(dir, out)))
	}
	plan, _, _ := planTiny(t, dir)
	sets := 0
	for _, u := range plan.Units {
		sets += len(fusedSets(u.Modules))
	}
	require.EqualValues(t, sets, read.read.Load())
	if _, _, err := safetensors.Map(os.Stdin, 0, 0); runtime.GOOS == "windows" {
		t.Logf("no mappings here: %v", err)
	} else {
		require.Zero(t, mapped.read.Load())
	}
}

// A source that is cut while its mapping is being read is a memory fault, and must end as any other source that is cut.
func TestSourceCutUnderItsMapping(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	plan, src, donor := planTiny(t, dir)
	name := plan.Units[slices.IndexFunc(plan.Units, func(u Unit) bool { return !u.Copied() })].Shard
	for _, mapped := range []bool{true, false} {
		path := filepath.Join(dir, "nvfp4-0801", name)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		b := &reader{Backend: quant.CPU(), mapped: mapped, cut: func() { require.NoError(t, os.Truncate(path, 5000)) }}
		out := filepath.Join(dir, fmt.Sprint("out", mapped))
		_, err = Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: out, Backend: b, Jobs: 1})
		f, ok := errors.AsType[*fault.Error](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, fault.IO, f.Kind)
		require.Equal(t, path, f.File)
		require.Contains(t, f.Problem, "ended at byte 5000 while reading")
		require.NoFileExists(t, filepath.Join(out, name))
		require.NoFileExists(t, filepath.Join(out, configName))
		require.NoError(t, os.WriteFile(path, whole, 0o644))
	}
}

// gate and up of three experts lie in different shards; they share the global scale all the same.
func TestPairsAcrossShards(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	plan, src, _ := planTiny(t, dir)
	split := 0
	for _, u := range plan.Units {
		for _, m := range u.Modules {
			for _, with := range m.With {
				if s, _, _ := src.Lookup(with + ".weight"); s.Name != u.Shard {
					split++
				}
			}
		}
	}
	require.Positive(t, split, "the fixture has pairs that are split")
	out := filepath.Join(dir, "out")
	runTiny(t, dir, out, RunOptions{})
	c, err := safetensors.OpenCheckpoint(out)
	require.NoError(t, err)
	for _, u := range plan.Units {
		for _, m := range u.Modules {
			for _, with := range m.With {
				a, err := c.ReadTensor(m.Name + ".weight_global_scale")
				require.NoError(t, err)
				b, err := c.ReadTensor(with + ".weight_global_scale")
				require.NoError(t, err)
				require.Equal(t, a, b, m.Name)
			}
		}
	}
}

// Without input scales a shard that held nothing else has no place in the output.
func TestShardOfInputScalesOnly(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	e := editable{t, filepath.Join(dir, "nvfp4-0801")}
	moved := map[string]*blob{}
	for _, s := range openSource(t, e.dir).Shards {
		e.shard(s.Name, func(tensors map[string]*blob) {
			for name, b := range tensors {
				if strings.HasSuffix(name, ".input_global_scale") {
					moved[name] = b
					delete(tensors, name)
				}
			}
		})
	}
	e.write("scales.safetensors", moved, nil)
	src := openSource(t, e.dir)
	plan, err := MakePlan(src, nil, PlanOptions{InputScales: InputScales{From: FromNone}})
	require.NoError(t, err)
	require.Equal(t, []LeftOut{{"scales.safetensors", "it has input scales only"}}, plan.LeftOut)
	require.NoError(t, plan.SetProfile(quant.Profiles[0], nil))
	out := filepath.Join(dir, "out")
	_, err = Run(context.Background(), plan, src.Checkpoint, nil, RunOptions{Out: out})
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(out, "scales.safetensors"))
	require.Len(t, openSource(t, out).Names(), plan.TensorsOut)
}

func TestDefaultLayersAreTheExemptedOnes(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	src, donor := openSource(t, filepath.Join(dir, "nvfp4-0801")), openSource(t, filepath.Join(dir, "nvfp4-0722"))
	plan, err := MakePlan(src, donor, PlanOptions{InputScales: InputScales{From: FromDonor}})
	require.NoError(t, err)
	require.Equal(t, []int{6, 7}, plan.Layers)
	require.True(t, slices.IsSortedFunc(plan.Units, func(a, b Unit) int { return strings.Compare(a.Shard, b.Shard) }))
}
