// SPDX-License-Identifier: Apache-2.0
// Works on some rows of a pass. In modes rtd and distill only a part of the positions have a
// target.
//
//     the loss      takes the rows with a target, gathered, if they are few; the gradients of the
//                   other rows are zero
//     other calls   give scores, draws and labels at rows that the caller names; logits of these
//                   rows are computed again in fp32, block by block, in the loss's buffer
//
// On processors the loss itself skips rows without a target, and ops read and write the caller's
// arrays.
#include "intra/model/state.h"
#include "kernels/device_stage.h"

#include <stdlib.h>
#include <string.h>

// ---- the loss -----------------------------------------------------------------------------------

enum neb_status device_picks_create(struct intra_device *d) {
    size_t n = device_tokens(d), k = (size_t)d->c.soft_k;
    struct device_soft_rows *s = &d->soft_rows;
    if (!k)
        return NEB_OK;
    d->draws_host = malloc(n * sizeof *d->draws_host);
    if (device_host(d) && d->draws_host)
        return NEB_OK;
    d->lists = malloc(3 * n * sizeof *d->lists);
    s->ids = malloc(n * k * sizeof *s->ids);
    s->logp = malloc(n * k * sizeof *s->logp);
    s->tail = malloc(n * sizeof *s->tail);
    return d->draws_host && d->lists && s->ids && s->logp && s->tail
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for the labels of %zu positions", n);
}

void device_picks_destroy(struct intra_device *d) {
    free(d->draws_host);
    free(d->lists);
    free(d->soft_rows.ids);
    free(d->soft_rows.logp);
    free(d->soft_rows.tail);
}

// How many rows the output layer takes if `count` of n positions have a target; 0: all rows. The
// number is rounded up, because the libraries must choose kernels for each new shape.
static size_t rows_for(size_t n, int64_t count) {
    size_t step = n / 16 + 1, rows = ((size_t)count + step) / step * step;
    return 4 * rows <= 3 * n ? rows : 0;
}

static void gather(struct intra_device *d, const struct intra_batch *b, size_t n, size_t rows) {
    int32_t *at = d->lists, *target = at + n, *of = target + n, k = 0;
    for (size_t i = 0; i < n; i++) {
        of[i] = b->targets[i] == KERN_IGNORE ? -1 : k;
        if (of[i] < 0)
            continue;
        at[k] = (int32_t)i;
        target[k++] = b->targets[i];
    }
    for (; (size_t)k < rows; k++) {
        at[k] = -1;
        target[k] = KERN_IGNORE;
    }
    kern_stage_upload(d->c.D, d->row_at, at, rows * sizeof *at);
    kern_stage_upload(d->c.D, d->row_target, target, rows * sizeof *target);
    kern_stage_upload(d->c.D, d->row_of, of, n * sizeof *of);
}

// Uploads a teacher's labels: those of the gathered rows, or of all positions.
static void send_soft(struct intra_device *d, struct device_acts *a, const struct kern_soft *s,
                      size_t n) {
    struct device_soft_rows *r = &d->soft_rows,
                            by = {(int32_t *)s->ids, (float *)s->logp, (float *)s->tail};
    size_t k = (size_t)s->k, rows = a->n_rows ? (size_t)a->n_rows : n;
    NEB_ASSERT(s->k >= 1 && s->k <= d->c.soft_k);
    for (size_t i = 0; a->n_rows && i < rows && d->lists[i] >= 0; i++) {
        size_t at = (size_t)d->lists[i];
        memcpy(r->ids + i * k, s->ids + at * k, k * sizeof *r->ids);
        memcpy(r->logp + i * k, s->logp + at * k, k * sizeof *r->logp);
        r->tail[i] = s->tail[at];
    }
    if (a->n_rows)
        by = *r;
    kern_stage_upload(d->c.D, d->pick_id, by.ids, rows * k * sizeof *by.ids);
    kern_stage_upload(d->c.D, d->pick_logp, by.logp, rows * k * sizeof *by.logp);
    kern_stage_upload(d->c.D, d->pick_tail, by.tail, rows * sizeof *by.tail);
    a->soft = (struct kern_soft){.k = s->k,
                                 .lambda = s->lambda,
                                 .temperature = s->temperature,
                                 .ids = d->pick_id,
                                 .logp = d->pick_logp,
                                 .tail = d->pick_tail};
}

