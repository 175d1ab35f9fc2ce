package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/internal/fault"
)

// output is stdout for a command that runs for long. When it cannot be written any more, the disk being full or nobody reading, the command
// is cancelled: no model speaks for an hour to a pipe that was closed.
type output struct {
	w      io.Writer
	cancel context.CancelFunc
	err    error // the first
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	if err != nil {
		o.err = err
		o.cancel()
	}
	return n, err
}

// watchOutput runs a command with such an output, and ends it with exit code 4 where the output failed. A closed pipe is an error like any
// other here, so that what the command keeps on the disk is removed.
func watchOutput(c *cli.Context, t *terminal, run func(*terminal) error) error {
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	c.Context = ctx
	out := &output{w: t.stdout, cancel: cancel}
	watched := *t
	watched.stdout = out
	err := run(&watched)
	if out.err == nil {
		return err
	}
	return &fault.Error{
		Kind: fault.IO, File: "stdout", Problem: cause(out.err).Error(), Err: out.err,
		Hint: "what takes the output must read it to its end, or have room for it",
	}
}

// cause is what the system says, without the call and the file.
func cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
