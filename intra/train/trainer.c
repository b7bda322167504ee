// SPDX-License-Identifier: Apache-2.0
#include "intra/train/trainer.h"
#include "agent/base/log.h"
#include "intra/train/trainer_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// The mesh of the device: on processors the one that the model has.
static const struct intra_mesh *mesh_of(const struct intra_trainer_config *c) {
    return c->device ? c->device_mesh : c->mesh;
}

static enum neb_status create_device(struct intra_trainer *t) {
    const struct intra_trainer_config *c = &t->c;
    return intra_device_create(
        &(struct intra_device_config){.D = c->device ? c->device : t->K,
                                      .type = c->device ? c->device_type : KERN_F32,
                                      .batch = c->batch,
                                      .seq_len = c->seq_len,
                                      .micros = c->accumulate,
                                      .recompute = c->recompute,
                                      .soft_k = c->soft_k,
                                      .graphs = c->device_graphs,
                                      .mesh = mesh_of(c),
                                      .least_bytes = c->device_least},
        t->model, t->optim, &t->device);
}

static enum neb_status create_pipe(struct intra_trainer *t) {
    const struct intra_trainer_config *c = &t->c;
    struct intra_pipe_engine e = intra_device_pipe(t->device);
    return intra_pipe_create(t->model, mesh_of(c), &e, c->batch, c->seq_len, c->accumulate,
                             &t->pipe);
}

enum neb_status intra_trainer_create(const struct intra_trainer_config *c, struct kern *K,
                                     struct intra_trainer **out) {
    enum neb_status st = NEB_OK;
    if (c->batch < 1 || c->seq_len < 1 || c->accumulate < 1 ||
        (int64_t)c->batch * c->seq_len > INTRA_MICRO_TOKENS_MAX)
        return neb_fail(
            NEB_ERR_INVALID,
            "data: batch %d x seq_len %d x accumulate %d: each at least 1, and at most 2^24 "
            "tokens per micro-batch",
            c->batch, c->seq_len, c->accumulate);
    struct intra_trainer *t = calloc(1, sizeof *t);
    if (!t)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a trainer");
    t->c = *c;
    t->K = K;
    t->weight = c->weight != 0 ? c->weight : 1;
    if (!c->device && c->device_type == KERN_BF16)
        NEB_TRY_GOTO(kern_cpu_bf16(K), fail);
    if (c->frozen) {
        NEB_TRY_GOTO(intra_model_create_frozen(&c->model, &c->trainable, c->mesh, &t->model), fail);
    } else {
        NEB_TRY_GOTO(intra_model_create_on(&c->model, &c->trainable, c->seed, c->mesh, &t->model),
                     fail);
        NEB_TRY_GOTO(intra_optim_create(&c->optim, t->model, &t->optim), fail);
    }
    NEB_TRY_GOTO(create_device(t), fail);
    if (intra_mesh_pp(c->mesh) > 1)
        NEB_TRY_GOTO(create_pipe(t), fail);
    if (c->mesh) {
        NEB_TRY_GOTO(intra_model_layout(&c->model, &c->trainable, &t->whole), fail);
        NEB_TRY_GOTO(intra_part_saver_create(&t->part_saver), fail);
    }
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
    intra_part_saver_destroy(&t->part_saver);
    intra_pipe_destroy(&t->pipe);
    intra_device_destroy(&t->device);
    intra_optim_destroy(&t->optim);
    intra_model_destroy(&t->whole);
    intra_model_destroy(&t->model);
    free(t);
    *tp = NULL;
}

static double full_step(const struct intra_trainer *t) { // targets in a step if none is ignored
    return (double)t->c.batch * t->c.seq_len * t->c.accumulate * intra_mesh_dp(t->c.mesh);
}

void intra_trainer_count(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets,
                         int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        t->input_counts[tokens[i]]++;
        if (targets[i] != KERN_IGNORE && t->c.model.head == INTRA_HEAD_LM)
            t->target_counts[targets[i]]++;
    }
}

// Promises that parameters do not change until the next update or evaluation, so that passes may be
// faster (kern_ops.weights).
static void freeze_params(struct intra_trainer *t) {
    if (t->c.device || t->resting)
        return;
    t->K->ops->weights(t->K, t->model->params, t->model->n_params);
    t->resting = true;
}

// Ends freeze_params: from here on the parameters may change.
static void wake(struct intra_trainer *t) {
    if (t->resting)
        t->K->ops->weights(t->K, NULL, 0);
    t->resting = false;
}

static void pick(struct intra_trainer *t, const struct intra_picks *picks) {
    if (picks && t->model->failed == NEB_OK)
        intra_model_keep_failure(t->model, intra_device_pick(t->device, picks));
}

void intra_trainer_micro_batch(struct intra_trainer *t, const struct intra_batch *b,
                               const struct intra_picks *picks) {
    int32_t n = t->c.batch * t->c.seq_len;
    float scale = t->weight / ((float)n * (float)t->c.accumulate * (float)intra_mesh_dp(t->c.mesh));
    if (t->pipe) {
        intra_pipe_add(t->pipe, b, picks);
        return;
    }
    freeze_params(t);
    t->loss_count += intra_device_micro(t->device, b, scale);
    pick(t, picks);
}

