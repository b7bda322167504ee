// SPDX-License-Identifier: Apache-2.0
// The trainer's part of a checkpoint: its parameters by unit, the fp32 values behind 16-bit ones,
// and counters. With several ranks each owner writes its units, and its state of the exchange, into
// a part of its own (intra/ckpt/checkpoint_parts.h); rank 0 writes for ranks that do not see the
// folder.
#include "agent/base/log.h"
#include "agent/lib/state.h"
#include "intra/ckpt/checkpoint_array.h"
#include "intra/train/trainer_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_SAVE = 32023 };

struct saving {
    struct nebula *n;
    struct intra_split split;
    uint64_t *able;                // (ranks) sees the folder
    int32_t *writer;               // (ranks) the rank that writes what a rank owns
    struct intra_part part;        // this rank's; number 0: none
    uint64_t *ranks;               // (part.n) which rank writes each part
    struct intra_ckpt_writer *out; // rank 0's file, another rank's part, or NULL
    bool aside;                    // out is a copy in memory
    enum neb_status written;       // of this rank's writer
};

static struct agent_shards *shards_of(const struct nebula *n) {
    return n->rank ? n->shards : n->x.shards;
}

// ---- who writes ---------------------------------------------------------------------------------

// What this rank writes of the units of all ranks, with the alignment of sections.
static uint64_t part_bytes(const struct saving *s) {
    const struct nebula *n = s->n;
    uint64_t bytes = 4096, arrays = n->x.federated ? 1 + INTER_OUTER_ARRAYS : 1;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++)
        if (s->writer[lib_owner(n, i)] == n->rank)
            bytes += (arrays + (n->of[i]->dtype != NEBULA_F32)) *
                     (agent_unit_size(&n->units[i]) * sizeof(float) + 64);
    return bytes;
}

static enum neb_status begin_part(struct saving *s, struct intra_ckpt_writer *w) {
    struct nebula *n = s->n;
    for (int r = 0; r < n->ranks; r++) {
        bool owns = false;
        s->writer[r] = s->able[r] ? r : 0;
        for (int32_t i = 0; i < n->x.trainer.n_units && r && s->able[r] && !owns; i++)
            owns = lib_owner(n, i) == r;
        if (owns)
            s->ranks[s->part.n++] = (uint64_t)r;
        if (owns && r == n->rank)
            s->part.number = s->part.n;
    }
    s->out = s->part.number ? NULL : w;
    const struct neb_vault *vault = s->split.sealed ? exchange_vault(&n->x) : NULL;
    if (s->part.number && s->split.aside && !n->saver)
        NEB_TRY(intra_part_saver_create(&n->saver));
    if (s->part.number && s->split.aside)
        NEB_TRY(intra_part_saver_begin(n->saver, vault, n->pool, part_bytes(s), s->split.path,
                                       &s->part, &s->out));
    s->aside = s->part.number && s->out;
    return s->part.number && !s->out ? intra_part_create(vault, s->split.path, &s->part, &s->out)
                                     : NEB_OK;
}

// ---- units --------------------------------------------------------------------------------------

static void put(struct saving *s, const char *array, int32_t number, size_t count, const float *x) {
    char name[64];
    snprintf(name, sizeof name, "%s/%d", array, number);
    if (s->written == NEB_OK)
        s->written = intra_ckpt_add(s->out, name, INTRA_F32, count, 1, x);
}

// Puts what the owner has at x into the file of its writer.
static enum neb_status pass(struct saving *s, int owner, const char *array, int32_t number,
                            size_t count, float *x) {
    struct nebula *n = s->n;
    struct intra_comm *w = n->world;
    int to = s->writer[owner];
    struct intra_comm_send send = {0};
    if (to != owner && owner == n->rank)
        return w->ops->send(w, x, count * sizeof *x, to, TAG_SAVE, &send);
    if (to != owner && to == n->rank)
        NEB_TRY(w->ops->recv(w, n->buffer, count * sizeof *x, owner, TAG_SAVE));
    if (to == n->rank)
        put(s, array, number, count, to == owner ? x : n->buffer);
    return NEB_OK;
}

