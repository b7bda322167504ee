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
    struct kern_soft soft; // with a teacher
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

// ---- with a teacher

// What thread j < k knows of the j-th class that the teacher names in this block's row.
struct owned {
    int at;        // its column; -1: another rank has it
    float z, logp; // its logit
};

template <class T>
__device__ static inline struct owned named_of(const T *z, const struct vocab_args &a) {
    struct owned x = {-1, 0.0f, 0.0f};
    size_t i = (size_t)blockIdx.x * a.soft.k + threadIdx.x;
    if ((int)threadIdx.x >= a.soft.k || a.targets[blockIdx.x] < 0)
        return x;
    x.at = column(a, a.soft.ids[i]);
    x.z = x.at < 0 ? 0.0f : wide(z[x.at]);
    x.logp = a.soft.logp[i];
    return x;
}

// Sums over the block, in a fixed order, for thread 0.
template <int N> __device__ static inline void block_sum(float (&x)[N], float (*room)[N]) {
#pragma unroll
    for (int s = 0; s < N; s++) {
        x[s] = warp_sum(x[s]);
        if (threadIdx.x % WARP == 0)
            room[threadIdx.x / WARP][s] = x[s];
    }
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < WARPS; w++)
#pragma unroll
        for (int s = 0; s < N; s++)
            x[s] += room[w][s];
}

// The named classes leave the row while the other classes are summed.
template <class T, int V> __global__ void vocab_soft_sum(T *logits, struct vocab_args a) {
    __shared__ float room[WARPS][4];
    T *z = logits + (size_t)blockIdx.x * a.ld;
    float max = a.max[blockIdx.x], by = 1 / a.soft.temperature, x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    struct owned own = named_of(z, a);
    int at = column(a, a.targets[blockIdx.x]);
    double target = at < 0 ? 0.0 : (double)wide(z[at]);
    if (own.at >= 0) {
        float y = (own.z - max) * by;
        x[0] = expf(own.z - max);
        x[2] = expf(y);
        x[3] = expf(own.logp) * (own.logp - y);
    }
    __syncthreads();
    if (own.at >= 0)
        z[own.at] = Narrow<T>::of(-INFINITY);
    __syncthreads();
    for (int j = (int)threadIdx.x * V; j < a.n_vocab; j += THREADS * V) {
        float e[V];
        load<T, V>(e, z + j);
#pragma unroll
        for (int i = 0; i < V; i++) {
            x[0] += j + i < a.n_vocab ? expf(e[i] - max) : 0.0f;
            x[1] += j + i < a.n_vocab ? expf((e[i] - max) * by) : 0.0f;
        }
    }
    __syncthreads();
    if (own.at >= 0)
        z[own.at] = Narrow<T>::of(own.z);
    block_sum<4>(x, room);
    if (threadIdx.x != 0)
        return;
    double *sums = a.sums + blockIdx.x;
    sums[0] = (double)x[0];
    sums[a.n] = target;
    sums[2 * (size_t)a.n] = (double)x[1] + (double)x[2];
    sums[3 * (size_t)a.n] = (double)x[1];
    sums[4 * (size_t)a.n] = (double)x[3];
}

template <class T, int V> __global__ void vocab_soft_loss(T *logits, struct vocab_args a) {
    __shared__ float room[WARPS][1];
    T *z = logits + (size_t)blockIdx.x * a.ld;
    const double *sums = a.sums + blockIdx.x;
    int32_t target = a.targets[blockIdx.x];
    int at = column(a, target);
    bool counts = target >= 0;
    float max = a.max[blockIdx.x], sum = (float)sums[0], all = (float)sums[2 * (size_t)a.n],
          rest = counts ? fmaxf((float)sums[3 * (size_t)a.n] / all, 1e-12f) : 1.0f,
          tail = counts ? a.soft.tail[blockIdx.x] : 0.0f, t = a.soft.temperature,
          lambda = a.soft.lambda, mass[1];
    struct owned own = named_of(z, a);
    mass[0] = counts && (int)threadIdx.x < a.soft.k ? expf(own.logp) : 0.0f;
    block_sum<1>(mass, room);
    if (threadIdx.x == 0) {
        float ce = max + logf(sum) - (float)sums[a.n],
              kl = (float)sums[4 * (size_t)a.n] + mass[0] * logf(all) +
                   (tail > 0 ? tail * (logf(tail) - logf(rest)) : 0.0f);
        a.losses[blockIdx.x] = counts ? (1 - lambda) * ce + lambda * t * t * kl : 0.0f;
    }
    if (!a.learn)
        return;
    float scale = *a.grad_scale, hard = scale * (1 - lambda), soft = scale * lambda * t,
          others = counts ? soft * (1 - tail / rest) / all : 0.0f, by = counts ? hard / sum : 0.0f;
    __syncthreads();
    for (int j = (int)threadIdx.x * V; j < a.ld; j += THREADS * V) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = counts && j + i < a.n_vocab
                       ? expf(x[i] - max) * by + expf((x[i] - max) / t) * others -
                             (j + i == at ? hard : 0.0f)
                       : 0.0f;
        store<T, V>(z + j, x);
    }
    __syncthreads();
    if (own.at >= 0)
        z[own.at] = Narrow<T>::of(expf(own.z - max) * by +
                                  soft * (expf((own.z - max) / t) / all - expf(own.logp)) -
                                  (own.at == at ? hard : 0.0f));
}

// ---- launches

static struct vocab_args args_of(const struct kern_vocab *v) {
    static const struct kern_soft none = {};
    struct vocab_args a = {v->V,
                           kern_logits_ld(v->V),
                           v->n,
                           v->targets,
                           v->row0,
                           v->max,
                           v->sums,
                           v->grad_scale,
                           v->learn,
                           v->losses,
                           v->soft ? *v->soft : none};
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
    static cudaError_t run_##step(enum kern_type t, const struct kern_vocab *v, cudaStream_t s) {  \
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
VOCAB_STEP(vocab_soft_sum)
VOCAB_STEP(vocab_soft_loss)

cudaError_t kern_cu_vocab_max(enum kern_type t, const struct kern_vocab *v, cudaStream_t s) {
    return run_vocab_max(t, v, s);
}
cudaError_t kern_cu_vocab_sum(enum kern_type t, const struct kern_vocab *v, cudaStream_t s) {
    return v->soft ? run_vocab_soft_sum(t, v, s) : run_vocab_sum(t, v, s);
}
cudaError_t kern_cu_vocab_loss(enum kern_type t, const struct kern_vocab *v, cudaStream_t s) {
    return v->soft ? run_vocab_soft_loss(t, v, s) : run_vocab_loss(t, v, s);
}
