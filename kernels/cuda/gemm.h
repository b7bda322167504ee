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

// bias and sums have type tc, as cuBLASLt requires. At most one of the two is set.
struct kern_cu_product {
    struct kern_gemm g;
    void *sums; // (m) written: sums of op(A)'s rows; alpha is 1
};

// NEB_ERR_NOMEM; NEB_ERR_IO: the library does not start. wrong: the reason, a constant string. For
// kern_cu_gemm_destroy *g may be NULL.
NEB_MUST_CHECK enum neb_status kern_cu_gemm_create(struct kern_cu_gemm **out, const char **wrong);
void kern_cu_gemm_destroy(struct kern_cu_gemm **g);
// True if the library has a kernel for this product. Sums are not possible for every shape and
// type.
bool kern_cu_gemm_takes(struct kern_cu_gemm *g, const struct kern_cu_product *p);
// True if the library was asked for this product before and the answer is still kept. It must not
// be asked while a stream is captured.
bool kern_cu_gemm_knows(const struct kern_cu_gemm *g, const struct kern_cu_product *p);
// Enqueues a product. The plan of a shape is made at its first use and kept. gemm_any.cu has the
// kernel where the library has none, or refuses to launch the one that it found. A refusal is
// logged once for each plan. Two cases differ:
//
//     with sums    returns kern_cu_gemm_no_sums (compare the address): nothing was enqueued, and
//                  the caller may ask for the product without sums
//     capturing    a refusal is an error: the graph would hold another kernel than the run before
//
// Returns NULL, or what went wrong: a string of g, valid until the next call.
extern const char kern_cu_gemm_no_sums[];
const char *kern_cu_gemm_run(struct kern_cu_gemm *g, const struct kern_cu_product *p,
                             cudaStream_t s, bool capturing);

// Takes any shape and alignment, with or without a bias, without sums. cudaErrorInvalidValue: rows
// overlap, or the types do not fit together.
cudaError_t kern_cu_gemm_any(const struct kern_cu_product *p, cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
