// SPDX-License-Identifier: Apache-2.0
// The parts of updates: from the ranks that encode them, and to the ranks that apply them. Each
// rank has a carrier to the agent, or all parts pass through rank 0.
//
//     carried     rank ── its part ──► agent ── its parts of the commit ──► rank
//     else        rank ── its part ──► rank 0, which joins and cuts ──────► rank
#include "agent/exchange/shards_state.h"
#include "intra/ckpt/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

enum { UPDATE_HEAD = 8 }; // bytes before the first unit (compress/update.h)

bool agent_shards_carried(const struct agent_shards *o) { return o->carried; }

uint64_t agent_shards_payload(const struct agent_shards *o, int32_t f) { return o->payload[f]; }

// ---- an update ----

struct encoded { // what an owner reports about its part
    uint64_t bytes;
    float error;
};

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

static enum neb_status take_bytes(struct agent_shards *o, struct neb_buf *b, uint64_t bytes,
                                  int from) {
    neb_buf_clear(b);
    NEB_TRY(neb_buf_reserve(b, bytes));
    NEB_TRY(shards_take(o, b->p, bytes, from, SHARDS_TAG_FRAMES));
    b->len = bytes;
    return NEB_OK;
}

static void free_pieces(struct agent_shards *o) {
    for (int r = 0; r < o->ranks; r++)
        neb_buf_free(&o->pieces[r]);
}

static enum neb_status join(const struct cmp_update_piece *pieces, size_t n, struct neb_buf *out) {
    neb_buf_clear(out);
    return cmp_update_join(pieces, n, out);
}

static enum neb_status join_pieces(struct agent_shards *o, struct neb_buf *out) {
    struct cmp_update_piece *all = calloc((size_t)o->ranks, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the parts of an update");
    for (int r = 0; r < o->ranks; r++)
        all[r] = (struct cmp_update_piece){o->pieces[r].p, o->pieces[r].len};
    enum neb_status st = join(all, (size_t)o->ranks, out);
    free(all);
    return st;
}

static enum neb_status collect(struct agent_shards *o, int32_t f, float mine, float *error,
                               const struct neb_buf *own) {
    struct encoded e = {own->len, mine};
    if (o->rank != 0) {
        NEB_TRY(shards_post(o, &e, sizeof e, 0, SHARDS_TAG_SIZES));
        return o->carried ? NEB_OK : shards_post(o, own->p, own->len, 0, SHARDS_TAG_FRAMES);
    }
    float sum = mine;
    o->payload[f] = own->len;
    for (int r = 1; r < o->ranks; r++) {
        NEB_TRY(shards_take(o, &e, sizeof e, r, SHARDS_TAG_SIZES));
        NEB_TRY(believable(o, r, e.bytes));
        if (!o->carried)
            NEB_TRY(take_bytes(o, &o->pieces[r], e.bytes, r));
        o->payload[f] += e.bytes - UPDATE_HEAD;
        sum += e.error; // only one rank measures, the others send 0
    }
    if (error)
        *error = sum;
    return NEB_OK;
}

enum neb_status shards_collect(struct agent_shards *o, int32_t f, float mine, float *error,
                               const struct neb_buf *own, struct neb_buf *out) {
    NEB_TRY(collect(o, f, mine, error, own));
    if (o->ranks == 1 || o->carried)
        return NEB_OK;
    enum neb_status st = o->rank == 0 ? join_pieces(o, out) : NEB_OK;
    free_pieces(o);
    return st;
}

enum neb_status shards_do_send(struct agent_shards *o, const struct agent_part_key *k) {
    const struct neb_buf *b = &o->sent[k->fragment];
    enum neb_status st = o->rank ? o->t.carrier_ops->put(o->t.carrier, k, b->p, b->len) : NEB_OK;
    return intra_comm_agree(o->t.world, st);
}

enum neb_status agent_shards_send(struct agent_shards *o, const struct agent_part_key *k) {
    struct agent_part_key key = *k;
    if (!o->carried)
        return NEB_OK;
    NEB_TRY(shards_begin(o, SHARDS_SEND, &key, sizeof key));
    return shards_do_send(o, k);
}

enum neb_status shards_do_renew(struct agent_shards *o) {
    return intra_comm_agree(o->t.world, o->rank ? o->t.carrier_ops->renew(o->t.carrier) : NEB_OK);
}

enum neb_status agent_shards_renew(struct agent_shards *o) {
    int32_t none = 0;
    if (!o->carried)
        return NEB_OK;
    NEB_TRY(shards_begin(o, SHARDS_RENEW, &none, sizeof none));
    return shards_do_renew(o);
}

// ---- a commit ----

void agent_shards_expect(struct agent_shards *o, const struct agent_shards_commit *c) {
    o->commit = *c;
}

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
        struct neb_buf *b = &o->pieces[to];
        NEB_TRY(
            shards_post(o, o->sizes + (size_t)to * INTER_PARTS_MAX, head, to, SHARDS_TAG_SIZES));
        NEB_TRY(shards_post(o, b->p, b->len, to, SHARDS_TAG_FRAMES));
        neb_buf_free(b);
    }
    if (o->rank == 0)
        return NEB_OK;
    uint64_t all = 0;
    NEB_TRY(shards_take(o, o->sizes, head, 0, SHARDS_TAG_SIZES));
    // The size is safe: rank 0 holds as much itself, and the gate has checked it.
    for (uint32_t p = 0; p < n; p++)
        all += o->sizes[p];
    return take_bytes(o, &o->pieces[0], all, 0);
}

