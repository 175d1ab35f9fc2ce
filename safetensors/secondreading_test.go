package safetensors

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
	"github.com/stretchr/testify/require"
)

func secondReading(t *testing.T, s *Shard) error {
	t.Helper()
	err := SecondReading(s)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no memory mapping on this system")
	}
	return err
}

func TestSecondReading(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	bf16, err := OpenCheckpoint(filepath.Join(dir, "bf16"))
	require.NoError(t, err)
	for _, s := range bf16.Shards {
		require.NoError(t, secondReading(t, s), s.Name)
	}
	nvfp4, err := OpenCheckpoint(filepath.Join(dir, "nvfp4-0722"))
	require.NoError(t, err)
	i := slices.IndexFunc(nvfp4.Shards, func(s *Shard) bool {
		return slices.ContainsFunc(s.Header.Tensors, func(t Tensor) bool { return t.DType == F8E4M3 })
	})
	err = SecondReading(nvfp4.Shards[i])
	require.ErrorIs(t, err, ErrNoSecondReader)
	require.Contains(t, err.Error(), "is F8_E4M3")
}

// What this reader believes is changed, so that the second one must object.
func TestSecondReadingDisagrees(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, os.WriteFile(path, testFile(t, "accepted", "zero-size-at-a-seam.safetensors"), 0o644))
	for name, c := range map[string]struct {
		change func(*Header)
		text   string
	}{
		"name":   {func(h *Header) { h.Tensors[0].Name = "x" }, "x.safetensors: x: nlpodyssey/safetensors does not find this tensor"},
		"type":   {func(h *Header) { h.Tensors[0].DType = I32 }, "x.safetensors: a: nlpodyssey/safetensors reads F32 [1] at [0, 4], this reader I32 [1] at [0, 4]"},
		"shape":  {func(h *Header) { h.Tensors[1].Shape = []uint64{0} }, "x.safetensors: b: nlpodyssey/safetensors reads F32 [0, 3] at [4, 4], this reader F32 [0] at [4, 4]"},
		"offset": {func(h *Header) { h.Tensors[2].End = 9 }, "x.safetensors: c: nlpodyssey/safetensors reads F32 [1] at [4, 8], this reader F32 [1] at [4, 9]"},
		"count":  {func(h *Header) { h.Tensors = h.Tensors[:2] }, "x.safetensors: nlpodyssey/safetensors finds 3 tensors from byte 170 on, this reader 2 from byte 170 on"},
		"start":  {func(h *Header) { h.DataStart++ }, "x.safetensors: nlpodyssey/safetensors finds 3 tensors from byte 170 on, this reader 3 from byte 171 on"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := openShard("x.safetensors", path)
			require.NoError(t, err)
			c.change(s.Header)
			err = secondReading(t, s)
			require.ErrorIs(t, err, ErrSecondReader)
			require.EqualError(t, err, c.text)
		})
	}
}

// A file that shrinks after its header was read is an error and no crash.
func TestSecondReadingOfAShrunkFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	l, err := NewLayout([]Tensor{{Name: "a", DType: U8, Shape: []uint64{1 << 20}}}, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, l.Prefix(), 0o644))
	require.NoError(t, os.Truncate(path, l.Size()))
	s, err := openShard("x.safetensors", path)
	require.NoError(t, err)
	require.NoError(t, secondReading(t, s))
	require.NoError(t, os.Truncate(path, 0))
	err = secondReading(t, s)
	require.Error(t, err)
	require.Equal(t, fault.IO, fault.KindOf(err))
	require.Contains(t, err.Error(), "x.safetensors: was cut, or the disk failed, while it was read")

	_, err = s.ReadTensor(s.Header.Tensors[0])
	require.Equal(t, fault.IO, fault.KindOf(err))
	require.EqualError(t, err, "x.safetensors: a: unexpected EOF")
}
