// SPDX-License-Identifier: Apache-2.0
// Rank 0 keeps the sequences; the other ranks only run passes (group.h). A round has passes until
// it is known what may follow every hypothesis. Then all sequences go on by one token.
#include "intra/train/decode.h"
#include "agent/base/moved.h"
#include "intra/train/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 4096,              // of a pass of a group for decoding alone
    HOST_CACHE_BYTES = 1 << 30, // of keys and values, on processors
};

struct pass { // of one replica
    int32_t B, T, n_pairs, n_copied;
    // (rows) sequence and beam; positions that are new
    int32_t *of, *beam, *len;
    int32_t *tokens;                   // (room)
    int32_t *slot, *at, *prefix, *end; // (rows)
    int32_t *pairs;                    // (rows, 2)
    double *u;                         // (rows)
    int32_t *ids;                      // (rows, k)
    float *logp, *tail;                // (rows, k) (rows)
    struct intra_picks picks;
    void *arena;
};

struct decoder {
    struct intra_group *group;
    struct intra_decode_config c;
    struct intra_prompt *prompts;
    int32_t *order, n, next;               // (n) the longest prompt first
    int32_t dp, width, k, per, longest, V; // per: sequences of a replica at once
    int32_t room, rows;                    // tokens and hypotheses of a pass
    struct intra_sequence *all;            // (dp, per)
    int32_t *tokens, *ids;                 // of all; (dp, per, width, k)
    float *logp;                           // (dp, per, width, k)
    struct pass *passes;                   // (dp)
};

int32_t intra_decode_soft_k(const struct intra_decode_config *c) {
    return c->beam > 1 ? 2 * c->beam : intra_decode_draws(c) && c->top_k > 0 ? c->top_k : 1;
}

static bool draws_all(const struct decoder *d) {
    return intra_decode_draws(&d->c) && d->c.top_k == 0;
}

// ---- set-up -------------------------------------------------------------------------------------

static enum neb_status check_config(const struct intra_decode_config *c,
                                    const struct intra_trainer *t) {
    int32_t k = intra_decode_soft_k(c);
    if (!intra_model_continues(t->model))
        return neb_fail(NEB_ERR_UNSUPPORTED, "decoding needs a model that predicts the next token");
    if (c->beam < 0 || c->beam > INTRA_BEAM_MAX || c->top_k < 0 || c->top_k > KERN_SOFT_K_MAX ||
        !(c->temperature >= 0 && isfinite(c->temperature)) || (c->beam > 1 && c->slides) ||
        (c->beam > 1 && intra_decode_draws(c)))
        return neb_fail(NEB_ERR_INVALID,
                        "decoding: beam %d (0 to %d), top k %d (0 to %d), temperature %g: out of "
                        "range, or a beam with draws",
                        c->beam, INTRA_BEAM_MAX, c->top_k, KERN_SOFT_K_MAX, (double)c->temperature);
    if (k > t->c.soft_k)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "decoding needs the %d most likely tokens, this group gives %d", k,
                        t->c.soft_k);
    return NEB_OK;
}

static enum neb_status check_prompts(const struct decoder *d) {
    for (int32_t i = 0; i < d->n; i++) {
        const struct intra_prompt *p = &d->prompts[i];
        if (p->n < 1 || (p->n >= d->longest && !d->c.slides))
            return neb_fail(NEB_ERR_INVALID, "prompt %d has %d tokens; the model takes 1 to %d", i,
                            p->n, d->longest - 1);
        for (int32_t j = 0; j < p->n; j++)
            if (p->tokens[j] < 0 || p->tokens[j] >= d->V)
                return neb_fail(NEB_ERR_INVALID,
                                "token %d of prompt %d is %d, not in the model's vocabulary of %d",
                                j, i, p->tokens[j], d->V);
    }
    return NEB_OK;
}

