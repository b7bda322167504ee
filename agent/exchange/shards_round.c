// SPDX-License-Identifier: Apache-2.0
// What the ranks of a mesh do in an encode, a merge and a digest (drawn in shards.h). Every rank
// takes part in every call, even if it owns nothing of the fragment: its rows must reach the
// owners, and merged rows must reach it.
#include "agent/exchange/shards_state.h"

#include <stdlib.h>
#include <string.h>

// ---- encode ----

// Rank 0 counts the tokens of each row and sends the counts to the owners of the units.
static enum neb_status pass_counts(struct agent_shards *o, int32_t f, agent_shards_counts *counts,
                                   void *user) {
    for (int32_t i = 0; i < o->n; i++) {
        size_t bytes = o->t.units[i].rows * sizeof **o->counts;
        if (o->fragment[i] != f || !shards_weighs_rows(o, i))
            continue;
        uint64_t *here = o->local[i] < 0 ? o->others_counts : o->counts[o->local[i]];
        if (o->rank == 0)
            counts(user, i, here);
        if (o->rank == 0 && o->local[i] < 0)
            NEB_TRY(shards_post(o, here, bytes, o->owner[i], SHARDS_TAG_COUNTS));
        else if (o->rank != 0 && o->local[i] >= 0)
            NEB_TRY(shards_take(o, here, bytes, 0, SHARDS_TAG_COUNTS));
    }
    return NEB_OK;
}

static const uint64_t *own_counts(void *user, int32_t unit) {
    const struct agent_shards *o = user;
    return o->counts[unit];
}

struct encoded { // what an owner reports about its part
    uint64_t bytes;
    float error;
};

// Position of `unit` among this rank's units of the fragment; -1: another rank owns it.
static int32_t among_own(const struct agent_shards *o, int32_t f, int32_t unit) {
    int32_t k = 0;
    for (int32_t i = 0; i < unit; i++)
        k += o->fragment[i] == f && o->local[i] >= 0;
    return unit >= 0 && o->local[unit] >= 0 ? k : -1;
}

// Refuses a size larger than any codec makes from the units of rank r.
static enum neb_status believable(const struct agent_shards *o, int r, uint64_t bytes) {
    enum { PER_ELEMENT = 16, BESIDES = 1 << 20 };
    uint64_t most = o->load[r] * PER_ELEMENT + BESIDES;
    return bytes <= most
               ? NEB_OK
               : neb_fail(
                     NEB_ERR_FORMAT,
                     "rank %d announces an update of %llu bytes, but at most %llu are possible", r,
                     (unsigned long long)bytes, (unsigned long long)most);
}

// Collects all parts on rank 0, in o->pieces.
static enum neb_status collect(struct agent_shards *o, float mine, float *error) {
    struct encoded e = {o->pieces[0].len, mine};
    if (o->rank != 0) {
        NEB_TRY(shards_post(o, &e, sizeof e, 0, SHARDS_TAG_SIZES));
        return shards_post(o, o->pieces[0].p, o->pieces[0].len, 0, SHARDS_TAG_FRAMES);
    }
    float sum = mine;
    for (int r = 1; r < o->ranks; r++) {
        struct neb_buf *b = &o->pieces[r];
        NEB_TRY(shards_take(o, &e, sizeof e, r, SHARDS_TAG_SIZES));
        NEB_TRY(believable(o, r, e.bytes));
        neb_buf_clear(b);
        NEB_TRY(neb_buf_reserve(b, e.bytes));
        NEB_TRY(shards_take(o, b->p, e.bytes, r, SHARDS_TAG_FRAMES));
        b->len = e.bytes;
        sum += e.error; // only one rank measures, the others send 0
    }
    if (error)
        *error = sum;
    return NEB_OK;
}

