// SPDX-License-Identifier: Apache-2.0
// Which library multiplies in fp32, and with which of its kernels: decided once in a process, by the machine and not by a clock, so
// that a run that is resumed gets the same bits.
//
// OpenBLAS, but oneDNN (onednn.h) on x86 processors with AVX-512, where it is there: 7 to 21 % faster at the shapes of training
// (README.md), mostly in packing operands. NEBULA_SGEMM=openblas|onednn asks for one.
//
// OpenBLAS chooses kernels by the processor's model when it is loaded; releases before 0.3.25 (Debian 12 has 0.3.21) take an Intel
// model that is newer than they are for the last one they could not mistake, Prescott of 2004, whose products use a fifth of the
// processor (their issue 4267). We choose again where it chose less than the instruction set allows.
#include "agent/base/log.h"
#include "kernels/cpu.h"
#include "kernels/onednn.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Of OpenBLAS built for many processors: what its loading runs, and its reverse. Not in its header, hence weak.
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static const char variable[] = "OPENBLAS_CORETYPE";

static struct {
    const struct onednn *dnn; // NULL: OpenBLAS
    char name[64];
} the;

void cpu_sgemm(enum kern_trans ta, enum kern_trans tb, int m, int n, int k, float alpha,
               const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    if (!the.dnn || !k) { // oneDNN takes no rows of no elements
        cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                    m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    onednn_alone(the.dnn);
    int bad = the.dnn->sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta,
                             c, ldc);
    NEB_ASSERT(!bad); // shapes are ours; out of memory, which ops cannot report either
}

// Small integers, whose sums are exact in any order; all four ways that operands can lie.
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
        neb_warn("NEBULA_SGEMM=%s is unknown: openblas or onednn", asked);
        asked = NULL;
    }
    if (!wanted && (asked || !is_better_here()))
        return;
    const struct onednn *d = onednn_find();
    if (d->missing)
        why = d->missing;
    else if (!d->sgemm || !proves_itself(d))
        why = "this machine's oneDNN has no right dnnl_sgemm";
    if (why && wanted)
        neb_warn("NEBULA_SGEMM=onednn: %s; OpenBLAS multiplies", why);
    else if (why)
        neb_info("products could be 7 to 21 %% faster: %s", why);
    if (!why)
        the.dnn = d;
}

// NULL: none, or the one that was chosen will do.
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
            neb_info("%s=%s leaves a part of this processor unused: it could run kernels of %s",
                     variable, wanted, better);
        return;
    }
    if (gotoblas_dynamic_init && gotoblas_dynamic_quit) {
        setenv(variable, better, 1);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
        unsetenv(variable); // a program that we start may be another's
    }
    if (!the.dnn && better_core())
        neb_warn("OpenBLAS does not know this processor and multiplies with half of it or less "
                 "(kernels of %s); set %s=%s",
                 openblas_get_corename(), variable, better);
}

static void choose(void) {
    choose_onednn();
    choose_core();
    if (the.dnn)
        snprintf(the.name, sizeof the.name, "oneDNN %d.%d", the.dnn->major, the.dnn->minor);
    else
        snprintf(the.name, sizeof the.name, "OpenBLAS %s", openblas_get_corename());
    openblas_set_num_threads(1); // for the process: the threads are ours (cpu_gemm.c)
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
    cpu_sgemm(KERN_N, KERN_N, n, n, n, 1, a, n, b, n, 0, c, n);
}
