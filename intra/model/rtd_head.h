// SPDX-License-Identifier: Apache-2.0
// What a discriminator computes beyond a transformer's pass.
#ifndef INTRA_RTD_HEAD_H
#define INTRA_RTD_HEAD_H
#include "kernels/kern.h"

// Output layer of a discriminator: score = x w + b, loss = log(1 + exp(score)) - label * score, in nats.
struct intra_rtd_head {
    int n, d;
    const float *x, *w; // (n, d) (d)
    float b;
    const int32_t *labels; // (n) 0, 1, or KERN_IGNORE
    float *scores;         // (n) written
    float grad_scale;
    float *dx;      // (n, d) written; NULL: loss only
    float *dw, *db; // (d) (1) +=
};
// Sum of losses over counted positions; the same bits for any number of threads.
double intra_rtd_head(struct kern *K, const struct intra_rtd_head *h, int64_t *count);

#endif
