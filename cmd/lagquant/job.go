package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/pipeline"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
	"github.com/lagquant/lagquant/verify"
)

// job is what requantize and plan have in common: the options that shape a plan, and the plan they lead to.
type job struct {
	model, donor, base *model // donor and base may be nil
	plan               *pipeline.Plan
	detection          *verify.Detection // nil: --profile named the profile
}

func planFlags() []cli.Flag {
	return []cli.Flag{
		modelFlag(),
		&cli.StringFlag{Name: "layers", Usage: "layers to requantize, as 40-47 or 40,41,44-47 (default: all whose BF16 experts an ignore rule exempts)"},
		&cli.StringFlag{Name: "input-scales", Usage: "where input scales come from: a checkpoint with these layers in NVFP4, peers, const:V, or none (weight-only)"},
		&cli.StringFlag{Name: "profile", Value: "auto", Usage: "arithmetic: auto, " + strings.Join(profileNames(), ", ")},
		&cli.StringFlag{Name: "base", Usage: "BF16 release, to prove the profile on layers that the vendor quantized"},
	}
}

func profileNames() []string {
	var names []string
	for _, p := range quant.Profiles {
		names = append(names, p.Name)
	}
	return names
}

// newJob opens the checkpoints that the options name and makes the plan; detect is how to look for the profile.
func newJob(c *cli.Context, t *terminal, detect verify.Options) (*job, error) {
	var opts pipeline.PlanOptions
	var err error
	if c.IsSet("layers") {
		if opts.Layers, err = pipeline.ParseLayers(c.String("layers")); err != nil {
			return nil, err
		}
	}
	profile := c.String("profile")
	if !slices.Contains(choices["profile"], profile) {
		return nil, usage(fmt.Sprintf("--profile %s is not known", profile), suggest(profile, profileNames(), "", "profiles are auto, "+strings.Join(profileNames(), ", ")))
	}
	fromDonor := false
	if c.IsSet("input-scales") {
		if opts.InputScales, fromDonor, err = pipeline.ParseInputScales(c.String("input-scales")); err != nil {
			return nil, err
		}
	}
	j := &job{}
	if err := j.open(c, fromDonor); err != nil {
		return nil, err
	}
	if j.plan, err = pipeline.MakePlan(j.model.source(), j.donor.source(), opts); err != nil {
		return nil, err
	}
	return j, j.chooseProfile(c.Context, profile, detect, t)
}

func (j *job) open(c *cli.Context, fromDonor bool) error {
	name, err := modelName(c)
	if err != nil {
		return err
	}
	if j.model, err = open(name, nil); err != nil {
		return err
	}
	if fromDonor {
		if j.donor, err = open(c.String("input-scales"), &j.model.ref); err != nil {
			return err
		}
	}
	if c.IsSet("base") {
		j.base, err = open(c.String("base"), &j.model.ref)
	}
	return err
}

// source is the form in which the pipeline takes a checkpoint.
func (m *model) source() *pipeline.Source {
	if m == nil {
		return nil
	}
	return &pipeline.Source{Checkpoint: m.Checkpoint, Repo: m.ref.Repo, Revision: m.ref.Revision}
}

// checkpoint is nil for no model.
func (m *model) checkpoint() *safetensors.Checkpoint {
	if m == nil {
		return nil
	}
	return m.Checkpoint
}

// chooseProfile takes the profile that the user names, or finds the one by which the source's own quantized layers were made.
func (j *job) chooseProfile(ctx context.Context, name string, detect verify.Options, t *terminal) error {
	if name != "auto" {
		p, _ := quant.ProfileByName(name)
		if err := j.checkForced(ctx, name, detect, t); err != nil {
			return err
		}
		return j.plan.SetProfile(p, []string{"chosen by --profile"})
	}
	d, err := verify.DetectProfile(ctx, j.model.Checkpoint, j.base.checkpoint(), detect)
	if err != nil {
		return err
	}
	for _, w := range d.Warnings {
		t.note("warning: %s", w)
	}
	p, _ := quant.ProfileByName(d.Profile)
	j.detection = d
	return j.plan.SetProfile(p, evidence(d))
}