static enum neb_status put_units(struct saving *s) {
    struct nebula *n = s->n;
    enum neb_status st = NEB_OK;
    n->raw = true;
    for (int32_t i = 0, narrow = 0; i < n->x.trainer.n_units && st == NEB_OK; i++) {
        struct agent_move m = lib_move(n, i);
        size_t size = agent_unit_size(&n->units[i]);
        st = lib_read(n, &m, 1);
        if (st == NEB_OK)
            st = pass(s, m.rank, "attached.params", i, size, m.at);
        if (st == NEB_OK)
            st = lib_device_shadow_here(n, i);
        if (st == NEB_OK && n->of[i]->dtype != NEBULA_F32)
            st = pass(s, m.rank, "attached.shadow", narrow++, size,
                      n->shadow[i] ? n->shadow[i] : m.at);
    }
    n->raw = false;
    return st;
}

static enum neb_status put_counts(struct saving *s, struct intra_ckpt_writer *w) {
    struct nebula *n = s->n;
    uint64_t V = n->x.trainer.n_counters / 2;
    if (!V)
        return NEB_OK;
    NEB_TRY(lib_sum_counts(n, NULL));
    if (w && s->written == NEB_OK)
        s->written = intra_ckpt_add(w, "attached.inputs", INTRA_U64, V, 1, n->sum);
    if (w && s->written == NEB_OK)
        s->written = intra_ckpt_add(w, "attached.targets", INTRA_U64, V, 1, n->sum + V);
    return NEB_OK;
}

// Adds the size of what rank 0 writes if all ranks see the folder.
static enum neb_status add_size(const struct saving *s, struct intra_ckpt_writer *w) {
    for (int r = 0; r < s->n->ranks; r++)
        s->writer[r] = r;
    return w ? intra_ckpt_add(w, "parts", INTRA_BYTES, part_bytes(s), 1, NULL) : NEB_OK;
}

static enum neb_status save_parts(struct saving *s, struct intra_ckpt_writer *w) {
    struct nebula *n = s->n;
    NEB_TRY(intra_split_ask(n->world, w, &s->split));
    NEB_TRY(put_counts(s, w));
    if (s->split.wanted && !s->split.path[0])
        return intra_comm_agree(n->world, add_size(s, w));
    NEB_TRY(intra_parts_find_able(n->world, s->split.path, s->split.sealed, n->x.vault != NULL,
                                  &s->part.token, s->able));
    NEB_TRY(intra_comm_agree(n->world, begin_part(s, w)));
    NEB_TRY(put_units(s));
    if (n->x.federated)
        NEB_TRY(agent_shards_part_put(shards_of(n), s->writer, s->out, &s->written));
    if (s->part.number && !s->aside && s->written == NEB_OK)
        s->written = intra_ckpt_commit(s->out);
    if (n->rank == 0 && s->part.n && s->written == NEB_OK)
        s->written = intra_parts_note(w, &s->part, s->ranks);
    NEB_TRY(intra_comm_agree(n->world, s->written));
    // all ranks have their copies: they reach the disk while training goes on
    return intra_comm_agree(n->world,
                            s->aside ? intra_part_saver_submit(n->saver, &s->out) : NEB_OK);
}

enum neb_status lib_save_all(struct nebula *n, struct intra_ckpt_writer *w) {
    struct saving s = {.n = n, .out = w};
    s.able = calloc((size_t)n->ranks, sizeof *s.able);
    s.writer = calloc((size_t)n->ranks, sizeof *s.writer);
    s.ranks = calloc((size_t)n->ranks, sizeof *s.ranks);
    enum neb_status st = s.able && s.writer && s.ranks
                             ? NEB_OK
                             : neb_fail(NEB_ERR_NOMEM, "out of memory for a save");
    st = intra_comm_agree(n->world, st);
    if (st == NEB_OK && n->ranks > 1)
        st = save_parts(&s, w);
    else if (st == NEB_OK) {
        st = put_counts(&s, w);
        st = st == NEB_OK ? put_units(&s) : st;
        st = st == NEB_OK ? s.written : st;
    }
    if (s.part.number)
        intra_ckpt_writer_destroy(&s.out);
    free(s.able);
    free(s.writer);
    free(s.ranks);
    return st;
}

// ---- back ---------------------------------------------------------------------------------------

struct source { // rank 0
    struct intra_ckpt_array *params, *shadow;
};

