// SPDX-License-Identifier: Apache-2.0
// Measures an accelerator for agent/plan/profile.h through its table of operations
// (kernels/device.h), as intra/model/device.h calls them. Sizes rise until one takes too long;
// larger ones then have the last rate. So a fast card is measured at sizes that keep it busy, and
// an emulated one (in tests) in some seconds.
//
// The host's clock runs from before several calls until the queue is empty, so launches are
// included, as in training.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/plan/profile.h"
#include "agent/plan/profile_clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CASE_MS = 15, // of one measurement
    RUNS_MS = 1,  // least time between two readings of the clock
    RUNS_MOST = 200,
    RUNS = 3,
    ARRAYS = 4,
    WIDTH = 256, // of all heads together
    SEQ_MOST = 1024,
    SMALL = 64, // elements of the smallest operation
    LOGITS_WIDTH = 64,
    COPY_BYTES = 16 << 20,
    FILL = 1 << 20, // floats that the host makes at once
};
static const double SKIP_S = 0.05; // what is expected to take longer is not measured

struct bench {
    struct kern *D;
    const struct kern_ops *K;
    enum kern_type t;
    size_t floats;   // of each array
    char *x[ARRAYS]; // device memory
    float *fill;     // (FILL) host
    void *pinned;    // (COPY_BYTES)
    int32_t *ids;    // device: targets of a loss
    struct kern_chunk *chunks;
    int32_t *first;
    double *sums;      // (2) device
    float *grad_scale; // (1) device, behind sums
    int n, d, side, head_dim, V;
    enum neb_status st;
};
typedef void action(struct bench *b);

// Small numbers, whichever type reads them.
static void fill(struct bench *b) {
    for (int i = 0; i < ARRAYS && b->st == NEB_OK; i++)
        for (size_t at = 0; at < b->floats; at += FILL) {
            size_t n = b->floats - at < FILL ? b->floats - at : FILL;
            b->K->upload(b->D, b->x[i] + at * sizeof(float), b->fill, n * sizeof(float));
        }
}

// Makes the arrays at least this large. False: the device has not enough memory.
static bool allocate_arrays(struct bench *b, size_t floats) {
    if (b->st != NEB_OK || ARRAYS * floats * sizeof(float) > b->D->total_bytes / 2)
        return false;
    if (floats <= b->floats)
        return true;
    for (int i = 0; i < ARRAYS && b->st == NEB_OK; i++) {
        void *p = NULL;
        b->K->release(b->D, b->x[i]);
        b->st = b->K->alloc(b->D, floats * sizeof(float), &p);
        b->x[i] = p;
    }
    b->floats = b->st == NEB_OK ? floats : 0;
    fill(b);
    return b->st == NEB_OK;
}

static void *at(const struct bench *b, int array, size_t elements, enum kern_type t) {
    return b->x[array] + elements * kern_type_bytes(t);
}
static void *typed(const struct bench *b, int array, size_t elements) {
    return at(b, array, elements, b->t);
}
static float *floats(const struct bench *b, int array, size_t elements) {
    return at(b, array, elements, KERN_F32);
}

// Seconds of `times` runs.
static double once(struct bench *b, action *run, int times) {
    struct profile_clock clock;
    profile_clock_start(&clock);
    for (int k = 0; k < times; k++)
        run(b);
    b->st = b->K->finish(b->D);
    return profile_clock_stop(&clock, 1);
}

// Seconds of a run, the best of several measurements. The first run makes plans and allocates
// scratch.
static double time_of(struct bench *b, action *run) {
    double best = once(b, run, 1);
    int times = 1;
    neb_ns start = neb_now();
    for (int i = 0; b->st == NEB_OK && (i < RUNS || neb_now() - start < CASE_MS * NEB_MS); i++) {
        double s = once(b, run, times);
        best = fmin(best, s / times);
        if (s * 1000 < RUNS_MS && times < RUNS_MOST)
            times *= 2;
        else if (s > SKIP_S)
            break;
    }
    return best;
}

