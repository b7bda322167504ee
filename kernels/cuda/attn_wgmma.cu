// Attention in bf16 with Hopper's tensor-core instructions (attn_wgmma.cuh), head_dim 64: what attn_mma.cu does, where a multiprocessor can do
// it in half the time. Compiled for compute capability 9.0 alone, which open.c asks for.
//
// A block of two warp groups owns 128 rows, 64 each, and walks through tiles of 64 rows of the other side, which arrive in shared memory
// two tiles ahead by asynchronous copies. Own rows are in registers for all of it:
//
//     fwd     owns queries      streams K, V      S = Q K^T, online softmax, O += P V
//     bwd_q   owns queries      streams K, V      S, dP = dO V^T, dS = P (dP - delta), dQ += dS K; also delta = rowsum(dO * O)
//     bwd_kv  owns keys         streams Q, dO     S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//
// As there, backward computes S twice and no kernel adds to another's output. A warp's accumulators are those of mma.m16n8k16, so what is done
// to them is attn_tiles.cuh's.
//
// Products run in the background. The last of a tile are not waited for: they go on while the next tile is awaited, and end with its scores.
// So a slot is filled again two tiles after its own, behind the barrier that all warps pass after that wait:
//
//     tile t:   wait for its copy, barrier, ask for tile t + 2 (slot of t - 2), S (t), wait for S (t) and what is left of t - 1, …
//
// SLOTS is four of them: t - 1 and t are read, t + 1 and t + 2 are on their way.
#include "kernels/cuda/attn_tiles.cuh"
#include "kernels/cuda/attn_wgmma.cuh"
#include "kernels/cuda/launch.h"

enum {
    HD = TILE_COLUMNS,
    GROUPS = 2,
    BLOCK = GROUPS * TILE_ROWS,
    BLOCK_THREADS = GROUPS * 128,
    SLOTS = 4
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

// 64 rows from `first` on of x into a tile; zeros at and beyond T.
__device__ static inline void bring_tile(bf16 *tile, const bf16 *x, int ld, int first, int T) {
    const int at_once = BLOCK_THREADS / 8;
    int row = (int)threadIdx.x / 8, c = (int)threadIdx.x % 8 * 8;
#pragma unroll
    for (int r = 0; r < TILE_ROWS; r += at_once) {
        bool valid = first + row + r < T;
        cp_async16(tile + tile_at(row + r, c), x + (size_t)(valid ? first + row + r : 0) * ld + c,
                   valid);
    }
}

// A warp's own 16 rows of x as A: row is this lane's first. Zeros at and beyond T.
__device__ static inline void own_rows(uint32_t (&a)[4][4], const bf16 *x, int ld, int row, int T) {
    int col = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i % 2 * 8;
            a[k][i] = r < T ? *reinterpret_cast<const uint32_t *>(x + (size_t)r * ld + k * 16 +
                                                                  i / 2 * 8 + col)
                            : 0;
        }
}

// What a second product reads: accumulators, as A.
__device__ static inline void pack_rows(uint32_t (&a)[4][4], const float (&p)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        a[k][0] = pack_bf16(p[2 * k][0], p[2 * k][1]);
        a[k][1] = pack_bf16(p[2 * k][2], p[2 * k][3]);
        a[k][2] = pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]);
        a[k][3] = pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3]);
    }
}

// s (64 own rows, 64 rows of the tile) = own tile^T
__device__ static inline void scores(float (&s)[8][4], const uint32_t (&own)[4][4],
                                     const bf16 *tile) {
    wgmma_64_64_16<false, true>(s, own[0], tile);
#pragma unroll
    for (int k = 1; k < 4; k++)
        wgmma_64_64_16<false, false>(s, own[k], tile + k * 16);
}
// acc (64 own rows, head_dim) += p tile
__device__ static inline void add_rows(float (&acc)[8][4], const uint32_t (&p)[4][4],
                                       const bf16 *tile) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_64_64_16<true, false>(acc, p[k], tile + k * 16 * TILE_COLUMNS);
}

