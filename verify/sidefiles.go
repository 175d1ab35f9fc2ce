package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// readElsewhere are the files of which other checks tell whether they can be read.
var readElsewhere = []string{"config.json", safetensors.IndexName, spec.ModelOptConfigName, ManifestName}

// checkSideFiles looks at what lies beside the shards: links whose file is not there, pointers in the place of files, and JSON that no
// loader reads. A checkpoint without its tokenizer loads nowhere, and a download that broke off leaves it so.
func (c *checker) checkSideFiles() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".safetensors") || strings.HasPrefix(name, ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(c.dir, name))
		if err == nil && info.Mode().IsRegular() {
			err = c.checkSideFile(name)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			c.find(Finding{
				Error, CheckFiles, name, "", "a link to a file that is not there", "the file", "the download was broken off: download the checkpoint again",
			})
		case err != nil:
			c.find(Finding{Warning, CheckFiles, name, "", "cannot be read: " + systemSays(err), "", ""})
		}
	}
	return nil
}

func (c *checker) checkSideFile(name string) error {
	pointer, err := isPointer(filepath.Join(c.dir, name))
	if pointer {
		c.find(Finding{
			Error, CheckFiles, name, "", "a git LFS pointer and not the file it stands for", "", "fetch the file itself with git lfs pull",
		})
	}
	if pointer || err != nil || !strings.HasSuffix(name, ".json") || slices.Contains(readElsewhere, name) {
		return err
	}
	raw, err := safetensors.ReadFile(c.dir, name)
	if err != nil || json.Valid(raw) {
		return err
	}
	if err := spec.CheckJSON(raw); err != nil {
		f := configFinding(name, err)
		f.Check, f.Severity = CheckFiles, Warning
		if strings.HasPrefix(name, "tokenizer") || name == "generation_config.json" {
			f.Severity = Error
		}
		if f.Hint == "" {
			f.Hint = "take the file from another copy of the checkpoint"
		}
		c.find(f)
	}
	return nil
}

// systemSays gives the cause of an error without the call and the path.
func systemSays(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Problem
	}
	return err.Error()
}

func isPointer(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	start := make([]byte, len(lfsPointer))
	n, err := io.ReadFull(f, start)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return bytes.Equal(start[:n], []byte(lfsPointer)), err
}

// lfsPointer is how every git LFS pointer begins, by its specification.
const lfsPointer = "version https://git-lfs.github.com/spec/"
