//go:build !nogpu && linux && (amd64 || arm64)

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// fake is the driver library of testdata/fakecuda: it runs the sources of the kernels on the CPU.
type fake struct {
	path        string
	reset       func(devices, capability int32)
	fail        func(function string, after, code int32) // once, after some good calls
	lie         func()                                   // wrong results, and no module loads
	devicePeak  func() uint64
	deviceLive  func() uint64
	hostLive    func() uint64
	retained    func() uint64
	launches    func(device int32) uint64
	firstMisuse func() string
}

var temporary string

func TestMain(m *testing.M) {
	var err error
	if temporary, err = os.MkdirTemp("", "fakecuda"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(temporary)
	os.Exit(code)
}

var buildFake = sync.OnceValues(func() (*fake, error) {
	f := &fake{path: filepath.Join(temporary, "libfakecuda.so")}
	build := exec.Command("g++", "-O2", "-std=c++17", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-unknown-pragmas",
		"-I.", "-o", f.path, "driver.cpp")
	build.Dir = "testdata/fakecuda"
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, err
	}
	handle, err := purego.Dlopen(f.path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	for name, function := range map[string]any{
		"fake_reset": &f.reset, "fake_fail": &f.fail, "fake_lie": &f.lie, "fake_device_peak": &f.devicePeak, "fake_device_live": &f.deviceLive,
		"fake_host_live": &f.hostLive, "fake_retained": &f.retained, "fake_launches": &f.launches, "fake_misuse": &f.firstMisuse,
	} {
		address, err := purego.Dlsym(handle, name)
		if err != nil {
			return nil, err
		}
		purego.RegisterFunc(function, address)
	}
	return f, nil
})

// newFake gives a fresh driver with some devices. At the end of the test nothing may be left allocated and no call may have been wrong.
func newFake(t testing.TB, devices int32) *fake {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("the fake driver is written in C++, and there is no g++ here")
	}
	f, err := buildFake()
	require.NoError(t, err)
	f.reset(devices, 8)
	t.Cleanup(func() {
		require.Empty(t, f.firstMisuse(), "a call was wrong")
		require.Zero(t, f.retained(), "contexts were kept")
	})
	return f
}

// driverOf is for tests of the calls themselves.
func (f *fake) driver(t testing.TB) *driver {
	d, err := openDriver(f.path)
	require.NoError(t, err)
	return d
}
