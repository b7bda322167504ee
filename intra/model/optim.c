// SPDX-License-Identifier: Apache-2.0
// Schedules, moments, and the decision on clipping. update.c walks over the parameters.
#include "intra/model/optim.h"
#include "agent/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN = 64,      // floats, of parts of tensors and of their moments
    SMALL = 1 << 16, // a smaller tensor of AdamW is not cut
};

const char *const intra_optim_names[INTRA_OPTIM_KINDS + 1] = {"adamw", "muon", NULL};

float intra_schedule_lr(const struct intra_schedule *s, int64_t t) {
    if (t < s->warmup)
        return s->lr * (float)(t + 1) / (float)s->warmup;
    if (s->kind == INTRA_SCHEDULE_CONSTANT || s->steps <= s->warmup)
        return s->lr;
    double low = (double)s->min_ratio, peak = (double)s->lr;
    if (s->kind == INTRA_SCHEDULE_COSINE) {
        double x = (double)(t - s->warmup) / (double)(s->steps - s->warmup);
        return (float)(peak * (low + (1 - low) * 0.5 * (1 + cos(3.141592653589793 * fmin(x, 1)))));
    }
    double decay = fmax(1, (double)s->decay_fraction * (double)s->steps),
           left = (double)(s->steps - t);
    return (float)(peak * (left >= decay ? 1 : low + (1 - low) * fmax(left, 0) / decay));
}

// ---- shards -------------------------------------------------------------------------------------

static bool takes(const struct intra_optim *o, const struct intra_tensor *t) { // Muon takes t
    return t->trainable && intra_optim_is_muon(o, t);
}

// The rank with the least work so far.
static int lightest(const double *load, int dp) {
    int best = 0;
    for (int r = 1; r < dp; r++)
        best = load[r] < load[best] ? r : best;
    return best;
}

double intra_optim_muon_flops(const struct intra_tensor *t) {
    double r = t->all_rows < t->all_cols ? t->all_rows : t->all_cols,
           c = (double)t->all_rows * t->all_cols / r;
    return 4 * r * r * c + 2 * r * r * r;
}

