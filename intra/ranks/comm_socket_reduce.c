// SPDX-License-Identifier: Apache-2.0
// Collectives over pairwise connections. An array to reduce is cut into a row per rank, and rows
// into pieces:
//
//     each rank ── its row k ──► rank k, which adds in rank order ── sums ──► all (or the root)
//
// So every rank sends and receives (ranks - 1) / ranks of the array twice. A sum depends on the
// inputs only, not on the order of arrival. A piece is added while the next ones are in flight.
// Short arrays go to all at once, and each rank adds them in the same order.
#include "intra/ranks/comm_socket.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHORT_BYTES = 4096,
    GATHER_PIECES = 4, // times the piece size, where nothing is added
};

// ---- messages of a collective -------------------------------------------------------------------

void socket_group_free_room(struct socket_group *g) {
    free(g->sends);
    free(g->recvs);
    free(g->stage);
}

static enum neb_status begin_collective(struct intra_comm *c) {
    struct socket_group *g = socket_group_of(c);
    NEB_TRY(socket_usable(g->hub));
    g->sequence++;
    if (g->stage)
        return NEB_OK;
    size_t n = (size_t)SOCKET_PIECES * (size_t)c->size;
    socket_group_free_room(g);
    g->sends = calloc(2 * n, sizeof *g->sends);
    g->recvs = calloc(2 * n, sizeof *g->recvs);
    g->stage = malloc(n * SOCKET_PIECE_BYTES);
    if (!g->sends || !g->recvs || !g->stage) {
        socket_group_free_room(g);
        g->sends = NULL, g->recvs = NULL, g->stage = NULL;
        return neb_fail(NEB_ERR_NOMEM, "out of memory for collectives of %d ranks", c->size);
    }
    g->gives = g->sends + n;
    g->takes = g->recvs + n;
    return NEB_OK;
}

static uint8_t *stage(struct intra_comm *c, size_t piece, int k) {
    size_t slot = piece % SOCKET_PIECES;
    return socket_group_of(c)->stage + (slot * (size_t)c->size + (size_t)k) * SOCKET_PIECE_BYTES;
}

static size_t at(struct intra_comm *c, size_t piece, int k) {
    return piece % SOCKET_PIECES * (size_t)c->size + (size_t)k;
}

static void send_to(struct intra_comm *c, int k, const void *x, size_t bytes,
                    struct socket_send *s) {
    struct socket_group *g = socket_group_of(c);
    if (bytes && k != c->rank)
        socket_post_send(g->hub, g->ranks[k], g->id, SOCKET_COLLECTIVE, (int32_t)g->sequence, x,
                         bytes, s);
}

static void recv_from(struct intra_comm *c, int k, void *x, size_t bytes, struct socket_recv *r) {
    struct socket_group *g = socket_group_of(c);
    if (bytes && k != c->rank)
        socket_post_recv(g->hub, g->ranks[k], g->id, SOCKET_COLLECTIVE, (int32_t)g->sequence, x,
                         bytes, r);
}

// Waits for a receive; returns at once if r is zeroed or done.
static enum neb_status come(struct intra_comm *c, int k, struct socket_recv *r, const char *what) {
    struct socket_group *g = socket_group_of(c);
    NEB_TRY(socket_wait_recv(g->hub, g->ranks[k], r, what));
    if (r->came != r->bytes)
        return socket_disagree(g->hub, g->ranks[k], what);
    return NEB_OK;
}

// Waits for all messages that use this piece's buffers.
static enum neb_status settle_piece(struct intra_comm *c, size_t piece, const char *what) {
    struct socket_group *g = socket_group_of(c);
    for (int k = 0; k < c->size; k++) {
        size_t i = at(c, piece, k);
        NEB_TRY(socket_wait_send(g->hub, g->ranks[k], &g->sends[i], what));
        NEB_TRY(socket_wait_send(g->hub, g->ranks[k], &g->gives[i], what));
        NEB_TRY(come(c, k, &g->recvs[i], what));
        NEB_TRY(come(c, k, &g->takes[i], what));
    }
    return NEB_OK;
}

static enum neb_status settle_all(struct intra_comm *c, const char *what) {
    for (size_t i = 0; i < SOCKET_PIECES; i++)
        NEB_TRY(settle_piece(c, i, what));
    return NEB_OK;
}

// ---- rows ---------------------------------------------------------------------------------------

struct rows {
    uint8_t *x;
    size_t n, each, more; // elements: of x; of a row; rows with one element more
    size_t width;         // bytes of an element
    size_t piece;         // elements
};

