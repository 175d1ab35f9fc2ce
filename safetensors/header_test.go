package safetensors

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/stretchr/testify/require"
)

// The files of testdata/refused and what this reader says of each. testdata/verdicts.json has what the reference says.
var refused = []struct {
	file    string
	cause   error
	tensor  string
	problem string
}{
	{"empty-file", ErrEmptyFile, "", "the file is empty"},
	{"seven-bytes", ErrFileTooSmall, "", "the file has 7 bytes, expected at least 8"},
	{"lfs-pointer", ErrLFSPointer, "", "this is a git LFS pointer of 135 bytes and not the file it stands for"},
	{"zip", ErrZip, "", "this is a zip archive and not a safetensors file"},
	{"pickle-2", ErrPickle, "", "this is a Python pickle (protocol 2) and not a safetensors file"},
	{"pickle-4", ErrPickle, "", "this is a Python pickle (protocol 4) and not a safetensors file"},
	{"header-too-large", ErrHeaderTooLarge, "", "the header would have 100000001 bytes, expected at most 100000000"},
	{"header-beyond-file", ErrHeaderBeyondFile, "", "the header would have 1000 bytes, but only 2 follow in the file"},
	{"header-beyond-file-by-one", ErrHeaderBeyondFile, "", "the header would have 3 bytes, but only 2 follow in the file"},
	{"header-no-bytes", ErrHeaderStart, "", `the header starts with "", expected {`},
	{"header-array", ErrHeaderStart, "", `the header starts with "[", expected {`},
	{"header-bom", ErrHeaderStart, "", `the header starts with "\xef", expected {`},
	{"header-leading-space", ErrHeaderStart, "", `the header starts with " ", expected {`},
	{"header-json-cut", ErrJSON, "a", "header byte 19: the header ends where ',' or '}' is expected"},
	{"header-junk-behind", ErrJSON, "", "header byte 54: found 'x', expected the end"},
	{"header-trailing-comma", ErrJSON, "", "header byte 54: found '}', expected a string"},
	{"header-no-colon", ErrJSON, "", "header byte 5: found '{', expected ':'"},
	{"header-single-quotes", ErrJSON, "", "header byte 1: found '\\'', expected a string"},
	{"utf8-invalid", ErrUTF8, "", "header byte 2: 0xff is not valid UTF-8"},
	{"utf8-surrogate", ErrUTF8, "", "header byte 2: 0xed is not valid UTF-8"},
	{"utf8-in-metadata", ErrUTF8, "", "header byte 22: 0xc3 is not valid UTF-8"},
	{"string-control", ErrJSON, "", "header byte 3: control character 0x01 in a string"},
	{"string-lone-surrogate", ErrJSON, "", "header byte 2: half of a surrogate pair"},
	{"string-low-surrogate", ErrJSON, "", "header byte 2: half of a surrogate pair"},
	{"string-bad-escape", ErrJSON, "", "header byte 2: unknown escape sequence"},
	{"string-short-escape", ErrJSON, "", "header byte 2: escape sequence without four hexadecimal digits"},
	{"string-open", ErrJSON, "", "header byte 3: the header ends inside a string"},
	{"duplicate-name", ErrDuplicateKey, "a", `duplicate key "a" at header bytes 1 and 107`},
	{"duplicate-same", ErrDuplicateKey, "a", `duplicate key "a" at header bytes 1 and 54`},
	{"duplicate-escaped", ErrDuplicateKey, "a", `duplicate key "a" at header bytes 1 and 54`},
	{"duplicate-inner", ErrDuplicateKey, "a", `duplicate key "dtype" at header bytes 6 and 32`},
	{"duplicate-metadata", ErrDuplicateKey, "", `duplicate key "__metadata__" at header bytes 1 and 72`},
	{"duplicate-metadata-key", ErrDuplicateKey, "", `duplicate key "x" at header bytes 17 and 25`},
	{"metadata-number", ErrMetadata, "", `header byte 21: __metadata__ value of "x" is not a string`},
	{"metadata-null-value", ErrMetadata, "", `header byte 21: __metadata__ value of "x" is not a string`},
	{"metadata-array", ErrMetadata, "", "header byte 16: __metadata__ is not an object"},
	{"entry-null", ErrEntry, "a", "header byte 5: the tensor's entry is not an object"},
	{"entry-array", ErrEntry, "a", "header byte 5: the tensor's entry is not an object"},
	{"entry-no-dtype", ErrEntry, "a", `header byte 1: the tensor's entry lacks "dtype"`},
	{"entry-no-shape", ErrEntry, "a", `header byte 1: the tensor's entry lacks "shape"`},
	{"entry-no-offsets", ErrEntry, "a", `header byte 1: the tensor's entry lacks "data_offsets"`},
	{"entry-unknown-key", ErrEntry, "a", `header byte 53: unknown key "strides", expected dtype, shape and data_offsets alone`},
	{"dtype-number", ErrEntry, "a", "header byte 14: dtype is not a string"},
	{"shape-number", ErrJSON, "a", "header byte 28: found '1', expected an array"},
	{"shape-negative", ErrEntry, "a", "header byte 29: found -1, expected a whole number of at most 64 bits"},
	{"shape-negative-zero", ErrEntry, "a", "header byte 29: found -0, expected a whole number of at most 64 bits"},
	{"shape-fraction", ErrEntry, "a", "header byte 29: found 1.5, expected a whole number of at most 64 bits"},
	{"shape-fraction-zero", ErrEntry, "a", "header byte 29: found 1.0, expected a whole number of at most 64 bits"},
	{"shape-exponent", ErrEntry, "a", "header byte 29: found 1e0, expected a whole number of at most 64 bits"},
	{"shape-leading-zero", ErrJSON, "a", "header byte 29: number with a leading zero"},
	{"shape-65-bits", ErrEntry, "a", "header byte 29: found 18446744073709551616, expected a whole number of at most 64 bits"},
	{"shape-string", ErrJSON, "a", `header byte 29: found '"', expected a whole number`},
	{"offsets-one", ErrEntry, "a", "header byte 47: data_offsets holds 1 numbers, expected 2"},
	{"offsets-three", ErrEntry, "a", "header byte 47: data_offsets holds 3 numbers, expected 2"},
	{"offsets-reversed", ErrOffsets, "a", "data_offsets [4, 0]: the end stands before the beginning"},
	{"hole-at-start", ErrHole, "a", "its data begins at byte 4, expected 0: 4 bytes belong to no tensor"},
	{"hole-between", ErrHole, "b", "its data begins at byte 6, expected 4: 2 bytes belong to no tensor"},
	{"overlap", ErrOverlap, "b", `its data begins at byte 4, expected 8: it overlaps "a"`},
	{"overlap-same", ErrOverlap, "b", `its data begins at byte 0, expected 4: it overlaps "a"`},
	{"overlap-zero-size-inside", ErrOverlap, "b", `its data begins at byte 4, expected 8: it overlaps "a"`},
	{"size-overflow", ErrSizeOverflow, "a", "the size of F32 [4294967296, 4294967296] does not fit in 64 bits"},
	{"size-overflow-by-width", ErrSizeOverflow, "a", "the size of F32 [4611686018427387904] does not fit in 64 bits"},
	{"size-overflow-before-zero", ErrSizeOverflow, "a", "the size of F32 [4611686018427387904, 8, 0] does not fit in 64 bits"},
	{"partial-byte-f4", ErrPartialByte, "a", "F4 [3] has 12 bits, expected whole bytes"},
	{"partial-byte-f6", ErrPartialByte, "a", "F6_E3M2 [3] has 18 bits, expected whole bytes"},
	{"size-mismatch", ErrSizeMismatch, "a", "data_offsets hold 4 bytes, but F32 [2] has 8"},
	{"size-mismatch-bf16", ErrSizeMismatch, "a", "data_offsets hold 4 bytes, but BF16 [2, 2] has 8"},
	{"file-short", ErrFileTooShort, "", "the file is cut short: 65 bytes, expected 66"},
	{"file-without-data", ErrFileTooShort, "", "the file is cut short: 62 bytes, expected 66"},
	{"file-trailing", ErrTrailingBytes, "", "the file has 67 bytes, expected 66: 1 trailing"},
	{"file-trailing-no-tensors", ErrTrailingBytes, "", "the file has 11 bytes, expected 10: 1 trailing"},
}

