// SPDX-License-Identifier: Apache-2.0
// agent/told: which losses of a cluster leave its site.
#include "agent/daemon/disclose.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct agent_disclosed_rules rounded = {AGENT_LOSSES_ROUNDED, 10, true},
                                          few = {AGENT_LOSSES_ROUNDED, 10, false},
                                          never = {AGENT_LOSSES_NEVER, 10, true},
                                          exact = {AGENT_LOSSES_EXACT, 10, true};

// The loss of a step in full precision. A text in the batch of step 13 changes the loss of that
// step.
static double loss_at(int step, bool member) {
    return 5 - 0.01 * step + 1e-4 * sin(step) - (member && step == 13 ? 1e-4 : 0);
}

struct site {
    struct agent_disclosed told;
    double sum;
    int step;
};

// Makes a step's line, as a worker writes it, and passes it through the agent. NULL: nothing
// leaves.
static json_t *step(struct site *s, const struct agent_disclosed_rules *r, bool member) {
    double loss = loss_at(++s->step, member);
    s->sum += loss;
    json_t *line =
        json_pack("{s:s,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:[f,i,f,i,i]}", "kind", "step", "step",
                  s->step, "tokens", 256 * s->step, "loss", loss, "grad_norm", 0.123456789, "lr",
                  0.00123456789, "tokens_per_s", 1234.56789, "train_s", 3.123456789, "sums", s->sum,
                  s->step, 0.123456789 * s->step, s->step, s->step);
    agent_disclosed_take(&s->told, line);
    assert_null(json_object_get(line, "sums")); // the site's own files do not get it either
    json_t *out = agent_disclosed_line(&s->told, r, line);
    json_decref(line);
    return out;
}

static double real(const json_t *o, const char *key) {
    return json_real_value(json_object_get(o, key));
}

// A reader that has the parameters and a text can compute the loss of a step with and without that
// text. The reported losses must not show whether the text was used.
static void test_no_membership_oracle(void **state) {
    (void)state;
    struct site with = {.sum = 0}, without = {.sum = 0};
    int reported = 0;
    for (int i = 1; i <= 45; i++) {
        json_t *a = step(&with, &rounded, true), *b = step(&without, &rounded, false);
        assert_true(json_equal(a, b));
        assert_int_equal(json_integer_value(json_object_get(a, "step")), i);
        assert_true(json_is_real(json_object_get(a, "loss")) == (i % 10 == 0));
        assert_true(json_is_real(json_object_get(a, "grad_norm")) == (i % 10 == 0));
        if (i % 10 == 0) {
            double mean = 0;
            for (int k = i - 9; k <= i; k++)
                mean += loss_at(k, false) / 10;
            assert_true(fabs(real(a, "loss") - mean) <= 0.0005 + 1e-9);
            assert_true(fabs(real(a, "loss") * 1000 - round(real(a, "loss") * 1000)) < 1e-6);
            assert_true(real(a, "grad_norm") == 0.123);
            reported++;
        }
        // Figures of the job and the machine stay exact.
        assert_true(real(a, "lr") == 0.00123456789 && real(a, "tokens_per_s") == 1234.56789 &&
                    real(a, "train_s") == 3.123456789);
        json_decref(a);
        json_decref(b);
    }
    assert_int_equal(reported, 4);
    struct site in_full = {.sum = 0};
    json_t *a = step(&in_full, &exact, true); // exact, as between clusters of one operator
    assert_true(real(a, "loss") == loss_at(1, true));
    json_decref(a);
    in_full = (struct site){.sum = 0};
    for (int i = 1; i <= 30; i++) {
        a = step(&in_full, &never, true);
        assert_true(json_is_null(json_object_get(a, "loss")));
        json_decref(a);
    }
}

// A line every hundredth step gives the mean of all hundred; a restarted worker starts a new
// stretch.
static void test_stretches(void **state) {
    (void)state;
    struct site s = {.sum = 0};
    json_t *line = NULL;
    for (int i = 1; i < 100; i++)
        s.sum += loss_at(++s.step, false);
    line = step(&s, &rounded, false);
    assert_true(fabs(real(line, "loss") - s.sum / 100) < 0.001);
    json_decref(line);
    s.sum = 0;
    s.step = 0;
    for (int i = 1; i <= 10; i++) {
        line = step(&s, &rounded, false);
        assert_true(json_is_real(json_object_get(line, "loss")) == (i == 10));
        assert_true(i < 10 || fabs(real(line, "loss") - s.sum / 10) < 0.001);
        json_decref(line);
    }
}

