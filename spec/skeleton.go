package spec

import (
	"errors"

	"github.com/lagquant/lagquant/safetensors"
)

var errSkeleton = errors.New("not there yet")

type ExpectedTensor struct {
	Name   string
	DTypes []safetensors.DType // accepted, the usual one first
	Shapes [][]uint64          // accepted, the usual one first
}

func (e ExpectedTensor) Accepts(t safetensors.Tensor) bool { return false }

// false: the config is of no family whose tensors are known.
func ExpectedTensors(config []byte) ([]ExpectedTensor, bool, error) {
	return nil, false, errSkeleton
}
