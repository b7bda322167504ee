// SPDX-License-Identifier: Apache-2.0
// Beam search with a cache of keys and values.
//
//     cache of layer l    k, v  (beam, longest, G*D)   keys after rotary, as they enter attention
//
// The prefix runs through the ordinary forward pass, whose q, k, v of every layer are copied into
// the cache. Each step then runs one new token per beam, with attention over the cache. When the
// beams change, their caches are copied; for the length of a translation that is cheaper than a
// tree.
#include "agent/base/memory.h"
#include "intra/model/translate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct intra_decoder {
    struct kern *K;              // borrowed
    const struct intra_model *m; // borrowed
    int32_t beam_max, longest;   // longest: tokens of prefix and translation
    struct intra_acts *acts;     // for the prefix
    float **cache[2];            // keys, values: (n_layers) of (beam, longest, kv)
    float *h, *r, *y, *rstd, *qkv, *att, *lora, *gu, *act, *logits, *scores; // one row per beam
    float *arena;
};

static size_t kv_width(const struct intra_model *m) {
    return (size_t)m->c.n_kv_heads * (size_t)m->c.head_dim;
}

static enum neb_status allocate(struct intra_decoder *d) {
    const struct intra_model_config *c = &d->m->c;
    size_t B = (size_t)d->beam_max, L = (size_t)c->n_layers, q = (size_t)c->n_heads * c->head_dim,
           kv = kv_width(d->m), per = B * (size_t)d->longest * kv;
    size_t sizes[] = {B * c->d_model,
                      B * c->d_model,
                      B * c->d_model,
                      B,
                      B * (q + 2 * kv),
                      B * q,
                      B * (size_t)(d->m->trainable.lora_rank + 1),
                      B * 2 * (size_t)c->d_ff,
                      B * (size_t)c->d_ff,
                      B * (size_t)c->vocab,
                      (size_t)d->longest};
    float **parts[] = {&d->h,    &d->r,  &d->y,   &d->rstd,   &d->qkv,   &d->att,
                       &d->lora, &d->gu, &d->act, &d->logits, &d->scores};
    size_t total = 2 * L * per, at = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        total += (sizes[i] + 15) / 16 * 16;
    d->arena = neb_large_alloc(total * sizeof *d->arena);
    for (int k = 0; k < 2; k++)
        d->cache[k] = calloc(L, sizeof *d->cache[k]);
    if (!d->arena || !d->cache[0] || !d->cache[1])
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a decoder of %d beams", d->beam_max);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *parts[i] = d->arena + at;
        at += (sizes[i] + 15) / 16 * 16;
    }
    for (size_t l = 0; l < L; l++)
        for (int k = 0; k < 2; k++, at += per)
            d->cache[k][l] = d->arena + at;
    return intra_acts_create_kept(d->m, 1, d->longest, &d->acts);
}

enum neb_status intra_decoder_create(struct kern *K, const struct intra_model *m, int32_t beam_max,
                                     int32_t longest, struct intra_decoder **out) {
    if (m->mesh || !intra_model_continues(m))
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "decoding needs a model that predicts the next token, on one rank");
    if (beam_max < 1 || beam_max > INTRA_BEAM_MAX)
        return neb_fail(NEB_ERR_INVALID, "beam %d is not in 1..%d", beam_max, INTRA_BEAM_MAX);
    struct intra_decoder *d = calloc(1, sizeof *d);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a decoder");
    d->K = K;
    d->m = m;
    d->beam_max = beam_max;
    d->longest = longest < m->c.max_seq ? longest : m->c.max_seq;
    enum neb_status st = allocate(d);
    if (st != NEB_OK)
        intra_decoder_destroy(&d);
    *out = d;
    return st;
}

void intra_decoder_destroy(struct intra_decoder **dp) {
    struct intra_decoder *d = *dp;
    if (!d)
        return;
    intra_acts_destroy(&d->acts);
    free(d->cache[0]);
    free(d->cache[1]);
    free(d->arena);
    free(d);
    *dp = NULL;
}

// ---- one token per beam -------------------------------------------------------------------------

// y (n, out; row stride ld) = x W^T, with the adapters of its parts.
static void linear(struct intra_decoder *d, float *y, int ld, const float *x, int n, int out,
                   int in, const struct intra_tensor *w, const struct intra_lora_pair *lora,
                   int parts) {
    const struct intra_model *m = d->m;
    struct kern *K = d->K;
    K->ops->gemm(K, KERN_N, KERN_T, n, out, in, 1, x, in, intra_param(m, w), in, 0, y, ld);
    for (int i = 0, col = 0; i < parts; col += w[i].rows, i++) {
        int rank = m->trainable.lora_rank;
        if (!lora[i].a)
            continue;
        K->ops->gemm(K, KERN_N, KERN_T, n, rank, in, 1, x, in, intra_param(m, lora[i].a), in, 0,
                     d->lora, rank);
        K->ops->gemm(K, KERN_N, KERN_T, n, w[i].rows, rank, m->trainable.lora_alpha / (float)rank,
                     d->lora, rank, intra_param(m, lora[i].b), rank, 1, y + col, ld);
    }
}

