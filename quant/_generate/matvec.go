package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// matvecBF16 multiplies rows of BF16. A vector of words is two of float32, the even elements shifted up and the odd ones masked, so x comes
// with the even elements of each vector before the odd ones. Eight accumulators hide the latency of the multiply-adds.
func matvecBF16(v vector) {
	name := "matVecBF16" + v.suffix
	TEXT(name, NOSPLIT, "func(dst, x *float32, w *byte, rows, vectors int)")
	Doc(name + " multiplies rows of so many vectors of BF16 by x, which has the even elements of each vector before the odd ones.")
	Pragma("noescape")
	dst, x, w := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("w"), GP64())
	rows, vectors := Load(Param("rows"), GP64()), Load(Param("vectors"), GP64())
	odd := v.reg()
	v.move(dword(0xffff0000), odd)
	var acc [8]reg.VecVirtual
	for i := range acc {
		acc[i] = v.reg()
	}
	xp, n := GP64(), GP64()
	step := func(i int) {
		if i*v.bytes%64 == 0 {
			prefetch(w, i*v.bytes)
		}
		lo, hi := v.reg(), v.reg()
		v.move(Mem{Base: w, Disp: i * v.bytes}, hi)
		VPSLLD(Imm(16), hi, lo)
		v.and(odd, hi, hi)
		VFMADD231PS(Mem{Base: xp, Disp: 2 * i * v.bytes}, lo, acc[2*i])
		VFMADD231PS(Mem{Base: xp, Disp: (2*i + 1) * v.bytes}, hi, acc[2*i+1])
	}
	advance := func(k int) {
		ADDQ(U32(k*v.bytes), w)
		ADDQ(U32(2*k*v.bytes), xp)
	}
	TESTQ(rows, rows)
	JZ(LabelRef("done"))
	Label("row")
	for i := range acc {
		v.zero(acc[i])
	}
	MOVQ(x, xp)
	MOVQ(vectors, n)
	SUBQ(Imm(4), n)
	JL(LabelRef("rest"))
	Label("four")
	for i := range 4 {
		step(i)
	}
	advance(4)
	SUBQ(Imm(4), n)
	JGE(LabelRef("four"))
	Label("rest")
	ADDQ(Imm(4), n)
	JZ(LabelRef("sum"))
	Label("one")
	step(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef("one"))
	Label("sum")
	for k := 4; k > 0; k /= 2 {
		for i := range k {
			VADDPS(acc[i+k], acc[i], acc[i])
		}
	}
	VMOVSS(v.sum(acc[0]), Mem{Base: dst})
	ADDQ(Imm(4), dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	Label("done")
	VZEROUPPER()
	RET()
}

// sum adds the float32 lanes of r, the upper half to the lower one at every step.
func (v vector) sum(r reg.VecVirtual) reg.VecVirtual {
	if v.bytes == 64 {
		t := YMM()
		VEXTRACTF64X4(Imm(1), r, t)
		VADDPS(t, r.AsY(), r.AsY())
	}
	t := XMM()
	VEXTRACTF128(Imm(1), r.AsY(), t)
	VADDPS(t, r.AsX(), r.AsX())
	VPERMILPS(Imm(0x0e), r.AsX(), t)
	VADDPS(t, r.AsX(), r.AsX())
	VPERMILPS(Imm(1), r.AsX(), t)
	VADDPS(t, r.AsX(), r.AsX())
	return r.AsX().(reg.VecVirtual)
}

// loadFloat loads a parameter without avo's Load, which takes legacy SSE's MOVSS.
func loadFloat(name string) reg.VecVirtual {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	x := XMM()
	VMOVSS(p.Addr, x)
	return x
}

// values are the sixteen E2M1 values as float32 bits.
var values = [16]uint32{
	0, 0x3f000000, 0x3f800000, 0x3fc00000, 0x40000000, 0x40400000, 0x40800000, 0x40c00000,
	0x80000000, 0xbf000000, 0xbf800000, 0xbfc00000, 0xc0000000, 0xc0400000, 0xc0800000, 0xc0c00000,
}

func valueTable() Mem {
	return bytes("e2m1", func(i int) byte { return byte(values[i/4] >> (8 * (i % 4))) })
}

