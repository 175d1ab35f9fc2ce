package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/lagquant/lagquant/internal/fault"
)

// SuitePrompt is one prompt of a suite.
type SuitePrompt struct {
	Name      string          `json:"name"`
	Chat      string          `json:"chat"`       // one user message; or
	Messages  json.RawMessage `json:"messages"`   // a conversation
	Think     *bool           `json:"think"`      // nil: as the suite says
	MaxTokens int             `json:"max_tokens"` // 0: as the suite says
}

// ParseSuite reads a suite: one prompt a line, either a JSON object with the fields of SuitePrompt or plain text, which is one user message.
func ParseSuite(data []byte) ([]SuitePrompt, error) {
	var prompts []SuitePrompt
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		p := SuitePrompt{Chat: string(line)}
		if line[0] == '{' {
			p = SuitePrompt{}
			if err := p.decode(line); err != nil {
				return nil, &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("line %d of the suite: %v", n, err)}
			}
			if (p.Chat == "") == (p.Messages == nil) {
				return nil, &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("line %d of the suite needs either \"chat\" or \"messages\"", n)}
			}
		}
		if p.MaxTokens < 0 {
			return nil, &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf("line %d of the suite: max_tokens is %d", n, p.MaxTokens)}
		}
		if p.Name == "" {
			p.Name = fmt.Sprintf("line %d", n)
		}
		prompts = append(prompts, p)
	}
	if len(prompts) == 0 {
		return nil, &fault.Error{Kind: fault.Usage, Problem: "the suite has no prompts", Hint: "write one prompt a line"}
	}
	return prompts, lines.Err()
}

// decode reads the fields from a line that holds one JSON object and nothing else.
func (p *SuitePrompt) decode(line []byte) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(p)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: found %s, expected %s", e.Field, foundJSON(e.Value), expectedJSON(e.Type))
	}
	if _, more := d.Token(); err == nil && !errors.Is(more, io.EOF) {
		return errors.New("more follows after the object")
	}
	return err
}

// SuiteOptions of RunSuite.
type SuiteOptions struct {
	Sampling  SamplingOptions
	Think     bool
	MaxTokens int
	Stop      func(id int32) bool // see GenerateOptions
	Done      func(SuiteAnswer)   // called after each prompt; nil: not
}

// SuiteAnswer is what came of one prompt.
type SuiteAnswer struct {
	Name            string     `json:"name"`
	Text            string     `json:"text"`
	Tokens          int        `json:"tokens"`
	Finish          Finish     `json:"finish"`
	OpenReasoning   bool       `json:"open_reasoning"` // it ended inside its reasoning
	ReasoningBytes  int        `json:"reasoning_bytes"`
	Calls           int        `json:"tool_calls"`
	Repetition      Repetition `json:"repetition"`
	TokensPerSecond float64    `json:"tokens_per_second"`
}

// SuiteReport sums a suite up.
type SuiteReport struct {
	Prompts     int           `json:"prompts"`
	Finished    int           `json:"finished"`      // ended by themselves
	OutOfBudget int           `json:"out_of_budget"` // did not, and of these:
	InReasoning int           `json:"in_reasoning"`  // were still reasoning
	Repeating   int           `json:"repeating"`     // ended in a loop: see Repetition.Loop
	Tokens      int           `json:"tokens"`
	Answers     []SuiteAnswer `json:"answers"`
}

