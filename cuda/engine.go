//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lagquant/lagquant/quant"
)

// Engine is the GPU backend. Concurrency comes from the callers, as for the CPU's: each call takes one of the slots and waits for its
// result, so that as many callers as slots keep the bus busy in both directions.
type Engine struct {
	devices []*device
	free    chan *slot    // round robin over the devices
	none    chan struct{} // closed when the last device is lost
	alive   atomic.Int32
	buffers pool
	notice  func(error)
	cpu     quant.Backend
	closing sync.Once
}

var _ quant.Backend = (*Engine)(nil)

// Devices lists the GPUs that Open would use.
func Devices() ([]Device, error) {
	d, err := openDriver("")
	if err != nil {
		return nil, err
	}
	devices, err := d.devices()
	if err != nil {
		return nil, missing(err, "%v", err)
	}
	return describe(devices), nil
}

func describe(devices []*device) (list []Device) {
	for _, v := range devices {
		list = append(list, v.Device)
	}
	return list
}

// Open starts the GPU backend on every GPU. An error is a *fault.Error of kind Device.
func Open(o Options) (*Engine, error) {
	d, err := openDriver(o.Library)
	if err != nil {
		return nil, err
	}
	devices, err := d.devices()
	if err != nil {
		return nil, missing(err, "%v", err)
	}
	memory, host, slots := o.DeviceMemory, o.HostMemory, o.Slots
	if memory == 0 {
		memory = 1 << 30
	}
	if host == 0 {
		host = 1 << 30
	}
	if slots == 0 {
		slots = 4
	}
	e := &Engine{
		devices: devices, free: make(chan *slot, slots*len(devices)), none: make(chan struct{}),
		buffers: pool{limit: host, all: map[*byte][]byte{}}, notice: o.Notice, cpu: quant.CPU(),
	}
	e.alive.Store(int32(len(devices)))
	for _, v := range devices {
		if err := v.open(memory/int64(len(devices)), slots); err != nil {
			_ = e.Close()
			return nil, missing(err, "GPU %v: %v", v, err)
		}
	}
	for i := range slots {
		for _, v := range devices {
			e.free <- v.slots[i]
		}
	}
	return e, nil
}

// Name returns "cuda".
func (e *Engine) Name() string { return "cuda" }

// Devices lists the GPUs in use.
func (e *Engine) Devices() []Device { return describe(e.devices) }

// Close gives all memory back, that of Buffer included. No call may be running.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		if v := e.devices[0]; v.context != 0 {
			e.buffers.close(v)
		}
		for _, v := range e.devices {
			v.close()
		}
	})
	return nil
}

// Mapped is false: the copy engines want pinned memory.
func (e *Engine) Mapped() bool { return false }

// Buffer returns n bytes of page-locked memory, of arbitrary contents. Ordinary memory works everywhere, too, at a sixth to a third of
// the rate; it is what Buffer returns when a device is lost or no more memory can be locked.
func (e *Engine) Buffer(n int) ([]byte, error) {
	if v := e.devices[0]; n > 0 && !v.lost.Load() {
		if b, err := e.buffers.get(v, n); err == nil {
			return b, nil
		}
	}
	return make([]byte, n), nil
}

// Free takes back what Buffer returned.
func (e *Engine) Free(b []byte) {
	if cap(b) > 0 {
		e.buffers.put(e.devices[0], b)
	}
}

// QuantizeSet does what quant.Backend says, on the next free slot.
func (e *Engine) QuantizeSet(p quant.Profile, set []quant.Member) (float32, error) {
	if err := check(set); err != nil {
		return 0, err
	}
	if s := e.acquire(); s != nil {
		amax, global, err := s.quantizeSet(p, set)
		e.release(s, err)
		if err == nil && finite(amax) {
			return global, nil
		}
	}
	return e.cpu.QuantizeSet(p, set) // for the place of what is not finite, or instead of the device
}