// matvecNVFP4AVX2 decodes 64 codes of four groups to BF16 by byte shuffles, then goes on like matvecBF16.
func matvecNVFP4AVX2() {
	TEXT("matVecNVFP4AVX2", NOSPLIT, "func(dst, x *float32, packed, scales *byte, values *float32, step float32, rows, blocks int)")
	Doc("matVecNVFP4AVX2 multiplies rows of blocks of 64 codes by x, in the order of reorderNVFP4AVX2.")
	Pragma("noescape")
	dst, x := Load(Param("dst"), GP64()), Load(Param("x"), GP64())
	packed, scales := Load(Param("packed"), GP64()), Load(Param("scales"), GP64())
	scaleValues, step := Load(Param("values"), GP64()), loadFloat("step")
	rows, blocks := Load(Param("rows"), GP64()), Load(Param("blocks"), GP64())
	low, upper, nibble := YMM(), YMM(), YMM()
	VMOVDQU(bytes("e2m1low", func(i int) byte { return byte(values[i%16] >> 16) }), low)
	VMOVDQU(bytes("e2m1high", func(i int) byte { return byte(values[i%16] >> 24) }), upper)
	VMOVDQU(word(0x0f0f), nibble)

	xp, n := GP64(), GP64()
	TESTQ(rows, rows)
	JZ(LabelRef("done"))
	Label("row")
	acc := [2]reg.VecVirtual{YMM(), YMM()}
	for _, a := range acc {
		VPXOR(a, a, a)
	}
	MOVQ(x, xp)
	MOVQ(blocks, n)
	Label("block")
	prefetch(packed, 0)
	even, odd := YMM(), YMM()
	VMOVDQU(Mem{Base: packed}, even)
	VPSRLW(Imm(4), even, odd)
	VPAND(nibble, even, even)
	VPAND(nibble, odd, odd)
	parts := [2]reg.VecVirtual{YMM(), YMM()} // groups 0 and 2, groups 1 and 3
	for i, codes := range []reg.VecVirtual{even, odd} {
		lo, hi := YMM(), YMM()
		VPSHUFB(codes, low, lo)
		VPSHUFB(codes, upper, hi)
		for g, part := range parts {
			w, f := YMM(), YMM()
			if g == 0 {
				VPUNPCKLBW(hi, lo, w)
			} else {
				VPUNPCKHBW(hi, lo, w)
			}
			VPSLLD(Imm(16), w, f)
			VPAND(dword(0xffff0000), w, w)
			at := (4*g + 2*i) * 32
			if i == 0 {
				VMULPS(Mem{Base: xp, Disp: at}, f, part)
			} else {
				VFMADD231PS(Mem{Base: xp, Disp: at}, f, part)
			}
			VFMADD231PS(Mem{Base: xp, Disp: at + 32}, w, part)
		}
	}
	for g, part := range parts {
		var s [2]reg.VecVirtual
		for half := range s {
			b := GP64()
			s[half] = YMM()
			MOVBQZX(Mem{Base: scales, Disp: g + 2*half}, b)
			VBROADCASTSS(Mem{Base: scaleValues, Index: b, Scale: 4}, s[half])
		}
		VBLENDPS(Imm(0xf0), s[1], s[0], s[0])
		VFMADD231PS(s[0], part, acc[g])
	}
	ADDQ(Imm(32), packed)
	ADDQ(U32(256), xp)
	ADDQ(Imm(4), scales)
	DECQ(n)
	JNZ(LabelRef("block"))
	VADDPS(acc[1], acc[0], acc[0])
	sum := avx2.sum(acc[0])
	VMULSS(step, sum, sum)
	VMOVSS(sum, Mem{Base: dst})
	ADDQ(Imm(4), dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	Label("done")
	VZEROUPPER()
	RET()
}

// transpose sorts a pair of registers by an index for each of the results.
func transpose(a, b reg.VecVirtual, index [2]reg.VecVirtual) (out [2]reg.VecVirtual) {
	for i := range out {
		out[i] = ZMM()
		VMOVDQA64(index[i], out[i])
		VPERMI2PS(b, a, out[i])
	}
	return out
}

// reorderBF16 puts the even elements of each two vectors before the odd ones.
func reorderBF16(v vector) {
	name := "reorderBF16" + v.suffix
	TEXT(name, NOSPLIT, "func(dst, x *float32, blocks int)")
	Doc(name + " writes x in the order of matVecBF16" + v.suffix + ".")
	Pragma("noescape")
	dst, x, n := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("blocks"), GP64())
	var index [2]reg.VecVirtual
	if v.bytes == 64 {
		for i := range index {
			index[i] = ZMM()
			VMOVDQU64(bytes(fmt.Sprintf("every2nd%d", i), func(k int) byte { return byte(k/4*2+i) * map[bool]byte{true: 1}[k%4 == 0] }), index[i])
		}
	}
	Label("loop")
	a, b := v.reg(), v.reg()
	v.move(Mem{Base: x}, a)
	v.move(Mem{Base: x, Disp: v.bytes}, b)
	var out [2]reg.VecVirtual
	if v.bytes == 64 {
		out = transpose(a, b, index)
	} else {
		for i, imm := range []uint64{0x88, 0xdd} {
			out[i] = YMM()
			VSHUFPS(Imm(imm), b, a, out[i])
			VPERMPD(Imm(0xd8), out[i], out[i])
		}
	}
	v.move(out[0], Mem{Base: dst})
	v.move(out[1], Mem{Base: dst, Disp: v.bytes})
	ADDQ(U32(2*v.bytes), x)
	ADDQ(U32(2*v.bytes), dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// reorderNVFP4AVX2 transposes groups as four by four elements, two groups side by side.
func reorderNVFP4AVX2() {
	TEXT("reorderNVFP4AVX2", NOSPLIT, "func(dst, x *float32, blocks int)")
	Doc("reorderNVFP4AVX2 writes blocks of 64 elements of x as matVecNVFP4AVX2 wants them.")
	Pragma("noescape")
	dst, x, n := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("blocks"), GP64())
	Label("loop")
	for g := range 2 {
		var r [4]reg.VecVirtual
		for i := range r {
			r[i] = YMM()
			VMOVUPS(Mem{Base: x, Disp: 64*g + 16*i}, r[i].AsX())
			VINSERTF128(Imm(1), Mem{Base: x, Disp: 64*(g+2) + 16*i}, r[i], r[i])
		}
		var t [4]reg.VecVirtual // columns 0 and 1 of rows 0 and 1, columns 2 and 3 of them; the same of rows 2 and 3
		for i := range 2 {
			t[2*i], t[2*i+1] = YMM(), YMM()
			VUNPCKLPS(r[2*i+1], r[2*i], t[2*i])
			VUNPCKHPS(r[2*i+1], r[2*i], t[2*i+1])
		}
		for column, vector := range [4]int{0, 2, 1, 3} {
			out := YMM()
			if column%2 == 0 {
				VUNPCKLPD(t[2+column/2], t[column/2], out)
			} else {
				VUNPCKHPD(t[2+column/2], t[column/2], out)
			}
			VMOVUPS(out, Mem{Base: dst, Disp: 32 * (4*g + vector)})
		}
	}
	ADDQ(U32(256), x)
	ADDQ(U32(256), dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
