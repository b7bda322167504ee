// SPDX-License-Identifier: Apache-2.0
// Attention in bf16 with Hopper's tensor-core instructions (attn_wgmma.cuh), head_dim 64 and 128.
// It computes what attn_mma.cu does, but faster. Compiled for compute capability 9.0 only, which
// open.c checks.
//
// A block of one or two warp groups (Plan, below) owns 64 rows for each group. It walks through
// tiles of 64 rows of the other side, which arrive in shared memory by asynchronous copies, two
// tiles ahead. Own rows stay in registers, except in bwd_kv at head_dim 128:
//
//    fwd    owns queries  streams K, V   S = Q K^T, online softmax, O += P V
//    bwd_q  owns queries  streams K, V   S, dP = dO V^T, dS = P (dP - delta), dQ += dS K;
//                                        also delta = rowsum(dO * O)
//    bwd_kv owns keys     streams Q, dO  S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//
// As in attn_mma.cu, the backward pass computes S twice, and no kernel adds to another's output. A
// warp's accumulators have the layout of mma.m16n8k16, so attn_tiles.cuh handles them.
//
// Products run in the background. The last products of a tile run while the block waits for the
// next tile, and end together with the next tile's scores. So the slot of tile t may be filled
// again after the barrier of tile t + 2, which all warps pass after those products:
//
//    tile t:  wait for its copy; barrier; start to copy tile t + 2 into the slot of t - 2; S (t);
//             wait for S (t) and for the rest of t - 1; …
//
// So there are four SLOTS: t - 1 and t are read, t + 1 and t + 2 are in flight.
//
// At head_dim 128 a multiprocessor has only one block, so no other block uses the tensor cores
// while that block computes weights. Therefore fwd and bwd_q are "late" there: a tile's second
// product starts after the scores of the next tile, and runs while these become weights
// (FlashAttention-3, arXiv 2407.08608, within a warp group). It ends before the next barrier, so
// slots are read and filled as above:
//
//    fwd     S (t), O += P V (t - 1), wait for S, P (t), wait for O
//    bwd_q   S (t), dP (t), dQ += dS K (t - 1), wait for S, P (t), wait for dP, dS (t), wait for dQ
//    bwd_kv  S (t), dP (t), wait for S and for dK (t - 1), P (t), dV += P dO (t), wait for dP,
//            dS (t), dK += dS Q (t), wait for dV
//
// The late product of the last tile comes after the loop. A group may see one tile fewer than its
// block. The slot of its last tile is unchanged then, since nothing is copied there any more.
// bwd_kv has no registers to keep a product for later, and none for K and V: it reads these as A
// from shared memory. At head_dim 128 own rows arrive in shared memory, 16 bytes per lane, after
// the slots: Q for fwd; Q, dO and O for bwd_q; K and V for bwd_kv. That makes 161, 225 and 195 KiB
// in all.
#include "kernels/cuda/attn_tiles.cuh"
#include "kernels/cuda/attn_wgmma.cuh"
#include "kernels/cuda/launch.h"

enum { GROUP = 128, SLOTS = 4 }; // GROUP: threads of a warp group

// How the kernels divide their work: warp groups of a block, and blocks for which a multiprocessor
// has registers and shared memory. Two groups fetch half the bytes of the other side. With one
// group three blocks of bwd_q fit at head_dim 64, and no group waits for another: that was fastest
// on an H100.
template <int HD> struct Plan;
template <> struct Plan<64> {
    static const int fwd = 2, fwd_blocks = 2, bwd_q = 1, bwd_q_blocks = 3, bwd_kv = 2,
                     bwd_kv_blocks = 1;
    static const bool late = false; // see above
};
template <> struct Plan<128> {
    static const int fwd = 2, fwd_blocks = 1, bwd_q = 2, bwd_q_blocks = 1, bwd_kv = 2,
                     bwd_kv_blocks = 1;
    static const bool late = true;
};
// 64 rows of one side lie in `parts` TILEs of 64 columns each, one after the other. size: elements
// of all parts. at(k): where the k-th 16 columns begin.
template <int HD> struct Rows {
    static const int parts = HD / TILE_COLUMNS, size = parts * TILE;
    __device__ static inline constexpr int at(int k) { return k / 4 * TILE + k % 4 * 16; }
};

struct wgmma_job {
    int T, n_heads, group;
    enum kern_mask kind;
    const int32_t *prefix_len;
    float scale;
};

static struct wgmma_job job_of(const struct kern_attn *a) {
    struct wgmma_job j = {a->T,    a->n_heads,    a->n_heads / a->n_kv_heads,
                          a->mask, a->prefix_len, 1.0f / sqrtf((float)a->head_dim)};
    return j;
}

