package safetensors

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// nvfp4Shards makes the tensors of a checkpoint the size of Laguna S-2.1: 126,721 tensors in 49 shards, the most of them expert tensors.
func nvfp4Shards() [][]Tensor {
	const total, shards = 126_721, 49
	list := make([][]Tensor, shards)
	for i := range total {
		module := fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", i/2624, i/12%224, []string{"gate", "up", "down"}[i/4%3])
		t := [...]Tensor{
			{Name: module + "_packed", DType: U8, Shape: []uint64{1024, 1536}},
			{Name: module + "_scale", DType: F8E4M3, Shape: []uint64{1024, 192}},
			{Name: module + "_global_scale", DType: F32, Shape: []uint64{1}},
			{Name: module[:len(module)-len("weight")] + "input_global_scale", DType: F32, Shape: []uint64{1}},
		}[i%4]
		list[i*shards/total] = append(list[i*shards/total], t)
	}
	return list
}

func BenchmarkReadHeader(b *testing.B) {
	var layouts []*Layout
	n, tensors := 0, 0
	for _, shard := range nvfp4Shards() {
		l, err := NewLayout(shard, map[string]string{"format": "pt"})
		require.NoError(b, err)
		layouts = append(layouts, l)
		n += len(l.Prefix())
		tensors += len(shard)
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		for _, l := range layouts {
			if _, err := ReadHeader(bytes.NewReader(l.Prefix()), l.Size()); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(tensors), "tensors/op")
}

func BenchmarkNewLayout(b *testing.B) {
	shards := nvfp4Shards()
	b.ReportAllocs()
	for b.Loop() {
		for _, shard := range shards {
			if _, err := NewLayout(shard, map[string]string{"format": "pt"}); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkOpenCheckpoint opens the same checkpoint as sparse files with an index.
func BenchmarkOpenCheckpoint(b *testing.B) {
	dir := b.TempDir()
	index := []byte(`{"weight_map":{`)
	for i, shard := range nvfp4Shards() {
		l, err := NewLayout(shard, nil)
		require.NoError(b, err)
		name := fmt.Sprintf("model-%05d-of-00049.safetensors", i+1)
		require.NoError(b, os.WriteFile(filepath.Join(dir, name), l.Prefix(), 0o644))
		require.NoError(b, os.Truncate(filepath.Join(dir, name), l.Size()))
		for _, t := range shard {
			index = append(appendString(index, t.Name), ':')
			index = append(appendString(index, name), ',')
		}
	}
	require.NoError(b, os.WriteFile(filepath.Join(dir, IndexName), append(trimComma(index), "}}"...), 0o644))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := OpenCheckpoint(dir); err != nil {
			b.Fatal(err)
		}
	}
}
