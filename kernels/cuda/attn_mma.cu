// Attention in bf16 on tensor cores, head_dim 32, 64 or 128: never a (T, T) matrix, as in FlashAttention (arXiv 2205.14135,
// 2307.08691). Scores, softmax and all sums are fp32; what a product reads is bf16.
//
// A block of four warps owns 64 rows, 16 a warp, and walks through tiles of rows of the other side, which arrive in shared
// memory two tiles deep by asynchronous copies:
//
//     fwd     owns queries      streams K, V      S = Q K^T, online softmax, O += P V
//     bwd_q   owns queries      streams K, V      S, dP = dO V^T, dS = P (dP - delta), dQ += dS K
//     bwd_kv  owns keys         streams Q, dO     S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//
// Backward computes S twice; in return no kernel adds to another's output, so there are no atomics and the bits are the same
// every time. Each product is (16 own rows) x (columns): A from the own tile or, for the second product, from the first
// one's accumulators, which in registers are just what A wants:
//
//     accumulator (16, 8), lane l: rows l/4, l/4 + 8, columns 2(l%4), +1     two neighbours make A (16, 16)
//
// Rows in shared memory are HD + 8 elements apart: 16 bytes more than a multiple of 64, so that the eight rows of an
// ldmatrix fall into different banks. Rows beyond T arrive as zeros and are masked.
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * WARP, BLOCK = 64, PAD = 8 };
#define LOG2_E 1.44269504088896340736f

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

// ROWS rows from `first` on of x (row stride ld) into room (ROWS, HD + PAD); zeros at and beyond T.
template <int HD, int ROWS>
__device__ static inline void fetch(bf16 *room, const bf16 *x, int ld, int first, int T) {
    const int per = HD / 8; // pieces of 16 bytes a row
    for (int i = (int)threadIdx.x; i < ROWS * per; i += THREADS) {
        int r = i / per, c = i % per * 8;
        bool valid = first + r < T;
        cp_async16(room + r * (HD + PAD) + c, x + (size_t)(valid ? first + r : 0) * ld + c, valid);
    }
}

// A fragments: rows row0 .. +15, columns k0 .. +15 of room.
template <int HD>
__device__ static inline void a_fragment(uint32_t a[4], const bf16 *room, int row0, int k0) {
    int lane = (int)threadIdx.x % WARP, m = lane / 8, r = lane % 8;
    ldmatrix_x4(a, room + (row0 + m % 2 * 8 + r) * (HD + PAD) + k0 + m / 2 * 8);
}

// A warp's own 16 rows (16, HD), as fragments: kept in registers for all tiles, or where those are short read from the own
// tile each time.
template <int HD, bool KEEP> struct Own {
    uint32_t kept[KEEP ? HD / 16 : 1][4];
    const bf16 *room;
    int row0;
    // once the tile is there
    __device__ inline void take(const bf16 *tile, int first) {
        room = tile;
        row0 = first;
        if (KEEP)
#pragma unroll
            for (int k = 0; k < HD; k += 16)
                a_fragment<HD>(kept[KEEP ? k / 16 : 0], tile, first, k);
    }
    __device__ inline void fragment(uint32_t (&a)[4], int k) const {
        if (!KEEP)
            a_fragment<HD>(a, room, row0, k);
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = kept[KEEP ? k / 16 : 0][i];
    }
};
// Where a multiprocessor takes no fewer blocks with them in registers (README.md, "What the compiler says").
template <int HD> struct Keep {
    static const bool fwd = true, bwd_q = HD <= 64, bwd_kv = HD == 64;
};

