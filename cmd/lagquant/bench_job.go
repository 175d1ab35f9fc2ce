package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lagquant/lagquant/internal/synthetic"
	"github.com/lagquant/lagquant/pipeline"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

// jobRates are whole jobs on a generated checkpoint that the page cache holds: seconds, medians over rounds in which both take turns.
type jobRates struct {
	Backend     string  `json:"backend"`
	BytesIn     int64   `json:"bytes_in"`
	BytesOut    int64   `json:"bytes_out"`
	Seconds     float64 `json:"seconds"`
	CopySeconds float64 `json:"copy_seconds"` // of a plain copy of the source
	OfCopy      float64 `json:"of_copy"`      // seconds over copy seconds, the median of the rounds' own ratios
	PeakMemory  int64   `json:"peak_memory"`  // of this process, generating the checkpoint included
}

// benchMemory is the bound that the job is given.
const benchMemory = 256 << 20

func (r *benchReport) benchRequantize(ctx context.Context, t *terminal, source, backendName string) error {
	backend, what, err := openBackend(t, backendName, benchMemory)
	if err != nil {
		return err
	}
	defer backend.Close()
	dir := filepath.Dir(source)
	if err := synthetic.Write(source, r.sizes.job); err != nil {
		return err
	}
	ckpt, err := safetensors.OpenCheckpoint(source)
	if err != nil {
		return err
	}
	plan, err := pipeline.MakePlan(&pipeline.Source{Checkpoint: ckpt}, nil, pipeline.PlanOptions{
		InputScales: pipeline.InputScales{From: pipeline.FromConstant, Value: 744},
	})
	if err != nil {
		return err
	}
	if err := plan.SetProfile(quant.Profiles[0], []string{"bench"}); err != nil {
		return err
	}
	copySource := func(out string) error { return copyFolder(source, out) }
	requantize := func(out string) error {
		_, err := pipeline.Run(ctx, plan, ckpt, nil, pipeline.RunOptions{Out: out, Memory: benchMemory, Backend: backend, Tool: tool})
		return err
	}
	// A copy comes before whatever is timed, so that both find as much memory as they need just freed: a virtual machine may first have to
	// get memory that it has not used for a while from its host, which doubles the time of a copy.
	afterCopy := func(run func(out string) error) (float64, error) {
		if _, err := timed(filepath.Join(dir, "before"), copySource); err != nil {
			return 0, err
		}
		return timed(filepath.Join(dir, "out"), run)
	}
	var jobs, copies, ratios []float64
	for range r.sizes.rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		copied, err := afterCopy(copySource)
		if err != nil {
			return err
		}
		job, err := afterCopy(requantize)
		if err != nil {
			return err
		}
		jobs, copies, ratios = append(jobs, job), append(copies, copied), append(ratios, job/copied)
	}
	r.Requantize = &jobRates{
		Backend: what, BytesIn: plan.BytesIn, BytesOut: plan.BytesOut, Seconds: median(jobs), CopySeconds: median(copies),
		OfCopy: median(ratios), PeakMemory: peakMemory(),
	}
	t.printf("\nrequantize %s -> %s (%s): %.3f s, a copy of the source %.3f s: %.2f times a copy\n",
		size(plan.BytesIn), size(plan.BytesOut), backend.Name(), r.Requantize.Seconds, r.Requantize.CopySeconds, r.Requantize.OfCopy)
	return nil
}

// timed runs a job that makes a folder, and removes the folder again outside of the clock.
func timed(out string, run func(out string) error) (seconds float64, err error) {
	began := time.Now()
	if err := run(out); err != nil {
		return 0, err
	}
	seconds = time.Since(began).Seconds()
	return seconds, os.RemoveAll(out)
}

// copyFolder copies the files of a folder, as cp -r does.
func copyFolder(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := copyFile(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil { // copy_file_range on Linux
		return err
	}
	return out.Close()
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
