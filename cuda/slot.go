//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/lagquant/lagquant/quant"
)

const (
	groupSize  = 16
	groupBF16  = 2 * groupSize // bytes of a group's weights
	groupCodes = groupSize / 2 // bytes of its packed codes; its scale byte is one more

	alignment = 256 // of everything in device memory: whole transactions, and what cuMemAlloc itself gives
)

// Places in the first bytes of a slot's memory. The results lie side by side, so that one copy brings them back.
const (
	resultAmax    = 0        // uint32: magnitude bits of the set's absolute maximum
	resultGlobal  = 4        // float32: the global scale, as stored
	resultRecords = 8        // 32 bytes each: differing packed bytes, the first of them, differing scale bytes, the first of them
	resultSize    = 32 << 10 // or three doubles for each block of the errors kernel
	scaleTable    = resultSize
	thresholds    = scaleTable + 1<<15
	dataStart     = thresholds + 128*8*4

	maxRecords   = (resultSize - resultRecords) / 32
	errorBlocks  = resultSize / 24
	tableThreads = 1<<15 + 128*8
)

// slot is device memory of its own for one set, and a way to queue work on it. Between begin and wait, calls queue up and return; after
// wait they have happened. After a first error the others do nothing, and wait returns it.
//
// A slot's work happens in the order in which it was queued, but every kind of it goes through a stream that all slots of the device
// share. So the bus goes from one set's weights to the next set's without a gap, whatever the kernels and the host do meanwhile.
type slot struct {
	*device
	memory  address
	size    int64
	results []byte // page-locked, resultSize
	launch  *launch
	events  [streams]uintptr // the slot's work on that stream has happened
	on      way              // stream of the last work queued
	err     error
}

// way is what a stream of a device is for.
type way int

const (
	in      way = iota // copies to the device
	compute            // kernels and memory filling
	out                // copies from the device
	streams
	nowhere way = -1
)

// launch holds the arguments of a kernel launch where the garbage collector leaves them.
type launch struct {
	values   [10]uint64
	pointers [10]unsafe.Pointer
	pin      runtime.Pinner
}

func newLaunch() *launch {
	l := new(launch)
	l.pin.Pin(l)
	for i := range l.values {
		l.pointers[i] = unsafe.Pointer(&l.values[i])
	}
	return l
}

func (v *device) openSlot(size int64) (*slot, error) {
	if size < dataStart+1<<20 {
		return nil, missing(nil, "%d bytes of device memory are too few for a slot, which takes %d at least", size, dataStart+1<<20)
	}
	s := &slot{device: v, size: size, launch: newLaunch()}
	const blockingSync, disableTiming = 1, 2
	var err error
	for i := range s.events {
		if err == nil {
			err = v.call(cuEventCreate, uintptr(unsafe.Pointer(&s.events[i])), blockingSync|disableTiming)
		}
	}
	if err == nil {
		s.memory, err = v.alloc(size)
	}
	if err == nil {
		s.results, err = v.hostAlloc(resultSize)
	}
	return s, err
}

func (s *slot) close() {
	s.launch.pin.Unpin()
	if s.results != nil {
		s.hostFree(s.results)
	}
	if s.memory != 0 {
		_ = s.call(cuMemFree, uintptr(s.memory))
	}
	for _, e := range s.events {
		if e != 0 {
			_ = s.call(cuEventDestroy, e)
		}
	}
}

// begin makes the slot ready to queue work, alone among the device's slots until wait. The goroutine keeps its thread until end is called.
func (s *slot) begin() (end func()) {
	end = s.use()
	s.err, s.on = nil, nowhere
	s.queueing.Lock()
	return end
}

// through changes over to a stream: what is queued from here on happens after what this slot has queued before.
func (s *slot) through(w way) (stream uintptr) {
	if s.on != nowhere && s.on != w {
		s.record(s.on)
		if s.err == nil {
			s.err = s.call(cuStreamWaitEvent, s.streams[w], s.events[s.on], 0)
		}
	}
	s.on = w
	return s.streams[w]
}

