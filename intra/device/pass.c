// SPDX-License-Identifier: Apache-2.0
// One pass over a batch on an accelerator, as in forward.c, with the types of device.h. Some steps
// are fused: an addition to the stream with the norm that reads it, the qkv bias with its product,
// the bias's gradient with dW, the stream's gradient with its copy in T.
//
// With tensor parallelism the products that are parts of a sum over ranks (the outputs of o and
// down, the gradients of y1 and y2) go as fp32 into d->wide. They are reduced there, and this rank
// continues with its own rows. Gathered rows have type T.
#include "intra/device/state.h"

struct shape { // sizes of one pass
    int B, T, n, d, q, kv, qkv, f;
    enum kern_type t;
    struct intra_rows rows; // of the stream
    bool cut;               // there are several tensor-parallel ranks
};

static struct shape shape_of(const struct intra_device *d, const struct device_acts *a, int B) {
    const struct intra_model_config *c = &d->m->local;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, T = a->T;
    return (struct shape){.B = B,
                          .T = T,
                          .n = B * T,
                          .d = c->d_model,
                          .q = q,
                          .kv = kv,
                          .qkv = q + 2 * kv,
                          .f = c->d_ff,
                          .t = d->c.type,
                          .rows = intra_rows_of(d->m, B * T),
                          .cut = device_cut(d)};
}

static struct kern_attn attn_shape(const struct intra_device *d, const struct device_acts *a,
                                   const struct shape *s) {
    const struct intra_model_config *c = &d->m->local;
    bool causal = c->mask == KERN_MASK_PREFIX && !a->prefixed;
    return (struct kern_attn){s->B,
                              s->T,
                              c->n_heads,
                              c->n_kv_heads,
                              c->head_dim,
                              causal ? KERN_MASK_CAUSAL : c->mask,
                              a->prefixed ? a->batch.prefix : NULL};
}

static size_t own_floats(const struct shape *s) { // of the stream
    return (size_t)s->rows.own * (size_t)s->d;
}
static float *own_wide(const struct intra_device *d, const struct shape *s) {
    return d->wide + (size_t)s->rows.from * (size_t)s->d;
}
static void *own_rows(const struct intra_device *d, const struct shape *s, void *x) { // T
    return device_at(d, x, (size_t)s->rows.from * (size_t)s->d);
}

static float lora_scale(const struct intra_device *d) {
    const struct intra_trainable *t = &d->m->trainable;
    return t->lora_rank ? t->lora_alpha / (float)t->lora_rank : 0;
}

// y (n, out), of type ty, = x (n, in) W^T + bias, plus the adapters of W's parts. With a bias, ty
// is T.
static void linear(struct intra_device *d, enum kern_type ty, void *y, const void *x, int n,
                   int out, int in, const struct intra_tensor *w, const struct intra_tensor *bias,
                   const struct intra_lora_pair *lora, int parts) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    enum kern_type t = d->c.type;
    int col = 0, rank = d->m->trainable.lora_rank;
    K->gemm(D, t, ty, KERN_N, KERN_T, n, out, in, 1, x, in, device_weight(d, w), in, 0, y, out,
            bias ? device_weight(d, bias) : NULL);
    for (int i = 0; i < parts; i++) {
        int rows = w[i].rows;
        if (lora[i].a) {
            K->gemm(D, t, t, KERN_N, KERN_T, n, rank, in, 1, x, in, device_weight(d, lora[i].a), in,
                    0, d->lora, rank, NULL);
            K->gemm(D, t, ty, KERN_N, KERN_T, n, rows, rank, lora_scale(d), d->lora, rank,
                    device_weight(d, lora[i].b), rank, 1,
                    (char *)y + (size_t)col * kern_type_bytes(ty), out, NULL);
        }
        col += rows;
    }
}

