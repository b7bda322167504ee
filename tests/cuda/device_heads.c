// Ops of the modes rtd and distill: against formulas in double where the reference has none.
#include "tests/cuda/device_arrays.h"

#include <math.h>
#include <string.h>

// A double on the device, which an op adds to.
static struct array *sum_from(struct run *r, double begin) {
    int32_t bits[2];
    memcpy(bits, &begin, sizeof bits);
    return ints(r, bits, 2);
}
static double sum_of(struct run *r, const struct array *a) {
    double sum;
    r->D->ops->download(r->D, &sum, dev(a), sizeof sum);
    device_case_wait(&r->k);
    return sum;
}

void op_rtd(struct run *r) { // n d ignored(%) frozen learn size
    const int *d = r->d;
    size_t n = (size_t)d[0], width = (size_t)d[1];
    bool learn = d[4] != 0, sums = learn && !d[3];
    float size = (float)(d[5] ? d[5] : 1) / sqrtf((float)d[1]), by = 0.7f;
    int32_t *labels = ids(r, d[0], 2);
    for (size_t i = 0; i < n; i++)
        if ((int)neb_rng_below(&r->rng, 100) < d[2])
            labels[i] = KERN_IGNORE;
    struct array *x = input(r, r->t, n * width, 1), *w = input(r, KERN_F32, width, size),
                 *dx = learn ? written(r, r->t, n * width) : NULL,
                 *dw = sums ? added(r, KERN_F32, width) : NULL,
                 *db = sums ? added(r, KERN_F32, 1) : NULL, *scores = written(r, KERN_F32, n),
                 *losses = written(r, KERN_F32, n), *b = input(r, KERN_F32, 1, 1),
                 *on = ints(r, labels, n), *scale = number(r, by), *total = sum_from(r, 3);
    double want = 3, sum_db = 0, *sum_dw = device_case_host(&r->k, width * sizeof *sum_dw);
    for (size_t i = 0; i < n; i++) {
        const float *row = x->host + i * width;
        double z = (double)b->host[0], label = labels[i], loss = 0, g = 0;
        for (size_t k = 0; k < width; k++)
            z += (double)row[k] * (double)w->host[k];
        if (labels[i] != KERN_IGNORE) {
            loss = (z > 0 ? z : 0) + log1p(exp(-fabs(z))) - label * z;
            g = (1 / (1 + exp(-z)) - label) * (double)by;
        }
        scores->host[i] = (float)z;
        losses->host[i] = (float)loss;
        want += loss;
        sum_db += g;
        for (size_t k = 0; learn && k < width; k++) {
            dx->host[i * width + k] = (float)(g * (double)w->host[k]);
            sum_dw[k] += g * (double)row[k];
        }
    }
    for (size_t k = 0; sums && k < width; k++)
        dw->host[k] += (float)sum_dw[k];
    if (sums)
        db->host[0] += (float)sum_db;
    r->D->ops->rtd_loss(r->D, r->t,
                        &(struct kern_device_rtd){.n = d[0],
                                                  .d = d[1],
                                                  .x = dev(x),
                                                  .w = dev(w),
                                                  .b = dev(b),
                                                  .labels = dev(on),
                                                  .grad_scale = dev(scale),
                                                  .learn = learn,
                                                  .dx = dev(dx),
                                                  .dw = dev(dw),
                                                  .db = dev(db),
                                                  .scores = dev(scores),
                                                  .losses = dev(losses),
                                                  .total = dev(total)});
    verdict(r, (float)sum_of(r, total), (float)want);
}
