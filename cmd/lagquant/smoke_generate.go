package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/engine"
	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

const defaultChat = "capital of France? one word"

func smokeGenerateCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "smoke-generate",
		Usage:     "load it in the embedded engine and let it speak",
		ArgsUsage: "[MODEL]",
		Description: describe(`Runs the checkpoint on the CPU, experts read from the disk as they are chosen, and prints what it says as it comes. Reads every scale
that a server reads: a wrong one shows here. With --against, both checkpoints are run over the same tokens, what is equal only once, and
what differs is told by its layer. With --suite, many prompts are answered and those are counted that never end.`,
			[]string{
				`lagquant smoke-generate ./nvfp4-0804 --expect Paris`,
				`lagquant smoke-generate ./nvfp4-0804 --chat "weather in Paris?" --think --max-tokens 200`,
				`lagquant smoke-generate ./nvfp4-0804 --against ./bf16 --text corpus.txt`,
				`lagquant smoke-generate ./nvfp4-0804 --suite prompts.txt --think --temperature 0.7 --max-tokens 2000`,
			},
			"0 done; 1 the answer lacks --expect, or the model computes infinities; 2 wrong use; 3 checkpoint refused; 4 reading or writing failed; 130 interrupted"),
		CustomHelpTemplate: commandHelp,
		Flags: []cli.Flag{
			modelFlag(),
			&cli.StringFlag{Name: "prompt", Usage: "raw text to go on with"},
			&cli.StringFlag{Name: "chat", Usage: "one user message (default: " + strconv.Quote(defaultChat) + ")"},
			&cli.StringFlag{Name: "messages", Usage: "JSON file with a conversation"},
			&cli.StringFlag{Name: "tools", Usage: "JSON file with function descriptions"},
			&cli.BoolFlag{Name: "think", Usage: "let it reason first"},
			&cli.StringFlag{Name: "max-tokens", Value: "32", Usage: "tokens to generate at most"},
			&cli.StringFlag{Name: "temperature", Value: "0", Usage: "0: the best token each time"},
			&cli.StringFlag{Name: "top-k", Value: "0", Usage: "sample from the best k tokens; 0: all"},
			&cli.StringFlag{Name: "top-p", Value: "1", Usage: "sample from the best tokens that together have this probability"},
			&cli.StringFlag{Name: "min-p", Value: "0", Usage: "sample from tokens with this share of the best one's probability"},
			&cli.StringFlag{Name: "repetition-penalty", Value: "1", Usage: "over 1: tokens seen before become less likely"},
			&cli.StringFlag{Name: "seed", Value: "0", Usage: "of the random choice"},
			&cli.StringFlag{Name: "activations", Value: "auto", Usage: "auto (as the config says), w4a16 or w4a4"},
			&cli.StringFlag{Name: "activation-scales", Value: "own", Usage: "own, or layer: the smallest of a layer's experts, as servers fuse them"},
			&cli.StringFlag{Name: "kv", Value: "f32", Usage: "f32, or fp8 with the checkpoint's KV scales, 1 where it has none"},
			&cli.StringFlag{Name: "expect", Usage: "text that the answer must have"},
			&cli.StringFlag{Name: "against", Usage: "checkpoint to compare with, token by token and layer by layer"},
			&cli.StringFlag{Name: "text", Usage: "with --against: text file to compare over, beside prompt and answer"},
			&cli.StringFlag{Name: "suite", Usage: "file with a prompt on each line, plain or JSON"},
			&cli.StringFlag{Name: "memory", Usage: "bound on the weights held in memory; the experts of one token always are (default: three quarters of what is free)"},
			&cli.StringFlag{Name: "jobs", Usage: "workers (default: one a core)"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error { return runSmoke(c, t) },
	}
}

// smoke is a model with all that it needs to speak.
type smoke struct {
	t         *terminal
	model     *engine.Model
	tokenizer *engine.Tokenizer
	config    *engine.GenerationConfig
	sampling  engine.SamplingOptions
	maxTokens int
	think     bool
	expect    string // "": anything
	ref       safetensors.Ref
	dir       string
}

