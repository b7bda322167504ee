// SPDX-License-Identifier: Apache-2.0
// Matrix products by a library (blas.c), and the output layer with its cross-entropy.
//
// The library uses one thread. A product is cut into tiles of C by its shape alone, and each tile
// is one call on one of Nebula's threads, so that results do not depend on the number of threads.
#include "kernels/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    // Work of a tile in a large product. Smaller tiles cost more, since each tile packs its
    // operands.
    TILE_FLOPS = 1 << 28,
    TILE_FLOPS_LEAST = 1 << 23, // least work that is worth another thread
    TILES_LEAST = 4,            // tiles of a product of medium size
    TILES_MAX = 64,
    TILE_SIDE = 64,        // least side of a tile
    HEAD_LOGITS = 1 << 20, // floats of one block of logits, approximately
    HEAD_ROWS_MIN = 64,
    HEAD_ROWS_MAX = 512,
};

struct gemm_job {
    struct cpu_tiles cut;
    enum kern_trans ta, tb;
    int k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
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
    size_t r = (size_t)t.row, c = (size_t)t.col;
    const float *a = j->a + (j->ta ? r : r * (size_t)j->lda);
    const float *b = j->b + (j->tb ? c * (size_t)j->ldb : c);
    cpu_sgemm(j->ta, j->tb, t.rows, t.cols, j->k, j->alpha, a, j->lda, b, j->ldb, j->beta,
              j->c + r * (size_t)j->ldc + c, j->ldc);
}

