// SPDX-License-Identifier: Apache-2.0
// A product in bf16 takes two steps:
//
//     pack       All threads pack both operands into scratch. A fixed parameter is packed once,
//                into memory of its own. linear_bwd reads dy once for dx and dw.
//     multiply   The result is cut into tiles at multiples of 16. One thread computes a tile.
//
// A large result is stored past the caches, since nobody reads it at once.
#include "kernels/cpu_panel.h"
#include "agent/base/array.h"

#include <stdlib.h>
#include <string.h>

enum {
    PACK_COLS = 1024, // a task packs 32 rows of so many columns
    // Blocks that are summed at once, so that panels of b stay in the second-level cache.
    DEPTH_MAX = 4096 / PANEL_DEPTH,
    // Tiles are multiples of these, which suits the inner loops of every panel_isa.
    TILE_ROWS = 32,
    TILE_COLS = 96,
    STREAM_BYTES = 8 << 20,
};

// How an operand lies in memory. ALONG: its rows are the side. ACROSS: its rows are the depth.
enum layout { ALONG, ACROSS };

struct packed {
    const uint16_t *p;
    size_t next;
    int depth;
};

// A parameter, packed once while it does not change.
struct kept {
    struct cpu_matrix of;
    enum layout layout;
    bool fresh;
    struct cpu_buf to;
};

struct cpu_panels {
    const struct panel_isa *v;
    struct cpu_buf a, b, both;
    const float *params; // that are fixed; NULL: none
    size_t n_params;
    struct kept *kept;
    size_t n_kept, room, last; // last: the entry found last; the next search starts after it
};

struct cpu_panels *cpu_panels_create(const struct panel_isa *v) {
    struct cpu_panels *p = calloc(1, sizeof *p);
    if (p)
        p->v = v;
    return p;
}

void cpu_panels_destroy(struct cpu_panels *p) {
    if (!p)
        return;
    for (size_t i = 0; i < p->n_kept; i++)
        free(p->kept[i].to.p);
    free(p->kept);
    free(p->a.p);
    free(p->b.p);
    free(p->both.p);
    free(p);
}

void cpu_panels_weights(struct cpu_panels *p, const float *params, size_t n) {
    p->params = n ? params : NULL;
    p->n_params = n;
    for (size_t i = 0; i < p->n_kept; i++)
        p->kept[i].fresh = false;
}

// ---- packing

static size_t blocks(int n, int of) { return ((size_t)n + (size_t)of - 1) / (size_t)of; }
static int min(int a, int b) { return a < b ? a : b; }

static struct packed shape_of(const struct cpu_matrix *x, enum layout layout) {
    int depth = layout == ALONG ? x->cols : x->rows;
    return (struct packed){.next = blocks(depth, PANEL_DEPTH) * PANEL_BLOCK,
                           .depth = (int)blocks(depth, PANEL_DEPTH)};
}

struct pack {
    const struct panel_isa *v;
    struct cpu_matrix x;
    size_t across;   // tasks for 32 rows of x
    uint16_t *to[2]; // by layout; NULL: not wanted
    size_t next[2];
    enum panel_form form[2];
};

// Packs 32 x 32 elements: two blocks ALONG, two ACROSS.
static void pack_square(const struct pack *p, int row, int col) {
    int rows = min(PANEL_DEPTH, p->x.rows - row), cols = min(PANEL_DEPTH, p->x.cols - col);
    size_t ld = (size_t)p->x.ld;
    const float *x = p->x.x + (size_t)row * ld + col;
    for (int i = 0; p->to[ALONG] && i < rows; i += PANEL_SIDE)
        p->v->pack(p->to[ALONG] + (size_t)(row + i) / PANEL_SIDE * p->next[ALONG] +
                       (size_t)col / PANEL_DEPTH * PANEL_BLOCK,
                   p->form[ALONG], x + (size_t)i * ld, ld, false, min(PANEL_SIDE, rows - i), cols);
    for (int i = 0; p->to[ACROSS] && i < cols; i += PANEL_SIDE)
        p->v->pack(p->to[ACROSS] + (size_t)(col + i) / PANEL_SIDE * p->next[ACROSS] +
                       (size_t)row / PANEL_DEPTH * PANEL_BLOCK,
                   p->form[ACROSS], x + i, ld, true, min(PANEL_SIDE, cols - i), rows);
}

