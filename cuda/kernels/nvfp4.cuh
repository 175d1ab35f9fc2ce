// What the kernels share. BF16 weights are read 16 to a group; a word holds two of them, the even column in its low half.
#pragma once

#include <ptx.cuh>

typedef unsigned char u8;
typedef unsigned long long u64;

const u32 signs = 0x80008000u; // sign bits of the two BF16 in a word

// Position of this thread in the grid, and the number of threads in it.
__device__ inline u64 thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 threads() { return (u64)gridDim.x * blockDim.x; }

// widen returns the float32 of a BF16; every value is exact.
__device__ inline float widen(u32 bits) { return __uint_as_float(bits << 16); }

// narrow rounds a float32 to BF16, ties to even. NaN gives the quiet NaN of positive sign.
__device__ inline u32 narrow(float f) {
    u32 b = __float_as_uint(f);
    return isnan(f) ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// pick takes the bits of a where mask is set and those of b elsewhere: one LOP3.
__device__ inline u32 pick(u32 a, u32 b, u32 mask) { return (a & mask) | (b & ~mask); }

// e4m3 returns the value of a float8_e4m3fn.
__device__ inline float e4m3(u32 b) {
    u32 magnitude = b & 0x7f;
    float f = magnitude < 8    ? (float)magnitude * 0x1p-9f // subnormal
              : magnitude < 127 ? __uint_as_float((magnitude << 20) + (120u << 23))
                                : __uint_as_float(0x7fc00000);
    return b & 0x80 ? -f : f;
}

// e2m1 returns the value of the magnitude bits of a code: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
__device__ inline float e2m1(u32 code) { return 0.5f * (float)(0xc8643210u >> 4 * code & 15); }

// step is the value of code 1.0 in a group with the given scale byte.
__device__ inline float step(u32 scale, float global, u32 modelopt) {
    return modelopt ? __fmul_rn(e4m3(scale), global) : __fdiv_rn(e4m3(scale), global);
}
