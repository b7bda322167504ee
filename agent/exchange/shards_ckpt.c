// SPDX-License-Identifier: Apache-2.0
// The arrays of all units, to a checkpoint and back: with several ranks they travel to the ranks
// that write them, and from rank 0 back to their owners.
#include "agent/exchange/shards_state.h"
#include "intra/ckpt/checkpoint_array.h"

#include <stdio.h>
#include <stdlib.h>

static float *own(const struct agent_shards *o, const struct inter_outer_array *array, int32_t i) {
    return array->p + inter_outer_unit_at(o->outer, o->local[i]);
}

uint64_t agent_shards_part_bytes(void *user, int rank) {
    const struct agent_shards *o = user;
    uint64_t units = 0;
    for (int32_t i = 0; i < o->n; i++)
        units += o->owner[i] == rank;
    // 64: sections are aligned
    return INTER_OUTER_ARRAYS * (o->load[rank] * sizeof(float) + units * 64);
}

static enum neb_status add(struct intra_ckpt_writer *w, const struct inter_outer_array *array,
                           int32_t number, size_t n, const float *x) {
    char name[64];
    snprintf(name, sizeof name, "%s/%d", array->name, number);
    return intra_ckpt_add(w, name, INTRA_F32, n, 1, x);
}

// Unit by unit, sends each array to the rank that writes it: most often its owner.
enum neb_status agent_shards_part_put(void *user, const int32_t *writer,
                                      struct intra_ckpt_writer *w, enum neb_status *written) {
    struct agent_shards *o = user;
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    enum neb_status st = NEB_OK;
    float *room = NULL;
    size_t most = 0;
    for (int32_t i = 0; i < o->n; i++)
        if (o->owner[i] >= 0 && writer[o->owner[i]] == o->rank && o->local[i] < 0 &&
            shards_unit_size(o, i) > most)
            most = shards_unit_size(o, i);
    if (most && !(room = malloc(most * sizeof *room)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a unit of %zu elements", most);
    enum neb_status pulled = inter_outer_pull(o->outer);
    *written = *written == NEB_OK ? pulled : *written;
    inter_outer_arrays(o->outer, arrays);
    for (int32_t i = 0, number = 0; i < o->n; i++) {
        if (o->owner[i] < 0) // the numbers of an array's pieces have no gap
            continue;
        size_t n = shards_unit_size(o, i);
        int to = writer[o->owner[i]];
        for (int a = 0; a < INTER_OUTER_ARRAYS; a++) {
            const float *x = o->local[i] < 0 ? room : own(o, &arrays[a], i);
            if (to != o->rank && o->local[i] >= 0)
                NEB_TRY_GOTO(shards_post(o, x, n * sizeof *x, to, SHARDS_TAG_ARRAYS), out);
            if (to == o->rank && o->local[i] < 0)
                NEB_TRY_GOTO(shards_take(o, room, n * sizeof *x, o->owner[i], SHARDS_TAG_ARRAYS),
                             out);
            if (to == o->rank && *written == NEB_OK)
                *written = add(w, &arrays[a], number, n, x);
        }
        number++;
    }
out:
    free(room);
    inter_outer_drop_copies(o->outer);
    return st;
}

enum neb_status agent_shards_save(struct agent_shards *o, struct intra_ckpt_writer *out) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    if (o->t.world)
        return NEB_OK;
    inter_outer_arrays(o->outer, arrays);
    enum neb_status st = inter_outer_pull(o->outer);
    for (int i = 0; i < INTER_OUTER_ARRAYS && st == NEB_OK; i++)
        st = intra_ckpt_add(out, arrays[i].name, INTRA_F32, arrays[i].n, 1, arrays[i].p);
    inter_outer_drop_copies(o->outer);
    return st;
}

// ---- back from a checkpoint or a snapshot ----

// Sends arrays 0 .. n_arrays - 1 of the units of fragment f (-1: all) from rank 0, which reads
// them, to their owners. After a read error rank 0 still sends, so that no rank waits; the error is
// shared at the end.
static enum neb_status spread(struct agent_shards *o, int32_t f, int n_arrays,
                              const struct shards_source *from) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    enum neb_status st = NEB_OK, files = NEB_OK;
    float *room = NULL;
    size_t most = 0;
    for (int32_t i = 0; i < o->n; i++)
        if (o->rank == 0 && o->owner[i] > 0 && shards_unit_size(o, i) > most)
            most = shards_unit_size(o, i);
    if (most)
        room = calloc(most, sizeof *room);
    if (most && !room)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a unit of %zu elements", most);
    NEB_TRY_GOTO(intra_comm_agree(o->t.world, st), out);
    inter_outer_arrays(o->outer, arrays);
    for (int32_t i = 0; i < o->n; i++) {
        size_t n = shards_unit_size(o, i);
        for (int a = 0; a < n_arrays && o->owner[i] >= 0 && (f < 0 || o->fragment[i] == f); a++) {
            float *x = o->local[i] < 0 ? room : own(o, &arrays[a], i);
            if (o->rank == 0 && files == NEB_OK)
                files = from->read(from, a, o->place[i], x, n);
            if (o->rank == 0 && o->local[i] < 0)
                NEB_TRY_GOTO(shards_post(o, x, n * sizeof *x, o->owner[i], SHARDS_TAG_ARRAYS), out);
            if (o->rank != 0 && o->local[i] >= 0)
                NEB_TRY_GOTO(shards_take(o, x, n * sizeof *x, 0, SHARDS_TAG_ARRAYS), out);
        }
    }
    st = intra_comm_agree(o->t.world, files);
out:
    free(room);
    return st;
}

