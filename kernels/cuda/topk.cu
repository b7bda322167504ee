// SPDX-License-Identifier: Apache-2.0
// Top-k on the device, with the choice of kern_topk (kernels/quant.h): the k largest magnitudes of
// each chunk, ties to the lower index, in the order of indices. A block owns a chunk. Magnitudes
// are compared as integers and values are copied, so the options of the exact path do not matter.
//
// topk_few takes full chunks of 4,096 and k up to 64. It reads a chunk once, into shared memory. A
// thread keeps the magnitudes of its 16 elements in registers.
//
//   1  Find the largest magnitude of each thread, and of the block.
//   2  Find the floor. The k-th largest of the threads' maxima would do: k threads have an element
//      at or above it, so nothing below it is chosen. A histogram of distances from the block's
//      largest gives it, rounded down to a sixteenth of an octave.
//   3  Set a bit for each element at or above the floor (64 of 4,096 normal values: some 100 bits).
//      These elements go to a list, in order. For that the threads' counts, four in a word, are
//      summed over the warp and then over the block.
//   4  Find the k-th smallest distance in the list, eight bits per turn, from the highest bit that
//      any distance has: one turn or two, mostly.
//   5  Write the chosen elements of the list to their places, in order.
//
// If the list is short, the first warp does 4 and 5 without waiting for the others.
//
// topk_many takes larger k. A list would be half as long as the chunk, so step 4 uses all elements,
// from registers: first a histogram of distances in 32nds of an octave, then the turns of step 4
// among the elements of one bin. The chosen elements gather in shared memory. All distances of
// eight octaves and more share one bin. If the k-th is there, step 4 goes over the whole chunk from
// the first bit.
//
// topk_any takes any chunk up to 65,536: steps 4 and 5 with the chunk itself as the list, which
// each turn reads again.
//
// scatter is the inverse. A block owns a tile of the array, and writes zeros and entries in one
// pass.
//
// Whatever the values are, the list gets at least k and at most CHUNK elements, and every loop
// ends.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/radix.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP, // a thread owns a bin: THREADS == RADIX
    CHUNK = 4096,
    TURNS = CHUNK / THREADS / 4, // a thread takes four elements per turn
    FLOOR_SHIFT = 23 - 4,        // bins of a sixteenth of an octave
    COARSE = 23 - 5,             // bins of a 32nd of an octave
    SHORT = 512,                 // longest list for one warp
    FEW = 64,                    // the largest k of topk_few
    BLOCKS = 6                   // on a multiprocessor
};

struct __align__(16) room {
    unsigned count[RADIX];
    uint32_t sums[2][WARPS];   // of each warp
    uint32_t bin, left, whole; // find_bin's answer
};

__device__ static inline uint32_t magnitude(uint32_t bits) { return bits & 0x7fffffffu; }

// Sources of elements. A small distance is a large magnitude.
struct in_place { // a chunk in global memory
    const float *x;
    __device__ uint32_t distance(uint32_t i) const {
        return 0x7fffffffu - magnitude(__float_as_uint(x[i]));
    }
    __device__ uint16_t index(uint32_t i) const { return (uint16_t)i; }
    __device__ float value(uint32_t i) const { return x[i]; }
};
struct listed {
    const uint32_t *x;  // the chunk's bits
    const uint16_t *at; // the list
    uint32_t top;       // the largest magnitude
    __device__ uint32_t distance(uint32_t i) const { return top - magnitude(x[at[i]]); }
    __device__ uint16_t index(uint32_t i) const { return at[i]; }
    __device__ float value(uint32_t i) const { return __uint_as_float(x[at[i]]); }
};

struct cut { // all elements below limit are chosen, and the first `ties` that equal it
    uint32_t limit, ties;
};

template <bool BLOCK> __device__ static inline void meet() {
    if (BLOCK)
        __syncthreads();
    else
        __syncwarp();
}

// Finds the k nearest of n elements. No distance has more than `bits` bits. BLOCK: the whole block
// takes part, otherwise its first warp. The elements must be complete.
template <bool BLOCK, class S>
__device__ static struct cut kth(const S &from, uint32_t n, uint32_t k, int bits, struct room *r) {
    const uint32_t threads = BLOCK ? (uint32_t)THREADS : (uint32_t)WARP;
    // of the k-th element: its upper bits so far, and its rank among the elements with these bits
    uint32_t prefix = 0, need = k;
    while (bits > 0) {
        int shift = bits > RADIX_BITS ? bits - RADIX_BITS : 0;
        uint32_t mask = (1u << (bits - shift)) - 1;
        for (uint32_t i = threadIdx.x; i < RADIX; i += threads)
            r->count[i] = 0;
        meet<BLOCK>();
        for (uint32_t i = threadIdx.x; i < n; i += threads) {
            uint32_t d = from.distance(i);
            if (d >> bits == prefix)
                atomicAdd(&r->count[d >> shift & mask], 1u);
        }
        meet<BLOCK>();
        if (threadIdx.x < WARP)
            find_bin(r, need);
        meet<BLOCK>();
        prefix = prefix << (bits - shift) | r->bin;
        need = r->left; // written again only after two more barriers
        bits = shift;
        if (r->whole) { // all elements that begin with prefix
            struct cut all = {(prefix + 1) << bits, 0};
            return all;
        }
    }
    struct cut some = {prefix, need};
    return some;
}

