package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quantizeAVX2 is quantizeAVX512 with two groups a register. The ladder's rows come by one load a group instead of a byte permutation.
func quantizeAVX2() {
	TEXT("quantizeAVX2", NOSPLIT, "func(k, packed, scales, bf16 *byte, blocks int) int")
	Doc("quantizeAVX2 quantizes blocks of 64 groups and returns how many it did: it stops before a block with a scale far beyond 448.")
	Pragma("noescape")
	k := Load(Param("k"), GP64())
	packed, scales := Load(Param("packed"), GP64()), Load(Param("scales"), GP64())
	bf16, blocks := Load(Param("bf16"), GP64()), Load(Param("blocks"), GP64())
	done, n := GP64(), GP64()
	XORQ(done, done)
	magnitudes := YMM()
	VMOVDQU(word(0x7fff), magnitudes)

	TESTQ(blocks, blocks)
	JZ(LabelRef("done"))
	Label("block")
	beyond := YMM()
	VPXOR(beyond, beyond, beyond)
	for half := range 2 {
		var b [4]reg.VecVirtual
		for i := range b {
			part := 4*half + i
			s := maxima256(bf16, part*256, magnitudes)
			name := string(rune('0' + part))
			t := YMM()
			VBROADCASTSS(Mem{Base: k, Disp: tableMultiplier}, t)
			CMPL(Mem{Base: k, Disp: tableDivide}, Imm(0))
			JE(LabelRef("multiply" + name))
			VDIVPS(t, s, s)
			JMP(LabelRef("product" + name))
			Label("multiply" + name)
			VMULPS(t, s, s)
			Label("product" + name)
			CMPL(Mem{Base: k, Disp: tableBF16}, Imm(0))
			JE(LabelRef("exact" + name))
			VPSRLD(Imm(16), s, t)
			VPAND(dword(1), t, t)
			VPADDD(dword(0x7fff), t, t)
			VPADDD(t, s, s)
			VPAND(dword(0xffff0000), s, s)
			Label("exact" + name)
			VBROADCASTSS(Mem{Base: k, Disp: tableFactor}, t)
			VMULPS(t, s, s)
			VCMPPS(Imm(6), dword(math.Float32bits(480)), s, t) // not <=
			VPOR(t, beyond, beyond)
			b[i] = scaleBytes256(k, s)
		}
		VPACKUSDW(b[1], b[0], b[0])
		VPACKUSDW(b[3], b[2], b[2])
		VPACKUSWB(b[2], b[0], b[0])
		VMOVDQU(bytes("interleave", func(i int) byte { return []byte{0, 4, 1, 5, 2, 6, 3, 7}[i/4%8] * map[bool]byte{true: 1}[i%4 == 0] }), b[1])
		VPERMD(b[0], b[1], b[0])
		VMOVDQU(b[0], Mem{Base: scales, Disp: 32 * half})
	}
	VPTEST(beyond, beyond)
	JNZ(LabelRef("done"))

	prefetch := GP64()
	LEAQ(Mem{Base: bf16, Disp: 1024 + ahead}, prefetch)
	MOVQ(U32(64/4), n)
	Label("codes")
	PREFETCHT0(Mem{Base: prefetch})
	var words [2]reg.VecVirtual
	for i := range words {
		words[i] = codes256(magnitudes, k, bf16, scales, i)
	}
	VPACKUSWB(words[1], words[0], words[0])
	VPERMQ(Imm(0xd8), words[0], words[0])
	VMOVDQU(words[0], Mem{Base: packed})
	ADDQ(Imm(32), packed)
	ADDQ(U32(128), bf16)
	ADDQ(Imm(4), scales)
	ADDQ(Imm(64), prefetch)
	DECQ(n)
	JNZ(LabelRef("codes"))

	INCQ(done)
	CMPQ(done, blocks)
	JL(LabelRef("block"))
	Label("done")
	Store(done, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// maxima256 returns the maxima of 8 groups as float32, in order.
func maxima256(bf16 reg.Register, at int, magnitudes Op) reg.VecVirtual {
	pairs := func(i int) reg.VecVirtual { // groups i and i+4
		a, b, t := YMM(), YMM(), YMM()
		if i%2 == 0 {
			PREFETCHT0(Mem{Base: bf16, Disp: at/2 + 32*i + ahead})
		}
		VPAND(Mem{Base: bf16, Disp: at + 32*i}, magnitudes, a)
		VPAND(Mem{Base: bf16, Disp: at + 32*i + 128}, magnitudes, b)
		VPERM2I128(Imm(0x20), b, a, t)
		VPERM2I128(Imm(0x31), b, a, a)
		VPMAXUW(a, t, t)
		return t
	}
	fours := func(i int) reg.VecVirtual {
		a, b, t := pairs(i), pairs(i+1), YMM()
		VPUNPCKLQDQ(b, a, t)
		VPUNPCKHQDQ(b, a, a)
		VPMAXUW(a, t, t)
		return t
	}
	m := []reg.VecVirtual{fours(0), 2: fours(2)}
	t := YMM()
	VSHUFPS(Imm(0x88), m[2], m[0], t)
	VSHUFPS(Imm(0xdd), m[2], m[0], m[0])
	VPMAXUW(m[0], t, t)
	VPSLLD(Imm(16), t, m[0])
	VPMAXUW(m[0], t, t)
	VPAND(dword(0xffff0000), t, t)
	return t
}

// scaleBytes256 clamps and rounds to E4M3, a byte in each dword, with the zero scale where the scale is zero or becomes so.
func scaleBytes256(k reg.Register, s reg.VecVirtual) reg.VecVirtual {
	zero, b, t := YMM(), YMM(), YMM()
	VPXOR(b, b, b)
	VPCMPEQD(s, b, zero)
	VBROADCASTSS(Mem{Base: k, Disp: tableLower}, t)
	VMAXPS(t, s, s)
	VMINPS(dword(math.Float32bits(448)), s, s)
	VPSRLD(Imm(20), s, t)
	VPAND(dword(1), t, t)
	VPADDD(dword(0x7ffff), t, t)
	VPADDD(s, t, t)
	VPSRLD(Imm(20), t, t)
	VPSUBD(dword(120<<3), t, b)
	small := YMM()
	VADDPS(dword(math.Float32bits(0x1p14)), s, t)
	VPSUBD(dword(math.Float32bits(0x1p14)), t, t)
	VCMPPS(Imm(1), dword(math.Float32bits(0x1p-6)), s, small)
	VBLENDVPS(small, t, b, b)
	VPXOR(t, t, t)
	VPCMPEQD(b, t, t)
	VPOR(t, zero, zero)
	VBROADCASTSS(Mem{Base: k, Disp: tableZeroScale}, t)
	VBLENDVPS(zero, t, b, b)
	return b
}

// codes256 turns the i-th pair of groups into words of two codes, a group in each 128-bit lane.
func codes256(magnitudes Op, k, bf16, scales reg.Register, i int) reg.VecVirtual {
	lo, hi, t := YMM(), YMM(), YMM()
	VMOVDQU(Mem{Base: bf16, Disp: 64 * i}, hi)
	VPERM2I128(Imm(0x20), Mem{Base: bf16, Disp: 64*i + 32}, hi, lo)
	VPERM2I128(Imm(0x31), Mem{Base: bf16, Disp: 64*i + 32}, hi, hi)

	s0, s1 := GP64(), GP64()
	origin, rise := YMM(), YMM()
	MOVBQZX(Mem{Base: scales, Disp: 2 * i}, s0)
	MOVBQZX(Mem{Base: scales, Disp: 2*i + 1}, s1)
	VPBROADCASTW(Mem{Base: k, Index: s0, Scale: 2, Disp: tableOrigin}, origin.AsX())
	VPBROADCASTW(Mem{Base: k, Index: s1, Scale: 2, Disp: tableOrigin}, t.AsX())
	VINSERTI128(Imm(1), t.AsX(), origin, origin)
	MOVBQZX(Mem{Base: k, Index: s0, Scale: 1, Disp: tableRow}, s0)
	MOVBQZX(Mem{Base: k, Index: s1, Scale: 1, Disp: tableRow}, s1)
	VMOVDQU(Mem{Base: k, Index: s0, Scale: 1, Disp: tableRise}, rise.AsX())
	VINSERTI128(Imm(1), Mem{Base: k, Index: s1, Scale: 1, Disp: tableRise}, rise, rise)

	var stair, inStair, signed [2]reg.VecVirtual
	for j, half := range []reg.VecVirtual{lo, hi} {
		stair[j], inStair[j], signed[j] = YMM(), YMM(), YMM()
		VPAND(magnitudes, half, stair[j])
		VPSIGNW(half, stair[j], signed[j]) // -0 becomes +0
		VPSUBUSW(origin, stair[j], inStair[j])
		VPSRLW(Imm(6), inStair[j], stair[j])
		VPAND(word(63), inStair[j], inStair[j])
	}
	VPACKUSWB(stair[1], stair[0], stair[0])
	VPACKUSWB(inStair[1], inStair[0], inStair[0])
	VPACKSSWB(signed[1], signed[0], signed[0])
	code := YMM()
	VMOVDQU(bytes("nextCode", func(i int) byte { return []byte{1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8}[i%16] }), code)
	VPSHUFB(stair[0], code, code)
	VPSHUFB(stair[0], rise, rise)
	VPCMPGTB(inStair[0], rise, rise) // -1 where the rise is still ahead
	VPADDB(rise, code, code)
	VPAND(word(0x8080), signed[0], signed[0])
	VPSRLW(Imm(4), signed[0], signed[0])
	VPOR(signed[0], code, code)
	VPMADDUBSW(word(0x1001), code, code)
	return code
}
