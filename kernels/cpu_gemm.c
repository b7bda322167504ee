// Matrix products by OpenBLAS, and the output layer with its cross-entropy.
//
// One thread inside OpenBLAS, ours outside: a product is cut into tiles of C by its shape alone,
// and each tile is one call, so that results do not depend on the number of threads.
#include "kernels/cpu.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    // Of a large product, 0.6 ms at 200 GFLOP/s: a quarter of it costs up to 20 %.
    TILE_FLOPS = 1 << 27,
    TILE_FLOPS_LEAST = 1 << 23, // worth a hand-over to another thread
    TILES_LEAST = 4,            // of a product large enough for them
    TILES_MAX = 64,
    TILE_SIDE = 64,        // least
    HEAD_LOGITS = 1 << 20, // floats of one block of logits, about
    HEAD_ROWS_MIN = 64,
    HEAD_ROWS_MAX = 512,
};

struct gemm_job {
    enum kern_trans ta, tb;
    int m, n, k, lda, ldb, ldc;
    int tile_m, tile_n, tiles_n;
    float alpha, beta;
    const float *a, *b;
    float *c;
};

static int up(int n, int by) { return (n + by - 1) / by; }
static int min(int a, int b) { return a < b ? a : b; }

// Halves the longer side of the tiles until there are enough of them.
static void gemm_cut(struct gemm_job *j) {
    double flops = 2.0 * j->m * j->n * j->k;
    int want =
        (int)fmin(fmax(flops / TILE_FLOPS, fmin(flops / TILE_FLOPS_LEAST, TILES_LEAST)), TILES_MAX);
    j->tile_m = j->m;
    j->tile_n = j->n;
    while (up(j->m, j->tile_m) * up(j->n, j->tile_n) < want) {
        int *side = j->tile_m >= j->tile_n ? &j->tile_m : &j->tile_n;
        if (*side <= TILE_SIDE)
            break;
        *side = up(up(*side, 2), 16) * 16;
    }
    j->tiles_n = up(j->n, j->tile_n);
}

static void gemm_task(void *arg, size_t i) {
    const struct gemm_job *j = arg;
    int r = (int)i / j->tiles_n * j->tile_m, c = (int)i % j->tiles_n * j->tile_n;
    const float *a = j->a + (j->ta ? (size_t)r : (size_t)r * (size_t)j->lda);
    const float *b = j->b + (j->tb ? (size_t)c * (size_t)j->ldb : (size_t)c);
    cblas_sgemm(CblasRowMajor, j->ta ? CblasTrans : CblasNoTrans, j->tb ? CblasTrans : CblasNoTrans,
                min(j->tile_m, j->m - r), min(j->tile_n, j->n - c), j->k, j->alpha, a, j->lda, b,
                j->ldb, j->beta, j->c + (size_t)r * (size_t)j->ldc + (size_t)c, j->ldc);
}

void cpu_gemm(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
              float alpha, const float *a, int lda, const float *b, int ldb, float beta, float *c,
              int ldc) {
    if (m == 0 || n == 0)
        return;
    struct gemm_job j = {.ta = ta,
                         .tb = tb,
                         .m = m,
                         .n = n,
                         .k = k,
                         .lda = lda,
                         .ldb = ldb,
                         .ldc = ldc,
                         .alpha = alpha,
                         .beta = beta,
                         .a = a,
                         .b = b,
                         .c = c};
    gemm_cut(&j);
    kern_pool_run(K->pool, (size_t)(up(m, j.tile_m) * j.tiles_n), gemm_task, &j);
}

// Output layer. Rows without a target are left out of everything: the others are gathered, block by
// block.
struct head_job {
    const struct kern_head *h;
    const struct cpu_isa *v;
    const int32_t *rows; // this block's rows of x
    float *z;            // (block, V) logits, then their gradient
    double *loss;        // (block)
    float *x, *dx;       // (block, d) gathered
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

double cpu_head_loss(struct kern *K, const struct kern_head *h, int64_t *n_counted) {
    struct cpu_ctx *x = cpu_of(K);
    size_t counted = head_pick(x, h), d = (size_t)h->d, V = (size_t)h->V,
           block = HEAD_LOGITS / V / 16 * 16;
    block = block < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : block > HEAD_ROWS_MAX ? HEAD_ROWS_MAX : block;
    *n_counted = (int64_t)counted;
    bool all = counted == (size_t)h->n;
    struct head_job j = {.h = h, .v = x->isa, .z = cpu_buf_need(&x->logits, block * V)};
    j.loss = (double *)cpu_buf_need(&x->partial, 2 * block);
    float *rows = all ? NULL : cpu_buf_need(&x->rows, block * d);
    float *drows = all || !h->dx ? NULL : cpu_buf_need(&x->drows, block * d);
    double total = 0;
    for (size_t from = 0; from < counted; from += block) {
        size_t n = counted - from < block ? counted - from : block;
        j.rows = x->picked + from;
        j.x = rows;
        j.dx = all && h->dx ? h->dx + from * d : drows;
        if (!all)
            kern_pool_run(K->pool, n, head_gather, &j);
        const float *xb = all ? h->x + from * d : rows;
        cpu_gemm(K, KERN_N, KERN_T, (int)n, h->V, h->d, 1, xb, h->d, h->w, h->d, 0, j.z, h->V);
        kern_pool_run(K->pool, n, head_softmax, &j);
        for (size_t i = 0; i < n; i++)
            total += j.loss[i];
        if (h->dx)
            cpu_gemm(K, KERN_N, KERN_N, (int)n, h->d, h->V, 1, j.z, h->V, h->w, h->d, 0, j.dx,
                     h->d);
        if (h->dx && !all)
            kern_pool_run(K->pool, n, head_scatter, &j);
        if (h->dw)
            cpu_gemm(K, KERN_T, KERN_N, h->V, h->d, (int)n, 1, j.z, h->V, xb, h->d, 1, h->dw, h->d);
    }
    return total;
}
