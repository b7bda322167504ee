// SPDX-License-Identifier: Apache-2.0
// Attention in bf16 on tensor cores, head_dim 32, 64, 96 or 128. Like FlashAttention (arXiv
// 2205.14135, 2307.08691) it never forms a (T, T) matrix. Scores, softmax and sums are fp32;
// products read bf16.
//
// A block of four warps owns rows and walks through tiles of rows of the other side. A warp owns
// one atom of 16 rows, or two atoms at head_dim 64; so a block owns 64 rows, or 128. Tiles arrive
// in shared memory by asynchronous copies, two tiles deep:
//
//   fwd    owns queries  streams K, V   S = Q K^T, online softmax, O += P V
//   bwd_q  owns queries  streams K, V   S, dP = dO V^T, dS = P (dP - delta), dQ += dS K
//   bwd_kv owns keys     streams Q, dO  S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//
// The backward pass computes S twice. In return, no kernel adds to another's output: there are no
// atomics, and the bits are the same every time. A product is (16 own rows) x (columns). Its A
// comes from the own tile. In the second product A is the first one's accumulators, which already
// lie in registers as A needs them:
//
//   accumulator (16, 8), lane l: rows l/4 and l/4 + 8, columns 2(l%4) and 2(l%4) + 1;
//   two neighbouring accumulators make A (16, 16)
//
// Two atoms share each load of a fragment of the other side: 512 bytes of shared memory feed four
// mma instead of two (Cut in attn_tiles.cuh says why).
//
// Rows in shared memory are HD + 8 elements apart, an odd number of 16-byte pieces. So the eight
// rows of an ldmatrix lie in different banks for every HD. Rows beyond T arrive as zeros and are
// masked.
#include "kernels/cuda/attn_tiles.cuh"
#include "kernels/cuda/launch.h"

struct mma_job {
    int T, n_heads, group;
    enum kern_mask kind;
    const int32_t *prefix_len;
    float scale;
};

static struct mma_job job_of(const struct kern_attn *a) {
    struct mma_job j = {a->T,    a->n_heads,    a->n_heads / a->n_kv_heads,
                        a->mask, a->prefix_len, 1.0f / sqrtf((float)a->head_dim)};
    return j;
}

