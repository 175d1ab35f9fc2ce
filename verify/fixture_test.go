package verify

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata"
)

// fixture is a checkpoint in memory that a test damages before it is written.
type fixture struct {
	shards   map[string]map[string]*stub
	metadata map[string]map[string]string
	config   string
	index    map[string]string // tensor to shard; nil: no index is written
	total    int64             // what the index's total_size is off by
	after    []func(dir string)
}

type stub struct {
	dtype safetensors.DType
	shape []uint64
	data  []byte
}

var tinyDir = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "verify-tiny-")
	if err != nil {
		return "", err
	}
	return dir, testdata.UnpackTinyLaguna(dir)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := tinyDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// tinyPath returns a folder of the vendor's own bytes, which no test may change.
func tinyPath(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := tinyDir()
	require.NoError(tb, err)
	return filepath.Join(dir, name)
}

func open(tb testing.TB, dir string) *safetensors.Checkpoint {
	tb.Helper()
	c, err := safetensors.OpenCheckpoint(dir)
	require.NoError(tb, err)
	return c
}

// load reads one of the tiny checkpoints.
func load(tb testing.TB, name string) *fixture {
	tb.Helper()
	c := open(tb, tinyPath(tb, name))
	f := &fixture{
		shards: map[string]map[string]*stub{}, metadata: map[string]map[string]string{}, config: string(c.Config), index: maps.Clone(c.WeightMap),
	}
	for _, s := range c.Shards {
		f.shards[s.Name], f.metadata[s.Name] = map[string]*stub{}, s.Header.Metadata
		for _, t := range s.Header.Tensors {
			data, err := s.ReadTensor(t)
			require.NoError(tb, err)
			f.shards[s.Name][t.Name] = &stub{t.DType, t.Shape, data}
		}
	}
	return f
}

// write puts the checkpoint on disk and returns its folder.
func (f *fixture) write(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "checkpoint")
	require.NoError(tb, os.Mkdir(dir, 0o755))
	total := f.total
	for name, tensors := range f.shards {
		var sources []safetensors.Source
		for tensor, s := range tensors {
			total += int64(len(s.data))
			sources = append(sources, safetensors.Source{
				Tensor: safetensors.Tensor{Name: tensor, DType: s.dtype, Shape: s.shape, End: uint64(len(s.data))},
				Open:   func() (io.Reader, error) { return bytes.NewReader(s.data), nil },
			})
		}
		var w bytes.Buffer
		require.NoError(tb, safetensors.Write(&w, sources, f.metadata[name]))
		require.NoError(tb, os.WriteFile(filepath.Join(dir, name), w.Bytes(), 0o644))
	}
	if f.index != nil {
		b, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": f.index})
		require.NoError(tb, err)
		require.NoError(tb, os.WriteFile(filepath.Join(dir, safetensors.IndexName), b, 0o644))
	}
	require.NoError(tb, os.WriteFile(filepath.Join(dir, "config.json"), []byte(f.config), 0o644))
	for _, change := range f.after {
		change(dir)
	}
	return dir
}

// at returns a tensor.
func (f *fixture) at(name string) *stub {
	for _, tensors := range f.shards {
		if s := tensors[name]; s != nil {
			return s
		}
	}
	panic("fixture has no " + name)
}

// put adds a tensor to a shard and the index.
func (f *fixture) put(shard, name string, s *stub) {
	f.shards[shard][name] = s
	if f.index != nil {
		f.index[name] = shard
	}
}

// drop removes tensors.
func (f *fixture) drop(names ...string) {
	for _, name := range names {
		for _, tensors := range f.shards {
			delete(tensors, name)
		}
		delete(f.index, name)
	}
}

func (f *fixture) setScalar(name string, v float32) { copy(f.at(name).data, f32(v).data) }

// edit replaces text of config.json, which must be there.
func (f *fixture) edit(tb testing.TB, from, to string) {
	tb.Helper()
	require.Contains(tb, f.config, from)
	f.config = strings.Replace(f.config, from, to, 1)
}

// beside puts a file beside the shards.
func (f *fixture) beside(tb testing.TB, name, text string) {
	f.after = append(f.after, func(dir string) { require.NoError(tb, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)) })
}

func (f *fixture) names() []string {
	var names []string
	for _, tensors := range f.shards {
		names = slices.AppendSeq(names, maps.Keys(tensors))
	}
	slices.Sort(names)
	return names
}

func f32(v float32) *stub {
	return &stub{safetensors.F32, []uint64{1}, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))}
}

