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

enum neb_status lib_gather(struct nebula *n, struct intra_model *m) {
    struct intra_comm *w = n->world;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++) {
        struct agent_move move = lib_move(n, i);
        size_t bytes = agent_unit_size(&n->units[i]) * sizeof(float);
        struct intra_comm_send send = {0};
        NEB_TRY(lib_read(n, &move, 1));
        float *to = m ? intra_param(m, intra_model_find(m, n->of[i]->name)) + n->first[i] : NULL;
        if (move.rank == 0 && n->rank == 0)
            memcpy(to, move.at, bytes);
        else if (n->rank == 0)
            NEB_TRY(w->ops->recv(w, to, bytes, move.rank, TAG_GATHER));
        else if (move.rank == n->rank)
            NEB_TRY(w->ops->send(w, move.at, bytes, 0, TAG_GATHER, &send));
    }
    return NEB_OK;
}

// Frozen tensors have their initial values.
static enum neb_status make_whole(struct nebula *n, struct intra_model **out) {
    struct agent_job *j = &n->x.job;
    struct intra_ckpt *init = NULL;
    NEB_TRY(intra_model_create(&j->model, &j->trainable, (uint64_t)j->seed, out));
    free((*out)->grads);
    (*out)->grads = NULL;
    if (!n->x.init_from[0] || j->trainable.mode == INTRA_TRAIN_FULL)
        return NEB_OK;
    NEB_TRY(intra_ckpt_open_in(exchange_vault(&n->x), n->x.init_from, true, &init));
    enum neb_status st = intra_model_load_params(init, *out);
    intra_ckpt_close(&init);
    return st;
}

static enum neb_status write_model(void *user, struct intra_ckpt_writer *out) {
    return intra_model_save(user, out);
}

enum neb_status lib_trainer_write_model(struct nebula *n) {
    struct intra_model *whole = NULL;
    if (!n->model) // the loop has code that knows its model
        return NEB_OK;
    enum neb_status st = make_whole(n, &whole);
    if (st == NEB_OK)
        st = lib_call(n, LIB_GATHER);
    if (st == NEB_OK)
        st = lib_gather(n, whole);
    if (st == NEB_OK)
        st = exchange_write_model(&n->x, "model.ckpt", write_model, whole);
    intra_model_destroy(&whole);
    return st;
}
