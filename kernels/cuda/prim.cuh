// SPDX-License-Identifier: Apache-2.0
// Building blocks of all kernels here: the two element types, vector access, reductions over a
// warp, tensor-core instructions. Compiles for the device, and as plain C++ against the emulator in
// tests/cuda.
#ifndef KERN_CUDA_PRIM_CUH
#define KERN_CUDA_PRIM_CUH
#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KERN_LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define KERN_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

enum { WARP = 32 };
#define LOG2_E    1.44269504088896340736f
#define ALL_LANES 0xffffffffu

// bfloat16: the upper 16 bits of an fp32.
struct bf16 {
    uint16_t bits;
};

__host__ __device__ static inline float wide(float x) { return x; }
__host__ __device__ static inline float wide(bf16 x) {
#ifdef __CUDA_ARCH__
    return __uint_as_float((uint32_t)x.bits << 16);
#else
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)x.bits << 16};
    return v.f;
#endif
}

// Rounds to nearest even. A NaN stays a NaN, since rounding its bits could carry it into an
// infinity. The device's instruction gives every NaN the same bits.
__host__ __device__ static inline uint16_t bf16_bits(float x) {
#ifdef __CUDA_ARCH__
    uint16_t out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
#else
    union {
        float f;
        uint32_t u;
    } v = {x};
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(v.u >> 16 | 0x40);
    return (uint16_t)((v.u + 0x7fff + (v.u >> 16 & 1)) >> 16);
#endif
}
__host__ __device__ static inline bf16 narrow_bf16(float x) {
    bf16 b = {bf16_bits(x)};
    return b;
}
// Rounds two at once. lo goes into the lower half, as tensor cores want neighbours.
__device__ static inline uint32_t pack_bf16(float lo, float hi) {
#ifdef __CUDA_ARCH__
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
    return out;
#else
    return (uint32_t)bf16_bits(lo) | (uint32_t)bf16_bits(hi) << 16;
#endif
}

// 2^x for softmax in bf16, in one instruction: relative error at most 2^-22 (PTX manual), 0 below
// 2^-126.
__device__ static inline float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
#else
    return exp2f(x);
#endif
}

template <class T> struct Narrow;
template <> struct Narrow<float> {
    __device__ static inline float of(float x) { return x; }
};
template <> struct Narrow<bf16> {
    __device__ static inline bf16 of(float x) { return narrow_bf16(x); }
};

// V elements that are loaded and stored at once. Pointers are multiples of sizeof(Vec).
template <class T, int V> struct __align__(sizeof(T) * V) Vec { T x[V]; };
template <class T, int V> __device__ static inline void load(float (&out)[V], const T *p) {
    Vec<T, V> v = *reinterpret_cast<const Vec<T, V> *>(p);
#pragma unroll
    for (int i = 0; i < V; i++)
        out[i] = wide(v.x[i]);
}
template <class T, int V> struct Put {
    __device__ static inline void to(T *p, const float (&in)[V]) {
        Vec<T, V> v;
#pragma unroll
        for (int i = 0; i < V; i++)
            v.x[i] = Narrow<T>::of(in[i]);
        *reinterpret_cast<Vec<T, V> *>(p) = v;
    }
};
// Stores words of two elements, one conversion each. The store is written in assembly: behind a
// branch the compiler splits the store of a struct into several of two bytes. p is in global
// memory.
template <> struct Put<bf16, 4> {
    __device__ static inline void to(bf16 *p, const float (&in)[4]) {
        uint32_t a = pack_bf16(in[0], in[1]), b = pack_bf16(in[2], in[3]);
#ifdef __CUDA_ARCH__
        asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(p), "r"(a), "r"(b) : "memory");
#else
        Vec<uint32_t, 2> v = {{a, b}};
        *reinterpret_cast<Vec<uint32_t, 2> *>(p) = v;
#endif
    }
};
template <> struct Put<bf16, 8> {
    __device__ static inline void to(bf16 *p, const float (&in)[8]) {
        uint32_t a = pack_bf16(in[0], in[1]), b = pack_bf16(in[2], in[3]),
                 c = pack_bf16(in[4], in[5]), d = pack_bf16(in[6], in[7]);
#ifdef __CUDA_ARCH__
        asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(b), "r"(c),
                     "r"(d)
                     : "memory");
#else
        Vec<uint32_t, 4> v = {{a, b, c, d}};
        *reinterpret_cast<Vec<uint32_t, 4> *>(p) = v;
#endif
    }
};
template <class T, int V> __device__ static inline void store(T *p, const float (&in)[V]) {
    Put<T, V>::to(p, in);
}

// i = row * per + col. A 64-bit division costs a hundred instructions, so only arrays that need it
// pay for it.
__device__ static inline void split(size_t i, uint32_t per, size_t &row, uint32_t &col) {
    if (i >> 32) {
        row = i / per;
        col = (uint32_t)(i % per);
    } else {
        row = (uint32_t)i / per;
        col = (uint32_t)i - (uint32_t)row * per;
    }
}

// The sum over a warp, in every lane, added in the same order in every lane.
template <class T> __device__ static inline T warp_sum(T x) {
#pragma unroll
    for (int by = WARP / 2; by; by /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, by);
    return x;
}
// The sum over the lanes up to this one.
template <class T> __device__ static inline T warp_sum_upto(T x) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {
        T other = __shfl_up_sync(ALL_LANES, x, by);
        x += lane >= by ? other : T(0);
    }
    return x;
}
__device__ static inline float warp_max(float x) {
#pragma unroll
    for (int by = WARP / 2; by; by /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, by));
    return x;
}

#ifdef __CUDACC__
// Over a warp, c (16, 8) += a (16, 16) b (16, 8). Lane l holds rows l/4 and l/4 + 8, columns 2(l%4)
// and 2(l%4) + 1 of c.
__device__ static inline void mma_bf16_16816(float c[4], const uint32_t a[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane l names row l%8 of matrix
// l/8.
__device__ static inline void ldmatrix_x4(uint32_t r[4], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
// Copies 16 bytes from global to shared memory in the background. If not valid, writes zeros and
// does not read src.
__device__ static inline void cp_async16(void *dst, const void *src, bool valid) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(dst);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(src), "r"(bytes)
                 : "memory");
}
__device__ static inline void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ static inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#endif

// ---- host side of launches

template <class T> static inline bool aligned_to(const T *p, size_t bytes) {
    return ((uintptr_t)p & (bytes - 1)) == 0;
}
static inline unsigned blocks_for(size_t n, size_t per, size_t most) {
    size_t b = (n + per - 1) / per;
    return (unsigned)(b < 1 ? 1 : b > most ? most : b);
}

#endif
