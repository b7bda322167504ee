// SPDX-License-Identifier: Apache-2.0
#include "agent/bench/bench.h"

#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "kernels/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N = 2048,
    D = 256,
    F = 688,
    T = 256,
    HEADS = 4,
    HEAD_DIM = 64,
    V = 4096,   // the shapes of a step
    PEAK = 768, // side of the product for the ceiling
    PEAK_FLOATS = PEAK * PEAK,
    FLAT = 8 << 20, // floats of flat ops: larger than the caches
    CHUNKS = FLAT / KERN_CHUNK,
    PARTS = 64, // of the memcpy
};
static const double SECONDS_EACH = 0.1;

struct bench {
    struct kern *K;
    bool json;
    float *x, *y, *z, *w; // (FLAT) each
    float *rstd, *lse, *delta, *rope;
    int32_t *ids, *next;
    struct kern_buckets buckets;
    struct kern_chunk *chunks;
    int m, n, k; // of the product being measured
    enum kern_trans ta, tb;
    size_t copy;  // floats of the memcpy being measured
    double sgemm; // ceiling, GFLOP/s
};

// The ceilings. sgemm: each thread computes its own product, without the backend's tiles and
// hand-overs. memcpy: copies as many bytes as an op reads and writes, so that an op that fits into
// a cache is compared with a copy that fits there too.
static void peak_part(void *arg, size_t i) {
    struct bench *b = arg;
    size_t at = i % (FLAT / PEAK_FLOATS) * PEAK_FLOATS;
    kern_cpu_product(PEAK, b->x + at, b->w + at, b->y + at);
}
static void peak(void *arg) {
    struct bench *b = arg;
    kern_pool_run(b->K->pool, (size_t)kern_pool_threads(b->K->pool), peak_part, b);
}
static void copy_part(void *arg, size_t i) {
    struct bench *b = arg;
    size_t n = b->copy / PARTS;
    memcpy(b->y + i * n, b->x + i * n, n * sizeof *b->x);
}
static void copy(void *arg) {
    struct bench *b = arg;
    kern_pool_run(b->K->pool, PARTS, copy_part, b);
}

// Seconds of the fastest of at least three calls.
static double fastest(struct bench *b, void (*f)(void *arg)) {
    double best = 1e30, spent = 0;
    for (int i = 0; i < 3 || spent < SECONDS_EACH; i++) {
        neb_ns from = neb_now();
        f(b);
        double s = neb_seconds(neb_now() - from);
        spent += s;
        best = s < best ? s : best;
    }
    return best;
}