// RunSuite lets a model answer every prompt in a session of its own. The seed goes up by one from prompt to prompt. All prompts are made ready
// before the first is answered, so that a fault in the last one does not cost the others' answers.
func RunSuite(ctx context.Context, m *Model, t *Tokenizer, chat *ChatTemplate, prompts []SuitePrompt, o SuiteOptions) (*SuiteReport, error) {
	ready := make([]readyPrompt, len(prompts))
	for i, p := range prompts {
		var err error
		if ready[i], err = p.ready(m, t, chat, o); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	report := &SuiteReport{Prompts: len(prompts)}
	for i, p := range ready {
		o := o
		o.Sampling.Seed += uint64(i)
		answer, err := p.run(ctx, m, t, o)
		if err != nil {
			return report, fmt.Errorf("%s: %w", p.name, err)
		}
		report.Answers = append(report.Answers, answer)
		report.Tokens += answer.Tokens
		if answer.Finish == FinishStop {
			report.Finished++
		} else {
			report.OutOfBudget++
			if answer.OpenReasoning {
				report.InReasoning++
			}
		}
		if answer.Repetition.Loop > 0 {
			report.Repeating++
		}
		if o.Done != nil {
			o.Done(answer)
		}
	}
	return report, nil
}

// readyPrompt is a prompt in tokens.
type readyPrompt struct {
	name, text string // text as the template rendered it
	ids        []int32
	maxTokens  int
}

func (p SuitePrompt) ready(m *Model, t *Tokenizer, chat *ChatTemplate, o SuiteOptions) (readyPrompt, error) {
	messages := UserMessage(p.Chat)
	var err error
	if p.Messages != nil {
		if messages, err = ParseMessages(p.Messages); err != nil {
			return readyPrompt{}, err
		}
	}
	r := readyPrompt{name: p.Name, maxTokens: cmp.Or(p.MaxTokens, o.MaxTokens)}
	r.text, err = chat.Render(messages, Tools{}, RenderOptions{Kwargs: map[string]any{"enable_thinking": or(p.Think, o.Think)}})
	if err != nil {
		return r, err
	}
	if r.ids, err = t.Encode(r.text, false); err != nil {
		return r, err
	}
	return r, m.checkPositions(len(r.ids) + r.maxTokens)
}

func (p readyPrompt) run(ctx context.Context, m *Model, t *Tokenizer, o SuiteOptions) (SuiteAnswer, error) {
	answer := SuiteAnswer{Name: p.name}
	s, err := m.NewSession(len(p.ids) + p.maxTokens)
	if err != nil {
		return answer, err
	}
	sampler, err := NewSampler(o.Sampling)
	if err != nil {
		return answer, err
	}
	result, err := Generate(ctx, s, t, sampler, p.ids, GenerateOptions{MaxTokens: p.maxTokens, Stop: o.Stop})
	if err != nil {
		return answer, err
	}
	out := ParseOutput(result.Text, OpensReasoning(p.text), Tools{})
	answer.Text, answer.Tokens, answer.Finish = result.Text, len(result.IDs), result.Finish
	answer.OpenReasoning, answer.ReasoningBytes, answer.Calls = out.OpenReasoning, len(out.Reasoning), len(out.Calls)
	answer.Repetition = FindRepetition(result.IDs)
	answer.TokensPerSecond = result.Stats.GenerateRate()
	return answer, nil
}

// Repetition is how much of a text says again what stood before.
type Repetition struct {
	Share float64 `json:"share"` // of its 8-grams, those that came before in the same text
	Loop  int     `json:"loop"`  // length in tokens of what the text repeats at its end at least four times and over at least 32 tokens; 0: it does not
}

const (
	gram       = 8
	loopTimes  = 4
	loopTokens = 32
)

// FindRepetition looks for repetition in the ids of an answer.
func FindRepetition(ids []int32) Repetition {
	var r Repetition
	if n := len(ids) - gram + 1; n > 0 {
		seen := map[[gram]int32]bool{}
		again := 0
		for i := range n {
			g := [gram]int32(ids[i:])
			if seen[g] {
				again++
			}
			seen[g] = true
		}
		r.Share = float64(again) / float64(n)
	}
	for period := 1; period <= len(ids)/loopTimes; period++ {
		run := 0 // tokens at the end that equal the one a period before
		for i := len(ids) - 1; i >= period && ids[i] == ids[i-period]; i-- {
			run++
		}
		if total := run + period; total >= max(loopTimes*period, loopTokens) {
			r.Loop = period
			break
		}
	}
	return r
}
