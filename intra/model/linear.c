// SPDX-License-Identifier: Apache-2.0
// What blocks are made of: linear layers with adapters, norms of the stream, and their backward
// passes, for tensor-parallel ranks as well (state.h, rows.h).
#include "intra/model/state.h"

static float lora_scale(const struct intra_device *d) {
    const struct intra_trainable *t = &d->m->trainable;
    return t->lora_rank ? t->lora_alpha / (float)t->lora_rank : 0;
}

// The bias is a part of the product, unless adapters come between them.
void pass_linear(struct intra_device *d, enum kern_type ty, void *y, const void *x, int n, int out,
                 int in, const struct intra_tensor *w, const struct intra_tensor *bias,
                 const struct intra_lora_pair *lora, int parts) {
    const struct kern_ops *K = device_ops(d);
    struct kern *D = d->c.D;
    int col = 0, rank = d->m->trainable.lora_rank;
    bool adapted = false;
    for (int i = 0; i < parts; i++)
        adapted = adapted || lora[i].a;
    struct kern_gemm whole = kern_linear(d->c.type, ty, n, out, in, x, device_weight(d, w), y);
    whole.bias = bias && !adapted ? device_weight(d, bias) : NULL;
    K->gemm(D, &whole);
    for (int i = 0; i < parts; col += w[i].rows, i++) {
        if (!lora[i].a)
            continue;
        struct kern_gemm low = kern_linear(d->c.type, d->c.type, n, rank, in, x,
                                           device_weight(d, lora[i].a), d->lora),
                         g = kern_linear(d->c.type, ty, n, w[i].rows, rank, d->lora,
                                         device_weight(d, lora[i].b), kern_at(ty, y, (size_t)col));
        K->gemm(D, &low);
        g.alpha = lora_scale(d);
        g.beta = 1;
        g.ldc = out;
        K->gemm(D, &g);
    }
    if (bias && adapted)
        K->bias_fwd(D, ty, y, device_gain(d, bias), n, out);
}

// An adapter's gradients from dy, the part (n, rows; row stride ld) of its own columns.
static void adapter_bwd(struct intra_device *d, enum kern_type tx, void *dx, const void *dy, int ld,
                        const void *x, int n, int rows, int in, const struct intra_lora_pair *p) {
    const struct kern_ops *K = device_ops(d);
    struct kern *D = d->c.D;
    enum kern_type t = d->c.type;
    int rank = d->m->trainable.lora_rank;
    const void *a = device_weight(d, p->a), *b = device_weight(d, p->b);
    const struct kern_linear_bwd second = {.t = t,
                                           .tx = t,
                                           .n = n,
                                           .out = rows,
                                           .in = rank,
                                           .dy = dy,
                                           .ld = ld,
                                           .x = d->lora,
                                           .w = b,
                                           .dx = d->dlora,
                                           .dw = device_grad(d, p->b)},
                                 first = {.t = t,
                                          .tx = tx,
                                          .n = n,
                                          .out = rank,
                                          .in = in,
                                          .dy = d->dlora,
                                          .ld = rank,
                                          .x = x,
                                          .w = a,
                                          .dx = dx,
                                          .dw = device_grad(d, p->a)};
    const struct kern_gemm u = kern_linear(t, t, n, rank, in, x, a, d->lora),
                           da = kern_linear_dw(&first);
    struct kern_gemm db = kern_linear_dw(&second), du = kern_linear_dx(&second),
                     through = kern_linear_dx(&first);
    db.alpha = du.alpha = lora_scale(d);
    through.beta = 1;
    K->gemm(D, &u);
    K->gemm(D, &db);
    K->gemm(D, &du);
    K->gemm(D, &da);
    if (dx)
        K->gemm(D, &through);
}