// Writes the elements that are chosen among n, in order. The first warp alone does this.
template <class S>
__device__ static void write_by_warp(const S &from, uint32_t n, struct cut c, uint16_t *idx,
                                     float *values) {
    uint32_t below_lane = (1u << threadIdx.x) - 1, done = 0, ties_left = c.ties;
    for (uint32_t first = 0; first < n; first += WARP) {
        uint32_t i = first + threadIdx.x, d = i < n ? from.distance(i) : ~0u;
        bool tie = d == c.limit && i < n;
        unsigned ties = __ballot_sync(ALL_LANES, tie);
        bool in = d < c.limit || (tie && (uint32_t)__popc(ties & below_lane) < ties_left);
        unsigned ins = __ballot_sync(ALL_LANES, in);
        if (in) {
            uint32_t to = done + (uint32_t)__popc(ins & below_lane);
            idx[to] = from.index(i);
            values[to] = from.value(i);
        }
        done += (uint32_t)__popc(ins);
        uint32_t had = (uint32_t)__popc(ties);
        ties_left -= had < ties_left ? had : ties_left;
    }
}

// The same by the whole block.
template <class S>
__device__ static void write_by_block(const S &from, uint32_t n, struct cut c, uint16_t *idx,
                                      float *values, struct room *r) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, below_lane = (1u << lane) - 1,
             done = 0, done_ties = 0;
    for (uint32_t first = 0; first < n; first += THREADS) {
        uint32_t i = first + threadIdx.x, d = i < n ? from.distance(i) : ~0u;
        bool in = i < n && d < c.limit, tie = i < n && d == c.limit;
        unsigned ins = __ballot_sync(ALL_LANES, in), ties = __ballot_sync(ALL_LANES, tie);
        if (lane == 0) {
            r->sums[0][warp] = (uint32_t)__popc(ins);
            r->sums[1][warp] = (uint32_t)__popc(ties);
        }
        __syncthreads();
        uint32_t before = done, before_ties = done_ties;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++) {
            before += w < warp ? r->sums[0][w] : 0;
            before_ties += w < warp ? r->sums[1][w] : 0;
            done += r->sums[0][w];
            done_ties += r->sums[1][w];
        }
        before += (uint32_t)__popc(ins & below_lane);
        before_ties += (uint32_t)__popc(ties & below_lane);
        if (in || (tie && before_ties < c.ties)) {
            uint32_t to = before + (before_ties < c.ties ? before_ties : c.ties);
            idx[to] = from.index(i);
            values[to] = from.value(i);
        }
        __syncthreads(); // sums have been read
    }
}

// Returns a floor: k threads have an element at or above it. most: this thread's largest magnitude;
// top: the block's. The counts must be 0.
__device__ static uint32_t floor_of(uint32_t most, uint32_t top, uint32_t k, struct room *r) {
    uint32_t bin = (top - most) >> FLOOR_SHIFT;
    atomicAdd(&r->count[bin < RADIX ? bin : RADIX - 1], 1u);
    __syncthreads();
    if (threadIdx.x < WARP)
        find_bin(r, k);
    __syncthreads();
    uint32_t beyond = (r->bin + 1) << FLOOR_SHIFT; // k threads have a smaller distance
    return r->bin == RADIX - 1 || beyond > top ? 0 : top - beyond + 1;
}

// Which elements a thread has: a warp takes 128 neighbours per turn, a lane four of them. Bit
// 4 j + i of a set is element own + 128 j + i.
__device__ static inline uint32_t own_first() {
    return threadIdx.x / WARP * (CHUNK / WARPS) + threadIdx.x % WARP * 4;
}
__device__ static inline uint32_t own_at(uint32_t own, int e) {
    return own + e / 4 * WARP * 4 + e % 4;
}

