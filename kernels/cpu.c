// SPDX-License-Identifier: Apache-2.0
// The fast CPU backend: creation, choice of the instruction set, and the drivers of element and row
// ops. A driver cuts its op into blocks by the shape alone, and adds partial sums in the order of
// the blocks.
#include "kernels/cpu.h"
#include "agent/base/count.h"
#include "agent/base/memory.h"
#include "kernels/host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FLAT_BLOCK = 16384, // floats of a flat array in one task: 64 KiB
    ROW_FLOATS = 16384, // floats of a matrix's rows in one task, approximately
    SUM_BLOCKS = 64,    // most partial sums of a column reduction
    COLUMNS = 64,       // columns of one embed_bwd task
};

float *cpu_buf_need(struct cpu_buf *b, size_t n) {
    if (n > b->n) {
        free(b->p);
        b->n = (n + 15) / 16 * 16;
        b->p = neb_large_alloc(b->n * sizeof *b->p);
        NEB_ASSERT(b->p); // an op cannot report an error (kern.h)
    }
    return b->p;
}

static size_t blocks(size_t n, size_t block) { return (n + block - 1) / block; }
static size_t rows_per_task(int d) {
    size_t r = ROW_FLOATS / (size_t)(d > 0 ? d : 1);
    return r ? r : 1;
}
// Rows of one partial sum: about rows_per_task, but enough that SUM_BLOCKS sums suffice.
static size_t rows_per_sum(size_t n, int d) {
    size_t r = rows_per_task(d), least = blocks(n, SUM_BLOCKS);
    return r > least ? r : least;
}

// Arguments for the tasks of one row op. Each op uses a part of them.
struct rows {
    struct kern *K;
    const struct cpu_isa *v;
    float *y, *h, *rstd, *sums;
    const float *x, *r, *w, *rs;
    const int32_t *ids;
    const struct kern_buckets *buckets;
    size_t n, per;
    int d, ld, T, heads;
    float eps;
    bool inverse;
};
static size_t row_end(const struct rows *a, size_t i) {
    size_t end = (i + 1) * a->per;
    return end < a->n ? end : a->n;
}
static void rows_run(struct rows *a, void (*task)(void *arg, size_t i)) {
    a->v = cpu_of(a->K)->isa;
    kern_pool_run(a->K->pool, blocks(a->n, a->per), task, a);
}
// Adds the partial sums to out, in order.
static void sums_add(struct rows *a, float *out) {
    for (size_t i = 0; i < blocks(a->n, a->per) && !neb_counting(); i++)
        a->v->add(out, a->sums + i * (size_t)a->d, (size_t)a->d);
}

static void embed_fwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    size_t d = (size_t)a->d;
    for (size_t i = t * a->per; i < row_end(a, t); i++)
        if (a->ids[i] < 0)
            memset(a->y + i * d, 0, sizeof(float) * d);
        else
            memcpy(a->y + i * d, a->x + (size_t)a->ids[i] * d, sizeof(float) * d);
}
static void embed_fwd(struct kern *K, enum kern_type t, void *out, const void *table,
                      const int32_t *ids, int n, int d) {
    NEB_ASSERT(t == KERN_F32);
    rows_run(&(struct rows){.K = K,
                            .y = out,
                            .x = table,
                            .ids = ids,
                            .n = (size_t)n,
                            .per = rows_per_task(d),
                            .d = d},
             embed_fwd_task);
}

// A task owns columns, so that it adds rows in the order of the batch.
static void embed_bwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    const struct kern_buckets *b = a->buckets;
    size_t d = (size_t)a->d, from = t * a->per, len = row_end(a, t) - from;
    for (int32_t k = 0; k < *b->used; k++)
        for (int32_t i = b->start[k]; i < b->start[k + 1]; i++)
            a->v->add(a->y + (size_t)b->ids[k] * d + from, a->x + (size_t)b->rows[i] * d + from,
                      len);
}
static void embed_bwd(struct kern *K, float *dtable, const float *dout,
                      const struct kern_buckets *b, int n, int d) {
    NEB_ASSERT(*b->used <= n);
    rows_run(
        &(struct rows){
            .K = K, .y = dtable, .x = dout, .buckets = b, .n = (size_t)d, .per = COLUMNS, .d = d},
        embed_bwd_task);
}

