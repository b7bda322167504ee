// SPDX-License-Identifier: Apache-2.0
#include "intra/train/trainer_parts.h"
#include "agent/base/log.h"
#include "intra/train/full.h"
#include "intra/train/trainer_full.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum neb_status intra_split_ask(struct intra_comm *world, const struct intra_ckpt_writer *w,
                                struct intra_split *out) {
    const char *path = w ? intra_ckpt_split_path(w) : NULL;
    memset(out, 0, sizeof *out);
    if (path && world->size > 1) {
        out->wanted = true;
        out->aside = intra_ckpt_is_sink(w);
        out->sealed = intra_ckpt_seals(w);
        snprintf(out->path, sizeof out->path, "%s", path);
    }
    return world->ops->broadcast(world, out, sizeof *out, 0);
}

void intra_parts_assign(const uint64_t *bytes, int32_t n, const uint64_t *able, int ranks,
                        uint64_t *load, int32_t *out) {
    int last = ranks <= INTRA_PARTS_MAX ? ranks : INTRA_PARTS_MAX;
    for (int32_t i = 0; i < n; i++) {
        int best = 0;
        for (int r = 1; r < last; r++)
            if (able[r] && load[r] < load[best])
                best = r;
        load[best] += bytes[i];
        out[i] = best;
    }
}