void intra_trainer_micro(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets) {
    struct intra_batch b = {
        .tokens = tokens, .targets = targets, .B = t->c.batch, .T = t->c.seq_len};
    intra_trainer_micro_batch(t, &b, NULL);
    intra_trainer_count(t, tokens, targets, t->c.batch * t->c.seq_len);
}

void intra_trainer_run(struct intra_trainer *t) {
    if (!t->pipe)
        return;
    freeze_params(t);
    intra_pipe_run(t->pipe, (float)((double)t->weight / full_step(t)), &t->loss_count);
}

// Sums over all replicas. Tensor-parallel rank 0 of each last stage contributes.
static void sum_loss(struct intra_trainer *t, double *loss, int64_t *count) {
    const struct intra_mesh *mesh = t->c.mesh;
    if (!mesh)
        return;
    bool mine = intra_model_last(t->model) && mesh->tp_rank == 0;
    double x[2] = {mine ? *loss : 0, mine ? (double)*count : 0};
    if (t->model->failed == NEB_OK)
        intra_model_keep_failure(t->model, mesh->world->ops->all_reduce(
                                               mesh->world, x, 2, INTRA_COMM_F64, INTRA_COMM_SUM));
    *loss = x[0];
    *count = (int64_t)x[1];
}

void intra_loss_add(double *first, double *last, double loss) {
    if (!isfinite(loss))
        return;
    *first = isfinite(*first) ? *first : loss;
    *last = isfinite(*last) ? 0.9 * *last + 0.1 * loss : loss;
}

// The device returns the step's loss together with the norms.
void intra_trainer_update(struct intra_trainer *t, struct intra_step_stats *out) {
    double full = full_step(t), loss = 0;
    *out = (struct intra_step_stats){0};
    intra_trainer_run(t);
    wake(t);
    intra_model_keep_failure(
        t->model, intra_device_update(t->device, full, &loss, &t->loss_count, &out->update));
    out->status = t->model->failed;
    out->loss = t->loss_count ? loss / (double)t->loss_count : 0;
    out->tokens = t->loss_count;
    if (!isfinite(out->update.grad_norm))
        neb_warn("step %lld: gradient norm is not finite; the update was skipped. Lower optim.lr "
                 "or turn clipping on",
                 (long long)t->optim->t);
    t->loss_count = 0;
}

void intra_trainer_eval_begin(struct intra_trainer *t) {
    intra_device_eval_begin(t->device);
    t->eval_count = 0;
    if (!t->c.frozen && !t->caches)
        wake(t);
    freeze_params(t);
}

void intra_trainer_eval_batch(struct intra_trainer *t, const struct intra_batch *b,
                              const struct intra_picks *picks) {
    if (t->pipe) {
        intra_pipe_eval(t->pipe, b, picks, &t->eval_count);
        return;
    }
    t->eval_count += intra_device_eval_micro(t->device, b);
    pick(t, picks);
}

enum neb_status intra_trainer_eval_end(struct intra_trainer *t, double *loss, int64_t *count) {
    *count = t->eval_count;
    t->eval_count = 0;
    if (!t->c.frozen && !t->caches)
        wake(t);
    *loss = 0;
    intra_model_keep_failure(t->model, intra_device_eval_end(t->device, loss));
    sum_loss(t, loss, count);
    return t->model->failed;
}

enum neb_status intra_trainer_cache(struct intra_trainer *t, int32_t slots, int32_t longest) {
    if (!t->c.frozen)
        wake(t); // the parameters may have changed before the cache, and may change after it
    t->caches = slots > 0;
    return intra_device_cache(t->device, slots, longest);
}

double intra_trainer_eval(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets,
                          int n) {
    double sum = 0;
    int64_t count = 0;
    int replica = 0; // which replica's turn it is
    intra_trainer_eval_begin(t);
    for (int at = 0; at < n; at += t->c.batch, replica = (replica + 1) % intra_mesh_dp(t->c.mesh)) {
        size_t off = (size_t)at * t->c.seq_len;
        if (replica == intra_mesh_dp_rank(t->c.mesh))
            intra_trainer_eval_batch(
                t,
                &(struct intra_batch){.tokens = tokens + off,
                                      .targets = targets + off,
                                      .B = n - at < t->c.batch ? n - at : t->c.batch,
                                      .T = t->c.seq_len},
                NULL);
    }
    (void)!intra_trainer_eval_end(t, &sum, &count);
    return count ? sum / (double)count : 0;
}

enum neb_status intra_trainer_pull(struct intra_trainer *t, const bool *wanted) {
    return intra_device_pull(t->device, wanted);
}
enum neb_status intra_trainer_push(struct intra_trainer *t, const bool *wanted) {
    return intra_device_push(t->device, wanted);
}

float *intra_trainer_on_device(const struct intra_trainer *t, const struct intra_tensor *x) {
    return t->c.device ? intra_device_param(t->device, x) : NULL;
}
enum neb_status intra_trainer_changed(struct intra_trainer *t, const bool *wanted) {
    return intra_device_changed(t->device, wanted);
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
                    (*out)[count] = (struct intra_unit){
                        .tensor = t,
                        .row0 = r,
                        .cols = t->cols,
                        .rows = t->rows - r < step ? t->rows - r : step,
                        .data = m->params ? intra_param(m, t) + (size_t)r * (size_t)t->cols : NULL};
        }
        if (!pass && !(*out = calloc((size_t)count, sizeof **out)))
            return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    }
    *n = count;
    return NEB_OK;
}
