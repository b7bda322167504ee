// SPDX-License-Identifier: Apache-2.0
// The block of attention and MLP, as in Hugging Face's Llama and Qwen2. It reads the residual
// stream h through a norm and adds to it twice:
//
//     h1 = h + r           y1 = norm1(h1)     qkv = y1 Wqkv^T (+ b), rotary    att = attention(qkv)
//     r' = att Wo^T        h2 = h1 + r'       y2 = norm2(h2)                    gu = y2 Wgu^T
//     act = silu(g) * u    r = act Wdown^T    (added by the next norm1, or the final norm)
//
// Backward goes through the same lines in reverse. Some steps are fused: an addition to the stream
// with the norm that reads it, the qkv bias with its product, the bias's gradient with dW, the
// stream's gradient with its copy in T.
//
// With tensor parallelism a rank has some heads, some columns of gu and act, and some rows of the
// norms and the stream (rows.h). y1 and y2 are gathered before the products. The outputs of o and
// down, and in backward the gradients of y1 and y2, are summed into the rows of their rank.
#include "intra/model/state.h"

#include <string.h>

// Activations. Rows of the stream: all n of a pass, or with tensor parallelism this rank's own.
struct acts {
    float *rstd1, *h2, *rstd2; // (own) (own, d) (own) fp32
    float *lse;                // (B, H, T) fp32
    void *y1, *y2;             // (n, d) T; with tensor parallelism both are intra_device.y
    void *qkv, *att;           // (n, (H+2G)*D) after rotary, (n, H*D) T
    void *gu, *act;            // (n, 2f) (n, f) T
};

struct scratch {              // gradients
    void *dqkv, *datt, *dact; // T
    float *delta;             // (B, H, T)
};

struct sizes { // on this rank
    int q, kv, qkv, f;
};
static struct sizes sizes_of(const struct intra_device *d) {
    const struct intra_model_config *c = &d->m->local;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    return (struct sizes){q, kv, q + 2 * kv, c->d_ff};
}

// ---- parameters ---------------------------------------------------------------------------------

