// The machine instructions that C has no operator for. Included as <ptx.cuh>, so that a build for another machine can bring its own.
#pragma once

typedef unsigned int u32;

// permute: byte i of the result is the byte of b:a that nibble i of selector names or, with bit 3 set, eight copies of its top bit.
__device__ inline u32 permute(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

// lesser: the lesser of two numbers, in both halves of words of two BF16.
__device__ inline u32 lesser(u32 a, u32 b) {
    u32 r;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// maxOrNaN: the larger of two numbers, in both halves of words of two BF16; the largest of all bits without a sign where one is NaN.
__device__ inline u32 maxOrNaN(u32 a, u32 b) {
    u32 r;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