static void rms_fwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    for (size_t i = t * a->per; i < row_end(a, t); i++) {
        size_t at = i * (size_t)a->d;
        a->rstd[i] = a->v->rms_fwd(a->y + at, a->h + at, a->x + at, a->r ? a->r + at : NULL, a->w,
                                   a->d, a->eps);
    }
}
static void rmsnorm_fwd(struct kern *K, enum kern_type t, enum kern_type tr, void *y, float *rstd,
                        float *h, const float *x, const void *r, const float *w, int n, int d,
                        float eps) {
    NEB_ASSERT(t == KERN_F32 && tr == KERN_F32);
    rows_run(&(struct rows){.K = K,
                            .y = y,
                            .rstd = rstd,
                            .h = h,
                            .x = x,
                            .r = r,
                            .w = w,
                            .n = (size_t)n,
                            .per = rows_per_task(d),
                            .d = d,
                            .eps = eps},
             rms_fwd_task);
}

static void rms_bwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    float *dw = a->sums ? a->sums + t * (size_t)a->d : NULL;
    if (dw)
        memset(dw, 0, sizeof(float) * (size_t)a->d);
    for (size_t i = t * a->per; i < row_end(a, t); i++) {
        size_t at = i * (size_t)a->d;
        a->v->rms_bwd(a->y + at, dw, a->x + at, a->r + at, a->w, a->rs[i], a->d);
    }
}
static void rmsnorm_bwd(struct kern *K, enum kern_type t, float *dh, void *dh_t, float *dw,
                        const void *dy, const float *h, const float *w, const float *rstd, int n,
                        int d) {
    NEB_ASSERT(t == KERN_F32);
    struct rows a = {.K = K, .y = dh, .x = dy, .r = h, .w = w, .rs = rstd, .n = (size_t)n, .d = d};
    a.per = rows_per_sum(a.n, d);
    if (dw)
        a.sums = cpu_buf_need(&cpu_of(K)->partial, blocks(a.n, a.per) * (size_t)d);
    rows_run(&a, rms_bwd_task);
    if (dw)
        sums_add(&a, dw);
    if (dh_t)
        kern_host_copy(K, dh_t, dh, (size_t)n * (size_t)d * sizeof(float));
}

static void rope_task(void *arg, size_t t) {
    const struct rows *a = arg;
    for (size_t i = t * a->per; i < row_end(a, t); i++)
        a->v->rope(a->y + i * (size_t)a->ld, a->x + i % (size_t)a->T * (size_t)a->d, a->heads, a->d,
                   a->inverse);
}
void cpu_rope(struct kern *K, enum kern_type t, void *x, int ld, const float *cos_sin, int n, int T,
              int heads, int head_dim, bool inverse) {
    NEB_ASSERT(t == KERN_F32 && head_dim % 2 == 0 && head_dim <= CPU_HEAD_DIM_MAX);
    rows_run(&(struct rows){.K = K,
                            .y = x,
                            .ld = ld,
                            .x = cos_sin,
                            .n = (size_t)n,
                            .per = rows_per_task(heads * head_dim),
                            .d = head_dim,
                            .T = T,
                            .heads = heads,
                            .inverse = inverse},
             rope_task);
}