static const char *const names[INTRA_LORA_SLOTS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

// Shape (out, in) of linear layer i.
static void shape_of(const struct intra_model_config *c, int i, int32_t *out, int32_t *in) {
    int32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const int32_t outs[] = {q, kv, kv, c->d_model, c->d_ff, c->d_ff, c->d_model};
    const int32_t ins[] = {c->d_model, c->d_model, c->d_model, q, c->d_model, c->d_model, c->d_ff};
    *out = outs[i];
    *in = ins[i];
}

static enum intra_cut cut_of(int i) { // o and down by columns, the others by rows
    return i == INTRA_O || i == INTRA_DOWN ? INTRA_CUT_COLS : INTRA_CUT_ROWS;
}

// With tensor parallelism each rank computes the gradient of a norm at its own rows only (rows.h).
static struct intra_tensor *add_norm(struct intra_model *m, int32_t l, const char *name) {
    struct intra_tensor *t = intra_model_add(m, l, 1, m->c.d_model, INTRA_CUT_NONE, false,
                                             "model.layers.%d.%s.weight", l, name);
    if (t)
        t->partial = intra_mesh_tp(m->mesh) > 1;
    return t;
}

static void parameters(struct intra_model *m, int32_t l) {
    struct intra_layer *y = &m->layers[l];
    int32_t out, in;
    y->norm1 = add_norm(m, l, "input_layernorm");
    for (int i = 0; i < INTRA_LORA_SLOTS; i++) {
        shape_of(&m->c, i, &out, &in);
        if (i == INTRA_GATE)
            y->norm2 = add_norm(m, l, "post_attention_layernorm");
        y->linear[i] =
            intra_model_add(m, l, out, in, cut_of(i), i == INTRA_K || i == INTRA_V || i == INTRA_UP,
                            "model.layers.%d.%s.weight", l, names[i]);
        for (int b = INTRA_Q; i == INTRA_V && m->c.qkv_bias && b <= INTRA_V; b++) {
            shape_of(&m->c, b, &out, &in);
            struct intra_tensor *t = intra_model_add(m, l, 1, out, INTRA_CUT_COLS, b != INTRA_Q,
                                                     "model.layers.%d.%s.bias", l, names[b]);
            if (b == INTRA_Q)
                y->q_bias = t;
        }
    }
}

// With tensor parallelism one half of an adapter is cut like its base weight. The other half is
// replicated, and each rank computes a part of its gradient.
static void adapters(struct intra_model *m, int32_t l) {
    for (int i = 0; i < INTRA_LORA_SLOTS; i++) {
        int32_t out, in, r = m->trainable.lora_rank;
        bool by_rows = cut_of(i) == INTRA_CUT_ROWS;
        if (!(m->trainable.lora_targets & 1u << i))
            continue;
        shape_of(&m->c, i, &out, &in);
        struct intra_lora_pair *p = &m->layers[l].lora[i];
        p->a = intra_model_add(m, l, r, in, by_rows ? INTRA_CUT_NONE : INTRA_CUT_COLS, false,
                               "model.layers.%d.%s.lora_A.weight", l, names[i]);
        p->b = intra_model_add(m, l, out, r, by_rows ? INTRA_CUT_ROWS : INTRA_CUT_NONE, false,
                               "model.layers.%d.%s.lora_B.weight", l, names[i]);
        if (p->a && intra_mesh_tp(m->mesh) > 1)
            (by_rows ? p->a : p->b)->partial = true;
    }
}

// ---- memory -------------------------------------------------------------------------------------

static void take_acts(struct device_carve *c, const struct intra_device *d, void *acts) {
    struct acts *b = acts;
    struct sizes s = sizes_of(d);
    size_t t = kern_type_bytes(d->c.type), n = device_tokens(d), width = (size_t)d->m->c.d_model,
           each = (size_t)intra_rows_of(d->m, (int)n).each;
    bool cut = device_cut(d); // gathered rows are not kept
    device_take(c, &b->y1, cut ? 0 : t * n * width);
    device_take(c, &b->rstd1, each * sizeof(float));
    device_take(c, &b->qkv, t * n * (size_t)s.qkv);
    device_take(c, &b->att, t * n * (size_t)s.q);
    device_take(c, &b->lse, n * (size_t)d->m->local.n_heads * sizeof(float));
    device_take(c, &b->h2, each * width * sizeof(float));
    device_take(c, &b->y2, cut ? 0 : t * n * width);
    device_take(c, &b->rstd2, each * sizeof(float));
    device_take(c, &b->gu, t * n * 2 * (size_t)s.f);
    device_take(c, &b->act, t * n * (size_t)s.f);
    if (cut)
        b->y1 = b->y2 = d->y;
}

static void take_scratch(struct device_carve *c, const struct intra_device *d, void *scratch) {
    struct scratch *g = scratch;
    struct sizes s = sizes_of(d);
    size_t t = kern_type_bytes(d->c.type), n = device_tokens(d);
    device_take(c, &g->dqkv, t * n * (size_t)s.qkv);
    device_take(c, &g->datt, t * n * (size_t)s.q);
    device_take(c, &g->delta, n * (size_t)d->m->local.n_heads * sizeof(float));
    device_take(c, &g->dact, t * n * (size_t)s.f);
}

// ---- passes -------------------------------------------------------------------------------------

static struct kern_attn attn_of(const struct intra_device *d, const struct device_acts *a,
                                const struct pass_shape *s) {
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

// Attention from qkv into att.
static void attend(struct intra_device *d, const struct device_acts *a, const struct acts *b,
                   int32_t l, const struct pass_shape *s) {
    struct sizes z = sizes_of(d);
    struct kern_attn at = attn_of(d, a, s);
    const void *k = device_at(d, b->qkv, (size_t)z.q),
               *v = device_at(d, b->qkv, (size_t)(z.q + z.kv));
    if (!a->kept || !device_cache_attend(d, a, l, s, b->att, z.q, b->qkv, k, v, z.qkv))
        device_ops(d)->attn_fwd(d->c.D, s->t, &at, b->att, z.q, b->lse, b->qkv, z.qkv, k, z.qkv, v,
                                z.qkv);
}

static const float *forward(struct intra_device *d, struct device_acts *a, int32_t l,
                            const struct pass_shape *s, const float *h, bool added, bool again) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    const struct intra_layer *y = &m->layers[l];
    const struct intra_model_config *c = &m->local;
    const struct device_block *own = &a->blocks[l - m->layer0];
    const struct acts *b = own->acts;
    struct sizes z = sizes_of(d);
    bool passed_on = l == m->layer0 + c->n_layers - 1 && !intra_model_last(m);
    pass_norm(d, b->y1, b->rstd1, own->h1, h, added, y->norm1, s);
    pass_linear(d, s->t, b->qkv, b->y1, s->n, z.qkv, s->d, y->linear[INTRA_Q], y->q_bias,
                &y->lora[INTRA_Q], 3);
    K->rope(d->c.D, s->t, b->qkv, z.qkv, a->follows ? d->cache->angles : d->rope, s->n,
            a->follows ? s->n : s->T, c->n_heads + c->n_kv_heads, c->head_dim, false);
    attend(d, a, b, l, s);
    pass_linear_added(d, b->att, z.q, y->linear[INTRA_O], &y->lora[INTRA_O], false, s);
    pass_norm(d, b->y2, b->rstd2, b->h2, own->h1, true, y->norm2, s);
    pass_linear(d, s->t, b->gu, b->y2, s->n, 2 * z.f, s->d, y->linear[INTRA_GATE], NULL,
                &y->lora[INTRA_GATE], 2);
    K->swiglu_fwd(d->c.D, s->t, b->act, b->gu, s->n, z.f);
    if (!again)
        pass_linear_added(d, b->act, z.f, y->linear[INTRA_DOWN], &y->lora[INTRA_DOWN], passed_on,
                          s);
    return b->h2;
}

static void backward(struct intra_device *d, struct device_acts *a, int32_t l,
                     const struct pass_shape *s, bool below, bool again) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_layer *y = &d->m->layers[l];
    const struct device_block *own = &a->blocks[l - d->m->layer0];
    const struct acts *b = own->acts;
    const struct scratch *g = d->scratch[INTRA_BLOCK_ATTN_MLP];
    struct sizes z = sizes_of(d);
    struct kern_attn at = attn_of(d, a, s);
    size_t k = (size_t)z.q, v = k + (size_t)z.kv;
    pass_linear_bwd(d, s->t, g->dact, pass_stream_grad(d, s), b->act, s->n, s->d, z.f,
                    y->linear[INTRA_DOWN], NULL, &y->lora[INTRA_DOWN], 1);
    K->swiglu_bwd(d->c.D, s->t, b->gu, g->dact, b->gu, s->n, z.f); // in place: gu is not needed
    if (!again)
        pass_norm_again(d, b->y2, b->rstd2, b->h2, y->norm2, s, y->linear[INTRA_GATE],
                        &y->lora[INTRA_GATE], 2);
    pass_linear_bwd_in(d, b->gu, b->y2, 2 * z.f, y->linear[INTRA_GATE], NULL, &y->lora[INTRA_GATE],
                       2, true, s);
    pass_norm_bwd(d, b->h2, b->rstd2, y->norm2, s);
    pass_linear_bwd(d, s->t, g->datt, pass_stream_grad(d, s), b->att, s->n, s->d, z.q,
                    y->linear[INTRA_O], NULL, &y->lora[INTRA_O], 1);
    K->attn_bwd(d->c.D, s->t, &at, g->dqkv, device_at(d, g->dqkv, k), device_at(d, g->dqkv, v),
                g->datt, b->att, z.q, b->lse, b->qkv, z.qkv, device_at(d, b->qkv, k), z.qkv,
                device_at(d, b->qkv, v), z.qkv, g->delta, d->rope);
    bool through = below || y->norm1->trainable;
    pass_norm_again(d, b->y1, b->rstd1, own->h1, y->norm1, s, y->linear[INTRA_Q], &y->lora[INTRA_Q],
                    3);
    pass_linear_bwd_in(d, g->dqkv, b->y1, z.qkv, y->linear[INTRA_Q], y->q_bias, &y->lora[INTRA_Q],
                       3, through, s);
    if (through)
        pass_norm_bwd(d, own->h1, b->rstd1, y->norm1, s);
}

const struct intra_block_params intra_block_attn_mlp_params = {parameters, adapters};

const struct intra_block_kind intra_block_attn_mlp = {
    .acts_bytes = sizeof(struct acts),
    .scratch_bytes = sizeof(struct scratch),
    .take_acts = take_acts,
    .take_scratch = take_scratch,
    .forward = forward,
    .backward = backward,
};
