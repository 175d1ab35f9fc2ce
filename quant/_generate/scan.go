package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vector is one width of the x86 vector registers.
type vector struct {
	suffix string
	bytes  int
	reg    func() reg.VecVirtual
}

var (
	avx2   = vector{"AVX2", 32, YMM}
	avx512 = vector{"AVX512", 64, ZMM}
)

// move loads or stores a whole register.
func (v vector) move(from, to Op) {
	if v.bytes == 64 {
		VMOVDQU64(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

func (v vector) and(a, b, to Op) {
	if v.bytes == 64 {
		VPANDQ(a, b, to)
	} else {
		VPAND(a, b, to)
	}
}

func (v vector) zero(r reg.VecVirtual) {
	if v.bytes == 64 {
		VPXORQ(r, r, r)
	} else {
		VPXOR(r, r, r)
	}
}

// scans writes the kernels that run over memory with eight accumulators, a block of eight registers at a time.
func scans() {
	for _, v := range []vector{avx2, avx512} {
		scan(v, "absMax"+v.suffix, "func(bf16 *byte, blocks int) uint16", "returns the largest magnitude bits.",
			func(magnitudes, acc Op, at Mem) {
				t := v.reg()
				v.and(at, magnitudes, t)
				VPMAXUW(t, acc, acc)
			}, VPMAXUW)
		scan(v, "read"+v.suffix, "func(bf16 *byte, blocks int) uint16", "adds up what it reads, the least that a kernel can do with memory.",
			func(_, acc Op, at Mem) { VPADDQ(at, acc, acc) }, VPADDQ)
	}
}

func scan(v vector, name, signature, doc string, step func(magnitudes, acc Op, at Mem), join func(...Op)) {
	TEXT(name, NOSPLIT, signature)
	Doc(name + " " + doc)
	Pragma("noescape")
	p, n := Load(Param("bf16"), GP64()), Load(Param("blocks"), GP64())
	magnitudes := v.reg()
	v.move(word(0x7fff), magnitudes)
	var acc [8]reg.VecVirtual
	for i := range acc {
		acc[i] = v.reg()
		v.zero(acc[i])
	}
	TESTQ(n, n)
	JZ(LabelRef("done"))
	Label("loop")
	for i := range acc {
		if i*v.bytes%64 == 0 {
			PREFETCHT0(Mem{Base: p, Disp: ahead + i*v.bytes})
		}
		step(magnitudes, acc[i], Mem{Base: p, Disp: i * v.bytes})
	}
	ADDQ(U32(8*v.bytes), p)
	DECQ(n)
	JNZ(LabelRef("loop"))
	Label("done")
	for w := 4; w > 0; w /= 2 {
		for i := range w {
			join(acc[i+w], acc[i], acc[i])
		}
	}
	if v.bytes == 64 {
		upper := YMM()
		VEXTRACTI64X4(Imm(1), acc[0], upper)
		join(upper, acc[0].AsY(), acc[0].AsY())
	}
	x, t := acc[0].AsX(), XMM()
	VEXTRACTI128(Imm(1), acc[0].AsY(), t)
	join(t, x, x)
	// the largest of eight words is the complement of the smallest complement
	VPCMPEQD(t, t, t)
	VPXOR(t, x, x)
	VPHMINPOSUW(x, x)
	VPXOR(t, x, x)
	out := GP32()
	VMOVD(x, out)
	Store(out.As16(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}