static void swiglu_fwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    size_t f = (size_t)a->d;
    for (size_t i = t * a->per; i < row_end(a, t); i++)
        a->v->swiglu_fwd(a->y + i * f, a->x + i * 2 * f, a->x + i * 2 * f + f, f);
}
static void swiglu_fwd(struct kern *K, enum kern_type t, void *y, const void *gu, int n, int f) {
    NEB_ASSERT(t == KERN_F32);
    rows_run(
        &(struct rows){.K = K, .y = y, .x = gu, .n = (size_t)n, .per = rows_per_task(f), .d = f},
        swiglu_fwd_task);
}
static void swiglu_bwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    size_t f = (size_t)a->d;
    for (size_t i = t * a->per; i < row_end(a, t); i++) {
        size_t at = i * 2 * f;
        a->v->swiglu_bwd(a->y + at, a->y + at + f, a->x + i * f, a->r + at, a->r + at + f, f);
    }
}
static void swiglu_bwd(struct kern *K, enum kern_type t, void *dgu, const void *dy, const void *gu,
                       int n, int f) {
    NEB_ASSERT(t == KERN_F32);
    rows_run(
        &(struct rows){
            .K = K, .y = dgu, .x = dy, .r = gu, .n = (size_t)n, .per = rows_per_task(f), .d = f},
        swiglu_bwd_task);
}

static void bias_fwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    for (size_t i = t * a->per; i < row_end(a, t); i++)
        a->v->add(a->y + i * (size_t)a->ld, a->x, (size_t)a->d);
}
void cpu_bias_fwd(struct kern *K, float *x, int ld, const float *b, int n, int d) {
    rows_run(
        &(struct rows){
            .K = K, .y = x, .ld = ld, .x = b, .n = (size_t)n, .per = rows_per_task(d), .d = d},
        bias_fwd_task);
}
static void bias_fwd(struct kern *K, enum kern_type t, void *x, const float *b, int n, int d) {
    NEB_ASSERT(t == KERN_F32);
    cpu_bias_fwd(K, x, d, b, n, d);
}
static void bias_bwd_task(void *arg, size_t t) {
    const struct rows *a = arg;
    float *sum = a->sums + t * (size_t)a->d;
    memset(sum, 0, sizeof(float) * (size_t)a->d);
    for (size_t i = t * a->per; i < row_end(a, t); i++)
        a->v->add(sum, a->x + i * (size_t)a->d, (size_t)a->d);
}
void cpu_bias_bwd(struct kern *K, enum kern_type t, float *db, const void *dy, int n, int d) {
    NEB_ASSERT(t == KERN_F32);
    struct rows a = {.K = K, .x = dy, .n = (size_t)n, .d = d};
    a.per = rows_per_sum(a.n, d);
    a.sums = cpu_buf_need(&cpu_of(K)->partial, blocks(a.n, a.per) * (size_t)d);
    rows_run(&a, bias_bwd_task);
    sums_add(&a, db);
}

// Casting to fp32, the only type here.
static void cast(struct kern *K, enum kern_type t, void *out, const float *x, size_t n) {
    NEB_ASSERT(t == KERN_F32);
    kern_host_copy(K, out, x, n * sizeof *x);
}

struct update { // arguments of the tasks on chunks
    const struct cpu_isa *v;
    const struct kern_update *u;
    const struct kern_chunk *chunks;
    const float *grads;
    double *sums; // (chunks)
};

static void adamw_task(void *arg, size_t i) {
    const struct update *j = arg;
    const struct kern_update *u = j->u;
    const struct kern_chunk *k = &u->chunks[i];
    struct kern_adamw c = u->c;
    float *g = u->grads + k->grad_at, *m = u->m + k->moment_at;
    if (k->momentum) {
        j->v->momentum(c.momentum, u->factors[k->tensor], g, m, k->n);
        return;
    }
    c.weight_decay = k->decay ? c.weight_decay : 0;
    j->v->adamw(&c, u->factors[k->tensor], u->params + k->param_at, g, m, u->v + k->moment_at,
                k->n);
    memset(g, 0, k->n * sizeof *g);
}
static void adamw(struct kern *K, enum kern_type t, const struct kern_update *u) {
    NEB_ASSERT(t == KERN_F32 && !u->working);
    kern_pool_run(K->pool, (size_t)u->n_chunks, adamw_task,
                  &(struct update){.v = cpu_of(K)->isa, .u = u});
}

