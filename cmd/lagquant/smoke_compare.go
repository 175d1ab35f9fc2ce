package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/engine"
)

// named is a comparison with what it was made over.
type named struct {
	Over       string             `json:"over"`
	Comparison *engine.Comparison `json:"comparison"`
}

// against runs the model and a reference over the prompt with the reference's answer, and over a text if there is one.
func (s *smoke) against(c *cli.Context, m *model, opts engine.Options) error {
	r, err := open(c.String("against"), &m.ref)
	if err != nil {
		return err
	}
	reference, err := engine.Load(r.Checkpoint, opts)
	if err != nil {
		return err
	}
	defer reference.Close()
	opts.Beside = reference
	if s.model, err = engine.Load(m.Checkpoint, opts); err != nil {
		return err
	}
	defer s.model.Close()
	prompt, parser, err := s.prompt(c)
	if err != nil {
		return err
	}
	a, err := s.answer(c.Context, s.model, prompt, parser)
	if err != nil {
		return err
	}
	ids := append(append([]int32{}, prompt...), a.result.IDs...)
	over, err := engine.Compare(c.Context, s.model, reference, ids, len(prompt)-1)
	if err != nil {
		return err
	}
	comparisons := []named{{"prompt and answer", over}}
	if c.IsSet("text") {
		b, err := os.ReadFile(c.String("text"))
		if err != nil {
			return err
		}
		if ids, err = s.tokenizer.Encode(string(b), true); err != nil {
			return err
		}
		if over, err = engine.Compare(c.Context, s.model, reference, ids, 0); err != nil {
			return err
		}
		comparisons = append(comparisons, named{c.String("text"), over})
	}
	for _, n := range comparisons {
		s.printComparison(n, title(m.ref), title(r.ref))
	}
	return s.finish(a, comparisons, c.String("expect"))
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
		p("  first other best token: %d\n", c.FirstTop1)
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
		p("  %5d   %8.5f  %s\n", l.Layer, l.RelativeRMS, bar(l.RelativeRMS, most))
	}
}