func runSmoke(c *cli.Context, t *terminal) error {
	if err := checkSmoke(c); err != nil {
		return err
	}
	s, opts, err := newSmoke(c, t)
	if err != nil {
		return err
	}
	name, err := modelName(c)
	if err != nil {
		return err
	}
	m, err := open(name, nil)
	if err != nil {
		return err
	}
	s.ref, s.dir = m.ref, m.Dir
	if s.tokenizer, err = engine.LoadTokenizer(m.Dir); err != nil {
		return err
	}
	if s.config, err = engine.LoadGenerationConfig(m.Dir); err != nil {
		return err
	}
	if c.IsSet("suite") {
		return s.suite(c, m, opts)
	}
	prompt, parser, err := s.prompt(c)
	if err != nil {
		return err
	}
	if c.IsSet("against") {
		return s.against(c, m, opts, prompt, parser)
	}
	if s.model, err = engine.Load(m.Checkpoint, opts); err != nil {
		return err
	}
	defer s.model.Close()
	answer, err := s.answer(c.Context, prompt, parser)
	if err != nil {
		return err
	}
	return s.finish(answer, "", nil)
}

// prompt makes the ids of the prompt, and the parser of the answer where it is one of a chat.
func (s *smoke) prompt(c *cli.Context) ([]int32, *engine.OutputParser, error) {
	if c.IsSet("prompt") {
		ids, err := s.tokenizer.Encode(c.String("prompt"), true)
		return ids, nil, err
	}
	messages := engine.UserMessage(defaultChat)
	if c.IsSet("chat") {
		messages = engine.UserMessage(c.String("chat"))
	}
	var tools engine.Tools
	for _, file := range []struct {
		option string
		parse  func([]byte) error
	}{
		{"messages", func(b []byte) (err error) { messages, err = engine.ParseMessages(b); return err }},
		{"tools", func(b []byte) (err error) { tools, err = engine.ParseTools(b); return err }},
	} {
		if !c.IsSet(file.option) {
			continue
		}
		b, err := readInput(c, file.option)
		if err != nil {
			return nil, nil, err
		}
		if err := file.parse(b); err != nil {
			return nil, nil, fault.In(c.String(file.option), err)
		}
	}
	template, err := engine.LoadChatTemplate(s.dir)
	if err != nil {
		return nil, nil, err
	}
	text, err := template.Render(messages, tools, engine.RenderOptions{Kwargs: map[string]any{"enable_thinking": s.think}})
	if err != nil {
		return nil, nil, err
	}
	ids, err := s.tokenizer.Encode(text, false)
	return ids, engine.NewOutputParser(engine.OpensReasoning(text), tools), err
}

// answer is what a model said to a prompt.
type answer struct {
	prompt []int32
	result engine.Result
	output *engine.Output // of a chat
}

// answer lets a model go on with a prompt and prints what it says as it comes.
func (s *smoke) answer(ctx context.Context, prompt []int32, parser *engine.OutputParser) (*answer, error) {
	session, err := s.model.NewSession(len(prompt) + s.maxTokens)
	if err != nil {
		return nil, err
	}
	sampler, err := engine.NewSampler(s.sampling)
	if err != nil {
		return nil, err
	}
	result, err := engine.Generate(ctx, session, s.tokenizer, sampler, prompt, engine.GenerateOptions{
		MaxTokens: s.maxTokens, Stop: s.config.Stops,
		Emit: func(piece string) error {
			if parser != nil {
				parser.Feed(piece)
			}
			if s.t.json {
				return nil
			}
			_, err := fmt.Fprint(s.t.stdout, piece)
			return err
		},
	})
	if err == nil || result.Text != "" {
		s.t.printf("\n")
	}
	a := &answer{prompt: prompt, result: result}
	if parser != nil {
		parser.Close()
		out := parser.Output()
		a.output = &out
	}
	if errors.Is(err, context.Canceled) {
		hint := "what it said until then is above"
		if s.t.json {
			hint = "nothing was kept; run it again, with fewer --max-tokens if it takes too long"
		}
		return nil, &interrupted{hint}
	}
	return a, err
}