// bf16 makes a weight of small numbers that look random and are the same in every run; its largest magnitude is about one.
func bf16(seed uint64, shape ...uint64) *stub {
	n := uint64(1)
	for _, d := range shape {
		n *= d
	}
	s := &stub{safetensors.BF16, shape, make([]byte, 0, 2*n)}
	for range n {
		sum := -6.0 // twelve uniform numbers minus six are nearly a standard normal one
		for range 12 {
			seed = seed*6364136223846793005 + 1442695040888963407
			sum += float64(seed>>40) / (1 << 24)
		}
		s.data = binary.LittleEndian.AppendUint16(s.data, quant.Float32ToBF16(float32(sum/4)))
	}
	return s
}

const (
	hidden, inter = 64, 32
	syntheticMain = "model-00001-of-00002.safetensors"
	syntheticRest = "model-00002-of-00002.safetensors"
)

// syntheticConfig is a W4A4 config of a model of no known family.
const syntheticConfig = `{
 "model_type": "synthetic", "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2, "tie_word_embeddings": false,
 "quantization_config": {
  "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "version": "0.14.0.1",
  "config_groups": {"group_0": {
   "targets": ["re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"],
   "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": false},
   "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": "local"}
  }},
  "ignore": ["lm_head", "re:.*self_attn.*"]
 }
}`

// syntheticBase is a small model in BF16: two layers of two experts.
func syntheticBase() *fixture {
	f := &fixture{
		shards:   map[string]map[string]*stub{syntheticMain: {}, syntheticRest: {}},
		metadata: map[string]map[string]string{syntheticMain: {"format": "pt"}, syntheticRest: {"format": "pt"}},
		config:   `{"model_type": "synthetic", "hidden_size": 64, "moe_intermediate_size": 32, "tie_word_embeddings": false}`,
		index:    map[string]string{},
	}
	f.put(syntheticRest, "model.embed_tokens.weight", bf16(1, 32, hidden))
	f.put(syntheticRest, "lm_head.weight", bf16(2, 32, hidden))
	for l, layer := range []string{"model.layers.0", "model.layers.1"} {
		f.put(syntheticRest, layer+".self_attn.q_proj.weight", bf16(uint64(l+3), hidden, hidden))
		for e, expert := range []string{layer + ".mlp.experts.0.", layer + ".mlp.experts.1."} {
			seed := uint64(100*l + 10*e + 7)
			f.put(syntheticMain, expert+"gate_proj.weight", bf16(seed, inter, hidden))
			f.put(syntheticMain, expert+"up_proj.weight", bf16(seed+1, inter, hidden))
			f.put(syntheticMain, expert+"down_proj.weight", bf16(seed+2, hidden, inter))
		}
	}
	return f
}

// quantizer fills codes and scales of one weight and returns the stored global: quant.ReferenceQuantize, or a tool's mistake.
type quantizer func(global float32, bf16, packed, scales []byte)

// quantizeExperts turns every expert into NVFP4 under ct-fp32-rcp6, gate and up with one global scale.
func (f *fixture) quantizeExperts(quantize quantizer) *fixture {
	p := mustProfile("ct-fp32-rcp6")
	if quantize == nil {
		quantize = reference(p)
	}
	amax := map[string]float32{}
	for _, name := range f.names() {
		if module, ok := strings.CutSuffix(name, ".weight"); ok && strings.Contains(module, ".experts.") {
			amax[fusedSet(module)] = max(amax[fusedSet(module)], quant.AbsMax(f.at(name).data))
		}
	}
	for _, name := range f.names() {
		module, ok := strings.CutSuffix(name, ".weight")
		if !ok || !strings.Contains(module, ".experts.") {
			continue
		}
		w := f.at(name)
		f.drop(name)
		f.putNVFP4(syntheticMain, module, w, p.Global(amax[fusedSet(module)]), quantize)
	}
	f.config = syntheticConfig
	return f
}

func reference(p quant.Profile) quantizer {
	return func(global float32, bf16, packed, scales []byte) {
		quant.ReferenceQuantize(p, global, bf16, packed, scales)
	}
}

func (f *fixture) putNVFP4(shard, module string, w *stub, global float32, quantize quantizer) {
	rows, cols := w.shape[0], w.shape[1]
	packed := &stub{safetensors.U8, []uint64{rows, cols / 2}, make([]byte, rows*cols/2)}
	scales := &stub{safetensors.F8E4M3, []uint64{rows, cols / 16}, make([]byte, rows*cols/16)}
	quantize(global, w.data, packed.data, scales.data)
	f.put(shard, module+".weight_packed", packed)
	f.put(shard, module+".weight_scale", scales)
	f.put(shard, module+".weight_global_scale", f32(global))
	f.put(shard, module+".input_global_scale", f32(700))
}

// synthetic is a small sound W4A4 checkpoint of no known family.
func synthetic() *fixture { return syntheticBase().quantizeExperts(nil) }
