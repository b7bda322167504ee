// SPDX-License-Identifier: Apache-2.0
#include "intra/train/step.h"

#include <stdlib.h>
#include <string.h>

// In front of the arrays of a micro-batch; a raw struct, since all ranks run the same build.
struct head {
    int32_t B, T, soft_k, n_rows, n_picks, kind, n_ids, pick_k, n_pairs, n_copied;
    float lambda, temperature, pick_temperature;
    uint8_t targets, prefix, decodes, slot, at;
};

enum { ALIGN = 8 };

void intra_step_free(struct intra_step *s) {
    for (int32_t i = 0; i < s->pieces_room; i++)
        free(s->pieces[i].room);
    neb_buf_free(&s->bytes);
    neb_buf_free(&s->results);
    free(s->all);
    free(s->cuts);
    free(s->pieces);
    free(s->wanted);
    *s = (struct intra_step){0};
}

// Makes room for n elements of an array; new ones are zero.
static enum neb_status grow(void *array_at, int32_t *room, int32_t n, size_t size) {
    void *p;
    if (n <= *room)
        return NEB_OK;
    memcpy(&p, array_at, sizeof p);
    p = realloc(p, (size_t)n * size);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a step of %d micro-batches", n);
    memset((char *)p + (size_t)*room * size, 0, (size_t)(n - *room) * size);
    memcpy(array_at, &p, sizeof p);
    *room = n;
    return NEB_OK;
}

// ---- rank 0 -------------------------------------------------------------------------------------

void intra_step_begin(struct intra_step *s) {
    neb_buf_clear(&s->bytes);
    s->n = 0;
}

static void put(struct neb_buf *b, const void *x, size_t bytes) {
    static const uint8_t zero[ALIGN];
    neb_buf_add(b, x, bytes);
    neb_buf_add(b, zero, (ALIGN - bytes % ALIGN) % ALIGN);
}

// The labels of positions with a target, one after the other.
static void put_soft(struct neb_buf *out, const struct intra_batch *b, const struct kern_soft *s) {
    size_t n = (size_t)b->B * (size_t)b->T, k = (size_t)s->k;
    static const uint8_t zero[ALIGN];
    for (int part = 0; part < 3; part++) {
        const char *from = part == 0   ? (const char *)s->ids
                           : part == 1 ? (const char *)s->logp
                                       : (const char *)s->tail;
        size_t each = part == 2 ? sizeof(float) : k * sizeof(float);
        for (size_t i = 0; i < n; i++)
            if (b->targets[i] != KERN_IGNORE)
                neb_buf_add(out, from + i * each, each);
        neb_buf_add(out, zero, (ALIGN - out->len % ALIGN) % ALIGN);
    }
}

enum neb_status intra_step_add(struct intra_step *s, const struct intra_batch *b,
                               const struct intra_picks *picks) {
    size_t n = (size_t)b->B * (size_t)b->T;
    struct neb_buf *out = &s->bytes;
    struct head h = {.B = b->B,
                     .T = b->T,
                     .n_pairs = b->n_pairs,
                     .n_copied = b->n_copied,
                     .targets = b->targets != NULL,
                     .prefix = b->prefix != NULL,
                     .decodes = b->decodes,
                     .slot = b->slot != NULL,
                     .at = b->at != NULL};
    NEB_ASSERT(!b->teacher || (b->targets && b->teacher->k > 0));
    if (b->teacher) {
        h.soft_k = b->teacher->k;
        h.lambda = b->teacher->lambda;
        h.temperature = b->teacher->temperature;
        for (size_t i = 0; i < n; i++)
            h.n_rows += b->targets[i] != KERN_IGNORE;
    }
    if (picks) {
        h.n_picks = picks->n;
        h.kind = (int32_t)picks->kind;
        h.n_ids = picks->n_ids;
        h.pick_k = picks->k;
        h.pick_temperature = picks->temperature;
        NEB_ASSERT(picks->at || picks->n == b->B * b->T);
    }
    put(out, &h, sizeof h);
    put(out, b->tokens, n * sizeof *b->tokens);
    if (h.targets)
        put(out, b->targets, n * sizeof *b->targets);
    if (h.prefix)
        put(out, b->prefix, (size_t)b->B * sizeof *b->prefix);
    if (h.slot)
        put(out, b->slot, (size_t)b->B * sizeof *b->slot);
    if (h.at)
        put(out, b->at, (size_t)b->B * sizeof *b->at);
    put(out, b->pairs, 2 * (size_t)b->n_pairs * sizeof *b->pairs);
    if (h.soft_k)
        put_soft(out, b, b->teacher);
    if (h.n_picks && picks->at)
        put(out, picks->at, (size_t)h.n_picks * sizeof *picks->at);
    if (h.n_picks && picks->kind == INTRA_PICK_DRAWS)
        put(out, picks->u, (size_t)h.n_picks * sizeof *picks->u);
    NEB_TRY(grow(&s->wanted, &s->wanted_room, s->n + 1, sizeof *s->wanted));
    s->wanted[s->n++] = picks ? *picks : (struct intra_picks){0};
    return neb_buf_check(out);
}

