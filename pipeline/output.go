package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

const (
	configName = "config.json"
	indexName  = "model.safetensors.index.json"
)

// CheckOutput refuses an output folder that lies in one of the source folders or has something else in it.
func CheckOutput(out string, sources ...string) error {
	for _, src := range sources {
		inside, err := contains(src, out)
		if err != nil {
			return err
		}
		if inside {
			return &fault.Error{Kind: fault.Usage, File: out, Problem: "the output would lie inside the source " + src, Hint: "name another folder with --out"}
		}
	}
	entries, err := os.ReadDir(out)
	switch {
	case isFile(out):
		return &fault.Error{Kind: fault.Usage, File: out, Problem: "is a file", Hint: "--out names a folder that does not exist yet"}
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return outputFault(out, err)
	}
	if len(entries) > 0 && !Unfinished(out) {
		return &fault.Error{
			Kind: fault.Usage, File: out, Problem: fmt.Sprintf("is not empty (%s)", entries[0].Name()),
			Hint: "name another folder with --out, or remove this one",
		}
	}
	return nil
}

// outputFault names an output folder that cannot be worked in.
func outputFault(out string, err error) error {
	return ioFault(out, "cannot be used as output", "name another folder with --out, or mend the cause", err)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// contains says whether path lies in dir, both taken with their links followed as far as they exist.
func contains(dir, path string) (bool, error) {
	dir, err := resolve(dir)
	if err != nil {
		return false, err
	}
	if path, err = resolve(path); err != nil {
		return false, err
	}
	rel, err := filepath.Rel(dir, path)
	if err != nil { // another drive
		return false, nil
	}
	return rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)), nil
}

func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR); missing && filepath.Dir(path) != path {
		parent, err := resolve(filepath.Dir(path))
		return filepath.Join(parent, filepath.Base(path)), err
	}
	return real, err
}

// prepareOutput takes the output folder for this plan: a new one, or one in which the same plan was begun.
func prepareOutput(plan *Plan, src *safetensors.Checkpoint, out string, restart bool) (*os.File, error) {
	if err := CheckOutput(out, src.Dir); err != nil {
		return nil, err
	}
	lockFile, err := lockOutput(out)
	if err != nil {
		return nil, outputFault(out, err)
	}
	begun, err := resumable(out)
	if restart && fault.KindOf(err) == fault.Usage { // a damaged plan, most likely of this very job
		begun, err = plan, nil
	}
	if err != nil {
		return nil, errors.Join(err, lockFile.Close())
	}
	if begun != nil && restart {
		err = forget(out, begun)
		begun = nil
	}
	if begun != nil && begun.Digest != plan.Digest {
		err = &fault.Error{
			Kind: fault.Usage, File: out, Problem: fmt.Sprintf("holds the unfinished output of another job (plan %.12s, this one is %.12s)", begun.Digest, plan.Digest),
			Hint: "run that job's command again, add --restart to forget it, or name another --out",
		}
	}
	if begun == nil && err == nil {
		if err = writePlan(out, plan); err != nil {
			err = outputFault(out, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, lockFile.Close())
	}
	return lockFile, nil
}

// writePlan writes down what an output is going to be. A journal without a plan is of some other.
func writePlan(out string, plan *Plan) error {
	b, err := plan.encode()
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(out, workDir, "journal")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(writeFile(out, filepath.Join(workDir, "plan"), b, 0o644), syncDir(out))
}

// resumable reads the plan that an output folder was begun with; nil if none was.
func resumable(out string) (*Plan, error) {
	name := filepath.Join(out, workDir, "plan")
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var p Plan
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, &fault.Error{Kind: fault.Usage, File: name, Problem: "is not a plan: " + err.Error(), Hint: "run the command again with --restart"}
	}
	return &p, nil
}