static enum neb_status take_carried(struct agent_shards *o, const struct shards_merge *a,
                                    const struct inter_outer_round *r) {
    const struct agent_part_key key = {.fragment = a->f, .round = a->commit.round};
    struct agent_ipc_part all[AGENT_IPC_PARTS_MAX];
    size_t n = 0;
    for (size_t p = 0; r && p < r->n; p++)
        o->taken[p] = (struct agent_ipc_part){r->parts[p].blob, r->parts[p].len};
    if (o->rank == 0)
        return NEB_OK;
    NEB_TRY(o->t.carrier_ops->take(o->t.carrier, &key, all, &n));
    for (uint32_t p = 0; p < a->n; p++) {
        if (a->commit.index[p] >= n)
            return neb_fail(NEB_ERR_FORMAT, "the agent sent %zu parts of a commit that has more",
                            n);
        o->taken[p] = all[a->commit.index[p]];
    }
    return NEB_OK;
}

enum neb_status shards_take_commit(struct agent_shards *o, const struct shards_merge *a,
                                   const struct inter_outer_round *r) {
    if (o->carried)
        return intra_comm_agree(o->t.world, take_carried(o, a, r));
    NEB_TRY(intra_comm_agree(o->t.world, o->rank == 0 ? cut(o, r) : NEB_OK));
    NEB_TRY(pass_parts(o, a->n));
    const uint8_t *at = o->pieces[0].p;
    for (uint32_t p = 0; p < a->n; p++) {
        o->taken[p] = (struct agent_ipc_part){at, o->sizes[p]};
        at += o->sizes[p];
    }
    return NEB_OK;
}

void shards_commit_done(struct agent_shards *o, const struct shards_merge *a) {
    const struct agent_part_key key = {.fragment = a->f, .round = a->commit.round};
    free_pieces(o);
    if (o->carried && o->rank) {
        o->t.carrier_ops->done(o->t.carrier, &key);
        neb_buf_free(&o->sent[a->f]);
    }
}

// ---- an update in flight, to a checkpoint and back ----

enum neb_status shards_do_give_flight(struct agent_shards *o, int32_t f, const struct neb_buf *own,
                                      struct intra_ckpt_writer *out) {
    uint64_t bytes = o->sent[f].len;
    struct neb_buf *b = &o->pieces[0];
    enum neb_status written = NEB_OK;
    char name[64];
    if (o->rank) {
        NEB_TRY(shards_post(o, &bytes, sizeof bytes, 0, SHARDS_TAG_SIZES));
        return bytes ? shards_post(o, o->sent[f].p, bytes, 0, SHARDS_TAG_FRAMES) : NEB_OK;
    }
    for (int r = 0; r < o->ranks; r++) {
        const struct neb_buf *part = r ? b : own;
        if (r) {
            NEB_TRY(shards_take(o, &bytes, sizeof bytes, r, SHARDS_TAG_SIZES));
            NEB_TRY(believable(o, r, bytes));
            neb_buf_clear(b);
            if (bytes) // a rank has no part of a fragment that this cluster follows
                NEB_TRY(take_bytes(o, b, bytes, r));
        }
        snprintf(name, sizeof name, "sync.blob.%d/%d", f, r);
        if (written == NEB_OK && part->len)
            written = intra_ckpt_add(out, name, INTRA_BYTES, part->len, 1, part->p);
    }
    neb_buf_free(b);
    return written;
}

