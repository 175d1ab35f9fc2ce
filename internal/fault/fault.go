// Package fault is the one shape in which lagquant tells a user what is wrong: where, what was found, what was expected, what to do next.
//
// Printed it is one line, lower case and without a full stop:
//
//	model-00007-of-00011.safetensors: model.layers.6.mlp.experts.3.up_proj.weight: element [12, 801] is NaN
package fault

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind says what sort of trouble an Error is. It decides the exit code.
type Kind int

// The kinds, valued as the exit codes of the command line.
const (
	Findings Kind = 1 // a check ran and found differences
	Usage    Kind = 2 // wrong use: an option, a layer list, an output folder
	Refused  Kind = 3 // the checkpoint is malformed, inconsistent or not supported
	IO       Kind = 4 // reading or writing failed
	Device   Kind = 5 // a needed device is missing
)

// Error is one thing that is wrong. Every field but Kind may be empty.
type Error struct {
	Kind    Kind
	File    string // file, as the user knows it
	Tensor  string // tensor or module
	Problem string // what was found and, where it helps, what was expected
	Hint    string // what to do next, without the word "hint"
	Err     error  // the cause, for errors.Is; its text is shown only when Problem is empty
}

func (e *Error) Error() string {
	parts := make([]string, 0, 3)
	for _, s := range []string{e.File, e.Tensor, e.problem()} {
		if s != "" {
			parts = append(parts, Printable(s))
		}
	}
	return strings.Join(parts, ": ")
}

// Printable escapes what a terminal might take for a command: names come out of files that somebody else made.
func Printable(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

func (e *Error) problem() string {
	if e.Problem == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Problem
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain, and IO for any other error, since what is left then comes from the system.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return IO
}

// Cause is what the system says of a file, without the call and the path.
func Cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// In fills in the file where err is an Error that does not name one yet, and returns err.
func In(file string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok && e.File == "" {
		e.File = file
	}
	return err
}
