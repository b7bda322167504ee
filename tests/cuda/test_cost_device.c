// What nebula plan says of a device (intra/cost_device.c, agent/profile_device.c) against the device, an emulated one: its memory against
// what is allocated, on every mesh of up to 8 ranks; seconds, from rates that are measured here, against steps that are made.
#include "agent/base/rng.h"
#include "agent/profile.h"
#include "agent/profile_clock.h"
#include "inter/outer.h"
#include "intra/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;

static struct kern_device *D;
static struct intra_rates rates;

static int open_device(void **state) {
    char text[256];
    (void)state;
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    return 0;
}
static int close_device(void **state) {
    (void)state;
    kern_device_close(&D);
    return 0;
}

static const struct intra_model_config small = {.vocab = 1000,
                                                .d_model = 128,
                                                .n_layers = 4,
                                                .n_heads = 4,
                                                .n_kv_heads = 4,
                                                .head_dim = 32,
                                                .d_ff = 352,
                                                .max_seq = 64,
                                                .rope_theta = 10000,
                                                .norm_eps = 1e-5f,
                                                .tied = true};

static struct intra_cost_job job_of(const struct intra_model_config *m, int dp, int pp, int tp,
                                    int batch, int micros, enum kern_type type) {
    return (struct intra_cost_job){.model = *m,
                                   .trainable = {.mode = INTRA_TRAIN_FULL},
                                   .mesh = {dp, pp, tp},
                                   .batch = batch,
                                   .seq_len = m->max_seq,
                                   .micros = micros,
                                   .ranks_a_host = 1,
                                   .share = 1,
                                   .device = true,
                                   .type = type};
}

static void near(double a, double b, double rel, const char *what) {
    if (!(fabs(a - b) <= rel * fabs(b)))
        fail_msg("%s: predicted %g, it is %g", what, a, b);
}

// ---- memory ---------------------------------------------------------------------------------------------------

static struct intra_optim_config adamw(void) {
    return (struct intra_optim_config){
        .schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 1e-3f, .warmup = 2},
        .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f};
}

// Device memory of the rank at this stage.
static double allocated(const struct intra_cost_job *j, int stage) {
    struct intra_mesh mesh = {.c = j->mesh, .pp_rank = stage},
                      *on = j->mesh.dp * j->mesh.pp * j->mesh.tp > 1 ? &mesh : NULL;
    struct intra_optim_config c = adamw();
    struct intra_model *m = NULL;
    struct intra_optim *o = NULL;
    struct intra_device *d = NULL;
    assert_int_equal(intra_model_create_on(&j->model, &j->trainable, 1, on, &m), NEB_OK);
    assert_int_equal(intra_optim_create(&c, m, &o), NEB_OK);
    assert_int_equal(
        intra_device_create(
            &(struct intra_device_config){.D = D,
                                          .type = j->type,
                                          .batch = j->batch,
                                          .seq_len = j->seq_len,
                                          .micros = (j->micros + j->mesh.dp - 1) / j->mesh.dp,
                                          .recompute = j->recompute,
                                          .mesh = on},
            m, o, &d),
        NEB_OK);
    double bytes = (double)intra_device_bytes(d);
    intra_device_destroy(&d);
    intra_optim_destroy(&o);
    intra_model_destroy(&m);
    return bytes;
}

static void check_memory(const struct intra_cost_job *j) {
    struct intra_cost cost;
    char what[96];
    intra_cost_step(j, &rates, &cost);
    snprintf(what, sizeof what, "memory, dp %d, pp %d, tp %d, %d x %d, %s%s", j->mesh.dp,
             j->mesh.pp, j->mesh.tp, j->micros, j->batch, j->type == KERN_BF16 ? "bf16" : "fp32",
             j->recompute ? ", recomputing" : "");
    near(cost.device_bytes - cost.workspace_bytes,
         fmax(allocated(j, 0), allocated(j, j->mesh.pp - 1)), 0.03, what);
}

static void test_memory(void **state) {
    struct intra_model_config m = small;
    (void)state;
    rates.device.count = 8;
    for (int type = 0; type < 2; type++)
        for (int again = 0; again < 2; again++)
            for (int tp = 1; tp <= 4; tp *= 2)
                for (int pp = 1; pp <= 4; pp *= 2)
                    for (int dp = 1; dp * pp * tp <= 8; dp *= 2) {
                        struct intra_cost_job j =
                            job_of(&m, dp, pp, tp, 4, 8, (enum kern_type)type);
                        j.recompute = again;
                        check_memory(&j);
                    }
    // Other shapes: fewer heads for k and v, both ends untied, odd sizes; a vocabulary whose logits do not fit one block.
    m.n_kv_heads = 2;
    m.tied = false;
    m.vocab = 70001;
    m.max_seq = 1024;
    for (int type = 0; type < 2; type++) {
        struct intra_cost_job j = job_of(&m, 1, 1, 1, 2, 1, (enum kern_type)type);
        check_memory(&j);
    }
    m = small;
    m.max_seq = 61;
    m.n_layers = 3;
    struct intra_cost_job j = job_of(&m, 1, 1, 1, 3, 2, KERN_BF16);
    check_memory(&j);
    j.trainable = (struct intra_trainable){
        .mode = INTRA_TRAIN_LORA, .lora_rank = 8, .lora_alpha = 16, .lora_targets = 127};
    check_memory(&j);
}

static enum neb_status (*alloc)(struct kern_device *, size_t, void **);
static double counted;
static enum neb_status count_alloc(struct kern_device *x, size_t bytes, void **out) {
    counted += (double)bytes;
    return alloc(x, bytes, out);
}

