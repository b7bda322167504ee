// SPDX-License-Identifier: Apache-2.0
// The device estimates of nebula plan (intra/cost, agent/plan/profile_measure.c) against the
// emulated device. Memory is compared with what is allocated: on every mesh of up to 8 ranks, for
// sides of rtd and distill, and for exchanges of up to 4 owners. Times are estimated from rates
// measured here, and compared with real steps and exchanges.
#include "agent/base/rng.h"
#include "agent/plan/planner.h"
#include "agent/plan/profile_clock.h"
#include "inter/outer/outer.h"
#include "intra/train/shards.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;

static struct kern *D;
static struct intra_rates rates;

static int open_device(void **state) {
    char text[256];
    (void)state;
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    return 0;
}
static void forget(void);
static int close_device(void **state) {
    (void)state;
    forget();
    kern_destroy(&D);
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

// ---- memory ----

static struct intra_optim_config adamw(void) {
    return (struct intra_optim_config){
        .schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 1e-3f, .warmup = 2},
        .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f};
}

// A rank's model and moments, reused for jobs that differ only in the device.
static struct kept {
    struct intra_cost_job of; // type 0, no recomputation
    int stage;
    struct intra_mesh mesh;
    struct intra_model *m;
    struct intra_optim *o;
} kept;

static void forget(void) {
    intra_optim_destroy(&kept.o);
    intra_model_destroy(&kept.m);
}
static const struct kept *model_of(const struct intra_cost_job *j, int stage) {
    struct intra_optim_config c = adamw();
    struct intra_cost_job of;
    c.kind = j->muon ? INTRA_OPTIM_MUON : INTRA_OPTIM_ADAMW;
    memcpy(&of, j, sizeof of); // copies the padding too, for memcmp
    of.type = KERN_F32;
    of.recompute = false;
    if (kept.o && kept.stage == stage && !memcmp(&kept.of, &of, sizeof of))
        return &kept;
    forget();
    memcpy(&kept.of, &of, sizeof of);
    kept.stage = stage;
    kept.mesh = (struct intra_mesh){.c = j->mesh, .pp_rank = stage};
    assert_int_equal(intra_model_create_on(
                         &j->model, &j->trainable, 1,
                         j->mesh.dp * j->mesh.pp * j->mesh.tp > 1 ? &kept.mesh : NULL, &kept.m),
                     NEB_OK);
    assert_int_equal(intra_optim_create(&c, kept.m, &kept.o), NEB_OK);
    return &kept;
}

// Device memory of the rank at this stage.
static double allocated(const struct intra_cost_job *j, int stage) {
    const struct kept *k = model_of(j, stage);
    struct intra_device *d = NULL;
    assert_int_equal(
        intra_device_create(
            &(struct intra_device_config){.D = D,
                                          .type = j->type,
                                          .batch = j->batch,
                                          .seq_len = j->seq_len,
                                          .micros = (j->micros + j->mesh.dp - 1) / j->mesh.dp,
                                          .recompute = j->recompute,
                                          .mesh = k->m->mesh},
            k->m, k->o, &d),
        NEB_OK);
    double bytes = (double)intra_device_bytes(d);
    intra_device_destroy(&d);
    return bytes;
}

static void check_predicted(const struct intra_cost_job *j, double bytes) {
    struct intra_cost cost;
    char what[96];
    intra_cost_step(j, NULL, &rates, &cost);
    snprintf(what, sizeof what, "memory, dp %d, pp %d, tp %d, %d x %d, %s%s", j->mesh.dp,
             j->mesh.pp, j->mesh.tp, j->micros, j->batch, j->type == KERN_BF16 ? "bf16" : "fp32",
             j->recompute ? ", recomputing" : "");
    near(cost.device_bytes - cost.workspace_bytes, bytes, 1e-3, what);
}
static void check_memory(const struct intra_cost_job *j) { check_predicted(j, allocated(j, 0)); }
static void check_mesh(const struct intra_model_config *m, int dp, int pp, int tp) {
    enum { TYPES = 2, KINDS = 4 }; // fp32 and bf16; activations kept or recomputed
    struct intra_cost_job j[KINDS];
    double bytes[KINDS] = {0};
    for (int k = 0; k < KINDS; k++) {
        j[k] = job_of(m, dp, pp, tp, 4, 8, (enum kern_type)(k % TYPES));
        j[k].recompute = k >= TYPES;
    }
    for (int stage = 0; stage<pp; stage += pp> 1 ? pp - 1 : 1)
        for (int k = 0; k < KINDS; k++)
            bytes[k] = fmax(bytes[k], allocated(&j[k], stage));
    for (int k = 0; k < KINDS; k++)
        check_predicted(&j[k], bytes[k]);
}

