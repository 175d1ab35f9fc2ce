package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/engine"
	"github.com/lagquant/lagquant/internal/fault"
)

// named is a comparison with what it was made over.
type named struct {
	Over       string             `json:"over"`
	Comparison *engine.Comparison `json:"comparison"`
}

// against lets the model answer and runs it and a reference over the prompt with that answer, then over a text if there is one.
func (s *smoke) against(c *cli.Context, m *model, opts engine.Options, prompt []int32, parser *engine.OutputParser) error {
	r, err := open(c.String("against"), &m.ref)
	if err != nil {
		return err
	}
	var text []int32
	if c.IsSet("text") {
		if text, err = s.text(c); err != nil {
			return err
		}
	}
	reference, err := engine.Load(r.Checkpoint, opts)
	if err != nil {
		return in(r.Dir, err)
	}
	defer reference.Close()
	opts.Beside = reference
	if s.model, err = engine.Load(m.Checkpoint, opts); err != nil {
		return err
	}
	defer s.model.Close()
	if context := min(s.model.Config.MaxPositions, reference.Config.MaxPositions); len(text) > context {
		return &fault.Error{
			Kind: fault.Usage, File: c.String("text"), Problem: fmt.Sprintf("has %d tokens, expected at most the %d of the context", len(text), context),
			Hint: "give a shorter text; the context is the smaller max_position_embeddings of both config.json",
		}
	}
	a, err := s.answer(c.Context, prompt, parser)
	if err != nil {
		return err
	}
	ids := append(append([]int32{}, prompt...), a.result.IDs...)
	over, err := engine.Compare(c.Context, s.model, reference, ids, len(prompt)-1)
	if err != nil {
		return err
	}
	comparisons := []named{{"prompt and answer", over}}
	if text != nil {
		if over, err = engine.Compare(c.Context, s.model, reference, text, 0); err != nil {
			return fault.In(c.String("text"), err)
		}
		comparisons = append(comparisons, named{c.String("text"), over})
	}
	model, against := titles(m.ref, r.ref)
	for _, n := range comparisons {
		s.printComparison(n, model, against)
	}
	return s.finish(a, against, comparisons)
}

// text makes the ids of the file that --text names.
func (s *smoke) text(c *cli.Context) ([]int32, error) {
	b, err := readInput(c, "text")
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, &fault.Error{Kind: fault.Usage, File: c.String("text"), Problem: "has no text to compare over", Hint: "a page of prose or source is enough"}
	}
	ids, err := s.tokenizer.Encode(string(b), true)
	return ids, fault.In(c.String("text"), err)
}

func (s *smoke) printComparison(n named, model, reference string) {
	p, c := s.t.printf, n.Comparison
	p("\nover %s (%d tokens), %s against %s:\n", n.Over, c.Tokens, model, reference)
	p("  KL %.6f nats (largest %.6f at token %d), same best token %.1f %%, negative log likelihood %.4f against %.4f\n",
		c.KL, c.MaxKL, c.MaxKLAt, 100*c.Top1, c.NLL, c.ReferenceNLL)
	if c.FirstLayer < 0 {
		p("  no layer differs\n")
		return
	}
	if c.FirstTop1 >= 0 {
		p("  first divergence: the best token after token %d is another\n", c.FirstTop1)
	}
	p("  first layer that differs: %d (%d of %d layers were computed once for both)\n", c.FirstLayer, c.Once, len(c.Layers))
	for i, module := range c.Differing {
		if i == 8 {
			p("    and %d more modules\n", len(c.Differing)-i)
			break
		}
		p("    %s\n", module)
	}
	p("  layer   relative RMS of the residual's difference\n")
	most := 0.0
	for _, l := range c.Layers {
		most = max(most, l.RelativeRMS)
	}
	for _, l := range c.Layers {
		p("%s\n", strings.TrimRight(fmt.Sprintf("  %5d   %9.4g  %s", l.Layer, l.RelativeRMS, bar(l.RelativeRMS, most)), " "))
	}
}
