// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's matrix products on the host, as in its manual: column-major matrices, transposition,
// leading dimensions, types, alpha and beta. It has one epilogue: the bias (D's type, one per row
// of D), or the sums of B over k (BGRADB: D's type, one per column, without alpha and beta). Where
// the manual leaves a choice, the emulator is strict:
// - an algorithm is valid only for the descriptors, alignments and workspace of its heuristics call
// - descriptors are read at the call, matrices and bias when the queue runs
// - sums of B exist only for some shapes and types; with EMU_NO_SUMS for none
// - if partial sums in the output's type are allowed, it uses two, each rounded
// - EMU_LAUNCH=STATUS: an algorithm that was found is not launched, with that status
// - no heuristics while a stream is captured
// - it reads neither C with beta 0 nor the gaps between columns
#include <cublasLt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

cudaError_t emu_enqueue(cudaStream_t s, void (*run)(const void *job), const void *job,
                        size_t bytes);
int emu_capturing(void);

enum { WANTS_BYTES = 1 << 20, WORKSPACE_ALIGN = 256 };

struct desc {
    int32_t ta, tb;
    uint32_t epilogue;
    const void *bias;
};
struct layout {
    int32_t type;
    uint64_t rows, cols, ld;
};
struct preference {
    uint64_t workspace;
    uint32_t align[4]; // of A, B, C, D
    uint32_t reduction;
};
// An algorithm, with the problem for which it is valid.
struct made_for {
    uint64_t shape; // a hash of all descriptors
    uint64_t workspace;
    uint32_t align[5]; // of A, B, C, D and the bias; 0: none
    uint32_t rounds;   // number of partial sums in D's type
};

static const struct desc *desc_of(cublasLtMatmulDesc_t d) {
    return (const struct desc *)(const void *)d;
}
static const struct layout *layout_of(cublasLtMatrixLayout_t l) {
    return (const struct layout *)(const void *)l;
}