static void test_memory(void **state) {
    struct intra_model_config m = small;
    (void)state;
    rates.device.count = 8;
    rates.device.memory = (double)D->total_bytes;
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int pp = 1; pp <= 4; pp *= 2)
            for (int dp = 1; dp * pp * tp <= 8; dp *= 2)
                check_mesh(&m, dp, pp, tp);
    // Other shapes: fewer heads for k and v, both ends untied, odd sizes, and a vocabulary whose
    // logits do not fit one block.
    m.d_model = 32;
    m.head_dim = 8;
    m.d_ff = 88;
    m.n_kv_heads = 2;
    m.tied = false;
    m.vocab = 70001;
    m.max_seq = 1024;
    for (int type = 0; type < 2; type++) {
        struct intra_cost_job j = job_of(&m, 1, 1, 1, 2, 1, (enum kern_type)type);
        check_memory(&j);
    }
    // A larger card has larger blocks of rows. The cases: all rows in one block, several blocks,
    // the smallest blocks.
    static const double cards[] = {64e9, 6e8, 1e8};
    double all = (double)D->total_bytes, first = 0;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        struct intra_cost_job j = job_of(&m, 1, 1, 1, 1, 2, KERN_BF16);
        j.seq_len = 200;
        rates.device.memory = cards[i];
        D->total_bytes = (size_t)cards[i];
        check_memory(&j);
        assert_true(!i || allocated(&j, 0) < first - 140e3 * 64);
        first = allocated(&j, 0);
    }
    rates.device.memory = all;
    D->total_bytes = (size_t)all;
    m = small;
    m.max_seq = 61;
    m.n_layers = 3;
    struct intra_cost_job j = job_of(&m, 1, 1, 1, 3, 2, KERN_BF16);
    check_memory(&j);
    j.trainable = (struct intra_trainable){
        .mode = INTRA_TRAIN_LORA, .lora_rank = 8, .lora_alpha = 16, .lora_targets = 127};
    check_memory(&j);
    for (int tp = 1; tp <= 2; tp++) {
        j = job_of(&small, tp, 1, tp, 3, 2, KERN_BF16);
        j.muon = true;
        check_memory(&j);
    }
}

// ---- memory of sides of rtd and distill ----

static const struct side_case {
    const char *what;
    struct intra_cost_side side;
    enum kern_mask mask;
    bool scores; // a discriminator
} sides[] = {
    {"a generator", {.learns = true, .again = 20, .soft_k = 1}, KERN_MASK_BIDIRECTIONAL, false},
    {"a discriminator", {.learns = true}, KERN_MASK_BIDIRECTIONAL, true},
    {"a teacher that looks on",
     {.again = 20, .labels = true, .soft_k = KERN_SOFT_K_MAX},
     KERN_MASK_PREFIX,
     false},
    {"a teacher that learns",
     {.learns = true, .again = 20, .labels = true, .soft_k = KERN_SOFT_K_MAX},
     KERN_MASK_PREFIX,
     false},
    {"a student",
     {.learns = true, .labels = true, .soft_k = KERN_SOFT_K_MAX},
     KERN_MASK_PREFIX,
     false},
};