void cpu_gemm(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
              float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
              int ldc) {
    if (m == 0 || n == 0)
        return;
    if (cpu_bf16_takes(K, m, n, k)) {
        cpu_bf16_gemm(K, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    struct gemm_job j = {.cut = cpu_tiles(m, n, k),
                         .ta = ta,
                         .tb = tb,
                         .k = k,
                         .lda = lda,
                         .ldb = ldb,
                         .ldc = ldc,
                         .alpha = alpha,
                         .beta = beta,
                         .a = a,
                         .b = b,
                         .c = c};
    kern_pool_run(K->pool, cpu_tiles_count(&j.cut), gemm_task, &j);
}

void cpu_linear_bwd(struct kern *K, float *dx, float *dw, const float *dy, int ld, const float *x,
                    const float *w, int n, int out, int in) {
    if (n && cpu_bf16_takes(K, n, out, in)) {
        cpu_bf16_linear_bwd(K, dx, dw, dy, ld, x, w, n, out, in);
        return;
    }
    if (dw)
        cpu_gemm(K, KERN_T, KERN_N, out, in, n, 1, dy, ld, x, in, 1, dw, in);
    if (dx)
        cpu_gemm(K, KERN_N, KERN_N, n, in, out, 1, dy, ld, w, in, 0, dx, in);
}

enum { CPU_SOFT_MAX = 64 };

// The output layer. Rows without a target are skipped: the other rows are gathered, block by block.
struct head_job {
    const struct kern_head *h;
    const struct cpu_isa *v;
    const int32_t *rows;          // rows of x in this block
    float *z;                     // (block, V) logits, then their gradient
    double *loss;                 // (block); with a teacher two more: cross-entropy, KL
    const struct kern_soft *soft; // NULL: no teacher
    float *zt;                    // (block, V) logits at the teacher's temperature
    size_t block;
    float *x, *dx; // (block, d) gathered
};

static void head_gather(void *arg, size_t i) {
    const struct head_job *j = arg;
    size_t d = (size_t)j->h->d;
    memcpy(j->x + i * d, j->h->x + (size_t)j->rows[i] * d, sizeof(float) * d);
}

static void head_softmax(void *arg, size_t i) {
    const struct head_job *j = arg;
    size_t V = (size_t)j->h->V;
    float *z = j->z + i * V, max;
    int32_t target = j->h->targets[j->rows[i]];
    double at = (double)z[target], sum = j->v->exp_row(z, V, &max);
    j->loss[i] = (double)max + log(sum) - at;
    if (j->h->losses)
        j->h->losses[j->rows[i]] = (float)j->loss[i];
    if (j->h->dx || j->h->dw) {
        j->v->scale(z, (float)((double)j->h->grad_scale / sum), V);
        z[target] -= j->h->grad_scale;
    }
}

// z holds exp(logit / T - max). Replaces it with the gradient of KL by logit / T, and returns KL,
// as kl_row in ref.c. The tail's mass is summed class by class: 1 - (mass of the named classes)
// would lose all digits where that mass is nearly 1.
static double soft_row(const struct kern_soft *s, const struct cpu_isa *v, float *z, size_t V,
                       size_t row, double sum, double max, const double *named_logit) {
    const float *logp = s->logp + row * (s->k ? (size_t)s->k : V);
    double log_sum = max + log(sum), kl = 0;
    if (!s->k) {
        for (size_t c = 0; c < V; c++) {
            float p = expf(logp[c]), q = (float)((double)z[c] / sum);
            kl +=
                p > 0 ? (double)p * ((double)logp[c] - (log((double)z[c] + 1e-300) - log(sum))) : 0;
            z[c] = q - p;
        }
        return kl;
    }
    const int32_t *ids = s->ids + row * (size_t)s->k;
    double rest = 0, p_tail = (double)s->tail[row];
    for (int j = 0; j < s->k; j++)
        z[ids[j]] = 0;
    for (size_t c = 0; c < V; c++)
        rest += (double)z[c];
    double q_tail = rest / sum > 1e-12 ? rest / sum : 1e-12;
    kl = p_tail > 0 ? p_tail * (log(p_tail) - log(q_tail)) : 0;
    v->scale(z, (float)((1 - p_tail / q_tail) / sum), V);
    for (int j = 0; j < s->k; j++) {
        double p = exp((double)logp[j]), logq = named_logit[j] - log_sum;
        kl += p > 0 ? p * ((double)logp[j] - logq) : 0;
        z[ids[j]] = (float)(exp(logq) - p);
    }
    return kl;
}

static void head_soft(void *arg, size_t i) {
    const struct head_job *j = arg;
    const struct kern_soft *s = j->soft;
    size_t V = (size_t)j->h->V, row = (size_t)j->rows[i];
    float *z = j->z + i * V, *zt = j->zt + i * V, max;
    int32_t target = j->h->targets[row];
    double named[CPU_SOFT_MAX], T = (double)s->temperature, at = (double)z[target];
    memcpy(zt, z, sizeof *zt * V);
    if (s->temperature != 1)
        j->v->scale(zt, 1 / s->temperature, V);
    for (int k = 0; k < s->k; k++)
        named[k] = (double)zt[s->ids[row * (size_t)s->k + (size_t)k]];
    double sum = j->v->exp_row(z, V, &max), ce = (double)max + log(sum) - at;
    double sum_t = j->v->exp_row(zt, V, &max);
    double kl = soft_row(s, j->v, zt, V, row, sum_t, (double)max, named),
           lambda = (double)s->lambda;
    double loss = (1 - lambda) * ce + lambda * T * T * kl, by = (double)j->h->grad_scale;
    j->loss[i] = loss;
    j->loss[j->block + i] = ce;
    j->loss[2 * j->block + i] = kl;
    if (j->h->losses)
        j->h->losses[row] = (float)loss;
    if (!j->h->dx && !j->h->dw)
        return;
    j->v->scale(z, (float)((1 - lambda) * by / sum), V);
    z[target] -= (float)((1 - lambda) * by);
    j->v->scale(zt, (float)(lambda * T * by), V); // T^2 from the loss, 1 / T from the logits
    j->v->add(z, zt, V);
}

static void head_scatter(void *arg, size_t i) {
    const struct head_job *j = arg;
    size_t d = (size_t)j->h->d;
    memcpy(j->h->dx + (size_t)j->rows[i] * d, j->dx + i * d, sizeof(float) * d);
}

static size_t head_pick(struct cpu_ctx *x, const struct kern_head *h) {
    size_t counted = 0, n = (size_t)h->n;
    if (n > x->picked_n) {
        free(x->picked);
        x->picked = malloc(n * sizeof *x->picked);
        NEB_ASSERT(x->picked);
        x->picked_n = n;
    }
    for (size_t i = 0; i < n; i++) {
        if (h->targets[i] != KERN_IGNORE) {
            NEB_ASSERT(h->targets[i] >= 0 && h->targets[i] < h->V);
            x->picked[counted++] = (int32_t)i;
            continue;
        }
        if (h->losses)
            h->losses[i] = 0;
        if (h->dx)
            memset(h->dx + i * (size_t)h->d, 0, sizeof(float) * (size_t)h->d);
    }
    return counted;
}

static double head_run(struct kern *K, const struct kern_head *h, const struct kern_soft *soft,
                       int64_t *n_counted) {
    struct cpu_ctx *x = cpu_of(K);
    size_t counted = head_pick(x, h), d = (size_t)h->d, V = (size_t)h->V,
           block = HEAD_LOGITS / V / 16 * 16;
    block = block < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : block > HEAD_ROWS_MAX ? HEAD_ROWS_MAX : block;
    *n_counted = (int64_t)counted;
    bool all = counted == (size_t)h->n;
    struct head_job j = {.h = h, .v = x->isa, .z = cpu_buf_need(&x->logits, block * V)};
    j.loss = (double *)cpu_buf_need(&x->partial, 6 * block);
    j.soft = soft;
    j.block = block;
    j.zt = soft ? cpu_buf_need(&x->soft, block * V) : NULL;
    float *rows = all ? NULL : cpu_buf_need(&x->rows, block * d);
    float *drows = all || !h->dx ? NULL : cpu_buf_need(&x->drows, block * d);
    double total = 0, ce = 0, kl = 0;
    for (size_t from = 0; from < counted; from += block) {
        size_t n = counted - from < block ? counted - from : block;
        j.rows = x->picked + from;
        j.x = rows;
        j.dx = all && h->dx ? h->dx + from * d : drows;
        if (!all)
            kern_pool_run(K->pool, n, head_gather, &j);
        const float *xb = all ? h->x + from * d : rows;
        cpu_gemm(K, KERN_N, KERN_T, (int)n, h->V, h->d, 1, xb, h->d, h->w, h->d, 0, j.z, h->V);
        kern_pool_run(K->pool, n, soft ? head_soft : head_softmax, &j);
        for (size_t i = 0; i < n; i++)
            total += j.loss[i];
        for (size_t i = 0; soft && i < n; i++) {
            ce += j.loss[block + i];
            kl += j.loss[2 * block + i];
        }
        cpu_linear_bwd(K, h->dx ? j.dx : NULL, h->dw, j.z, h->V, xb, h->w, (int)n, h->V, h->d);
        if (h->dx && !all)
            kern_pool_run(K->pool, n, head_scatter, &j);
    }
    if (soft && soft->ce_sum)
        *soft->ce_sum = ce;
    if (soft && soft->kl_sum)
        *soft->kl_sum = kl;
    return total;
}

double cpu_head_loss(struct kern *K, const struct kern_head *h, int64_t *n_counted) {
    return head_run(K, h, NULL, n_counted);
}

double cpu_distill(struct kern *K, const struct kern_head *h, const struct kern_soft *s,
                   int64_t *n_counted) {
    NEB_ASSERT(s->k >= 0 && s->k <= CPU_SOFT_MAX && s->temperature > 0);
    return head_run(K, h, s, n_counted);
}
