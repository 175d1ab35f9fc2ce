package main

import (
	"context"
	"errors"
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
			"0 done; 1 the answer lacks --expect; 2 wrong use; 3 checkpoint refused; 4 reading failed; 130 interrupted"),
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
			&cli.StringFlag{Name: "kv", Value: "f32", Usage: "f32, or fp8 with the checkpoint's KV scales"},
			&cli.StringFlag{Name: "expect", Usage: "text that the answer must have"},
			&cli.StringFlag{Name: "against", Usage: "checkpoint to compare with, token by token and layer by layer"},
			&cli.StringFlag{Name: "text", Usage: "with --against: text file to compare over, beside prompt and answer"},
			&cli.StringFlag{Name: "suite", Usage: "file with a prompt on each line, plain or JSON"},
			&cli.StringFlag{Name: "memory", Usage: "bound on the weights held in memory (default: three quarters of what is free)"},
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
	dir       string
}

func runSmoke(c *cli.Context, t *terminal) error {
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
		return usage("--suite goes without --against, --expect and --tools", "")
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
	s.dir = m.Dir
	if s.tokenizer, err = engine.LoadTokenizer(m.Dir); err != nil {
		return err
	}
	if s.config, err = engine.LoadGenerationConfig(m.Dir); err != nil {
		return err
	}
	if c.IsSet("against") {
		return s.against(c, m, opts)
	}
	if s.model, err = engine.Load(m.Checkpoint, opts); err != nil {
		return err
	}
	defer s.model.Close()
	if c.IsSet("suite") {
		return s.suite(c)
	}
	prompt, parser, err := s.prompt(c)
	if err != nil {
		return err
	}
	answer, err := s.answer(c.Context, s.model, prompt, parser)
	if err != nil {
		return err
	}
	return s.finish(answer, nil, c.String("expect"))
}

// newSmoke reads the options that are numbers and choices.
func newSmoke(c *cli.Context, t *terminal) (*smoke, engine.Options, error) {
	s := &smoke{t: t, think: c.Bool("think"), sampling: engine.GreedyOptions()}
	opts := engine.Options{
		Activations: engine.Activations(c.String("activations")), InputScales: engine.InputScales(c.String("activation-scales")), KV: engine.KVFormat(c.String("kv")),
	}
	for _, choice := range []struct {
		option string
		known  []string
	}{{"activations", []string{"auto", "w4a16", "w4a4"}}, {"activation-scales", []string{"own", "layer"}}, {"kv", []string{"f32", "fp8"}}} {
		if value := c.String(choice.option); !slices.Contains(choice.known, value) {
			return nil, opts, usage(fmt.Sprintf("--%s %s is not known", choice.option, value), suggest(value, choice.known, "", "use "+strings.Join(choice.known, ", ")))
		}
	}
	for _, number := range []struct {
		option string
		to     *float64
	}{
		{"temperature", &s.sampling.Temperature}, {"top-p", &s.sampling.TopP}, {"min-p", &s.sampling.MinP}, {"repetition-penalty", &s.sampling.RepetitionPenalty},
	} {
		var err error
		if *number.to, err = strconv.ParseFloat(c.String(number.option), 64); err != nil || math.IsNaN(*number.to) {
			return nil, opts, usage(fmt.Sprintf("--%s %s is not a number", number.option, c.String(number.option)), "")
		}
	}
	seed, err1 := strconv.ParseUint(c.String("seed"), 10, 64)
	topK, err2 := strconv.Atoi(c.String("top-k"))
	maxTokens, err3 := strconv.Atoi(c.String("max-tokens"))
	if err := errors.Join(err1, err2, err3); err != nil || maxTokens < 1 {
		return nil, opts, usage(fmt.Sprintf("--seed %s, --top-k %s, --max-tokens %s: each is a whole number, and the last at least 1",
			c.String("seed"), c.String("top-k"), c.String("max-tokens")), "")
	}
	s.sampling.Seed, s.sampling.TopK, s.maxTokens = seed, topK, maxTokens
	if _, err := engine.NewSampler(s.sampling); err != nil {
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
		b, err := os.ReadFile(c.String(file.option))
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
func (s *smoke) answer(ctx context.Context, m *engine.Model, prompt []int32, parser *engine.OutputParser) (*answer, error) {
	session, err := m.NewSession(len(prompt) + s.maxTokens)
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
	s.t.printf("\n")
	a := &answer{prompt: prompt, result: result}
	if parser != nil {
		parser.Close()
		out := parser.Output()
		a.output = &out
	}
	if errors.Is(err, context.Canceled) {
		return nil, &interrupted{"what it said until then is above"}
	}
	return a, err
}

// finish prints rates, checks the expectation and ends the command.
func (s *smoke) finish(a *answer, comparisons []named, expect string) error {
	stats := a.result.Stats
	s.t.note("prompt %d tokens at %.1f tokens/s, generated %d at %.1f tokens/s (%s), %s of weights a token, %s/s",
		stats.PromptTokens, stats.PromptRate(), stats.GeneratedTokens, stats.GenerateRate(), a.result.Finish, size(stats.BytesPerToken()), size(int64(stats.BytesPerSecond())))
	heard := a.result.Text
	if a.output != nil && a.output.Content != "" {
		heard = a.output.Content
	}
	met := strings.Contains(heard, expect)
	err := s.t.document(struct {
		Schema      string            `json:"schema"`
		Prompt      []int32           `json:"prompt_ids"`
		Result      engine.Result     `json:"result"`
		Content     string            `json:"content"`
		Reasoning   string            `json:"reasoning,omitempty"`
		Calls       []engine.ToolCall `json:"tool_calls,omitempty"`
		Expect      string            `json:"expect,omitempty"`
		Met         bool              `json:"expectation_met"`
		Comparisons []named           `json:"comparisons,omitempty"`
	}{"lagquant-smoke/1", a.prompt, a.result, heard, a.reasoning(), a.calls(), expect, met, comparisons})
	if err != nil {
		return err
	}
	if !met {
		s.t.note("the answer lacks %q", expect)
		return errFindings
	}
	return nil
}

func (a *answer) reasoning() string {
	if a.output == nil {
		return ""
	}
	return a.output.Reasoning
}

func (a *answer) calls() []engine.ToolCall {
	if a.output == nil {
		return nil
	}
	return a.output.Calls
}
