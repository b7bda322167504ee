// SPDX-License-Identifier: Apache-2.0
// Cross-entropy if the logits' columns are divided over ranks (kern_vocab). As in loss.cu a
// block owns a row. Between the steps the ranks reduce: first the largest logit, then the sum of
// exponentials and the target's logit. Columns from V up to the row stride are read and masked; if
// learn, they become 0.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP };

struct vocab_args {
    int n_vocab, ld, n;
    const int32_t *targets;
    int32_t row0;
    float *max;
    double *sums;
    const float *grad_scale;
    bool learn;
    float *losses;
};

// This rank's column of a target, or -1.
__device__ static inline int column(const struct vocab_args &a, int32_t target) {
    return target >= a.row0 && target - a.row0 < a.n_vocab ? target - a.row0 : -1;
}

template <class T, int V> __global__ void vocab_max(const T *logits, struct vocab_args a) {
    __shared__ float room[WARPS];
    const T *z = logits + (size_t)blockIdx.x * a.ld;
    float top = -INFINITY;
    for (int j = (int)threadIdx.x * V; j < a.n_vocab; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            top = j + i < a.n_vocab ? fmaxf(top, x[i]) : top;
    }
    top = warp_max(top);
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = top;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < WARPS; i++)
        top = fmaxf(top, room[i]);
    a.max[blockIdx.x] = top;
}

template <class T, int V> __global__ void vocab_sum(const T *logits, struct vocab_args a) {
    __shared__ float room[WARPS];
    const T *z = logits + (size_t)blockIdx.x * a.ld;
    float sum = 0, max = a.max[blockIdx.x];
    for (int j = (int)threadIdx.x * V; j < a.n_vocab; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            sum += j + i < a.n_vocab ? expf(x[i] - max) : 0.0f;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < WARPS; i++)
        sum += room[i];
    int at = column(a, a.targets[blockIdx.x]);
    a.sums[blockIdx.x] = (double)sum;
    a.sums[a.n + blockIdx.x] = at < 0 ? 0.0 : (double)wide(z[at]);
}

template <class T, int V> __global__ void vocab_loss(T *logits, struct vocab_args a) {
    T *z = logits + (size_t)blockIdx.x * a.ld;
    int32_t target = a.targets[blockIdx.x];
    int at = column(a, target);
    float max = a.max[blockIdx.x], sum = (float)a.sums[blockIdx.x];
    bool counts = target >= 0;
    if (threadIdx.x == 0)
        a.losses[blockIdx.x] = counts ? max + logf(sum) - (float)a.sums[a.n + blockIdx.x] : 0.0f;
    if (!a.learn)
        return;
    float by = *a.grad_scale, factor = counts ? by / sum : 0.0f;
    for (int j = (int)threadIdx.x * V; j < a.ld; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = counts && j + i < a.n_vocab
                       ? expf(x[i] - max) * factor - (j + i == at ? by : 0.0f)
                       : 0.0f;
        store<T, V>(z + j, x);
    }
}

static struct vocab_args args_of(const struct kern_vocab *v) {
    struct vocab_args a = {v->V,    kern_logits_ld(v->V), v->n,     v->targets, v->row0, v->max,
                           v->sums, v->grad_scale,        v->learn, v->losses};
    return a;
}

// All rows are aligned if the first one is.
#define VOCAB_STEP(step)                                                                           \
    template <class T> static void step##_t(T *z, const struct kern_vocab *v, cudaStream_t s) {    \
        const int V = 16 / (int)sizeof(T);                                                         \
        struct vocab_args a = args_of(v);                                                          \
        if (aligned_to(z, 16))                                                                     \
            KERN_LAUNCH((step<T, V>), (unsigned)v->n, THREADS, 0, s, z, a);                        \
        else                                                                                       \
            KERN_LAUNCH((step<T, 1>), (unsigned)v->n, THREADS, 0, s, z, a);                        \
    }                                                                                              \
    cudaError_t kern_cu_##step(enum kern_type t, const struct kern_vocab *v, cudaStream_t s) {     \
        if (v->n == 0)                                                                             \
            return cudaSuccess;                                                                    \
        if (t == KERN_BF16)                                                                        \
            step##_t((bf16 *)v->logits, v, s);                                                     \
        else                                                                                       \
            step##_t((float *)v->logits, v, s);                                                    \
        return cudaGetLastError();                                                                 \
    }
VOCAB_STEP(vocab_max)
VOCAB_STEP(vocab_sum)
VOCAB_STEP(vocab_loss)
