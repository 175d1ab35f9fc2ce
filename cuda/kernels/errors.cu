// errors sums, as quant.MeasureErrors does but in another order: squares of the weights, squares of weight minus dequantized weight, and
// the latter with the real number amax/6 as group scale (times 36: 6x - code*amax is exact where amax/6 is not). Every block writes its
// three sums, in a fixed order, so that a repetition gives the same bits.
#include "nvfp4.cuh"

struct Sums {
    double squares, errors, floors;
};

__device__ inline void add(Sums &s, const Sums &o) {
    s.squares += o.squares;
    s.errors += o.errors;
    s.floors += o.floors;
}

// idealCode is the code nearest to 6x/amax, ties to the even code. Both sides are taken down by 8, so that none overflows, and are exact.
__device__ inline u32 idealCode(float x, float amax) {
    u32 code = 0;
    for (u32 k = 1; k < 8; k++) {
        float tie = (e2m1(k - 1) + e2m1(k)) * 0.0625f * amax, y = fabsf(x) * 0.75f;
        code += k % 2 ? y > tie : y >= tie;
    }
    return code;
}

extern "C" __global__ void __launch_bounds__(256)
errors(const uint4 *bf16, const uint2 *packed, const u8 *scales, u64 groups, float global, u32 modelopt, Sums *sums) {
    Sums s = {};
    for (u64 g = thread(); g < groups; g += threads()) {
        uint4 low = bf16[2 * g], high = bf16[2 * g + 1];
        const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        u32 largest = 0;
        for (u32 w : words) largest = max(largest, max(w & 0x7fff, w >> 16 & 0x7fff));
        float amax = widen(largest), one = step(scales[g], global, modelopt);
        u64 codes = (u64)packed[g].y << 32 | packed[g].x;
        for (u32 i = 0; i < 16; i++) {
            u32 bits = words[i / 2] >> i % 2 * 16 & 0xffff, code = codes >> 4 * i & 15;
            float x = widen(bits), value = __fmul_rn(e2m1(code & 7), one);
            double error = (double)x - (double)(code & 8 ? -value : value);
            double floor = 6 * fabs((double)x) - (double)e2m1(idealCode(x, amax)) * amax;
            add(s, {(double)x * x, error * error, floor * floor});
        }
    }

    __shared__ Sums all[256];
    all[threadIdx.x] = s;
    for (u32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) add(all[threadIdx.x], all[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = all[0];
}
