package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/verify"
)

func verifyCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "is the checkpoint whole; are its bytes the vendor's, or made by the vendor's recipe",
		ArgsUsage: "[MODEL]",
		Description: describe(`Without --against: every shard, the index, the config, what lies beside them, and the tensors of every quantized module, each finding on a line.
With --against: every tensor of both checkpoints, byte for byte. Where one has BF16 and the other NVFP4, the BF16 is quantized under
every known profile, which proves the recipe or refutes it: 99.99 % equal means another arithmetic.`,
			[]string{
				"lagquant verify ./nvfp4-0804",
				"lagquant verify ./nvfp4-0804 --against ./bf16",
				"lagquant verify poolside/Laguna-S-2.1-NVFP4@f8fdfcdc4e --against 07614121b3 --sample 5%",
			},
			"0 nothing found, or all the same; 1 findings or differences; 2 wrong use; 3 checkpoint refused; 4 reading failed"),
		CustomHelpTemplate: commandHelp,
		Flags: []cli.Flag{
			modelFlag(),
			&cli.StringFlag{Name: "against", Usage: "checkpoint to compare with: vendor's revision or BF16 release"},
			&cli.StringFlag{Name: "sample", Usage: "compare only a fixed part of the modules: n/t or 5%"},
			&cli.BoolFlag{Name: "strict", Usage: "count warnings as findings"},
			&cli.StringFlag{Name: "jobs", Usage: "workers (default: one a core)"},
			progressFlag(), jsonFlag(),
		},
		Action: func(c *cli.Context) error { return runVerify(c, t) },
	}
}

func runVerify(c *cli.Context, t *terminal) error {
	name, err := modelName(c)
	if err != nil {
		return err
	}
	var opts verify.Options
	if opts.Jobs, err = parseJobs(c.String("jobs")); err != nil {
		return err
	}
	if c.IsSet("sample") {
		if !c.IsSet("against") {
			return usage("--sample goes with --against", "a check of one checkpoint is always whole")
		}
		if opts.Sample, err = verify.ParseSample(c.String("sample")); err != nil {
			return err
		}
	}
	bar, err := newProgress(t, c.String("progress"), "verify")
	if err != nil {
		return err
	}
	defer bar.end()
	opts.Start, opts.Progress = bar.Start, bar.Add
	if c.IsSet("against") {
		return verifyAgainst(c, t, name, opts, bar)
	}
	return verifyStructure(c, t, name, opts, bar)
}

func verifyStructure(c *cli.Context, t *terminal, name string, opts verify.Options, bar *progress) error {
	ref, err := resolve(name, nil)
	if err != nil {
		return err
	}
	report, err := verify.Structure(c.Context, ref.Dir, opts)
	bar.end()
	if err != nil {
		return err
	}
	for _, f := range report.Findings {
		t.printf("%s: %s\n", f.Severity, f)
		if f.Hint != "" {
			t.printf("  hint: %s\n", f.Hint)
		}
	}
	t.printf("%s: %d shards, %d tensors, %d NVFP4 modules, %s: %s\n", title(ref), report.Shards, report.Tensors, report.Modules.NVFP4, size(report.Bytes), outcome(report))
	if err := t.document(report); err != nil {
		return err
	}
	if !report.Sound(c.Bool("strict")) {
		return errFindings
	}
	return nil
}

func outcome(r *verify.Report) string {
	if r.Errors+r.Warnings == 0 {
		return "nothing found"
	}
	return fmt.Sprintf("%d errors, %d warnings", r.Errors, r.Warnings)
}

func verifyAgainst(c *cli.Context, t *terminal, name string, opts verify.Options, bar *progress) error {
	a, err := open(name, nil)
	if err != nil {
		return err
	}
	b, err := open(c.String("against"), &a.ref)
	if err != nil {
		return err
	}
	opts.Names[0], opts.Names[1] = titles(a.ref, b.ref)
	comparison, err := verify.Against(c.Context, a.Checkpoint, b.Checkpoint, opts)
	bar.end()
	if err != nil {
		return err
	}
	for _, line := range comparison.Verdict {
		t.printf("%s\n", line)
	}
	if err := t.document(comparison); err != nil {
		return err
	}
	if !comparison.Clean() {
		return errFindings
	}
	return nil
}
