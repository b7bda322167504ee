// SPDX-License-Identifier: Apache-2.0
// Ops on rows and elements, all bound by memory. A thread handles V neighbouring elements per turn
// (16 bytes of the wider operand), or one if a shape or pointer does not allow more. One warp
// reduces a row. Sums over rows (gradients of gains and biases) go through partial sums in scratch,
// which are added in a fixed order: the same bits every time.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, GRID_MOST = 1 << 16 };

#define FLAT_LOOP(i, n)                                                                            \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                        \
         i += (size_t)gridDim.x * blockDim.x)

// ---- cast

template <class T, int V> __global__ void cast(T *out, const float *x, size_t n) {
    FLAT_LOOP(i, n / V) {
        float v[V];
        load<float, V>(v, x + i * V);
        store<T, V>(out + i * V, v);
    }
}

template <class T> static void cast_t(T *out, const float *x, size_t n, cudaStream_t s) {
    if (n % 4 == 0 && aligned_to(out, 4 * sizeof(T)) && aligned_to(x, 16))
        KERN_LAUNCH((cast<T, 4>), blocks_for(n / 4, THREADS, GRID_MOST), THREADS, 0, s, out, x, n);
    else
        KERN_LAUNCH((cast<T, 1>), blocks_for(n, THREADS, GRID_MOST), THREADS, 0, s, out, x, n);
}

cudaError_t kern_cu_cast(enum kern_type t, void *out, const float *x, size_t n, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        cast_t((bf16 *)out, x, n, s);
    else
        cast_t((float *)out, x, n, s);
    return cudaGetLastError();
}

// ---- embedding

template <class T, int V>
__global__ void embed_fwd(T *out, const T *table, const int32_t *ids, int n, int d) {
    int per = d / V;
    FLAT_LOOP(i, (size_t)n * per) {
        size_t row;
        uint32_t at;
        split(i, (uint32_t)per, row, at);
        at *= V;
        float v[V] = {0};
        int32_t id = ids[row];
        if (id >= 0)
            load<T, V>(v, table + (size_t)id * d + at);
        store<T, V>(out + row * d + at, v);
    }
}

template <class T>
static void embed_fwd_t(T *out, const T *table, const int32_t *ids, int n, int d, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    size_t all = (size_t)n * d;
    if (d % V == 0 && aligned_to(out, 16) && aligned_to(table, 16))
        KERN_LAUNCH((embed_fwd<T, V>), blocks_for(all / V, THREADS, GRID_MOST), THREADS, 0, s, out,
                    table, ids, n, d);
    else
        KERN_LAUNCH((embed_fwd<T, 1>), blocks_for(all, THREADS, GRID_MOST), THREADS, 0, s, out,
                    table, ids, n, d);
}

cudaError_t kern_cu_embed_fwd(enum kern_type t, void *out, const void *table, const int32_t *ids,
                              int n, int d, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        embed_fwd_t((bf16 *)out, (const bf16 *)table, ids, n, d, s);
    else
        embed_fwd_t((float *)out, (const float *)table, ids, n, d, s);
    return cudaGetLastError();
}

// A block owns one token and THREADS columns. It adds the rows in which the token occurs, in order.
// For a frequent token each warp takes an eighth of the rows, and the eighths are added in order.
// Only the number of rows decides that, so the bits are the same every time.
enum { FREQUENT = 32, WARP_COLUMNS = THREADS / WARP };

__device__ static float frequent_sum(float (*room)[THREADS], const float *dout, const int32_t *rows,
                                     int32_t n, int d) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP,
        col = (int)blockIdx.y * THREADS + lane;
    int32_t from = (int32_t)((int64_t)n * warp / WARPS),
            to = (int32_t)((int64_t)n * (warp + 1) / WARPS);
    float sum[WARP_COLUMNS] = {0}, all = 0;
    for (int32_t i = from; i < to; i++) {
        const float *row = dout + (size_t)rows[i] * d;
#pragma unroll
        for (int c = 0; c < WARP_COLUMNS; c++)
            sum[c] += col + c * WARP < d ? row[col + c * WARP] : 0.0f;
    }
