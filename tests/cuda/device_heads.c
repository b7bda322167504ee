// SPDX-License-Identifier: Apache-2.0
// Ops of the modes rtd and distill, against formulas in double where the host has no reference. A
// sampled id is judged by its logit, because the last bits of logits differ between host and
// device.
#include "tests/cuda/device_arrays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A double on the device; the op adds to it.
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

// Soft labels of a teacher: k distinct tokens a row, sometimes with the target among them. The last
// entries of the first row are empty.
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
        for (int j = 0; j < k; j++) { // V / k apart, so all differ
            of[j] = (first + j * (V / k)) % V;
            logp[i * (size_t)k + (size_t)j] = (float)log(e[j] / sum);
        }
        for (int j = 1; i % 3 == 0 && targets[i] >= 0 && j < k; j++)
            if (of[j] == targets[i]) // already listed
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
    // Rows without a target must not be read.
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
    const float host_by = 0.7f;
    double want = 3;
    struct kern_head h = {.n = d[0],
                          .d = d[1],
                          .V = d[2],
                          .x = x->host,
                          .w = w->host,
                          .targets = t,
                          .grad_scale = &host_by,
                          .dx = dx ? dx->host : NULL,
                          .dw = dw ? dw->host : NULL,
                          .losses = losses->host,
                          .total = &want};
    struct kern_soft soft = {.k = (int)k,
                             .lambda = 0.6f,
                             .temperature = temperature,
                             .ids = named,
                             .logp = logp->host,
                             .tail = tail->host};
    r->ref->ops->head_loss(r->ref, KERN_F32, &h, &soft);
    h.x = dev(x);
    h.w = dev(w);
    h.targets = dev(targets);
    h.grad_scale = dev(by);
    h.dx = dev(dx);
    h.dw = dev(dw);
    h.logits = dev(logits);
    h.rows = d[5];
    h.losses = dev(losses);
    h.total = dev(total);
    soft.ids = dev(on);
    soft.logp = dev(logp);
    soft.tail = dev(tail);
    r->D->ops->head_loss(r->D, r->t, &h, &soft);
    verdict(r, (float)sum_of(r, total), (float)want);
}

// The three steps of one rank's columns with a teacher. The sums of all ranks are those of this
// one.
void op_vocab_soft(struct run *r) { // n columns V row0 learn k
    const int *d = r->d;
    size_t n = (size_t)d[0], ld = (size_t)kern_logits_ld(d[1]), k = (size_t)d[5];
    int32_t *t = ids(r, d[0], d[2]), *named = device_case_host(&r->k, n * k * sizeof *named);
    for (size_t i = 0; i < n; i++) // else no row of a small part has its target here
        t[i] = i % 4 == 3 ? KERN_IGNORE : i % 2 ? t[i] : d[3] + (int32_t)i % d[1];
    struct array *logp = array(r, KERN_F32, n * k, false), *tail = array(r, KERN_F32, n, false);
    teach(r, (int)k, d[2], named, logp->host, tail->host, n, t);
    for (size_t i = 3; i < n; i += 4) // rows without a target must not be read
        named[i * k] = -7;
    to_device(r, logp);
    to_device(r, tail);
    r->shift = 0;
    struct array *z = added(r, r->t, n * ld), *losses = written(r, KERN_F32, n),
                 *max = written(r, KERN_F32, n), *targets = ints(r, t, n), *by = number(r, 0.7f),
                 *on = ints(r, named, n * k), *total = sum_from(r, 3),
                 *sums = array(r, KERN_F32, 2 * KERN_VOCAB_SOFT * n, false);
    const float host_by = 0.7f;
    double want = 3, *host_sums = device_case_host(&r->k, KERN_VOCAB_SOFT * n * sizeof *host_sums);
    to_device(r, sums);
    for (size_t i = 0; i < n * ld; i++) // values beyond the columns must not matter
        z->host[i] = i % ld < (size_t)d[1] ? round_to(r->t, 3 * z->host[i]) : 0;
    to_device(r, z);
    struct kern_soft soft = {.k = (int)k,
                             .lambda = 0.6f,
                             .temperature = k % 2 ? 2.5f : 1,
                             .ids = named,
                             .logp = logp->host,
                             .tail = tail->host};
    struct kern_vocab v = {.logits = z->host,
                           .n = d[0],
                           .V = d[1],
                           .targets = t,
                           .row0 = d[3],
                           .max = max->host,
                           .sums = host_sums,
                           .soft = &soft,
                           .grad_scale = &host_by,
                           .learn = d[4] != 0,
                           .losses = losses->host,
                           .total = &want};
    r->ref->ops->vocab_max(r->ref, KERN_F32, &v);
    r->ref->ops->vocab_sum(r->ref, KERN_F32, &v);
    r->ref->ops->vocab_loss(r->ref, KERN_F32, &v);
    for (size_t i = 0; v.learn && i < n * ld; i++)
        z->host[i] = i % ld < (size_t)d[1] ? round_to(r->t, z->host[i]) : 0;
    v.logits = dev(z);
    v.targets = dev(targets);
    v.max = dev(max);
    v.sums = dev(sums);
    v.grad_scale = dev(by);
    v.losses = dev(losses);
    v.total = dev(total);
    soft.ids = dev(on);
    soft.logp = dev(logp);
    soft.tail = dev(tail);
    r->D->ops->vocab_max(r->D, r->t, &v);
    r->D->ops->vocab_sum(r->D, r->t, &v);
    r->D->ops->vocab_loss(r->D, r->t, &v);
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
                        &(struct kern_rtd){.n = d[0],
                                           .d = d[1],
                                           .x = dev(x),
                                           .w = dev(w),
                                           .b = dev(b),
                                           .labels = dev(on),
                                           .grad_scale = dev(scale),
                                           .dx = dev(dx),
                                           .dw = dev(dw),
                                           .db = dev(db),
                                           .scores = dev(scores),
                                           .losses = dev(losses),
                                           .total = dev(total)});
    verdict(r, (float)sum_of(r, total), (float)want);
}

