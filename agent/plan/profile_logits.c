// SPDX-License-Identifier: Apache-2.0
// Rates of work on logits: losses, losses with a teacher's labels, labels, draws. Calls the
// functions that workers call, on a model that is almost only vocabulary. Its matrix products are
// measured in turn and subtracted.
#include "agent/base/rng.h"
#include "agent/plan/profile.h"
#include "agent/plan/profile_clock.h"
#include "intra/train/rtd.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 512, BLOCK = 64, WIDTH = 32, VOCAB = 4096, LABELS = 8, RUNS = 3, CASE_MS = 250 };

struct streams {
    struct kern *K;
    struct intra_model *model;
    struct intra_device *passes;
    int32_t *tokens, *rows, *ids; // (ROWS), (ROWS), (ROWS, LABELS)
    float *logp, *tail;           // (ROWS, LABELS), (ROWS)
    float *z, *dx, *dw;           // (BLOCK, VOCAB), (ROWS, WIDTH), (VOCAB, WIDTH)
};

static void run_labels(struct streams *s) {
    NEB_ASSERT(intra_device_labels(s->passes, s->rows, ROWS, LABELS, 1, s->ids, s->logp, s->tail) ==
               NEB_OK); // cannot fail on processors
}
static void run_draws(struct streams *s) {
    NEB_ASSERT(intra_mask_sample(s->passes, VOCAB, s->rows, ROWS, 1, 1, s->ids) == NEB_OK);
}
static void run_head(struct streams *s, const struct kern_soft *soft) {
    const float by = 1e-6f;
    double total = 0;
    struct kern_head h = {.n = ROWS,
                          .d = WIDTH,
                          .V = VOCAB,
                          .x = intra_device_hidden(s->passes),
                          .w = intra_param(s->model, s->model->head),
                          .targets = s->tokens,
                          .grad_scale = &by,
                          .dx = s->dx,
                          .dw = s->dw,
                          .total = &total};
    s->K->ops->head_loss(s->K, KERN_F32, &h, soft);
}
static void run_loss(struct streams *s) { run_head(s, NULL); }
static void run_soft(struct streams *s) { // with the labels made last
    run_head(s, &(struct kern_soft){.k = LABELS,
                                    .lambda = 0.5f,
                                    .temperature = 1,
                                    .ids = s->ids,
                                    .logp = s->logp,
                                    .tail = s->tail});
}

// The products alone: 1: logits; 3: also dx and dw.
static void run_products(struct streams *s, int products) {
    struct kern *K = s->K;
    const struct kern_gemm logits = {.tb = KERN_T,
                                     .m = BLOCK,
                                     .n = VOCAB,
                                     .k = WIDTH,
                                     .alpha = 1,
                                     .a = intra_device_hidden(s->passes),
                                     .lda = WIDTH,
                                     .b = intra_param(s->model, s->model->head),
                                     .ldb = WIDTH,
                                     .c = s->z,
                                     .ldc = VOCAB};
    const struct kern_linear_bwd back = {.n = BLOCK,
                                         .out = VOCAB,
                                         .in = WIDTH,
                                         .dy = s->z,
                                         .ld = VOCAB,
                                         .x = logits.a,
                                         .w = logits.b,
                                         .dx = s->dx,
                                         .dw = s->dw};
    for (int32_t from = 0; from < ROWS; from += BLOCK) {
        K->ops->gemm(K, &logits);
        if (products == 3)
            K->ops->linear_bwd(K, &back);
    }
}

// Logits/s of `run` without the time of its products.
static double rate_of(struct streams *s, int products, void (*run)(struct streams *s)) {
    double best = INFINITY, without = INFINITY, logits = (double)ROWS * VOCAB;
    int threads = kern_pool_threads(s->K->pool);
    neb_ns start = neb_now();
    run(s);
    for (int i = 0; i < RUNS || neb_now() - start < CASE_MS * NEB_MS; i++) {
        struct profile_clock clock;
        profile_clock_start(&clock);
        run(s);
        best = fmin(best, profile_clock_stop(&clock, threads));
        profile_clock_start(&clock);
        run_products(s, products);
        without = fmin(without, profile_clock_stop(&clock, threads));
    }
    return logits / fmax(best - without, 0.05 * best);
}

static enum neb_status create(struct streams *s) {
    struct intra_model_config c = {.vocab = VOCAB,
                                   .d_model = WIDTH,
                                   .n_layers = 1,
                                   .n_heads = 2,
                                   .n_kv_heads = 2,
                                   .head_dim = WIDTH / 2,
                                   .d_ff = WIDTH,
                                   .max_seq = ROWS,
                                   .rope_theta = 1e4f,
                                   .norm_eps = 1e-5f,
                                   .tied = true};
    const struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
    struct neb_rng rng = neb_rng_make(5, 5);
    s->tokens = calloc(ROWS, sizeof *s->tokens);
    s->rows = calloc(ROWS, sizeof *s->rows);
    s->ids = calloc((size_t)ROWS * LABELS, sizeof *s->ids);
    s->logp = calloc((size_t)ROWS * LABELS, sizeof *s->logp);
    s->tail = calloc(ROWS, sizeof *s->tail);
    s->z = calloc((size_t)BLOCK * VOCAB, sizeof *s->z);
    s->dx = calloc((size_t)ROWS * WIDTH, sizeof *s->dx);
    s->dw = calloc((size_t)VOCAB * WIDTH, sizeof *s->dw);
    if (!s->tokens || !s->rows || !s->ids || !s->logp || !s->tail || !s->z || !s->dx || !s->dw)
        return neb_fail(NEB_ERR_NOMEM, "out of memory measuring labels and draws");
    NEB_TRY(intra_model_create(&c, &full, 1, &s->model));
    NEB_TRY(intra_device_create(
        &(struct intra_device_config){.D = s->K, .batch = 1, .seq_len = ROWS, .soft_k = LABELS},
        s->model, NULL, &s->passes));
    for (int32_t i = 0; i < ROWS; i++) {
        s->tokens[i] = (int32_t)neb_rng_below(&rng, VOCAB);
        s->rows[i] = i;
    }
    return intra_device_pass(
        s->passes, &(struct intra_batch){.tokens = s->tokens, .B = 1, .T = ROWS}, 0, NULL, NULL);
}

enum neb_status agent_profile_logits(struct kern *K, struct intra_rates *r) {
    struct streams s = {.K = K};
    enum neb_status st = create(&s);
    if (st == NEB_OK) {
        r->draws = rate_of(&s, 1, run_draws);
        r->labels = rate_of(&s, 1, run_labels);
        r->soft = rate_of(&s, 3, run_soft);
        r->logits = rate_of(&s, 3, run_loss);
    }
    intra_device_destroy(&s.passes);
    intra_model_destroy(&s.model);
    free(s.tokens);
    free(s.rows);
    free(s.ids);
    free(s.logp);
    free(s.tail);
    free(s.z);
    free(s.dx);
    free(s.dw);
    return st;
}
