//go:build !noasm

#include "textflag.h"

// Instructions that Go's assembler lacks, destination last as in its own: d = n op m.
#define UQSUB_H8(m, n, d) WORD $(0x6e602c00 | (m)<<16 | (n)<<5 | (d)) // d = max(n-m, 0), unsigned
#define UMAX_H8(m, n, d)  WORD $(0x6e606400 | (m)<<16 | (n)<<5 | (d)) // d = max(n, m), unsigned
#define UMAXV_H8(n, d)    WORD $(0x6e70a800 | (n)<<5 | (d))           // lane 0 of d = max of n's lanes
#define CMHI_H8(m, n, d)  WORD $(0x6e603400 | (m)<<16 | (n)<<5 | (d)) // d = n > m, unsigned
#define CMHS_B16(m, n, d) WORD $(0x6e203c00 | (m)<<16 | (n)<<5 | (d)) // d = n >= m, unsigned
#define XTN_B8(n, d)      WORD $(0x0e212800 | (n)<<5 | (d))           // lower half of d = low bytes of n
#define XTN2_B16(n, d)    WORD $(0x4e212800 | (n)<<5 | (d))           // upper half of d = low bytes of n
#define SHLL_S4(n, d)     WORD $(0x2e613800 | (n)<<5 | (d))           // d = lower half of n << 16: BF16 to float32
#define SHLL2_S4(n, d)    WORD $(0x6e613800 | (n)<<5 | (d))           // d = upper half of n << 16
#define FMUL_S4(m, n, d)  WORD $(0x6e20dc00 | (m)<<16 | (n)<<5 | (d)) // d = n * m
#define FADD_S4(m, n, d)  WORD $(0x4e20d400 | (m)<<16 | (n)<<5 | (d)) // d = n + m
#define FADDP_S4(m, n, d) WORD $(0x6e20d400 | (m)<<16 | (n)<<5 | (d)) // d = sums of neighbours of n, then of m

// func absMaxNEON(bf16 *byte, blocks int) uint16
// Blocks of 128 bytes, eight accumulators of eight words.
TEXT ·absMaxNEON(SB), NOSPLIT, $0-18
	MOVD bf16+0(FP), R0
	MOVD blocks+8(FP), R1
	VEOR V0.B16, V0.B16, V0.B16
	VEOR V1.B16, V1.B16, V1.B16
	VEOR V2.B16, V2.B16, V2.B16
	VEOR V3.B16, V3.B16, V3.B16
	VEOR V4.B16, V4.B16, V4.B16
	VEOR V5.B16, V5.B16, V5.B16
	VEOR V6.B16, V6.B16, V6.B16
	VEOR V7.B16, V7.B16, V7.B16
	MOVD $0x7fff, R2
	VDUP R2, V31.H8
	CBZ  R1, done

loop:
	VLD1.P 64(R0), [V16.B16, V17.B16, V18.B16, V19.B16]
	VLD1.P 64(R0), [V20.B16, V21.B16, V22.B16, V23.B16]
	VAND V31.B16, V16.B16, V16.B16
	VAND V31.B16, V17.B16, V17.B16
	VAND V31.B16, V18.B16, V18.B16
	VAND V31.B16, V19.B16, V19.B16
	VAND V31.B16, V20.B16, V20.B16
	VAND V31.B16, V21.B16, V21.B16
	VAND V31.B16, V22.B16, V22.B16
	VAND V31.B16, V23.B16, V23.B16
	UMAX_H8(16, 0, 0)
	UMAX_H8(17, 1, 1)
	UMAX_H8(18, 2, 2)
	UMAX_H8(19, 3, 3)
	UMAX_H8(20, 4, 4)
	UMAX_H8(21, 5, 5)
	UMAX_H8(22, 6, 6)
	UMAX_H8(23, 7, 7)
	SUB  $1, R1
	CBNZ R1, loop

