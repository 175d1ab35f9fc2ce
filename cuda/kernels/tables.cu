// tables makes all that the quantize kernel has to know, from the absolute maximum that absmax left on the device:
//
//   global      the global scale as it is stored
//   scaleBytes  the scale byte for each of the 32768 magnitudes that the maximum of a group can have
//   thresholds  for each scale byte below 128, eight magnitudes: the least whose quotient by the step is not zero, then the least whose
//               code is 1, 2, ... 7; in both halves of a word, 0x7f80 where no finite weight gets there
//
// A quotient grows with its weight, so thresholds replace the division exactly. This is the only kernel that knows profiles. It is
// launched with a thread for every scale byte and every threshold, which is 33,792 and fits the device at once.
#include "nvfp4.cuh"

const u32 magnitudes = 32768;
const u32 infinity = 0x7f80; // BF16

// How a tool computes the global scale and the group scale; the numbers are those of quant.GlobalForm and quant.ScaleForm.
enum GlobalForm { reciprocalTimes, timesReciprocal, divided };
enum ScaleForm { timesSixth, dividedBy6, dividedBy6W };

struct Profile {
    u32 globalForm, scaleForm, bf16Observer, zeroScale;
    float lowerClamp;
};

// observed rounds to the observer's dtype.
__device__ inline float observed(Profile p, float f) { return p.bf16Observer ? widen(narrow(f)) : f; }

__device__ inline float globalScale(Profile p, float amax) {
    float g;
    switch (p.globalForm) {
    case reciprocalTimes:
        g = observed(p, __fmul_rn(observed(p, __frcp_rn(fmaxf(amax, 0x1p-126f))), 2688));
        break;
    case timesReciprocal:
        g = __fmul_rn(amax, __uint_as_float(0x39c30c31)); // fl(1/2688)
        break;
    default:
        g = __fdiv_rn(amax, 2688);
    }
    return g == 0 || isinf(g) ? 1 : g;
}

// narrowE4M3 rounds 0 <= f <= 448 to float8_e4m3fn, ties to even.
__device__ inline u32 narrowE4M3(float f) {
    if (f < 0x1p-6f) return __float_as_uint(__fadd_rn(f, 0x1p14f)) - __float_as_uint(0x1p14f); // the adder rounds to units of 2^-9
    u32 b = __float_as_uint(f) - (120u << 23);
    return (b + 0x7ffff + (b >> 20 & 1)) >> 20;
}

__device__ inline u32 groupScale(Profile p, float amax, float global) {
    float s;
    switch (p.scaleForm) {
    case timesSixth:
        s = __fmul_rn(global, observed(p, __fmul_rn(amax, __uint_as_float(0x3e2aaaab)))); // fl(1/6)
        break;
    case dividedBy6:
        s = __fmul_rn(global, observed(p, __fdiv_rn(amax, 6)));
        break;
    default:
        s = __fdiv_rn(amax, __fmul_rn(6, global));
    }
    if (s == 0) return p.zeroScale;
    u32 b = narrowE4M3(fminf(fmaxf(s, p.lowerClamp), 448));
    return b == 0 ? p.zeroScale : b;
}

// reached tells whether x has left zero behind (k = 0), or its code is at least k. Ties go to the even code.
__device__ inline bool reached(float x, float step, u32 k) {
    float y = __fdiv_rn(x, step);
    if (k == 0) return y > 0;
    float tie = 0.5f * (e2m1(k - 1) + e2m1(k));
    return k % 2 ? y > tie : y >= tie;
}

__device__ inline u32 threshold(float step, u32 k) {
    u32 low = 1, high = infinity;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (reached(widen(middle), step, k)) high = middle;
        else low = middle + 1;
    }
    return low;
}

extern "C" __global__ void tables(const u32 *amax, u32 globalForm, u32 scaleForm, u32 bf16Observer, u32 zeroScale, float lowerClamp,
                                  float *global, u8 *scaleBytes, u32 *thresholds) {
    Profile p = {globalForm, scaleForm, bf16Observer, zeroScale, lowerClamp};
    float g = globalScale(p, widen(*amax));
    u32 i = thread();
    if (i == 0) *global = g;
    if (i < magnitudes) {
        scaleBytes[i] = groupScale(p, widen(i), g);
        return;
    }
    i -= magnitudes;
    thresholds[i] = threshold(step(i / 8, g, globalForm != reciprocalTimes), i % 8) * 0x10001;
}
