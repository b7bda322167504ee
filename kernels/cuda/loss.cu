// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy on rows of logits, in place: the gradient replaces the logits, and no other
// copy of them exists. A block owns a row and goes over it twice: for the maximum and the sum of
// exponentials (peak.cuh), then for the gradient. In between it keeps the row in shared memory, as
// far as there is room for two blocks on a multiprocessor. A kept logit is read once and written
// once.
//
// A NaN or an infinity among the logits reaches the loss through the sum. The gap between a row's
// end and the next row (ld > V) is read and masked; if learn, it becomes 0.
//
// The loops treat all logits alike, so that their threads do not diverge. A vector that reaches
// beyond the row comes after the loops. The thread that wrote the target's logit then writes it a
// second time.
//
// With a teacher (SOFT) a row has two sums, at temperature 1 and at the teacher's. So each turn
// computes two powers of each logit. In bf16 powers come from ex2: relative error 2^-22, before
// results are rounded to 2^-9.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/peak.cuh"

enum { THREADS = 512, WARPS = THREADS / WARP, BLOCKS = 2, SUM_THREADS = 256 };

template <class T, bool SOFT>
__device__ static struct peak<SOFT> block_peak(struct peak<SOFT> p, struct peak<SOFT> *room,
                                               float rate) {
    p = warp_peak<T>(p, rate);
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = p;
    __syncthreads();
    p = room[0];
    for (int i = 1; i < WARPS; i++)
        p = peak_join<T>(p, room[i], rate);
    return p;
}

// How a logit becomes its gradient: exp(z - max) times the first factor and, with a teacher, the
// power at the teacher's temperature times the second factor.
template <bool SOFT>
struct slope {
    float base, rate, factor[1 + SOFT];
};
template <class T, bool SOFT>
__device__ static inline float gradient(float z, const struct slope<SOFT> &by) {
    float g = Powers<T>::power(z, by.base) * by.factor[0];
    if constexpr (SOFT)
        g += Powers<T>::at(z, by.base, by.rate) * by.factor[1];
    return g;
}

// Writes the gradient of one turn.
template <class T, int V, bool SOFT>
__device__ static inline void learn_from(T *to, const T *z, const struct slope<SOFT> &by) {
    float x[V];
    load<T, V>(x, z);
#pragma unroll
    for (int i = 0; i < V; i++)
        x[i] = gradient<T>(x[i], by);
    store<T, V>(to, x);
}

// The teacher's tokens of a row. Minus infinity replaces their logits before the row is summed, so
// that the sum is the tail: its probability keeps its digits even if these tokens have nearly all.
// The thread that reads a logit does this; a logit belongs to the same thread each time.
struct named {
    uint64_t own;       // bit j: this thread owns token j
    const int32_t *ids; // of the row
    float *logits;      // (k) in shared memory
};
template <int V> __device__ static inline bool is_own(int32_t id) {
    return id / V % THREADS == (int)threadIdx.x;
}
template <int V>
__device__ static inline struct named named_of(const struct kern_soft &soft, size_t row,
                                               float *logits) {
    struct named n = {0, soft.ids + row * soft.k, logits};
    for (int j = 0; j < soft.k; j++)
        n.own |= (uint64_t)is_own<V>(n.ids[j]) << j;
    return n;
}
template <class T>
__device__ static inline void take_named(const struct named &n, T *z, int from, int to) {
    for (uint64_t left = n.own; left; left &= left - 1) {
        int j = __ffsll((long long)left) - 1;
        int32_t id = n.ids[j];
        if (id >= from && id < to) {
            n.logits[j] = wide(z[id]);
            z[id] = Narrow<T>::of(-INFINITY);
        }
    }
}

// The kept turns arrive in FRACTIONS, one after the other.
enum { FRACTIONS = 4 };
__device__ static inline int turns_before(int fraction, int turns) {
    return turns * fraction / FRACTIONS;
}
template <class T, int V, bool SOFT>
__device__ static inline void peak_fraction(struct peak<SOFT> &p, T *kept, int fraction, int turns,
                                            const struct named &named, float rate) {
    int from = turns_before(fraction, turns), to = turns_before(fraction + 1, turns);
    if constexpr (SOFT)
        take_named(named, kept, from * THREADS * V, to * THREADS * V);
    for (int t = from; t < to; t++)
        peak_add<T, V>(p, kept + ((size_t)t * THREADS + threadIdx.x) * V, rate);
}