enum neb_status agent_shards_save_flight(struct agent_shards *o, int32_t f,
                                         const struct neb_buf *own, struct intra_ckpt_writer *out) {
    char name[64];
    snprintf(name, sizeof name, "sync.blob.%d", f);
    if (!o->carried)
        return intra_ckpt_add(out, name, INTRA_BYTES, own->len, 1, own->p);
    NEB_TRY(shards_begin(o, SHARDS_GIVE_FLIGHT, &f, sizeof f));
    return shards_do_give_flight(o, f, own, out);
}

// Adds the units of a piece to a part.
static enum neb_status add_units(struct neb_buf *part, const struct neb_buf *piece) {
    struct neb_buf both = {0};
    const struct cmp_update_piece two[2] = {{piece->p, piece->len}, {part->p, part->len}};
    enum neb_status st = join(two, part->len ? 2 : 1, &both);
    neb_buf_free(part);
    *part = both;
    return st;
}

enum neb_status shards_do_take_flight(struct agent_shards *o, int32_t f,
                                      const struct neb_buf *piece, struct neb_buf *own) {
    enum neb_status st = NEB_OK;
    for (int r = 0; r < o->ranks && o->rank == 0 && st == NEB_OK; r++) {
        neb_buf_clear(&o->pieces[r]);
        st = cmp_update_cut(piece->p, piece->len, o->owner, (uint32_t)o->n, r, &o->pieces[r]);
    }
    NEB_TRY(intra_comm_agree(o->t.world, st));
    for (int r = 1; r < o->ranks; r++) {
        struct neb_buf *b = &o->pieces[o->rank == 0 ? r : 0];
        uint64_t bytes = b->len;
        if (o->rank == 0) {
            NEB_TRY(shards_post(o, &bytes, sizeof bytes, r, SHARDS_TAG_SIZES));
            NEB_TRY(shards_post(o, b->p, bytes, r, SHARDS_TAG_FRAMES));
        } else if (o->rank == r) {
            NEB_TRY(shards_take(o, &bytes, sizeof bytes, 0, SHARDS_TAG_SIZES));
            NEB_TRY(take_bytes(o, b, bytes, 0));
        }
    }
    st = add_units(o->rank ? &o->sent[f] : own, &o->pieces[0]);
    free_pieces(o);
    return intra_comm_agree(o->t.world, st);
}

// Rank 0 hands one piece of an update to the owners of its units.
static enum neb_status restore_piece(struct agent_shards *o, int32_t f, struct neb_buf *piece,
                                     struct neb_buf *own) {
    o->payload[f] += piece->len - (o->payload[f] ? UPDATE_HEAD : 0);
    if (!o->carried && !own->len) { // the whole update, which may be a masked one
        struct neb_buf whole = *piece;
        *piece = *own;
        *own = whole;
        return NEB_OK;
    }
    if (!o->carried)
        return add_units(own, piece);
    NEB_TRY(shards_begin(o, SHARDS_TAKE_FLIGHT, &f, sizeof f));
    return shards_do_take_flight(o, f, piece, own);
}

enum neb_status agent_shards_restore_flight(struct agent_shards *o, int32_t f,
                                            const struct intra_ckpt *c, struct neb_buf *own) {
    char name[64];
    bool any = false;
    struct neb_buf piece = {0};
    enum neb_status st = NEB_OK;
    neb_buf_clear(own);
    o->payload[f] = 0;
    for (int r = -1; st == NEB_OK; r++) {
        snprintf(name, sizeof name, r < 0 ? "sync.blob.%d" : "sync.blob.%d/%d", f, r);
        const struct intra_ckpt_section *s = intra_ckpt_find(c, name);
        if (!s && r < 0)
            continue;
        if (!s)
            break;
        any = true;
        neb_buf_clear(&piece);
        st = neb_buf_reserve(&piece, s->bytes);
        if (st == NEB_OK)
            st = intra_ckpt_range(c, s, 0, piece.p, s->bytes);
        piece.len = s->bytes;
        if (st == NEB_OK)
            st = restore_piece(o, f, &piece, own);
    }
    neb_buf_free(&piece);
    return st == NEB_OK && !any
               ? neb_fail(NEB_ERR_CORRUPT, "%s: the update in flight of fragment %d is missing",
                          intra_ckpt_path(c), f)
               : st;
}