// CompareSet computes the global scale and the bytes that QuantizeSet would give and compares them with Packed and Scales, which it does
// not change. Weights that are not finite are refused as by QuantizeSet.
func (e *Engine) CompareSet(p quant.Profile, set []quant.Member) (float32, []Difference, error) {
	if err := check(set); err != nil {
		return 0, nil, err
	}
	if len(set) > maxRecords {
		return 0, nil, fmt.Errorf("a set of %d members; %d at most can be compared", len(set), maxRecords)
	}
	if s := e.acquire(); s != nil {
		amax, global, differences, err := s.compareSet(p, set)
		e.release(s, err)
		if err == nil && finite(amax) {
			return global, differences, nil
		}
	}
	return compareOnCPU(p, set)
}

// MeasureErrors is quant.MeasureErrors of a member's weights against its packed codes and scales. The sums are added in another order:
// they differ from the CPU's in the last digits of a float64, and are the same on every run.
func (e *Engine) MeasureErrors(p quant.Profile, global float32, m quant.Member) (quant.Errors, error) {
	if err := check([]quant.Member{m}); err != nil {
		return quant.Errors{}, err
	}
	if s := e.acquire(); s != nil {
		sums, err := s.measureErrors(p, global, m)
		e.release(s, err)
		if err == nil {
			return sums, nil
		}
	}
	return quant.MeasureErrors(p, global, m.BF16, m.Packed, m.Scales), nil
}

// DequantizeBF16 is quant.DequantizeBF16.
func (e *Engine) DequantizeBF16(dst, packed, scales []byte, global float32, modelopt bool) error {
	m := quant.Member{BF16: dst, Packed: packed, Scales: scales}
	if err := check([]quant.Member{m}); err != nil {
		return err
	}
	if s := e.acquire(); s != nil {
		err := s.dequantizeBF16(m, global, modelopt)
		e.release(s, err)
		if err == nil {
			return nil
		}
	}
	quant.DequantizeBF16(dst, packed, scales, global, modelopt)
	return nil
}

// acquire waits for a free slot of a device that is not lost. It returns nil when every device is.
func (e *Engine) acquire() *slot {
	for {
		select {
		case s := <-e.free:
			if !s.lost.Load() {
				return s
			}
		case <-e.none:
			return nil
		}
	}
}

// release gives a slot back. An error takes its device out of the work for good: after most of them every further call fails, too, and
// what a device computed that is not sane is not to be trusted.
func (e *Engine) release(s *slot, err error) {
	if err != nil && s.lost.CompareAndSwap(false, true) {
		if e.notice != nil {
			e.notice(fmt.Errorf("GPU %v: %w", s.device, err))
		}
		if e.alive.Add(-1) == 0 {
			close(e.none)
		}
	}
	if !s.lost.Load() {
		e.free <- s
	}
}

func check(set []quant.Member) error {
	for _, m := range set {
		groups := len(m.BF16) / groupBF16
		if len(m.BF16)%groupBF16 != 0 || len(m.Packed) != groups*groupCodes || len(m.Scales) != groups {
			return fmt.Errorf("%s: %d bytes of BF16 do not go with %d packed bytes and %d scale bytes", m.Name, len(m.BF16), len(m.Packed), len(m.Scales))
		}
	}
	return nil
}

func compareOnCPU(p quant.Profile, set []quant.Member) (float32, []Difference, error) {
	computed := make([]quant.Member, len(set))
	for i, m := range set {
		computed[i] = quant.Member{Name: m.Name, BF16: m.BF16, Packed: make([]byte, len(m.Packed)), Scales: make([]byte, len(m.Scales))}
	}
	global, err := quant.CPU().QuantizeSet(p, computed)
	if err != nil {
		return 0, nil, err
	}
	differences := make([]Difference, len(set))
	for i, m := range set {
		differences[i] = Difference{differing(m.Packed, computed[i].Packed), differing(m.Scales, computed[i].Scales)}
	}
	return global, differences, nil
}

// differing leaves First at the largest integer where nothing differs, as the compare kernel does.
func differing(a, b []byte) Bytes {
	d := Bytes{First: ^uint64(0)}
	for i := range a {
		if a[i] != b[i] {
			d.Count++
			d.First = min(d.First, uint64(i))
		}
	}
	return d
}
