package safetensors

import (
	"errors"
	"runtime/debug"

	"github.com/lagquant/lagquant/internal/fault"
)

// ErrMemoryFault says that bytes of a mapped file could not be had. Reading them with ReadAt tells why.
var ErrMemoryFault = errors.New("memory fault")

// Guard runs f, which reads what Map returned, and turns a memory fault into an error around ErrMemoryFault.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if _, ok := r.(interface{ Addr() uintptr }); ok { // as debug.SetPanicOnFault documents
			err = &fault.Error{Kind: fault.IO, Problem: "was cut, or the disk failed, while it was read", Err: ErrMemoryFault}
		} else if r != nil {
			panic(r)
		}
	}()
	return f()
}
