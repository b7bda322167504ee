// SPDX-License-Identifier: Apache-2.0
// Models and trainers in checkpoint files (checkpoint.h). The layout is that of one rank, whatever
// mesh trained.
#include "agent/base/log.h"
#include "intra/model/rope.h"
#include "intra/train/full.h"
#include "intra/train/trainer_full.h"
#include "intra/train/trainer_parts.h"

#include <stdlib.h>
#include <string.h>

static void put_config(struct neb_buf *b, const struct intra_model *m) {
    const int32_t ints[] = {m->c.vocab,
                            m->c.d_model,
                            m->c.n_layers,
                            m->c.n_heads,
                            m->c.n_kv_heads,
                            m->c.head_dim,
                            m->c.d_ff,
                            m->c.max_seq,
                            m->c.tied,
                            m->c.qkv_bias,
                            (int32_t)m->c.mask,
                            (int32_t)m->trainable.mode,
                            m->trainable.lora_rank,
                            (int32_t)m->trainable.lora_targets,
                            m->trainable.last_layers,
                            m->trainable.freeze_embeddings};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        neb_buf_u32(b, (uint32_t)ints[i]);
    neb_buf_f32(b, m->c.rope_theta);
    neb_buf_f32(b, m->c.norm_eps);
    neb_buf_f32(b, m->trainable.lora_alpha);
    // Most models lack the last values. They are left out then.
    bool scaled = m->c.rope_scaling.type != KERN_ROPE_DEFAULT;
    if (m->c.head != INTRA_HEAD_LM || scaled)
        neb_buf_u32(b, (uint32_t)m->c.head);
    if (scaled)
        intra_rope_put(b, &m->c.rope_scaling);
}

// False if a value is outside what this program writes. Then a later version wrote it, or it is
// damaged in a way that the digest does not show.
static bool get_config(struct neb_rd *r, struct intra_model_config *c, struct intra_trainable *t) {
    int32_t v[16];
    for (size_t i = 0; i < 16; i++)
        v[i] = (int32_t)neb_rd_u32(r);
    *c = (struct intra_model_config){v[0],
                                     v[1],
                                     v[2],
                                     v[3],
                                     v[4],
                                     v[5],
                                     v[6],
                                     v[7],
                                     .tied = v[8] == 1,
                                     .qkv_bias = v[9] == 1,
                                     .mask = KERN_MASK_CAUSAL};
    *t = (struct intra_trainable){.lora_rank = v[12],
                                  .lora_targets = (uint32_t)v[13],
                                  .last_layers = v[14],
                                  .freeze_embeddings = v[15] == 1};
    c->rope_theta = neb_rd_f32(r);
    c->norm_eps = neb_rd_f32(r);
    t->lora_alpha = neb_rd_f32(r);
    uint32_t head = neb_rd_left(r) ? neb_rd_u32(r) : INTRA_HEAD_LM;
    c->head = head == INTRA_HEAD_RTD ? INTRA_HEAD_RTD : INTRA_HEAD_LM;
    bool known = !neb_rd_left(r) || intra_rope_get(r, &c->rope_scaling);
    if (head > INTRA_HEAD_RTD || !known || !neb_rd_done(r) || (v[8] | v[9] | v[15]) & ~1 ||
        v[10] < 0 || v[10] > KERN_MASK_PREFIX || v[11] < 0 || v[11] > INTRA_TRAIN_LAST_LAYERS)
        return false;
    c->mask = (enum kern_mask)v[10];
    t->mode = (enum intra_trainable_mode)v[11];
    return true;
}

enum neb_status intra_model_read_config(const struct intra_ckpt *c, struct intra_model_config *mc,
                                        struct intra_trainable *t) {
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "model.config");
    if (!s)
        return neb_fail(NEB_ERR_NOT_FOUND, "%s holds no model", intra_ckpt_path(c));
    const void *text = intra_ckpt_data(c, s);
    if (!text)
        return NEB_ERR_IO;
    struct neb_rd r = neb_rd_make(text, s->bytes);
    return get_config(&r, mc, t)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "%s: the model description is malformed",
                          intra_ckpt_path(c));
}

