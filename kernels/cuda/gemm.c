// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt, which is column-major: row-major C = op(A) op(B) is its
// C^T = op(B)^T op(A)^T. So A and B change places and keep their transposition. The bias is an
// epilogue. So are the sums of op(A)'s rows over k: op(A) is the library's second operand, and
// BGRADB sums it for each column of the result.
//
// The library's heuristics are asked once for each shape and alignment of pointers. The answer is
// kept, also if there is no kernel. gemm_any.cu computes such a product. It also computes a product
// if the library refuses to launch its own choice and has enqueued nothing.
#include "kernels/cuda/gemm.h"
#include "agent/base/log.h"
#include "kernels/cuda/launch.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANS = 256, WORKSPACE_BYTES = 32 << 20, ALIGN_MOST = 256, TEXT_MOST = 128 };

struct key { // all that a plan depends on; no padding, compared as bytes
    int32_t t, tc, ta, tb, m, n, k, lda, ldb, ldc, beta, bias, sums, align_a, align_b, align_c;
};

struct plan {
    struct key key;
    bool none; // there is no kernel
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct kern_cu_gemm {
    cublasLtHandle_t lt;
    void *workspace;
    struct plan plans[PLANS];
    int used, next; // next: is replaced when all are used
    char wrong[TEXT_MOST];
};

const char kern_cu_gemm_no_sums[] = "cuBLASLt has no kernel for a product with sums";

enum neb_status kern_cu_gemm_create(struct kern_cu_gemm **out, const char **wrong) {
    struct kern_cu_gemm *g = calloc(1, sizeof *g);
    *wrong = "out of host memory";
    if (!g)
        return NEB_ERR_NOMEM;
    if (cublasLtCreate(&g->lt) != CUBLAS_STATUS_SUCCESS) {
        free(g);
        *wrong = "cuBLASLt cannot be started";
        return NEB_ERR_IO;
    }
    if (cudaMalloc(&g->workspace, WORKSPACE_BYTES) != cudaSuccess) {
        (void)cublasLtDestroy(g->lt);
        free(g);
        *wrong = "out of device memory for cuBLASLt";
        return NEB_ERR_NOMEM;
    }
    *out = g;
    return NEB_OK;
}

static void forget(struct plan *p) {
    if (p->c)
        (void)cublasLtMatrixLayoutDestroy(p->c);
    if (p->b)
        (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->a)
        (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->op)
        (void)cublasLtMatmulDescDestroy(p->op);
    memset(p, 0, sizeof *p);
}

void kern_cu_gemm_destroy(struct kern_cu_gemm **gp) {
    struct kern_cu_gemm *g = *gp;
    if (!g)
        return;
    for (int i = 0; i < g->used; i++)
        forget(&g->plans[i]);
    (void)cudaFree(g->workspace);
    (void)cublasLtDestroy(g->lt);
    free(g);
    *gp = NULL;
}

static int32_t alignment_of(const void *p) {
    uintptr_t u = (uintptr_t)p, low = u & (~u + 1);
    return low == 0 || low > ALIGN_MOST ? ALIGN_MOST : (int32_t)low;
}

static struct key key_of(const struct kern_cu_product *p) {
    return (struct key){.t = (int32_t)p->g.t,
                        .tc = (int32_t)p->g.tc,
                        .ta = (int32_t)p->g.ta,
                        .tb = (int32_t)p->g.tb,
                        .m = p->g.m,
                        .n = p->g.n,
                        .k = p->g.k,
                        .lda = p->g.lda,
                        .ldb = p->g.ldb,
                        .ldc = p->g.ldc,
                        .beta = p->g.beta != 0,
                        .bias = p->g.bias ? alignment_of(p->g.bias) : 0,
                        .sums = p->sums ? alignment_of(p->sums) : 0,
                        .align_a = alignment_of(p->g.a),
                        .align_b = alignment_of(p->g.b),
                        .align_c = alignment_of(p->g.c)};
}

static cudaDataType_t type_of(enum kern_type t) {
    return t == KERN_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Sets the epilogue and its pointer. The library looks at the pointer's alignment when it chooses a
// kernel.
static bool epilogue(cublasLtMatmulDesc_t op, const struct kern_cu_product *p) {
    cublasLtEpilogue_t what = p->g.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB;
    const void *at = p->g.bias ? p->g.bias : p->sums;
    return !at || (cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &what,
                                                  sizeof what) == CUBLAS_STATUS_SUCCESS &&
                   cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at,
                                                  sizeof at) == CUBLAS_STATUS_SUCCESS);
}

static bool describe(struct plan *out, const struct kern_cu_product *p) {
    cublasOperation_t first = p->g.tb == KERN_T ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = p->g.ta == KERN_T ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t k = (uint64_t)p->g.k, m = (uint64_t)p->g.m, n = (uint64_t)p->g.n;
    // A row-major (rows, cols) is a column-major (cols, rows).
    return cublasLtMatmulDescCreate(&out->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(out->op, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                          sizeof first) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(out->op, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                          sizeof second) == CUBLAS_STATUS_SUCCESS &&
           epilogue(out->op, p) &&
           cublasLtMatrixLayoutCreate(&out->a, type_of(p->g.t), p->g.tb == KERN_T ? k : n,
                                      p->g.tb == KERN_T ? n : k,
                                      p->g.ldb) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&out->b, type_of(p->g.t), p->g.ta == KERN_T ? m : k,
                                      p->g.ta == KERN_T ? k : m,
                                      p->g.lda) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&out->c, type_of(p->g.tc), n, m, p->g.ldc) ==
               CUBLAS_STATUS_SUCCESS;
}

