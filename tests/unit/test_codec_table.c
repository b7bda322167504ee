// SPDX-License-Identifier: Apache-2.0
// Every row of the table of codecs, whatever it holds. The tests cover numbers, texts, sizes,
// frames with and without feedback, strips, the gate's check and damage. They also cover the users
// of the table: keys of a job, controller, planner. CMake builds this test a second time with one
// more codec (codec_added.cmake).
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/job/config.h"
#include "agent/job/tune.h"
#include "agent/plan/plan.h"
#include "agent/plan/profile.h"
#include "compress/check.h"
#include "compress/ops.h"
#include "compress/reader.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { ALL = CMP_BENCHED | CMP_PLANNED | CMP_LEVEL, N = 40000 };
static struct cmp_work *W;
static float x[N], y[N];

static void fill(uint64_t seed) { // heavy-tailed, like pseudo-gradients
    struct neb_rng r = neb_rng_make(seed, 0);
    for (size_t i = 0; i < N; i++) {
        float z = neb_rng_normal(&r);
        x[i] = 1e-3f * z * fabsf(z);
    }
}

static struct cmp_codec codec_of(const struct cmp_variant *v) {
    struct cmp_codec c;
    OK(cmp_codec_parse(v->name, &c));
    return c;
}

static void test_rows(void **state) {
    (void)state;
    int planned = 0, levels = 0;
    for (int i = 0; cmp_codecs[i]; i++) {
        const struct cmp_codec_ops *o = cmp_codecs[i];
        for (int k = 0; k < i; k++)
            assert_true(cmp_codecs[k]->number != o->number && strcmp(cmp_codecs[k]->name, o->name));
        assert_ptr_equal(cmp_codecs[cmp_format_numbered(o->number)], o);
        assert_true(o->number && o->usage && o->sizes && !o->parse == !o->print);
        assert_true(o->encode && o->variants[0].name && o->streams[0] != CMP_NO_STREAM);
        assert_true(o->entries ? o->unpack && o->sketch && o->count && !o->read && !o->verify
                               : o->read && !o->unpack && !o->sketch);
        if (i) // finest first
            assert_true(o->variants[0].bits < cmp_codecs[i - 1]->variants[0].bits);
    }
    for (int i = 0; cmp_variant(i, ALL); i++) {
        const struct cmp_variant *v = cmp_variant(i, ALL);
        struct cmp_codec c = codec_of(v);
        char name[32];
        cmp_codec_name(&c, name, sizeof name);
        assert_string_equal(name, v->name);
        assert_true(v->density == cmp_codec_density(&c));
        assert_int_equal(v->uses & CMP_LEVEL ? 1 : 0, v->level ? 1 : 0);
        for (int k = 0; v->level && k < i; k++)
            assert_int_not_equal(cmp_variant(k, ALL)->level, v->level);
        planned += v->uses & CMP_PLANNED ? 1 : 0;
        levels += v->uses & CMP_LEVEL ? 1 : 0;
    }
    assert_in_range(planned, 1, CMP_PLANNED_MAX);
    assert_in_range(levels, 1, CMP_LEVELS_MAX);
}

static double relative_error(size_t n) {
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        s += (double)x[i] * (double)x[i];
    }
    return s > 0 ? sqrt(e / s) : 0;
}

// The frame of what a member learned is the frame of the same array.
static void feedback(const struct cmp_codec *c, const struct neb_buf *frame, size_t n) {
    static float u[N], zero[N];
    struct neb_buf b = {0};
    memset(u, 0, sizeof u);
    OK(cmp_encode_feedback(
        W, c, &(struct cmp_feedback){.u = u, .theta = x, .theta_m = zero, .beta = 1}, n, &b));
    assert_int_equal(b.len, frame->len);
    assert_memory_equal(b.p, frame->p, b.len);
    neb_buf_free(&b);
}

static void strips(const struct neb_buf *frame, size_t n) {
    static struct cmp_reader *r;
    static float z[N];
    if (!r)
        OK(cmp_reader_create(&r));
    OK(cmp_reader_open(r, W, frame->p, frame->len, n));
    for (size_t at = 0; at < n; at += 777)
        cmp_reader_read(r, at, z + at, n - at < 777 ? n - at : 777);
    assert_memory_equal(y, z, n * sizeof *z);
    if (n == N)
        cmp_reader_destroy(&r);
}

