//go:build unix

package safetensors

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMap(t *testing.T) {
	page := os.Getpagesize()
	content := make([]byte, 3*page)
	for i := range content {
		content[i] = byte(i / 7)
	}
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()

	for _, r := range [][2]int{{0, 1}, {0, 3 * page}, {page - 1, 2}, {page, page}, {2*page + 13, page - 13}} {
		data, unmap, err := Map(f, int64(r[0]), int64(r[1]))
		require.NoError(t, err)
		require.Equal(t, content[r[0]:r[0]+r[1]], data)
		require.NoError(t, unmap())
	}
	_, _, err = Map(f, 0, 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)

	data, unmap, err := Map(f, 0, int64(3*page))
	require.NoError(t, err)
	defer unmap()
	require.NoError(t, os.Truncate(path, int64(page)))
	sum := byte(0)
	read := func(at int) func() error { return func() error { sum += data[at]; return nil } }
	require.NoError(t, Guard(read(page-1)))
	require.ErrorIs(t, Guard(read(page)), ErrMemoryFault)
}

func TestGuardIsForMemoryFaultsAlone(t *testing.T) {
	wrong := errors.New("wrong")
	require.Equal(t, wrong, Guard(func() error { return wrong }))
	require.PanicsWithValue(t, "a bug", func() { _ = Guard(func() error { panic("a bug") }) })
	var none []int
	require.Panics(t, func() { _ = Guard(func() error { none[0]++; return nil }) })
}