// dx (n, in), of type tx, = dy W, unless dx is NULL. dW += dy^T x, and the bias += sums of dy, if
// they learn. The same for adapters.
static void linear_bwd(struct intra_device *d, enum kern_type tx, void *dx, void *dy, const void *x,
                       int n, int out, int in, const struct intra_tensor *w,
                       const struct intra_tensor *bias, const struct intra_lora_pair *lora,
                       int parts) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    enum kern_type t = d->c.type;
    int col = 0, rank = d->m->trainable.lora_rank;
    bool shifts = bias && bias->trainable;
    if (w->trainable && shifts)
        K->gemm_grads(D, t, out, in, n, dy, x, in, device_grad(d, w), device_grad(d, bias));
    else if (w->trainable)
        K->gemm(D, t, KERN_F32, KERN_T, KERN_N, out, in, n, 1, dy, out, x, in, 1, device_grad(d, w),
                in, NULL);
    else if (shifts)
        K->bias_bwd(D, t, device_grad(d, bias), dy, n, out);
    if (dx)
        K->gemm(D, t, tx, KERN_N, KERN_N, n, in, out, 1, dy, out, device_weight(d, w), in, 0, dx,
                in, NULL);
    for (int i = 0; i < parts; i++) {
        const struct intra_lora_pair *p = &lora[i];
        int rows = w[i].rows;
        if (p->a) {
            const void *part = device_at(d, dy, (size_t)col);
            K->gemm(D, t, t, KERN_N, KERN_T, n, rank, in, 1, x, in, device_weight(d, p->a), in, 0,
                    d->lora, rank, NULL);
            K->gemm(D, t, KERN_F32, KERN_T, KERN_N, rows, rank, n, lora_scale(d), part, out,
                    d->lora, rank, 1, device_grad(d, p->b), rank, NULL);
            K->gemm(D, t, t, KERN_N, KERN_N, n, rank, rows, lora_scale(d), part, out,
                    device_weight(d, p->b), rank, 0, d->dlora, rank, NULL);
            K->gemm(D, t, KERN_F32, KERN_T, KERN_N, rank, in, n, 1, d->dlora, rank, x, in, 1,
                    device_grad(d, p->a), in, NULL);
            if (dx)
                K->gemm(D, t, tx, KERN_N, KERN_N, n, in, rank, 1, d->dlora, rank,
                        device_weight(d, p->a), in, 1, dx, in, NULL);
        }
        col += rows;
    }
}

// ---- the stream's rows --------------------------------------------------------------------------

// y (n, d) = norm of the stream, which goes to `sum`. The stream is h, plus the last linear_added
// if `added`.
static void norm_fwd(struct intra_device *d, void *y, float *rstd, float *sum, const float *h,
                     bool added, const struct intra_tensor *gain, const struct shape *s) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const float *w = device_gain(d, gain);
    float eps = d->m->c.norm_eps;
    const void *r = !added ? NULL : s->cut ? (const void *)own_wide(d, s) : d->r;
    if (s->rows.own > 0)
        K->rmsnorm_fwd(D, s->t, s->cut ? KERN_F32 : s->t, own_rows(d, s, y), rstd, sum, h, r, w,
                       s->rows.own, s->d, eps);
    device_rows_gather(d, &s->rows, y, (size_t)s->d * kern_type_bytes(s->t));
}

// Computes y again if it was not kept and the backward of a product reads it.
static void norm_again(struct intra_device *d, void *y, float *rstd, float *h,
                       const struct intra_tensor *gain, const struct shape *s,
                       const struct intra_tensor *w, const struct intra_lora_pair *lora,
                       int parts) {
    bool reads = w->trainable;
    for (int i = 0; i < parts; i++)
        reads = reads || lora[i].a;
    if (s->cut && reads)
        norm_fwd(d, y, rstd, h, h, false, gain, s);
}

// Computes what a product adds to the stream: rows of T in d->r, or their sum over ranks, fp32 in
// d->wide.
static void linear_added(struct intra_device *d, const void *x, int in,
                         const struct intra_tensor *w, const struct intra_lora_pair *lora,
                         bool wide, const struct shape *s) {
    if (wide || s->cut)
        linear(d, KERN_F32, d->wide, x, s->n, s->d, in, w, NULL, lora, 1);
    else
        linear(d, s->t, d->r, x, s->n, s->d, in, w, NULL, lora, 1);
    device_rows_sum(d, &s->rows, d->wide);
}