// ---- logits at chosen rows ----

struct asked {
    struct array *x, *w, *at, *gathered, *logits;
    double *z; // (n, V)
    struct kern_rows on;
};
// Picks n rows of a pass of n + 3, some of them twice. size 0: the logits are small integers, which
// are exact on both sides and often equal. nan: every `nan`-th token is NaN.
static struct asked ask(struct run *r, int n, int d, int V, int block, int size, int nan) {
    struct asked q = {.z = device_case_host(&r->k, (size_t)n * V * sizeof *q.z)};
    size_t width = (size_t)d;
    int32_t *at = ids(r, n, n + 3);
    q.x = input(r, r->t, (size_t)(n + 3) * width, 1);
    q.w = input(r, r->t, (size_t)V * width, size ? (float)size / sqrtf((float)d) : 1);
    for (size_t i = 0; !size && i < q.x->n; i++)
        q.x->host[i] = rintf(q.x->host[i]);
    for (size_t i = 0; !size && i < q.w->n; i++)
        q.w->host[i] = nan && i / width % (size_t)nan == 0 ? NAN : rintf(q.w->host[i]);
    to_device(r, q.x);
    to_device(r, q.w);
    for (size_t i = 0; i < (size_t)n; i++)
        for (size_t c = 0; c < (size_t)V; c++)
            for (size_t k = 0; k < width; k++)
                q.z[i * (size_t)V + c] +=
                    (double)q.x->host[(size_t)at[i] * width + k] * (double)q.w->host[c * width + k];
    q.at = ints(r, at, (size_t)n);
    q.gathered = written(r, r->t, (size_t)block * width);
    q.logits = written(r, KERN_F32, (size_t)block * (size_t)kern_logits_ld(V));
    q.gathered->out = q.logits->out = false; // work space
    q.on = (struct kern_rows){.n = n,
                              .d = d,
                              .V = V,
                              .x = dev(q.x),
                              .at = dev(q.at),
                              .w = dev(q.w),
                              .gathered = dev(q.gathered),
                              .logits = dev(q.logits),
                              .block = block};
    return q;
}
static int32_t *read_ids(struct run *r, const struct array *a) {
    int32_t *x = device_case_host(&r->k, a->n * sizeof *x);
    r->D->ops->download(r->D, x, dev(a), a->n * sizeof *x);
    device_case_wait(&r->k);
    return x;
}
static double largest(const double *z, size_t n) {
    double max = -INFINITY;
    for (size_t c = 0; c < n; c++)
        max = fmax(max, z[c]);
    return max;
}