enum neb_status shards_do_restore(struct agent_shards *o, const struct shards_restore *a,
                                  const struct shards_source *from) {
    for (int32_t f = 0; f < o->c.fragments; f++)
        inter_outer_set_fragment(o->outer, f, a->version[f], a->in_flight[f]);
    if (a->arrays)
        NEB_TRY(spread(o, -1, INTER_OUTER_ARRAYS, from));
    enum neb_status st = inter_outer_push(o->outer);
    inter_outer_drop_copies(o->outer);
    return intra_comm_agree(o->t.world, st);
}

static enum neb_status read_array(const struct shards_source *from, int array, uint64_t at,
                                  float *dst, size_t n) {
    return intra_ckpt_array_read(from->arrays[array], at, dst, n);
}

enum neb_status agent_shards_restore(struct agent_shards *o, const struct intra_ckpt *c) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    struct shards_source from = {.read = read_array};
    struct shards_restore a = {.arrays = c != NULL};
    enum neb_status st = NEB_OK;
    inter_outer_arrays(o->outer, arrays);
    for (int i = 0; i < INTER_OUTER_ARRAYS && st == NEB_OK && c; i++)
        st = intra_ckpt_array_open(c, arrays[i].name, o->elements, &from.arrays[i]);
    for (int32_t f = 0; f < o->c.fragments; f++) {
        a.version[f] = inter_outer_version(o->outer, f);
        a.in_flight[f] = inter_outer_in_flight(o->outer, f);
    }
    if (st == NEB_OK)
        st = shards_begin(o, SHARDS_RESTORE, &a, sizeof a);
    if (st == NEB_OK)
        st = shards_do_restore(o, &a, &from);
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        intra_ckpt_array_close(&from.arrays[i]);
    return st;
}

enum neb_status shards_do_adopt(struct agent_shards *o, const struct shards_adopt *a,
                                const struct shards_source *from) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    NEB_TRY(spread(o, a->f, 2, from)); // θ and v
    inter_outer_arrays(o->outer, arrays);
    inter_outer_adopt(o->outer, a->f, arrays[0].p, arrays[1].p, a->version);
    for (struct shards_wave w = {.f = a->f}; shards_next(o, &w);) {
        inter_outer_reset(o->outer, a->f);
        NEB_TRY(shards_write(o, &w));
    }
    inter_outer_drop_copies(o->outer);
    return NEB_OK;
}

static enum neb_status read_snapshot(const struct shards_source *from, int array, uint64_t at,
                                     float *dst, size_t n) {
    uint64_t first = (uint64_t)array * from->elements + at; // θ is first, v follows
    return neb_file_read(from->file, from->at + first * sizeof *dst, dst, n * sizeof *dst);
}

enum neb_status agent_shards_adopt(struct agent_shards *o, int32_t f, uint32_t version,
                                   const struct neb_file *file, uint64_t at) {
    const struct shards_source from = {
        .read = read_snapshot, .file = file, .at = at, .elements = o->elements};
    struct shards_adopt a = {f, version};
    NEB_TRY(shards_begin(o, SHARDS_ADOPT, &a, sizeof a));
    return shards_do_adopt(o, &a, &from);
}