// Configured as in agent/train.
static double side_allocated(const struct intra_cost_job *j, const struct intra_cost_side *side) {
    struct intra_optim_config c = adamw();
    struct intra_model *m = NULL;
    struct intra_optim *o = NULL;
    struct intra_device *d = NULL;
    assert_int_equal(intra_model_create(&j->model, &j->trainable, 1, &m), NEB_OK);
    if (side->learns)
        assert_int_equal(intra_optim_create(&c, m, &o), NEB_OK);
    assert_int_equal(intra_device_create(
                         &(struct intra_device_config){.D = D,
                                                       .type = j->type,
                                                       .batch = j->batch,
                                                       .seq_len = j->seq_len,
                                                       .micros = side->learns ? j->micros : 1,
                                                       .recompute = !side->learns || j->recompute,
                                                       .soft_k = side->soft_k},
                         m, o, &d),
                     NEB_OK);
    double bytes = (double)intra_device_bytes(d);
    intra_device_destroy(&d);
    intra_optim_destroy(&o);
    intra_model_destroy(&m);
    return bytes;
}

static void check_side(const struct intra_cost_job *given, const struct side_case *x) {
    struct intra_cost_job j = *given;
    struct intra_cost_side side = x->side;
    struct intra_cost cost;
    char what[96];
    j.model.mask = x->mask;
    j.model.head = x->scores ? INTRA_HEAD_RTD : INTRA_HEAD_LM;
    side.tokens = side.targets = (double)j.batch * j.seq_len;
    side.length = j.seq_len;
    intra_cost_step(&j, &side, &rates, &cost);
    snprintf(what, sizeof what, "memory of %s in %s%s", x->what,
             j.type == KERN_BF16 ? "bf16" : "fp32", j.recompute ? ", recomputing" : "");
    near(cost.device_bytes - cost.workspace_bytes, side_allocated(&j, &side), 1e-3, what);
}

static void test_memory_of_sides(void **state) {
    // a thin model: most of its memory depends on the number of positions
    struct intra_model_config m = small, thin = small;
    (void)state;
    rates.device.count = 1;
    rates.device.memory = (double)D->total_bytes;
    thin.d_model = 32;
    thin.head_dim = 8;
    thin.d_ff = 64;
    thin.vocab = 200;
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
            struct intra_cost_job j = job_of(&m, 1, 1, 1, 4, 2, (enum kern_type)(k % 2)),
                                  t = job_of(&thin, 1, 1, 1, 16, 2, (enum kern_type)(k % 2));
            j.recompute = t.recompute = k >= 2;
            check_side(&j, &sides[i]);
            check_side(&t, &sides[i]);
        }
}

// ---- memory of an exchange ----

static enum neb_status (*alloc)(struct kern *, size_t, void **);
static double counted;
static enum neb_status count_alloc(struct kern *x, size_t bytes, void **out) {
    counted += (double)bytes;
    return alloc(x, bytes, out);
}

// One owner's part of the exchange on its device: the cost of an update and of a merge of
// `members`.
struct owner {
    double bytes, encode_s, merge_s; // the best of several measurements
};

static enum neb_status exchange(struct inter_outer *o, const char *name, int32_t members,
                                struct owner *out) {
    enum { MOST = 4, ROUNDS = 3 };
    struct neb_buf blob = {0};
    struct cmp_codec codec;
    struct kern_digest digest;
    struct inter_outer_part parts[MOST];
    struct inter_outer_round r = {.parts = parts, .n = (size_t)members, .eta = 1};
    out->encode_s = out->merge_s = INFINITY;
    NEB_TRY(cmp_codec_parse(name, &codec));
    for (int i = 0; i < ROUNDS; i++) {
        struct profile_clock clock;
        profile_clock_start(&clock);
        NEB_TRY(inter_outer_encode(o, 0, &codec, NULL, NULL, &blob));
        out->encode_s = fmin(out->encode_s, profile_clock_stop(&clock, 1));
        for (int32_t p = 0; p < members; p++)
            parts[p] = (struct inter_outer_part){blob.p, blob.len, 1, 1, p == 0, 0};
        profile_clock_start(&clock);
        NEB_TRY(inter_outer_apply(o, 0, &r, &digest));
        out->merge_s = fmin(out->merge_s, profile_clock_stop(&clock, 1));
    }
    neb_buf_free(&blob);
    return NEB_OK;
}

