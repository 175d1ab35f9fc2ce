package main

import (
	"context"
	"io"

	"github.com/lagquant/lagquant/internal/fault"
)

// output is stdout. When it cannot be written any more, the disk being full or nobody reading, the command is cancelled: no model speaks for
// an hour to a pipe that was closed, and what a command keeps on the disk for a while is removed.
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

// fault is the error that a command ends with when its output failed.
func (o *output) fault() error {
	return &fault.Error{
		Kind: fault.IO, File: "stdout", Problem: fault.Cause(o.err).Error(), Err: o.err,
		Hint: "what takes the output must read it to its end, or have room for it",
	}
}
