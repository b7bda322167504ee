// SPDX-License-Identifier: Apache-2.0
// Collectives go along a binomial tree: with 8 ranks a short reduction takes 3 messages up and 3
// down, and rank 0 makes 6 calls of a hook instead of 14. Every loop step makes such a reduction.
#include "agent/lib/ranks.h"
#include "agent/base/bytes.h"

#include <string.h>

enum {
    FRAME_BYTES = 128,
    HEAD_BYTES = 20,
    INLINE_BYTES = FRAME_BYTES - HEAD_BYTES,
    PIECE_BYTES = 1 << 16, // of a reduction
    MAGIC = 0x3152424e,    // "NBR1"
};
enum { TAG_REDUCE = -1, TAG_BROADCAST = -2 }; // the tags of callers are not negative

struct ranks {
    struct nebula_ranks hooks;
    bool lost; // a hook failed, or a rank made another call: the group cannot be used any more
    _Alignas(8) unsigned char piece[PIECE_BYTES]; // of any type
};

static struct ranks *ranks_of(struct intra_comm *c) { return c->ctx; }

static enum neb_status lose(struct intra_comm *c, const char *what, int other) {
    ranks_of(c)->lost = true;
    return neb_fail(NEB_ERR_IO,
                    "rank %d cannot %s rank %d: that rank has ended, or the loop's process group "
                    "has failed",
                    c->rank, what, other);
}

static enum neb_status usable(struct intra_comm *c) {
    return ranks_of(c)->lost ? neb_fail(NEB_ERR_STATE, "the loop's process group has failed before")
                             : NEB_OK;
}

static enum neb_status put(struct intra_comm *c, const void *x, size_t bytes, int to, int tag) {
    const struct nebula_ranks *h = &ranks_of(c)->hooks;
    unsigned char frame[FRAME_BYTES] = {0};
    size_t first = bytes < INLINE_BYTES ? bytes : INLINE_BYTES;
    NEB_TRY(usable(c));
    neb_put_u32(frame, MAGIC);
    neb_put_u64(frame + 4, (uint64_t)(int64_t)tag);
    neb_put_u64(frame + 12, bytes);
    if (first)
        memcpy(frame + HEAD_BYTES, x, first);
    if (h->send(h->user, frame, sizeof frame, to) != 0)
        return lose(c, "send to", to);
    if (bytes > first && h->send(h->user, (const char *)x + first, bytes - first, to) != 0)
        return lose(c, "send to", to);
    return NEB_OK;
}

static enum neb_status take(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    const struct nebula_ranks *h = &ranks_of(c)->hooks;
    unsigned char frame[FRAME_BYTES];
    size_t first = bytes < INLINE_BYTES ? bytes : INLINE_BYTES;
    NEB_TRY(usable(c));
    if (h->recv(h->user, frame, sizeof frame, from) != 0)
        return lose(c, "receive from", from);
    struct neb_rd r = neb_rd_make(frame, HEAD_BYTES);
    uint32_t magic = neb_rd_u32(&r);
    int64_t got_tag = (int64_t)neb_rd_u64(&r);
    uint64_t got = neb_rd_u64(&r);
    if (magic != MAGIC || got_tag != tag || got != bytes) {
        ranks_of(c)->lost = true;
        return neb_fail(NEB_ERR_IO,
                        "rank %d sent message %lld of %llu bytes, but rank %d expects %d of %zu: "
                        "the ranks make different calls",
                        from, (long long)got_tag, (unsigned long long)got, c->rank, tag, bytes);
    }
    if (first)
        memcpy(x, frame + HEAD_BYTES, first);
    if (bytes > first && h->recv(h->user, (char *)x + first, bytes - first, from) != 0)
        return lose(c, "receive from", from);
    return NEB_OK;
}

// ---- collectives --------------------------------------------------------------------------------

// Positions count from the root; the parent of a position lacks its lowest bit.
static int position(const struct intra_comm *c, int root) {
    return (c->rank - root + c->size) % c->size;
}
static int rank_at(const struct intra_comm *c, int root, int at) { return (at + root) % c->size; }

