package pipeline

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/spec"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// stopper is a Progress that interrupts the job once some bytes are done.
type stopper struct {
	cancel context.CancelFunc
	left   atomic.Int64
}

func (s *stopper) Start(int64) {}
func (s *stopper) Add(n int64) {
	if s.left.Add(-n) < 0 {
		s.cancel()
	}
}

// interrupt runs the tiny job until about so many bytes are done.
func interrupt(t *testing.T, dir, out string, bytes int64) {
	t.Helper()
	plan, src, donor := planTiny(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &stopper{cancel: cancel}
	s.left.Store(bytes)
	_, err := Run(ctx, plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: out, Jobs: 1, Progress: s})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, Unfinished(out))
	require.NoFileExists(t, filepath.Join(out, "config.json"))
	require.NoFileExists(t, filepath.Join(out, indexName))
}

func TestResume(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	whole := filepath.Join(dir, "whole")
	runTiny(t, dir, whole, RunOptions{})
	want := fileDigests(t, whole)
	for _, bytes := range []int64{0, 1 << 20, 3 << 20, 6 << 20} {
		out := filepath.Join(t.TempDir(), "out")
		interrupt(t, dir, out, bytes)
		r := runTiny(t, dir, out, RunOptions{})
		require.Equal(t, want, fileDigests(t, out), bytes)
		if bytes > 1<<20 {
			require.Positive(t, r.Resumed, bytes)
		}
		require.InDelta(t, 0.095, r.Errors.RelativeRMS(), 0.002, "the sums of finished shards count too")
	}
}

// What a journal calls finished is done again when it no longer stands.
func TestResumeTrustsNothingThatChanged(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	whole := filepath.Join(dir, "whole")
	runTiny(t, dir, whole, RunOptions{})
	want := fileDigests(t, whole)
	first := "model-00001-of-00011.safetensors"
	changes := map[string]func(out string){
		"an output file is gone":           func(out string) { require.NoError(t, os.Remove(filepath.Join(out, first))) },
		"an output file is shorter":        func(out string) { require.NoError(t, os.Truncate(filepath.Join(out, first), 100)) },
		"the journal's last line was torn": func(out string) { tear(t, filepath.Join(out, workDir, "journal")) },
		"the journal is gone":              func(out string) { require.NoError(t, os.Remove(filepath.Join(out, workDir, "journal"))) },
		"the plan is gone":                 func(out string) { require.NoError(t, os.Remove(filepath.Join(out, workDir, "plan"))) },
		"a source file was written to": func(string) {
			now := time.Now().Add(time.Hour)
			require.NoError(t, os.Chtimes(filepath.Join(dir, "nvfp4-0801", first), now, now))
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			interrupt(t, dir, out, 6<<20)
			journal, err := os.ReadFile(filepath.Join(out, workDir, "journal"))
			require.NoError(t, err)
			change(out)
			r := runTiny(t, dir, out, RunOptions{})
			require.Less(t, r.Resumed, strings.Count(string(journal), "\n"))
			require.Equal(t, want, fileDigests(t, out))
		})
	}
}

// A donor is not a source of weights, but its input scales are in the output.
func TestResumeWithAnotherDonor(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	out := filepath.Join(dir, "out")
	interrupt(t, dir, out, 6<<20)
	donor := editable{t, filepath.Join(dir, "nvfp4-0722")}
	for expert := range 8 {
		for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
			name := fmt.Sprintf("model.layers.6.mlp.experts.%d.%s.input_global_scale", expert, p)
			donor.tensor(name, func(b []byte) { binary.LittleEndian.PutUint32(b, math.Float32bits(123)) })
		}
	}
	runTiny(t, dir, out, RunOptions{})
	whole := filepath.Join(dir, "whole")
	runTiny(t, dir, whole, RunOptions{})
	require.Equal(t, fileDigests(t, whole), fileDigests(t, out))
}

// started looks at the output when a job begins with its work.
type started func()

func (s started) Start(int64) { s() }
func (s started) Add(int64)   {}

// What a killed run was writing takes no room from the run that goes on.
func TestLeftoversGoBeforeSpaceIsCounted(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	out := filepath.Join(dir, "out")
	interrupt(t, dir, out, 1<<20)
	left := filepath.Join(out, workDir, "partial", "left.safetensors")
	require.NoError(t, os.MkdirAll(filepath.Dir(left), 0o755))
	require.NoError(t, os.WriteFile(left, make([]byte, 100), 0o644))
	runTiny(t, dir, out, RunOptions{Progress: started(func() { require.NoFileExists(t, left) })})
}

// An interrupt is seen while an untouched file is being copied, and nothing of it stands under its name.
func TestInterruptWhileCopying(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	require.NoError(t, os.WriteFile(src, make([]byte, 1000), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, bring(ctx, src, dir, "copy", LinkCopy), context.Canceled)
	require.NoFileExists(t, filepath.Join(dir, "copy"))
	require.NoError(t, bring(context.Background(), src, dir, "copy", LinkCopy))
	require.FileExists(t, filepath.Join(dir, "copy"))
}

func tear(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, info.Size()-10))
}

