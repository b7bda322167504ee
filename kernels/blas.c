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
//
// Both are loaded when a process first computes. Agents and commands never do, and loading OpenBLAS
// takes longer than all else at the start of a process.
#include "agent/base/log.h"
#include "kernels/cpu.h"
#include "kernels/onednn.h"

#include <cblas.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    void (*sgemm)(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb, int m,
                  int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                  float beta, float *c, int ldc);
    void (*ssyrk)(enum CBLAS_ORDER order, enum CBLAS_UPLO half, enum CBLAS_TRANSPOSE ta, int n,
                  int k, float alpha, const float *a, int lda, float beta, float *c, int ldc);
    char *(*corename)(void);
    void (*threads)(int n);
    // An OpenBLAS that is built for many processors calls init when it is loaded; quit undoes it.
    // NULL in other builds.
    void (*init)(void), (*quit)(void);
} blas;

static const char variable[] = "OPENBLAS_CORETYPE";

static struct {
    const struct onednn *dnn; // NULL: OpenBLAS
    enum neb_status st;       // of loading OpenBLAS
    char name[64];
} the;

static enum neb_status load(void) {
    void *so = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *at; // a pointer to a function, which dlsym gives as a pointer to data (POSIX)
    } symbols[] = {{"cblas_sgemm", &blas.sgemm},
                   {"cblas_ssyrk", &blas.ssyrk},
                   {"openblas_get_corename", &blas.corename},
                   {"openblas_set_num_threads", &blas.threads},
                   {"gotoblas_dynamic_init", &blas.init},
                   {"gotoblas_dynamic_quit", &blas.quit}};
    if (!so)
        return neb_fail(NEB_ERR_UNSUPPORTED, "OpenBLAS is missing (Debian: libopenblas0): %s",
                        dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *p = dlsym(so, symbols[i].name);
        memcpy(symbols[i].at, &p, sizeof p);
    }
    return blas.sgemm && blas.ssyrk && blas.corename && blas.threads
               ? NEB_OK
               : neb_fail(NEB_ERR_UNSUPPORTED, "libopenblas.so.0 is no OpenBLAS");
}

void cpu_sgemm(const struct kern_gemm *g) {
    if (!the.dnn || !g->k) { // oneDNN rejects k = 0
        blas.sgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans,
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
    blas.ssyrk(CblasRowMajor, CblasLower, g->ta ? CblasTrans : CblasNoTrans, g->n, g->k, g->alpha,
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
    const char *now = blas.corename();
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
    if (blas.init && blas.quit) {
        setenv(variable, better, 1);
        blas.quit();
        blas.init();
        unsetenv(variable); // child processes must not inherit it
    }
    if (!the.dnn && better_core())
        neb_warn("OpenBLAS does not know this processor and uses slow kernels (those of %s); "
                 "set %s=%s",
                 blas.corename(), variable, better);
}

static void choose(void) {
    snprintf(the.name, sizeof the.name, "none");
    the.st = load();
    if (the.st != NEB_OK)
        return;
    choose_onednn();
    choose_core();
    if (the.dnn)
        snprintf(the.name, sizeof the.name, "oneDNN %d.%d", the.dnn->major, the.dnn->minor);
    else
        snprintf(the.name, sizeof the.name, "OpenBLAS %s", blas.corename());
    // for the whole process: cpu_gemm.c divides products over Nebula's own threads
    blas.threads(1);
}

enum neb_status cpu_blas_choose(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return the.st;
}

const char *kern_cpu_library(void) {
    (void)!cpu_blas_choose();
    return the.name;
}

void kern_cpu_product(int n, const float *a, const float *b, float *c) {
    cpu_sgemm(&(struct kern_gemm){
        .m = n, .n = n, .k = n, .alpha = 1, .a = a, .lda = n, .b = b, .ldb = n, .c = c, .ldc = n});
}
