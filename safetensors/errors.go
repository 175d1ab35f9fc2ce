package safetensors

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
)

// Why a file is refused. Each comes inside a *fault.Error that carries the tensor, the numbers found and expected, and a hint.
var (
	ErrEmptyFile        = errors.New("empty file")
	ErrFileTooSmall     = errors.New("file too small for a header")
	ErrLFSPointer       = errors.New("git LFS pointer")
	ErrZip              = errors.New("zip archive")
	ErrPickle           = errors.New("pickle")
	ErrHeaderTooLarge   = errors.New("header too large")
	ErrHeaderBeyondFile = errors.New("header longer than the file")
	ErrHeaderStart      = errors.New("header does not start with {")
	ErrUTF8             = errors.New("invalid UTF-8")
	ErrJSON             = errors.New("invalid JSON")
	ErrDuplicateKey     = errors.New("duplicate key")
	ErrEntry            = errors.New("malformed tensor entry")
	ErrMetadata         = errors.New("malformed __metadata__")
	ErrOffsets          = errors.New("data ends before it begins")
	ErrHole             = errors.New("hole in the data")
	ErrOverlap          = errors.New("overlapping tensors")
	ErrSizeOverflow     = errors.New("tensor size overflows")
	ErrPartialByte      = errors.New("tensor ends inside a byte")
	ErrSizeMismatch     = errors.New("shape and data_offsets disagree")
	ErrFileTooShort     = errors.New("file shorter than its header says")
	ErrTrailingBytes    = errors.New("file longer than its header says")
	ErrName             = errors.New("name that no header can hold")
	ErrSource           = errors.New("source of the wrong length")
)

// Why a checkpoint is refused.
var (
	ErrNoShards       = errors.New("no safetensors files")
	ErrIndex          = errors.New("malformed index")
	ErrTooLarge       = errors.New("file too large")
	ErrShardName      = errors.New("shard name leads out of the folder")
	ErrShardMissing   = errors.New("shard missing")
	ErrNotAFile       = errors.New("not a regular file")
	ErrTensorMissing  = errors.New("tensor missing from its shard")
	ErrNotInIndex     = errors.New("tensor not in the index")
	ErrWrongShard     = errors.New("tensor in another shard than the index says")
	ErrTwoShards      = errors.New("tensor in two shards")
	ErrUnknownTensor  = errors.New("no such tensor")
	ErrNoSuchRef      = errors.New("no such checkpoint")
	ErrAmbiguousRef   = errors.New("ambiguous revision")
	ErrNoSecondReader = errors.New("no second reader for this file")
	ErrSecondReader   = errors.New("second reader disagrees")
)

const hintDamaged = "the file is damaged or was not downloaded whole; compare its size with the publisher's and download it again"

// refuse makes the error for a malformed file. A problem may hold names out of the file, so these are quoted where they are put in.
func refuse(cause error, hint, format string, args ...any) *fault.Error {
	return &fault.Error{Kind: fault.Refused, Problem: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// inTensor fills in the tensor where err does not name one yet, and returns err.
func inTensor(name string, err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Tensor == "" {
		e.Tensor = name
	}
	return err
}

// shapeString writes a shape as headers and users do: [2, 3], [] for a scalar.
func shapeString(shape []uint64) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}