static void gemm(void *arg) {
    struct bench *b = arg;
    b->K->ops->gemm(b->K, &(struct kern_gemm){.ta = b->ta,
                                              .tb = b->tb,
                                              .m = b->m,
                                              .n = b->n,
                                              .k = b->k,
                                              .alpha = 1,
                                              .a = b->x,
                                              .lda = b->ta ? b->m : b->k,
                                              .b = b->w,
                                              .ldb = b->tb ? b->k : b->n,
                                              .c = b->y,
                                              .ldc = b->n});
}
static struct kern_attn attn_shape(void) {
    return (struct kern_attn){.B = N / T,
                              .T = T,
                              .n_heads = HEADS,
                              .n_kv_heads = HEADS,
                              .head_dim = HEAD_DIM,
                              .mask = KERN_MASK_CAUSAL};
}
static void attn_fwd(void *arg) {
    struct bench *b = arg;
    struct kern_attn s = attn_shape();
    b->K->ops->attn_fwd(b->K, KERN_F32, &s, b->y, D, b->lse, b->x, 3 * D, b->x + D, 3 * D,
                        b->x + 2 * D, 3 * D);
}
static void attn_bwd(void *arg) { // after attn_fwd: y is its output
    struct bench *b = arg;
    struct kern_attn s = attn_shape();
    b->K->ops->attn_bwd(b->K, KERN_F32, &s, b->z, b->z + D, b->z + 2 * D, b->w, b->y, D, b->lse,
                        b->x, 3 * D, b->x + D, 3 * D, b->x + 2 * D, 3 * D, b->delta, NULL);
}
static void head(void *arg) {
    struct bench *b = arg;
    const float by = 1.0f / N;
    double total = 0;
    struct kern_head h = {.n = N,
                          .d = D,
                          .V = V,
                          .x = b->x,
                          .w = b->w,
                          .targets = b->ids,
                          .grad_scale = &by,
                          .dx = b->y,
                          .dw = b->z,
                          .total = &total};
    b->K->ops->head_loss(b->K, KERN_F32, &h, NULL);
}
static void rms_fwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->rmsnorm_fwd(b->K, KERN_F32, KERN_F32, b->y, b->rstd, b->z, b->x, b->x + N * D, b->w,
                           N, D, 1e-5f);
}
static void rms_bwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->rmsnorm_bwd(b->K, KERN_F32, b->y, NULL, b->z, b->x, b->x + N * D, b->w, b->rstd, N,
                           D);
}
static void rope(void *arg) {
    struct bench *b = arg;
    b->K->ops->rope(b->K, KERN_F32, b->y, 3 * D, b->rope, N, T, 2 * HEADS, HEAD_DIM, false);
}
static void swiglu_fwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->swiglu_fwd(b->K, KERN_F32, b->y, b->x, N, F);
}
static void swiglu_bwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->swiglu_bwd(b->K, KERN_F32, b->y, b->w, b->x, N, F);
}
static void embed_fwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->embed_fwd(b->K, KERN_F32, b->y, b->w, b->ids, N, D);
}
static void embed_bwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->embed_bwd(b->K, b->y, b->x, &b->buckets, N, D);
}
static void bias_fwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->bias_fwd(b->K, KERN_F32, b->y, b->w, N, 3 * D);
}
static void bias_bwd(void *arg) {
    struct bench *b = arg;
    b->K->ops->bias_bwd(b->K, KERN_F32, b->y, b->x, N, 3 * D);
}
static void adamw(void *arg) {
    struct bench *b = arg;
    struct kern_adamw c = {.lr = 1e-4f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .bias1 = 0.1f,
                           .bias2 = 0.05f,
                           .weight_decay = 0.1f};
    const float factor = 1;
    b->K->ops->adamw(b->K, KERN_F32,
                     &(struct kern_update){.c = c,
                                           .chunks = b->chunks,
                                           .n_chunks = CHUNKS,
                                           .factors = &factor,
                                           .params = b->w,
                                           .grads = b->x,
                                           .m = b->y,
                                           .v = b->z});
}
static void sumsq(void *arg) {
    struct bench *b = arg;
    const int32_t first[] = {0, CHUNKS};
    double sum;
    b->K->ops->sumsq(b->K, b->chunks, CHUNKS, first, 1, b->x, &sum);
}
static void add(void *arg) {
    struct bench *b = arg;
    b->K->ops->add(b->K, b->y, b->x, FLAT);
}

static void measure_flops(struct bench *b, const char *what, double flops, void (*f)(void *arg)) {
    bench_line(b->json, "kernels", what, flops / fastest(b, f) * 1e-9, "GFLOP/s", b->sgemm,
               "sgemm");
}

static void measure_bytes(struct bench *b, const char *what, double bytes, void (*f)(void *arg)) {
    double floats = bytes / sizeof(float) / 2; // a copy reads once and writes once
    b->copy = floats < FLAT ? (size_t)floats : FLAT;
    double limit = 2 * sizeof(float) * (double)(b->copy / PARTS * PARTS) / fastest(b, copy) * 1e-9;
    bench_line(b->json, "kernels", what, bytes / fastest(b, f) * 1e-9, "GB/s", limit, "memcpy");
}

static void products(struct bench *b) {
    static const struct {
        const char *name;
        int out, in;
    } layers[] = {{"qkv", 3 * D, D}, {"o", D, D}, {"gate-up", 2 * F, D}, {"down", D, F}};
    char what[64];
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int pass = 0; pass < 3; pass++) { // y = x w^T; dx = dy w; dw = dy^T x
            b->m = pass == 2 ? layers[i].out : N;
            b->n = pass == 0 ? layers[i].out : layers[i].in;
            b->k = pass == 0 ? layers[i].in : pass == 1 ? layers[i].out : N;
            b->ta = pass == 2 ? KERN_T : KERN_N;
            b->tb = pass == 0 ? KERN_T : KERN_N;
            snprintf(what, sizeof what, "gemm %s %s %dx%dx%d", layers[i].name,
                     pass == 0   ? "y"
                     : pass == 1 ? "dx"
                                 : "dw",
                     b->m, b->n, b->k);
            measure_flops(b, what, 2.0 * b->m * b->n * b->k, gemm);
        }
    double scores = (double)N * (T + 1) / 2 * D; // visible pairs times head_dim, all heads
    measure_flops(b, "attention forward", 4 * scores, attn_fwd);
    measure_flops(b, "attention backward", 10 * scores, attn_bwd);
    measure_flops(b, "output layer and loss, both passes", 6.0 * N * D * V, head);
}