// Equal tensor shapes do not make equal models (4 heads of 6, 2 of 12), and a model with fewer
// tensors would load what it knows and drop the rest. So the descriptions must agree.
static enum neb_status same_model(const struct intra_ckpt *k, const struct intra_model_config *was,
                                  const struct intra_model_config *is) {
    const struct {
        const char *key;
        int32_t was, is;
    } ints[] = {{"vocab", was->vocab, is->vocab},
                {"d_model", was->d_model, is->d_model},
                {"n_layers", was->n_layers, is->n_layers},
                {"n_heads", was->n_heads, is->n_heads},
                {"n_kv_heads", was->n_kv_heads, is->n_kv_heads},
                {"head_dim", was->head_dim, is->head_dim},
                {"d_ff", was->d_ff, is->d_ff},
                {"tied", was->tied, is->tied},
                {"qkv_bias", was->qkv_bias, is->qkv_bias},
                {"head", (int32_t)was->head, (int32_t)is->head}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        if (ints[i].was != ints[i].is)
            return neb_fail(NEB_ERR_INVALID,
                            "%s holds another model: its model.%s is %d, the job's is %d",
                            intra_ckpt_path(k), ints[i].key, ints[i].was, ints[i].is);
    return NEB_OK;
}

// A model of another form may have tensors of the same shapes, but computes something else.
static bool same_form(const struct intra_model_config *was, const struct intra_model_config *is) {
    return was->rope_theta == is->rope_theta && was->norm_eps == is->norm_eps &&
           was->mask == is->mask && intra_rope_same(&was->rope_scaling, &is->rope_scaling);
}

enum neb_status intra_model_save_config(const struct intra_model *m, struct intra_ckpt_writer *w) {
    struct neb_buf b = {0};
    put_config(&b, m);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "model.config", INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
    return st;
}

enum neb_status intra_model_save(const struct intra_model *m, struct intra_ckpt_writer *w) {
    enum neb_status st = intra_model_save_config(m, w);
    for (int32_t i = 0; st == NEB_OK && i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        st = intra_ckpt_add(w, t->name, INTRA_F32, (uint64_t)t->rows, (uint64_t)t->cols,
                            intra_param(m, t));
    }
    return st;
}

static enum neb_status copy_params(const struct intra_ckpt *c, struct intra_model *m) {
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (strstr(t->name, ".lora_") && !intra_ckpt_find(c, t->name))
            continue;
        NEB_TRY(intra_ckpt_read(c, t->name, INTRA_F32, (uint64_t)t->rows, (uint64_t)t->cols,
                                intra_param(m, t)));
    }
    return NEB_OK;
}

enum neb_status intra_model_check_params(const struct intra_ckpt *c, const struct intra_model *m) {
    struct intra_model_config was;
    struct intra_trainable t;
    NEB_TRY(intra_model_read_config(c, &was, &t));
    NEB_TRY(same_model(c, &was, &m->c));
    uint32_t had = t.mode == INTRA_TRAIN_LORA ? t.lora_targets : 0;
    if (had & ~m->trainable.lora_targets)
        return neb_fail(NEB_ERR_INVALID,
                        "%s holds LoRA adapters that this model has no place for. Train with the "
                        "same targets, or start from a checkpoint without adapters",
                        intra_ckpt_path(c));
    if (had && t.lora_alpha != m->trainable.lora_alpha)
        return neb_fail(NEB_ERR_INVALID,
                        "%s holds LoRA adapters of alpha %g, but this model has alpha %g. Set "
                        "trainable.alpha: %g",
                        intra_ckpt_path(c), (double)t.lora_alpha, (double)m->trainable.lora_alpha,
                        (double)t.lora_alpha);
    char scaled[2][INTRA_ROPE_TEXT];
    if (!same_form(&was, &m->c))
        neb_warn("%s was trained with another rope_theta, rope_scaling, norm_eps or mask (%g, %s, "
                 "%g, %d; here %g, %s, %g, %d)",
                 intra_ckpt_path(c), (double)was.rope_theta,
                 intra_rope_text(&was.rope_scaling, scaled[0]), (double)was.norm_eps, was.mask,
                 (double)m->c.rope_theta, intra_rope_text(&m->c.rope_scaling, scaled[1]),
                 (double)m->c.norm_eps, m->c.mask);
    return NEB_OK;
}

