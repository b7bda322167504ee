// SPDX-License-Identifier: Apache-2.0
// CUDA for machines without a GPU: the kernels of kernels/cuda compile against this header as plain C++, and run, thread by
// thread, on the processor. It stands for the toolkit's header of the same name; only tests use it.
//
//     launch ── for every block, one after the other ── for every thread a fiber
//
// A fiber runs until __syncthreads or a warp operation (shuffle, ldmatrix, mma) and then makes room for the next; when all
// threads of the block, or lanes of the warp, have come, they go on. The order in which fibers run is drawn anew from a seed
// at each launch, so a missing barrier gives other bits in another order. What a test sees here and not on a GPU:
//
// - a barrier that not all threads reach, or lanes of one warp in different warp operations: the test ends, and says so
// - dynamic shared memory is of exactly the size the launch asked for, and full of NaN when a block begins: with the address
//   sanitizer (preset asan) every access outside it shows
// - warps in step with each other, or one far ahead of the others; asynchronous copies when they are issued, or not before
//   they are waited for (by the seed)
// - launch limits (threads, shared memory, grid) are checked at every launch; more than 48 KiB of dynamic shared memory only where the
//   kernel was given it before (cudaFuncSetAttribute)
//
// The queue runs at once, as the calls come; with EMU_LATE=1 in the environment, only where somebody waits for it, and as far as he
// waits: what looks at memory too early, or overwrites what the queue has yet to read, gets other numbers.
//
// A capturing stream (graph.cc) runs nothing: what it is given is kept with its arguments, and runs when the graph is launched.
//
// What it cannot show: memory order between warps without a barrier, speed, what the compiler makes of it.
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__      static
#define __constant__    static
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) alignas(n)

struct uint3_ {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint4 {
    unsigned x, y, z, w;
};

#pragma GCC visibility push(                                                                       \
    hidden) // no table of addresses between kernels and what they call all the time
namespace emu {
struct position {
    uint3_ thread, block;
    int lane;
};
extern position *now; // of the thread that runs
extern dim3 block_dim, grid_dim;

void launch(const char *what, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t s, const std::function<void()> &body);
unsigned char *dynamic_shared();
void block_barrier();
// All lanes give `in` (size bytes) and get a pointer to what every lane gave, 64 bytes apart; it holds until the lane's next
// call. `what` names the operation: lanes that come with different ones are an error.
const unsigned char *warp_gather(const char *what, const void *in, size_t size);
static inline int lane() { return now->lane; }
void copy_later(void *dst, const void *src, size_t bytes, size_t zero_bytes);
void copy_commit();
void copy_wait(int groups_left);
// Hopper's product of a warp group (kernels/cuda/attn_wgmma.cuh): d (8 x 4 of this lane) += or = a b, b a swizzled tile, a in registers or one
// too. It takes place when it is waited for: what is read of d before then is old, and what has been written over a tile in between is what
// it reads.
void wgmma(float *d, const uint32_t a[4], const void *b, bool turned, bool first);
void wgmma_shared(float *d, const void *a, const void *b, bool turned, bool first);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int groups_left);
[[noreturn]] void stop(const char *why);

template <class T> T from_lane(const char *what, T v, int src) {
    T out;
    const unsigned char *all = warp_gather(what, &v, sizeof v);
    memcpy(&out, all + 64 * (src & 31), sizeof out);
    return out;
}
} // namespace emu
#pragma GCC visibility pop

#define threadIdx (emu::now->thread)
#define blockIdx  (emu::now->block)
#define blockDim  (emu::block_dim)
#define gridDim   (emu::grid_dim)

#define KERN_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
    emu::launch(#kernel, (const void *)(kernel), grid, block, shared, stream,                      \
                std::bind([](auto... a) { kernel(a...); }, __VA_ARGS__))
#define KERN_DYNAMIC_SHARED(name) unsigned char *name = emu::dynamic_shared()

static inline void __syncthreads() { emu::block_barrier(); }
static inline void __syncwarp(unsigned = ~0u) {
    char none = 0;
    (void)emu::warp_gather("syncwarp", &none, 1);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int other) {
    if (mask != 0xffffffffu)
        emu::stop("a shuffle that leaves lanes out");
    return emu::from_lane("shfl_xor", v, emu::lane() ^ other);
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int src) {
    if (mask != 0xffffffffu)
        emu::stop("a shuffle that leaves lanes out");
    return emu::from_lane("shfl", v, src);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by) {
    if (mask != 0xffffffffu)
        emu::stop("a shuffle that leaves lanes out");
    int from = emu::lane() - (int)by;
    return emu::from_lane("shfl_up", v, from < 0 ? emu::lane() : from);
}
static inline unsigned __ballot_sync(unsigned, int pred) {
    unsigned out = 0, mine = pred != 0;
    const unsigned char *all = emu::warp_gather("ballot", &mine, sizeof mine);
    for (int i = 0; i < 32; i++) {
        unsigned one;
        memcpy(&one, all + 64 * i, sizeof one);
        out |= one << i;
    }
    return out;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
    if (mask != 0xffffffffu)
        emu::stop("a reduction that leaves lanes out");
    unsigned out = v;
    const unsigned char *all = emu::warp_gather("reduce_max", &v, sizeof v);
    for (int i = 0; i < 32; i++) {
        unsigned one;
        memcpy(&one, all + 64 * i, sizeof one);
        out = one > out ? one : out;
    }
    return out;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (by & 31)) >> 32);
}
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned atomicAdd(unsigned *p, unsigned v) {
    unsigned was = *p;
    *p = was + v;
    return was;
}
static inline unsigned atomicOr(unsigned *p, unsigned v) {
    unsigned was = *p;
    *p = was | v;
    return was;
}
static inline unsigned atomicMax(unsigned *p, unsigned v) {
    unsigned was = *p;
    *p = was > v ? was : v;
    return was;
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v) {
    unsigned long long was = *p;
    *p = was + v;
    return was;
}
static inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// The tensor core's product and its loads, as the PTX manual lays fragments out over the lanes of a warp (mma.m16n8k16,
// ldmatrix). Tested against each other and a plain product in test_emu.
void mma_bf16_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void ldmatrix_x4(uint32_t r[4], const void *row);
void ldmatrix_x4_trans(uint32_t r[4], const void *row);
static inline void cp_async16(void *dst, const void *src, bool valid) {
    emu::copy_later(dst, src, valid ? 16 : 0, valid ? 0 : 16);
}
static inline void cp_async_commit() { emu::copy_commit(); }
template <int LEFT> static inline void cp_async_wait() { emu::copy_wait(LEFT); }
#endif
