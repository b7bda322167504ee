// SPDX-License-Identifier: Apache-2.0
// The attached trainer as the exchange sees it: copies its tensors in and out, and saves them in
// checkpoints.
#include "agent/base/log.h"
#include "agent/lib/state.h"

#include <stdlib.h>
#include <string.h>

static enum neb_status copy_shards(struct nebula *n, bool write, const bool *wanted) {
    for (size_t i = 0; i < n->n_shards; i++) {
        const struct shard *s = &n->shards[i];
        const struct intra_tensor *t = n->tensors[s->tensor];
        float *here = intra_param(n->model, t) + (size_t)s->row0 * (size_t)t->cols;
        size_t count = (size_t)s->rows * (size_t)t->cols;
        if (wanted && !wanted[t->index])
            continue;
        NEB_TRY(write ? lib_copy_write(n->copy, s->data, here, count, s->dtype, s->place)
                      : lib_copy_read(n->copy, here, s->data, count, s->dtype, s->place));
    }
    return NEB_OK;
}

// Calls the hook once for each run of adjacent tensors.
static enum neb_status call_move(struct nebula *n, bool write, const bool *wanted) {
    for (int32_t i = 0, first; n->hooks.move && i < n->n_tensors; i++) {
        if (wanted && !wanted[n->tensors[i]->index])
            continue;
        for (first = i; i + 1 < n->n_tensors && (!wanted || wanted[n->tensors[i + 1]->index]);)
            i++;
        if (n->hooks.move(n->hooks.user, write, first, i + 1 - first) != 0)
            return neb_fail(NEB_ERR_IO, "the trainer's move hook failed at %s",
                            n->tensors[first]->name);
    }
    return NEB_OK;
}

static enum neb_status read_wanted(struct nebula *n, const bool *wanted) {
    n->reads++;
    NEB_TRY(call_move(n, false, wanted));
    return copy_shards(n, false, wanted);
}

static enum neb_status write_wanted(struct nebula *n, const bool *wanted) {
    NEB_TRY(copy_shards(n, true, wanted));
    return call_move(n, true, wanted);
}

enum neb_status lib_trainer_write_all(struct nebula *n) { return write_wanted(n, NULL); }

static const bool *mark(struct nebula *n, const struct agent_move *moves, int32_t count) {
    memset(n->wanted, 0, (size_t)n->model->n_all_tensors * sizeof *n->wanted);
    for (int32_t i = 0; i < count; i++)
        n->wanted[n->rows[moves[i].unit].tensor->index] = true;
    return n->wanted;
}

// Before nebula_begin the trainer has no tensors yet: the exchange starts from those of the job.
static enum neb_status read_units(void *user, const struct agent_move *moves, int32_t count) {
    struct nebula *n = user;
    return n->begun ? read_wanted(n, mark(n, moves, count)) : NEB_OK;
}

static enum neb_status write_units(void *user, const struct agent_move *moves, int32_t count,
                                   bool there) {
    struct nebula *n = user;
    NEB_ASSERT(!there); // it names no device
    return write_wanted(n, mark(n, moves, count));
}

static enum neb_status counts(void *user, uint64_t *out) {
    const struct nebula *n = user;
    memcpy(out, n->counters, 2 * (size_t)n->model->c.vocab * sizeof *out);
    return NEB_OK;
}

static enum neb_status save(void *user, struct intra_ckpt_writer *out) {
    struct nebula *n = user;
    uint64_t V = (uint64_t)n->model->c.vocab;
    NEB_TRY(read_wanted(n, NULL));
    NEB_TRY(
        intra_ckpt_add(out, "attached.params", INTRA_F32, n->model->n_params, 1, n->model->params));
    NEB_TRY(intra_ckpt_add(out, "attached.inputs", INTRA_U64, V, 1, n->counters));
    return intra_ckpt_add(out, "attached.targets", INTRA_U64, V, 1, n->counters + V);
}

