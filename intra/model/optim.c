// SPDX-License-Identifier: Apache-2.0
// Schedules, moments, and the decision on clipping. update.c walks over the parameters.
#include "intra/model/optim.h"
#include "agent/base/memory.h"

#include <math.h>
#include <stdlib.h>

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

enum neb_status intra_optim_create(const struct intra_optim_config *c, const struct intra_model *m,
                                   struct intra_optim **out) {
    struct intra_optim *o = calloc(1, sizeof *o);
    if (o) {
        o->c = *c;
        size_t tensors = (size_t)m->n_all_tensors;
        o->n = m->n_grads / (size_t)intra_mesh_dp(m->mesh);
        o->at = o->n * (size_t)intra_mesh_dp_rank(m->mesh);
        o->n_tensors = m->n_all_tensors;
        o->m = neb_large_zeroed(o->n * sizeof *o->m); // a stage may have nothing to learn
        o->v = neb_large_zeroed(o->n * sizeof *o->v);
        o->gamma = calloc(tensors, sizeof *o->gamma);
        o->sums = calloc(tensors + 2, sizeof *o->sums);
        o->factors = calloc(tensors, sizeof *o->factors);
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
    size_t lo = t->grad_at > o->at ? t->grad_at : o->at, end = t->grad_at + intra_tensor_size(t),
           hi = end < o->at + o->n ? end : o->at + o->n;
    *from = lo - t->grad_at;
    return t->trainable && lo < hi ? hi - lo : 0;
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
