package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/synthetic"
	"github.com/lagquant/lagquant/pipeline"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// headersOnly writes a checkpoint of the real size: true headers, and data that is a hole in the file.
func headersOnly(tb testing.TB, dir string, config []byte, shards int) {
	tb.Helper()
	expected, known, err := spec.ExpectedTensors(config)
	require.NoError(tb, err)
	require.True(tb, known)
	require.NoError(tb, os.MkdirAll(dir, 0o755))
	require.NoError(tb, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))
	weightMap := map[string]string{}
	each := (len(expected) + shards - 1) / shards
	for i := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		var tensors []safetensors.Tensor
		for _, e := range expected[i*each : min((i+1)*each, len(expected))] {
			tensors = append(tensors, safetensors.Tensor{Name: e.Name, DType: e.DTypes[0], Shape: e.Shapes[0]})
			weightMap[e.Name] = name
		}
		layout, err := safetensors.NewLayout(tensors, map[string]string{"format": "pt"})
		require.NoError(tb, err)
		path := filepath.Join(dir, name)
		require.NoError(tb, os.WriteFile(path, layout.Prefix(), 0o644))
		require.NoError(tb, os.Truncate(path, layout.Size()))
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": weightMap})
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), index, 0o644))
}

// configs gives the configs of the two S-2.1 revisions: 08-01 has one more ignore rule.
func configs(tb testing.TB) (mixed, old []byte) {
	tb.Helper()
	old, err := os.ReadFile("../../spec/testdata/laguna-s-2.1-nvfp4-0722.json")
	require.NoError(tb, err)
	first := `"ignore": [`
	require.Equal(tb, 1, strings.Count(string(old), first))
	return []byte(strings.Replace(string(old), first, first+`"re:^model\\.layers\\.4[0-7]\\.mlp\\.experts(\\..*)?$", `, 1)), old
}

// The names and shapes of the 2026-08-01 revision of Laguna-S-2.1: 126,721 tensors in 49 shards, 99.7 GB. A plan reads its headers and no
// more: it is made in a fraction of a second (BenchmarkPlanOfTheRealSize) and within 300 MB.
func TestPlanOfTheRealSize(t *testing.T) {
	dir := t.TempDir()
	mixed, old := configs(t)
	headersOnly(t, filepath.Join(dir, "nvfp4-0801"), mixed, 49)
	headersOnly(t, filepath.Join(dir, "nvfp4-0722"), old, 15)
	c := command("plan", filepath.Join(dir, "nvfp4-0801"), "--layers", "40-47", "--input-scales", filepath.Join(dir, "nvfp4-0722"), "--profile", "ct-fp32-rcp6", "--json")
	c.Env = append(c.Env, peakFile+"="+filepath.Join(dir, "peak"))
	out, err := c.Output()
	require.NoError(t, err)
	var plan pipeline.Plan
	require.NoError(t, json.Unmarshal(out, &plan))
	require.Equal(t, 8*256*3, plan.Modules)
	require.Equal(t, 145153, plan.TensorsOut)
	require.EqualValues(t, int64(71_898_733_760), plan.TotalSize, "as the older revision's index says")
	require.Len(t, plan.Units, 49)
	require.Less(t, peakOf(t, filepath.Join(dir, "peak")), int64(300e6))
}

func BenchmarkPlanOfTheRealSize(b *testing.B) {
	dir := b.TempDir()
	mixed, old := configs(b)
	headersOnly(b, filepath.Join(dir, "nvfp4-0801"), mixed, 49)
	headersOnly(b, filepath.Join(dir, "nvfp4-0722"), old, 15)
	for b.Loop() {
		t := &terminal{stdout: io.Discard, stderr: io.Discard}
		require.Zero(b, run(context.Background(), []string{
			"plan", filepath.Join(dir, "nvfp4-0801"), "--layers", "40-47", "--input-scales", filepath.Join(dir, "nvfp4-0722"), "--profile", "ct-fp32-rcp6",
		}, t))
	}
}

// One shard of a gigabyte, buffers bounded to 256 MiB, and never more than 400 MiB in memory.
func TestMemoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "model")
	shape := synthetic.Bench
	shape.ShardBytes = 1 << 40
	require.NoError(t, synthetic.Write(src, shape))
	info, err := os.Stat(filepath.Join(src, "model-00001-of-00001.safetensors"))
	require.NoError(t, err)
	require.Greater(t, info.Size(), int64(1e9))
	out, err := command("requantize", src, "--input-scales", "const:744", "--profile", "ct-fp32-rcp6", "--memory", "256MiB", "--jobs", "8", "--json").Output()
	require.NoError(t, err)
	var result struct {
		Modules    int   `json:"modules"`
		PeakMemory int64 `json:"peak_memory"`
	}
	require.NoError(t, json.Unmarshal(out, &result))
	require.Equal(t, 68*3, result.Modules)
	require.Less(t, result.PeakMemory, int64(400<<20))
	if result.PeakMemory == 0 {
		t.Log("this system does not tell the peak of a process: only the result was tested")
	}
}