// Compares u with the running sum at the drawn token. A probability that is 0 in fp32 must not be
// drawn.
void op_sample(struct run *r) { // n d V block size
    const int *d = r->d;
    size_t n = (size_t)d[0], V = (size_t)d[2];
    double T = d[0] % 2 ? 1 : 1.5;
    struct asked q = ask(r, d[0], d[1], d[2], d[3], d[4], 0);
    double *u_host = device_case_host(&r->k, n * sizeof *u_host);
    struct array *out = written(r, KERN_F32, n);
    out->out = false; // ids
    for (size_t i = 0; i < n; i++)
        u_host[i] = i % 5 == 1 ? 0 : i % 5 == 3 ? 1 : neb_rng_unit(&r->rng);
    r->shift = 0;
    struct array *u = array(r, KERN_F32, 2 * n, false); // doubles
    memcpy(u->host, u_host, n * sizeof *u_host);
    to_device(r, u);
    r->D->ops->sample_rows(r->D, r->t, &q.on, (float)T, dev(u), dev(out));
    int32_t *got = read_ids(r, out);
    double far = 0;
    for (size_t i = 0; i < n; i++) {
        const double *z = q.z + i * V;
        double max = largest(z, V), sum = 0, before = 0, here = 0, goal = u_host[i];
        for (size_t c = 0; c < V; c++)
            sum += exp((z[c] - max) / T);
        bool valid = got[i] >= 0 && (size_t)got[i] < V;
        for (size_t c = 0; valid && c <= (size_t)got[i]; c++) {
            before += here;
            here = exp((z[c] - max) / T) / sum;
        }
        far = valid && here > 1e-46 ? fmax(far, fmax(before - goal, goal - (before + here)))
                                    : INFINITY;
    }
    verdict(r, (float)far, 0);
}

struct ranked {
    double z;
    int32_t id;
};
// Largest first, ties by id, NaNs last.
static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    bool no_x = isnan(x->z), no_y = isnan(y->z);
    if (no_x != no_y)
        return no_x - no_y;
    if (!no_x && x->z != y->z)
        return x->z < y->z ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

void op_labels(struct run *r) { // n d V block size k nan
    const int *d = r->d;
    size_t n = (size_t)d[0], V = (size_t)d[2], k = (size_t)d[5];
    double T = (double)(k % 2 ? 2.5f : 1), wrong = 0;
    struct asked q = ask(r, d[0], d[1], d[2], d[3], d[4], d[6]);
    struct array *logp = written(r, KERN_F32, n * k), *tail = written(r, KERN_F32, n),
                 *out = written(r, KERN_F32, n * k);
    struct ranked *all = device_case_host(&r->k, V * sizeof *all);
    out->out = false; // ids
    logp->out = tail->out = d[6] == 0;
    r->D->ops->label_rows(r->D, r->t, &q.on, d[5], (float)T, dev(out), dev(logp), dev(tail));
    int32_t *got = read_ids(r, out);
    for (size_t i = 0; i < n; i++) {
        const double *z = q.z + i * V;
        const int32_t *id = got + i * k;
        double sum = 0, max = largest(z, V), rest = 0;
        for (size_t c = 0; c < V; c++) {
            all[c] = (struct ranked){z[c], (int32_t)c};
            sum += exp((z[c] - max) / T);
        }
        qsort(all, V, sizeof *all, by_rank);
        for (size_t j = 0; j < k; j++) {
            bool valid = id[j] >= 0 && (size_t)id[j] < V;
            for (size_t other = 0; valid && other < j; other++)
                valid = id[other] != id[j];
            // If the logits are exact, the ids must be equal. Otherwise the logits of the ids must
            // be close.
            double off = !valid ? INFINITY : d[4] ? fabs(z[id[j]] - all[j].z) : id[j] != all[j].id;
            wrong = fmax(wrong, off);
            logp->host[i * k + j] = valid ? (float)((z[id[j]] - max) / T - log(sum)) : NAN;
        }
        for (size_t c = k; c < V; c++) // without this check an ascending order would pass
            rest += exp((all[c].z - max) / T);
        tail->host[i] = (float)(rest / sum);
    }
    verdict(r, (float)wrong, 0);
}
