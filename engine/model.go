// Package engine runs a Laguna checkpoint on the CPU, so that a user sees that a model still speaks before a server is started: tokenizer, chat
// template, the forward pass in float32, sampling, and the comparison of two checkpoints.
//
// forward.go is the model. Everything around it only brings weights to it or looks at what it computes.
package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// Activations says whether the inputs of NVFP4 matrices are quantized too.
type Activations string

// The activation modes. Auto follows the checkpoint's config.
const (
	ActivationsAuto Activations = "auto"
	W4A16           Activations = "w4a16"
	W4A4            Activations = "w4a4"
)

// KVFormat is how keys and values are kept.
type KVFormat string

// The KV formats. FP8 uses the checkpoint's k_scale and v_scale.
const (
	KVFloat32 KVFormat = "f32"
	KVFP8     KVFormat = "fp8"
)

// Options of Load. The zero value runs any checkpoint as its config says.
type Options struct {
	Activations Activations // "": auto
	InputScales InputScales // "": own
	KV          KVFormat    // "": f32
	Memory      int64       // bytes of weights to keep in memory, where the experts of one token always are; 0: three quarters of what is free
	Workers     int         // 0: all cores
	Context     int         // positions that a session may hold; 0: max_position_embeddings
	// Beside is a loaded model that this one will be compared with: they share workers, memory and all weights that are equal.
	Beside *Model
}

// Model is a checkpoint ready to run. Several sessions may use it; their forward passes take turns.
type Model struct {
	Config  *Config
	options Options
	shared  *shared
	tensors tensors

	ropes []*ropeTable // one for each different RoPE

	embedding extent // BF16 [vocab, hidden]; rows are read as they are needed
	layers    []layer
	norm      []float32 // [hidden]
	head      *matrix   // [vocab, hidden]
}

// layer holds the weights of one layer; experts and router where it is sparse.
type layer struct {
	LayerConfig
	rope *ropeTable

	inputNorm, postNorm []float32 // [hidden]
	q, k, v, o          *matrix   // [heads*dim, hidden], [kv*dim, hidden] twice, [hidden, heads*dim]
	g                   *matrix   // [heads or heads*dim, hidden]; nil: not gated
	qNorm, kNorm        []float32 // [dim]
	kScale, vScale      float32   // of FP8 keys and values

	mlp     *mlp // the dense MLP, or the shared expert
	router  *matrix
	bias    []float32 // [experts]
	experts []expert

	// The serving engines' rule: one input scale for gate and up of all experts, one for down; 0: each projection has its own.
	gateInput, downInput float32
}

// mlp is down(silu(gate x) * up x).
type mlp struct {
	width          int
	gate, up, down *matrix // [width, hidden] twice, [hidden, width]
}

// shared is what models that are compared have in common.
type shared struct {
	mu     sync.Mutex // held during a forward pass
	users  int
	pool   *pool
	cache  expertCache
	memory int64 // left for matrices that are not experts
}

