package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/digest"
)

func structure(t *testing.T, dir string, o Options) *Report {
	t.Helper()
	r, err := Structure(t.Context(), dir, o)
	require.NoError(t, err)
	return r
}

func TestSoundCheckpoints(t *testing.T) {
	cases := map[string]struct {
		shards, tensors int
		bytes           int64
		modules         ModuleCounts
		sets            int
	}{
		"bf16":       {5, 281, 8180832, ModuleCounts{NVFP4: 0, Plain: 241, Others: 33}, 0},
		"nvfp4-0722": {3, 801, 5214656, ModuleCounts{NVFP4: 168, Plain: 73, Others: 33}, 56},
		"nvfp4-0801": {11, 657, 6062144, ModuleCounts{NVFP4: 120, Plain: 121, Others: 33}, 40},
	}
	for name, want := range cases {
		r := structure(t, tinyPath(t, name), Options{})
		require.Empty(t, r.Findings, name)
		require.True(t, r.Sound(true))
		require.Equal(t, want.shards, r.Shards, name)
		require.Equal(t, want.tensors, r.Tensors, name)
		require.Equal(t, want.bytes, r.Bytes, name)
		require.Equal(t, want.modules, r.Modules, name)
		require.Equal(t, FusedGlobals{Sets: want.sets}, r.Fused, name)
	}
	require.Empty(t, structure(t, synthetic().write(t), Options{}).Findings)
	require.Empty(t, structure(t, syntheticBase().write(t), Options{}).Findings)
	require.Empty(t, structure(t, synthetic().toModelOpt().write(t), Options{}).Findings)
}

// Report 54974 of vLLM: mismatches are counted and the worst is named.
func TestFusedGlobalsAreCounted(t *testing.T) {
	f := synthetic()
	f.setScalar(gate+".weight_global_scale", 1000)
	f.setScalar(up+".weight_global_scale", 10000)
	f.setScalar("model.layers.0.mlp.experts.0.up_proj.weight_global_scale", 1)
	f.setScalar("model.layers.0.mlp.experts.0.gate_proj.weight_global_scale", 2)
	r := structure(t, f.write(t), Options{})
	require.Equal(t, FusedGlobals{Sets: 4, Mismatched: 2, WorstRatio: 10, Worst: expert + "{gate_proj,up_proj}"}, r.Fused)
	require.False(t, r.Sound(false))
}

func TestDeadGroupsAreCounted(t *testing.T) {
	f := synthetic()
	copy(f.at(down + ".weight_packed").data[8*3:], []byte{0x80, 8, 0, 0, 0, 0, 0, 0x88})
	f.at(down + ".weight_scale").data[3] = 0x20
	r := structure(t, f.write(t), Options{})
	require.Len(t, r.Findings, 1)
	require.Equal(t, Info, r.Findings[0].Severity)
	require.Equal(t, CheckDeadGroups, r.Findings[0].Check)
	require.Contains(t, r.Findings[0].String(), down+".weight_scale: 1 of 128 groups hold zeros only")
	require.True(t, r.Sound(true), "information is no fault")
}

// writeManifest adds the manifest that the checkpoint's files would have had when they were written.
func writeManifest(t *testing.T, dir string) {
	t.Helper()
	type file struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
	}
	m := struct {
		Schema  string                       `json:"schema"`
		Files   []file                       `json:"files"`
		Tensors map[string]map[string]string `json:"tensors"`
		Later   string                       `json:"a_field_of_a_later_version"`
	}{Schema: "lagquant-manifest/1", Tensors: map[string]map[string]string{}}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		m.Files = append(m.Files, file{e.Name(), int64(len(b)), sha256Of(b)})
	}
	c := open(t, dir)
	for _, name := range c.Names() {
		b, err := c.ReadTensor(name)
		require.NoError(t, err)
		m.Tensors[name] = map[string]string{"origin": "copied", "xxh3": digest.OfTensor(b)}
	}
	b, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ManifestName), b, 0o644))
}