static enum neb_status open_arrays(const struct nebula *n, const struct intra_ckpt *c,
                                   struct source *s, uint64_t *shadowed) {
    uint64_t all = 0, narrow = 0, V = n->x.trainer.n_counters / 2;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++) {
        all += agent_unit_size(&n->units[i]);
        narrow += n->of[i]->dtype != NEBULA_F32 ? agent_unit_size(&n->units[i]) : 0;
    }
    NEB_TRY(intra_ckpt_array_open(c, "attached.params", all, &s->params));
    // if a loop with other dtypes wrote it, the values themselves are the fp32 behind 16-bit ones
    *shadowed = narrow && intra_ckpt_array_open(c, "attached.shadow", 0, &s->shadow) == NEB_OK &&
                intra_ckpt_array_len(s->shadow) == narrow;
    if (V)
        NEB_TRY(intra_ckpt_read(c, "attached.inputs", INTRA_U64, V, 1, n->counters));
    return V ? intra_ckpt_read(c, "attached.targets", INTRA_U64, V, 1, n->counters + V) : NEB_OK;
}

// Brings elements of an array from rank 0 to the owner.
static enum neb_status bring(struct nebula *n, const struct intra_ckpt_array *from, uint64_t at,
                             int owner, size_t count, float *to, enum neb_status *files) {
    struct intra_comm *w = n->world;
    struct intra_comm_send send = {0};
    float *x = owner == n->rank ? to : n->buffer;
    if (n->rank == 0 && *files == NEB_OK)
        *files = intra_ckpt_array_read(from, at, x, count);
    if (n->rank == 0 && owner != 0) // also after a read error: the owner waits
        return w->ops->send(w, x, count * sizeof *x, owner, TAG_SAVE, &send);
    return n->rank != 0 && owner == n->rank ? w->ops->recv(w, x, count * sizeof *x, 0, TAG_SAVE)
                                            : NEB_OK;
}

static enum neb_status need_shadow(struct nebula *n, const struct agent_move *m, size_t size) {
    if (n->of[m->unit]->dtype == NEBULA_F32 || m->rank != n->rank)
        return NEB_OK;
    NEB_TRY(lib_device_shadow_here(n, m->unit));
    if (!n->shadow[m->unit] && !(n->shadow[m->unit] = malloc(size * sizeof(float))))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu values behind 16-bit tensors", size);
    memcpy(n->shadow[m->unit], m->at, size * sizeof(float));
    return NEB_OK;
}

static enum neb_status bring_units(struct nebula *n, const struct source *s, bool shadowed,
                                   enum neb_status *files) {
    uint64_t at = 0, narrow = 0;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++) {
        struct agent_move m = lib_move(n, i);
        size_t size = agent_unit_size(&n->units[i]);
        NEB_TRY(bring(n, s->params, at, m.rank, size, m.at, files));
        NEB_TRY(lib_write(n, &m, 1));
        NEB_TRY(intra_comm_agree(n->world, need_shadow(n, &m, size)));
        if (n->of[i]->dtype != NEBULA_F32) {
            if (shadowed)
                NEB_TRY(bring(n, s->shadow, narrow, m.rank, size, n->shadow[i], files));
            narrow += size;
        }
        at += size;
    }
    return NEB_OK;
}

enum neb_status lib_restore_all(struct nebula *n, const struct intra_ckpt *c) {
    struct source s = {0};
    uint64_t shadowed = 0, V = n->x.trainer.n_counters / 2;
    enum neb_status files = c ? open_arrays(n, c, &s, &shadowed) : NEB_OK, st;
    n->reads++;
    NEB_TRY_GOTO(intra_comm_agree(n->world, files), out);
    if (n->ranks > 1)
        NEB_TRY_GOTO(n->world->ops->broadcast(n->world, &shadowed, sizeof shadowed, 0), out);
    if (n->rank && V)
        memset(n->counters, 0, 2 * V * sizeof *n->counters);
    n->raw = true;
    st = bring_units(n, &s, shadowed, &files);
    n->raw = false;
    if (st == NEB_OK)
        st = intra_comm_agree(n->world, files);
out:
    intra_ckpt_array_close(&s.params);
    intra_ckpt_array_close(&s.shadow);
    return st;
}