// Load opens a checkpoint for running. Tensors and shapes are checked against the config; weights that are needed for every token are read as far
// as Memory goes (what does not fit is read from the file for each chunk of tokens), experts when they are first chosen.
func Load(ckpt *safetensors.Checkpoint, opts Options) (*Model, error) {
	if ckpt.Config == nil {
		return nil, refuseConfig("copy config.json of the original model beside the weights", "is missing")
	}
	config, err := ParseConfig(ckpt.Config)
	if err != nil {
		return nil, err
	}
	if err := opts.resolve(config); err != nil {
		return nil, err
	}
	m := &Model{Config: config, options: opts, tensors: tensors{ckpt, map[*safetensors.Shard]*os.File{}}}
	if opts.Beside != nil {
		m.shared = opts.Beside.shared
	} else {
		m.shared = &shared{pool: newPool(opts.Workers)}
	}
	m.shared.users++
	if err := m.load(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (o *Options) resolve(c *Config) error {
	if o.Activations == "" {
		o.Activations = ActivationsAuto
	}
	if o.InputScales == "" {
		o.InputScales = InputScalesOwn
	}
	if o.KV == "" {
		o.KV = KVFloat32
	}
	if o.Memory == 0 {
		o.Memory = freeMemory() / 4 * 3
	}
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Context == 0 {
		o.Context = c.MaxPositions
	}
	bad := func(what string, value any, expected string) error {
		return &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("%s is %v, expected %s", what, value, expected)}
	}
	switch {
	case o.Activations != ActivationsAuto && o.Activations != W4A16 && o.Activations != W4A4:
		return bad("activations", o.Activations, "auto, w4a16 or w4a4")
	case o.InputScales != InputScalesOwn && o.InputScales != InputScalesLayer:
		return bad("input scales", o.InputScales, "own or layer")
	case o.KV != KVFloat32 && o.KV != KVFP8:
		return bad("kv", o.KV, "f32 or fp8")
	case o.Memory < 0:
		return bad("memory", o.Memory, "a positive number of bytes")
	case o.Workers < 0:
		return bad("workers", o.Workers, "a positive number")
	case o.Context < 0 || o.Context > maxWidth:
		return bad("context", o.Context, fmt.Sprintf("1 to %d", maxWidth))
	}
	return nil
}

// Close ends the workers and closes the shards. Models loaded beside this one stay usable only until it is closed.
func (m *Model) Close() {
	m.tensors.close()
	if m.shared.users--; m.shared.users == 0 {
		m.shared.pool.close()
	}
}

func (m *Model) load() error {
	c, t := m.Config, &m.tensors
	quantized, err := m.quantizedInputs()
	if err != nil {
		return err
	}
	if m.embedding, _, err = t.want("model.embed_tokens.weight", []uint64{uint64(c.Vocab), uint64(c.Hidden)}, "BF16"); err != nil {
		return err
	}
	if m.norm, err = t.vector("model.norm.weight", uint64(c.Hidden)); err != nil {
		return err
	}
	head := "lm_head"
	if c.TiedHead {
		head = "model.embed_tokens"
	}
	b := builder{t: t, quantized: quantized}
	m.head = b.plain(head, c.Vocab, c.Hidden)
	m.layers = make([]layer, len(c.Layers))
	for i := range m.layers {
		m.layers[i] = b.layer(c, i)
		m.layers[i].rope = m.rope(c.Layers[i].RoPE)
	}
	if b.err != nil {
		return b.err
	}
	return m.place()
}

// place gives every matrix its memory, or leaves it to be streamed.
func (m *Model) place() error {
	var experts []*expert
	var largest int
	var total int64
	for i := range m.layers {
		for j := range m.layers[i].experts {
			e := &m.layers[i].experts[j]
			if other := m.options.Beside; other != nil && i < len(other.layers) && j < len(other.layers[i].experts) {
				e.twin = &other.layers[i].experts[j]
			}
			experts = append(experts, e)
			n := e.bytes()
			largest, total = max(largest, n), total+int64(n)
		}
	}
	if m.options.Beside == nil {
		// The experts of one token must fit, or each token would read them all anew; beyond that, what is needed for every token comes first.
		reserve := min(total, max(m.options.Memory/4, 2*int64(largest)*int64(m.Config.TopK)))
		m.shared.memory = m.options.Memory - reserve
		dense := int64(0)
		for _, x := range m.matrices() {
			dense += int64(x.bytes())
		}
		m.shared.cache.budget = max(reserve, m.options.Memory-dense)
	}
	m.shared.cache.add(experts)
	if err := m.layerInputs(); err != nil {
		return err
	}
	return m.readMatrices()
}

// readMatrices reads the matrices that every token needs, as many as fit.
func (m *Model) readMatrices() error {
	var twins []*matrix
	if m.options.Beside != nil {
		twins = m.options.Beside.matrices()
	}
	for i, x := range m.matrices() {
		if err := x.scalars(); err != nil {
			return err
		}
		if i < len(twins) && twins[i].module == x.module {
			var err error
			if x.same, err = x.sameAs(twins[i]); err != nil {
				return err
			}
		}
		if x.same {
			x.code, x.group = twins[i].code, twins[i].group
			continue
		}
		if int64(x.bytes()) > m.shared.memory {
			continue
		}
		m.shared.memory -= int64(x.bytes())
		x.place(make([]byte, x.bytes()))
		if err := x.fill(); err != nil {
			return err
		}
	}
	return nil
}

// matrices returns every matrix that is not part of a routed expert, in the order in which a token needs them.
func (m *Model) matrices() []*matrix {
	var all []*matrix
	for i := range m.layers {
		all = append(all, m.layers[i].matrices()...)
	}
	return append(all, m.head)
}

func (l *layer) matrices() []*matrix {
	all := []*matrix{l.q, l.k, l.v}
	if l.g != nil {
		all = append(all, l.g)
	}
	all = append(all, l.o)
	if l.router != nil {
		all = append(all, l.router)
	}
	return append(all, l.mlp.gate, l.mlp.up, l.mlp.down)
}

// quantizedInputs returns the question whether a module's input is quantized when its weights are.
func (m *Model) quantizedInputs() (func(module string) (bool, error), error) {
	if m.options.Activations != ActivationsAuto {
		return func(string) (bool, error) { return m.options.Activations == W4A4, nil }, nil
	}
	q, err := spec.ParseQuantConfig(m.tensors.ckpt.Config)
	if err != nil || q == nil {
		return func(string) (bool, error) { return false, nil }, fault.In(configFile, err)
	}
	return func(module string) (bool, error) {
		g, err := q.Group(module, spec.Linear)
		return g != nil && g.InputScales(), fault.In(configFile, err)
	}, nil
}

// layerInputs applies the serving engines' rule for input scales.
func (m *Model) layerInputs() error {
	if m.options.InputScales != InputScalesLayer {
		return nil
	}
	for i := range m.layers {
		l := &m.layers[i]
		for j := range l.experts {
			e := &l.experts[j]
			for k, x := range e.matrices() {
				if err := x.scalars(); err != nil {
					return err
				}
				into := &l.gateInput
				if k == 2 {
					into = &l.downInput
				}
				if x.inputGlobal != 0 && (*into == 0 || x.inputGlobal < *into) {
					*into = x.inputGlobal
				}
			}
			e.scaled = true
		}
	}
	return nil
}

// freeMemory returns the bytes that can be used without swapping, as far as the system tells; 8 GiB where it does not.
func freeMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		if _, rest, ok := strings.Cut(string(text), "MemAvailable:"); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				if kb, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
					return kb << 10
				}
			}
		}
	}
	return 8 << 30
}

// ErrContext means that more positions are asked for than the context holds.
var ErrContext = errors.New("longer than the context")
