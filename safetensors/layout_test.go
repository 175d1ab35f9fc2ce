package safetensors

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/stretchr/testify/require"
)

// referenceCase is a file that Python's safetensors.torch.save_file wrote: its tensors, in no order, and its SHA-256.
type referenceCase struct {
	Case     string
	Metadata map[string]string
	Tensors  []struct {
		Name  string
		DType DType
		Shape []uint64
		Data  []byte
	}
	Size   int64
	SHA256 string
}

func referenceCases(tb testing.TB) []referenceCase {
	var file struct{ Cases []referenceCase }
	require.NoError(tb, json.Unmarshal(testFile(tb, "reference.json"), &file))
	require.Greater(tb, len(file.Cases), 20)
	return file.Cases
}

func (c referenceCase) sources() []Source {
	var sources []Source
	for _, t := range c.Tensors {
		sources = append(sources, Source{
			Tensor: Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape},
			Open:   func() (io.Reader, error) { return bytes.NewReader(t.Data), nil },
		})
	}
	return sources
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestWriteEqualsTheReferenceWriter(t *testing.T) {
	types := map[DType]bool{}
	for _, c := range referenceCases(t) {
		t.Run(c.Case, func(t *testing.T) {
			var file bytes.Buffer
			require.NoError(t, Write(&file, c.sources(), c.Metadata))
			require.EqualValues(t, c.Size, file.Len())
			require.Equal(t, c.SHA256, digest(file.Bytes()), "%q", file.Bytes())

			h, err := read(t, file.Bytes())
			require.NoError(t, err)
			require.Equal(t, c.Metadata, h.Metadata)
			require.Len(t, h.Tensors, len(c.Tensors))
			for _, tensor := range c.Tensors {
				got, ok := h.Lookup(tensor.Name)
				require.True(t, ok)
				require.Equal(t, tensor.Data, append([]byte{}, file.Bytes()[h.DataStart:][got.Begin:got.End]...))
			}
		})
		for _, tensor := range c.Tensors {
			types[tensor.DType] = true
		}
	}
	for _, k := range known {
		require.Equal(t, k.dtype != F6E2M3 && k.dtype != F6E3M2, types[k.dtype], k.dtype) // torch has no 6-bit types
	}
}

// Workers that fill a laid-out file in any order make the same bytes as the stream.
func TestLayoutServesWriteAt(t *testing.T) {
	for _, c := range referenceCases(t) {
		var tensors []Tensor
		for _, s := range c.sources() {
			tensors = append(tensors, s.Tensor)
		}
		l, err := NewLayout(tensors, c.Metadata)
		require.NoError(t, err)
		require.Zero(t, l.DataStart%8)
		file := make([]byte, l.Size())
		for _, tensor := range c.Tensors {
			at, ok := l.Lookup(tensor.Name)
			require.True(t, ok)
			require.EqualValues(t, len(tensor.Data), at.Len())
			copy(file[l.DataStart+int64(at.Begin):], tensor.Data)
		}
		copy(file, l.Prefix())
		require.Equal(t, c.SHA256, digest(file), c.Case)
	}
}

func TestUnknownTypesComeLast(t *testing.T) {
	l, err := NewLayout([]Tensor{
		{Name: "a", DType: "Q9", Shape: []uint64{2}, Begin: 100, End: 105},
		{Name: "b", DType: "Q4", Shape: []uint64{7}, Begin: 0, End: 3},
		{Name: "d", DType: BOOL, Shape: []uint64{1}},
		{Name: "c", DType: "Q9", Shape: nil, Begin: 7, End: 7},
	}, nil)
	require.NoError(t, err)
	require.Equal(t, []Tensor{
		{"d", BOOL, []uint64{1}, 0, 1}, {"b", "Q4", []uint64{7}, 1, 4}, {"a", "Q9", []uint64{2}, 4, 9}, {"c", "Q9", nil, 9, 9},
	}, l.Tensors)
}

