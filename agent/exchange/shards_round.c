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

// Position of `unit` among this rank's units of the fragment; -1: another rank owns it.
static int32_t among_own(const struct agent_shards *o, int32_t f, int32_t unit) {
    int32_t k = 0;
    for (int32_t i = 0; i < unit; i++)
        k += o->fragment[i] == f && o->local[i] >= 0;
    return unit >= 0 && o->local[unit] >= 0 ? k : -1;
}

enum neb_status shards_do_encode(struct agent_shards *o, const struct shards_encode *a,
                                 agent_shards_counts *counts, void *user, float *error,
                                 struct neb_buf *blob) {
    struct neb_buf *own = o->carried && o->rank         ? &o->sent[a->f]
                          : o->carried || o->ranks == 1 ? blob
                                                        : &o->pieces[0];
    enum neb_status st = NEB_OK;
    if (!o->masked)
        NEB_TRY(pass_counts(o, a->f, counts, user));
    for (struct shards_wave w = {.f = a->f}; shards_next(o, &w);) {
        NEB_TRY(shards_read(o, &w)); // also after a failure here, because it is collective
        if (o->masked && o->rank == 0)
            st = inter_outer_encode_masked(o->outer, a->f, a->round, blob);
        else if (!o->masked && st == NEB_OK)
            st = inter_outer_encode(o->outer, a->f, &a->codec, own_counts, o, own);
    }
    NEB_TRY(intra_comm_agree(o->t.world, st));
    if (o->masked) {
        o->payload[a->f] = o->rank == 0 ? blob->len : 0;
        return NEB_OK;
    }
    int32_t k = among_own(o, a->f, a->sample);
    float mine = k < 0 ? 0 : inter_outer_unit_error(o->outer, a->f, k, own->p, own->len);
    return shards_collect(o, a->f, mine, error, own, blob);
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

// Applies the round to the units that this rank owns.
static enum neb_status apply(struct agent_shards *o, const struct shards_merge *a,
                             struct kern_digest *d) {
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct inter_outer_round r = {parts, a->n, a->eta, a->mu, a->merge, a->last, NULL};
    for (uint32_t p = 0; p < a->n; p++)
        parts[p] = (struct inter_outer_part){.blob = o->taken[p].p,
                                             .len = o->taken[p].len,
                                             .tokens = a->parts[p].tokens,
                                             .clip = a->parts[p].clip,
                                             .mine = a->parts[p].mine,
                                             .weight = a->parts[p].weight};
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
    enum neb_status st = NEB_OK;
    if (a->n && !undivided(o))
        NEB_TRY(shards_take_commit(o, a, r));
    for (struct shards_wave w = {.f = a->f}; shards_next(o, &w);) {
        NEB_TRY(shards_read(o, &w)); // keeps what was learned since the send
        if (st == NEB_OK)
            st = settle_merge(o, a, r, d);
        if (a->last && st == NEB_OK)
            inter_outer_finish(o->outer, a->f);
        NEB_TRY(shards_write(o, &w)); // also after a failure here, because it is collective
    }
    if (a->n && !undivided(o))
        shards_commit_done(o, a);
    NEB_TRY(intra_comm_agree(o->t.world, st));
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
    a.commit = o->commit;
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
