#include "intra/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        o->n = m->n_trainable;
        o->n_tensors = m->n_tensors;
        o->m = calloc(m->n_trainable, sizeof *o->m);
        o->v = calloc(m->n_trainable, sizeof *o->v);
        o->gamma = calloc((size_t)m->n_tensors, sizeof *o->gamma);
    }
    if (!o || !o->m || !o->v || !o->gamma) {
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
    }
    free(*op);
    *op = NULL;
}

// Factor for the gradient of tensor i, and AdaGC's bookkeeping. `global`: factor of global-norm clipping.
static float clip_factor(struct intra_optim *o, int32_t i, double norm, float global) {
    const struct intra_clip *c = &o->c.clip;
    if (c->kind != INTRA_CLIP_ADAGC)
        return global;
    // gamma 0: no gradient yet. LoRA's A has none in its first step, since B is 0; a norm of 0 must not become the limit.
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

void intra_optim_update(struct intra_optim *o, struct kern *K, struct intra_model *m,
                        struct intra_update *out) {
    double total = 0;
    *out = (struct intra_update){.lr = intra_schedule_lr(&o->c.schedule, o->t)};
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].trainable)
            total +=
                K->ops->sumsq(K, intra_grad(m, &m->tensors[i]), intra_tensor_size(&m->tensors[i]));
    out->grad_norm = sqrt(total);
    if (!isfinite(out->grad_norm)) {
        K->ops->zero(K, m->grads, m->n_trainable);
        o->t++;
        return;
    }
    float max_norm = o->c.clip.max_norm, global = 1;
    if (o->c.clip.kind != INTRA_CLIP_NONE && max_norm > 0 && out->grad_norm > (double)max_norm)
        global = (float)((double)max_norm / out->grad_norm);
    struct kern_adamw c = {.lr = out->lr,
                           .beta1 = o->c.beta1,
                           .beta2 = o->c.beta2,
                           .eps = o->c.eps,
                           .bias1 = (float)(1 - pow((double)o->c.beta1, (double)(o->t + 1))),
                           .bias2 = (float)(1 - pow((double)o->c.beta2, (double)(o->t + 1)))};
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (!t->trainable)
            continue;
        double norm = o->c.clip.kind == INTRA_CLIP_ADAGC
                          ? sqrt(K->ops->sumsq(K, intra_grad(m, t), intra_tensor_size(t)))
                          : 0;
        c.grad_scale = clip_factor(o, i, norm, global);
        c.weight_decay = t->decay ? o->c.weight_decay : 0;
        out->clipped += c.grad_scale < 1;
        K->ops->adamw(K, &c, intra_param(m, t), intra_grad(m, t), o->m + t->grad_at,
                      o->v + t->grad_at, intra_tensor_size(t));
    }
    K->ops->zero(K, m->grads, m->n_trainable);
    o->t++;
}
