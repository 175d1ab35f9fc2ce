package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestError(t *testing.T) {
	for want, e := range map[string]*Error{
		"model.safetensors: a.weight: is F8_E4M3, expected BF16": {File: "model.safetensors", Tensor: "a.weight", Problem: "is F8_E4M3, expected BF16"},
		"a.weight: file does not exist":                          {Tensor: "a.weight", Err: fs.ErrNotExist},
		`a\x1b[2J\u202eb: x`:                                     {Tensor: "a\x1b[2J\u202eb", Problem: "x"},
		`größe/重み: x`:                                            {File: "größe/重み", Problem: "x"},
	} {
		require.Equal(t, want, e.Error())
	}
}

func TestKindOf(t *testing.T) {
	refused := &Error{Kind: Refused, Problem: "x", Err: fs.ErrInvalid}
	require.Equal(t, Refused, KindOf(fmt.Errorf("around: %w", refused)))
	require.Equal(t, IO, KindOf(fs.ErrPermission))
	require.ErrorIs(t, refused, fs.ErrInvalid)
}

func TestCause(t *testing.T) {
	e := &Error{Kind: IO, Err: &fs.PathError{Op: "open", Path: "/a", Err: fs.ErrPermission}}
	require.Equal(t, fs.ErrPermission, Cause(fmt.Errorf("around: %w", e)))
	other := errors.New("other")
	require.Equal(t, other, Cause(other))
}

func TestIn(t *testing.T) {
	require.Equal(t, "f: x", In("f", &Error{Problem: "x"}).Error())
	require.Equal(t, "g: x", In("f", &Error{File: "g", Problem: "x"}).Error())
	plain := errors.New("plain")
	require.Equal(t, plain, In("f", plain))
	require.NoError(t, In("f", nil))
}