// The work/s of `run`, or `last` if it would take too long.
static double rate_of(struct bench *b, action *run, double work, size_t floats, double last) {
    if (last > 0 && work / last > SKIP_S)
        return last;
    if (!allocate_arrays(b, floats))
        return last;
    double s = time_of(b, run);
    return b->st == NEB_OK ? work / s : last;
}

// ---- products and attention ---------------------------------------------------------------------

// The three products of a layer twice as long as wide, as in forward and backward.
static void run_gemm(struct bench *b) {
    int n = b->n, in = b->side, out = 2 * b->side;
    const struct kern_ops *K = b->K;
    K->gemm(b->D, &(struct kern_gemm){.t = b->t,
                                      .tc = b->t,
                                      .tb = KERN_T,
                                      .m = n,
                                      .n = out,
                                      .k = in,
                                      .alpha = 1,
                                      .a = typed(b, 0, 0),
                                      .lda = in,
                                      .b = typed(b, 1, 0),
                                      .ldb = in,
                                      .c = typed(b, 2, 0),
                                      .ldc = out});
    K->gemm(b->D, &(struct kern_gemm){.t = b->t,
                                      .tc = b->t,
                                      .m = n,
                                      .n = in,
                                      .k = out,
                                      .alpha = 1,
                                      .a = typed(b, 2, 0),
                                      .lda = out,
                                      .b = typed(b, 1, 0),
                                      .ldb = in,
                                      .c = typed(b, 3, 0),
                                      .ldc = in});
    K->gemm(b->D, &(struct kern_gemm){.t = b->t,
                                      .ta = KERN_T,
                                      .m = out,
                                      .n = in,
                                      .k = n,
                                      .alpha = 1e-6f,
                                      .a = typed(b, 2, 0),
                                      .lda = out,
                                      .b = typed(b, 0, 0),
                                      .ldb = in,
                                      .beta = 1,
                                      .c = floats(b, 3, (size_t)n * (size_t)in),
                                      .ldc = in});
}

static struct kern_attn attn_of(const struct bench *b) {
    int T = b->n < SEQ_MOST ? b->n : SEQ_MOST, heads = WIDTH / b->head_dim;
    return (struct kern_attn){b->n / T, T, heads, heads, b->head_dim, KERN_MASK_CAUSAL, NULL};
}
static double attn_flops(const struct bench *b) {
    struct kern_attn s = attn_of(b);
    return intra_cost_attn_flops(b->n, s.T, s.n_heads, s.head_dim, s.mask);
}

// Arrays: 0: q, k, v side by side; 1: their gradients; 2: out, then its gradient; 3: lse and delta.
static void run_attn_fwd(struct bench *b) {
    struct kern_attn s = attn_of(b);
    int ld = 3 * WIDTH;
    b->K->attn_fwd(b->D, b->t, &s, b->x[2], WIDTH, floats(b, 3, 0), b->x[0], ld, typed(b, 0, WIDTH),
                   ld, typed(b, 0, 2 * WIDTH), ld);
}
static void run_attn_bwd(struct bench *b) {
    struct kern_attn s = attn_of(b);
    int ld = 3 * WIDTH;
    size_t n = (size_t)b->n;
    b->K->attn_bwd(b->D, b->t, &s, b->x[1], typed(b, 1, WIDTH), typed(b, 1, 2 * WIDTH),
                   typed(b, 2, n * WIDTH), b->x[2], WIDTH, floats(b, 3, 0), b->x[0], ld,
                   typed(b, 0, WIDTH), ld, typed(b, 0, 2 * WIDTH), ld,
                   floats(b, 3, n * (size_t)s.n_heads), floats(b, 0, 0));
}

