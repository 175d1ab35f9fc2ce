//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/lagquant/lagquant/quant"
)

const (
	benchRounds  = 9 // rates drift by some percent from second to second, so the figures take turns
	benchRepeats = 4 // of a kernel in a measurement
	benchTensor  = 6 << 20
	benchSets    = 128 // of two tensors, through the bus in a measurement
)

// Bench measures the first GPU: kernels on size bytes of BF16 that lie in its memory, against its own copy rate, and sets of two 6 MiB
// tensors from page-locked memory and back, against the plain rate of the bus. It takes 2.3 times size of device memory on top of
// Options.DeviceMemory.
func Bench(o Options, size int64) ([]Figure, error) {
	e, err := Open(o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	b, err := newBench(e, size)
	if b != nil {
		defer b.close()
	}
	if err != nil {
		return nil, missing(err, "GPU %v: %v", e.devices[0], err)
	}
	figures, err := b.measure()
	if err != nil {
		return nil, missing(err, "GPU %v: %v", e.devices[0], err)
	}
	return figures, nil
}

// bench is the data that lies on the device and on the host for the time of the measurement.
type bench struct {
	*slot
	engine                       *Engine
	size                         int
	bf16, second, packed, scales address
	start, end                   uintptr // events
	host                         [][]quant.Member
}

func newBench(e *Engine, size int64) (*bench, error) {
	b := &bench{slot: e.devices[0].slots[0], engine: e, size: int(size) / benchTensor * benchTensor}
	defer b.use()()
	for to, n := range map[*address]int{&b.bf16: b.size, &b.second: b.size, &b.packed: b.size / 4, &b.scales: b.size / 32} {
		var err error
		if *to, err = b.alloc(int64(n)); err != nil {
			return b, err
		}
	}
	for _, event := range []*uintptr{&b.start, &b.end} {
		if err := b.call(cuEventCreate, uintptr(unsafe.Pointer(event)), 0); err != nil {
			return b, err
		}
	}
	for range cap(e.free) {
		set, err := randomSet(e)
		if err != nil {
			return b, err
		}
		b.host = append(b.host, set)
	}
	defer b.begin()()
	for at := 0; at < b.size; at += benchTensor {
		b.copyIn(b.bf16+address(at), b.host[0][0].BF16)
	}
	if err := b.wait(); err != nil {
		return b, err
	}
	_, _, err := b.quantizeSet(quant.Profiles[0], b.host[0]) // leaves the tables
	return b, err
}

// randomSet makes a gate and an up projection of Gaussian weights in page-locked memory.
func randomSet(e *Engine) ([]quant.Member, error) {
	var set []quant.Member
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"gate", "up"} {
		whole, err := e.Buffer(benchTensor + benchTensor/4 + benchTensor/32)
		if err != nil {
			return nil, err
		}
		m := quant.Member{Name: name, BF16: whole[:benchTensor], Packed: whole[benchTensor:][:benchTensor/4], Scales: whole[benchTensor+benchTensor/4:]}
		for i := 0; i < benchTensor; i += 2 {
			w := quant.Float32ToBF16(float32(0.02 * random.NormFloat64()))
			m.BF16[i], m.BF16[i+1] = byte(w), byte(w>>8)
		}
		set = append(set, m)
	}
	return set, nil
}

func (b *bench) close() {
	defer b.use()()
	for _, a := range []address{b.bf16, b.second, b.packed, b.scales} {
		if a != 0 {
			_ = b.call(cuMemFree, uintptr(a))
		}
	}
	for _, event := range []uintptr{b.start, b.end} {
		if event != 0 {
			_ = b.call(cuEventDestroy, event)
		}
	}
}