func sha256Of(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func TestManifest(t *testing.T) {
	edit := func(name string, change func([]byte) []byte) func(string) { return rewrite(name, change) }
	cases := []struct {
		what   string
		change func(dir string)
		want   []string // severity, file or tensor, words
	}{
		{"untouched", func(string) {}, nil},
		{"one bit of a weight", edit(syntheticRest, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), []string{
			"error " + syntheticRest + ": sha256 ",
			"error " + syntheticRest + ": model.layers.1.self_attn.q_proj.weight: xxh3 ",
		}},
		{"an edited config", edit("config.json", func(b []byte) []byte { return append(b, '\n') }), []string{
			fmt.Sprintf("warning config.json: %d bytes; expected %d,", len(syntheticConfig)+1, len(syntheticConfig)),
		}},
		{"an edited config of the same length", edit("config.json", func(b []byte) []byte {
			return []byte(strings.Replace(string(b), "synthetic", "synthesis", 1))
		}), []string{"warning config.json: sha256 "}},
		{"a manifest that cannot be read", edit(ManifestName, func(b []byte) []byte { return b[:100] }), []string{"error " + ManifestName + ": cannot be read"}},
		{"a file that is gone", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"config.json"`, `"tokenizer.json"`, 1))
		}), []string{"warning tokenizer.json: missing"}},
		{"a name that leads out", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"config.json"`, `"../config.json"`, 1))
		}), []string{"error " + ManifestName + ": ../config.json: a name that leads out"}},
		{"a name with a NUL", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"config.json"`, `"config\u0000.json"`, 1))
		}), []string{"error " + ManifestName + `: config\x00.json: a name that no file has`}},
		{"the folder itself", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"config.json"`, `"."`, 1))
		}), []string{"error " + ManifestName + ": .: not a regular file"}},
		{"a folder", func(dir string) {
			edit(ManifestName, func(b []byte) []byte { return []byte(strings.Replace(string(b), `"config.json"`, `"sub"`, 1)) })(dir)
			if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
				panic(err)
			}
		}, []string{"error " + ManifestName + ": sub: not a regular file"}},
		{"a folder in its place", func(dir string) {
			if err := errors.Join(os.Remove(filepath.Join(dir, ManifestName)), os.Mkdir(filepath.Join(dir, ManifestName), 0o755)); err != nil {
				panic(err)
			}
		}, []string{"error " + ManifestName + ": this is no regular file"}},
		{"null", create(ManifestName, `null`), []string{"error " + ManifestName + `: schema: ""; expected "lagquant-manifest/1"`}},
		{"a later schema", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), "manifest/1", "manifest/2", 1))
		}), []string{"error " + ManifestName + `: schema: "lagquant-manifest/2"; expected "lagquant-manifest/1"`}},
		{"a list", create(ManifestName, `[]`), []string{"error " + ManifestName + ": cannot be read: unexpected array;"}},
		{"a name that is a number", create(ManifestName, `{"files": [{"name": 5}]}`), []string{
			"error " + ManifestName + ": cannot be read: unexpected number in files.name;",
		}},
		{"nothing but a schema", create(ManifestName, `{"schema": "lagquant-manifest/1"}`), []string{
			"error " + syntheticMain + ": a shard that the manifest does not name", "error " + syntheticRest + ": a shard that",
			"error " + ManifestName + ": tensors: none; expected 52, those of the checkpoint",
		}},
		{"a shard that the manifest does not know", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"name":"`+syntheticRest, `"name":"tokenizer.json`, 1))
		}), []string{"warning tokenizer.json: missing", "error " + syntheticRest + ": a shard that the manifest does not name"}},
		{"a tensor that the manifest does not know, and one that it knows", edit(ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), `"lm_head.weight"`, `"head.weight"`, 1))
		}), []string{"error head.weight: missing", "error " + syntheticRest + ": lm_head.weight: a tensor that the manifest does not name"}},
	}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			dir := synthetic().write(t)
			writeManifest(t, dir)
			c.change(dir)
			r := structure(t, dir, Options{})
			var lines []string
			for _, f := range r.Findings {
				lines = append(lines, string(f.Severity)+" "+f.String())
			}
			require.Len(t, lines, len(c.want), "%q", lines)
			for _, w := range c.want {
				require.True(t, slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, w) }), "%q in %q", w, lines)
			}
		})
	}
}

// Without a manifest only scales and globals are read; with one, every byte once.
func TestBytesRead(t *testing.T) {
	dir := synthetic().write(t)
	var read atomic.Int64
	var announced int64
	o := Options{Start: func(total int64) { announced = total }, Progress: func(n int64) { read.Add(n) }}
	structure(t, dir, o)
	require.EqualValues(t, 12*(hidden*inter/16+4+4), read.Load())
	require.Equal(t, read.Load(), announced)

	writeManifest(t, dir)
	m, err := os.ReadFile(filepath.Join(dir, ManifestName))
	require.NoError(t, err)
	var files struct{ Files []struct{ Size int64 } }
	require.NoError(t, json.Unmarshal(m, &files))
	var total int64
	for _, f := range files.Files {
		total += f.Size
	}
	read.Store(0)
	structure(t, dir, o)
	require.Equal(t, total, read.Load())
	require.Equal(t, total, announced)
}

func TestReportIsJSON(t *testing.T) {
	f := synthetic()
	f.setScalar(down+".weight_global_scale", 0)
	b, err := json.Marshal(structure(t, f.write(t), Options{}))
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(b, &doc))
	require.Equal(t, "lagquant-verify/1", doc["schema"])
	require.Equal(t, map[string]any{
		"severity": "error", "check": "global-scale", "file": syntheticMain, "tensor": down + ".weight_global_scale", "found": "value 0 (0x00000000)",
		"expected": "a finite number above 0 with a finite reciprocal", "hint": "loaders divide by it: everything behind it becomes NaN, infinite or zero",
	}, doc["findings"].([]any)[0])
	empty, err := json.Marshal(structure(t, tinyPath(t, "bf16"), Options{}))
	require.NoError(t, err)
	require.Contains(t, string(empty), `"findings":[]`)
}

// Names come out of files that somebody else made; what they hold must not reach the terminal as it is.
func TestNamesAreEscaped(t *testing.T) {
	f := Finding{File: "a\x1b[2J", Tensor: "b\nc\x00", Found: "größe/重み", Expected: "\u202e"}
	require.Equal(t, `a\x1b[2J: b\nc\x00: größe/重み; expected \u202e`, f.String())
	b, err := json.Marshal(f)
	require.NoError(t, err)
	require.Contains(t, string(b), `"tensor":"b\nc\u0000"`)
}

func TestNothingThere(t *testing.T) {
	_, err := Structure(t.Context(), filepath.Join(t.TempDir(), "missing"), Options{})
	require.Error(t, err)
	r := structure(t, t.TempDir(), Options{})
	require.Equal(t, 2, r.Errors, "no shards, no config")
}