// Sequences at once: as many as passes and memory take.
static void set_sizes(struct decoder *d) {
    const struct intra_trainer *t = intra_group_trainer(d->group);
    struct kern *device = intra_group_device(d->group);
    size_t slot = intra_device_cache_bytes(t->device, d->longest),
           memory = device ? device->ops->free_bytes(device) / 2 : HOST_CACHE_BYTES,
           fit = memory / slot;
    int32_t rows = d->room < INTRA_DECODE_ROWS ? d->room : INTRA_DECODE_ROWS,
            most = (d->n + d->dp - 1) / d->dp;
    rows = !d->c.uncached && fit < (size_t)rows ? (int32_t)fit : rows;
    d->per = rows / d->width < most ? rows / d->width : most;
    d->per = d->per > 0 ? d->per : 1;
    d->rows = d->per * d->width;
}

struct keyed {
    int32_t n, i;
};
static int longer_first(const void *a, const void *b) {
    const struct keyed *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : (x->i > y->i) - (x->i < y->i);
}

// So a pass over prompts has little padding.
static enum neb_status sort_prompts(struct decoder *d) {
    struct keyed *keys = calloc((size_t)d->n, sizeof *keys);
    d->order = calloc((size_t)d->n, sizeof *d->order);
    bool made = keys && d->order;
    for (int32_t i = 0; made && i < d->n; i++)
        keys[i] = (struct keyed){d->prompts[i].n, i};
    if (made)
        qsort(keys, (size_t)d->n, sizeof *keys, longer_first);
    for (int32_t i = 0; made && i < d->n; i++)
        d->order[i] = keys[i].i;
    free(keys);
    return made ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory listing %d prompts", d->n);
}

static enum neb_status make_pass(const struct decoder *d, struct pass *p) {
    size_t rows = (size_t)d->rows, room = (size_t)d->room, k = (size_t)d->k,
           ints = 9 * rows + room + rows * k;
    char *x = calloc(1, rows * sizeof(double) + (ints + rows * k + rows) * sizeof(int32_t));
    if (!x)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a pass of %d sequences", d->rows);
    p->arena = x;
    p->u = (double *)(void *)x;
    p->of = (int32_t *)(void *)(p->u + rows);
    p->beam = p->of + rows;
    p->len = p->beam + rows;
    p->slot = p->len + rows;
    p->at = p->slot + rows;
    p->prefix = p->at + rows;
    p->end = p->prefix + rows;
    p->pairs = p->end + rows;
    p->tokens = p->pairs + 2 * rows;
    p->ids = p->tokens + room;
    p->logp = (float *)(void *)(p->ids + rows * k);
    p->tail = p->logp + rows * k;
    return NEB_OK;
}

static enum neb_status make_sequences(struct decoder *d) {
    size_t many = (size_t)d->dp * (size_t)d->per, width = (size_t)d->width, most = 1,
           beams = 2 * width + 1, each;
    for (int32_t i = 0; i < d->n; i++)
        most = (size_t)d->prompts[i].most > most ? (size_t)d->prompts[i].most : most;
    each = most + 1;
    d->all = calloc(many, sizeof *d->all);
    d->tokens = calloc(many * beams * each, sizeof *d->tokens);
    d->ids = calloc(many * width * (size_t)d->k, sizeof *d->ids);
    d->logp = calloc(many * width * (size_t)d->k, sizeof *d->logp);
    d->passes = calloc((size_t)d->dp, sizeof *d->passes);
    if (!d->all || !d->tokens || !d->ids || !d->logp || !d->passes)
        return neb_fail(NEB_ERR_NOMEM, "out of memory decoding %zu sequences", many);
    for (size_t i = 0; i < many; i++) {
        struct intra_sequence *s = &d->all[i];
        int32_t *tokens = d->tokens + i * beams * each;
        s->slot0 = (int32_t)(i % (size_t)d->per) * d->width;
        s->width = d->width;
        for (size_t b = 0; b < width; b++) {
            s->beams[b].tokens = tokens + 2 * b * each;
            s->spare[b].tokens = tokens + (2 * b + 1) * each;
        }
        s->best.tokens = tokens + 2 * width * each;
    }
    for (int32_t r = 0; r < d->dp; r++)
        NEB_TRY(make_pass(d, &d->passes[r]));
    return NEB_OK;
}