// Copies rows of one side to tiles, 64 at a time. A thread has the same row and column in every
// tile. Rows at and beyond T become zeros.
struct stream {
    const bf16 *x; // this thread's first row of the next tile
    int ld, left;  // left: rows from there to T
};
__device__ static inline int own_row() { return (int)threadIdx.x / 8; }
__device__ static inline int own_column() { return (int)threadIdx.x % 8 * 8; }
__device__ static inline struct stream stream_of(const bf16 *x, int ld, int first, int T) {
    struct stream s = {x + (size_t)(first + own_row()) * ld + own_column(), ld,
                       T - first - own_row()};
    return s;
}
template <int HD, int GROUPS>
__device__ static inline void bring_rows(bf16 *tile, const struct stream &s) {
    bf16 *to = tile + tile_at(own_row(), own_column()); // a thread's rows are multiples of 8 apart
#pragma unroll
    for (int r = 0; r < TILE_ROWS; r += GROUPS * GROUP / 8)
#pragma unroll
        for (int i = 0; i < Rows<HD>::parts; i++)
            cp_async16(to + i * TILE + r * TILE_COLUMNS,
                       s.x + (ptrdiff_t)r * s.ld + i * TILE_COLUMNS, r < s.left);
}
__device__ static inline void stream_on(struct stream &s, int rows) {
    s.x += (ptrdiff_t)rows * s.ld;
    s.left -= rows;
}

// Loads a warp's 16 own rows of x as A. row: this lane's first. Zeros at and beyond T.
template <int K>
__device__ static inline void own_rows(uint32_t (&a)[K][4], const bf16 *x, int ld, int row, int T) {
    int col = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i % 2 * 8;
            a[k][i] = r < T ? *reinterpret_cast<const uint32_t *>(x + (size_t)r * ld + k * 16 +
                                                                  i / 2 * 8 + col)
                            : 0;
        }
}

// If own rows come through shared memory: starts to copy the rows of all groups, from `first` on,
// to tiles.
template <int HD, int GROUPS>
__device__ static inline void bring_own(bf16 *own, const bf16 *x, int ld, int first, int T) {
    struct stream s = stream_of(x, ld, first, T);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        bring_rows<HD, GROUPS>(own + g * Rows<HD>::size, s);
        stream_on(s, TILE_ROWS);
    }
}
// Loads a warp's 16 rows from these tiles, once they have arrived.
template <int HD>
__device__ static inline void own_rows(uint32_t (&a)[HD / 16][4], const bf16 *own) {
    int lane = (int)threadIdx.x % WARP, row = (int)threadIdx.x / WARP % 4 * 16 + lane % 16;
    own += (int)threadIdx.x / GROUP * Rows<HD>::size;
#pragma unroll
    for (int k = 0; k < HD / 16; k++)
        ldmatrix_x4(a[k], own + k / 4 * TILE + tile_at(row, k % 4 * 16 + lane / 16 * 8));
}

// Turns accumulators into A, for a second product.
__device__ static inline void pack_rows(uint32_t (&a)[4][4], const float (&p)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        a[k][0] = pack_bf16(p[2 * k][0], p[2 * k][1]);
        a[k][1] = pack_bf16(p[2 * k][2], p[2 * k][3]);
        a[k][2] = pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]);
        a[k][3] = pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3]);
    }
}