// Where a thread is.
struct place {
    int mine, row, col, h,
        b; // mine: its group's first row; row: its own first; col: of accumulators and of A
};
__device__ static inline struct place place_of(int first) {
    int group = (int)threadIdx.x / 128, warp = (int)threadIdx.x / WARP % 4,
        lane = (int)threadIdx.x % WARP;
    struct place p;
    p.mine = first + group * TILE_ROWS;
    p.row = p.mine + warp * 16 + lane / 4;
    p.col = lane % 4 * 2;
    p.h = (int)blockIdx.y;
    p.b = (int)blockIdx.z;
    return p;
}

// grid: (blocks of queries, heads, B). The longest rows of a causal mask come first.
__global__ void __launch_bounds__(BLOCK_THREADS, 2)
    fwd_64(struct wgmma_job J, bf16 *out, int ldo, float *lse, const bf16 *q, int ldq,
           const bf16 *k, int ldk, const bf16 *v, int ldv) {
    KERN_DYNAMIC_SHARED(room);
    bf16 *slots = reinterpret_cast<bf16 *>(tiles_from(room));
    int i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK;
    struct place p = place_of(i0);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, p.b);
    size_t first = (size_t)p.b * J.T;
    const bf16 *kh = k + first * ldk + (size_t)(p.h / J.group) * HD,
               *vh = v + first * ldv + (size_t)(p.h / J.group) * HD;
    int tiles = (attn_keys_end(m, i0, BLOCK) + TILE_ROWS - 1) / TILE_ROWS;
    auto bring = [&](int t) {
        bf16 *to = slots + t % SLOTS * 2 * TILE;
        if (t < tiles) {
            bring_tile(to, kh, ldk, t * TILE_ROWS, J.T);
            bring_tile(to + TILE, vh, ldv, t * TILE_ROWS, J.T);
        }
        cp_async_commit(); // an empty group at the end, so that the count below is right
    };
    bring(0);
    bring(1);
    uint32_t own[4][4], weights[4][4];
    own_rows(own, q + first * ldq + (size_t)p.h * HD, ldq, p.row, J.T);
    float acc[8][4] = {{0}}, s[8][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0},
          c = J.scale * LOG2_E; // scores in powers of two
    for (int t = 0; t < tiles; t++) {
        cp_async_wait<1>();
        fence_tiles();
        __syncthreads();
        bring(t + 2);
        const bf16 *keys = slots + t % SLOTS * 2 * TILE, *values = keys + TILE;
        int j0 = t * TILE_ROWS;
        if (attn_none_seen(m, p.mine, TILE_ROWS, j0)) { // by this group; nor any later one
            wgmma_wait(); // for what is left of t - 1, whose slot is the next but one to be filled
            continue;
        }
        wgmma_fence();
        scores(s, own, keys);
        wgmma_commit();
        wgmma_wait();
        wgmma_settled(s);
        wgmma_settled(acc);
        if (!attn_all_seen(m, p.mine, TILE_ROWS, j0, TILE_ROWS))
            hide<TILE_ROWS>(s, m, p.row, j0 + p.col, -INFINITY);
        soften<HD, TILE_ROWS>(s, acc, max, sum, c);
        pack_rows(weights, s);
        wgmma_settled(acc);
        wgmma_fence();
        add_rows(acc, weights, values);
        wgmma_commit();
    }
    cp_async_wait<0>();
    wgmma_wait();
    wgmma_settled(acc);
    float sum0 = row_sum(sum[0]), sum1 = row_sum(sum[1]);
    write_out<HD>(out + first * ldo + (size_t)p.h * HD, ldo, p.row, J.T, acc, 1.0f / sum0,
                  1.0f / sum1);
    float *to = lse + ((size_t)p.b * J.n_heads + p.h) * J.T;
    if (p.col == 0 && p.row < J.T)
        to[p.row] = max[0] * J.scale + logf(sum0);
    if (p.col == 0 && p.row + 8 < J.T)
        to[p.row + 8] = max[1] * J.scale + logf(sum1);
}

