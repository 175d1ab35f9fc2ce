//go:build nogpu || !((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
)

func TestStub(t *testing.T) {
	_, err := Open(Options{})
	require.EqualError(t, err, "this build of lagquant has no GPU backend")
	require.Equal(t, fault.Device, fault.KindOf(err))
	_, err = Devices()
	require.Error(t, err)
	_, err = Bench(Options{}, 1<<30)
	require.Error(t, err)
}