// ---- reading ------------------------------------------------------------------------------------

static const void *view(const struct neb_buf *b, size_t *at, size_t bytes) {
    const void *p = b->p + *at;
    *at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    NEB_ASSERT(*at <= b->len);
    return p;
}

static void read_micro(const struct neb_buf *b, size_t *at, struct intra_step_micro *m) {
    struct head h;
    memcpy(&h, view(b, at, sizeof h), sizeof h);
    size_t n = (size_t)h.B * (size_t)h.T, rows = (size_t)h.n_rows, picks = (size_t)h.n_picks;
    m->b = (struct intra_batch){.B = h.B,
                                .T = h.T,
                                .tokens = view(b, at, n * sizeof(int32_t)),
                                .decodes = h.decodes,
                                .n_pairs = h.n_pairs,
                                .n_copied = h.n_copied};
    m->b.targets = h.targets ? view(b, at, n * sizeof(int32_t)) : NULL;
    m->b.prefix = h.prefix ? view(b, at, (size_t)h.B * sizeof(int32_t)) : NULL;
    m->b.slot = h.slot ? view(b, at, (size_t)h.B * sizeof(int32_t)) : NULL;
    m->b.at = h.at ? view(b, at, (size_t)h.B * sizeof(int32_t)) : NULL;
    m->b.pairs = view(b, at, 2 * (size_t)h.n_pairs * sizeof(int32_t));
    m->soft = (struct kern_soft){.k = h.soft_k, .lambda = h.lambda, .temperature = h.temperature};
    if (h.soft_k) {
        m->soft.ids = view(b, at, rows * (size_t)h.soft_k * sizeof(int32_t));
        m->soft.logp = view(b, at, rows * (size_t)h.soft_k * sizeof(float));
        m->soft.tail = view(b, at, rows * sizeof(float));
    }
    m->picks = (struct intra_picks){.kind = (enum intra_pick_kind)h.kind,
                                    .n = h.n_picks,
                                    .n_ids = h.n_ids,
                                    .k = h.pick_k,
                                    .temperature = h.pick_temperature};
    if (picks && m->picks.kind != INTRA_PICK_SCORES)
        m->picks.at = view(b, at, picks * sizeof(int32_t));
    if (picks && m->picks.kind == INTRA_PICK_DRAWS)
        m->picks.u = view(b, at, picks * sizeof(double));
}

static enum neb_status read_all(struct intra_step *s) {
    size_t at = 0;
    int64_t first = 0;
    for (s->n = 0; at < s->bytes.len; s->n++) {
        NEB_TRY(grow(&s->all, &s->all_room, s->n + 1, sizeof *s->all));
        struct intra_step_micro *m = &s->all[s->n];
        read_micro(&s->bytes, &at, m);
        m->first = first;
        first += m->b.B;
    }
    return NEB_OK;
}

// ---- cutting ------------------------------------------------------------------------------------

static enum neb_status add_cut(struct intra_step *s, int64_t from, int64_t to, int32_t replica) {
    NEB_TRY(grow(&s->cuts, &s->cuts_room, s->n_cuts + 1, sizeof *s->cuts));
    s->cuts[s->n_cuts++] = (struct intra_step_cut){from, to, replica};
    return NEB_OK;
}

