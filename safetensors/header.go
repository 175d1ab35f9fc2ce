package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxHeader is the longest header that the format allows, in bytes.
const MaxHeader = 100_000_000

// Header is what a file says of its tensors. It comes from ReadHeader or NewLayout.
type Header struct {
	Tensors   []Tensor          // in offset order, without holes
	Metadata  map[string]string // nil: the file has no __metadata__; empty: it has {}
	DataStart int64             // where the data section begins in the file: 8 + the header's bytes

	index map[string]int // of Tensors, by name
}

// Lookup finds a tensor by name.
func (h *Header) Lookup(name string) (Tensor, bool) {
	i, ok := h.index[name]
	if !ok {
		return Tensor{}, false
	}
	return h.Tensors[i], true
}

// dataSize is the size of the data section.
func (h *Header) dataSize() uint64 {
	if len(h.Tensors) == 0 {
		return 0
	}
	return h.Tensors[len(h.Tensors)-1].End
}

// ReadHeader reads the header of a file of the given size, 8+N bytes and nothing else, and checks it against the size. A malformed file is
// a *fault.Error of kind Refused around one of the errors of this package.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	n, err := headerLength(r, size)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, n)
	if err := readFull(r, raw, 8); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	h, err := parseHeader(raw)
	if err != nil {
		return nil, err
	}
	h.DataStart = 8 + n
	if err := checkCoverage(h.Tensors); err != nil {
		return nil, err
	}
	return h, checkFileSize(h, size)
}

// headerLength reads the first 8 bytes. They tell other kinds of file apart only where they are no length: 0x80 0x02, which begins a pickle,
// also begins an honest header of 640 bytes.
func headerLength(r io.ReaderAt, size int64) (int64, error) {
	if size == 0 {
		return 0, refuse(ErrEmptyFile, hintDamaged, "the file is empty")
	}
	if size < 8 {
		return 0, refuse(ErrFileTooSmall, hintDamaged, "the file has %d bytes, expected at least 8", size)
	}
	var word [8]byte
	if err := readFull(r, word[:], 0); err != nil {
		return 0, fmt.Errorf("reading the header's length: %w", err)
	}
	n := binary.LittleEndian.Uint64(word[:])
	if n > MaxHeader || int64(n) > size-8 {
		return 0, notALength(word, n, size)
	}
	return int64(n), nil
}

func notALength(word [8]byte, n uint64, size int64) error {
	const hintTorch = "this is a PyTorch file; take the .safetensors files of the model instead"
	switch start := string(word[:]); {
	case start == "version ":
		return refuse(ErrLFSPointer, "fetch the file itself with git lfs pull",
			"this is a git LFS pointer of %d bytes and not the file it stands for", size)
	case strings.HasPrefix(start, "PK\x03\x04"):
		return refuse(ErrZip, hintTorch, "this is a zip archive and not a safetensors file")
	case start[0] == 0x80 && 2 <= start[1] && start[1] <= 5:
		return refuse(ErrPickle, hintTorch, "this is a Python pickle (protocol %d) and not a safetensors file", start[1])
	case n > MaxHeader:
		return refuse(ErrHeaderTooLarge, "either this is no safetensors file or it is damaged; the format has no longer headers",
			"the header would have %d bytes, expected at most %d", n, MaxHeader)
	default:
		return refuse(ErrHeaderBeyondFile, hintDamaged, "the header would have %d bytes, but only %d follow in the file", n, size-8)
	}
}

// readFull is r.ReadAt where the end of the file right after the last byte is no error.
func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseHeader reads the JSON and sorts the tensors by their offsets.
func parseHeader(raw []byte) (*Header, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, refuse(ErrHeaderStart, hintDamaged, "the header starts with %q, expected {", raw[:min(1, len(raw))])
	}
	if !utf8.Valid(raw) {
		at := invalidUTF8(raw)
		return nil, refuse(ErrUTF8, hintDamaged, "header byte %d: 0x%02x is not valid UTF-8", at, raw[at])
	}
	p := newHeaderParser(string(raw))
	if err := p.parse(); err != nil {
		return nil, err
	}
	h := &Header{Tensors: p.tensors, Metadata: p.metadata, index: p.index}
	if !slices.IsSortedFunc(h.Tensors, byOffset) {
		slices.SortStableFunc(h.Tensors, byOffset)
		h.index = indexByName(h.Tensors)
	}
	return h, nil
}

func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(b)
}

func byOffset(a, b Tensor) int {
	return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
}

func indexByName(tensors []Tensor) map[string]int {
	index := make(map[string]int, len(tensors))
	for i, t := range tensors {
		index[t.Name] = i
	}
	return index
}

// checkCoverage makes sure that each tensor has as many bytes as its shape says and begins where the one before it ends.
func checkCoverage(tensors []Tensor) error {
	var end uint64
	for i, t := range tensors {
		switch {
		case t.End < t.Begin:
			return inTensor(t.Name, refuse(ErrOffsets, hintDamaged, "data_offsets [%d, %d]: the end stands before the beginning", t.Begin, t.End))
		case t.Begin > end:
			return inTensor(t.Name, refuse(ErrHole, hintDamaged,
				"its data begins at byte %d, expected %d: %d bytes belong to no tensor", t.Begin, end, t.Begin-end))
		case t.Begin < end:
			return inTensor(t.Name, refuse(ErrOverlap, hintDamaged,
				"its data begins at byte %d, expected %d: it overlaps %q", t.Begin, end, tensors[i-1].Name))
		}
		end = t.End
		size, err := byteSize(t.DType, t.Shape)
		if errors.Is(err, errUnsized) {
			continue
		}
		if err != nil {
			return inTensor(t.Name, err)
		}
		if size != t.Len() {
			return inTensor(t.Name, refuse(ErrSizeMismatch, hintDamaged,
				"data_offsets hold %d bytes, but %s %s has %d", t.Len(), t.DType, shapeString(t.Shape), size))
		}
	}
	return nil
}

// errUnsized says that the size of a tensor is known from its offsets only.
var errUnsized = errors.New("element type of unknown width")

// byteSize multiplies a shape out: elements, then bits, then whole bytes, each step checked as in the reference.
func byteSize(d DType, shape []uint64) (uint64, error) {
	width, ok := d.Bits()
	if !ok {
		return 0, errUnsized
	}
	n, overflow := uint64(1), uint64(0)
	multiply := func(factor uint64) {
		var hi uint64
		hi, n = bits.Mul64(n, factor)
		overflow |= hi
	}
	for _, dim := range shape {
		multiply(dim)
	}
	multiply(width)
	if overflow != 0 {
		return 0, refuse(ErrSizeOverflow, hintDamaged, "the size of %s %s does not fit in 64 bits", d, shapeString(shape))
	}
	if n%8 != 0 {
		return 0, refuse(ErrPartialByte, hintDamaged, "%s %s has %d bits, expected whole bytes", d, shapeString(shape), n)
	}
	return n / 8, nil
}

func checkFileSize(h *Header, size int64) error {
	want := uint64(h.DataStart) + h.dataSize()
	switch there := uint64(size); {
	case want > there:
		return refuse(ErrFileTooShort, hintDamaged, "the file is cut short: %d bytes, expected %d", there, want)
	case want < there:
		return refuse(ErrTrailingBytes, hintDamaged, "the file has %d bytes, expected %d: %d trailing", there, want, there-want)
	}
	return nil
}
