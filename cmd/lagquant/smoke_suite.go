package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/engine"
	"github.com/lagquant/lagquant/internal/fault"
)

// suite answers every prompt of a file and counts those that did not come to an end.
func (s *smoke) suite(c *cli.Context, m *model, opts engine.Options) error {
	file := c.String("suite")
	b, err := readInput(c, "suite")
	if err != nil {
		return err
	}
	prompts, err := engine.ParseSuite(b)
	if err != nil {
		return fault.In(file, err)
	}
	template, err := engine.LoadChatTemplate(s.dir)
	if err != nil {
		return err
	}
	if s.model, err = engine.Load(m.Checkpoint, opts); err != nil {
		return err
	}
	defer s.model.Close()
	s.t.printf("%-20s %7s %-8s %-10s %s\n", "prompt", "tokens", "end", "repeated", "remark")
	report, err := engine.RunSuite(c.Context, s.model, s.tokenizer, template, prompts, engine.SuiteOptions{
		Sampling: s.sampling, Think: s.think, MaxTokens: s.maxTokens, Stop: s.config.Stops, Done: s.printAnswer,
	})
	if errors.Is(err, context.Canceled) {
		hint := "the prompts above were answered"
		if s.t.json {
			hint = "nothing was kept; run it again, with fewer prompts if it takes too long"
		}
		return &interrupted{hint}
	}
	if err != nil {
		return inSuite(file, err)
	}
	s.t.printf("\n%d of %d finished, %d ran out of tokens (%d of them inside their reasoning), %d ended in a loop\n",
		report.Finished, report.Prompts, report.OutOfBudget, report.InReasoning, report.Repeating)
	return s.t.document(struct {
		Schema string `json:"schema"`
		*engine.SuiteReport
	}{"lagquant-suite/1", report})
}

// inSuite names the suite's file where one of its prompts is at fault.
func inSuite(file string, err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Kind == fault.Usage && e.File == "" {
		return &fault.Error{Kind: e.Kind, File: file, Problem: err.Error(), Hint: e.Hint, Err: err}
	}
	return err
}

func (s *smoke) printAnswer(a engine.SuiteAnswer) {
	remark := ""
	switch {
	case a.Repetition.Loop > 0:
		remark = "ends in a loop"
	case a.OpenReasoning:
		remark = "still reasoning"
	}
	line := fmt.Sprintf("%-20.20s %7d %-8s %8.1f %% %s", a.Name, a.Tokens, a.Finish, 100*a.Repetition.Share, remark)
	s.t.printf("%s\n", strings.TrimRight(line, " "))
}
