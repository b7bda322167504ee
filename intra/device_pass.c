// One pass over a batch on an accelerator: forward.c's lines with the types of device.h. Fused where the kernels are: the
// stream's addition with the norm that reads it, the qkv bias with its product, the stream's gradient with its copy as T.
#include "intra/device_state.h"

struct shape { // sizes of one pass
    int B, T, n, d, q, kv, qkv, f;
    enum kern_type t;
};

static struct shape shape_of(const struct intra_device *d, int B) {
    const struct intra_model_config *c = &d->m->c;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, T = d->c.seq_len;
    return (struct shape){B, T, B * T, c->d_model, q, kv, q + 2 * kv, c->d_ff, d->c.type};
}

static struct kern_attn attn_shape(const struct intra_device *d, const struct shape *s) {
    const struct intra_model_config *c = &d->m->c;
    return (struct kern_attn){s->B, s->T, c->n_heads, c->n_kv_heads, c->head_dim, c->mask, NULL};
}

static float lora_scale(const struct intra_device *d) {
    const struct intra_trainable *t = &d->m->trainable;
    return t->lora_rank ? t->lora_alpha / (float)t->lora_rank : 0;
}

// y (n, out) = x (n, in) W^T + bias, and the adapters of W's parts.
static void linear(struct intra_device *d, void *y, const void *x, int n, int out, int in,
                   const struct intra_tensor *w, const struct intra_tensor *bias,
                   const struct intra_lora_pair *lora, int parts) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    enum kern_type t = d->c.type;
    int col = 0, rank = d->m->trainable.lora_rank;
    K->gemm(D, t, t, KERN_N, KERN_T, n, out, in, 1, x, in, device_weight(d, w), in, 0, y, out,
            bias ? device_weight(d, bias) : NULL);
    for (int i = 0; i < parts; i++) {
        int rows = w[i].rows;
        if (lora[i].a) {
            K->gemm(D, t, t, KERN_N, KERN_T, n, rank, in, 1, x, in, device_weight(d, lora[i].a), in,
                    0, d->lora, rank, NULL);
            K->gemm(D, t, t, KERN_N, KERN_T, n, rows, rank, lora_scale(d), d->lora, rank,
                    device_weight(d, lora[i].b), rank, 1, device_at(d, y, (size_t)col), out, NULL);
        }
        col += rows;
    }
}

// dx (n, in) = dy W (NULL: not wanted); dW += dy^T x where it learns; adapters likewise.
static void linear_bwd(struct intra_device *d, void *dx, void *dy, const void *x, int n, int out,
                       int in, const struct intra_tensor *w, const struct intra_lora_pair *lora,
                       int parts) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    enum kern_type t = d->c.type;
    int col = 0, rank = d->m->trainable.lora_rank;
    if (w->trainable)
        K->gemm(D, t, KERN_F32, KERN_T, KERN_N, out, in, n, 1, dy, out, x, in, 1, device_grad(d, w),
                in, NULL);
    if (dx)
        K->gemm(D, t, t, KERN_N, KERN_N, n, in, out, 1, dy, out, device_weight(d, w), in, 0, dx, in,
                NULL);
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
                K->gemm(D, t, t, KERN_N, KERN_N, n, in, rank, 1, d->dlora, rank,
                        device_weight(d, p->a), in, 1, dx, in, NULL);
        }
        col += rows;
    }
}

// From h (and r, unless NULL) through block l; leaves what it adds in d->r. again: only what backward needs of it.
static void block_fwd(struct intra_device *d, int32_t l, const float *h, const void *r,
                      const struct shape *s, bool again) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const struct intra_layer *y = &d->m->layers[l];
    const struct intra_model_config *c = &d->m->c;
    struct device_block *b = &d->blocks[l];
    struct kern_attn at = attn_shape(d, s);
    size_t k = (size_t)s->q, v = k + (size_t)s->kv;
    K->rmsnorm_fwd(D, s->t, b->y1, b->rstd1, b->h1, h, r, device_gain(d, y->norm1), s->n, s->d,
                   c->norm_eps);
    linear(d, b->qkv, b->y1, s->n, s->qkv, s->d, y->q, y->q_bias, &y->lora[0], 3);
    K->rope(D, s->t, b->qkv, s->qkv, d->rope, s->n, s->T, c->n_heads + c->n_kv_heads, c->head_dim,
            false);
    K->attn_fwd(D, s->t, &at, b->att, s->q, b->lse, b->qkv, s->qkv, device_at(d, b->qkv, k), s->qkv,
                device_at(d, b->qkv, v), s->qkv);
    linear(d, d->r, b->att, s->n, s->d, s->q, y->o, NULL, &y->lora[3], 1);
    K->rmsnorm_fwd(D, s->t, b->y2, b->rstd2, b->h2, b->h1, d->r, device_gain(d, y->norm2), s->n,
                   s->d, c->norm_eps);
    linear(d, b->gu, b->y2, s->n, 2 * s->f, s->d, y->gate, NULL, &y->lora[4], 2);
    K->swiglu_fwd(D, s->t, b->act, b->gu, s->n, s->f);
    if (!again)
        linear(d, d->r, b->act, s->n, s->d, s->f, y->down, NULL, &y->lora[6], 1);
}

