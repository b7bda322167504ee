// SPDX-License-Identifier: Apache-2.0
// Attention for every head_dim and both types, in fp32 arithmetic: for training in fp32, and in
// bf16 where the tensor-core kernels do not take the shape. Also delta = rowsum(dO * O), for the
// backward passes here and in attn_mma.cu.
//
// A warp owns one row (a query, or a key in bwd_kv). It keeps the row's sums in registers,
// dimension e in lane e % 32. The warps of a block share tiles of 32 rows of the other side in
// shared memory. In a tile lane j computes the score of row j. Then all lanes take the 32 weights,
// one after the other by shuffles, and add the weighted rows.
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/launch.h"

enum { ROWS = 8, THREADS = ROWS * WARP, TILE = WARP, DIMS_MOST = 256, OWN = DIMS_MOST / WARP };

struct simple_job {
    int T, n_heads, group, D; // group: query heads of a key-value head
    enum kern_mask kind;
    const int32_t *prefix_len;
    float scale;
};

static struct simple_job job_of(const struct kern_attn *a) {
    struct simple_job j = {a->T,    a->n_heads,    a->n_heads / a->n_kv_heads,      a->head_dim,
                           a->mask, a->prefix_len, 1.0f / sqrtf((float)a->head_dim)};
    return j;
}
static bool takes(const struct kern_attn *a) {
    return a->B > 0 && a->T > 0 && a->n_heads <= 65535 && a->B <= 65535 && a->head_dim > 0 &&
           a->head_dim <= DIMS_MOST && a->n_heads % a->n_kv_heads == 0 && attn_mask_given(a);
}

// Loads rows first .. first + TILE - 1 of x into room (TILE, D + 1). Rows at or beyond T become
// zeros.
template <class T>
__device__ static void load_tile(float *room, const T *x, int ld, int first, int T_, int D) {
    for (int i = (int)threadIdx.x; i < TILE * D; i += THREADS) {
        int r = i / D, e = i % D;
        room[r * (D + 1) + e] = first + r < T_ ? wide(x[(size_t)(first + r) * ld + e]) : 0.0f;
    }
}
__device__ static float dot(const float *a, const float *b, int D) {
    float s = 0;
    for (int e = 0; e < D; e++)
        s += a[e] * b[e];
    return s;
}
// acc[o] += the sum of weight * room[row][lane + 32 o] over rows from .. to - 1, as far as they lie
// in the tile. Lane r has the weight of row r. All other weights are 0. from and to are the same in
// all lanes.
__device__ static void add_weighted(float (&acc)[OWN], float weight, const float *room, int D,
                                    int from, int to) {
    int lane = (int)threadIdx.x % WARP;
    to = to < TILE ? to : TILE;
    for (int r = from > 0 ? from : 0; r < to; r++) {
        float w = __shfl_sync(ALL_LANES, weight, r);
#pragma unroll
        for (int o = 0; o < OWN; o++)
            if (lane + WARP * o < D)
                acc[o] += w * room[r * (D + 1) + lane + WARP * o];
    }
}
template <class T>
__device__ static void write_row(T *to, const float (&acc)[OWN], float factor, int D) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int o = 0; o < OWN; o++)
        if (lane + WARP * o < D)
            to[lane + WARP * o] = Narrow<T>::of(acc[o] * factor);
}

