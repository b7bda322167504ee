// SPDX-License-Identifier: Apache-2.0
// The exact path on the device (kernels/exact.h), with the CPU's bits. Compiled with -fmad=false
// -ftz=false -prec-div=true -prec-sqrt=true: a product and a sum round separately, denormals stay,
// division and roots round to nearest. So the compiler cannot change the arithmetic of an element.
//
// Elements do not meet, except in the digest, which sums integers. A NaN is a NaN here too, but has
// its own bits (0x7fffffff).
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, GRID_MOST = 1 << 14 };

#define EACH(i, n)                                                                                 \
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < (n);                           \
         i += (size_t)gridDim.x * THREADS)

static unsigned grid_for(size_t n) { return blocks_for(n, THREADS, GRID_MOST); }

// Cuts arrays into 16-byte vectors from element `head` on, and single elements before and behind
// them. Parts of larger arrays begin anywhere, but usually all with the same alignment. If
// alignments differ, all elements belong to `rest`.
enum { V = 4 };
struct cut {
    size_t head, vectors, rest;
};
static struct cut cut_of(size_t n, const float *a, const float *b, const float *c) {
    size_t off = (uintptr_t)a % 16 / sizeof(float), head = off ? V - off : 0;
    struct cut out = {0, 0, n};
    bool same = (uintptr_t)a % 16 == (uintptr_t)b % 16 && (uintptr_t)a % 16 == (uintptr_t)c % 16;
    if (same && n >= head + V) {
        out.head = head;
        out.vectors = (n - head) / V;
        out.rest = n - out.vectors * V;
    }
    return out;
}
static size_t turns(struct cut c) { return c.vectors > c.rest ? c.vectors : c.rest; }
// Index of the k-th element of the rest.
__device__ static inline size_t rest_at(struct cut c, size_t k) {
    return k < c.head ? k : k + c.vectors * V;
}

__global__ void add_rows(float *acc, const float *x, const float *w, size_t n, uint32_t cols) {
    EACH(i, n) {
        size_t row;
        uint32_t col;
        split(i, cols, row, col);
        float p = w[row] * x[i];
        acc[i] = acc[i] + p;
    }
}
__global__ void add_scaled(float *acc, const float *x, float w, size_t n) {
    EACH(i, n) {
        float p = w * x[i];
        acc[i] = acc[i] + p;
    }
}
__device__ static inline void step_one(float &theta, float &v, float delta, float eta, float mu) {
    float mv = mu * v;
    float nv = mv + delta;
    float look = mu * nv;
    float step = delta + look;
    float move = eta * step;
    v = nv;
    theta = theta - move;
}
__global__ void outer_step(float *theta, float *v, const float *delta, float eta, float mu,
                           struct cut c) {
    EACH(i, c.vectors) {
        size_t at = c.head + i * V;
        float x[V], y[V], d[V];
        load<float, V>(x, theta + at);
        load<float, V>(y, v + at);
        load<float, V>(d, delta + at);
#pragma unroll
        for (int e = 0; e < V; e++)
            step_one(x[e], y[e], d[e], eta, mu);
        store<float, V>(theta + at, x);
        store<float, V>(v + at, y);
    }
    EACH(k, c.rest) {
        size_t at = rest_at(c, k);
        step_one(theta[at], v[at], delta[at], eta, mu);
    }
}
__global__ void pseudo_gradient(float *u, const float *theta, const float *theta_m, float beta,
                                size_t n) {
    EACH(i, n) {
        float d = theta[i] - theta_m[i];
        float b = beta * u[i];
        u[i] = b + d;
    }
}
__global__ void residual(float *u, const float *d, size_t n) {
    EACH(i, n)
    u[i] = u[i] - d[i];
}
__global__ void rebase(float *theta_m, const float *theta, const float *sent, size_t n) {
    EACH(i, n) {
        float progress = theta_m[i] - sent[i];
        theta_m[i] = theta[i] + progress;
    }
}