// s (64 own rows, 64 rows of the other side) = own other^T. own: A in registers, or a place in
// shared memory.
template <int HD>
__device__ static inline void scores(float (&s)[8][4], const uint32_t (&own)[HD / 16][4],
                                     tile_ref other) {
    wgmma_64_64_16<false, true>(s, own[0], other);
#pragma unroll
    for (int k = 1; k < HD / 16; k++)
        wgmma_64_64_16<false, false>(s, own[k], tile_on(other, Rows<HD>::at(k)));
}
template <int HD>
__device__ static inline void scores(float (&s)[8][4], tile_ref own, tile_ref other) {
    wgmma_64_64_16<false, true>(s, own, other);
#pragma unroll
    for (int k = 1; k < HD / 16; k++)
        wgmma_64_64_16<false, false>(s, tile_on(own, Rows<HD>::at(k)),
                                     tile_on(other, Rows<HD>::at(k)));
}
// acc (64 own rows, head_dim) += p other
template <int HD>
__device__ static inline void add_rows(float (&acc)[HD / 8][4], const uint32_t (&p)[4][4],
                                       tile_ref other) {
#pragma unroll
    for (int i = 0; i < Rows<HD>::parts; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_64_64_16<true, false>(acc + i * 8, p[k],
                                        tile_on(other, i * TILE + k * 16 * TILE_COLUMNS));
}

// Which rows and columns a thread has.
struct place {
    int mine, warp_row, row; // first row: of its group, of its warp, of itself
    int col;                 // column in accumulators and in A
    int h, b;
};
template <int HD> __device__ static inline struct place place_of(int first) {
    int group = (int)threadIdx.x / GROUP, warp = (int)threadIdx.x / WARP % 4,
        lane = (int)threadIdx.x % WARP;
    struct place p;
    if (Plan<HD>::late) // tells the compiler that a warp has one group
        group = __shfl_sync(ALL_LANES, group, 0);
    p.mine = first + group * TILE_ROWS;
    p.warp_row = p.mine + warp * 16;
    p.row = p.warp_row + lane / 4;
    p.col = lane % 4 * 2;
    p.h = (int)blockIdx.y;
    p.b = (int)blockIdx.z;
    return p;
}

// Writes a warp's 16 rows of accumulators, times a factor for each row, to x. They go through
// shared memory, so that eight lanes write 128 bytes of a row. Rows at and beyond T are left out.
// row: the warp's first.
template <int HD>
__device__ static inline void write_rows(bf16 *x, int ld, int row, int T,
                                         const float (&acc)[HD / 8][4], float f0, float f1,
                                         bf16 *slots) {
    int lane = (int)threadIdx.x % WARP, r = lane / 4, col = lane % 4 * 2;
    bf16 *room = slots + (int)threadIdx.x / WARP * 16 * TILE_COLUMNS;
#pragma unroll
    for (int part = 0; part < Rows<HD>::parts; part++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float *of = acc[part * 8 + n];
            *reinterpret_cast<uint32_t *>(room + tile_at(r, n * 8) + col) =
                pack_bf16(of[0] * f0, of[1] * f0);
            *reinterpret_cast<uint32_t *>(room + tile_at(r + 8, n * 8) + col) =
                pack_bf16(of[2] * f1, of[3] * f1);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            int at = i + lane / 8, c = lane % 8 * 8;
            if (row + at < T)
                *reinterpret_cast<Vec<uint32_t, 4> *>(x + (size_t)(row + at) * ld +
                                                      part * TILE_COLUMNS + c) =
                    *reinterpret_cast<const Vec<uint32_t, 4> *>(room + tile_at(at, c));
        }
        __syncwarp(); // read before the next part is written
    }
}