static void measure_products(struct bench *b, struct intra_type_rates *r) {
    for (int i = 0; i < INTRA_COST_TOKENS; i++)
        for (int k = 0; k < INTRA_COST_SIDES; k++) {
            size_t n = (size_t)intra_cost_tokens[i], side = (size_t)intra_cost_sides[k],
                   most = 2 * side * (n + side);
            // The nearer of: the same side with fewer tokens, a smaller side.
            double last = i   ? r->gemm[i - 1][k]
                          : k ? r->gemm[i][k - 1]
                              : 0,
                   flops = 3 * 4.0 * (double)n * (double)(side * side);
            b->n = intra_cost_tokens[i];
            b->side = intra_cost_sides[k];
            r->gemm[i][k] = rate_of(b, run_gemm, flops, most, last);
        }
}

static void measure_attention(struct bench *b, struct intra_type_rates *r) {
    for (int i = 0; i < INTRA_COST_TOKENS; i++)
        for (int k = 0; k < INTRA_COST_HEADS; k++) {
            size_t most = 3 * WIDTH * (size_t)intra_cost_tokens[i];
            b->n = intra_cost_tokens[i];
            b->head_dim = intra_cost_heads[k];
            r->attn_fwd[i][k] =
                rate_of(b, run_attn_fwd, attn_flops(b), most, i ? r->attn_fwd[i - 1][k] : 0);
            r->attn_bwd[i][k] =
                rate_of(b, run_attn_bwd, 2.5 * attn_flops(b), most, i ? r->attn_bwd[i - 1][k] : 0);
        }
}

// ---- what is bound by memory --------------------------------------------------------------------

// A block's row operations with f = 5/2 d, forward and backward: 40 d floats per token, as in
// intra/cost/cost.c. There, the backward rope belongs to attention.
enum { ROW_FLOATS = 40 };
static void run_rows(struct bench *b) {
    int n = b->n, d = b->d, f = d / 2 * 5, heads = d / 64;
    size_t nd = (size_t)n * (size_t)d;
    const struct kern_ops *K = b->K;
    float *x = floats(b, 0, 0), *h = floats(b, 0, nd), *dh = floats(b, 0, 2 * nd),
          *gain = floats(b, 0, 3 * nd), *rstd = floats(b, 0, 3 * nd + 2 * (size_t)d);
    void *y = typed(b, 1, 0), *dy = typed(b, 1, nd), *r = typed(b, 1, 2 * nd),
         *dht = typed(b, 1, 3 * nd);
    for (int i = 0; i < 2; i++) {
        K->rmsnorm_fwd(b->D, b->t, b->t, y, rstd, h, x, r, gain, n, d, 1e-5f);
        K->rmsnorm_bwd(b->D, b->t, dh, dht, gain + d, dy, h, gain, rstd, n, d);
    }
    K->rope(b->D, b->t, typed(b, 3, 0), 3 * d, x, n, n < SEQ_MOST ? n : SEQ_MOST, 2 * heads, 64,
            false);
    K->swiglu_fwd(b->D, b->t, typed(b, 3, 0), b->x[2], n, f);
    K->swiglu_bwd(b->D, b->t, typed(b, 3, nd * 5 / 2), typed(b, 3, 0), b->x[2], n, f);
}

static void run_products_of_loss(struct bench *b) {
    int ld = kern_logits_ld(b->V), n = b->n, d = LOGITS_WIDTH;
    const struct kern_ops *K = b->K;
    K->gemm(b->D, &(struct kern_gemm){.t = b->t,
                                      .tc = b->t,
                                      .tb = KERN_T,
                                      .m = n,
                                      .n = b->V,
                                      .k = d,
                                      .alpha = 1,
                                      .a = b->x[0],
                                      .lda = d,
                                      .b = b->x[1],
                                      .ldb = d,
                                      .c = b->x[2],
                                      .ldc = ld});
    K->gemm(b->D, &(struct kern_gemm){.t = b->t,
                                      .tc = b->t,
                                      .m = n,
                                      .n = d,
                                      .k = b->V,
                                      .alpha = 1,
                                      .a = b->x[2],
                                      .lda = ld,
                                      .b = b->x[1],
                                      .ldb = d,
                                      .c = typed(b, 0, (size_t)n * LOGITS_WIDTH),
                                      .ldc = d});
    K->gemm(b->D, &(struct kern_gemm){.t = b->t,
                                      .ta = KERN_T,
                                      .m = b->V,
                                      .n = d,
                                      .k = n,
                                      .alpha = 1,
                                      .a = b->x[2],
                                      .lda = ld,
                                      .b = b->x[0],
                                      .ldb = d,
                                      .beta = 1,
                                      .c = b->x[3],
                                      .ldc = d});
}
static void run_loss(struct bench *b) {
    struct kern_head h = {.n = b->n,
                          .d = LOGITS_WIDTH,
                          .V = b->V,
                          .x = b->x[0],
                          .w = b->x[1],
                          .targets = b->ids,
                          .grad_scale = b->grad_scale,
                          .dx = typed(b, 0, (size_t)b->n * LOGITS_WIDTH),
                          .dw = floats(b, 3, 0),
                          .logits = b->x[2],
                          .rows = b->n,
                          .losses = floats(b, 3, (size_t)b->V * LOGITS_WIDTH),
                          .total = b->sums};
    b->K->head_loss(b->D, b->t, &h, NULL);
}