// to[j]: how many elements of the block's sets come before this thread's elements of turn j.
// Returns how many there are in all. sums: scratch, one for each warp.
__device__ static uint32_t rank_set(uint32_t (&to)[TURNS], uint32_t set, uint32_t (&sums)[WARPS]) {
    uint32_t warp = threadIdx.x / WARP, mine = 0; // a byte for each turn: it counts up to 128
#pragma unroll
    for (int j = 0; j < TURNS; j++)
        mine += (uint32_t)__popc(set >> 4 * j & 15) << 8 * j;
    uint32_t upto = warp_sum_upto(mine), all = __shfl_sync(ALL_LANES, upto, WARP - 1),
             of_warp = (all & 255) + (all >> 8 & 255) + (all >> 16 & 255) + (all >> 24),
             before = upto - mine, base = 0, n = 0;
    if (threadIdx.x % WARP == 0)
        sums[warp] = of_warp;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        base += w < warp ? sums[w] : 0;
        n += sums[w];
    }
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        to[j] = base + (before >> 8 * j & 255);
        base += all >> 8 * j & 255;
    }
    return n;
}

// Lists the elements whose bits are set, in order. Returns how many there are.
__device__ static uint32_t list_set(uint16_t *at, uint32_t set, uint32_t own, struct room *r) {
    uint32_t to[TURNS], n = rank_set(to, set, r->sums[1]);
#pragma unroll
    for (int j = 0; j < TURNS; j++)
        for (uint32_t left = set >> 4 * j & 15; left; left &= left - 1)
            at[to[j]++] = (uint16_t)(own + j * WARP * 4 + (uint32_t)__ffs((int)left) - 1);
    __syncthreads();
    return n;
}

// Returns the block's largest magnitude. most: this thread's. The counts are 0 afterwards.
__device__ static inline uint32_t block_top(uint32_t most, struct room *r) {
    uint32_t top = 0, of_warp = __reduce_max_sync(ALL_LANES, most);
    if (threadIdx.x % WARP == 0)
        r->sums[0][threadIdx.x / WARP] = of_warp;
    r->count[threadIdx.x] = 0; // THREADS == RADIX
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        top = r->sums[0][w] > top ? r->sums[0][w] : top;
    return top;
}

__global__ void __launch_bounds__(THREADS, BLOCKS)
    topk_few(uint16_t *idx, float *values, const float *x, uint32_t k) {
    __shared__ struct room r;
    __shared__ Vec<uint32_t, 4> chunk[CHUNK / 4];
    __shared__ uint16_t at[CHUNK];
    uint32_t own = own_first(), most = 0, set = 0;
    const Vec<uint32_t, 4> *p =
        reinterpret_cast<const Vec<uint32_t, 4> *>(x + (size_t)blockIdx.x * CHUNK + own);
    Vec<uint32_t, 4> u[TURNS];
#pragma unroll
    for (int j = 0; j < TURNS; j++)
        u[j] = p[j * WARP];
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        chunk[own / 4 + j * WARP] = u[j];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u[j].x[i] = magnitude(u[j].x[i]);
            most = u[j].x[i] > most ? u[j].x[i] : most;
        }
    }
    uint32_t top = block_top(most, &r), floor = floor_of(most, top, k, &r);
    // Shifts in the sign of floor - 1 - u: 1 if u >= floor, since neither has more than 31 bits.
#pragma unroll
    for (int e = TURNS * 4 - 1; e >= 0; e--)
        set = __funnelshift_l(floor - 1 - u[e / 4].x[e % 4], set, 1);
    uint32_t n = list_set(at, set, own, &r);
    struct listed list = {reinterpret_cast<const uint32_t *>(chunk), at, top};
    struct cut c = {0x80000000u, 0}; // the whole list
    int bits = WARP - __clz((int)(top - floor));
    idx += (size_t)blockIdx.x * k;
    values += (size_t)blockIdx.x * k;
    if (n > SHORT) {
        if (n > k)
            c = kth<true>(list, n, k, bits, &r);
        write_by_block(list, n, c, idx, values, &r);
    } else if (threadIdx.x < WARP) {
        if (n > k)
            c = kth<false>(list, n, k, bits, &r);
        write_by_warp(list, n, c, idx, values);
    }
}

