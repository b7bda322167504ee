#include "intra/whole.h"

#include <stdlib.h>
#include <string.h>

enum neb_status intra_whole_agree(const struct intra_mesh *mesh, enum neb_status st) {
    uint64_t code = (uint64_t)st;
    if (!mesh)
        return st;
    NEB_TRY(mesh->world->ops->all_reduce(mesh->world, &code, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    return (enum neb_status)code;
}

static const struct intra_tensor *find(const struct intra_model *m, int32_t index) {
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].index == index)
            return &m->tensors[i];
    return NULL;
}

static int stage_of(const struct intra_model *m, const struct intra_tensor *t) {
    if (t->layer == -1)
        return 0;
    return t->layer == m->c.n_layers ? intra_mesh_pp(m->mesh) - 1 : t->layer / m->local.n_layers;
}

static int parts_of(const struct intra_model *m, const struct intra_tensor *t) {
    return t->cut == INTRA_CUT_NONE ? 1 : intra_mesh_tp(m->mesh);
}

static size_t offset(const struct intra_tensor *part, enum intra_arena kind) {
    return kind == INTRA_ARENA_PARAMS ? part->at : part->grad_at;
}

// Copies a part into or out of the whole.
static void copy(float *whole, float *part, const struct intra_tensor *p, bool to_whole) {
    for (int32_t r = 0; r < p->rows; r++) {
        float *w = whole + (size_t)(p->row0 + r) * (size_t)p->all_cols + p->col0,
              *x = part + (size_t)r * (size_t)p->cols;
        if (to_whole)
            memcpy(w, x, (size_t)p->cols * sizeof *w);
        else
            memcpy(x, w, (size_t)p->cols * sizeof *w);
    }
}

static enum neb_status room(const struct intra_tensor *t, float **out) {
    *out = malloc((intra_tensor_size(t) + 1) * sizeof **out);
    return *out ? NEB_OK
                : neb_fail(NEB_ERR_NOMEM, "out of memory for %s (%d x %d)", t->name, t->rows,
                           t->cols);
}

static enum neb_status post(struct intra_comm *c, const float *x, size_t n, int to, int tag) {
    struct intra_comm_send s = {0};
    NEB_TRY(c->ops->send(c, x, n * sizeof *x, to, tag, &s));
    return c->ops->wait(c, &s);
}

enum neb_status intra_whole_gather(const struct intra_model *m, const struct intra_tensor *t,
                                   enum intra_arena kind, const float *arena, float *out) {
    return intra_whole_gather_at(m, t, kind, arena, 0, out);
}

enum neb_status intra_whole_gather_at(const struct intra_model *m, const struct intra_tensor *t,
                                      enum intra_arena kind, const float *arena, int to,
                                      float *out) {
    const struct intra_mesh *mesh = m->mesh;
    const struct intra_tensor *mine = find(m, t->index);
    const float *x = mine ? arena + offset(mine, kind) : NULL;
    if (!mesh) {
        memcpy(out, x, intra_tensor_size(t) * sizeof *out);
        return NEB_OK;
    }
    int stage = stage_of(m, t), parts = parts_of(m, t);
    if (mesh->world->rank != to) {
        bool sends = mesh->dp_rank == 0 && mesh->pp_rank == stage && mesh->tp_rank < parts;
        return sends ? post(mesh->world, x, intra_tensor_size(mine), to, t->index) : NEB_OK;
    }
    float *buffer = NULL;
    enum neb_status st = room(t, &buffer);
    for (int r = 0; r < parts && st == NEB_OK; r++) {
        struct intra_tensor part = intra_tensor_part(t, mesh->c.tp, r);
        size_t n = intra_tensor_size(&part);
        int from = intra_mesh_rank(&mesh->c, 0, stage, r);
        if (from == to)
            memcpy(buffer, x, n * sizeof *buffer);
        else
            st = mesh->world->ops->recv(mesh->world, buffer, n * sizeof *buffer, from, t->index);
        if (st == NEB_OK)
            copy(out, buffer, &part, true);
    }
    free(buffer);
    return st;
}

// From the owner to replica 0 of one stage.
static enum neb_status send_parts(const struct intra_model *m, const struct intra_tensor *t,
                                  int stage, const float *in, float *own) {
    const struct intra_mesh *mesh = m->mesh;
    float *buffer = NULL;
    NEB_TRY(room(t, &buffer));
    enum neb_status st = NEB_OK;
    for (int r = 0; r < mesh->c.tp && st == NEB_OK; r++) {
        struct intra_tensor part = intra_tensor_part(t, mesh->c.tp, r);
        size_t n = intra_tensor_size(&part);
        int to = intra_mesh_rank(&mesh->c, 0, stage, r);
        copy((float *)in, to == 0 ? own : buffer, &part, false);
        if (to != 0)
            st = post(mesh->world, buffer, n, to, t->index);
    }
    free(buffer);
    return st;
}

enum neb_status intra_whole_scatter(const struct intra_model *m, const struct intra_tensor *t,
                                    enum intra_arena kind, const float *in, float *arena) {
    const struct intra_mesh *mesh = m->mesh;
    const struct intra_tensor *mine = find(m, t->index);
    float *x = mine ? arena + offset(mine, kind) : NULL;
    if (!mesh) {
        memcpy(x, in, intra_tensor_size(t) * sizeof *x);
        return NEB_OK;
    }
    int stages[2] = {stage_of(m, t), mesh->c.pp - 1}; // a tied embedding has a copy on the last
    int n_stages = t->layer == -1 && m->c.tied && mesh->c.pp > 1 ? 2 : 1;
    for (int i = 0; i < n_stages; i++) {
        if (intra_mesh_owner(mesh))
            NEB_TRY(send_parts(m, t, stages[i], in, x));
        else if (mesh->dp_rank == 0 && mesh->pp_rank == stages[i])
            NEB_TRY(mesh->world->ops->recv(mesh->world, x, intra_tensor_size(mine) * sizeof *x, 0,
                                           t->index));
    }
    if (mine && mesh->dp)
        return mesh->dp->ops->broadcast(mesh->dp, x, intra_tensor_size(mine) * sizeof *x, 0);
    return NEB_OK;
}

enum neb_status intra_whole_params(const struct intra_model *m, struct intra_model *whole) {
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *t = &whole->tensors[i];
        NEB_TRY(intra_whole_gather(m, t, INTRA_ARENA_PARAMS, m->params,
                                   whole->params ? intra_param(whole, t) : NULL));
    }
    return NEB_OK;
}

enum neb_status intra_whole_set_params(struct intra_model *m, const struct intra_model *whole) {
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *t = &whole->tensors[i];
        NEB_TRY(intra_whole_scatter(m, t, INTRA_ARENA_PARAMS,
                                    whole->params ? intra_param(whole, t) : NULL, m->params));
    }
    return NEB_OK;
}