static void run_update(struct bench *b) { // n chunks
    const struct kern_update a = {
        .c = {1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f},
        .chunks = b->chunks,
        .n_chunks = b->n,
        .factors = floats(b, 0, 0),
        .params = floats(b, 0, 0),
        .grads = floats(b, 1, 0),
        .m = floats(b, 2, 0),
        .v = floats(b, 2, b->floats / 2),
        .working = b->t == KERN_F32 ? NULL : b->x[3],
    };
    b->K->sumsq(b->D, b->chunks, b->n, b->first, 1, floats(b, 1, 0), b->sums);
    b->K->adamw(b->D, b->t, &a);
}

enum { UPDATE_CHUNKS = 1024 };
static enum neb_status chunks_send(struct bench *b, int n) {
    static struct kern_chunk chunks[UPDATE_CHUNKS];
    int32_t first[2] = {0, n};
    for (int i = 0; i < n; i++)
        chunks[i] = (struct kern_chunk){.param_at = (uint64_t)i * KERN_CHUNK,
                                        .grad_at = (uint64_t)i * KERN_CHUNK,
                                        .n = KERN_CHUNK};
    b->K->upload(b->D, b->chunks, chunks, (size_t)n * sizeof *chunks);
    b->K->upload(b->D, b->first, first, sizeof first);
    b->n = n;
    return b->K->finish(b->D);
}

static void measure_memory(struct bench *b, struct intra_type_rates *r) {
    static const struct {
        int n, d, V, chunks;
    } sizes[] = {{64, 256, 1024, 16}, {1024, 512, 8192, 128}, {4096, 1024, 16384, UPDATE_CHUNKS}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        b->n = sizes[i].n;
        b->d = sizes[i].d;
        b->V = sizes[i].V;
        size_t n = (size_t)b->n, d = (size_t)b->d, V = (size_t)b->V,
               most = V * LOGITS_WIDTH + n > n * V ? V * LOGITS_WIDTH + n : n * V;
        r->rows = rate_of(b, run_rows, 4.0 * ROW_FLOATS * (double)(n * d), 8 * n * d, r->rows);
        double logits = (double)(n * V);
        if ((!(r->logits > 0) || logits / r->logits < SKIP_S) && allocate_arrays(b, most)) {
            double whole = time_of(b, run_loss), products = time_of(b, run_products_of_loss);
            r->logits = logits / fmax(whole - products, 0.05 * whole);
        }
        size_t params = (size_t)sizes[i].chunks * KERN_CHUNK;
        if (b->st == NEB_OK)
            b->st = chunks_send(b, sizes[i].chunks);
        r->update = rate_of(b, run_update, (double)params, 2 * params, r->update);
    }
}

// ---- the host's part ----------------------------------------------------------------------------