void device_send_rows(struct intra_device *d, struct device_acts *a, const struct intra_batch *b,
                      int64_t count) {
    size_t n = (size_t)b->B * (size_t)b->T;
    bool few = d->c.soft_k && !d->m->rtd_weight && b->targets && !device_host(d);
    a->n_rows = few ? (int)rows_for(n, count) : 0;
    a->taught = b->teacher;
    if (a->n_rows)
        gather(d, b, n, (size_t)a->n_rows);
    if (b->teacher && device_host(d))
        a->soft = *b->teacher;
    else if (b->teacher)
        send_soft(d, a, b->teacher, n);
}

// ---- other calls --------------------------------------------------------------------------------

// The memory from which an op reads the array `host`, or to which it writes the result for it.
static const void *sent(struct intra_device *d, void *there, const void *host, size_t bytes) {
    if (device_host(d))
        return host;
    kern_stage_upload(d->c.D, there, host, bytes);
    return there;
}
static void *into(const struct intra_device *d, void *there, void *host) {
    return device_host(d) ? host : there;
}
static void fetch(struct intra_device *d, void *host, const void *there, size_t bytes) {
    if (!device_host(d))
        kern_stage_download(d->c.D, host, there, bytes);
}

enum neb_status intra_device_scores(struct intra_device *d, int32_t n, float *out) {
    NEB_ASSERT(d->m->rtd_weight && (size_t)n <= device_tokens(d));
    kern_stage_download(d->c.D, out, d->scores, (size_t)n * sizeof *out);
    return kern_stage_end(d->c.D);
}

// Describes the logits of the rows `at` (n), for the first V ids.
static struct kern_rows rows_of(struct intra_device *d, const int32_t *at, int32_t n, int32_t V) {
    // so many rows fit into the buffer of the last loss
    size_t block = device_logits_bytes(d) / ((size_t)kern_logits_ld(V) * sizeof(float));
    NEB_ASSERT(!d->m->mesh && (size_t)n <= device_tokens(d));
    return (struct kern_rows){.n = n,
                              .d = d->m->c.d_model,
                              .V = V,
                              .x = d->yf,
                              .at = sent(d, d->picked, at, (size_t)n * sizeof *at),
                              .w = device_weight(d, d->m->head),
                              .gathered = d->r, // free after the final norm
                              .logits = d->logits,
                              .block = (int)(block < device_tokens(d) ? block : device_tokens(d))};
}

enum neb_status intra_device_sample(struct intra_device *d, int32_t n_ids, const int32_t *positions,
                                    int32_t n, struct neb_rng *rng, int32_t *ids) {
    NEB_ASSERT(d->c.soft_k);
    if (!n)
        return NEB_OK;
    struct kern_rows rows = rows_of(d, positions, n, n_ids);
    for (int32_t i = 0; i < n; i++)
        d->draws_host[i] = neb_rng_unit(rng);
    const double *u = sent(d, d->draws, d->draws_host, (size_t)n * sizeof *u);
    device_ops(d)->sample_rows(d->c.D, d->c.type, &rows, u, into(d, d->pick_id, ids));
    fetch(d, ids, d->pick_id, (size_t)n * sizeof *ids);
    return kern_stage_end(d->c.D);
}

enum neb_status intra_device_labels(struct intra_device *d, const int32_t *at, int32_t n, int32_t k,
                                    float temperature, int32_t *ids, float *logp, float *tail) {
    NEB_ASSERT(temperature > 0 && k <= d->m->c.vocab);
    NEB_ASSERT(k >= !device_host(d) && k <= (device_host(d) ? KERN_SOFT_K_MAX : d->c.soft_k));
    if (!n)
        return NEB_OK;
    struct kern_rows rows = rows_of(d, at, n, d->m->c.vocab);
    size_t named = (size_t)n * (size_t)k;
    device_ops(d)->label_rows(d->c.D, d->c.type, &rows, k, temperature, into(d, d->pick_id, ids),
                              into(d, d->pick_logp, logp), into(d, d->pick_tail, tail));
    fetch(d, ids, d->pick_id, named * sizeof *ids);
    fetch(d, logp, d->pick_logp, named * sizeof *logp);
    fetch(d, tail, d->pick_tail, (size_t)n * sizeof *tail);
    return kern_stage_end(d->c.D);
}