static struct owner own_part(const struct intra_cost_job *j, int rank, const char *codec,
                             int32_t members) {
    enum { UNITS = 64 };
    struct kern_ops counting = *D->ops;
    const struct kern_ops *was = D->ops;
    struct inter_outer_config c = {.beta = 0.9f, .keep = 0.5f, .kappa = 0.1f, .fragments = 1};
    struct inter_outer_position places[UNITS];
    struct inter_outer_unit u[UNITS];
    uint64_t elements[UNITS], load[UNITS], at = 0;
    int32_t n, mine = 0, fragment[UNITS] = {0}, owner[UNITS];
    float *there[UNITS];
    struct kern_pool *pool = NULL;
    struct intra_model *m = NULL;
    struct intra_unit *units = NULL;
    struct inter_outer *o = NULL;
    struct owner out;
    struct neb_rng r = neb_rng_make(1, 1);
    alloc = D->ops->alloc;
    counting.alloc = count_alloc;
    assert_int_equal(kern_pool_create(1, &pool), NEB_OK);
    assert_int_equal(intra_model_create(&j->model, &j->trainable, 1, &m), NEB_OK);
    assert_int_equal(intra_units(m, &units, &n), NEB_OK);
    assert_in_range(n, 1, UNITS);
    for (int32_t i = 0; i < n; i++)
        elements[i] = (uint64_t)units[i].rows * (uint64_t)units[i].cols;
    intra_shards_assign(elements, fragment, n, j->mesh.dp, NULL, NULL, load, owner);
    for (int32_t i = 0; i < n; at += elements[i], i++) {
        void *p;
        if (owner[i] != rank)
            continue;
        u[mine] = (struct inter_outer_unit){.rows = (uint32_t)units[i].rows,
                                            .cols = (uint32_t)units[i].cols,
                                            .theta_m = units[i].data};
        places[mine] = (struct inter_outer_position){(uint32_t)i, at};
        neb_rng_normals(&r, units[i].data, elements[i]);
        for (uint64_t k = 0; k < elements[i]; k++)
            units[i].data[k] *= 1e-3f;
        assert_int_equal(D->ops->alloc(D, elements[i] * sizeof(float), &p), NEB_OK);
        D->ops->upload(D, p, units[i].data, elements[i] * sizeof(float));
        there[mine++] = p;
    }
    c.places = places;
    assert_int_equal(inter_outer_create(&c, u, mine, pool, &o), NEB_OK);
    D->ops = &counting;
    counted = 0;
    assert_int_equal(inter_outer_to_device(o, D, there, 0), NEB_OK);
    assert_int_equal(exchange(o, codec, members, &out), NEB_OK);
    out.bytes = counted;
    inter_outer_destroy(&o);
    D->ops = was;
    for (int32_t i = 0; i < mine; i++)
        D->ops->release(D, there[i]);
    free(units);
    intra_model_destroy(&m);
    kern_pool_destroy(&pool);
    return out;
}

// The state of the exchange and the work space for encoding, for the owner with the largest part.
static void test_outer_memory(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        struct intra_cost_job j = job_of(&small, ranks, 1, 1, 4, ranks, KERN_BF16);
        struct intra_cost cost;
        struct cmp_codec codec;
        double most = 0;
        j.outer = j.outer_device = true;
        assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
        assert_int_equal(agent_profile_frames(&codec, 1, &j.frames), NEB_OK);
        intra_cost_step(&j, NULL, &rates, &cost);
        for (int rank = 0; rank < ranks; rank++)
            most = fmax(most, own_part(&j, rank, "int8", 1).bytes);
        printf(
            "the exchange's state on the fullest of %d devices: predicted %.0f bytes, it is %.0f\n",
            ranks, cost.outer_bytes, most);
        near(cost.outer_bytes, most, 0.05, "the exchange's state");
        near(cost.device_bytes - cost.workspace_bytes - cost.outer_bytes, allocated(&j, 0), 0.03,
             "what is not the exchange's");
    }
}

// ---- time ----

// Other load on this machine makes rates and steps slower, by different factors. So a miss is
// measured again, with its rates: a wrong estimate misses each time.
enum { TRIES = 4 };
static void in_some_try(bool (*agree)(void), const char *what) {
    for (int i = 0; i < TRIES; i++)
        if (agree())
            return;
    fail_msg("%s: each of %d measurements is off", what, TRIES);
}

