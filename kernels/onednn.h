// SPDX-License-Identifier: Apache-2.0
// oneDNN, found at run time. Nebula uses a single BLAS-like call of it, and needs it neither to
// build nor to start. The call takes row-major matrices and computes on the calling thread.
#ifndef KERN_ONEDNN_H
#define KERN_ONEDNN_H
#include <stdbool.h>
#include <stdint.h>

// c (m, n; row stride ldc) = alpha * op(a) op(b) + beta * c. ta, tb: 'N' or 'T'. Returns 0 on
// success.
typedef int onednn_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                         float *c, int64_t ldc);

struct onednn {
    const char *missing;      // NULL: usable; else why not, for a user
    onednn_sgemm *sgemm;      // NULL: this release lacks it
    void (*omp_threads)(int); // NULL: it uses no threads
    int major, minor;
};

// Loads oneDNN at the first call. Never NULL. Any thread may call it. oneDNN stays loaded, since
// its threads make it impossible to unload.
const struct onednn *onednn_find(void);

// Call this before each product: oneDNN then uses one thread. The setting belongs to the calling
// thread.
static inline void onednn_alone(const struct onednn *d) {
    if (d->omp_threads)
        d->omp_threads(1);
}

#endif