enum neb_status intra_parts_find_able(struct intra_comm *world, const char *file, bool sealed,
                                      bool vault, uint64_t *token, uint64_t *able) {
    char mark[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    if (world->rank == 0 && getentropy(token, sizeof *token) != 0)
        st = neb_fail_errno("cannot read random numbers from the system");
    NEB_TRY(intra_comm_agree(world, st));
    NEB_TRY(world->ops->broadcast(world, token, sizeof *token, 0));
    st = intra_part_path(file, *token, 0, mark, sizeof mark);
    if (st == NEB_OK && world->rank == 0)
        st = neb_fs_write(mark, "", 0, 0600);
    NEB_TRY(intra_comm_agree(world, st));
    able[world->rank] = neb_fs_exists(mark) && (!sealed || vault || world->rank == 0);
    NEB_TRY(
        world->ops->all_reduce(world, able, (size_t)world->size, INTRA_COMM_U64, INTRA_COMM_SUM));
    return intra_comm_agree(world, world->rank == 0 ? neb_fs_remove(mark) : NEB_OK);
}

// ---- one save -----------------------------------------------------------------------------------

struct parts {
    const struct intra_trainer *t;
    struct intra_comm *world;
    // Rank 0: its file; another rank: its part, or NULL if it has nothing to write.
    struct intra_ckpt_writer *out;
    int32_t *owner;         // (n_tensors) the rank that writes each
    uint64_t *bytes;        // (n_tensors)
    uint64_t *able;         // (ranks)
    uint64_t *load;         // (ranks) bytes that each writes
    uint64_t *extra;        // (ranks) bytes of t->extra that each holds
    int32_t *writer;        // (ranks) which rank writes them
    float *room;            // (largest of this rank's tensors)
    struct intra_part part; // this rank's; number 0: none
    uint64_t *ranks;        // (part.n) which rank writes each part
    bool sealed;
    bool aside; // out is a copy in memory
};

static enum neb_status allocate(struct parts *p) {
    const struct intra_model *whole = p->t->whole;
    size_t n = (size_t)whole->n_tensors;
    p->owner = calloc(n, sizeof *p->owner);
    p->bytes = calloc(n, sizeof *p->bytes);
    p->able = calloc((size_t)p->world->size, sizeof *p->able);
    p->load = calloc((size_t)p->world->size, sizeof *p->load);
    p->extra = calloc((size_t)p->world->size, sizeof *p->extra);
    p->writer = calloc((size_t)p->world->size, sizeof *p->writer);
    p->ranks = calloc((size_t)p->world->size, sizeof *p->ranks);
    if (!p->owner || !p->bytes || !p->able || !p->load || !p->extra || !p->writer || !p->ranks)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a checkpoint of %zu tensors", n);
    for (size_t i = 0; i < n; i++) { // with its moments
        const struct intra_tensor *x = &whole->tensors[i];
        unsigned arrays =
            1u + trainer_has_moment(p->t, x, false) + trainer_has_moment(p->t, x, true);
        p->bytes[i] = intra_tensor_size(x) * sizeof(float) * arrays;
    }
    return NEB_OK;
}

// Each rank writes its own `extra` if it can write; tensors go to the rank that writes least so
// far. Rank 0 writes a file of its own anyway: without `extra` it gets tensors only if it is alone.
static void deal(struct parts *p) {
    const struct intra_model *whole = p->t->whole;
    const struct intra_trainer_extra *x = p->t->extra;
    int size = p->world->size;
    for (int r = 0; x && r < size; r++)
        p->extra[r] = x->bytes(x->user, r);
    for (int r = 0; r < size; r++)
        p->load[r] = p->able[r] ? p->extra[r] : 0;
    for (int r = 0; r < size; r++) {
        p->writer[r] = r;
        if (!p->able[r])
            intra_parts_assign(&p->extra[r], 1, p->able, size, p->load, &p->writer[r]);
    }
    if (!x)
        p->load[0] = INTRA_PARTS_NOTHING;
    intra_parts_assign(p->bytes, whole->n_tensors, p->able, size, p->load, p->owner);
    for (int r = 1; r < size; r++) {
        bool any = false;
        for (int h = 0; h < size && !any; h++)
            any = p->extra[h] && p->writer[h] == r;
        for (int32_t i = 0; i < whole->n_tensors && !any; i++)
            any = p->owner[i] == r;
        if (any)
            p->ranks[p->part.n++] = (uint64_t)r;
        if (any && r == p->world->rank)
            p->part.number = p->part.n;
    }
}

static uint64_t own_bytes(const struct parts *p) {
    uint64_t sum = 4096; // the first section, alignment
    for (int32_t i = 0; i < p->t->whole->n_tensors; i++)
        sum += p->owner[i] == p->world->rank ? p->bytes[i] + 3 * 64 : 0;
    for (int r = 0; r < p->world->size; r++)
        sum += p->writer[r] == p->world->rank ? p->extra[r] : 0;
    return sum;
}

// Counts what rank 0 would write if all ranks could write.
static enum neb_status count(struct parts *p, struct intra_ckpt_writer *w) {
    for (int r = 0; r < p->world->size; r++)
        p->able[r] = 1;
    deal(p);
    return w ? intra_ckpt_add(w, "parts", INTRA_BYTES, own_bytes(p), 1, NULL) : NEB_OK;
}

static const struct neb_vault *vault_of(const struct parts *p) {
    return p->sealed ? p->t->vault : NULL;
}

static enum neb_status begin_part(struct parts *p, struct intra_ckpt_writer *w, const char *path) {
    const struct intra_model *whole = p->t->whole;
    size_t most = 0;
    for (int32_t i = 0; i < whole->n_tensors; i++)
        if (p->owner[i] == p->world->rank && intra_tensor_size(&whole->tensors[i]) > most)
            most = intra_tensor_size(&whole->tensors[i]);
    p->out = p->part.number ? NULL : w;
    if (most && !(p->room = malloc(most * sizeof *p->room)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a tensor of %zu elements", most);
    if (p->part.number && p->aside)
        NEB_TRY(intra_part_saver_begin(p->t->part_saver, vault_of(p), p->t->K->pool, own_bytes(p),
                                       path, &p->part, &p->out));
    p->aside = p->part.number && p->out;
    return p->part.number && !p->out ? intra_part_create(vault_of(p), path, &p->part, &p->out)
                                     : NEB_OK;
}

// Gathers all tensors of one arena, each on the rank that writes it. A rank that cannot write still
// takes part; its status is exchanged at the end.
// second: the moments are second ones; nothing for parameters.
static enum neb_status put_all(struct parts *p, enum intra_arena kind, const float *arena,
                               bool second, const char *prefix, enum neb_status *written) {
    const struct intra_model *whole = p->t->whole;
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *x = &whole->tensors[i];
        char name[INTRA_CKPT_NAME_MAX + 1];
        if (kind == INTRA_ARENA_GRADS && !trainer_has_moment(p->t, x, second))
            continue;
        NEB_TRY(intra_full_gather_at(p->t->model, x, kind, arena, p->owner[i], p->room));
        if (p->owner[i] != p->world->rank || *written != NEB_OK)
            continue;
        snprintf(name, sizeof name, "%s%s", prefix, x->name);
        *written =
            intra_ckpt_add(p->out, name, INTRA_F32, (uint64_t)x->rows, (uint64_t)x->cols, p->room);
    }
    return NEB_OK;
}

// Each replica's ranks hold parts of the moments (optim.h). The gradient arena, which is free
// between steps, collects them.
static enum neb_status put_moments(struct parts *p, bool second, const char *prefix,
                                   enum neb_status *written) {
    const struct intra_trainer *t = p->t;
    struct intra_model *m = t->model;
    intra_optim_spread(t->optim, m, second, m->grads);
    enum neb_status st = intra_optim_all_gather(t->optim, m->mesh->dp, m->grads);
    if (st == NEB_OK)
        st = put_all(p, INTRA_ARENA_GRADS, m->grads, second, prefix, written);
    t->K->ops->zero(t->K, m->grads, m->n_grads * sizeof *m->grads);
    return st;
}

// The returned status is that of the collectives. *written is this rank's status of writing.
static enum neb_status put_tensors(struct parts *p, enum neb_status *written) {
    const struct intra_trainer *t = p->t;
    NEB_TRY(put_all(p, INTRA_ARENA_PARAMS, t->model->params, false, "", written));
    NEB_TRY(put_moments(p, false, "optim.m/", written));
    NEB_TRY(put_moments(p, true, "optim.v/", written));
    if (t->extra)
        NEB_TRY(t->extra->put(t->extra->user, p->writer, p->out, written));
    if (p->part.number && !p->aside && *written == NEB_OK)
        *written = intra_ckpt_commit(p->out);
    return NEB_OK;
}

enum neb_status intra_trainer_save_parts(const struct intra_trainer *t, struct intra_ckpt_writer *w,
                                         const struct intra_split *split) {
    struct parts p = {
        .t = t, .world = t->c.mesh->world, .sealed = split->sealed, .aside = split->aside};
    const char *path = split->path;
    const struct intra_mesh *mesh = t->c.mesh;
    enum neb_status st = allocate(&p);
    if (st == NEB_OK && !path[0])
        NEB_TRY_GOTO(count(&p, w), out);
    if (!path[0])
        goto out;
    NEB_TRY_GOTO(intra_full_agree(mesh, st), out);
    NEB_TRY_GOTO(
        intra_parts_find_able(p.world, path, p.sealed, t->vault != NULL, &p.part.token, p.able),
        out);
    deal(&p);
    NEB_TRY_GOTO(intra_full_agree(mesh, begin_part(&p, w, path)), out);
    enum neb_status written = NEB_OK;
    NEB_TRY_GOTO(trainer_kept(t, put_tensors(&p, &written)), out);
    if (p.world->rank == 0 && p.part.n && written == NEB_OK)
        written = intra_parts_note(w, &p.part, p.ranks);
    st = intra_full_agree(mesh, written);
    // all ranks have their copies: they reach the disk while training goes on
    if (st == NEB_OK && p.aside)
        st = intra_part_saver_submit(p.t->part_saver, &p.out);
out:
    if (p.part.number)
        intra_ckpt_writer_destroy(&p.out);
    free(p.owner);
    free(p.bytes);
    free(p.able);
    free(p.load);
    free(p.extra);
    free(p.writer);
    free(p.ranks);
    free(p.room);
    return st;
}