static enum neb_status restore(void *user, const struct intra_ckpt *c) {
    struct nebula *n = user;
    uint64_t V = (uint64_t)n->model->c.vocab;
    n->reads++;
    NEB_TRY(
        intra_ckpt_read(c, "attached.params", INTRA_F32, n->model->n_params, 1, n->model->params));
    NEB_TRY(intra_ckpt_read(c, "attached.inputs", INTRA_U64, V, 1, n->counters));
    NEB_TRY(intra_ckpt_read(c, "attached.targets", INTRA_U64, V, 1, n->counters + V));
    return write_wanted(n, NULL);
}

// The trainer moves its own data cursor: nebula_info tells it the step.
static enum neb_status skip(void *user, int64_t steps) {
    const struct nebula *n = user;
    neb_warn("%lld steps of this cluster are lost; the trainer continues from step %lld",
             (long long)steps, (long long)(n->x.step + steps));
    return NEB_OK;
}

static enum neb_status idle(void *user) { return lib_idle(user); }

enum neb_status lib_idle(const struct nebula *n) {
    return n->hooks.wait && n->hooks.wait(n->hooks.user) != 0
               ? neb_fail(NEB_ERR_INTERRUPTED, "the trainer's wait hook ended the wait")
               : NEB_OK;
}

static enum neb_status write_model(void *user, struct intra_ckpt_writer *out) {
    struct nebula *n = user;
    NEB_TRY(read_wanted(n, NULL));
    return intra_model_save(n->model, out);
}

enum neb_status lib_trainer_write_model(struct nebula *n) {
    return exchange_write_model(&n->x, "model.ckpt", write_model, n);
}

enum neb_status lib_trainer_create(struct nebula *n) {
    static const struct agent_trainer_ops ops = {.read = read_units,
                                                 .write = write_units,
                                                 .counts = counts,
                                                 .save = save,
                                                 .restore = restore,
                                                 .skip = skip,
                                                 .idle = idle};
    struct intra_model *m = n->model;
    int64_t V = m->c.vocab;
    int32_t n_units;
    NEB_TRY(intra_units(m, &n->rows, &n_units));
    n->units = calloc((size_t)n_units, sizeof *n->units);
    n->wanted = calloc((size_t)m->n_all_tensors, sizeof *n->wanted);
    n->tensors = calloc((size_t)m->n_tensors, sizeof *n->tensors);
    n->counters = calloc(2 * (size_t)V, sizeof *n->counters);
    if (!n->units || !n->wanted || !n->tensors || !n->counters)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the list of tensors");
    for (int32_t i = 0; i < n_units; i++) {
        const struct intra_unit *u = &n->rows[i];
        enum intra_row_kind kind = u->tensor->row_kind;
        bool in = kind == INTRA_ROWS_INPUT || kind == INTRA_ROWS_BOTH,
             out = kind == INTRA_ROWS_OUTPUT || kind == INTRA_ROWS_BOTH;
        n->units[i] = (struct agent_unit){.tensor = u->tensor->name,
                                          .row0 = u->row0,
                                          .rows = (uint32_t)u->rows,
                                          .cols = (uint32_t)u->cols,
                                          .group = u->tensor->layer + 1,
                                          .counter = {in ? u->row0 : -1, out ? V + u->row0 : -1},
                                          .data = u->data};
    }
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].trainable)
            n->tensors[n->n_tensors++] = &m->tensors[i];
    n->x.trainer = (struct agent_trainer){.ops = &ops,
                                          .user = n,
                                          .units = n->units,
                                          .n_units = n_units,
                                          .n_counters = 2 * (size_t)V,
                                          .pool = n->pool};
    return NEB_OK;
}

void lib_trainer_destroy(struct nebula *n) {
    free(n->rows);
    free(n->units);
    free(n->wanted);
    free(n->tensors);
    free(n->counters);
    free(n->shards);
}
