// SPDX-License-Identifier: Apache-2.0
#include "agent/bench/train.h"

#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PEAK = 768, // side of the product for the ceiling
    PEAK_FLOATS = PEAK * PEAK,
    PEAK_ROUNDS = 3, // between two steps: short beside a step
    TOKENS = 2048,
    VOCAB = 4096,
    STEPS = 10,
    STEPS_MAX = 10000,
};

enum neb_status bench_train_shape_parse(const char *text, struct bench_train_shape *out) {
    static const struct {
        const char *name;
        int32_t n_layers, d_model, seq_len;
    } named[] = {{"default", 8, 256, 256}, {"small", 4, 128, 128}};
    struct bench_train_shape s = {0};
    int used = 0;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (!strcmp(text, named[i].name)) {
            *out = (struct bench_train_shape){.n_layers = named[i].n_layers,
                                              .d_model = named[i].d_model,
                                              .seq_len = named[i].seq_len};
            return NEB_OK;
        }
    if (sscanf(text, "%4dx%5dx%5d%n", &s.n_layers, &s.d_model, &s.seq_len, &used) != 3 ||
        text[used] || s.n_layers < 1 || s.d_model < 32 || s.d_model % 32 || s.seq_len < 1)
        return neb_fail(NEB_ERR_INVALID,
                        "bench train: shape \"%s\": expected default, small or "
                        "LAYERSxWIDTHxSEQUENCE, for example 12x512x256 (width: a multiple of 32)",
                        text);
    *out = s;
    return NEB_OK;
}

double bench_train_token_flops(const struct intra_model *m, int32_t seq_len) {
    const struct intra_model_config *c = &m->c;
    return 6.0 * (double)intra_model_matmul_params(m) +
           6.0 * (seq_len + 1.0) * c->n_heads * c->head_dim * c->n_layers;
}

// A trainer and the times of its steps.
struct side {
    struct kern *K;
    struct intra_trainer *t;
    bool bf16;
    double *seconds;       // (steps)
    double *cpu;           // (steps) of all threads
    double peak, peak_cpu; // fastest product so far, FLOP/s: by the clock, by processor time
    double update_seconds, muon_seconds; // muon: of its iterations
    struct intra_step_stats stats;
};

struct bench {
    struct side sides[2]; // fp32, and bf16 if wanted
    int n_sides;
    float *ab; // (2, threads, PEAK, PEAK)
    float *c;  // (threads, PEAK, PEAK)
    int32_t *tokens, *targets;
    double *ratios; // (steps) processor time of a step, fp32 / bf16
};

// Each thread computes its own product, without the backend's tiles and hand-overs: the limit of
// the cores.
static void peak_part(void *arg, size_t i) {
    const struct bench *b = arg;
    size_t at = i * PEAK_FLOATS, all = (size_t)kern_pool_threads(b->sides[0].K->pool) * PEAK_FLOATS;
    kern_cpu_product(PEAK, b->ab + at, b->ab + all + at, b->c + at);
}

// The ceiling of bf16 is a product of the backend itself, one after the other on all threads. Its
// operands are converted before.
static void measure_peak(struct bench *b, struct side *s) {
    int threads = kern_pool_threads(s->K->pool);
    size_t all = (size_t)threads * PEAK_FLOATS;
    if (s->bf16)
        s->K->ops->weights(s->K, b->ab, 2 * all);
    for (int i = 0; i < PEAK_ROUNDS; i++) {
        double cpu = bench_cpu_seconds(), flops = 2.0 * PEAK * PEAK * PEAK * threads;
        neb_ns from = neb_now();
        if (!s->bf16)
            kern_pool_run(s->K->pool, (size_t)threads, peak_part, b);
        for (size_t at = 0; s->bf16 && at < all; at += PEAK_FLOATS)
            s->K->ops->gemm(s->K, &(struct kern_gemm){.m = PEAK,
                                                      .n = PEAK,
                                                      .k = PEAK,
                                                      .alpha = 1,
                                                      .a = b->ab + at,
                                                      .lda = PEAK,
                                                      .b = b->ab + all + at,
                                                      .ldb = PEAK,
                                                      .c = b->c + at,
                                                      .ldc = PEAK});
        s->peak = fmax(s->peak, flops / neb_seconds(neb_now() - from));
        s->peak_cpu = fmax(s->peak_cpu, flops / fmax(bench_cpu_seconds() - cpu, 1e-9));
    }
    s->K->ops->weights(s->K, NULL, 0);
}

