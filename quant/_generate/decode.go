package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// decoder512 holds what decoding a group keeps in registers.
type decoder512 struct {
	table, shifts reg.VecVirtual
	upper         reg.OpmaskVirtual
}

func newDecoder512() decoder512 {
	d := decoder512{ZMM(), ZMM(), K()}
	VMOVDQU64(valueTable(), d.table)
	VMOVDQU64(nibbleShifts(), d.shifts)
	r := GP32()
	MOVL(U32(0xff00), r)
	KMOVW(r, d.upper)
	return d
}

func nibbleShifts() Mem {
	return bytes("nibbleShifts", func(i int) byte { return byte(i/4%8*4) * map[bool]byte{true: 1}[i%4 == 0] })
}

// group returns the float32 values of a group, times the step that its scale byte finds in the table of steps.
func (d decoder512) group(packed, scales, steps reg.Register) reg.VecVirtual {
	codes, s := ZMM(), GP64()
	VPBROADCASTD(Mem{Base: packed}, codes)
	VPBROADCASTD(Mem{Base: packed, Disp: 4}, d.upper, codes)
	VPSRLVD(d.shifts, codes, codes)
	VPERMPS(d.table, codes, codes)
	MOVBQZX(Mem{Base: scales}, s)
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
			f := d.group(packed, scales, steps)
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

// qword returns a read-only constant of 8 equal float64.
func qword(f float64) Mem {
	b := math.Float64bits(f)
	return bytes(fmt.Sprintf("qword%016x", b), func(i int) byte { return byte(b >> (8 * (i % 8))) })
}

// middles are where the codes part, with the value's growth there; at the odd ones the tie goes up.
var middles = [7][2]float64{{0.25, 0.5}, {0.75, 0.5}, {1.25, 0.5}, {1.75, 0.5}, {2.5, 1}, {3.5, 1}, {5, 2}}

// errorSums adds to 3 x 8 lanes of float64: the squares of weights, of errors, and of the floor's errors times 36.
func errorSums(v vector) {
	name := "errorSums" + v.suffix
	TEXT(name, NOSPLIT, "func(sums *float64, bf16, packed, scales *byte, steps *float32, groups int)")
	Doc(name + " adds to the lanes of referenceErrorSums.")
	Pragma("noescape")
	sums, bf16 := Load(Param("sums"), GP64()), Load(Param("bf16"), GP64())
	packed, scales := Load(Param("packed"), GP64()), Load(Param("scales"), GP64())
	steps := Load(Param("steps"), GP64())
	parts := 64 / v.bytes // registers of eight lanes of float64
	var acc [3][]reg.VecVirtual
	for i := range acc {
		for j := range parts {
			r := v.reg()
			VMOVUPD(Mem{Base: sums, Disp: 64*i + v.bytes*j}, r)
			acc[i] = append(acc[i], r)
		}
	}
	var d decoder512
	if v.bytes == 64 {
		d = newDecoder512()
	}
	loop(func() {
		// the group's maximum, as float64 in all lanes
		x, t := XMM(), XMM()
		VMOVDQU(Mem{Base: bf16}, x)
		VMOVDQU(Mem{Base: bf16, Disp: 16}, t)
		VPAND(word(0x7fff), x, x)
		VPAND(word(0x7fff), t, t)
		VPMAXUW(t, x, x)
		VPCMPEQD(t, t, t)
		VPXOR(t, x, x)
		VPHMINPOSUW(x, x)
		VPXOR(t, x, x)
		VPSLLD(Imm(16), x, x)
		amax := v.reg()
		VCVTPS2PD(x, x)
		VBROADCASTSD(x, amax)

		var values reg.VecVirtual // the dequantized group, or half of it
		step := YMM()
		if v.bytes == 64 {
			values = d.group(packed, scales, steps)
		} else {
			s := GP64()
			MOVBQZX(Mem{Base: scales}, s)
			VBROADCASTSS(Mem{Base: steps, Index: s, Scale: 4}, step)
		}
		for half := range 2 {
			if v.bytes == 32 {
				values = half256(Mem{Base: packed, Disp: 4 * half}, step)
			}
			for j := range parts {
				w, q := v.reg(), v.reg()
				weights := Mem{Base: bf16, Disp: 16*half + 8*j}
				if v.bytes == 64 {
					VPMOVZXWD(weights, w.AsY())
					VPSLLD(Imm(16), w.AsY(), w.AsY())
					VCVTPS2PD(w.AsY(), w)
					if half == 1 {
						VEXTRACTF64X4(Imm(1), values, values.AsY())
					}
					VCVTPS2PD(values.AsY(), q)
				} else {
					VPMOVZXWD(weights, w.AsX())
					VPSLLD(Imm(16), w.AsX(), w.AsX())
					VCVTPS2PD(w.AsX(), w)
					if j == 1 {
						VEXTRACTF128(Imm(1), values, values.AsX())
					}
					VCVTPS2PD(values.AsX(), q)
				}
				VSUBPD(q, w, q)
				VMULPD(q, q, q)
				VADDPD(q, acc[1][j], acc[1][j])
				VMULPD(w, w, q)
				VADDPD(q, acc[0][j], acc[0][j])

				// 6|x| against middle*amax: exact in float64
				VMULPD(qword(6), w, w)
				v.and(qword(math.Float64frombits(1<<63-1)), w, w)
				v.zero(q)
				for k, m := range middles {
					at, predicate := v.reg(), 0x1e // greater
					if k%2 == 1 {
						predicate = 0x1d // or equal
					}
					VMULPD(qword(m[0]), amax, at)
					if v.bytes == 64 {
						up := K()
						VCMPPD(Imm(uint64(predicate)), at, w, up)
						VADDPD(qword(m[1]), q, up, q)
					} else {
						VCMPPD(Imm(uint64(predicate)), at, w, at)
						VANDPD(qword(m[1]), at, at)
						VADDPD(at, q, q)
					}
				}
				VMULPD(amax, q, q)
				VSUBPD(q, w, q)
				VMULPD(q, q, q)
				VADDPD(q, acc[2][j], acc[2][j])
			}
		}
	}, pointer{bf16, 32}, pointer{packed, 8}, pointer{scales, 1})
	for i := range acc {
		for j, r := range acc[i] {
			VMOVUPD(r, Mem{Base: sums, Disp: 64*i + v.bytes*j})
		}
	}
	VZEROUPPER()
	RET()
}
