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
    K->gemm(D, &(struct kern_gemm){.t = d->c.type,
                                   .tc = ty,
                                   .tb = KERN_T,
                                   .m = n,
                                   .n = out,
                                   .k = in,
                                   .alpha = 1,
                                   .a = x,
                                   .lda = in,
                                   .b = device_weight(d, w),
                                   .ldb = in,
                                   .c = y,
                                   .ldc = out,
                                   .bias = bias && !adapted ? device_weight(d, bias) : NULL});
    for (int i = 0; i < parts; col += w[i].rows, i++) {
        if (!lora[i].a)
            continue;
        struct kern_gemm g = {.t = d->c.type,
                              .tc = d->c.type,
                              .tb = KERN_T,
                              .m = n,
                              .n = rank,
                              .k = in,
                              .alpha = 1,
                              .a = x,
                              .lda = in,
                              .b = device_weight(d, lora[i].a),
                              .ldb = in,
                              .c = d->lora,
                              .ldc = rank};
        K->gemm(D, &g);
        g.tc = ty;
        g.n = w[i].rows;
        g.k = g.lda = g.ldb = rank;
        g.alpha = lora_scale(d);
        g.a = d->lora;
        g.b = device_weight(d, lora[i].b);
        g.beta = 1;
        g.c = kern_at(ty, y, (size_t)col);
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
    const struct kern_gemm u = {.t = t,
                                .tc = t,
                                .tb = KERN_T,
                                .m = n,
                                .n = rank,
                                .k = in,
                                .alpha = 1,
                                .a = x,
                                .lda = in,
                                .b = a,
                                .ldb = in,
                                .c = d->lora,
                                .ldc = rank},
                           db = {.t = t,
                                 .ta = KERN_T,
                                 .m = rows,
                                 .n = rank,
                                 .k = n,
                                 .alpha = lora_scale(d),
                                 .a = dy,
                                 .lda = ld,
                                 .b = d->lora,
                                 .ldb = rank,
                                 .beta = 1,
                                 .c = device_grad(d, p->b),
                                 .ldc = rank},
                           du = {.t = t,
                                 .tc = t,
                                 .m = n,
                                 .n = rank,
                                 .k = rows,
                                 .alpha = lora_scale(d),
                                 .a = dy,
                                 .lda = ld,
                                 .b = b,
                                 .ldb = rank,
                                 .c = d->dlora,
                                 .ldc = rank},
                           da = {.t = t,
                                 .ta = KERN_T,
                                 .m = rank,
                                 .n = in,
                                 .k = n,
                                 .alpha = 1,
                                 .a = d->dlora,
                                 .lda = rank,
                                 .b = x,
                                 .ldb = in,
                                 .beta = 1,
                                 .c = device_grad(d, p->a),
                                 .ldc = in},
                           through = {.t = t,
                                      .tc = tx,
                                      .m = n,
                                      .n = in,
                                      .k = rank,
                                      .alpha = 1,
                                      .a = d->dlora,
                                      .lda = rank,
                                      .b = a,
                                      .ldb = in,
                                      .beta = 1,
                                      .c = dx,
                                      .ldc = in};
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
