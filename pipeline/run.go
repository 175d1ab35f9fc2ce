package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/lagquant/lagquant/internal/digest"
	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// DefaultMemory bounds the buffers of a job that does not say otherwise.
const DefaultMemory = 1 << 30

// RunOptions say how a plan is executed. None of them changes a byte of the output.
type RunOptions struct {
	Out      string
	Jobs     int           // workers; 0: one a core
	Memory   int64         // bound on weights in memory, bytes; 0: DefaultMemory
	Link     Link          // "": LinkAuto
	Backend  quant.Backend // nil: the CPU
	Progress Progress      // nil: Silent
	Restart  bool          // forget what an earlier run left unfinished
	Tool     string        // name and version, for the manifest
}

// Result sums up a job.
type Result struct {
	Out      string
	Modules  int
	BytesIn  int64
	BytesOut int64
	Read     int64 // bytes of BF16 quantized by this run; less than all after a resume
	Errors   quant.Errors
	Measured int // modules that Errors are of: all, or a fixed part of many
	Resumed  int // units that an earlier run had finished
	Elapsed  time.Duration
}

var errOtherCheckpoint = errors.New("the plan was made from another checkpoint")

// job is a plan being executed.
type job struct {
	RunOptions
	plan    *Plan
	profile quant.Profile
	shards  map[string]*safetensors.Shard
	stamps  map[string]stamp            // of every shard, taken before the first is read
	weights map[string]weight           // by module name: where the BF16 of all modules to requantize lies
	made    map[string]bool             // tensors that the job writes anew
	inputs  map[string]uint32           // by module name: bits of the input global scale
	experts *spec.Nvfp4ExpertSourceSpec // how the source stores its experts
	journal *journal
	arenas  arenas
	chunks  sync.Pool // *[]byte of copyChunk

	mu      sync.Mutex
	sources map[string]*os.File // opened on first use, by shard
	temps   []*os.File          // closed again at the end, whatever happened
}

// weight is where a module's BF16 lies.
type weight struct {
	shard  *safetensors.Shard
	tensor safetensors.Tensor
}

// Run executes a plan that was made from the same checkpoints; donor may be nil where the plan names none. An interrupted run leaves the
// output resumable and without a config.json, so that nothing takes it for whole.
func Run(ctx context.Context, plan *Plan, src, donor *safetensors.Checkpoint, opts RunOptions) (*Result, error) {
	began := time.Now()
	j, err := newJob(plan, src, donor, opts)
	if err != nil {
		return nil, err
	}
	lockFile, err := prepareOutput(plan, src, j.Out, j.Restart)
	if err != nil {
		return nil, err
	}
	defer lockFile.Close()
	if j.journal, err = openJournal(j.Out); err != nil {
		return nil, err
	}
	defer j.journal.close()
	defer j.closeAll()

	pending, resumed := j.pending()
	if err := removeTree(filepath.Join(j.Out, workDir, "partial")); err != nil { // a killed run's, which take room
		return nil, outputFault(j.Out, err)
	}
	if err := j.checkSpace(pending); err != nil {
		return nil, err
	}
	if err := j.units(ctx, pending); err != nil {
		return nil, err
	}
	if err := j.complete(ctx, src); err != nil {
		return nil, err
	}
	if err := j.unmark(lockFile); err != nil {
		return nil, err
	}
	r := &Result{
		Out: j.Out, Modules: plan.Modules, BytesIn: plan.BytesIn, BytesOut: plan.BytesOut, Resumed: resumed,
		Elapsed: time.Since(began),
	}
	for i := range plan.Units {
		u := j.journal.done[plan.Units[i].Shard]
		r.Errors.Add(u.Errors)
		r.Measured += u.Measured
	}
	for _, u := range pending {
		for _, m := range u.Modules {
			r.Read += int64(2 * m.Rows * m.Cols)
		}
	}
	return r, nil
}

func newJob(plan *Plan, src, donor *safetensors.Checkpoint, opts RunOptions) (*job, error) {
	j := &job{RunOptions: opts, plan: plan, profile: plan.profile(), sources: map[string]*os.File{}}
	if j.Jobs <= 0 {
		j.Jobs = runtime.GOMAXPROCS(0)
	}
	if j.Memory <= 0 {
		j.Memory = DefaultMemory
	}
	if j.Link == "" {
		j.Link = LinkAuto
	}
	if j.Backend == nil {
		j.Backend = quant.CPU()
	}
	if j.Progress == nil {
		j.Progress = Silent{}
	}
	j.chunks.New = func() any { b := make([]byte, copyChunk); return &b }

	var err error
	if j.experts, err = spec.Detect(src.Config, src.Names()); err != nil {
		return nil, err
	}
	if j.experts == nil {
		return nil, errOtherCheckpoint
	}
	j.shards, j.stamps = map[string]*safetensors.Shard{}, map[string]stamp{}
	for _, s := range src.Shards {
		st, err := stampOf(s.Name, s.Path)
		if err != nil {
			return nil, err
		}
		j.shards[s.Name], j.stamps[s.Name] = s, st
	}
	j.weights, j.made = map[string]weight{}, map[string]bool{}
	for _, u := range plan.Units {
		for _, m := range u.Modules {
			for _, name := range append([]string{m.Name}, m.With...) {
				s, t, ok := src.Lookup(name + ".weight")
				if !ok {
					return nil, fmt.Errorf("%s: %w", name, errOtherCheckpoint)
				}
				j.weights[name] = weight{s, t}
			}
			for _, t := range plan.tensorsOf(m) {
				j.made[t.Name] = true
			}
		}
	}
	for _, name := range plan.Files { // what cannot be read should show before the work, not after it
		f, err := os.Open(filepath.Join(src.Dir, name))
		if err != nil {
			return nil, readFault(name, err)
		}
		f.Close()
	}
	if err := j.makeArenas(); err != nil {
		return nil, err
	}
	j.inputs, err = plan.inputScales(src, donor, j.experts)
	return j, err
}

