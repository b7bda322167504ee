// SPDX-License-Identifier: Apache-2.0
// Generates text from a model, token by token. Each token runs the whole window again. That is
// enough to look at what a model has learned; this program does not serve models.
#include "agent/base/rng.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct choice {
    float logit;
    int32_t id;
};

static int by_logit(const void *a, const void *b) {
    const struct choice *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id; // ties by id, so that every machine picks the same
}

static int32_t pick(const struct intra_sampling *s, struct neb_rng *rng, struct choice *c,
                    int32_t V) {
    qsort(c, (size_t)V, sizeof *c, by_logit);
    if (s->temperature <= 0)
        return c[0].id;
    int32_t k = s->top_k > 0 && s->top_k < V ? s->top_k : V;
    double total = 0;
    for (int32_t i = 0; i < k; i++)
        total += exp((double)(c[i].logit - c[0].logit) / (double)s->temperature);
    double u = neb_rng_unit(rng) * total;
    for (int32_t i = 0; i < k; i++) {
        u -= exp((double)(c[i].logit - c[0].logit) / (double)s->temperature);
        if (u < 0)
            return c[i].id;
    }
    return c[k - 1].id;
}

enum neb_status intra_generate(struct kern *K, struct intra_model *m,
                               const struct intra_sampling *s, int32_t *tokens, int n, int cap,
                               int *out_n) {
    enum neb_status st = NEB_OK;
    struct intra_device *passes = NULL;
    int32_t V = m->c.vocab, window = cap < m->c.max_seq ? cap : m->c.max_seq;
    float *logits = malloc(sizeof *logits * (size_t)V);
    struct choice *choices = malloc(sizeof *choices * (size_t)V);
    struct neb_rng rng = neb_rng_make(s->seed, 0);
    if (n < 1 || cap < n) {
        st = neb_fail(NEB_ERR_INVALID,
                      "generation needs at least one token of prompt, and room for it");
        goto out;
    }
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= V) {
            st = neb_fail(NEB_ERR_INVALID,
                          "token %d of the prompt is %d, not in the model's vocabulary of %d", i,
                          tokens[i], V);
            goto out;
        }
    if (!logits || !choices) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory generating text");
        goto out;
    }
    NEB_TRY_GOTO(intra_device_on_host(K, m, 1, window, false, false, &passes), out);
    while (n < cap) {
        int T = n < window ? n : window;
        struct intra_batch b = {.tokens = tokens + n - T, .B = 1, .T = T};
        NEB_TRY_GOTO(intra_device_pass(passes, &b, 0, NULL, NULL), out);
        intra_device_logits(passes, T - 1, 1, logits);
        for (int32_t i = 0; i < V; i++)
            choices[i] = (struct choice){logits[i], i};
        int32_t id = pick(s, &rng, choices, V);
        if (id == s->eos)
            break;
        tokens[n++] = id;
    }
    *out_n = n;
out:
    intra_device_destroy(&passes);
    free(choices);
    free(logits);
    return st;
}