static enum neb_status list_cuts(struct intra_step *s, int32_t ways, int32_t how) {
    const struct intra_step_micro *last = s->n ? &s->all[s->n - 1] : NULL;
    bool whole = how == INTRA_STEP_WHOLE && s->n % ways == 0;
    s->n_cuts = 0;
    for (int64_t at = 0; how > 0 && at < last->first + last->b.B; at += how)
        NEB_TRY(add_cut(s, at, at + how, s->n_cuts % ways));
    for (int32_t i = 0; how <= 0 && i < s->n; i++) {
        int64_t first = s->all[i].first, B = s->all[i].b.B;
        if (whole)
            NEB_TRY(add_cut(s, first, first + B, i % ways));
        for (int32_t r = 0; !whole && r < ways; r++)
            NEB_TRY(add_cut(s, first + B * r / ways, first + B * (r + 1) / ways, r));
    }
    return NEB_OK;
}

static const struct intra_step_micro *micro_of(const struct intra_step *s, int64_t sequence) {
    int32_t i = 0;
    while (i + 1 < s->n && s->all[i + 1].first <= sequence)
        i++;
    return &s->all[i];
}

// The picks of sequences [from, to) of m: [*a, *z) of them.
static void picks_in(const struct intra_step_micro *m, int64_t from, int64_t to, int32_t *a,
                     int32_t *z) {
    int64_t lo = (from - m->first) * m->b.T, hi = (to - m->first) * m->b.T;
    if (!m->picks.at) {
        *a = m->picks.n ? (int32_t)lo : 0;
        *z = m->picks.n ? (int32_t)hi : 0;
        return;
    }
    for (*a = 0; *a < m->picks.n && m->picks.at[*a] < lo;)
        ++*a;
    for (*z = *a; *z < m->picks.n && m->picks.at[*z] < hi;)
        ++*z;
}

// The part of one micro-batch that is in a cut. next_part goes from one to the next; zeroed at
// first.
struct part {
    const struct intra_step_micro *m;
    int64_t from, to;       // sequences of the step
    int32_t pick_a, pick_z; // its picks
};
static bool next_part(const struct intra_step *s, const struct intra_step_cut *c, struct part *p) {
    int64_t at = p->m ? p->to : c->from;
    if (at >= c->to)
        return false;
    p->m = micro_of(s, at);
    int64_t end = p->m->first + p->m->b.B;
    p->from = at;
    p->to = end < c->to ? end : c->to;
    picks_in(p->m, p->from, p->to, &p->pick_a, &p->pick_z);
    return true;
}

static int32_t picks_of(const struct intra_step *s, const struct intra_step_cut *c) {
    struct part p = {0};
    int32_t n = 0;
    while (next_part(s, c, &p))
        n += p.pick_z - p.pick_a;
    return n;
}

// ---- pieces -------------------------------------------------------------------------------------

struct carve {
    char *base; // NULL: only adds up
    size_t used;
};
static void *carve(struct carve *c, size_t bytes) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

// Lays the arrays of a piece of n positions, B sequences and `picks` picks into c.
static void lay_out(struct carve *c, struct intra_step_piece *x, const struct intra_step_micro *m,
                    size_t n, size_t B, size_t picks) {
    size_t k = (size_t)m->soft.k,
           named = m->picks.kind == INTRA_PICK_LABELS ? picks * (size_t)m->picks.k : picks;
    x->b.tokens = carve(c, n * sizeof(int32_t));
    x->b.targets = m->b.targets ? carve(c, n * sizeof(int32_t)) : NULL;
    x->b.prefix = m->b.prefix ? carve(c, B * sizeof(int32_t)) : NULL;
    x->b.slot = m->b.slot ? carve(c, B * sizeof(int32_t)) : NULL;
    x->b.at = m->b.at ? carve(c, B * sizeof(int32_t)) : NULL;
    x->b.decodes = m->b.decodes;
    x->b.n_pairs = m->b.n_pairs;
    x->b.n_copied = m->b.n_copied;
    x->b.pairs = m->b.pairs; // in the bytes of the step
    x->soft = m->soft;
    if (k) {
        x->soft.ids = carve(c, n * k * sizeof(int32_t));
        x->soft.logp = carve(c, n * k * sizeof(float));
        x->soft.tail = carve(c, n * sizeof(float));
    }
    x->picks = m->picks;
    x->picks.n = (int32_t)picks;
    x->picks.at = m->picks.at ? carve(c, picks * sizeof(int32_t)) : NULL;
    x->picks.u = m->picks.u ? carve(c, picks * sizeof(double)) : NULL;
    x->picks.ids = carve(c, named * sizeof(int32_t));
    x->picks.logp = carve(c, named * sizeof(float));
    x->picks.tail = carve(c, picks * sizeof(float));
}

