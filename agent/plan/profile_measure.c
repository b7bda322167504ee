// SPDX-License-Identifier: Apache-2.0
// Measures processors for agent/plan/profile.h: each operation as training calls it, at sizes of a
// training step. It takes the best of a few runs, with a clock that leaves out other processes
// (profile_clock.h), because a plan assumes an idle machine.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/plan/profile.h"
#include "agent/plan/profile_clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RUNS = 5,
    CASE_MS = 250, // of one measurement
    TOKENS = 1024,
    FLOATS = 1 << 23, // of each array
    SEQ = 256,
    WEIGHT_SIDE = 512,
};

struct bench {
    struct kern *K;
    float *a, *b, *c, *d; // (FLOATS)
    int32_t side, head_dim;
};

typedef void action(struct bench *b);

// At least RUNS runs and CASE_MS, so that a short disturbance does not cover all of them.
static double best_of(struct bench *b, action *run, int times) {
    double best = INFINITY;
    run(b); // touches pages and allocates scratch
    neb_ns start = neb_now();
    for (int i = 0; i < RUNS || neb_now() - start < CASE_MS * NEB_MS; i++) {
        struct profile_clock clock;
        profile_clock_start(&clock);
        for (int k = 0; k < times; k++)
            run(b);
        best = fmin(best, profile_clock_stop(&clock, kern_pool_threads(b->K->pool)) / times);
    }
    return best;
}

// The three products of a layer whose smallest side is `side`, as in forward and backward.
static void run_gemm(struct bench *b) {
    int n = TOKENS, in = b->side, out = 2 * b->side;
    struct kern *K = b->K;
    K->ops->gemm(K, &(struct kern_gemm){.tb = KERN_T,
                                        .m = n,
                                        .n = out,
                                        .k = in,
                                        .alpha = 1,
                                        .a = b->a,
                                        .lda = in,
                                        .b = b->b,
                                        .ldb = in,
                                        .c = b->c,
                                        .ldc = out});
    K->ops->gemm(K, &(struct kern_gemm){.m = n,
                                        .n = in,
                                        .k = out,
                                        .alpha = 1,
                                        .a = b->c,
                                        .lda = out,
                                        .b = b->b,
                                        .ldb = in,
                                        .c = b->d,
                                        .ldc = in});
    K->ops->gemm(K, &(struct kern_gemm){.ta = KERN_T,
                                        .m = out,
                                        .n = in,
                                        .k = n,
                                        .alpha = 1e-6f,
                                        .a = b->c,
                                        .lda = out,
                                        .b = b->a,
                                        .ldb = in,
                                        .beta = 1,
                                        .c = b->b,
                                        .ldc = in});
}

// The same in bf16, as in training: the parameters are converted before, dy once.
static void run_linear(struct bench *b) {
    int n = TOKENS, in = b->side, out = 2 * b->side;
    struct kern *K = b->K;
    K->ops->gemm(K, &(struct kern_gemm){.tb = KERN_T,
                                        .m = n,
                                        .n = out,
                                        .k = in,
                                        .alpha = 1,
                                        .a = b->a,
                                        .lda = in,
                                        .b = b->b,
                                        .ldb = in,
                                        .c = b->c,
                                        .ldc = out});
    K->ops->linear_bwd(K, &(struct kern_linear_bwd){.n = n,
                                                    .out = out,
                                                    .in = in,
                                                    .dy = b->c,
                                                    .ld = out,
                                                    .x = b->a,
                                                    .w = b->b,
                                                    .dx = b->d,
                                                    .dw = b->d + FLOATS / 2});
}
// Converts a parameter to the forms that forward and backward read, with the smallest product after
// it.
enum { WEIGHT_ROWS = FLOATS / WEIGHT_SIDE };
static void run_weight(struct bench *b) {
    int n = KERN_BF16_LEAST, in = WEIGHT_SIDE, out = WEIGHT_ROWS;
    b->K->ops->gemm(b->K, &(struct kern_gemm){.tb = KERN_T,
                                              .m = n,
                                              .n = out,
                                              .k = in,
                                              .alpha = 1,
                                              .a = b->a,
                                              .lda = in,
                                              .b = b->b,
                                              .ldb = in,
                                              .c = b->c,
                                              .ldc = out});
    b->K->ops->linear_bwd(
        b->K,
        &(struct kern_linear_bwd){
            .n = n, .out = out, .in = in, .dy = b->c, .ld = out, .x = b->a, .w = b->b, .dx = b->d});
}
static void run_convert(struct bench *b) {
    b->K->ops->weights(b->K, b->b, FLOATS);
    run_weight(b);
}