static void memory_bound(struct bench *b) {
    const double nd = 4.0 * N * D, nf = 4.0 * N * F, flat = 4.0 * FLAT;
    measure_bytes(b, "rmsnorm forward", 4 * nd, rms_fwd);
    measure_bytes(b, "rmsnorm backward", 4 * nd, rms_bwd);
    measure_bytes(b, "rope", 4 * nd, rope);
    measure_bytes(b, "swiglu forward", 3 * nf, swiglu_fwd);
    measure_bytes(b, "swiglu backward", 5 * nf, swiglu_bwd);
    measure_bytes(b, "embedding forward", 2 * nd, embed_fwd);
    measure_bytes(b, "embedding backward", 3 * nd, embed_bwd);
    measure_bytes(b, "bias forward", 6 * nd, bias_fwd);
    measure_bytes(b, "bias backward", 3 * nd, bias_bwd);
    measure_bytes(b, "sumsq", flat, sumsq);
    measure_bytes(b, "add", 3 * flat, add);
    memset(b->y, 0, sizeof(float) * FLAT);
    memset(b->z, 0, sizeof(float) * FLAT);
    measure_bytes(b, "adamw", 8 * flat, adamw);
}

static bool arrays_create(struct bench *b) {
    float **flat[] = {&b->x, &b->y, &b->z, &b->w};
    struct neb_rng r = neb_rng_make(1, 1);
    bool ok = true;
    for (size_t i = 0; i < 4; i++) {
        *flat[i] = aligned_alloc(64, sizeof(float) * FLAT);
        for (size_t j = 0; *flat[i] && j < FLAT; j++)
            (*flat[i])[j] = (float)neb_rng_unit(&r) - 0.5f;
        ok = ok && *flat[i];
    }
    b->rstd = calloc(N, sizeof(float));
    b->lse = calloc((size_t)N * HEADS, sizeof(float));
    b->delta = calloc((size_t)N * HEADS, sizeof(float));
    b->rope = calloc((size_t)T * HEAD_DIM, sizeof(float));
    b->ids = calloc(5 * N + 2, sizeof *b->ids); // with the arrays of the buckets
    b->next = calloc(V, sizeof *b->next);
    b->chunks = calloc(CHUNKS, sizeof *b->chunks);
    if (!ok || !b->next || !b->chunks || !b->rstd || !b->lse || !b->delta || !b->rope || !b->ids)
        return false;
    kern_rope_table(b->rope, T, HEAD_DIM, 10000, NULL);
    for (int i = 0; i < N; i++)
        b->ids[i] = (int32_t)neb_rng_below(&r, V);
    b->buckets = (struct kern_buckets){.ids = b->ids + N,
                                       .rows = b->ids + 2 * N,
                                       .start = b->ids + 3 * N,
                                       .used = b->ids + 4 * N + 1};
    kern_buckets_fill(&b->buckets, b->ids, N, b->next);
    for (size_t i = 0; i < CHUNKS; i++)
        b->chunks[i] = (struct kern_chunk){
            .param_at = i * KERN_CHUNK, .grad_at = i * KERN_CHUNK, .n = KERN_CHUNK, .decay = 1};
    return true;
}

enum neb_status bench_kernels(int n_threads, bool json) {
    struct bench b = {.json = json};
    enum neb_status st = NEB_OK;
    NEB_TRY(kern_cpu_create(n_threads, &b.K));
    if (!arrays_create(&b)) {
        st = neb_fail(NEB_ERR_NOMEM, "bench kernels: out of memory for its arrays (about 250 MB)");
        goto out;
    }
    b.sgemm = 2.0 * PEAK * PEAK * PEAK * kern_pool_threads(b.K->pool) / fastest(&b, peak) * 1e-9;
    products(&b);
    memory_bound(&b);
out:
    free(b.x);
    free(b.y);
    free(b.z);
    free(b.w);
    free(b.rstd);
    free(b.lse);
    free(b.delta);
    free(b.rope);
    free(b.ids);
    free(b.next);
    free(b.chunks);
    kern_destroy(&b.K);
    return st;
}
