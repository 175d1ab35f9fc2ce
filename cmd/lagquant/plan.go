package main

import (
	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/verify"
)

func planCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "show what requantize would do, reading headers only",
		ArgsUsage: "[MODEL]",
		Description: describe(`Takes the options of requantize that shape the result, and prints what would happen: layers, profile and why, input scales, shards,
sizes and the change of config.json. With --profile auto or --input-scales peers the stored scales are read, with --base weights too;
otherwise only headers.
--json prints the plan itself, with its digest: the same checkpoints give the same plan wherever they lie.`,
			[]string{
				"lagquant plan --layers 40-47 --input-scales 07614121b3 poolside/Laguna-S-2.1-NVFP4@f8fdfcdc4e",
				"lagquant plan ./nvfp4-0801 --input-scales ./nvfp4-0722 --json",
			},
			"0 it could be done, 2 wrong use, 3 checkpoint refused, 4 reading failed"),
		CustomHelpTemplate: commandHelp,
		Flags:              append(planFlags(), jsonFlag()),
		Action: func(c *cli.Context) error {
			j, err := newJob(c, t, verify.Options{})
			if err != nil {
				return err
			}
			j.print(t)
			return t.document(j.plan)
		},
	}
}