// Backward of a product that reads a norm's output. d->dy: gradient of that output, rows of T.
static void linear_bwd_in(struct intra_device *d, void *dy, const void *x, int out,
                          const struct intra_tensor *w, const struct intra_tensor *bias,
                          const struct intra_lora_pair *lora, int parts, bool through,
                          const struct shape *s) {
    void *dx = s->cut ? (void *)d->wide : d->dy;
    linear_bwd(d, s->cut ? KERN_F32 : s->t, through ? dx : NULL, dy, x, s->n, out, s->d, w, bias,
               lora, parts);
    if (!s->cut || !through)
        return;
    device_rows_sum(d, &s->rows, d->wide);
    device_ops(d)->cast(d->c.D, s->t, d->dy, own_wide(d, s), own_floats(s));
}

// d->dh, and d->dht in T: += gradient of a norm's input. d->dy: gradient of its output.
static void norm_bwd(struct intra_device *d, const float *h, const float *rstd,
                     const struct intra_tensor *gain, const struct shape *s) {
    void *also = d->dht == d->dh ? NULL : own_rows(d, s, d->dht);
    if (s->rows.own > 0)
        device_ops(d)->rmsnorm_bwd(d->c.D, s->t, d->dh, also, device_grad(d, gain), d->dy, h,
                                   device_gain(d, gain), rstd, s->rows.own, s->d);
}

// All rows of the stream's gradient, in T.
static void *stream_grad(struct intra_device *d, const struct shape *s) {
    device_rows_gather(d, &s->rows, d->dht, (size_t)s->d * kern_type_bytes(s->t));
    return d->dht;
}

// ---- blocks -------------------------------------------------------------------------------------

// Runs block l on h (plus the last addition, if `added`) and leaves what it adds in d->r or
// d->wide. again: recompute, which stops at what backward needs.
static void block_fwd(struct intra_device *d, struct device_acts *a, int32_t l, const float *h,
                      bool added, const struct shape *s, bool again) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const struct intra_model *m = d->m;
    const struct intra_layer *y = &m->layers[l];
    const struct intra_model_config *c = &m->local;
    struct device_block *b = &a->blocks[l - m->layer0];
    struct kern_attn at = attn_shape(d, a, s);
    size_t k = (size_t)s->q, v = k + (size_t)s->kv;
    bool passed_on = l == m->layer0 + c->n_layers - 1 && !intra_model_last(m);
    norm_fwd(d, b->y1, b->rstd1, b->h1, h, added, y->norm1, s);
    linear(d, s->t, b->qkv, b->y1, s->n, s->qkv, s->d, y->q, y->q_bias, &y->lora[0], 3);
    K->rope(D, s->t, b->qkv, s->qkv, d->rope, s->n, s->T, c->n_heads + c->n_kv_heads, c->head_dim,
            false);
    K->attn_fwd(D, s->t, &at, b->att, s->q, b->lse, b->qkv, s->qkv, device_at(d, b->qkv, k), s->qkv,
                device_at(d, b->qkv, v), s->qkv);
    linear_added(d, b->att, s->q, y->o, &y->lora[3], false, s);
    norm_fwd(d, b->y2, b->rstd2, b->h2, b->h1, true, y->norm2, s);
    linear(d, s->t, b->gu, b->y2, s->n, 2 * s->f, s->d, y->gate, NULL, &y->lora[4], 2);
    K->swiglu_fwd(D, s->t, b->act, b->gu, s->n, s->f);
    if (!again)
        linear_added(d, b->act, s->f, y->down, &y->lora[6], passed_on, s);
}