static void run_small(struct bench *b) { b->K->add(b->D, floats(b, 0, 0), floats(b, 1, 0), SMALL); }
static void run_wait(struct bench *b) { // as a step waits for its norms
    run_small(b);
    b->K->download(b->D, b->pinned, b->x[0], sizeof(double));
    (void)b->K->finish(b->D);
}
static void run_up(struct bench *b) { b->K->upload(b->D, b->x[0], b->pinned, COPY_BYTES); }
static void run_down(struct bench *b) { b->K->download(b->D, b->pinned, b->x[0], COPY_BYTES); }

static void measure_host(struct bench *b, struct intra_device_rates *r) {
    if (!allocate_arrays(b, COPY_BYTES / sizeof(float)))
        return;
    r->op_s = time_of(b, run_small);
    r->wait_s = time_of(b, run_wait);
    r->up = COPY_BYTES / time_of(b, run_up);
    r->down = COPY_BYTES / time_of(b, run_down);
}

// ---- all of it ----------------------------------------------------------------------------------

static enum neb_status create(struct bench *b) {
    struct neb_rng r = neb_rng_make(3, 3);
    int32_t *ids = NULL;
    void *p = NULL;
    enum { IDS = 4096 };
    enum neb_status st = NEB_OK;
    const float small = 1e-6f;
    b->fill = malloc(FILL * sizeof *b->fill);
    ids = calloc(IDS, sizeof *ids);
    if (!b->fill || !ids) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory measuring %s", b->D->name);
        goto out;
    }
    // Both halves, read as bf16, must be small numbers too: the lower half repeats the upper.
    for (int i = 0; i < FILL; i++) {
        uint32_t u;
        float x = 0.05f + 0.1f * (float)neb_rng_unit(&r);
        memcpy(&u, &x, sizeof u);
        u = (u & 0xffff0000u) | u >> 16;
        memcpy(&b->fill[i], &u, sizeof u);
    }
    for (int i = 0; i < IDS; i++)
        ids[i] = (int32_t)neb_rng_below(&r, 1024);
    NEB_TRY_GOTO(b->K->alloc_pinned(b->D, COPY_BYTES, &b->pinned), out);
    NEB_TRY_GOTO(b->K->alloc(b->D, IDS * sizeof *ids, &p), out);
    b->ids = p;
    NEB_TRY_GOTO(b->K->alloc(b->D, UPDATE_CHUNKS * sizeof *b->chunks, &p), out);
    b->chunks = p;
    NEB_TRY_GOTO(b->K->alloc(b->D, 2 * sizeof *b->first, &p), out);
    b->first = p;
    NEB_TRY_GOTO(b->K->alloc(b->D, 2 * sizeof *b->sums + sizeof small, &p), out);
    b->sums = p;
    p = b->sums + 2;
    b->grad_scale = p;
    b->K->upload(b->D, b->grad_scale, &small, sizeof small);
    memset(b->pinned, 0, COPY_BYTES);
    b->K->zero(b->D, b->sums, 2 * sizeof *b->sums);
    b->K->upload(b->D, b->ids, ids, IDS * sizeof *ids);
    st = b->K->finish(b->D);
out:
    free(ids);
    return st;
}

static void destroy(struct bench *b) {
    (void)b->K->finish(b->D);
    for (int i = 0; i < ARRAYS; i++)
        b->K->release(b->D, b->x[i]);
    b->K->release(b->D, b->sums);
    b->K->release(b->D, b->first);
    b->K->release(b->D, b->chunks);
    b->K->release(b->D, b->ids);
    b->K->release_pinned(b->D, b->pinned);
    free(b->fill);
}

enum neb_status agent_profile_device(struct kern *D, struct intra_device_rates *r) {
    struct bench b = {.D = D, .K = D->ops};
    *r = (struct intra_device_rates){.count = D->count, .memory = (double)D->total_bytes};
    enum neb_status st = create(&b);
    if (st == NEB_OK) {
        measure_host(&b, r);
        for (int t = 0; t < 2; t++) {
            b.t = (enum kern_type)t;
            fill(&b);
            measure_products(&b, &r->of[t]);
            measure_attention(&b, &r->of[t]);
            measure_memory(&b, &r->of[t]);
        }
        st = b.st;
    }
    destroy(&b);
    return st;
}