// Here the reference accepts. The format's description forbids the first (a header begins with {) and the next three (equal keys, of which it
// keeps one or the other); the last two no writer makes, and a file written anew would lose what they say.
var stricterThanReference = []string{
	"header-leading-space", "duplicate-same", "duplicate-escaped", "duplicate-metadata-key", "entry-array", "entry-unknown-key",
}

func read(tb testing.TB, data []byte) (*Header, error) {
	tb.Helper()
	return ReadHeader(bytes.NewReader(data), int64(len(data)))
}

func testFile(tb testing.TB, elem ...string) []byte {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, elem...)...))
	require.NoError(tb, err)
	return b
}

func TestRefused(t *testing.T) {
	files, err := filepath.Glob("testdata/refused/*.safetensors")
	require.NoError(t, err)
	require.Len(t, files, len(refused), "every file has a row")
	for _, c := range refused {
		t.Run(c.file, func(t *testing.T) {
			_, err := read(t, testFile(t, "refused", c.file+".safetensors"))
			require.ErrorIs(t, err, c.cause)
			require.Equal(t, fault.Refused, fault.KindOf(err))
			var e *fault.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.tensor, e.Tensor)
			require.Equal(t, c.problem, e.Problem)
			require.NotEmpty(t, e.Hint)
		})
	}
}

