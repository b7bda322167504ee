// SPDX-License-Identifier: Apache-2.0
// Units between the ranks that hold their elements and the ranks that own them.
//
//     read    holders ── elements that the owner lacks ──► owner: unit in fp32
//     write   owner ── every holder's elements ──────────► holders, in their dtype
//
// The owner copies its own elements without a message; a unit that lies in its memory as the
// exchange needs it is not copied at all (agent_unit.data). The rest travels packed, unit by unit,
// in messages of at most the largest unit, so no rank needs more room than that. A send may wait
// for its receiver: all ranks go through the pairs of ranks in one order, round by round as in a
// tournament, and in a pair the lower rank sends first.
#include "agent/base/sha256.h"
#include "agent/exchange/manifest.h"
#include "agent/lib/state.h"
#include "kernels/quant.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TAG_MOVES = 32020 }; // after the tags of the exchange

// ---- between a piece and fp32 -------------------------------------------------------------------

struct side { // of a walk over the boxes of one unit
    struct nebula *n;
    const struct lib_tensor *t;
    const struct lib_piece *piece;
    float *unit;   // where its first element is; NULL: packed
    int64_t first; // of the unit
    float *packed; // the next element of a message
    float *image;  // the unit on the host, for pieces on a device
    bool write;
};

static void coordinates(const struct lib_tensor *t, int64_t i, int64_t *at) {
    for (int32_t k = t->dims - 1; k >= 0; k--) {
        at[k] = i % t->shape[k];
        i /= t->shape[k];
    }
}

// Remembers the first value that is not finite, in the order of the tensors' list.
static void check(struct side *s, const struct lib_copy_block *b, int64_t at, int64_t pitch,
                  const float *x) {
    bool finite = true;
    struct nebula *n = s->n;
    for (size_t r = 0; r < b->runs && finite && !n->bad; r++, x += b->host_pitch, at += pitch) {
        (void)kern_absmax(x, b->len, &finite);
        for (size_t i = 0; i < b->len && !finite && !n->bad; i++)
            if (!isfinite(x[i])) {
                n->bad = s->t;
                n->bad_at = at + (int64_t)i;
            }
    }
}

// A piece on a device is read to the unit's image before the walk, and written from there after it.
static void move_image(struct side *s, const struct lib_copy_block *b, int64_t at, int64_t pitch,
                       float *host) {
    for (size_t r = 0; r < b->runs; r++, host += b->host_pitch) {
        float *image = s->image + (at - s->first) + (int64_t)r * pitch;
        if (image != host)
            memcpy(s->write ? image : host, s->write ? host : image, b->len * sizeof *host);
    }
}

static enum neb_status move(struct side *s, const struct lib_copy_block *b, int64_t at,
                            int64_t pitch, size_t there, float *host) {
    char *p = (char *)s->piece->data +
              there * (s->t->dtype == NEBULA_F32 ? sizeof(float) : sizeof(uint16_t));
    if (s->piece->place == NEBULA_CUDA)
        move_image(s, b, at, pitch, host);
    else if (s->write)
        lib_copy_write(b, p, host);
    else
        lib_copy_read(b, host, p);
    if (!s->write)
        check(s, b, at, pitch, host);
    return NEB_OK;
}

// Elements [at, at + len) of the tensor, dimension by dimension: for memory with gaps.
static enum neb_status move_sparse(struct side *s, int64_t at, int64_t len, float *host) {
    const struct lib_tensor *t = s->t;
    const struct lib_piece *p = s->piece;
    int32_t last = t->dims - 1;
    while (len > 0) {
        int64_t c[NEBULA_DIMS_MAX] = {0}, there = 0, n = 1;
        coordinates(t, at, c);
        for (int32_t k = 0; k < t->dims; k++)
            there += (c[k] - p->box.at[k]) * p->stride[k];
        if (t->dims)
            n = p->box.at[last] + p->box.n[last] - c[last];
        n = n < len ? n : len;
        const struct lib_copy_block b = {.len = (size_t)n,
                                         .runs = 1,
                                         .step = t->dims ? (size_t)p->stride[last] : 1,
                                         .dtype = t->dtype};
        NEB_TRY(move(s, &b, at, 0, (size_t)there, host));
        at += n, len -= n, host += n;
    }
    return NEB_OK;
}