static json_t *eval(struct site *s, const struct agent_disclosed_rules *r, int at) {
    json_t *line = json_pack("{s:s,s:i,s:f,s:{s:f,s:f}}", "kind", "eval", "step", at, "loss",
                             4.123456789, "sources", "de", 4.00049999, "en", 12.34567);
    json_t *out = agent_disclosed_line(&s->told, r, line);
    json_decref(line);
    return out;
}

static void test_held_out(void **state) {
    (void)state;
    struct site s = {.sum = 0};
    json_t *a = eval(&s, &rounded, 5);
    assert_true(real(a, "loss") == 4.123 && real(json_object_get(a, "sources"), "de") == 4.0);
    assert_true(fabs(real(json_object_get(a, "sources"), "en") - 12.35) < 1e-9);
    json_decref(a);
    assert_null(eval(&s, &rounded, 6)); // one evaluation a stretch
    assert_null(eval(&s, &rounded, 14));
    a = eval(&s, &rounded, 15);
    assert_non_null(a);
    json_decref(a);
    a = eval(&s, &few, 40); // the loss of a single token would reveal this token
    assert_true(json_is_null(json_object_get(a, "loss")) &&
                json_is_null(json_object_get(json_object_get(a, "sources"), "de")));
    json_decref(a);
}

static void test_report(void **state) {
    (void)state;
    struct site s = {.sum = 0};
    for (int i = 1; i <= 25; i++)
        json_decref(step(&s, &rounded, false));
    json_t *report = json_pack(
        "{s:s,s:f,s:f,s:f,s:f,s:s,s:i,s:{s:f},s:{s:f,s:f,s:{s:f}}}", "name", "paris", "loss_first",
        loss_at(1, true), "loss_last", 4.87654321, "eval_loss", 4.123456789, "train_s", 1.23456789,
        "params_digest", "c77f", "tokens", 6400, "eval_by_source", "de", 4.123456789, "quality",
        "eval_accuracy", 0.912345678, "decode_s", 2.3456789, "stall", "waited_s", 9.87654321);
    json_t *a = agent_disclosed_report(&s.told, &rounded, report),
           *b = agent_disclosed_report(&s.told, &few, report),
           *c = agent_disclosed_report(&s.told, &never, report),
           *d = agent_disclosed_report(&s.told, &exact, report), *q = json_object_get(a, "quality");
    assert_true(json_equal(d, report));
    assert_true(real(a, "loss_first") == s.told.first && real(a, "loss_last") == s.told.last);
    assert_true(real(a, "eval_loss") == 4.123 && real(a, "train_s") == 1.23456789);
    assert_true(real(json_object_get(a, "eval_by_source"), "de") == 4.123);
    assert_true(real(q, "eval_accuracy") == 0.912 && real(q, "decode_s") == 2.3456789);
    assert_true(real(json_object_get(q, "stall"), "waited_s") == 9.87654321);
    assert_true(json_is_null(json_object_get(b, "eval_loss")) &&
                json_is_null(json_object_get(json_object_get(b, "quality"), "eval_accuracy")));
    assert_true(real(b, "loss_first") == s.told.first);
    assert_true(json_is_null(json_object_get(c, "eval_loss")) &&
                json_is_null(json_object_get(json_object_get(c, "eval_by_source"), "de")));
    struct site short_run = {.sum = 0}; // the run is too short for a stretch
    json_t *e = agent_disclosed_report(&short_run.told, &rounded, report);
    assert_true(json_is_null(json_object_get(e, "loss_first")) &&
                json_is_null(json_object_get(e, "loss_last")));
    json_t *all[] = {report, a, b, c, d, e};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        json_decref(all[i]);
}

static void test_round(void **state) {
    (void)state;
    static const double pairs[][2] = {{0, 0},           {5.123456, 5.123},  {-0.0004, 0},
                                      {12.3456, 12.35}, {123456.7, 123500}, {0.9996, 1}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_true(fabs(agent_disclosed_round(pairs[i][0]) - pairs[i][1]) < 1e-9);
    assert_true(isnan(agent_disclosed_round(NAN)) && isinf(agent_disclosed_round(INFINITY)));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_membership_oracle),
                                       cmocka_unit_test(test_stretches),
                                       cmocka_unit_test(test_held_out),
                                       cmocka_unit_test(test_report), cmocka_unit_test(test_round)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
