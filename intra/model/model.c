// SPDX-License-Identifier: Apache-2.0
// Parameters: layout, names, trainable sets, initial values.
#include "intra/model/model.h"
#include "agent/base/count.h"
#include "agent/base/memory.h"
#include "agent/base/rng.h"
#include "intra/model/block.h"
#include "intra/model/rope.h"

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
    char why[INTRA_ROPE_TEXT];
    const char *key = intra_rope_check(&c->rope_scaling, why);
    if (key)
        return neb_fail(NEB_ERR_INVALID, "model.rope_scaling.%s: %s", key, why);
    if (c->head == INTRA_HEAD_RTD && !c->tied)
        return neb_fail(NEB_ERR_INVALID,
                        "model.tied: a discriminator has no output layer to untie");
    if (c->mask != KERN_MASK_CAUSAL && c->mask != KERN_MASK_BIDIRECTIONAL &&
        c->mask != KERN_MASK_PREFIX)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "model.mask: supported are causal, bidirectional and prefix");
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
            "trainable: lora alpha %g must be above 0, because adapters are scaled by alpha / rank",
            (double)t->lora_alpha);
    if (t->mode == INTRA_TRAIN_LAST_LAYERS && (t->last_layers < 1 || t->last_layers > c->n_layers))
        return neb_fail(NEB_ERR_INVALID, "trainable: last_layers %d is not in 1..%d",
                        t->last_layers, c->n_layers);
    return NEB_OK;
}

// Clears the fields of other modes, so that they change neither sizes nor checkpoints.
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

// Start of part r when n is cut into `ways` parts, which may differ by one.
static int32_t part_start(int32_t n, int32_t ways, int32_t r) {
    return (int32_t)((int64_t)n * r / ways);
}

struct intra_tensor intra_tensor_part(const struct intra_tensor *t, int32_t ways, int32_t r) {
    struct intra_tensor p = *t;
    p.rows = t->all_rows;
    p.cols = t->all_cols;
    p.row0 = p.col0 = 0;
    if (t->cut == INTRA_CUT_ROWS) {
        p.row0 = part_start(t->all_rows, ways, r);
        p.rows = part_start(t->all_rows, ways, r + 1) - p.row0;
    } else if (t->cut == INTRA_CUT_COLS) {
        p.col0 = part_start(t->all_cols, ways, r);
        p.cols = part_start(t->all_cols, ways, r + 1) - p.col0;
    }
    return p;
}

static bool learns(const struct intra_model *m, const struct intra_tensor *t) {
    const struct intra_trainable *c = &m->trainable;
    if (!strncmp(t->name, "rtd_head.", 9))
        return true; // always new, whatever checkpoint the rest comes from
    if (t->layer == -1 && c->freeze_embeddings)
        return false;
    switch (c->mode) {
    case INTRA_TRAIN_FULL: return true;
    case INTRA_TRAIN_LORA: return strstr(t->name, ".lora_") != NULL;
    case INTRA_TRAIN_BITFIT: return !t->decay;
    case INTRA_TRAIN_LAST_LAYERS: return t->layer >= m->c.n_layers - c->last_layers;
    }
    return false;
}

