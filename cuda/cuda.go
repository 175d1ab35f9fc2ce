// Package cuda is the quantizer on NVIDIA GPUs: the same bytes as package quant, at the rate of the bus.
//
// It reads in this order: kernels/*.cu is the arithmetic, a file a kernel; driver.go speaks to the CUDA driver without cgo; module.go and
// device.go hold what one GPU needs; slot.go is one stream of work; engine.go shares the slots among the callers and is the
// quant.Backend. Built with -tags nogpu, or for a system that has no CUDA, the package only says so, and a Linux program stays static.
package cuda

import (
	"fmt"

	"github.com/lagquant/lagquant/internal/fault"
)

// Options says what an Engine may use. The zero value is every GPU with the defaults below.
type Options struct {
	// DeviceMemory bounds the memory taken on the GPUs, in bytes over all of them; 0 stands for 1 GiB. A set of tensors that does not
	// fit its share goes over the bus twice, in pieces.
	DeviceMemory int64
	// HostMemory bounds the page-locked memory that is kept for reuse between Free and Buffer; 0 stands for 1 GiB.
	HostMemory int64
	// Slots is the number of sets that a GPU holds at a time, one copied in while another is computed or copied out, and the rest queued
	// so that the bus never waits for the host; 0 stands for 4. On an H200, 3 reach all of the rate and 2 lose 3 % of it.
	Slots int
	// Library is the path of the driver library; empty for the system's.
	Library string
	// Notice is told once for each GPU that failed in the middle of the work. Its work, that of the failed call included, is done by
	// the other GPUs or, where none is left, by the CPU.
	Notice func(error)
}

// Device is a GPU that the kernels run on: compute capability 8.0 and newer.
type Device struct {
	Index  int // as the driver counts
	Name   string
	Memory int64  // bytes
	Arch   [2]int // compute capability, such as 9, 0
}

func (d Device) String() string { return fmt.Sprintf("%d: %s", d.Index, d.Name) }

// Difference tells where the bytes of a member are not those that its weights give.
type Difference struct {
	Packed, Scales Bytes
}

// Bytes counts differing bytes and tells the index of the first one; the index means nothing where the count is 0.
type Bytes struct {
	Count, First uint64
}

// Figure is one measured rate.
type Figure struct {
	Name  string  // such as "quantize"
	GBps  float64 // median over the rounds, 10^9 bytes a second
	Least float64 // of the rounds
	Most  float64
	Of    string  // name of the figure that bounds this one; empty for a bound
	Ratio float64 // median over the rounds of this rate by that of Of in the same round
	Bytes string  // what is counted
}

// missing is the error for a GPU that cannot be had at all.
func missing(err error, format string, args ...any) error {
	return &fault.Error{
		Kind: fault.Device, Problem: fmt.Sprintf(format, args...), Err: err,
		Hint: "use --backend cpu, which gives the same bytes",
	}
}
