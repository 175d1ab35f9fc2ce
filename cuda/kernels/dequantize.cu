// dequantize writes the BF16 value of every code: the float32 product of code and step, rounded. The eight magnitudes of a scale byte are
// made once a block; a code then is a selector of PRMT, which finds four of them at a time.
#include "nvfp4.cuh"

// The low and the high bytes of a scale's eight BF16 values.
struct __align__(16) Values {
    u32 low[2], high[2];
};

// spread writes the values of four codes, which stand in the low half of p.
__device__ inline uint2 spread(const Values &v, u32 p, u32 keepSign) {
    u32 magnitudes = p & 0x7777;
    u32 low = permute(v.low[0], v.low[1], magnitudes), high = permute(v.high[0], v.high[1], magnitudes);
    u32 s = p & keepSign;
    return make_uint2(permute(low, high, 0x5140) ^ (s << 12 & 0x8000) ^ (s << 24 & 0x80000000),
                      permute(low, high, 0x7362) ^ (s << 4 & 0x8000) ^ (s << 16 & 0x80000000));
}

extern "C" __global__ void __launch_bounds__(256)
dequantize(const u32 *packed, const u8 *scales, u64 groups, float global, u32 modelopt, uint4 *bf16) {
    __shared__ Values values[256];
    Values v = {};
    float one = step(threadIdx.x, global, modelopt);
    for (u32 code = 0; code < 8; code++) {
        u32 b = narrow(__fmul_rn(e2m1(code), one)), at = code % 4 * 8;
        v.low[code / 4] |= (b & 0xff) << at;
        v.high[code / 4] |= (b >> 8) << at;
    }
    values[threadIdx.x] = v;
    __syncthreads();

    // A thread takes half a group, so that a warp's stores lie side by side.
    for (u64 i = thread(); i < 2 * groups; i += threads()) {
        u32 p = packed[i], scale = scales[i / 2];
        u32 keepSign = (scale & 0x7f) == 0x7f ? 0 : 0x8888; // NaN has none
        Values v = values[scale];
        uint2 low = spread(v, p, keepSign), high = spread(v, p >> 16, keepSign);
        bf16[i] = make_uint4(low.x, low.y, high.x, high.y);
    }
}