func (s *slot) record(w way) {
	if s.err == nil {
		s.err = s.call(cuEventRecord, s.events[w], s.streams[w])
	}
}

func (s *slot) copyIn(to address, from []byte) {
	if stream := s.through(in); s.err == nil && len(from) > 0 {
		s.err = s.call(cuMemcpyHtoDAsync, uintptr(to), uintptr(unsafe.Pointer(&from[0])), uintptr(len(from)), stream)
	}
}

func (s *slot) copyOut(to []byte, from address) {
	if stream := s.through(out); s.err == nil && len(to) > 0 {
		s.err = s.call(cuMemcpyDtoHAsync, uintptr(unsafe.Pointer(&to[0])), uintptr(from), uintptr(len(to)), stream)
	}
}

func (s *slot) fill(at address, value byte, n int) {
	if stream := s.through(compute); s.err == nil {
		s.err = s.call(cuMemsetD8Async, uintptr(at), uintptr(value), uintptr(n), stream)
	}
}

// run launches a kernel for a number of work items, a thread each, in blocks of blockThreads up to a number that fills the device well;
// the kernels stride over the rest. On an H200, 256 blocks a multiprocessor quantize 2 % faster than 64 and 5 % faster than 16.
func (s *slot) run(k kernel, items uint64, arguments ...uint64) {
	s.runBlocks(k, min((items+blockThreads-1)/blockThreads, uint64(256*s.multiprocessors)), arguments...)
}

func (s *slot) runBlocks(k kernel, blocks uint64, arguments ...uint64) {
	stream := s.through(compute)
	if s.err != nil || blocks == 0 {
		return
	}
	copy(s.launch.values[:], arguments)
	s.err = s.call(cuLaunchKernel, s.modules[k].function, uintptr(blocks), 1, 1, blockThreads, 1, 1, 0, stream,
		uintptr(unsafe.Pointer(&s.launch.pointers)), 0)
}

// wait lets other slots queue and blocks until all that this one queued has happened. It does so after an error, too, since the host
// memory must not change hands before.
func (s *slot) wait() error {
	s.record(s.on)
	s.queueing.Unlock()
	if s.err == nil {
		return s.call(cuEventSynchronize, s.events[s.on])
	}
	for _, stream := range s.streams {
		_ = s.call(cuStreamSynchronize, stream)
	}
	return s.err
}

// piece is a run of whole groups of one member, and where they lie in device memory.
type piece struct {
	index                int // of the member
	first, groups        int
	bf16, packed, scales address
	wantPacked           address // bytes to compare with, where the plan has room for them
	wantScales           address
}

// part of a member's bytes that the piece covers, perGroup bytes a group.
func (p piece) part(of []byte, perGroup int) []byte {
	return of[p.first*perGroup : (p.first+p.groups)*perGroup : (p.first+p.groups)*perGroup]
}

// plan lays a set out in the slot's memory, with room for a second copy of packed and scales where compare is set. All pieces of a round
// fit at a time; with more than one round, every pass over the weights has to copy them in again.
func (s *slot) plan(set []quant.Member, compare bool) (rounds [][]piece) {
	start, end := s.memory+dataStart, s.memory+address(s.size)
	at := start
	var whole []piece
	for i, m := range set {
		p := piece{index: i, groups: len(m.BF16) / groupBF16}
		at = p.place(at, compare)
		whole = append(whole, p)
	}
	if at <= end {
		return [][]piece{whole}
	}
	most := s.groupsThatFit(compare)
	for i, m := range set {
		groups := len(m.BF16) / groupBF16
		for first := 0; first < groups; first += most {
			p := piece{index: i, first: first, groups: min(most, groups-first)}
			p.place(start, compare)
			rounds = append(rounds, []piece{p})
		}
	}
	return rounds
}

