// SPDX-License-Identifier: Apache-2.0
#include "agent/train/tensors.h"
#include "intra/train/full.h"

#include <stdlib.h>
#include <string.h>

static struct intra_comm *world_of(const struct worker_tensors *t) {
    return t->group ? intra_group_world(t->group) : NULL;
}

static struct agent_unit unit_of(const struct worker_tensors *t, const struct intra_unit *u) {
    bool in = u->tensor->row_kind == INTRA_ROWS_INPUT || u->tensor->row_kind == INTRA_ROWS_BOTH,
         out = u->tensor->row_kind == INTRA_ROWS_OUTPUT || u->tensor->row_kind == INTRA_ROWS_BOTH;
    return (struct agent_unit){
        .tensor = u->tensor->name,
        .row0 = u->row0,
        .rows = (uint32_t)u->rows,
        .cols = (uint32_t)u->cols,
        .group = u->tensor->layer + 1,
        .counter = {in ? u->row0 : -1, out ? t->trainer->c.model.vocab + u->row0 : -1},
        .data = world_of(t) ? NULL : u->data};
}

enum neb_status worker_tensors_create(struct intra_group *group, struct intra_trainer *trainer,
                                      struct worker_tensors *t) {
    *t = (struct worker_tensors){.group = group, .trainer = trainer};
    NEB_TRY(intra_units(world_of(t) ? trainer->whole : trainer->model, &t->rows, &t->n));
    t->units = calloc((size_t)t->n + 1, sizeof *t->units);
    t->wanted = calloc((size_t)trainer->model->n_all_tensors, sizeof *t->wanted);
    if (!t->units || !t->wanted)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", t->n);
    for (int32_t i = 0; i < t->n; i++)
        t->units[i] = unit_of(t, &t->rows[i]);
    return NEB_OK;
}

void worker_tensors_destroy(struct worker_tensors *t) {
    free(t->rows);
    free(t->units);
    free(t->wanted);
    *t = (struct worker_tensors){0};
}

struct agent_trainer worker_tensors_trainer(struct worker_tensors *t,
                                            const struct agent_trainer_ops *ops) {
    return (struct agent_trainer){.ops = ops,
                                  .user = t,
                                  .units = t->units,
                                  .n_units = t->n,
                                  .n_counters = 2 * (size_t)t->trainer->c.model.vocab,
                                  .pool = t->trainer->K->pool,
                                  .device = t->trainer->c.device,
                                  .world = world_of(t)};
}

void worker_tensors_add_shards(struct worker_tensors *t, struct agent_shards *shards) {
    if (!world_of(t))
        return;
    t->extra = (struct intra_trainer_extra){
        .user = shards, .bytes = agent_shards_part_bytes, .put = agent_shards_part_put};
    t->trainer->extra = &t->extra;
}

// Marks the tensors of the moves that this rank takes part in. giving: the moves in which it
// provides tensors. It provides them only to owners in its own replica, itself included.
static const bool *mark(struct worker_tensors *t, const struct agent_move *moves, int32_t n,
                        bool giving) {
    const struct intra_mesh *mesh = t->trainer->model->mesh;
    memset(t->wanted, 0, (size_t)t->trainer->model->n_all_tensors * sizeof *t->wanted);
    for (int32_t i = 0; i < n; i++)
        if (!giving || !mesh || intra_mesh_replica(&mesh->c, moves[i].rank) == mesh->dp_rank)
            t->wanted[t->rows[moves[i].unit].tensor->index] = true;
    return t->wanted;
}

enum neb_status worker_tensors_read(void *user, const struct agent_move *moves, int32_t n) {
    struct worker_tensors *t = user;
    NEB_TRY(intra_trainer_pull(t->trainer, mark(t, moves, n, true)));
    for (int32_t i = 0; i < n && world_of(t); i++) {
        const struct intra_unit *u = &t->rows[moves[i].unit];
        NEB_TRY(intra_full_gather_rows(t->trainer->model, u->tensor, u->row0, u->rows,
                                       moves[i].rank, moves[i].at));
    }
    return NEB_OK;
}

enum neb_status worker_tensors_write(void *user, const struct agent_move *moves, int32_t n,
                                     bool there) {
    struct worker_tensors *t = user;
    if (there)
        return intra_trainer_changed(t->trainer, mark(t, moves, n, false));
    for (int32_t i = 0; i < n && world_of(t); i++) {
        const struct intra_unit *u = &t->rows[moves[i].unit];
        NEB_TRY(intra_full_scatter_rows(t->trainer->model, u->tensor, u->row0, u->rows,
                                        moves[i].rank, moves[i].at));
    }
    return intra_trainer_push(t->trainer, mark(t, moves, n, false));
}

enum neb_status worker_tensors_counts(void *user, uint64_t *out) {
    const struct intra_trainer *t = ((struct worker_tensors *)user)->trainer;
    size_t V = (size_t)t->c.model.vocab;
    memcpy(out, t->input_counts, V * sizeof *out);
    memcpy(out + V, t->target_counts, V * sizeof *out);
    return NEB_OK;
}

enum neb_status worker_tensors_call(void *user, int32_t n) {
    return intra_group_call(((struct worker_tensors *)user)->group, n);
}

float *worker_tensors_there(void *user, int32_t unit) {
    const struct worker_tensors *t = user;
    const struct intra_unit *u = &t->rows[unit];
    const struct intra_tensor *held = intra_full_held(t->trainer->model, u->tensor);
    return held ? intra_trainer_on_device(t->trainer, held) + (size_t)u->row0 * (size_t)u->cols
                : NULL;
}