func (b *bench) measure() ([]Figure, error) {
	const copyRate, busRate = "device copy", "host to device, page-locked"
	groups := uint64(b.size / groupBF16)
	quantized := b.size / groupBF16 * (groupBF16 + groupCodes + 1)
	rows := []struct {
		Figure
		measure func() (bytes int, seconds float64, err error)
		rates   []float64
	}{
		{Figure: Figure{Name: copyRate, Bytes: "read and written"}, measure: b.timed(compute, 2*b.size, func() {
			if b.err == nil {
				b.err = b.call(cuMemcpyDtoDAsync, uintptr(b.second), uintptr(b.bf16), uintptr(b.size), b.streams[compute])
			}
		})},
		{Figure: Figure{Name: "absmax", Of: copyRate, Bytes: "read"}, measure: b.timed(compute, b.size, func() {
			b.run(absmax, 2*groups, uint64(b.bf16), groups, uint64(b.memory+resultAmax))
		})},
		{Figure: Figure{Name: "quantize", Of: copyRate, Bytes: "read and written"}, measure: b.timed(compute, quantized, func() {
			b.run(quantize, groups, uint64(b.bf16), groups, uint64(b.memory+scaleTable), uint64(b.memory+thresholds), uint64(b.packed), uint64(b.scales))
		})},
		{Figure: Figure{Name: "dequantize", Of: copyRate, Bytes: "read and written"}, measure: b.timed(compute, quantized, func() {
			b.run(dequantize, 2*groups, uint64(b.packed), uint64(b.scales), groups, bits(6720), 0, uint64(b.second))
		})},
		{Figure: Figure{Name: busRate, Bytes: "BF16"}, measure: b.timed(in, 2*benchTensor*benchSets/benchRepeats, func() {
			for i := range 2 * benchSets / benchRepeats {
				m := b.host[i/2%len(b.host)][i%2]
				b.copyIn(b.bf16+address(i%8*benchTensor), m.BF16)
			}
		})},
		{Figure: Figure{Name: "host to host", Of: busRate, Bytes: "BF16"}, measure: b.hostToHost},
	}
	for round := range benchRounds + 1 {
		for i := range rows {
			bytes, seconds, err := rows[i].measure()
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first is for warming up
				rows[i].rates = append(rows[i].rates, float64(bytes)/seconds/1e9)
			}
		}
	}
	var figures []Figure
	bounds := map[string][]float64{}
	for _, r := range rows {
		r.GBps, r.Least, r.Most = median(r.rates), slices.Min(r.rates), slices.Max(r.rates)
		if of, ok := bounds[r.Of]; ok {
			ratios := make([]float64, len(of))
			for i := range of {
				ratios[i] = r.rates[i] / of[i]
			}
			r.Ratio = median(ratios)
		}
		bounds[r.Name] = r.rates
		figures = append(figures, r.Figure)
	}
	return figures, nil
}

// timed measures work on one stream by the device's own clock; work moves bytes.
func (b *bench) timed(w way, bytes int, work func()) func() (int, float64, error) {
	return func() (int, float64, error) {
		defer b.begin()()
		record := func(event uintptr) {
			if stream := b.through(w); b.err == nil {
				b.err = b.call(cuEventRecord, event, stream)
			}
		}
		record(b.start)
		for range benchRepeats {
			work()
		}
		record(b.end)
		if err := b.wait(); err != nil {
			return 0, 0, err
		}
		var milliseconds float32
		err := b.call(cuEventElapsedTime, uintptr(unsafe.Pointer(&milliseconds)), b.start, b.end)
		return bytes * benchRepeats, float64(milliseconds) / 1e3, err
	}
}

// hostToHost sends sets through QuantizeSet from as many callers as there are slots.
func (b *bench) hostToHost() (int, float64, error) {
	work := make(chan struct{}, benchSets)
	for range benchSets {
		work <- struct{}{}
	}
	close(work)
	begin := time.Now()
	var callers sync.WaitGroup
	for _, set := range b.host {
		callers.Go(func() {
			for range work {
				_, _ = b.engine.QuantizeSet(quant.Profiles[0], set) // of finite weights: cannot fail
			}
		})
	}
	callers.Wait()
	if b.lost.Load() {
		return 0, 0, errors.New("the device was lost")
	}
	return benchSets * 2 * benchTensor, time.Since(begin).Seconds(), nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
