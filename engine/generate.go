package engine

import (
	"context"
	"fmt"

	"github.com/lagquant/lagquant/internal/fault"
)

// Finish says why a generation ended.
type Finish string

// The reasons to end.
const (
	FinishStop   Finish = "stop"   // a stop id
	FinishLength Finish = "length" // the budget, or the session's positions, ran out
)

// GenerateOptions of Generate.
type GenerateOptions struct {
	MaxTokens int
	Stop      func(id int32) bool      // nil: nothing stops; see GenerationConfig.Stops
	Emit      func(piece string) error // sees the text as it comes; its error ends the generation. nil: nothing
}

// Result is what a generation made.
type Result struct {
	IDs    []int32 `json:"ids"`  // with the stop id, where one ended it
	Text   string  `json:"text"` // without it; other special tokens stand in it as text
	Finish Finish  `json:"finish"`
	Stats  Stats   `json:"stats"` // of the session so far
}

// Generate appends a prompt to the session and lets it go on, one token at a time. When it fails, the result holds what there was until then.
func Generate(ctx context.Context, s *Session, t *Tokenizer, sampler *Sampler, prompt []int32, o GenerateOptions) (Result, error) {
	if n := s.position + len(prompt) + 1; n > s.positions {
		return Result{}, contextError(n, s.positions)
	}
	history := make([]int32, len(prompt), len(prompt)+max(o.MaxTokens, 0))
	copy(history, prompt)
	text := writer{stream: t.NewStream(false), emit: o.Emit}
	finish, err := FinishLength, error(nil)

	logits, err := s.Prefill(ctx, prompt)
	for n := 0; err == nil && n < o.MaxTokens; n++ {
		if err = finite(logits, len(s.model.layers)-1); err != nil {
			break
		}
		id := sampler.Next(logits, history)
		history = append(history, id)
		if o.Stop != nil && o.Stop(id) {
			finish = FinishStop
			break
		}
		if err = text.push(id); err != nil || n+1 == o.MaxTokens || s.position == s.positions {
			break
		}
		logits, err = s.Step(ctx, id)
	}
	if err == nil {
		err = text.flush()
	}
	return Result{IDs: history[len(prompt):], Text: string(text.all), Finish: finish, Stats: s.Snapshot()}, err
}

// writer decodes ids and passes the text on.
type writer struct {
	stream *Stream
	emit   func(piece string) error
	all    []byte
}

func (w *writer) push(id int32) error { return w.pass(len(w.all), w.stream.Append(w.all, id)) }

func (w *writer) flush() error { return w.pass(len(w.all), w.stream.AppendRest(w.all)) }

func (w *writer) pass(from int, all []byte) error {
	w.all = all
	if w.emit == nil || from == len(all) {
		return nil
	}
	return w.emit(string(all[from:]))
}

// finite refuses logits that no token can be chosen from.
func finite(logits []float32, layer int) error {
	for id, x := range logits {
		if x-x != 0 { // infinite or NaN
			return &fault.Error{
				Kind: fault.Findings, Err: ErrNotFinite, Problem: fmt.Sprintf("the logit of token %d is %v after layer %d", id, x, layer),
				Hint: "the head or the final norm is damaged; see lagquant verify",
			}
		}
	}
	return nil
}
