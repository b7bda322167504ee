// SPDX-License-Identifier: Apache-2.0
// Matrix products by a library (blas.c).
//
// The library uses one thread. A product is cut into tiles of C by its shape alone, and each tile
// is one call on one of Nebula's threads, so that results do not depend on the number of threads.
#include "kernels/cpu.h"

#include <math.h>

enum {
    // Work of a tile in a large product. Smaller tiles cost more, since each tile packs its
    // operands.
    TILE_FLOPS = 1 << 28,
    TILE_FLOPS_LEAST = 1 << 23, // least work that is worth another thread
    TILES_LEAST = 4,            // tiles of a product of medium size
    TILES_MAX = 64,
    TILE_SIDE = 64,     // least side of a tile
    HALVES_LEAST = 256, // least side of a symmetric product that is cut
    BLOCK_MOST = 512,   // most rows of its blocks
    MIRROR = 64,        // rows and columns that are copied at once
};

struct gemm_job {
    struct cpu_tiles cut;
    const struct kern_gemm *g;
};

static int up(int n, int by) { return (n + by - 1) / by; }
static int min(int a, int b) { return a < b ? a : b; }

// Halves the longer side of the tiles until there are enough of them.
struct cpu_tiles cpu_tiles(int m, int n, int k) {
    struct cpu_tiles t = {.m = m, .n = n, .tile_m = m, .tile_n = n};
    double flops = 2.0 * m * n * k;
    int want =
        (int)fmin(fmax(flops / TILE_FLOPS, fmin(flops / TILE_FLOPS_LEAST, TILES_LEAST)), TILES_MAX);
    while (up(m, t.tile_m) * up(n, t.tile_n) < want) {
        int *side = t.tile_m >= t.tile_n ? &t.tile_m : &t.tile_n;
        if (*side <= TILE_SIDE)
            break;
        *side = up(up(*side, 2), 16) * 16;
    }
    return t;
}

size_t cpu_tiles_count(const struct cpu_tiles *t) {
    return (size_t)(up(t->m, t->tile_m) * up(t->n, t->tile_n));
}

struct cpu_tile cpu_tile(const struct cpu_tiles *t, size_t i) {
    int across = up(t->n, t->tile_n), row = (int)i / across * t->tile_m,
        col = (int)i % across * t->tile_n;
    return (struct cpu_tile){row, col, min(t->tile_m, t->m - row), min(t->tile_n, t->n - col)};
}

static void gemm_task(void *arg, size_t i) {
    const struct gemm_job *j = arg;
    struct cpu_tile t = cpu_tile(&j->cut, i);
    struct kern_gemm g = *j->g;
    size_t r = (size_t)t.row, c = (size_t)t.col;
    g.m = t.rows;
    g.n = t.cols;
    g.a = (const float *)g.a + (g.ta ? r : r * (size_t)g.lda);
    g.b = (const float *)g.b + (g.tb ? c * (size_t)g.ldb : c);
    g.c = (float *)g.c + r * (size_t)g.ldc + c;
    cpu_sgemm(&g);
}

// ---- symmetric products: blocks on and below the diagonal, then a copy above it -----------------

struct half {
    const struct kern_gemm *g;
    int side; // of a block
};

static void half_task(void *arg, size_t i) {
    const struct half *j = arg;
    struct kern_gemm g = *j->g;
    int row = 0;
    for (; i > (size_t)row; row++) // block (row, i)
        i -= (size_t)row + 1;
    size_t r = (size_t)(row * j->side), c = i * (size_t)j->side;
    g.m = min(j->side, g.m - (int)r);
    g.n = min(j->side, g.n - (int)c);
    g.a = (const float *)g.a + (g.ta ? r : r * (size_t)g.lda);
    g.b = (const float *)g.b + (g.tb ? c * (size_t)g.ldb : c);
    g.c = (float *)g.c + r * (size_t)g.ldc + c;
    if (r == c)
        cpu_ssyrk(&g);
    else
        cpu_sgemm(&g);
}

static void mirror_task(void *arg, size_t i) {
    const struct kern_gemm *g = ((const struct half *)arg)->g;
    float *c = g->c;
    size_t n = (size_t)g->n, ld = (size_t)g->ldc, from = i * MIRROR,
           end = from + MIRROR < n ? from + MIRROR : n;
    for (size_t at = 0; at < end; at += MIRROR)
        for (size_t row = from; row < end; row++)
            for (size_t col = at; col < at + MIRROR && col < row; col++)
                c[col * ld + row] = c[row * ld + col];
}

static void symmetric(struct kern *K, const struct kern_gemm *g) {
    NEB_ASSERT(g->a == g->b && g->m == g->n && g->ta != g->tb && !g->bias);
    int blocks = g->n < HALVES_LEAST ? 1 : up(g->n, BLOCK_MOST) < 2 ? 2 : up(g->n, BLOCK_MOST);
    struct half j = {g, up(up(g->n, blocks), 16) * 16};
    size_t n = (size_t)up(g->n, j.side);
    kern_pool_run(K->pool, n * (n + 1) / 2, half_task, &j);
    kern_pool_run(K->pool, (size_t)up(g->n, MIRROR), mirror_task, &j);
}

void cpu_gemm(struct kern *K, const struct kern_gemm *g) {
    if (g->m == 0 || g->n == 0)
        return;
    if (g->symmetric && !cpu_bf16_takes(K, g->m, g->n, g->k)) {
        symmetric(K, g);
        return;
    }
    if (cpu_bf16_takes(K, g->m, g->n, g->k)) {
        cpu_bf16_gemm(K, g);
    } else {
        struct gemm_job j = {.cut = cpu_tiles(g->m, g->n, g->k), .g = g};
        kern_pool_run(K->pool, cpu_tiles_count(&j.cut), gemm_task, &j);
    }
    if (g->bias)
        cpu_bias_fwd(K, g->c, g->ldc, g->bias, g->m, g->n);
}

void cpu_linear_bwd(struct kern *K, const struct kern_linear_bwd *l) {
    if (l->db)
        cpu_bias_bwd(K, KERN_F32, l->db, l->dy, l->n, l->out);
    if (l->n && cpu_bf16_takes(K, l->n, l->out, l->in)) {
        cpu_bf16_linear_bwd(K, l);
        return;
    }
    const struct kern_gemm dw = kern_linear_dw(l), dx = kern_linear_dx(l);
    if (l->dw)
        cpu_gemm(K, &dw);
    if (l->dx)
        cpu_gemm(K, &dx);
}
