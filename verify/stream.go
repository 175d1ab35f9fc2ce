package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

// chunk is how much is read at once: long enough for a disk, short enough for the cache.
const chunk = 1 << 20

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// tensorAt is a tensor and the shard that holds it.
type tensorAt struct {
	safetensors.Tensor
	shard *safetensors.Shard
}

// offset is where the tensor's bytes begin in the shard's file.
func (t *tensorAt) offset() int64 { return t.shard.Header.DataStart + int64(t.Begin) }

// files keeps the shards open that were read once.
type files struct {
	mu   sync.Mutex
	open map[*safetensors.Shard]*os.File
}

func newFiles() *files { return &files{open: map[*safetensors.Shard]*os.File{}} }

func (f *files) of(s *safetensors.Shard) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file := f.open[s]; file != nil {
		return file, nil
	}
	file, err := s.Open()
	if err != nil {
		return nil, err
	}
	f.open[s] = file
	return file, nil
}

func (f *files) close() {
	for _, file := range f.open {
		file.Close() // read only: nothing to lose
	}
}

// stream hands the bytes [from, to) of a shard's file to the consumer, at most a chunk at a time.
func (f *files) stream(ctx context.Context, s *safetensors.Shard, from, to int64, o Options, consume func([]byte)) error {
	file, err := f.of(s)
	if err != nil {
		return err
	}
	buffer := buffers.Get().(*[chunk]byte)
	defer buffers.Put(buffer)
	for at := from; at < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buffer[:min(chunk, to-at)]
		if err := readAt(file, part, at, s.Name); err != nil {
			return err
		}
		o.progress(int64(len(part)))
		consume(part)
		at += int64(len(part))
	}
	return nil
}

// read returns all bytes of a tensor.
func (f *files) read(t *tensorAt, o Options) ([]byte, error) {
	data := make([]byte, t.Len())
	return data, f.readInto(data, t, o)
}

// readInto reads all bytes of a tensor into data, which has its length.
func (f *files) readInto(data []byte, t *tensorAt, o Options) error {
	file, err := f.of(t.shard)
	if err != nil {
		return err
	}
	if err := readAt(file, data, t.offset(), t.shard.Name); err != nil {
		return err
	}
	o.progress(int64(len(data)))
	return nil
}

func readAt(file io.ReaderAt, p []byte, at int64, name string) error {
	n, err := file.ReadAt(p, at)
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, io.EOF):
		return &fault.Error{
			Kind: fault.IO, File: name, Err: io.ErrUnexpectedEOF,
			Problem: fmt.Sprintf("ends at byte %d, expected %d more: it was changed while it was read", at+int64(n), len(p)-n),
		}
	}
	return fmt.Errorf("%s: %w", name, err)
}
