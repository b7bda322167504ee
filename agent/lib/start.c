// SPDX-License-Identifier: Apache-2.0
// Units over the tensors of the loop, and what a job starts from.
#include "agent/base/log.h"
#include "agent/exchange/manifest.h"
#include "agent/job/init_digest.h"
#include "agent/lib/state.h"

#include <stdlib.h>
#include <string.h>

enum { TAG_DRAW = 32021 };

// ---- units --------------------------------------------------------------------------------------

// A built-in model has the units of the built-in trainer (agent/train/tensors.c), because other
// clusters of the job may use that trainer.
static enum neb_status model_units(struct nebula *n, int32_t *n_units) {
    struct intra_unit *rows = NULL;
    int64_t V = n->model->c.vocab;
    NEB_TRY(intra_units(n->model, &rows, n_units));
    n->units = calloc((size_t)*n_units + 1, sizeof *n->units);
    for (int32_t i = 0; n->units && i < *n_units; i++) {
        const struct intra_tensor *t = rows[i].tensor;
        bool in = t->row_kind == INTRA_ROWS_INPUT || t->row_kind == INTRA_ROWS_BOTH,
             out = t->row_kind == INTRA_ROWS_OUTPUT || t->row_kind == INTRA_ROWS_BOTH;
        n->units[i] =
            (struct agent_unit){.tensor = t->name,
                                .row0 = rows[i].row0,
                                .rows = (uint32_t)rows[i].rows,
                                .cols = (uint32_t)rows[i].cols,
                                .group = t->layer + 1,
                                .counter = {in ? rows[i].row0 : -1, out ? V + rows[i].row0 : -1}};
    }
    free(rows);
    return n->units ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", *n_units);
}

static enum neb_status make_manifest(const struct nebula *n, bool frozen,
                                     struct exchange_manifest **out) {
    int32_t all = n->n_tensors + (frozen ? n->n_frozen : 0);
    struct exchange_tensor *list = calloc((size_t)all + 1, sizeof *list);
    if (!list)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d tensors", all);
    for (int32_t i = 0; i < all; i++) {
        const struct lib_tensor *t = n->tensors[i];
        list[i] = (struct exchange_tensor){.name = t->name,
                                           .dims = t->dims,
                                           .dtype = (enum exchange_dtype)t->dtype,
                                           .group = t->group,
                                           .buffer = t->buffer,
                                           .frozen = i >= n->n_tensors};
        memcpy(list[i].shape, t->shape, sizeof list[i].shape);
        memcpy(list[i].digest, t->digest, sizeof list[i].digest);
    }
    enum neb_status st = exchange_manifest_create(list, all, out);
    free(list);
    return st;
}

enum neb_status lib_manifest_send(struct nebula *n) {
    struct exchange_manifest *m = NULL;
    struct neb_buf text = {0};
    NEB_TRY(make_manifest(n, true, &m));
    enum neb_status st = exchange_manifest_write(m, &text);
    exchange_manifest_destroy(&m);
    const struct agent_ipc_part part = {text.p, text.len};
    if (st == NEB_OK)
        st =
            agent_ipc_send(n->x.link.ipc, NULL,
                           json_pack("{s:s,s:s}", "op", "manifest", "values", n->values), &part, 1);
    neb_buf_free(&text);
    return st;
}

static enum neb_status attached_units(struct nebula *n, int32_t *n_units) {
    struct exchange_manifest *m = NULL;
    NEB_TRY(make_manifest(n, false, &m));
    enum neb_status st = exchange_manifest_units(m, 0, &n->units, n_units);
    exchange_manifest_destroy(&m);
    for (int32_t i = 0; st == NEB_OK && i < *n_units; i++) // the names were the manifest's
        n->units[i].tensor = n->tensors[n->units[i].group]->name;
    return st;
}

// ---- units that lie in the loop's memory as the exchange needs them -----------------------------

struct place {
    int blocks;
    struct pieces_block b;
};
static enum neb_status see(void *user, const struct pieces_block *b) {
    struct place *p = user;
    p->blocks++;
    p->b = *b;
    return NEB_OK;
}

float *lib_in_place(const struct nebula *n, int32_t unit, int place) {
    const struct lib_tensor *t = n->of[unit];
    int64_t begin = n->first[unit], size = (int64_t)agent_unit_size(&n->units[unit]);
    for (size_t k = 0; k < t->n_pieces && t->dtype == NEBULA_F32; k++) {
        const struct lib_piece *p = &t->pieces[k];
        struct place at = {0};
        if (p->place != place || !p->dense ||
            pieces_walk(t->dims, t->shape, &p->box, begin, begin + size, see, &at) != NEB_OK ||
            at.blocks != 1 || at.b.len != size)
            continue;
        return (float *)p->data + pieces_count(t->dims, t->shape, &p->box, 0, begin);
    }
    return NULL;
}

// ---- creation -----------------------------------------------------------------------------------

