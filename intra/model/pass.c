// SPDX-License-Identifier: Apache-2.0
// One pass over a batch: the embedding, the blocks (block.h), the output layer and its loss; then
// backward through the same in reverse, down to the lowest layer that learns. With recompute only
// the input of each block is kept; the rest is computed again before the block's backward.
//
// With tensor parallelism the products that are parts of a sum over ranks (outputs of a block, the
// gradients of its norms' outputs) go as fp32 into d->wide. They are reduced there, and this rank
// continues with its own rows. Gathered rows have type T. A pipeline stage runs its own blocks and
// exchanges its rows of stream and gradient with its neighbours (pipe.c, stage.c).
#include "intra/model/state.h"

const struct intra_block_kind *const intra_block_kinds[INTRA_BLOCK_KINDS] = {
    [INTRA_BLOCK_ATTN_MLP] = &intra_block_attn_mlp,
};

// Loss of a discriminator. Tensor-parallel ranks all compute it from all rows, and keep their own
// rows of the gradient.
static void detect(struct intra_device *d, const struct device_acts *a, const struct pass_shape *s,
                   bool learn, double *total) {
    const struct intra_model *m = d->m;
    void *dx = s->cut ? (void *)d->wide : d->dy;
    struct kern_rtd job = {.n = s->n,
                           .d = s->d,
                           .x = d->yf,
                           .w = device_gain(d, m->rtd_weight),
                           .b = device_gain(d, m->rtd_bias),
                           .labels = a->batch.targets,
                           .grad_scale = a->batch.grad_scale,
                           .dx = learn ? dx : NULL,
                           .dw = learn ? device_grad(d, m->rtd_weight) : NULL,
                           .db = learn ? device_grad(d, m->rtd_bias) : NULL,
                           .scores = d->scores,
                           .losses = d->losses,
                           .total = total};
    device_ops(d)->rtd_loss(d->c.D, s->t, &job);
    if (learn && s->cut)
        device_ops(d)->copy(d->c.D, d->dy, pass_own_rows(d, s, dx),
                            pass_own_floats(s) * kern_type_bytes(s->t));
}

// Loss over all rows, or over the gathered ones (device_send_rows).
static void head_loss(struct intra_device *d, const struct device_acts *a,
                      const struct kern_head *job, const struct pass_shape *s) {
    const struct kern_ops *K = device_ops(d);
    const struct kern_soft *soft = a->taught ? &a->soft : NULL;
    struct kern_head own = *job;
    if (a->n_rows) {
        own.n = a->n_rows;
        own.x = device_gathered(d);
        own.targets = d->row_target;
        own.dx = own.dx ? d->row_dx : NULL;
        K->embed_fwd(d->c.D, s->t, device_gathered(d), d->yf, d->row_at, own.n, s->d);
    }
    if (s->cut)
        device_vocab_head(d, &own, soft);
    else
        K->head_loss(d->c.D, s->t, &own, soft);
    if (a->n_rows && own.dx)
        K->embed_fwd(d->c.D, s->cut ? KERN_F32 : s->t, job->dx, d->row_dx, d->row_of, s->n, s->d);
}

static void head(struct intra_device *d, const struct device_acts *a, const float *h,
                 const struct pass_shape *s, bool learn, double *total) {
    const struct intra_model *m = d->m;
    struct kern_head job = {.n = s->n,
                            .d = s->d,
                            .V = m->local.vocab,
                            .x = d->yf,
                            .w = device_weight(d, m->head),
                            .targets = a->batch.targets,
                            .grad_scale = a->batch.grad_scale,
                            .dx = !learn   ? NULL
                                  : s->cut ? (void *)d->wide
                                           : d->dy,
                            .dw = learn ? device_grad(d, m->head) : NULL,
                            .logits = d->logits,
                            .rows = d->logit_rows,
                            .losses = d->losses,
                            .total = total};
    pass_norm(d, d->yf, d->rstdf, d->hf, h, true, m->norm, s);
    if (!a->targets)
        return;
    if (m->rtd_weight) {
        detect(d, a, s, learn, total);
        return;
    }
    head_loss(d, a, &job, s);
    if (!learn || !s->cut)
        return;
    device_rows_sum(d, &s->rows, d->wide);
    device_ops(d)->cast(d->c.D, s->t, d->dy, pass_own_wide(d, s), pass_own_floats(s));
}

