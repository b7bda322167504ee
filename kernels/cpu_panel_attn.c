// SPDX-License-Identifier: Apache-2.0
// Attention with products in bf16 by panels (panel.h). As in cpu_attn.inc.h, a block of 64 queries
// meets one block of keys at a time, scores are transposed with queries in the lanes, and the same
// fp32 loops do all that is not a product.
//
//     forward    S^T (keys, queries) = K Q^T     O^T (D, queries) += V^T P^T
//     backward   S^T = K Q^T     dP^T = V dO^T
//                dV (keys, D) += P^T dO    dK (keys, D) += dS^T Q    dQ^T (D, queries) += K^T dS^T
//
// All threads pack K and V once for all queries. The thread that computes a block of queries packs
// the block's own operands, and P and dS.
#include "kernels/cpu_panel.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

// a block of keys: 4 panels, or 2 blocks of depth
enum { BLOCK = CPU_ATTN_BLOCK, TILE = BLOCK * BLOCK };

// Keys or values of all sequences and heads, packed in one way.
struct side {
    const float *x;
    int ld;
    bool across; // the keys are the depth; otherwise they are the side
    uint16_t *to;
    size_t next, all; // elements of one head: from panel to panel; all of them
};

enum { SIDES = 3 };
struct job {
    struct cpu_attn a;
    const struct cpu_isa *rows;
    const struct panel_isa *v;
    // k, in both passes. Forward: and v across. Backward: and v, and k across
    struct side sides[SIDES];
    int n_sides, blocks;
    int depth; // head_dim in blocks
    float by;  // factor of scores
    float *scratch;
    size_t per_task, n_items;
    atomic_size_t next;
};

static int up(int n, int of) { return (n + of - 1) / of; }
static int min(int a, int b) { return a < b ? a : b; }
static int lanes_of(int n) { return up(n, CPU_LANES_MAX) * CPU_LANES_MAX; }

static void pack(const struct job *j, uint16_t *to, size_t next, enum panel_form form,
                 const float *x, size_t ld, bool across, int side, int depth) {
    for (int s = 0; s < side; s += PANEL_SIDE)
        for (int d = 0; d < depth; d += PANEL_DEPTH)
            j->v->pack(to + (size_t)s / PANEL_SIDE * next + (size_t)d / PANEL_DEPTH * PANEL_BLOCK,
                       form, x + (across ? (size_t)d * ld + (size_t)s : (size_t)s * ld + (size_t)d),
                       ld, across, min(PANEL_SIDE, side - s), min(PANEL_DEPTH, depth - d));
}

// Packs one block of keys of one head of one side.
static void side_task(void *arg, size_t i) {
    const struct job *j = arg;
    const struct kern_attn *s = &j->a.s;
    size_t blocks = (size_t)j->blocks, heads = (size_t)s->n_kv_heads, per = blocks * heads;
    const struct side *k = &j->sides[i / (per * (size_t)s->B)];
    i %= per * (size_t)s->B;
    size_t head = i / blocks, from = i % blocks * BLOCK, row = head / heads * (size_t)s->T + from;
    const float *x = k->x + row * (size_t)k->ld + head % heads * (size_t)s->head_dim;
    uint16_t *to = k->to + head * k->all;
    int keys = min(BLOCK, s->T - (int)from);
    if (k->across)
        pack(j, to + from / PANEL_DEPTH * PANEL_BLOCK, k->next, PANEL_A, x, (size_t)k->ld, true,
             s->head_dim, keys);
    else
        pack(j, to + from / PANEL_SIDE * k->next, k->next, PANEL_A, x, (size_t)k->ld, false, keys,
             s->head_dim);
}

static void shape(struct job *j, struct side *k) {
    const struct kern_attn *s = &j->a.s;
    int side = k->across ? s->head_dim : s->T, depth = k->across ? s->T : s->head_dim;
    k->next = (size_t)up(depth, PANEL_DEPTH) * PANEL_BLOCK;
    k->all = (size_t)up(side, PANEL_SIDE) * k->next;
}

// Packs the sides. Returns memory for `room` floats, which lies before the packed sides.
static float *begin(struct kern *K, struct job *j, size_t room) {
    const struct kern_attn *s = &j->a.s;
    size_t heads = (size_t)s->B * (size_t)s->n_kv_heads, packed = 0;
    j->rows = cpu_of(K)->isa;
    j->blocks = up(s->T, BLOCK);
    j->depth = up(s->head_dim, PANEL_DEPTH);
    j->by = 1.0f / sqrtf((float)s->head_dim);
    for (int i = 0; i < j->n_sides; i++) {
        shape(j, &j->sides[i]);
        packed += j->sides[i].all * heads / 2;
    }
    float *p = cpu_buf_need(&cpu_of(K)->attn, room + packed);
    uint16_t *to = (uint16_t *)(void *)(p + room);
    for (int i = 0; i < j->n_sides; to += j->sides[i].all * heads, i++)
        j->sides[i].to = to;
    kern_pool_run(K->pool, (size_t)j->n_sides * heads * (size_t)j->blocks, side_task, j);
    return p;
}