// place puts the piece's arrays one behind the other and returns the address after them.
func (p *piece) place(at address, compare bool) address {
	take := func(perGroup int) (start address) {
		start, at = at, at+(address(p.groups*perGroup)+alignment-1)&^(alignment-1)
		return start
	}
	p.bf16, p.packed, p.scales = take(groupBF16), take(groupCodes), take(1)
	if compare {
		p.wantPacked, p.wantScales = take(groupCodes), take(1)
	}
	return at
}

func (s *slot) groupsThatFit(compare bool) int {
	perGroup, arrays := int64(groupBF16+groupCodes+1), int64(3)
	if compare {
		perGroup, arrays = perGroup+groupCodes+1, arrays+2
	}
	return int((s.size - dataStart - arrays*alignment) / perGroup)
}

// prepare queues the copies and kernels that leave the set's global scale and its tables in the slot's memory, and the weights of the
// last round, too.
func (s *slot) prepare(p quant.Profile, set []quant.Member, rounds [][]piece) {
	for i, pieces := range rounds {
		s.copyWeights(set, pieces)
		if i == 0 { // not earlier, or the copy would have to wait for the kernels of other slots
			s.fill(s.memory+resultAmax, 0, 4)
		}
		for _, c := range pieces {
			s.run(absmax, 2*uint64(c.groups), uint64(c.bf16), uint64(c.groups), uint64(s.memory+resultAmax))
		}
	}
	s.runBlocks(tables, tableThreads/blockThreads, uint64(s.memory+resultAmax), uint64(p.GlobalForm), uint64(p.ScaleForm),
		flag(p.BF16Observer), uint64(p.ZeroScale), bits(p.LowerClamp),
		uint64(s.memory+resultGlobal), uint64(s.memory+scaleTable), uint64(s.memory+thresholds))
}

func (s *slot) copyWeights(set []quant.Member, pieces []piece) {
	for _, c := range pieces {
		s.copyIn(c.bf16, c.part(set[c.index].BF16, groupBF16))
	}
}

func (s *slot) copyWanted(set []quant.Member, pieces []piece) {
	for _, c := range pieces {
		s.copyIn(c.wantPacked, c.part(set[c.index].Packed, groupCodes))
		s.copyIn(c.wantScales, c.part(set[c.index].Scales, 1))
	}
}

func (s *slot) quantizePiece(c piece) {
	s.run(quantize, uint64(c.groups), uint64(c.bf16), uint64(c.groups), uint64(s.memory+scaleTable), uint64(s.memory+thresholds),
		uint64(c.packed), uint64(c.scales))
}

// finish brings the results back, with a number of records, and waits. The host computes the global scale again, a cheap sign that the
// device is sane.
func (s *slot) finish(p quant.Profile, records int) (amax, global float32, err error) {
	s.copyOut(s.results[:resultRecords+32*records], s.memory)
	if err := s.wait(); err != nil {
		return 0, 0, err
	}
	amax = quant.BF16ToFloat32(uint16(binary.LittleEndian.Uint32(s.results[resultAmax:])))
	global = math.Float32frombits(binary.LittleEndian.Uint32(s.results[resultGlobal:]))
	if want := p.Global(amax); finite(amax) && math.Float32bits(want) != math.Float32bits(global) {
		return 0, 0, fmt.Errorf("the device computed the global scale %v of maximum %v as %v", want, amax, global)
	}
	return amax, global, nil
}

// quantizeSet does the work of quant.Backend.QuantizeSet, but for weights that are not finite, which the maximum tells.
func (s *slot) quantizeSet(p quant.Profile, set []quant.Member) (amax, global float32, err error) {
	defer s.begin()()
	rounds := s.plan(set, false)
	s.prepare(p, set, rounds)
	for _, pieces := range rounds {
		if len(rounds) > 1 {
			s.copyWeights(set, pieces)
		}
		for _, c := range pieces {
			s.quantizePiece(c)
		}
		for _, c := range pieces {
			s.copyOut(c.part(set[c.index].Packed, groupCodes), c.packed)
			s.copyOut(c.part(set[c.index].Scales, 1), c.scales)
		}
	}
	return s.finish(p, 0)
}

