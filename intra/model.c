// Parameters: layout, naming, trainable sets, initialisation.
#include "intra/model.h"
#include "agent/base/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ARENA_ALIGN = 16,          // floats: every tensor starts on a cache line
    ROPE_FLOATS_MAX = 1 << 26, // 256 MiB: half a million positions of 128
};

enum neb_status intra_model_config_check(const struct intra_model_config *c) {
    const struct {
        const char *name;
        int32_t value, min, max;
    } bounds[] = {
        {"vocab", c->vocab, 2, 1 << 24},        {"d_model", c->d_model, 2, 1 << 16},
        {"n_layers", c->n_layers, 1, 1024},     {"n_heads", c->n_heads, 1, 1024},
        {"n_kv_heads", c->n_kv_heads, 1, 1024}, {"head_dim", c->head_dim, 2, 256},
        {"d_ff", c->d_ff, 1, 1 << 20},          {"max_seq", c->max_seq, 1, 1 << 20},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i].value < bounds[i].min || bounds[i].value > bounds[i].max)
            return neb_fail(NEB_ERR_INVALID, "model.%s: %d is not in %d..%d", bounds[i].name,
                            bounds[i].value, bounds[i].min, bounds[i].max);
    if (c->head_dim % 2)
        return neb_fail(NEB_ERR_INVALID, "model.head_dim: %d is odd; rotary positions need pairs",
                        c->head_dim);
    if (c->n_heads % c->n_kv_heads)
        return neb_fail(NEB_ERR_INVALID, "model.n_kv_heads: %d does not divide n_heads %d",
                        c->n_kv_heads, c->n_heads);
    if ((int64_t)c->max_seq * c->head_dim > ROPE_FLOATS_MAX)
        return neb_fail(
            NEB_ERR_INVALID,
            "model.max_seq: %d positions of head_dim %d need a rotary table of more than %d floats",
            c->max_seq, c->head_dim, ROPE_FLOATS_MAX);
    if (!(c->rope_theta > 1) || !(c->norm_eps > 0) || !(c->norm_eps < 1))
        return neb_fail(NEB_ERR_INVALID,
                        "model: rope_theta %g must be above 1 and norm_eps %g in (0, 1)",
                        (double)c->rope_theta, (double)c->norm_eps);
    if (c->mask != KERN_MASK_CAUSAL &&
        c->mask != KERN_MASK_BIDIRECTIONAL) // a prefix needs lengths, which a pass does not take
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "model.mask: only causal and bidirectional attention is supported here");
    return NEB_OK;
}

static enum neb_status trainable_check(const struct intra_model_config *c,
                                       const struct intra_trainable *t) {
    if (t->mode == INTRA_TRAIN_LORA &&
        (t->lora_rank < 1 || t->lora_rank > 1024 || !t->lora_targets || t->lora_targets > 127))
        return neb_fail(NEB_ERR_INVALID,
                        "trainable: lora needs rank 1..1024 and at least one target "
                        "(q, k, v, o, gate, up, down)");
    if (t->mode == INTRA_TRAIN_LORA && (!(t->lora_alpha > 0) || !isfinite(t->lora_alpha)))
        return neb_fail(
            NEB_ERR_INVALID,
            "trainable: lora alpha %g must be above 0: adapters are scaled by alpha / rank",
            (double)t->lora_alpha);
    if (t->mode == INTRA_TRAIN_LAST_LAYERS && (t->last_layers < 1 || t->last_layers > c->n_layers))
        return neb_fail(NEB_ERR_INVALID, "trainable: last_layers %d is not in 1..%d",
                        t->last_layers, c->n_layers);
    return NEB_OK;
}

