// Package safetensors reads and writes safetensors files and the sharded checkpoints made of them.
//
// A file is an 8-byte little-endian length, a JSON header of that length and one data section that the tensors fill without a gap. Reading
// is strict: whatever the format forbids is refused, with an error value of its own for each reason. Writing follows the reference
// writer to the byte. Tensor bytes are never interpreted here.
package safetensors

// Tensor is one entry of a header. Begin and End are byte offsets in the data section.
type Tensor struct {
	Name       string
	DType      DType
	Shape      []uint64
	Begin, End uint64
}

// Len returns the number of bytes of the tensor.
func (t Tensor) Len() uint64 { return t.End - t.Begin }
