// compare counts the bytes in which a and b differ and lowers *first to the least of their indexes, counted from base. Both start at a
// multiple of 16.
#include "nvfp4.cuh"

__device__ inline u32 differing(u32 a, u32 b) { return __popc(__vcmpne4(a, b)) / 8; }

extern "C" __global__ void compare(const u8 *a, const u8 *b, u64 bytes, u64 base, u64 *count, u64 *first) {
    u64 n = 0, least = ~0ull;
    for (u64 i = thread() * 16; i < bytes; i += threads() * 16) {
        u64 end = min(i + 16, bytes);
        if (end == i + 16) {
            uint4 x = *(const uint4 *)(a + i), y = *(const uint4 *)(b + i);
            u32 d = differing(x.x, y.x) + differing(x.y, y.y) + differing(x.z, y.z) + differing(x.w, y.w);
            if (d == 0) continue;
        }
        for (u64 j = i; j < end; j++) {
            if (a[j] == b[j]) continue;
            n++;
            least = min(least, base + j);
        }
    }
    if (n == 0) return;
    atomicAdd(count, n);
    atomicMin(first, least);
}