#pragma unroll
    for (int c = 0; c < WARP_COLUMNS; c++)
        room[warp][c * WARP + lane] = sum[c];
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        all += room[w][threadIdx.x];
    return all;
}

__global__ void embed_bwd(float *dtable, const float *dout, const int32_t *ids,
                          const int32_t *start, const int32_t *rows, const int32_t *used, int d) {
    __shared__ float room[WARPS][THREADS];
    int k = (int)blockIdx.x, col = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (k >= *used)
        return; // the whole block
    int32_t from = start[k], n = start[k + 1] - from;
    float sum = n > FREQUENT ? frequent_sum(room, dout, rows + from, n, d) : 0.0f;
    if (col >= d)
        return;
    float *to = dtable + (size_t)ids[k] * d + col;
    if (n > FREQUENT) {
        *to += sum;
        return;
    }
    sum = *to;
    for (int32_t i = from; i < from + n; i++)
        sum += dout[(size_t)rows[i] * d + col];
    *to = sum;
}

// One block for each of the n tokens, although some may be equal: only the device knows how many
// differ.
cudaError_t kern_cu_embed_bwd(float *dtable, const float *dout, const struct kern_buckets *b, int n,
                              int d, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    KERN_LAUNCH(embed_bwd, dim3((unsigned)n, (unsigned)((d + THREADS - 1) / THREADS)), THREADS, 0,
                s, dtable, dout, b->ids, b->start, b->rows, b->used, d);
    return cudaGetLastError();
}

// ---- RMSNorm with the residual's addition

// A warp owns a row and goes over it twice: first h and its sum of squares, then y from h, which
// this lane has just written or read.
template <class T, class R, int V>
__global__ void rmsnorm_fwd(T *y, float *rstd, float *h, const float *x, const R *r, const float *w,
                            int n, int d, float eps) {
    int lane = (int)threadIdx.x % WARP;
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= (size_t)n)
        return; // a whole warp
    size_t at = row * d;
    float sum = 0;
    for (int j = lane * V; j < d; j += WARP * V) {
        float a[V];
        load<float, V>(a, x + at + j);
        if (r) {
            float b[V];
            load<R, V>(b, r + at + j);
#pragma unroll
            for (int i = 0; i < V; i++)
                a[i] += b[i];
        }
        if (r || h != x)
            store<float, V>(h + at + j, a);
#pragma unroll
        for (int i = 0; i < V; i++)
            sum += a[i] * a[i];
    }
    float scale = 1.0f / sqrtf(warp_sum(sum) / (float)d + eps);
    if (lane == 0)
        rstd[row] = scale;
    for (int j = lane * V; j < d; j += WARP * V) {
        float a[V], g[V];
        load<float, V>(a, h + at + j);
        load<float, V>(g, w + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            a[i] = a[i] * scale * g[i];
        store<T, V>(y + at + j, a);
    }
}

template <class T, class R>
static void rmsnorm_fwd_t(T *y, float *rstd, float *h, const float *x, const R *r, const float *w,
                          int n, int d, float eps, cudaStream_t s) {
    bool four = d % 4 == 0 && aligned_to(y, 4 * sizeof(T)) && aligned_to(h, 16) &&
                aligned_to(x, 16) && aligned_to(r, 4 * sizeof(R)) && aligned_to(w, 16);
    unsigned grid = blocks_for((size_t)n, WARPS, 0x7fffffff);
    if (four)
        KERN_LAUNCH((rmsnorm_fwd<T, R, 4>), grid, THREADS, 0, s, y, rstd, h, x, r, w, n, d, eps);
    else
        KERN_LAUNCH((rmsnorm_fwd<T, R, 1>), grid, THREADS, 0, s, y, rstd, h, x, r, w, n, d, eps);
}

