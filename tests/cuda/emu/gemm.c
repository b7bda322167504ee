// The products of kernels/cuda/gemm.h for tests without a GPU: a plain loop in place of cuBLASLt.
#include "kernels/cuda/gemm.h"

#include <stdlib.h>
#include <string.h>

struct kern_cu_gemm {
    int unused;
};

const char *kern_cu_gemm_create(struct kern_cu_gemm **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NULL : "out of host memory";
}
void kern_cu_gemm_destroy(struct kern_cu_gemm **g) {
    free(*g);
    *g = NULL;
}

static float get(enum kern_type t, const void *p, size_t i) {
    uint32_t u = 0;
    float f;
    if (t == KERN_BF16) {
        uint16_t half;
        memcpy(&half, (const char *)p + 2 * i, 2);
        u = (uint32_t)half << 16;
    } else {
        memcpy(&u, (const char *)p + 4 * i, 4);
    }
    memcpy(&f, &u, 4);
    return f;
}
static void put(enum kern_type t, void *p, size_t i, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if (t == KERN_BF16) {
        uint16_t half = (uint16_t)(f != f ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
        memcpy((char *)p + 2 * i, &half, 2);
    } else {
        memcpy((char *)p + 4 * i, &u, 4);
    }
}

static void product(const void *job) {
    struct kern_cu_product copy, *p = &copy;
    memcpy(&copy, job, sizeof copy);
    for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++) {
            double sum = 0;
            for (int l = 0; l < p->k; l++)
                sum += (double)get(p->t, p->a,
                                   p->ta ? (size_t)l * p->lda + i : (size_t)i * p->lda + l) *
                       (double)get(p->t, p->b,
                                   p->tb ? (size_t)j * p->ldb + l : (size_t)l * p->ldb + j);
            size_t at = (size_t)i * p->ldc + j;
            sum = (double)p->alpha * sum +
                  (p->beta != 0 ? (double)p->beta * (double)get(p->tc, p->c, at) : 0.0) +
                  (p->bias ? (double)get(p->t, p->bias, (size_t)j) : 0.0);
            put(p->tc, p->c, at, (float)sum);
        }
}

const char *kern_cu_gemm_run(struct kern_cu_gemm *g, const struct kern_cu_product *p,
                             cudaStream_t s) {
    (void)g;
    (void)s;
    if (p->m && p->n && !p->k)
        return "a product over an empty dimension";
    emu_enqueue(product, p, sizeof *p);
    return NULL;
}
