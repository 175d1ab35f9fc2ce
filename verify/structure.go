package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// Structure checks everything that can be told of a checkpoint by itself and reports all of it. The error is one of reading: a folder that
// is not there, a disk that fails, a canceled context.
func Structure(ctx context.Context, dir string, o Options) (*Report, error) {
	ckpt, faults, err := safetensors.ScanCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	c := &checker{
		Options: o, dir: dir, ckpt: ckpt, inv: takeInventory(ckpt), open: newFiles(),
		report: &Report{Schema: reportSchema, Dir: dir, Findings: []Finding{}}, known: map[string]bool{}, unread: map[string]bool{},
	}
	defer c.open.close()
	if err := c.checkFiles(faults); err != nil {
		return nil, err
	}
	if err := c.checkSideFiles(); err != nil {
		return nil, err
	}
	c.readConfig()
	if err := c.sortModules(); err != nil {
		return nil, err
	}
	c.checkModules()
	c.checkRules()
	c.checkExperts()
	c.checkHead()
	c.checkTensorSet()
	manifest, err := c.readManifest()
	if err != nil {
		return nil, err
	}
	values, err := c.readValues(ctx, manifest)
	if err != nil {
		return nil, err
	}
	c.checkValues(values)
	c.checkFused(values)
	if err := c.checkTiedBytes(ctx); err != nil {
		return nil, err
	}
	if err := c.checkManifest(ctx, manifest, values); err != nil {
		return nil, err
	}
	c.report.order()
	return c.report, nil
}

// checker holds what the checks share. They run one after the other; a tensor that one of them complained about is left alone by the
// later ones that would only say the same in other words.
type checker struct {
	Options
	dir    string
	ckpt   *safetensors.Checkpoint
	inv    *inventory
	open   *files
	report *Report

	config   *spec.QuantConfig // nil: the config has none, or cannot be read
	raw      []byte            // config.json without a byte order mark; nil where it cannot be used
	model    modelConfig
	readable bool // the config could be read, so that its silence means something

	quantized []*quantizedModule // the NVFP4 modules, by name
	predicted map[string]prediction

	known  map[string]bool // tensors that a finding explains
	unread map[string]bool // tensors of the index that could not be read, which was reported
}

func (c *checker) find(f Finding) { c.report.add(f) }

// explain marks tensors as dealt with.
func (c *checker) explain(tensors ...string) {
	for _, t := range tensors {
		c.known[t] = true
	}
}

// missing says whether a tensor is absent and nothing explains it yet.
func (c *checker) missing(tensor string) bool {
	return c.inv.tensors[tensor] == nil && !c.known[tensor] && !c.unread[tensor]
}

// file returns the name of the shard that holds a tensor.
func (c *checker) file(tensor string) string {
	if t := c.inv.tensors[tensor]; t != nil {
		return t.shard.Name
	}
	return c.ckpt.WeightMap[tensor]
}

// checkFiles takes over what the scan of the headers found, and looks at what no reader of headers minds.
func (c *checker) checkFiles(faults []error) error {
	for _, err := range faults {
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Kind == fault.IO {
			return err
		}
		found := e.Problem
		if found == "" {
			found = e.Err.Error()
		}
		c.find(Finding{Error, CheckFiles, e.File, e.Tensor, found, "", e.Hint})
	}
	for name := range c.ckpt.WeightMap {
		if c.inv.tensors[name] == nil {
			c.unread[name] = true
		}
	}
	for _, s := range c.ckpt.Shards {
		c.report.Shards++
		for _, t := range s.Header.Tensors {
			c.report.Tensors++
			c.report.Bytes += int64(t.Len())
		}
		if err := safetensors.SecondReading(s); err != nil && !errors.Is(err, safetensors.ErrNoSecondReader) {
			e, ok := errors.AsType[*fault.Error](err)
			if !ok || e.Kind == fault.IO {
				return err
			}
			c.find(Finding{Error, CheckFiles, s.Name, e.Tensor, e.Problem, "the same from two independent readers", ""})
		}
		if s.Header.Metadata["format"] == "" {
			c.find(Finding{
				Warning, CheckMetadata, s.Name, "__metadata__", metadataText(s.Header.Metadata), `{"format":"pt"}`,
				"older transformers refuse a file that does not say its format",
			})
		}
	}
	c.checkIndex(faults)
	for _, name := range c.ckpt.Unindexed {
		c.checkUnindexed(name)
	}
	return nil
}

// checkIndex looks at what no reader of the index minds. An index that cannot be read is among the faults.
func (c *checker) checkIndex(faults []error) {
	var metadata map[string]json.RawMessage
	_ = json.Unmarshal(c.ckpt.IndexMetadata, &metadata) // without metadata there is no size to be wrong
	said, given := metadata["total_size"]
	total, ok := c.ckpt.TotalSize()
	f := Finding{Severity: Warning, Check: CheckFiles, File: safetensors.IndexName, Tensor: "total_size", Found: string(said)}
	switch {
	case given && !ok:
		f.Expected = "a whole number, the bytes of all tensors"
		c.find(f)
	case ok && len(c.unread) == 0 && total != uint64(c.report.Bytes):
		f.Expected = fmt.Sprintf("%d, the bytes of all tensors", c.report.Bytes)
		c.find(f)
	}
	broken := slices.ContainsFunc(faults, func(err error) bool {
		e, ok := errors.AsType[*fault.Error](err)
		return ok && e.File == safetensors.IndexName
	})
	if n := len(c.ckpt.Shards); c.ckpt.WeightMap == nil && n > 1 && !broken {
		c.find(Finding{
			Warning, CheckFiles, safetensors.IndexName, "", "missing", fmt.Sprintf("there, since the checkpoint has %d shards", n),
			"transformers finds no weights without it; download it again",
		})
	}
}

func metadataText(m map[string]string) string {
	switch {
	case m == nil:
		return "absent"
	case len(m) == 0:
		return "{}"
	}
	return "no format, only " + fmt.Sprintf("%q", slices.Sorted(maps.Keys(m)))
}

// configFinding turns what is wrong with a config into a finding.
func configFinding(file string, err error) Finding {
	f := Finding{Severity: Error, Check: CheckConfig, File: file, Found: err.Error()}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		f.Tensor, f.Hint = e.Tensor, e.Hint
		if e.File != "" {
			f.File = e.File
		}
		if e.Problem != "" {
			f.Found = e.Problem
		}
	}
	return f
}

// readConfig reads config.json as far as it can be read.
func (c *checker) readConfig() {
	const file = "config.json"
	if c.ckpt.Config == nil {
		c.find(Finding{Error, CheckConfig, file, "", "missing", "the model's config", "download it again"})
		return
	}
	raw, mark := bytes.CutPrefix(c.ckpt.Config, []byte("\xef\xbb\xbf"))
	if mark {
		c.find(Finding{
			Error, CheckConfig, file, "", "begins with a byte order mark, which Python's json refuses", "{",
			"save the file as UTF-8 without a byte order mark",
		})
	}
	var err error
	if c.model, err = readModelConfig(raw); err == nil {
		c.config, err = spec.ReadQuantConfig(c.dir, raw)
	}
	switch {
	case err == nil:
		c.raw, c.readable = raw, true
	case !errors.Is(err, spec.ErrMethod), errors.Is(err, spec.ErrNoMethod) && c.inv.hasNVFP4():
		c.find(configFinding(file, err))
	default:
		f := configFinding(file, err)
		f.Found += "; quantized modules are not checked"
		f.Severity = Info
		if c.inv.hasNVFP4() {
			f.Severity = Warning
		}
		c.find(f)
	}
}