enum neb_status intra_model_load_params(const struct intra_ckpt *c, struct intra_model *m) {
    NEB_TRY(intra_model_check_params(c, m));
    return copy_params(c, m);
}

enum neb_status intra_model_params_digest(const struct intra_ckpt *c,
                                          uint8_t out[NEB_SHA256_BYTES]) {
    struct intra_model_config mc;
    struct intra_trainable t;
    struct intra_model *m = NULL;
    struct neb_sha256 *h = NULL;
    uint8_t shape[16];
    NEB_TRY(intra_model_read_config(c, &mc, &t));
    NEB_TRY(intra_model_layout(&mc, &t, &m));
    enum neb_status st = neb_sha256_create(&h);
    for (int32_t i = 0; st == NEB_OK && i < m->n_tensors; i++) {
        const struct intra_ckpt_section *s = intra_ckpt_find(c, m->tensors[i].name);
        if (!s)
            continue; // adapters that start from initial values
        neb_put_u64(shape, s->rows);
        neb_put_u64(shape + 8, s->cols);
        neb_sha256_add(h, s->name, strlen(s->name) + 1);
        neb_sha256_add(h, shape, sizeof shape);
        neb_sha256_add(h, s->sha256, sizeof s->sha256);
    }
    if (st == NEB_OK)
        neb_sha256_finish(h, out);
    neb_sha256_destroy(&h);
    intra_model_destroy(&m);
    return st;
}

enum neb_status intra_model_load(const struct intra_ckpt *c, struct intra_model **out) {
    struct intra_model_config mc;
    struct intra_trainable t;
    struct intra_model *m = NULL;
    enum neb_status st = NEB_OK;
    NEB_TRY(intra_model_read_config(c, &mc, &t));
    NEB_TRY(intra_model_layout(&mc, &t, &m));
    // Check that the file holds every tensor before any memory is allocated: a false description
    // must cost none.
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *w = &m->tensors[i];
        const struct intra_ckpt_section *s = intra_ckpt_find(c, w->name);
        if (!s || s->dtype != INTRA_F32 || s->rows != (uint64_t)w->rows ||
            s->cols != (uint64_t)w->cols) {
            st = neb_fail(NEB_ERR_FORMAT, "%s: %s is missing or has another shape",
                          intra_ckpt_path(c), w->name);
            goto fail;
        }
    }
    NEB_TRY_GOTO(intra_model_allocate(m, false), fail);
    NEB_TRY_GOTO(copy_params(c, m), fail);
    *out = m;
    return NEB_OK;
fail:
    intra_model_destroy(&m);
    return st;
}

// ---- trainers -----------------------------------------------------------------------------------

bool trainer_has_moment(const struct intra_trainer *t, const struct intra_tensor *x, bool second) {
    return x->trainable && !(second && intra_optim_is_muon(t->optim, x));
}

// Gathers the moments of the whole model on rank 0. Each replica's ranks hold parts of them
// (optim.h). The gradient arena, which is free between steps, collects the parts, then each tensor
// is gathered.
static enum neb_status gather_moments(const struct intra_trainer *t, bool second, float *whole) {
    struct intra_model *m = t->model;
    intra_optim_spread(t->optim, m, second, m->grads);
    enum neb_status st = intra_optim_all_gather(t->optim, m->mesh->dp, m->grads);
    for (int32_t i = 0; i < t->whole->n_tensors && st == NEB_OK; i++) {
        const struct intra_tensor *x = &t->whole->tensors[i];
        if (trainer_has_moment(t, x, second))
            st = intra_full_gather(m, x, INTRA_ARENA_GRADS, m->grads,
                                   whole ? whole + x->grad_at : NULL);
    }
    t->K->ops->zero(t->K, m->grads, m->n_grads * sizeof *m->grads);
    return st;
}

// Tokens that all replicas have seen: (V) each. Collective over the data-parallel ranks.
static enum neb_status sum_counts(const struct intra_trainer *t, uint64_t *input,
                                  uint64_t *target) {
    struct intra_comm *dp = t->c.mesh ? t->c.mesh->dp : NULL;
    size_t V = (size_t)t->c.model.vocab;
    memcpy(input, t->input_counts, V * sizeof *input);
    memcpy(target, t->target_counts, V * sizeof *target);
    if (!dp)
        return NEB_OK;
    NEB_TRY(dp->ops->all_reduce(dp, input, V, INTRA_COMM_U64, INTRA_COMM_SUM));
    return dp->ops->all_reduce(dp, target, V, INTRA_COMM_U64, INTRA_COMM_SUM);
}