// checkForced warns where the base proves another profile than the one that the user names.
func (j *job) checkForced(ctx context.Context, name string, detect verify.Options, t *terminal) error {
	if j.base == nil {
		return nil
	}
	d, err := verify.DetectProfile(ctx, j.model.Checkpoint, j.base.Checkpoint, detect)
	if fault.KindOf(err) == fault.Refused && err != nil {
		t.note("warning: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	if d.Recipe == nil {
		for _, w := range d.Warnings {
			t.note("warning: %s", w)
		}
		return nil
	}
	for _, c := range d.Recipe.Profiles {
		if c.Profile == name && c.Exact < c.Modules {
			t.note("warning: the base proves %s and not %s", d.Recipe.Names(), c)
		}
	}
	return nil
}

// evidence tells why a profile was chosen, without folder names: it becomes part of the output, which must not depend on them.
func evidence(d *verify.Detection) []string {
	var lines []string
	switch d.How {
	case "base":
		for _, c := range d.Recipe.Profiles {
			lines = append(lines, c.String())
		}
	case "globals":
		lines = append(lines, d.Globals.String())
		if d.Version != "" {
			lines = append(lines, "the config names version "+d.Version)
		}
	default:
		lines = append(lines, "default: nothing in the checkpoint tells")
	}
	return lines
}

// output is the folder that --out names, or its default.
func (j *job) output(c *cli.Context) (string, error) {
	if c.IsSet("out") {
		if c.String("out") == "" {
			return "", usage("--out names no folder", "write --out DIR")
		}
		return c.String("out"), nil
	}
	if j.model.ref.Repo != "" { // beside the source would be inside the cache
		return filepath.Base(j.model.ref.Repo) + "-requantized", nil
	}
	dir, err := filepath.Abs(j.model.Dir)
	return dir + "-requantized", err
}

// print shows the plan to a person.
func (j *job) print(t *terminal) {
	p := j.plan
	touched := 0
	for i := range p.Units {
		if !p.Units[i].Copied() {
			touched++
		}
	}
	line := func(key, format string, args ...any) { t.printf("%-13s %s\n", key, fmt.Sprintf(format, args...)) }
	line("plan", "%.12s: requantize layers %s of %s", p.Digest, spec.FormatLayers(p.Layers), title(j.model.ref))
	for i, e := range p.Evidence {
		if i == 0 {
			line("profile", "%s", p.Profile)
		}
		line("", "  %s", e)
	}
	line("input scales", "%s", j.inputScales())
	line("modules", "%d from BF16 to NVFP4 (%s of weights)", p.Modules, size(p.WeightBytes))
	line("shards", "%d: %d rewritten, %d as they are", len(p.Units), touched, len(p.Units)-touched)
	line("size", "%s -> %s", size(p.BytesIn), size(p.BytesOut))
	for _, l := range p.LeftOut {
		line("left out", "%s: %s", l.File, l.Why)
	}
	printChanges := func(file string, changes []spec.Change) {
		for _, c := range changes {
			line(file, "line %d", c.Line)
			for _, s := range c.Before {
				line("", "-%s", s)
			}
			for _, s := range c.After {
				line("", "+%s", s)
			}
		}
	}
	printChanges("config.json", p.Config)
	printChanges("hf_quant_config.json", p.HFConfig)
}

func (j *job) inputScales() string {
	switch s := j.plan.InputScales; s.From {
	case pipeline.FromDonor:
		return "from " + title(j.donor.ref)
	case pipeline.FromPeers:
		return "peers: per projection the smallest global of the checkpoint's own quantized layers"
	case pipeline.FromConstant:
		return fmt.Sprintf("%v for every module", s.Value)
	case pipeline.FromNone:
		return "none: the scheme becomes weight-only"
	}
	return "not needed: the scheme is weight-only"
}
