// SPDX-License-Identifier: Apache-2.0
// The attached trainer as the exchange sees it (agent/exchange/trainer.h). It runs on rank 0; what
// rank 0 asks of the other ranks runs on every rank.
#include "agent/base/log.h"
#include "agent/job/init_digest.h"
#include "agent/lib/state.h"

#include <stdlib.h>
#include <string.h>

enum { TAG_GATHER = 32022 };

static enum neb_status read_units(void *user, const struct agent_move *moves, int32_t count) {
    struct nebula *n = user;
    if (!n->initial || !n->model)
        return lib_read(n, moves, count);
    NEB_TRY(lib_draw(n, moves, count));
    return lib_read(n, moves, count); // makes the fp32 values behind 16-bit tensors
}

static enum neb_status write_units(void *user, const struct agent_move *moves, int32_t count,
                                   bool there) {
    return there ? NEB_OK : lib_write(user, moves, count);
}

enum neb_status lib_sum_counts(struct nebula *n, uint64_t *out) {
    size_t count = n->x.trainer.n_counters;
    memcpy(n->sum, n->counters, count * sizeof *n->sum);
    if (n->ranks > 1)
        NEB_TRY(n->world->ops->all_reduce(n->world, n->sum, count, INTRA_COMM_U64, INTRA_COMM_SUM));
    if (out)
        memcpy(out, n->sum, count * sizeof *out);
    return NEB_OK;
}

static enum neb_status counts(void *user, uint64_t *out) {
    struct nebula *n = user;
    if (!n->x.trainer.n_counters)
        return NEB_OK;
    NEB_TRY(lib_call(n, LIB_COUNTS));
    return lib_sum_counts(n, out);
}

static enum neb_status save(void *user, struct intra_ckpt_writer *out) {
    NEB_TRY(lib_call(user, LIB_SAVE));
    return lib_save_all(user, out);
}

static enum neb_status restore(void *user, const struct intra_ckpt *c) {
    NEB_TRY(lib_call(user, LIB_RESTORE));
    return lib_restore_all(user, c);
}

// The loop moves its own data cursor: nebula_info tells it the step.
static enum neb_status skip(void *user, int64_t steps) {
    const struct nebula *n = user;
    neb_warn("%lld steps of this cluster are lost; the trainer continues from step %lld",
             (long long)steps, (long long)(n->x.step + steps));
    return NEB_OK;
}

static enum neb_status idle(void *user) { return lib_idle(user); }

static enum neb_status call(void *user, int32_t c) { return lib_call(user, (enum lib_call)c); }

const struct agent_trainer_ops lib_trainer_ops = {.read = read_units,
                                                  .write = write_units,
                                                  .tokens = lib_late_tokens,
                                                  .counts = counts,
                                                  .save = save,
                                                  .restore = restore,
                                                  .skip = skip,
                                                  .idle = idle,
                                                  .call = call,
                                                  .there = lib_device_there,
                                                  .alone = lib_device_alone,
                                                  .fetch = lib_device_fetch,
                                                  .store = lib_device_store,
                                                  .joint = lib_device_joint};

// ---- all parameters -----------------------------------------------------------------------------

enum neb_status lib_own_digest(struct nebula *n, struct kern_digest *out) {
    uint64_t sum[2] = {0}, place = 0;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++) {
        struct agent_move m = lib_move(n, i);
        size_t size = agent_unit_size(&n->units[i]);
        NEB_TRY(lib_read(n, &m, 1));
        if (m.rank == n->rank) {
            struct kern_digest d = kern_digest_part(m.at, m.at, place, size);
            sum[0] += d.lo;
            sum[1] += d.hi;
        }
        place += size;
    }
    if (n->ranks > 1)
        NEB_TRY(n->world->ops->all_reduce(n->world, sum, 2, INTRA_COMM_U64, INTRA_COMM_SUM));
    *out = (struct kern_digest){sum[0], sum[1]};
    return NEB_OK;
}

