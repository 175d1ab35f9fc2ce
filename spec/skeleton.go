package spec

import (
	"errors"

	"github.com/lagquant/lagquant/safetensors"
)

var errSkeleton = errors.New("not there yet")

type Change struct {
	Line   int      `json:"line"` // of the first line before the edit, from 1
	Before []string `json:"before"`
	After  []string `json:"after"`
}

// all: every Linear module; quantize: those that become NVFP4.
func NarrowIgnore(config []byte, quantize, all []string) ([]byte, []Change, error) {
	return nil, nil, errSkeleton
}

// WeightOnly sets input_activations of the NVFP4 groups to null.
func WeightOnly(config []byte) ([]byte, []Change, error) { return nil, nil, errSkeleton }

type ExpectedTensor struct {
	Name   string
	DTypes []safetensors.DType // accepted, the usual one first
	Shapes [][]uint64          // accepted, the usual one first
}

func (e ExpectedTensor) Accepts(t safetensors.Tensor) bool { return false }

// false: the config is of no family whose tensors are known.
func ExpectedTensors(config []byte) ([]ExpectedTensor, bool, error) { return nil, false, errSkeleton }
