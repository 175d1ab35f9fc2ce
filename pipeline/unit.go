package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lagquant/lagquant/internal/digest"
	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// copyChunk bounds the buffer through which unchanged tensors pass.
const copyChunk = 1 << 20

// writing is a shard while its tensors are being written, by several workers at places that do not overlap.
type writing struct {
	job    *job
	unit   *Unit
	source *safetensors.Shard
	layout *safetensors.Layout
	file   *os.File
	left   atomic.Int64 // tasks that have not ended yet

	mu     sync.Mutex
	result unitResult
	errors map[string]quant.Errors // by module, added up in name order so that the sum does not depend on the workers
}

// task is a piece of a unit that one worker does: a fused set, or a run of unchanged tensors.
type task func(context.Context) error

// begin lays the shard out under its temporary name and says what there is to do.
func (j *job) begin(u *Unit) (*writing, []task, error) {
	source := j.shards[u.Shard]
	layout, err := j.plan.layout(u, source.Header)
	if err != nil {
		return nil, nil, err
	}
	f, err := createTemp(j.Out, u.Shard)
	if err != nil {
		return nil, nil, writeFault(u.Shard, err)
	}
	j.temps = append(j.temps, f)
	w := &writing{job: j, unit: u, source: source, layout: layout, file: f, errors: map[string]quant.Errors{}}
	w.result = unitResult{Shard: u.Shard, Size: layout.Size(), Inputs: j.inputsOf(u), Tensors: map[string]string{}}
	if err := reserve(f, layout.Size()); err != nil {
		return nil, nil, writeFault(u.Shard, err)
	}
	if _, err := f.WriteAt(layout.Prefix(), 0); err != nil {
		return nil, nil, writeFault(u.Shard, err)
	}
	var tasks []task
	for _, set := range fusedSets(u.Modules) {
		tasks = append(tasks, func(ctx context.Context) error { return w.quantize(ctx, set) })
	}
	for _, run := range w.unchanged() {
		tasks = append(tasks, func(ctx context.Context) error { return w.copy(ctx, run) })
	}
	w.left.Store(int64(len(tasks)))
	return w, tasks, nil
}

// unchanged cuts the tensors that are only copied into runs of about copyChunk bytes, so that a task is worth its worker.
func (w *writing) unchanged() (runs [][]safetensors.Tensor) {
	var run []safetensors.Tensor
	var size uint64
	for _, t := range w.layout.Tensors {
		from, ok := w.source.Header.Lookup(t.Name)
		if !ok || w.job.made[t.Name] {
			continue
		}
		run, size = append(run, from), size+from.Len()
		if size >= copyChunk {
			runs, run, size = append(runs, run), nil, 0
		}
	}
	if len(run) > 0 {
		runs = append(runs, run)
	}
	return runs
}

// copy brings tensors over as they are.
func (w *writing) copy(ctx context.Context, run []safetensors.Tensor) error {
	src, err := w.job.open(w.source)
	if err != nil {
		return err
	}
	buf := w.job.chunk()
	defer w.job.chunks.Put(buf)
	sum := digest.NewTensor()
	for _, t := range run {
		to, _ := w.layout.Lookup(t.Name)
		sum.Reset()
		for done := uint64(0); done < t.Len(); {
			if err := ctx.Err(); err != nil {
				return err
			}
			part := (*buf)[:min(copyChunk, t.Len()-done)]
			if err := readAt(src, part, w.source.Header.DataStart+int64(t.Begin+done)); err != nil {
				return fault.In(w.source.Name, err)
			}
			if _, err := sum.Write(part); err != nil {
				return err
			}
			if _, err := w.file.WriteAt(part, w.layout.DataStart+int64(to.Begin+done)); err != nil {
				return writeFault(w.unit.Shard, err)
			}
			done += uint64(len(part))
			w.job.Progress.Add(int64(len(part)))
		}
		w.note(t.Name, sum.String())
	}
	return nil
}

// note keeps the digest of a tensor that has been written.
func (w *writing) note(tensor, sum string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.Tensors[tensor] = sum
}

// read notes that a source file went into the unit.
func (w *writing) read(s *safetensors.Shard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.result.Read, func(r stamp) bool { return r.File == s.Name }) {
		w.result.Read = append(w.result.Read, w.job.stamps[s.Name])
	}
}

// finish hashes the shard, gives it its name and puts it into the journal.
func (w *writing) finish(ctx context.Context) error {
	j := w.job
	var flushing sync.WaitGroup
	flushing.Go(func() { flush(w.file) }) // the disk can work while the processor hashes
	sum, err := hashFile(ctx, w.file.Name(), j.Progress.Add)
	flushing.Wait()
	if err != nil {
		return err
	}
	info, err := os.Stat(w.source.Path)
	if err != nil {
		return err
	}
	if err := publish(w.file, info.Mode(), filepath.Join(j.Out, w.unit.Shard)); err != nil {
		return writeFault(w.unit.Shard, err)
	}
	w.read(w.source)
	w.result.SHA256 = sum
	for _, m := range w.unit.Modules {
		if e, ok := w.errors[m.Name]; ok {
			w.result.Errors.Add(e)
			w.result.Measured++
		}
	}
	return j.record(&w.result)
}

// bringWhole copies an untouched shard.
func (j *job) bringWhole(ctx context.Context, u *Unit) error {
	s := j.shards[u.Shard]
	if err := bring(ctx, s.Path, j.Out, u.Shard, j.Link); err != nil {
		return writeFault(u.Shard, err)
	}
	r := unitResult{Shard: u.Shard, Size: u.Size, Inputs: j.inputsOf(u), Read: []stamp{j.stamps[s.Name]}}
	var err error
	if r.SHA256, r.Tensors, err = hashShard(ctx, filepath.Join(j.Out, u.Shard), s.Header, j.Progress.Add); err != nil {
		return err
	}
	return j.record(&r)
}

// record checks that no source file changed while it was read, and writes the journal.
func (j *job) record(r *unitResult) error {
	for _, was := range r.Read {
		now, err := stampOf(was.File, j.shards[was.File].Path)
		if err != nil {
			return err
		}
		if now != was {
			return &fault.Error{
				Kind: fault.IO, File: was.File, Problem: "changed while it was read",
				Hint: "run the same command again when nothing writes to the source",
			}
		}
	}
	return errors.Join(syncDir(filepath.Dir(filepath.Join(j.Out, r.Shard))), j.journal.record(r))
}

// writeFault names the output file that could not be written.
func writeFault(name string, err error) error {
	return ioFault(name, "cannot be written", "finished shards are kept: mend the cause and run the same command again to go on", err)
}

// readFault names the source file that could not be read.
func readFault(name string, err error) error {
	return ioFault(name, "cannot be read", "mend the cause, or take another copy of the checkpoint", err)
}

// ioFault tells what the system says of a file, without the call and the path: that may be of a temporary file.
func ioFault(name, what, hint string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return &fault.Error{Kind: fault.IO, File: name, Problem: fmt.Sprintf("%s: %v", what, fault.Cause(err)), Err: err, Hint: hint}
}