struct job {
    double work;
    int32_t tensor;
};
static int by_work(const void *x, const void *y) { // largest first, then by position
    const struct job *a = x, *b = y;
    return a->work != b->work ? (a->work < b->work) - (a->work > b->work)
                              : (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

int32_t intra_optim_muon_order(const struct intra_optim *o, const struct intra_model *m,
                               int32_t *out) {
    struct job *jobs = calloc((size_t)m->n_tensors + 1, sizeof *jobs);
    int32_t n = 0;
    if (!jobs)
        return -1;
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (takes(o, &m->tensors[i]))
            jobs[n++] = (struct job){intra_optim_muon_flops(&m->tensors[i]), i};
    qsort(jobs, (size_t)n, sizeof *jobs, by_work);
    for (int32_t i = 0; i < n; i++)
        out[i] = jobs[i].tensor;
    free(jobs);
    return n;
}

// The owner of each matrix: largest first, each to the rank with the least work so far.
static bool assign(const struct intra_optim *o, const struct intra_model *m, int dp, int *owner) {
    double *load = calloc((size_t)dp, sizeof *load);
    int32_t *order = calloc((size_t)m->n_tensors + 1, sizeof *order);
    int32_t n = load && order ? intra_optim_muon_order(o, m, order) : -1;
    for (int32_t i = 0; i < n; i++) {
        int r = owner[order[i]] = lightest(load, dp);
        load[r] += intra_optim_muon_flops(&m->tensors[order[i]]);
    }
    free(load);
    free(order);
    return n >= 0;
}

static void add_shard(struct intra_optim *o, size_t end, int owner) {
    size_t at = o->n_shards ? o->shards[o->n_shards - 1].end : 0;
    if (o->n_shards && o->shards[o->n_shards - 1].owner == owner)
        o->shards[o->n_shards - 1].end = end;
    else if (end > at)
        o->shards[o->n_shards++] = (struct intra_shard){at, end, owner};
}

// A small tensor goes to the owner of the tensor before it, so that both are one message.
static void shard_tensor(struct intra_optim *o, const struct intra_tensor *t, int dp, int owner) {
    size_t n = intra_tensor_size(t),
           part = ((n + (size_t)dp - 1) / (size_t)dp + ALIGN - 1) / ALIGN * ALIGN;
    if (takes(o, t)) {
        add_shard(o, t->grad_at + n, owner);
    } else if (n < SMALL) {
        add_shard(o, t->grad_at + n, o->n_shards ? o->shards[o->n_shards - 1].owner : 0);
    } else {
        for (int r = 0; r < dp; r++)
            add_shard(o, t->grad_at + ((size_t)(r + 1) * part < n ? (size_t)(r + 1) * part : n), r);
    }
}

// Moments of AdamW come first, so that one offset holds for both kinds of moments.
static void place_moments(struct intra_optim *o, const struct intra_model *m) {
    for (int muon = 0; muon < 2; muon++) {
        for (int32_t i = 0; i < m->n_tensors; i++) {
            const struct intra_tensor *t = &m->tensors[i];
            size_t from, n = intra_optim_part(o, t, &from);
            if (takes(o, t) != muon)
                continue;
            o->moment_at[i] = o->n;
            o->n += (n + ALIGN - 1) / ALIGN * ALIGN;
        }
        o->n_second = muon ? o->n_second : o->n;
    }
}

static bool lay_out(struct intra_optim *o, const struct intra_model *m) {
    int dp = intra_mesh_dp(m->mesh);
    o->shards = calloc((size_t)dp * (size_t)(m->n_tensors + 1), sizeof *o->shards);
    int *owner = calloc((size_t)m->n_tensors + 1, sizeof *owner);
    bool made = o->shards && owner;
    if (made && o->c.kind == INTRA_OPTIM_MUON) {
        made = assign(o, m, dp, owner);
        for (int32_t i = 0; i < m->n_tensors; i++)
            if (m->tensors[i].trainable)
                shard_tensor(o, &m->tensors[i], dp, owner[i]);
        place_moments(o, m);
    } else if (made) {
        o->n = o->n_second = m->n_grads / (size_t)dp;
        for (int r = 0; r < dp; r++)
            add_shard(o, (size_t)(r + 1) * o->n, r);
        for (int32_t i = 0; i < m->n_tensors; i++) {
            size_t from, n = intra_optim_part(o, &m->tensors[i], &from);
            o->moment_at[i] = n ? m->tensors[i].grad_at + from - (size_t)o->rank * o->n : 0;
        }
    }
    free(owner);
    return made;
}

static float *moments(const struct intra_optim *o, bool second) { return second ? o->v : o->m; }

void intra_optim_spread(const struct intra_optim *o, const struct intra_model *m, bool second,
                        float *arena) {
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        size_t from, n = second && takes(o, t) ? 0 : intra_optim_part(o, t, &from);
        if (n)
            memcpy(arena + t->grad_at + from, moments(o, second) + o->moment_at[i],
                   n * sizeof *arena);
    }
}

void intra_optim_collect(struct intra_optim *o, const struct intra_model *m, bool second,
                         const float *arena) {
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        size_t from, n = second && takes(o, t) ? 0 : intra_optim_part(o, t, &from);
        if (n)
            memcpy(moments(o, second) + o->moment_at[i], arena + t->grad_at + from,
                   n * sizeof *arena);
    }
}

enum neb_status intra_optim_all_gather(const struct intra_optim *o, struct intra_comm *dp,
                                       float *arena) {
    if (!dp)
        return NEB_OK;
    if (o->c.kind == INTRA_OPTIM_ADAMW) // one equal shard a rank
        return dp->ops->all_gather(dp, arena, o->n);
    for (int i = 0; i < o->n_shards; i++) {
        const struct intra_shard *s = &o->shards[i];
        NEB_TRY(dp->ops->broadcast(dp, arena + s->at, (s->end - s->at) * sizeof *arena, s->owner));
    }
    return NEB_OK;
}

enum neb_status intra_optim_reduce(const struct intra_optim *o, struct intra_comm *dp,
                                   float *arena) {
    if (!dp)
        return NEB_OK;
    if (o->c.kind == INTRA_OPTIM_ADAMW)
        return dp->ops->reduce_scatter(dp, arena, o->n);
    for (int i = 0; i < o->n_shards; i++) {
        const struct intra_shard *s = &o->shards[i];
        NEB_TRY(dp->ops->reduce(dp, arena + s->at, s->end - s->at, s->owner));
    }
    return NEB_OK;
}

