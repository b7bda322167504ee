// SPDX-License-Identifier: Apache-2.0
// Decoding: a cache of keys and values, and attention of one query over it.
//
// A block has one head of one sequence. Its warps take KEYS keys at a time, in turn. Lane i has the
// dimensions i, i + 32, …: it reads neighbours of the other lanes, and a score is a sum over the
// warp. Each warp has a running maximum, sum and output; at the end the block joins them.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, DIMS_MOST = 256, OWN = DIMS_MOST / WARP, KEYS = 4 };

template <class T> struct slots {
    T *k, *v;
    int longest, width; // width: elements of a row
};
template <class T> static struct slots<T> slots_of(const struct kern_cache *c) {
    struct slots<T> s = {
        static_cast<T *>(c->k), static_cast<T *>(c->v), c->longest, c->n_kv_heads * c->head_dim
    };
    return s;
}

template <class T>
__global__ void put(struct slots<T> c, int n, const int32_t *slot, const int32_t *at, const T *k,
                    const T *v, int ld) { // n: positions of a sequence
    int b = (int)blockIdx.x / n, i = (int)blockIdx.x % n;
    size_t from = (size_t)blockIdx.x * ld, to = ((size_t)slot[b] * c.longest + at[b] + i) * c.width;
    for (int e = (int)threadIdx.x; e < c.width; e += THREADS) {
        c.k[to + e] = k[from + e];
        c.v[to + e] = v[from + e];
    }
}

template <class T> __global__ void copy(struct slots<T> c, const int32_t *pairs, int n) {
    const int32_t *pair = pairs + 2 * blockIdx.y;
    size_t each = (size_t)c.longest * c.width, from = pair[0] * each, to = pair[1] * each,
           all = (size_t)n * c.width;
    for (size_t e = (size_t)blockIdx.x * THREADS + threadIdx.x; e < all;
         e += (size_t)gridDim.x * THREADS) {
        c.k[to + e] = c.k[from + e];
        c.v[to + e] = c.v[from + e];
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    attend(struct slots<T> c, int D, int group, const int32_t *slot, const int32_t *at, T *out,
           int ldo, const T *q, int ldq) {
    __shared__ float acc_of[WARPS][DIMS_MOST], max_of[WARPS], sum_of[WARPS];
    int b = (int)blockIdx.x, h = (int)blockIdx.y, warp = (int)threadIdx.x / WARP,
        lane = (int)threadIdx.x % WARP, n = at[b] + 1;
    size_t first = (size_t)slot[b] * c.longest * c.width + (size_t)(h / group) * D;
    const T *k = c.k + first, *v = c.v + first, *qh = q + (size_t)b * ldq + (size_t)h * D;
    float own[OWN], acc[OWN] = {0}, max = -INFINITY, sum = 0, scale = 1.0f / sqrtf((float)D);
#pragma unroll
    for (int o = 0; o < OWN; o++)
        own[o] = lane + WARP * o < D ? wide(qh[lane + WARP * o]) * scale : 0.0f;
    for (int from = warp * KEYS; from < n; from += WARPS * KEYS) {
        float s[KEYS], top = max;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const T *row = k + (size_t)(from + i < n ? from + i : n - 1) * c.width;
            float x = 0;
#pragma unroll
            for (int o = 0; o < OWN; o++)
                x += lane + WARP * o < D ? own[o] * wide(row[lane + WARP * o]) : 0.0f;
            x = warp_sum(x);
            s[i] = from + i < n ? x : -INFINITY;
            top = fmaxf(top, s[i]);
        }
        float shrink = expf(max - top);
        sum *= shrink;
#pragma unroll
        for (int o = 0; o < OWN; o++)
            acc[o] *= shrink;
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            const T *row = v + (size_t)(from + i < n ? from + i : n - 1) * c.width;
            float p = expf(s[i] - top);
            sum += p;
#pragma unroll
            for (int o = 0; o < OWN; o++)
                acc[o] += lane + WARP * o < D ? p * wide(row[lane + WARP * o]) : 0.0f;
        }
        max = top;
    }
#pragma unroll
    for (int o = 0; o < OWN; o++)
        acc_of[warp][lane + WARP * o] = acc[o];
    if (lane == 0) {
        max_of[warp] = max;
        sum_of[warp] = sum;
    }
    __syncthreads();
    float top = -INFINITY, all = 0;
    for (int w = 0; w < WARPS; w++)
        top = fmaxf(top, max_of[w]);
    for (int w = 0; w < WARPS; w++)
        all += sum_of[w] * expf(max_of[w] - top);
    for (int e = (int)threadIdx.x; e < D; e += THREADS) {
        float x = 0;
        for (int w = 0; w < WARPS; w++)
            x += acc_of[w][e] * expf(max_of[w] - top);
        out[(size_t)b * ldo + (size_t)h * D + e] = Narrow<T>::of(x / all);
    }
}