// With a teacher: adds the named tokens to p, which has the sums of all others.
struct soft_row {
    float loss;           // lambda temperature^2 KL
    float q_tail, p_tail; // of the student, of the teacher
};
template <class T>
__device__ static struct soft_row join_named(struct peak<true> &p, const struct kern_soft &s,
                                             size_t row, const float *logits, float rate) {
    int lane = (int)threadIdx.x % WARP; // each warp does this by itself, two tokens per lane
    struct peak<true> all = {
        p.max, { 0.0f, 0.0f }
    };
    for (int j = lane; j < s.k; j += WARP)
        all.max = fmaxf(all.max, logits[j]);
    all.max = warp_max(all.max);
    float base = Powers<T>::base(all.max);
    for (int j = lane; j < s.k; j += WARP)
        for (int i = 0; i < 2; i++)
            all.sum[i] += power_of<T>(i, logits[j], base, rate);
    float tail = p.sum[1] * Powers<T>::at(p.max, base, rate), kl = 0;
    all.sum[0] = warp_sum(all.sum[0]) + p.sum[0] * Powers<T>::power(p.max, base);
    all.sum[1] = warp_sum(all.sum[1]) + tail;
    p = all;
    float less = logf(all.sum[1]);
    for (int j = lane; j < s.k; j += WARP) {
        float logp = s.logp[row * s.k + j], prob = expf(logp);
        kl += prob > 0 ? prob * (logp - ((logits[j] - all.max) * rate - less)) : 0.0f;
    }
    struct soft_row out = {0, fmaxf(tail / all.sum[1], 1e-12f), s.tail[row]};
    kl = warp_sum(kl);
    kl += out.p_tail > 0 ? out.p_tail * (logf(out.p_tail) - logf(out.q_tail)) : 0.0f;
    out.loss = s.lambda * s.temperature * s.temperature * kl;
    return out;
}

// turns: how many turns of V * THREADS logits, all within the row, are kept in shared memory. A
// thread reads there only what it has copied itself.
template <class T, int V, bool SOFT>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    loss_rows(T *logits, int n_vocab, int ld, int turns, const int32_t *targets,
              const float *grad_scale, bool learn, float *losses, struct kern_soft soft) {
    KERN_DYNAMIC_SHARED(bytes);
    __shared__ struct peak<SOFT> room[WARPS];
    __shared__ float of_target, of_named[SOFT ? KERN_SOFT_K_MAX : 1];
    T *kept = reinterpret_cast<T *>(bytes);
    size_t row = blockIdx.x;
    T *z = logits + row * ld;
    int32_t target = targets[row];
    int own = (int)threadIdx.x * V, step = THREADS * V;
    if (target < 0) { // in the whole block
        if (threadIdx.x == 0)
            losses[row] = 0;
        float none[V] = {0};
        for (int j = own; learn && j < ld; j += step)
            store<T, V>(z + j, none);
        return;
    }
    float wanted = 0, rate = 1; // the logit is overwritten later, after a barrier
    if constexpr (!SOFT)
        wanted = wide(z[target]);
    else if (is_own<V>(target)) // this thread may put minus infinity there
        of_target = wide(z[target]);
    for (int f = 0; f < FRACTIONS; f++) {
        for (int t = turns_before(f, turns); t < turns_before(f + 1, turns); t++)
            cp_async16(kept + t * step + own, z + t * step + own, true);
        cp_async_commit();
    }
    struct named names = {0, nullptr, of_named};
    if constexpr (SOFT) {
        rate = 1 / soft.temperature;
        names = named_of<V>(soft, row, of_named);
        take_named(names, z, turns * step, n_vocab);
    }
    struct peak<SOFT> p = {
        - INFINITY, {
            0.0f
        }
    };
    int j = turns * step + own;
    for (; j + V <= n_vocab; j += step)
        peak_add<T, V>(p, z + j, rate);
    if (j < n_vocab) // in one thread
        peak_add_end<T, V>(p, z, j, n_vocab, rate);
    cp_async_wait<3>();
    peak_fraction<T, V>(p, kept, 0, turns, names, rate);
    cp_async_wait<2>();
    peak_fraction<T, V>(p, kept, 1, turns, names, rate);
    cp_async_wait<1>();
    peak_fraction<T, V>(p, kept, 2, turns, names, rate);
    cp_async_wait<0>();
    peak_fraction<T, V>(p, kept, 3, turns, names, rate);
    p = block_peak<T>(p, room, rate);
    float hard = 1; // weight of cross-entropy
    struct soft_row kl;
    if constexpr (SOFT) {
        wanted = of_target;
        hard = 1 - soft.lambda;
        kl = join_named<T>(p, soft, row, of_named, rate);
    }
    if (threadIdx.x == 0) {
        float loss = p.max + logf(p.sum[0]) - wanted;
        if constexpr (SOFT)
            loss = hard * loss + kl.loss;
        losses[row] = loss;
    }
    if (!learn)
        return;
    float by = *grad_scale, of_kl = 0;
    if constexpr (SOFT)
        by *= hard;
    struct slope<SOFT> to_gradient = {
        Powers<T>::base(p.max), rate, { by / p.sum[0] }
    };
    if constexpr (SOFT) { // temperature^2 from the loss, 1 / temperature from the logits
        of_kl = soft.lambda * soft.temperature * *grad_scale;
        to_gradient.factor[1] = of_kl / p.sum[1] * (1 - kl.p_tail / kl.q_tail);
    }
    for (int t = 0; t < turns; t++)
        learn_from<T, V>(z + t * step + own, kept + t * step + own, to_gradient);
    for (j = turns * step + own; j + V <= n_vocab; j += step)
        learn_from<T, V>(z + j, z + j, to_gradient);
    for (; j < ld; j += step) {
        float x[V];
        load<T, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            x[i] = j + i < n_vocab ? gradient<T>(x[i], to_gradient) : 0.0f;
        store<T, V>(z + j, x);
    }
    if (is_own<V>(target))
        z[target] = Narrow<T>::of(gradient<T>(wanted, to_gradient) - by);
    if constexpr (SOFT) {
        to_gradient.factor[1] = of_kl / p.sum[1];
        for (uint64_t left = names.own; left; left &= left - 1) {
            int k = __ffsll((long long)left) - 1;
            float prob = expf(soft.logp[row * soft.k + k]);
            int32_t id = names.ids[k];
            z[id] = Narrow<T>::of(gradient<T>(of_named[k], to_gradient) - of_kl * prob -
                                  (id == target ? by : 0.0f));
        }
    }
}