done:
	UMAX_H8(4, 0, 0)
	UMAX_H8(5, 1, 1)
	UMAX_H8(6, 2, 2)
	UMAX_H8(7, 3, 3)
	UMAX_H8(2, 0, 0)
	UMAX_H8(3, 1, 1)
	UMAX_H8(1, 0, 0)
	UMAXV_H8(0, 0)
	VMOV V0.H[0], R2
	MOVH R2, ret+16(FP)
	RET

// func groupMaximaNEON(dst *uint16, bf16 *byte, groups int)
TEXT ·groupMaximaNEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD bf16+8(FP), R1
	MOVD groups+16(FP), R2
	MOVD $0x7fff, R3
	VDUP R3, V31.H8
	CBZ  R2, done

loop:
	VLD1.P 32(R1), [V0.B16, V1.B16]
	VAND V31.B16, V0.B16, V0.B16
	VAND V31.B16, V1.B16, V1.B16
	UMAX_H8(1, 0, 0)
	UMAXV_H8(0, 0)
	VST1.P V0.H[0], 2(R0)
	SUB  $1, R2
	CBNZ R2, loop

done:
	RET

// func codesNEON(k *kernelTables, packed, scales, bf16 *byte, groups int)
// The ladder's lookup of one group: its sixteen codes are the bytes of one register. kernelTables: rises at 0, rows at 128, origins at 512,
// stair codes at 768.
TEXT ·codesNEON(SB), NOSPLIT, $0-40
	MOVD k+0(FP), R0
	MOVD packed+8(FP), R1
	MOVD scales+16(FP), R2
	MOVD bf16+24(FP), R3
	MOVD groups+32(FP), R4
	ADD  $128, R0, R5
	ADD  $512, R0, R6
	ADD  $768, R0, R7
	VLD1 (R7), [V30.B16]
	MOVD $0x7fff, R7
	VDUP R7, V31.H8
	MOVD $63, R7
	VDUP R7, V29.H8
	MOVD $0x8000, R7
	VDUP R7, V28.H8
	MOVD $8, R7
	VDUP R7, V27.B16
	CBZ  R4, done

loop:
	VLD1.P 32(R3), [V0.B16, V1.B16]
	MOVBU.P 1(R2), R7
	MOVBU (R5)(R7), R8
	MOVHU (R6)(R7<<1), R9
	VDUP R9, V2.H8
	ADD  R8, R0, R8
	VLD1 (R8), [V3.B16]
	VAND V31.B16, V0.B16, V4.B16
	VAND V31.B16, V1.B16, V5.B16
	UQSUB_H8(2, 4, 4)
	UQSUB_H8(2, 5, 5)
	VUSHR $6, V4.H8, V6.H8
	VUSHR $6, V5.H8, V7.H8
	XTN_B8(6, 6)
	XTN2_B16(7, 6)            // stairs
	VAND V29.B16, V4.B16, V4.B16
	VAND V29.B16, V5.B16, V5.B16
	XTN_B8(4, 4)
	XTN2_B16(5, 4)            // places in the stairs
	VTBL V6.B16, [V3.B16], V3.B16
	VTBL V6.B16, [V30.B16], V6.B16
	CMHS_B16(3, 4, 3)         // -1 at or above the rise
	VSUB V3.B16, V6.B16, V6.B16
	CMHI_H8(28, 0, 0)         // negative, and not -0
	CMHI_H8(28, 1, 1)
	XTN_B8(0, 0)
	XTN2_B16(1, 0)
	VAND V27.B16, V0.B16, V0.B16
	VORR V0.B16, V6.B16, V6.B16
	VUZP1 V6.B16, V6.B16, V0.B16
	VUZP2 V6.B16, V6.B16, V1.B16
	VSHL $4, V1.B16, V1.B16
	VORR V1.B16, V0.B16, V0.B16
	VST1.P [V0.B8], 8(R1)
	SUB  $1, R4
	CBNZ R4, loop

done:
	RET

// func matVecBF16NEON(dst, x *float32, w *byte, rows, blocks int)
// Blocks of 16 columns, four accumulators.
TEXT ·matVecBF16NEON(SB), NOSPLIT, $0-40
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD w+16(FP), R2
	MOVD rows+24(FP), R3
	MOVD blocks+32(FP), R4
	CBZ  R3, done