static void destroy(struct decoder *d) {
    for (int32_t r = 0; d->passes && r < d->dp; r++)
        free(d->passes[r].arena);
    free(d->passes);
    free(d->order);
    free(d->all);
    free(d->tokens);
    free(d->ids);
    free(d->logp);
}

// ---- passes -------------------------------------------------------------------------------------

static int32_t length(const struct intra_sequence *s, const struct intra_hypothesis *h) {
    return s->p->n + h->n;
}
static int32_t token(const struct intra_sequence *s, const struct intra_hypothesis *h, int32_t i) {
    return i < s->p->n ? s->p->tokens[i] : h->tokens[i - s->p->n];
}
// True if all positions are computed.
static bool from_start(const struct decoder *d, const struct intra_sequence *s,
                       const struct intra_hypothesis *h) {
    return d->c.uncached || !s->cached || length(s, h) > d->longest;
}

// Lists hypotheses for one pass, as many as fit.
static void list_rows(const struct decoder *d, int32_t replica, bool start, struct pass *p) {
    p->B = 0;
    p->T = 1;
    for (int32_t i = replica * d->per; i < (replica + 1) * d->per; i++) {
        const struct intra_sequence *s = &d->all[i];
        for (int32_t b = 0; s->p && b < s->live; b++) {
            const struct intra_hypothesis *h = &s->beams[b];
            int32_t n = length(s, h),
                    len = !start           ? 1
                          : n < d->longest ? n
                                           : d->longest,
                    T = len > p->T ? len : p->T;
            if (!h->due || from_start(d, s, h) != start)
                continue;
            if (p->B == d->rows || (int64_t)(p->B + 1) * T > d->room)
                return;
            p->T = T;
            p->of[p->B] = i;
            p->beam[p->B] = b;
            p->len[p->B++] = len;
        }
    }
}

static void fill_rows(const struct decoder *d, bool start, struct pass *p) {
    p->n_pairs = p->n_copied = 0;
    for (int32_t row = 0; row < p->B; row++) {
        struct intra_sequence *s = &d->all[p->of[row]];
        const struct intra_hypothesis *h = &s->beams[p->beam[row]];
        int32_t n = length(s, h), len = p->len[row], *to = p->tokens + row * p->T;
        for (int32_t i = 0; i < p->T; i++)
            to[i] = i < len ? token(s, h, n - len + i) : 0;
        p->slot[row] = h->slot;
        p->at[row] = n - 1;
        p->prefix[row] = s->p->n + len - n > 0 ? s->p->n + len - n : 0;
        p->end[row] = row * p->T + len - 1;
        p->u[row] = h->u;
        for (int32_t i = 0; !start && i < 2 * s->n_pairs; i += 2, p->n_pairs++)
            memcpy(p->pairs + 2 * p->n_pairs, s->pairs + i, 2 * sizeof *p->pairs);
        if (!start) {
            s->n_pairs = 0;
            p->n_copied = s->cached > p->n_copied ? s->cached : p->n_copied;
        }
    }
}

static void add_pass(struct decoder *d, bool start, struct pass *p) {
    bool cached = !d->c.uncached;
    struct intra_batch b = {.tokens = p->tokens,
                            .B = p->B,
                            .T = p->T,
                            .prefix = d->c.prefix && start ? p->prefix : NULL,
                            .decodes = true,
                            .slot = cached ? p->slot : NULL,
                            .at = cached && !start ? p->at : NULL,
                            .pairs = p->pairs,
                            .n_pairs = p->n_pairs,
                            .n_copied = p->n_copied};
    p->picks = (struct intra_picks){
        .kind = draws_all(d) ? INTRA_PICK_DRAWS : INTRA_PICK_LABELS,
        .n = p->B,
        .at = p->end,
        .n_ids = d->V,
        .u = p->u,
        .k = d->k,
        .temperature = intra_decode_draws(&d->c) ? d->c.temperature : 1,
        .ids = p->ids,
        .logp = p->logp,
        .tail = p->tail,
    };
    intra_group_pass(d->group, &b, &p->picks);
}

