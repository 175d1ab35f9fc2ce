//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// function numbers the functions of the CUDA driver that are used. Where there are two forms of one, the name without _v2 is that of the
// first ABI, with 32-bit sizes: it resolves, and corrupts.
type function int

const (
	cuInit function = iota
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDevicePrimaryCtxSetFlags
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemsetD8Async
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyDtoDAsync
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamWaitEvent
	cuLaunchKernel
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventSynchronize
	cuEventElapsedTime
	functions
)

var symbols = [functions]string{
	cuInit: "cuInit", cuGetErrorName: "cuGetErrorName", cuGetErrorString: "cuGetErrorString",
	cuDeviceGetCount: "cuDeviceGetCount", cuDeviceGet: "cuDeviceGet", cuDeviceGetName: "cuDeviceGetName",
	cuDeviceTotalMem: "cuDeviceTotalMem_v2", cuDeviceGetAttribute: "cuDeviceGetAttribute",
	cuDevicePrimaryCtxSetFlags: "cuDevicePrimaryCtxSetFlags_v2", cuDevicePrimaryCtxRetain: "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease: "cuDevicePrimaryCtxRelease_v2", cuCtxSetCurrent: "cuCtxSetCurrent",
	cuModuleLoadDataEx: "cuModuleLoadDataEx", cuModuleUnload: "cuModuleUnload", cuModuleGetFunction: "cuModuleGetFunction",
	cuMemAlloc: "cuMemAlloc_v2", cuMemFree: "cuMemFree_v2", cuMemHostAlloc: "cuMemHostAlloc", cuMemFreeHost: "cuMemFreeHost",
	cuMemsetD8Async: "cuMemsetD8Async", cuMemcpyHtoDAsync: "cuMemcpyHtoDAsync_v2", cuMemcpyDtoHAsync: "cuMemcpyDtoHAsync_v2",
	cuMemcpyDtoDAsync: "cuMemcpyDtoDAsync_v2", cuStreamCreate: "cuStreamCreate", cuStreamDestroy: "cuStreamDestroy_v2",
	cuStreamSynchronize: "cuStreamSynchronize",
	cuStreamWaitEvent:   "cuStreamWaitEvent", cuLaunchKernel: "cuLaunchKernel", cuEventCreate: "cuEventCreate",
	cuEventDestroy: "cuEventDestroy_v2", cuEventRecord: "cuEventRecord",
	cuEventSynchronize: "cuEventSynchronize", cuEventElapsedTime: "cuEventElapsedTime",
}

// driver is the loaded and initialized CUDA driver of this process.
type driver struct{ address [functions]uintptr }

var drivers struct {
	sync.Mutex
	loaded map[string]*driver
}

// openDriver loads the driver library, the system's where path is empty. A library stays loaded until the process ends.
func openDriver(path string) (*driver, error) {
	if path == "" {
		path = driverLibrary
	}
	drivers.Lock()
	defer drivers.Unlock()
	if d, ok := drivers.loaded[path]; ok {
		return d, nil
	}
	lookup, err := load(path)
	if err != nil {
		return nil, missing(err, "no NVIDIA driver: %v", err)
	}
	d := new(driver)
	for f, name := range symbols {
		if d.address[f], err = lookup(name); err != nil {
			return nil, missing(err, "the NVIDIA driver is too old: %v", err)
		}
	}
	if err := d.call(cuInit, 0); err != nil {
		return nil, missing(err, "the NVIDIA driver does not start: %v", err)
	}
	if drivers.loaded == nil {
		drivers.loaded = map[string]*driver{}
	}
	drivers.loaded[path] = d
	return d, nil
}

// call calls a driver function and turns its result into an error. What a pointer among the arguments points to is kept where it is for
// the time of the call, but only if the conversion uintptr(unsafe.Pointer(&x)) stands in the argument list itself: a helper that returns
// a uintptr would lose writes when the stack grows, and no tool would tell.
//
//go:uintptrescapes
func (d *driver) call(f function, args ...uintptr) error {
	result, _, _ := purego.SyscallN(d.address[f], args...)
	if code := uint32(result); code != 0 { // CUresult has 32 bits; the rest of the register is noise
		return &Error{symbols[f], code, d.text(cuGetErrorName, code), d.text(cuGetErrorString, code)}
	}
	return nil
}

// text asks the driver for the name or the meaning of a result.
func (d *driver) text(f function, code uint32) string {
	var s *byte
	result, _, _ := purego.SyscallN(d.address[f], uintptr(code), uintptr(unsafe.Pointer(&s)))
	if uint32(result) != 0 || s == nil {
		return "unknown"
	}
	return cString(s)
}

func cString(s *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}

// Error is a driver call that failed.
type Error struct {
	Function string // as exported by the driver, such as cuMemAlloc_v2
	Code     uint32 // CUresult
	Name     string // such as CUDA_ERROR_OUT_OF_MEMORY
	Meaning  string // such as "out of memory"
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Function, e.Name, e.Code, e.Meaning)
}
