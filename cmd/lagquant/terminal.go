package main

// The rules of the terminal: results go to stdout, everything else to stderr. A message on stderr starts with the program's name, has no
// capital and no full stop, and may be followed by a hint line. With --json stdout gets one document, also when the command fails.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/lagquant/lagquant/internal/fault"
)

const exitInterrupted = 130

type terminal struct {
	stdout, stderr io.Writer
	json           bool
	bar            bool // stderr is a terminal, where a progress bar can move
	quiet          bool // no progress unless asked for

	clear func() // takes a progress bar off the line that a message is printed on; nil: there is none
}

func newTerminal(stdout, stderr *os.File) *terminal {
	return &terminal{stdout: stdout, stderr: stderr, bar: term.IsTerminal(int(stderr.Fd()))}
}

// errFindings ends a command whose result, already printed, is that something was found.
var errFindings = &fault.Error{Kind: fault.Findings}

// interrupted ends a command that a signal stopped.
type interrupted struct{ hint string }

func (e *interrupted) Error() string { return "interrupted" }

// note prints a message to stderr.
func (t *terminal) note(format string, args ...any) {
	if t.clear != nil {
		t.clear()
	}
	fmt.Fprintf(t.stderr, "lagquant: %s\n", fault.Printable(fmt.Sprintf(format, args...)))
}

func (t *terminal) hint(text string) {
	if text != "" {
		t.note("hint: %s", text)
	}
}

// printf prints lines of a result, unless the result is a JSON document. What a terminal might take for a command is escaped.
func (t *terminal) printf(format string, args ...any) {
	if t.json {
		return
	}
	lines := strings.Split(fmt.Sprintf(format, args...), "\n")
	for i, line := range lines {
		lines[i] = fault.Printable(line)
	}
	fmt.Fprint(t.stdout, strings.Join(lines, "\n"))
}

// document prints the result of a command as JSON where that was asked for.
func (t *terminal) document(v any) error {
	if !t.json {
		return nil
	}
	e := json.NewEncoder(t.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	return e.Encode(v)
}

// end prints an error and returns the exit code.
func (t *terminal) end(err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, errFindings) {
		return int(fault.Findings)
	}
	problem := struct {
		Schema  string `json:"schema"`
		Exit    int    `json:"exit"`
		File    string `json:"file,omitempty"`
		Tensor  string `json:"tensor,omitempty"`
		Problem string `json:"problem"`
		Hint    string `json:"hint,omitempty"`
	}{Schema: "lagquant-error/1", Exit: int(fault.KindOf(err)), Problem: err.Error()}
	stop, stopped := errors.AsType[*interrupted](err)
	f, known := errors.AsType[*fault.Error](err)
	switch {
	case stopped:
		problem.Exit, problem.Problem, problem.Hint = exitInterrupted, stop.Error(), stop.hint
	case errors.Is(err, context.Canceled):
		problem.Exit, problem.Problem = exitInterrupted, "interrupted"
	case known:
		problem.File, problem.Tensor, problem.Hint = f.File, f.Tensor, f.Hint
		if f.Kind == fault.Refused && f.Hint == "" {
			problem.Hint = "compare it with another download of the checkpoint; if other programs load this one, lagquant lacks what it takes"
		}
	}
	problem.Problem = strings.ReplaceAll(problem.Problem, "\n", "; ") // joined errors
	t.note("%s", problem.Problem)
	t.hint(problem.Hint)
	if err := t.document(problem); err != nil {
		t.note("%v", err)
	}
	return problem.Exit
}
