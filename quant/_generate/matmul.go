package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in dotTile and addTile; a test compares them with the Go structs.
const (
	dotDst       = 0
	dotDstStride = 8
	dotX         = 16
	dotXStride   = 24
	dotXStep     = 32
	dotW         = 40
	dotWStride   = 48
	dotWStep     = 56
	dotQuadStep  = 64
	dotQuads     = 72
	dotVectors   = 80
	dotAdd       = 88
	dotScale     = 96

	dotPrefetch       = 104
	dotPrefetchStride = 112
	dotPrefetchStep   = 120

	addDst           = 0
	addDstStride     = 8
	addWeights       = 16
	addWeightsStride = 24
	addM             = 32
	addMStride       = 40
	addRows          = 48
)

// dotTiles multiplies from least to most rows of x by four rows of w at a time: their products stay in registers, and each vector of w and x is
// loaded once for all of them. In a panel the vectors of the rows take turns; the panels' kernel prefetches four rows of w elsewhere meanwhile.
// A kernel never writes to the tile: a pointer that it moved past its object would be the end of the process at the next garbage collection.
func dotTiles(v vector, least, most int, panel bool) {
	name := "dotTile" + v.suffix
	if panel {
		name = "panelTile" + v.suffix
	}
	TEXT(name, NOSPLIT, "func(a *byte, tokens int)")
	Doc(fmt.Sprintf("%s computes a dotTile of %d to %d rows of x.", name, least, most))
	Pragma("noescape")
	a, tokens := Load(Param("a"), GP64()), Load(Param("tokens"), GP64())
	for t := least; t <= most; t++ {
		CMPQ(tokens, Imm(uint64(t)))
		JEQ(LabelRef(fmt.Sprint("tokens", t)))
	}
	JMP(LabelRef("done"))
	for t := least; t <= most; t++ {
		Label(fmt.Sprint("tokens", t))
		dotTile(v, a, t, panel)
		JMP(LabelRef("done"))
	}
	Label("done")
	VZEROUPPER()
	RET()
}