static enum neb_status join(struct agent_shards *o, struct neb_buf *out) {
    struct cmp_update_piece *all = calloc((size_t)o->ranks, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the parts of an update");
    for (int r = 0; r < o->ranks; r++)
        all[r] = (struct cmp_update_piece){o->pieces[r].p, o->pieces[r].len};
    neb_buf_clear(out);
    enum neb_status st = cmp_update_join(all, (size_t)o->ranks, out);
    free(all);
    return st;
}

enum neb_status shards_do_encode(struct agent_shards *o, const struct shards_encode *a,
                                 agent_shards_counts *counts, void *user, float *error,
                                 struct neb_buf *blob) {
    struct neb_buf *own = o->ranks == 1 ? blob : &o->pieces[0];
    NEB_TRY(shards_read(o, a->f));
    if (o->masked)
        return intra_comm_agree(
            o->t.world,
            o->rank == 0 ? inter_outer_encode_masked(o->outer, a->f, a->round, blob) : NEB_OK);
    NEB_TRY(pass_counts(o, a->f, counts, user));
    enum neb_status st = inter_outer_encode(o->outer, a->f, &a->codec, own_counts, o, own);
    NEB_TRY(intra_comm_agree(o->t.world, st));
    int32_t k = among_own(o, a->f, a->sample);
    float mine = k < 0 ? 0 : inter_outer_unit_error(o->outer, a->f, k, own->p, own->len);
    NEB_TRY(collect(o, mine, error));
    return o->rank == 0 && o->ranks > 1 ? join(o, blob) : NEB_OK;
}

// The unit whose error counts as the error of the update: the same unit as on one rank.
static enum neb_status sample(const struct agent_shards *o, int32_t f, int32_t *out) {
    struct cmp_unit_shape *shapes;
    int32_t n;
    NEB_TRY(shards_shapes(o, f, &shapes, &n));
    int32_t pick = inter_outer_sample(shapes, n);
    *out = pick < 0 ? -1 : (int32_t)shapes[pick].unit;
    free(shapes);
    return NEB_OK;
}

enum neb_status agent_shards_encode(struct agent_shards *o, int32_t f, uint32_t round,
                                    const struct cmp_codec *codec, agent_shards_counts *counts,
                                    void *user, float *error, struct neb_buf *out) {
    struct shards_encode a = {.f = f, .sample = -1, .round = round, .codec = *codec};
    if (error && !o->masked)
        NEB_TRY(sample(o, f, &a.sample));
    NEB_TRY(shards_begin(o, SHARDS_ENCODE, &a, sizeof a));
    return shards_do_encode(o, &a, counts, user, error, out);
}

// ---- merge ----

// Rank 0: cuts each committed update by owners.
static enum neb_status cut(struct agent_shards *o, const struct inter_outer_round *r) {
    for (int to = 0; to < o->ranks; to++) {
        struct neb_buf *b = &o->pieces[to];
        uint64_t *sizes = o->sizes + (size_t)to * INTER_PARTS_MAX;
        neb_buf_clear(b);
        for (size_t p = 0; p < r->n; p++) {
            size_t at = b->len;
            NEB_TRY(
                cmp_update_cut(r->parts[p].blob, r->parts[p].len, o->owner, (uint32_t)o->n, to, b));
            sizes[p] = b->len - at;
        }
    }
    return NEB_OK;
}

static enum neb_status pass_parts(struct agent_shards *o, uint32_t n) {
    size_t head = n * sizeof *o->sizes;
    for (int to = 1; o->rank == 0 && to < o->ranks; to++) {
        const struct neb_buf *b = &o->pieces[to];
        NEB_TRY(
            shards_post(o, o->sizes + (size_t)to * INTER_PARTS_MAX, head, to, SHARDS_TAG_SIZES));
        NEB_TRY(shards_post(o, b->p, b->len, to, SHARDS_TAG_FRAMES));
    }
    if (o->rank == 0)
        return NEB_OK;
    uint64_t all = 0;
    NEB_TRY(shards_take(o, o->sizes, head, 0, SHARDS_TAG_SIZES));
    // The size is safe: rank 0 holds as much itself, and the gate has checked it.
    for (uint32_t p = 0; p < n; p++)
        all += o->sizes[p];
    neb_buf_clear(&o->pieces[0]);
    NEB_TRY(neb_buf_reserve(&o->pieces[0], all));
    NEB_TRY(shards_take(o, o->pieces[0].p, all, 0, SHARDS_TAG_FRAMES));
    o->pieces[0].len = all;
    return NEB_OK;
}

// Applies the round to the units that this rank owns.
static enum neb_status apply(struct agent_shards *o, const struct shards_merge *a,
                             struct kern_digest *d) {
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct inter_outer_round r = {parts, a->n, a->eta, a->mu, a->merge, a->last, NULL};
    const uint8_t *at = o->pieces[0].p;
    for (uint32_t p = 0; p < a->n; p++) {
        parts[p] = (struct inter_outer_part){.blob = at,
                                             .len = o->sizes[p],
                                             .tokens = a->parts[p].tokens,
                                             .clip = a->parts[p].clip,
                                             .mine = a->parts[p].mine,
                                             .weight = a->parts[p].weight};
        at += o->sizes[p];
    }
    return inter_outer_apply(o->outer, a->f, &r, d);
}

// True if rank 0 needs the updates as they came: it owns all units.
static bool undivided(const struct agent_shards *o) { return o->masked || o->ranks == 1; }

static enum neb_status settle_merge(struct agent_shards *o, const struct shards_merge *a,
                                    const struct inter_outer_round *r, struct kern_digest *d) {
    if (a->reject)
        inter_outer_reject(o->outer, a->f);
    if (a->n && !undivided(o))
        return apply(o, a, d);
    if (a->n && o->rank == 0)
        return inter_outer_apply(o->outer, a->f, r, d);
    inter_outer_skip(o->outer, a->f, d); // a masked sum: the other ranks count versions too
    return NEB_OK;
}

enum neb_status shards_do_merge(struct agent_shards *o, const struct shards_merge *a,
                                const struct inter_outer_round *r, struct kern_digest *d) {
    NEB_TRY(shards_read(o, a->f)); // keeps what was learned since the send
    if (a->n && !undivided(o)) {
        NEB_TRY(intra_comm_agree(o->t.world, o->rank == 0 ? cut(o, r) : NEB_OK));
        NEB_TRY(pass_parts(o, a->n));
    }
    enum neb_status st = settle_merge(o, a, r, d);
    NEB_TRY(intra_comm_agree(o->t.world, st));
    if (a->last)
        inter_outer_finish(o->outer, a->f);
    NEB_TRY(shards_write(o, a->f));
    return shards_sum_digest(o, a->f, d);
}

enum neb_status agent_shards_merge(struct agent_shards *o, int32_t f, bool reject,
                                   const struct inter_outer_round *r, struct kern_digest *digest) {
    struct shards_merge a = {
        .f = f, .reject = reject, .merge = r->merge, .last = r->last, .eta = r->eta, .mu = r->mu};
    if (r->n > INTER_PARTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "the commit has %zu updates, but at most %d are possible",
                        r->n, INTER_PARTS_MAX);
    a.n = (uint32_t)r->n;
    for (size_t p = 0; p < r->n; p++) {
        a.parts[p].tokens = r->parts[p].tokens;
        a.parts[p].weight = r->parts[p].weight;
        a.parts[p].clip = r->parts[p].clip;
        a.parts[p].mine = r->parts[p].mine;
    }
    NEB_TRY(shards_begin(o, SHARDS_MERGE, &a, sizeof a));
    return shards_do_merge(o, &a, r, digest);
}

enum neb_status shards_do_digest(struct agent_shards *o, int32_t f, struct kern_digest *d) {
    *d = f < 0 ? inter_outer_digest(o->outer) : inter_outer_fragment_digest(o->outer, f);
    return shards_sum_digest(o, f, d);
}

enum neb_status agent_shards_digest(struct agent_shards *o, int32_t f, struct kern_digest *digest) {
    NEB_TRY(shards_begin(o, SHARDS_DIGEST, &f, sizeof f));
    return shards_do_digest(o, f, digest);
}