static cublasStatus_t take(void *to, size_t want, const void *from, size_t bytes) {
    if (bytes != want)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t create(void *out, size_t bytes) {
    void *p = calloc(1, bytes);
    memcpy(out, &p, sizeof p);
    return p ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
static cublasStatus_t destroy(void *p) {
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) { return create(out, 1); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return destroy(h); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t st = create(out, sizeof(struct desc));
    if (st == CUBLAS_STATUS_SUCCESS)
        ((struct desc *)(void *)*out)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return st;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to,
                                              cublasLtMatmulDescAttributes_t what, const void *from,
                                              size_t bytes) {
    struct desc *d = (struct desc *)(void *)to;
    if (what == CUBLASLT_MATMUL_DESC_TRANSA)
        return take(&d->ta, sizeof d->ta, from, bytes);
    if (what == CUBLASLT_MATMUL_DESC_TRANSB)
        return take(&d->tb, sizeof d->tb, from, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE)
        return take(&d->epilogue, sizeof d->epilogue, from, bytes);
    if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        return take(&d->bias, sizeof d->bias, from, bytes);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    struct layout l = {(int32_t)type, rows, cols, (uint64_t)ld};
    if (ld < 0 || (uint64_t)ld < rows || !rows || !cols) // columns would overlap
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t st = create(out, sizeof l);
    if (st == CUBLAS_STATUS_SUCCESS)
        memcpy(*out, &l, sizeof l);
    return st;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return destroy(l); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    struct preference p = {0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK};
    cublasStatus_t st = create(out, sizeof p);
    if (st == CUBLAS_STATUS_SUCCESS)
        memcpy(*out, &p, sizeof p);
    return st;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *from, size_t bytes) {
    struct preference *p = (struct preference *)(void *)to;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return take(&p->workspace, sizeof p->workspace, from, bytes);
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return take(&p->reduction, sizeof p->reduction, from, bytes);
    if (what < CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES ||
        what > CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    uint32_t *align = &p->align[(int)what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    return take(align, sizeof *align, from, bytes);
}

// ---- the product that the descriptors ask for ----

struct product { // read from the descriptors
    struct desc d;
    struct layout a, b, c, out;
    uint64_t m, n, k;
};

static bool product_of(struct product *p, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                       cublasLtMatrixLayout_t out) {
    memset(p, 0, sizeof *p); // padding too: it is hashed
    p->d.ta = desc_of(d)->ta;
    p->d.tb = desc_of(d)->tb;
    p->d.epilogue = desc_of(d)->epilogue;
    p->d.bias = desc_of(d)->bias;
    memcpy(&p->a, layout_of(a), sizeof p->a);
    memcpy(&p->b, layout_of(b), sizeof p->b);
    memcpy(&p->c, layout_of(c), sizeof p->c);
    memcpy(&p->out, layout_of(out), sizeof p->out);
    p->m = p->d.ta ? p->a.cols : p->a.rows;
    p->k = p->d.ta ? p->a.rows : p->a.cols;
    p->n = p->d.tb ? p->b.rows : p->b.cols;
    return (p->d.tb ? p->b.cols : p->b.rows) == p->k && p->out.rows == p->m &&
           p->out.cols == p->n && p->c.rows == p->m && p->c.cols == p->n;
}
// The manual's table for CUBLAS_COMPUTE_32F with a scale of CUDA_R_32F, limited to bf16 and fp32.
static bool types_are_known(const struct product *p) {
    return p->a.type == p->b.type && p->c.type == p->out.type &&
           (p->out.type == CUDA_R_32F || p->a.type == CUDA_R_16BF) && (p->d.ta & ~1) == 0 &&
           (p->d.tb & ~1) == 0 &&
           (p->d.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
            ((p->d.epilogue == CUBLASLT_EPILOGUE_BIAS ||
              (p->d.epilogue == CUBLASLT_EPILOGUE_BGRADB && !getenv("EMU_NO_SUMS"))) &&
             p->d.bias));
}
static uint64_t hash_of(const struct product *p) {
    struct product copy = *p;
    const unsigned char *at = (const unsigned char *)&copy;
    uint64_t h = 1469598103934665603ull;
    copy.d.bias = NULL; // only its alignment counts
    for (size_t i = 0; i < sizeof copy; i++)
        h = (h ^ at[i]) * 1099511628211ull;
    return h;
}
static uint32_t alignment_of(const void *p) {
    uintptr_t u = (uintptr_t)p, low = u & (~u + 1);
    return low == 0 || low > 256 ? 256 : (uint32_t)low;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *found) {
    struct product p;
    const struct preference *want = (const struct preference *)(const void *)preference;
    *found = 0;
    if (emu_capturing()) // a call may load a kernel
        return CUBLAS_STATUS_INTERNAL_ERROR;
    if (!h || most < 1 || !product_of(&p, d, a, b, c, out))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_are_known(&p))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct made_for f = {
        .shape = hash_of(&p),
        .workspace = want->workspace < WANTS_BYTES ? want->workspace : WANTS_BYTES,
        .align = {want->align[0], want->align[1], want->align[2], want->align[3],
                  p.d.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 0 : alignment_of(p.d.bias)},
        .rounds = p.out.type == CUDA_R_16BF &&
                  (want->reduction & (CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                      CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0};
    uint32_t element = p.a.type == CUDA_R_16BF ? 2 : 4, result = p.out.type == CUDA_R_16BF ? 2 : 4;
    if (f.align[0] < element || f.align[1] < element || f.align[2] < result || f.align[3] < result)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    _Static_assert(sizeof f <= sizeof results->algo, "fits");
    memcpy(&results->algo, &f, sizeof f);
    results->workspaceSize = f.workspace;
    // EMU_NO_PRODUCTS: the result of the heuristics has an error status
    results->state =
        getenv("EMU_NO_PRODUCTS") ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- the product ----

struct job {
    struct product p;
    const char *a, *b, *c;
    char *out;
    float alpha, beta;
    bool rounds;
};

static float get(int32_t type, const char *p, uint64_t i) {
    uint32_t u = 0;
    float f;
    if (type == CUDA_R_16BF) {
        uint16_t half;
        memcpy(&half, p + 2 * i, 2);
        u = (uint32_t)half << 16;
    } else {
        memcpy(&u, p + 4 * i, 4);
    }
    memcpy(&f, &u, 4);
    return f;
}
static void put(int32_t type, char *p, uint64_t i, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (type == CUDA_R_16BF) {
        uint16_t half = (uint16_t)(f != f ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
        memcpy(p + 2 * i, &half, 2);
    } else {
        memcpy(p + 4 * i, &u, 4);
    }
}
static double rounded(int32_t type, double x) {
    char room[4];
    put(type, room, 0, (float)x);
    return (double)get(type, room, 0);
}
enum { SIDE = 8 }; // rows of the result at once: SIDE independent sums, each in order

// x: n times SIDE numbers; y: n numbers
static void dots(double sums[SIDE], const double *x, const double *y, uint64_t n) {
    double s[SIDE] = {0};
    for (uint64_t l = 0; l < n; l++)
        for (int i = 0; i < SIDE; i++)
            s[i] += x[l * SIDE + i] * y[l];
    memcpy(sums, s, sizeof s);
}
// Packs `side` rows of op(X) (columns for the right operand) beside each other, k numbers each;
// zeros after the last row.
static double *unfold(const char *x, const struct layout *l, bool by_column, uint64_t rows,
                      uint64_t k, uint64_t side) {
    double *y = calloc((rows + side - 1) / side * side * k, sizeof *y);
    if (!y)
        abort();
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < k; j++)
            y[i / side * side * k + j * side + i % side] =
                (double)get(l->type, x, by_column ? i * l->ld + j : j * l->ld + i);
    return y;
}
static void run(const void *with) {
    struct job j;
    memcpy(&j, with, sizeof j);
    const struct product *p = &j.p;
    double *a = unfold(j.a, &p->a, p->d.ta, p->m, p->k, SIDE),
           *b = unfold(j.b, &p->b, !p->d.tb, p->n, p->k, 1);
    double sums[2][SIDE] = {{0}}; // two parts of k, for the rows from the last multiple of SIDE on
    for (uint64_t col = 0; col < p->n; col++)
        for (uint64_t row = 0; row < p->m; row++) {
            uint64_t half = j.rounds ? p->k / 2 : 0;
            const double *x = a + row * p->k, *y = b + col * p->k;
            if (row % SIDE == 0) {
                dots(sums[0], x, y, half);
                dots(sums[1], x + half * SIDE, y + half, p->k - half);
            }
            double sum = sums[1][row % SIDE];
            if (j.rounds)
                sum = rounded(p->out.type, sums[0][row % SIDE]) + rounded(p->out.type, sum);
            sum *= (double)j.alpha;
            if (j.beta != 0)
                sum += (double)j.beta * (double)get(p->c.type, j.c, col * p->c.ld + row);
            if (p->d.epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += (double)get(p->out.type, p->d.bias, row);
            put(p->out.type, j.out, col * p->out.ld + row, (float)sum);
        }
    for (uint64_t col = 0; p->d.epilogue == CUBLASLT_EPILOGUE_BGRADB && col < p->n; col++) {
        double sum = 0;
        for (uint64_t l = 0; l < p->k; l++)
            sum += b[col * p->k + l];
        put(p->out.type, (char *)(uintptr_t)p->d.bias, col, (float)sum);
    }
    free(a);
    free(b);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t out,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s) {
    struct job j = {.a = A, .b = B, .c = C, .out = D};
    struct made_for f;
    if (!h || !algo || !product_of(&j.p, d, a, b, c, out))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&f, algo, sizeof f);
    const void *const at[5] = {A, B, C, D, j.p.d.bias};
    for (int i = 0; i < 5; i++)
        if (f.align[i] && (uintptr_t)at[i] % f.align[i])
            return CUBLAS_STATUS_INVALID_VALUE;
    if (f.shape != hash_of(&j.p) || workspace_bytes < f.workspace ||
        (uintptr_t)workspace % WORKSPACE_ALIGN)
        return CUBLAS_STATUS_INVALID_VALUE;
    const char *status = getenv("EMU_LAUNCH");
    if (status)
        return (cublasStatus_t)strtol(status, NULL, 10);
    j.rounds = f.rounds;
    memcpy(&j.alpha, alpha, sizeof j.alpha);
    memcpy(&j.beta, beta, sizeof j.beta);
    return emu_enqueue(s, run, &j, sizeof j) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                            : CUBLAS_STATUS_EXECUTION_FAILED;
}
