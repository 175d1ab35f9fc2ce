package safetensors

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
	nlpodyssey "github.com/nlpodyssey/safetensors"
)

// SecondReading reads the header of a shard once more with github.com/nlpodyssey/safetensors, a reader that shares no code with this one, over
// a read-only mapping of the file, and compares names, types, shapes and offsets.
//
// That reader knows the plain types alone (no 8-bit or narrower floats), and a system without memory mapping has none; then the error is
// around ErrNoSecondReader, which is no fault of the file. Where the two disagree it is a *fault.Error around ErrSecondReader.
func SecondReading(s *Shard) (err error) {
	for _, t := range s.Header.Tensors {
		if _, err := nlpodyssey.ParseDType(string(t.DType)); err != nil {
			return fmt.Errorf("%w: %s: %s is %s", ErrNoSecondReader, s.Name, t.Name, t.DType)
		}
	}
	f, err := s.Open()
	if err != nil {
		return ioFault(s.Name, err)
	}
	defer f.Close()
	mapped, unmap, err := Map(f, 0, s.Size)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNoSecondReader, s.Name, err)
	}
	defer func() { err = errors.Join(err, unmap()) }()
	return fault.In(s.Name, Guard(func() error { return compareReadings(s.Header, mapped) }))
}

// compareReadings runs the second reader.
func compareReadings(h *Header, file []byte) error {
	n, metadata, err := nlpodyssey.ReadMetadata(file)
	if err != nil {
		return refuse(ErrSecondReader, "", "nlpodyssey/safetensors refuses what this reader accepts: %v", err)
	}
	infos := metadata.Tensors()
	if got := int64(n) + 8; got != h.DataStart || len(infos) != len(h.Tensors) {
		return refuse(ErrSecondReader, "", "nlpodyssey/safetensors finds %d tensors from byte %d on, this reader %d from byte %d on",
			len(infos), got, len(h.Tensors), h.DataStart)
	}
	for _, t := range h.Tensors {
		info, ok := infos[t.Name]
		if !ok {
			return inTensor(t.Name, refuse(ErrSecondReader, "", "nlpodyssey/safetensors does not find this tensor"))
		}
		other := Tensor{t.Name, DType(info.DType.String()), info.Shape, info.DataOffsets[0], info.DataOffsets[1]}
		if other.DType != t.DType || !slices.Equal(other.Shape, t.Shape) || other.Begin != t.Begin || other.End != t.End {
			return inTensor(t.Name, refuse(ErrSecondReader, "", "nlpodyssey/safetensors reads %s, this reader %s", other.brief(), t.brief()))
		}
	}
	return nil
}

func (t Tensor) brief() string {
	return fmt.Sprintf("%s %s at [%d, %d]", t.DType, shapeString(t.Shape), t.Begin, t.End)
}