// ---- one block of queries

struct block {
    int b, h, g, i0, nq, lanes, end; // the queries see keys [0, end) at most
    size_t row, at;                  // index of the first query: in q and out; in lse
};

static struct block block_of(const struct job *j, int b, int h, int block) {
    const struct kern_attn *s = &j->a.s;
    struct block k = {.b = b,
                      .h = h,
                      .g = h / (s->n_heads / s->n_kv_heads),
                      .i0 = block * BLOCK,
                      .nq = min(BLOCK, s->T - block * BLOCK)};
    k.lanes = lanes_of(k.nq);
    k.end = cpu_attn_keys_end(s, b, k.i0, k.nq);
    k.row = (size_t)b * (size_t)s->T + (size_t)k.i0;
    k.at = ((size_t)b * (size_t)s->n_heads + (size_t)h) * (size_t)s->T + (size_t)k.i0;
    return k;
}

static const uint16_t *packed(const struct job *j, int side, const struct block *k, int key) {
    const struct side *s = &j->sides[side];
    return s->to + ((size_t)k->b * (size_t)j->a.s.n_kv_heads + (size_t)k->g) * s->all +
           (s->across ? (size_t)key / PANEL_DEPTH * PANEL_BLOCK
                      : (size_t)key / PANEL_SIDE * s->next);
}

// Scales the block's queries into room, and packs them as columns of a product over head_dim.
static void queries(const struct job *j, const struct block *k, float *room, uint16_t *to) {
    int D = j->a.s.head_dim;
    const float *q = j->a.q + k->row * (size_t)j->a.ldq + (size_t)k->h * (size_t)D;
    for (int i = 0; i < k->nq; i++) {
        memcpy(room + i * D, q + (size_t)i * (size_t)j->a.ldq, sizeof *room * (size_t)D);
        j->rows->scale(room + i * D, j->by, (size_t)D);
    }
    pack(j, to, (size_t)j->depth * PANEL_BLOCK, PANEL_B, room, (size_t)D, false, k->nq, D);
}

// st (keys, BLOCK) = a block of keys (side: k or v) times the packed columns b
static void scores(const struct job *j, const struct block *k, int side, int key, int nk,
                   const uint16_t *b, float *st) {
    j->v->mul(&(struct panel_mul){.a = packed(j, side, k, key),
                                  .b = b,
                                  .a_next = j->sides[side].next,
                                  .b_next = (size_t)j->depth * PANEL_BLOCK,
                                  .depth = j->depth,
                                  .rows = nk,
                                  .cols = lanes_of(k->nq),
                                  .alpha = 1,
                                  .c = st,
                                  .ldc = BLOCK,
                                  .how = PANEL_STORE});
}

// ct (D, BLOCK) += a block of keys (side across, transposed: (D, keys)) times x (keys, BLOCK),
// which is packed as columns over keys. The first block of keys overwrites ct.
static void over_keys(const struct job *j, const struct block *k, int side, int key, int nk,
                      const uint16_t *x, float *ct) {
    j->v->mul(&(struct panel_mul){.a = packed(j, side, k, key),
                                  .b = x,
                                  .a_next = j->sides[side].next,
                                  .b_next = BLOCK / PANEL_DEPTH * PANEL_BLOCK,
                                  .depth = up(nk, PANEL_DEPTH),
                                  .rows = j->a.s.head_dim,
                                  .cols = k->lanes,
                                  .alpha = 1,
                                  .c = ct,
                                  .ldc = BLOCK,
                                  .how = key ? PANEL_ADD : PANEL_STORE});
}

static void pack_keys(const struct job *j, const struct block *k, int nk, const float *st,
                      uint16_t *to) {
    pack(j, to, BLOCK / PANEL_DEPTH * PANEL_BLOCK, PANEL_B, st, BLOCK, true, k->lanes, nk);
}

// ---- forward

static size_t columns(const struct job *j) { // floats of a block of queries, packed over D
    return (size_t)BLOCK / PANEL_SIDE * (size_t)j->depth * PANEL_BLOCK / 2;
}