struct matrix { // arguments of the tasks on rows of a matrix
    const struct cpu_isa *v;
    float *y, by, keep;
    const float *x;
    size_t rows, cols, ldy, ldx, per;
};
static void matrix_run(struct kern *K, struct matrix *a, void (*task)(void *arg, size_t i)) {
    a->v = cpu_of(K)->isa;
    a->per = rows_per_task((int)a->cols);
    kern_pool_run(K->pool, blocks(a->rows, a->per), task, a);
}
static size_t matrix_end(const struct matrix *a, size_t t) {
    return (t + 1) * a->per < a->rows ? (t + 1) * a->per : a->rows;
}

static void normalise_task(void *arg, size_t t) {
    const struct matrix *a = arg;
    for (size_t i = t * a->per; i < matrix_end(a, t); i++) {
        memcpy(a->y + i * a->ldy, a->x + i * a->ldx, a->cols * sizeof *a->y);
        a->v->scale(a->y + i * a->ldy, a->by, a->cols);
    }
}
static void normalise(struct kern *K, enum kern_type t, void *x, int ldx, const float *g, int rows,
                      int cols, const double *sumsq) {
    NEB_ASSERT(t == KERN_F32);
    matrix_run(K,
               &(struct matrix){.y = x,
                                .ldy = (size_t)ldx,
                                .by = (float)(1 / (sqrt(*sumsq) + 1e-7)),
                                .x = g,
                                .ldx = (size_t)cols,
                                .rows = (size_t)rows,
                                .cols = (size_t)cols},
               normalise_task);
}

static void matrix_step_task(void *arg, size_t t) {
    const struct matrix *a = arg;
    for (size_t i = t * a->per; i < matrix_end(a, t); i++)
        a->v->step_by(a->y + i * a->ldy, a->x + i * a->ldx, a->keep, a->by, a->cols);
}
static void matrix_step(struct kern *K, enum kern_type t, const struct kern_matrix_step *s) {
    NEB_ASSERT(t == KERN_F32 && !s->working);
    matrix_run(K,
               &(struct matrix){.y = s->p,
                                .ldy = (size_t)s->cols,
                                .by = s->rate[1] * s->scale,
                                .keep = s->rate[0],
                                .x = s->x,
                                .ldx = (size_t)s->ldx,
                                .rows = (size_t)s->rows,
                                .cols = (size_t)s->cols},
               matrix_step_task);
}

static void sumsq_task(void *arg, size_t i) {
    const struct update *j = arg;
    j->sums[i] = j->v->sumsq(j->grads + j->chunks[i].grad_at, j->chunks[i].n);
}
static void sumsq(struct kern *K, const struct kern_chunk *chunks, int n_chunks,
                  const int32_t *first, int tensors, const float *grads, double *sums) {
    struct update j = {.v = cpu_of(K)->isa, .chunks = chunks, .grads = grads};
    j.sums = (double *)cpu_buf_need(&cpu_of(K)->partial, 2 * (size_t)n_chunks);
    kern_pool_run(K->pool, (size_t)n_chunks, sumsq_task, &j);
    for (int i = 0; i < tensors; i++) {
        double sum = 0;
        for (int32_t k = first[i]; k < first[i + 1]; k++)
            sum += j.sums[k];
        sums[i] = sum;
    }
}

struct flat { // arguments of ops on flat arrays
    const struct cpu_isa *v;
    float *y, a;
    const float *x;
    size_t n;
};
static size_t flat_len(const struct flat *f, size_t i) {
    size_t left = f->n - i * FLAT_BLOCK;
    return left < FLAT_BLOCK ? left : FLAT_BLOCK;
}
static void flat_run(struct kern *K, struct flat *f, void (*task)(void *arg, size_t i)) {
    f->v = cpu_of(K)->isa;
    kern_pool_run(K->pool, blocks(f->n, FLAT_BLOCK), task, f);
}
static void add_task(void *arg, size_t i) {
    const struct flat *f = arg;
    f->v->add(f->y + i * FLAT_BLOCK, f->x + i * FLAT_BLOCK, flat_len(f, i));
}
static void add(struct kern *K, float *y, const float *x, size_t n) {
    flat_run(K, &(struct flat){.y = y, .x = x, .n = n}, add_task);
}
static void scale_task(void *arg, size_t i) {
    const struct flat *f = arg;
    f->v->scale(f->y + i * FLAT_BLOCK, f->a, flat_len(f, i));
}
static void scale(struct kern *K, float *y, float a, size_t n) {
    flat_run(K, &(struct flat){.y = y, .a = a, .n = n}, scale_task);
}

