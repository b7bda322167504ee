// SPDX-License-Identifier: Apache-2.0
// Beam search with a cache of keys and values.
//
//     cache of layer l    k, v  (beam, longest, G*D)   keys after rotary, as they enter attention
//
// The prefix runs through the ordinary forward pass, which copies the k and v of every layer into
// the cache. Each step then runs the same pass over one new token per beam, with attention over the
// cache. When the beams change, their caches are copied; for the length of a translation that is
// cheaper than a tree.
#include "agent/base/memory.h"
#include "intra/model/state.h"
#include "intra/model/translate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct intra_decoder {
    struct intra_model *m;     // borrowed
    int32_t beam_max, longest; // longest: tokens of prefix and translation
    struct intra_device *passes;
    struct device_cache cache;
    float *logits; // (beam, V)
    float *arena;
};

static size_t kv_width(const struct intra_model *m) {
    return (size_t)m->c.n_kv_heads * (size_t)m->c.head_dim;
}

static enum neb_status allocate(struct intra_decoder *d, struct kern *K) {
    const struct intra_model_config *c = &d->m->c;
    size_t L = (size_t)c->n_layers, per = (size_t)d->beam_max * (size_t)d->longest * kv_width(d->m),
           all = 2 * L * per;
    d->arena = neb_large_alloc(all * sizeof *d->arena);
    d->logits = neb_large_alloc((size_t)d->beam_max * (size_t)c->vocab * sizeof *d->logits);
    d->cache.k = calloc(L, sizeof *d->cache.k);
    d->cache.v = calloc(L, sizeof *d->cache.v);
    d->cache.scores = neb_large_alloc((size_t)d->beam_max * (size_t)c->n_heads *
                                      (size_t)d->longest * sizeof *d->cache.scores);
    d->cache.longest = d->longest;
    if (!d->arena || !d->cache.scores || !d->logits || !d->cache.k || !d->cache.v)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a decoder of %d beams", d->beam_max);
    for (size_t l = 0; l < L; l++) {
        d->cache.k[l] = d->arena + 2 * l * per;
        d->cache.v[l] = d->cache.k[l] + per;
    }
    // a pass has the prefix, or one token of each beam
    int32_t batch = (d->beam_max + d->longest - 1) / d->longest;
    NEB_TRY(intra_device_on_host(K, d->m, batch, d->longest, false, false, &d->passes));
    d->passes->cache = &d->cache;
    return NEB_OK;
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
    d->m = (struct intra_model *)(uintptr_t)m; // passes without gradients change nothing
    d->beam_max = beam_max;
    d->longest = longest < m->c.max_seq ? longest : m->c.max_seq;
    enum neb_status st = allocate(d, K);
    if (st != NEB_OK)
        intra_decoder_destroy(&d);
    *out = d;
    return st;
}

void intra_decoder_destroy(struct intra_decoder **dp) {
    struct intra_decoder *d = *dp;
    if (!d)
        return;
    intra_device_destroy(&d->passes);
    free(d->cache.k);
    free(d->cache.v);
    free(d->cache.scores);
    free(d->logits);
    free(d->arena);
    free(d);
    *dp = NULL;
}

// ---- the cache ----------------------------------------------------------------------------------

void device_cache_keep(const struct device_cache *c, int32_t l, int B, int T, const float *k,
                       const float *v, int ld, int width) {
    size_t bytes = (size_t)width * sizeof *k;
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            size_t to = ((size_t)b * (size_t)c->longest + (size_t)(c->at + t)) * (size_t)width,
                   from = ((size_t)b * (size_t)T + (size_t)t) * (size_t)ld;
            memcpy(c->k[l] + to, k + from, bytes);
            memcpy(c->v[l] + to, v + from, bytes);
        }
}

struct attend {
    const struct device_cache *c;
    const struct kern_attn *s;
    int32_t l;
    float *out;
    const float *q;
    int ldq;
    float *scores; // (B, n_heads, longest)
};

// One query head of one sequence.
static void attend_head(void *arg, size_t i) {
    const struct attend *j = arg;
    const struct kern_attn *s = j->s;
    size_t D = (size_t)s->head_dim, heads = (size_t)s->n_heads, h = i % heads, b = i / heads,
           kv = (size_t)s->n_kv_heads * D, n = (size_t)j->c->at + 1,
           from = b * (size_t)j->c->longest * kv + h / (heads / (size_t)s->n_kv_heads) * D;
    const float *k = j->c->k[j->l] + from, *v = j->c->v[j->l] + from,
                *query = j->q + b * (size_t)j->ldq + h * D;
    float *out = j->out + i * D, *scores = j->scores + i * (size_t)j->c->longest, max = -INFINITY,
          sum = 0;
    for (size_t t = 0; t < n; t++) {
        float dot = 0;
        for (size_t e = 0; e < D; e++)
            dot += query[e] * k[t * kv + e];
        scores[t] = dot / sqrtf((float)D);
        max = fmaxf(max, scores[t]);
    }
    memset(out, 0, D * sizeof *out);
    for (size_t t = 0; t < n; t++) {
        float p = expf(scores[t] - max);
        sum += p;
        for (size_t e = 0; e < D; e++)
            out[e] += p * v[t * kv + e];
    }
    for (size_t e = 0; e < D; e++)
        out[e] /= sum;
}

void device_cache_attend(struct intra_device *d, int32_t l, const struct kern_attn *s, float *out,
                         const float *q, int ldq) {
    struct attend j = {
        .c = d->cache, .s = s, .l = l, .out = out, .q = q, .ldq = ldq, .scores = d->cache->scores};
    kern_pool_run(d->c.D->pool, (size_t)s->B * (size_t)s->n_heads, attend_head, &j);
}

// Runs the next T tokens of B sequences at position `at`. d->logits (B, V): logits of the token
// after the last one.
static void run(struct intra_decoder *d, const int32_t *tokens, int32_t B, int32_t T, int32_t at) {
    d->cache.at = at;
    enum neb_status st = intra_device_pass(
        d->passes,
        &(struct intra_batch){.tokens = tokens, .B = B, .T = T, .prefix = at ? NULL : &T}, 0, NULL,
        NULL);
    NEB_ASSERT(st == NEB_OK); // processors cannot fail
    intra_device_logits(d->passes, B * T - B, B, d->logits);
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
    size_t kv = kv_width(d->m), per = (size_t)d->longest * kv,
           bytes = sizeof(float) * kv * (size_t)n;
    for (int32_t l = 0; l < d->m->c.n_layers; l++) {
        memcpy(d->cache.k[l] + (size_t)to * per, d->cache.k[l] + (size_t)from * per, bytes);
        memcpy(d->cache.v[l] + (size_t)to * per, d->cache.v[l] + (size_t)from * per, bytes);
    }
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
        run(d, last, B, 1, n + len);
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
    run(d, prefix, 1, n, 0);
    search(d, &s, n, c);
    memcpy(out, s.done.tokens, sizeof *out * (size_t)s.done.n);
    *out_n = s.done.n;
    free(tokens);
    return NEB_OK;
}