static struct rows cut(struct intra_comm *c, void *x, size_t n, size_t width, size_t piece) {
    size_t ranks = (size_t)c->size;
    return (struct rows){.x = x,
                         .n = n,
                         .each = n / ranks,
                         .more = n % ranks,
                         .width = width,
                         .piece = piece / width};
}

static size_t pieces(const struct rows *r) {
    return (r->each + (r->more > 0) + r->piece - 1) / r->piece;
}

// Piece p of row k.
static uint8_t *part(const struct rows *r, int k, size_t p, size_t *bytes) {
    size_t row = (size_t)k, len = r->each + (row < r->more), from = p * r->piece;
    size_t before = row * r->each + (row < r->more ? row : r->more);
    size_t n = from >= len ? 0 : len - from < r->piece ? len - from : r->piece;
    *bytes = n * r->width;
    return r->x + (before + (n ? from : 0)) * r->width;
}

// Sums piece p of this rank's row. The order is the same on every rank: ((rank 0 + rank 1) + …).
static enum neb_status add_up(struct intra_comm *c, const struct rows *r, size_t p,
                              enum intra_comm_type t, enum intra_comm_op op, const char *what) {
    struct socket_group *g = socket_group_of(c);
    size_t bytes, n;
    uint8_t *own = part(r, c->rank, p, &bytes);
    n = bytes / r->width;
    for (int k = 0; k < c->size; k++)
        NEB_TRY(come(c, k, &g->recvs[at(c, p, k)], what));
    for (int k = 1; k < c->rank; k++)
        intra_comm_fold(stage(c, p, 0), stage(c, p, k), n, t, op);
    if (c->rank > 0)
        intra_comm_fold(own, stage(c, p, 0), n, t, op);
    for (int k = c->rank + 1; k < c->size; k++)
        intra_comm_fold(own, stage(c, p, k), n, t, op);
    return NEB_OK;
}

enum { TO_NOBODY = -1, TO_ALL = -2 }; // or a rank

static enum neb_status reduce_rows(struct intra_comm *c, const struct rows *r,
                                   enum intra_comm_type t, enum intra_comm_op op, int to,
                                   const char *what) {
    struct socket_group *g = socket_group_of(c);
    size_t n = pieces(r), bytes, own_bytes;
    for (size_t p = 0; p <= n && n; p++) {
        if (p < n) {
            NEB_TRY(settle_piece(c, p, what));
            (void)part(r, c->rank, p, &own_bytes);
            for (int k = 0; k < c->size; k++) {
                const uint8_t *x = part(r, k, p, &bytes);
                recv_from(c, k, stage(c, p, k), own_bytes, &g->recvs[at(c, p, k)]);
                send_to(c, k, x, bytes, &g->sends[at(c, p, k)]);
            }
        }
        if (p == 0)
            continue;
        size_t q = p - 1;
        NEB_TRY(add_up(c, r, q, t, op, what));
        const uint8_t *own = part(r, c->rank, q, &own_bytes);
        for (int k = 0; k < c->size; k++) {
            uint8_t *x = part(r, k, q, &bytes);
            if (to == TO_ALL || to == k)
                send_to(c, k, own, own_bytes, &g->gives[at(c, q, k)]);
            if (to == TO_ALL || to == c->rank)
                recv_from(c, k, x, bytes, &g->takes[at(c, q, k)]);
        }
    }
    return settle_all(c, what);
}

// ---- the collectives ----------------------------------------------------------------------------

static enum neb_status reduce_short(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                    enum intra_comm_op op, const char *what) {
    struct socket_group *g = socket_group_of(c);
    size_t bytes = n * intra_comm_type_bytes(t);
    memcpy(stage(c, 0, c->rank), x, bytes);
    for (int k = 0; k < c->size; k++) {
        recv_from(c, k, stage(c, 0, k), bytes, &g->recvs[k]);
        send_to(c, k, x, bytes, &g->sends[k]);
    }
    NEB_TRY(settle_piece(c, 0, what));
    for (int k = 1; k < c->size; k++)
        intra_comm_fold(stage(c, 0, 0), stage(c, 0, k), n, t, op);
    memcpy(x, stage(c, 0, 0), bytes);
    return NEB_OK;
}

