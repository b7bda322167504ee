// SPDX-License-Identifier: Apache-2.0
// The product for shapes and alignments for which cuBLASLt has no kernel: fp32 arithmetic, one
// thread for each element of C, tiles of both operands in shared memory. It is far slower than
// tensor cores, but training can go on.
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/prim.cuh"

enum { SIDE = 16, GRID_MOST = 65535 };

struct operands {
    const void *a, *b, *bias;
    void *c;
    int m, n, k, lda, ldb, ldc;
    bool ta, tb;
    float alpha, beta;
};

template <class T, class TC> __global__ void product(struct operands o) {
    __shared__ float a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
    const T *A = (const T *)o.a, *B = (const T *)o.b;
    const TC *bias = (const TC *)o.bias;
    TC *C = (TC *)o.c;
    int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE, col = (int)blockIdx.x * SIDE + x;
    for (int row0 = (int)blockIdx.y * SIDE; row0 < o.m; row0 += (int)gridDim.y * SIDE) {
        float sum = 0;
        int row = row0 + y;
        for (int k0 = 0; k0 < o.k; k0 += SIDE) {
            // Neighbouring threads read neighbouring elements, in both layouts of an operand.
            int ar = row0 + (o.ta ? x : y), ak = k0 + (o.ta ? y : x),
                bc = (int)blockIdx.x * SIDE + (o.tb ? y : x), bk = k0 + (o.tb ? x : y);
            float av = 0, bv = 0;
            if (ar < o.m && ak < o.k)
                av = wide(A[o.ta ? (size_t)ak * o.lda + ar : (size_t)ar * o.lda + ak]);
            if (bc < o.n && bk < o.k)
                bv = wide(B[o.tb ? (size_t)bc * o.ldb + bk : (size_t)bk * o.ldb + bc]);
            a[o.ta ? x : y][o.ta ? y : x] = av; // (row, k)
            b[o.tb ? x : y][o.tb ? y : x] = bv; // (k, column)
            __syncthreads();
#pragma unroll
            for (int k = 0; k < SIDE; k++)
                sum += a[y][k] * b[k][x];
            __syncthreads();
        }
        if (row >= o.m || col >= o.n)
            continue; // after the barriers of this tile
        TC *to = C + (size_t)row * o.ldc + col;
        float out = o.alpha * sum;
        if (o.beta != 0)
            out += o.beta * wide(*to);
        if (bias)
            out += wide(bias[col]);
        *to = Narrow<TC>::of(out);
    }
}

cudaError_t kern_cu_gemm_any(const struct kern_cu_product *p, cudaStream_t s) {
    bool ta = p->g.ta == KERN_T, tb = p->g.tb == KERN_T;
    if (p->sums || p->g.lda < (ta ? p->g.m : p->g.k) || p->g.ldb < (tb ? p->g.k : p->g.n) ||
        p->g.ldc < p->g.n || (p->g.t == KERN_F32 && p->g.tc != KERN_F32))
        return cudaErrorInvalidValue;
    struct operands o = {p->g.a,   p->g.b,   p->g.bias, p->g.c, p->g.m, p->g.n,     p->g.k,
                         p->g.lda, p->g.ldb, p->g.ldc,  ta,     tb,     p->g.alpha, p->g.beta};
    dim3 grid((unsigned)((p->g.n + SIDE - 1) / SIDE), blocks_for((size_t)p->g.m, SIDE, GRID_MOST));
    if (p->g.t == KERN_F32)
        KERN_LAUNCH((product<float, float>), grid, SIDE * SIDE, 0, s, o);
    else if (p->g.tc == KERN_F32)
        KERN_LAUNCH((product<bf16, float>), grid, SIDE * SIDE, 0, s, o);
    else
        KERN_LAUNCH((product<bf16, bf16>), grid, SIDE * SIDE, 0, s, o);
    return cudaGetLastError();
}