static void take_results(struct decoder *d, struct pass *p) {
    size_t k = (size_t)d->k;
    for (int32_t row = 0; row < p->B; row++) {
        size_t to = ((size_t)p->of[row] * (size_t)d->width + (size_t)p->beam[row]) * k,
               from = (size_t)row * k;
        memcpy(d->ids + to, p->ids + from, k * sizeof *d->ids);
        memcpy(d->logp + to, p->logp + from, k * sizeof *d->logp);
        d->all[p->of[row]].beams[p->beam[row]].due = false;
    }
}

// One pass of each replica. *any: a replica had something to do.
static enum neb_status run_pass(struct decoder *d, bool start, bool *any) {
    double loss;
    int64_t count;
    *any = false;
    for (int32_t r = 0; r < d->dp; r++) {
        list_rows(d, r, start, &d->passes[r]);
        *any = *any || d->passes[r].B;
    }
    if (!*any)
        return NEB_OK;
    for (int32_t r = 0; r < d->dp; r++) {
        fill_rows(d, start, &d->passes[r]);
        if (d->dp > 1 || d->passes[r].B)
            add_pass(d, start, &d->passes[r]);
    }
    NEB_TRY(intra_group_passed(d->group, &loss, &count));
    neb_moved_add(1); // a sign of progress
    for (int32_t r = 0; r < d->dp; r++)
        take_results(d, &d->passes[r]);
    return NEB_OK;
}

static enum neb_status run_round(struct decoder *d) {
    for (int kind = 0; kind < 2; kind++) // the prompts first, then the next tokens
        for (bool any = true; any;)
            NEB_TRY(run_pass(d, kind == 0, &any));
    for (int32_t i = 0; i < d->dp * d->per; i++) {
        struct intra_sequence *s = &d->all[i];
        if (s->p)
            s->cached = length(s, &s->beams[0]);
    }
    return NEB_OK;
}

// ---- sequences ----------------------------------------------------------------------------------

// The token at which the running sum of the k probabilities exceeds u of their sum.
static int32_t draw_of(const struct intra_next *x, double u) {
    double total = 0;
    for (int32_t i = 0; i < x->k; i++)
        total += exp((double)(x->logp[i] - x->logp[0]));
    u *= total;
    for (int32_t i = 0; i < x->k; i++) {
        u -= exp((double)(x->logp[i] - x->logp[0]));
        if (u < 0)
            return x->ids[i];
    }
    return x->ids[x->k - 1];
}

static void next_due(const struct decoder *d, struct intra_sequence *s,
                     struct intra_hypothesis *h) {
    h->due = true;
    h->u = intra_decode_draws(&d->c) ? neb_rng_unit(&s->rng) : 0;
}

// Prompt i takes the place of a sequence that has ended. Without tokens to make it ends at once.
static void begin(struct decoder *d, struct intra_sequence *s, int32_t i) {
    int32_t left = d->longest - d->prompts[i].n;
    s->p = &d->prompts[i];
    s->rng = neb_rng_make(d->c.seed, (uint64_t)i);
    s->limit = d->c.slides || s->p->most < left ? s->p->most : left;
    s->cached = s->n_pairs = 0;
    s->live = 1;
    s->finished = false;
    s->best.n = 0;
    s->beams[0].n = 0;
    s->beams[0].score = 0;
    s->beams[0].slot = s->slot0;
    next_due(d, s, &s->beams[0]);
    s->p->got = 0;
    s->p->ended = false;
    if (s->limit < 1)
        s->p = NULL;
}

static void end(struct intra_sequence *s, const struct intra_hypothesis *h, bool ended) {
    memcpy(s->p->out, h->tokens, (size_t)h->n * sizeof *h->tokens);
    s->p->got = h->n;
    s->p->ended = ended;
    s->p = NULL;
}