__device__ static inline float pair_dot(uint32_t a, uint32_t b) {
    struct bf16 a0 = {(uint16_t)a}, a1 = {(uint16_t)(a >> 16)}, b0 = {(uint16_t)b},
                b1 = {(uint16_t)(b >> 16)};
    return wide(a0) * wide(b0) + wide(a1) * wide(b1);
}

// Own: Q, dO. Stream: K, V. delta (B, heads, T) is written for bwd_kv_64, which comes behind.
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    bwd_q_64(struct wgmma_job J, bf16 *dq, const bf16 *dout, const bf16 *out, int ldo,
             const float *lse, float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk,
             const bf16 *v, int ldv, const float *cos_sin) {
    KERN_DYNAMIC_SHARED(room);
    bf16 *slots = reinterpret_cast<bf16 *>(tiles_from(room));
    int i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK;
    struct place p = place_of(i0);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, p.b);
    size_t first = (size_t)p.b * J.T, line = ((size_t)p.b * J.n_heads + p.h) * J.T;
    const bf16 *kh = k + first * ldk + (size_t)(p.h / J.group) * HD,
               *vh = v + first * ldv + (size_t)(p.h / J.group) * HD;
    int tiles = (attn_keys_end(m, i0, BLOCK) + TILE_ROWS - 1) / TILE_ROWS;
    auto bring = [&](int t) {
        bf16 *to = slots + t % SLOTS * 2 * TILE;
        if (t < tiles) {
            bring_tile(to, kh, ldk, t * TILE_ROWS, J.T);
            bring_tile(to + TILE, vh, ldv, t * TILE_ROWS, J.T);
        }
        cp_async_commit();
    };
    bring(0);
    bring(1);
    uint32_t queries[4][4], grads[4][4], slopes[4][4];
    own_rows(queries, q + first * ldq + (size_t)p.h * HD, ldq, p.row, J.T);
    own_rows(grads, dout + first * ldo + (size_t)p.h * HD, ldo, p.row, J.T);
    own_rows(slopes, out + first * ldo + (size_t)p.h * HD, ldo, p.row, J.T); // for delta
    float c = J.scale * LOG2_E, l[2] = {0, 0}, dl[2] = {0, 0}, acc[8][4] = {{0}}, s[8][4], dp[8][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            dl[i % 2] += pair_dot(grads[n][i], slopes[n][i]);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        dl[e] = row_sum(dl[e]);
        if (p.row + 8 * e < J.T) {
            l[e] = lse[line + p.row + 8 * e] * LOG2_E;
            if (p.col == 0)
                delta[line + p.row + 8 * e] = dl[e];
        }
    }
    for (int t = 0; t < tiles; t++) {
        cp_async_wait<1>();
        fence_tiles();
        __syncthreads();
        bring(t + 2);
        const bf16 *keys = slots + t % SLOTS * 2 * TILE, *values = keys + TILE;
        int j0 = t * TILE_ROWS;
        if (attn_none_seen(m, p.mine, TILE_ROWS, j0)) {
            wgmma_wait();
            continue;
        }
        wgmma_fence();
        scores(s, queries, keys);
        scores(dp, grads, values);
        wgmma_commit();
        wgmma_wait();
        wgmma_settled(s);
        wgmma_settled(dp);
        wgmma_settled(acc);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = fast_exp2(s[n][e] * c - l[e / 2]) * (dp[n][e] - dl[e / 2]);
        if (!attn_all_seen(m, p.mine, TILE_ROWS, j0, TILE_ROWS))
            hide<TILE_ROWS>(s, m, p.row, j0 + p.col, 0.0f);
        pack_rows(slopes, s);
        wgmma_fence();
        add_rows(acc, slopes, keys);
        wgmma_commit();
    }
    cp_async_wait<0>();
    wgmma_wait();
    wgmma_settled(acc);
    if (cos_sin)
        turn_back<HD>(acc, cos_sin, p.row, J.T);
    write_out<HD>(dq + first * ldq + (size_t)p.h * HD, ldq, p.row, J.T, acc, J.scale, J.scale);
}