static enum neb_status move_block(void *user, const struct pieces_block *block) {
    struct side *s = user;
    const struct lib_tensor *t = s->t;
    const struct lib_piece *p = s->piece;
    int64_t c[NEBULA_DIMS_MAX] = {0}, there = 0, pitch = 0, behind = 1;
    float *host = s->unit ? s->unit + (block->at - s->first) : s->packed;
    int64_t host_pitch = s->unit ? block->pitch : block->len;
    s->packed += s->unit ? 0 : block->len * block->runs;
    bool dense = p->dense || p->place == NEBULA_CUDA; // the image has no gaps
    for (int64_t r = 0; r < block->runs && !dense; r++)
        NEB_TRY(move_sparse(s, block->at + r * block->pitch, block->len, host + r * host_pitch));
    if (!dense)
        return NEB_OK;
    coordinates(t, block->at, c);
    for (int32_t k = t->dims - 1; k >= 0; k--) { // to the next run: one dimension advances by one
        there += (c[k] - p->box.at[k]) * p->stride[k];
        pitch = behind == block->pitch && t->shape[k] > 1 ? p->stride[k] : pitch;
        behind *= t->shape[k];
    }
    const struct lib_copy_block b = {.len = (size_t)block->len,
                                     .runs = (size_t)block->runs,
                                     .step = 1,
                                     .pitch = (size_t)pitch,
                                     .host_pitch = (size_t)host_pitch,
                                     .dtype = t->dtype};
    return move(s, &b, block->at, block->pitch, (size_t)there, host);
}

static const struct lib_piece *piece_of(const struct lib_tensor *t, const struct pieces_box *b) {
    for (size_t i = 0; i < t->n_pieces; i++)
        if (pieces_overlap(t->dims, &t->pieces[i].box, b))
            return &t->pieces[i];
    return NULL;
}

// Moves all elements of the boxes that lie in the unit. Pieces of this rank hold them.
static enum neb_status move_boxes(struct side *s, const struct pieces_boxes *boxes, int64_t end) {
    for (size_t i = 0; i < boxes->len; i++) {
        s->piece = piece_of(s->t, &boxes->p[i]);
        if (s->piece)
            NEB_TRY(
                pieces_walk(s->t->dims, s->t->shape, &boxes->p[i], s->first, end, move_block, s));
    }
    return NEB_OK;
}

// ---- between ranks ------------------------------------------------------------------------------

static int64_t end_of(const struct nebula *n, int32_t unit) {
    return n->first[unit] + (int64_t)agent_unit_size(&n->units[unit]);
}

static enum neb_status know_peer(struct nebula *n, struct lib_tensor *t, int other) {
    struct lib_peer *p = &t->peers[other];
    if (p->known)
        return NEB_OK;
    p->known = true;
    NEB_TRY(pieces_sent(t->dims, t->held, n->rank, other, &p->give));
    return pieces_sent(t->dims, t->held, other, n->rank, &p->take);
}

// What a move sends from one rank to another; NULL: nothing. A read brings to the owner the
// elements that it lacks. A write brings to a holder the values of its elements.
static const struct pieces_boxes *travels(const struct nebula *n, const struct agent_move *m,
                                          int from, int to, bool write) {
    const struct lib_tensor *t = n->of[m->unit];
    if (m->rank != (write ? from : to))
        return NULL;
    return write ? &t->held[to] : from == n->rank ? &t->peers[to].give : &t->peers[from].take;
}