// makeArenas sizes the buffers by the largest fused set, and refuses a bound in which it has no room.
func (j *job) makeArenas() error {
	j.arenas = arenas{backend: j.Backend, memory: semaphore.NewWeighted(j.Memory)}
	largest := ""
	for _, u := range j.plan.Units {
		for _, m := range u.Modules {
			var need int64
			for _, name := range append([]string{m.Name}, m.With...) {
				need += int64(memberSize(int(j.weights[name].tensor.Len())))
			}
			if need > j.arenas.size {
				j.arenas.size, largest = need, m.Name
			}
		}
	}
	if need := j.arenas.size; need > j.Memory {
		return &fault.Error{
			Kind: fault.Usage, Tensor: largest, Problem: fmt.Sprintf("needs %d bytes at once, --memory allows %d", need, j.Memory),
			Hint: fmt.Sprintf("use --memory %dMiB or more", (need+1<<20-1)>>20),
		}
	}
	return nil
}

// pending returns the units that no earlier run finished.
func (j *job) pending() (units []*Unit, resumed int) {
	paths := map[string]string{}
	for name, s := range j.shards {
		paths[name] = s.Path
	}
	for i := range j.plan.Units {
		u := &j.plan.Units[i]
		if j.journal.finished(j.Out, u.Shard, j.inputsOf(u), paths) {
			resumed++
		} else {
			units = append(units, u)
		}
	}
	return units, resumed
}

// inputsOf is a digest of the input scales that the unit's modules get.
func (j *job) inputsOf(u *Unit) string {
	var bits []byte
	for _, m := range u.Modules {
		if v, ok := j.inputs[m.Name]; ok {
			bits = binary.LittleEndian.AppendUint32(bits, v)
		}
	}
	return digest.OfTensor(bits)
}

// checkSpace refuses to begin what the disk has no room for.
func (j *job) checkSpace(units []*Unit) error {
	var need int64
	for _, u := range units {
		if !u.Copied() || j.Link == LinkCopy {
			need += u.SizeOut // clones and links take no room, and whether auto can clone shows only when it tries
		}
	}
	free, err := freeBytes(j.Out)
	if err != nil || free >= uint64(need) {
		return err
	}
	return &fault.Error{
		Kind: fault.IO, File: j.Out, Problem: fmt.Sprintf("no room: %d bytes are free, the output needs %d", free, need),
		Hint: "free space or name another --out, then run the same command again",
	}
}

// units executes units: workers do the tasks of one unit after the other, in order, and finished shards are hashed meanwhile.
func (j *job) units(ctx context.Context, units []*Unit) error {
	// Workers and finishers spend a third of their time in the kernel. With more processors than goroutines the runtime leaves theirs to
	// them; with one a core its monitor wakes all the time to hand them on, which cost a tenth of a job on two cores.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(min(2*j.Jobs+1, 4*runtime.NumCPU())))
	j.Progress.Start(j.work(units))
	all, cancel := context.WithCancel(ctx) // outlives the workers, since shards are still being hashed when the last of them ends
	defer cancel()
	workers, ctx := errgroup.WithContext(all)
	workers.SetLimit(j.Jobs)
	var finishers errgroup.Group
	finishers.SetLimit(j.Jobs)
	finish := func(w *writing) error {
		err := w.finish(all)
		if err != nil {
			cancel()
		}
		return err
	}
	for _, u := range units {
		if ctx.Err() != nil {
			break
		}
		if u.Copied() {
			workers.Go(func() error { return j.bringWhole(ctx, u) })
			continue
		}
		w, tasks, err := j.begin(u)
		if err != nil {
			workers.Go(func() error { return err })
			break
		}
		for _, t := range tasks {
			workers.Go(func() error {
				if err := t(ctx); err != nil {
					return err
				}
				if w.left.Add(-1) == 0 {
					finishers.Go(func() error { return finish(w) })
				}
				return nil
			})
		}
	}
	worked := workers.Wait()
	if err := finishers.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if worked == nil {
		worked = all.Err() // interrupted between two units
	}
	return worked
}

// work counts the bytes that progress is told of: BF16 and unchanged tensors once as they are read, every shard once as it is hashed.
func (j *job) work(units []*Unit) (total int64) {
	for _, u := range units {
		total += u.SizeOut
		if u.Copied() {
			continue
		}
		for _, t := range j.shards[u.Shard].Header.Tensors {
			total += int64(t.Len())
		}
	}
	return total
}

// open returns the file of a source shard.
func (j *job) open(s *safetensors.Shard) (*os.File, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if f := j.sources[s.Name]; f != nil {
		return f, nil
	}
	f, err := os.Open(s.Path)
	if err == nil {
		passing(f)
		j.sources[s.Name] = f
	}
	return f, err
}

func (j *job) chunk() *[]byte { return j.chunks.Get().(*[]byte) }

func (j *job) closeAll() {
	j.arenas.close()
	for _, f := range j.sources {
		f.Close()
	}
	for _, f := range j.temps {
		f.Close() // most are closed already, which is no matter
	}
}