static void fwd_block(const struct job *j, struct block k, float *scratch) {
    const struct kern_attn *s = &j->a.s;
    int D = s->head_dim;
    float *ot = scratch, *st = ot + D * BLOCK, *max = st + TILE, *sum = max + BLOCK;
    uint16_t *q = (uint16_t *)(void *)(sum + BLOCK), *p = q + 2 * columns(j);
    queries(j, &k, ot, q); // ot is free until the first over_keys: it serves as scratch
    for (int key = 0; key < k.end; key += BLOCK) {
        int nk = min(BLOCK, k.end - key);
        scores(j, &k, 0, key, nk, q, st);
        cpu_attn_mask(s, k.b, st, k.i0, key, nk, k.lanes);
        j->rows->attn_softmax(st, nk, k.lanes, max, sum, ot, D, key == 0);
        pack_keys(j, &k, nk, st, p);
        over_keys(j, &k, 1, key, nk, p, ot);
    }
    for (int i = 0; i < k.nq; i++) {
        j->a.lse[k.at + (size_t)i] = max[i] + logf(sum[i]);
        sum[i] = 1.0f / sum[i];
    }
    for (int e = 0; e < D; e++)
        for (int i = 0; i < k.nq; i++)
            ot[e * BLOCK + i] *= sum[i];
    j->rows->transpose(j->a.o + k.row * (size_t)j->a.ldo + (size_t)k.h * (size_t)D,
                       (size_t)j->a.ldo, ot, BLOCK, (size_t)D, (size_t)k.nq, 0, 1.0f);
}

