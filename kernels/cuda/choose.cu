// SPDX-License-Identifier: Apache-2.0
// A model's predictions at some rows: a draw from the distribution, and a teacher's soft labels. A
// block owns a row of fp32 logits.
//
// sample_rows. A warp has a contiguous part of the row, and finds its maximum and its sum of
// exponentials in one pass. The sums of the parts, in order, tell in which part the running sum
// exceeds u. That warp alone goes through its part a second time, in steps of 32 V ids.
//
// label_rows. The k smallest distances are chosen. The upper bits of a distance are the logit's,
// changed so that a larger logit is a smaller distance. The lower bits are the id, so no two
// distances are equal. A NaN is farther than any number.
//
//   1  Find the largest logit of each thread. The k-th largest of these is the floor: k threads
//      have a logit at or above it.
//   2  Logits at or above the floor go to a list (of 50,304 normal ones and k 16, some 17). The
//      exponentials of all others are summed.
//   3  If the list is longer than LIST (equal logits, for example), find the k-th distance by a
//      radix selection, eight bits per turn. Then repeat step 2 with that as the limit.
//   4  Sort the list. Its first k are the labels. The others join the sum, so that the tail is a
//      sum over its classes.
//
// Whatever the logits are, every loop ends, and ids are k different ids of the row.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/peak.cuh"
#include "kernels/cuda/radix.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, LIST = 512 };

// ---- draws

struct part { // ids from … to - 1 of a row; before: the sum of the earlier parts
    int from, to;
    double before, goal;
    float base;
};