// all: of the whole model, like its gradients. AdamW's are one section. Muon has a section for each
// tensor, since matrices have no second moment.
static enum neb_status put_moments(const struct intra_trainer *t, struct intra_ckpt_writer *w,
                                   const char *which, bool second, const float *all) {
    const struct intra_model *m = t->whole ? t->whole : t->model;
    if (t->optim->c.kind == INTRA_OPTIM_ADAMW)
        return intra_ckpt_add(w, which, INTRA_F32, m->n_all_trainable, 1, all);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *x = &m->tensors[i];
        char name[INTRA_CKPT_NAME_MAX + 1];
        snprintf(name, sizeof name, "%s/%s", which, x->name);
        if (trainer_has_moment(t, x, second))
            NEB_TRY(intra_ckpt_add(w, name, INTRA_F32, (uint64_t)x->rows, (uint64_t)x->cols,
                                   all + (t->whole ? x->grad_at : t->optim->moment_at[i])));
    }
    return NEB_OK;
}

static enum neb_status save_rest(const struct intra_trainer *t, struct intra_ckpt_writer *w,
                                 const float *m, const float *v, const uint64_t *input,
                                 const uint64_t *target) {
    const struct intra_optim *o = t->optim;
    const char *name = intra_optim_names[o->c.kind];
    uint64_t steps = (uint64_t)o->t, V = (uint64_t)t->c.model.vocab;
    NEB_TRY(intra_ckpt_add(w, "optim.name", INTRA_BYTES, strlen(name), 1, name));
    NEB_TRY(intra_ckpt_add(w, "optim.t", INTRA_U64, 1, 1, &steps));
    steps = (uint64_t)o->born;
    NEB_TRY(intra_ckpt_add(w, "optim.born", INTRA_U64, 1, 1, &steps));
    if (m) { // else they are written tensor by tensor
        NEB_TRY(put_moments(t, w, "optim.m", false, m));
        NEB_TRY(put_moments(t, w, "optim.v", true, v));
    }
    NEB_TRY(intra_ckpt_add(w, "optim.gamma", INTRA_F32, (uint64_t)o->n_tensors, 1, o->gamma));
    NEB_TRY(intra_ckpt_add(w, "counts.input", INTRA_U64, V, 1, input));
    return intra_ckpt_add(w, "counts.target", INTRA_U64, V, 1, target);
}

// What a mesh gathers on rank 0. input, target and writer are allocated on all ranks, the rest on
// rank 0 only.
struct whole_state {
    float *m, *v;             // (n_all_trainable)
    uint64_t *input, *target; // (V)
    int32_t *writer;          // (ranks) all zero: rank 0 writes what each rank holds as `extra`
};

static void free_state(struct whole_state *s) {
    free(s->m);
    free(s->v);
    free(s->input);
    free(s->target);
    free(s->writer);
}

static enum neb_status make_counts(const struct intra_trainer *t, struct whole_state *s) {
    size_t V = (size_t)t->c.model.vocab;
    s->input = malloc(V * sizeof *s->input);
    s->target = malloc(V * sizeof *s->target);
    return s->input && s->target ? NEB_OK
                                 : neb_fail(NEB_ERR_NOMEM, "out of memory for token counts");
}

static enum neb_status make_state(const struct intra_trainer *t, struct whole_state *s) {
    size_t n = t->model->n_all_trainable;
    bool owner = intra_mesh_is_root(t->c.mesh);
    NEB_TRY(make_counts(t, s));
    s->writer = calloc((size_t)t->c.mesh->world->size, sizeof *s->writer);
    if (!s->writer)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a checkpoint");
    s->m = owner ? malloc(n * sizeof *s->m) : NULL;
    s->v = owner ? malloc(n * sizeof *s->v) : NULL;
    if (owner && (!s->m || !s->v))
        return neb_fail(NEB_ERR_NOMEM, "out of memory gathering the state of %zu parameters", n);
    return NEB_OK;
}