// grid: (blocks of queries, heads, B). Blocks with the longest rows of a causal mask come first.
template <int HD>
__global__ void __launch_bounds__(Plan<HD>::fwd *GROUP, Plan<HD>::fwd_blocks)
    wgmma_fwd(struct wgmma_job J, bf16 *out, int ldo, float *lse, const bf16 *q, int ldq,
              const bf16 *k, int ldk, const bf16 *v, int ldv) {
    KERN_DYNAMIC_SHARED(room);
    const int GROUPS = Plan<HD>::fwd, BLOCK = GROUPS * TILE_ROWS, SIDE = Rows<HD>::size;
    const bool LATE = Plan<HD>::late;
    bf16 *slots = reinterpret_cast<bf16 *>(tiles_from(room));
    const tile_ref tile0 = tile_refer(slots);
    int i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK;
    struct place p = place_of<HD>(i0);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, p.b);
    size_t first = (size_t)p.b * J.T;
    int tiles = (attn_keys_end(m, i0, BLOCK) + TILE_ROWS - 1) / TILE_ROWS;
    struct stream next_k = stream_of(k + first * ldk + (size_t)(p.h / J.group) * HD, ldk, 0, J.T),
                  next_v = stream_of(v + first * ldv + (size_t)(p.h / J.group) * HD, ldv, 0, J.T);
    auto bring = [&](int t) {
        bf16 *to = slots + t % SLOTS * 2 * SIDE;
        if (t < tiles) {
            bring_rows<HD, GROUPS>(to, next_k);
            bring_rows<HD, GROUPS>(to + SIDE, next_v);
            stream_on(next_k, TILE_ROWS);
            stream_on(next_v, TILE_ROWS);
        }
        cp_async_commit(); // commits an empty group at the end: the wait in arrive counts groups
    };
    auto of = [&](const bf16 *x, int ld) { return x + first * ld + (size_t)p.h * HD; };
    bf16 *own_at = slots + SLOTS * 2 * SIDE; // after the slots: own Q
    if (LATE)
        bring_own<HD, GROUPS>(own_at, of(q, ldq), ldq, i0, J.T); // arrives with the first tile
    bring(0);
    bring(1);
    uint32_t own[HD / 16][4], weights[4][4];
    if (!LATE)
        own_rows(own, of(q, ldq), ldq, p.row, J.T);
    float acc[HD / 8][4] = {{0}}, s[8][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0},
                   c = J.scale * LOG2_E; // scores become exponents of two
    auto arrive = [&](int t) {           // waits for tile t; another one is in flight
        cp_async_wait<1>();
        fence_tiles();
        __syncthreads();
        bring(t + 2);
    };
    auto slot = [&](int t) { return tile_on(tile0, t % SLOTS * 2 * SIDE); };
    auto mask = [&](int j0) {
        if (!attn_all_seen(m, p.mine, TILE_ROWS, j0, TILE_ROWS))
            hide<TILE_ROWS>(s, m, p.row, j0 + p.col, -INFINITY);
    };
    if constexpr (LATE) {
        int last = 0; // the last tile that this group sees; it sees the first ones
        arrive(0);
        own_rows<HD>(own, own_at);
        wgmma_fence();
        scores<HD>(s, own, slot(0));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(s);
        mask(0);
#pragma unroll
        for (int e = 0; e < 2; e++)
            (void)weigh<TILE_ROWS>(s, e, max[e], sum[e], c);
        pack_rows(weights, s);
        for (int t = 1; t < tiles; t++) {
            float shrink[2];
            arrive(t);
            if (attn_none_seen(m, p.mine, TILE_ROWS, t * TILE_ROWS))
                continue;
            wgmma_fence();
            scores<HD>(s, own, slot(t));
            wgmma_commit();
            add_rows<HD>(acc, weights, tile_on(slot(t - 1), SIDE));
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_pin(s);
            mask(t * TILE_ROWS);
#pragma unroll
            for (int e = 0; e < 2; e++)
                shrink[e] = weigh<TILE_ROWS>(s, e, max[e], sum[e], c);
            wgmma_wait_behind<0>(sum[0] + sum[1]);
            wgmma_pin(acc);
            wgmma_pin(s); // the product has read the registers that pack_rows writes
#pragma unroll
            for (int e = 0; e < 2; e++)
                shrink_row<HD>(acc, e, shrink[e]);
            pack_rows(weights, s);
            last = t;
        }
        wgmma_fence();
        add_rows<HD>(acc, weights, tile_on(slot(last), SIDE));
        wgmma_commit();
    } else {
        for (int t = 0; t < tiles; t++) {
            arrive(t);
            tile_ref keys = slot(t), values = tile_on(keys, SIDE);
            if (attn_none_seen(m, p.mine, TILE_ROWS, t * TILE_ROWS)) {
                // This group sees neither this tile nor a later one. The products of t - 1 must end
                // now, because the next turn fills their slot again.
                wgmma_wait<0>();
                continue;
            }
            wgmma_fence();
            scores<HD>(s, own, keys);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(s);
            wgmma_pin(acc);
            mask(t * TILE_ROWS);
            soften<HD, TILE_ROWS>(s, acc, max, sum, c);
            pack_rows(weights, s);
            wgmma_pin(acc);
            wgmma_fence();
            add_rows<HD>(acc, weights, values);
            wgmma_commit();
        }
    }
    cp_async_wait<0>();
    wgmma_wait<0>();
    wgmma_pin(acc);
    float sum0 = row_sum(sum[0]), sum1 = row_sum(sum[1]);
    __syncthreads(); // the slots are free
    write_rows<HD>(out + first * ldo + (size_t)p.h * HD, ldo, p.warp_row, J.T, acc, 1.0f / sum0,
                   1.0f / sum1, slots);
    float *to = lse + ((size_t)p.b * J.n_heads + p.h) * J.T;
    if (p.col == 0 && p.row < J.T)
        to[p.row] = max[0] * J.scale + logf(sum0);
    if (p.col == 0 && p.row + 8 < J.T)
        to[p.row + 8] = max[1] * J.scale + logf(sum1);
}

// Returns the bitwise or of all of s, as a float. It depends on every element, and is below 0 only
// if an element is.
__device__ static inline float all_of(const float (&s)[8][4]) {
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            bits |= __float_as_uint(s[n][e]);
    return __uint_as_float(bits);
}
__device__ static inline float pair_dot(uint32_t a, uint32_t b) {
    struct bf16 a0 = {(uint16_t)a}, a1 = {(uint16_t)(a >> 16)}, b0 = {(uint16_t)b},
                b1 = {(uint16_t)(b >> 16)};
    return wide(a0) * wide(b0) + wide(a1) * wide(b1);
}

