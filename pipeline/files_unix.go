//go:build unix

package pipeline

import (
	"errors"
	"os"
	"syscall"
)

// syncDir makes the names in a folder as lasting as the files they stand for.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lock takes the file for this process until it is closed or the process ends, however it ends; false: another process has it.
func lock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