row:
	MOVD R1, R5
	MOVD R4, R6
	VEOR V0.B16, V0.B16, V0.B16
	VEOR V1.B16, V1.B16, V1.B16
	VEOR V2.B16, V2.B16, V2.B16
	VEOR V3.B16, V3.B16, V3.B16

block:
	VLD1.P 32(R2), [V4.B16, V5.B16]
	VLD1.P 64(R5), [V16.S4, V17.S4, V18.S4, V19.S4]
	PRFM 1024(R2), PLDL1STRM
	SHLL_S4(4, 6)
	SHLL2_S4(4, 7)
	SHLL_S4(5, 8)
	SHLL2_S4(5, 9)
	VFMLA V16.S4, V6.S4, V0.S4
	VFMLA V17.S4, V7.S4, V1.S4
	VFMLA V18.S4, V8.S4, V2.S4
	VFMLA V19.S4, V9.S4, V3.S4
	SUB  $1, R6
	CBNZ R6, block
	FADD_S4(2, 0, 0)
	FADD_S4(3, 1, 1)
	FADD_S4(1, 0, 0)
	FADDP_S4(0, 0, 0)
	FADDP_S4(0, 0, 0)
	FMOVS.P F0, 4(R0)
	SUB  $1, R3
	CBNZ R3, row

done:
	RET

// func matVecNVFP4NEON(dst, x *float32, packed, scales *byte, values *float32, low, high *byte, step float32, rows, groups int)
// values has the value of each scale byte, low and high the two bytes of each code's BF16.
TEXT ·matVecNVFP4NEON(SB), NOSPLIT, $0-80
	MOVD dst+0(FP), R0
	MOVD x+8(FP), R1
	MOVD packed+16(FP), R2
	MOVD scales+24(FP), R3
	MOVD values+32(FP), R4
	MOVD low+40(FP), R7
	VLD1 (R7), [V30.B16]
	MOVD high+48(FP), R7
	VLD1 (R7), [V31.B16]
	FMOVS step+56(FP), F29
	MOVD rows+64(FP), R5
	MOVD groups+72(FP), R6
	MOVD $15, R7
	VDUP R7, V28.B16
	CBZ  R5, done

row:
	MOVD R1, R7
	MOVD R6, R8
	VEOR V0.B16, V0.B16, V0.B16

group:
	VLD1.P 8(R2), [V1.B8]
	VLD1.P 64(R7), [V16.S4, V17.S4, V18.S4, V19.S4]
	MOVBU.P 1(R3), R9
	PRFM 512(R2), PLDL1STRM
	ADD  R9<<2, R4, R9
	VLD1R (R9), [V20.S4]
	VAND V28.B16, V1.B16, V2.B16
	VUSHR $4, V1.B16, V3.B16
	VZIP1 V3.B16, V2.B16, V1.B16 // sixteen codes in order
	VTBL V1.B16, [V30.B16], V2.B16
	VTBL V1.B16, [V31.B16], V3.B16
	VZIP1 V3.B16, V2.B16, V4.B16
	VZIP2 V3.B16, V2.B16, V5.B16
	SHLL_S4(4, 6)
	SHLL2_S4(4, 7)
	SHLL_S4(5, 8)
	SHLL2_S4(5, 9)
	FMUL_S4(16, 6, 10)
	FMUL_S4(17, 7, 11)
	VFMLA V18.S4, V8.S4, V10.S4
	VFMLA V19.S4, V9.S4, V11.S4
	FADD_S4(11, 10, 10)
	VFMLA V20.S4, V10.S4, V0.S4
	SUB  $1, R8
	CBNZ R8, group
	FADDP_S4(0, 0, 0)
	FADDP_S4(0, 0, 0)
	FMULS F29, F0, F0
	FMOVS.P F0, 4(R0)
	SUB  $1, R5
	CBNZ R5, row

done:
	RET