// Own: Q, dO. Stream: K, V. Writes delta (B, heads, T) for wgmma_bwd_kv, which runs next.
template <int HD>
__global__ void __launch_bounds__(Plan<HD>::bwd_q *GROUP, Plan<HD>::bwd_q_blocks)
    wgmma_bwd_q(struct wgmma_job J, bf16 *dq, const bf16 *dout, const bf16 *out, int ldo,
                const float *lse, float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk,
                const bf16 *v, int ldv, const float *cos_sin) {
    KERN_DYNAMIC_SHARED(room);
    const int GROUPS = Plan<HD>::bwd_q, BLOCK = GROUPS * TILE_ROWS, SIDE = Rows<HD>::size;
    const bool LATE = Plan<HD>::late;
    bf16 *slots = reinterpret_cast<bf16 *>(tiles_from(room));
    const tile_ref tile0 = tile_refer(slots);
    int i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK;
    struct place p = place_of<HD>(i0);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, p.b);
    size_t first = (size_t)p.b * J.T, line = ((size_t)p.b * J.n_heads + p.h) * J.T;
    int tiles = (attn_keys_end(m, i0, BLOCK) + TILE_ROWS - 1) / TILE_ROWS;
    struct stream next_k = stream_of(k + first * ldk + (size_t)(p.h / J.group) * HD, ldk, 0, J.T),
                  next_v = stream_of(v + first * ldv + (size_t)(p.h / J.group) * HD, ldv, 0, J.T);
    auto bring = [&](int t) {
        bf16 *to = slots + t % SLOTS * 2 * SIDE;
        if (t < tiles) {
            bring_rows<HD, GROUPS>(to, next_k);
            bring_rows<HD, GROUPS>(to + SIDE, next_v);
            stream_on(next_k, TILE_ROWS);
            stream_on(next_v, TILE_ROWS);
        }
        cp_async_commit();
    };
    auto arrive = [&](int t) {
        cp_async_wait<1>();
        fence_tiles();
        __syncthreads();
        bring(t + 2);
    };
    auto of = [&](const bf16 *x, int ld) { return x + first * ld + (size_t)p.h * HD; };
    bf16 *own_at = slots + SLOTS * 2 * SIDE; // after the slots: own Q, dO, O
    uint32_t queries[HD / 16][4], grads[HD / 16][4], outs[HD / 16][4], slopes[4][4];
    if (LATE) {
        bring_own<HD, GROUPS>(own_at, of(q, ldq), ldq, i0, J.T);
        bring_own<HD, GROUPS>(own_at + GROUPS * SIDE, of(dout, ldo), ldo, i0, J.T);
        bring_own<HD, GROUPS>(own_at + 2 * GROUPS * SIDE, of(out, ldo), ldo, i0, J.T);
    }
    bring(0);
    bring(1);
    if (LATE) {
        arrive(0);
        own_rows<HD>(queries, own_at);
        own_rows<HD>(grads, own_at + GROUPS * SIDE);
        own_rows<HD>(outs, own_at + 2 * GROUPS * SIDE);
    } else {
        own_rows(queries, of(q, ldq), ldq, p.row, J.T);
        own_rows(grads, of(dout, ldo), ldo, p.row, J.T);
        own_rows(outs, of(out, ldo), ldo, p.row, J.T);
    }
    float c = J.scale * LOG2_E, l[2] = {0, 0}, dl[2] = {0, 0}, acc[HD / 8][4] = {{0}}, s[8][4],
          dp[8][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int n = 0; n < HD / 16; n++)
            dl[i % 2] += pair_dot(grads[n][i], outs[n][i]); // sums of dO * O over each row
#pragma unroll
    for (int e = 0; e < 2; e++) {
        dl[e] = row_sum(dl[e]);
        if (p.row + 8 * e < J.T) {
            l[e] = lse[line + p.row + 8 * e] * LOG2_E;
            if (p.col == 0)
                delta[line + p.row + 8 * e] = dl[e];
        }
    }
    auto slot = [&](int t) { return tile_on(tile0, t % SLOTS * 2 * SIDE); };
    auto mask = [&](int j0) {
        if (!attn_all_seen(m, p.mine, TILE_ROWS, j0, TILE_ROWS))
            hide<TILE_ROWS>(s, m, p.row, j0 + p.col, 0.0f);
    };
    if constexpr (LATE) {
        int last = 0;
        auto both = [&](tile_ref keys) {
            wgmma_fence();
            scores<HD>(s, queries, keys);
            wgmma_commit();
            scores<HD>(dp, grads, tile_on(keys, SIDE));
            wgmma_commit();
        };
        auto weights = [&]() {
            wgmma_pin(s);
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] = fast_exp2(s[n][e] * c - l[e / 2]);
        };
        auto gradients = [&]() {
            wgmma_pin(dp);
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] *= dp[n][e] - dl[e / 2];
        };
        both(slot(0));
        wgmma_wait<1>();
        weights();
        wgmma_wait<0>();
        gradients();
        mask(0);
        pack_rows(slopes, s);
        for (int t = 1; t < tiles; t++) {
            arrive(t);
            if (attn_none_seen(m, p.mine, TILE_ROWS, t * TILE_ROWS))
                continue;
            both(slot(t));
            add_rows<HD>(acc, slopes, slot(t - 1));
            wgmma_commit();
            wgmma_wait<2>();
            weights();
            wgmma_wait_behind<1>(all_of(s));
            gradients();
            mask(t * TILE_ROWS);
            wgmma_wait<0>();
            wgmma_pin(s); // the product has read the registers that pack_rows writes
            pack_rows(slopes, s);
            last = t;
        }
        wgmma_fence();
        add_rows<HD>(acc, slopes, slot(last));
        wgmma_commit();
    } else {
        for (int t = 0; t < tiles; t++) {
            arrive(t);
            tile_ref keys = slot(t), values = tile_on(keys, SIDE);
            if (attn_none_seen(m, p.mine, TILE_ROWS, t * TILE_ROWS)) {
                wgmma_wait<0>();
                continue;
            }
            wgmma_fence();
            scores<HD>(s, queries, keys);
            scores<HD>(dp, grads, values);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(s);
            wgmma_pin(dp);
            wgmma_pin(acc);
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] = fast_exp2(s[n][e] * c - l[e / 2]) * (dp[n][e] - dl[e / 2]);
            mask(t * TILE_ROWS);
            pack_rows(slopes, s);
            wgmma_fence();
            add_rows<HD>(acc, slopes, keys);
            wgmma_commit();
            // Other blocks run during this wait. After it, no product reads slopes, so slopes take
            // no registers beside the next tile's s and dp, and three blocks fit.
            wgmma_wait<0>();
            wgmma_pin(acc);
        }
    }
    cp_async_wait<0>();
    wgmma_wait<0>();
    wgmma_pin(acc);
    if (cos_sin)
        turn_back<HD>(acc, cos_sin, p.row, J.T);
    __syncthreads();
    write_rows<HD>(dq + first * ldq + (size_t)p.h * HD, ldq, p.warp_row, J.T, acc, J.scale, J.scale,
                   slots);
}