static void pack_task(void *arg, size_t i) {
    const struct pack *p = arg;
    int row = (int)(i / p->across) * PANEL_DEPTH, col = (int)(i % p->across) * PACK_COLS;
    for (int end = min(col + PACK_COLS, p->x.cols); col < end; col += PANEL_DEPTH)
        pack_square(p, row, col);
}

static uint16_t *room_for(struct cpu_buf *buf, const struct cpu_matrix *x, enum layout layout) {
    size_t side = blocks(layout == ALONG ? x->rows : x->cols, PANEL_SIDE);
    return (uint16_t *)(void *)cpu_buf_need(buf, side * shape_of(x, layout).next / 2);
}

static void pack_run(struct kern *K, struct pack *p) {
    p->across = blocks(p->x.cols, PACK_COLS);
    kern_pool_run(K->pool, blocks(p->x.rows, PANEL_DEPTH) * p->across, pack_task, p);
}

static struct packed pack_into(struct kern *K, const struct cpu_panels *p, struct cpu_buf *buf,
                               const struct cpu_matrix *x, enum layout layout,
                               enum panel_form form) {
    struct packed to = shape_of(x, layout);
    struct pack job = {.v = p->v, .x = *x};
    to.p = job.to[layout] = room_for(buf, x, layout);
    job.next[layout] = to.next;
    job.form[layout] = form;
    pack_run(K, &job);
    return to;
}

static bool is_fixed(const struct cpu_panels *p, const struct cpu_matrix *x) {
    uintptr_t at = (uintptr_t)x->x - (uintptr_t)p->params, // huge if x lies before params
        len = ((size_t)(x->rows - 1) * (size_t)x->ld + (size_t)x->cols) * sizeof *x->x,
              all = p->n_params * sizeof *x->x;
    return p->params && at < all && len <= all - at;
}

static bool matches(const struct kept *k, const struct cpu_matrix *x, enum layout layout) {
    return k->of.x == x->x && k->of.rows == x->rows && k->of.cols == x->cols && k->of.ld == x->ld &&
           k->layout == layout;
}

// Returns the entry of a parameter; a new parameter gets one at the end. Every step asks in the
// same order, so the next entry is mostly the right one.
static struct kept *place_of(struct cpu_panels *p, const struct cpu_matrix *x, enum layout layout) {
    for (size_t i = 0; i < p->n_kept; i++) {
        size_t at = (p->last + 1 + i) % p->n_kept;
        if (matches(&p->kept[at], x, layout)) {
            p->last = at;
            return &p->kept[at];
        }
    }
    p->kept = neb_array_more(p->kept, p->n_kept, &p->room, 64, sizeof *p->kept);
    NEB_ASSERT(p->kept); // an op cannot report an error (kern.h)
    p->last = p->n_kept++;
    p->kept[p->last] = (struct kept){.of = *x, .layout = layout};
    return &p->kept[p->last];
}

static struct packed operand(struct kern *K, struct cpu_panels *p, struct cpu_buf *buf,
                             const struct cpu_matrix *x, enum layout layout, enum panel_form form) {
    if (form != PANEL_B || !is_fixed(p, x))
        return pack_into(K, p, buf, x, layout, form);
    struct kept *k = place_of(p, x, layout);
    if (!k->fresh)
        pack_into(K, p, &k->to, x, layout, form);
    k->fresh = true;
    struct packed to = shape_of(x, layout);
    to.p = (const uint16_t *)(const void *)k->to.p;
    return to;
}

// ---- multiplying

struct product {
    const struct panel_isa *v;
    struct cpu_tiles cut;
    struct packed a, b;
    float alpha, beta, *c;
    size_t ldc;
    enum panel_how how;
    const struct cpu_isa *rows;
};

