package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata"
)

func demoCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "demo",
		Usage:     "write a small trained checkpoint set and run the whole story on it",
		ArgsUsage: "DIR",
		Description: describe(`Unpacks three revisions of a small trained Laguna (20 MB) into DIR: bf16, an all-NVFP4 nvfp4-0722, and nvfp4-0801, whose layers 6-7
went back to BF16. Then it plans, requantizes and verifies, printing each command, so that you can repeat them.`,
			[]string{"lagquant demo ./lagquant-demo"}, "0 done, 2 wrong use, 4 reading or writing failed"),
		CustomHelpTemplate: commandHelp,
		Flags:              []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usage("demo needs a folder to write to", "lagquant demo ./lagquant-demo")
			}
			return runDemo(c.Context, t, c.Args().First())
		},
	}
}

// chapter is one command of the demo with what it shows.
type chapter struct {
	about string
	words []string
	code  int // that the command ends with
}

// command is how a user would type it.
func (c chapter) command() string {
	line := "lagquant"
	for _, w := range c.words {
		line += " " + quote(w)
	}
	return line
}

func runDemo(ctx context.Context, t *terminal, dir string) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return &fault.Error{Kind: fault.Usage, File: dir, Problem: "is not empty", Hint: "name a folder that does not exist yet"}
	}
	if err := testdata.UnpackTinyLaguna(dir); err != nil {
		return fmt.Errorf("unpacking the checkpoints: %w", err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	mixed, old, base, out := in("nvfp4-0801"), in("nvfp4-0722"), in("bf16"), in("nvfp4-0804")
	story := []chapter{
		{about: "this revision has the experts of layers 6-7 in BF16", words: []string{"inspect", mixed}},
		{about: "what would be done, from headers alone", words: []string{"plan", mixed, "--input-scales", old}},
		{about: "do it: layers 6-7 to NVFP4 as the vendor's exporter would, input scales from the older revision", words: []string{
			"requantize", mixed, "--layers", "6-7", "--input-scales", old, "--base", base, "--out", out,
		}},
		{about: "is the result whole and consistent?", words: []string{"verify", out, "--strict"}},
		{about: "the proof: every quantized module is the recipe's, byte for byte", words: []string{"verify", out, "--against", base}},
		{about: "the older revision was made with another arithmetic, so its layers differ (exit code 1)", words: []string{"verify", out, "--against", old}, code: 1},
	}
	type step struct {
		About   string `json:"about"`
		Command string `json:"command"`
		Exit    int    `json:"exit"`
	}
	var done []step
	for _, c := range story {
		t.printf("\n# %s\n$ %s\n", c.about, c.command())
		quiet := *t
		quiet.quiet = true
		if t.json {
			quiet.stdout = io.Discard
		}
		code := run(ctx, c.words, &quiet)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if code != c.code {
			return fmt.Errorf("demo: lagquant %s ended with exit code %d, expected %d", c.words[0], code, c.code)
		}
		done = append(done, step{c.about, c.command(), code})
	}
	t.printf("\nthe checkpoints are in %s\n", dir)
	return t.document(struct {
		Schema string `json:"schema"`
		Dir    string `json:"dir"`
		Steps  []step `json:"steps"`
	}{"lagquant-demo/1", dir, done})
}
