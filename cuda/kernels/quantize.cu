// quantize writes the scale byte and the 16 codes of every group, with what the tables kernel made for the tensor's maximum. No division,
// no float: a thread takes a group, looks its scale byte up by the group's maximum, and compares all weights with that byte's thresholds,
// two in a word at once.
#include "nvfp4.cuh"

// The bits of two codes, in bits 15 and 31; the other bits are noise.
struct Codes {
    u32 bit0, bit1, bit2, sign;
};

// codes compares two weights with the thresholds t. With the sign bit set, the difference keeps it exactly where the magnitude has
// reached the threshold, and never borrows from the other half. A code is the number of thresholds 1 to 7 that were reached, so
// its bits are parities. An exact zero, and what divides to zero, has no sign.
__device__ inline Codes codes(u32 word, const u32 t[8]) {
    u32 m = word | signs;
    u32 f2 = m - t[2], f4 = m - t[4], f6 = m - t[6];
    u32 even = f2 ^ f4 ^ f6;
    return {(m - t[1]) ^ (m - t[3]) ^ (m - t[5]) ^ (m - t[7]) ^ even, even, f4, (m - t[0]) & word};
}

// nibbles gives a byte to each of four codes, the code in both halves of it: low halves of a and b, then high halves of a and b.
__device__ inline u32 nibbles(Codes a, Codes b) {
    const u32 tops = 0xfbd9; // bits 15 of a and b, then bits 31, eight copies each
    u32 odd = pick(permute(a.bit0, b.bit0, tops), permute(a.bit1, b.bit1, tops), 0x55555555);
    u32 high = pick(permute(a.bit2, b.bit2, tops), permute(a.sign, b.sign, tops), 0x55555555);
    return pick(odd, high, 0x33333333);
}

// pack quantizes eight weights to four bytes.
__device__ inline u32 pack(uint4 w, const u32 t[8]) {
    u32 ab = nibbles(codes(w.x, t), codes(w.y, t));
    u32 cd = nibbles(codes(w.z, t), codes(w.w, t));
    return pick(permute(ab, cd, 0x5410), permute(ab, cd, 0x7632), 0x0f0f0f0f);
}

// larger is the larger magnitude in either half, all of them with the sign bit set: the lesser number.
__device__ inline u32 larger(u32 a, u32 word) { return lesser(a, word | signs); }
__device__ inline u32 larger(u32 a, uint4 w) { return larger(larger(larger(larger(a, w.x), w.y), w.z), w.w); }

extern "C" __global__ void __launch_bounds__(256)
quantize(const uint4 *bf16, u64 groups, const u8 *scaleBytes, const uint4 *thresholds, uint2 *packed, u8 *scales) {
    __shared__ uint4 table[256]; // two for each of 128 scale bytes
    table[threadIdx.x] = thresholds[threadIdx.x];
    __syncthreads();

    for (u64 g = thread(); g < groups; g += threads()) {
        uint4 low = bf16[2 * g], high = bf16[2 * g + 1];
        u32 m = larger(larger(signs, low), high) & ~signs;
        u32 scale = __ldg(scaleBytes + max(m & 0xffff, m >> 16));
        uint4 a = table[2 * scale], b = table[2 * scale + 1];
        const u32 t[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        packed[g] = make_uint2(pack(low, t), pack(high, t));
        scales[g] = scale;
    }
}
