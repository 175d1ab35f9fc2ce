package safetensors

import (
	"errors"
	"io/fs"
	"os"

	"github.com/lagquant/lagquant/internal/fault"
)

// Shard is one safetensors file of a checkpoint, its header read and checked. It holds no open file.
type Shard struct {
	Name   string // as the index calls it
	Path   string
	Size   int64
	Header *Header
}

// Open opens the file for reading. Links are followed: a Hugging Face snapshot is made of them.
func (s *Shard) Open() (*os.File, error) { return os.Open(s.Path) }

// ReadTensor reads the bytes of one tensor of the shard into memory; meant for small ones.
func (s *Shard) ReadTensor(t Tensor) ([]byte, error) {
	f, err := s.Open()
	if err != nil {
		return nil, ioFault(s.Name, err)
	}
	defer f.Close()
	b := make([]byte, t.Len())
	if err := readFull(f, b, s.Header.DataStart+int64(t.Begin)); err != nil {
		return nil, inTensor(t.Name, ioFault(s.Name, err))
	}
	return b, nil
}

// openShard reads the header of a file that the index, the folder or a test calls name.
func openShard(name, path string) (*Shard, error) {
	f, size, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.In(name, missingFile(path))
	}
	if err != nil {
		return nil, ioFault(name, err)
	}
	defer f.Close()
	h, err := ReadHeader(f, size)
	if err != nil {
		return nil, ioFault(name, err)
	}
	return &Shard{Name: name, Path: path, Size: size, Header: h}, nil
}

// openRegular opens a regular file, or a link to one. It looks before it opens, since opening a pipe would wait for a writer.
func openRegular(path string) (*os.File, int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, refuse(ErrNotAFile, "", "this is no regular file (%s)", info.Mode())
	}
	f, err := os.Open(path)
	return f, info.Size(), err
}

// missingFile tells a file that is not there from a link whose target is not there, as a pruned cache leaves them.
func missingFile(path string) *fault.Error {
	const hint = "download the missing file, or take the checkpoint from a folder that has it"
	if target, err := os.Readlink(path); err == nil {
		return refuse(ErrShardMissing, hint, "the file is a link to %s, which is not there", target)
	}
	return refuse(ErrShardMissing, hint, "the file is not there")
}

// ioFault puts the file's name on an error. What is no *fault.Error yet came from the system.
func ioFault(name string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return fault.In(name, err)
	}
	e := &fault.Error{Kind: fault.IO, File: name, Err: err}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		e.Problem = p.Op + ": " + p.Err.Error() // the path is in File already
	}
	return e
}
