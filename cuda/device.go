//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// address is a place in a device's memory.
type address uint64

// device is a GPU in use: its context, the kernels loaded into it, and the slots that share its memory.
type device struct {
	*driver
	Device
	handle          int32 // CUdevice
	context         uintptr
	multiprocessors int
	modules         [kernels]module
	streams         [streams]uintptr
	queueing        sync.Mutex // held while a slot queues its work, so that sets lie one behind the other on every stream
	slots           []*slot
	lost            atomic.Bool
}

// CUdevice_attribute
const (
	attributeMultiprocessors = 16
	attributeMajor           = 75
	attributeMinor           = 76
)

// devices lists the GPUs that can run the kernels, without making a context on any.
func (d *driver) devices() ([]*device, error) {
	var n int32
	if err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	var list []*device
	for i := range int(n) {
		v, err := d.device(i)
		if err != nil {
			return nil, err
		}
		if v.Arch[0] >= 8 {
			list = append(list, v)
		}
	}
	if len(list) == 0 {
		return nil, missing(nil, "no NVIDIA GPU of compute capability 8.0 or newer among %d", n)
	}
	return list, nil
}

func (d *driver) device(index int) (*device, error) {
	v := &device{driver: d, Device: Device{Index: index}}
	if err := d.call(cuDeviceGet, uintptr(unsafe.Pointer(&v.handle)), uintptr(index)); err != nil {
		return nil, err
	}
	var name [256]byte
	if err := d.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name)), uintptr(len(name)), uintptr(v.handle)); err != nil {
		return nil, err
	}
	before, _, _ := bytes.Cut(name[:], []byte{0})
	v.Name = string(before)
	var total uint64
	if err := d.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(v.handle)); err != nil {
		return nil, err
	}
	v.Memory = int64(total)
	for attribute, to := range map[uintptr]*int{
		attributeMultiprocessors: &v.multiprocessors, attributeMajor: &v.Arch[0], attributeMinor: &v.Arch[1],
	} {
		var value int32
		if err := d.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&value)), attribute, uintptr(v.handle)); err != nil {
			return nil, err
		}
		*to = int(value)
	}
	return v, nil
}

// open makes the context, loads the kernels and divides memory bytes among the slots.
func (v *device) open(memory int64, slots int) error {
	const blockingSync = 4 // CU_CTX_SCHED: a waiting thread sleeps; spinning gains nothing next to a bus copy and takes a core
	if err := v.call(cuDevicePrimaryCtxSetFlags, uintptr(v.handle), blockingSync); err != nil {
		return err
	}
	if err := v.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&v.context)), uintptr(v.handle)); err != nil {
		return err
	}
	defer v.use()()
	for k := range kernels {
		var err error
		if v.modules[k], err = v.loadModule(k); err != nil {
			return err
		}
	}
	for i := range v.streams {
		const nonBlocking = 1
		if err := v.call(cuStreamCreate, uintptr(unsafe.Pointer(&v.streams[i])), nonBlocking); err != nil {
			return err
		}
	}
	for range slots {
		s, err := v.openSlot(memory / int64(slots))
		if s != nil {
			v.slots = append(v.slots, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// use makes the device's context current on this goroutine's thread until the returned function is called. A goroutine that moved to
// another thread would find no context there. The call is 0.1 us, and its failure shows in the next one.
func (v *device) use() (done func()) {
	runtime.LockOSThread()
	_ = v.call(cuCtxSetCurrent, v.context)
	return runtime.UnlockOSThread
}

// close gives everything back. Errors are of no use any more: a lost device fails every call.
func (v *device) close() {
	if v.context == 0 {
		return
	}
	defer v.use()()
	for _, s := range v.slots {
		s.close()
	}
	for _, s := range v.streams {
		if s != 0 {
			_ = v.call(cuStreamDestroy, s)
		}
	}
	for _, m := range v.modules {
		if m.handle != 0 {
			_ = v.call(cuModuleUnload, m.handle)
		}
	}
	_ = v.call(cuDevicePrimaryCtxRelease, uintptr(v.handle))
}

func (v *device) alloc(n int64) (address, error) {
	var a address
	err := v.call(cuMemAlloc, uintptr(unsafe.Pointer(&a)), uintptr(n))
	return a, err
}

// hostAlloc allocates page-locked host memory that every device can copy from and to at the full rate of the bus.
func (v *device) hostAlloc(n int) ([]byte, error) {
	const portable = 1
	var p unsafe.Pointer
	if err := v.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), portable); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), n), nil
}

func (v *device) hostFree(b []byte) {
	_ = v.call(cuMemFreeHost, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