// Packs a box of the owner's unit, or unpacks into it.
struct pack {
    float *unit, *packed;
    int64_t first;
    bool into_unit;
};
static enum neb_status pack_block(void *user, const struct pieces_block *b) {
    struct pack *p = user;
    for (int64_t r = 0; r < b->runs; r++, p->packed += b->len) {
        float *at = p->unit + (b->at + r * b->pitch - p->first);
        memcpy(p->into_unit ? at : p->packed, p->into_unit ? p->packed : at,
               (size_t)b->len * sizeof *at);
    }
    return NEB_OK;
}

// One message, with the moves [first, last).
static enum neb_status pass(struct nebula *n, const struct agent_move *moves, int32_t first,
                            int32_t last, size_t floats, int from, int to, bool write) {
    bool sends = n->rank == from, owns = sends == write;
    struct intra_comm *w = n->world;
    struct intra_comm_send send = {0};
    float *at = n->buffer;
    if (!sends)
        NEB_TRY(w->ops->recv(w, n->buffer, floats * sizeof *n->buffer, from, TAG_MOVES));
    enum neb_status st = NEB_OK;
    for (int32_t i = first; i < last && st == NEB_OK; i++) {
        const struct pieces_boxes *b = travels(n, &moves[i], from, to, write);
        const struct lib_tensor *t = n->of[moves[i].unit];
        int64_t begin = n->first[moves[i].unit], end = end_of(n, moves[i].unit);
        if (!b)
            continue;
        bool there = !owns && lib_device_has(t);
        struct side s = {.n = n, .t = t, .first = begin, .packed = at, .write = write};
        s.image = there ? n->device->image : NULL;
        struct pack p = {moves[i].at, at, begin, !write};
        for (size_t k = 0; k < b->len && owns && st == NEB_OK; k++)
            st = pieces_walk(t->dims, t->shape, &b->p[k], begin, end, pack_block, &p);
        if (there && !write && st == NEB_OK)
            st = lib_device_read(n, moves[i].unit, s.image);
        if (!owns && st == NEB_OK)
            st = move_boxes(&s, b, end);
        if (there && write && st == NEB_OK)
            st = lib_device_write(n, moves[i].unit, s.image);
        at += pieces_count_all(t->dims, t->shape, b, begin, end);
    }
    if (!sends)
        return st;
    // also after a failure, because the receiver waits
    enum neb_status sent =
        w->ops->send(w, n->buffer, floats * sizeof *n->buffer, to, TAG_MOVES, &send);
    return st != NEB_OK ? st : sent;
}

static enum neb_status transfer(struct nebula *n, const struct agent_move *moves, int32_t count,
                                int from, int to, bool write) {
    size_t used = 0;
    enum neb_status st = NEB_OK;
    for (int32_t i = 0, first = 0; i <= count; i++) {
        const struct pieces_boxes *b = i < count ? travels(n, &moves[i], from, to, write) : NULL;
        const struct lib_tensor *t = b ? n->of[moves[i].unit] : NULL;
        size_t more = b ? (size_t)pieces_count_all(t->dims, t->shape, b, n->first[moves[i].unit],
                                                   end_of(n, moves[i].unit))
                        : 0;
        if (used && (i == count || used + more > n->buffer_floats)) {
            enum neb_status now = pass(n, moves, first, i, used, from, to, write);
            st = st == NEB_OK ? now : st;
            used = 0;
        }
        first = used ? first : i;
        used += more;
    }
    return st;
}

// The partner of a rank in a round of a tournament of `all` (even) players.
static int partner(int rank, int round, int all) {
    int rest = all - 1;
    if (rank == rest)
        return (int)((int64_t)round * (all / 2) % rest);
    int other = ((round - rank) % rest + rest) % rest;
    return other == rank ? rest : other;
}