// Attention of one beam's query heads over the first n positions of its cache.
static void attend(struct intra_decoder *d, int32_t l, int32_t b, int32_t n) {
    const struct intra_model_config *c = &d->m->c;
    size_t D = (size_t)c->head_dim, q = (size_t)c->n_heads * D, kv = kv_width(d->m);
    const float *row = d->qkv + (size_t)b * (q + 2 * kv);
    size_t from = (size_t)b * (size_t)d->longest * kv;
    for (int32_t h = 0; h < c->n_heads; h++) {
        size_t group = (size_t)(h / (c->n_heads / c->n_kv_heads)) * D;
        const float *k = d->cache[0][l] + from + group, *v = d->cache[1][l] + from + group;
        const float *query = row + (size_t)h * D;
        float *out = d->att + (size_t)b * q + (size_t)h * D, max = -INFINITY, sum = 0;
        for (int32_t t = 0; t < n; t++) {
            float s = 0;
            for (size_t e = 0; e < D; e++)
                s += query[e] * k[(size_t)t * kv + e];
            d->scores[t] = s / sqrtf((float)D);
            max = fmaxf(max, d->scores[t]);
        }
        memset(out, 0, D * sizeof *out);
        for (int32_t t = 0; t < n; t++) {
            float p = expf(d->scores[t] - max);
            sum += p;
            for (size_t e = 0; e < D; e++)
                out[e] += p * v[(size_t)t * kv + e];
        }
        for (size_t e = 0; e < D; e++)
            out[e] /= sum;
    }
}

static void block(struct intra_decoder *d, int32_t l, int32_t B, int32_t at) {
    const struct intra_model *m = d->m;
    const struct intra_model_config *c = &m->c;
    const struct intra_layer *y = &m->layers[l];
    struct kern *K = d->K;
    int dm = c->d_model, q = c->n_heads * c->head_dim, kv = (int)kv_width(m), qkv = q + 2 * kv;
    K->ops->rmsnorm_fwd(K, d->y, d->rstd, d->h, d->h, l ? d->r : NULL, intra_param(m, y->norm1), B,
                        dm, c->norm_eps);
    linear(d, d->qkv, qkv, d->y, B, qkv, dm, y->q, &y->lora[0], 3);
    if (y->q_bias)
        K->ops->bias_fwd(K, d->qkv, intra_param(m, y->q_bias), B, qkv);
    // all rows are at position `at`
    K->ops->rope(K, d->qkv, qkv, m->rope + (size_t)at * c->head_dim, B, 1,
                 c->n_heads + c->n_kv_heads, c->head_dim, false);
    for (int32_t b = 0; b < B; b++) {
        size_t to = ((size_t)b * (size_t)d->longest + (size_t)at) * (size_t)kv;
        for (int k = 0; k < 2; k++)
            memcpy(d->cache[k][l] + to, d->qkv + (size_t)b * (size_t)qkv + q + k * kv,
                   sizeof(float) * (size_t)kv);
        attend(d, l, b, at + 1);
    }
    linear(d, d->r, dm, d->att, B, dm, q, y->o, &y->lora[3], 1);
    K->ops->rmsnorm_fwd(K, d->y, d->rstd, d->h, d->h, d->r, intra_param(m, y->norm2), B, dm,
                        c->norm_eps);
    linear(d, d->gu, 2 * c->d_ff, d->y, B, 2 * c->d_ff, dm, y->gate, &y->lora[4], 2);
    K->ops->swiglu_fwd(K, d->act, d->gu, B, c->d_ff);
    linear(d, d->r, dm, d->act, B, dm, c->d_ff, y->down, &y->lora[6], 1);
}

// Runs `tokens` (B) at position `at`. d->logits (B, V): logits of the next token.
static void step(struct intra_decoder *d, const int32_t *tokens, int32_t B, int32_t at) {
    const struct intra_model *m = d->m;
    struct kern *K = d->K;
    K->ops->embed_fwd(K, d->h, intra_param(m, m->embed), tokens, B, m->c.d_model);
    for (int32_t l = 0; l < m->c.n_layers; l++)
        block(d, l, B, at);
    K->ops->rmsnorm_fwd(K, d->y, d->rstd, d->h, d->h, d->r, intra_param(m, m->norm), B,
                        m->c.d_model, m->c.norm_eps);
    K->ops->gemm(K, KERN_N, KERN_T, B, m->c.vocab, m->c.d_model, 1, d->y, m->c.d_model,
                 intra_param(m, m->head), m->c.d_model, 0, d->logits, m->c.vocab);
}

