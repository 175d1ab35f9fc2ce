//go:build unix

package safetensors

import (
	"errors"
	"os"
	"syscall"
)

// Map gives a read-only view of n bytes of a file from offset at on, without reading them. It is valid until unmap.
//
// Bytes that cannot be had, because the file was cut or the disk fails, are a memory fault on reading: read under Guard.
// The error is around errors.ErrUnsupported where files cannot be mapped.
func Map(f *os.File, at, n int64) (data []byte, unmap func() error, err error) {
	skip := at % int64(os.Getpagesize())
	if size := skip + n; n <= 0 || int64(int(size)) != size {
		return nil, nil, errors.ErrUnsupported // nothing, or more than a 32-bit address space holds
	}
	pages, err := syscall.Mmap(int(f.Fd()), at-skip, int(skip+n), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, errors.Join(errors.ErrUnsupported, os.NewSyscallError("mmap", err))
	}
	return pages[skip:], func() error { return syscall.Munmap(pages) }, nil
}
