package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const blockGroups = 64

// quantizeAVX512 takes blocks of 64 groups in two passes: group maxima and scales, then codes. It needs AVX-512 F, BW, DQ, VL and VBMI.
// Each pass prefetches one half of a later block, since memory must not pause while the second pass computes: from memory that gave 72 % of
// the read rate on a Xeon (model 207), against 66 % with all of it in the second pass and 60 % in the first.
func quantizeAVX512() {
	TEXT("quantizeAVX512", NOSPLIT, "func(k, packed, scales, bf16 *byte, blocks int) int")
	Doc("quantizeAVX512 quantizes blocks of 64 groups and returns how many it did: it stops before a block with a scale far beyond 448.")
	Pragma("noescape")
	k := Load(Param("k"), GP64())
	packed, scales := Load(Param("packed"), GP64()), Load(Param("scales"), GP64())
	bf16, blocks := Load(Param("bf16"), GP64()), Load(Param("blocks"), GP64())
	done := GP64()
	XORQ(done, done)
	origins := AllocLocal(3 * 64) // two halves of 64 words, then 64 row bytes

	c := newCoder512(k)
	multiplier, factor, lower, zeroScale := ZMM(), ZMM(), ZMM(), ZMM()
	VBROADCASTSS(Mem{Base: k, Disp: tableMultiplier}, multiplier)
	VBROADCASTSS(Mem{Base: k, Disp: tableFactor}, factor)
	VBROADCASTSS(Mem{Base: k, Disp: tableLower}, lower)
	VPBROADCASTD(Mem{Base: k, Disp: tableZeroScale}, zeroScale)

	TESTQ(blocks, blocks)
	JZ(LabelRef("done"))
	Label("block")
	beyond := K()
	KXORW(beyond, beyond, beyond)
	bytes64 := ZMM()
	for part := range 4 {
		s := maxima512(bf16, part*512, c.magnitudes)
		name := string(rune('0' + part))
		CMPL(Mem{Base: k, Disp: tableDivide}, Imm(0))
		JE(LabelRef("multiply" + name))
		VDIVPS(multiplier, s, s)
		JMP(LabelRef("product" + name))
		Label("multiply" + name)
		VMULPS(multiplier, s, s)
		Label("product" + name)
		CMPL(Mem{Base: k, Disp: tableBF16}, Imm(0))
		JE(LabelRef("exact" + name))
		t := ZMM()
		VPSRLD(Imm(16), s, t)
		VPANDD_BCST(dword(1), t, t)
		VPADDD_BCST(dword(0x7fff), t, t)
		VPADDD(t, s, s)
		VPANDD_BCST(dword(0xffff0000), s, s)
		Label("exact" + name)
		VMULPS(factor, s, s)

		over, zero := K(), K()
		VCMPPS_BCST(Imm(6), dword(math.Float32bits(480)), s, over) // not <=
		KORW(over, beyond, beyond)
		b := scaleBytes512(s, lower, zero)
		VMOVDQA32(zeroScale, zero, b)
		x := XMM()
		VPMOVDB(b, x)
		VPSHUFB(bytes("transpose", func(i int) byte { return byte(i%4*4 + i%16/4) }), x, x)
		if part == 0 {
			bytes64 = x.AsZ().(reg.VecVirtual)
		} else {
			VINSERTI32X4(Imm(uint64(part)), x, bytes64, bytes64)
		}
	}
	KORTESTW(beyond, beyond)
	JNZ(LabelRef("done"))
	VMOVDQU64(bytes64, Mem{Base: scales})
	low, high, row := lookup512(k, tableLow, bytes64), lookup512(k, tableHigh, bytes64), lookup512(k, tableRow, bytes64)
	t := ZMM()
	VPUNPCKLBW(high, low, t)
	VMOVDQU64(t, origins)
	VPUNPCKHBW(high, low, t)
	VMOVDQU64(t, origins.Offset(64))
	VMOVDQU64(row, origins.Offset(128))

	quarter, at := GP64(), GP64()
	MOVQ(U32(4), quarter)
	LEAQ(origins, at)
	rows := GP64()
	LEAQ(origins.Offset(128), rows)
	prefetch := GP64()
	LEAQ(Mem{Base: bf16, Disp: 1024 + ahead}, prefetch)
	Label("codes")
	for pair := range 2 {
		var words [2]reg.VecVirtual
		for i := range words {
			v := 2*pair + i
			PREFETCHT0(Mem{Base: prefetch, Disp: 64 * v})
			// unpacking left the origins of groups 0-7 of each sixteen in the first half, of 8-15 in the second
			words[i] = c.codes(bf16, v*128, Mem{Base: at, Disp: v/2*64 + v%2*8}, Mem{Base: rows, Disp: 4 * v})
		}
		VPACKUSWB(words[1], words[0], words[0])
		VPERMQ(words[0], c.order, words[0])
		VMOVDQU64(words[0], Mem{Base: packed, Disp: 64 * pair})
	}
	ADDQ(Imm(128), packed)
	ADDQ(U32(512), bf16)
	ADDQ(U32(256), prefetch)
	ADDQ(Imm(16), at)
	ADDQ(Imm(16), rows)
	DECQ(quarter)
	JNZ(LabelRef("codes"))

	ADDQ(Imm(64), scales)
	INCQ(done)
	CMPQ(done, blocks)
	JL(LabelRef("block"))
	Label("done")
	Store(done, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// maxima512 returns the maxima of 16 groups as float32, group 4k+j in dword 4j+k.
func maxima512(bf16 reg.Register, at int, magnitudes Op) reg.VecVirtual {
	var m [4]reg.VecVirtual
	for i := range m {
		a, b, t := ZMM(), ZMM(), ZMM()
		PREFETCHT0(Mem{Base: bf16, Disp: at/2 + 64*i + ahead})
		VPANDQ(Mem{Base: bf16, Disp: at + 128*i}, magnitudes, a)
		VPANDQ(Mem{Base: bf16, Disp: at + 128*i + 64}, magnitudes, b)
		VSHUFI64X2(Imm(0x88), b, a, t)
		VSHUFI64X2(Imm(0xdd), b, a, a)
		VPMAXUW(a, t, t)
		m[i] = t
	}
	for i := 0; i < 4; i += 2 {
		t := ZMM()
		VPUNPCKLQDQ(m[i+1], m[i], t)
		VPUNPCKHQDQ(m[i+1], m[i], m[i])
		VPMAXUW(m[i], t, m[i])
	}
	t := ZMM()
	VSHUFPS(Imm(0x88), m[2], m[0], t)
	VSHUFPS(Imm(0xdd), m[2], m[0], m[0])
	VPMAXUW(m[0], t, t)
	VPSLLD(Imm(16), t, m[0])
	VPMAXUW(m[0], t, t)
	VPANDD_BCST(dword(0xffff0000), t, t)
	return t
}

// scaleBytes512 clamps and rounds to E4M3, a byte in each dword, and sets zero where the scale is zero or becomes so.
func scaleBytes512(s, lower reg.VecVirtual, zero reg.OpmaskVirtual) reg.VecVirtual {
	none, small := K(), K()
	b, t := ZMM(), ZMM()
	VPTESTNMD(s, s, zero)
	VMAXPS(lower, s, s)
	VMINPS_BCST(dword(math.Float32bits(448)), s, s)
	VCMPPS_BCST(Imm(1), dword(math.Float32bits(0x1p-6)), s, small)
	VPSRLD(Imm(20), s, t)
	VPANDD_BCST(dword(1), t, t)
	VPADDD_BCST(dword(0x7ffff), t, t)
	VPADDD(s, t, t)
	VPSRLD(Imm(20), t, t)
	VPSUBD_BCST(dword(120<<3), t, b)
	VADDPS_BCST(dword(math.Float32bits(0x1p14)), s, t)
	VPSUBD_BCST(dword(math.Float32bits(0x1p14)), t, small, b)
	VPTESTNMD(b, b, none)
	KORW(none, zero, zero)
	return b
}

// lookup512 looks 64 bytes below 128 up in a table of 128 bytes.
func lookup512(k reg.Register, table int, index reg.VecVirtual) reg.VecVirtual {
	t, out := ZMM(), ZMM()
	VMOVDQU64(Mem{Base: k, Disp: table}, t)
	VMOVDQA64(index, out)
	VPERMI2B(Mem{Base: k, Disp: table + 64}, t, out)
	return out
}

// coder512 holds what the second pass keeps in registers.
type coder512 struct {
	magnitudes, rise0, rise1, stairCode, inStair, one, eight, weights, spreadWords, spreadBytes, order, sign reg.VecVirtual
}

func newCoder512(k reg.Register) coder512 {
	load := func(from Op) reg.VecVirtual {
		z := ZMM()
		VMOVDQU64(from, z)
		return z
	}
	c := coder512{
		magnitudes:  load(word(0x7fff)),
		rise0:       load(Mem{Base: k, Disp: tableRise}),
		rise1:       load(Mem{Base: k, Disp: tableRise + 64}),
		stairCode:   ZMM(),
		inStair:     load(word(63)),
		one:         load(word(0x0101)),
		eight:       load(word(0x0808)),
		weights:     load(word(0x1001)),
		spreadWords: load(bytes("spreadWords", func(i int) byte { return byte(i/16*2 + i%2) })),
		spreadBytes: load(bytes("spreadBytes", func(i int) byte { return byte(i / 16) })),
		order:       load(bytes("order", func(i int) byte { return []byte{0, 2, 4, 6, 1, 3, 5, 7}[i/8] * map[bool]byte{true: 1}[i%8 == 0] })),
		sign:        load(word(0x8000)),
	}
	VBROADCASTI32X4(Mem{Base: k, Disp: tableStairCode}, c.stairCode)
	return c
}

// codes turns four groups into words of two codes, a group in each 128-bit lane.
func (c coder512) codes(bf16 reg.Register, at int, origins, rows Mem) reg.VecVirtual {
	a, b, lo, hi := ZMM(), ZMM(), ZMM(), ZMM()
	VMOVDQU64(Mem{Base: bf16, Disp: at}, a)
	VMOVDQU64(Mem{Base: bf16, Disp: at + 64}, b)
	na, nb, negative := K(), K(), K()
	VPCMPUW(Imm(6), c.sign, a, na) // above 0x8000: negative, and not -0
	VPCMPUW(Imm(6), c.sign, b, nb)
	KUNPCKDQ(na, nb, negative)
	VSHUFI64X2(Imm(0x88), b, a, lo)
	VSHUFI64X2(Imm(0xdd), b, a, hi)
	origin, row := ZMM(), ZMM()
	VPBROADCASTQ(origins, origin)
	VPSHUFB(c.spreadWords, origin, origin)
	VPBROADCASTD(rows, row)
	VPSHUFB(c.spreadBytes, row, row)

	var stair, inStair [2]reg.VecVirtual
	for i, half := range []reg.VecVirtual{lo, hi} {
		stair[i], inStair[i] = ZMM(), ZMM()
		VPANDQ(c.magnitudes, half, half)
		VPSUBUSW(origin, half, half)
		VPSRLW(Imm(6), half, stair[i])
		VPANDQ(c.inStair, half, inStair[i])
	}
	VPACKUSWB(stair[1], stair[0], stair[0])
	VPACKUSWB(inStair[1], inStair[0], inStair[0])
	code := ZMM()
	VPSHUFB(stair[0], c.stairCode, code)
	VPORQ(stair[0], row, row)
	VPERMI2B(c.rise1, c.rise0, row)
	up := K()
	VPCMPUB(Imm(5), row, inStair[0], up)
	VPADDB(c.one, code, up, code)
	VPADDB(c.eight, code, negative, code)
	VPMADDUBSW(c.weights, code, code)
	return code
}
