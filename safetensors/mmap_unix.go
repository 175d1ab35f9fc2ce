//go:build unix

package safetensors

import (
	"errors"
	"os"
	"syscall"
)

// mapFile maps a whole file read-only.
func mapFile(f *os.File, size int64) (data []byte, unmap func() error, err error) {
	if int64(int(size)) != size {
		return nil, nil, errors.ErrUnsupported // more than a 32-bit address space holds
	}
	data, err = syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return data, func() error { return syscall.Munmap(data) }, nil
}