static enum neb_status index_units(struct nebula *n, int32_t n_units) {
    size_t cap = (size_t)n_units + 1;
    n->of = calloc(cap, sizeof(struct lib_tensor *));
    n->first = calloc(cap, sizeof *n->first);
    n->fragment = calloc(cap, sizeof *n->fragment);
    n->owner = calloc(cap, sizeof *n->owner);
    n->shadow = calloc(cap, sizeof(float *));
    if (!n->of || !n->first || !n->fragment || !n->owner || !n->shadow)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", n_units);
    struct lib_tensor *t = NULL;
    for (int32_t i = 0; i < n_units; i++) {
        struct agent_unit *u = &n->units[i];
        t = t && !strcmp(t->name, u->tensor) ? t : lib_tensor_find(n, u->tensor);
        NEB_ASSERT(t);
        n->of[i] = t;
        n->first[i] = u->row0 * t->cols + u->col0;
        n->owner[i] = n->fragment[i] = -1;
        u->data = lib_in_place(n, i, NEBULA_HOST);
        n->buffer_floats =
            agent_unit_size(u) > n->buffer_floats ? agent_unit_size(u) : n->buffer_floats;
    }
    n->buffer = malloc((n->buffer_floats + 1) * sizeof *n->buffer);
    n->room = malloc((n->buffer_floats + 1) * sizeof *n->room);
    return n->buffer && n->room ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a unit");
}

enum neb_status lib_trainer_create(struct nebula *n) {
    int32_t n_units = 0;
    enum neb_status st = n->model ? model_units(n, &n_units) : attached_units(n, &n_units);
    if (st == NEB_OK)
        st = index_units(n, n_units);
    if (st == NEB_OK && n->x.federated)
        st = exchange_cut(&n->x.job, n->units, n_units, n->fragment);
    for (int32_t i = 0; i < n_units && st == NEB_OK; i++)
        n->of[i]->fragment = n->fragment[i];
    n->x.trainer =
        (struct agent_trainer){.ops = &lib_trainer_ops,
                               .user = n,
                               .units = n->units,
                               .n_units = n_units,
                               .n_counters = n->model ? 2 * (size_t)n->model->c.vocab : 0,
                               .pool = n->pool,
                               .world = n->world,
                               .carrier_ops = n->ranks > 1 ? &agent_carrier_ops : NULL,
                               .carrier = n->carrier};
    NEB_TRY(intra_comm_agree(n->world, st));
    return intra_comm_agree(n->world, lib_device_prepare(n));
}

void lib_trainer_destroy(struct nebula *n) {
    for (int32_t i = 0; n->shadow && i < n->x.trainer.n_units; i++)
        free(n->shadow[i]);
    free(n->shadow);
    free(n->units);
    free(n->of);
    free(n->first);
    free(n->fragment);
    free(n->owner);
    neb_buf_free(&n->rest);
    free(n->buffer);
    free(n->room);
    free(n->counters);
    free(n->sum);
}

// ---- initial values of a built-in model ---------------------------------------------------------

static enum neb_status open_init(struct nebula *n, struct intra_ckpt **out) {
    struct agent_job *j = &n->x.job;
    if (n->rank || !j->init_from[0])
        return NEB_OK;
    NEB_TRY(intra_ckpt_open_in(exchange_vault(&n->x), j->init_from, true, out));
    NEB_TRY(agent_job_init_same(j, n->x.cluster, *out));
    return intra_model_check_params(*out, n->model);
}

static void draw(const struct nebula *n, int32_t unit, float *out) {
    struct intra_tensor part = *n->of[unit]->model;
    part.row0 = (int32_t)n->units[unit].row0;
    part.rows = (int32_t)n->units[unit].rows;
    intra_model_draw(n->model, &part, (uint64_t)n->x.job.seed, out);
}

// Rank 0 reads the unit from the file of init_from; tensors that the file lacks (adapters) are
// drawn.
static enum neb_status load(const struct nebula *n, const struct intra_ckpt *c, int32_t unit,
                            float *out) {
    const struct intra_tensor *t = n->of[unit]->model;
    size_t bytes = agent_unit_size(&n->units[unit]) * sizeof *out;
    const struct intra_ckpt_section *s = intra_ckpt_find(c, t->name);
    if (!s) {
        draw(n, unit, out);
        return NEB_OK;
    }
    if (s->dtype != INTRA_F32 || s->rows != (uint64_t)t->rows || s->cols != (uint64_t)t->cols)
        return neb_fail(NEB_ERR_FORMAT, "%s: tensor %s has another shape", intra_ckpt_path(c),
                        t->name);
    return intra_ckpt_range(c, s, (uint64_t)n->first[unit] * sizeof *out, out, bytes);
}

enum neb_status lib_draw(struct nebula *n, const struct agent_move *moves, int32_t count) {
    struct intra_ckpt *init = NULL;
    struct intra_comm *w = n->world;
    enum neb_status st = intra_comm_agree(n->world, open_init(n, &init)), files = NEB_OK;
    for (int32_t i = 0; i < count && st == NEB_OK; i++) {
        const struct agent_move *m = &moves[i];
        size_t bytes = agent_unit_size(&n->units[m->unit]) * sizeof *m->at;
        bool mine = m->rank == n->rank;
        struct intra_comm_send send = {0};
        if (mine && !n->x.job.init_from[0])
            draw(n, m->unit, m->at);
        if (!n->x.job.init_from[0])
            continue;
        float *at = mine ? m->at : n->buffer;
        if (n->rank == 0 && files == NEB_OK)
            files = load(n, init, m->unit, at);
        if (n->rank == 0 && !mine)
            st = w->ops->send(w, at, bytes, m->rank, TAG_DRAW, &send);
        if (n->rank != 0 && mine)
            st = w->ops->recv(w, at, bytes, 0, TAG_DRAW);
    }
    intra_ckpt_close(&init);
    NEB_TRY(st);
    NEB_TRY(intra_comm_agree(n->world, files));
    // every owner has values; the loop starts from them
    return lib_write(n, moves, count);
}