// grid: (row blocks, heads, B). Shared memory: one row for each warp, and two tiles.
template <class T>
__global__ void fwd(struct simple_job J, T *out, int ldo, float *lse, const T *q, int ldq,
                    const T *k, int ldk, const T *v, int ldv) {
    KERN_DYNAMIC_SHARED(room);
    int D = J.D, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP,
        h = (int)blockIdx.y, b = (int)blockIdx.z, i0 = (int)blockIdx.x * ROWS, i = i0 + warp;
    float *mine = reinterpret_cast<float *>(room) + warp * D,
          *keys = reinterpret_cast<float *>(room) + ROWS * D, *values = keys + TILE * (D + 1);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T;
    const T *kh = k + first * ldk + (size_t)(h / J.group) * D,
            *vh = v + first * ldv + (size_t)(h / J.group) * D;
    for (int e = lane; e < D; e += WARP)
        mine[e] = i < J.T ? wide(q[(first + i) * ldq + (size_t)h * D + e]) * J.scale : 0.0f;
    float acc[OWN] = {0}, max = -INFINITY, sum = 0;
    for (int j0 = 0; j0 < attn_keys_end(m, i0, ROWS); j0 += TILE) {
        __syncthreads(); // nobody reads the last tile any more; queries are complete
        load_tile(keys, kh, ldk, j0, J.T, D);
        load_tile(values, vh, ldv, j0, J.T, D);
        __syncthreads();
        float s = attn_sees(m, i, j0 + lane) ? dot(mine, keys + lane * (D + 1), D) : -INFINITY;
        float top = fmaxf(max, warp_max(s));
        float p = top == -INFINITY ? 0.0f : expf(s - top),
              shrink = top == -INFINITY ? 1.0f : expf(max - top);
        sum = sum * shrink + warp_sum(p);
#pragma unroll
        for (int o = 0; o < OWN; o++)
            acc[o] *= shrink;
        add_weighted(acc, p, values, D, 0, attn_row_end(m, i) - j0);
        max = top;
    }
    if (i >= J.T)
        return; // after the last barrier
    write_row(out + (first + i) * ldo + (size_t)h * D, acc, 1.0f / sum, D);
    if (lane == 0)
        lse[((size_t)b * J.n_heads + h) * J.T + i] = max + logf(sum);
}

template <class T>
__global__ void bwd_q(struct simple_job J, T *dq, const T *dout, int ldo, const float *lse,
                      const float *delta, const T *q, int ldq, const T *k, int ldk, const T *v,
                      int ldv) {
    KERN_DYNAMIC_SHARED(room);
    int D = J.D, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP,
        h = (int)blockIdx.y, b = (int)blockIdx.z, i0 = (int)blockIdx.x * ROWS, i = i0 + warp;
    float *qi = reinterpret_cast<float *>(room) + 2 * warp * D, *doi = qi + D,
          *keys = reinterpret_cast<float *>(room) + 2 * ROWS * D, *values = keys + TILE * (D + 1);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T, at = ((size_t)b * J.n_heads + h) * J.T + i;
    const T *kh = k + first * ldk + (size_t)(h / J.group) * D,
            *vh = v + first * ldv + (size_t)(h / J.group) * D;
    for (int e = lane; e < D; e += WARP) {
        qi[e] = i < J.T ? wide(q[(first + i) * ldq + (size_t)h * D + e]) : 0.0f;
        doi[e] = i < J.T ? wide(dout[(first + i) * ldo + (size_t)h * D + e]) : 0.0f;
    }
    float acc[OWN] = {0}, L = i < J.T ? lse[at] : 0.0f, dl = i < J.T ? delta[at] : 0.0f;
    for (int j0 = 0; j0 < attn_keys_end(m, i0, ROWS); j0 += TILE) {
        __syncthreads();
        load_tile(keys, kh, ldk, j0, J.T, D);
        load_tile(values, vh, ldv, j0, J.T, D);
        __syncthreads();
        float ds = 0;
        if (attn_sees(m, i, j0 + lane)) {
            float p = expf(dot(qi, keys + lane * (D + 1), D) * J.scale - L);
            ds = p * (dot(doi, values + lane * (D + 1), D) - dl) * J.scale;
        }
        __syncwarp();
        add_weighted(acc, ds, keys, D, 0, attn_row_end(m, i) - j0);
    }
    if (i < J.T)
        write_row(dq + (first + i) * ldq + (size_t)h * D, acc, 1.0f, D);
}