enum neb_status intra_optim_create(const struct intra_optim_config *c, const struct intra_model *m,
                                   struct intra_optim **out) {
    struct intra_optim *o = calloc(1, sizeof *o);
    if (o) {
        o->c = *c;
        size_t tensors = (size_t)m->n_all_tensors;
        o->rank = intra_mesh_dp_rank(m->mesh);
        o->n_tensors = m->n_all_tensors;
        o->moment_at = calloc((size_t)m->n_tensors + 1, sizeof *o->moment_at);
        o->gamma = calloc(tensors, sizeof *o->gamma);
        o->sums = calloc(tensors + 2, sizeof *o->sums);
        o->factors = calloc(tensors, sizeof *o->factors);
        if (o->moment_at && lay_out(o, m)) {
            o->m = neb_large_zeroed(o->n * sizeof *o->m); // a stage may have nothing to learn
            o->v = neb_large_zeroed(o->n_second * sizeof *o->v);
        }
    }
    if (!o || !o->m || !o->v || !o->gamma || !o->sums || !o->factors) {
        intra_optim_destroy(&o);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the optimiser state of %zu parameters",
                        m->n_trainable);
    }
    *out = o;
    return NEB_OK;
}

void intra_optim_destroy(struct intra_optim **op) {
    if (*op) {
        free((*op)->m);
        free((*op)->v);
        free((*op)->gamma);
        free((*op)->sums);
        free((*op)->factors);
        free((*op)->moment_at);
        free((*op)->shards);
    }
    free(*op);
    *op = NULL;
}

// Clipping factor for the gradient of tensor i; updates AdaGC's gamma. global: the factor of
// global-norm clipping.
static float clip_factor(struct intra_optim *o, int32_t i, double norm, float global) {
    const struct intra_clip *c = &o->c.clip;
    if (c->kind != INTRA_CLIP_ADAGC)
        return global;
    // gamma is 0 until there is a gradient. LoRA's A has none in the first step, because B is 0. A
    // norm of 0 must not become the limit.
    if (o->t < c->warmup || o->gamma[i] == 0) {
        double clipped = norm * (double)global;
        if (clipped > 0 && (o->gamma[i] == 0 || clipped < (double)o->gamma[i]))
            o->gamma[i] = (float)clipped;
        return global;
    }
    double limit = (double)c->ratio * (double)o->gamma[i],
           factor = norm > limit ? limit / (norm + 1e-12) : 1;
    o->gamma[i] =
        (float)((double)c->beta * (double)o->gamma[i] + (1 - (double)c->beta) * norm * factor);
    return (float)factor;
}

size_t intra_optim_part(const struct intra_optim *o, const struct intra_tensor *t, size_t *from) {
    size_t at = t->grad_at, end = at + intra_tensor_size(t);
    for (int i = 0; i < o->n_shards && t->trainable; i++) {
        const struct intra_shard *s = &o->shards[i];
        size_t lo = at > s->at ? at : s->at, hi = end < s->end ? end : s->end;
        *from = lo - at;
        if (s->owner == o->rank && lo < hi)
            return hi - lo;
    }
    *from = 0;
    return 0;
}

// Every rank has the same sums, so all get the same factors.
static void clip(struct intra_optim *o, const struct intra_model *m, struct intra_update *out) {
    float max_norm = o->c.clip.max_norm, global = 1;
    if (o->c.clip.kind != INTRA_CLIP_NONE && max_norm > 0 && out->grad_norm > (double)max_norm)
        global = (float)((double)max_norm / out->grad_norm);
    for (int32_t i = 0; i < o->n_tensors; i++)
        if (m->learns[i]) {
            o->factors[i] = clip_factor(o, i, sqrt(o->sums[i]), global);
            out->clipped += o->factors[i] < 1;
        }
}

void intra_optim_skip(struct intra_optim *o, int64_t n) {
    if (o->t == o->born)
        o->born += n;
    o->t += n;
}

struct kern_adamw intra_optim_adamw(const struct intra_optim *o, float lr) {
    return (struct kern_adamw){
        .lr = lr,
        .beta1 = o->c.beta1,
        .beta2 = o->c.beta2,
        .eps = o->c.eps,
        .momentum = o->c.momentum,
        .bias1 = (float)(1 - pow((double)o->c.beta1, (double)(o->t - o->born + 1))),
        .bias2 = (float)(1 - pow((double)o->c.beta2, (double)(o->t - o->born + 1)))};
}

bool intra_optim_decide(struct intra_optim *o, const struct intra_model *m,
                        struct intra_update *out) {
    double total = 0;
    *out = (struct intra_update){.lr = intra_schedule_lr(&o->c.schedule, o->t)};
    for (int32_t i = 0; i < o->n_tensors; i++)
        total += o->sums[i];
    out->grad_norm = sqrt(total);
    if (m->failed != NEB_OK || !isfinite(out->grad_norm))
        return false;
    clip(o, m, out);
    return true;
}