static void log_softmax(float *z, int32_t V) {
    float max = z[0];
    double sum = 0;
    for (int32_t i = 1; i < V; i++)
        max = fmaxf(max, z[i]);
    for (int32_t i = 0; i < V; i++)
        sum += (double)expf(z[i] - max);
    float less = max + (float)log(sum);
    for (int32_t i = 0; i < V; i++)
        z[i] -= less;
}

static void run_prefix(struct intra_decoder *d, const int32_t *prefix, int32_t n) {
    size_t kv = kv_width(d->m), row = (size_t)d->m->c.n_heads * d->m->c.head_dim + 2 * kv;
    intra_acts_prefix(d->acts, &n);
    intra_model_pass(d->K, (struct intra_model *)(uintptr_t)d->m, d->acts, prefix, NULL, 1, n, 0,
                     NULL, NULL);
    intra_acts_prefix(d->acts, NULL);
    for (int32_t l = 0; l < d->m->c.n_layers; l++) {
        const float *qkv = intra_acts_qkv(d->acts, l);
        for (int32_t t = 0; t < n; t++)
            for (size_t k = 0; k < 2; k++)
                memcpy(d->cache[k][l] + (size_t)t * kv,
                       qkv + (size_t)t * row + (row - 2 * kv) + k * kv, sizeof(float) * kv);
    }
    intra_model_logits(d->K, d->m, d->acts, n - 1, d->logits);
}

// ---- the search ---------------------------------------------------------------------------------

struct hypothesis {
    int32_t *tokens;
    int32_t n;
    double score;
};

struct candidate {
    double score;
    int32_t beam, token;
};

// The best `want` continuations of the beams, best first. Ties: the lower beam, then the lower
// token.
static int32_t best(const struct intra_decoder *d, const struct hypothesis *beams, int32_t B,
                    int32_t want, struct candidate *out) {
    int32_t n = 0, V = d->m->c.vocab;
    for (int32_t b = 0; b < B; b++)
        for (int32_t t = 0; t < V; t++) {
            double score = beams[b].score + (double)d->logits[(size_t)b * (size_t)V + (size_t)t];
            if (n == want && !(score > out[n - 1].score))
                continue;
            int32_t at = n < want ? n++ : n - 1;
            for (; at > 0 && score > out[at - 1].score; at--)
                out[at] = out[at - 1];
            out[at] = (struct candidate){score, b, t};
        }
    return n;
}

static void copy_cache(struct intra_decoder *d, int32_t to, int32_t from, int32_t n) {
    size_t kv = kv_width(d->m), per = (size_t)d->longest * kv;
    for (int32_t l = 0; l < d->m->c.n_layers; l++)
        for (int k = 0; k < 2; k++)
            memcpy(d->cache[k][l] + (size_t)to * per, d->cache[k][l] + (size_t)from * per,
                   sizeof(float) * kv * (size_t)n);
}

// Replaces the beams by the n chosen ones. A cache that a chosen beam still needs keeps its slot;
// further copies go into free slots, so no cache is overwritten before it is copied.
static void reorder(struct intra_decoder *d, struct hypothesis *beams, struct hypothesis *spare,
                    const struct candidate *chosen, int32_t n, int32_t cached) {
    // home: old beam -> the new beam that keeps its cache
    int32_t home[INTRA_BEAM_MAX], taken[INTRA_BEAM_MAX] = {0};
    for (int32_t i = 0; i < INTRA_BEAM_MAX; i++)
        home[i] = -1;
    for (int32_t i = 0; i < n; i++) // the first continuation of an old beam keeps its cache
        if (!taken[chosen[i].beam]++)
            home[chosen[i].beam] = i;
    int32_t order[INTRA_BEAM_MAX], rest = 0;
    for (int32_t slot = 0; slot < n; slot++)
        order[slot] = home[slot];
    for (int32_t i = 0; i < n; i++) {
        int32_t b = chosen[i].beam;
        if (home[b] == i && b < n)
            continue; // keeps its slot
        while (order[rest] >= 0)
            rest++;
        copy_cache(d, rest, b, cached);
        order[rest] = i;
    }
    for (int32_t slot = 0; slot < n; slot++) {
        const struct candidate *c = &chosen[order[slot]];
        const struct hypothesis *from = &beams[c->beam];
        memcpy(spare[slot].tokens, from->tokens, sizeof(int32_t) * (size_t)from->n);
        spare[slot].tokens[from->n] = c->token;
        spare[slot].n = from->n + 1;
        spare[slot].score = c->score;
    }
    for (int32_t slot = 0; slot < n; slot++) {
        struct hypothesis swap = beams[slot];
        beams[slot] = spare[slot];
        spare[slot] = swap;
    }
}

