package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// Why a checkpoint cannot be run.
var (
	ErrMissingTensor = errors.New("tensor missing")
	ErrShape         = errors.New("unexpected shape")
	ErrDType         = errors.New("unsupported dtype")
	ErrScale         = errors.New("unusable scale")
)

// extent is a run of bytes in a shard.
type extent struct {
	file   *os.File
	shard  string
	offset int64
	size   int
}

func (e extent) read(dst []byte, from int) error {
	n, err := e.file.ReadAt(dst, e.offset+int64(from))
	if n < len(dst) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("%s: reading %d bytes at %d: %w", e.shard, len(dst), e.offset+int64(from), err)
	}
	return nil
}

// matrix is one linear layer y = W x, W being rows x cols in BF16 or NVFP4, where its bytes lie and, once they are read, the bytes.
type matrix struct {
	module     string
	rows, cols int
	fp4        bool
	codes      extent // BF16, or two codes a byte
	groups     extent // FP4: a scale byte for 16 codes
	globals    extent // FP4: weight_global_scale, or ModelOpt's weight_scale_2
	inputs     extent // FP4 with quantized activations: input_global_scale, or ModelOpt's input_scale
	modelopt   bool

	// Read with the scalars.
	step        float32 // FP4: value of code 1 at group scale 1
	inputGlobal float32 // FP4: 2688/amax of the input as calibrated; 0: the input stays float32

	same bool // holds the weights of the same matrix of the model it is compared with

	// Resident bytes; nil where the matrix is streamed from its shard each time.
	code, group []byte
}

func (m *matrix) bytes() int { return m.codes.size + m.groups.size }

// scalars reads the global scales.
func (m *matrix) scalars() error {
	if !m.fp4 {
		return nil
	}
	global, err := readGlobal(m.globals, m.module, "global scale")
	if err != nil {
		return err
	}
	if m.step = 1 / global; m.modelopt {
		m.step = global
	}
	if m.inputs.file == nil {
		return nil
	}
	if global, err = readGlobal(m.inputs, m.module, "input scale"); err != nil {
		return err
	}
	if m.inputGlobal = global; m.modelopt {
		m.inputGlobal = 1 / global
	}
	return nil
}

func readGlobal(e extent, module, what string) (float32, error) {
	var b [4]byte
	if err := e.read(b[:], 0); err != nil {
		return 0, err
	}
	f := math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
	if !(f > 0) || math.IsInf(float64(f), 0) {
		return 0, &fault.Error{
			Kind: fault.Refused, File: e.shard, Tensor: module, Err: ErrScale,
			Problem: fmt.Sprintf("%s is %v, expected a positive number", what, f), Hint: "see lagquant verify",
		}
	}
	return f, nil
}

// place gives the matrix its resident bytes, cut from buf, and returns the rest of buf.
func (m *matrix) place(buf []byte) []byte {
	m.code, buf = buf[:m.codes.size:m.codes.size], buf[m.codes.size:]
	m.group, buf = buf[:m.groups.size:m.groups.size], buf[m.groups.size:]
	return buf
}

// fill reads the placed bytes.
func (m *matrix) fill() error {
	if err := m.codes.read(m.code, 0); err != nil || !m.fp4 {
		return err
	}
	return m.groups.read(m.group, 0)
}

// tensors finds a checkpoint's tensors, checks their shapes and keeps the shards open.
type tensors struct {
	ckpt  *safetensors.Checkpoint
	files map[*safetensors.Shard]*os.File
}

func (t *tensors) find(name string) (extent, safetensors.Tensor, bool, error) {
	shard, tensor, ok := t.ckpt.Lookup(name)
	if !ok {
		return extent{}, tensor, false, nil
	}
	f := t.files[shard]
	if f == nil {
		var err error
		if f, err = os.Open(shard.Path); err != nil {
			return extent{}, tensor, false, err
		}
		t.files[shard] = f
	}
	return extent{f, shard.Name, shard.Header.DataStart + int64(tensor.Begin), int(tensor.Len())}, tensor, true, nil
}

func (t *tensors) close() {
	for _, f := range t.files {
		_ = f.Close() // opened for reading: nothing can be lost
	}
}

// want is find for a tensor that must be there with one of the given dtypes and the given shape; a scalar may be [] or [1].
func (t *tensors) want(name string, shape []uint64, dtypes ...safetensors.DType) (extent, safetensors.DType, error) {
	e, tensor, ok, err := t.find(name)
	if err != nil {
		return e, "", err
	}
	if !ok {
		return e, "", missing(name)
	}
	if !sameShape(tensor.Shape, shape) {
		return e, "", &fault.Error{
			Kind: fault.Refused, File: e.shard, Tensor: name, Err: ErrShape,
			Problem: fmt.Sprintf("shape is %v, expected %v as config.json says", tensor.Shape, shape),
		}
	}
	for _, d := range dtypes {
		if tensor.DType == d {
			return e, d, nil
		}
	}
	return e, "", &fault.Error{
		Kind: fault.Refused, File: e.shard, Tensor: name, Err: ErrDType,
		Problem: fmt.Sprintf("dtype is %s, expected one of %v", tensor.DType, dtypes),
	}
}

func missing(name string) error {
	return &fault.Error{
		Kind: fault.Refused, Tensor: name, Err: ErrMissingTensor, Problem: "is missing",
		Hint: "see lagquant verify for everything that is missing or left over",
	}
}

func sameShape(found, want []uint64) bool {
	count := func(shape []uint64) (n uint64) {
		n = 1
		for _, d := range shape {
			n *= d
		}
		return n
	}
	if len(want) == 0 {
		return len(found) <= 1 && count(found) == 1
	}
	if len(found) != len(want) {
		return false
	}
	for i, d := range found {
		if d != want[i] {
			return false
		}
	}
	return true
}

