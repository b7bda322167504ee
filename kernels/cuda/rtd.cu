// SPDX-License-Identifier: Apache-2.0
// Output layer of a discriminator (kern_rtd): score, loss and gradient of each row. A warp
// owns a row. Gradients of w and b are sums over rows: the factor of each row goes to scratch, and
// rows.cu sums the columns of x times these factors.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, GRID_MOST = 1 << 16 };

// factor (n): d loss / d score. NULL without learn.
template <class T, int V> __global__ void rtd_rows(struct kern_rtd h, float *factor) {
    int own = (int)threadIdx.x % WARP * V;
    float b = *h.b, by = h.dx ? *h.grad_scale : 0.0f;
    for (size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < (size_t)h.n;
         row += (size_t)gridDim.x * WARPS) {
        const T *x = (const T *)h.x + row * h.d;
        int32_t label = h.labels[row];
        float z = 0;
        for (int j = own; j < h.d; j += WARP * V) {
            float a[V], w[V];
            load<T, V>(a, x + j);
            load<float, V>(w, h.w + j);
#pragma unroll
            for (int i = 0; i < V; i++)
                z += a[i] * w[i];
        }
        z = warp_sum(z) + b;
        // exp(-|z|) keeps the digits of sigma near 0, and of 1 - sigma near 1
        float away = expf(-fabsf(z)), near = 1 / (1 + away);
        float sigma = z >= 0 ? near : away * near, g = 0, loss = 0;
        if (label != KERN_IGNORE) {
            g = (sigma - (float)label) * by;
            loss = fmaxf(z, 0.0f) + log1pf(away) - (float)label * z;
        }
        if (own == 0) {
            h.scores[row] = z;
            h.losses[row] = loss;
            if (h.dx)
                factor[row] = g;
        }
        for (int j = own; h.dx && j < h.d; j += WARP * V) {
            float w[V];
            load<float, V>(w, h.w + j);
#pragma unroll
            for (int i = 0; i < V; i++)
                w[i] *= g;
            store<T, V>((T *)h.dx + row * h.d + j, w);
        }
    }
}

template <class T> static void rtd_rows_t(const struct kern_rtd *h, float *factor, cudaStream_t s) {
    unsigned grid = blocks_for((size_t)h->n, WARPS, GRID_MOST);
    if (h->d % 4 == 0 && aligned_to((const T *)h->x, 4 * sizeof(T)) && aligned_to(h->w, 16) &&
        (!h->dx || aligned_to((T *)h->dx, 4 * sizeof(T))))
        KERN_LAUNCH((rtd_rows<T, 4>), grid, THREADS, 0, s, *h, factor);
    else
        KERN_LAUNCH((rtd_rows<T, 1>), grid, THREADS, 0, s, *h, factor);
}

size_t kern_cu_rtd_scratch(int n, int d) { return (size_t)n + kern_cu_bias_bwd_scratch(n, d); }

cudaError_t kern_cu_rtd(enum kern_type t, const struct kern_rtd *h, float *scratch,
                        cudaStream_t s) {
    if (h->n == 0)
        return cudaSuccess;
    if (t == KERN_BF16)
        rtd_rows_t<bf16>(h, scratch, s);
    else
        rtd_rows_t<float>(h, scratch, s);
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess && h->dx && h->dw)
        e = kern_cu_bias_bwd(t, h->dw, h->x, scratch, h->n, h->d, scratch + h->n, s);
    if (e == cudaSuccess && h->dx && h->db)
        e = kern_cu_add_sum(h->db, scratch, h->n, s);
    return e == cudaSuccess ? kern_cu_loss_total(h->total, h->losses, h->n, s) : e;
}
