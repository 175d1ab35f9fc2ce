package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/pipeline"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/spec"
	"github.com/lagquant/lagquant/verify"
)

func requantizeCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "requantize",
		Usage:     "turn the BF16 experts of chosen layers into NVFP4, change nothing else",
		ArgsUsage: "[MODEL]",
		Description: describe(`Writes a copy of MODEL in which the routed experts of the chosen layers are NVFP4, by the checkpoint's own scheme and with the
arithmetic of the exporter that quantized its other layers. Every other tensor and every untouched shard keeps its bytes, and
config.json loses only the ignore rules that exempted the layers. The output has a manifest with the digest of every file and tensor.
An interrupted run goes on when the same command is given again; the result is the same bytes.`,
			[]string{
				"lagquant requantize --layers 40-47 --input-scales 07614121b3 poolside/Laguna-S-2.1-NVFP4@f8fdfcdc4e",
				"lagquant requantize ./nvfp4-0801 --input-scales ./nvfp4-0722 --base ./bf16 --out ./nvfp4-0804",
				"lagquant requantize ./model --input-scales peers --jobs 8 --memory 4GiB",
			},
			"0 done, 2 wrong use, 3 checkpoint refused, 4 reading or writing failed, 5 no GPU for --backend cuda, 130 interrupted (resumable)"),
		CustomHelpTemplate: commandHelp,
		Flags: append(planFlags(),
			&cli.StringFlag{Name: "out", Usage: "folder to write, which must not exist or be empty (default: MODEL-requantized beside it)"},
			&cli.StringFlag{Name: "link", Value: string(pipeline.LinkAuto), Usage: "how untouched shards get there: auto (reflink, else copy), reflink, hard, copy"},
			backendFlag(),
			&cli.StringFlag{Name: "jobs", Usage: "workers (default: one a core)"},
			&cli.StringFlag{Name: "memory", Value: "1GiB", Usage: "bound on the weights held in memory"},
			&cli.BoolFlag{Name: "restart", Usage: "forget an unfinished output instead of going on with it"},
			progressFlag(), jsonFlag()),
		Action: func(c *cli.Context) error { return runRequantize(c, t) },
	}
}

func runRequantize(c *cli.Context, t *terminal) error {
	opts, err := runOptions(c)
	if err != nil {
		return err
	}
	bar, err := newProgress(t, c.String("progress"), "requantize")
	if err != nil {
		return err
	}
	defer bar.end()
	opts.Progress = bar
	j, err := newJob(c, t, verify.Options{Jobs: opts.Jobs, Progress: bar.Add})
	if err != nil {
		return err
	}
	if opts.Out, err = j.output(c); err != nil {
		return err
	}
	sources := []string{j.model.Dir}
	for _, m := range []*model{j.donor, j.base} {
		if m != nil {
			sources = append(sources, m.Dir)
		}
	}
	if err := pipeline.CheckOutput(opts.Out, sources...); err != nil {
		return err
	}
	backend, what, err := openBackend(t, c.String("backend"), opts.Memory)
	if err != nil {
		return err
	}
	defer backend.Close()
	opts.Backend = backend
	result, err := pipeline.Run(c.Context, j.plan, j.model.Checkpoint, j.donor.checkpoint(), opts)
	bar.end()
	if errors.Is(err, context.Canceled) {
		return &interrupted{"finished shards are kept in " + opts.Out + ": give the same command again to go on"}
	}
	if err != nil {
		return err
	}
	return reportResult(t, j, result, what)
}

func runOptions(c *cli.Context) (pipeline.RunOptions, error) {
	opts := pipeline.RunOptions{Link: pipeline.Link(c.String("link")), Restart: c.Bool("restart"), Tool: tool}
	if !slices.Contains(choices["link"], c.String("link")) {
		return opts, usage(fmt.Sprintf("--link %s is not known", opts.Link), "use auto, reflink, hard or copy")
	}
	if err := checkBackend(c.String("backend")); err != nil {
		return opts, err
	}
	var err error
	if opts.Jobs, err = parseJobs(c.String("jobs")); err != nil {
		return opts, err
	}
	opts.Memory, err = parseSize("memory", c.String("memory"))
	return opts, err
}

func parseJobs(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	return parseCount("jobs", s)
}

// parseCount reads a number of things from 1.
func parseCount(option, s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 4096 {
		return 0, usage(fmt.Sprintf("--%s %s is not a number from 1 to 4096", option, s), fmt.Sprintf("write it as --%s 8, or leave it out", option))
	}
	return n, nil
}

// parseSize reads a number of bytes such as 256MiB, 4GiB, 500MB or 1000000.
func parseSize(option, s string) (int64, error) {
	units := []struct {
		suffix string
		bytes  float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err == nil && f*u.bytes >= 1 && f*u.bytes < math.MaxInt64 {
			return int64(f * u.bytes), nil
		}
		break
	}
	return 0, usage(fmt.Sprintf("--%s %s is not a size", option, s), "write it as 256MiB, 4GiB or 500MB")
}

func reportResult(t *terminal, j *job, r *pipeline.Result, backend string) error {
	seconds := r.Elapsed.Seconds()
	t.printf("%d modules requantized (layers %s, %s): %s -> %s, relative RMS %.2f %% (floor %.2f %%)%s, %.2f s, %.2f GB/s of BF16%s\n",
		r.Modules, spec.FormatLayers(j.plan.Layers), j.plan.Profile, size(r.BytesIn), size(r.BytesOut),
		100*r.Errors.RelativeRMS(), 100*r.Errors.Floor(), sampled(r), seconds, float64(r.Read)/1e9/seconds, peakNote())
	if r.Resumed > 0 {
		t.printf("%d of %d shards were finished by an earlier run\n", r.Resumed, len(j.plan.Units))
	}
	t.printf("quantized by: %s\n", backend)
	t.printf("written to %s; check it with: lagquant verify %s\n", r.Out, quote(r.Out))
	return t.document(struct {
		Schema      string       `json:"schema"`
		Out         string       `json:"out"`
		Plan        string       `json:"plan"`
		Profile     string       `json:"profile"`
		Evidence    []string     `json:"profile_evidence"`
		Layers      []int        `json:"layers"`
		Modules     int          `json:"modules"`
		BytesIn     int64        `json:"bytes_in"`
		BytesOut    int64        `json:"bytes_out"`
		RelativeRMS float64      `json:"relative_rms"`
		Floor       float64      `json:"relative_rms_floor"`
		Errors      quant.Errors `json:"error_sums"`
		Measured    int          `json:"measured_modules"`
		Resumed     int          `json:"resumed_shards"`
		Backend     string       `json:"backend"`
		Seconds     float64      `json:"seconds"`
		PeakMemory  int64        `json:"peak_memory"`
	}{
		"lagquant-result/1", r.Out, j.plan.Digest, j.plan.Profile, j.plan.Evidence, j.plan.Layers, r.Modules, r.BytesIn, r.BytesOut,
		r.Errors.RelativeRMS(), r.Errors.Floor(), r.Errors, r.Measured, r.Resumed, backend, seconds, peakMemory(),
	})
}

// peakNote ends the line with the peak memory, where the system tells it.
func peakNote() string {
	if n := peakMemory(); n > 0 {
		return ", peak memory " + size(n)
	}
	return ""
}

// sampled says of how many modules the error was measured, where not of all.
func sampled(r *pipeline.Result) string {
	if r.Measured == r.Modules {
		return ""
	}
	return fmt.Sprintf(" of %d of them", r.Measured)
}

// quote makes a word safe to paste into a shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+@:,=", r) || r > 127
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