// Own: K, V. Stream: Q and dO with their lse and delta, of all query heads that read this key-value
// head.
template <int HD>
__global__ void __launch_bounds__(Plan<HD>::bwd_kv *GROUP, Plan<HD>::bwd_kv_blocks)
    wgmma_bwd_kv(struct wgmma_job J, bf16 *dk, bf16 *dv, const bf16 *dout, int ldo,
                 const float *lse, const float *delta, const bf16 *q, int ldq, const bf16 *k,
                 int ldk, const bf16 *v, int ldv, const float *cos_sin) {
    KERN_DYNAMIC_SHARED(room);
    const int GROUPS = Plan<HD>::bwd_kv, BLOCK = GROUPS * TILE_ROWS, SIDE = Rows<HD>::size;
    const bool LATE = Plan<HD>::late;
    bf16 *slots = reinterpret_cast<bf16 *>(tiles_from(room));
    const tile_ref tile0 = tile_refer(slots);
    // After the slots: own K and V, if they are not in registers; then lse and delta (SLOTS, 2,
    // TILE_ROWS).
    bf16 *own = slots + SLOTS * 2 * SIDE;
    float *stats = reinterpret_cast<float *>(own + (LATE ? GROUPS * 2 * SIDE : 0));
    int j0 = (int)blockIdx.x * BLOCK;
    struct place p = place_of<HD>(j0);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, p.b);
    size_t first = (size_t)p.b * J.T;
    int from = attn_queries_start(m, j0) / TILE_ROWS,
        a_head = (J.T + TILE_ROWS - 1) / TILE_ROWS - from, tiles = a_head * J.group;
    // The tiles of one head come first, from its tile `from` on. Then follow those of the next
    // head. next_at: index of the tile that is copied next, within its head and counted from
    // `from`.
    int next_at = 0, of_stats = (int)threadIdx.x % TILE_ROWS;
    struct stream next_q = stream_of(q + first * ldq + (size_t)p.h * J.group * HD, ldq,
                                     from * TILE_ROWS, J.T),
                  next_do = stream_of(dout + first * ldo + (size_t)p.h * J.group * HD, ldo,
                                      from * TILE_ROWS, J.T);
    const float *next_stats = (threadIdx.x < TILE_ROWS ? lse : delta) +
                              ((size_t)p.b * J.n_heads + (size_t)p.h * J.group) * J.T +
                              from * TILE_ROWS + of_stats;
    int left_stats = J.T - from * TILE_ROWS - of_stats;
    auto bring = [&](int t) {
        bf16 *to = slots + t % SLOTS * 2 * SIDE;
        if (t < tiles) {
            bring_rows<HD, GROUPS>(to, next_q);
            bring_rows<HD, GROUPS>(to + SIDE, next_do);
            if (threadIdx.x < 2 * TILE_ROWS)
                cp_async4(stats + t % SLOTS * 2 * TILE_ROWS + threadIdx.x, next_stats,
                          left_stats > 0);
            int rows = TILE_ROWS;
            if (++next_at == a_head) { // on to the next head
                next_at = 0;
                rows -= a_head * TILE_ROWS;
                next_q.x += HD;
                next_do.x += HD;
                next_stats += J.T;
            }
            stream_on(next_q, rows);
            stream_on(next_do, rows);
            next_stats += rows;
            left_stats -= rows;
        }
        cp_async_commit();
    };
    auto of = [&](const bf16 *x, int ld) { return x + first * ld + (size_t)p.h * HD; };
    if (LATE) {
        bring_own<HD, GROUPS>(own, of(k, ldk), ldk, j0, J.T);
        bring_own<HD, GROUPS>(own + GROUPS * SIDE, of(v, ldv), ldv, j0, J.T);
    }
    bring(0);
    bring(1);
    uint32_t keys[HD / 16][4], values[HD / 16][4], weights[4][4], slopes[4][4];
    if (!LATE) {
        own_rows(keys, of(k, ldk), ldk, p.row, J.T);
        own_rows(values, of(v, ldv), ldv, p.row, J.T);
    }
    // this group's K, counted in SIDEs from tile0
    const int own_tile = SLOTS * 2 + (p.mine - j0) / TILE_ROWS;
    const tile_ref keys_at = tile_on(tile0, own_tile * SIDE),
                   values_at = tile_on(keys_at, GROUPS * SIDE);
    float c = J.scale * LOG2_E, acc_k[HD / 8][4] = {{0}}, acc_v[HD / 8][4] = {{0}}, s[8][4],
          dp[8][4];
    int at = 0; // index of the tile within its head
    for (int t = 0; t < tiles; t++) {
        cp_async_wait<1>();
        fence_tiles();
        __syncthreads();
        bring(t + 2);
        tile_ref queries = tile_on(tile0, t % SLOTS * 2 * SIDE), grads = tile_on(queries, SIDE);
        const float *l = stats + t % SLOTS * 2 * TILE_ROWS + p.col, *dl = l + TILE_ROWS;
        int i0 = (from + at) * TILE_ROWS;
        at = at + 1 == a_head ? 0 : at + 1;
        if (attn_none_seen(m, i0, TILE_ROWS, p.mine)) { // no query sees this group's keys
            wgmma_wait<0>();
            continue;
        }
        wgmma_fence();
        if (LATE) {
            bool all = attn_all_seen(m, i0, TILE_ROWS, p.mine, TILE_ROWS);
            scores<HD>(s, keys_at, queries);
            wgmma_commit();
            scores<HD>(dp, values_at, grads);
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_pin(s);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float lw[2]; // for this lane's two queries
                load<float, 2>(lw, l + n * 8);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[n][e] = fast_exp2(s[n][e] * c - lw[e % 2] * LOG2_E);
            }
            if (!all)
                hide_queries<TILE_ROWS>(m, p.row, i0 + p.col, s);
            pack_rows(weights, s);
            wgmma_fence();
            add_rows<HD>(acc_v, weights, grads);
            wgmma_commit();
            wgmma_wait<1>();
            wgmma_pin(dp);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float dw[2];
                load<float, 2>(dw, dl + n * 8);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    dp[n][e] = s[n][e] * (dp[n][e] - dw[e % 2]);
            }
            if (!all)
                hide_queries<TILE_ROWS>(m, p.row, i0 + p.col, dp);
            pack_rows(slopes, dp);
            wgmma_fence();
            add_rows<HD>(acc_k, slopes, queries);
            wgmma_commit();
            wgmma_wait<1>();
        } else {
            scores<HD>(s, keys, queries);
            scores<HD>(dp, values, grads);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_pin(s);
            wgmma_pin(dp);
            wgmma_pin(acc_k);
            wgmma_pin(acc_v);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float lw[2], dw[2]; // for this lane's two queries
                load<float, 2>(lw, l + n * 8);
                load<float, 2>(dw, dl + n * 8);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[n][e] = fast_exp2(s[n][e] * c - lw[e % 2] * LOG2_E);
                    dp[n][e] = s[n][e] * (dp[n][e] - dw[e % 2]);
                }
            }
            if (!attn_all_seen(m, i0, TILE_ROWS, p.mine, TILE_ROWS))
                hide_queries<TILE_ROWS>(m, p.row, i0 + p.col, s, dp);
            pack_rows(weights, s);
            pack_rows(slopes, dp);
            wgmma_fence();
            add_rows<HD>(acc_v, weights, grads);
            add_rows<HD>(acc_k, slopes, queries);
            wgmma_commit();
        }
    }
    cp_async_wait<0>();
    wgmma_wait<0>();
    wgmma_pin(acc_k);
    wgmma_pin(acc_v);
    if (cos_sin)
        turn_back<HD>(acc_k, cos_sin, p.row, J.T);
    __syncthreads();
    write_rows<HD>(dk + first * ldk + (size_t)p.h * HD, ldk, p.warp_row, J.T, acc_k, J.scale,
                   J.scale, slots);
    write_rows<HD>(dv + first * ldv + (size_t)p.h * HD, ldv, p.warp_row, J.T, acc_v, 1.0f, 1.0f,
                   slots);
}

