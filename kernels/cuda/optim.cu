// SPDX-License-Identifier: Apache-2.0
// Gradient norms and AdamW over all tensors, in one launch each: a block takes one chunk (kern.h)
// of one tensor. AdamW also looks up the tensor's clipping factor, zeroes the gradients and
// rewrites the working copy. So it reads and writes everything once: 4 floats in,
// 4 floats (and 2 bytes) out for each parameter.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, GRID_MOST = 1 << 16 };

// Gives the sum to thread 0. The others must not read room after the last barrier, since thread 0
// still writes there.
__device__ static double block_sum(double x, double *room) {
    room[threadIdx.x] = x;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    return threadIdx.x == 0 ? room[0] : 0;
}

__global__ void sumsq_chunks(const struct kern_chunk *chunks, const float *grads, double *partial) {
    __shared__ double room[THREADS];
    struct kern_chunk c = chunks[blockIdx.x];
    const float *g = grads + c.grad_at;
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < c.n; i += THREADS)
        sum += (double)g[i] * (double)g[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void sumsq_tensors(const int32_t *first, const double *partial, double *sums) {
    __shared__ double room[THREADS];
    int32_t from = first[blockIdx.x], to = first[blockIdx.x + 1];
    double sum = 0;
    for (int32_t i = from + (int32_t)threadIdx.x; i < to; i += THREADS)
        sum += partial[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

cudaError_t kern_cu_sumsq(const struct kern_chunk *chunks, int n_chunks, const int32_t *first,
                          int tensors, const float *grads, double *sums, double *partial,
                          cudaStream_t s) {
    if (n_chunks > 0)
        KERN_LAUNCH(sumsq_chunks, (unsigned)n_chunks, THREADS, 0, s, chunks, grads, partial);
    if (tensors > 0)
        KERN_LAUNCH(sumsq_tensors, (unsigned)tensors, THREADS, 0, s, first, partial, sums);
    return cudaGetLastError();
}

struct adamw_args {
    struct kern_adamw c;
    const struct kern_chunk *chunks;
    const float *factors;
    float *params, *grads, *m, *v;
};

// The chunk of a matrix of Muon (kern_chunk.momentum).
template <int V>
__device__ static inline void momentum_part(const struct adamw_args &a,
                                            const struct kern_chunk &k) {
    float factor = a.factors[k.tensor], b = a.c.momentum;
    for (uint32_t i = threadIdx.x * V; i + V <= k.n; i += THREADS * V) {
        float g[V], m[V];
        load<float, V>(g, a.grads + k.grad_at + i);
        load<float, V>(m, a.m + k.moment_at + i);
#pragma unroll
        for (int e = 0; e < V; e++) {
            float x = (1.0f - b) * (g[e] * factor);
            m[e] = b * m[e] + x;
            g[e] = b * m[e] + x;
        }
        store<float, V>(a.grads + k.grad_at + i, g);
        store<float, V>(a.m + k.moment_at + i, m);
    }
}

template <class T, int V>
__device__ static inline void adamw_part(const struct adamw_args &a, T *working,
                                         const struct kern_chunk &k) {
    float factor = a.factors[k.tensor], decay = k.decay ? a.c.weight_decay : 0.0f;
    size_t at = k.moment_at;
    for (uint32_t i = threadIdx.x * V; i + V <= k.n; i += THREADS * V) {
        float p[V], g[V], m[V], v[V], zero[V] = {0};
        load<float, V>(p, a.params + k.param_at + i);
        load<float, V>(g, a.grads + k.grad_at + i);
        load<float, V>(m, a.m + at + i);
        load<float, V>(v, a.v + at + i);
#pragma unroll
        for (int e = 0; e < V; e++) {
            float x = g[e] * factor;
            m[e] = a.c.beta1 * m[e] + (1.0f - a.c.beta1) * x;
            v[e] = a.c.beta2 * v[e] + (1.0f - a.c.beta2) * x * x;
            float update = m[e] / a.c.bias1 / (sqrtf(v[e] / a.c.bias2) + a.c.eps);
            p[e] -= a.c.lr * (update + decay * p[e]);
        }
        store<float, V>(a.params + k.param_at + i, p);
        store<float, V>(a.m + at + i, m);
        store<float, V>(a.v + at + i, v);
        store<float, V>(a.grads + k.grad_at + i, zero);
        if (working)
            store<T, V>(working + k.param_at + i, p);
    }
}

template <class T> __global__ void adamw(struct adamw_args a, T *working) {
    struct kern_chunk k = a.chunks[blockIdx.x];
    bool wide = (k.param_at | k.grad_at | k.moment_at | k.n) % 4 == 0; // the arenas are aligned
    if (k.momentum && wide)
        momentum_part<4>(a, k);
    else if (k.momentum)
        momentum_part<1>(a, k);
    else if (wide)
        adamw_part<T, 4>(a, working, k);
    else
        adamw_part<T, 1>(a, working, k);
}

cudaError_t kern_cu_adamw(enum kern_type t, const struct kern_update *a, cudaStream_t s) {
    struct adamw_args args = {a->c, a->chunks, a->factors, a->params, a->grads, a->m, a->v};
    if (a->n_chunks == 0)
        return cudaSuccess;
    if (!aligned_to(a->params, 16) || !aligned_to(a->grads, 16) || !aligned_to(a->m, 16) ||
        !aligned_to(a->v, 16) || !aligned_to((char *)a->working, 16))
        return cudaErrorInvalidValue;
    if (t == KERN_BF16)
        KERN_LAUNCH(adamw<bf16>, (unsigned)a->n_chunks, THREADS, 0, s, args, (bf16 *)a->working);
    else
        KERN_LAUNCH(adamw<float>, (unsigned)a->n_chunks, THREADS, 0, s, args, (float *)a->working);
    return cudaGetLastError();
}

// A block takes one row.
template <class T>
__global__ void normalise(T *x, int ldx, const float *g, int cols, const double *sumsq) {
    float by = (float)(1.0 / (sqrt(*sumsq) + 1e-7));
    const float *from = g + (size_t)blockIdx.x * cols;
    T *to = x + (size_t)blockIdx.x * ldx;
    for (int j = (int)threadIdx.x; j < cols; j += THREADS)
        to[j] = Narrow<T>::of(from[j] * by);
}

template <class T> __global__ void matrix_step(struct kern_matrix_step s) {
    float keep = s.rate[0], step = s.rate[1] * s.scale;
    const T *x = (const T *)s.x + (size_t)blockIdx.x * s.ldx;
    size_t at = (size_t)blockIdx.x * s.cols;
    for (int j = (int)threadIdx.x; j < s.cols; j += THREADS) {
        float p = keep * s.p[at + j] - step * wide(x[j]);
        s.p[at + j] = p;
        if (s.working)
            ((T *)s.working)[at + j] = Narrow<T>::of(p);
    }
}

cudaError_t kern_cu_normalise(enum kern_type t, void *x, int ldx, const float *g, int rows,
                              int cols, const double *sumsq, cudaStream_t s) {
    if (t == KERN_BF16)
        KERN_LAUNCH(normalise<bf16>, (unsigned)rows, THREADS, 0, s, (bf16 *)x, ldx, g, cols, sumsq);
    else
        KERN_LAUNCH(normalise<float>, (unsigned)rows, THREADS, 0, s, (float *)x, ldx, g, cols,
                    sumsq);
    return cudaGetLastError();
}

cudaError_t kern_cu_matrix_step(enum kern_type t, const struct kern_matrix_step *a,
                                cudaStream_t s) {
    if (t == KERN_BF16)
        KERN_LAUNCH(matrix_step<bf16>, (unsigned)a->rows, THREADS, 0, s, *a);
    else
        KERN_LAUNCH(matrix_step<float>, (unsigned)a->rows, THREADS, 0, s, *a);
    return cudaGetLastError();
}

__global__ void scale(float *y, float a, size_t n) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        y[i] *= a;
}
__global__ void add(float *y, const float *x, size_t n) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        y[i] += x[i];
}

cudaError_t kern_cu_scale(float *y, float a, size_t n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(scale, blocks_for(n, THREADS, GRID_MOST), THREADS, 0, s, y, a, n);
    return cudaGetLastError();
}
cudaError_t kern_cu_add(float *y, const float *x, size_t n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(add, blocks_for(n, THREADS, GRID_MOST), THREADS, 0, s, y, x, n);
    return cudaGetLastError();
}
