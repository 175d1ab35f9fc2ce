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
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

// ManifestName is the file in which lagquant says what it wrote.
const ManifestName = "lagquant-manifest.json"

// manifestSchema is the form of it that is read here.
const manifestSchema = "lagquant-manifest/1"

// manifest is the part of lagquant-manifest.json that can be held against the files: unknown fields, which later versions may have, are
// passed over.
type manifest struct {
	Schema string `json:"schema"`
	Files  []struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		SHA256 string `json:"sha256"`
	} `json:"files"`
	Tensors map[string]struct {
		XXH3 string `json:"xxh3"`
	} `json:"tensors"`
}

// has says whether the manifest, if there is one, names a file.
func (m *manifest) has(file string) bool {
	if m == nil {
		return false
	}
	for _, f := range m.Files {
		if f.Name == file {
			return true
		}
	}
	return false
}

// readManifest returns nil where there is none, or none that is understood, which is a finding.
func (c *checker) readManifest() (*manifest, error) {
	raw, err := safetensors.ReadFile(c.dir, ManifestName)
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.Refused {
		c.find(Finding{Error, CheckManifest, ManifestName, "", f.Problem, "JSON as lagquant wrote it", ""})
		return nil, nil
	}
	if raw == nil || err != nil {
		return nil, err
	}
	m := &manifest{}
	if err := json.Unmarshal(raw, m); err != nil {
		c.find(Finding{Error, CheckManifest, ManifestName, "", "cannot be read: " + jsonProblem(err), "JSON as lagquant wrote it", ""})
		return nil, nil
	}
	if m.Schema != manifestSchema {
		c.find(Finding{
			Error, CheckManifest, ManifestName, "schema", fmt.Sprintf("%q", m.Schema), fmt.Sprintf("%q", manifestSchema),
			"nothing was compared with the manifest; was it written by a later version, or by another tool?",
		})
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
		if problem := badName(f.Name); problem != "" {
			c.find(Finding{Error, CheckManifest, ManifestName, f.Name, problem, "a file of the folder", ""})
			continue
		}
		sum, size, err := c.fileDigest(ctx, f.Name, v)
		switch {
		case errors.Is(err, errIrregular):
			c.find(Finding{Error, CheckManifest, ManifestName, f.Name, errIrregular.Error(), "a file of the folder", ""})
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
	for _, s := range c.ckpt.Shards {
		if !m.has(s.Name) {
			c.find(Finding{Error, CheckManifest, s.Name, "", "a shard that the manifest does not name", "", ""})
		}
	}
	c.checkTensorDigests(m, v)
	return nil
}

// badName says what is wrong with the name of an entry; "" where it can be that of a file of the folder.
func badName(name string) string {
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "a name that no file has"
	case !filepath.IsLocal(name):
		return "a name that leads out of the folder"
	}
	return ""
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
	if n := len(c.inv.tensors); n > 0 && len(m.Tensors) == 0 {
		c.find(Finding{Error, CheckManifest, ManifestName, "tensors", "none", fmt.Sprintf("%d, those of the checkpoint", n), ""})
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

var errIrregular = errors.New("not a regular file")

// openFile opens a file of the folder; links are followed, since caches are made of them.
func openFile(dir, name string) (*os.File, int64, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: %w", name, errIrregular)
	}
	file, err := os.Open(path)
	return file, info.Size(), err
}
