package verify

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
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
		switch err := c.checkSideFile(name); {
		case errors.Is(err, fs.ErrNotExist):
			c.find(Finding{
				Error, CheckFiles, name, "", "a link to a file that is not there", "the file", "the download was broken off: download the checkpoint again",
			})
		case err != nil && !errors.Is(err, errIrregular):
			f := configFinding(name, fault.Cause(err))
			f.Check, f.Severity, f.Found = CheckFiles, Warning, "cannot be read: "+f.Found
			c.find(f)
		}
	}
	return nil
}

// lfsPointer is how every git LFS pointer begins, by its specification.
const lfsPointer = "version https://git-lfs.github.com/spec/"

func (c *checker) checkSideFile(name string) error {
	file, _, err := openFile(c.dir, name)
	if err != nil {
		return err
	}
	defer file.Close()
	start := make([]byte, len(lfsPointer))
	if _, err := file.ReadAt(start, 0); err != nil && err != io.EOF {
		return err
	}
	if string(start) == lfsPointer {
		c.find(Finding{
			Error, CheckFiles, name, "", "a git LFS pointer and not the file it stands for", "", "fetch the file itself with git lfs pull",
		})
		return nil
	}
	if !strings.HasSuffix(name, ".json") || slices.Contains(readElsewhere, name) {
		return nil
	}
	raw, err := safetensors.ReadFile(c.dir, name)
	if err != nil || json.Valid(raw) { // plain JSON, told quicker than by CheckJSON
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
