package quant

import (
	"fmt"
	"math"

	"github.com/lagquant/lagquant/internal/fault"
)

// Member is one module of a fused set: its weights, and where the codes and scale bytes go.
type Member struct {
	Name                 string
	BF16, Packed, Scales []byte
}

// Backend turns fused sets (gate and up of one expert, or down alone) into NVFP4. It is safe for concurrent use.
type Backend interface {
	Name() string
	// Buffer returns n bytes of the memory that the backend likes to read from and write to; Free gives them back.
	Buffer(n int) ([]byte, error)
	Free([]byte)
	// Mapped says whether weights may as well lie in a mapping of their file.
	Mapped() bool
	// QuantizeSet fills Packed and Scales of every member with one global scale, from the absolute maximum over all of them, and returns
	// it as it is stored. Weights that are not finite are refused with a *fault.Error naming the member, which wraps a *NonFiniteError.
	QuantizeSet(p Profile, set []Member) (global float32, err error)
	Close() error
}

// NonFiniteError tells where a weight is infinite or NaN.
type NonFiniteError struct {
	Index int    // flat index of the element in its tensor
	Bits  uint16 // the BF16 found
}

func (e *NonFiniteError) Error() string {
	f := float64(BF16ToFloat32(e.Bits))
	if math.IsNaN(f) {
		return fmt.Sprintf("element %d is NaN (bf16 0x%04x)", e.Index, e.Bits)
	}
	return fmt.Sprintf("element %d is %+v", e.Index, f)
}

// In says of which tensor, with so many columns, and of which file the element is: "element [12, 801] is NaN".
func (e *NonFiniteError) In(file, tensor string, cols uint64) *fault.Error {
	return &fault.Error{
		Kind: fault.Refused, File: file, Tensor: tensor, Err: e,
		Problem: fmt.Sprintf("element [%d, %d] is %v", e.Index/int(cols), e.Index%int(cols), BF16ToFloat32(e.Bits)),
		Hint:    "the source tensor is damaged; compare it with another download (lagquant verify)",
	}
}

// CheckFinite returns the error that QuantizeSet gives for weights that are not finite.
func CheckFinite(m Member) error {
	if i, bad := FirstNonFinite(m.BF16); bad {
		return &fault.Error{Kind: fault.Refused, Tensor: m.Name, Err: &NonFiniteError{i, element(m.BF16, i)}}
	}
	return nil
}

type cpuBackend struct{}

// CPU returns the backend that runs on the calling goroutine: callers bring the concurrency.
func CPU() Backend { return cpuBackend{} }

func (cpuBackend) Name() string                 { return "cpu" }
func (cpuBackend) Buffer(n int) ([]byte, error) { return make([]byte, n), nil }
func (cpuBackend) Free([]byte)                  {}
func (cpuBackend) Mapped() bool                 { return true }
func (cpuBackend) Close() error                 { return nil }

func (cpuBackend) QuantizeSet(p Profile, set []Member) (float32, error) {
	var amax float32
	for _, m := range set {
		a := AbsMax(m.BF16)
		if !(a <= math.MaxFloat32) {
			return 0, CheckFinite(m)
		}
		amax = max(amax, a)
	}
	global := p.Global(amax)
	q := NewQuantizer(p, global)
	for _, m := range set {
		q.Quantize(m.Packed, m.Scales, m.BF16)
	}
	return global, nil
}