static void cpu_destroy(struct kern *K);

const struct kern_ops cpu_ops = {
    .name = "cpu",
    .destroy = cpu_destroy,
    KERN_HOST_MEMORY,
    .gemm = cpu_gemm,
    .linear_bwd = cpu_linear_bwd,
    .weights = cpu_weights,
    .cast = cast,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .rmsnorm_fwd = rmsnorm_fwd,
    .rmsnorm_bwd = rmsnorm_bwd,
    .rope = cpu_rope,
    .attn_fwd = cpu_attn_fwd,
    .attn_bwd = cpu_attn_bwd,
    .cache_put = cpu_cache_put,
    .cache_copy = cpu_cache_copy,
    .cache_attn = cpu_cache_attn,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .bias_fwd = bias_fwd,
    .bias_bwd = cpu_bias_bwd,
    .head_loss = cpu_head_loss,
    .vocab_max = cpu_vocab_max,
    .vocab_sum = cpu_vocab_sum,
    .vocab_loss = cpu_vocab_loss,
    .rtd_loss = cpu_rtd_loss,
    .sample_rows = cpu_sample_rows,
    .label_rows = cpu_label_rows,
    .sumsq = sumsq,
    .adamw = adamw,
    .normalise = normalise,
    .matrix_step = matrix_step,
    .scale = scale,
    .add = add,
};

const struct cpu_isa *cpu_isa_find(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                   ? &cpu_isa_avx512
                   : NULL;
    if (!strcmp(name, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &cpu_isa_avx2
                                                                               : NULL;
#endif
    return strcmp(name, "sse2") ? NULL : &cpu_isa_sse2;
}

const char *kern_cpu_isa(void) {
    static const char *const best_first[] = {"avx512", "avx2", "sse2"};
    const char *limit = getenv("NEBULA_ISA");
    bool reached = !limit;
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        reached = reached || !strcmp(limit, best_first[i]);
        if (reached && cpu_isa_find(best_first[i]))
            return best_first[i];
    }
    return limit; // unknown or not available: cpu_create_isa reports it
}

static void cpu_destroy(struct kern *K) {
    struct cpu_ctx *x = K->ctx;
    if (x) {
        struct cpu_buf *all[] = {&x->attn, &x->partial, &x->logits, &x->soft, &x->rows, &x->drows};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]->p);
        free(x->picked);
        cpu_bf16_destroy(x->bf16);
        free(x);
    }
    kern_pool_destroy(&K->pool);
    free(K);
}

enum neb_status cpu_create_isa(const char *isa, int n_threads, struct kern **out) {
    enum neb_status st;
    const char *name = isa ? isa : kern_cpu_isa();
    const struct cpu_isa *v = cpu_isa_find(name);
    if (!v)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "instruction set '%s' is unknown, or this machine lacks it; set "
                        "NEBULA_ISA to avx512, avx2 or sse2",
                        name);
    struct kern *K = calloc(1, sizeof *K);
    struct cpu_ctx *x = calloc(1, sizeof *x);
    if (!K || !x) {
        free(K);
        free(x);
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating the CPU backend");
    }
    kern_host_init(K, &cpu_ops);
    K->ctx = x;
    x->isa = v;
    NEB_TRY_GOTO(cpu_blas_choose(), out);
    NEB_TRY_GOTO(kern_pool_create(n_threads, &K->pool), out);
    *out = K;
    return NEB_OK;
out:
    kern_destroy(&K);
    return st;
}

enum neb_status kern_cpu_create(int n_threads, struct kern **out) {
    return cpu_create_isa(NULL, n_threads, out);
}