// Tensors and moments are written by all ranks that can write them (trainer_parts.c). Rank 0 writes
// the rest.
static enum neb_status save_split(const struct intra_trainer *t, struct intra_ckpt_writer *w,
                                  const struct intra_split *split) {
    struct whole_state s = {0};
    bool owner = intra_mesh_is_root(t->c.mesh);
    enum neb_status st = make_counts(t, &s);
    NEB_TRY_GOTO(intra_full_agree(t->c.mesh, st), out);
    NEB_TRY_GOTO(sum_counts(t, s.input, s.target), out);
    if (owner)
        st = intra_model_save_config(t->whole, w);
    NEB_TRY_GOTO(intra_full_agree(t->c.mesh, st), out);
    NEB_TRY_GOTO(intra_trainer_save_parts(t, w, split), out);
    if (owner)
        st = save_rest(t, w, NULL, NULL, s.input, s.target);
    st = intra_full_agree(t->c.mesh, st);
out:
    free_state(&s);
    return st;
}

static enum neb_status pull_all(const struct intra_trainer *t) {
    if (intra_mesh_dp_rank(t->c.mesh) == 0) // only replica 0's parameters are saved
        NEB_TRY(intra_device_pull(t->device, NULL));
    return intra_device_pull_moments(t->device);
}

enum neb_status trainer_push_all(struct intra_trainer *t) {
    NEB_TRY(intra_device_push(t->device, NULL));
    return intra_device_push_moments(t->device);
}

static enum neb_status save_mesh(const struct intra_trainer *t, struct intra_ckpt_writer *w) {
    struct whole_state s = {0};
    struct intra_model *whole = t->whole;
    bool owner = intra_mesh_is_root(t->c.mesh);
    struct intra_split split;
    NEB_TRY(intra_full_agree(t->c.mesh, pull_all(t)));
    NEB_TRY(intra_split_ask(t->c.mesh->world, w, &split));
    if (split.wanted)
        return save_split(t, w, &split);
    enum neb_status st = make_state(t, &s);
    NEB_TRY_GOTO(intra_full_agree(t->c.mesh, st), out);
    if (owner && !whole->params)
        st = intra_model_allocate(whole, false); // kept for the next checkpoint
    NEB_TRY_GOTO(intra_full_agree(t->c.mesh, st), out);
    NEB_TRY_GOTO(trainer_kept(t, intra_full_params(t->model, whole)), out);
    NEB_TRY_GOTO(trainer_kept(t, gather_moments(t, false, s.m)), out);
    NEB_TRY_GOTO(trainer_kept(t, gather_moments(t, true, s.v)), out);
    NEB_TRY_GOTO(trainer_kept(t, sum_counts(t, s.input, s.target)), out);
    if (owner)
        st = intra_model_save(whole, w);
    if (owner && st == NEB_OK)
        st = save_rest(t, w, s.m, s.v, s.input, s.target);
    if (t->extra) {
        enum neb_status put = t->extra->put(t->extra->user, s.writer, w, &st);
        NEB_TRY_GOTO(trainer_kept(t, put), out);
    }
    st = intra_full_agree(t->c.mesh, st);
out:
    free_state(&s);
    return st;
}

enum neb_status intra_trainer_save(const struct intra_trainer *t, struct intra_ckpt_writer *w) {
    NEB_ASSERT(t->loss_count == 0); // only between steps
    if (t->c.mesh)
        return save_mesh(t, w);
    NEB_TRY(pull_all(t));
    NEB_TRY(intra_model_save(t->model, w));
    return save_rest(t, w, t->optim->m, t->optim->v, t->input_counts, t->target_counts);
}

enum neb_status intra_model_same_shape(const struct intra_ckpt *c,
                                       const struct intra_model_config *is) {
    struct intra_model_config was;
    struct intra_trainable t;
    NEB_TRY(intra_model_read_config(c, &was, &t));
    return same_model(c, &was, is);
}

static enum neb_status same_optimiser(const struct intra_trainer *t, const struct intra_ckpt *c) {
    const char *is = intra_optim_names[t->optim->c.kind];
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "optim.name");
    const char *was = s ? intra_ckpt_data(c, s) : NULL;
    if (s && !was)
        return NEB_ERR_IO;
    if (!was || s->bytes != strlen(is) || memcmp(was, is, s->bytes) != 0)
        return neb_fail(NEB_ERR_INVALID,
                        "%s was written with optim.name: %.*s, the job's is %s. A run keeps its "
                        "optimiser. To change it, start a new job with init_from",
                        intra_ckpt_path(c), was ? (int)(s->bytes < 32 ? s->bytes : 32) : 1,
                        was ? was : "?", is);
    return NEB_OK;
}