// The next token is mostly a function of this one, so there is something to learn and the loss
// falls.
static void draw(struct bench *b, struct neb_rng *r, const struct intra_trainer_config *c) {
    for (int32_t i = 0; i < c->batch; i++) {
        uint64_t id = neb_rng_below(r, (uint64_t)c->model.vocab);
        for (int32_t t = 0; t < c->seq_len; t++) {
            size_t at = (size_t)i * c->seq_len + t;
            b->tokens[at] = (int32_t)id;
            id = neb_rng_below(r, 8) ? (id * 5 + 1) % (uint64_t)c->model.vocab
                                     : neb_rng_below(r, (uint64_t)c->model.vocab);
            b->targets[at] = (int32_t)id;
        }
    }
}

static void measure_step(struct bench *b, struct side *s, int32_t i) {
    measure_peak(b, s);
    double cpu = bench_cpu_seconds();
    neb_ns from = neb_now();
    intra_trainer_micro(s->t, b->tokens, b->targets);
    neb_ns middle = neb_now();
    double muon = intra_device_muon_seconds(s->t->device);
    intra_trainer_update(s->t, &s->stats);
    neb_ns end = neb_now();
    if (i < 0)
        return;
    s->seconds[i] = neb_seconds(end - from);
    s->cpu[i] = bench_cpu_seconds() - cpu;
    s->update_seconds += neb_seconds(end - middle);
    s->muon_seconds += intra_device_muon_seconds(s->t->device) - muon;
}

// Step -1 warms up: it allocates scratch and touches pages. The ceiling is measured before each
// step, and fp32 and bf16 take turns, so that all meet the same machine.
static void measure_steps(struct bench *b, int32_t steps) {
    struct neb_rng r = neb_rng_make(1, 1);
    for (int32_t i = -1; i < steps; i++) {
        draw(b, &r, &b->sides[0].t->c);
        for (int k = 0; k < b->n_sides; k++)
            measure_step(b, &b->sides[k], i);
        if (i >= 0 && b->n_sides > 1)
            b->ratios[i] = b->sides[0].cpu[i] / fmax(b->sides[1].cpu[i], 1e-9);
    }
}

static void report(struct bench *b, struct side *s, int32_t steps, bool json) {
    const struct intra_trainer_config *c = &s->t->c;
    double total = 0, tokens = (double)c->batch * c->seq_len,
           flops = tokens * bench_train_token_flops(s->t->model, c->seq_len);
    char what[64];
    for (int32_t i = 0; i < steps; i++)
        total += s->seconds[i];
    bench_sort(s->seconds, (size_t)steps);
    bench_sort(s->cpu, (size_t)steps);
    bench_sort(b->ratios, (size_t)steps);
    double median = s->seconds[steps / 2], cpu = s->cpu[steps / 2];
    const struct bench_field more[] = {
        {"tokens_per_s", tokens / median},          {"tokens_per_cpu_s", tokens / cpu},
        {"cpu_ratio", flops / cpu / s->peak_cpu},   {"step_ms", 1e3 * median},
        {"best_step_ms", 1e3 * s->seconds[0]},      {"update_share", s->update_seconds / total},
        {"muon_share", s->muon_seconds / total},    {"params", (double)s->t->model->n_params},
        {"threads", kern_pool_threads(s->K->pool)}, {"loss", s->stats.loss},
        {"of_fp32", b->ratios[steps / 2]}, // the last field, only for bf16
    };
    snprintf(what, sizeof what, "%dx%d seq %d batch %d%s%s%s", c->model.n_layers, c->model.d_model,
             c->seq_len, c->batch, c->optim.kind ? " muon" : "", c->recompute ? " recompute" : "",
             s->bf16 ? " bf16" : "");
    bench_line_with(json, "train", what, flops / median * 1e-9, "GFLOP/s", s->peak * 1e-9,
                    s->bf16 ? "bf16 gemm" : "sgemm", more,
                    sizeof more / sizeof *more - (s->bf16 ? 0 : 1));
}

