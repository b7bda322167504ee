// SPDX-License-Identifier: Apache-2.0
// oneDNN, found at run time: one BLAS-like call of it is all that is used, and nothing needs it to build or to start. It takes
// row-major matrices and computes on the calling thread.
#ifndef KERN_ONEDNN_H
#define KERN_ONEDNN_H
#include <stdbool.h>
#include <stdint.h>

// c (m, n; row stride ldc) = alpha * op(a) op(b) + beta * c; ta, tb: 'N' or 'T'. 0: done.
typedef int onednn_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                         float *c, int64_t ldc);

struct onednn {
    const char *missing;      // NULL: it is here; else why not, in words for a user
    onednn_sgemm *sgemm;      // NULL: not in this release
    void (*omp_threads)(int); // NULL: it has no threads
    int major, minor;
};

// Loads it at the first call; never NULL. It stays loaded: what its threads hold cannot be unloaded. Any thread.
const struct onednn *onednn_find(void);

// Before a call: one thread inside. That is a setting of each calling thread.
static inline void onednn_alone(const struct onednn *d) {
    if (d->omp_threads)
        d->omp_threads(1);
}

#endif
