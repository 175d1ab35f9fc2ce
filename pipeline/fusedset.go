package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lagquant/lagquant/internal/digest"
	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// fusedSets groups the modules of a unit that share a global scale.
func fusedSets(modules []Module) [][]Module {
	var sets [][]Module
	at := map[string]int{} // by first member's name
	for _, m := range modules {
		key := slices.Min(append([]string{m.Name}, m.With...))
		i, ok := at[key]
		if !ok {
			i = len(sets)
			at[key], sets = i, append(sets, nil)
		}
		sets[i] = append(sets[i], m)
	}
	return sets
}

// quantize turns the unit's members of one fused set into NVFP4. Members in other shards are read too, for the shared global scale.
func (w *writing) quantize(ctx context.Context, mine []Module) error {
	j := w.job
	arena, err := j.arenas.get(ctx)
	if err != nil {
		return err
	}
	defer j.arenas.put(arena)

	names := append([]string{mine[0].Name}, mine[0].With...)
	set := make([]quant.Member, len(names))
	for i, name := range names {
		set[i], arena = carve(arena, name, int(j.weights[name].tensor.Len()))
		w.read(j.weights[name].shard)
	}
	global, err := w.mapped(set, mine)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, safetensors.ErrMemoryFault) {
		if err = j.load(set); err == nil {
			global, err = w.compute(set, mine)
		}
	}
	if err != nil {
		return j.explain(err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, m := range mine {
		if err := w.store(set[slices.Index(names, m.Name)], global); err != nil {
			return err
		}
	}
	return nil
}

// compute quantizes a set and measures the errors of the unit's members in it.
func (w *writing) compute(set []quant.Member, mine []Module) (global float32, err error) {
	j := w.job
	if global, err = j.experts.Synthesize(j.Backend, j.profile, set); err != nil {
		return 0, err
	}
	for _, m := range set {
		if slices.ContainsFunc(mine, func(o Module) bool { return o.Name == m.Name }) && j.measured(m.Name) {
			e := quant.MeasureErrors(j.profile, global, m.BF16, m.Packed, m.Scales)
			w.mu.Lock()
			w.errors[m.Name] = e
			w.mu.Unlock()
		}
	}
	return global, nil
}

// mapped does the same on mappings of the weights, which saves copying them: a tenth of a job's time when they are in the page cache.
// The error is errors.ErrUnsupported or safetensors.ErrMemoryFault where that does not work; reading tells why, if it does not work either.
func (w *writing) mapped(set []quant.Member, mine []Module) (global float32, err error) {
	j := w.job
	if !j.Backend.Mapped() {
		return 0, errors.ErrUnsupported
	}
	views := slices.Clone(set)
	for i := range views {
		at := j.weights[views[i].Name]
		src, err := j.open(at.shard)
		if err != nil {
			return 0, err
		}
		begin, size := at.shard.Header.DataStart+int64(at.tensor.Begin), int64(at.tensor.Len())
		data, unmap, err := safetensors.Map(src, begin, size)
		if err != nil {
			return 0, err
		}
		defer unmap()
		views[i].BF16 = data
	}
	err = safetensors.Guard(func() error {
		global, err = w.compute(views, mine)
		return err
	})
	return global, err
}

// load reads the weights of a set.
func (j *job) load(set []quant.Member) error {
	for _, m := range set {
		at := j.weights[m.Name]
		src, err := j.open(at.shard)
		if err != nil {
			return err
		}
		if err := readAt(src, m.BF16, at.shard.Header.DataStart+int64(at.tensor.Begin)); err != nil {
			return fault.In(at.shard.Name, err)
		}
	}
	return nil
}

// store writes the tensors of one module.
func (w *writing) store(m quant.Member, global float32) error {
	j := w.job
	names := j.plan.Names
	write := func(name string, b []byte) error {
		t, ok := w.layout.Lookup(name)
		if !ok || t.Len() != uint64(len(b)) {
			return fmt.Errorf("%s: %d bytes do not fit the layout", name, len(b))
		}
		if _, err := w.file.WriteAt(b, w.layout.DataStart+int64(t.Begin)); err != nil {
			return writeFault(w.unit.Shard, err)
		}
		w.note(name, digest.OfTensor(b))
		return nil
	}
	var scalar [4]byte
	binary.LittleEndian.PutUint32(scalar[:], math.Float32bits(global))
	err := errors.Join(write(m.Name+names.Packed, m.Packed), write(m.Name+names.Scale, m.Scales), write(m.Name+names.Global, scalar[:]))
	if input, ok := j.inputs[m.Name]; ok && err == nil {
		binary.LittleEndian.PutUint32(scalar[:], input)
		err = write(m.Name+names.InputGlobal, scalar[:])
	}
	j.Progress.Add(int64(len(m.BF16)))
	return err
}

// measureAll is the number of modules up to which the error of each is measured; of more, it is that of one in measureOne, chosen by name.
// Measuring takes several times as long as quantizing, and a few hundred modules tell the error of a model to four digits.
const (
	measureAll = 192
	measureOne = 8
)

// measured says whether the error of a module is measured: the same modules in every run.
func (j *job) measured(module string) bool {
	return j.plan.Modules <= measureAll || digest.Sum64(module)%measureOne == 0
}

// explain says where in the source the weights are that a backend refused.
func (j *job) explain(err error) error {
	bad, ok1 := errors.AsType[*quant.NonFiniteError](err)
	f, ok2 := errors.AsType[*fault.Error](err)
	if !ok1 || !ok2 {
		return err
	}
	at := j.weights[f.Tensor]
	return bad.In(at.shard.Name, at.tensor.Name, at.tensor.Shape[1])
}