struct intra_trainer_config bench_train_config(const struct bench_train_shape *s) {
    int32_t head_dim = s->d_model >= 128 && s->d_model % 64 == 0 ? 64 : 32,
            heads = s->d_model / head_dim;
    int32_t batch = s->batch ? s->batch : s->seq_len < TOKENS ? TOKENS / s->seq_len : 1;
    return (struct intra_trainer_config){
        .model = {.vocab = s->vocab ? s->vocab : VOCAB,
                  .d_model = s->d_model,
                  .n_layers = s->n_layers,
                  .n_heads = heads,
                  .n_kv_heads = heads,
                  .head_dim = head_dim,
                  .d_ff = (s->d_model * 8 / 3 + 15) / 16 * 16,
                  .max_seq = s->seq_len,
                  .rope_theta = 10000,
                  .norm_eps = 1e-5f,
                  .tied = true,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = {.mode = INTRA_TRAIN_FULL},
        .optim = {.kind = s->muon ? INTRA_OPTIM_MUON : INTRA_OPTIM_ADAMW,
                  .momentum = 0.95f,
                  .schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 1e-3f, .warmup = 4},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f},
        .batch = batch,
        .seq_len = s->seq_len,
        .accumulate = 1,
        .recompute = s->recompute,
        .seed = 1};
}

static bool arrays_create(struct bench *b, size_t tokens, size_t steps) {
    size_t n = (size_t)kern_pool_threads(b->sides[0].K->pool) * PEAK_FLOATS;
    struct neb_rng r = neb_rng_make(2, 2);
    b->tokens = calloc(tokens, sizeof *b->tokens);
    b->targets = calloc(tokens, sizeof *b->targets);
    b->ratios = calloc(steps, sizeof *b->ratios);
    b->ab = aligned_alloc(64, 2 * n * sizeof *b->ab);
    b->c = aligned_alloc(64, n * sizeof *b->c);
    for (size_t k = 0; b->ab && k < 2 * n; k++)
        b->ab[k] = (float)neb_rng_unit(&r) - 0.5f;
    for (int k = 0; k < b->n_sides; k++) {
        b->sides[k].seconds = calloc(steps, sizeof *b->sides[k].seconds);
        b->sides[k].cpu = calloc(steps, sizeof *b->sides[k].cpu);
        if (!b->sides[k].seconds || !b->sides[k].cpu)
            return false;
    }
    return b->tokens && b->targets && b->ratios && b->ab && b->c;
}

static void destroy(struct bench *b) {
    for (int k = 0; k < b->n_sides; k++) {
        intra_trainer_destroy(&b->sides[k].t);
        kern_destroy(&b->sides[k].K);
        free(b->sides[k].cpu);
        free(b->sides[k].seconds);
    }
    free(b->ratios);
    free(b->targets);
    free(b->tokens);
    free(b->c);
    free(b->ab);
}

enum neb_status bench_train(int n_threads, bool json, const struct bench_train_shape *shape) {
    enum neb_status st = NEB_OK;
    struct bench b = {.n_sides = shape->bf16 ? 2 : 1};
    struct intra_trainer_config c = bench_train_config(shape);
    int32_t steps = shape->steps ? shape->steps : STEPS;
    if (steps < 1 || steps > STEPS_MAX)
        return neb_fail(NEB_ERR_INVALID, "bench train: %d steps: expected 1 to %d", steps,
                        STEPS_MAX);
    for (int k = 0; k < b.n_sides; k++) {
        struct side *s = &b.sides[k];
        s->bf16 = k == 1;
        c.device_type = s->bf16 ? KERN_BF16 : KERN_F32;
        NEB_TRY_GOTO(kern_cpu_create(n_threads, &s->K), out);
        NEB_TRY_GOTO(intra_trainer_create(&c, s->K, &s->t), out);
    }
    if (!arrays_create(&b, (size_t)c.batch * (size_t)c.seq_len, (size_t)steps)) {
        st = neb_fail(NEB_ERR_NOMEM, "bench train: out of memory for its arrays");
        goto out;
    }
    measure_steps(&b, steps);
    for (int k = 0; k < b.n_sides; k++)
        if (!isfinite(b.sides[k].stats.loss)) {
            st = neb_fail(NEB_ERR_STATE,
                          "bench train: the loss is not finite, so the figures would mean nothing");
            goto out;
        }
    for (int k = 0; k < b.n_sides; k++)
        report(&b, &b.sides[k], steps, json);
out:
    destroy(&b);
    return st;
}
