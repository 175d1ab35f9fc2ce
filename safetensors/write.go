package safetensors

import (
	"errors"
	"fmt"
	"io"
)

// Source is a tensor to be written and where its bytes come from. What Open returns is closed if it can be.
type Source struct {
	Tensor
	Open func() (io.Reader, error)
}

// Write writes a whole file in the layout of NewLayout, one source after the other and no tensor held in memory. A source that has fewer or
// more bytes than its shape says is an error around ErrSource; w then holds part of a file.
//
// A source that is an *os.File is handed to w's ReadFrom behind one io.LimitedReader, the form in which the system may copy without us.
func Write(w io.Writer, sources []Source, metadata map[string]string) error {
	tensors := make([]Tensor, len(sources))
	open := make(map[string]func() (io.Reader, error), len(sources))
	for i, s := range sources {
		tensors[i] = s.Tensor
		open[s.Name] = s.Open
	}
	layout, err := NewLayout(tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(layout.Prefix()); err != nil {
		return err
	}
	for _, t := range layout.Tensors {
		if err := writeTensor(w, t, open[t.Name]); err != nil {
			return inTensor(t.Name, err)
		}
	}
	return nil
}

func writeTensor(w io.Writer, t Tensor, open func() (io.Reader, error)) (err error) {
	r, err := open()
	if err != nil {
		return err
	}
	if c, ok := r.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	want := int64(t.Len())
	n, err := io.CopyN(w, r, want)
	if errors.Is(err, io.EOF) {
		return refuse(ErrSource, "", "its source ends after %d bytes, expected %d", n, want)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	switch n, err := io.ReadFull(r, make([]byte, 1)); {
	case n > 0:
		return refuse(ErrSource, "", "its source has more bytes than the expected %d", want)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	return nil
}