static void test_frames(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 129, 1023, 1024, 4097, N};
    for (int i = 0; cmp_variant(i, ALL); i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            const struct cmp_variant *v = cmp_variant(i, ALL);
            struct cmp_codec c = codec_of(v);
            struct neb_buf frame = {0};
            size_t n = sizes[k];
            fill(k);
            OK(cmp_encode(W, &c, x, n, &frame));
            OK(cmp_decode(W, frame.p, frame.len, y, n));
            assert_true(frame.len <= cmp_codec_bytes_max(&c, n, 1));
            feedback(&c, &frame, n);
            strips(&frame, n);
            double error = relative_error(n), bits = 8.0 * (double)frame.len / N;
            if (n == N && (error > 2 * v->error + 1e-9 || bits > 2.5 * v->bits))
                fail_msg("%s: error %g, %g bits; typical are %g and %g", v->name, error, bits,
                         v->error, v->bits);
            neb_buf_free(&frame);
        }
}

// An encoder refuses a NaN, and damaged bytes never decode to one.
static void test_hostile(void **state) {
    (void)state;
    struct neb_rng r = neb_rng_make(3, 0);
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; cmp_variant(i, ALL); i++) {
        struct cmp_codec c = codec_of(cmp_variant(i, ALL));
        struct neb_buf frame = {0};
        enum { SOME = 5000 };
        fill(1);
        x[SOME / 2] = NAN;
        assert_int_equal(cmp_encode(W, &c, x, SOME, &frame), NEB_ERR_INVALID);
        fill(1);
        neb_buf_clear(&frame);
        c.zstd_level = (int)neb_rng_below(&r, 2);
        OK(cmp_encode(W, &c, x, SOME, &frame));
        for (int t = 0; t < 300; t++) {
            size_t at = neb_rng_below(&r, t % 2 ? frame.len : 60);
            uint8_t was = frame.p[at];
            frame.p[at] ^= (uint8_t)(1 + neb_rng_below(&r, 255));
            enum neb_status st = cmp_decode(W, frame.p, frame.len, y, SOME);
            assert_true(st == NEB_OK || st == NEB_ERR_FORMAT);
            for (size_t k = 0; st == NEB_OK && k < SOME; k++)
                assert_true(isfinite(y[k]));
            frame.p[at] = was;
        }
        assert_int_equal(cmp_decode(W, frame.p, frame.len - 1, y, SOME), NEB_ERR_FORMAT);
        neb_buf_free(&frame);
    }
    neb_log_set_sink(NULL, NULL);
}

static double norm_of(const float *a, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)a[i] * (double)a[i];
    return sqrt(s);
}

// The gate sees the norm and the sketch of the decoded elements, however the bytes are cut.
static void test_gate(void **state) {
    (void)state;
    static const struct cmp_unit_shape shape = {3, 200, 200, false};
    struct cmp_check *check;
    float want[CMP_SKETCH], got[CMP_SKETCH];
    OK(cmp_check_create(&check));
    for (int i = 0; cmp_variant(i, ALL); i++)
        for (size_t step = 1; step < 1 << 18; step *= 41) {
            struct cmp_codec c = codec_of(cmp_variant(i, ALL)), plain;
            struct neb_buf b = {0}, same = {0};
            struct cmp_update_unit u;
            struct cmp_update_stats stats, whole;
            OK(cmp_codec_parse("fp32", &plain));
            fill(9);
            cmp_update_begin(&b, 1);
            OK(cmp_update_add(W, &b, &shape, &c, &(struct cmp_source){.x = x}, NULL));
            OK(cmp_update_open(b.p, b.len, &shape, 1, &u));
            OK(cmp_decode(W, u.frame, u.frame_len, y, N));
            cmp_update_begin(&same, 1);
            OK(cmp_update_add(W, &same, &shape, &plain, &(struct cmp_source){.x = y}, NULL));
            OK(cmp_update_check_sketch(W, same.p, same.len, N, &whole));
            memcpy(want, whole.sketch, sizeof want);
            OK(cmp_update_check_max(W, b.p, b.len, N, &whole));
            cmp_check_begin(check, N);
            cmp_check_sketch(check);
            for (size_t at = 0; at < b.len; at += step)
                OK(cmp_check_feed(check, b.p + at, b.len - at < step ? b.len - at : step));
            OK(cmp_check_end(check, &stats));
            memcpy(got, stats.sketch, sizeof got);
            assert_memory_equal(&stats.norm, &whole.norm, sizeof stats.norm);
            assert_true(fabs(stats.norm - norm_of(y, N)) <= 1e-6 * stats.norm);
            assert_true(cmp_sketch_cosine(want, got) > 1 - 1e-6);
            neb_buf_free(&b);
            neb_buf_free(&same);
        }
    cmp_check_destroy(&check);
}

