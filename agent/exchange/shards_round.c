// SPDX-License-Identifier: Apache-2.0
// What the ranks of a mesh do in an encode, a merge and a digest (drawn in shards.h). Every rank
// takes part in every call, even if it owns nothing of the fragment: its rows must reach the
// owners, and merged rows must reach it.
#include "agent/base/log.h"
#include "agent/exchange/shards_state.h"

#include <math.h>
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

// Notes the error of the sample, if this rank owns it.
static enum neb_status measure(struct agent_shards *o, enum neb_status st) {
    struct shards_side *s = &o->side;
    int32_t k = among_own(o, s->encode.f, s->encode.sample);
    s->error = 0;
    if (st == NEB_OK && k >= 0)
        s->error = inter_outer_unit_error(o->outer, s->encode.f, k, s->own->p, s->own->len);
    return st;
}

// Names the first value that is not finite, from the parameters at the send.
static enum neb_status name_bad(struct agent_shards *o, int32_t f) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    inter_outer_arrays(o->outer, arrays);
    NEB_TRY(inter_outer_pull(o->outer));
    for (int32_t k = 0; k < o->mine; k++) {
        const struct agent_unit *u = &o->t.units[o->own[k]];
        const float *x = arrays[INTER_OUTER_ARRAYS - 1].p + inter_outer_unit_at(o->outer, k);
        for (size_t i = 0; o->fragment[o->own[k]] == f && i < agent_unit_size(u); i++)
            if (!isfinite(x[i]))
                return neb_fail(NEB_ERR_INVALID,
                                "tensor %s: element %lld of row %lld is not a finite number on "
                                "rank %d. Continue from the newest checkpoint",
                                u->tensor, (long long)(u->col0 + (int64_t)(i % u->cols)),
                                (long long)(u->row0 + (int64_t)(i / u->cols)), o->rank);
    }
    return NEB_ERR_INVALID;
}

// On a device, after the parameters are read: no tensor of the trainer is needed any more.
static enum neb_status encode_there(struct agent_shards *o) {
    const struct shards_encode *a = &o->side.encode;
    enum neb_status st = NEB_OK;
    for (struct shards_wave w = {.f = a->f}; st == NEB_OK && shards_next(o, &w);)
        st = inter_outer_encode(o->outer, a->f, &a->codec, own_counts, o, o->side.own);
    return st == NEB_ERR_INVALID ? name_bad(o, a->f) : measure(o, st);
}

static enum neb_status encode_waves(struct agent_shards *o, const struct shards_encode *a,
                                    struct neb_buf *blob) {
    enum neb_status st = NEB_OK;
    for (struct shards_wave w = {.f = a->f}; shards_next(o, &w);) {
        NEB_TRY(shards_read(o, &w)); // also after a failure here, because it is collective
        if (agent_shards_deferred(o))
            inter_outer_form(o->outer, a->f);
        else if (o->masked && o->rank == 0)
            st = inter_outer_encode_masked(o->outer, a->f, a->round, blob);
        else if (!o->masked && st == NEB_OK)
            st = inter_outer_encode(o->outer, a->f, &a->codec, own_counts, o, o->side.own);
    }
    if (agent_shards_deferred(o)) {
        shards_joint(o, false);
        shards_side_start(o, encode_there);
        return NEB_OK;
    }
    o->side.st = o->masked ? st : measure(o, st);
    return NEB_OK;
}

enum neb_status shards_do_encode(struct agent_shards *o, const struct shards_encode *a,
                                 agent_shards_counts *counts, void *user, struct neb_buf *blob) {
    o->side.encode = *a;
    if (o->side.opened == a->f) // the residual changes
        o->side.opened = -1;
    o->side.own = o->carried && o->rank         ? &o->sent[a->f]
                  : o->carried || o->ranks == 1 ? blob
                                                : &o->pieces[0];
    if (!o->masked)
        NEB_TRY(pass_counts(o, a->f, counts, user));
    return encode_waves(o, a, blob);
}

