// Package testdata holds the small trained Laguna checkpoints that `lagquant demo` writes and that the tests work on.
//
// The archive keeps the bytes of the tools that made them (compressed-tensors 0.14.0.1 on an H200 for the NVFP4 parts); nothing in it is
// recomputed. README.md in this folder says what each folder is and how it was made.
package testdata

import (
	"archive/tar"
	"bytes"
	_ "embed" // the archive
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

//go:embed tiny-laguna.tar.zst
var tinyLaguna []byte

// UnpackTinyLaguna writes the folders bf16, nvfp4-0722 and nvfp4-0801 below dir, which is made where it is missing.
func UnpackTinyLaguna(dir string) error {
	return Unpack(tinyLaguna, "tiny-laguna", dir)
}

// Unpack writes the files of a .tar.zst archive below dir. The leading folder root is left out of the names.
func Unpack(archive []byte, root, dir string) error {
	return Walk(archive, func(h *tar.Header, r io.Reader) error {
		name, err := filepath.Rel(root, filepath.FromSlash(h.Name))
		if err != nil || !filepath.IsLocal(name) {
			return fmt.Errorf("archive: unexpected name %q", h.Name)
		}
		path := filepath.Join(dir, name)
		if h.Typeflag == tar.TypeDir {
			return os.MkdirAll(path, 0o755)
		}
		return writeFile(path, r, fs.FileMode(h.Mode).Perm())
	})
}

// Walk calls visit for each entry of a .tar.zst archive.
func Walk(archive []byte, visit func(*tar.Header, io.Reader) error) error {
	z, err := zstd.NewReader(bytes.NewReader(archive), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(h, r); err != nil {
			return err
		}
	}
}

func writeFile(path string, r io.Reader, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