// smokeReport is the JSON document of a run.
type smokeReport struct {
	Schema        string        `json:"schema"`
	Model         string        `json:"model"`
	Against       string        `json:"against,omitempty"`
	Prompt        []int32       `json:"prompt_ids"`
	Result        engine.Result `json:"result"`
	Content       string        `json:"content"`
	Reasoning     string        `json:"reasoning,omitempty"`
	Calls         []toolCall    `json:"tool_calls,omitempty"`
	PromptRate    float64       `json:"prompt_tokens_per_second"`
	GenerateRate  float64       `json:"generated_tokens_per_second"`
	BytesPerToken int64         `json:"bytes_per_token"`
	BytesPerSec   float64       `json:"bytes_per_second"`
	OfRead        float64       `json:"of_read,omitempty"` // bytes per second over the machine's read rate; absent where the caches hold a token's weights
	Expect        string        `json:"expect,omitempty"`
	Met           bool          `json:"expectation_met"`
	Comparisons   []named       `json:"comparisons,omitempty"`
}

// finish prints rates, checks the expectation and ends the command.
func (s *smoke) finish(a *answer, against string, comparisons []named) error {
	stats := a.result.Stats
	r := smokeReport{
		Schema: "lagquant-smoke/1", Model: title(s.ref), Against: against, Prompt: a.prompt, Result: a.result,
		Content: a.said(), Reasoning: a.reasoning(), Calls: a.calls(),
		PromptRate: stats.PromptRate(), GenerateRate: stats.GenerateRate(), BytesPerToken: stats.BytesPerToken(), BytesPerSec: stats.BytesPerSecond(),
		Expect: s.expect, Met: strings.Contains(a.said(), s.expect), Comparisons: comparisons,
	}
	share := ""
	if r.BytesPerToken >= fromMemory {
		r.OfRead = r.BytesPerSec / readRate(max(4*fromMemory, 16<<20*runtime.GOMAXPROCS(0)), 100*time.Millisecond)
		share = fmt.Sprintf(" = %.0f %% of this machine's read rate", 100*r.OfRead)
	}
	generated := fmt.Sprintf("generated %d (%s)", len(a.result.IDs), a.result.Finish)
	if stats.Steps > 0 { // the first token is the prompt's
		generated = fmt.Sprintf("generated %d at %.1f tokens/s (%s), %s of weights a token, %s/s%s",
			len(a.result.IDs), r.GenerateRate, a.result.Finish, size(r.BytesPerToken), size(int64(r.BytesPerSec)), share)
	}
	s.t.note("prompt %d tokens at %.1f tokens/s, %s", stats.PromptTokens, r.PromptRate, generated)
	if err := s.t.document(r); err != nil {
		return err
	}
	if r.Met {
		return nil
	}
	s.t.note("the answer is %.200q, expected %q in it", r.Content, s.expect)
	switch {
	case a.output != nil && a.output.OpenReasoning:
		s.t.hint("it was still reasoning; give it more --max-tokens")
	case against == "":
		s.t.hint("compare it with a checkpoint that gives the right answer: --against")
	}
	return errFindings
}

// said is what an expectation is held against: the answer without its reasoning; of one that calls tools, all its text.
func (a *answer) said() string {
	if a.output == nil || len(a.output.Calls) > 0 && a.output.Content == "" {
		return a.result.Text
	}
	return a.output.Content
}

func (a *answer) reasoning() string {
	if a.output == nil {
		return ""
	}
	return a.output.Reasoning
}

// toolCall is an engine.ToolCall as a document has it.
type toolCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Malformed bool   `json:"malformed,omitempty"`
}

func (a *answer) calls() (calls []toolCall) {
	if a.output != nil {
		for _, call := range a.output.Calls {
			calls = append(calls, toolCall(call))
		}
	}
	return calls
}
