// SPDX-License-Identifier: Apache-2.0
// The output layer and loss of a discriminator (replaced-token detection).
#ifndef INTRA_RTD_HEAD_H
#define INTRA_RTD_HEAD_H
#include "kernels/kern.h"

// score = x w + b; loss = log(1 + exp(score)) - label * score, in nats. Host memory.
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
// Returns the sum of losses, *count: the counted positions. The same bits for any number of
// threads.
double intra_rtd_head(struct kern *K, const struct intra_rtd_head *h, int64_t *count);

#endif