// d->dh, and d->dht in T: on entry the gradient of the stream after block l, on return that before
// it. below: something below this block learns. again: the block was recomputed just now, so y2 is
// valid.
static void block_bwd(struct intra_device *d, struct device_acts *a, int32_t l,
                      const struct shape *s, bool below, bool again) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const struct intra_layer *y = &d->m->layers[l];
    struct device_block *b = &a->blocks[l - d->m->layer0];
    struct kern_attn at = attn_shape(d, a, s);
    size_t k = (size_t)s->q, v = k + (size_t)s->kv;
    linear_bwd(d, s->t, d->dact, stream_grad(d, s), b->act, s->n, s->d, s->f, y->down, NULL,
               &y->lora[6], 1);
    K->swiglu_bwd(D, s->t, b->gu, d->dact, b->gu, s->n, s->f);
    if (!again)
        norm_again(d, b->y2, b->rstd2, b->h2, y->norm2, s, y->gate, &y->lora[4], 2);
    linear_bwd_in(d, b->gu, b->y2, 2 * s->f, y->gate, NULL, &y->lora[4], 2, true, s);
    norm_bwd(d, b->h2, b->rstd2, y->norm2, s);
    linear_bwd(d, s->t, d->datt, stream_grad(d, s), b->att, s->n, s->d, s->q, y->o, NULL,
               &y->lora[3], 1);
    K->attn_bwd(D, s->t, &at, d->dqkv, device_at(d, d->dqkv, k), device_at(d, d->dqkv, v), d->datt,
                b->att, s->q, b->lse, b->qkv, s->qkv, device_at(d, b->qkv, k), s->qkv,
                device_at(d, b->qkv, v), s->qkv, d->delta, d->rope);
    bool through = below || y->norm1->trainable;
    norm_again(d, b->y1, b->rstd1, b->h1, y->norm1, s, y->q, &y->lora[0], 3);
    linear_bwd_in(d, d->dqkv, b->y1, s->qkv, y->q, y->q_bias, &y->lora[0], 3, through, s);
    if (through)
        norm_bwd(d, b->h1, b->rstd1, y->norm1, s);
}

// ---- embedding and output -----------------------------------------------------------------------

// Loss of a discriminator.
static void detect(struct intra_device *d, const struct device_acts *a, const struct shape *s,
                   bool learn, double *total) {
    const struct intra_model *m = d->m;
    struct kern_device_rtd job = {.n = s->n,
                                  .d = s->d,
                                  .x = d->yf,
                                  .w = device_gain(d, m->rtd_weight),
                                  .b = device_gain(d, m->rtd_bias),
                                  .labels = a->batch.targets,
                                  .grad_scale = a->batch.grad_scale,
                                  .learn = learn,
                                  .dx = d->dy,
                                  .dw = learn ? device_grad(d, m->rtd_weight) : NULL,
                                  .db = learn ? device_grad(d, m->rtd_bias) : NULL,
                                  .scores = d->scores,
                                  .losses = d->losses,
                                  .total = total};
    device_ops(d)->rtd_loss(d->c.D, s->t, &job);
}

// Loss over all rows, or over the gathered ones (device_send_rows).
static void head_loss(struct intra_device *d, const struct device_acts *a,
                      const struct kern_device_head *job, const struct shape *s) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device_head own = *job;
    if (a->n_rows) {
        own.n = a->n_rows;
        own.x = d->r; // free after the final norm
        own.targets = d->row_target;
        own.dx = d->row_dx;
        K->embed_fwd(d->c.D, s->t, d->r, d->yf, d->row_at, own.n, s->d);
    }
    if (a->soft.k)
        K->distill_loss(d->c.D, s->t, &own, &a->soft);
    else
        K->head_loss(d->c.D, s->t, &own);
    if (a->n_rows && own.learn)
        K->embed_fwd(d->c.D, s->t, d->dy, d->row_dx, d->row_of, s->n, s->d);
}

