// SPDX-License-Identifier: Apache-2.0
#include "agent/train/label_bytes.h"
#include "agent/base/rng.h"
#include "compress/softlabel.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS_MIN = 16, ROWS_MAX = 4096 };
static const double GAP = 0.8; // nats between a label and the next likely one, on average

struct sample {
    int32_t *ids;       // (rows, k)
    float *logp, *tail; // (rows, k), (rows)
};

// Zipf's law: draws rank r in proportion to 1 / r.
static int32_t draw(struct neb_rng *rng, int32_t vocab) {
    int32_t id = (int32_t)(exp(neb_rng_unit(rng) * log(vocab)) - 1);
    return id < 0 ? 0 : id < vocab ? id : vocab - 1;
}

static bool among(const int32_t *ids, int32_t n, int32_t id) {
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static void row(struct neb_rng *rng, int32_t k, int32_t vocab, int32_t *ids, float *logp,
                float *tail) {
    double sum = 0;
    for (int32_t a = 0; a < k; a++) {
        ids[a] = draw(rng, vocab);
        while (among(ids, a, ids[a])) // takes the next free id, so that the loop ends
            ids[a] = (ids[a] + 1) % vocab;
        double last = a ? (double)logp[a - 1] : 0;
        logp[a] = (float)(last + (a ? GAP * log(1 - neb_rng_unit(rng)) : 0));
        sum += exp((double)logp[a]);
    }
    *tail = (float)neb_rng_unit(rng);
    for (int32_t a = 0; a < k; a++)
        logp[a] += (float)log((1 - (double)*tail) / sum);
}

enum neb_status agent_label_bytes(int32_t k, int32_t vocab, double rows, double *out) {
    int32_t n = (int32_t)fmin(ROWS_MAX, fmax(ROWS_MIN, rows));
    enum neb_status st = NEB_OK;
    struct cmp_soft *wire = NULL;
    struct neb_buf frame = {0};
    struct neb_rng rng = neb_rng_make(7, 7);
    size_t cells = (size_t)n * (size_t)(k > 0 ? k : 1);
    *out = 0;
    if (k < CMP_SOFT_K_MIN)
        return NEB_OK;
    if (k > vocab)
        return neb_fail(NEB_ERR_INVALID, "distill.k: %d labels exceed the vocabulary of %d", k,
                        vocab);
    struct sample s = {calloc(cells, sizeof *s.ids), calloc(cells, sizeof *s.logp),
                       calloc((size_t)n, sizeof *s.tail)};
    if (!s.ids || !s.logp || !s.tail) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a sample of labels");
        goto out;
    }
    for (int32_t i = 0; i < n; i++)
        row(&rng, k, vocab, s.ids + (size_t)i * (size_t)k, s.logp + (size_t)i * (size_t)k,
            s.tail + i);
    struct cmp_soft_head h = {(uint32_t)n, k, vocab, 1};
    NEB_TRY_GOTO(cmp_soft_create(&wire), out);
    NEB_TRY_GOTO(cmp_soft_encode(wire, &h, s.ids, s.logp, s.tail, &frame), out);
    *out = (double)frame.len / n;
out:
    cmp_soft_destroy(&wire);
    neb_buf_free(&frame);
    free(s.ids);
    free(s.logp);
    free(s.tail);
    return st;
}