static void fwd_task(void *arg, size_t task) {
    struct job *j = arg;
    size_t heads = (size_t)j->a.s.n_heads, rows = heads * (size_t)j->a.s.B;
    for (size_t i; (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_items;)
        fwd_block(j,
                  block_of(j, (int)(i % rows / heads), (int)(i % heads),
                           // late blocks see most keys: they come first
                           j->blocks - 1 - (int)(i / rows)),
                  j->scratch + task * j->per_task);
}

void cpu_panels_attn_fwd(struct kern *K, const struct panel_isa *v, const struct cpu_attn *a) {
    struct job j = {.a = *a,
                    .v = v,
                    .sides = {{.x = a->k, .ld = a->ldk}, {.x = a->v, .ld = a->ldv, .across = true}},
                    .n_sides = 2};
    const struct kern_attn *s = &a->s;
    size_t D = (size_t)s->head_dim;
    j.depth = up(s->head_dim, PANEL_DEPTH);
    j.n_items = (size_t)s->B * (size_t)s->n_heads * (size_t)up(s->T, BLOCK);
    j.per_task = (D * BLOCK + TILE + 2 * BLOCK + columns(&j) + TILE / 2 + 15) / 16 * 16;
    size_t threads = (size_t)kern_pool_threads(K->pool),
           tasks = threads < j.n_items ? threads : j.n_items;
    j.scratch = begin(K, &j, tasks * j.per_task);
    atomic_init(&j.next, 0);
    kern_pool_run(K->pool, tasks, fwd_task, &j);
}

// ---- backward

struct bwd {
    float *st, *dst;    // (keys, BLOCK)
    float *dqt;         // (D, BLOCK)
    float *lse, *delta; // (BLOCK)
    uint16_t *q, *d_o;  // packed as columns over D
    uint16_t *qs, *dos; // D packed as columns over queries
    uint16_t *p, *ds;   // keys packed as rows over queries; ds as columns over keys
    int Dp;
};

// c (keys, Dp) += st x, summed over the queries. st: (keys, BLOCK)
static void over_queries(const struct job *j, const struct block *k, const struct bwd *w, int nk,
                         const float *st, uint16_t *room, const uint16_t *x, float *c) {
    size_t next = BLOCK / PANEL_DEPTH * PANEL_BLOCK;
    pack(j, room, next, PANEL_A, st, BLOCK, false, nk, k->nq);
    j->v->mul(&(struct panel_mul){.a = room,
                                  .b = x,
                                  .a_next = next,
                                  .b_next = next,
                                  .depth = up(k->nq, PANEL_DEPTH),
                                  .rows = nk,
                                  .cols = j->a.s.head_dim,
                                  .alpha = 1,
                                  .c = c,
                                  .ldc = (size_t)w->Dp,
                                  .how = PANEL_ADD});
}

// Writes dk and dv of the keys from key on, once their sums are complete.
static void keys_done(const struct job *j, const struct bwd *w, const struct cpu_attn_sums *sums,
                      const struct block *k, int key, int nk) {
    size_t D = (size_t)j->a.s.head_dim, col = (size_t)k->g * D;
    for (int t = key; t < key + nk; t++) {
        size_t r = (size_t)k->b * (size_t)j->a.s.T + (size_t)t, from = (size_t)t * (size_t)w->Dp;
        float *dk = j->a.dk + r * (size_t)j->a.ldk + col;
        memcpy(dk, sums->dk + from, sizeof(float) * D);
        j->rows->scale(dk, j->by, D);
        memcpy(j->a.dv + r * (size_t)j->a.ldv + col, sums->dv + from, sizeof(float) * D);
    }
}

static void bwd_block(const struct job *j, const struct bwd *w, const struct cpu_attn_sums *sums,
                      struct block k) {
    const struct kern_attn *s = &j->a.s;
    int D = s->head_dim;
    size_t col = (size_t)k.h * (size_t)D, ldq = (size_t)j->a.ldq, ldo = (size_t)j->a.ldo,
           over = BLOCK / PANEL_DEPTH * PANEL_BLOCK;
    const float *q = j->a.q + k.row * ldq + col, *o = j->a.out + k.row * ldo + col,
                *d_o = j->a.dout + k.row * ldo + col;
    queries(j, &k, w->dqt, w->q);
    pack(j, w->d_o, (size_t)j->depth * PANEL_BLOCK, PANEL_B, d_o, ldo, false, k.nq, D);
    pack(j, w->qs, over, PANEL_B, q, ldq, true, D, k.nq);
    pack(j, w->dos, over, PANEL_B, d_o, ldo, true, D, k.nq);
    for (int i = 0; i < k.lanes; i++) {
        w->lse[i] = i < k.nq ? j->a.lse_in[k.at + (size_t)i] : 0;
        w->delta[i] = i < k.nq ? j->rows->dot(o + (size_t)i * ldo, d_o + (size_t)i * ldo, D) : 0;
    }
    memcpy(j->a.delta + k.at, w->delta, sizeof(float) * (size_t)k.nq);
    for (int key = 0; key < k.end; key += BLOCK) {
        int nk = min(BLOCK, k.end - key);
        size_t at = (size_t)key * (size_t)w->Dp;
        scores(j, &k, 0, key, nk, w->q, w->st);
        cpu_attn_mask(s, k.b, w->st, k.i0, key, nk, k.lanes);
        scores(j, &k, 1, key, nk, w->d_o, w->dst);
        j->rows->attn_grad(w->st, w->dst, w->lse, w->delta, nk, k.lanes);
        cpu_attn_wait_turn(s, sums, k.b, k.h, k.i0 / BLOCK, key);
        over_queries(j, &k, w, nk, w->st, w->p, w->dos, sums->dv + at);
        over_queries(j, &k, w, nk, w->dst, w->p, w->qs, sums->dk + at);
        if (cpu_attn_end_turn(s, sums, k.b, key))
            // the last block of queries sees all keys of the block
            keys_done(j, w, sums, &k, key, nk);
        pack_keys(j, &k, nk, w->dst, w->ds);
        over_keys(j, &k, 2, key, nk, w->ds, w->dqt);
    }
    j->rows->transpose(j->a.dq + k.row * ldq + col, ldq, w->dqt, BLOCK, (size_t)D, (size_t)k.nq, 0,
                       j->by);
}

static size_t bwd_scratch(const struct job *j) {
    size_t D = (size_t)j->a.s.head_dim, Dp = (size_t)lanes_of(j->a.s.head_dim);
    return 2 * TILE + D * BLOCK + 2 * BLOCK + 2 * columns(j) + Dp * BLOCK + 2 * TILE / 2;
}

static void bwd_item(const void *arg, int b, int h, int block, const struct cpu_attn_sums *sums,
                     float *scratch) {
    const struct job *j = arg;
    int D = j->a.s.head_dim, Dp = lanes_of(D);
    struct bwd w = {.Dp = Dp, .st = scratch};
    w.dst = w.st + TILE;
    w.dqt = w.dst + TILE;
    w.lse = w.dqt + D * BLOCK;
    w.delta = w.lse + BLOCK;
    w.q = (uint16_t *)(void *)(w.delta + BLOCK);
    w.d_o = w.q + 2 * columns(j);
    w.qs = w.d_o + 2 * columns(j);
    w.dos = w.qs + Dp * BLOCK;
    w.p = w.dos + Dp * BLOCK;
    w.ds = w.p + TILE;
    bwd_block(j, &w, sums, block_of(j, b, h, block));
}

void cpu_panels_attn_bwd(struct kern *K, const struct panel_isa *v, const struct cpu_attn *a) {
    struct job j = {.a = *a,
                    .v = v,
                    .sides = {{.x = a->k, .ld = a->ldk},
                              {.x = a->v, .ld = a->ldv},
                              {.x = a->k, .ld = a->ldk, .across = true}},
                    .n_sides = 3};
    j.depth = up(a->s.head_dim, PANEL_DEPTH);
    float *room = begin(K, &j, (cpu_attn_bwd_room(K, &a->s, bwd_scratch(&j)) + 15) / 16 * 16);
    cpu_attn_bwd_run(K, &a->s, bwd_scratch(&j), room, bwd_item, &j);
}