// grid: (blocks of queries, heads, B). Blocks with the longest rows of a causal mask come first.
template <int HD>
__global__ void __launch_bounds__(THREADS)
    fwd(struct mma_job J, bf16 *out, int ldo, float *lse, const bf16 *q, int ldq, const bf16 *k,
        int ldk, const bf16 *v, int ldv) {
    KERN_DYNAMIC_SHARED(room);
    const int ATOMS = Cut<HD>::atoms, BLOCK = Cut<HD>::block, KEYS = Cut<HD>::keys,
              tile = KEYS * (HD + PAD);
    bf16 *own = reinterpret_cast<bf16 *>(room), *stream = own + BLOCK * (HD + PAD);
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, h = (int)blockIdx.y,
        b = (int)blockIdx.z, i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK,
        row = i0 + warp * 16 * ATOMS + lane / 4, col = lane % 4 * 2;
    // The rows for which the mask is checked. With two atoms these are the rows of the warp. With
    // one atom they are the rows of the block, which costs fewer registers.
    int mine = ATOMS > 1 ? row - lane / 4 : i0, n_mine = ATOMS > 1 ? 16 * ATOMS : BLOCK;
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T;
    const bf16 *kh = k + first * ldk + (size_t)(h / J.group) * HD,
               *vh = v + first * ldv + (size_t)(h / J.group) * HD;
    int tiles = (attn_keys_end(m, i0, BLOCK) + KEYS - 1) / KEYS;
    fetch<HD, BLOCK>(own, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
    cp_async_commit();
    fetch<HD, KEYS>(stream, kh, ldk, 0, J.T);
    fetch<HD, KEYS>(stream + tile, vh, ldv, 0, J.T);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    Own<HD, Cut<HD>::keep_fwd> queries[ATOMS];
    float acc[ATOMS][HD / 8][4] = {{{0}}}, max[ATOMS][2], sum[ATOMS][2],
                          c = J.scale * LOG2_E; // scores become exponents of two
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        queries[a].take(own, (warp * ATOMS + a) * 16);
        max[a][0] = max[a][1] = -INFINITY;
        sum[a][0] = sum[a][1] = 0;
    }
    for (int t = 0; t < tiles; t++) {
        bf16 *keys = stream + t % 2 * 2 * tile, *values = keys + tile;
        if (t + 1 < tiles) {
            bf16 *next = stream + (t + 1) % 2 * 2 * tile;
            fetch<HD, KEYS>(next, kh, ldk, (t + 1) * KEYS, J.T);
            fetch<HD, KEYS>(next + tile, vh, ldv, (t + 1) * KEYS, J.T);
        }
        cp_async_commit(); // commits an empty group at the end: the wait below counts groups
        cp_async_wait<1>();
        __syncthreads();
        int j0 = t * KEYS;
        if (ATOMS == 1 || !attn_none_seen(m, mine, n_mine, j0)) { // this warp sees some key
            float s[ATOMS][KEYS / 8][4] = {{{0}}};
            times_transposed<HD, KEYS>(s, queries, keys);
            bool all = attn_all_seen(m, mine, n_mine, j0, KEYS);
#pragma unroll
            for (int a = 0; a < ATOMS; a++) {
                if (!all)
                    hide<KEYS>(s[a], m, row + 16 * a, j0 + col, -INFINITY);
                soften<HD, KEYS>(s[a], acc[a], max[a], sum[a], c);
            }
            times<HD, KEYS>(acc, s, values);
        }
        __syncthreads(); // before the next turn overwrites this tile
    }
    cp_async_wait<0>();
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        float sum0 = row_sum(sum[a][0]), sum1 = row_sum(sum[a][1]);
        int at = row + 16 * a;
        write_out<HD>(out + first * ldo + (size_t)h * HD, ldo, at, J.T, acc[a], 1.0f / sum0,
                      1.0f / sum1);
        float *to = lse + ((size_t)b * J.n_heads + h) * J.T;
        if (lane % 4 == 0 && at < J.T)
            to[at] = max[a][0] * J.scale + logf(sum0);
        if (lane % 4 == 0 && at + 8 < J.T)
            to[at + 8] = max[a][1] * J.scale + logf(sum1);
    }
}

