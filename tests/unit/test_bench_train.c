// SPDX-License-Identifier: Apache-2.0
// `nebula bench train`: its FLOP count against a count by hand, its shapes, and its line for a tiny
// model.
#include "agent/base/log.h"
#include "agent/bench/train.h"
#include "tests/testing.h"
#include "tests/unit/bench_fixture.h"

static void test_flops(void **state) {
    (void)state;
    struct intra_model *m = NULL;
    struct intra_model_config c = {.vocab = 50,
                                   .d_model = 8,
                                   .n_layers = 3,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 6,
                                   .d_ff = 10,
                                   .max_seq = 7,
                                   .rope_theta = 100,
                                   .norm_eps = 1e-5f,
                                   .qkv_bias = true};
    for (int tied = 0; tied < 2; tied++) {
        c.tied = tied;
        assert_int_equal(
            intra_model_create(&c, &(struct intra_trainable){.mode = INTRA_TRAIN_FULL}, 1, &m),
            NEB_OK);
        // Products per token and layer: qkv 8 x (24 + 12 + 12), output 24 x 8, gate and up 8 x 20,
        // down 10 x 8. Logits follow. Attention: queries see 1, 2, ... 7 keys, 4 on average. The
        // scores and values are those of 4 heads of 6.
        double products = 3 * (8 * 48 + 24 * 8 + 8 * 20 + 10 * 8) + 8 * 50,
               attention = 3 * 2 * 4 * (4 * 6);
        assert_true(fabs(bench_train_token_flops(m, 7) - 6 * (products + attention)) < 1e-6);
        intra_model_destroy(&m);
    }
}

static void test_shapes(void **state) {
    (void)state;
    struct bench_train_shape s;
    assert_int_equal(bench_train_shape_parse("default", &s), NEB_OK);
    assert_true(s.n_layers == 8 && s.d_model == 256 && s.seq_len == 256);
    assert_int_equal(bench_train_shape_parse("12x512x128", &s), NEB_OK);
    assert_true(s.n_layers == 12 && s.d_model == 512 && s.seq_len == 128);
    neb_log_set_sink(testing_drop, NULL);
    static const char *const wrong[] = {"",          "large",     "8x256",   "8x256x256x1",
                                        "8x250x256", "0x256x256", "8x256x0", "-8x256x256"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(bench_train_shape_parse(wrong[i], &s), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
}

static void check_line(bool muon) {
    FILE *f = tmpfile();
    assert_non_null(f);
    int was = print_to(f);
    struct bench_train_shape shape = {.n_layers = 1,
                                      .d_model = 32,
                                      .seq_len = 16,
                                      .batch = 8,
                                      .vocab = 40,
                                      .steps = 60,
                                      .muon = muon};
    enum neb_status st = bench_train(2, true, &shape);
    print_to_end(f, was);
    assert_int_equal(st, NEB_OK);
    char line[1024];
    assert_non_null(fgets(line, sizeof line, f));
    json_t *o = json_loads(line, 0, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "bench")), "train");
    assert_string_equal(json_string_value(json_object_get(o, "unit")), "GFLOP/s");
    assert_string_equal(json_string_value(json_object_get(o, "limit_is")), "sgemm");
    double value = number(o, "value"), step = number(o, "step_ms") * 1e-3;
    assert_true(value > 0 && number(o, "limit") > 0);
    assert_true(fabs(number(o, "ratio") - value / number(o, "limit")) <
                1e-3 * number(o, "ratio") + 1e-9);
    assert_true(fabs(number(o, "tokens_per_s") * step / 128 - 1) < 1e-3);
    // 6 x (32 x 96 + 32 x 32 + 32 x 192 + 96 x 32 + 40 x 32) + 6 x 17 x 32: d_ff is 96
    assert_true(fabs(value * 1e9 * step / 128 / (6 * 14592 + 6 * 17 * 32) - 1) < 1e-3);
    assert_true(number(o, "best_step_ms") <= number(o, "step_ms") && number(o, "threads") == 2);
    assert_true(number(o, "update_share") > 0 && number(o, "update_share") < 1);
    assert_true(muon ? number(o, "muon_share") > 0 &&
                           number(o, "muon_share") < number(o, "update_share")
                     : number(o, "muon_share") == 0);
    assert_true(number(o, "loss") < log(40)); // below the loss of a uniform guess
    json_decref(o);
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
}

static void test_line(void **state) {
    (void)state;
    check_line(false);
    check_line(true);
}

// One line for one sequence, and one for 16 at once. A cache saves processor time.
static void test_decode_lines(void **state) {
    (void)state;
    FILE *f = tmpfile();
    assert_non_null(f);
    int was = print_to(f);
    struct bench_train_shape shape = {.n_layers = 2, .d_model = 64, .seq_len = 64, .vocab = 40};
    enum neb_status st = bench_decode(1, true, &shape);
    print_to_end(f, was);
    assert_int_equal(st, NEB_OK);
    char line[1024];
    for (int i = 0; i < 2; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_string_equal(json_string_value(json_object_get(o, "case")),
                            i ? "2x64 seq 64, 16 at once" : "2x64 seq 64, 1 at once");
        assert_string_equal(json_string_value(json_object_get(o, "unit")), "tokens/s");
        static const char *const fields[] = {"value", "limit", "cpu_ratio", "tokens_per_cpu_s",
                                             "uncached_tokens_per_s"};
        for (size_t k = 0; k < sizeof fields / sizeof *fields; k++)
            if (!(json_number_value(json_object_get(o, fields[k])) > 0))
                fail_msg("no %s: %s", fields[k], line);
        assert_true(json_number_value(json_object_get(o, "of_uncached")) > 1);
        json_decref(o);
    }
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    neb_log_set_sink(testing_drop, NULL);
    shape.seq_len = 16;
    assert_int_equal(bench_decode(1, true, &shape), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flops), cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_line),
                                       cmocka_unit_test(test_decode_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