// If the library splits a sum over k, its parts must be added in fp32 (kern.h). For an output in
// bf16 this forbids adding them in the output or in its type. For fp32 every way is good.
static bool sums_in_fp32(cublasLtMatmulPreference_t want, const struct key *key) {
    uint32_t ways = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return key->tc != KERN_BF16 ||
           cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                &ways, sizeof ways) == CUBLAS_STATUS_SUCCESS;
}

static bool choose(struct kern_cu_gemm *g, struct plan *out, const struct key *key) {
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found;
    size_t workspace = WORKSPACE_BYTES;
    uint32_t a = (uint32_t)key->align_b, b = (uint32_t)key->align_a,
             c = (uint32_t)key->align_c; // A and B have changed places
    int n = 0;
    bool ok = cublasLtMatmulPreferenceCreate(&want) == CUBLAS_STATUS_SUCCESS &&
              sums_in_fp32(want, key) &&
              cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace,
                                                   sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                   &a, sizeof a) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                   &b, sizeof b) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                   &c, sizeof c) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                                                   &c, sizeof c) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulAlgoGetHeuristic(g->lt, out->op, out->a, out->b, out->c, out->c, want,
                                             1, &found, &n) == CUBLAS_STATUS_SUCCESS &&
              n > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    if (want)
        (void)cublasLtMatmulPreferenceDestroy(want);
    if (ok)
        out->algo = found.algo;
    return ok;
}

static int find(const struct kern_cu_gemm *g, const struct key *key) { // -1: not found
    for (int i = 0; i < g->used; i++)
        if (!memcmp(&g->plans[i].key, key, sizeof *key))
            return i;
    return -1;
}

static struct plan *plan_for(struct kern_cu_gemm *g, const struct kern_cu_product *p) {
    struct key key = key_of(p);
    int known = find(g, &key);
    if (known >= 0)
        return &g->plans[known];
    struct plan *to = &g->plans[g->used < PLANS ? g->used : g->next];
    if (g->used < PLANS)
        g->used++;
    else
        g->next = (g->next + 1) % PLANS;
    forget(to);
    bool made = describe(to, p) && choose(g, to, &key);
    if (!made)
        forget(to);
    to->none = !made;
    to->key = key;
    return to;
}

bool kern_cu_gemm_takes(struct kern_cu_gemm *g, const struct kern_cu_product *p) {
    return !plan_for(g, p)->none;
}
bool kern_cu_gemm_knows(const struct kern_cu_gemm *g, const struct kern_cu_product *p) {
    struct key key = key_of(p);
    return find(g, &key) >= 0;
}

static const char *wrong(struct kern_cu_gemm *g, const char *what, int status) {
    snprintf(g->wrong, sizeof g->wrong, "%s (status %d)", what, status);
    return g->wrong;
}

// Without cuBLASLt: slow, but correct.
static const char *run_any(struct kern_cu_gemm *g, const struct kern_cu_product *p,
                           cudaStream_t s) {
    if (p->sums)
        return kern_cu_gemm_no_sums;
    cudaError_t e = kern_cu_gemm_any(p, s);
    return e == cudaSuccess ? NULL : wrong(g, "no kernel takes this product", (int)e);
}

const char *kern_cu_gemm_run(struct kern_cu_gemm *g, const struct kern_cu_product *p,
                             cudaStream_t s, bool capturing) {
    if (p->g.m == 0 || p->g.n == 0) // nothing to do, except for sums
        return p->sums ? kern_cu_gemm_no_sums : NULL;
    if (p->g.k == 0)
        return "a product over an empty dimension (k is 0)";
    struct plan *plan = plan_for(g, p);
    if (plan->none)
        return run_any(g, p, s);
    if (!epilogue(plan->op, p))
        return "cuBLASLt rejects a bias or sums";
    cublasStatus_t got = cublasLtMatmul(g->lt, plan->op, &p->g.alpha, p->g.b, plan->a, p->g.a,
                                        plan->b, &p->g.beta, p->g.c, plan->c, p->g.c, plan->c,
                                        &plan->algo, g->workspace, WORKSPACE_BYTES, s);
    if (got == CUBLAS_STATUS_SUCCESS)
        return NULL;
    // These two come from a check of the arguments: nothing was enqueued.
    bool refused = got == CUBLAS_STATUS_NOT_SUPPORTED || got == CUBLAS_STATUS_INVALID_VALUE;
    if (!refused || capturing)
        return wrong(g, "a product by cuBLASLt failed", (int)got);
    plan->none = true;
    neb_warn("cuBLASLt chose a kernel for a product of %d x %d x %d (%s to %s%s) but refuses to "
             "launch it (status %d): from now on %s",
             p->g.m, p->g.n, p->g.k, p->g.t == KERN_BF16 ? "bf16" : "fp32",
             p->g.tc == KERN_BF16 ? "bf16" : "fp32", p->sums ? ", with sums" : "", (int)got,
             p->sums ? "a separate kernel computes the sums" : "a slower kernel computes it");
    return run_any(g, p, s);
}
