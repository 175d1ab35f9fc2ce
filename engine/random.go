package engine

import (
	"bufio"
	"encoding/binary"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// WriteRandom writes a checkpoint of random weights for a config: the right names, shapes and magnitudes, so that it runs at the speed of a real
// one. The same config gives the same bytes.
func WriteRandom(dir string, config []byte) (err error) {
	expected, known, err := spec.ExpectedTensors(config)
	if err != nil {
		return err
	}
	if !known {
		return refuseConfig("", "the tensors of this model are not known")
	}
	var sources []safetensors.Source
	for _, e := range expected {
		if e.Optional {
			continue
		}
		t := safetensors.Tensor{Name: e.Name, DType: e.DTypes[0], Shape: e.Shapes[0]}
		bits, _ := t.DType.Bits()
		size := bits / 8
		for _, d := range t.Shape {
			size *= d
		}
		t.End = size
		sources = append(sources, safetensors.Source{Tensor: t, Open: func() (io.Reader, error) {
			return io.LimitReader(newWeights(t), int64(size)), nil
		}})
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), config, 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := safetensors.Write(w, sources, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	return w.Flush()
}

// weights is an endless tensor.
type weights struct {
	random *rand.ChaCha8
	shape  func(b []byte) // turns random bytes into elements
	rest   []byte
	buf    [4096]byte
}

func newWeights(t safetensors.Tensor) *weights {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name)) // a hash does not fail
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], h.Sum64())
	return &weights{random: rand.NewChaCha8(seed), shape: elements(t)}
}

func (w *weights) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(w.rest) == 0 {
			_, _ = w.random.Read(w.buf[:])
			w.shape(w.buf[:])
			w.rest = w.buf[:]
		}
		m := copy(p[n:], w.rest)
		w.rest, n = w.rest[m:], n+m
	}
	return n, nil
}

// elements gives random bytes the form of a kind of tensor: weights of about 0.02, norms of 1, scales that a quantizer would have found.
func elements(t safetensors.Tensor) func(b []byte) {
	all := func(value uint32, width int) func(b []byte) {
		return func(b []byte) {
			for i := 0; i < len(b); i += width {
				for j := range width {
					b[i+j] = byte(value >> (8 * j))
				}
			}
		}
	}
	float := func(f float32) func(b []byte) {
		if t.DType == "BF16" {
			return all(math.Float32bits(f)>>16, 2)
		}
		return all(math.Float32bits(f), 4)
	}
	switch {
	case strings.HasSuffix(t.Name, "norm.weight"):
		return float(1)
	case strings.HasSuffix(t.Name, "_correction_bias"):
		return float(0)
	case strings.HasSuffix(t.Name, "k_scale"), strings.HasSuffix(t.Name, "v_scale"):
		return float(0.0625)
	case strings.HasSuffix(t.Name, "input_global_scale"):
		return float(512)
	case strings.HasSuffix(t.Name, "weight_global_scale"):
		return float(256)
	case t.DType == "F8_E4M3":
		return func(b []byte) { // 0.5 to 1.875
			for i, x := range b {
				b[i] = 0x30 | x&0x0f
			}
		}
	case t.DType == "BF16":
		return func(b []byte) { // 2^-8 to 2^-4, either sign
			for i := 0; i < len(b); i += 2 {
				x := uint16(b[i]) | uint16(b[i+1])<<8
				x = x&0x807f | (119+x>>7&3)<<7
				b[i], b[i+1] = byte(x), byte(x>>8)
			}
		}
	}
	return func([]byte) {} // codes
}
