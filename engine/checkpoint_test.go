package engine

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// weightMap is a whole small checkpoint in memory, for tests that change one.
type weightMap struct {
	config  []byte
	tensors map[string]weight
}

type weight struct {
	safetensors.Tensor
	data []byte
}

func readWeights(t testing.TB, dir string) *weightMap {
	ckpt, err := safetensors.OpenCheckpoint(dir)
	require.NoError(t, err)
	m := &weightMap{ckpt.Config, map[string]weight{}}
	for _, name := range ckpt.Names() {
		_, tensor, _ := ckpt.Lookup(name)
		data, err := ckpt.ReadTensor(name)
		require.NoError(t, err)
		m.tensors[name] = weight{tensor, bytes.Clone(data)}
	}
	return m
}

// write makes a checkpoint of one shard.
func (m *weightMap) write(t testing.TB) string {
	dir := t.TempDir()
	m.writeShard(t, filepath.Join(dir, "model.safetensors"), func(string) bool { return true })
	require.NoError(t, os.WriteFile(filepath.Join(dir, configFile), m.config, 0o644))
	return dir
}

func (m *weightMap) writeShard(t testing.TB, path string, in func(tensor string) bool) {
	var sources []safetensors.Source
	for name, w := range m.tensors {
		w.Name = name
		if in(name) {
			sources = append(sources, safetensors.Source{Tensor: w.Tensor, Open: func() (io.Reader, error) { return bytes.NewReader(w.data), nil }})
		}
	}
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, safetensors.Write(f, sources, nil))
	require.NoError(t, f.Close())
}

func (m *weightMap) load(t testing.TB, opts Options) *Model { return load(t, m.write(t), opts) }

// put replaces or adds a tensor.
func (m *weightMap) put(name string, dtype safetensors.DType, data []byte, shape ...uint64) {
	m.tensors[name] = weight{safetensors.Tensor{Name: name, DType: dtype, Shape: shape, End: uint64(len(data))}, data}
}

// requantized is nvfp4-0801 with the experts of layers 6 and 7 turned into NVFP4, which their makers' tool did for the goldens named 0804.
func requantized(t testing.TB, tiny string) *weightMap {
	m, bf16 := readWeights(t, filepath.Join(tiny, "nvfp4-0801")), readWeights(t, filepath.Join(tiny, "bf16"))
	inputs := readWeights(t, filepath.Join(tiny, "nvfp4-0722"))
	profile, _ := quant.ProfileByName("ct-fp32-rcp6")
	for layer := 6; layer <= 7; layer++ {
		for expert := range 8 {
			prefix := fmt.Sprintf("model.layers.%d.mlp.experts.%d.", layer, expert)
			for _, set := range [][]string{{"gate_proj", "up_proj"}, {"down_proj"}} {
				var amax float32
				for _, proj := range set {
					amax = max(amax, quant.AbsMax(bf16.tensors[prefix+proj+".weight"].data))
				}
				global := profile.Global(amax)
				for _, proj := range set {
					module := prefix + proj
					w := m.tensors[module+".weight"]
					rows, cols := w.Shape[0], w.Shape[1]
					packed, scales := make([]byte, rows*cols/2), make([]byte, rows*cols/16)
					quant.ReferenceQuantize(profile, global, w.data, packed, scales)
					delete(m.tensors, module+".weight")
					m.put(module+".weight_packed", "U8", packed, rows, cols/2)
					m.put(module+".weight_scale", "F8_E4M3", scales, rows, cols/16)
					m.put(module+".weight_global_scale", "F32", float32Bytes(global), 1)
					m.tensors[module+".input_global_scale"] = inputs.tensors[module+".input_global_scale"]
				}
			}
		}
	}
	m.config = []byte(strings.Replace(string(m.config), `,
      "re:^model\\.layers\\.[67]\\.mlp\\.experts(\\..*)?$"`, "", 1))
	return m
}

func tinyWeights(t testing.TB, name string) *weightMap {
	return readWeights(t, filepath.Join(goldens.TinyLaguna(t), name))
}

// A shard that goes away after the checkpoint was opened is an error of reading, also where only tensors that may be absent lie in it.
func TestShardGoesAway(t *testing.T) {
	m := tinyWeights(t, "nvfp4-0722")
	for _, suffix := range []string{".k_scale", ".weight_packed"} {
		apart := func(tensor string) bool { return strings.HasSuffix(tensor, suffix) }
		dir := t.TempDir()
		m.writeShard(t, filepath.Join(dir, "most.safetensors"), func(tensor string) bool { return !apart(tensor) })
		m.writeShard(t, filepath.Join(dir, "rest.safetensors"), apart)
		require.NoError(t, os.WriteFile(filepath.Join(dir, configFile), m.config, 0o644))
		ckpt, err := safetensors.OpenCheckpoint(dir)
		require.NoError(t, err)
		require.NoError(t, os.Remove(filepath.Join(dir, "rest.safetensors")))
		_, err = Load(ckpt, Options{KV: KVFP8})
		require.ErrorIs(t, err, fs.ErrNotExist, suffix)
		require.Equal(t, fault.IO, fault.KindOf(err), suffix)
	}
}
