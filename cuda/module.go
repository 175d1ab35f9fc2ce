//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"bytes"
	"embed"
	"fmt"
	"runtime"
	"unsafe"
)

//go:embed kernels/*.ptx
var ptx embed.FS

// kernel numbers the kernels. Each has a file of its name in the folder kernels.
type kernel int

const (
	absmax kernel = iota
	tables
	quantize
	dequantize
	compare
	errorSums
	kernels
)

var kernelNames = [kernels]string{
	absmax: "absmax", tables: "tables", quantize: "quantize", dequantize: "dequantize", compare: "compare", errorSums: "errors",
}

const blockThreads = 256 // in every launch; the kernels that fill shared memory count on it

// module is a loaded file of PTX: the driver compiles it for the device on the first use and remembers the result on disk.
type module struct{ handle, function uintptr }

// loadModule loads a kernel into the current context.
func (d *driver) loadModule(k kernel) (module, error) {
	name := kernelNames[k]
	text, err := ptx.ReadFile("kernels/" + name + ".ptx")
	if err != nil {
		return module{}, err
	}
	text, name = append(text, 0), name+"\x00"

	const errorLogBuffer, errorLogSize = 5, 6 // CUjit_option
	var pin runtime.Pinner
	defer pin.Unpin()
	log := make([]byte, 4096)
	pin.Pin(&log[0])
	options := [2]uint32{errorLogBuffer, errorLogSize}
	values := [2]uintptr{uintptr(unsafe.Pointer(&log[0])), uintptr(len(log))}

	var m module
	err = d.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&text[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(&options)), uintptr(unsafe.Pointer(&values)))
	if err != nil {
		said, _, _ := bytes.Cut(log, []byte{0})
		return module{}, fmt.Errorf("kernel %s: %w: %s", kernelNames[k], err, bytes.TrimSpace(said))
	}
	err = d.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&m.function)), m.handle, uintptr(unsafe.Pointer(unsafe.StringData(name))))
	return m, err
}
