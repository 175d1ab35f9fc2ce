package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Layout is a file to be written: its header, in the reference writer's order, and the bytes that the header makes.
//
// Several workers may fill such a file at once: Prefix goes to offset 0, the bytes of a tensor t to DataStart + t.Begin.
type Layout struct {
	Header
	prefix []byte
}

// Prefix returns the length word and the padded header, DataStart bytes.
func (l *Layout) Prefix() []byte { return l.prefix }

// Size returns the size of the whole file.
func (l *Layout) Size() int64 { return l.DataStart + int64(l.dataSize()) }

// NewLayout lays tensors out as the reference writer does: by descending rank of the element type, then by name, with the header padded by
// spaces so that the data begins at a multiple of 8. Begin and End are not read, but for the size of an element type that the reference
// does not know; such tensors come last, by type and name.
//
// Metadata may be nil (no __metadata__) or empty ({}). Its keys are sorted: the reference writes two or more in no fixed order.
func NewLayout(tensors []Tensor, metadata map[string]string) (*Layout, error) {
	l := &Layout{Header: Header{Tensors: slices.Clone(tensors), Metadata: maps.Clone(metadata)}}
	slices.SortFunc(l.Tensors, byReferenceOrder)
	var end uint64
	for i := range l.Tensors {
		t := &l.Tensors[i]
		size, err := layoutSize(*t)
		if err != nil {
			return nil, inTensor(t.Name, err)
		}
		t.Begin, t.End = end, end+size
		if t.End < end || t.End > math.MaxInt64-8-MaxHeader {
			return nil, inTensor(t.Name, refuse(ErrSizeOverflow, "", "the file would have more than %d bytes", int64(math.MaxInt64)))
		}
		end = t.End
	}
	if l.index = indexByName(l.Tensors); len(l.index) < len(l.Tensors) {
		return nil, inTensor(repeatedName(l.Tensors), refuse(ErrDuplicateKey, "", "two tensors of this name in one file"))
	}
	var err error
	l.prefix, err = encodeHeader(l.Tensors, metadata)
	l.DataStart = int64(len(l.prefix))
	return l, err
}

func byReferenceOrder(a, b Tensor) int {
	if a.DType != b.DType {
		return cmp.Or(cmp.Compare(b.DType.rank(), a.DType.rank()), cmp.Compare(a.DType, b.DType))
	}
	return cmp.Compare(a.Name, b.Name)
}

func layoutSize(t Tensor) (uint64, error) {
	switch {
	case t.Name == metadataKey:
		return 0, refuse(ErrName, "", "a tensor cannot have this name")
	case !utf8.ValidString(t.Name) || !utf8.ValidString(string(t.DType)):
		return 0, refuse(ErrName, "", "name or dtype is not valid UTF-8: %q %q", t.Name, t.DType)
	}
	size, err := byteSize(t.DType, t.Shape)
	if !errors.Is(err, errUnsized) {
		return size, err
	}
	if t.End < t.Begin {
		return 0, refuse(ErrOffsets, "", "data_offsets [%d, %d]: the end stands before the beginning", t.Begin, t.End)
	}
	return t.Len(), nil
}

func repeatedName(tensors []Tensor) string {
	seen := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		if seen[t.Name] {
			return t.Name
		}
		seen[t.Name] = true
	}
	return ""
}

// encodeHeader writes the length word and the JSON: __metadata__ first, then the tensors in order, as serde_json writes them.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	b := make([]byte, 8, 64+128*len(tensors))
	b = append(b, '{')
	if metadata != nil {
		b = append(appendString(b, metadataKey), ":{"...)
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			value := metadata[key]
			if !utf8.ValidString(key) || !utf8.ValidString(value) {
				return nil, refuse(ErrName, "", "__metadata__ is not valid UTF-8: %q: %q", key, value)
			}
			b = append(appendString(b, key), ':')
			b = append(appendString(b, value), ',')
		}
		b = append(trimComma(b), "},"...)
	}
	for _, t := range tensors {
		b = append(appendEntry(b, t), ',')
	}
	b = append(trimComma(b), '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	n := len(b) - 8
	if n > MaxHeader {
		return nil, refuse(ErrHeaderTooLarge, "split the tensors over more files",
			"the header of %d tensors would have %d bytes, expected at most %d", len(tensors), n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

func appendEntry(b []byte, t Tensor) []byte {
	b = append(appendString(b, t.Name), `:{"dtype":`...)
	b = append(appendString(b, string(t.DType)), `,"shape":[`...)
	for _, n := range t.Shape {
		b = append(strconv.AppendUint(b, n, 10), ',')
	}
	b = append(trimComma(b), `],"data_offsets":[`...)
	b = append(strconv.AppendUint(b, t.Begin, 10), ',')
	return append(strconv.AppendUint(b, t.End, 10), "]}"...)
}

func trimComma(b []byte) []byte {
	if b[len(b)-1] == ',' {
		return b[:len(b)-1]
	}
	return b
}
