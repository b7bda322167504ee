// SPDX-License-Identifier: Apache-2.0
// inter/wan_cost: transfer and waiting times, by arithmetic that can be checked by hand. Also the
// choice of schemes, and their order by measured loss.
#include "inter/round/wan_cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

static void near(double a, double b, double rel, const char *what) {
    if (!(fabs(a - b) <= rel * fabs(b)))
        fail_msg("%s: %g, not %g", what, a, b);
}

#define EVEN                                                                                       \
    {                                                                                              \
        { 1e9, 1e9, 1e9 }                                                                          \
    }
static const struct inter_wan_codec codecs[] = {{"int8", 8, 0.01, 1, false, EVEN},
                                                {"int4", 4, 0.15, 1, false, EVEN},
                                                {"topk", 0.2, 0.9, 1.0 / 64, false, EVEN}};
static const struct inter_wan_work work[] = {{0.01, 0.02}, {0.01, 0.02}, {0.01, 0.02}};

static struct inter_wan_choice choice(int32_t interval, int32_t overlap, int32_t codec,
                                      int64_t steps, bool anticipates) {
    return (struct inter_wan_choice){.interval = interval,
                                     .overlap = overlap,
                                     .codec = codec,
                                     .steps = steps,
                                     .anticipates = anticipates};
}

static void test_exchange(void **state) {
    (void)state;
    struct inter_wan_path p = {.bits_s = 80e6, .rtt_s = 0.1, .members = 2, .connections = 2};
    struct inter_wan_load l = {.params = 10e6, .step_s = 0.5, .fragments = 1, .work = work};
    struct inter_wan_plan x, late;
    // 5 MB at about 8.9 MB/s. The time lies between that of the bytes alone and that with headers
    // and slow start.
    inter_wan_exchange(&p, &l, codecs, 1, 10, 0, &x);
    assert_true(x.travel_s > 5e6 / 10e6 && x.travel_s < 5e6 / 10e6 * 1.2 + 0.7);
    near(x.stall_s, x.travel_s + x.agree_s, 1e-12, "stall without overlap");
    near(x.step_s, 0.5 + (x.encode_s + x.merge_s + x.stall_s) / 10, 1e-12, "step");
    assert_true(x.bytes > 5e6 && x.bytes < 5.5e6);
    inter_wan_exchange(&p, &l, codecs, 1, 10, 5, &late);
    assert_true(late.stall_s == 0 && late.travel_s == x.travel_s);
    // With three members each one sends twice. A loss of 0.1 % at 100 ms leaves 9 Mbit/s a
    // connection.
    p.members = 3;
    inter_wan_exchange(&p, &l, codecs, 1, 10, 0, &late);
    assert_true(late.travel_s > 1.3 * x.travel_s && late.bytes > 1.9 * x.bytes);
    p.members = 2;
    p.loss = 0.001;
    p.connections = 1;
    near(inter_wan_goodput(&p), 9e6 / 8, 0.1, "goodput with loss");
}

static void test_wan_choice(void **state) {
    (void)state;
    static const double rates[] = {1e9, 100e6, 10e6, 1e6, 1e5};
    struct inter_wan_load l = {.params = 10e6, .step_s = 0.5, .fragments = 1, .work = work};
    struct inter_wan_choice any = choice(0, -1, -1, 10000, true),
                            fixed = choice(30, 3, 1, 10000, true);
    double last = INFINITY;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        struct inter_wan_path p = {
            .bits_s = rates[i], .rtt_s = 0.05, .members = 2, .connections = 2};
        struct inter_wan_plan x, y;
        assert_true(inter_wan_choose(&p, &l, codecs, 3, &any, &x));
        double bytes = codecs[x.codec].bits / x.interval; // the slower the link, the fewer bytes
        assert_true(bytes <= last && x.overlap < x.interval && x.stall_s < x.interval * l.step_s);
        last = bytes;
        bool carried = inter_wan_choose(&p, &l, codecs, 3, &fixed, &y);
        assert_true(y.interval == 30 && y.overlap == 3 && y.codec == 1);
        assert_true(carried == (y.busy <= 0.9));
    }
    // Sparse codecs are chosen only if the rounds touch each entry 3.75 times. With H 5 this needs
    // 1,200 steps.
    for (int k = 0; k < 2; k++) {
        struct inter_wan_path thin = {.bits_s = 1e5, .rtt_s = 0.05, .members = 2, .connections = 2};
        struct inter_wan_choice run = choice(5, 0, -1, 1200 - k, true);
        struct inter_wan_plan x;
        inter_wan_choose(&thin, &l, codecs, 3, &run, &x);
        assert_int_equal(x.codec, k ? 1 : 2);
        run.codec = 2; // a fixed codec is kept
        inter_wan_choose(&thin, &l, codecs, 3, &run, &x);
        assert_int_equal(x.codec, 2);
    }
    // A short run gets no long interval, and an interval has at least as many steps as there are
    // fragments.
    struct inter_wan_path p = {.bits_s = 1e5, .rtt_s = 0.05, .members = 2, .connections = 2};
    struct inter_wan_plan x;
    any.steps = 200;
    (void)inter_wan_choose(&p, &l, codecs, 3, &any, &x);
    assert_true(x.interval <= 30);
    l.fragments = 16;
    any.steps = 10000;
    (void)inter_wan_choose(&p, &l, codecs, 3, &any, &x);
    assert_true(x.interval >= 16);
}