// r has type T, or fp32 if it is a sum over ranks.
cudaError_t kern_cu_rmsnorm_fwd(enum kern_type t, enum kern_type tr, void *y, float *rstd, float *h,
                                const float *x, const void *r, const float *w, int n, int d,
                                float eps, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16 && tr == KERN_BF16)
        rmsnorm_fwd_t((bf16 *)y, rstd, h, x, (const bf16 *)r, w, n, d, eps, s);
    else if (t == KERN_BF16)
        rmsnorm_fwd_t((bf16 *)y, rstd, h, x, (const float *)r, w, n, d, eps, s);
    else
        rmsnorm_fwd_t((float *)y, rstd, h, x, (const float *)r, w, n, d, eps, s);
    return cudaGetLastError();
}

// Backward: with g = w dy, dh += rstd (g - h rstd mean(g h rstd)). Warp w takes rows w, w + warps,
// … A lane keeps to its columns, so the gain's gradient gathers in the warp's own row of shared
// memory without a barrier. At the end the block adds its warps' rows, in order, to one row of
// scratch. A row must fit (kern.norm_most).
enum { NORM_BLOCKS = 1024, NORM_SHARED_PLAIN = 48 << 10 };

static int norm_warps(int d) { // warps of a block, so that a row for each fits
    int w = (int)(NORM_SHARED_PLAIN / ((size_t)d * sizeof(float)));
    return w > 4 ? 4 : w < 1 ? 1 : w;
}
static unsigned norm_blocks(int n, int d) {
    return blocks_for((size_t)n, (size_t)norm_warps(d), NORM_BLOCKS);
}
size_t kern_cu_rmsnorm_bwd_scratch(int n, int d) { return (size_t)norm_blocks(n, d) * d; }

// A row of at most 32 V TURNS elements. A lane reads it once, with all vectors in flight together,
// and keeps it.
template <class T, int V, int TURNS>
__device__ static inline void rmsnorm_bwd_kept(float *dh, T *dh_t, float *mine, const T *dy,
                                               const float *h, const float *w, float scale,
                                               bool sums, int d) {
    int own = (int)threadIdx.x % WARP * V;
    float a[TURNS][V], b[TURNS][V], to[TURNS][V], dot = 0;
#pragma unroll
    for (int k = 0; k < TURNS; k++) {
        int j = own + k * WARP * V;
        if (j < d) {
            load<T, V>(a[k], dy + j);
            load<float, V>(b[k], h + j);
            load<float, V>(to[k], dh + j);
        }
    }
#pragma unroll
    for (int k = 0; k < TURNS; k++) {
        int j = own + k * WARP * V;
        if (j < d) {
            float g[V];
            load<float, V>(g, w + j);
#pragma unroll
            for (int i = 0; i < V; i++)
                dot += a[k][i] * g[i] * b[k][i];
        }
    }
    float mean = warp_sum(dot) * scale / (float)d;
#pragma unroll
    for (int k = 0; k < TURNS; k++) {
        int j = own + k * WARP * V;
        if (j < d) {
            float g[V];
            load<float, V>(g, w + j);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float unit = b[k][i] * scale;
                to[k][i] += scale * (a[k][i] * g[i] - unit * mean);
                if (sums)
                    mine[j + i] += a[k][i] * unit;
            }
            store<float, V>(dh + j, to[k]);
            if (dh_t)
                store<T, V>(dh_t + j, to[k]);
        }
    }
}