// acc (16, ROWS) += own (16, HD) · other (ROWS, HD)^T
template <int HD, int ROWS, bool KEEP>
__device__ static inline void times_transposed(float (&acc)[ROWS / 8][4], const Own<HD, KEEP> &own,
                                               const bf16 *other) {
    int lane = (int)threadIdx.x % WARP, m = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < HD; k += 16) {
        uint32_t a[4];
        own.fragment(a, k);
#pragma unroll
        for (int n = 0; n < ROWS; n += 16) {
            uint32_t b[4];
            ldmatrix_x4(b, other + (n + m / 2 * 8 + r) * (HD + PAD) + k + m % 2 * 8);
            mma_bf16_16816(acc[n / 8], a, b[0], b[1]);
            mma_bf16_16816(acc[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

// acc (16, HD) += p (16, ROWS) · other (ROWS, HD), p as accumulators
template <int HD, int ROWS>
__device__ static inline void times(float (&acc)[HD / 8][4], const float (&p)[ROWS / 8][4],
                                    const bf16 *other) {
    int lane = (int)threadIdx.x % WARP, m = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
        const float *lo = p[k / 8], *hi = p[k / 8 + 1];
        uint32_t a[4] = {pack_bf16(lo[0], lo[1]), pack_bf16(lo[2], lo[3]), pack_bf16(hi[0], hi[1]),
                         pack_bf16(hi[2], hi[3])};
#pragma unroll
        for (int n = 0; n < HD; n += 16) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, other + (k + m % 2 * 8 + r) * (HD + PAD) + n + m / 2 * 8);
            mma_bf16_16816(acc[n / 8], a, b[0], b[1]);
            mma_bf16_16816(acc[n / 8 + 1], a, b[2], b[3]);
        }
    }
}

// Rows row, row + 8 of this lane's accumulators to x, times factors; nothing beyond T.
template <int HD>
__device__ static inline void write_out(bf16 *x, int ld, int row, int T,
                                        const float (&acc)[HD / 8][4], float f0, float f1) {
    int col = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < HD / 8; n++) {
        if (row < T)
            *reinterpret_cast<uint32_t *>(x + (size_t)row * ld + n * 8 + col) =
                pack_bf16(acc[n][0] * f0, acc[n][1] * f0);
        if (row + 8 < T)
            *reinterpret_cast<uint32_t *>(x + (size_t)(row + 8) * ld + n * 8 + col) =
                pack_bf16(acc[n][2] * f1, acc[n][3] * f1);
    }
}

// Over the four lanes that share a row.
__device__ static inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ static inline float row_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

template <int HD> struct Tile {
    static const int own = BLOCK * (HD + PAD); // elements
};

// grid: (blocks of queries, heads, B). The longest rows of a causal mask come first.
template <int HD>
__global__ void __launch_bounds__(THREADS)
    fwd(struct mma_job J, bf16 *out, int ldo, float *lse, const bf16 *q, int ldq, const bf16 *k,
        int ldk, const bf16 *v, int ldv) {
    KERN_DYNAMIC_SHARED(room);
    bf16 *own = reinterpret_cast<bf16 *>(room), *stream = own + Tile<HD>::own;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, h = (int)blockIdx.y,
        b = (int)blockIdx.z, i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK,
        row = i0 + warp * 16 + lane / 4, col = lane % 4 * 2;
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T;
    const bf16 *kh = k + first * ldk + (size_t)(h / J.group) * HD,
               *vh = v + first * ldv + (size_t)(h / J.group) * HD;
    int tiles = (attn_keys_end(m, i0, BLOCK) + BLOCK - 1) / BLOCK;
    fetch<HD, BLOCK>(own, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
    cp_async_commit();
    fetch<HD, BLOCK>(stream, kh, ldk, 0, J.T);
    fetch<HD, BLOCK>(stream + Tile<HD>::own, vh, ldv, 0, J.T);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    Own<HD, Keep<HD>::fwd> queries;
    queries.take(own, warp * 16);
    float acc[HD / 8][4] = {{0}}, max0 = -INFINITY, max1 = -INFINITY, sum0 = 0, sum1 = 0,
                   c = J.scale * LOG2_E; // scores in powers of two
    for (int t = 0; t < tiles; t++) {
        bf16 *keys = stream + t % 2 * 2 * Tile<HD>::own, *values = keys + Tile<HD>::own;
        if (t + 1 < tiles) {
            bf16 *next = stream + (t + 1) % 2 * 2 * Tile<HD>::own;
            fetch<HD, BLOCK>(next, kh, ldk, (t + 1) * BLOCK, J.T);
            fetch<HD, BLOCK>(next + Tile<HD>::own, vh, ldv, (t + 1) * BLOCK, J.T);
        }
        cp_async_commit(); // an empty group at the end, so that the count below is right
        cp_async_wait<1>();
        __syncthreads();
        float s[BLOCK / 8][4] = {{0}};
        times_transposed<HD, BLOCK>(s, queries, keys);
        int j0 = t * BLOCK;
        if (!attn_all_seen(m, i0, BLOCK, j0, BLOCK)) {
#pragma unroll
            for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!attn_sees(m, row + e / 2 * 8, j0 + n * 8 + col + e % 2))
                        s[n][e] = -INFINITY;
        }
        float top0 = max0, top1 = max1;
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
            top0 = fmaxf(top0, fmaxf(s[n][0], s[n][1]));
            top1 = fmaxf(top1, fmaxf(s[n][2], s[n][3]));
        }
        top0 = row_max(top0);
        top1 = row_max(top1);
        // A row beyond T sees nothing: its maximum stays -inf, and 0 in its place keeps NaN out.
        float base0 = top0 == -INFINITY ? 0.0f : top0 * c,
              base1 = top1 == -INFINITY ? 0.0f : top1 * c;
        float shrink0 = fast_exp2(max0 * c - base0), shrink1 = fast_exp2(max1 * c - base1);
        max0 = top0;
        max1 = top1;
        float more0 = 0, more1 = 0;
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++) {
            s[n][0] = fast_exp2(s[n][0] * c - base0);
            s[n][1] = fast_exp2(s[n][1] * c - base0);
            s[n][2] = fast_exp2(s[n][2] * c - base1);
            s[n][3] = fast_exp2(s[n][3] * c - base1);
            more0 += s[n][0] + s[n][1];
            more1 += s[n][2] + s[n][3];
        }
        sum0 = sum0 * shrink0 + more0; // of this lane's columns; lanes meet at the end
        sum1 = sum1 * shrink1 + more1;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            acc[n][0] *= shrink0;
            acc[n][1] *= shrink0;
            acc[n][2] *= shrink1;
            acc[n][3] *= shrink1;
        }
        times<HD, BLOCK>(acc, s, values);
        __syncthreads(); // before the next turn overwrites this tile
    }
    cp_async_wait<0>();
    sum0 = row_sum(sum0);
    sum1 = row_sum(sum1);
    write_out<HD>(out + first * ldo + (size_t)h * HD, ldo, row, J.T, acc, 1.0f / sum0, 1.0f / sum1);
    if (lane % 4 == 0) {
        float *to = lse + ((size_t)b * J.n_heads + h) * J.T;
        if (row < J.T)
            to[row] = max0 * J.scale + logf(sum0);
        if (row + 8 < J.T)
            to[row + 8] = max1 * J.scale + logf(sum1);
    }
}

