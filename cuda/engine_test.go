//go:build !nogpu && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
)

// openFake opens an engine whose lost devices are noted.
func openFake(t *testing.T, f *fake, o Options) (e *Engine, lost *[]error) {
	t.Helper()
	lost = new([]error)
	o.Library, o.Notice = f.path, func(err error) { *lost = append(*lost, err) }
	e, err := Open(o)
	require.NoError(t, err)
	return e, lost
}

func TestNoDriver(t *testing.T) {
	_, err := Open(Options{Library: "/nowhere/libcuda.so.1"})
	require.ErrorContains(t, err, "no NVIDIA driver: /nowhere/libcuda.so.1: ")
	requireDevice(t, err)
}

func requireDevice(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*fault.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, fault.Device, e.Kind)
	require.Contains(t, e.Hint, "--backend cpu")
}

func TestOldDriver(t *testing.T) {
	newFake(t, 1)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.c"), []byte("int cuInit(unsigned flags) { return 0; }"), 0o600))
	library := filepath.Join(dir, "libcuda.so.1")
	require.NoError(t, exec.Command("g++", "-x", "c", "-shared", "-fPIC", "-o", library, filepath.Join(dir, "old.c")).Run())
	_, err := Open(Options{Library: library})
	require.ErrorContains(t, err, "the NVIDIA driver is too old: "+library+": undefined symbol: cu")
	requireDevice(t, err)
}

// TestOpenRefuses: every reason not to start is told, and nothing stays allocated.
func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*fake)
		options Options
		want    string
	}{
		{"no device", func(f *fake) { f.reset(0, 8) }, Options{}, "no NVIDIA GPU of compute capability 8.0 or newer among 0"},
		{"old device", func(f *fake) { f.reset(2, 7) }, Options{}, "no NVIDIA GPU of compute capability 8.0 or newer among 2"},
		{"driver says no", func(f *fake) { f.fail("cuDeviceGetCount", 0, 100) }, Options{}, "cuDeviceGetCount: CUDA_ERROR_NO_DEVICE (100): some meaning"},
		{"code without a name", func(f *fake) { f.fail("cuDeviceGetName", 0, 999) }, Options{}, "cuDeviceGetName: unknown (999): some meaning"},
		{"memory", func(*fake) {}, Options{DeviceMemory: 1 << 40}, "GPU 0: Fake GPU 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"},
		{"second stream", func(f *fake) { f.fail("cuStreamCreate", 1, 1) }, Options{}, "GPU 0: Fake GPU 0: cuStreamCreate: CUDA_ERROR_INVALID_VALUE (1): some meaning"},
		{"third slot's results", func(f *fake) { f.fail("cuMemHostAlloc", 2, 2) }, Options{}, "GPU 0: Fake GPU 0: cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"},
		{"second device's context", func(f *fake) { f.reset(2, 8); f.fail("cuDevicePrimaryCtxRetain", 1, 2) }, Options{}, "GPU 1: Fake GPU 1: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"},
		{"too little memory asked", func(*fake) {}, Options{DeviceMemory: 4 << 20}, "GPU 0: Fake GPU 0: 1048576 bytes of device memory are too few for a slot, which takes 1118208 at least"},
		{"compiler", func(f *fake) { f.lie() }, Options{}, "GPU 0: Fake GPU 0: kernel absmax: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): some meaning: line 1; fatal : no such luck"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, 1)
			f.driver(t)
			c.prepare(f)
			c.options.Library = f.path
			_, err := Open(c.options)
			require.EqualError(t, err, c.want)
			requireDevice(t, err)
			require.Zero(t, f.deviceLive())
			require.Zero(t, f.hostLive())
		})
	}
}

