#include "intra/trainer.h"
#include "agent/base/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum neb_status intra_trainer_create(const struct intra_trainer_config *c, struct kern *K,
                                     struct intra_trainer **out) {
    enum neb_status st = NEB_OK;
    if (c->batch < 1 || c->seq_len < 1 || c->accumulate < 1 ||
        (int64_t)c->batch * c->seq_len > 1 << 24)
        return neb_fail(
            NEB_ERR_INVALID,
            "data: batch %d x seq_len %d x accumulate %d: each at least 1, and at most 2^24 "
            "tokens a micro-batch",
            c->batch, c->seq_len, c->accumulate);
    struct intra_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a trainer");
    t->c = *c;
    t->K = K;
    NEB_TRY_GOTO(intra_model_create_on(&c->model, &c->trainable, c->seed, c->mesh, &t->model),
                 fail);
    NEB_TRY_GOTO(intra_optim_create(&c->optim, t->model, &t->optim), fail);
    NEB_TRY_GOTO(intra_acts_create(t->model, c->batch, c->seq_len, true, c->recompute, &t->acts),
                 fail);
    if (intra_mesh_pp(c->mesh) > 1)
        NEB_TRY_GOTO(
            intra_pipe_create(t->model, t->acts, c->batch, c->seq_len, c->accumulate, &t->pipe),
            fail);
    t->input_counts = calloc((size_t)c->model.vocab, sizeof *t->input_counts);
    t->target_counts = calloc((size_t)c->model.vocab, sizeof *t->target_counts);
    if (!t->input_counts || !t->target_counts) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for token counts");
        goto fail;
    }
    *out = t;
    return NEB_OK;
fail:
    intra_trainer_destroy(&t);
    return st;
}

void intra_trainer_destroy(struct intra_trainer **tp) {
    struct intra_trainer *t = *tp;
    if (!t)
        return;
    free(t->input_counts);
    free(t->target_counts);
    intra_pipe_destroy(&t->pipe);
    intra_acts_destroy(&t->acts);
    intra_optim_destroy(&t->optim);
    intra_model_destroy(&t->model);
    free(t);
    *tp = NULL;
}

static double full_step(const struct intra_trainer *t) { // targets of a step, when none is ignored
    return (double)t->c.batch * t->c.seq_len * t->c.accumulate * intra_mesh_dp(t->c.mesh);
}

void intra_trainer_micro(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets) {
    double loss = 0;
    int64_t count = 0;
    int32_t n = t->c.batch * t->c.seq_len;
    float scale = 1.0f / ((float)n * (float)t->c.accumulate * (float)intra_mesh_dp(t->c.mesh));
    if (t->pipe)
        intra_pipe_add(t->pipe, tokens, targets);
    else
        intra_model_pass(t->K, t->model, t->acts, tokens, targets, t->c.batch, t->c.seq_len, scale,
                         &loss, &count);
    t->loss_sum += loss;
    t->loss_count += count;
    for (int32_t i = 0; i < n; i++) {
        t->input_counts[tokens[i]]++;
        if (targets[i] != KERN_IGNORE)
            t->target_counts[targets[i]]++;
    }
}

// Sums of all replicas: of the last stages, where the loss is, and of one tensor-parallel rank each.
static void sum_loss(struct intra_trainer *t, double *loss, int64_t *count) {
    const struct intra_mesh *mesh = t->c.mesh;
    if (!mesh)
        return;
    bool mine = intra_model_last(t->model) && mesh->tp_rank == 0;
    double x[2] = {mine ? *loss : 0, mine ? (double)*count : 0};
    if (t->model->failed == NEB_OK)
        intra_model_keep(t->model, mesh->world->ops->all_reduce(mesh->world, x, 2, INTRA_COMM_F64,
                                                                INTRA_COMM_SUM));
    *loss = x[0];
    *count = (int64_t)x[1];
}

void intra_trainer_update(struct intra_trainer *t, struct intra_step_stats *out) {
    double full = full_step(t);
    if (t->pipe)
        intra_pipe_run(t->pipe, t->K, (float)(1 / full), &t->loss_sum, &t->loss_count);
    sum_loss(t, &t->loss_sum, &t->loss_count);
    // Gradients were scaled for full micro-batches; where targets were ignored the mean is over fewer.
    if (t->loss_count && (double)t->loss_count != full)
        t->K->ops->scale(t->K, t->model->grads, (float)(full / (double)t->loss_count),
                         t->model->n_trainable);
    out->loss = t->loss_count ? t->loss_sum / (double)t->loss_count : 0;
    out->tokens = t->loss_count;
    intra_optim_update(t->optim, t->K, t->model, &out->update);
    out->status = t->model->failed;
    if (!isfinite(out->update.grad_norm))
        neb_warn("step %lld: gradient norm is not finite; the update was skipped. Lower optim.lr "
                 "or turn clipping on",
                 (long long)t->optim->t);
    t->loss_sum = 0;
    t->loss_count = 0;
}