// Own: K, V. Stream: Q, dO with their lse and delta, of all query heads that read this key/value head.
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    bwd_kv_64(struct wgmma_job J, bf16 *dk, bf16 *dv, const bf16 *dout, int ldo, const float *lse,
              const float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk, const bf16 *v,
              int ldv, const float *cos_sin) {
    KERN_DYNAMIC_SHARED(room);
    bf16 *slots = reinterpret_cast<bf16 *>(tiles_from(room));
    float *stats =
        reinterpret_cast<float *>(slots + SLOTS * 2 * TILE); // (SLOTS, 2, TILE_ROWS): lse, delta
    int j0 = (int)blockIdx.x * BLOCK;
    struct place p = place_of(j0);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, p.b);
    size_t first = (size_t)p.b * J.T;
    int from = attn_queries_start(m, j0) / TILE_ROWS,
        a_head = (J.T + TILE_ROWS - 1) / TILE_ROWS - from, tiles = a_head * J.group;
    // Tile t: head h * group + t / a_head, queries from (from + t % a_head) * TILE_ROWS on.
    auto bring = [&](int t) {
        bf16 *to = slots + t % SLOTS * 2 * TILE;
        float *at = stats + t % SLOTS * 2 * TILE_ROWS;
        if (t < tiles) {
            int h = p.h * J.group + t / a_head, i0 = (from + t % a_head) * TILE_ROWS,
                i = (int)threadIdx.x % TILE_ROWS;
            size_t line = ((size_t)p.b * J.n_heads + h) * J.T;
            bool valid = i0 + i < J.T;
            bring_tile(to, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
            bring_tile(to + TILE, dout + first * ldo + (size_t)h * HD, ldo, i0, J.T);
            if (threadIdx.x < 2 * TILE_ROWS)
                cp_async4(at + threadIdx.x,
                          (threadIdx.x < TILE_ROWS ? lse : delta) + line + (valid ? i0 + i : 0),
                          valid);
        }
        cp_async_commit();
    };
    bring(0);
    bring(1);
    uint32_t keys[4][4], values[4][4], weights[4][4], slopes[4][4];
    own_rows(keys, k + first * ldk + (size_t)p.h * HD, ldk, p.row, J.T);
    own_rows(values, v + first * ldv + (size_t)p.h * HD, ldv, p.row, J.T);
    float c = J.scale * LOG2_E, acc_k[8][4] = {{0}}, acc_v[8][4] = {{0}}, s[8][4], dp[8][4];
    for (int t = 0; t < tiles; t++) {
        cp_async_wait<1>();
        fence_tiles();
        __syncthreads();
        bring(t + 2);
        const bf16 *queries = slots + t % SLOTS * 2 * TILE, *grads = queries + TILE;
        const float *l = stats + t % SLOTS * 2 * TILE_ROWS + p.col, *dl = l + TILE_ROWS;
        int i0 = (from + t % a_head) * TILE_ROWS;
        if (attn_none_seen(m, i0, TILE_ROWS, p.mine)) { // of this group's keys
            wgmma_wait();
            continue;
        }
        wgmma_fence();
        scores(s, keys, queries);
        scores(dp, values, grads);
        wgmma_commit();
        wgmma_wait();
        wgmma_settled(s);
        wgmma_settled(dp);
        wgmma_settled(acc_k);
        wgmma_settled(acc_v);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float lw[2], dw[2]; // of this lane's two queries
            load<float, 2>(lw, l + n * 8);
            load<float, 2>(dw, dl + n * 8);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = fast_exp2(s[n][e] * c - lw[e % 2] * LOG2_E);
                dp[n][e] = s[n][e] * (dp[n][e] - dw[e % 2]);
            }
        }
        if (!attn_all_seen(m, i0, TILE_ROWS, p.mine, TILE_ROWS))
            hide_queries<TILE_ROWS>(s, dp, m, p.row, i0 + p.col);
        pack_rows(weights, s);
        pack_rows(slopes, dp);
        wgmma_fence();
        add_rows(acc_v, weights, grads);
        add_rows(acc_k, slopes, queries);
        wgmma_commit();
    }
    cp_async_wait<0>();
    wgmma_wait();
    wgmma_settled(acc_k);
    wgmma_settled(acc_v);
    if (cos_sin)
        turn_back<HD>(acc_k, cos_sin, p.row, J.T);
    write_out<HD>(dk + first * ldk + (size_t)p.h * HD, ldk, p.row, J.T, acc_k, J.scale, J.scale);
    write_out<HD>(dv + first * ldv + (size_t)p.h * HD, ldv, p.row, J.T, acc_v, 1.0f, 1.0f);
}