static void product_task(void *arg, size_t i) {
    const struct product *p = arg;
    struct cpu_tile t = cpu_tile(&p->cut, i);
    float *c = p->c + (size_t)t.row * p->ldc + t.col;
    for (int r = 0; p->beta != 0 && p->beta != 1 && r < t.rows; r++)
        p->rows->scale(c + (size_t)r * p->ldc, p->beta, (size_t)t.cols);
    for (int from = 0; from < p->a.depth; from += DEPTH_MAX) {
        size_t skip = (size_t)from * PANEL_BLOCK;
        p->v->mul(&(struct panel_mul){
            .a = p->a.p + (size_t)t.row / PANEL_SIDE * p->a.next + skip,
            .b = p->b.p + (size_t)t.col / PANEL_SIDE * p->b.next + skip,
            .a_next = p->a.next,
            .b_next = p->b.next,
            .depth = min(DEPTH_MAX, p->a.depth - from),
            .rows = t.rows,
            .cols = t.cols,
            .alpha = p->alpha,
            .c = c,
            .ldc = p->ldc,
            .how = from ? PANEL_ADD : p->how,
        });
    }
}

static enum panel_how how_to(float beta, const float *c, size_t ldc, int m, int n, int depth) {
    if (beta != 0)
        return PANEL_ADD;
    bool large = (size_t)m * (size_t)n * sizeof *c >= STREAM_BYTES,
         lines = (uintptr_t)c % 64 == 0 && ldc % 16 == 0;
    return large && lines && depth <= DEPTH_MAX ? PANEL_STREAM : PANEL_STORE;
}

static void multiply(struct kern *K, const struct cpu_panels *p, int m, int n, float alpha,
                     struct packed a, struct packed b, float beta, float *c, int ldc) {
    struct product job = {.v = p->v,
                          .cut = cpu_tiles(m, n, a.depth * PANEL_DEPTH),
                          .a = a,
                          .b = b,
                          .alpha = alpha,
                          .beta = beta,
                          .c = c,
                          .ldc = (size_t)ldc,
                          .rows = cpu_of(K)->isa};
    job.how = how_to(beta, c, job.ldc, m, n, a.depth);
    job.cut.tile_m = (int)blocks(job.cut.tile_m, TILE_ROWS) * TILE_ROWS;
    job.cut.tile_n = (int)blocks(job.cut.tile_n, TILE_COLS) * TILE_COLS;
    kern_pool_run(K->pool, cpu_tiles_count(&job.cut), product_task, &job);
}

void cpu_panels_gemm(struct kern *K, struct cpu_panels *p, const struct kern_gemm *g) {
    struct cpu_matrix x = {g->a, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda},
                      y = {g->b, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb};
    struct packed l = operand(K, p, &p->a, &x, g->ta ? ACROSS : ALONG, PANEL_A),
                  r = operand(K, p, &p->b, &y, g->tb ? ALONG : ACROSS, PANEL_B);
    multiply(K, p, g->m, g->n, g->alpha, l, r, g->beta, g->c, g->ldc);
}

void cpu_panels_linear_bwd(struct kern *K, struct cpu_panels *p, const struct kern_linear_bwd *l) {
    int n = l->n, out = l->out, in = l->in;
    float *dx = l->dx, *dw = l->dw;
    struct cpu_matrix g = {l->dy, n, out, l->ld}, acts = {l->x, n, in, in},
                      weight = {l->w, out, in, in};
    struct pack both = {.v = p->v, .x = g, .form = {PANEL_A, PANEL_A}};
    struct packed packed_dy[2] = {shape_of(&g, ALONG), shape_of(&g, ACROSS)};
    if (dx)
        packed_dy[ALONG].p = both.to[ALONG] = room_for(&p->a, &g, ALONG);
    if (dw)
        packed_dy[ACROSS].p = both.to[ACROSS] = room_for(&p->both, &g, ACROSS);
    for (int i = 0; i < 2; i++)
        both.next[i] = packed_dy[i].next;
    pack_run(K, &both);
    if (dw)
        multiply(K, p, out, in, 1, packed_dy[ACROSS], operand(K, p, &p->b, &acts, ACROSS, PANEL_B),
                 1, dw, in);
    if (dx)
        multiply(K, p, n, in, 1, packed_dy[ALONG], operand(K, p, &p->b, &weight, ACROSS, PANEL_B),
                 0, dx, in);
}