static void *at(const void *array, size_t i, size_t size) { // arrays of a piece are writable
    return (char *)(uintptr_t)array + i * size;
}

// Copies the labels of a part to the positions of the piece, from position `to` on.
static void copy_soft(struct intra_step_piece *x, const struct part *p, size_t to) {
    const struct intra_step_micro *m = p->m;
    size_t T = (size_t)m->b.T, begin = (size_t)(p->from - m->first) * T,
           end = (size_t)(p->to - m->first) * T, k = (size_t)m->soft.k, row = 0;
    for (size_t i = 0; i < end; i++) {
        if (m->b.targets[i] == KERN_IGNORE)
            continue;
        if (i >= begin) {
            memcpy(at(x->soft.ids, (to + i - begin) * k, 4), m->soft.ids + row * k, k * 4);
            memcpy(at(x->soft.logp, (to + i - begin) * k, 4), m->soft.logp + row * k, k * 4);
            memcpy(at(x->soft.tail, to + i - begin, 4), m->soft.tail + row, 4);
        }
        row++;
    }
}

static void copy_part(struct intra_step_piece *x, const struct part *p, int64_t from, size_t pick) {
    const struct intra_step_micro *m = p->m;
    size_t T = (size_t)m->b.T, in = (size_t)(p->from - m->first), B = (size_t)(p->to - p->from),
           to = (size_t)(p->from - from);
    memcpy(at(x->b.tokens, to * T, 4), m->b.tokens + in * T, B * T * 4);
    if (x->b.targets)
        memcpy(at(x->b.targets, to * T, 4), m->b.targets + in * T, B * T * 4);
    if (x->b.prefix)
        memcpy(at(x->b.prefix, to, 4), m->b.prefix + in, B * 4);
    if (x->b.slot)
        memcpy(at(x->b.slot, to, 4), m->b.slot + in, B * 4);
    if (x->b.at)
        memcpy(at(x->b.at, to, 4), m->b.at + in, B * 4);
    if (x->soft.k)
        copy_soft(x, p, to * T);
    for (int32_t i = p->pick_a; i < p->pick_z; i++, pick++) {
        if (x->picks.at)
            *(int32_t *)at(x->picks.at, pick, 4) =
                m->picks.at[i] + (int32_t)(to * T) - (int32_t)(in * T);
        if (x->picks.u)
            *(double *)at(x->picks.u, pick, 8) = m->picks.u[i];
    }
}

// A sequence without targets, so that a replica makes as many passes as the others.
static void fill(struct intra_step_piece *x) {
    memset(at(x->b.tokens, 0, 4), 0, (size_t)x->b.T * 4);
    for (int i = 0; i < x->b.T; i++)
        *(int32_t *)at(x->b.targets, (size_t)i, 4) = KERN_IGNORE;
    if (x->b.prefix)
        *(int32_t *)at(x->b.prefix, 0, 4) = 1;
}