// ---- users --------------------------------------------------------------------------------------

static void parse_job(const char *sync, struct agent_job *j) {
    char text[512];
    snprintf(text, sizeof text,
             "job: j\nsteps: 1000\n"
             "model: {vocab: 512, n_layers: 4, d_model: 64, n_heads: 8, n_kv_heads: 4, d_ff: 160}\n"
             "data: {corpus: c, seq_len: 32, batch: 1, accumulate: 8}\noptim: {lr: 1e-3}\n"
             "sync: {%s}\nclusters: [{name: a}, {name: b}]\n",
             sync);
    OK(agent_job_parse(text, strlen(text), "job.yaml", j));
}

static void test_keys(void **state) {
    (void)state;
    static struct agent_job j;
    char sync[256], usage[256];
    cmp_codec_usage(usage, sizeof usage);
    for (int i = 0; cmp_codecs[i]; i++)
        assert_non_null(strstr(usage, cmp_codecs[i]->usage));
    for (int level = 1; cmp_level(level); level++) {
        const char *name = cmp_level(level)->name;
        snprintf(sync, sizeof sync,
                 "codec: \"%s\", tune: {mode: auto, finest: \"%s\", coarsest: \"%s\"}", name, name,
                 name);
        parse_job(sync, &j);
        assert_true(j.sync.tune.finest == level && j.sync.tune.coarsest == level);
        json_t *o = agent_job_to_json(&j);
        assert_string_equal(json_string_value(json_object_get(o, "sync.tune.finest")), name);
        json_decref(o);
        // Without the key, the controller never leaves the job's codec for a finer one.
        snprintf(sync, sizeof sync, "codec: \"%s\", tune: auto", name);
        parse_job(sync, &j);
        o = agent_job_to_json(&j);
        OK(agent_job_from_json(o, &j));
        json_decref(o);
        assert_int_equal(agent_tune_config(&j).finest, level);
    }
}

// On a link that carries nothing the controller goes to the coarsest level that it may use.
static void test_controller(void **state) {
    (void)state;
    static struct agent_job j;
    char sync[256];
    for (int level = 1; cmp_level(level); level++) {
        snprintf(
            sync, sizeof sync,
            "codec: \"%s\", tune: {mode: auto, finest: \"%s\", coarsest: \"%s\", error_max: 10}",
            cmp_level(1)->name, cmp_level(1)->name, cmp_level(level)->name);
        parse_job(sync, &j);
        struct inter_tune_config c = agent_tune_config(&j);
        struct inter_tuner t = {0};
        c.steps = 0; // steps 0: the job has no end, so sparse codecs are allowed
        const struct inter_tune_update u = {.measure = {.goodput_kbps = 1,
                                                        .rtt_us = 1000,
                                                        .step_us = 1000,
                                                        .error = 0.01f,
                                                        .codec = 1,
                                                        .full = true},
                                            .bytes = 1 << 20};
        (void)inter_tune(&t, &c, &u);
        assert_int_equal(t.plan.codec, level);
    }
}

// A profile measures every planned codec, and the plan of a job gives the size of its updates.
static void test_planner(void **state) {
    (void)state;
    static struct agent_job j;
    struct kern_pool *pool;
    char sync[64];
    OK(kern_pool_create(1, &pool));
    for (int i = 0; cmp_variant(i, CMP_PLANNED); i++) {
        const struct cmp_variant *v = cmp_variant(i, CMP_PLANNED);
        struct inter_wan_codec c;
        struct agent_plan plan;
        OK(agent_profile_codec(v->name, pool, &c));
        assert_string_equal(c.name, v->name);
        assert_true(c.density == v->density && c.at[INTER_WAN_HOST].encode > 0);
        snprintf(sync, sizeof sync, "codec: \"%s\"", v->name);
        parse_job(sync, &j);
        OK(agent_job_plan(&j, 512, &plan));
        assert_true(plan.bits_per_param > 0.9 * c.bits && plan.bits_per_param < 32);
    }
    kern_pool_destroy(&pool);
}

static int set_up(void **state) {
    (void)state;
    return cmp_work_create(&W) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    cmp_work_destroy(&W);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_frames),
        cmocka_unit_test(test_hostile), cmocka_unit_test(test_gate),
        cmocka_unit_test(test_keys),    cmocka_unit_test(test_controller),
        cmocka_unit_test(test_planner)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
