// Package goldens gives the tests the values that real tools and real checkpoints produced: see README.md in the folder above.
package goldens

import (
	"archive/tar"
	_ "embed" // the archive
	"io"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	"github.com/lagquant/lagquant/testdata"
)

//go:embed goldens.tar.zst
var archive []byte

//go:embed families.tar.zst
var families []byte

var files = sync.OnceValues(func() (map[string][]byte, error) {
	m := map[string][]byte{}
	return m, testdata.Walk(archive, func(h *tar.Header, r io.Reader) error {
		b, err := io.ReadAll(r)
		m[path.Clean(h.Name)] = b
		return err
	})
})

// Read returns one golden file, such as "nvfp4/generated.json", "tiny/generation.json", "draft/config.json" or "laguna-0722/g1_packed.bin".
// The bytes are shared: callers must not change them.
func Read(tb testing.TB, name string) []byte {
	tb.Helper()
	m, err := files()
	if err != nil {
		tb.Fatal(err)
	}
	b, ok := m[name]
	if !ok {
		tb.Fatalf("no golden file %s", name)
	}
	return b
}

// Draft unpacks the tiny DFlash draft checkpoint into a folder of the test's own and returns it.
func Draft(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		if err := os.WriteFile(filepath.Join(dir, name), Read(tb, "draft/"+name), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// Families unpacks small models of other families, as real tools quantized them, into a folder of the test's own and returns it: MODEL/bf16,
// MODEL/TOOL/full and MODEL/TOOL/half, which lacks the routed experts of layer 2.
func Families(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := testdata.Unpack(families, "families", dir); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// TinyLaguna unpacks the tiny checkpoints into a folder of the test's own and returns it.
func TinyLaguna(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := testdata.UnpackTinyLaguna(dir); err != nil {
		tb.Fatal(err)
	}
	return dir
}