// The fastest of several steps.
static double step_s(const struct intra_cost_job *j) {
    enum { STEPS = 2 };
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

static bool seconds_near(const struct intra_cost_job *j, const char *what) {
    enum { OFF = 3 }; // allowed factor, up or down: an emulator has no kernels that suit a size
    struct intra_cost cost;
    intra_cost_step(j, NULL, &rates, &cost);
    double made = step_s(j);
    printf("%s: predicted %.3g s, made in %.3g s (%.2f of it)\n", what, cost.step_s, made,
           made / cost.step_s);
    return cost.step_s < OFF * made && made < OFF * cost.step_s;
}

static bool seconds_agree(void) {
    struct intra_model_config m = small;
    bool good = true;
    rates = (struct intra_rates){.processors = 1};
    assert_int_equal(agent_profile_device(D, &rates.device), NEB_OK);
    for (int type = 0; type < 2; type++) {
        struct intra_cost_job j = job_of(&m, 1, 1, 1, 2, 2, (enum kern_type)type);
        good = good && seconds_near(&j, type ? "4 x 128 in bf16" : "4 x 128 in fp32");
        j.recompute = !type;
        good = good && (type || seconds_near(&j, "recomputing"));
        j.model.d_model = 64;
        j.model.n_heads = j.model.n_kv_heads = 2;
        j.model.d_ff = 192;
        j.model.n_layers = 2;
        j.model.vocab = 2000;
        good = good && seconds_near(&j, "2 x 64, vocabulary 2000");
    }
    return good;
}
static void test_seconds(void **state) {
    (void)state;
    in_some_try(seconds_agree, "seconds of a step");
}

// An exchange of one owner, from rates that are measured here.
static bool exchange_agrees(void) {
    enum { OFF = 2, MEMBERS = 2 };
    struct intra_model_config m = small;
    struct agent_site site = {.share = 1};
    const struct agent_cluster cluster = {.launcher = AGENT_LAUNCHER_LOCAL};
    m.d_model = 256; // the units are large enough
    m.d_ff = 704;
    m.n_layers = 2;
    site.profile.rates = rates;
    site.profile.rates.link = 1e15;
    for (int i = 0; i < 2; i++) {
        struct inter_wan_codec codec = {.name = {0}};
        memcpy(codec.name, i ? "topk:512/4096" : "int4", i ? 14 : 5);
        assert_int_equal(agent_profile_codec_device(D, &codec), NEB_OK);
        for (int ranks = 1; ranks <= 4; ranks *= 4) {
            struct agent_planned x = {.job = job_of(&m, ranks, 1, 1, 4, ranks, KERN_F32)};
            struct owner most = {0};
            x.job.outer = x.job.outer_device = true;
            intra_cost_step(&x.job, NULL, &site.profile.rates, &x.cost);
            x.cost.scatter_s = 0; // there are no other ranks here
            struct inter_wan_work w = agent_planner_work(&x, &site, &cluster, &codec, 0, MEMBERS);
            for (int rank = 0; rank < ranks; rank++) {
                struct owner o = own_part(&x.job, rank, codec.name, MEMBERS);
                most.encode_s = fmax(most.encode_s, o.encode_s);
                most.merge_s = fmax(most.merge_s, o.merge_s);
            }
            printf("%s, %d owners: encode predicted %.3g s, took %.3g; merge %.3g, %.3g\n",
                   codec.name, ranks, w.encode_s, most.encode_s, w.merge_s, most.merge_s);
            if (!(w.encode_s < OFF * most.encode_s && most.encode_s < OFF * w.encode_s &&
                  w.merge_s < OFF * most.merge_s && most.merge_s < OFF * w.merge_s))
                return false;
        }
    }
    return true;
}
static void test_exchange_seconds(void **state) {
    (void)state;
    in_some_try(exchange_agrees, "seconds of an exchange");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),           cmocka_unit_test(test_memory_of_sides),
        cmocka_unit_test(test_outer_memory),     cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_exchange_seconds),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