// Choices stay within the bounds, also where the bounds lie between the intervals that are tried.
// If no choice is possible, nothing is chosen.
static void test_bounds(void **state) {
    (void)state;
    struct inter_wan_load l = {.params = 10e6, .step_s = 0.05, .fragments = 1, .work = work};
    struct inter_wan_path p = {.bits_s = 20e6, .rtt_s = 0.5, .members = 2, .connections = 2};
    struct inter_wan_choice c = choice(0, -1, -1, 10000, true);
    struct inter_wan_plan x = {0};
    inter_wan_choose(&p, &l, codecs, 3, &c, &x);
    assert_true(x.overlap >= 10);
    c.overlap_below = 10;
    inter_wan_choose(&p, &l, codecs, 3, &c, &x);
    assert_true(x.overlap < 10);
    c = choice(0, -1, -1, 10000, true);
    c.interval_above = 31;
    c.interval_most = 35;
    inter_wan_choose(&p, &l, codecs, 3, &c, &x);
    assert_int_equal(x.interval, 32);
    c = choice(0, 600, -1, 10000, true); // above all intervals that are tried
    inter_wan_choose(&p, &l, codecs, 3, &c, &x);
    assert_true(x.interval == 601 && x.overlap == 600);
    c.interval_most = 600;
    x.interval = 0;
    assert_false(inter_wan_choose(&p, &l, codecs, 3, &c, &x));
    assert_int_equal(x.interval, 0);
    struct inter_wan_codec barred[] = {codecs[0], codecs[1], codecs[2]};
    barred[0].barred = barred[1].barred = true;
    c = choice(0, -1, -1, 10000, true);
    inter_wan_choose(&p, &l, barred, 3, &c, &x);
    assert_int_equal(x.codec, 2);
    barred[2].barred = true;
    x.interval = 0;
    assert_false(inter_wan_choose(&p, &l, barred, 3, &c, &x));
    assert_int_equal(x.interval, 0);
}

