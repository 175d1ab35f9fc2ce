package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// decoder512 holds what decoding a group keeps in registers.
type decoder512 struct{ table, shifts reg.VecVirtual }

func newDecoder512() decoder512 {
	d := decoder512{ZMM(), ZMM()}
	VMOVDQU64(valueTable(), d.table)
	VMOVDQU64(nibbleShifts(), d.shifts)
	return d
}

// nibbleShifts has in dword i where code i of eight begins; in 16 dwords, of 16.
func nibbleShifts() Mem {
	return bytes("nibbleShifts", func(i int) byte { return []byte{byte(i), 0, 0, 0}[i%4] })
}

// group returns the float32 values of group g, times the step that its scale byte finds in the table of steps.
func (d decoder512) group(packed, scales, steps reg.Register, g int) reg.VecVirtual {
	codes, s := ZMM(), GP64()
	VPBROADCASTQ(Mem{Base: packed, Disp: 8 * g}, codes)
	VPMULTISHIFTQB(codes, d.shifts, codes) // a permutation looks at four bits only
	VPERMPS(d.table, codes, codes)
	MOVBQZX(Mem{Base: scales, Disp: g}, s)
	VMULPS_BCST(Mem{Base: steps, Index: s, Scale: 4}, codes, codes)
	return codes
}

// half256 returns the float32 values of half a group.
func half256(packed Mem, step reg.VecVirtual) reg.VecVirtual {
	codes, sign, t := YMM(), YMM(), YMM()
	VPBROADCASTD(packed, codes)
	VPSRLVD(nibbleShifts(), codes, codes)
	VPSLLD(Imm(28), codes, sign)
	VMOVDQU(valueTable(), t) // a permutation of eight looks at three bits: the magnitude
	VPERMPS(t, codes, codes)
	VPAND(dword(1<<31), sign, sign)
	VPOR(sign, codes, codes)
	VMULPS(step, codes, codes)
	return codes
}

// pointer is a register that moves on by so many bytes a group.
type pointer struct {
	reg  reg.Register
	step int
}

