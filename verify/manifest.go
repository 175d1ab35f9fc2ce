package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// ManifestName is the file in which lagquant says what it wrote.
const ManifestName = "lagquant-manifest.json"

// manifest is the part of lagquant-manifest.json that can be held against the files: unknown fields, which later versions may have, are
// passed over.
type manifest struct {
	Files []struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
	} `json:"files"`
	Tensors map[string]struct {
		XXH3 string `json:"xxh3"`
	} `json:"tensors"`
}

func (m *manifest) has(file string) bool {
	for _, f := range m.Files {
		if f.Name == file {
			return true
		}
	}
	return false
}

// readManifest returns nil where there is none, or none that can be read, which is a finding.
func (c *checker) readManifest() (*manifest, error) {
	raw, err := os.ReadFile(filepath.Join(c.dir, ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m := &manifest{}
	if err := json.Unmarshal(raw, m); err != nil {
		c.find(Finding{Error, CheckManifest, ManifestName, "", "cannot be read: " + err.Error(), "JSON as lagquant wrote it", ""})
		return nil, nil
	}
	c.report.Manifest = true
	return m, nil
}

// checkManifest compares sizes and digests with those that were read from the shards, and reads the other files.
func (c *checker) checkManifest(ctx context.Context, m *manifest, v *values) error {
	if m == nil {
		return nil
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) {
			c.find(Finding{Error, CheckManifest, ManifestName, f.Name, "a name that leads out of the folder", "a file of the folder", ""})
			continue
		}
		sum, size, err := c.fileDigest(ctx, f.Name, v)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			c.manifestFinding(f.Name, "missing", fmt.Sprintf("%d bytes, as the manifest says", f.Size))
		case err != nil:
			return err
		case size != f.Size:
			c.manifestFinding(f.Name, fmt.Sprintf("%d bytes", size), fmt.Sprintf("%d, as the manifest says", f.Size))
		case sum != f.SHA256:
			c.manifestFinding(f.Name, "sha256 "+sum, f.SHA256+", as the manifest says")
		}
	}
	c.checkTensorDigests(m, v)
	return nil
}

// manifestFinding is an error for a weight file, and a warning for one that people edit, such as generation_config.json.
func (c *checker) manifestFinding(file, found, expected string) {
	f := Finding{Warning, CheckManifest, file, "", found, expected, "the file was changed after lagquant wrote it"}
	if filepath.Ext(file) == ".safetensors" {
		f.Severity, f.Hint = Error, "the file was damaged or changed after lagquant wrote it; requantize again or copy it again"
	}
	c.find(f)
}

func (c *checker) checkTensorDigests(m *manifest, v *values) {
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		found, read := v.tensors[name]
		want := m.Tensors[name].XXH3
		switch {
		case !read && c.inv.tensors[name] == nil && !c.unread[name] && !c.known[name]:
			c.find(Finding{Error, CheckManifest, "", name, "missing", "a tensor that the manifest names", ""})
		case read && found != want:
			c.find(Finding{
				Error, CheckManifest, c.file(name), name, "xxh3 " + found, want + ", as the manifest says",
				"the tensor was damaged or changed after lagquant wrote it",
			})
		}
	}
	if len(m.Tensors) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.inv.tensors)) {
		if _, ok := m.Tensors[name]; !ok && !c.known[name] {
			c.find(Finding{Error, CheckManifest, c.file(name), name, "a tensor that the manifest does not name", "", ""})
		}
	}
}

// fileDigest returns the digest of a shard as it was read, or reads the file.
func (c *checker) fileDigest(ctx context.Context, name string, v *values) (string, int64, error) {
	for _, s := range c.ckpt.Shards {
		if sum := v.files[name]; s.Name == name && sum != nil {
			return hex.EncodeToString(sum), s.Size, nil
		}
	}
	file, size, err := openFile(c.dir, name)
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	h := sha256.New()
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := io.CopyN(h, file, chunk)
		c.progress(n)
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}

// openFile opens a file of the folder; links are followed, since caches are made of them.
func openFile(dir, name string) (*os.File, int64, error) {
	path := filepath.Join(dir, filepath.FromSlash(name))
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: not a regular file", name)
	}
	file, err := os.Open(path)
	return file, info.Size(), err
}
