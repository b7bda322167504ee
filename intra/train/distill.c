// SPDX-License-Identifier: Apache-2.0
#include "intra/train/distill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64 }; // rows of logits in memory at once

struct intra_labeller {
    float *x, *z; // (ROWS, d), (ROWS, V); NULL with a device
};

struct job {
    float *z;
    int32_t V, k, from;
    float temperature;
    int32_t *ids;
    float *logp, *tail;
};

enum neb_status intra_labeller_create(const struct intra_runner *r, struct intra_labeller **out) {
    const struct intra_model *m = r->model;
    struct intra_labeller *l = calloc(1, sizeof *l);
    if (l && !r->device) {
        l->x = malloc(sizeof *l->x * ROWS * (size_t)m->c.d_model);
        l->z = malloc(sizeof *l->z * ROWS * (size_t)m->c.vocab);
    }
    if (!l || (!r->device && (!l->x || !l->z))) {
        intra_labeller_destroy(&l);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the logits of a teacher");
    }
    *out = l;
    return NEB_OK;
}

void intra_labeller_destroy(struct intra_labeller **lp) {
    if (*lp) {
        free((*lp)->x);
        free((*lp)->z);
    }
    free(*lp);
    *lp = NULL;
}

// Finds the k largest of z, largest first, by insertion: k is small, and after the first few
// columns little is inserted.
static void largest(const float *z, int32_t V, int32_t k, int32_t *ids) {
    int32_t n = 0;
    for (int32_t c = 0; c < V; c++) {
        if (n == k && !(z[c] > z[ids[n - 1]]))
            continue;
        int32_t at = n < k ? n++ : n - 1;
        for (; at > 0 && z[c] > z[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = c;
    }
}

static void label_row(void *arg, size_t i) {
    const struct job *j = arg;
    float *z = j->z + i * (size_t)j->V, max = z[0];
    size_t row = (size_t)j->from + i;
    double sum = 0, named = 0;
    for (int32_t c = 1; c < j->V; c++)
        max = z[c] > max ? z[c] : max;
    for (int32_t c = 0; c < j->V; c++) {
        z[c] = (z[c] - max) / j->temperature;
        sum += (double)expf(z[c]);
    }
    float less = (float)log(sum);
    if (!j->k) {
        for (int32_t c = 0; c < j->V; c++)
            j->logp[row * (size_t)j->V + (size_t)c] = z[c] - less;
        return;
    }
    int32_t *ids = j->ids + row * (size_t)j->k;
    largest(z, j->V, j->k, ids);
    for (int32_t a = 0; a < j->k; a++) {
        float p = z[ids[a]] - less;
        j->logp[row * (size_t)j->k + (size_t)a] = p;
        named += exp((double)p);
    }
    j->tail[row] = named < 1 ? (float)(1 - named) : 0;
}

enum neb_status intra_labels(struct intra_labeller *l, const struct intra_runner *r,
                             const int32_t *rows, int32_t n, int32_t k, float temperature,
                             int32_t *ids, float *logp, float *tail) {
    const struct intra_model *m = r->model;
    struct kern *K = r->K;
    NEB_ASSERT(!m->mesh && k >= 0 && k <= INTRA_SOFT_K_MAX && k <= m->c.vocab && temperature > 0);
    if (r->device)
        return intra_device_labels(r->device, rows, n, k, temperature, ids, logp, tail);
    int32_t d = m->c.d_model;
    const float *hidden = intra_acts_hidden(r->acts);
    for (int32_t from = 0; from < n; from += ROWS) {
        int32_t count = n - from < ROWS ? n - from : ROWS;
        for (int32_t i = 0; i < count; i++)
            memcpy(l->x + (size_t)i * (size_t)d, hidden + (size_t)rows[from + i] * (size_t)d,
                   sizeof(float) * (size_t)d);
        K->ops->gemm(K, KERN_N, KERN_T, count, m->c.vocab, d, 1, l->x, d, intra_param(m, m->head),
                     d, 0, l->z, m->c.vocab);
        struct job j = {l->z, m->c.vocab, k, from, temperature, ids, logp, tail};
        kern_pool_run(K->pool, (size_t)count, label_row, &j);
    }
    return NEB_OK;
}