// loop runs body once a group.
func loop(body func(), pointers ...pointer) {
	n := Load(Param("groups"), GP64())
	TESTQ(n, n)
	JZ(LabelRef("done"))
	Label("loop")
	body()
	for _, p := range pointers {
		ADDQ(U32(p.step), p.reg)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	Label("done")
}

func dequantize(v vector, bf16 bool) {
	name, size, kind := "dequantize"+v.suffix, 64, "float32"
	if bf16 {
		name, size, kind = "dequantizeBF16"+v.suffix, 32, "BF16"
	}
	TEXT(name, NOSPLIT, "func(dst, packed, scales *byte, steps *float32, groups int)")
	Doc(name + " writes the " + kind + " values of whole groups; steps has the step of each of 256 scale bytes.")
	Pragma("noescape")
	dst, packed := Load(Param("dst"), GP64()), Load(Param("packed"), GP64())
	scales, steps := Load(Param("scales"), GP64()), Load(Param("steps"), GP64())
	pointers := []pointer{{dst, size}, {packed, 8}, {scales, 1}}
	if v.bytes == 64 {
		d := newDecoder512()
		loop(func() {
			f := d.group(packed, scales, steps, 0)
			if !bf16 {
				VMOVUPS(f, Mem{Base: dst})
				return
			}
			t := ZMM()
			VPSRLD(Imm(16), f, t)
			VPANDD_BCST(dword(1), t, t)
			VPADDD_BCST(dword(0x7fff), t, t)
			VPADDD(t, f, f)
			VPSRLD(Imm(16), f, f)
			VPMOVDW(f, Mem{Base: dst})
		}, pointers...)
	} else {
		loop(func() {
			s, step := GP64(), YMM()
			MOVBQZX(Mem{Base: scales}, s)
			VBROADCASTSS(Mem{Base: steps, Index: s, Scale: 4}, step)
			var halves [2]reg.VecVirtual
			for i := range halves {
				f := half256(Mem{Base: packed, Disp: 4 * i}, step)
				if bf16 {
					t := YMM()
					VPSRLD(Imm(16), f, t)
					VPAND(dword(1), t, t)
					VPADDD(dword(0x7fff), t, t)
					VPADDD(t, f, f)
					VPSRLD(Imm(16), f, f)
				} else {
					VMOVUPS(f, Mem{Base: dst, Disp: 32 * i})
				}
				halves[i] = f
			}
			if bf16 {
				VPACKUSDW(halves[1], halves[0], halves[0])
				VPERMQ(Imm(0xd8), halves[0], halves[0])
				VMOVDQU(halves[0], Mem{Base: dst})
			}
		}, pointers...)
	}
	VZEROUPPER()
	RET()
}

// stepsAVX2 serves AVX-512 too: a division of twice the width takes three times as long.
func stepsAVX2() {
	TEXT("stepsAVX2", NOSPLIT, "func(steps, values *float32, global float32, multiply int)")
	Doc("stepsAVX2 multiplies or divides 256 values by the global scale.")
	Pragma("noescape")
	steps, values := Load(Param("steps"), GP64()), Load(Param("values"), GP64())
	global, multiply, i := YMM(), Load(Param("multiply"), GP64()), GP64()
	VBROADCASTSS(loadFloat("global"), global)
	XORQ(i, i)
	at := func(p reg.Register) Mem { return Mem{Base: p, Index: i, Scale: 1} }
	each := func(f func(v reg.VecVirtual)) {
		v := YMM()
		VMOVUPS(at(values), v)
		f(v)
		VMOVUPS(v, at(steps))
		ADDQ(Imm(32), i)
		CMPQ(i, U32(1024))
	}
	TESTQ(multiply, multiply)
	JZ(LabelRef("divide"))
	Label("multiply")
	each(func(v reg.VecVirtual) { VMULPS(global, v, v) })
	JB(LabelRef("multiply"))
	JMP(LabelRef("done"))
	Label("divide")
	each(func(v reg.VecVirtual) { VDIVPS(global, v, v) })
	JB(LabelRef("divide"))
	Label("done")
	VZEROUPPER()
	RET()
}

// lookupBF16AVX512 writes groups of BF16 from a table of all values, 16 a scale byte: a shift for each byte, then a permutation of words, whatever
// rounding the values took.
func lookupBF16AVX512() {
	TEXT("lookupBF16AVX512", NOSPLIT, "func(dst, packed, scales, table *byte, groups int)")
	Doc("lookupBF16AVX512 writes the BF16 values of whole groups; the table has 16 values for each of 256 scale bytes.")
	Pragma("noescape")
	dst, packed := Load(Param("dst"), GP64()), Load(Param("packed"), GP64())
	scales, table := Load(Param("scales"), GP64()), Load(Param("table"), GP64())
	shifts := YMM() // the lower byte of word i begins with code i
	VMOVDQU(bytes("codeBits", func(i int) byte { return byte(i / 2 * 4 % 64) }), shifts)
	group := func(g int) {
		codes, s := YMM(), GP64()
		MOVBQZX(Mem{Base: scales, Disp: g}, s)
		SHLQ(Imm(5), s)
		VPBROADCASTQ(Mem{Base: packed, Disp: 8 * g}, codes)
		VPMULTISHIFTQB(codes, shifts, codes)
		VPERMW(Mem{Base: table, Index: s, Scale: 1}, codes, codes)
		VMOVDQU(codes, Mem{Base: dst, Disp: 32 * g})
	}
	fours(func(g int) {
		if g%2 == 0 {
			PREFETCHT0(Mem{Base: packed, Disp: ahead/4 + 8*g})
		}
		group(g)
	}, pointer{dst, 32}, pointer{packed, 8}, pointer{scales, 1})
	VZEROUPPER()
	RET()
}

// lookupBF16AVX2 looks up the lower and the upper bytes of the values, as bytes are all that AVX2 can look up.
func lookupBF16AVX2() {
	TEXT("lookupBF16AVX2", NOSPLIT, "func(dst, packed, scales, table *byte, groups int)")
	Doc("lookupBF16AVX2 is lookupBF16AVX512, except that it takes the table apart: the lower bytes of a scale byte's values before the upper ones.")
	Pragma("noescape")
	dst, packed := Load(Param("dst"), GP64()), Load(Param("packed"), GP64())
	scales, table := Load(Param("scales"), GP64()), Load(Param("table"), GP64())
	p, n := GP64(), GP64()
	MOVQ(table, p)
	MOVQ(I32(256), n)
	Label("split")
	row := YMM()
	VMOVDQU(Mem{Base: p}, row)
	VPSHUFB(bytes("evenOdd", func(i int) byte { return byte(i%8*2 + i/8%2) }), row, row)
	VPERMQ(Imm(0xd8), row, row)
	VMOVDQU(row, Mem{Base: p})
	ADDQ(Imm(32), p)
	DECQ(n)
	JNZ(LabelRef("split"))
	nibble := XMM()
	VMOVDQU(word(0x0f0f), nibble)
	fours(func(g int) {
		codes, odd, low, high, t := XMM(), XMM(), XMM(), XMM(), XMM()
		s := GP64()
		MOVBQZX(Mem{Base: scales, Disp: g}, s)
		SHLQ(Imm(5), s)
		VMOVQ(Mem{Base: packed, Disp: 8 * g}, codes)
		VPSRLW(Imm(4), codes, odd)
		VPUNPCKLBW(odd, codes, codes)
		VPAND(nibble, codes, codes)
		VMOVDQU(Mem{Base: table, Index: s, Scale: 1}, low)
		VMOVDQU(Mem{Base: table, Index: s, Scale: 1, Disp: 16}, high)
		VPSHUFB(codes, low, low)
		VPSHUFB(codes, high, high)
		VPUNPCKLBW(high, low, t)
		VMOVDQU(t, Mem{Base: dst, Disp: 32 * g})
		VPUNPCKHBW(high, low, t)
		VMOVDQU(t, Mem{Base: dst, Disp: 32*g + 16})
	}, pointer{dst, 32}, pointer{packed, 8}, pointer{scales, 1})
	VZEROUPPER()
	RET()
}

// fours runs body once for each of four groups, then once a group for the rest.
func fours(body func(g int), pointers ...pointer) {
	n := Load(Param("groups"), GP64())
	advance := func(k int) {
		for _, p := range pointers {
			ADDQ(U32(k*p.step), p.reg)
		}
	}
	SUBQ(Imm(4), n)
	JL(LabelRef("rest"))
	Label("four")
	for g := range 4 {
		body(g)
	}
	advance(4)
	SUBQ(Imm(4), n)
	JGE(LabelRef("four"))
	Label("rest")
	ADDQ(Imm(4), n)
	JZ(LabelRef("done"))
	Label("one")
	body(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef("one"))
	Label("done")
}

// Blocks of errorSums, and the magnitudes between which they are summed in float32.
const (
	errorBlock            = 16
	errorLeast, errorMost = 0x1p-40, 0x1p40
)

func float(f float32) Mem { return dword(math.Float32bits(f)) }

// idealCells has the value nearest to y for the 32 cells that the three lower bits of y's exponent and the two upper bits of its mantissa
// make, from 1/8 on: the values' middles lie between cells.
func idealCells(cell int) uint32 {
	exponent := cell >> 2 // 0 to 3 are 2^1 to 2^4, 4 to 7 are 2^-3 to 2^0
	if exponent >= 4 {
		exponent -= 8
	}
	y := float32(math.Ldexp(1+float64(cell&3)/4, exponent+1))
	code := 0
	for _, middle := range []float32{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5} {
		if y >= middle {
			code++
		}
	}
	return uint32(code)
}

func errorSums(v vector, body func(v vector, sums, bf16, packed, scales, steps, n reg.Register)) {
	name := "errorSums" + v.suffix
	TEXT(name, NOSPLIT, "func(sums *float64, bf16, packed, scales *byte, steps *float32, blocks int) int")
	Doc(name + " adds blocks of 16 groups to the lanes of referenceErrorSums and returns how many it did: it stops before one to be summed in float64.")
	Pragma("noescape")
	sums, bf16 := Load(Param("sums"), GP64()), Load(Param("bf16"), GP64())
	packed, scales := Load(Param("packed"), GP64()), Load(Param("scales"), GP64())
	steps, n := Load(Param("steps"), GP64()), Load(Param("blocks"), GP64())
	done := GP64()
	XORQ(done, done)
	TESTQ(n, n)
	JZ(LabelRef("done"))
	Label("block")
	body(v, sums, bf16, packed, scales, steps, n)
	INCQ(done)
	DECQ(n)
	JNZ(LabelRef("block"))
	Label("done")
	Store(done, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// fold adds float32 lanes to float64 lanes in memory.
func (v vector) fold(lanes reg.VecVirtual, sums Mem) {
	for range 2 {
		wide := v.reg()
		if v.bytes == 64 {
			VCVTPS2PD(lanes.AsY(), wide)
		} else {
			VCVTPS2PD(lanes.AsX(), wide)
		}
		VADDPD(sums, wide, wide)
		v.move(wide, sums)
		sums.Disp += v.bytes
		if v.bytes == 64 {
			VEXTRACTF64X4(Imm(1), lanes, lanes.AsY())
		} else {
			VEXTRACTF128(Imm(1), lanes, lanes.AsX())
		}
	}
}

func errorSumsAVX512(v vector, sums, bf16, packed, scales, steps, n reg.Register) {
	scratch := AllocLocal(128)
	maxima, inverses := scratch, scratch.Offset(64)
	constant := func(m Mem) reg.VecVirtual {
		z := ZMM()
		VMOVDQU64(m, z)
		return z
	}
	d := newDecoder512()
	abs, six, least := constant(dword(1<<31-1)), constant(float(6)), constant(float(0.125))
	var cells [2]reg.VecVirtual
	for i := range cells {
		cells[i] = constant(bytes(fmt.Sprintf("cells%d", i), func(k int) byte { return byte(values[idealCells(16*i+k/4)] >> (8 * (k % 4))) }))
	}

	amax := maxima512(bf16, 0, constant(word(0x7fff)))
	some, above := K(), K()
	VCMPPS_BCST(Imm(0x1e), float(errorMost), amax, above)
	KORTESTW(above, above)
	JNZ(LabelRef("done"))
	VCMPPS_BCST(Imm(0x1d), float(errorLeast), amax, above)
	KORTESTW(above, above)
	JNZ(LabelRef("sum"))
	VPTESTMD(amax, amax, some)
	KORTESTW(some, some)
	JNZ(LabelRef("done"))
	Label("sum")
	VMOVUPS(amax, maxima)
	VMAXPS_BCST(float(0x1p-126), amax, amax)
	inverse := ZMM()
	VBROADCASTSS(float(1), inverse)
	VDIVPS(amax, inverse, inverse)
	VMOVUPS(inverse, inverses)

	var acc [3]reg.VecVirtual
	for i := range acc {
		acc[i] = ZMM()
		v.zero(acc[i])
	}
	for g := range errorBlock {
		at := 4 * (g%4*4 + g/4) // the order of maxima512
		x := ZMM()
		VPMOVZXWD(Mem{Base: bf16, Disp: 32 * g}, x)
		VPSLLD(Imm(16), x, x)
		VFMADD231PS(x, x, acc[0]) // exact but for the addition
		e := d.group(packed, scales, steps, g)
		VSUBPS(e, x, e)
		VMULPS(e, e, e)
		VADDPS(e, acc[1], acc[1])
		y := ZMM()
		VPANDD(abs, x, x)
		VMULPS(six, x, x)
		VMULPS_BCST(inverses.Offset(at), x, y)
		VMAXPS(least, y, y)
		VPSRLD(Imm(21), y, y)
		VPERMI2PS(cells[1], cells[0], y)
		VFNMADD231PS_BCST(maxima.Offset(at), y, x) // exact
		VMULPS(x, x, x)
		VADDPS(x, acc[2], acc[2])
	}
	for i := range acc {
		v.fold(acc[i], Mem{Base: sums, Disp: 128 * i})
	}
	ADDQ(U32(32*errorBlock), bf16)
	ADDQ(U32(8*errorBlock), packed)
	ADDQ(U32(errorBlock), scales)
}

func errorSumsAVX2(v vector, sums, bf16, packed, scales, steps, n reg.Register) {
	scratch := AllocLocal(128)
	inverses := scratch.Offset(64)
	// the groups' maxima as float32, and the largest of them
	most, ones := XMM(), XMM()
	VPXOR(most, most, most)
	VPCMPEQD(ones, ones, ones)
	for g := range errorBlock {
		x, t := XMM(), XMM()
		VMOVDQU(Mem{Base: bf16, Disp: 32 * g}, x)
		VMOVDQU(Mem{Base: bf16, Disp: 32*g + 16}, t)
		VPAND(word(0x7fff), x, x)
		VPAND(word(0x7fff), t, t)
		VPMAXUW(t, x, x)
		VPXOR(ones, x, x)
		VPHMINPOSUW(x, x)
		VPXOR(ones, x, x)
		VPSLLD(Imm(16), x, x)
		VPMAXUD(x, most, most)
		VMOVD(x, scratch.Offset(4*g))
	}
	largest := GP32()
	VMOVD(most, largest)
	TESTL(largest, largest)
	JZ(LabelRef("sum"))
	CMPL(largest, U32(math.Float32bits(errorLeast)))
	JB(LabelRef("done"))
	CMPL(largest, U32(math.Float32bits(errorMost)))
	JA(LabelRef("done"))
	Label("sum")
	for half := range 2 {
		t, inverse := YMM(), YMM()
		VBROADCASTSS(float(0x1p-126), t)
		VMAXPS(scratch.Offset(32*half), t, t)
		VBROADCASTSS(float(1), inverse)
		VDIVPS(t, inverse, inverse)
		VMOVUPS(inverse, inverses.Offset(32*half))
	}

	var acc [3][2]reg.VecVirtual
	for i := range acc {
		for half := range acc[i] {
			acc[i][half] = YMM()
			v.zero(acc[i][half])
		}
	}
	group, frame := GP64(), GP64()
	LEAQ(scratch, frame)
	MOVQ(I32(errorBlock), group)
	Label("group")
	s, step := GP64(), YMM()
	MOVBQZX(Mem{Base: scales}, s)
	VBROADCASTSS(Mem{Base: steps, Index: s, Scale: 4}, step)
	for half := range 2 {
		x := YMM()
		VPMOVZXWD(Mem{Base: bf16, Disp: 16 * half}, x)
		VPSLLD(Imm(16), x, x)
		VFMADD231PS(x, x, acc[0][half])
		e := half256(Mem{Base: packed, Disp: 4 * half}, step)
		VSUBPS(e, x, e)
		VMULPS(e, e, e)
		VADDPS(e, acc[1][half], acc[1][half])
		y, ideal, t := YMM(), YMM(), YMM()
		VPAND(dword(1<<31-1), x, x)
		VMULPS(float(6), x, x)
		VBROADCASTSS(Mem{Base: frame, Disp: 64}, y)
		VMULPS(x, y, y)
		VMAXPS(float(0.5), y, ideal)
		VPSRLD(Imm(21), ideal, ideal)
		VPAND(dword(15), ideal, ideal)
		// the codes of 16 cells, from 1/2 on
		VMOVDQU(bytes("idealCodes", func(i int) byte { return byte(idealCells(i%16 + i%16/8*16)) }), t)
		VPSHUFB(ideal, t, ideal)
		VMOVDQU(valueTable(), t)
		VPERMPS(t, ideal, ideal)
		VCMPPS(Imm(0x1d), float(0.25), y, y)
		VPAND(y, ideal, ideal)
		VBROADCASTSS(Mem{Base: frame}, y)
		VFNMADD231PS(y, ideal, x)
		VMULPS(x, x, x)
		VADDPS(x, acc[2][half], acc[2][half])
	}
	ADDQ(Imm(4), frame)
	ADDQ(Imm(32), bf16)
	ADDQ(Imm(8), packed)
	INCQ(scales)
	DECQ(group)
	JNZ(LabelRef("group"))
	for i := range acc {
		for half := range acc[i] {
			v.fold(acc[i][half], Mem{Base: sums, Disp: 128*i + 64*half})
		}
	}
}