// Own: Q, dO. Stream: K, V.
template <int HD, int STEP>
__global__ void __launch_bounds__(THREADS)
    bwd_q(struct mma_job J, bf16 *dq, const bf16 *dout, int ldo, const float *lse,
          const float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk, const bf16 *v,
          int ldv) {
    KERN_DYNAMIC_SHARED(room);
    const int step = STEP * (HD + PAD);
    bf16 *own_q = reinterpret_cast<bf16 *>(room), *own_do = own_q + Tile<HD>::own,
         *stream = own_do + Tile<HD>::own;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, h = (int)blockIdx.y,
        b = (int)blockIdx.z, i0 = (int)(gridDim.x - 1 - blockIdx.x) * BLOCK,
        row = i0 + warp * 16 + lane / 4, col = lane % 4 * 2;
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T, stats = ((size_t)b * J.n_heads + h) * J.T;
    const bf16 *kh = k + first * ldk + (size_t)(h / J.group) * HD,
               *vh = v + first * ldv + (size_t)(h / J.group) * HD;
    int tiles = (attn_keys_end(m, i0, BLOCK) + STEP - 1) / STEP;
    fetch<HD, BLOCK>(own_q, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
    fetch<HD, BLOCK>(own_do, dout + first * ldo + (size_t)h * HD, ldo, i0, J.T);
    cp_async_commit();
    fetch<HD, STEP>(stream, kh, ldk, 0, J.T);
    fetch<HD, STEP>(stream + step, vh, ldv, 0, J.T);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    Own<HD, Keep<HD>::bwd_q> queries, grads;
    queries.take(own_q, warp * 16);
    grads.take(own_do, warp * 16);
    float c = J.scale * LOG2_E, l[2] = {0, 0}, dl[2] = {0, 0}, acc[HD / 8][4] = {{0}};
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (row + 8 * e < J.T) {
            l[e] = lse[stats + row + 8 * e] * LOG2_E;
            dl[e] = delta[stats + row + 8 * e];
        }
    for (int t = 0; t < tiles; t++) {
        bf16 *keys = stream + t % 2 * 2 * step, *values = keys + step;
        if (t + 1 < tiles) {
            bf16 *next = stream + (t + 1) % 2 * 2 * step;
            fetch<HD, STEP>(next, kh, ldk, (t + 1) * STEP, J.T);
            fetch<HD, STEP>(next + step, vh, ldv, (t + 1) * STEP, J.T);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        float s[STEP / 8][4] = {{0}}, dp[STEP / 8][4] = {{0}};
        times_transposed<HD, STEP>(s, queries, keys);
        times_transposed<HD, STEP>(dp, grads, values);
        int j0 = t * STEP;
        bool all = attn_all_seen(m, i0, BLOCK, j0, STEP);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = fast_exp2(s[n][e] * c - l[e / 2]);
                if (!all && !attn_sees(m, row + e / 2 * 8, j0 + n * 8 + col + e % 2))
                    s[n][e] = 0;
                else
                    s[n][e] = p * (dp[n][e] - dl[e / 2]);
            }
        times<HD, STEP>(acc, s, keys);
        __syncthreads();
    }
    cp_async_wait<0>();
    write_out<HD>(dq + first * ldq + (size_t)h * HD, ldq, row, J.T, acc, J.scale, J.scale);
}

// Own: K, V. Stream: Q, dO with their lse and delta, of all query heads that read this key/value head.
template <int HD, int STEP>
__global__ void __launch_bounds__(THREADS)
    bwd_kv(struct mma_job J, bf16 *dk, bf16 *dv, const bf16 *dout, int ldo, const float *lse,
           const float *delta, const bf16 *q, int ldq, const bf16 *k, int ldk, const bf16 *v,
           int ldv) {
    KERN_DYNAMIC_SHARED(room);
    const int step = STEP * (HD + PAD);
    bf16 *own_k = reinterpret_cast<bf16 *>(room), *own_v = own_k + Tile<HD>::own,
         *stream = own_v + Tile<HD>::own;
    float *stats = reinterpret_cast<float *>(stream + 4 * step); // two of (lse, delta) of STEP each
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, g = (int)blockIdx.y,
        b = (int)blockIdx.z, j0 = (int)blockIdx.x * BLOCK, row = j0 + warp * 16 + lane / 4,
        col = lane % 4 * 2;
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T;
    int from = attn_queries_start(m, j0) / STEP, a_head = (J.T + STEP - 1) / STEP - from,
        tiles = a_head * J.group;
    // Tile t: head g * group + t / a_head, queries from (from + t % a_head) * STEP on.
    auto bring = [&](int t) {
        int h = g * J.group + t / a_head, i0 = (from + t % a_head) * STEP;
        bf16 *to = stream + t % 2 * 2 * step;
        float *at = stats + t % 2 * 2 * STEP;
        size_t line = ((size_t)b * J.n_heads + h) * J.T;
        fetch<HD, STEP>(to, q + first * ldq + (size_t)h * HD, ldq, i0, J.T);
        fetch<HD, STEP>(to + step, dout + first * ldo + (size_t)h * HD, ldo, i0, J.T);
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
    Own<HD, Keep<HD>::bwd_kv> keys, values;
    keys.take(own_k, warp * 16);
    values.take(own_v, warp * 16);
    float c = J.scale * LOG2_E, acc_k[HD / 8][4] = {{0}}, acc_v[HD / 8][4] = {{0}};
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles)
            bring(t + 1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        const bf16 *queries = stream + t % 2 * 2 * step, *grads = queries + step;
        const float *l = stats + t % 2 * 2 * STEP, *dl = l + STEP;
        float s[STEP / 8][4] = {{0}}, dp[STEP / 8][4] = {{0}};
        times_transposed<HD, STEP>(s, keys, queries);
        times_transposed<HD, STEP>(dp, values, grads);
        int i0 = (from + t % a_head) * STEP;
        bool all = attn_all_seen(m, i0, STEP, j0, BLOCK);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = n * 8 + col + e % 2; // query in the tile
                float p = fast_exp2(s[n][e] * c - l[i]);
                if (!all && !attn_sees(m, i0 + i, row + e / 2 * 8))
                    p = 0;
                s[n][e] = p;
                dp[n][e] = p * (dp[n][e] - dl[i]);
            }
        times<HD, STEP>(acc_v, s, grads);
        times<HD, STEP>(acc_k, dp, queries);
        __syncthreads();
    }
    cp_async_wait<0>();
    write_out<HD>(dk + first * ldk + (size_t)g * HD, ldk, row, J.T, acc_k, J.scale, J.scale);
    write_out<HD>(dv + first * ldv + (size_t)g * HD, ldv, row, J.T, acc_v, 1.0f, 1.0f);
}