enum neb_status shards_do_encoded(struct agent_shards *o, float *error, struct neb_buf *blob) {
    int32_t f = o->side.encode.f;
    NEB_TRY(intra_comm_agree(o->t.world, o->side.st));
    if (!o->masked)
        return shards_collect(o, f, o->side.error, error, o->side.own, blob);
    o->payload[f] = o->rank == 0 ? blob->len : 0;
    return NEB_OK;
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

enum neb_status agent_shards_encode_begin(struct agent_shards *o, int32_t f, uint32_t round,
                                          const struct cmp_codec *codec,
                                          agent_shards_counts *counts, void *user, bool measured,
                                          struct neb_buf *out) {
    struct shards_encode a = {.f = f, .sample = -1, .round = round, .codec = *codec};
    if (measured && !o->masked)
        NEB_TRY(sample(o, f, &a.sample));
    NEB_TRY(shards_begin(o, SHARDS_ENCODE, &a, sizeof a));
    return shards_do_encode(o, &a, counts, user, out);
}

enum neb_status agent_shards_encode_end(struct agent_shards *o, float *error, struct neb_buf *out) {
    int32_t f = o->side.encode.f;
    NEB_TRY(shards_begin(o, SHARDS_ENCODED, &f, sizeof f));
    return shards_do_encoded(o, error, out);
}

enum neb_status agent_shards_encode(struct agent_shards *o, int32_t f, uint32_t round,
                                    const struct cmp_codec *codec, agent_shards_counts *counts,
                                    void *user, float *error, struct neb_buf *out) {
    NEB_TRY(agent_shards_encode_begin(o, f, round, codec, counts, user, error != NULL, out));
    return agent_shards_encode_end(o, error, out);
}

// ---- merge ----

// True if rank 0 needs the updates as they came: it owns all units.
static bool undivided(const struct agent_shards *o) { return o->masked || o->ranks == 1; }

// What this rank applies. r: rank 0's.
static void set_round(struct agent_shards *o, const struct shards_merge *a,
                      const struct inter_outer_round *r) {
    struct shards_side *s = &o->side;
    s->round = (struct inter_outer_round){
        s->parts, a->n, a->eta, a->mu, a->merge, a->last, r ? r->seeds : NULL};
    for (uint32_t p = 0; p < a->n; p++) {
        s->parts[p] = (struct inter_outer_part){.tokens = a->parts[p].tokens,
                                                .clip = a->parts[p].clip,
                                                .mine = a->parts[p].mine,
                                                .weight = a->parts[p].weight};
        bool whole = undivided(o);
        s->parts[p].blob = !whole ? o->taken[p].p : r ? r->parts[p].blob : NULL;
        s->parts[p].len = !whole ? o->taken[p].len : r ? r->parts[p].len : 0;
    }
}

static enum neb_status take_commit(struct agent_shards *o, const struct shards_merge *a,
                                   const struct inter_outer_round *r) {
    if (a->n && !undivided(o))
        NEB_TRY(shards_take_commit(o, a, r));
    set_round(o, a, r);
    return NEB_OK;
}

static enum neb_status open_there(struct agent_shards *o) {
    o->side.opening = inter_outer_open(o->outer, o->side.f, &o->side.round);
    return o->side.opening;
}

enum neb_status shards_do_open(struct agent_shards *o, const struct shards_merge *a,
                               const struct inter_outer_round *r) {
    NEB_TRY(take_commit(o, a, r));
    o->side.f = o->side.opened = a->f;
    shards_side_start(o, open_there);
    return NEB_OK;
}

static enum neb_status settle_merge(struct agent_shards *o, const struct shards_merge *a) {
    struct shards_side *s = &o->side;
    if (a->reject)
        inter_outer_reject(o->outer, a->f);
    if (a->n && agent_shards_deferred(o)) {
        s->settling = true;
        return inter_outer_settle(o->outer, a->f, &s->round);
    }
    if (a->n && (o->rank == 0 || !undivided(o)))
        return inter_outer_apply(o->outer, a->f, &s->round, &s->digest);
    inter_outer_skip(o->outer, a->f, &s->digest); // a masked sum: other ranks count versions too
    return NEB_OK;
}

static enum neb_status settled_there(struct agent_shards *o) {
    return inter_outer_settled(o->outer, o->side.f, &o->side.digest);
}

enum neb_status shards_do_merge(struct agent_shards *o, const struct shards_merge *a,
                                const struct inter_outer_round *r) {
    struct shards_side *s = &o->side;
    bool opened = s->opened == a->f;
    enum neb_status st = opened ? s->opening : NEB_OK;
    s->settling = false;
    s->f = a->f;
    s->opened = opened ? -1 : s->opened;
    if (opened)
        set_round(o, a, r);
    else
        NEB_TRY(take_commit(o, a, r));
    for (struct shards_wave w = {.f = a->f}; shards_next(o, &w);) {
        NEB_TRY(shards_read(o, &w)); // keeps what was learned since the send
        if (st == NEB_OK)
            st = settle_merge(o, a);
        if (a->last && st == NEB_OK)
            inter_outer_finish(o->outer, a->f);
        NEB_TRY(shards_write(o, &w)); // also after a failure here, because it is collective
    }
    if (a->n && !undivided(o))
        shards_commit_done(o, a);
    NEB_TRY(intra_comm_agree(o->t.world, st));
    s->st = NEB_OK;
    if (s->settling)
        shards_side_start(o, settled_there);
    return NEB_OK;
}

enum neb_status shards_do_merged(struct agent_shards *o, int32_t f, struct kern_digest *d) {
    NEB_TRY(intra_comm_agree(o->t.world, o->side.st));
    *d = o->side.digest;
    return shards_sum_digest(o, f, d);
}

static enum neb_status fill(const struct agent_shards *o, int32_t f, bool reject,
                            const struct inter_outer_round *r, struct shards_merge *a) {
    *a = (struct shards_merge){
        .f = f, .reject = reject, .merge = r->merge, .last = r->last, .eta = r->eta, .mu = r->mu};
    if (r->n > INTER_PARTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "the commit has %zu updates, but at most %d are possible",
                        r->n, INTER_PARTS_MAX);
    a->n = (uint32_t)r->n;
    a->commit = o->commit;
    for (size_t p = 0; p < r->n; p++) {
        a->parts[p].tokens = r->parts[p].tokens;
        a->parts[p].weight = r->parts[p].weight;
        a->parts[p].clip = r->parts[p].clip;
        a->parts[p].mine = r->parts[p].mine;
    }
    return NEB_OK;
}

enum neb_status agent_shards_open(struct agent_shards *o, int32_t f,
                                  const struct inter_outer_round *r) {
    struct shards_merge a;
    NEB_TRY(fill(o, f, false, r, &a));
    NEB_TRY(shards_begin(o, SHARDS_OPEN, &a, sizeof a));
    return shards_do_open(o, &a, r);
}

int32_t agent_shards_opened(const struct agent_shards *o) { return o->side.opened; }

enum neb_status agent_shards_merge_begin(struct agent_shards *o, int32_t f, bool reject,
                                         const struct inter_outer_round *r) {
    struct shards_merge a;
    NEB_TRY(fill(o, f, reject, r, &a));
    NEB_TRY(shards_begin(o, SHARDS_MERGE, &a, sizeof a));
    return shards_do_merge(o, &a, r);
}

enum neb_status agent_shards_merge_end(struct agent_shards *o, struct kern_digest *digest) {
    int32_t f = o->side.f;
    NEB_TRY(shards_begin(o, SHARDS_MERGED, &f, sizeof f));
    return shards_do_merged(o, f, digest);
}

enum neb_status agent_shards_merge(struct agent_shards *o, int32_t f, bool reject,
                                   const struct inter_outer_round *r, struct kern_digest *digest) {
    NEB_TRY(agent_shards_merge_begin(o, f, reject, r));
    return agent_shards_merge_end(o, digest);
}

enum neb_status shards_do_digest(struct agent_shards *o, int32_t f, struct kern_digest *d) {
    *d = f < 0 ? inter_outer_digest(o->outer) : inter_outer_fragment_digest(o->outer, f);
    return shards_sum_digest(o, f, d);
}

enum neb_status agent_shards_digest(struct agent_shards *o, int32_t f, struct kern_digest *digest) {
    NEB_TRY(shards_begin(o, SHARDS_DIGEST, &f, sizeof f));
    return shards_do_digest(o, f, digest);
}