static struct kern_attn attn_of(const struct bench *b) {
    int heads = 256 / b->head_dim;
    return (struct kern_attn){TOKENS / SEQ, SEQ, heads, heads, b->head_dim, KERN_MASK_CAUSAL, NULL};
}

// a: q, k, v side by side; c: out, then lse and delta; b: gradients.
static void run_attn_fwd(struct bench *b) {
    struct kern_attn s = attn_of(b);
    int w = s.n_heads * s.head_dim, ld = 3 * w;
    b->K->ops->attn_fwd(b->K, KERN_F32, &s, b->c, w, b->c + FLOATS / 2, b->a, ld, b->a + w, ld,
                        b->a + 2 * w, ld);
}
static void run_attn_bwd(struct bench *b) {
    struct kern_attn s = attn_of(b);
    int w = s.n_heads * s.head_dim, ld = 3 * w;
    b->K->ops->attn_bwd(b->K, KERN_F32, &s, b->b, b->b + w, b->b + 2 * w, b->d, b->c, w,
                        b->c + FLOATS / 2, b->a, ld, b->a + w, ld, b->a + 2 * w, ld,
                        b->c + FLOATS * 3 / 4, NULL);
}
static void run_rows(struct bench *b) { // 3 f floats per token, f = 1024
    b->K->ops->swiglu_fwd(b->K, KERN_F32, b->c, b->a, TOKENS, 1024);
}
static void run_update(struct bench *b) {
    enum { CHUNKS = FLOATS / KERN_CHUNK };
    struct kern_chunk chunks[CHUNKS];
    const int32_t first[] = {0, CHUNKS};
    const float factor = 1;
    double sum;
    for (size_t i = 0; i < CHUNKS; i++)
        chunks[i] = (struct kern_chunk){
            .param_at = i * KERN_CHUNK, .grad_at = i * KERN_CHUNK, .n = KERN_CHUNK, .decay = 1};
    b->K->ops->sumsq(b->K, chunks, CHUNKS, first, 1, b->b, &sum);
    b->K->ops->adamw(b->K, KERN_F32,
                     &(struct kern_update){.c = {1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f},
                                           .chunks = chunks,
                                           .n_chunks = CHUNKS,
                                           .factors = &factor,
                                           .params = b->a,
                                           .grads = b->b,
                                           .m = b->c,
                                           .v = b->d});
}
static void nothing(void *arg, size_t i) {
    (void)arg;
    (void)i;
}
static void run_op(struct bench *b) {
    kern_pool_run(b->K->pool, (size_t)kern_pool_threads(b->K->pool), nothing, b);
}

static void fill(struct bench *b) {
    struct neb_rng r = neb_rng_make(3, 3);
    float *const all[] = {b->a, b->b, b->c, b->d};
    for (size_t k = 0; k < 4; k++)
        for (int i = 0; i < FLOATS; i++)
            all[k][i] = 0.1f * ((float)neb_rng_unit(&r) - 0.5f);
    for (int i = 0; i < FLOATS / 4; i++) // second moments are not negative
        b->d[i] = fabsf(b->d[i]);
}

static void measure_attention(struct bench *b, double *fwd, double *bwd) {
    for (int i = 0; i < INTRA_COST_HEADS; i++) {
        b->head_dim = intra_cost_heads[i];
        double flops =
            intra_cost_attn_flops(TOKENS, SEQ, 256 / b->head_dim, b->head_dim, KERN_MASK_CAUSAL);
        fwd[i] = flops / best_of(b, run_attn_fwd, 1);
        bwd[i] = 2.5 * flops / best_of(b, run_attn_bwd, 1);
    }
}