// An unfinished output belongs to one plan. Another one is refused, until --restart forgets the first.
func TestOtherJobsOutput(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	out := filepath.Join(dir, "out")
	interrupt(t, dir, out, 6<<20)
	require.NoError(t, os.WriteFile(filepath.Join(out, "mine.txt"), []byte("a user's own"), 0o644))

	src, donor := openSource(t, filepath.Join(dir, "nvfp4-0801")), openSource(t, filepath.Join(dir, "nvfp4-0722"))
	plan, err := MakePlan(src, donor, PlanOptions{Layers: []int{7}, InputScales: InputScales{From: FromDonor}})
	require.NoError(t, err)
	require.NoError(t, plan.SetProfile(quant.Profiles[0], nil))
	_, err = Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: out})
	require.Equal(t, fault.Usage, fault.KindOf(err))
	require.ErrorContains(t, err, "unfinished output of another job")

	_, err = Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: out, Restart: true})
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(out, "mine.txt"), "nothing but the job's own files goes")
	fresh := filepath.Join(dir, "fresh")
	_, err = Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: fresh})
	require.NoError(t, err)
	got := fileDigests(t, out)
	delete(got, "mine.txt")
	require.Equal(t, fileDigests(t, fresh), got)
}

// A plan that was damaged is refused, and forgotten when that is asked for.
func TestDamagedPlan(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	out := filepath.Join(dir, "out")
	interrupt(t, dir, out, 6<<20)
	require.NoError(t, os.Truncate(filepath.Join(out, workDir, "plan"), 10))
	plan, src, donor := planTiny(t, dir)
	_, err := Run(context.Background(), plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: out})
	require.Equal(t, fault.Usage, fault.KindOf(err))
	require.ErrorContains(t, err, "is not a plan")
	r := runTiny(t, dir, out, RunOptions{Restart: true})
	require.Zero(t, r.Resumed)
	require.False(t, Unfinished(out))
}

func TestOneJobAtATime(t *testing.T) {
	out := t.TempDir()
	held, err := lockOutput(out)
	require.NoError(t, err)
	_, err = lockOutput(out)
	require.Equal(t, fault.Usage, fault.KindOf(err))
	require.ErrorContains(t, err, "another lagquant is working on this output")
	require.NoError(t, held.Close())
	again, err := lockOutput(out)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestCheckOutput(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	require.NoError(t, os.MkdirAll(filepath.Join(src, "sub"), 0o755))
	require.NoError(t, os.Symlink(src, filepath.Join(dir, "link")))
	full := filepath.Join(dir, "full")
	require.NoError(t, os.MkdirAll(full, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o644))
	for out, problem := range map[string]string{
		src:                                   "inside the source",
		filepath.Join(src, "sub"):             "inside the source",
		filepath.Join(src, "new", "deep"):     "inside the source",
		filepath.Join(dir, "link", "new"):     "inside the source",
		full:                                  "is not empty (file)",
		filepath.Join(full, "file"):           "is a file",
		filepath.Join(dir, "src-requantized"): "",
		filepath.Join(dir, "..src"):           "",
	} {
		err := CheckOutput(out, src)
		if problem == "" {
			require.NoError(t, err, out)
			continue
		}
		require.Equal(t, fault.Usage, fault.KindOf(err), out)
		require.ErrorContains(t, err, problem, out)
	}
}

// A disk that cannot take the output is an error of writing, with what to do; the job goes on when there is room.
func TestNoRoom(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	plan, src, donor := planTiny(t, dir)
	j, err := newJob(plan, src.Checkpoint, donor.Checkpoint, RunOptions{Out: dir})
	require.NoError(t, err)
	units := []*Unit{{Shard: "x", SizeOut: 1 << 60, Modules: make([]Module, 1)}}
	err = j.checkSpace(units)
	require.Equal(t, fault.IO, fault.KindOf(err))
	require.ErrorContains(t, err, "no room")
}

func TestLayerLists(t *testing.T) {
	for list, want := range map[string][]int{"40-47": {40, 41, 42, 43, 44, 45, 46, 47}, "7,6": {6, 7}, "1,2-3, 3-4": {1, 2, 3, 4}, "0": {0}} {
		got, err := ParseLayers(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got)
	}
	for _, list := range []string{"", "a", "1-", "-1", "3-2", "1,,2", "1-2-3", "+1", "1e1", "40-4700000000", "99999999999999999999"} {
		_, err := ParseLayers(list)
		require.Equal(t, fault.Usage, fault.KindOf(err), list)
	}
	require.Equal(t, "1-3,5,7-8", spec.FormatLayers([]int{1, 2, 3, 5, 7, 8}))
}