// each: on rank 0, for every unit in order; NULL on the other ranks.
enum neb_status lib_gather(struct nebula *n, lib_gathered *each, void *user) {
    struct intra_comm *w = n->world;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++) {
        struct agent_move move = lib_move(n, i);
        size_t bytes = agent_unit_size(&n->units[i]) * sizeof(float);
        struct intra_comm_send send = {0};
        NEB_TRY(lib_read(n, &move, 1));
        if (n->rank == 0 && move.rank != 0)
            NEB_TRY(w->ops->recv(w, n->buffer, bytes, move.rank, TAG_GATHER));
        if (n->rank == 0)
            each(user, i, move.rank ? n->buffer : move.at);
        else if (move.rank == n->rank)
            NEB_TRY(w->ops->send(w, move.at, bytes, 0, TAG_GATHER, &send));
    }
    return NEB_OK;
}

// ---- the final model ----------------------------------------------------------------------------

struct final { // on rank 0, which never holds more than a unit of another rank
    struct nebula *n;
    struct intra_ckpt *init; // NULL: frozen tensors have the values of the seed
    struct intra_ckpt_writer *out;
    int32_t next;        // tensor of the model
    enum neb_status bad; // the first failure: the other ranks send on
};

static void keep(struct final *f, enum neb_status st) { f->bad = f->bad == NEB_OK ? st : f->bad; }

static void begin_tensor(struct final *f) {
    const struct intra_tensor *t = &f->n->model->tensors[f->next++];
    if (f->bad == NEB_OK)
        keep(f, intra_ckpt_begin(f->out, t->name, INTRA_F32, (uint64_t)t->rows, (uint64_t)t->cols));
}

// Rows [row, row + count) of a frozen tensor.
static enum neb_status put_rows(struct final *f, const struct intra_tensor *t, int32_t row,
                                int32_t count, float *room) {
    size_t bytes = (size_t)count * (size_t)t->cols * sizeof *room;
    const struct intra_ckpt_section *s = f->init ? intra_ckpt_find(f->init, t->name) : NULL;
    struct intra_tensor part = *t;
    part.row0 = row;
    part.rows = count;
    if (s)
        NEB_TRY(intra_ckpt_range(f->init, s, (size_t)row * (size_t)t->cols * sizeof *room, room,
                                 bytes));
    else
        intra_model_draw(f->n->model, &part, (uint64_t)f->n->x.job.seed, room);
    return intra_ckpt_put(f->out, room, bytes);
}

static void put_frozen(struct final *f) {
    const struct intra_tensor *t = &f->n->model->tensors[f->next];
    int32_t step = INTRA_UNIT_ELEMENTS / t->cols > 0 ? INTRA_UNIT_ELEMENTS / t->cols : 1;
    float *room = malloc((size_t)step * (size_t)t->cols * sizeof *room);
    begin_tensor(f);
    if (!room)
        keep(f, neb_fail(NEB_ERR_NOMEM, "out of memory for rows of %s", t->name));
    for (int32_t r = 0; r < t->rows && f->bad == NEB_OK; r += step)
        keep(f, put_rows(f, t, r, t->rows - r < step ? t->rows - r : step, room));
    free(room);
}

static void put_frozen_before(struct final *f, const struct intra_tensor *t) {
    while (f->next < f->n->model->n_tensors && &f->n->model->tensors[f->next] != t)
        put_frozen(f);
}

static void put_unit(void *user, int32_t unit, const float *x) {
    struct final *f = user;
    const struct intra_tensor *t = f->n->of[unit]->model;
    if (f->n->first[unit] == 0) {
        put_frozen_before(f, t);
        begin_tensor(f);
    }
    if (f->bad == NEB_OK)
        keep(f, intra_ckpt_put(f->out, x, agent_unit_size(&f->n->units[unit]) * sizeof *x));
}

static enum neb_status write_final(void *user, struct intra_ckpt_writer *out) {
    struct final *f = user;
    f->out = out;
    keep(f, intra_model_save_config(f->n->model, out));
    NEB_TRY(lib_call(f->n, LIB_GATHER));
    NEB_TRY(lib_gather(f->n, put_unit, f));
    put_frozen_before(f, NULL);
    return f->bad;
}

enum neb_status lib_trainer_write_model(struct nebula *n) {
    struct final f = {.n = n};
    if (!n->model) // the loop has code that knows its model
        return NEB_OK;
    if (n->x.init_from[0] && n->x.job.trainable.mode != INTRA_TRAIN_FULL)
        NEB_TRY(intra_ckpt_open_in(exchange_vault(&n->x), n->x.init_from, true, &f.init));
    enum neb_status st = exchange_write_model(&n->x, "model.ckpt", write_final, &f);
    intra_ckpt_close(&f.init);
    return st;
}