// Own: Q, dO. Stream: K, V.
template <int HD>
__global__ void __launch_bounds__(THREADS)
    bwd_q(struct mma_job J, bf16 *dq, const bf16 *dout, int ldo, const float *lse,
          const float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk, const bf16 *v,
          int ldv, const float *cos_sin) {
    KERN_DYNAMIC_SHARED(room);
    const int ATOMS = Cut<HD>::atoms, BLOCK = Cut<HD>::block, STEP = Cut<HD>::keys_bwd,
              tile = STEP * (HD + PAD);
    bf16 *own_q = reinterpret_cast<bf16 *>(room), *own_do = own_q + BLOCK * (HD + PAD),
         *stream = own_do + BLOCK * (HD + PAD);
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, h = (int)blockIdx.y,
        b = (int)blockIdx.z, i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK,
        row = i0 + warp * 16 * ATOMS + lane / 4, col = lane % 4 * 2;
    // The rows for which the mask is checked, as in fwd.
    int mine = ATOMS > 1 ? row - lane / 4 : i0, n_mine = ATOMS > 1 ? 16 * ATOMS : BLOCK;
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T, stats = ((size_t)b * J.n_heads + h) * J.T;
    const bf16 *kh = k + first * ldk + (size_t)(h / J.group) * HD,
               *vh = v + first * ldv + (size_t)(h / J.group) * HD;
    int tiles = (attn_keys_end(m, i0, BLOCK) + STEP - 1) / STEP;
    fetch<HD, BLOCK>(own_q, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
    fetch<HD, BLOCK>(own_do, dout + first * ldo + (size_t)h * HD, ldo, i0, J.T);
    cp_async_commit();
    fetch<HD, STEP>(stream, kh, ldk, 0, J.T);
    fetch<HD, STEP>(stream + tile, vh, ldv, 0, J.T);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    Own<HD, Cut<HD>::keep_q> queries[ATOMS], grads[ATOMS];
    float c = J.scale * LOG2_E, l[ATOMS][2] = {{0}}, dl[ATOMS][2] = {{0}},
          acc[ATOMS][HD / 8][4] = {{{0}}};
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        queries[a].take(own_q, (warp * ATOMS + a) * 16);
        grads[a].take(own_do, (warp * ATOMS + a) * 16);
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (row + 16 * a + 8 * e < J.T) {
                l[a][e] = lse[stats + row + 16 * a + 8 * e] * LOG2_E;
                dl[a][e] = delta[stats + row + 16 * a + 8 * e];
            }
    }
    for (int t = 0; t < tiles; t++) {
        bf16 *keys = stream + t % 2 * 2 * tile, *values = keys + tile;
        if (t + 1 < tiles) {
            bf16 *next = stream + (t + 1) % 2 * 2 * tile;
            fetch<HD, STEP>(next, kh, ldk, (t + 1) * STEP, J.T);
            fetch<HD, STEP>(next + tile, vh, ldv, (t + 1) * STEP, J.T);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        int j0 = t * STEP;
        if (ATOMS == 1 || !attn_none_seen(m, mine, n_mine, j0)) {
            float s[ATOMS][STEP / 8][4] = {{{0}}}, dp[ATOMS][STEP / 8][4] = {{{0}}};
            times_transposed<HD, STEP>(s, queries, keys);
            times_transposed<HD, STEP>(dp, grads, values);
            bool all = attn_all_seen(m, mine, n_mine, j0, STEP);
#pragma unroll
            for (int a = 0; a < ATOMS; a++) {
#pragma unroll
                for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[a][n][e] =
                            fast_exp2(s[a][n][e] * c - l[a][e / 2]) * (dp[a][n][e] - dl[a][e / 2]);
                if (!all)
                    hide<STEP>(s[a], m, row + 16 * a, j0 + col, 0.0f);
            }
            times<HD, STEP>(acc, s, keys);
        }
        __syncthreads();
    }
    cp_async_wait<0>();
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        if (cos_sin)
            turn_back<HD>(acc[a], cos_sin, row + 16 * a, J.T);
        write_out<HD>(dq + first * ldq + (size_t)h * HD, ldq, row + 16 * a, J.T, acc[a], J.scale,
                      J.scale);
    }
}