// forget removes what an unfinished job left, and nothing that it did not write: first what vouches for it, last the plan, so that it can be
// called again when it was interrupted.
func forget(out string, begun *Plan) error {
	names := []string{filepath.Join(workDir, "journal"), configName, spec.ModelOptConfigName, indexName, ManifestName, PlanName}
	for _, u := range begun.Units {
		names = append(names, u.Shard)
	}
	for _, name := range append(append(names, begun.Files...), filepath.Join(workDir, "plan")) {
		if !filepath.IsLocal(name) {
			continue
		}
		if err := os.Remove(filepath.Join(out, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// complete adds what lies beside the shards. The index and then the config come last, since a loader looks for them first.
func (j *job) complete(ctx context.Context, src *safetensors.Checkpoint) error {
	m := &Manifest{
		Schema: ManifestSchema, Tool: j.Tool, Command: j.plan.Command(), Plan: j.plan.Digest, Source: j.plan.Source,
		InputScales: j.plan.InputScales, Profile: j.plan.Profile, Evidence: j.plan.Evidence, Layers: spec.FormatLayers(j.plan.Layers),
		Modules: j.plan.Modules, Tensors: make(map[string]TensorEntry, j.plan.TensorsOut),
	}
	for i := range j.plan.Units {
		u := &j.plan.Units[i]
		r := j.journal.done[u.Shard]
		origin := "rewritten"
		if u.Copied() {
			origin = "copied"
		}
		m.Files = append(m.Files, FileEntry{u.Shard, r.Size, r.SHA256, origin})
		for name, sum := range r.Tensors {
			m.Tensors[name] = TensorEntry{j.origin(name), sum}
		}
	}
	if len(m.Tensors) != j.plan.TensorsOut {
		return fmt.Errorf("%d tensors were written, the plan has %d", len(m.Tensors), j.plan.TensorsOut)
	}
	for _, name := range j.plan.Files {
		entry, err := j.bringFile(ctx, src, name)
		if err != nil {
			return err
		}
		m.Files = append(m.Files, entry)
	}
	return j.seal(src, m)
}

// origin tells where a tensor of the output comes from.
func (j *job) origin(tensor string) string {
	switch {
	case !j.made[tensor]:
		return "copied"
	case strings.HasSuffix(tensor, j.plan.Names.InputGlobal):
		return j.plan.InputScales.origin()
	}
	return "requantized"
}

func (j *job) bringFile(ctx context.Context, src *safetensors.Checkpoint, name string) (FileEntry, error) {
	if err := bring(ctx, filepath.Join(src.Dir, name), j.Out, name, j.Link); err != nil {
		return FileEntry{}, writeFault(name, err)
	}
	path := filepath.Join(j.Out, name)
	sum, err := hashFile(ctx, path, nil)
	if err != nil {
		return FileEntry{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return FileEntry{}, err
	}
	return FileEntry{name, info.Size(), sum, "copied"}, nil
}

// seal writes the plan, the manifest, the index and the configs, in this order.
func (j *job) seal(src *safetensors.Checkpoint, m *Manifest) error {
	type file struct {
		name   string
		data   []byte
		origin string
	}
	plan, err := j.plan.encode()
	if err != nil {
		return err
	}
	configs, err := j.plan.editedConfigs(src, j.experts)
	if err != nil {
		return err
	}
	files := []file{{PlanName, plan, "added"}}
	if src.WeightMap != nil {
		index, err := j.plan.index(src)
		if err != nil {
			return err
		}
		files = append(files, file{indexName, index, "rewritten"})
	}
	for _, c := range configs {
		files = append(files, file{c.name, c.data, "edited"})
	}
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		m.Files = append(m.Files, FileEntry{f.name, int64(len(f.data)), hex.EncodeToString(sum[:]), f.origin})
	}
	slices.SortFunc(m.Files, func(a, b FileEntry) int { return strings.Compare(a.Name, b.Name) })
	manifest, err := m.encode()
	if err != nil {
		return err
	}
	for _, f := range slices.Insert(files, 1, file{name: ManifestName, data: manifest}) {
		mode := fs.FileMode(0o644)
		if info, err := os.Stat(filepath.Join(src.Dir, f.name)); err == nil {
			mode = info.Mode()
		}
		if f.name == configName {
			if err := syncDir(j.Out); err != nil {
				return err
			}
		}
		if err := writeFile(j.Out, f.name, f.data, mode); err != nil {
			return writeFault(f.name, err)
		}
	}
	return syncDir(j.Out)
}

// unmark takes the mark of an unfinished output away. What is open cannot be removed on Windows, so the lock goes last.
func (j *job) unmark(lockFile *os.File) error {
	work := filepath.Join(j.Out, workDir)
	err := j.journal.close()
	for _, name := range []string{"partial", "plan", "journal"} {
		err = errors.Join(err, removeTree(filepath.Join(work, name)))
	}
	return errors.Join(err, lockFile.Close(), removeTree(work))
}