func dotTile(v vector, a reg.Register, tokens int, panel bool) {
	label := func(name string) string { return fmt.Sprint(name, tokens) }
	field := func(at int) Mem { return Mem{Base: a, Disp: at} }
	dst, w, quads := GP64(), GP64(), GP64()
	MOVQ(field(dotDst), dst)
	MOVQ(field(dotW), w)
	MOVQ(field(dotQuads), quads)

	x, x3, wp, n := GP64(), GP64(), GP64(), GP64()
	xAt := func(t int) Mem { return Mem{Base: x, Disp: t * v.bytes} }
	wAt := func(r int) Mem { return Mem{Base: w, Disp: r * v.bytes} }
	var begin func()
	var next func()
	if panel {
		prefetch, stride, stride3, step := wp, GP64(), GP64(), GP64()
		MOVQ(field(dotPrefetchStride), stride)
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
		MOVQ(field(dotPrefetchStep), step)
		begin = func() {
			MOVQ(field(dotX), x)
			MOVQ(field(dotPrefetch), prefetch)
		}
		next = func() {
			ADDQ(U32(tokens*v.bytes), x)
			ADDQ(U32(4*v.bytes), w)
			PREFETCHT1(Mem{Base: prefetch})
			PREFETCHT1(Mem{Base: prefetch, Index: stride, Scale: 1})
			PREFETCHT1(Mem{Base: prefetch, Index: stride, Scale: 2})
			PREFETCHT1(Mem{Base: prefetch, Index: stride3, Scale: 1})
			ADDQ(step, prefetch)
		}
	} else {
		xStride, xStep, wStride, wStride3, wStep := GP64(), GP64(), GP64(), GP64(), GP64()
		MOVQ(field(dotXStride), xStride)
		MOVQ(field(dotXStep), xStep)
		MOVQ(field(dotWStride), wStride)
		LEAQ(Mem{Base: wStride, Index: wStride, Scale: 2}, wStride3)
		MOVQ(field(dotWStep), wStep)
		xAt = func(t int) Mem {
			at := Mem{Base: x}
			if t >= 3 {
				at.Base = x3
			}
			if t%3 > 0 {
				at.Index, at.Scale = xStride, uint8(t%3)
			}
			return at
		}
		wAt = func(r int) Mem {
			return [4]Mem{
				{Base: wp}, {Base: wp, Index: wStride, Scale: 1}, {Base: wp, Index: wStride, Scale: 2}, {Base: wp, Index: wStride3, Scale: 1},
			}[r]
		}
		begin = func() {
			MOVQ(field(dotX), x)
			if tokens > 3 {
				LEAQ(Mem{Base: x, Index: xStride, Scale: 2}, x3)
				ADDQ(xStride, x3)
			}
			MOVQ(w, wp)
			ADDQ(field(dotQuadStep), w)
		}
		next = func() {
			ADDQ(xStep, x)
			if tokens > 3 {
				ADDQ(xStep, x3)
			}
			ADDQ(wStep, wp)
		}
	}
	TESTQ(quads, quads)
	JZ(LabelRef("done"))
	Label(label("quad"))
	begin()
	acc := make([][4]reg.VecVirtual, tokens)
	for t := range acc {
		for r := range 4 {
			acc[t][r] = v.reg()
			v.zero(acc[t][r])
		}
	}
	MOVQ(field(dotVectors), n)
	Label(label("vector"))
	xs := make([]reg.VecVirtual, tokens)
	for t := range xs {
		xs[t] = v.reg()
		v.move(xAt(t), xs[t])
	}
	for r := range 4 {
		row := v.reg()
		v.move(wAt(r), row)
		for t := range xs {
			VFMADD231PS(xs[t], row, acc[t][r])
		}
	}
	next()
	DECQ(n)
	JNZ(LabelRef(label("vector")))

	out, scale := GP64(), XMM()
	MOVQ(dst, out)
	VBROADCASTSS(field(dotScale), scale)
	sums := make([]reg.VecVirtual, tokens)
	for t := range sums {
		sums[t] = v.sum4(acc[t])
		VMULPS(scale, sums[t], sums[t])
	}
	CMPQ(field(dotAdd), Imm(0))
	JEQ(LabelRef(label("store")))
	for t := range sums {
		VADDPS(Mem{Base: out}, sums[t], sums[t])
		if t < tokens-1 {
			ADDQ(field(dotDstStride), out)
		}
	}
	MOVQ(dst, out)
	Label(label("store"))
	for t := range sums {
		VMOVUPS(sums[t], Mem{Base: out})
		if t < tokens-1 {
			ADDQ(field(dotDstStride), out)
		}
	}
	ADDQ(Imm(16), dst)
	DECQ(quads)
	JNZ(LabelRef(label("quad")))
}

// sum4 adds the float32 lanes of each of four registers.
func (v vector) sum4(r [4]reg.VecVirtual) reg.VecVirtual {
	pair := func(low, high func(...Op), a, b reg.VecVirtual) {
		t := v.reg()
		low(b, a, t)
		high(b, a, a)
		VADDPS(t, a, a)
	}
	pair(VUNPCKLPS, VUNPCKHPS, r[0], r[1])
	pair(VUNPCKLPS, VUNPCKHPS, r[2], r[3])
	pair(VUNPCKLPD, VUNPCKHPD, r[0], r[2])
	if v.bytes == 64 {
		t := YMM()
		VEXTRACTF64X4(Imm(1), r[0], t)
		VADDPS(t, r[0].AsY(), r[0].AsY())
	}
	t := XMM()
	if v.bytes == 64 {
		VEXTRACTF32X4(Imm(1), r[0].AsY(), t)
	} else {
		VEXTRACTF128(Imm(1), r[0], t)
	}
	VADDPS(t, r[0].AsX(), r[0].AsX())
	return r[0].AsX().(reg.VecVirtual)
}

