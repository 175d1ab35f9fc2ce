package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/engine"
	"github.com/lagquant/lagquant/internal/fault"
)

// checkSmoke refuses options that do not go together.
func checkSmoke(c *cli.Context) error {
	var one []string
	for _, name := range []string{"prompt", "chat", "messages", "suite"} {
		if c.IsSet(name) {
			one = append(one, "--"+name)
		}
	}
	switch {
	case len(one) > 1:
		return usage(strings.Join(one, " and ")+" exclude each other", "give one of them")
	case c.IsSet("text") && !c.IsSet("against"):
		return usage("--text goes with --against", "name the checkpoint to compare with")
	case c.IsSet("suite") && (c.IsSet("against") || c.IsSet("expect") || c.IsSet("tools")):
		return usage("--suite goes without --against, --expect and --tools", "give them with --chat or --messages, one prompt at a time")
	case c.IsSet("tools") && c.IsSet("prompt"):
		return usage("--tools goes without --prompt", "the chat template writes the tools: give --chat or --messages")
	case c.IsSet("expect") && c.String("expect") == "":
		return usage("--expect is empty: any answer has that", "write --expect Paris, say")
	}
	return nil
}

// newSmoke reads the options that are numbers and choices.
func newSmoke(c *cli.Context, t *terminal) (*smoke, engine.Options, error) {
	s := &smoke{t: t, think: c.Bool("think"), expect: c.String("expect"), sampling: engine.GreedyOptions()}
	opts := engine.Options{
		Activations: engine.Activations(c.String("activations")), InputScales: engine.InputScales(c.String("activation-scales")), KV: engine.KVFormat(c.String("kv")),
	}
	for _, option := range []string{"activations", "activation-scales", "kv"} {
		known := choices[option]
		if value := c.String(option); !slices.Contains(known, value) {
			return nil, opts, usage(fmt.Sprintf("--%s %s is not known, expected %s", option, value, strings.Join(known, ", ")),
				suggest(strings.ToLower(value), known, "", "lagquant smoke-generate --help says what each is"))
		}
	}
	if err := s.readNumbers(c); err != nil {
		return nil, opts, err
	}
	var err error
	if opts.Workers, err = parseJobs(c.String("jobs")); err != nil {
		return nil, opts, err
	}
	if c.IsSet("memory") {
		opts.Memory, err = parseSize("memory", c.String("memory"))
	}
	return s, opts, err
}

// numbers of smoke-generate: from least to most, and what to do about others.
var smokeNumbers = []struct {
	option         string
	whole          bool
	least, most    float64
	expected, hint string
}{
	{"temperature", false, 0, math.MaxFloat32, "a number from 0", "0 takes the best token each time, 0.7 is usual where chance is wanted"},
	{"top-p", false, math.SmallestNonzeroFloat32, 1, "a number above 0, at most 1", "1 leaves all tokens"},
	{"min-p", false, 0, 1, "a number from 0 to 1", "0 leaves all tokens"},
	{"repetition-penalty", false, math.SmallestNonzeroFloat32, math.MaxFloat32, "a number above 0", "1 changes nothing, 1.1 is usual"},
	{"top-k", true, 0, math.MaxInt32, "a whole number from 0", "0 leaves all tokens"},
	{"max-tokens", true, 1, math.MaxInt32, "a whole number from 1", "32 is enough for a short answer"},
}

func (s *smoke) readNumbers(c *cli.Context) error {
	value := map[string]float64{}
	for _, n := range smokeNumbers {
		typed := c.String(n.option)
		v, err := strconv.ParseFloat(typed, 64)
		if n.whole {
			var i int64
			i, err = strconv.ParseInt(typed, 10, 64)
			v = float64(i)
		}
		if err != nil || !(v >= n.least && v <= n.most) { // NaN is neither
			return usage(fmt.Sprintf("--%s is %s, expected %s", n.option, typed, n.expected), n.hint)
		}
		value[n.option] = v
	}
	seed, err := strconv.ParseUint(c.String("seed"), 10, 64)
	if err != nil {
		return usage(fmt.Sprintf("--seed is %s, expected a whole number from 0", c.String("seed")), "equal seeds give equal answers")
	}
	s.maxTokens = int(value["max-tokens"])
	s.sampling = engine.SamplingOptions{
		Temperature: value["temperature"], TopK: int(value["top-k"]), TopP: value["top-p"], MinP: value["min-p"],
		RepetitionPenalty: value["repetition-penalty"], Seed: seed,
	}
	_, err = engine.NewSampler(s.sampling)
	return err
}

// readInput reads the file that an option names.
func readInput(c *cli.Context, option string) ([]byte, error) {
	path := c.String(option)
	if path == "" {
		return nil, usage("--"+option+" names no file", "lagquant smoke-generate --help shows an example")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &fault.Error{Kind: fault.IO, File: path, Problem: fault.Cause(err).Error(), Err: err, Hint: "--" + option + " takes the name of a file"}
	}
	return b, nil
}
