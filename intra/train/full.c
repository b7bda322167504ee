// SPDX-License-Identifier: Apache-2.0
#include "intra/train/full.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

enum neb_status intra_full_agree(const struct intra_mesh *mesh, enum neb_status st) {
    return intra_comm_agree(mesh ? mesh->world : NULL, st);
}

static const struct intra_tensor *find_tensor(const struct intra_model *m, int32_t index) {
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

const struct intra_tensor *intra_full_held(const struct intra_model *m,
                                           const struct intra_tensor *t) {
    int stage = intra_mesh_pp_rank(m->mesh), part = intra_mesh_tp_rank(m->mesh);
    return stage == stage_of(m, t) && part == 0 && parts_of(m, t) == 1 ? find_tensor(m, t->index)
                                                                       : NULL;
}

struct range { // rows of a tensor of the whole model
    const struct intra_tensor *t;
    int32_t row0, rows;
};

static struct range all_of(const struct intra_tensor *t) { return (struct range){t, 0, t->rows}; }

// How many rows of the range a part holds. *first: the first of them, counted in the part's rows.
static int32_t shared(const struct range *g, const struct intra_tensor *part, int32_t *first) {
    int32_t low = g->row0 > part->row0 ? g->row0 : part->row0,
            end = g->row0 + g->rows < part->row0 + part->rows ? g->row0 + g->rows
                                                              : part->row0 + part->rows;
    *first = low - part->row0;
    return end > low ? end - low : 0;
}

// Copies the rows of the range that a part holds. whole (g->rows, all_cols), part (shared rows,
// cols).
static void copy(float *whole, float *part, const struct range *g, const struct intra_tensor *p,
                 bool to_whole) {
    int32_t first, n = shared(g, p, &first);
    for (int32_t r = 0; r < n; r++) {
        float *w = whole + (size_t)(p->row0 + first + r - g->row0) * (size_t)p->all_cols + p->col0,
              *x = part + (size_t)r * (size_t)p->cols;
        if (to_whole)
            memcpy(w, x, (size_t)p->cols * sizeof *w);
        else
            memcpy(x, w, (size_t)p->cols * sizeof *w);
    }
}

static enum neb_status room(const struct range *g, float **out) {
    *out = malloc(((size_t)g->rows * (size_t)g->t->cols + 1) * sizeof **out);
    return *out ? NEB_OK
                : neb_fail(NEB_ERR_NOMEM, "out of memory for %s (%d x %d)", g->t->name, g->rows,
                           g->t->cols);
}

static enum neb_status post(struct intra_comm *c, const float *x, size_t n, int to, int tag) {
    struct intra_comm_send s = {0};
    if (neb_fault("whole.send"))
        return neb_fail(NEB_ERR_NOMEM, "out of memory sending a tensor (injected fault)");
    NEB_TRY(c->ops->send(c, x, n * sizeof *x, to, tag, &s));
    return c->ops->wait(c, &s);
}

// A part's rows are contiguous in its own arena. In the full tensor they are contiguous only
// if the part has all columns.
static bool full_width(const struct intra_tensor *part) { return part->cols == part->all_cols; }

// Gathers the parts of one replica on rank `to`.
static enum neb_status gather(const struct intra_model *m, const struct range *g,
                              enum intra_arena kind, const float *arena, int replica, int to,
                              float *out) {
    const struct intra_mesh *mesh = m->mesh;
    const struct intra_tensor *t = g->t, *mine = find_tensor(m, t->index);
    const float *x = mine ? arena + offset(mine, kind) : NULL;
    int32_t first = 0, n = mine ? shared(g, mine, &first) : 0;
    size_t cols = mine ? (size_t)mine->cols : 0;
    x = n ? x + (size_t)first * cols : NULL;
    if (!mesh) {
        memcpy(out, x, (size_t)n * cols * sizeof *out);
        return NEB_OK;
    }
    int stage = stage_of(m, t), parts = parts_of(m, t);
    if (mesh->world->rank != to) {
        bool sends = mesh->dp_rank == replica && mesh->pp_rank == stage && mesh->tp_rank < parts;
        return sends && n ? post(mesh->world, x, (size_t)n * cols, to, t->index) : NEB_OK;
    }
    float *buffer = NULL;
    enum neb_status st = NEB_OK;
    for (int r = 0; r < parts && st == NEB_OK; r++) {
        struct intra_tensor part = intra_tensor_part(t, mesh->c.tp, r);
        int from = intra_mesh_rank(&mesh->c, replica, stage, r);
        int32_t at, rows = shared(g, &part, &at);
        size_t count = (size_t)rows * (size_t)part.cols;
        float *whole = out + (size_t)(part.row0 + at - g->row0) * (size_t)part.all_cols;
        bool direct = full_width(&part);
        if (!rows)
            continue;
        if (from == to) {
            copy(out, (float *)x, g, &part, true); // only read
            continue;
        }
        if (!direct && !buffer)
            NEB_TRY_GOTO(room(g, &buffer), out);
        st = mesh->world->ops->recv(mesh->world, direct ? whole : buffer, count * sizeof *buffer,
                                    from, t->index);
        if (st == NEB_OK && !direct)
            copy(out, buffer, g, &part, true);
    }
out:
    free(buffer);
    return st;
}

enum neb_status intra_full_gather(const struct intra_model *m, const struct intra_tensor *t,
                                  enum intra_arena kind, const float *arena, float *out) {
    return intra_full_gather_at(m, t, kind, arena, 0, out);
}

enum neb_status intra_full_gather_at(const struct intra_model *m, const struct intra_tensor *t,
                                     enum intra_arena kind, const float *arena, int to,
                                     float *out) {
    struct range g = all_of(t);
    return gather(m, &g, kind, arena, 0, to, out);
}

enum neb_status intra_full_gather_rows(const struct intra_model *m, const struct intra_tensor *t,
                                       int32_t row0, int32_t rows, int to, float *out) {
    struct range g = {t, row0, rows};
    return gather(m, &g, INTRA_ARENA_PARAMS, m->params,
                  m->mesh ? intra_mesh_replica(&m->mesh->c, to) : 0, to, out);
}

// Sends from rank `from` to the ranks of one stage of one replica.
static enum neb_status send_parts(const struct intra_model *m, const struct range *g, int replica,
                                  int stage, const float *in, float *own) {
    const struct intra_mesh *mesh = m->mesh;
    float *buffer = NULL;
    enum neb_status st = NEB_OK;
    for (int r = 0; r < mesh->c.tp && st == NEB_OK; r++) {
        struct intra_tensor part = intra_tensor_part(g->t, mesh->c.tp, r);
        int to = intra_mesh_rank(&mesh->c, replica, stage, r);
        int32_t first, rows = shared(g, &part, &first);
        size_t n = (size_t)rows * (size_t)part.cols;
        const float *whole = in + (size_t)(part.row0 + first - g->row0) * (size_t)part.all_cols;
        bool direct = full_width(&part);
        if (!rows)
            continue;
        if (to == mesh->world->rank) {
            copy((float *)in, own, g, &part, false); // only read
            continue;
        }
        if (!direct && !buffer)
            NEB_TRY_GOTO(room(g, &buffer), out);
        if (!direct)
            copy((float *)in, buffer, g, &part, false);
        st = post(mesh->world, direct ? whole : buffer, n, to, g->t->index);
    }
out:
    free(buffer);
    return st;
}

static enum neb_status scatter(const struct intra_model *m, const struct range *g,
                               enum intra_arena kind, int from, const float *in, float *arena) {
    const struct intra_mesh *mesh = m->mesh;
    const struct intra_tensor *t = g->t, *mine = find_tensor(m, t->index);
    float *x = mine ? arena + offset(mine, kind) : NULL;
    int32_t first = 0, rows = mine ? shared(g, mine, &first) : 0;
    size_t n = mine ? (size_t)rows * (size_t)mine->cols : 0;
    x = rows ? x + (size_t)first * (size_t)mine->cols : NULL;
    if (!mesh) {
        memcpy(x, in, n * sizeof *x);
        return NEB_OK;
    }
    int replica = intra_mesh_replica(&mesh->c, from), stages[2] = {stage_of(m, t), mesh->c.pp - 1};
    // the last stage holds a copy of a tied embedding
    int n_stages = t->layer == -1 && m->c.tied && mesh->c.pp > 1 ? 2 : 1;
    for (int i = 0; i < n_stages; i++) {
        if (mesh->world->rank == from)
            NEB_TRY(send_parts(m, g, replica, stages[i], in, x));
        else if (mesh->dp_rank == replica && mesh->pp_rank == stages[i] && rows)
            NEB_TRY(mesh->world->ops->recv(mesh->world, x, n * sizeof *x, from, t->index));
    }
    if (rows && mesh->dp)
        return mesh->dp->ops->broadcast(mesh->dp, x, n * sizeof *x, replica);
    return NEB_OK;
}

enum neb_status intra_full_scatter(const struct intra_model *m, const struct intra_tensor *t,
                                   enum intra_arena kind, const float *in, float *arena) {
    struct range g = all_of(t);
    return scatter(m, &g, kind, 0, in, arena);
}

enum neb_status intra_full_scatter_rows(struct intra_model *m, const struct intra_tensor *t,
                                        int32_t row0, int32_t rows, int from, const float *in) {
    struct range g = {t, row0, rows};
    return scatter(m, &g, INTRA_ARENA_PARAMS, from, in, m->params);
}

enum neb_status intra_full_params(const struct intra_model *m, struct intra_model *whole) {
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *t = &whole->tensors[i];
        NEB_TRY(intra_full_gather(m, t, INTRA_ARENA_PARAMS, m->params,
                                  whole->params ? intra_param(whole, t) : NULL));
    }
    return NEB_OK;
}
