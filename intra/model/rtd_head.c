// SPDX-License-Identifier: Apache-2.0
// Loss of a discriminator, in fixed blocks of rows.
#include "intra/model/rtd_head.h"

#include <math.h>
#include <stdlib.h>

// rows of one partial sum; fixed, so that results do not depend on threads
enum { HEAD_BLOCK = 64 };

struct partial { // sums of one block of rows
    double loss, db;
    int64_t count;
};
struct head_job {
    const struct intra_rtd_head *h;
    struct partial *sums; // (blocks)
    double *dw;           // (blocks, d)
};

static void head_block(void *arg, size_t block) {
    struct head_job *j = arg;
    const struct intra_rtd_head *h = j->h;
    struct partial *p = &j->sums[block];
    double *dw = j->dw ? j->dw + block * (size_t)h->d : NULL;
    int end = (int)(block + 1) * HEAD_BLOCK < h->n ? (int)(block + 1) * HEAD_BLOCK : h->n;
    *p = (struct partial){0};
    for (int i = (int)block * HEAD_BLOCK; i < end; i++) {
        const float *x = h->x + (size_t)i * h->d;
        double z = (double)h->b;
        for (int k = 0; k < h->d; k++)
            z += (double)x[k] * (double)h->w[k];
        h->scores[i] = (float)z;
        bool counts = h->labels[i] != KERN_IGNORE;
        double away = exp(-fabs(z)), sigma = z >= 0 ? 1 / (1 + away) : away / (1 + away);
        double g = counts ? (sigma - h->labels[i]) * (double)h->grad_scale : 0;
        p->count += counts;
        p->loss += counts ? (z > 0 ? z : 0) + log1p(away) - h->labels[i] * z : 0;
        p->db += g;
        for (int k = 0; h->dx && k < h->d; k++) {
            h->dx[(size_t)i * h->d + k] = (float)(g * (double)h->w[k]);
            dw[k] += g * (double)x[k];
        }
    }
}

double intra_rtd_head(struct kern *K, const struct intra_rtd_head *h, int64_t *count) {
    size_t blocks = ((size_t)h->n + HEAD_BLOCK - 1) / HEAD_BLOCK;
    struct head_job j = {.h = h, .sums = malloc(blocks * sizeof *j.sums)};
    double loss = 0;
    if (h->dx)
        j.dw = calloc(blocks * (size_t)h->d, sizeof *j.dw);
    NEB_ASSERT(j.sums && (!h->dx || j.dw)); // a few kilobytes
    kern_pool_run(K->pool, blocks, head_block, &j);
    *count = 0;
    for (size_t b = 0; b < blocks; b++) {
        loss += j.sums[b].loss;
        *count += j.sums[b].count;
        if (!h->dx)
            continue;
        h->db[0] += (float)j.sums[b].db;
        for (int k = 0; k < h->d; k++)
            h->dw[k] += (float)j.dw[b * (size_t)h->d + (size_t)k];
    }
    free(j.sums);
    free(j.dw);
    return loss;
}
