package safetensors

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	nlpodyssey "github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"
)

func seedFiles(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.safetensors")
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, path := range files {
		f.Add(testFile(f, strings.TrimPrefix(filepath.ToSlash(path), "testdata/")))
	}
}

// FuzzReadHeader: what this reader accepts, github.com/nlpodyssey/safetensors accepts and reads the same, unless it lacks the type.
func FuzzReadHeader(f *testing.F) {
	seedFiles(f)
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := read(t, file)
		if err != nil || !nlpodysseyKnows(h.Tensors) {
			return
		}
		require.NoError(t, compareReadings(h, file))
		n, metadata, err := nlpodyssey.ReadMetadata(file)
		require.NoError(t, err)
		require.EqualValues(t, h.DataStart, n+8)
		require.Equal(t, len(h.Metadata), len(metadata.Metadata()))
		for key, value := range metadata.Metadata() {
			require.Equal(t, value, h.Metadata[key])
		}
	})
}

func nlpodysseyKnows(tensors []Tensor) bool {
	return !slices.ContainsFunc(tensors, func(t Tensor) bool {
		_, err := nlpodyssey.ParseDType(string(t.DType))
		return err != nil
	})
}

// FuzzHeaderJSON puts the text behind a true length, so that the parser is reached at once.
func FuzzHeaderJSON(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.safetensors")
	require.NoError(f, err)
	for _, path := range files {
		if b := testFile(f, strings.TrimPrefix(filepath.ToSlash(path), "testdata/")); len(b) > 8 {
			if n := binary.LittleEndian.Uint64(b); n <= uint64(len(b)-8) {
				f.Add(b[8:8+n], uint16(len(b)-8-int(n)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, header []byte, data uint16) {
		file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
		file = append(append(file, header...), make([]byte, data)...)
		h, err := read(t, file)
		if err != nil {
			return
		}
		if nlpodysseyKnows(h.Tensors) {
			require.NoError(t, compareReadings(h, file))
		}
		checkRoundTrip(t, h)
	})
}

// checkRoundTrip lays out anew what a header says and reads that: the same tensors and metadata, and a second layout changes nothing more.
func checkRoundTrip(t *testing.T, h *Header) {
	l, err := NewLayout(h.Tensors, h.Metadata)
	require.NoError(t, err)
	end := int64(l.dataSize())
	require.EqualValues(t, h.dataSize(), end)
	again, err := ReadHeader(bytes.NewReader(l.Prefix()), l.DataStart+end)
	require.NoError(t, err)
	require.Equal(t, h.Metadata, again.Metadata)
	require.Len(t, again.Tensors, len(h.Tensors))
	for _, want := range h.Tensors {
		got, ok := again.Lookup(want.Name)
		require.True(t, ok)
		require.Equal(t, want.DType, got.DType)
		require.Equal(t, want.Shape, got.Shape)
		require.Equal(t, want.Len(), got.Len())
	}
	second, err := NewLayout(again.Tensors, again.Metadata)
	require.NoError(t, err)
	require.Equal(t, l.Prefix(), second.Prefix())
}

// FuzzIndex: the index parser neither panics nor takes what encoding/json would not.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":12.0},"weight_map":{"a":"model-00001-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"b"},"x":[1e5,-0.5,true,null,{"y":"\ud83d\ude00"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ix, err := parseIndex(raw)
		if err != nil {
			return
		}
		requireValidJSON(t, raw)
		if ix.metadata != nil {
			requireValidJSON(t, ix.metadata)
		}
		totalSize(ix.metadata)
	})
}
