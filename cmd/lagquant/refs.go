package main

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/pipeline"
	"github.com/lagquant/lagquant/safetensors"
)

// model is a checkpoint as the user named it.
type model struct {
	ref safetensors.Ref
	*safetensors.Checkpoint
}

func modelFlag() cli.Flag {
	return &cli.StringFlag{Name: "model", Usage: "checkpoint to work on (default: the first argument, else the current folder)"}
}

// modelName is the checkpoint that the command works on: --model, the first argument or the current folder.
func modelName(c *cli.Context) (string, error) {
	switch {
	case c.IsSet("model") && c.NArg() > 0:
		return "", usage("the checkpoint is named twice: --model "+c.String("model")+" and "+c.Args().First(), "name it once")
	case c.IsSet("model"):
		return c.String("model"), nil
	case c.NArg() > 0:
		return c.Args().First(), nil
	}
	return ".", nil
}

// resolve finds the folder of a checkpoint, and refuses what is only half there. beside is the command's other checkpoint, or nil.
func resolve(typed string, beside *safetensors.Ref) (safetensors.Ref, error) {
	if typed == "" {
		return safetensors.Ref{}, usage("a checkpoint is named by an empty word", "name a folder, or org/name@rev")
	}
	ref, err := safetensors.ResolveRef(typed, beside)
	if err == nil && pipeline.Unfinished(ref.Dir) {
		err = &fault.Error{
			Kind: fault.Refused, File: ref.Dir, Problem: "is the unfinished output of lagquant requantize",
			Hint: "run that command again to finish it",
		}
	}
	return ref, err
}

// open opens a checkpoint whose every fault refuses it.
func open(typed string, beside *safetensors.Ref) (*model, error) {
	ref, err := resolve(typed, beside)
	if err != nil {
		return nil, err
	}
	ckpt, err := safetensors.OpenCheckpoint(ref.Dir)
	switch {
	case err != nil && beside != nil:
		return nil, in(ref.Dir, err)
	case err != nil:
		return nil, fault.In(ref.Dir, err)
	}
	return &model{ref, ckpt}, nil
}

// in says in which of a command's checkpoints something is wrong.
func in(dir string, err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && !filepath.IsAbs(e.File) && !strings.HasPrefix(e.File, dir) {
		e.File = filepath.Join(dir, e.File)
	}
	return err
}

// titles names two checkpoints in a line of output: by their paths where they are otherwise called alike.
func titles(a, b safetensors.Ref) (string, string) {
	if x, y := title(a), title(b); x != y {
		return x, y
	}
	return a.Dir, b.Dir
}

// title names a checkpoint in a line of output.
func title(r safetensors.Ref) string {
	if r.Repo != "" {
		return r.Repo + "@" + r.Revision[:min(10, len(r.Revision))]
	}
	if abs, err := filepath.Abs(r.Dir); err == nil {
		return filepath.Base(abs)
	}
	return r.Typed
}