static enum neb_status reduce_piece(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                    enum intra_comm_op op, int root) {
    size_t bytes = n * intra_comm_type_bytes(t);
    int me = position(c, root);
    for (int bit = 1; bit < c->size; bit *= 2) {
        if (me & bit)
            return put(c, x, bytes, rank_at(c, root, me - bit), TAG_REDUCE);
        if (me + bit >= c->size)
            continue;
        NEB_TRY(take(c, ranks_of(c)->piece, bytes, rank_at(c, root, me + bit), TAG_REDUCE));
        intra_comm_fold(x, ranks_of(c)->piece, n, t, op);
    }
    return NEB_OK;
}

static enum neb_status reduce_to(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                 enum intra_comm_op op, int root) {
    size_t most = PIECE_BYTES / intra_comm_type_bytes(t);
    for (size_t at = 0; at < n; at += most)
        NEB_TRY(reduce_piece(c, (char *)x + at * intra_comm_type_bytes(t),
                             n - at < most ? n - at : most, t, op, root));
    return NEB_OK;
}

static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    int me = position(c, root), bit = 1;
    while (bit < c->size && !(me & bit))
        bit *= 2;
    if (me)
        NEB_TRY(take(c, x, bytes, rank_at(c, root, me - bit), TAG_BROADCAST));
    for (bit /= 2; bit; bit /= 2)
        if (me + bit < c->size)
            NEB_TRY(put(c, x, bytes, rank_at(c, root, me + bit), TAG_BROADCAST));
    return NEB_OK;
}

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    NEB_TRY(reduce_to(c, x, n, t, op, 0));
    return broadcast(c, x, n * intra_comm_type_bytes(t), 0);
}

static enum neb_status reduce(struct intra_comm *c, float *x, size_t n, int root) {
    return reduce_to(c, x, n, INTRA_COMM_F32, INTRA_COMM_SUM, root);
}

static enum neb_status reduce_scatter(struct intra_comm *c, float *x, size_t n) {
    for (int r = 0; r < c->size; r++)
        NEB_TRY(reduce(c, x + (size_t)r * n, n, r));
    return NEB_OK;
}

static enum neb_status all_gather(struct intra_comm *c, float *x, size_t n) {
    for (int r = 0; r < c->size; r++)
        NEB_TRY(broadcast(c, x + (size_t)r * n, n * sizeof *x, r));
    return NEB_OK;
}

static enum neb_status barrier(struct intra_comm *c) {
    uint64_t none = 0;
    return all_reduce(c, &none, 1, INTRA_COMM_U64, INTRA_COMM_MAX);
}

// ---- point to point -----------------------------------------------------------------------------

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *s) {
    NEB_ASSERT(to >= 0 && to < c->size && to != c->rank && tag >= 0);
    s->handle = NULL;
    return put(c, x, bytes, to, tag);
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *s) {
    (void)c;
    s->handle = NULL; // send has waited
    return NEB_OK;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    NEB_ASSERT(from >= 0 && from < c->size && from != c->rank && tag >= 0);
    return take(c, x, bytes, from, tag);
}

static void abort_all(struct intra_comm *c) { ranks_of(c)->lost = true; }
static bool is_lost(struct intra_comm *c) { return ranks_of(c)->lost; }

static const struct intra_comm_ops ranks_ops = {
    .name = "loop",
    .all_reduce = all_reduce,
    .reduce = reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .send = send,
    .wait = wait_send,
    .recv = recv,
    .barrier = barrier,
    .abort = abort_all,
    .lost = is_lost,
    .destroy = intra_comm_free,
};

enum neb_status lib_ranks_create(const struct nebula_ranks *hooks, struct intra_comm **out) {
    NEB_TRY(intra_comm_make(&ranks_ops, sizeof(struct ranks), hooks->rank, hooks->ranks, out));
    ranks_of(*out)->hooks = *hooks;
    return NEB_OK;
}
