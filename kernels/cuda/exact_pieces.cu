// SPDX-License-Identifier: Apache-2.0
// Reads and writes parts of the tensors of an attached loop (kern_ops.piece_read, piece_write): any
// rectangle, any strides, fp32 or 16 bits. Compiled as the exact path (exact.cu), because what a
// read adds to a shadow must have the processor's bits.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prim.cuh"
#include "kernels/half.h"

enum { THREADS = 256, GRID_MOST = 1 << 14 };

#define EACH(i, n)                                                                                 \
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < (n);                           \
         i += (size_t)gridDim.x * THREADS)

// Where the part has element i of the unit; false: it does not have it.
__device__ static inline bool find(const struct kern_piece &p, size_t i, size_t &at) {
    int64_t rest = p.first + (int64_t)i, there = 0;
    for (int k = p.dims - 1; k >= 0; k--) {
        int64_t row = k ? rest / p.shape[k] : 0, c = rest - row * p.shape[k] - p.at[k];
        if (c < 0 || c >= p.extent[k])
            return false;
        there += c * p.stride[k];
        rest = row;
    }
    at = (size_t)there;
    return true;
}

__device__ static inline float widened(uint16_t h, bool bf16) {
    return bf16 ? kern_f32_of_bf16(h) : kern_f32_of_f16(h);
}
__device__ static inline uint16_t narrowed(float x, bool bf16) {
    return bf16 ? kern_bf16_of_f32(x) : kern_f16_of_f32(x);
}

__global__ void read_f32(float *unit, struct kern_piece p) {
    size_t at;
    EACH(i, p.n)
    if (find(p, i, at))
        unit[i] = ((const float *)p.data)[at];
}
__global__ void read_16(float *unit, const float *shadow, struct kern_piece p, bool bf16) {
    size_t at;
    EACH(i, p.n)
    if (find(p, i, at)) {
        float x = widened(((const uint16_t *)p.data)[at], bf16);
        if (shadow) {
            float s = shadow[i], was = widened(narrowed(s, bf16), bf16), more = x - was;
            x = x == was ? s : s + more;
        }
        unit[i] = x;
    }
}
__global__ void write_f32(struct kern_piece p, const float *unit) {
    size_t at;
    EACH(i, p.n)
    if (find(p, i, at))
        ((float *)p.data)[at] = unit[i];
}
__global__ void write_16(struct kern_piece p, const float *unit, float *shadow, bool bf16) {
    size_t at;
    EACH(i, p.n)
    if (find(p, i, at)) {
        ((uint16_t *)p.data)[at] = narrowed(unit[i], bf16);
        if (shadow)
            shadow[i] = unit[i];
    }
}

// The grid wants at least one block.
static unsigned grid_for(size_t n) { return blocks_for(n, THREADS, GRID_MOST); }

cudaError_t kern_cu_piece_read(float *unit, const float *shadow, const struct kern_piece *p,
                               cudaStream_t s) {
    if (p->n == 0)
        return cudaSuccess;
    if (p->stored == KERN_STORED_F32)
        KERN_LAUNCH(read_f32, grid_for(p->n), THREADS, 0, s, unit, *p);
    else
        KERN_LAUNCH(read_16, grid_for(p->n), THREADS, 0, s, unit, shadow, *p,
                    p->stored == KERN_STORED_BF16);
    return cudaGetLastError();
}

cudaError_t kern_cu_piece_write(const struct kern_piece *p, const float *unit, float *shadow,
                                cudaStream_t s) {
    if (p->n == 0)
        return cudaSuccess;
    if (p->stored == KERN_STORED_F32)
        KERN_LAUNCH(write_f32, grid_for(p->n), THREADS, 0, s, *p, unit);
    else
        KERN_LAUNCH(write_16, grid_for(p->n), THREADS, 0, s, *p, unit, shadow,
                    p->stored == KERN_STORED_BF16);
    return cudaGetLastError();
}