// Assigns offsets on this rank to a tensor.
static struct intra_tensor *place_tensor(struct intra_model *m, const struct intra_tensor *as,
                                         bool packed) {
    struct intra_tensor *t = &m->tensors[m->n_tensors++];
    *t = intra_tensor_part(as, intra_mesh_tp(m->mesh), intra_mesh_tp_rank(m->mesh));
    if (!packed) // parts of a fused matrix have no gap between them
        m->n_params = (m->n_params + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    t->at = m->n_params;
    m->n_params += intra_tensor_size(t);
    if (t->trainable) {
        t->grad_at = m->n_trainable;
        m->n_trainable += intra_tensor_size(t);
    }
    return t;
}

static bool is_here(const struct intra_model *m, int32_t layer) {
    if (layer == -1) // the last stage has a copy of a tied embedding
        return intra_model_first(m) || (m->c.tied && intra_model_last(m));
    if (layer == m->c.n_layers)
        return intra_model_last(m);
    return layer >= m->layer0 && layer < m->layer0 + m->local.n_layers;
}

struct intra_tensor *intra_model_add(struct intra_model *m, int32_t layer, int32_t rows,
                                     int32_t cols, enum intra_cut cut, bool packed, const char *fmt,
                                     ...) {
    struct intra_tensor t = {.layer = layer,
                             .all_rows = rows,
                             .all_cols = cols,
                             .cut = cut,
                             .index = m->n_all_tensors++,
                             .all_grad_at = m->n_all_trainable};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t.name, sizeof t.name, fmt, ap);
    va_end(ap);
    // by name, because an adapter of rank 1 is a matrix with one row
    t.decay = !ends_with(t.name, "norm.weight") && !ends_with(t.name, "bias");
    t.matrix = t.decay && layer >= 0 && layer < m->c.n_layers && !strstr(t.name, ".lora_");
    t.trainable = m->learns[t.index] = learns(m, &t);
    if (t.trainable) {
        m->n_all_trainable += (size_t)rows * (size_t)cols;
        m->low = layer < m->low ? layer : m->low;
    }
    return is_here(m, layer) ? place_tensor(m, &t, packed) : NULL;
}

static const struct intra_block_params *const kinds[INTRA_BLOCK_KINDS] = {
    [INTRA_BLOCK_ATTN_MLP] = &intra_block_attn_mlp_params,
};

static uint64_t name_hash(const char *s) { // FNV-1a; selects the random stream of a tensor
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
    return h;
}

// Draws a rank's part from the random stream of the full tensor.
static void draw(const struct intra_tensor *t, struct neb_rng *r, float std, float *p) {
    uint64_t before = (uint64_t)t->col0, behind = (uint64_t)(t->all_cols - t->col0 - t->cols);
    neb_rng_skip_normals(r, (uint64_t)t->row0 * (uint64_t)t->all_cols);
    for (int32_t i = 0; i < t->rows; i++, p += t->cols) {
        neb_rng_skip_normals(r, before);
        neb_rng_normals(r, p, (size_t)t->cols);
        neb_rng_skip_normals(r, behind);
        for (int32_t c = 0; c < t->cols; c++)
            p[c] *= std;
    }
}

