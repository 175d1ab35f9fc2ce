// absmax raises *amax to the largest magnitude of a tensor, as the 15 magnitude bits of a BF16; launched once for each member of a fused
// set. Infinity gives 0x7f80 and NaN more. Read-only and bound by memory.
#include "nvfp4.cuh"

// larger is the larger magnitude in either half, and NaN where one is NaN.
__device__ inline u32 larger(u32 a, u32 word) { return maxOrNaN(a, word & ~signs); }

extern "C" __global__ void absmax(const uint4 *bf16, u64 groups, u32 *amax) {
    u32 m = 0;
#pragma unroll 4
    for (u64 i = thread(); i < 2 * groups; i += threads()) {
        uint4 v = bf16[i];
        m = larger(larger(larger(larger(m, v.x), v.y), v.z), v.w);
    }
    m = __reduce_max_sync(0xffffffff, max(m & 0xffff, m >> 16));
    if (threadIdx.x % 32 == 0 && m > *(volatile u32 *)amax) atomicMax(amax, m); // asking first spares nearly all of the atomics
}