// A row of any length. It is read twice, the second time from cache.
template <class T, int V>
__device__ static inline void rmsnorm_bwd_twice(float *dh, T *dh_t, float *mine, const T *dy,
                                                const float *h, const float *w, float scale,
                                                bool sums, int d) {
    int own = (int)threadIdx.x % WARP * V;
    float dot = 0;
    for (int j = own; j < d; j += WARP * V) {
        float a[V], g[V], b[V];
        load<T, V>(a, dy + j);
        load<float, V>(g, w + j);
        load<float, V>(b, h + j);
#pragma unroll
        for (int i = 0; i < V; i++)
            dot += a[i] * g[i] * b[i];
    }
    float mean = warp_sum(dot) * scale / (float)d;
    for (int j = own; j < d; j += WARP * V) {
        float a[V], g[V], b[V], to[V];
        load<T, V>(a, dy + j);
        load<float, V>(g, w + j);
        load<float, V>(b, h + j);
        load<float, V>(to, dh + j);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float unit = b[i] * scale;
            to[i] += scale * (a[i] * g[i] - unit * mean);
            if (sums)
                mine[j + i] += a[i] * unit;
        }
        store<float, V>(dh + j, to);
        if (dh_t)
            store<T, V>(dh_t + j, to);
    }
}

// TURNS 0: rows of any length.
template <class T, int V, int TURNS>
__global__ void rmsnorm_bwd(float *dh, T *dh_t, float *sums, const T *dy, const float *h,
                            const float *w, const float *rstd, int n, int d) {
    KERN_DYNAMIC_SHARED(room);
    float *all = reinterpret_cast<float *>(room);
    int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP,
        warp = (int)threadIdx.x / WARP;
    float *mine = all + (size_t)warp * d;
    for (int j = lane * V; sums && j < d; j += WARP * V)
#pragma unroll
        for (int i = 0; i < V; i++)
            mine[j + i] = 0;
    for (size_t row = (size_t)blockIdx.x * warps + warp; row < (size_t)n;
         row += (size_t)gridDim.x * warps) {
        size_t at = row * d;
        if constexpr (TURNS > 0)
            rmsnorm_bwd_kept<T, V, TURNS>(dh + at, dh_t ? dh_t + at : nullptr, mine, dy + at,
                                          h + at, w, rstd[row], sums, d);
        else
            rmsnorm_bwd_twice<T, V>(dh + at, dh_t ? dh_t + at : nullptr, mine, dy + at, h + at, w,
                                    rstd[row], sums, d);
    }
    if (!sums)
        return; // all threads
    __syncthreads();
    for (int j = (int)threadIdx.x; j < d; j += (int)blockDim.x) {
        float sum = 0;
        for (int k = 0; k < warps; k++)
            sum += all[(size_t)k * d + j];
        sums[(size_t)blockIdx.x * d + j] = sum;
    }
}