double intra_trainer_eval(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets,
                          int n) {
    double sum = 0;
    int64_t count = 0;
    int replica = 0; // whose turn it is
    for (int at = 0; at < n; at += t->c.batch, replica = (replica + 1) % intra_mesh_dp(t->c.mesh)) {
        double loss = 0;
        int64_t k = 0;
        int b = n - at < t->c.batch ? n - at : t->c.batch;
        size_t off = (size_t)at * t->c.seq_len;
        if (replica != intra_mesh_dp_rank(t->c.mesh))
            continue;
        if (t->pipe)
            intra_pipe_eval(t->pipe, t->K, tokens + off, targets + off, b, &loss, &k);
        else
            intra_model_pass(t->K, t->model, t->acts, tokens + off, targets + off, b, t->c.seq_len,
                             0, &loss, &k);
        sum += loss;
        count += k;
    }
    sum_loss(t, &sum, &count);
    return count ? sum / (double)count : 0;
}

enum neb_status intra_units(const struct intra_model *m, struct intra_unit **out, int32_t *n) {
    int32_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (int32_t i = 0; i < m->n_tensors; i++) {
            const struct intra_tensor *t = &m->tensors[i];
            int32_t step = INTRA_UNIT_ELEMENTS / t->cols > 0 ? INTRA_UNIT_ELEMENTS / t->cols : 1;
            for (int32_t r = 0; t->trainable && r < t->rows; r += step, count++)
                if (pass)
                    (*out)[count] =
                        (struct intra_unit){.tensor = t,
                                            .row0 = r,
                                            .cols = t->cols,
                                            .rows = t->rows - r < step ? t->rows - r : step,
                                            .data = intra_param(m, t) + (size_t)r * t->cols};
        }
        if (!pass && !(*out = calloc((size_t)count, sizeof **out)))
            return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    }
    *n = count;
    return NEB_OK;
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

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
}

// False where a value is none that this program writes: a later version's, or damage that a digest cannot see.
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
    if (!neb_rd_done(r) || (v[8] | v[9] | v[15]) & ~1 || v[10] < 0 || v[10] > KERN_MASK_PREFIX ||
        v[11] < 0 || v[11] > INTRA_TRAIN_LAST_LAYERS)
        return false;
    c->mask = (enum kern_mask)v[10];
    t->mode = (enum intra_trainable_mode)v[11];
    return true;
}

static enum neb_status read_config(const struct intra_ckpt *c, struct intra_model_config *mc,
                                   struct intra_trainable *t) {
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "model.config");
    if (!s)
        return neb_fail(NEB_ERR_NOT_FOUND, "%s holds no model", intra_ckpt_path(c));
    struct neb_rd r = neb_rd_make(intra_ckpt_data(c, s), s->bytes);
    return get_config(&r, mc, t)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "%s: malformed model description", intra_ckpt_path(c));
}

// Tensors of equal shapes can still be another model (4 heads of 6, 2 of 12), and a model with fewer tensors would take
// what it knows and drop the rest: the descriptions must agree.
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
                {"qkv_bias", was->qkv_bias, is->qkv_bias}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        if (ints[i].was != ints[i].is)
            return neb_fail(NEB_ERR_INVALID,
                            "%s holds another model: its model.%s is %d, the job's is %d",
                            intra_ckpt_path(k), ints[i].key, ints[i].was, ints[i].is);
    return NEB_OK;
}

enum neb_status intra_model_save(const struct intra_model *m, struct intra_ckpt_writer *w) {
    struct neb_buf b = {0};
    put_config(&b, m);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, "model.config", INTRA_BYTES, b.len, 1, b.p);
    neb_buf_free(&b);
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

enum neb_status intra_model_load_params(const struct intra_ckpt *c, struct intra_model *m) {
    struct intra_model_config was;
    struct intra_trainable t;
    NEB_TRY(read_config(c, &was, &t));
    NEB_TRY(same_model(c, &was, &m->c));
    uint32_t had = t.mode == INTRA_TRAIN_LORA ? t.lora_targets : 0;
    if (had & ~m->trainable.lora_targets)
        return neb_fail(NEB_ERR_INVALID,
                        "%s holds LoRA adapters that this model has no place for; train with the "
                        "same targets, or "
                        "start from a checkpoint without adapters",
                        intra_ckpt_path(c));
    if (was.rope_theta != m->c.rope_theta || was.norm_eps != m->c.norm_eps || was.mask != m->c.mask)
        neb_warn("%s was trained with another rope_theta, norm_eps or mask (%g, %g, %d; here %g, "
                 "%g, %d)",
                 intra_ckpt_path(c), (double)was.rope_theta, (double)was.norm_eps, was.mask,
                 (double)m->c.rope_theta, (double)m->c.norm_eps, m->c.mask);
    return copy_params(c, m);
}