// vector reads a small tensor as float32.
func (t *tensors) vector(name string, shape ...uint64) ([]float32, error) {
	e, dtype, err := t.want(name, shape, "BF16", "F32", "F16")
	if err != nil {
		return nil, err
	}
	raw := make([]byte, e.size)
	if err := e.read(raw, 0); err != nil {
		return nil, err
	}
	if dtype == "F32" {
		v := make([]float32, len(raw)/4)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return v, nil
	}
	widen := quant.BF16ToFloat32
	if dtype == "F16" {
		widen = quant.F16ToFloat32
	}
	v := make([]float32, len(raw)/2)
	for i := range v {
		v[i] = widen(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	return v, nil
}

// matrix finds a linear layer in whatever form it is stored: BF16, NVFP4 as compressed-tensors names it, or as ModelOpt does. The tensors
// decide and not the config, since one checkpoint may hold several forms. quantizedInput: an NVFP4 matrix must come with its input scale.
func (t *tensors) matrix(module string, rows, cols int, quantizedInput bool) (*matrix, error) {
	var err error
	m := &matrix{module: module, rows: rows, cols: cols}
	packed, weight := module+".weight_packed", module+".weight"
	global, input := module+".weight_global_scale", module+".input_global_scale"
	if _, _, m.fp4, err = t.find(packed); err != nil {
		return nil, err
	}
	if !m.fp4 {
		_, tensor, ok, err := t.find(weight)
		if err != nil {
			return nil, err
		}
		if ok && tensor.DType == "U8" {
			m.fp4, m.modelopt = true, true
			packed, global, input = weight, module+".weight_scale_2", module+".input_scale"
		}
	}
	if !m.fp4 {
		m.codes, _, err = t.want(weight, []uint64{uint64(rows), uint64(cols)}, "BF16")
		return m, err
	}
	if cols%16 != 0 {
		return nil, refuseConfig("", "%s is NVFP4 with %d columns, expected a multiple of 16", module, cols)
	}
	if m.codes, _, err = t.want(packed, []uint64{uint64(rows), uint64(cols / 2)}, "U8"); err != nil {
		return nil, err
	}
	if m.groups, _, err = t.want(module+".weight_scale", []uint64{uint64(rows), uint64(cols / 16)}, "F8_E4M3"); err != nil {
		return nil, err
	}
	if m.globals, _, err = t.want(global, nil, "F32"); err != nil {
		return nil, err
	}
	if quantizedInput {
		m.inputs, _, err = t.want(input, nil, "F32")
		if f, ok := errors.AsType[*fault.Error](err); ok && f.Err == ErrMissingTensor {
			f.Hint = "activations are quantized (W4A4) but this module has no input scale; run it with w4a16 activations"
		}
	}
	return m, err
}

// rowsOf returns the rows of a matrix that config.json does not tell.
func (t *tensors) rowsOf(module string) (int, error) {
	for _, suffix := range []string{".weight_packed", ".weight"} {
		_, tensor, ok, err := t.find(module + suffix)
		if err != nil {
			return 0, err
		}
		if ok && len(tensor.Shape) > 0 {
			return int(tensor.Shape[0]), nil
		}
	}
	return 0, missing(module + ".weight")
}

// sameAs reports whether two matrices hold the same weights and scales, reading as little as it takes to know.
func (m *matrix) sameAs(other *matrix) (bool, error) {
	if m.fp4 != other.fp4 || m.rows != other.rows || m.cols != other.cols || m.step != other.step || m.inputGlobal != other.inputGlobal {
		return false, nil
	}
	if samePlace(m, other) {
		return true, nil
	}
	if same, err := sameBytes(m.codes, other.codes, m.code, other.code); !same {
		return false, err
	}
	return sameBytes(m.groups, other.groups, m.group, other.group)
}

// sameBytes compares two runs of bytes; what is in memory already is not read again.
func sameBytes(a, b extent, inA, inB []byte) (bool, error) {
	const piece = 1 << 20
	var bufA, bufB []byte
	read := func(e extent, in []byte, buf *[]byte, from, n int) ([]byte, error) {
		if in != nil {
			return in[from:][:n], nil
		}
		if *buf == nil {
			*buf = make([]byte, min(piece, e.size)) // most are small, and zeroing takes longer than comparing
		}
		return (*buf)[:n], e.read((*buf)[:n], from)
	}
	for from := 0; from < a.size; from += piece {
		n := min(piece, a.size-from)
		x, err := read(a, inA, &bufA, from, n)
		if err != nil {
			return false, err
		}
		y, err := read(b, inB, &bufB, from, n)
		if err != nil || !bytes.Equal(x, y) {
			return false, err
		}
	}
	return true, nil
}

// samePlace reports whether two matrices are the same bytes of the same files, as when untouched shards are hard links.
func samePlace(a, b *matrix) bool {
	same := func(x, y extent) bool {
		if x.offset != y.offset || x.size != y.size || (x.file == nil) != (y.file == nil) {
			return false
		}
		if x.file == nil || x.file == y.file {
			return true
		}
		i, err1 := x.file.Stat()
		j, err2 := y.file.Stat()
		return err1 == nil && err2 == nil && os.SameFile(i, j)
	}
	return a.fp4 == b.fp4 && a.modelopt == b.modelopt && a.rows == b.rows && a.cols == b.cols &&
		same(a.codes, b.codes) && same(a.groups, b.groups) && same(a.globals, b.globals) && same(a.inputs, b.inputs)
}