// out (d) += columns of partial (rows, d). A warp takes every eighth row of 32 columns; then the
// warps' sums are added in order. There are few blocks, so a warp mostly waits for loads: sixteen
// of them are in flight before the first is added.
enum { COLUMN_LOADS = 16 };
__global__ void add_columns(float *out, const float *partial, int rows, int d) {
    __shared__ float room[WARPS][WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP,
        col = (int)blockIdx.x * WARP + lane;
    float sum = 0;
    for (int i = warp; col < d && i < rows; i += COLUMN_LOADS * WARPS) {
        float x[COLUMN_LOADS];
#pragma unroll
        for (int k = 0; k < COLUMN_LOADS; k++)
            x[k] = i + k * WARPS < rows ? partial[(size_t)(i + k * WARPS) * d + col] : 0.0f;
#pragma unroll
        for (int k = 0; k < COLUMN_LOADS; k++)
            sum += x[k];
    }
    room[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= d)
        return;
    for (int i = 1; i < WARPS; i++)
        sum += room[i][lane];
    out[col] += sum;
}
static unsigned column_blocks(int d) { return (unsigned)((d + WARP - 1) / WARP); }

template <class T, int V, int TURNS>
static cudaError_t rmsnorm_bwd_v(float *dh, T *dh_t, float *sums, const T *dy, const float *h,
                                 const float *w, const float *rstd, int n, int d, cudaStream_t s) {
    size_t shared = sums ? (size_t)norm_warps(d) * d * sizeof(float) : 0;
    if (shared > NORM_SHARED_PLAIN) {
        cudaError_t e =
            cudaFuncSetAttribute((const void *)rmsnorm_bwd<T, V, TURNS>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (e != cudaSuccess)
            return e;
    }
    KERN_LAUNCH((rmsnorm_bwd<T, V, TURNS>), norm_blocks(n, d), (unsigned)norm_warps(d) * WARP,
                shared, s, dh, dh_t, sums, dy, h, w, rstd, n, d);
    return cudaGetLastError();
}

template <class T>
static cudaError_t rmsnorm_bwd_t(float *dh, T *dh_t, float *sums, const T *dy, const float *h,
                                 const float *w, const float *rstd, int n, int d, cudaStream_t s) {
    bool four = d % 4 == 0 && aligned_to(dh, 16) && aligned_to(dh_t, 4 * sizeof(T)) &&
                aligned_to(dy, 4 * sizeof(T)) && aligned_to(h, 16) && aligned_to(w, 16);
    const int turn = 4 * WARP;
    return !four           ? rmsnorm_bwd_v<T, 1, 0>(dh, dh_t, sums, dy, h, w, rstd, n, d, s)
           : d <= 6 * turn ? rmsnorm_bwd_v<T, 4, 6>(dh, dh_t, sums, dy, h, w, rstd, n, d, s)
           : d <= 8 * turn ? rmsnorm_bwd_v<T, 4, 8>(dh, dh_t, sums, dy, h, w, rstd, n, d, s)
                           : rmsnorm_bwd_v<T, 4, 0>(dh, dh_t, sums, dy, h, w, rstd, n, d, s);
}

cudaError_t kern_cu_rmsnorm_bwd(enum kern_type t, float *dh, void *dh_t, float *dw, const void *dy,
                                const float *h, const float *w, const float *rstd, int n, int d,
                                float *scratch, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    float *sums = dw ? scratch : nullptr;
    cudaError_t e =
        t == KERN_BF16
            ? rmsnorm_bwd_t(dh, (bf16 *)dh_t, sums, (const bf16 *)dy, h, w, rstd, n, d, s)
            : rmsnorm_bwd_t(dh, (float *)dh_t, sums, (const float *)dy, h, w, rstd, n, d, s);
    if (e != cudaSuccess || !dw)
        return e;
    KERN_LAUNCH(add_columns, column_blocks(d), THREADS, 0, s, dw, scratch, (int)norm_blocks(n, d),
                d);
    return cudaGetLastError();
}

// ---- rotary positions

// V pairs a thread: x[i .. i + V) and x[i + half .. i + half + V).
template <class T, int V>
__global__ void rope(T *x, int ld, const float *cos_sin, size_t n, int T_, int heads, int head_dim,
                     float sign) {
    int half = head_dim / 2, per = half / V;
    FLAT_LOOP(at, n * heads * per) {
        size_t pair, row;
        uint32_t i, h;
        split(at, (uint32_t)per, pair, i);
        split(pair, (uint32_t)heads, row, h);
        i *= V;
        const float *cs = cos_sin + ((uint32_t)row % (uint32_t)T_ * half + i) * 2;
        T *p = x + row * ld + (size_t)h * head_dim + i;
        float a[V], b[V], c[2][V];
        load<T, V>(a, p);
        load<T, V>(b, p + half);
        load<float, V>(c[0], cs);
        load<float, V>(c[1], cs + V);
        float ra[V], rb[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            float co = c[2 * k / V][2 * k % V], si = sign * c[(2 * k + 1) / V][(2 * k + 1) % V];
            ra[k] = a[k] * co - b[k] * si;
            rb[k] = b[k] * co + a[k] * si;
        }
        store<T, V>(p, ra);
        store<T, V>(p + half, rb);
    }
}

template <class T>
static void rope_t(T *x, int ld, const float *cos_sin, int n, int T_, int heads, int head_dim,
                   float sign, cudaStream_t s) {
    size_t pairs = (size_t)n * heads * (head_dim / 2);
    if (head_dim % 8 == 0 && ld % 4 == 0 && aligned_to(x, 4 * sizeof(T)) && aligned_to(cos_sin, 16))
        KERN_LAUNCH((rope<T, 4>), blocks_for(pairs / 4, THREADS, GRID_MOST), THREADS, 0, s, x, ld,
                    cos_sin, (size_t)n, T_, heads, head_dim, sign);
    else
        KERN_LAUNCH((rope<T, 1>), blocks_for(pairs, THREADS, GRID_MOST), THREADS, 0, s, x, ld,
                    cos_sin, (size_t)n, T_, heads, head_dim, sign);
}

cudaError_t kern_cu_rope(enum kern_type t, void *x, int ld, const float *cos_sin, int n, int T,
                         int heads, int head_dim, bool inverse, cudaStream_t s) {
    float sign = inverse ? -1.0f : 1.0f;
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        rope_t((bf16 *)x, ld, cos_sin, n, T, heads, head_dim, sign, s);
    else
        rope_t((float *)x, ld, cos_sin, n, T, heads, head_dim, sign, s);
    return cudaGetLastError();
}

// ---- SwiGLU

__device__ static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T, int V> __global__ void swiglu_fwd(T *y, const T *gu, size_t n, int f) {
    int per = f / V;
    FLAT_LOOP(i, n * per) {
        size_t row;
        uint32_t j;
        split(i, (uint32_t)per, row, j);
        j *= V;
        float g[V], u[V];
        load<T, V>(g, gu + row * 2 * f + j);
        load<T, V>(u, gu + row * 2 * f + f + j);
#pragma unroll
        for (int k = 0; k < V; k++)
            g[k] = g[k] * sigmoid(g[k]) * u[k];
        store<T, V>(y + row * f + j, g);
    }
}

// dgu may be gu, since a thread reads its elements before it writes them. Hence no __restrict__.
template <class T, int V>
__global__ void swiglu_bwd(T *dgu, const T *dy, const T *gu, size_t n, int f) {
    int per = f / V;
    FLAT_LOOP(i, n * per) {
        size_t row;
        uint32_t j;
        split(i, (uint32_t)per, row, j);
        j *= V;
        size_t at = row * 2 * f + j;
        float g[V], u[V], d[V];
        load<T, V>(g, gu + at);
        load<T, V>(u, gu + at + f);
        load<T, V>(d, dy + row * f + j);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float sig = sigmoid(g[k]), up = u[k];
            u[k] = d[k] * g[k] * sig;
            g[k] = d[k] * up * sig * (1.0f + g[k] * (1.0f - sig));
        }
        store<T, V>(dgu + at, g);
        store<T, V>(dgu + at + f, u);
    }
}

template <class T> static bool eights(int f, const T *a, const T *b) {
    const int V = 16 / (int)sizeof(T);
    return f % V == 0 && aligned_to(a, 16) && aligned_to(b, 16);
}

template <class T> static void swiglu_fwd_t(T *y, const T *gu, int n, int f, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    size_t all = (size_t)n * f;
    if (eights(f, y, gu))
        KERN_LAUNCH((swiglu_fwd<T, V>), blocks_for(all / V, THREADS, GRID_MOST), THREADS, 0, s, y,
                    gu, (size_t)n, f);
    else
        KERN_LAUNCH((swiglu_fwd<T, 1>), blocks_for(all, THREADS, GRID_MOST), THREADS, 0, s, y, gu,
                    (size_t)n, f);
}

template <class T>
static void swiglu_bwd_t(T *dgu, const T *dy, const T *gu, int n, int f, cudaStream_t s) {
    const int V = 16 / (int)sizeof(T);
    size_t all = (size_t)n * f;
    if (eights(f, dgu, gu) && aligned_to(dy, 16))
        KERN_LAUNCH((swiglu_bwd<T, V>), blocks_for(all / V, THREADS, GRID_MOST), THREADS, 0, s, dgu,
                    dy, gu, (size_t)n, f);
    else
        KERN_LAUNCH((swiglu_bwd<T, 1>), blocks_for(all, THREADS, GRID_MOST), THREADS, 0, s, dgu, dy,
                    gu, (size_t)n, f);
}

cudaError_t kern_cu_swiglu_fwd(enum kern_type t, void *y, const void *gu, int n, int f,
                               cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        swiglu_fwd_t((bf16 *)y, (const bf16 *)gu, n, f, s);
    else
        swiglu_fwd_t((float *)y, (const float *)gu, n, f, s);
    return cudaGetLastError();
}

cudaError_t kern_cu_swiglu_bwd(enum kern_type t, void *dgu, const void *dy, const void *gu, int n,
                               int f, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        swiglu_bwd_t((bf16 *)dgu, (const bf16 *)dy, (const bf16 *)gu, n, f, s);
    else
        swiglu_bwd_t((float *)dgu, (const float *)dy, (const float *)gu, n, f, s);
    return cudaGetLastError();
}

// ---- biases

template <class T> __global__ void bias_fwd(T *x, const float *b, size_t n, int d) {
    FLAT_LOOP(i, n * d) {
        size_t row;
        uint32_t col;
        split(i, (uint32_t)d, row, col);
        x[i] = Narrow<T>::of(wide(x[i]) + b[col]);
    }
}

cudaError_t kern_cu_bias_fwd(enum kern_type t, void *x, const float *b, int n, int d,
                             cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    unsigned grid = blocks_for((size_t)n * d, THREADS, GRID_MOST);
    if (t == KERN_BF16)
        KERN_LAUNCH(bias_fwd<bf16>, grid, THREADS, 0, s, (bf16 *)x, b, (size_t)n, d);
    else
        KERN_LAUNCH(bias_fwd<float>, grid, THREADS, 0, s, (float *)x, b, (size_t)n, d);
    return cudaGetLastError();
}

// A thread owns a column, a block a range of rows.
enum { BIAS_BLOCKS = 128 };
static unsigned bias_blocks(int n) { return blocks_for((size_t)n, 64, BIAS_BLOCKS); }
size_t kern_cu_bias_bwd_scratch(int n, int d) { return (size_t)bias_blocks(n) * d; }

template <class T, bool WEIGHED>
__global__ void bias_bwd(float *partial, const T *dy, const float *by, int n, int d) {
    int col = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (col >= d)
        return;
    float sum = 0;
    for (size_t row = blockIdx.y; row < (size_t)n; row += gridDim.y)
        sum += WEIGHED ? by[row] * wide(dy[row * d + col]) : wide(dy[row * d + col]);
    partial[(size_t)blockIdx.y * d + col] = sum;
}

template <class T>
static void bias_bwd_t(float *partial, const T *dy, const float *by, int n, int d, cudaStream_t s) {
    dim3 grid((unsigned)((d + THREADS - 1) / THREADS), bias_blocks(n));
    if (by)
        KERN_LAUNCH((bias_bwd<T, true>), grid, THREADS, 0, s, partial, dy, by, n, d);
    else
        KERN_LAUNCH((bias_bwd<T, false>), grid, THREADS, 0, s, partial, dy, by, n, d);
}

cudaError_t kern_cu_bias_bwd(enum kern_type t, float *db, const void *dy, const float *by, int n,
                             int d, float *scratch, cudaStream_t s) {
    if (n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        bias_bwd_t(scratch, (const bf16 *)dy, by, n, d, s);
    else
        bias_bwd_t(scratch, (const float *)dy, by, n, d, s);
    KERN_LAUNCH(add_columns, column_blocks(d), THREADS, 0, s, db, scratch, (int)bias_blocks(n), d);
    return cudaGetLastError();
}