enum neb_status intra_model_load(const struct intra_ckpt *c, struct intra_model **out) {
    struct intra_model_config mc;
    struct intra_trainable t;
    struct intra_model *m = NULL;
    enum neb_status st = NEB_OK;
    NEB_TRY(read_config(c, &mc, &t));
    NEB_TRY(intra_model_layout(&mc, &t, &m));
    // Every tensor must be in the file before memory for it is asked for: a description alone must not cost any.
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *w = &m->tensors[i];
        const struct intra_ckpt_section *s = intra_ckpt_find(c, w->name);
        if (!s || s->dtype != INTRA_F32 || s->rows != (uint64_t)w->rows ||
            s->cols != (uint64_t)w->cols) {
            st = neb_fail(NEB_ERR_FORMAT, "%s: %s is missing or of another shape",
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

enum neb_status intra_trainer_save(const struct intra_trainer *t, struct intra_ckpt_writer *w) {
    const struct intra_optim *o = t->optim;
    uint64_t steps = (uint64_t)o->t, V = (uint64_t)t->c.model.vocab;
    NEB_ASSERT(t->loss_count == 0); // between steps
    NEB_TRY(intra_model_save(t->model, w));
    NEB_TRY(intra_ckpt_add(w, "optim.t", INTRA_U64, 1, 1, &steps));
    NEB_TRY(intra_ckpt_add(w, "optim.m", INTRA_F32, o->n, 1, o->m));
    NEB_TRY(intra_ckpt_add(w, "optim.v", INTRA_F32, o->n, 1, o->v));
    NEB_TRY(intra_ckpt_add(w, "optim.gamma", INTRA_F32, (uint64_t)o->n_tensors, 1, o->gamma));
    NEB_TRY(intra_ckpt_add(w, "counts.input", INTRA_U64, V, 1, t->input_counts));
    return intra_ckpt_add(w, "counts.target", INTRA_U64, V, 1, t->target_counts);
}

enum neb_status intra_trainer_restore(struct intra_trainer *t, const struct intra_ckpt *c) {
    struct intra_optim *o = t->optim;
    const struct intra_trainable *is = &t->model->trainable;
    struct intra_model_config mc;
    struct intra_trainable was;
    uint64_t steps = 0, V = (uint64_t)t->c.model.vocab;
    NEB_TRY(read_config(c, &mc, &was));
    NEB_TRY(same_model(c, &mc, &t->model->c));
    if (mc.rope_theta != t->model->c.rope_theta || mc.norm_eps != t->model->c.norm_eps ||
        mc.mask != t->model->c.mask)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: rope_theta, norm_eps or mask of the job have changed; a run goes on "
                        "with what it began with",
                        intra_ckpt_path(c));
    if (was.mode != is->mode || was.lora_rank != is->lora_rank ||
        was.lora_alpha != is->lora_alpha || was.lora_targets != is->lora_targets ||
        was.last_layers != is->last_layers || was.freeze_embeddings != is->freeze_embeddings)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: `trainable` of the job has changed; a run goes on with what it began "
                        "with (start a new job "
                        "with init_from instead)",
                        intra_ckpt_path(c));
    NEB_TRY(copy_params(c, t->model));
    NEB_TRY(intra_ckpt_read(c, "optim.t", INTRA_U64, 1, 1, &steps));
    NEB_TRY(intra_ckpt_read(c, "optim.m", INTRA_F32, o->n, 1, o->m));
    NEB_TRY(intra_ckpt_read(c, "optim.v", INTRA_F32, o->n, 1, o->v));
    NEB_TRY(intra_ckpt_read(c, "optim.gamma", INTRA_F32, (uint64_t)o->n_tensors, 1, o->gamma));
    NEB_TRY(intra_ckpt_read(c, "counts.input", INTRA_U64, V, 1, t->input_counts));
    NEB_TRY(intra_ckpt_read(c, "counts.target", INTRA_U64, V, 1, t->target_counts));
    if (steps > INT64_MAX / 2)
        return neb_fail(NEB_ERR_FORMAT, "%s: optim.t is out of range", intra_ckpt_path(c));
    o->t = (int64_t)steps;
    return NEB_OK;
}