// If a round trip is short beside a step, the order of schemes is that of their measured loss
// (configs/COMPARE.md: size small, 1,500 steps, same mix): at equal bytes, sparser and more
// frequent is better.
static void test_schemes_rank_as_measured(void **state) {
    (void)state;
    static const struct inter_wan_codec c[] = {{"int4", 3.1, 0.1, 1, false, EVEN},
                                               {"topk:1024/4096", 1.2, 0.53, 0.25, false, EVEN},
                                               {"topk:512/4096", 0.75, 0.71, 0.125, false, EVEN},
                                               {"topk:256/4096", 0.43, 0.84, 1.0 / 16, false, EVEN},
                                               {"topk:64/4096", 0.18, 0.94, 1.0 / 64, false, EVEN}};
    static const struct inter_wan_work little_work[5] = {
        {1e-4, 1e-4}, {1e-4, 1e-4}, {1e-4, 1e-4}, {1e-4, 1e-4}, {1e-4, 1e-4}};
    static const struct {
        int32_t codec, interval;
    } best_first[] = {{4, 2}, {3, 4}, {2, 8}, {1, 13}, {0, 34}};
    struct inter_wan_path p = {.bits_s = 1e9, .rtt_s = 1e-3, .members = 2, .connections = 2};
    struct inter_wan_load l = {.params = 1.3e6, .step_s = 0.5, .fragments = 1, .work = little_work};
    struct inter_wan_plan x, y;
    for (int anticipates = 0; anticipates < 2; anticipates++) {
        double last = 0;
        // Without anticipation there is no measurement of a sixty-fourth.
        for (size_t i = anticipates ? 0 : 1; i < sizeof best_first / sizeof *best_first; i++) {
            struct inter_wan_choice at =
                choice(best_first[i].interval, 0, best_first[i].codec, 1500, anticipates != 0);
            assert_true(inter_wan_choose(&p, &l, c, 5, &at, &x));
            if (x.cost <= last)
                fail_msg("%s every %d: %g, better than the one before it with %g", c[at.codec].name,
                         at.interval, x.cost, last);
            last = x.cost;
        }
    }
    // At 1,000 times fewer bytes: a sixty-fourth every 6 steps beats an eighth every 25.
    struct inter_wan_choice often = choice(6, 0, 4, 1500, true),
                            rarely = choice(25, 0, 2, 1500, true);
    assert_true(inter_wan_choose(&p, &l, c, 5, &often, &x) &&
                inter_wan_choose(&p, &l, c, 5, &rarely, &y) && x.cost < y.cost);
    // The link has a 250th of the rate that fp32 at every step needs. The choice is sparse updates
    // every few steps. With long round trips it is rare updates.
    struct inter_wan_choice any = choice(0, -1, -1, 1500, true);
    p.bits_s = 32 * l.params / 250 / l.step_s;
    assert_true(inter_wan_choose(&p, &l, c, 5, &any, &x));
    if (!(x.codec >= 2 && x.interval <= 8))
        fail_msg("%s every %d", c[x.codec].name, x.interval);
    l.step_s = 0.02;
    p.bits_s = 32 * l.params / 250 / l.step_s;
    p.rtt_s = 0.2;
    assert_true(inter_wan_choose(&p, &l, c, 5, &any, &y) && y.interval >= 15);
}

// The planner's codecs with bits and errors of a profile.
enum { INT8, INT4, INT2, TOPK1024, TOPK512, TOPK128, TOPK64, FP32, KNOWN };
static const struct inter_wan_codec known[KNOWN] = {
    [INT8] = {"int8", 7.5, 0.007, 1, false, EVEN},
    [INT4] = {"int4", 3.0, 0.157, 1, false, EVEN},
    [INT2] = {"int2", 1.6, 0.448, 1, false, EVEN},
    [TOPK1024] = {"topk:1024/4096", 1.2, 0.53, 0.25, true, EVEN},
    [TOPK512] = {"topk:512/4096", 0.73, 0.71, 0.125, false, EVEN},
    [TOPK128] = {"topk:128/4096", 0.24, 0.88, 1.0 / 32, false, EVEN},
    [TOPK64] = {"topk:64/4096", 0.137, 0.94, 1.0 / 64, false, EVEN},
    [FP32] = {"fp32", 32, 0, 1, true, EVEN}};

// The known cost of a scheme agrees with the runs that it comes from: held-out loss minus that of
// the same optimiser's synchronous run, 1.3 million parameters, two clusters, same mix (November
// 2026; configs/compare). Above H 3 AdamW had beta1 0.9 and warm-up 40 in both runs.
static void test_known_loss(void **state) {
    (void)state;
    static const struct {
        bool muon;
        int32_t codec, interval, overlap;
        int64_t steps;
        double measured;
    } runs[] = {
        {false, TOPK128, 3, 0, 1500, 0.000}, {false, TOPK128, 3, 1, 500, 0.005},
        {false, TOPK128, 3, 1, 1500, 0.010}, {false, TOPK128, 3, 2, 1500, 0.038},
        {false, TOPK64, 4, 0, 1500, 0.036},  {false, TOPK64, 6, 0, 1500, 0.071},
        {false, TOPK512, 8, 0, 1500, 0.077}, {false, INT2, 16, 0, 1500, 0.118},
        {false, INT4, 34, 0, 1500, 0.168},   {true, FP32, 3, 0, 1500, 0.012},
        {true, INT2, 16, 0, 1500, 0.044},    {true, INT2, 50, 0, 1500, 0.112},
        {true, TOPK128, 3, 0, 1500, 0.057},  {true, FP32, 3, 0, 500, 0.007},
        {true, FP32, 15, 0, 500, 0.055},     {true, INT2, 15, 0, 500, 0.062},
        {true, TOPK1024, 13, 0, 500, 0.068}, {true, TOPK512, 8, 0, 500, 0.077},
        {true, TOPK128, 3, 0, 500, 0.100},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct inter_wan_choice c = choice(0, -1, -1, runs[i].steps, true);
        c.muon = runs[i].muon;
        double loss = inter_wan_loss(&known[runs[i].codec], &c, runs[i].interval, runs[i].overlap);
        if (fabs(loss - runs[i].measured) > 0.02)
            fail_msg("%s, %s every %d: %g, not %g", c.muon ? "Muon" : "AdamW",
                     known[runs[i].codec].name, runs[i].interval, loss, runs[i].measured);
    }
    // 0.68 nats are three times the steps. A larger model pays less, but never nothing.
    near(inter_wan_slower(0.68, 1.3e6), 3, 0.01, "nats as time");
    assert_true(inter_wan_slower(0.1, 35e6) < 0.4 * inter_wan_slower(0.1, 1.3e6) + 0.6);
    assert_true(inter_wan_slower(0.1, 1e12) > 1.03);
}