// grid: (row blocks, key-value heads, B). A warp owns key j and goes through all queries of all
// heads that read it.
template <class T>
__global__ void bwd_kv(struct simple_job J, T *dk, T *dv, const T *dout, int ldo, const float *lse,
                       const float *delta, const T *q, int ldq, const T *k, int ldk, const T *v,
                       int ldv) {
    KERN_DYNAMIC_SHARED(room);
    int D = J.D, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP,
        g = (int)blockIdx.y, b = (int)blockIdx.z, j0 = (int)blockIdx.x * ROWS, j = j0 + warp;
    float *kj = reinterpret_cast<float *>(room) + 2 * warp * D, *vj = kj + D,
          *queries = reinterpret_cast<float *>(room) + 2 * ROWS * D,
          *grads = queries + TILE * (D + 1);
    struct attn_mask m = attn_mask_of(J.T, J.kind, J.prefix_len, b);
    size_t first = (size_t)b * J.T;
    for (int e = lane; e < D; e += WARP) {
        kj[e] = j < J.T ? wide(k[(first + j) * ldk + (size_t)g * D + e]) : 0.0f;
        vj[e] = j < J.T ? wide(v[(first + j) * ldv + (size_t)g * D + e]) : 0.0f;
    }
    float acc_k[OWN] = {0}, acc_v[OWN] = {0};
    for (int h = g * J.group; h < (g + 1) * J.group; h++)
        for (int i0 = attn_queries_start(m, j0) / TILE * TILE; i0 < J.T; i0 += TILE) {
            __syncthreads();
            load_tile(queries, q + first * ldq + (size_t)h * D, ldq, i0, J.T, D);
            load_tile(grads, dout + first * ldo + (size_t)h * D, ldo, i0, J.T, D);
            __syncthreads();
            float p = 0, ds = 0;
            if (attn_sees(m, i0 + lane, j)) {
                size_t at = ((size_t)b * J.n_heads + h) * J.T + i0 + lane;
                p = expf(dot(kj, queries + lane * (D + 1), D) * J.scale - lse[at]);
                ds = p * (dot(vj, grads + lane * (D + 1), D) - delta[at]) * J.scale;
            }
            __syncwarp();
            int from = attn_row_start(m, j) - i0, to = J.T - i0;
            add_weighted(acc_v, p, grads, D, from, to);
            add_weighted(acc_k, ds, queries, D, from, to);
        }
    if (j >= J.T)
        return;
    write_row(dk + (first + j) * ldk + (size_t)g * D, acc_k, 1.0f, D);
    write_row(dv + (first + j) * ldv + (size_t)g * D, acc_v, 1.0f, D);
}

// `lanes` neighbouring threads share a row of a head and take V elements each a turn. V makes 16
// bytes if head_dim is V times a power of two.
template <class T, int V>
__global__ void row_delta(struct simple_job J, float *delta, const T *dout, const T *out, int ldo,
                          size_t rows, int lanes) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) / (unsigned)lanes, row,
           b; // at: of a row and a head
    uint32_t h, t, lane = threadIdx.x % (unsigned)lanes;
    bool there = at < rows * J.n_heads;
    split(there ? at : 0, (uint32_t)J.n_heads, row, h);
    split(row, (uint32_t)J.T, b, t);
    const T *x = out + row * ldo + (size_t)h * J.D, *y = dout + row * ldo + (size_t)h * J.D;
    float s = 0;
    for (int e = (int)lane * V; e < J.D; e += lanes * V) {
        float u[V], v[V];
        load<T, V>(u, x + e);
        load<T, V>(v, y + e);
#pragma unroll
        for (int i = 0; i < V; i++)
            s += u[i] * v[i];
    }
    for (int by = lanes / 2; by; by /= 2)
        s += __shfl_xor_sync(ALL_LANES, s, by);
    if (there && lane == 0)
        delta[(b * J.n_heads + h) * J.T + t] = s;
}