// ---- launches -------------------------------------------------------------------------------------------------

bool kern_cu_attn_wgmma_takes(const struct kern_attn *a, const void *const p[], int n_p,
                              const int ld[], int n_ld) {
    return a->head_dim == HD && kern_cu_attn_mma_takes(a, p, n_p, ld, n_ld);
}

static dim3 grid_of(const struct kern_attn *a, int heads) {
    return dim3((unsigned)((a->T + BLOCK - 1) / BLOCK), (unsigned)heads, (unsigned)a->B);
}
static const size_t tiles_bytes = TILE_ALIGN + SLOTS * 2 * TILE * sizeof(bf16),
                    stats_bytes = SLOTS * 2 * TILE_ROWS * sizeof(float);
static cudaError_t shared_for(const void *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

cudaError_t kern_cu_attn_fwd_wgmma(const struct kern_attn *a, void *out, int ldo, float *lse,
                                   const void *q, int ldq, const void *k, int ldk, const void *v,
                                   int ldv, cudaStream_t s) {
    cudaError_t e = shared_for((const void *)fwd_64, tiles_bytes);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(fwd_64, grid_of(a, a->n_heads), BLOCK_THREADS, tiles_bytes, s, job_of(a),
                (bf16 *)out, ldo, lse, (const bf16 *)q, ldq, (const bf16 *)k, ldk, (const bf16 *)v,
                ldv);
    return cudaGetLastError();
}

cudaError_t kern_cu_attn_bwd_wgmma(const struct kern_attn *a, void *dq, void *dk, void *dv,
                                   const void *dout, const void *out, int ldo, const float *lse,
                                   const void *q, int ldq, const void *k, int ldk, const void *v,
                                   int ldv, float *delta, const float *cos_sin, cudaStream_t s) {
    const size_t for_kv = tiles_bytes + stats_bytes;
    cudaError_t e = shared_for((const void *)bwd_q_64, tiles_bytes);
    if (e == cudaSuccess)
        e = shared_for((const void *)bwd_kv_64, for_kv);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(bwd_q_64, grid_of(a, a->n_heads), BLOCK_THREADS, tiles_bytes, s, job_of(a),
                (bf16 *)dq, (const bf16 *)dout, (const bf16 *)out, ldo, lse, delta, (const bf16 *)q,
                ldq, (const bf16 *)k, ldk, (const bf16 *)v, ldv, cos_sin);
    KERN_LAUNCH(bwd_kv_64, grid_of(a, a->n_kv_heads), BLOCK_THREADS, for_kv, s, job_of(a),
                (bf16 *)dk, (bf16 *)dv, (const bf16 *)dout, ldo, lse, (const float *)delta,
                (const bf16 *)q, ldq, (const bf16 *)k, ldk, (const bf16 *)v, ldv, cos_sin);
    return cudaGetLastError();
}