func TestMetadataAbsentEmptyAndFilled(t *testing.T) {
	for want, metadata := range map[string]map[string]string{
		`{}`:                  nil,
		`{"__metadata__":{}}`: {},
		`{"__metadata__":{"a":"<>","b":"\u001f"}}`: {"b": "\x1f", "a": "<>"},
	} {
		l, err := NewLayout(nil, metadata)
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimRight(string(l.Prefix()[8:]), " "))
		h, err := read(t, l.Prefix())
		require.NoError(t, err)
		require.Equal(t, metadata, h.Metadata)
	}
}

func TestLayoutRefuses(t *testing.T) {
	one := []uint64{1}
	for name, c := range map[string]struct {
		tensors  []Tensor
		metadata map[string]string
		cause    error
	}{
		"name twice":            {tensors: []Tensor{{Name: "a", DType: U8, Shape: one}, {Name: "b", DType: U8}, {Name: "a", DType: F32, Shape: one}}, cause: ErrDuplicateKey},
		"name __metadata__":     {tensors: []Tensor{{Name: "__metadata__", DType: U8, Shape: one}}, cause: ErrName},
		"name no UTF-8":         {tensors: []Tensor{{Name: "\xff", DType: U8, Shape: one}}, cause: ErrName},
		"type no UTF-8":         {tensors: []Tensor{{Name: "a", DType: "\xff", Shape: one}}, cause: ErrName},
		"metadata no UTF-8":     {metadata: map[string]string{"a": "\xff"}, cause: ErrName},
		"metadata key no UTF-8": {metadata: map[string]string{"\xff": "a"}, cause: ErrName},
		"size of 128 bits":      {tensors: []Tensor{{Name: "a", DType: F64, Shape: []uint64{1 << 62, 2}}}, cause: ErrSizeOverflow},
		"half a byte":           {tensors: []Tensor{{Name: "a", DType: F4, Shape: []uint64{3}}}, cause: ErrPartialByte},
		"offsets reversed":      {tensors: []Tensor{{Name: "a", DType: "Q4", Begin: 2, End: 1}}, cause: ErrOffsets},
		"file of 64 bits":       {tensors: []Tensor{{Name: "a", DType: "Q4", End: 1 << 63}}, cause: ErrSizeOverflow},
		"sum of 64 bits":        {tensors: []Tensor{{Name: "a", DType: "Q4", End: 1 << 62}, {Name: "b", DType: "Q4", End: 1<<64 - 1}}, cause: ErrSizeOverflow},
		"header over the limit": {tensors: []Tensor{{Name: strings.Repeat("n", MaxHeader), DType: U8, Shape: one}}, cause: ErrHeaderTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewLayout(c.tensors, c.metadata)
			require.ErrorIs(t, err, c.cause)
			require.Equal(t, fault.Refused, fault.KindOf(err))
		})
	}
}

// closer notes that it was closed.
type closer struct {
	io.Reader
	closed *int
}

func (c closer) Close() error { *c.closed++; return nil }

func TestWriteCountsItsSources(t *testing.T) {
	broken := errors.New("broken disk")
	for name, c := range map[string]struct {
		from io.Reader
		err  error
	}{
		"right":     {strings.NewReader("1234"), nil},
		"short":     {strings.NewReader("123"), ErrSource},
		"empty":     {strings.NewReader(""), ErrSource},
		"long":      {strings.NewReader("12345"), ErrSource},
		"breaks":    {io.MultiReader(strings.NewReader("12"), errReader{broken}), broken},
		"late":      {io.MultiReader(strings.NewReader("1234"), errReader{broken}), broken},
		"in pieces": {io.MultiReader(strings.NewReader("1"), strings.NewReader("23"), strings.NewReader("4")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			closed := 0
			err := Write(io.Discard, []Source{{
				Tensor: Tensor{Name: "a", DType: F32, Shape: []uint64{1}},
				Open:   func() (io.Reader, error) { return closer{c.from, &closed}, nil },
			}}, nil)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, 1, closed)
		})
	}
	err := Write(io.Discard, []Source{{Tensor: Tensor{Name: "a", DType: U8}, Open: func() (io.Reader, error) { return nil, broken }}}, nil)
	require.ErrorIs(t, err, broken)
}

type errReader struct{ error }

func (e errReader) Read([]byte) (int, error) { return 0, e.error }
