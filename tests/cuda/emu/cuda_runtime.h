// SPDX-License-Identifier: Apache-2.0
// CUDA for machines without a GPU: the kernels of kernels/cuda compile against this header as plain
// C++ and run, thread by thread, on the processor. It replaces the toolkit's header of the same
// name; only tests use it.
//
//    launch ── for every block, one after the other ── for every thread a fiber
//
// A fiber runs until __syncthreads or a warp operation (shuffle, ldmatrix, mma), and then yields.
// When all threads of the block, or lanes of the warp, have arrived, they continue. A seed sets the
// order of the fibers at each launch, so a missing barrier changes bits between orders. A test
// detects here what a GPU may hide:
// - a barrier that not all threads reach, or lanes of one warp in different operations, is an error
// - dynamic shared memory has exactly the requested size and is full of NaN at the start of a
//   block; the address sanitizer (preset asan) sees every access outside it
// - by seed, warps run in lockstep or far apart, and asynchronous copies happen when they are
//   issued or not before they are waited for
// - every launch checks its limits (threads, shared memory, grid); more than 48 KiB of dynamic
//   shared memory needs cudaFuncSetAttribute first
// The queue runs at once. With EMU_LATE=1 it runs only when the host waits, and only as far as
// needed: the host gets wrong numbers if it reads memory too early, or overwrites memory that the
// queue has yet to read. A capturing stream (graph.cc) runs nothing: it keeps each op with its
// arguments until the graph is launched. The emulator cannot show memory order between warps
// without a barrier, speed, or the code of the CUDA compiler.
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

#pragma GCC visibility push(hidden) // the hottest symbols: calls must not go through a table
namespace emu {
struct position {
    uint3_ thread, block;
    int lane;
};
extern position *now; // of the running thread
extern dim3 block_dim, grid_dim;

void launch(const char *what, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t s, const std::function<void()> &body);
unsigned char *dynamic_shared();
void block_barrier();
// Each lane passes `in` (size bytes) and gets a pointer to all lanes' values, 64 bytes apart, valid
// until the lane's next call. `what` names the operation: different names in one warp are an error.
const unsigned char *warp_gather(const char *what, const void *in, size_t size);
static inline int lane() { return now->lane; }
void copy_later(void *dst, const void *src, size_t bytes, size_t zero_bytes);
void copy_commit();
void copy_wait(int groups_left);
// Hopper's product of a warp group (kernels/cuda/attn_wgmma.cuh): d (8 x 4 of this lane) += or = a
// b; b is a swizzled tile, a is in registers or a tile. The product runs when it is waited for: an
// earlier read of d gets old values, and a tile that is overwritten in between gives wrong ones.
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

// The tensor core's product and its loads (mma.m16n8k16, ldmatrix), with the PTX manual's layout of
// fragments over the lanes. test_schedule.cc compares them with a plain product.
void mma_bf16_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
void ldmatrix_x4(uint32_t r[4], const void *row);
void ldmatrix_x4_trans(uint32_t r[4], const void *row);
static inline void cp_async16(void *dst, const void *src, bool valid) {
    emu::copy_later(dst, src, valid ? 16 : 0, valid ? 0 : 16);
}
static inline void cp_async_commit() { emu::copy_commit(); }
template <int LEFT> static inline void cp_async_wait() { emu::copy_wait(LEFT); }
#endif
