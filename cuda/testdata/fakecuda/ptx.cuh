// What kernels/ptx.cuh says in machine instructions, in C++, for the kernels' run on a CPU.
#pragma once

typedef unsigned int u32;

inline float half(u32 word, int i) { // the BF16 in half i of a word
    u32 bits = word >> 16 * i << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

inline u32 permute(u32 a, u32 b, u32 selector) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        u32 s = selector >> 4 * i & 15, byte = bytes >> 8 * (s & 7) & 0xff;
        if (s & 8) byte = byte & 0x80 ? 0xff : 0;
        r |= byte << 8 * i;
    }
    return r;
}

inline u32 choose(u32 a, u32 b, bool low, bool high) { return (low ? a & 0xffff : b & 0xffff) | (high ? a & 0xffff0000 : b & 0xffff0000); }

inline u32 lesser(u32 a, u32 b) { return choose(a, b, half(a, 0) < half(b, 0), half(a, 1) < half(b, 1)); }

inline u32 maxOrNaN(u32 a, u32 b) {
    u32 r = choose(a, b, half(a, 0) > half(b, 0), half(a, 1) > half(b, 1));
    for (int i = 0; i < 2; i++) {
        if (std::isnan(half(a, i)) || std::isnan(half(b, i))) r |= 0x7fffu << 16 * i;
    }
    return r;
}
