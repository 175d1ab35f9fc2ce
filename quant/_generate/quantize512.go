package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quantizeAVX512 takes blocks of 64 groups: first the maxima and scales of a block, then its codes, the codes of one block among the scales
// of the next, so that memory, which only the scales wait for, is asked at an even pace. It needs AVX-512 F, BW, DQ, VL and VBMI.
func quantizeAVX512() {
	TEXT("quantizeAVX512", NOSPLIT, "func(k, packed, scales, bf16 *byte, blocks int) int")
	Doc("quantizeAVX512 quantizes blocks of 64 groups and returns how many it did: it stops before a block with a scale far beyond 448.")
	Pragma("noescape")
	q := quantizer512{
		k: Load(Param("k"), GP64()), packed: Load(Param("packed"), GP64()), scales: Load(Param("scales"), GP64()),
		bf16: Load(Param("bf16"), GP64()), beyond: K(), bytes: ZMM(),
	}
	blocks, done := Load(Param("blocks"), GP64()), GP64()
	q.origins = AllocLocal(3 * 64) // two halves of 64 words, then 64 row bytes
	XORQ(done, done)
	q.coder512 = newCoder512(q.k)
	TESTQ(blocks, blocks)
	JZ(LabelRef("done"))
	KXORW(q.beyond, q.beyond, q.beyond)
	for part := range 4 {
		q.scalePart("first", 0, part)
	}
	KORTESTW(q.beyond, q.beyond)
	JNZ(LabelRef("done"))
	q.finishScales()
	DECQ(blocks)
	JZ(LabelRef("last"))
	Label("block")
	for part := range 4 {
		q.codePart(part)
		q.scalePart("next", 64*32, part)
	}
	INCQ(done)
	ADDQ(U32(64*32), q.bf16)
	ADDQ(U32(64*8), q.packed)
	KORTESTW(q.beyond, q.beyond)
	JNZ(LabelRef("done"))
	q.finishScales()
	DECQ(blocks)
	JNZ(LabelRef("block"))
	Label("last")
	for part := range 4 {
		q.codePart(part)
	}
	INCQ(done)
	Label("done")
	Store(done, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

type quantizer512 struct {
	k, packed, scales, bf16 reg.Register
	beyond                  reg.OpmaskVirtual
	bytes                   reg.VecVirtual // the scales of a block
	origins                 Mem
	coder512
}

// scalePart puts the scales of 16 groups into q.bytes.
func (q quantizer512) scalePart(label string, block, part int) {
	s := maxima512(q.bf16, block+part*512, q.magnitudes)
	label += string(rune('0' + part))
	multiplier := Mem{Base: q.k, Disp: tableMultiplier}
	CMPL(Mem{Base: q.k, Disp: tableDivide}, Imm(0))
	JE(LabelRef(label + "multiply"))
	VDIVPS_BCST(multiplier, s, s)
	JMP(LabelRef(label + "product"))
	Label(label + "multiply")
	VMULPS_BCST(multiplier, s, s)
	Label(label + "product")
	CMPL(Mem{Base: q.k, Disp: tableBF16}, Imm(0))
	JE(LabelRef(label + "exact"))
	t := ZMM()
	VPSRLD(Imm(16), s, t)
	VPANDD_BCST(dword(1), t, t)
	VPADDD_BCST(dword(0x7fff), t, t)
	VPADDD(t, s, s)
	VPANDD_BCST(dword(0xffff0000), s, s)
	Label(label + "exact")
	VMULPS_BCST(Mem{Base: q.k, Disp: tableFactor}, s, s)

	over, zero := K(), K()
	VCMPPS_BCST(Imm(6), dword(math.Float32bits(480)), s, over) // not <=
	KORW(over, q.beyond, q.beyond)
	b := scaleBytes512(q.k, s, zero)
	VPBROADCASTD(Mem{Base: q.k, Disp: tableZeroScale}, zero, b)
	x := XMM()
	VPMOVDB(b, x)
	VPSHUFB(bytes("transpose", func(i int) byte { return byte(i%4*4 + i%16/4) }), x, x)
	if part == 0 {
		VMOVDQA64(x.AsZ(), q.bytes)
	} else {
		VINSERTI32X4(Imm(uint64(part)), x, q.bytes, q.bytes)
	}
}

// finishScales stores a block's scales, and the origins and rows that belong to them.
func (q quantizer512) finishScales() {
	VMOVDQU64(q.bytes, Mem{Base: q.scales})
	ADDQ(Imm(64), q.scales)
	low, high, row := lookup512(q.k, tableLow, q.bytes), lookup512(q.k, tableHigh, q.bytes), lookup512(q.k, tableRow, q.bytes)
	t := ZMM()
	VPUNPCKLBW(high, low, t)
	VMOVDQU64(t, q.origins)
	VPUNPCKHBW(high, low, t)
	VMOVDQU64(t, q.origins.Offset(64))
	VMOVDQU64(row, q.origins.Offset(128))
}

// codePart stores the codes of 16 groups.
func (q quantizer512) codePart(part int) {
	for pair := range 2 {
		var words [2]reg.VecVirtual
		for i := range words {
			v := 2*pair + i
			PREFETCHT0(Mem{Base: q.bf16, Disp: 64*32 + part*512 + 256 + 64*v + ahead})
			// unpacking left the origins of groups 0-7 of each sixteen in the first half, of 8-15 in the second
			words[i] = q.codes(q.bf16, part*512+v*128, q.origins.Offset(16*part+v/2*64+v%2*8), q.origins.Offset(128+16*part+4*v))
		}
		VPACKUSWB(words[1], words[0], words[0])
		VPERMQ(words[0], q.order, words[0])
		VMOVDQU64(words[0], Mem{Base: q.packed, Disp: 128*part + 64*pair})
	}
}

// maxima512 returns the maxima of 16 groups as float32, group 4k+j in dword 4j+k.
func maxima512(bf16 reg.Register, at int, magnitudes Op) reg.VecVirtual {
	var m [4]reg.VecVirtual
	for i := range m {
		a, b, t := ZMM(), ZMM(), ZMM()
		PREFETCHT0(Mem{Base: bf16, Disp: at + 64*i + ahead})
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
func scaleBytes512(k reg.Register, s reg.VecVirtual, zero reg.OpmaskVirtual) reg.VecVirtual {
	none, small := K(), K()
	b, t := ZMM(), ZMM()
	VPTESTNMD(s, s, zero)
	VMAXPS_BCST(Mem{Base: k, Disp: tableLower}, s, s)
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