// A warp goes through a part, and returns the id at which the running sum exceeds the goal. If
// rounding leaves no such id, it returns the last one that has any probability.
template <int V> __device__ static int walk(const float *z, const struct part &p) {
    int lane = (int)threadIdx.x % WARP, last = -1;
    double run = p.before;
    for (int at = p.from; at < p.to; at += WARP * V) {
        int own = at + lane * V, id = -1;
        float e[V], sum = 0;
#pragma unroll
        for (int i = 0; i < V; i++) {
            e[i] = own + i < p.to ? Powers<float>::power(z[own + i], p.base) : 0.0f;
            sum += e[i];
            last = e[i] > 0 ? own + i : last;
        }
        float upto = warp_sum_upto(sum), before = __shfl_up_sync(ALL_LANES, upto, 1);
        unsigned passed = __ballot_sync(ALL_LANES, sum > 0 && run + (double)upto > p.goal);
        before = lane ? before : 0.0f;
#pragma unroll
        for (int i = 0; i < V; i++) {
            before += e[i];
            if (id < 0 && e[i] > 0 && run + (double)before > p.goal)
                id = own + i;
        }
        id = id < 0 ? last : id;
        if (passed)
            return __shfl_sync(ALL_LANES, id, __ffs((int)passed) - 1);
        run += (double)__shfl_sync(ALL_LANES, upto, WARP - 1);
    }
    return (int)__reduce_max_sync(ALL_LANES, (unsigned)(last + 1)) - 1;
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    sample_rows(const float *logits, int n_vocab, int ld, const double *u, int32_t *ids) {
    __shared__ struct peak<false> room[WARPS];
    const float *z = logits + (size_t)blockIdx.x * ld;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, step = WARP * V,
        whole = (n_vocab + WARPS * step - 1) / (WARPS * step) * step, chosen = -1;
    int from = warp * whole, to = from + whole < n_vocab ? from + whole : n_vocab,
        j = from + lane * V;
    struct peak<false> p = {-INFINITY, {0.0f}}, all = p;
    for (; j + V <= to; j += step)
        peak_add<float, V>(p, z + j, 1);
    if (j < to)
        peak_add_end<float, V>(p, z, j, to, 1);
    p = warp_peak<float>(p, 1);
    if (lane == 0)
        room[warp] = p;
    __syncthreads();
    float base, sums[WARPS];
    double total = 0, run = 0, before = 0;
    for (int w = 0; w < WARPS; w++)
        all.max = fmaxf(all.max, room[w].max);
    base = Powers<float>::base(all.max);
    for (int w = 0; w < WARPS; w++) {
        sums[w] = room[w].sum[0] * Powers<float>::power(room[w].max, base);
        total += (double)sums[w];
    }
    double goal = u[blockIdx.x] * total;
    bool passed = false;
    // chosen: the part in which the sum passes the goal; if rounding leaves none, the last part
    // that has any probability
    for (int w = 0; w < WARPS; w++) {
        if (!passed && sums[w] > 0) {
            chosen = w;
            before = run;
        }
        run += (double)sums[w];
        passed = passed || run > goal;
    }
    int id = n_vocab - 1; // for a row without any probability
    if (chosen < 0 ? warp != 0 : warp != chosen)
        return;
    if (chosen >= 0) {
        struct part own = {from, to, before, goal, base};
        id = walk<V>(z, own);
    }
    if (lane == 0)
        ids[blockIdx.x] = id < 0 ? n_vocab - 1 : id;
}

cudaError_t kern_cu_sample_rows(const float *z, int n, int V, int ld, const double *u, int32_t *ids,
                                cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (ld % 4 == 0 && aligned_to(z, 16))
        KERN_LAUNCH(sample_rows<4>, (unsigned)n, THREADS, 0, s, z, V, ld, u, ids);
    else
        KERN_LAUNCH(sample_rows<1>, (unsigned)n, THREADS, 0, s, z, V, ld, u, ids);
    return cudaGetLastError();
}

// ---- soft labels

struct __align__(16) label_room {
    unsigned count[RADIX];
    uint32_t bin, left, whole, n; // find_bin's answer; n: length of the list, or what it would be
    float tops[THREADS];          // largest logit of each thread
    float sums[WARPS];
    float floor, max;
    uint64_t list[LIST], sorted[LIST];
};

struct label_args {
    int n_vocab, ld, k, id_bits;
    float rate; // 1 / temperature
    int32_t *ids;
    float *logp, *tail, *log_sums;
};

__device__ static inline uint64_t distance_of(float x, int id, int id_bits) {
    uint32_t u = __float_as_uint(x + 0.0f); // -0 becomes 0
    uint32_t up = x != x ? 0 : u ^ (u >> 31 ? ~0u : 0x80000000u);
    return (uint64_t)~up << id_bits | (uint64_t)id;
}

// Calls f(logit, id) for each of this thread's logits of a row.
template <int V, class F>
__device__ static inline void each_logit(const float *z, int n_vocab, const F &f) {
    int j = (int)threadIdx.x * V;
    for (; j + V <= n_vocab; j += THREADS * V) {
        float x[V];
        load<float, V>(x, z + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            f(x[i], j + i);
    }
    for (int i = j; i < n_vocab && i < j + V; i++) // in one thread
        f(z[i], i);
}

// Finds the floor and the row's largest logit. A thread without logits, or with NaNs only, has
// -infinity. If the floor is -infinity, every logit is at or above it.
template <int V>
__device__ static void find_floor(const float *z, int n_vocab, int k, struct label_room *r) {
    float top = -INFINITY;
    int rank = 0;
    each_logit<V>(z, n_vocab, [&](float x, int) { top = fmaxf(top, x); });
    r->tops[threadIdx.x] = top;
    __syncthreads();
    for (int t = 0; t < THREADS; t++)
        rank += r->tops[t] > top || (r->tops[t] == top && t < (int)threadIdx.x);
    if (rank == 0)
        r->max = top;
    if (rank == k - 1)
        r->floor = top;
    r->n = 0;
    __syncthreads();
}

// Makes the list: logits at or above the floor whose distances are below the limit. Returns this
// thread's sum of all others.
template <int V>
__device__ static float make_list(const float *z, const struct label_args &a, uint64_t limit,
                                  struct label_room *r) {
    float floor = r->floor, base = Powers<float>::base(r->max), sum = 0;
    each_logit<V>(z, a.n_vocab, [&](float x, int id) {
        uint64_t d = ~(uint64_t)0;
        if (!(x < floor)) // true for a NaN too
            d = distance_of(x, id, a.id_bits);
        if (d < limit) {
            unsigned at = atomicAdd(&r->n, 1u);
            if (at < LIST)
                r->list[at] = d;
        } else {
            sum += Powers<float>::at(x, base, a.rate);
        }
    });
    __syncthreads();
    return sum;
}

// Returns a limit just above the k-th distance.
template <int V>
__device__ static uint64_t kth_of_row(const float *z, const struct label_args &a,
                                      struct label_room *r) {
    uint64_t prefix = 0;
    uint32_t need = (uint32_t)a.k;
    float floor = r->floor;
    for (int bits = 32 + a.id_bits;;) {
        int shift = bits > RADIX_BITS ? bits - RADIX_BITS : 0;
        uint64_t mask = ((uint64_t)1 << (bits - shift)) - 1;
        r->count[threadIdx.x] = 0; // THREADS == RADIX
        __syncthreads();           // also keeps the reads of find_bin's answer before its next call
        each_logit<V>(z, a.n_vocab, [&](float x, int id) {
            if (x < floor)
                return;
            uint64_t d = distance_of(x, id, a.id_bits);
            if (d >> bits == prefix)
                atomicAdd(&r->count[d >> shift & mask], 1u);
        });
        __syncthreads();
        if (threadIdx.x < WARP)
            find_bin(r, need);
        __syncthreads();
        prefix = prefix << (bits - shift) | r->bin;
        need = r->left;
        bits = shift;
        if (r->whole || bits == 0)
            return (prefix + 1) << bits;
    }
}

template <int V>
__global__ void __launch_bounds__(THREADS) label_rows(const float *logits, struct label_args a) {
    __shared__ struct label_room r;
    size_t row = blockIdx.x;
    const float *z = logits + row * a.ld;
    uint64_t id_mask = ((uint64_t)1 << a.id_bits) - 1;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n;
    find_floor<V>(z, a.n_vocab, a.k, &r);
    float sum = make_list<V>(z, a, (uint64_t)1 << (32 + a.id_bits), &r);
    if (r.n > LIST) {
        uint64_t limit = kth_of_row<V>(z, a, &r);
        if (threadIdx.x == 0)
            r.n = 0; // all threads read it above, before a barrier
        __syncthreads();
        sum = make_list<V>(z, a, limit, &r);
    }
    n = (int)r.n;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        int rank = 0;
        for (int j = 0; j < n; j++)
            rank += r.list[j] < r.list[i];
        r.sorted[rank] = r.list[i];
    }
    __syncthreads();
    float base = Powers<float>::base(r.max);
    for (int i = a.k + (int)threadIdx.x; i < n; i += THREADS)
        sum += Powers<float>::at(z[r.sorted[i] & id_mask], base, a.rate);
    sum = warp_sum(sum);
    if (lane == 0)
        r.sums[warp] = sum;
    __syncthreads();
    if (warp != 0)
        return;
    float rest = 0, named = 0;
    for (int w = 0; w < WARPS; w++)
        rest += r.sums[w];
    for (int i = lane; i < a.k; i += WARP)
        named += Powers<float>::at(z[r.sorted[i] & id_mask], base, a.rate);
    named = warp_sum(named);
    float less = logf(named + rest);
    for (int i = lane; i < a.k; i += WARP) {
        int32_t id = (int32_t)(r.sorted[i] & id_mask);
        a.ids[row * a.k + i] = id;
        a.logp[row * a.k + i] = (z[id] - base) * a.rate - less;
    }
    if (lane == 0)
        a.tail[row] = fmaxf(rest / (named + rest), 0.0f); // 0 if there are NaNs
    if (lane == 0 && a.log_sums)
        a.log_sums[row] = base * a.rate + less;
}

cudaError_t kern_cu_label_rows(const float *z, int n, int V, int ld, int k, float temperature,
                               int32_t *ids, float *logp, float *tail, float *log_sums,
                               cudaStream_t s) {
    struct label_args a = {V, ld, k, 0, 1 / temperature, ids, logp, tail, log_sums};
    if (n == 0)
        return cudaSuccess;
    if (k < 1 || k > KERN_SOFT_K_MAX || k > V)
        return cudaErrorInvalidValue;
    while ((V - 1) >> a.id_bits)
        a.id_bits++;
    if (ld % 4 == 0 && aligned_to(z, 16))
        KERN_LAUNCH(label_rows<4>, (unsigned)n, THREADS, 0, s, z, a);
    else
        KERN_LAUNCH(label_rows<1>, (unsigned)n, THREADS, 0, s, z, a);
    return cudaGetLastError();
}
