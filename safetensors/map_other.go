//go:build !unix

package safetensors

import (
	"errors"
	"os"
)

// Map is not to be had: on Windows, mappings of large shards have crashed other tools.
func Map(*os.File, int64, int64) (data []byte, unmap func() error, err error) {
	return nil, nil, errors.ErrUnsupported
}