enum neb_status socket_all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    size_t width = intra_comm_type_bytes(t);
    NEB_TRY(begin_collective(c));
    if (n == 0)
        return NEB_OK;
    if (n * width <= SHORT_BYTES)
        return reduce_short(c, x, n, t, op, "all-reduce");
    struct rows r = cut(c, x, n, width, SOCKET_PIECE_BYTES);
    return reduce_rows(c, &r, t, op, TO_ALL, "all-reduce");
}

enum neb_status socket_reduce(struct intra_comm *c, float *x, size_t n, int root) {
    NEB_ASSERT(root >= 0 && root < c->size);
    NEB_TRY(begin_collective(c));
    struct rows r = cut(c, x, n, sizeof *x, SOCKET_PIECE_BYTES);
    return reduce_rows(c, &r, INTRA_COMM_F32, INTRA_COMM_SUM, root, "reduce");
}

enum neb_status socket_reduce_scatter(struct intra_comm *c, float *x, size_t n) {
    NEB_TRY(begin_collective(c));
    struct rows r = cut(c, x, n * (size_t)c->size, sizeof *x, SOCKET_PIECE_BYTES);
    return reduce_rows(c, &r, INTRA_COMM_F32, INTRA_COMM_SUM, TO_NOBODY, "reduce-scatter");
}

enum neb_status socket_all_gather(struct intra_comm *c, float *x, size_t n) {
    struct socket_group *g = socket_group_of(c);
    size_t bytes, own_bytes;
    NEB_TRY(begin_collective(c));
    struct rows r =
        cut(c, x, n * (size_t)c->size, sizeof *x, (size_t)GATHER_PIECES * SOCKET_PIECE_BYTES);
    for (size_t p = 0; p < pieces(&r); p++) {
        NEB_TRY(settle_piece(c, p, "all-gather"));
        const uint8_t *own = part(&r, c->rank, p, &own_bytes);
        for (int k = 0; k < c->size; k++) {
            uint8_t *row = part(&r, k, p, &bytes);
            send_to(c, k, own, own_bytes, &g->sends[at(c, p, k)]);
            recv_from(c, k, row, bytes, &g->recvs[at(c, p, k)]);
        }
    }
    return settle_all(c, "all-gather");
}

// The root sends each rank its row, and that rank sends it on to the others. The root itself sends
// its own row to all, or everything if the array is short or there are two ranks.
enum neb_status socket_broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    struct socket_group *g = socket_group_of(c);
    static const char what[] = "broadcast";
    bool whole = c->size == 2 || bytes <= SHORT_BYTES, here = c->rank == root;
    size_t own_bytes, row_bytes;
    NEB_ASSERT(root >= 0 && root < c->size);
    NEB_TRY(begin_collective(c));
    struct rows r = cut(c, x, bytes, 1, (size_t)GATHER_PIECES * SOCKET_PIECE_BYTES);
    if (whole) // one row, the root's
        r.each = bytes, r.more = 0;
    size_t n = pieces(&r);
    for (size_t p = 0; p <= n && n; p++) {
        if (p < n) {
            NEB_TRY(settle_piece(c, p, what));
            uint8_t *roots = part(&r, whole ? 0 : root, p, &row_bytes);
            for (int k = 0; k < c->size && here; k++) {
                const uint8_t *row = part(&r, whole ? 0 : k, p, &own_bytes);
                if (!whole)
                    send_to(c, k, row, own_bytes, &g->sends[at(c, p, k)]);
                send_to(c, k, roots, row_bytes, &g->gives[at(c, p, k)]);
            }
            uint8_t *own = part(&r, whole ? 0 : c->rank, p, &own_bytes);
            if (!here && !whole)
                recv_from(c, root, own, own_bytes, &g->recvs[at(c, p, root)]);
            if (!here)
                recv_from(c, root, roots, row_bytes, &g->takes[at(c, p, root)]);
        }
        if (p == 0 || here || whole)
            continue;
        size_t q = p - 1;
        NEB_TRY(come(c, root, &g->recvs[at(c, q, root)], what));
        const uint8_t *own = part(&r, c->rank, q, &own_bytes);
        for (int k = 0; k < c->size; k++) {
            uint8_t *row = part(&r, k, q, &row_bytes);
            if (k == root)
                continue;
            send_to(c, k, own, own_bytes, &g->sends[at(c, q, k)]);
            recv_from(c, k, row, row_bytes, &g->takes[at(c, q, k)]);
        }
    }
    return settle_all(c, what);
}

enum neb_status socket_barrier(struct intra_comm *c) {
    uint64_t nothing = 0;
    return socket_all_reduce(c, &nothing, 1, INTRA_COMM_U64, INTRA_COMM_SUM);
}