void intra_model_draw(const struct intra_model *m, const struct intra_tensor *t, uint64_t seed,
                      float *out) {
    struct neb_rng rng = neb_rng_make(seed, name_hash(t->name));
    float std = 0.02f;
    if (ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight"))
        std /= sqrtf(2.0f * (float)m->c.n_layers);
    bool gain = ends_with(t->name, "norm.weight"),
         zero = ends_with(t->name, "bias") || ends_with(t->name, "lora_B.weight");
    if (!gain && !zero)
        draw(t, &rng, std, out);
    for (size_t k = 0; (gain || zero) && k < (size_t)t->rows * (size_t)t->cols; k++)
        out[k] = gain;
}

struct init {
    struct intra_model *m;
    uint64_t seed;
};

static void init_tensor(void *arg, size_t i) {
    const struct init *o = arg;
    const struct intra_tensor *t = &o->m->tensors[i];
    intra_model_draw(o->m, t, o->seed, intra_param(o->m, t));
}

// Each tensor has its own random stream, so all processors can work on a large model.
static enum neb_status init_params(struct intra_model *m, uint64_t seed) {
    enum { WORTH_THREADS = 1 << 22 };
    struct kern_pool *pool;
    NEB_TRY(kern_pool_create(m->n_params < WORTH_THREADS, &pool)); // 0: one thread per processor
    kern_pool_run(pool, (size_t)m->n_tensors, init_tensor, &(struct init){m, seed});
    kern_pool_destroy(&pool);
    return NEB_OK;
}

static void set_part(struct intra_model *m) {
    int32_t tp = intra_mesh_tp(m->mesh), r = intra_mesh_tp_rank(m->mesh);
    m->local = m->c;
    m->local.n_layers = m->c.n_layers / intra_mesh_pp(m->mesh);
    m->local.n_heads = m->c.n_heads / tp;
    m->local.n_kv_heads = m->c.n_kv_heads / tp;
    m->local.d_ff = m->c.d_ff / tp;
    m->local.vocab = part_start(m->c.vocab, tp, r + 1) - part_start(m->c.vocab, tp, r);
    m->layer0 = m->local.n_layers * intra_mesh_pp_rank(m->mesh);
}

static void add_all(struct intra_model *m) {
    const struct intra_model_config *c = &m->c;
    m->low = c->n_layers;
    m->embed = intra_model_add(m, -1, c->vocab, c->d_model, INTRA_CUT_ROWS, false,
                               "model.embed_tokens.weight");
    for (int32_t l = 0; l < c->n_layers; l++) {
        m->layers[l].kind = INTRA_BLOCK_ATTN_MLP;
        kinds[m->layers[l].kind]->parameters(m, l);
    }
    m->norm =
        intra_model_add(m, c->n_layers, 1, c->d_model, INTRA_CUT_NONE, false, "model.norm.weight");
    if (!c->tied)
        m->head = intra_model_add(m, c->n_layers, c->vocab, c->d_model, INTRA_CUT_ROWS, false,
                                  "lm_head.weight");
    else if (intra_model_last(m))
        m->head = m->embed;
    if (c->head == INTRA_HEAD_RTD) {
        m->rtd_weight = intra_model_add(m, c->n_layers, 1, c->d_model, INTRA_CUT_NONE, false,
                                        "rtd_head.weight");
        m->rtd_bias = intra_model_add(m, c->n_layers, 1, 1, INTRA_CUT_NONE, false, "rtd_head.bias");
    }
    for (int32_t l = 0; m->trainable.mode == INTRA_TRAIN_LORA && l < c->n_layers; l++)
        kinds[m->layers[l].kind]->adapters(m, l);
    if (m->norm)
        m->norm->partial = intra_mesh_tp(m->mesh) > 1;
    if (m->embed) {
        m->embed->row_kind = c->tied ? INTRA_ROWS_BOTH : INTRA_ROWS_INPUT;
        m->embed->copy = !intra_model_first(m);
    }
    if (m->head && !c->tied)
        m->head->row_kind = INTRA_ROWS_OUTPUT;
    size_t dp = (size_t)intra_mesh_dp(m->mesh);
    m->n_grads =
        dp == 1 ? m->n_trainable
                : (m->n_trainable + dp * ARENA_ALIGN - 1) / (dp * ARENA_ALIGN) * dp * ARENA_ALIGN;
}

static enum neb_status layout_on(const struct intra_model_config *c,
                                 const struct intra_trainable *t, const struct intra_mesh *mesh,
                                 struct intra_model **out) {
    NEB_TRY(intra_model_config_check(c));
    NEB_TRY(trainable_check(c, t));
    if (mesh)
        NEB_TRY(intra_mesh_check(&mesh->c, c));
    size_t most = (size_t)c->n_layers * 26 + 5;
    struct intra_model *m = calloc(1, sizeof *m);
    if (!m)
        goto nomem;
    m->c = *c;
    m->mesh = mesh;
    m->trainable = trainable_of_mode(t);
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    m->tensors = calloc(most, sizeof *m->tensors);
    m->learns = calloc(most, sizeof *m->learns);
    if (!m->layers || !m->tensors || !m->learns)
        goto nomem;
    set_part(m);
    add_all(m);
    if (m->n_all_trainable == 0) {
        intra_model_destroy(&m);
        return neb_fail(NEB_ERR_INVALID, "trainable: no tensor is left to train");
    }
    *out = m;
    return NEB_OK;
nomem:
    intra_model_destroy(&m);
    return neb_fail(NEB_ERR_NOMEM, "out of memory creating a model of %d layers, width %d",
                    c->n_layers, c->d_model);
}

enum neb_status intra_model_layout(const struct intra_model_config *c,
                                   const struct intra_trainable *t, struct intra_model **out) {
    return layout_on(c, t, NULL, out);
}

enum neb_status intra_model_allocate(struct intra_model *m, bool learn) {
    NEB_ASSERT(!m->params && !m->grads && !m->rope);
    // Gaps between tensors are zero, because the arena is hashed and saved with them. A stage may
    // have nothing to learn, so n_grads may be 0.
    m->params = neb_large_zeroed(m->n_params * sizeof *m->params);
    m->grads = learn ? neb_large_zeroed(m->n_grads * sizeof *m->grads) : NULL;
    m->rope = malloc(sizeof *m->rope * (size_t)m->c.max_seq * (size_t)m->c.head_dim);
    if (!m->params || (learn && !m->grads) || !m->rope)
        return neb_fail(NEB_ERR_NOMEM,
                        "out of memory creating a model of %d layers, width %d (%zu parameters)",
                        m->c.n_layers, m->c.d_model, m->n_params);
    if (!neb_counting())
        kern_rope_table(m->rope, m->c.max_seq, m->c.head_dim, (double)m->c.rope_theta,
                        &m->c.rope_scaling);
    return NEB_OK;
}

enum neb_status intra_model_create_on(const struct intra_model_config *c,
                                      const struct intra_trainable *t, uint64_t seed,
                                      const struct intra_mesh *mesh, struct intra_model **out) {
    struct intra_model *m = NULL;
    NEB_TRY(layout_on(c, t, mesh, &m));
    enum neb_status st = intra_model_allocate(m, true);
    if (st == NEB_OK && !neb_counting())
        st = init_params(m, seed);
    if (st != NEB_OK)
        intra_model_destroy(&m);
    *out = m;
    return st;
}

enum neb_status intra_model_create_frozen(const struct intra_model_config *c,
                                          const struct intra_trainable *t,
                                          const struct intra_mesh *mesh, struct intra_model **out) {
    struct intra_model *m = NULL;
    NEB_TRY(layout_on(c, t, mesh, &m));
    enum neb_status st = intra_model_allocate(m, false);
    if (st != NEB_OK)
        intra_model_destroy(&m);
    *out = m;
    return st;
}

enum neb_status intra_model_create(const struct intra_model_config *c,
                                   const struct intra_trainable *t, uint64_t seed,
                                   struct intra_model **out) {
    return intra_model_create_on(c, t, seed, NULL, out);
}

void intra_model_release(struct intra_model *m) {
    free(m->rope);
    free(m->grads);
    free(m->params);
    m->rope = m->grads = m->params = NULL;
}

void intra_model_destroy(struct intra_model **mp) {
    struct intra_model *m = *mp;
    if (!m)
        return;
    intra_model_release(m);
    free(m->learns);
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
            const struct intra_lora_pair *p = &m->layers[l].lora[i];
            const struct intra_tensor *w = m->layers[l].linear[i];
            if (!p->a)
                continue;
            K->ops->gemm(K, &(struct kern_gemm){.m = w->rows,
                                                .n = w->cols,
                                                .k = p->a->rows,
                                                .alpha = scale,
                                                .a = intra_param(m, p->b),
                                                .lda = p->a->rows,
                                                .b = intra_param(m, p->a),
                                                .ldb = w->cols,
                                                .beta = 1,
                                                .c = intra_param(m, w),
                                                .ldc = w->cols});
            K->ops->zero(K, intra_param(m, p->b), intra_tensor_size(p->b) * sizeof(float));
        }
}

size_t intra_model_matmul_params(const struct intra_model *m) {
    size_t n = m->head ? intra_tensor_size(m->head) : 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].decay && &m->tensors[i] != m->embed && &m->tensors[i] != m->head)
            n += intra_tensor_size(&m->tensors[i]);
    return n;
}