// TestDeviceLost: whatever call of a set fails, the result is the CPU's, the loss is told once, and the CPU does the rest.
func TestDeviceLost(t *testing.T) {
	for _, c := range []struct {
		function string
		after    int32
		code     int32
	}{
		{"cuMemsetD8Async", 0, 1},
		{"cuMemcpyHtoDAsync_v2", 0, 1},
		{"cuMemcpyHtoDAsync_v2", 1, 700},
		{"cuLaunchKernel", 0, 2},
		{"cuLaunchKernel", 2, 1},
		{"cuLaunchKernel", 3, 700},
		{"cuMemcpyDtoHAsync_v2", 1, 1},
		{"cuMemcpyDtoHAsync_v2", 4, 1},
		{"cuEventRecord", 0, 1},
		{"cuEventRecord", 2, 1},
		{"cuStreamWaitEvent", 1, 1},
		{"cuEventSynchronize", 0, 700},
	} {
		f := newFake(t, 1)
		e, lost := openFake(t, f, Options{})
		requireReference(t, e, quant.Profiles[0], generate("gauss", 1, 4096, 0), generate("gauss", 2, 4096, 0))
		f.fail(c.function, c.after, c.code)
		requireReference(t, e, quant.Profiles[0], generate("gauss", 1, 4096, 0), generate("gauss", 2, 4096, 0))
		require.Len(t, *lost, 1, c.function)
		require.ErrorContains(t, (*lost)[0], "GPU 0: Fake GPU 0: "+c.function+": CUDA_ERROR_")
		launches := f.launches(0)
		for _, p := range quant.Profiles {
			requireReference(t, e, p, generate("gauss", 3, 4096, 0))
		}
		got, want := compareBoth(t, e, quant.Profiles[0], generate("gauss", 3, 4096, 0), generate("gauss", 4, 4096, 0))
		require.Equal(t, want, got)
		require.Len(t, *lost, 1)
		require.Equal(t, launches, f.launches(0))
		require.NoError(t, e.Close())
		if c.code < 700 { // the memory of a dead device goes with the process
			require.Zero(t, f.deviceLive())
			require.Zero(t, f.hostLive())
		}
	}
}

// TestOneOfTwoLost: the other device goes on alone.
func TestOneOfTwoLost(t *testing.T) {
	f := newFake(t, 2)
	e, lost := openFake(t, f, Options{Slots: 2})
	bf16 := generate("gauss", 1, 4096, 0)
	for range 4 {
		requireReference(t, e, quant.Profiles[0], bf16)
	}
	require.Equal(t, f.launches(0), f.launches(1), "the work goes round")
	f.fail("cuLaunchKernel", 0, 700)
	for range 6 {
		requireReference(t, e, quant.Profiles[0], bf16)
	}
	require.Len(t, *lost, 1)
	require.ErrorContains(t, (*lost)[0], "GPU 0: Fake GPU 0: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access")
	require.Equal(t, f.launches(0)/2*2+5*3, f.launches(1))
	require.NoError(t, e.Close())
}

// TestInsaneDevice: a device that computes nonsense is lost, too.
func TestInsaneDevice(t *testing.T) {
	f := newFake(t, 1)
	e, lost := openFake(t, f, Options{})
	f.lie()
	requireReference(t, e, quant.Profiles[0], generate("gauss", 1, 4096, 0))
	require.Len(t, *lost, 1)
	require.ErrorContains(t, (*lost)[0], "GPU 0: Fake GPU 0: the device computed the global scale ")
	require.NoError(t, e.Close())
}

func TestMemoryIsBounded(t *testing.T) {
	f := newFake(t, 2)
	const bound = 32 << 20
	e, _ := openFake(t, f, Options{DeviceMemory: bound, HostMemory: 1 << 20, Slots: 3})
	requireReference(t, e, quant.Profiles[0], generate("gauss", 1, 1<<19, 0))
	require.LessOrEqual(t, f.devicePeak(), uint64(bound))
	require.Greater(t, f.devicePeak(), uint64(bound)*99/100)

	const slots = 2 * 3 * resultSize
	require.LessOrEqual(t, f.hostLive(), uint64(slots+1<<20))
	a, err := e.Buffer(900 << 10)
	require.NoError(t, err)
	b, err := e.Buffer(800 << 10)
	require.NoError(t, err)
	require.Len(t, b, 800<<10)
	first := &a[0]
	e.Free(a)
	a, err = e.Buffer(850 << 10)
	require.NoError(t, err)
	require.Same(t, first, &a[0], "an idle buffer that is little larger is used again")
	small, err := e.Buffer(64 << 10)
	require.NoError(t, err)
	e.Free(a)
	another, err := e.Buffer(64 << 10)
	require.NoError(t, err)
	require.NotSame(t, &a[0], &another[0], "a far larger one is not")
	e.Free(small)
	e.Free(another)
	e.Free(b) // beyond the limit: the first goes
	require.LessOrEqual(t, f.hostLive(), uint64(slots+1<<20))
	c, err := e.Buffer(10)
	require.NoError(t, err)
	require.Len(t, c, 10)
	require.Equal(t, 10, cap(c))
	e.Free(c[:0])
	e.Free(make([]byte, 10)) // not one of its own
	e.Free(nil)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.Zero(t, f.deviceLive())
	require.Zero(t, f.hostLive())
}