// What a person who knows the table would choose for a path, a model and its steps.
static void test_path_to_plan(void **state) {
    (void)state;
    enum { DENSE = 1 << INT8 | 1 << INT4 | 1 << INT2, SPARSE = 1 << TOPK128 | 1 << TOPK64 };
    static const struct {
        const char *what;
        bool muon;
        double mbit, rtt_ms, params, step_s;
        int codecs;          // those that are right; -1: any
        int32_t least, most; // H
    } rows[] = {
        // AdamW: sparse and frequent, as long as an exchange hides behind a step or two.
        {"a good link", false, 1000, 20, 1.3e6, 0.5, SPARSE, 2, 4},
        {"a good link, short steps", false, 1000, 20, 1.3e6, 0.06, SPARSE, 2, 5},
        {"long round trips", false, 20, 150, 1.3e6, 0.5, SPARSE, 2, 4},
        {"a slow link", false, 2, 200, 1.3e6, 0.5, SPARSE, 2, 4},
        {"124M", false, 100, 80, 124e6, 0.5, SPARSE, 4, 16},
        // A round trip of several steps leaves only long intervals.
        {"round trips of ten steps", false, 20, 150, 1.3e6, 0.06, -1, 16, 50},
        // Muon: dense; H from what the link carries and hides.
        {"a good link", true, 1000, 20, 1.3e6, 0.5, DENSE, 2, 4},
        {"a slow link", true, 2, 200, 1.3e6, 0.5, 1 << INT2, 10, 20},
        {"round trips of five steps", true, 100, 80, 1.3e6, 0.06, 1 << INT2, 16, 30},
        {"124M", true, 1000, 20, 124e6, 0.5, DENSE, 10, 20},
        {"124M", true, 100, 80, 124e6, 0.5, 1 << INT2, 12, 30},
        {"8B", true, 1000, 20, 8e9, 5, DENSE, 20, 75},
        {"8B", true, 100, 80, 8e9, 5, 1 << INT2, 50, 100},
        // Where int2 would need an interval of hundreds of steps, sparse costs less.
        {"124M", true, 20, 150, 124e6, 0.5, SPARSE, 10, 30},
        {"8B", true, 20, 150, 8e9, 5, SPARSE, 30, 75},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct inter_wan_path p = {.bits_s = rows[i].mbit * 1e6,
                                   .rtt_s = rows[i].rtt_ms * 1e-3,
                                   .sync_s = 1e-3,
                                   .members = 2,
                                   .connections = 2};
        struct inter_wan_work each[KNOWN];
        for (int k = 0; k < KNOWN; k++) // an owner's device, or some processors
            each[k] = (struct inter_wan_work){rows[i].params / 5e9, rows[i].params / 2e9};
        struct inter_wan_load l = {
            .params = rows[i].params, .step_s = rows[i].step_s, .fragments = 1, .work = each};
        struct inter_wan_choice c = choice(0, -1, -1, rows[i].params > 1e7 ? 20000 : 1500, true);
        struct inter_wan_plan x;
        c.muon = rows[i].muon;
        bool carried = inter_wan_choose(&p, &l, known, KNOWN, &c, &x);
        if (!carried || !(rows[i].codecs & 1 << x.codec) || x.interval < rows[i].least ||
            x.interval > rows[i].most || x.stall_s > 0.05 * x.interval * l.step_s)
            fail_msg("%s, %s, %g Mbit/s, %g ms: %s every %d, merged %d later",
                     c.muon ? "Muon" : "AdamW", rows[i].what, rows[i].mbit, rows[i].rtt_ms,
                     known[x.codec].name, x.interval, x.overlap);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_loss), cmocka_unit_test(test_path_to_plan),
        cmocka_unit_test(test_exchange),   cmocka_unit_test(test_wan_choice),
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_schemes_rank_as_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
