// The part of CUDA C++ that the kernels use, for a CPU: the threads of a block are coroutines of one thread and take turns at barriers.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __shared__ static thread_local
#define __launch_bounds__(n)
#define __align__(n) alignas(n)

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Index {
    unsigned x;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

using std::isinf;
using std::isnan;
template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T min(T a, T b) { return a < b ? a : b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline unsigned __vcmpne4(unsigned a, unsigned b) {
    unsigned r = 0;
    for (unsigned mask = 0xff; mask; mask <<= 8) r |= (a & mask) != (b & mask) ? mask : 0;
    return r;
}
template <class T> T __ldg(const T *p) { return *p; }
template <class T> void atomicMax(T *p, T v) { *p = max(*p, v); }
template <class T> void atomicMin(T *p, T v) { *p = min(*p, v); }
template <class T> void atomicAdd(T *p, T v) { *p += v; }

// The coroutines of the block that runs on this thread. They are started once, with a stack each, and then switched by longjmp, which
// unlike swapcontext does not ask the kernel.
struct Block {
    static const int stack = 32 << 10;
    jmp_buf scheduler, threads[256];
    std::vector<char> stacks = std::vector<char>(256 * stack);
    ucontext_t back, start;
    std::function<void()> body;
    unsigned lanes[256], running;
    bool done[256];
    Block();
};
static thread_local Block *block;

inline void __syncthreads() {
    unsigned me = threadIdx.x;
    if (!_setjmp(block->threads[me])) _longjmp(block->scheduler, 1);
}

inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    unsigned me = threadIdx.x, m = 0;
    block->lanes[me] = v;
    __syncthreads();
    for (unsigned i = me / 32 * 32; i < me / 32 * 32 + 32; i++) m = max(m, block->lanes[i]);
    __syncthreads();
    return m;
}

// resume runs a coroutine until its next barrier or its end.
static void resume(unsigned i) {
    threadIdx.x = i;
    if (!_setjmp(block->scheduler)) _longjmp(block->threads[i], 1);
}

static void coroutine() {
    if (!_setjmp(block->threads[threadIdx.x])) swapcontext(&block->start, &block->back); // only the first time, to be set up
    for (;;) {
        block->body();
        block->done[threadIdx.x] = true;
        block->running--;
        __syncthreads();
    }
}

Block::Block() {
    block = this;
    for (unsigned i = 0; i < 256; i++) {
        getcontext(&start);
        start.uc_stack.ss_sp = stacks.data() + i * stack;
        start.uc_stack.ss_size = stack;
        makecontext(&start, coroutine, 0);
        threadIdx.x = i;
        swapcontext(&back, &start);
    }
}

// launch runs body for every thread of a grid, block by block; with barriers if the kernel has any.
static void launch(unsigned blocks, unsigned threads, bool barriers, std::function<void()> body) {
    if (!block) new Block;
    block->body = body;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        if (!barriers) {
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) body();
            continue;
        }
        block->running = threads;
        memset(block->done, 0, sizeof block->done);
        while (block->running > 0) {
            for (unsigned i = 0; i < threads; i++) {
                if (!block->done[i]) resume(i);
            }
        }
    }
}
