// SPDX-License-Identifier: Apache-2.0
// Chooses the library that multiplies in fp32, and its kernels. The choice depends on the machine
// and never on a measurement, so that a resumed run gets the same bits.
//
// The library is oneDNN (onednn.h) on x86 processors with AVX-512 if it is installed, and OpenBLAS
// otherwise. oneDNN packs operands faster (README.md). NEBULA_SGEMM=openblas|onednn overrides this
// choice.
//
// OpenBLAS chooses its kernels by the processor's model when it is loaded. Releases before 0.3.25
// (Debian 12 has 0.3.21) mistake an Intel model that they do not know for a Prescott of 2004, whose
// kernels are slow (OpenBLAS issue 4267). choose_core() corrects that.
#include "agent/base/log.h"
#include "kernels/cpu.h"
#include "kernels/onednn.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// An OpenBLAS that is built for many processors calls the first function when it is loaded. The
// second one undoes the first. No header declares them, and other builds of OpenBLAS lack them:
// hence weak.
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static const char variable[] = "OPENBLAS_CORETYPE";

static struct {
    const struct onednn *dnn; // NULL: OpenBLAS
    char name[64];
} the;

void cpu_sgemm(const struct kern_gemm *g) {
    if (!the.dnn || !g->k) { // oneDNN rejects k = 0
        cblas_sgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans,
                    g->tb ? CblasTrans : CblasNoTrans, g->m, g->n, g->k, g->alpha, g->a, g->lda,
                    g->b, g->ldb, g->beta, g->c, g->ldc);
        return;
    }
    onednn_alone(the.dnn);
    int bad = the.dnn->sgemm(g->ta ? 'T' : 'N', g->tb ? 'T' : 'N', g->m, g->n, g->k, g->alpha, g->a,
                             g->lda, g->b, g->ldb, g->beta, g->c, g->ldc);
    NEB_ASSERT(!bad); // shapes are valid here; only memory can run out, and no op can report that
}

// oneDNN has no such product.
void cpu_ssyrk(const struct kern_gemm *g) {
    cblas_ssyrk(CblasRowMajor, CblasLower, g->ta ? CblasTrans : CblasNoTrans, g->n, g->k, g->alpha,
                g->a, g->lda, g->beta, g->c, g->ldc);
}

// Multiplies small integers, whose sums are exact in any order, with every combination of
// transposed operands.
static bool proves_itself(const struct onednn *d) {
    enum { M = 19, N = 35, D = 24 };
    float a[M * D], b[N * D], c[M * N], want[M * N];
    onednn_alone(d);
    for (int way = 0; way < 4; way++) {
        bool ta = way & 1, tb = way & 2;
        for (int k = 0; k < D; k++) {
            for (int i = 0; i < M; i++)
                a[ta ? k * M + i : i * D + k] = (float)((k + 3 * i) % 7 - 3);
            for (int j = 0; j < N; j++)
                b[tb ? j * D + k : k * N + j] = (float)((2 * k + j) % 5 - 2);
        }
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float sum = 0;
                for (int k = 0; k < D; k++)
                    sum += (float)((k + 3 * i) % 7 - 3) * (float)((2 * k + j) % 5 - 2);
                want[i * N + j] = 2 * sum + 1;
                c[i * N + j] = 1;
            }
        if (d->sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', M, N, D, 2, a, ta ? M : D, b, tb ? D : N, 1, c,
                     N) != 0 ||
            memcmp(c, want, sizeof c) != 0)
            return false;
    }
    return true;
}

static bool is_better_here(void) {
#if defined(__x86_64__)
    return cpu_isa_find("avx512");
#else
    return false;
#endif
}

static void choose_onednn(void) {
    const char *asked = getenv("NEBULA_SGEMM"), *why = NULL;
    bool wanted = asked && strcmp(asked, "onednn") == 0;
    if (asked && !wanted && strcmp(asked, "openblas") != 0) {
        neb_warn("NEBULA_SGEMM=%s is unknown: use openblas or onednn", asked);
        asked = NULL;
    }
    if (!wanted && (asked || !is_better_here()))
        return;
    const struct onednn *d = onednn_find();
    if (d->missing)
        why = d->missing;
    else if (!d->sgemm || !proves_itself(d))
        why = "this machine's oneDNN lacks dnnl_sgemm, or its results are wrong";
    if (why && wanted)
        neb_warn("NEBULA_SGEMM=onednn: %s; using OpenBLAS", why);
    else if (why)
        neb_info("fp32 products could be faster: %s", why);
    if (!why)
        the.dnn = d;
}

// Names the kernels that OpenBLAS should use here. NULL: the kernels in use are good enough.
static const char *better_core(void) {
    static const char *const of_avx512[] = {"SkylakeX", "Cooperlake", "Sapphirerapids"};
    const char *now = openblas_get_corename();
    if (!cpu_isa_find("avx512"))
        return cpu_isa_find("avx2") && strcmp(now, "Prescott") == 0 ? "Haswell" : NULL;
    for (size_t i = 0; i < sizeof of_avx512 / sizeof *of_avx512; i++)
        if (strcmp(now, of_avx512[i]) == 0)
            return NULL;
    return of_avx512[0];
}

static void choose_core(void) {
    const char *wanted = getenv(variable), *better = better_core();
    if (!better)
        return;
    if (wanted && *wanted) {
        if (!the.dnn)
            neb_info("%s=%s leaves a part of this processor unused: it can run the kernels of %s",
                     variable, wanted, better);
        return;
    }
    if (gotoblas_dynamic_init && gotoblas_dynamic_quit) {
        setenv(variable, better, 1);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
        unsetenv(variable); // child processes must not inherit it
    }
    if (!the.dnn && better_core())
        neb_warn("OpenBLAS does not know this processor and uses slow kernels (those of %s); "
                 "set %s=%s",
                 openblas_get_corename(), variable, better);
}

static void choose(void) {
    choose_onednn();
    choose_core();
    if (the.dnn)
        snprintf(the.name, sizeof the.name, "oneDNN %d.%d", the.dnn->major, the.dnn->minor);
    else
        snprintf(the.name, sizeof the.name, "OpenBLAS %s", openblas_get_corename());
    // for the whole process: cpu_gemm.c divides products over Nebula's own threads
    openblas_set_num_threads(1);
}

void cpu_blas_choose(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}

const char *kern_cpu_library(void) {
    cpu_blas_choose();
    return the.name;
}

void kern_cpu_product(int n, const float *a, const float *b, float *c) {
    cpu_sgemm(&(struct kern_gemm){
        .m = n, .n = n, .k = n, .alpha = 1, .a = a, .lda = n, .b = b, .ldb = n, .c = c, .ldc = n});
}