// u: distances. Finds the needed element among those in the bin that find_bin has found.
__device__ static struct cut kth_of_bin(const Vec<uint32_t, 4> (&u)[TURNS], struct room *r) {
    uint32_t prefix = r->bin, need = r->left, whole = r->whole;
    int bits = COARSE;
    while (!whole && bits > 0) {
        int shift = bits > RADIX_BITS ? bits - RADIX_BITS : 0;
        uint32_t mask = (1u << (bits - shift)) - 1;
        r->count[threadIdx.x] = 0;
        __syncthreads(); // also keeps the reads of find_bin's answer before its next call
#pragma unroll
        for (int e = 0; e < TURNS * 4; e++) {
            uint32_t d = u[e / 4].x[e % 4];
            if (d >> bits == prefix)
                atomicAdd(&r->count[d >> shift & mask], 1u);
        }
        __syncthreads();
        if (threadIdx.x < WARP)
            find_bin(r, need);
        __syncthreads();
        prefix = prefix << (bits - shift) | r->bin;
        need = r->left;
        whole = r->whole;
        bits = shift;
    }
    struct cut all = {(prefix + 1) << bits, 0}, some = {prefix, need};
    return whole ? all : some;
}

struct gathered { // a chunk's distances in shared memory
    const uint32_t *x;
    __device__ uint32_t distance(uint32_t i) const { return x[i]; }
};

// pairs: two indices can be written at once.
__global__ void __launch_bounds__(THREADS, BLOCKS - 1)
    topk_many(uint16_t *idx, float *values, const float *x, uint32_t k, bool pairs) {
    __shared__ struct room r;
    __shared__ Vec<uint32_t, 4> room_4[CHUNK / 4];
    __shared__ Vec<uint16_t, 2> at_2[CHUNK / 2];
    uint32_t *gather = reinterpret_cast<uint32_t *>(room_4);
    uint16_t *at = reinterpret_cast<uint16_t *>(at_2);
    uint32_t own = own_first(), most = 0, set = 0, to[TURNS];
    const Vec<uint32_t, 4> *p =
        reinterpret_cast<const Vec<uint32_t, 4> *>(x + (size_t)blockIdx.x * CHUNK + own);
    Vec<uint32_t, 4> u[TURNS];
#pragma unroll
    for (int j = 0; j < TURNS; j++)
        u[j] = p[j * WARP];
#pragma unroll
    for (int e = 0; e < TURNS * 4; e++) {
        uint32_t m = magnitude(u[e / 4].x[e % 4]);
        most = m > most ? m : most;
    }
    // From here on u holds distances from the largest magnitude, and signs holds the signs.
    uint32_t top = block_top(most, &r), signs = 0;
#pragma unroll
    for (int e = TURNS * 4 - 1; e >= 0; e--) {
        signs = __funnelshift_l(u[e / 4].x[e % 4], signs, 1);
        u[e / 4].x[e % 4] = top - magnitude(u[e / 4].x[e % 4]);
    }
    struct cut c = {0, k}; // for a chunk of zeros, which would all be in one bin
    if (top > 0) {
#pragma unroll
        for (int e = 0; e < TURNS * 4; e++) {
            uint32_t bin = u[e / 4].x[e % 4] >> COARSE;
            atomicAdd(&r.count[bin < RADIX ? bin : RADIX - 1], 1u);
        }
        __syncthreads();
        if (threadIdx.x < WARP)
            find_bin(&r, k);
        __syncthreads();
        if (r.bin < RADIX - 1) {
            c = kth_of_bin(u, &r);
        } else {
#pragma unroll
            for (int j = 0; j < TURNS; j++)
                room_4[own / 4 + j * WARP] = u[j];
            __syncthreads();
            struct gathered all = {gather};
            c = kth<true>(all, CHUNK, k, 31, &r);
        }
    }
    // Shifts in the sign of distance - limit: 1 if it is below. Neither has more than 31 bits, or
    // the limit is 2^31 and above all distances.
#pragma unroll
    for (int e = TURNS * 4 - 1; e >= 0; e--)
        set = __funnelshift_l(u[e / 4].x[e % 4] - c.limit, set, 1);
    if (c.ties) { // the same in the whole block
        uint32_t same = 0;
#pragma unroll
        for (int e = 0; e < TURNS * 4; e++)
            same |= (u[e / 4].x[e % 4] == c.limit ? 1u : 0u) << e;
        (void)rank_set(to, same, r.sums[1]); // in a chunk of zeros, sums[0] may still be read
#pragma unroll
        for (int e = 0; e < TURNS * 4; e++)
            if (same >> e & 1 && to[e / 4]++ < c.ties)
                set |= 1u << e;
    }
    (void)rank_set(to, set, r.sums[0]);
#pragma unroll
    for (int e = 0; e < TURNS * 4; e++)
        if (set >> e & 1) {
            uint32_t place = to[e / 4]++;
            gather[place] = (top - u[e / 4].x[e % 4]) | (signs >> e) << 31;
            at[place] = (uint16_t)own_at(own, e);
        }
    __syncthreads();
    idx += (size_t)blockIdx.x * k;
    values += (size_t)blockIdx.x * k;
    for (uint32_t i = threadIdx.x; i < k; i += THREADS)
        values[i] = __uint_as_float(gather[i]);
    for (uint32_t i = threadIdx.x; pairs && i < k / 2; i += THREADS)
        reinterpret_cast<Vec<uint16_t, 2> *>(idx)[i] = at_2[i];
    for (uint32_t i = threadIdx.x; !pairs && i < k; i += THREADS)
        idx[i] = at[i];
}