// compareSet quantizes on the device and counts what differs there; only the counts come back.
func (s *slot) compareSet(p quant.Profile, set []quant.Member) (amax, global float32, differences []Difference, err error) {
	defer s.begin()()
	rounds := s.plan(set, true)
	if len(rounds) == 1 {
		s.copyWanted(set, rounds[0]) // first, so that the stream of copies need not wait for a kernel
	}
	s.prepare(p, set, rounds)
	record := func(member int) address { return s.memory + resultRecords + address(32*member) }
	s.fill(record(0), 0, 32*len(set))
	for i := range set {
		s.fill(record(i)+8, 0xff, 8) // the first index is lowered to the least
		s.fill(record(i)+24, 0xff, 8)
	}
	for _, pieces := range rounds {
		if len(rounds) > 1 {
			s.copyWeights(set, pieces)
			s.copyWanted(set, pieces)
		}
		for _, c := range pieces {
			s.quantizePiece(c)
			s.compareBytes(c.packed, c.wantPacked, c.groups*groupCodes, c.first*groupCodes, record(c.index))
			s.compareBytes(c.scales, c.wantScales, c.groups, c.first, record(c.index)+16)
		}
	}
	if amax, global, err = s.finish(p, len(set)); err != nil {
		return 0, 0, nil, err
	}
	for i := range set {
		word := func(k int) uint64 { return binary.LittleEndian.Uint64(s.results[resultRecords+32*i+8*k:]) }
		differences = append(differences, Difference{Bytes{word(0), word(1)}, Bytes{word(2), word(3)}})
	}
	return amax, global, differences, nil
}

func (s *slot) compareBytes(a, b address, n, base int, record address) {
	s.run(compare, uint64(n+15)/16, uint64(a), uint64(b), uint64(n), uint64(base), uint64(record), uint64(record+8))
}

// measureErrors sums over the pieces in order and over the blocks of each, so that a repetition gives the same bits.
func (s *slot) measureErrors(p quant.Profile, global float32, m quant.Member) (sum quant.Errors, err error) {
	for _, pieces := range s.plan([]quant.Member{m}, false) {
		c := pieces[0]
		end := s.begin()
		s.copyIn(c.bf16, c.part(m.BF16, groupBF16))
		s.copyIn(c.packed, c.part(m.Packed, groupCodes))
		s.copyIn(c.scales, c.part(m.Scales, 1))
		blocks := min((c.groups+blockThreads-1)/blockThreads, errorBlocks)
		s.runBlocks(errorSums, uint64(blocks), uint64(c.bf16), uint64(c.packed), uint64(c.scales), uint64(c.groups),
			bits(global), flag(p.ModelOpt()), uint64(s.memory))
		s.copyOut(s.results[:24*blocks], s.memory)
		err := s.wait()
		end()
		if err != nil {
			return sum, err
		}
		for b := range blocks {
			double := func(k int) float64 {
				return math.Float64frombits(binary.LittleEndian.Uint64(s.results[24*b+8*k:]))
			}
			sum.Add(quant.Errors{SumSquares: double(0), SumSquaredError: double(1), SumSquaredFloor: double(2) / 36})
		}
	}
	return sum, nil
}

func (s *slot) dequantizeBF16(m quant.Member, global float32, modelopt bool) error {
	defer s.begin()()
	for _, pieces := range s.plan([]quant.Member{m}, false) {
		c := pieces[0]
		s.copyIn(c.packed, c.part(m.Packed, groupCodes))
		s.copyIn(c.scales, c.part(m.Scales, 1))
		s.run(dequantize, 2*uint64(c.groups), uint64(c.packed), uint64(c.scales), uint64(c.groups), bits(global), flag(modelopt), uint64(c.bf16))
		s.copyOut(c.part(m.BF16, groupBF16), c.bf16)
	}
	return s.wait()
}

func bits(f float32) uint64 { return uint64(math.Float32bits(f)) }

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func finite(f float32) bool { return f <= math.MaxFloat32 }