// Own: K, V. Stream: Q and dO with their lse and delta, of all query heads that read this key-value
// head.
template <int HD>
__global__ void __launch_bounds__(THREADS)
    bwd_kv(struct mma_job J, bf16 *dk, bf16 *dv, const bf16 *dout, int ldo, const float *lse,
           const float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk, const bf16 *v,
           int ldv, const float *cos_sin) {
    KERN_DYNAMIC_SHARED(room);
    const int ATOMS = Cut<HD>::atoms, BLOCK = Cut<HD>::block, STEP = Cut<HD>::queries,
              tile = STEP * (HD + PAD);
    bf16 *own_k = reinterpret_cast<bf16 *>(room), *own_v = own_k + BLOCK * (HD + PAD),
         *stream = own_v + BLOCK * (HD + PAD);
    // two slots of lse and delta, STEP each
    float *stats = reinterpret_cast<float *>(stream + 4 * tile);
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = (int)blockIdx.y,
        b = (int)blockIdx.z, j0 = (int)blockIdx.x * BLOCK, row = j0 + warp * 16 * ATOMS + lane / 4,
        col = lane % 4 * 2;
    int mine = ATOMS > 1 ? row - lane / 4 : j0, n_mine = ATOMS > 1 ? 16 * ATOMS : BLOCK;
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T;
    int from = attn_queries_start(m, j0) / STEP, a_head = (J.T + STEP - 1) / STEP - from,
        tiles = a_head * J.group;
    // Tile t: head g * group + t / a_head, queries from (from + t % a_head) * STEP on.
    auto bring = [&](int t) {
        int h = g * J.group + t / a_head, i0 = (from + t % a_head) * STEP;
        bf16 *to = stream + t % 2 * 2 * tile;
        float *at = stats + t % 2 * 2 * STEP;
        size_t line = ((size_t)b * J.n_heads + h) * J.T;
        fetch<HD, STEP>(to, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
        fetch<HD, STEP>(to + tile, dout + first * ldo + (size_t)h * HD, ldo, i0, J.T);
        for (int i = (int)threadIdx.x; i < STEP; i += THREADS) {
            bool valid = i0 + i < J.T;
            at[i] = valid ? lse[line + i0 + i] * LOG2_E : 0.0f;
            at[STEP + i] = valid ? delta[line + i0 + i] : 0.0f;
        }
    };
    fetch<HD, BLOCK>(own_k, k + first * ldk + (size_t)g * HD, ldk, j0, J.T);
    fetch<HD, BLOCK>(own_v, v + first * ldv + (size_t)g * HD, ldv, j0, J.T);
    cp_async_commit();
    bring(0);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    Own<HD, Cut<HD>::keep_kv> keys[ATOMS], values[ATOMS];
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        keys[a].take(own_k, (warp * ATOMS + a) * 16);
        values[a].take(own_v, (warp * ATOMS + a) * 16);
    }
    float c = J.scale * LOG2_E, acc_k[ATOMS][HD / 8][4] = {{{0}}},
          acc_v[ATOMS][HD / 8][4] = {{{0}}};
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles)
            bring(t + 1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        const bf16 *queries = stream + t % 2 * 2 * tile, *grads = queries + tile;
        const float *l = stats + t % 2 * 2 * STEP, *dl = l + STEP;
        int i0 = (from + t % a_head) * STEP;
        if (ATOMS == 1 || !attn_none_seen(m, i0, STEP, mine)) { // some query sees this warp's keys
            float s[ATOMS][STEP / 8][4] = {{{0}}}, dp[ATOMS][STEP / 8][4] = {{{0}}};
            times_transposed<HD, STEP>(s, keys, queries);
            times_transposed<HD, STEP>(dp, values, grads);
            bool all = attn_all_seen(m, i0, STEP, mine, n_mine);
#pragma unroll
            for (int a = 0; a < ATOMS; a++) {
#pragma unroll
                for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int i = n * 8 + col + e % 2; // query within the tile
                        s[a][n][e] = fast_exp2(s[a][n][e] * c - l[i]);
                        dp[a][n][e] = s[a][n][e] * (dp[a][n][e] - dl[i]);
                    }
                if (!all)
                    hide_queries<STEP>(m, row + 16 * a, i0 + col, s[a], dp[a]);
            }
            times<HD, STEP>(acc_v, s, grads);
            times<HD, STEP>(acc_k, dp, queries);
        }
        __syncthreads();
    }
    cp_async_wait<0>();
#pragma unroll
    for (int a = 0; a < ATOMS; a++) {
        if (cos_sin)
            turn_back<HD>(acc_k[a], cos_sin, row + 16 * a, J.T);
        write_out<HD>(dk + first * ldk + (size_t)g * HD, ldk, row + 16 * a, J.T, acc_k[a], J.scale,
                      J.scale);
        write_out<HD>(dv + first * ldv + (size_t)g * HD, ldv, row + 16 * a, J.T, acc_v[a], 1.0f,
                      1.0f);
    }
}

// ---- launches

bool kern_cu_attn_mma_takes(const struct kern_attn *a, const void *const p[], int n_p,
                            const int ld[], int n_ld) {
    bool ok = a->head_dim > 0 && a->head_dim <= 128 && a->head_dim % 32 == 0 && a->B > 0 &&
              a->B <= 65535 && a->n_heads <= 65535 && a->T > 0 && a->n_heads % a->n_kv_heads == 0 &&
              attn_mask_given(a);
    for (int i = 0; i < n_p; i++)
        ok = ok && aligned_to((const char *)p[i], 16);
    for (int i = 0; i < n_ld; i++)
        ok = ok && ld[i] % 8 == 0;
    return ok;
}