static enum neb_status make_piece(struct intra_step *s, const struct intra_step_cut *c,
                                  struct intra_step_piece *x) {
    const struct intra_step_micro *m = micro_of(s, c->from);
    bool none = c->from == c->to;
    size_t B = none ? 1 : (size_t)(c->to - c->from), T = (size_t)m->b.T,
           picks = (size_t)picks_of(s, c), pick = 0;
    struct carve room = {0};
    struct part p = {0};
    lay_out(&room, x, m, B * T, B, picks);
    if (room.used > x->room_bytes) {
        free(x->room);
        x->room = malloc(room.used);
        x->room_bytes = x->room ? room.used : 0;
        if (!x->room)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for a micro-batch of %zu tokens", B * T);
    }
    room = (struct carve){.base = x->room};
    lay_out(&room, x, m, B * T, B, picks);
    x->b.B = (int)B;
    x->b.T = (int)T;
    x->b.teacher = NULL;
    while (next_part(s, c, &p)) {
        copy_part(x, &p, c->from, pick);
        pick += (size_t)(p.pick_z - p.pick_a);
    }
    if (none)
        fill(x);
    return NEB_OK;
}

enum neb_status intra_step_cut(struct intra_step *s, int32_t ways, int32_t replica, int32_t how,
                               bool learns) {
    NEB_TRY(read_all(s));
    NEB_TRY(list_cuts(s, ways, s->n && s->all[0].b.decodes ? INTRA_STEP_WHOLE : how));
    s->n_pieces = 0;
    for (int32_t k = 0; k < s->n_cuts; k++) {
        const struct intra_step_cut *c = &s->cuts[k];
        if (c->replica != replica || (c->from == c->to && !learns))
            continue;
        NEB_TRY(grow(&s->pieces, &s->pieces_room, s->n_pieces + 1, sizeof *s->pieces));
        NEB_TRY(make_piece(s, c, &s->pieces[s->n_pieces++]));
    }
    for (int32_t i = 0; i < s->n_pieces; i++) // the array has moved
        s->pieces[i].b.teacher = s->pieces[i].soft.k ? &s->pieces[i].soft : NULL;
    return NEB_OK;
}

// ---- results ------------------------------------------------------------------------------------

// Bytes of the three results of one pick.
static void widths(const struct intra_picks *p, size_t bytes[3]) {
    bytes[0] = p->kind == INTRA_PICK_DRAWS    ? 4
               : p->kind == INTRA_PICK_LABELS ? 4 * (size_t)p->k
                                              : 0;
    bytes[1] = p->kind == INTRA_PICK_SCORES   ? 4
               : p->kind == INTRA_PICK_LABELS ? 4 * (size_t)p->k
                                              : 0;
    bytes[2] = p->kind == INTRA_PICK_LABELS ? 4 : 0;
}

size_t intra_step_result_bytes(const struct intra_step *s, int32_t replica) {
    size_t n = 0, w[3];
    for (int32_t k = 0; k < s->n_cuts; k++) {
        if (s->cuts[k].replica != replica)
            continue;
        widths(&micro_of(s, s->cuts[k].from)->picks, w);
        n += (size_t)picks_of(s, &s->cuts[k]) * (w[0] + w[1] + w[2]);
    }
    return n;
}

enum neb_status intra_step_pack(struct intra_step *s) {
    neb_buf_clear(&s->results);
    for (int32_t i = 0; i < s->n_pieces; i++) {
        const struct intra_picks *p = &s->pieces[i].picks;
        const void *from[3] = {p->ids, p->logp, p->tail};
        size_t w[3];
        widths(p, w);
        for (int part = 0; part < 3; part++)
            neb_buf_add(&s->results, from[part], (size_t)p->n * w[part]);
    }
    return neb_buf_check(&s->results);
}

void intra_step_take(struct intra_step *s, int32_t replica, const uint8_t *p) {
    for (int32_t k = 0; k < s->n_cuts; k++) {
        const struct intra_step_cut *c = &s->cuts[k];
        size_t n = (size_t)picks_of(s, c), w[3];
        if (c->replica != replica || !n)
            continue;
        widths(&micro_of(s, c->from)->picks, w);
        for (int part = 0; part < 3; part++) {
            struct part q = {0};
            while (next_part(s, c, &q)) {
                const struct intra_picks *to = &s->wanted[q.m - s->all];
                void *arrays[3] = {to->ids, to->logp, to->tail};
                size_t bytes = (size_t)(q.pick_z - q.pick_a) * w[part];
                if (bytes)
                    memcpy((char *)arrays[part] + (size_t)q.pick_a * w[part], p, bytes);
                p += bytes;
            }
        }
    }
}
