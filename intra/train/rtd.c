// SPDX-License-Identifier: Apache-2.0
#include "intra/train/rtd.h"
#include "agent/base/rng.h"
#include "intra/train/runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE_ROWS = 256, // positions whose logits are in memory at once
};

int32_t intra_mask_positions(uint64_t seed, uint64_t index, double rate, int32_t n_special,
                             const int32_t *tokens, int32_t n, int32_t *positions) {
    struct neb_rng rng = neb_rng_make(seed, index);
    int32_t count = 0, first = -1;
    for (int32_t i = 0; i < n; i++) {
        double u = neb_rng_unit(&rng);
        if (tokens[i] < n_special)
            continue;
        first = first < 0 ? i : first;
        if (u < rate)
            positions[count++] = i;
    }
    if (!count && first >= 0)
        positions[count++] = first;
    return count;
}

void intra_mask_apply(const int32_t *tokens, int32_t n, const int32_t *positions, int32_t n_masked,
                      int32_t mask_id, int32_t *inputs, int32_t *targets) {
    memcpy(inputs, tokens, (size_t)n * sizeof *inputs);
    for (int32_t i = 0; i < n; i++)
        targets[i] = KERN_IGNORE;
    for (int32_t i = 0; i < n_masked; i++) {
        targets[positions[i]] = tokens[positions[i]];
        inputs[positions[i]] = mask_id;
    }
}

int32_t intra_rtd_apply(const int32_t *tokens, int32_t n, const int32_t *positions,
                        const int32_t *ids, int32_t n_masked, int32_t *inputs, int32_t *labels) {
    int32_t replaced = 0;
    memcpy(inputs, tokens, (size_t)n * sizeof *inputs);
    memset(labels, 0, (size_t)n * sizeof *labels);
    for (int32_t i = 0; i < n_masked; i++) {
        int32_t at = positions[i];
        inputs[at] = ids[i];
        labels[at] = ids[i] != tokens[at];
        replaced += labels[at];
    }
    return replaced;
}

// ---- sampling -----------------------------------------------------------------------------------

struct intra_mask_sampler {
    int32_t n_ids, V, d;
    float *on_device; // (n_most) with a device, instead of the next three
    float *x, *z;     // (SAMPLE_ROWS, d) (SAMPLE_ROWS, V)
    double u[SAMPLE_ROWS];
    int32_t *ids; // of the rows in work
};

enum neb_status intra_mask_sampler_create(const struct intra_runner *r, int32_t n_ids,
                                          int32_t n_most, struct intra_mask_sampler **out) {
    const struct intra_model *m = r->model;
    struct intra_mask_sampler *s = calloc(1, sizeof *s);
    NEB_ASSERT(!m->mesh && n_ids >= 1 && n_ids <= m->c.vocab);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a sampler of masked tokens");
    s->n_ids = n_ids;
    s->V = m->c.vocab;
    s->d = m->c.d_model;
    if (r->device) {
        s->on_device = malloc((size_t)n_most * sizeof *s->on_device);
    } else {
        s->x = malloc(SAMPLE_ROWS * (size_t)s->d * sizeof *s->x);
        s->z = malloc(SAMPLE_ROWS * (size_t)s->V * sizeof *s->z);
    }
    if (!s->on_device && (!s->x || !s->z)) {
        intra_mask_sampler_destroy(&s);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the logits of %d positions", SAMPLE_ROWS);
    }
    *out = s;
    return NEB_OK;
}

void intra_mask_sampler_destroy(struct intra_mask_sampler **sp) {
    if (*sp) {
        free((*sp)->on_device);
        free((*sp)->x);
        free((*sp)->z);
    }
    free(*sp);
    *sp = NULL;
}

// Picks the id at which the running sum of probabilities passes u.
static void sample_row(void *arg, size_t row) {
    struct intra_mask_sampler *s = arg;
    float *z = s->z + row * (size_t)s->V, max = z[0];
    double sum = 0, run = 0;
    int32_t id = 0;
    for (int32_t k = 1; k < s->n_ids; k++)
        max = z[k] > max ? z[k] : max;
    for (int32_t k = 0; k < s->n_ids; k++) {
        z[k] = expf(z[k] - max);
        sum += (double)z[k];
    }
    for (double goal = s->u[row] * sum; id < s->n_ids - 1; id++) {
        run += (double)z[id];
        if (run > goal)
            break;
    }
    s->ids[row] = id;
}

static enum neb_status sample_on_device(struct intra_mask_sampler *s, struct intra_device *d,
                                        const int32_t *positions, int32_t n, struct neb_rng *rng,
                                        int32_t *ids) {
    for (int32_t i = 0; i < n; i++)
        s->on_device[i] = (float)neb_rng_unit(rng);
    return intra_device_sample(d, s->n_ids, positions, n, s->on_device, ids);
}

enum neb_status intra_mask_sample(struct intra_mask_sampler *s, const struct intra_runner *r,
                                  const int32_t *positions, int32_t n, uint64_t seed,
                                  uint64_t index, int32_t *ids) {
    struct neb_rng rng = neb_rng_make(seed, index);
    struct kern *K = r->K;
    if (r->device)
        return sample_on_device(s, r->device, positions, n, &rng, ids);
    const float *hidden = intra_acts_hidden(r->acts);
    for (int32_t from = 0; from < n; from += SAMPLE_ROWS) {
        int32_t rows = n - from < SAMPLE_ROWS ? n - from : SAMPLE_ROWS;
        for (int32_t i = 0; i < rows; i++) {
            memcpy(s->x + (size_t)i * s->d, hidden + (size_t)positions[from + i] * s->d,
                   (size_t)s->d * sizeof *s->x);
            s->u[i] = neb_rng_unit(&rng);
        }
        K->ops->gemm(K, KERN_N, KERN_T, rows, s->V, s->d, 1, s->x, s->d,
                     intra_param(r->model, r->model->head), s->d, 0, s->z, s->V);
        s->ids = ids + from;
        kern_pool_run(K->pool, (size_t)rows, sample_row, s);
    }
    return NEB_OK;
}

// ---- detection ----------------------------------------------------------------------------------

struct scored {
    float score;
    int32_t label;
};

static int by_score(const void *a, const void *b) {
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return (x > y) - (x < y);
}

double intra_rtd_auc(const float *scores, const int32_t *labels, size_t n) {
    struct scored *s = malloc((n + 1) * sizeof *s);
    double above = 0; // pairs in the right order
    size_t ones = 0, zeros = 0;
    bool ordered = s != NULL;
    for (size_t i = 0; ordered && i < n; i++) {
        s[i] = (struct scored){scores[i], labels[i]};
        ordered = !isnan(scores[i]);
    }
    if (!ordered) {
        free(s);
        return NAN;
    }
    qsort(s, n, sizeof *s, by_score);
    for (size_t i = 0, end; i < n; i = end) { // equal scores together
        size_t one = 0, zero = 0;
        for (end = i; end < n && s[end].score == s[i].score; end++)
            s[end].label == 1 ? one++ : zero++;
        above += (double)one * ((double)zeros + (double)zero / 2);
        ones += one;
        zeros += zero;
    }
    free(s);
    return ones && zeros ? above / ((double)ones * (double)zeros) : NAN;
}
