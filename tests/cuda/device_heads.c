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

// A teacher's soft labels of k tokens a row, distinct, the first row's tail empty; a target that is named now and then.
static void teach(struct run *r, int k, int V, int32_t *named, float *logp, float *tail, size_t n,
                  const int32_t *targets) {
    for (size_t i = 0; i < n; i++) {
        int32_t *of = named + i * (size_t)k;
        double sum = 0, *e = device_case_host(&r->k, ((size_t)k + 1) * sizeof *e);
        int first = (int)neb_rng_below(&r->rng, (uint64_t)V);
        for (int j = 0; j <= k; j++)
            sum += e[j] = exp(2 * (double)neb_rng_normal(&r->rng));
        if (i == 0 || k == V) {
            sum -= e[k];
            e[k] = 0;
        }
        for (int j = 0; j < k; j++) { // V / k apart, so neither neighbours nor twice
            of[j] = (first + j * (V / k)) % V;
            logp[i * (size_t)k + (size_t)j] = (float)log(e[j] / sum);
        }
        for (int j = 1; i % 3 == 0 && targets[i] >= 0 && j < k; j++)
            if (of[j] == targets[i]) // is there already
                of[j] = of[0];
        if (i % 3 == 0 && targets[i] >= 0)
            of[0] = targets[i];
        tail[i] = (float)(e[k] / sum);
    }
}

void op_distill(struct run *r) { // n d V ignored(%) frozen rows learn k
    const int *d = r->d;
    size_t n = (size_t)d[0], V = (size_t)d[2], k = (size_t)(d[7] ? d[7] : 1);
    int32_t *t = ids(r, d[0], d[2]), *named = device_case_host(&r->k, n * k * sizeof *named);
    bool learn = d[6] != 0;
    for (size_t i = 0; i < n; i++)
        if ((int)neb_rng_below(&r->rng, 100) < d[3])
            t[i] = KERN_IGNORE;
    float size = fminf(1, 3 / sqrtf((float)d[1]));
    struct array *x = input(r, r->t, n * d[1], 1), *w = input(r, r->t, V * d[1], size),
                 *dx = learn ? written(r, r->t, n * d[1]) : NULL,
                 *dw = learn && !d[4] ? added(r, KERN_F32, V * d[1]) : NULL,
                 *losses = written(r, KERN_F32, n), *logp = array(r, KERN_F32, n * k, false),
                 *tail = array(r, KERN_F32, n, false);
    teach(r, (int)k, d[2], named, logp->host, tail->host, n, t);
    // Of rows without a target nothing is read; the reference reads none either.
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; t[i] == KERN_IGNORE && j < k; j++) {
            named[i * k + j] = -7;
            logp->host[i * k + j] = tail->host[i] = NAN;
        }
    to_device(r, logp);
    to_device(r, tail);
    struct array *targets = ints(r, t, n), *by = number(r, 0.7f), *on = ints(r, named, n * k),
                 *total = sum_from(r, 3);
    r->shift = 0;
    struct array *logits = array(r, r->t, (size_t)d[5] * (size_t)kern_logits_ld(d[2]), false);
    for (size_t i = 0; i < logits->n; i++)
        logits->host[i] = NAN;
    to_device(r, logits);
    float temperature = k % 2 ? 2.5f : 1;
    struct kern_head h = {.n = d[0],
                          .d = d[1],
                          .V = d[2],
                          .x = x->host,
                          .w = w->host,
                          .targets = t,
                          .grad_scale = 0.7f,
                          .dx = dx ? dx->host : NULL,
                          .dw = dw ? dw->host : NULL,
                          .losses = losses->host};
    struct kern_soft s = {.k = (int)k,
                          .lambda = 0.6f,
                          .temperature = temperature,
                          .ids = named,
                          .logp = logp->host,
                          .tail = tail->host};
    int64_t counted;
    double want = 3 + r->ref->ops->distill(r->ref, &h, &s, &counted);
    r->D->ops->distill_loss(r->D, r->t,
                            &(struct kern_device_head){.n = d[0],
                                                       .d = d[1],
                                                       .V = d[2],
                                                       .x = dev(x),
                                                       .w = dev(w),
                                                       .targets = dev(targets),
                                                       .grad_scale = dev(by),
                                                       .learn = learn,
                                                       .dx = dev(dx),
                                                       .dw = dev(dw),
                                                       .logits = dev(logits),
                                                       .rows = d[5],
                                                       .losses = dev(losses),
                                                       .total = dev(total)},
                            &(struct kern_device_soft){.k = (int)k,
                                                       .lambda = 0.6f,
                                                       .temperature = temperature,
                                                       .ids = dev(on),
                                                       .logp = dev(logp),
                                                       .tail = dev(tail)});
    verdict(r, (float)sum_of(r, total), (float)want);
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