// Most bytes of room, of_target and of_named together.
enum { STATIC_SHARED = WARPS * sizeof(struct peak<true>) + (KERN_SOFT_K_MAX + 1) * sizeof(float) };

// Returns how many bytes a block may keep so that BLOCKS fit. The system reserves some for each
// block.
static cudaError_t room_of(size_t *bytes) {
    int device = 0, all = 0, reserved = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
    *bytes = e == cudaSuccess ? (size_t)all / BLOCKS - (size_t)reserved - STATIC_SHARED : 0;
    return e;
}

struct rows_args { // arguments of a launch
    int n, n_vocab, ld;
    const int32_t *targets;
    const float *grad_scale;
    bool learn;
    float *losses;
    const struct kern_soft *soft; // NULL: no teacher
};

template <class T, int V, bool SOFT>
static cudaError_t loss_rows_v(T *z, const struct rows_args *a, int turns, cudaStream_t s) {
    size_t shared = (size_t)turns * THREADS * V * sizeof(T);
    struct kern_soft soft = {};
    if (SOFT)
        soft = *a->soft;
    KERN_LAUNCH((loss_rows<T, V, SOFT>), (unsigned)a->n, THREADS, shared, s, z, a->n_vocab, a->ld,
                turns, a->targets, a->grad_scale, a->learn, a->losses, soft);
    return cudaGetLastError();
}

template <class T, bool SOFT>
static cudaError_t loss_rows_t(T *z, const struct rows_args *a, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    size_t bytes = 0;
    if (a->ld % V != 0 || !aligned_to(z, 16))
        return loss_rows_v<T, 1, SOFT>(z, a, 0, s);
    cudaError_t e = a->learn ? room_of(&bytes) : cudaSuccess;
    // always the same, so that no call lowers another call's limit
    if (e == cudaSuccess && a->learn)
        e = cudaFuncSetAttribute((const void *)loss_rows<T, V, SOFT>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    int whole = a->n_vocab / (THREADS * V), fit = (int)(bytes / (THREADS * 16));
    return loss_rows_v<T, V, SOFT>(z, a, whole < fit ? whole : fit, s);
}

cudaError_t kern_cu_loss_rows(enum kern_type t, void *z, int n, int V, int ld,
                              const int32_t *targets, const float *grad_scale, bool learn,
                              float *losses, const struct kern_soft *soft, cudaStream_t s) {
    struct rows_args a = {n, V, ld, targets, grad_scale, learn, losses, soft};
    if (n == 0)
        return cudaSuccess;
    if (soft && (soft->k < 1 || soft->k > KERN_SOFT_K_MAX || soft->k > V))
        return cudaErrorInvalidValue;
    if (t == KERN_BF16)
        return soft ? loss_rows_t<bf16, true>((bf16 *)z, &a, s)
                    : loss_rows_t<bf16, false>((bf16 *)z, &a, s);
    return soft ? loss_rows_t<float, true>((float *)z, &a, s)
                : loss_rows_t<float, false>((float *)z, &a, s);
}

// One block, so that there is one order.
template <class S> __global__ void add_sum(S *to, const float *x, int n) {
    __shared__ double room[SUM_THREADS];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += SUM_THREADS)
        sum += (double)x[i];
    room[threadIdx.x] = sum;
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *to += (S)room[0];
}

cudaError_t kern_cu_loss_total(double *total, const float *losses, int n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(add_sum<double>, 1, SUM_THREADS, 0, s, total, losses, n);
    return cudaGetLastError();
}
cudaError_t kern_cu_add_sum(float *to, const float *x, int n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(add_sum<float>, 1, SUM_THREADS, 0, s, to, x, n);
    return cudaGetLastError();
}
