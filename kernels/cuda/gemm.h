// Matrix products of the CUDA backend, behind one function.
#ifndef KERN_CUDA_GEMM_H
#define KERN_CUDA_GEMM_H
#include "kernels/device.h"

#include <cuda_runtime_api.h>

struct kern_cu_gemm; // handle, workspace, plans

struct kern_cu_product { // device.h's gemm; the bias is of type tc, which cuBLASLt wants of it
    enum kern_type t, tc;
    enum kern_trans ta, tb;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const void *a, *b, *bias;
    void *c;
};

// NULL, or what went wrong (a constant string). destroy is NULL-safe.
const char *kern_cu_gemm_create(struct kern_cu_gemm **out);
void kern_cu_gemm_destroy(struct kern_cu_gemm **g);
// Enqueues. Plans are made at the first use of a shape and kept.
const char *kern_cu_gemm_run(struct kern_cu_gemm *g, const struct kern_cu_product *p,
                             cudaStream_t s);

#endif