// What does not belong to the mode is cleared: it sizes nothing and differs in no checkpoint.
static struct intra_trainable trainable_of_mode(const struct intra_trainable *t) {
    struct intra_trainable r = *t;
    if (r.mode != INTRA_TRAIN_LORA)
        r.lora_rank = 0, r.lora_alpha = 0, r.lora_targets = 0;
    if (r.mode != INTRA_TRAIN_LAST_LAYERS)
        r.last_layers = 0;
    return r;
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

__attribute__((format(printf, 6, 7))) static struct intra_tensor *
add_tensor(struct intra_model *m, int32_t layer, int32_t rows, int32_t cols, bool packed,
           const char *fmt, ...) {
    struct intra_tensor *t = &m->tensors[m->n_tensors++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    t->rows = rows;
    t->cols = cols;
    t->layer = layer;
    t->decay = !ends_with(t->name, "norm.weight") &&
               !ends_with(t->name, "bias"); // an adapter of rank 1 is a matrix
    if (!packed) // parts of a fused matrix follow each other without a gap
        m->n_params = (m->n_params + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    t->at = m->n_params;
    m->n_params += intra_tensor_size(t);
    return t;
}

static const char *const linear_names[INTRA_LORA_SLOTS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

// (out, in) of linear slot i.
static void linear_shape(const struct intra_model_config *c, int i, int32_t *out, int32_t *in) {
    int32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const int32_t outs[] = {q, kv, kv, c->d_model, c->d_ff, c->d_ff, c->d_model};
    const int32_t ins[] = {c->d_model, c->d_model, c->d_model, q, c->d_model, c->d_model, c->d_ff};
    *out = outs[i];
    *in = ins[i];
}

static void add_block(struct intra_model *m, int32_t l) {
    const struct intra_model_config *c = &m->c;
    struct intra_layer *y = &m->layers[l];
    struct intra_tensor *w[INTRA_LORA_SLOTS];
    int32_t out, in;
    y->norm1 = add_tensor(m, l, 1, c->d_model, false, "model.layers.%d.input_layernorm.weight", l);
    for (int i = 0; i < INTRA_LORA_SLOTS; i++) {
        linear_shape(c, i, &out, &in);
        if (i == 4)
            y->norm2 = add_tensor(m, l, 1, c->d_model, false,
                                  "model.layers.%d.post_attention_layernorm.weight", l);
        w[i] = add_tensor(m, l, out, in, i == 1 || i == 2 || i == 5, "model.layers.%d.%s.weight", l,
                          linear_names[i]);
        for (int b = 0; i == 2 && c->qkv_bias && b < 3; b++) {
            linear_shape(c, b, &out, &in);
            struct intra_tensor *t =
                add_tensor(m, l, 1, out, b > 0, "model.layers.%d.%s.bias", l, linear_names[b]);
            if (b == 0)
                y->q_bias = t;
        }
    }
    y->q = w[0];
    y->o = w[3];
    y->gate = w[4];
    y->down = w[6];
}

static void add_adapters(struct intra_model *m, int32_t l) {
    for (int i = 0; i < INTRA_LORA_SLOTS; i++) {
        int32_t out, in, r = m->trainable.lora_rank;
        if (!(m->trainable.lora_targets & 1u << i))
            continue;
        linear_shape(&m->c, i, &out, &in);
        struct intra_lora_pair *p = &m->layers[l].lora[i];
        p->a =
            add_tensor(m, l, r, in, false, "model.layers.%d.%s.lora_A.weight", l, linear_names[i]);
        p->b =
            add_tensor(m, l, out, r, false, "model.layers.%d.%s.lora_B.weight", l, linear_names[i]);
        p->a->trainable = p->b->trainable = true;
    }
}

static void choose_trainable(struct intra_model *m) {
    const struct intra_trainable *t = &m->trainable;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        struct intra_tensor *x = &m->tensors[i];
        switch (t->mode) {
        case INTRA_TRAIN_FULL: x->trainable = true; break;
        case INTRA_TRAIN_LORA: break; // adapters are marked where they are made
        case INTRA_TRAIN_BITFIT: x->trainable = !x->decay; break;
        case INTRA_TRAIN_LAST_LAYERS:
            x->trainable = x->layer >= m->c.n_layers - t->last_layers;
            break;
        }
        if (x == m->embed && t->freeze_embeddings)
            x->trainable = false;
        if (x->trainable) {
            x->grad_at = m->n_trainable;
            m->n_trainable += intra_tensor_size(x);
        }
    }
    m->embed->row_kind = m->c.tied ? INTRA_ROWS_BOTH : INTRA_ROWS_INPUT;
    if (!m->c.tied)
        m->head->row_kind = INTRA_ROWS_OUTPUT;
}

static uint64_t name_hash(const char *s) { // FNV-1a: a stream number per tensor name
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
    return h;
}

static void init_params(struct intra_model *m, uint64_t seed) {
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        struct neb_rng rng = neb_rng_make(seed, name_hash(t->name));
        float *p = intra_param(m, t), std = 0.02f;
        if (ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight"))
            std /= sqrtf(2.0f * (float)m->c.n_layers);
        bool gain = ends_with(t->name, "norm.weight"),
             zero = ends_with(t->name, "bias") || ends_with(t->name, "lora_B.weight");
        for (size_t k = 0; k < intra_tensor_size(t); k++)
            p[k] = gain ? 1.0f : zero ? 0.0f : std * neb_rng_normal(&rng);
    }
}

enum neb_status intra_model_layout(const struct intra_model_config *c,
                                   const struct intra_trainable *t, struct intra_model **out) {
    NEB_TRY(intra_model_config_check(c));
    NEB_TRY(trainable_check(c, t));
    struct intra_model *m = calloc(1, sizeof *m);
    if (!m)
        goto nomem;
    m->c = *c;
    m->trainable = trainable_of_mode(t);
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    m->tensors = calloc((size_t)c->n_layers * 26 + 3, sizeof *m->tensors);
    if (!m->layers || !m->tensors)
        goto nomem;
    m->embed = add_tensor(m, -1, c->vocab, c->d_model, false, "model.embed_tokens.weight");
    for (int32_t l = 0; l < c->n_layers; l++)
        add_block(m, l);
    m->norm = add_tensor(m, c->n_layers, 1, c->d_model, false, "model.norm.weight");
    m->head = c->tied ? m->embed
                      : add_tensor(m, c->n_layers, c->vocab, c->d_model, false, "lm_head.weight");
    for (int32_t l = 0; t->mode == INTRA_TRAIN_LORA && l < c->n_layers; l++)
        add_adapters(m, l);
    choose_trainable(m);
    if (m->n_trainable == 0) {
        intra_model_destroy(&m);
        return neb_fail(NEB_ERR_INVALID, "trainable: nothing is left to train");
    }
    *out = m;
    return NEB_OK;
nomem:
    intra_model_destroy(&m);
    return neb_fail(NEB_ERR_NOMEM, "out of memory creating a model of %d layers, width %d",
                    c->n_layers, c->d_model);
}

static float *zeroed(size_t n) {
    float *p = aligned_alloc(64, (n * sizeof *p + 63) / 64 * 64);
    if (p)
        memset(p, 0,
               n * sizeof *p); // the gaps between tensors too: the arena is hashed and saved whole
    return p;
}

enum neb_status intra_model_allocate(struct intra_model *m, bool learn) {
    NEB_ASSERT(!m->params && !m->grads && !m->rope);
    m->params = zeroed(m->n_params);
    m->grads = learn ? zeroed(m->n_trainable) : NULL;
    m->rope = malloc(sizeof *m->rope * (size_t)m->c.max_seq * (size_t)m->c.head_dim);
    if (!m->params || (learn && !m->grads) || !m->rope)
        return neb_fail(NEB_ERR_NOMEM,
                        "out of memory creating a model of %d layers, width %d (%zu parameters)",
                        m->c.n_layers, m->c.d_model, m->n_params);
    kern_rope_table(m->rope, m->c.max_seq, m->c.head_dim, (double)m->c.rope_theta);
    return NEB_OK;
}

enum neb_status intra_model_create(const struct intra_model_config *c,
                                   const struct intra_trainable *t, uint64_t seed,
                                   struct intra_model **out) {
    struct intra_model *m = NULL;
    NEB_TRY(intra_model_layout(c, t, &m));
    enum neb_status st = intra_model_allocate(m, true);
    if (st != NEB_OK) {
        intra_model_destroy(&m);
        return st;
    }
    init_params(m, seed);
    *out = m;
    return NEB_OK;
}

void intra_model_destroy(struct intra_model **mp) {
    struct intra_model *m = *mp;
    if (!m)
        return;
    free(m->rope);
    free(m->grads);
    free(m->params);
    free(m->tensors);
    free(m->layers);
    free(m);
    *mp = NULL;
}

const struct intra_tensor *intra_model_find(const struct intra_model *m, const char *name) {
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensors[i].name, name))
            return &m->tensors[i];
    return NULL;
}

void intra_lora_merge(struct kern *K, struct intra_model *m) {
    if (m->trainable.mode != INTRA_TRAIN_LORA)
        return;
    float scale = m->trainable.lora_alpha / (float)m->trainable.lora_rank;
    for (int32_t l = 0; l < m->c.n_layers; l++)
        for (int i = 0; i < INTRA_LORA_SLOTS; i++) {
            char name[96];
            const struct intra_lora_pair *p = &m->layers[l].lora[i];
            if (!p->a)
                continue;
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, linear_names[i]);
            const struct intra_tensor *w = intra_model_find(m, name);
            K->ops->gemm(K, KERN_N, KERN_N, w->rows, w->cols, p->a->rows, scale,
                         intra_param(m, p->b), p->a->rows, intra_param(m, p->a), w->cols, 1,
                         intra_param(m, w), w->cols);
            K->ops->zero(K, intra_param(m, p->b), intra_tensor_size(p->b));
        }
}

size_t intra_model_matmul_params(const struct intra_model *m) {
    size_t n = intra_tensor_size(m->head);
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].decay && &m->tensors[i] != m->embed && &m->tensors[i] != m->head)
            n += intra_tensor_size(&m->tensors[i]);
    return n;
}