static enum neb_status between_ranks(struct nebula *n, const struct agent_move *moves,
                                     int32_t count, bool write) {
    int all = n->ranks + n->ranks % 2;
    enum neb_status st = NEB_OK;
    for (int round = 0; round < all - 1; round++) {
        int other = partner(n->rank, round, all), low = other < n->rank ? other : n->rank,
            high = other + n->rank - low;
        if (other >= n->ranks)
            continue;
        for (int way = 0; way < 2; way++) {
            enum neb_status now =
                transfer(n, moves, count, way ? high : low, way ? low : high, write);
            if (n->world->ops->lost(n->world))
                return now;
            st = st == NEB_OK ? now : st;
        }
    }
    return st;
}

// ---- fp32 behind 16-bit values ------------------------------------------------------------------

// A merge may change a 16-bit value by less than it can show. The owner keeps what it wrote in
// fp32, and adds what the loop has changed since.
static enum neb_status add_shadow(struct nebula *n, const struct agent_move *m) {
    size_t size = agent_unit_size(&n->units[m->unit]);
    int dtype = n->of[m->unit]->dtype;
    if (dtype == NEBULA_F32 || n->raw)
        return NEB_OK;
    NEB_TRY(lib_device_shadow_here(n, m->unit));
    float *s = n->shadow[m->unit];
    if (!s) {
        if (!(s = n->shadow[m->unit] = malloc(size * sizeof *s)))
            return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu values behind 16-bit tensors",
                            size);
        memcpy(s, m->at, size * sizeof *s);
        return NEB_OK;
    }
    for (size_t i = 0; i < size; i++) {
        float was = lib_copy_rounded(s[i], dtype);
        m->at[i] = m->at[i] == was ? s[i] : s[i] + (m->at[i] - was);
    }
    return NEB_OK;
}

// ---- read and write -----------------------------------------------------------------------------

static enum neb_status own(struct nebula *n, const struct agent_move *m, bool write) {
    struct lib_tensor *t = n->of[m->unit];
    struct side s = {.n = n, .t = t, .unit = m->at, .first = n->first[m->unit], .write = write};
    bool there = lib_device_has(t);
    s.image = m->at;
    if (there && !write)
        NEB_TRY(lib_device_read(n, m->unit, m->at));
    NEB_TRY(move_boxes(&s, &t->held[n->rank], end_of(n, m->unit)));
    return there && write ? lib_device_write(n, m->unit, m->at) : NEB_OK;
}

static enum neb_status know_owners(struct nebula *n, const struct agent_move *moves,
                                   int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        n->owner[moves[i].unit] = moves[i].rank;
        for (int r = 0; r < n->ranks; r++) // only the owner and the holders have something to send
            if (r != n->rank && (r == moves[i].rank || n->rank == moves[i].rank))
                NEB_TRY(know_peer(n, n->of[moves[i].unit], r));
    }
    return NEB_OK;
}

static enum neb_status all_finite(const struct nebula *n) {
    char at[NEBULA_DIMS_MAX * 22 + 4] = "(";
    int64_t c[NEBULA_DIMS_MAX] = {0};
    const struct lib_tensor *t = n->bad;
    if (!t)
        return NEB_OK;
    coordinates(t, n->bad_at, c);
    for (int32_t k = 0; k < t->dims; k++) {
        size_t len = strlen(at);
        snprintf(at + len, sizeof at - len, "%s%" PRId64, k ? ", " : "", c[k]);
    }
    return neb_fail(NEB_ERR_INVALID,
                    "tensor %s: element %s) is not a finite number on rank %d. Continue from the "
                    "newest checkpoint",
                    t->name, at, n->rank);
}