// The exchange's state, and room for encoding it.
static void test_outer_memory(void **state) {
    (void)state;
    struct kern_device_ops counting = *D->ops;
    const struct kern_device_ops *was = D->ops;
    struct intra_cost_job j = job_of(&small, 1, 1, 1, 4, 1, KERN_BF16);
    struct inter_outer_config c = {.beta = 0.9f, .kappa = 0.1f, .fragments = 1};
    struct kern_pool *pool = NULL;
    struct intra_model *m = NULL;
    struct intra_unit *units = NULL;
    struct inter_outer *o = NULL;
    struct neb_buf blob = {0};
    struct cmp_codec codec;
    struct intra_cost cost;
    int32_t n;
    alloc = D->ops->alloc;
    counting.alloc = count_alloc;
    assert_int_equal(kern_pool_create(1, &pool), NEB_OK);
    assert_int_equal(intra_model_create(&small, &j.trainable, 1, &m), NEB_OK);
    assert_int_equal(intra_units(m, &units, &n), NEB_OK);
    struct inter_outer_unit *u = calloc((size_t)n, sizeof *u);
    float **there = calloc((size_t)n, sizeof *there);
    assert_non_null(u);
    assert_non_null(there);
    for (int32_t i = 0; i < n; i++) {
        size_t elements = (size_t)units[i].rows * (size_t)units[i].cols;
        void *p;
        u[i] = (struct inter_outer_unit){.rows = (uint32_t)units[i].rows,
                                         .cols = (uint32_t)units[i].cols,
                                         .theta_m = intra_param(m, units[i].tensor) +
                                                    (size_t)units[i].row0 * (size_t)units[i].cols};
        assert_int_equal(D->ops->alloc(D, elements * sizeof(float), &p), NEB_OK);
        there[i] = p;
        D->ops->zero(D, p, elements * sizeof(float));
    }
    assert_int_equal(inter_outer_create(&c, u, n, pool, &o), NEB_OK);
    D->ops = &counting;
    assert_int_equal(inter_outer_place(o, D, there), NEB_OK);
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    assert_int_equal(inter_outer_encode(o, 0, &codec, NULL, NULL, &blob), NEB_OK);
    j.outer = j.outer_device = true;
    intra_cost_step(&j, &rates, &cost);
    near(cost.outer_bytes, counted, 0.05, "the exchange's state");
    near(cost.device_bytes - cost.workspace_bytes - cost.outer_bytes, allocated(&j, 0), 0.03,
         "what is not the exchange's");
    inter_outer_destroy(&o);
    D->ops = was;
    for (int32_t i = 0; i < n; i++)
        D->ops->release(D, there[i]);
    neb_buf_free(&blob);
    free(there);
    free(u);
    free(units);
    intra_model_destroy(&m);
    kern_pool_destroy(&pool);
}

// ---- seconds --------------------------------------------------------------------------------------------------

// The fastest step of several.
static double step_s(const struct intra_cost_job *j) {
    enum { STEPS = 3 };
    struct intra_trainer_config c = {.model = j->model,
                                     .trainable = j->trainable,
                                     .optim = adamw(),
                                     .batch = j->batch,
                                     .seq_len = j->seq_len,
                                     .accumulate = j->micros,
                                     .recompute = j->recompute,
                                     .device = D,
                                     .device_type = j->type,
                                     .seed = 1};
    struct kern *K = NULL;
    struct intra_trainer *t = NULL;
    struct intra_step_stats stats;
    struct neb_rng r = neb_rng_make(1, 1);
    double best = INFINITY;
    size_t n = (size_t)j->batch * (size_t)j->seq_len;
    int32_t *x = calloc(n, sizeof *x);
    assert_non_null(x);
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    for (int i = 0; i < STEPS; i++) {
        struct profile_clock clock;
        for (size_t k = 0; k < n; k++)
            x[k] = (int32_t)neb_rng_below(&r, (uint64_t)j->model.vocab);
        profile_clock_start(&clock);
        for (int k = 0; k < j->micros; k++)
            intra_trainer_micro(t, x, x);
        intra_trainer_update(t, &stats);
        assert_int_equal(stats.status, NEB_OK);
        best = fmin(best, profile_clock_stop(&clock, 1));
    }
    intra_trainer_destroy(&t);
    kern_destroy(&K);
    free(x);
    return best;
}

static void check_seconds(const struct intra_cost_job *j, const char *what) {
    enum { OFF = 2 }; // times as long, or as short
    struct intra_cost cost;
    intra_cost_step(j, &rates, &cost);
    double made = step_s(j);
    printf("%s: predicted %.3g s, made in %.3g s (%.2f of it)\n", what, cost.step_s, made,
           made / cost.step_s);
    if (!(cost.step_s < OFF * made && made < OFF * cost.step_s))
        fail_msg("%s: predicted %g s, made in %g s", what, cost.step_s, made);
}

static void test_seconds(void **state) {
    struct intra_model_config m = small;
    (void)state;
    rates = (struct intra_rates){.processors = 1};
    assert_int_equal(agent_profile_device(D, &rates.device), NEB_OK);
    for (int type = 0; type < 2; type++) {
        struct intra_cost_job j = job_of(&m, 1, 1, 1, 2, 2, (enum kern_type)type);
        check_seconds(&j, type ? "4 x 128 in bf16" : "4 x 128 in fp32");
        j.recompute = true;
        check_seconds(&j, "recomputing");
        j.model.d_model = 64;
        j.model.n_heads = j.model.n_kv_heads = 2;
        j.model.d_ff = 192;
        j.model.n_layers = 2;
        j.model.vocab = 4000;
        check_seconds(&j, "2 x 64, vocabulary 4000");
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_outer_memory),
        cmocka_unit_test(test_seconds),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
