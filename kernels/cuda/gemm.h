// SPDX-License-Identifier: Apache-2.0
// Matrix products of the CUDA backend, behind one function.
#ifndef KERN_CUDA_GEMM_H
#define KERN_CUDA_GEMM_H
#include "kernels/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_cu_gemm; // handle, workspace, plans

// device.h's gemm; bias and sums are of type tc, which cuBLASLt wants of them. One of the two at most.
struct kern_cu_product {
    enum kern_type t, tc;
    enum kern_trans ta, tb;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const void *a, *b, *bias;
    void *c;
    void *sums; // (m) written: of op(A)'s rows; alpha is 1
};

// NEB_ERR_NOMEM, or NEB_ERR_IO: the library does not start; wrong: what it was, a constant string. destroy is NULL-safe.
NEB_MUST_CHECK enum neb_status kern_cu_gemm_create(struct kern_cu_gemm **out, const char **wrong);
void kern_cu_gemm_destroy(struct kern_cu_gemm **g);
// Does the library have a kernel for this product? sums: not for every shape and type.
bool kern_cu_gemm_takes(struct kern_cu_gemm *g, const struct kern_cu_product *p);
// Was it asked before, and is the answer still there? Nothing is asked while a stream is captured.
bool kern_cu_gemm_knows(const struct kern_cu_gemm *g, const struct kern_cu_product *p);
// Enqueues. Plans are made at the first use of a shape and kept. Where the library has no kernel ours is taken (gemm_any.cu), also
// where it finds one and then refuses to launch it, which is said once a shape and kept with the plan. Not so:
//
//     with sums           kern_cu_gemm_no_sums, by its address: nothing was enqueued, and the product without sums may go on
//     capturing           a refusal spoils what is being captured: it would hold another kernel than the plain way had
//
// NULL, or what went wrong: g's, until the next call.
extern const char kern_cu_gemm_no_sums[];
const char *kern_cu_gemm_run(struct kern_cu_gemm *g, const struct kern_cu_product *p,
                             cudaStream_t s, bool capturing);

// Any shape and alignment, bias too, no sums: cudaErrorInvalidValue where rows overlap or the types do not go together.
cudaError_t kern_cu_gemm_any(const struct kern_cu_product *p, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