enum neb_status lib_read(struct nebula *n, const struct agent_move *moves, int32_t count) {
    enum neb_status st = know_owners(n, moves, count);
    n->bad = NULL;
    n->reads++;
    NEB_TRY(intra_comm_agree(n->world, st));
    for (int32_t i = 0; i < count && st == NEB_OK; i++)
        if (moves[i].rank == n->rank)
            st = own(n, &moves[i], false);
    if (n->ranks > 1) {
        enum neb_status now = between_ranks(n, moves, count, false);
        st = st == NEB_OK ? now : st;
    }
    for (int32_t i = 0; i < count && st == NEB_OK; i++)
        if (moves[i].rank == n->rank)
            st = add_shadow(n, &moves[i]);
    // before the first step a checkpoint may replace all values
    bool replaced = n->initial && n->x.had_checkpoint;
    return intra_comm_agree(n->world, st == NEB_OK && !replaced ? all_finite(n) : st);
}

enum neb_status lib_write(struct nebula *n, const struct agent_move *moves, int32_t count) {
    enum neb_status st = NEB_OK;
    for (int32_t i = 0; i < count && st == NEB_OK; i++) {
        if (moves[i].rank == n->rank && !n->raw)
            st = lib_device_shadow_here(n, moves[i].unit);
        float *s = moves[i].rank == n->rank ? n->shadow[moves[i].unit] : NULL;
        if (s && !n->raw && st == NEB_OK)
            memcpy(s, moves[i].at, agent_unit_size(&n->units[moves[i].unit]) * sizeof *s);
        if (moves[i].rank == n->rank && st == NEB_OK)
            st = own(n, &moves[i], true);
    }
    if (n->ranks > 1) {
        enum neb_status now = between_ranks(n, moves, count, true);
        st = st == NEB_OK ? now : st;
    }
    return intra_comm_agree(n->world, st);
}

uint64_t lib_held(void *user, int32_t unit, int rank) {
    const struct nebula *n = user;
    const struct lib_tensor *t = n->of[unit];
    return (uint64_t)pieces_count_all(t->dims, t->shape, &t->held[rank], n->first[unit],
                                      end_of(n, unit));
}

int lib_owner(const struct nebula *n, int32_t unit) {
    int best = 0;
    if (n->owner[unit] >= 0)
        return n->owner[unit];
    for (int r = 1; r < n->ranks; r++)
        if (lib_held((void *)(uintptr_t)n, unit, r) > lib_held((void *)(uintptr_t)n, unit, best))
            best = r;
    return best;
}

struct agent_move lib_move(const struct nebula *n, int32_t unit) {
    float *data = n->units[unit].data;
    return (struct agent_move){unit, lib_owner(n, unit), data ? data : n->room};
}

// ---- digests of tensors -------------------------------------------------------------------------

// The digest is a sum over elements, so each rank adds what no lower rank holds.
struct looked {
    struct side side;
    uint64_t sum[3]; // digest, number of elements
};

static enum neb_status add_block(void *user, const struct pieces_block *b) {
    struct looked *f = user;
    for (int64_t r = 0; r < b->runs; r++) {
        int64_t at = b->at + r * b->pitch;
        const float *x = f->side.unit + (at - f->side.first);
        struct kern_digest d = kern_digest_part(x, x, (uint64_t)at, (size_t)b->len);
        f->sum[0] += d.lo;
        f->sum[1] += d.hi;
        f->sum[2] += (uint64_t)b->len;
    }
    return NEB_OK;
}