static void head(struct intra_device *d, const struct device_acts *a, const float *h,
                 const struct shape *s, bool learn, double *total) {
    const struct intra_model *m = d->m;
    struct kern_device_head job = {.n = s->n,
                                   .d = s->d,
                                   .V = m->local.vocab,
                                   .x = d->yf,
                                   .w = device_weight(d, m->head),
                                   .targets = a->batch.targets,
                                   .grad_scale = a->batch.grad_scale,
                                   .learn = learn,
                                   .dx = d->dy,
                                   .dw = learn ? device_grad(d, m->head) : NULL,
                                   .logits = d->logits,
                                   .rows = d->logit_rows,
                                   .losses = d->losses,
                                   .total = total};
    norm_fwd(d, d->yf, d->rstdf, d->hf, h, true, m->norm, s);
    if (!a->targets)
        return;
    if (m->rtd_weight) {
        detect(d, a, s, learn, total);
        return;
    }
    if (!s->cut) {
        head_loss(d, a, &job, s);
        return;
    }
    device_vocab_head(d, &job);
    if (!learn)
        return;
    device_rows_sum(d, &s->rows, d->wide);
    device_ops(d)->cast(d->c.D, s->t, d->dy, own_wide(d, s), own_floats(s));
}

// The embedding's rows. Without tensor parallelism they go into the final norm's buffer, which is
// free until then.
static const float *embed(struct intra_device *d, const struct device_acts *a,
                          const struct shape *s) {
    float *out = s->cut ? d->wide : d->hf;
    device_ops(d)->embed_fwd(d->c.D, KERN_F32, out, d->params + d->m->embed->at, a->batch.tokens,
                             s->n, s->d);
    device_rows_sum(d, &s->rows, out);
    return s->cut ? own_wide(d, s) : out;
}

static void embed_bwd(struct intra_device *d, const struct device_acts *a, const struct shape *s) {
    const struct kern_device_ops *K = device_ops(d);
    const float *dh = d->dh;
    if (s->cut) {
        K->copy(d->c.D, own_wide(d, s), d->dh, own_floats(s) * sizeof(float));
        device_rows_gather(d, &s->rows, d->wide, (size_t)s->d * sizeof(float));
        dh = d->wide;
    }
    K->embed_bwd(d->c.D, device_grad(d, d->m->embed), dh, &a->batch.rows, s->n, s->d);
}

float *device_out(const struct intra_device *d, const struct device_acts *a, int B) {
    struct shape s = shape_of(d, a, B);
    return own_wide(d, &s);
}

void device_forward(struct intra_device *d, struct device_acts *a, int B, bool learn,
                    double *total) {
    const struct intra_model *m = d->m;
    struct shape s = shape_of(d, a, B);
    const float *h = intra_model_first(m) ? embed(d, a, &s) : d->hf;
    for (int32_t l = m->layer0; l < m->layer0 + m->local.n_layers; l++) {
        block_fwd(d, a, l, h, l > m->layer0, &s, false);
        h = a->blocks[l - m->layer0].h2;
    }
    d->holds = a;
    if (intra_model_last(m))
        head(d, a, h, &s, learn, total);
    else
        device_ops(d)->add(d->c.D, own_wide(d, &s), h, own_floats(&s));
}

void device_backward(struct intra_device *d, struct device_acts *a, int B) {
    const struct kern_device_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    struct shape s = shape_of(d, a, B);
    int32_t end = m->layer0 + m->local.n_layers;
    if (intra_model_last(m)) {
        K->zero(d->c.D, d->dh, own_floats(&s) * sizeof(float));
        norm_bwd(d, d->hf, d->rstdf, m->norm, &s);
    } else if (d->dht != d->dh) {
        K->cast(d->c.D, s.t, own_rows(d, &s, d->dht), d->dh, own_floats(&s));
    }
    device_update_passed(d, end);
    for (int32_t l = end - 1; l >= m->layer0 && l >= m->low; l--) {
        // otherwise this block's activations are still valid
        bool again = d->c.recompute && (l < end - 1 || d->holds != a);
        if (again)
            block_fwd(d, a, l, a->blocks[l - m->layer0].h1, false, &s, true);
        d->holds = NULL;
        block_bwd(d, a, l, &s, m->low < l, again);
        device_update_passed(d, l);
    }
    if (intra_model_first(m) && m->embed->trainable)
        embed_bwd(d, a, &s);
    device_update_passed(d, m->layer0 - 1);
}