// d->dh (and as T d->dht): gradient of the stream after block l on entry, before it on return. below: something under this
// block learns.
static void block_bwd(struct intra_device *d, int32_t l, const struct shape *s, bool below) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const struct intra_layer *y = &d->m->layers[l];
    const struct intra_model_config *c = &d->m->c;
    struct device_block *b = &d->blocks[l];
    struct kern_attn at = attn_shape(d, s);
    size_t k = (size_t)s->q, v = k + (size_t)s->kv;
    void *also = s->t == KERN_F32 ? NULL : d->dht; // of type fp32 d->dh serves as d->dht
    linear_bwd(d, d->dact, d->dht, b->act, s->n, s->d, s->f, y->down, &y->lora[6], 1);
    K->swiglu_bwd(D, s->t, b->gu, d->dact, b->gu, s->n, s->f);
    linear_bwd(d, d->dy, b->gu, b->y2, s->n, 2 * s->f, s->d, y->gate, &y->lora[4], 2);
    K->rmsnorm_bwd(D, s->t, d->dh, also, device_grad(d, y->norm2), d->dy, b->h2,
                   device_gain(d, y->norm2), b->rstd2, s->n, s->d);
    linear_bwd(d, d->datt, d->dht, b->att, s->n, s->d, s->q, y->o, &y->lora[3], 1);
    K->attn_bwd(D, s->t, &at, d->dqkv, device_at(d, d->dqkv, k), device_at(d, d->dqkv, v), d->datt,
                b->att, s->q, b->lse, b->qkv, s->qkv, device_at(d, b->qkv, k), s->qkv,
                device_at(d, b->qkv, v), s->qkv, d->delta);
    K->rope(D, s->t, d->dqkv, s->qkv, d->rope, s->n, s->T, c->n_heads + c->n_kv_heads, c->head_dim,
            true);
    if (y->q_bias && y->q_bias->trainable)
        K->bias_bwd(D, s->t, device_grad(d, y->q_bias), d->dqkv, s->n, s->qkv);
    bool through = below || y->norm1->trainable;
    linear_bwd(d, through ? d->dy : NULL, d->dqkv, b->y1, s->n, s->qkv, s->d, y->q, &y->lora[0], 3);
    if (through)
        K->rmsnorm_bwd(D, s->t, d->dh, also, device_grad(d, y->norm1), d->dy, b->h1,
                       device_gain(d, y->norm1), b->rstd1, s->n, s->d);
}

static void head(struct intra_device *d, const float *h, const struct shape *s, float grad_scale,
                 bool learn, double *total) {
    const struct intra_model *m = d->m;
    struct kern_device_head job = {.n = s->n,
                                   .d = s->d,
                                   .V = m->c.vocab,
                                   .x = d->yf,
                                   .w = device_weight(d, m->head),
                                   .targets = d->batch.targets,
                                   .grad_scale = grad_scale,
                                   .learn = learn,
                                   .dx = d->dy,
                                   .dw = learn ? device_grad(d, m->head) : NULL,
                                   .logits = d->logits,
                                   .rows = d->logit_rows,
                                   .losses = d->losses,
                                   .total = total};
    device_ops(d)->rmsnorm_fwd(d->c.D, s->t, d->yf, d->rstdf, d->hf, h, d->r,
                               device_gain(d, m->norm), s->n, s->d, m->c.norm_eps);
    device_ops(d)->head_loss(d->c.D, s->t, &job);
}

static void backward(struct intra_device *d, const struct shape *s) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const struct intra_model *m = d->m;
    int32_t last = m->c.n_layers - 1;
    K->zero(D, d->dh, (size_t)s->n * (size_t)s->d * sizeof(float));
    K->rmsnorm_bwd(D, s->t, d->dh, s->t == KERN_F32 ? NULL : d->dht, device_grad(d, m->norm), d->dy,
                   d->hf, device_gain(d, m->norm), d->rstdf, s->n, s->d);
    for (int32_t l = last; l >= 0 && l >= m->low; l--) {
        if (d->c.recompute && l < last) // the last block's are still there
            block_fwd(d, l, d->blocks[l].h1, NULL, s, true);
        block_bwd(d, l, s, m->low < l);
    }
    if (m->embed->trainable)
        K->embed_bwd(D, device_grad(d, m->embed), d->dh, &d->batch.rows, s->d);
}

void device_pass(struct intra_device *d, int B, float grad_scale, bool learn, double *total) {
    struct shape s = shape_of(d, B);
    const float *h = d->hf; // the embedding goes where the final norm writes later: free until then
    device_ops(d)->embed_fwd(d->c.D, d->hf, d->params + d->m->embed->at, d->batch.tokens, s.n, s.d);
    for (int32_t l = 0; l < d->m->c.n_layers; l++) {
        block_fwd(d, l, h, l ? d->r : NULL, &s, false);
        h = d->blocks[l].h2;
    }
    head(d, h, &s, grad_scale, learn, total);
    if (learn)
        backward(d, &s);
}