// ---- launches

bool kern_cu_attn_wgmma_takes(const struct kern_attn *a, const void *const p[], int n_p,
                              const int ld[], int n_ld) {
    return (a->head_dim == 64 || a->head_dim == 128) && kern_cu_attn_mma_takes(a, p, n_p, ld, n_ld);
}

static dim3 grid_of(const struct kern_attn *a, int groups, int heads) {
    int block = groups * TILE_ROWS;
    return dim3((unsigned)((a->T + block - 1) / block), (unsigned)heads, (unsigned)a->B);
}
static cudaError_t shared_for(const void *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
// Bytes of the slots, and of the own rows of `own` matrices after them.
template <int HD> static size_t tiles_bytes(int groups, int own) {
    int sides = SLOTS * 2 + (Plan<HD>::late ? groups * own : 0);
    return TILE_ALIGN + (size_t)sides * Rows<HD>::size * sizeof(bf16);
}
template <int HD>
static cudaError_t fwd_hd(const struct kern_attn *a, bf16 *out, int ldo, float *lse, const bf16 *q,
                          int ldq, const bf16 *k, int ldk, const bf16 *v, int ldv, cudaStream_t s) {
    const size_t shared = tiles_bytes<HD>(Plan<HD>::fwd, 1);
    cudaError_t e = shared_for((const void *)wgmma_fwd<HD>, shared);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(wgmma_fwd<HD>, grid_of(a, Plan<HD>::fwd, a->n_heads), Plan<HD>::fwd * GROUP, shared,
                s, job_of(a), out, ldo, lse, q, ldq, k, ldk, v, ldv);
    return cudaGetLastError();
}
template <int HD>
static cudaError_t bwd_hd(const struct kern_attn *a, bf16 *dq, bf16 *dk, bf16 *dv, const bf16 *dout,
                          const bf16 *out, int ldo, const float *lse, float *delta, const bf16 *q,
                          int ldq, const bf16 *k, int ldk, const bf16 *v, int ldv,
                          const float *cos_sin, cudaStream_t s) {
    const size_t for_q = tiles_bytes<HD>(Plan<HD>::bwd_q, 3),
                 for_kv =
                     tiles_bytes<HD>(Plan<HD>::bwd_kv, 2) + SLOTS * 2 * TILE_ROWS * sizeof(float);
    cudaError_t e = shared_for((const void *)wgmma_bwd_q<HD>, for_q);
    if (e == cudaSuccess)
        e = shared_for((const void *)wgmma_bwd_kv<HD>, for_kv);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(wgmma_bwd_q<HD>, grid_of(a, Plan<HD>::bwd_q, a->n_heads), Plan<HD>::bwd_q * GROUP,
                for_q, s, job_of(a), dq, dout, out, ldo, lse, delta, q, ldq, k, ldk, v, ldv,
                cos_sin);
    KERN_LAUNCH(wgmma_bwd_kv<HD>, grid_of(a, Plan<HD>::bwd_kv, a->n_kv_heads),
                Plan<HD>::bwd_kv * GROUP, for_kv, s, job_of(a), dk, dv, dout, ldo, lse, delta, q,
                ldq, k, ldk, v, ldv, cos_sin);
    return cudaGetLastError();
}

cudaError_t kern_cu_attn_fwd_wgmma(const struct kern_attn *a, void *out, int ldo, float *lse,
                                   const void *q, int ldq, const void *k, int ldk, const void *v,
                                   int ldv, cudaStream_t s) {
    const bf16 *qb = (const bf16 *)q, *kb = (const bf16 *)k, *vb = (const bf16 *)v;
    bf16 *to = (bf16 *)out;
    switch (a->head_dim) {
    case 64: return fwd_hd<64>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    case 128: return fwd_hd<128>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t kern_cu_attn_bwd_wgmma(const struct kern_attn *a, void *dq, void *dk, void *dv,
                                   const void *dout, const void *out, int ldo, const float *lse,
                                   const void *q, int ldq, const void *k, int ldk, const void *v,
                                   int ldv, float *delta, const float *cos_sin, cudaStream_t s) {
    const bf16 *qb = (const bf16 *)q, *kb = (const bf16 *)k, *vb = (const bf16 *)v,
               *gb = (const bf16 *)dout, *ob = (const bf16 *)out;
    bf16 *gq = (bf16 *)dq, *gk = (bf16 *)dk, *gv = (bf16 *)dv;
    switch (a->head_dim) {
    case 64:
        return bwd_hd<64>(a, gq, gk, gv, gb, ob, ldo, lse, delta, qb, ldq, kb, ldk, vb, ldv,
                          cos_sin, s);
    case 128:
        return bwd_hd<128>(a, gq, gk, gv, gb, ob, ldo, lse, delta, qb, ldq, kb, ldk, vb, ldv,
                           cos_sin, s);
    default: return cudaErrorInvalidValue;
    }
}