void pass_linear_bwd(struct intra_device *d, enum kern_type tx, void *dx, void *dy, const void *x,
                     int n, int out, int in, const struct intra_tensor *w,
                     const struct intra_tensor *bias, const struct intra_lora_pair *lora,
                     int parts) {
    device_ops(d)->linear_bwd(d->c.D,
                              &(struct kern_linear_bwd){.t = d->c.type,
                                                        .tx = tx,
                                                        .n = n,
                                                        .out = out,
                                                        .in = in,
                                                        .dy = dy,
                                                        .ld = out,
                                                        .x = x,
                                                        .w = device_weight(d, w),
                                                        .dx = dx,
                                                        .dw = device_grad(d, w),
                                                        .db = bias ? device_grad(d, bias) : NULL});
    for (int i = 0, col = 0; i < parts; col += w[i].rows, i++)
        if (lora[i].a)
            adapter_bwd(d, tx, dx, device_at(d, dy, (size_t)col), out, x, n, w[i].rows, in,
                        &lora[i]);
}

// ---- the stream's rows --------------------------------------------------------------------------

void pass_norm(struct intra_device *d, void *y, float *rstd, float *sum, const float *h, bool added,
               const struct intra_tensor *gain, const struct pass_shape *s) {
    const struct kern_ops *K = device_ops(d);
    struct kern *D = d->c.D;
    const float *w = device_gain(d, gain);
    float eps = d->m->c.norm_eps;
    const void *r = !added ? NULL : s->cut ? (const void *)pass_own_wide(d, s) : d->r;
    if (s->rows.own > 0)
        K->rmsnorm_fwd(D, s->t, s->cut ? KERN_F32 : s->t, pass_own_rows(d, s, y), rstd, sum, h, r,
                       w, s->rows.own, s->d, eps);
    device_rows_gather(d, &s->rows, y, (size_t)s->d * kern_type_bytes(s->t));
}

void pass_norm_again(struct intra_device *d, void *y, float *rstd, float *h,
                     const struct intra_tensor *gain, const struct pass_shape *s,
                     const struct intra_tensor *w, const struct intra_lora_pair *lora, int parts) {
    bool reads = w->trainable;
    for (int i = 0; i < parts; i++)
        reads = reads || lora[i].a;
    if (s->cut && reads)
        pass_norm(d, y, rstd, h, h, false, gain, s);
}

void pass_linear_added(struct intra_device *d, const void *x, int in, const struct intra_tensor *w,
                       const struct intra_lora_pair *lora, bool wide, const struct pass_shape *s) {
    if (wide || s->cut)
        pass_linear(d, KERN_F32, d->wide, x, s->n, s->d, in, w, NULL, lora, 1);
    else
        pass_linear(d, s->t, d->r, x, s->n, s->d, in, w, NULL, lora, 1);
    device_rows_sum(d, &s->rows, d->wide);
}

void pass_linear_bwd_in(struct intra_device *d, void *dy, const void *x, int out,
                        const struct intra_tensor *w, const struct intra_tensor *bias,
                        const struct intra_lora_pair *lora, int parts, bool through,
                        const struct pass_shape *s) {
    void *dx = s->cut ? (void *)d->wide : d->dy;
    pass_linear_bwd(d, s->cut ? KERN_F32 : s->t, through ? dx : NULL, dy, x, s->n, out, s->d, w,
                    bias, lora, parts);
    if (!s->cut || !through)
        return;
    device_rows_sum(d, &s->rows, d->wide);
    device_ops(d)->cast(d->c.D, s->t, d->dy, pass_own_wide(d, s), pass_own_floats(s));
}

void pass_norm_bwd(struct intra_device *d, const float *h, const float *rstd,
                   const struct intra_tensor *gain, const struct pass_shape *s) {
    void *also = d->dht == d->dh ? NULL : pass_own_rows(d, s, d->dht);
    if (s->rows.own > 0)
        device_ops(d)->rmsnorm_bwd(d->c.D, s->t, d->dh, also, device_grad(d, gain), d->dy, h,
                                   device_gain(d, gain), rstd, s->rows.own, s->d);
}

void *pass_stream_grad(struct intra_device *d, const struct pass_shape *s) {
    device_rows_gather(d, &s->rows, d->dht, (size_t)s->d * kern_type_bytes(s->t));
    return d->dht;
}
