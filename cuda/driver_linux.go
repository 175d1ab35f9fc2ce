//go:build !nogpu && (amd64 || arm64)

package cuda

import "github.com/ebitengine/purego"

const driverLibrary = "libcuda.so.1"

// load opens a library for good and returns the way to look its functions up.
func load(path string) (func(name string) (uintptr, error), error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	return func(name string) (uintptr, error) { return purego.Dlsym(handle, name) }, nil
}
