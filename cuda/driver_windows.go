//go:build !nogpu && amd64

package cuda

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

const driverLibrary = "nvcuda.dll"

// load opens a library for good and returns the way to look its functions up. A bare name is looked for in the system folder alone, so
// that nobody's nvcuda.dll beside a checkpoint is run.
func load(path string) (func(name string) (uintptr, error), error) {
	where := uintptr(windows.LOAD_LIBRARY_SEARCH_SYSTEM32)
	if filepath.IsAbs(path) {
		where |= windows.LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR
	}
	handle, err := windows.LoadLibraryEx(path, 0, where)
	if err != nil {
		return nil, err
	}
	return func(name string) (uintptr, error) { return windows.GetProcAddress(handle, name) }, nil
}