// ---- launches -------------------------------------------------------------------------------------------------

bool kern_cu_attn_mma_takes(const struct kern_attn *a, const void *const p[], int n_p,
                            const int ld[], int n_ld) {
    bool ok = (a->head_dim == 32 || a->head_dim == 64 || a->head_dim == 128) && a->B > 0 &&
              a->B <= 65535 && a->n_heads <= 65535 && a->T > 0 && a->n_heads % a->n_kv_heads == 0 &&
              attn_mask_given(a);
    for (int i = 0; i < n_p; i++)
        ok = ok && aligned_to((const char *)p[i], 16);
    for (int i = 0; i < n_ld; i++)
        ok = ok && ld[i] % 8 == 0;
    return ok;
}

static dim3 grid_of(const struct kern_attn *a, int heads) {
    return dim3((unsigned)((a->T + BLOCK - 1) / BLOCK), (unsigned)heads, (unsigned)a->B);
}
static cudaError_t shared_for(const void *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

template <int HD>
static cudaError_t fwd_hd(const struct kern_attn *a, bf16 *out, int ldo, float *lse, const bf16 *q,
                          int ldq, const bf16 *k, int ldk, const bf16 *v, int ldv, cudaStream_t s) {
    size_t shared = 5 * Tile<HD>::own * sizeof(bf16);
    cudaError_t e = shared_for((const void *)fwd<HD>, shared);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(fwd<HD>, grid_of(a, a->n_heads), THREADS, shared, s, job_of(a), out, ldo, lse, q,
                ldq, k, ldk, v, ldv);
    return cudaGetLastError();
}

template <int HD, int STEP>
static cudaError_t bwd_hd(const struct kern_attn *a, bf16 *dq, bf16 *dk, bf16 *dv, const bf16 *dout,
                          int ldo, const float *lse, const bf16 *q, int ldq, const bf16 *k, int ldk,
                          const bf16 *v, int ldv, const float *delta, cudaStream_t s) {
    size_t shared = (2 * Tile<HD>::own + 4 * STEP * (HD + PAD)) * sizeof(bf16),
           with_stats = shared + 4 * STEP * sizeof(float);
    cudaError_t e = shared_for((const void *)bwd_q<HD, STEP>, shared);
    if (e == cudaSuccess)
        e = shared_for((const void *)bwd_kv<HD, STEP>, with_stats);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH((bwd_q<HD, STEP>), grid_of(a, a->n_heads), THREADS, shared, s, job_of(a), dq, dout,
                ldo, lse, delta, q, ldq, k, ldk, v, ldv);
    KERN_LAUNCH((bwd_kv<HD, STEP>), grid_of(a, a->n_kv_heads), THREADS, with_stats, s, job_of(a),
                dk, dv, dout, ldo, lse, delta, q, ldq, k, ldk, v, ldv);
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
    case 128: return fwd_hd<128>(a, to, ldo, lse, qb, ldq, kb, ldk, vb, ldv, s);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t kern_cu_attn_bwd_mma(const struct kern_attn *a, void *dq, void *dk, void *dv,
                                 const void *dout, int ldo, const float *lse, const void *q,
                                 int ldq, const void *k, int ldk, const void *v, int ldv,
                                 const float *delta, cudaStream_t s) {
    const bf16 *qb = (const bf16 *)q, *kb = (const bf16 *)k, *vb = (const bf16 *)v,
               *ob = (const bf16 *)dout;
    bf16 *gq = (bf16 *)dq, *gk = (bf16 *)dk, *gv = (bf16 *)dv;
    switch (a->head_dim) {
    case 32:
        return bwd_hd<32, 64>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, s);
    case 64:
        return bwd_hd<64, 64>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, s);
    case 128: // smaller steps: two accumulators of 128 columns leave fewer registers
        return bwd_hd<128, 32>(a, gq, gk, gv, ob, ldo, lse, qb, ldq, kb, ldk, vb, ldv, delta, s);
    default: return cudaErrorInvalidValue;
    }
}