template <class T>
static void launch_put(const struct kern_cache *c, int B, int n, const int32_t *slot,
                       const int32_t *at, const void *k, const void *v, int ld, cudaStream_t s) {
    KERN_LAUNCH(put<T>, (unsigned)(B * n), THREADS, 0, s, slots_of<T>(c), n, slot, at,
                static_cast<const T *>(k), static_cast<const T *>(v), ld);
}

cudaError_t kern_cu_cache_put(enum kern_type t, const struct kern_cache *c, int B, int T,
                              const int32_t *slot, const int32_t *at, const void *k, const void *v,
                              int ld, cudaStream_t s) {
    if (B == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        launch_put<bf16>(c, B, T, slot, at, k, v, ld, s);
    else
        launch_put<float>(c, B, T, slot, at, k, v, ld, s);
    return cudaGetLastError();
}

cudaError_t kern_cu_cache_copy(enum kern_type t, const struct kern_cache *c, const int32_t *pairs,
                               int m, int n, cudaStream_t s) {
    size_t all = (size_t)n * (size_t)(c->n_kv_heads * c->head_dim),
           blocks = (all + THREADS - 1) / THREADS;
    if (m == 0 || n == 0)
        return cudaSuccess;
    if (m > 65535)
        return cudaErrorInvalidValue;
    dim3 grid((unsigned)(blocks < 256 ? blocks : 256), (unsigned)m);
    if (t == KERN_BF16)
        KERN_LAUNCH(copy<bf16>, grid, THREADS, 0, s, slots_of<bf16>(c), pairs, n);
    else
        KERN_LAUNCH(copy<float>, grid, THREADS, 0, s, slots_of<float>(c), pairs, n);
    return cudaGetLastError();
}

template <class T>
static void launch_attn(const struct kern_cache *c, int B, const int32_t *slot, const int32_t *at,
                        void *out, int ldo, const void *q, int ldq, cudaStream_t s) {
    dim3 grid((unsigned)B, (unsigned)c->n_heads);
    KERN_LAUNCH(attend<T>, grid, THREADS, 0, s, slots_of<T>(c), c->head_dim,
                c->n_heads / c->n_kv_heads, slot, at, static_cast<T *>(out), ldo,
                static_cast<const T *>(q), ldq);
}

cudaError_t kern_cu_cache_attn(enum kern_type t, const struct kern_cache *c, int B,
                               const int32_t *slot, const int32_t *at, void *out, int ldo,
                               const void *q, int ldq, cudaStream_t s) {
    if (B == 0)
        return cudaSuccess;
    if (c->head_dim > DIMS_MOST || c->n_heads > 65535 || c->n_heads % c->n_kv_heads)
        return cudaErrorInvalidValue;
    if (t == KERN_BF16)
        launch_attn<bf16>(c, B, slot, at, out, ldo, q, ldq, s);
    else
        launch_attn<float>(c, B, slot, at, out, ldo, q, ldq, s);
    return cudaGetLastError();
}