enum neb_status trainer_same_run(const struct intra_trainer *t, const struct intra_ckpt *c) {
    const struct intra_trainable *is = &t->model->trainable;
    struct intra_model_config mc;
    struct intra_trainable was;
    NEB_TRY(intra_model_read_config(c, &mc, &was));
    NEB_TRY(same_model(c, &mc, &t->model->c));
    if (!same_form(&mc, &t->model->c))
        return neb_fail(NEB_ERR_INVALID,
                        "%s: the job's rope_theta, rope_scaling, norm_eps or mask has changed. A "
                        "run keeps the values that it began with",
                        intra_ckpt_path(c));
    if (was.mode != is->mode || was.lora_rank != is->lora_rank ||
        was.lora_alpha != is->lora_alpha || was.lora_targets != is->lora_targets ||
        was.last_layers != is->last_layers || was.freeze_embeddings != is->freeze_embeddings)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: the job's `trainable` has changed. A run keeps the values that it "
                        "began with. To change them, start a new job with init_from",
                        intra_ckpt_path(c));
    return same_optimiser(t, c);
}

// Reads from one section with all moments, or tensor by tensor.
static enum neb_status read_moments(const struct intra_trainer *t, const struct intra_ckpt *c,
                                    const char *which, bool second, float *out) {
    if (t->optim->c.kind == INTRA_OPTIM_ADAMW && intra_ckpt_find(c, which))
        return intra_ckpt_read(c, which, INTRA_F32, t->model->n_all_trainable, 1, out);
    for (int32_t i = 0; i < t->model->n_tensors; i++) {
        const struct intra_tensor *x = &t->model->tensors[i];
        char name[INTRA_CKPT_NAME_MAX + 1];
        snprintf(name, sizeof name, "%s/%s", which, x->name);
        if (trainer_has_moment(t, x, second))
            NEB_TRY(intra_ckpt_read(c, name, INTRA_F32, (uint64_t)x->rows, (uint64_t)x->cols,
                                    out + t->optim->moment_at[i]));
    }
    return NEB_OK;
}

enum neb_status trainer_read_rest(const struct intra_trainer *t, const struct intra_ckpt *c,
                                  uint64_t steps[2], uint64_t *input, uint64_t *target) {
    struct intra_optim *o = t->optim;
    uint64_t V = (uint64_t)t->c.model.vocab;
    NEB_TRY(intra_ckpt_read(c, "optim.t", INTRA_U64, 1, 1, steps));
    NEB_TRY(intra_ckpt_read(c, "optim.born", INTRA_U64, 1, 1, steps + 1));
    NEB_TRY(intra_ckpt_read(c, "optim.gamma", INTRA_F32, (uint64_t)o->n_tensors, 1, o->gamma));
    NEB_TRY(intra_ckpt_read(c, "counts.input", INTRA_U64, V, 1, input));
    NEB_TRY(intra_ckpt_read(c, "counts.target", INTRA_U64, V, 1, target));
    if (steps[0] > INT64_MAX / 2 || steps[1] > steps[0])
        return neb_fail(NEB_ERR_FORMAT, "%s: optim.t is out of range", intra_ckpt_path(c));
    return NEB_OK;
}

enum neb_status intra_trainer_restore(struct intra_trainer *t, const struct intra_ckpt *c) {
    struct intra_optim *o = t->optim;
    uint64_t steps[2];
    if (t->c.mesh)
        return trainer_restore_mesh(t, c);
    NEB_TRY(trainer_same_run(t, c));
    NEB_TRY(copy_params(c, t->model));
    NEB_TRY(trainer_read_rest(t, c, steps, t->input_counts, t->target_counts));
    NEB_TRY(read_moments(t, c, "optim.m", false, o->m));
    NEB_TRY(read_moments(t, c, "optim.v", true, o->v));
    o->t = (int64_t)steps[0];
    o->born = (int64_t)steps[1];
    return trainer_push_all(t);
}