func TestAccepted(t *testing.T) {
	one := func(name string, dtype DType, shape []uint64, end uint64) []Tensor {
		return []Tensor{{name, dtype, shape, 0, end}}
	}
	a := one("a", F32, []uint64{1}, 4)
	want := map[string]Header{
		"plain":           {Tensors: a},
		"no-tensors":      {Tensors: []Tensor{}},
		"metadata-empty":  {Tensors: a, Metadata: map[string]string{}},
		"metadata-null":   {Tensors: a},
		"metadata-filled": {Tensors: a, Metadata: map[string]string{"format": "pt", "": "é"}},
		"metadata-last":   {Tensors: a, Metadata: map[string]string{"format": "pt"}},
		"white-space":     {Tensors: a},
		"escapes":         {Tensors: one("\"\\/\b\f\n\r\té😀\x00", F32, []uint64{1}, 4)},
		"escaped-keys":    {Tensors: a},
		"raw-utf8":        {Tensors: one("é😀\u2028", F32, []uint64{1}, 4)},
		"name-empty":      {Tensors: one("", F32, []uint64{1}, 4)},
		"not-in-order":    {Tensors: []Tensor{{"b", F32, []uint64{1}, 0, 4}, {"a", F32, []uint64{1}, 4, 8}}},
		"zero-size-at-a-seam": {Tensors: []Tensor{
			{"a", F32, []uint64{1}, 0, 4}, {"b", F32, []uint64{0, 3}, 4, 4}, {"c", F32, []uint64{1}, 4, 8},
		}},
		"zero-size-first":   {Tensors: []Tensor{{"b", F32, []uint64{0}, 0, 0}, {"a", F32, []uint64{1}, 0, 4}}},
		"zero-before-large": {Tensors: one("a", F32, []uint64{0, 1 << 62, 8}, 0)},
		"scalar":            {Tensors: one("a", F32, []uint64{}, 4)},
		"f4-even":           {Tensors: one("a", F4, []uint64{4}, 2)},
		"f6-whole-bytes":    {Tensors: one("a", F6E2M3, []uint64{4}, 3)},
		"f6-e3m2":           {Tensors: one("a", F6E3M2, []uint64{2, 2}, 3)},
		"dtype-unknown":     {Tensors: one("a", "Q4_K", []uint64{3}, 5)},
		"unaligned-start":   {Tensors: a},
	}
	files, err := filepath.Glob("testdata/accepted/*.safetensors")
	require.NoError(t, err)
	require.Len(t, files, len(want), "every file has a row")
	for name, w := range want {
		t.Run(name, func(t *testing.T) {
			data := testFile(t, "accepted", name+".safetensors")
			h, err := read(t, data)
			require.NoError(t, err)
			require.Equal(t, w.Tensors, h.Tensors)
			require.Equal(t, w.Metadata, h.Metadata)
			require.EqualValues(t, len(data)-int(h.dataSize()), h.DataStart)
			for _, tensor := range w.Tensors {
				got, ok := h.Lookup(tensor.Name)
				require.True(t, ok)
				require.Equal(t, tensor, got)
				require.Equal(t, len(got.Shape), cap(got.Shape), "an append to one shape must not reach into the next")
			}
			_, ok := h.Lookup("not there")
			require.False(t, ok)
		})
	}
}

// Where the reference was asked, it says the same as this reader, but for the types that it does not know and the places named above.
func TestVerdictsOfTheReference(t *testing.T) {
	var verdicts map[string]string
	require.NoError(t, json.Unmarshal(testFile(t, "verdicts.json"), &verdicts))
	var differ []string
	for name, verdict := range verdicts {
		_, err := read(t, testFile(t, name+".safetensors"))
		if (err == nil) != (verdict == "accepts") {
			_, base, _ := strings.Cut(name, "/")
			differ = append(differ, base)
		}
	}
	require.ElementsMatch(t, append([]string{"dtype-unknown"}, stricterThanReference...), differ)
}

// countingReader notes what is read of a file that is nothing but a header and a claimed size.
type countingReader struct {
	io.ReaderAt
	bytes, calls int
	end          int64
}

func (c *countingReader) ReadAt(b []byte, at int64) (int, error) {
	c.bytes += len(b)
	c.calls++
	c.end = max(c.end, at+int64(len(b)))
	return c.ReaderAt.ReadAt(b, at)
}

func TestReadHeaderReadsTheHeaderAlone(t *testing.T) {
	l, err := NewLayout([]Tensor{{Name: "w", DType: BF16, Shape: []uint64{1 << 20, 1 << 20}}}, map[string]string{"format": "pt"})
	require.NoError(t, err)
	r := &countingReader{ReaderAt: bytes.NewReader(l.Prefix())}
	h, err := ReadHeader(r, l.Size())
	require.NoError(t, err)
	require.Equal(t, l.Tensors, h.Tensors)
	require.Equal(t, len(l.Prefix()), r.bytes)
	require.EqualValues(t, h.DataStart, r.end)
	require.Equal(t, 2, r.calls)
}

func TestReadHeaderPassesReadErrorsOn(t *testing.T) {
	_, err := ReadHeader(bytes.NewReader([]byte{4, 0, 0, 0, 0, 0, 0, 0, '{'}), 12) // shrunk since its size was asked
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, fault.IO, fault.KindOf(err))
}
