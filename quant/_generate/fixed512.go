package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The AVX-512 product of NVFP4 weights is one of whole numbers, since that takes the fewest instructions: 64 codes, as the bytes 2*value+12,
// meet 64 activations in one VPDPBUSD. The activations are fixed-point numbers of 23 bits with an exponent for each eight of them, which loses
// no more than sums in float32 do, cut into three digits of eight bits:
//
//	v = round(x * 2^k) = s2*2^16 + s1*2^8 + s0, digits from -128 to 127, |v| at most 2^22
//
// That is 18 instructions on the two busy ports for 128 weights, where decoding them to float32 took 24: in the cache 17.5 GB/s of packed bytes
// against 12.5, on one core of a Xeon (model 207).

// fixed512 writes activations as the product wants them: for 128 of them, eight vectors of 16 dwords. Dword d of the first six has digit 2, 1 or
// 0 of the even, then of the odd ones of elements 8d to 8d+7; of the seventh -12 times their sum, since weights come 12 too large; of the last
// the value of 1, 2^-k, halved since weights are doubled.
func fixed512() {
	TEXT("fixedAVX512", NOSPLIT, "func(dst, x *float32, halves int)")
	Doc("fixedAVX512 writes 128 activations at a time as fixed-point numbers for matVecNVFP4AVX512, in as much memory.")
	Pragma("noescape")
	dst, x, n := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("halves"), GP64())
	notNumber := K()
	// A register of x has the elements of two lanes. At each step two registers become two of twice the lanes and half the elements.
	var index [3][2]reg.VecVirtual
	for step := range index {
		elements := 8 >> step
		lanes := 16 / elements
		for half := range index[step] {
			from := func(k int) int {
				element, lane := half*elements/2+k/(2*lanes), k%(2*lanes)
				if step == 0 {
					return lane/2*16 + lane%2*8 + element // x has an element after the other
				}
				return lane/lanes*16 + element*lanes + lane%lanes
			}
			index[step][half] = ZMM()
			VMOVDQU64(bytes(fmt.Sprintf("transpose%d%d", step, half), func(i int) byte { return []byte{byte(from(i / 4)), 0, 0, 0}[i%4] }), index[step][half])
		}
	}
	TESTQ(n, n)
	JZ(LabelRef("done"))
	Label("half")
	var v [8]reg.VecVirtual // element e of all lanes
	for i := range v {
		v[i] = ZMM()
		VMOVUPS(Mem{Base: x, Disp: 64 * i}, v[i])
	}
	for step, blocks := 0, 1; step < 3; step, blocks = step+1, 2*blocks {
		var next [8]reg.VecVirtual // by the lanes' block, then by the elements'
		for l := 0; l < 8/blocks; l += 2 {
			for e := range blocks {
				halves := transpose(v[l*blocks+e], v[(l+1)*blocks+e], index[step])
				next[l*blocks+2*e], next[l*blocks+2*e+1] = halves[0], halves[1]
			}
		}
		v = next
	}
	// the exponent of the largest, from 48 on so that 2^-k is a normal number
	exponent, t := ZMM(), ZMM()
	VPANDD_BCST(dword(0x7fffffff), v[0], exponent)
	for _, e := range v[1:] {
		VPANDD_BCST(dword(0x7fffffff), e, t)
		VPMAXUD(t, exponent, exponent)
	}
	VPSRLD(Imm(23), exponent, exponent)
	VPCMPEQD_BCST(dword(255), exponent, notNumber)
	VPMAXUD_BCST(dword(48), exponent, exponent)
	scale, unit := ZMM(), ZMM()
	VPSUBD_BCST(dword(22), exponent, unit) // 2^(exponent-148-1)
	VPSLLD(Imm(23), unit, unit)
	VPBROADCASTD(dword(0x7fc00000), notNumber, unit)
	VMOVDQU64(dword(275), scale) // 2^(148-exponent)
	VPSUBD(exponent, scale, scale)
	VPSLLD(Imm(23), scale, scale)
	sum := ZMM()
	for e := range v {
		VMULPS(scale, v[e], v[e])
		VCVTPS2DQ(v[e], v[e])
		if e == 0 {
			VMOVDQA64(v[0], sum)
		} else {
			VPADDD(v[e], sum, sum)
		}
		VPADDD_BCST(dword(0x808080), v[e], v[e]) // carries, then bytes that are 128 too large
		VPXORD_BCST(dword(0x808080), v[e], v[e])
	}
	for digit := range 3 {
		for odd := range 2 {
			bytes4 := ZMM()
			for i := range 4 {
				b := ZMM()
				switch {
				case i > digit:
					VPSLLD(Imm(uint64(8*(i-digit))), v[2*i+odd], b)
				case i < digit:
					VPSRLD(Imm(uint64(8*(digit-i))), v[2*i+odd], b)
				default:
					VMOVDQA64(v[2*i+odd], b)
				}
				VPANDD_BCST(dword(255<<(8*i)), b, b)
				if i == 0 {
					VMOVDQA64(b, bytes4)
				} else {
					VPORD(b, bytes4, bytes4)
				}
			}
			VMOVDQU64(bytes4, Mem{Base: dst, Disp: 64 * (2*(2-digit) + odd)})
		}
	}
	VPSLLD(Imm(2), sum, sum)
	VPADDD(sum, sum, t)
	VPADDD(t, sum, sum)
	VPXORD(t, t, t)
	VPSUBD(sum, t, sum)
	VMOVDQU64(sum, Mem{Base: dst, Disp: 64 * 6})
	VMOVDQU64(unit, Mem{Base: dst, Disp: 64 * 7})
	ADDQ(U32(512), x)
	ADDQ(U32(512), dst)
	DECQ(n)
	JNZ(LabelRef("half"))
	Label("done")
	VZEROUPPER()
	RET()
}