// A kernel must ask for more than 48 KiB of shared memory.
static cudaError_t shared_for(const void *kernel, size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
static dim3 grid_of(const struct kern_attn *a, int heads) {
    return dim3((unsigned)((a->T + ROWS - 1) / ROWS), (unsigned)heads, (unsigned)a->B);
}
static size_t shared_bytes(int D, int rows_a_warp) {
    return ((size_t)rows_a_warp * ROWS * D + 2 * (size_t)TILE * (D + 1)) * sizeof(float);
}

template <class T>
static cudaError_t delta_t(const struct kern_attn *a, float *delta, const void *dout,
                           const void *out, int ldo, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    const T *x = (const T *)dout, *y = (const T *)out;
    size_t rows = (size_t)a->B * a->T;
    int lanes = a->head_dim / V;
    if (a->head_dim % V == 0 && !(lanes & (lanes - 1)) && lanes <= WARP && ldo % V == 0 &&
        aligned_to(x, 16) && aligned_to(y, 16))
        KERN_LAUNCH((row_delta<T, V>), blocks_for(rows * a->n_heads * lanes, THREADS, 0x7fffffff),
                    THREADS, 0, s, job_of(a), delta, x, y, ldo, rows, lanes);
    else
        KERN_LAUNCH((row_delta<T, 1>), blocks_for(rows * a->n_heads * WARP, THREADS, 0x7fffffff),
                    THREADS, 0, s, job_of(a), delta, x, y, ldo, rows, (int)WARP);
    return cudaGetLastError();
}

cudaError_t kern_cu_attn_delta(enum kern_type t, const struct kern_attn *a, float *delta,
                               const void *dout, const void *out, int ldo, cudaStream_t s) {
    return t == KERN_BF16 ? delta_t<bf16>(a, delta, dout, out, ldo, s)
                          : delta_t<float>(a, delta, dout, out, ldo, s);
}

template <class T>
static cudaError_t fwd_t(const struct kern_attn *a, T *out, int ldo, float *lse, const T *q,
                         int ldq, const T *k, int ldk, const T *v, int ldv, cudaStream_t s) {
    size_t shared = shared_bytes(a->head_dim, 1);
    cudaError_t e = shared_for((const void *)fwd<T>, shared);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(fwd<T>, grid_of(a, a->n_heads), THREADS, shared, s, job_of(a), out, ldo, lse, q,
                ldq, k, ldk, v, ldv);
    return cudaGetLastError();
}

cudaError_t kern_cu_attn_fwd_simple(enum kern_type t, const struct kern_attn *a, void *out, int ldo,
                                    float *lse, const void *q, int ldq, const void *k, int ldk,
                                    const void *v, int ldv, cudaStream_t s) {
    if (!takes(a))
        return cudaErrorInvalidValue;
    if (t == KERN_BF16)
        return fwd_t(a, (bf16 *)out, ldo, lse, (const bf16 *)q, ldq, (const bf16 *)k, ldk,
                     (const bf16 *)v, ldv, s);
    return fwd_t(a, (float *)out, ldo, lse, (const float *)q, ldq, (const float *)k, ldk,
                 (const float *)v, ldv, s);
}

template <class T>
static cudaError_t bwd_t(const struct kern_attn *a, T *dq, T *dk, T *dv, const T *dout, int ldo,
                         const float *lse, const T *q, int ldq, const T *k, int ldk, const T *v,
                         int ldv, const float *delta, cudaStream_t s) {
    size_t shared = shared_bytes(a->head_dim, 2);
    cudaError_t e = shared_for((const void *)bwd_q<T>, shared);
    if (e == cudaSuccess)
        e = shared_for((const void *)bwd_kv<T>, shared);
    if (e != cudaSuccess)
        return e;
    KERN_LAUNCH(bwd_q<T>, grid_of(a, a->n_heads), THREADS, shared, s, job_of(a), dq, dout, ldo, lse,
                delta, q, ldq, k, ldk, v, ldv);
    KERN_LAUNCH(bwd_kv<T>, grid_of(a, a->n_kv_heads), THREADS, shared, s, job_of(a), dk, dv, dout,
                ldo, lse, delta, q, ldq, k, ldk, v, ldv);
    return cudaGetLastError();
}

cudaError_t kern_cu_attn_bwd_simple(enum kern_type t, const struct kern_attn *a, void *dq, void *dk,
                                    void *dv, const void *dout, int ldo, const float *lse,
                                    const void *q, int ldq, const void *k, int ldk, const void *v,
                                    int ldv, const float *delta, cudaStream_t s) {
    if (!takes(a))
        return cudaErrorInvalidValue;
    if (t == KERN_BF16)
        return bwd_t(a, (bf16 *)dq, (bf16 *)dk, (bf16 *)dv, (const bf16 *)dout, ldo, lse,
                     (const bf16 *)q, ldq, (const bf16 *)k, ldk, (const bf16 *)v, ldv, delta, s);
    return bwd_t(a, (float *)dq, (float *)dk, (float *)dv, (const float *)dout, ldo, lse,
                 (const float *)q, ldq, (const float *)k, ldk, (const float *)v, ldv, delta, s);
}