__device__ static inline uint64_t mix64(uint64_t x) { // neb_mix64 of agent/base/rng.h
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

__device__ static inline uint32_t one_nan(float x) {
    return x != x ? (uint32_t)KERN_DIGEST_NAN : __float_as_uint(x);
}
#define GOLDEN 0x9e3779b97f4a7c15ull
__device__ static inline void digest_one(uint64_t &lo, uint64_t &hi, float theta, float v,
                                         uint64_t where) {
    uint64_t bits = (uint64_t)one_nan(theta) << 32 | one_nan(v);
    lo += mix64(bits ^ where);
    hi += mix64((bits + where) * 0xd1342543de82ef95ull + 0x2545f4914f6cdd1dull);
}
__global__ void digest(struct kern_digest *sum, const float *theta, const float *v,
                       uint64_t first_index, struct cut c) {
    __shared__ uint64_t room[2][THREADS];
    uint64_t lo = 0, hi = 0;
    EACH(i, c.vectors) {
        size_t at = c.head + i * V;
        float x[V], y[V];
        load<float, V>(x, theta + at);
        load<float, V>(y, v + at);
        uint64_t where = (first_index + at + 1) * GOLDEN;
#pragma unroll
        for (int e = 0; e < V; e++)
            digest_one(lo, hi, x[e], y[e], where + e * GOLDEN);
    }
    EACH(k, c.rest) {
        size_t at = rest_at(c, k);
        digest_one(lo, hi, theta[at], v[at], (first_index + at + 1) * GOLDEN);
    }
    room[0][threadIdx.x] = lo;
    room[1][threadIdx.x] = hi;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            room[0][threadIdx.x] += room[0][threadIdx.x + half];
            room[1][threadIdx.x] += room[1][threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) { // integers: any order gives the same sum
        atomicAdd((unsigned long long *)&sum->lo, (unsigned long long)room[0][0]);
        atomicAdd((unsigned long long *)&sum->hi, (unsigned long long)room[1][0]);
    }
}

#define LAUNCH_EACH(kernel, n, ...)                                                                \
    do {                                                                                           \
        if ((n) == 0)                                                                              \
            return cudaSuccess;                                                                    \
        KERN_LAUNCH(kernel, grid_for(n), THREADS, 0, s, __VA_ARGS__);                              \
        return cudaGetLastError();                                                                 \
    } while (0)

cudaError_t kern_cu_exact_add_rows(float *acc, const float *x, const float *w, size_t rows,
                                   size_t cols, cudaStream_t s) {
    if (cols > UINT32_MAX)
        return cudaErrorInvalidValue;
    LAUNCH_EACH(add_rows, rows * cols, acc, x, w, rows * cols, (uint32_t)cols);
}
cudaError_t kern_cu_exact_add_scaled(float *acc, const float *x, float w, size_t n,
                                     cudaStream_t s) {
    LAUNCH_EACH(add_scaled, n, acc, x, w, n);
}
cudaError_t kern_cu_exact_outer_step(float *theta, float *v, const float *delta, float eta,
                                     float mu, size_t n, cudaStream_t s) {
    struct cut c = cut_of(n, theta, v, delta);
    LAUNCH_EACH(outer_step, turns(c), theta, v, delta, eta, mu, c);
}
cudaError_t kern_cu_exact_pseudo_gradient(float *u, const float *theta, const float *theta_m,
                                          float beta, size_t n, cudaStream_t s) {
    LAUNCH_EACH(pseudo_gradient, n, u, theta, theta_m, beta, n);
}
cudaError_t kern_cu_exact_residual(float *u, const float *d, size_t n, cudaStream_t s) {
    LAUNCH_EACH(residual, n, u, d, n);
}
cudaError_t kern_cu_exact_rebase(float *theta_m, const float *theta, const float *sent, size_t n,
                                 cudaStream_t s) {
    LAUNCH_EACH(rebase, n, theta_m, theta, sent, n);
}
cudaError_t kern_cu_exact_digest(struct kern_digest *sum, const float *theta, const float *v,
                                 uint64_t first_index, size_t n, cudaStream_t s) {
    struct cut c = cut_of(n, theta, v, v);
    LAUNCH_EACH(digest, turns(c), sum, theta, v, first_index, c);
}