static enum neb_status add_own(struct looked *f) {
    struct nebula *n = f->side.n;
    const struct lib_tensor *t = f->side.t;
    bool there = n->device && lib_device_has(t);
    bool small = there && n->buffer_floats < EXCHANGE_UNIT_MAX;
    int64_t most = small ? (int64_t)n->buffer_floats : EXCHANGE_UNIT_MAX;
    struct pieces_boxes own = {0};
    enum neb_status st = NEB_OK;
    for (size_t i = 0; i < t->held[n->rank].len && st == NEB_OK; i++)
        st = pieces_add(&own, &t->held[n->rank].p[i]);
    for (int r = 0; r < n->rank && st == NEB_OK; r++)
        if (t->dims || t->held[r].len)
            st = t->dims ? pieces_subtract(t->dims, &own, &t->held[r]) : (own.len = 0, NEB_OK);
    for (int64_t at = 0; at < t->size && st == NEB_OK && own.len; at += most) {
        int64_t end = t->size - at < most ? t->size : at + most;
        f->side.first = at;
        f->side.image = there ? n->device->image : NULL;
        st = there ? lib_device_look(n, t, at, (uint64_t)(end - at)) : NEB_OK;
        if (st == NEB_OK)
            st = move_boxes(&f->side, &own, end);
        for (size_t i = 0; i < own.len && st == NEB_OK; i++)
            st = pieces_walk(t->dims, t->shape, &own.p[i], at, end, add_block, f);
    }
    pieces_free(&own);
    return st;
}

// sums: (count, 3) the digest of each tensor, and how many of its elements are registered.
static enum neb_status digest_all(struct nebula *n, struct lib_tensor *const *all, int32_t count,
                                  uint64_t *sums) {
    struct looked f = {.side = {.n = n, .unit = malloc(EXCHANGE_UNIT_MAX * sizeof(float))}};
    enum neb_status st = sums && f.side.unit
                             ? NEB_OK
                             : neb_fail(NEB_ERR_NOMEM, "out of memory for digests of tensors");
    for (int32_t i = 0; i < count && st == NEB_OK; i++) {
        f.side.t = all[i];
        memset(f.sum, 0, sizeof f.sum);
        st = add_own(&f);
        memcpy(&sums[3 * i], f.sum, sizeof f.sum);
    }
    st = intra_comm_agree(n->world, st);
    if (st == NEB_OK && n->ranks > 1 && count)
        st = n->world->ops->all_reduce(n->world, sums, 3 * (size_t)count, INTRA_COMM_U64,
                                       INTRA_COMM_SUM);
    n->bad = NULL;
    free(f.side.unit);
    return st;
}

enum neb_status lib_digest_frozen(struct nebula *n) {
    struct lib_tensor **all = n->tensors + n->n_tensors;
    uint64_t *sums = calloc((size_t)n->n_frozen + 1, 3 * sizeof *sums);
    enum neb_status st = digest_all(n, all, n->n_frozen, sums);
    int32_t whole = 0;
    for (int32_t i = 0; i < n->n_frozen && st == NEB_OK; i++) {
        memcpy(all[i]->digest, &sums[3 * i], sizeof all[i]->digest);
        if (sums[3 * i + 2] == (uint64_t)all[i]->size)
            all[whole++] = all[i];
    }
    n->n_frozen = whole;
    free(sums);
    return st;
}

enum neb_status lib_digest_values(struct nebula *n) {
    const struct agent_exchange *x = &n->x;
    uint8_t sha[NEB_SHA256_BYTES];
    struct neb_buf text = {0};
    if (!x->job.attached || !x->federated || x->job.init != AGENT_INIT_FROM || x->had_checkpoint ||
        n->loading)
        return NEB_OK;
    uint64_t *sums = calloc((size_t)n->n_tensors + 1, 3 * sizeof *sums);
    enum neb_status st = digest_all(n, n->tensors, n->n_tensors, sums);
    for (int32_t i = 0; i < n->n_tensors && st == NEB_OK; i++) { // sorted by name
        neb_buf_add(&text, n->tensors[i]->name, strlen(n->tensors[i]->name) + 1);
        neb_buf_u64(&text, sums[3 * i]);
        neb_buf_u64(&text, sums[3 * i + 1]);
    }
    free(sums);
    st = intra_comm_agree(n->world, st == NEB_OK ? neb_buf_check(&text) : st);
    neb_sha256(text.p, text.len, sha);
    if (st == NEB_OK)
        neb_hex(sha, sizeof sha, n->values);
    neb_buf_free(&text);
    return st;
}
