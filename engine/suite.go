package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"

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
			d := json.NewDecoder(bytes.NewReader(line))
			d.DisallowUnknownFields()
			if err := d.Decode(&p); err != nil {
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
		return nil, &fault.Error{Kind: fault.Usage, Problem: "the suite has no prompts"}
	}
	return prompts, lines.Err()
}

// SuiteOptions of RunSuite.
type SuiteOptions struct {
	Sampling  SamplingOptions
	Think     bool
	MaxTokens int
	Kwargs    map[string]any      // for the template, beside enable_thinking
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

// RunSuite lets a model answer every prompt in a session of its own. The seed goes up by one from prompt to prompt.
func RunSuite(ctx context.Context, m *Model, t *Tokenizer, chat *ChatTemplate, prompts []SuitePrompt, o SuiteOptions) (*SuiteReport, error) {
	report := &SuiteReport{Prompts: len(prompts)}
	for i, p := range prompts {
		o := o
		o.Sampling.Seed += uint64(i)
		answer, err := runPrompt(ctx, m, t, chat, p, o)
		if err != nil {
			return report, fmt.Errorf("%s: %w", p.Name, err)
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

func runPrompt(ctx context.Context, m *Model, t *Tokenizer, chat *ChatTemplate, p SuitePrompt, o SuiteOptions) (SuiteAnswer, error) {
	answer := SuiteAnswer{Name: p.Name}
	messages := UserMessage(p.Chat)
	if p.Messages != nil {
		var err error
		if messages, err = ParseMessages(p.Messages); err != nil {
			return answer, err
		}
	}
	kwargs := map[string]any{}
	for name, v := range o.Kwargs {
		kwargs[name] = v
	}
	kwargs["enable_thinking"] = or(p.Think, o.Think)
	text, err := chat.Render(messages, Tools{}, RenderOptions{Kwargs: kwargs})
	if err != nil {
		return answer, err
	}
	ids, err := t.Encode(text, false)
	if err != nil {
		return answer, err
	}
	budget := p.MaxTokens
	if budget == 0 {
		budget = o.MaxTokens
	}
	s, err := m.NewSession(len(ids) + budget)
	if err != nil {
		return answer, err
	}
	sampler, err := NewSampler(o.Sampling)
	if err != nil {
		return answer, err
	}
	result, err := Generate(ctx, s, t, sampler, ids, GenerateOptions{MaxTokens: budget, Stop: o.Stop})
	if err != nil {
		return answer, err
	}
	out := ParseOutput(result.Text, OpensReasoning(text), Tools{})
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