// A block takes its chunk of x and its part of the output. k_last: of the last chunk.
__global__ void topk_any(uint16_t *idx, float *values, const float *x, size_t n, uint32_t chunk,
                         uint32_t k_full, uint32_t k_last) {
    __shared__ struct room r;
    size_t at = (size_t)blockIdx.x * chunk, to = (size_t)blockIdx.x * k_full;
    uint32_t len = (uint32_t)(n - at < chunk ? n - at : chunk),
             k = blockIdx.x + 1 == gridDim.x ? k_last : k_full;
    struct in_place here = {x + at};
    struct cut c = kth<true>(here, len, k, 31, &r);
    write_by_block(here, len, c, idx + to, values + to, &r);
}

cudaError_t kern_cu_topk(uint16_t *idx, float *values, const float *x, size_t n, uint32_t chunk,
                         uint32_t k, uint32_t k_last, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (chunk == 0 || chunk > 65536 || k < 1 || k > chunk)
        return cudaErrorInvalidValue;
    size_t chunks = (n + chunk - 1) / chunk, last = n - (chunks - 1) * chunk, whole = 0;
    if (k_last < 1 || k_last > last || chunks > 0x7fffffff)
        return cudaErrorInvalidValue;
    if (chunk == CHUNK && aligned_to(x, 16))
        whole = last == CHUNK && k_last == k ? chunks : chunks - 1;
    if (whole && k <= FEW)
        KERN_LAUNCH(topk_few, (unsigned)whole, THREADS, 0, s, idx, values, x, k);
    else if (whole)
        KERN_LAUNCH(topk_many, (unsigned)whole, THREADS, 0, s, idx, values, x, k,
                    k % 2 == 0 && aligned_to(idx, 4));
    if (whole < chunks)
        KERN_LAUNCH(topk_any, (unsigned)(chunks - whole), THREADS, 0, s, idx + whole * k,
                    values + whole * k, x + whole * chunk, n - whole * chunk, chunk, k, k_last);
    return cudaGetLastError();
}

// ---- scatter

// Returns the first of m ascending entries that is not below `from`. If entries are evenly spread,
// it is near `guess`, which is tried first.
__device__ static size_t first_from(const uint32_t *at, size_t m, size_t from, size_t guess) {
    if ((guess == 0 || at[guess - 1] < from) && (guess == m || at[guess] >= from))
        return guess;
    size_t low = 0, high = m;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (at[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// A block owns a tile of CHUNK elements. It writes zeros, then entries, while the lines are still
// in the cache.
template <int V>
__global__ void scatter(float *out, size_t n, const uint32_t *at, const float *x, size_t m) {
    __shared__ size_t ends[2];
    size_t from = (size_t)blockIdx.x * CHUNK, to = n - from < CHUNK ? n : from + CHUNK;
    if (threadIdx.x % WARP == 0 && threadIdx.x / WARP < 2) { // two warps search at the same time
        size_t end = threadIdx.x ? to : from;
        // below 2^64, since m and n are below 2^32
        ends[threadIdx.x / WARP] = first_from(at, m, end, end * m / n);
    }
    const float none[V] = {0};
    for (size_t i = from + threadIdx.x * V; i < to; i += THREADS * V)
        store<float, V>(out + i, none);
    __syncthreads();
    for (size_t e = ends[0] + threadIdx.x; e < ends[1]; e += THREADS)
        out[at[e]] = x[e];
}

cudaError_t kern_cu_scatter(float *out, size_t n, const uint32_t *at, const float *x, size_t m,
                            cudaStream_t s) {
    size_t tiles = (n + CHUNK - 1) / CHUNK;
    if (n == 0)
        return cudaSuccess;
    if (n > UINT32_MAX || m > n)
        return cudaErrorInvalidValue;
    if (n % 4 == 0 && aligned_to(out, 16))
        KERN_LAUNCH(scatter<4>, (unsigned)tiles, THREADS, 0, s, out, n, at, x, m);
    else
        KERN_LAUNCH(scatter<1>, (unsigned)tiles, THREADS, 0, s, out, n, at, x, m);
    return cudaGetLastError();
}