// The embedding's rows. Without tensor parallelism they go into the final norm's buffer, which is
// free until then.
static const float *embed(struct intra_device *d, const struct device_acts *a,
                          const struct pass_shape *s) {
    float *out = s->cut ? d->wide : d->hf;
    device_ops(d)->embed_fwd(d->c.D, KERN_F32, out, d->params + d->m->embed->at, a->batch.tokens,
                             s->n, s->d);
    device_rows_sum(d, &s->rows, out);
    return s->cut ? pass_own_wide(d, s) : out;
}

static void embed_bwd(struct intra_device *d, const struct device_acts *a,
                      const struct pass_shape *s) {
    const struct kern_ops *K = device_ops(d);
    const float *dh = d->dh;
    if (s->cut) {
        K->copy(d->c.D, pass_own_wide(d, s), d->dh, pass_own_floats(s) * sizeof(float));
        device_rows_gather(d, &s->rows, d->wide, (size_t)s->d * sizeof(float));
        dh = d->wide;
    }
    K->embed_bwd(d->c.D, device_grad(d, d->m->embed), dh, &a->batch.rows, s->n, s->d);
}

float *device_out(const struct intra_device *d, const struct device_acts *a, int B) {
    struct pass_shape s = device_shape(d, B, a->T);
    return pass_own_wide(d, &s);
}

static const struct intra_block_kind *kind_of(const struct intra_device *d, int32_t l) {
    return intra_block_kinds[d->m->layers[l].kind];
}

void device_forward(struct intra_device *d, struct device_acts *a, int B, bool learn,
                    double *total) {
    const struct intra_model *m = d->m;
    struct pass_shape s = device_shape(d, B, a->T);
    const float *h = intra_model_first(m) ? embed(d, a, &s) : d->hf;
    for (int32_t l = m->layer0; l < m->layer0 + m->local.n_layers; l++)
        h = kind_of(d, l)->forward(d, a, l, &s, h, l > m->layer0, false);
    d->holds = a;
    if (intra_model_last(m))
        head(d, a, h, &s, learn, total);
    else
        device_ops(d)->add(d->c.D, pass_own_wide(d, &s), h, pass_own_floats(&s));
}

void device_backward(struct intra_device *d, struct device_acts *a, int B) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    struct pass_shape s = device_shape(d, B, a->T);
    int32_t end = m->layer0 + m->local.n_layers;
    if (intra_model_last(m)) {
        K->zero(d->c.D, d->dh, pass_own_floats(&s) * sizeof(float));
        pass_norm_bwd(d, d->hf, d->rstdf, m->norm, &s);
    } else if (d->dht != d->dh) {
        K->cast(d->c.D, s.t, pass_own_rows(d, &s, d->dht), d->dh, pass_own_floats(&s));
    }
    device_update_passed(d, end);
    for (int32_t l = end - 1; l >= m->layer0 && l >= m->low; l--) {
        // otherwise this block's activations are still valid
        bool again = d->c.recompute && (l < end - 1 || d->holds != a);
        if (again)
            (void)kind_of(d, l)->forward(d, a, l, &s, a->blocks[l - m->layer0].h1, false, true);
        d->holds = NULL;
        kind_of(d, l)->backward(d, a, l, &s, m->low < l, again);
        device_update_passed(d, l);
    }
    if (intra_model_first(m) && m->embed->trainable)
        embed_bwd(d, a, &s);
    device_update_passed(d, m->layer0 - 1);
}