// widenBF16 writes float32 into a panel, where the vectors of four rows take turns.
func widenBF16(v vector) {
	name := "widenBF16" + v.suffix
	TEXT(name, NOSPLIT, "func(dst *float32, w *byte, vectors int)")
	Doc(name + " writes a row of a panel from so many vectors of BF16.")
	Pragma("noescape")
	dst, w, n := Load(Param("dst"), GP64()), Load(Param("w"), GP64()), Load(Param("vectors"), GP64())
	Label("loop")
	f := v.reg()
	VPMOVZXWD(Mem{Base: w}, f)
	VPSLLD(Imm(16), f, f)
	v.move(f, Mem{Base: dst})
	ADDQ(U32(v.bytes/2), w)
	ADDQ(U32(4*v.bytes), dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// widenNVFP4AVX512 shifts a group's eight bytes by one more code in each of eight lanes, so that codes 8 apart become neighbours.
func widenNVFP4AVX512() {
	TEXT("widenNVFP4AVX512", NOSPLIT, "func(dst *float32, packed, scales *byte, values *float32, groups int)")
	Doc("widenNVFP4AVX512 writes a row of a panel in the order 0, 8, 1, 9, ... of each group; values has those of the scale bytes.")
	Pragma("noescape")
	dst, packed := Load(Param("dst"), GP64()), Load(Param("packed"), GP64())
	scales, values := Load(Param("scales"), GP64()), Load(Param("values"), GP64())
	table, shifts := ZMM(), ZMM()
	VMOVDQU64(valueTable(), table)
	VMOVDQU64(bytes("qwordShifts", func(i int) byte { return byte(i/8*4) * map[bool]byte{true: 1}[i%8 == 0] }), shifts)
	group := func(i int) {
		codes, s := ZMM(), GP64()
		VPBROADCASTQ(Mem{Base: packed, Disp: 8 * i}, codes)
		VPSRLVQ(shifts, codes, codes)
		VPERMPS(table, codes, codes)
		MOVBQZX(Mem{Base: scales, Disp: i}, s)
		VMULPS_BCST(Mem{Base: values, Index: s, Scale: 4}, codes, codes)
		VMOVUPS(codes, Mem{Base: dst, Disp: 256 * i})
	}
	fours(group, pointer{packed, 8}, pointer{scales, 1}, pointer{dst, 256})
	VZEROUPPER()
	RET()
}

func widenNVFP4AVX2() {
	TEXT("widenNVFP4AVX2", NOSPLIT, "func(dst *float32, packed, scales *byte, values *float32, groups int)")
	Doc("widenNVFP4AVX2 writes a row of a panel; values has those of the scale bytes.")
	Pragma("noescape")
	dst, packed := Load(Param("dst"), GP64()), Load(Param("packed"), GP64())
	scales, values := Load(Param("scales"), GP64()), Load(Param("values"), GP64())
	loop(func() {
		s, step := GP64(), YMM()
		MOVBQZX(Mem{Base: scales}, s)
		VBROADCASTSS(Mem{Base: values, Index: s, Scale: 4}, step)
		for i := range 2 {
			VMOVUPS(half256(Mem{Base: packed, Disp: 4 * i}, step), Mem{Base: dst, Disp: 128 * i})
		}
	}, pointer{dst, 256}, pointer{packed, 8}, pointer{scales, 1})
	VZEROUPPER()
	RET()
}

// interleave copies a row of x to where the vectors of several rows take turns.
func interleave(v vector) {
	name := "interleave" + v.suffix
	TEXT(name, NOSPLIT, "func(dst, x *float32, order *uint32, vectors, step int)")
	Doc(name + " copies vectors to places so many bytes apart, the elements of each in a given order.")
	Pragma("noescape")
	dst, x, order := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("order"), GP64())
	n, step := Load(Param("vectors"), GP64()), Load(Param("step"), GP64())
	from := v.reg()
	v.move(Mem{Base: order}, from)
	Label("loop")
	f := v.reg()
	VPERMPS(Mem{Base: x}, from, f)
	v.move(f, Mem{Base: dst})
	ADDQ(U32(v.bytes), x)
	ADDQ(step, dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// addTiles adds weighted rows to up to three sums at a time, which stay in registers over all rows.
func addTiles(v vector, wide int) {
	name := "addTile" + v.suffix
	TEXT(name, NOSPLIT, "func(a *byte, sums, vectors int)")
	Doc(fmt.Sprintf("%s computes an addTile of 1 to 3 sums of 1 or %d vectors.", name, wide))
	Pragma("noescape")
	a, sums, vectors := Load(Param("a"), GP64()), Load(Param("sums"), GP64()), Load(Param("vectors"), GP64())
	CMPQ(vectors, Imm(1))
	JEQ(LabelRef("narrow"))
	for _, width := range []int{wide, 1} {
		if width == 1 {
			Label("narrow")
		}
		for n := 1; n <= 3; n++ {
			CMPQ(sums, Imm(uint64(n)))
			JEQ(LabelRef(fmt.Sprintf("sums%dx%d", n, width)))
		}
		JMP(LabelRef("done"))
	}
	for _, width := range []int{wide, 1} {
		for n := 1; n <= 3; n++ {
			label := fmt.Sprintf("sums%dx%d", n, width)
			Label(label)
			addTile(v, a, n, width, label+"row")
			JMP(LabelRef("done"))
		}
	}
	Label("done")
	VZEROUPPER()
	RET()
}

func addTile(v vector, a reg.Register, sums, width int, label string) {
	field := func(at int) Mem { return Mem{Base: a, Disp: at} }
	weights, stride, m, mStride, n := GP64(), GP64(), GP64(), GP64(), GP64()
	MOVQ(field(addWeights), weights)
	MOVQ(field(addWeightsStride), stride)
	MOVQ(field(addM), m)
	MOVQ(field(addMStride), mStride)
	MOVQ(field(addRows), n)
	dst := GP64()
	acc := make([][]reg.VecVirtual, sums)
	each := func(f func(acc reg.VecVirtual, at Mem)) {
		MOVQ(field(addDst), dst)
		for s := range acc {
			for i := range width {
				f(acc[s][i], Mem{Base: dst, Disp: i * v.bytes})
			}
			if s < sums-1 {
				ADDQ(field(addDstStride), dst)
			}
		}
	}
	for s := range acc {
		for range width {
			acc[s] = append(acc[s], v.reg())
		}
	}
	each(func(acc reg.VecVirtual, at Mem) { v.move(at, acc) })
	Label(label)
	w := make([]reg.VecVirtual, sums)
	for s := range w {
		at := Mem{Base: weights}
		if s > 0 {
			at.Index, at.Scale = stride, uint8(s)
		}
		w[s] = v.reg()
		VBROADCASTSS(at, w[s])
	}
	for i := range width {
		at := Mem{Base: m, Disp: i * v.bytes}
		if sums == 1 {
			VFMADD231PS(at, w[0], acc[0][i])
			continue
		}
		row := v.reg()
		v.move(at, row)
		for s := range w {
			VFMADD231PS(row, w[s], acc[s][i])
		}
	}
	ADDQ(mStride, m)
	ADDQ(Imm(4), weights)
	DECQ(n)
	JNZ(LabelRef(label))
	each(func(acc reg.VecVirtual, at Mem) { v.move(acc, at) })
}

// peak multiplies and adds in registers, as fast as the machine can.
func peak(v vector) {
	name := "peak" + v.suffix
	TEXT(name, NOSPLIT, "func(rounds int)")
	Doc(fmt.Sprintf("%s does %d multiply-adds a round.", name, 12*v.bytes/4))
	n := Load(Param("rounds"), GP64())
	var acc [12]reg.VecVirtual
	for i := range acc {
		acc[i] = v.reg()
		v.zero(acc[i])
	}
	Label("loop")
	for _, r := range acc {
		VFMADD231PS(r, r, r)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