// matvecNVFP4AVX512 has eight groups side by side, half a group of eight codes a lane.
func matvecNVFP4AVX512() {
	TEXT("matVecNVFP4AVX512", NOSPLIT, "func(dst, fixed *float32, packed, scales *byte, step float32, rows, blocks int)")
	Doc("matVecNVFP4AVX512 multiplies rows of blocks of 256 codes by what fixedAVX512 made of x.")
	Pragma("noescape")
	dst, x := Load(Param("dst"), GP64()), Load(Param("fixed"), GP64())
	packed, scales := Load(Param("packed"), GP64()), Load(Param("scales"), GP64())
	step := loadFloat("step")
	rows, blocks := Load(Param("rows"), GP64()), Load(Param("blocks"), GP64())
	table := ZMM() // four times, since a permutation looks at six bits
	VMOVDQU64(bytes("e2m1twice", func(i int) byte { return []byte{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}[i%16] }), table)
	// scales come sixteen at a time; lane i of half h has group 8h+i/2's
	var order [2]reg.VecVirtual
	for h := range order {
		order[h] = ZMM()
		VMOVDQU64(bytes("scaleOrder"+string(rune('0'+h)), func(i int) byte { return []byte{byte(8*h + i/8), 0, 0, 0}[i%4] }), order[h])
	}
	t := XMM()
	VMOVSS(dword(0x43800000), t)
	VMULSS(t, step, step)

	xp, n := GP64(), GP64()
	TESTQ(rows, rows)
	JZ(LabelRef("done"))
	Label("row")
	var acc [2]reg.VecVirtual
	for h := range acc {
		acc[h] = ZMM()
		VPXORQ(acc[h], acc[h], acc[h])
	}
	MOVQ(x, xp)
	MOVQ(blocks, n)
	Label("block")
	s := ZMM() // a byte in the middle of a half-precision number is 2^8 too small
	PREFETCHT0(Mem{Base: scales, Disp: 2048})
	VPMOVZXBW(Mem{Base: scales}, s.AsY())
	VPSLLW(Imm(7), s.AsY(), s.AsY())
	VCVTPH2PS(s.AsY(), s)
	for h := range 2 {
		// not one after the other, where they would wait for each other: 1 % of the read rate
		PREFETCHT1(Mem{Base: packed, Disp: far + 64*h})
		codes, even, odd := ZMM(), ZMM(), ZMM()
		VMOVDQU64(Mem{Base: packed, Disp: 64 * h}, codes)
		VPERMB(table, codes, even)
		VPSRLW(Imm(4), codes, codes)
		VPERMB(table, codes, odd)
		sum := ZMM()
		VPXORQ(sum, sum, sum)
		for digit := range 3 {
			if digit > 0 {
				VPSLLD(Imm(8), sum, sum)
			}
			VPDPBUSD(Mem{Base: xp, Disp: 512*h + 128*digit}, even, sum)
			VPDPBUSD(Mem{Base: xp, Disp: 512*h + 128*digit + 64}, odd, sum)
		}
		PREFETCHT0(Mem{Base: packed, Disp: near + 64*h})
		VPADDD(Mem{Base: xp, Disp: 512*h + 64*6}, sum, sum)
		VCVTDQ2PS(sum, sum)
		unit := ZMM()
		VPERMPS(s, order[h], unit)
		VMULPS(Mem{Base: xp, Disp: 512*h + 64*7}, unit, unit)
		VFMADD231PS(unit, sum, acc[h])
	}
	ADDQ(U32(128), packed)
	ADDQ(U32(1024), xp)
	ADDQ(Imm(16), scales)
	DECQ(n)
	JNZ(LabelRef("block"))
	VADDPS(acc[1], acc[0], acc[0])
	sum := avx512.sum(acc[0])
	VMULSS(step, sum, sum)
	VMOVSS(sum, Mem{Base: dst})
	ADDQ(Imm(4), dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	Label("done")
	VZEROUPPER()
	RET()
}