// TestPlan: whatever the sizes, the pieces cover every group once, stay inside the slot's memory and do not overlap within a round.
func TestPlan(t *testing.T) {
	s := &slot{memory: 1 << 20, size: dataStart + 1<<20}
	for _, compare := range []bool{false, true} {
		arrays := func(p piece) [][2]address {
			n := address(p.groups)
			list := [][2]address{{p.bf16, n * groupBF16}, {p.packed, n * groupCodes}, {p.scales, n}}
			if compare {
				list = append(list, [2]address{p.wantPacked, n * groupCodes}, [2]address{p.wantScales, n})
			}
			return list
		}
		rounds := map[bool]int{}
		for groups := 1; groups < 60000; groups += 61 {
			set := []quant.Member{{BF16: make([]byte, groupBF16*(groups/2))}, {BF16: make([]byte, groupBF16*(groups-groups/2))}}
			plan := s.plan(set, compare)
			rounds[len(plan) == 1]++
			next := make([]int, len(set))
			for _, pieces := range plan {
				at := s.memory + dataStart
				for _, p := range pieces {
					require.Equal(t, next[p.index], p.first)
					next[p.index] += p.groups
					for _, a := range arrays(p) {
						require.GreaterOrEqual(t, a[0], at)
						require.Zero(t, a[0]%alignment)
						at = a[0] + a[1]
					}
				}
				require.LessOrEqual(t, at, s.memory+address(s.size))
			}
			require.Equal(t, []int{groups / 2, groups - groups/2}, next)
		}
		require.NotZero(t, rounds[true])
		require.NotZero(t, rounds[false])
	}
}

// TestBufferWithoutPageLocking: where no memory can be locked, ordinary memory does.
func TestBufferWithoutPageLocking(t *testing.T) {
	f := newFake(t, 1)
	e, lost := openFake(t, f, Options{})
	f.fail("cuMemHostAlloc", 0, 2)
	b, err := e.Buffer(100)
	require.NoError(t, err)
	require.Len(t, b, 100)
	e.Free(b)
	require.Empty(t, *lost)
	require.NoError(t, e.Close())
	require.Zero(t, f.hostLive())
}

func TestCheck(t *testing.T) {
	f := newFake(t, 1)
	e, _ := openFake(t, f, Options{})
	_, err := e.QuantizeSet(quant.Profiles[0], []quant.Member{{Name: "up", BF16: make([]byte, 64), Packed: make([]byte, 16), Scales: make([]byte, 1)}})
	require.EqualError(t, err, "up: 64 bytes of BF16 do not go with 16 packed bytes and 1 scale bytes")
	require.NoError(t, e.Close())
}

// TestCallKeepsWrites: what a call writes through a pointer arrives, however deep the stack is when it grows.
func TestCallKeepsWrites(t *testing.T) {
	d := newFake(t, 3).driver(t)
	var at func(depth int)
	at = func(depth int) {
		var n int32
		var pad [64]byte
		require.NoError(t, d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n))))
		require.Equal(t, int32(3), n, depth)
		if depth > 0 {
			at(depth - 1 + int(pad[depth%64]))
		}
	}
	at(400)
}

func TestBench(t *testing.T) {
	f := newFake(t, 1)
	_, err := Bench(Options{Library: f.path}, 1<<40)
	require.ErrorContains(t, err, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")
	requireDevice(t, err)
	require.Zero(t, f.deviceLive())
	require.Zero(t, f.hostLive())
}