static void go_on(struct decoder *d, int32_t i) {
    struct intra_sequence *s = &d->all[i];
    struct intra_next next[INTRA_BEAM_MAX];
    struct intra_hypothesis *h = &s->beams[0];
    for (int32_t b = 0; b < s->live; b++) {
        size_t at = ((size_t)i * (size_t)d->width + (size_t)b) * (size_t)d->k;
        next[b] = (struct intra_next){d->ids + at, d->logp + at, d->k};
    }
    if (d->width > 1) {
        if (intra_beam_step(s, &d->c, next))
            end(s, &s->best, s->finished);
        return;
    }
    int32_t id = intra_decode_draws(&d->c) && !draws_all(d) ? draw_of(next, h->u) : next->ids[0];
    if (id == d->c.eos) {
        end(s, h, true);
        return;
    }
    h->tokens[h->n++] = id;
    next_due(d, s, h);
    if (h->n == s->limit)
        end(s, h, false);
}

static int32_t vacant(const struct decoder *d) {
    int32_t n = 0;
    for (int32_t i = 0; i < d->dp * d->per; i++)
        n += !d->all[i].p;
    return n;
}

// Gives prompts to vacant places, the replicas in turn. A few vacant places wait for more, because
// a pass over many prompts is cheaper for each.
static void admit(struct decoder *d) {
    int32_t all = d->dp * d->per, free_ = vacant(d);
    if (d->next == d->n || (free_ < all && free_ < all / 4 + 1))
        return;
    for (int32_t j = 0; j < d->per; j++)
        for (int32_t r = 0; r < d->dp; r++) {
            struct intra_sequence *s = &d->all[r * d->per + j];
            while (!s->p && d->next < d->n)
                begin(d, s, d->order[d->next++]);
        }
}

static enum neb_status run(struct decoder *d) {
    int32_t all = d->dp * d->per;
    for (;;) {
        admit(d);
        if (vacant(d) == all && d->next == d->n)
            return NEB_OK;
        NEB_TRY(run_round(d));
        for (int32_t i = 0; i < all; i++)
            if (d->all[i].p)
                go_on(d, i);
    }
}

enum neb_status intra_decode(struct intra_group *group, const struct intra_decode_config *c,
                             struct intra_prompt *prompts, int32_t n) {
    const struct intra_trainer *t = intra_group_trainer(group);
    struct decoder d = {.group = group, .c = *c, .prompts = prompts, .n = n};
    enum neb_status st = NEB_OK, freed;
    NEB_TRY(check_config(c, t));
    d.dp = intra_mesh_dp(t->c.mesh);
    d.V = t->c.model.vocab;
    d.width = c->beam > 1 ? c->beam : 1;
    d.k = intra_decode_soft_k(c) < d.V ? intra_decode_soft_k(c) : d.V;
    d.room = t->c.batch * t->c.seq_len;
    d.longest = c->longest && c->longest < t->c.seq_len ? c->longest : t->c.seq_len;
    NEB_TRY(check_prompts(&d));
    if (!n)
        return NEB_OK;
    set_sizes(&d);
    NEB_TRY_GOTO(sort_prompts(&d), out);
    NEB_TRY_GOTO(make_sequences(&d), out);
    if (!c->uncached)
        NEB_TRY_GOTO(intra_group_cache(group, d.rows, d.longest), out);
    st = run(&d);
    freed = st == NEB_OK ? intra_group_cache(group, 0, 0) : st;
    st = st == NEB_OK ? freed : st;
out:
    destroy(&d);
    return st;
}

enum neb_status intra_decode_group(const struct intra_model_config *m,
                                   const struct intra_trainable *t, const struct intra_place *at,
                                   int32_t seq_len, int32_t rows, int32_t soft_k,
                                   struct intra_group **out) {
    int32_t dp = at->world ? at->mesh.dp : 1, fit = TOKENS / seq_len;
    struct intra_trainer_config c = {
        .model = *m,
        .trainable = *t,
        .batch = rows < fit ? rows : fit,
        .seq_len = seq_len,
        .accumulate = dp, // one micro-batch for each replica
        .varied = true,
        .frozen = true,
        .device = at->device,
        .device_type = at->type,
        .device_optional = at->device_optional,
        .device_graphs = at->graphs,
        .soft_k = soft_k,
    };
    c.batch = c.batch > 0 ? c.batch : 1;
    return intra_group_create(&c, &at->mesh, at->world, at->K, out);
}