static double normalised(double score, int32_t n, float alpha) {
    return score / pow(n > 0 ? n : 1, (double)alpha);
}

struct search {
    struct hypothesis beams[INTRA_BEAM_MAX], spare[INTRA_BEAM_MAX], done;
    bool finished; // `done` holds a hypothesis
    double bar;    // its normalised score
};

static void offer(struct search *s, const struct hypothesis *from, double score, float alpha) {
    double value = normalised(score, from->n + 1, alpha);
    if (s->finished && value <= s->bar)
        return;
    s->finished = true;
    s->bar = value;
    s->done.n = from->n;
    memcpy(s->done.tokens, from->tokens, sizeof(int32_t) * (size_t)from->n);
}

static void search(struct intra_decoder *d, struct search *s, int32_t n,
                   const struct intra_beam_config *c) {
    int32_t room = d->longest - n, limit = c->max_tokens < room ? c->max_tokens : room, B = 1;
    struct candidate found[2 * INTRA_BEAM_MAX], chosen[INTRA_BEAM_MAX];
    log_softmax(d->logits, d->m->c.vocab);
    for (int32_t len = 0; len < limit; len++) {
        int32_t k = best(d, s->beams, B, 2 * c->beam, found), live = 0;
        for (int32_t i = 0; i < k && live < c->beam; i++) {
            if (found[i].token == c->eos && i < c->beam)
                offer(s, &s->beams[found[i].beam], found[i].score, c->alpha);
            else if (found[i].token != c->eos)
                chosen[live++] = found[i];
        }
        // A longer hypothesis can only lose score. At best it keeps its score up to the greatest
        // length.
        if (s->finished &&
            (c->beam == 1 || !live || normalised(chosen[0].score, limit + 1, c->alpha) <= s->bar))
            return;
        reorder(d, s->beams, s->spare, chosen, live, n + len);
        B = live;
        if (len + 1 == limit)
            break;
        int32_t last[INTRA_BEAM_MAX];
        for (int32_t b = 0; b < B; b++)
            last[b] = s->beams[b].tokens[len];
        step(d, last, B, n + len);
        for (int32_t b = 0; b < B; b++)
            log_softmax(d->logits + (size_t)b * (size_t)d->m->c.vocab, d->m->c.vocab);
    }
    for (int32_t b = 0; !s->finished && b < B; b++) // no beam reached EOS: the best one, unfinished
        if (b == 0 || s->beams[b].score > s->bar) {
            s->bar = s->beams[b].score;
            s->done.n = s->beams[b].n;
            memcpy(s->done.tokens, s->beams[b].tokens, sizeof(int32_t) * (size_t)s->beams[b].n);
        }
}

enum neb_status intra_decode(struct intra_decoder *d, const int32_t *prefix, int32_t n,
                             const struct intra_beam_config *c, int32_t *out, int32_t *out_n) {
    struct search s = {0};
    if (c->beam < 1 || c->beam > d->beam_max || c->max_tokens < 1)
        return neb_fail(NEB_ERR_INVALID, "beam %d is not in 1..%d, or max_tokens %d is below 1",
                        c->beam, d->beam_max, c->max_tokens);
    if (n < 1 || n >= d->longest)
        return neb_fail(NEB_ERR_INVALID, "the source has %d tokens; the model takes 1 to %d", n,
                        d->longest - 1);
    for (int32_t i = 0; i < n; i++)
        if (prefix[i] < 0 || prefix[i] >= d->m->c.vocab)
            return neb_fail(NEB_ERR_INVALID, "source token %d is not in the vocabulary of %d",
                            prefix[i], d->m->c.vocab);
    size_t cap = (size_t)c->max_tokens + 1;
    int32_t *tokens = calloc(cap * (2 * INTRA_BEAM_MAX + 1), sizeof *tokens);
    if (!tokens)
        return neb_fail(NEB_ERR_NOMEM, "out of memory decoding");
    for (size_t b = 0; b < INTRA_BEAM_MAX; b++) {
        s.beams[b].tokens = tokens + 2 * b * cap;
        s.spare[b].tokens = tokens + (2 * b + 1) * cap;
    }
    s.done.tokens = tokens + 2 * INTRA_BEAM_MAX * cap;
    run_prefix(d, prefix, n);
    search(d, &s, n, c);
    memcpy(out, s.done.tokens, sizeof *out * (size_t)s.done.n);
    *out_n = s.done.n;
    free(tokens);
    return NEB_OK;
}