static dim3 grid_of(const struct kern_attn *a, int block, int heads) {
    return dim3((unsigned)((a->T + block - 1) / block), (unsigned)heads, (unsigned)a->B);
}
static cudaError_t shared_for(const void *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

template <int HD>
static cudaError_t fwd_hd(const struct kern_attn *a, bf16 *out, int ldo, float *lse, const bf16 *q,
                          int ldq, const bf16 *k, int ldk, const bf16 *v, int ldv, cudaStream_t s) {
    size_t shared = (size_t)(Cut<HD>::block + 4 * Cut<HD>::keys) * (HD + PAD) * sizeof(bf16);
    cudaError_t e = shared_for((const void *)fwd<HD>, shared);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(fwd<HD>, grid_of(a, Cut<HD>::block, a->n_heads), THREADS, shared, s, job_of(a), out,
                ldo, lse, q, ldq, k, ldk, v, ldv);
    return cudaGetLastError();
}

template <int HD>
static cudaError_t bwd_hd(const struct kern_attn *a, bf16 *dq, bf16 *dk, bf16 *dv, const bf16 *dout,
                          int ldo, const float *lse, const bf16 *q, int ldq, const bf16 *k, int ldk,
                          const bf16 *v, int ldv, const float *delta, const float *cos_sin,
                          cudaStream_t s) {
    const size_t own = 2 * Cut<HD>::block, row = (HD + PAD) * sizeof(bf16),
                 for_q = (own + 4 * Cut<HD>::keys_bwd) * row,
                 for_kv = (own + 4 * Cut<HD>::queries) * row + 4 * Cut<HD>::queries * sizeof(float);
    cudaError_t e = shared_for((const void *)bwd_q<HD>, for_q);
    if (e == cudaSuccess)
        e = shared_for((const void *)bwd_kv<HD>, for_kv);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(bwd_q<HD>, grid_of(a, Cut<HD>::block, a->n_heads), THREADS, for_q, s, job_of(a), dq,
                dout, ldo, lse, delta, q, ldq, k, ldk, v, ldv, cos_sin);
    KERN_LAUNCH(bwd_kv<HD>, grid_of(a, Cut<HD>::block, a->n_kv_heads), THREADS, for_kv, s,
                job_of(a), dk, dv, dout, ldo, lse, delta, q, ldq, k, ldk, v, ldv, cos_sin);
    return cudaGetLastError();
}

cudaError_t kern_cu_attn_fwd_mma(const struct kern_attn *a, void *out, int ldo, float *lse,
                                 const void *q, int ldq, const void *k, int ldk, const void *v,
                                 int ldv, cudaStream_t s) {
    const bf16 *qb = (const bf16 *)q, *kb = (const bf16 *)k, *vb = (const bf16 *)v;
    bf16 *to = (bf16 *)out;
    switch (a->head_dim) {
    case 32: return fwd_hd<32>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    case 64: return fwd_hd<64>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    case 96: return fwd_hd<96>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    case 128: return fwd_hd<128>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t kern_cu_attn_bwd_mma(const struct kern_attn *a, void *dq, void *dk, void *dv,
                                 const void *dout, int ldo, const float *lse, const void *q,
                                 int ldq, const void *k, int ldk, const void *v, int ldv,
                                 const float *delta, const float *cos_sin, cudaStream_t s) {
    const bf16 *qb = (const bf16 *)q, *kb = (const bf16 *)k, *vb = (const bf16 *)v,
               *ob = (const bf16 *)dout;
    bf16 *gq = (bf16 *)dq, *gk = (bf16 *)dk, *gv = (bf16 *)dv;
    switch (a->head_dim) {
    case 32:
        return bwd_hd<32>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, cos_sin,
                          s);
    case 64:
        return bwd_hd<64>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, cos_sin,
                          s);
    case 96:
        return bwd_hd<96>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, cos_sin,
                          s);
    case 128:
        return bwd_hd<128>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, cos_sin,
                           s);
    default: return cudaErrorInvalidValue;
    }
}