// The rates stay 0 if these processors have no bf16.
static void measure_bf16(struct bench *b, struct intra_rates *r) {
    struct kern *fp32 = b->K, *K = NULL;
    if (kern_cpu_create(kern_pool_threads(fp32->pool), &K) == NEB_OK && kern_cpu_bf16_possible(K)) {
        b->K = K;
        for (int i = 0; i < INTRA_COST_SIDES; i++) {
            size_t side = (size_t)(b->side = intra_cost_sides[i]);
            K->ops->weights(K, b->b, 2 * side * side);
            r->gemm_bf16[i] =
                3 * 2.0 * TOKENS * 2 * (double)(side * side) / best_of(b, run_linear, 1);
        }
        double all = best_of(b, run_convert, 1), product = best_of(b, run_weight, 1);
        r->to_bf16 = FLOATS / fmax(all - product, all / 10);
        measure_attention(b, r->attn_fwd_bf16, r->attn_bwd_bf16);
        K->ops->weights(K, NULL, 0);
        b->K = fp32;
    }
    kern_destroy(&K);
}

static void measure_kernels(struct bench *b, struct intra_rates *r) {
    for (int i = 0; i < INTRA_COST_SIDES; i++) {
        b->side = intra_cost_sides[i];
        double flops = 3 * 2.0 * TOKENS * 2 * b->side * b->side;
        r->gemm[i] = flops / best_of(b, run_gemm, 1);
    }
    fill(b);
    measure_bf16(b, r);
    fill(b);
    measure_attention(b, r->attn_fwd, r->attn_bwd);
    r->rows = 3.0 * 1024 * TOKENS * 4 / best_of(b, run_rows, 1);
    fill(b);
    for (int i = 0; i < FLOATS; i++)
        b->d[i] = fabsf(b->d[i]);
    r->update = FLOATS / best_of(b, run_update, 1);
    r->op_s = best_of(b, run_op, 100);
}

static void bench_free(struct bench *b) {
    free(b->a);
    free(b->b);
    free(b->c);
    free(b->d);
    kern_destroy(&b->K);
}

static enum neb_status measure_rates(struct intra_rates *r) {
    struct bench b = {0};
    float **const all[] = {&b.a, &b.b, &b.c, &b.d};
    bool room = true;
    NEB_TRY(kern_cpu_create(0, &b.K));
    for (size_t i = 0; i < 4; i++)
        room = (*all[i] = aligned_alloc(64, FLOATS * sizeof(float))) && room;
    if (!room) {
        bench_free(&b);
        return neb_fail(NEB_ERR_NOMEM, "out of memory measuring this machine (it needs 140 MB)");
    }
    fill(&b);
    r->processors = kern_pool_threads(b.K->pool);
    r->memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    measure_kernels(&b, r);
    enum neb_status st = agent_profile_logits(b.K, r);
    bench_free(&b);
    return st;
}

static enum neb_status measure_sync(double *out) {
    char path[] = "/var/tmp/nebula-plan-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return neb_fail_errno("cannot measure an fsync in /var/tmp");
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        neb_ns from = neb_now();
        if (write(fd, path, sizeof path) < 0 || fsync(fd) != 0) {
            close(fd);
            unlink(path);
            return neb_fail_errno("cannot measure an fsync in /var/tmp");
        }
        best = fmin(best, neb_seconds(neb_now() - from));
    }
    close(fd);
    unlink(path);
    *out = fmax(best, 1e-6);
    return NEB_OK;
}

enum neb_status agent_profile_measure(struct agent_profile *p) {
    struct kern_pool *pool = NULL;
    enum neb_status st = NEB_OK;
    *p = (struct agent_profile){0};
    if (gethostname(p->host, sizeof p->host - 1) != 0 || !p->host[0])
        snprintf(p->host, sizeof p->host, "unnamed");
    snprintf(p->isa, sizeof p->isa, "%s", kern_cpu_isa());
    NEB_TRY(measure_rates(&p->rates));
    NEB_TRY(kern_pool_create(p->rates.processors, &pool));
    for (int i = 0; cmp_variant(i, CMP_PLANNED) && st == NEB_OK; i++)
        st = agent_profile_codec(cmp_variant(i, CMP_PLANNED)->name, pool, &p->codecs[i]);
    kern_pool_destroy(&pool);
    NEB_TRY(st);
    agent_profile_find_link(p);
    NEB_TRY(measure_sync(&p->sync_s));
    return agent_profile_find_device(p);
}
