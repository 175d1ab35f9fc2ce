package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
)

// Link says how an untouched file gets into the output.
type Link string

// The ways. LinkAuto clones where the file system can and copies elsewhere; it never makes hard links, since a later change of the output
// would then change the source.
const (
	LinkAuto    Link = "auto"
	LinkReflink Link = "reflink"
	LinkHard    Link = "hard"
	LinkCopy    Link = "copy"
)

// workDir is the folder inside an output that holds what only an unfinished job needs. Where it exists the output is not whole.
const workDir = ".lagquant"

// Unfinished says whether dir is the output of a job that has not finished yet.
func Unfinished(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, workDir))
	return err == nil
}

// publish moves a finished temporary file to its place: contents on disk first, then the name, so that a name never stands for less.
func publish(f *os.File, mode fs.FileMode, path string) error {
	err := errors.Join(f.Chmod(mode.Perm()), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// writeFile puts data at path, whole or not at all, by way of a temporary file in the work folder.
func writeFile(out, name string, data []byte, mode fs.FileMode) error {
	f, err := createTemp(out, name)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	return publish(f, mode, filepath.Join(out, name))
}

// createTemp opens an empty temporary file for the output file of that name, over any left by a run that was killed.
func createTemp(out, name string) (*os.File, error) {
	path := tempPath(out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(out, name)), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
}

func tempPath(out, name string) string {
	return filepath.Join(out, workDir, "partial", name)
}

// removeTree does what os.RemoveAll does, by names rather than by handles of folders: Wine, under which people try programs for Windows, has no
// removing by handle.
func removeTree(path string) error {
	var names []string
	err := filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range slices.Backward(names) {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// bring puts an unchanged source file into the output as link says.
func bring(ctx context.Context, src, out, name string, link Link) error {
	from, err := os.Open(src)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if link == LinkHard {
		return hardLink(src, out, name)
	}
	to, err := createTemp(out, name)
	if err != nil {
		return err
	}
	if err := fill(ctx, to, from, link); err != nil {
		return errors.Join(err, to.Close())
	}
	return publish(to, info.Mode(), filepath.Join(out, name))
}

// fill makes the empty file to equal to from.
func fill(ctx context.Context, to, from *os.File, link Link) error {
	if link != LinkCopy {
		err := reflink(to, from)
		if err == nil {
			return nil
		}
		if link == LinkReflink {
			return &fault.Error{
				Kind: fault.IO, File: from.Name(), Problem: fmt.Sprintf("cannot be cloned: %v", err), Err: err,
				Hint: "reflinks need source and output on one btrfs, XFS or APFS volume; use --link auto or --link copy",
			}
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := io.CopyN(to, from, fillChunk) // file to file: copy_file_range on Linux
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fillChunk is how much is copied before an interrupt is looked for.
const fillChunk = 64 << 20

func hardLink(src, out, name string) error {
	real, err := filepath.EvalSymlinks(src) // a link to a link would not be a regular file
	if err != nil {
		return err
	}
	path := filepath.Join(out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(real, path); err != nil {
		return &fault.Error{
			Kind: fault.IO, File: src, Problem: fmt.Sprintf("cannot be hard-linked: %v", err), Err: err,
			Hint: "hard links need source and output on one volume; use --link auto or --link copy",
		}
	}
	return nil
}
