// SPDX-License-Identifier: Apache-2.0
// inter/outer: members that apply the same commits hold the same bits, and no learned change is
// lost.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "inter/outer/outer.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMBERS = 3, ROWS = 40, COLS = 16, BIG = 20000, N = ROWS * COLS + BIG + 33 };

struct member {
    float theta_m[N];
    uint64_t counts[ROWS];
    struct inter_outer *o;
    struct neb_buf blob;
    struct neb_rng rng;
};

static struct kern_pool *pool;
static struct member members[MEMBERS];

static const uint64_t *counts_of(void *user, int32_t unit) {
    (void)unit;
    return ((struct member *)user)->counts;
}

static float keep, blend; // for the next start()

static void start(int n, float beta, int fragments, bool row_weights) {
    struct inter_outer_config c = {.beta = beta,
                                   .keep = keep,
                                   .blend = blend,
                                   .kappa = 1,
                                   .row_weights = row_weights,
                                   .fragments = fragments};
    for (int i = 0; i < n; i++) {
        struct member *m = &members[i];
        struct neb_rng same = neb_rng_make(1, 1);
        for (int k = 0; k < N; k++)
            m->theta_m[k] = neb_rng_normal(&same);
        m->rng = neb_rng_make(2, (uint64_t)i);
        memset(m->counts, 0, sizeof m->counts);
        struct inter_outer_unit units[] = {
            {ROWS, COLS, true, 0, m->theta_m},
            {2, BIG / 2, false, fragments - 1, m->theta_m + ROWS * COLS},
            {1, 33, false, 0, m->theta_m + ROWS * COLS + BIG}};
        assert_int_equal(inter_outer_create(&c, units, 3, pool, &m->o), NEB_OK);
    }
}

static void stop(int n) {
    for (int i = 0; i < n; i++) {
        inter_outer_destroy(&members[i].o);
        neb_buf_free(&members[i].blob);
    }
}

static void train(struct member *m, float size) { // a heavy-tailed step, and some tokens seen
    for (int k = 0; k < N; k++) {
        float z = neb_rng_normal(&m->rng);
        m->theta_m[k] += size * z * fabsf(z);
    }
    for (int r = 0; r < ROWS; r++)
        m->counts[r] += neb_rng_below(&m->rng, 4) == 0 ? neb_rng_below(&m->rng, 100) : 0;
}

static void apply(int n, int f, unsigned committed, struct inter_outer_round *r,
                  struct kern_digest *d) {
    for (int i = 0; i < n; i++) {
        struct inter_outer_part parts[MEMBERS];
        r->parts = parts;
        r->n = 0;
        for (int k = 0; k < n; k++)
            if (committed & 1u << k)
                parts[r->n++] = (struct inter_outer_part){members[k].blob.p,
                                                          members[k].blob.len,
                                                          1000u * (unsigned)(k + 1),
                                                          1,
                                                          k == i,
                                                          0};
        assert_int_equal(inter_outer_apply(members[i].o, f, r, &d[i]), NEB_OK);
    }
}

static void test_all_members_hold_the_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "bf16", "int8", "int4", "topk:64/4096"};
    for (size_t c = 0; c < sizeof names / sizeof names[0]; c++)
        for (int n = 2; n <= MEMBERS; n++) {
            struct cmp_codec codec;
            struct kern_digest d[MEMBERS], last = {0, 0};
            struct inter_outer_round r = {.eta = 0.9f, .mu = 0.6f};
            assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
            start(n, 1, 2, c % 2);
            for (int round = 0; round < 8; round++) {
                int f = round % 2;
                for (int i = 0; i < n; i++) {
                    train(&members[i], 0.01f);
                    assert_int_equal(inter_outer_encode(members[i].o, f, &codec, counts_of,
                                                        &members[i], &members[i].blob),
                                     NEB_OK);
                    train(&members[i], 0.001f); // steps while the update is in flight
                }
                r.merge = round == 6;
                apply(n, f, (1u << n) - 1u, &r, d);
                for (int i = 1; i < n; i++)
                    assert_true(d[i].lo == d[0].lo && d[i].hi == d[0].hi);
                assert_true(d[0].lo != last.lo);
                last = d[0];
            }
            struct kern_digest whole = inter_outer_digest(members[0].o);
            for (int i = 1; i < n; i++) {
                struct kern_digest other = inter_outer_digest(members[i].o);
                assert_true(other.lo == whole.lo && other.hi == whole.hi);
            }
            stop(n);
        }
}

static void test_late_update_is_not_lost(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d[MEMBERS];
    struct inter_outer_round r = {.eta = 1, .mu = 0};
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    assert_int_equal(cmp_codec_parse("fp32", &codec), NEB_OK);
    start(2, 1, 1, false);
    // Member 1 moves element 5 by exactly 8, but its update misses the commit.
    members[1].theta_m[5] += 8;
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i], &members[i].blob),
            NEB_OK);
    float before = members[0].theta_m[5];
    apply(2, 0, 1, &r, d);
    inter_outer_arrays(members[1].o, a);
    assert_true(a[2].p[5] == before - (before + 8)); // e = u = Δ
    assert_true(a[0].p[5] == before && members[1].theta_m[5] == before);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i], &members[i].blob),
            NEB_OK);
    apply(2, 0, 3, &r, d); // weights 1/3 and 2/3
    assert_true(fabsf(a[0].p[5] - (before + 16.0f / 3)) < 1e-5f);
    assert_true(a[2].p[5] == 0);
    stop(2);
}

static void test_error_feedback_loses_nothing(void **state) {
    (void)state;
    // One member, η 1, μ 0: θ moves by the decoded update. After many rounds of a coarse codec, θ
    // plus the residual is the result of an exact codec.
    struct cmp_codec codec;
    struct kern_digest d;
    struct inter_outer_round r = {.eta = 1, .mu = 0};
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    static double exact[N];
    assert_int_equal(cmp_codec_parse("topk:64/4096", &codec), NEB_OK);
    start(1, 1, 1, false);
    inter_outer_arrays(members[0].o, a);
    for (int k = 0; k < N; k++)
        exact[k] = (double)members[0].theta_m[k];
    for (int round = 0; round < 20; round++) {
        float before[N];
        memcpy(before, members[0].theta_m, sizeof before);
        train(&members[0], 0.01f);
        for (int k = 0; k < N; k++)
            exact[k] += (double)members[0].theta_m[k] - (double)before[k];
        assert_int_equal(
            inter_outer_encode(members[0].o, 0, &codec, counts_of, &members[0], &members[0].blob),
            NEB_OK);
        apply(1, 0, 1, &r, &d);
    }
    double worst = 0, moved = 0;
    for (int k = 0; k < N; k++) {
        worst = fmax(worst, fabs((double)a[0].p[k] - (double)a[2].p[k] - exact[k]));
        moved = fmax(moved, fabs((double)a[2].p[k]));
    }
    if (!(worst < 1e-5 && moved > 0.01))
        fail_msg("worst %g, moved %g", worst, moved);
    stop(1);
}

// Any share of the residual is kept in θ_m, and updates are committed, late or refused. θ plus the
// residual (with blend: θ_m plus the residual) is still the result of an exact codec. At the end
// θ_m is θ.
static void kept(float share, float alpha) {
    struct cmp_codec codec;
    struct kern_digest d[MEMBERS];
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    struct inter_outer_round r = {.eta = 1, .mu = 0};
    static double exact[N];
    keep = share;
    blend = alpha;
    assert_int_equal(cmp_codec_parse("topk:64/4096", &codec), NEB_OK);
    start(2, 1, 1, false);
    keep = blend = 0;
    struct member *m = &members[1];
    inter_outer_arrays(m->o, a);
    for (int k = 0; k < N; k++)
        exact[k] = (double)m->theta_m[k];
    for (int round = 0; round < 24; round++) {
        float before[N];
        memcpy(before, m->theta_m, sizeof before);
        train(m, 0.01f);
        for (int k = 0; k < N; k++)
            exact[k] += (double)m->theta_m[k] - (double)before[k];
        for (int i = 0; i < 2; i++) // member 0 learns nothing
            for (int again = 0; again < 1 + (round % 5 == 4); again++)
                assert_int_equal(inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i],
                                                    &members[i].blob),
                                 NEB_OK);
        if (round % 6 == 1)
            inter_outer_skip(m->o, 0, &d[1]);
        else if (round % 6 != 4)
            apply(2, 0, 2, &r, d); // member 1 has all weight
        if (round % 6 == 1)
            inter_outer_skip(members[0].o, 0, &d[0]);
        if (round % 6 == 4) // member 0 was late: its update alone
            apply(2, 0, 1, &r, d);
        if (round == 10) // without an update of its own in flight
            apply(2, 0, 1, &r, d);
    }
    double worst = 0, off = 0, left = 0;
    for (int k = 0; k < N; k++) {
        double unsent = (double)a[2].p[k];
        double mine = (double)m->theta_m[k], theta = (double)a[0].p[k];
        worst = fmax(worst, fabs((alpha > 0 ? mine : theta) - unsent - exact[k]));
        off = fmax(off, alpha > 0 ? 0 : fabs(mine + (double)share * unsent - theta));
        left = fmax(left, fabs(unsent));
    }
    if (!(worst < 2e-5 && off < 2e-5 && left > 0.01))
        fail_msg("%g kept: worst %g, parameters off by %g, residual up to %g", (double)share, worst,
                 off, left);
    inter_outer_finish(m->o, 0);
    assert_memory_equal(m->theta_m, a[0].p, sizeof m->theta_m);
    stop(2);
}

static void test_kept_residual(void **state) {
    (void)state;
    const float shares[] = {0, 0.5f, 1};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++)
        kept(shares[i], 0);
    kept(0, 0.25f);
}

static void test_blend(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d[MEMBERS];
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    struct inter_outer_round r = {.eta = 0.8f, .mu = 0.5f};
    assert_int_equal(cmp_codec_parse("topk:64/4096", &codec), NEB_OK);
    blend = 0.25f;
    start(2, 1, 1, true);
    blend = 0;
    inter_outer_arrays(members[1].o, a);
    for (int round = 0; round < 12; round++) {
        static float mine[N];
        for (int i = 0; i < 2; i++) {
            train(&members[i], 0.01f);
            assert_int_equal(inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i],
                                                &members[i].blob),
                             NEB_OK);
        }
        for (int i = 0; i < 2; i++)
            train(&members[i], 0.001f); // steps while the update is in flight
        memcpy(mine, members[1].theta_m, sizeof mine);
        apply(2, 0, 3, &r, d);
        assert_true(d[0].lo == d[1].lo && d[0].hi == d[1].hi);
        for (int k = 0; k < N; k++)
            assert_true(fabsf(members[1].theta_m[k] - (0.25f * mine[k] + 0.75f * a[0].p[k])) <
                        1e-6f * (1 + fabsf(mine[k])));
    }
    stop(2);
}

static void test_rows_follow_who_saw_them(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d[MEMBERS];
    struct inter_outer_round r = {.eta = 1, .mu = 0};
    assert_int_equal(cmp_codec_parse("fp32", &codec), NEB_OK);
    start(2, 1, 1, true);
    float before = members[0].theta_m[COLS * 3], other = members[0].theta_m[COLS * 4];
    members[0].counts[3] = 9999; // only member 0 saw row 3; nobody saw row 4
    members[0].theta_m[COLS * 3] += 1;
    members[0].theta_m[COLS * 4] += 3;
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i], &members[i].blob),
            NEB_OK);
    apply(2, 0, 3, &r, d);
    assert_true(fabsf(members[1].theta_m[COLS * 3] - before - 1) < 1e-3f);
    // in proportion to its share: a third of 3
    assert_true(fabsf(members[1].theta_m[COLS * 4] - other - 1) < 1e-3f);
    stop(2);
}

// A member is back after nine intervals. Its update has a weight, and counts as one of two in every
// row.
static void test_a_returner_counts_as_its_weight(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d;
    const int tail = N - 1; // an element of a unit without row weights
    assert_int_equal(cmp_codec_parse("fp32", &codec), NEB_OK);
    for (int weighed = 0; weighed < 2; weighed++) {
        start(2, 1, 1, true);
        float row = members[0].theta_m[COLS * 3], flat = members[0].theta_m[tail];
        members[0].counts[3] = 100;
        members[1].counts[3] = 900;
        members[1].theta_m[COLS * 3] += 2;
        members[1].theta_m[tail] += 2;
        for (int i = 0; i < 2; i++)
            assert_int_equal(inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i],
                                                &members[i].blob),
                             NEB_OK);
        struct inter_outer_part parts[2] = {
            {members[0].blob.p, members[0].blob.len, .tokens = 1000, .clip = 1, .mine = true},
            {members[1].blob.p, members[1].blob.len, .tokens = 9000, .clip = 1,
             .weight = weighed ? 1000 : 0}};
        struct inter_outer_round r = {.parts = parts, .n = 2, .eta = 1, .merge = true};
        assert_int_equal(inter_outer_apply(members[0].o, 0, &r, &d), NEB_OK);
        float share = weighed ? 0.5f : 0.9f;
        assert_true(fabsf(members[0].theta_m[tail] - flat - 2 * share) < 1e-5f);
        // Row counts are quantised logarithmically.
        assert_true(fabsf(members[0].theta_m[COLS * 3] - row - 2 * share) < 0.05f);
        stop(2);
    }
}

// A merge round moves θ by η/√(1 − μ) times the mean. v stays if others went on during the absence,
// so that the returning update has less weight than tokens; otherwise it is 0.
static void test_a_merge_round(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d;
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    static float theta[N], v[N], delta[N];
    assert_int_equal(cmp_codec_parse("fp32", &codec), NEB_OK);
    for (int went_on = 0; went_on < 2; went_on++) {
        start(1, 1, 1, false);
        inter_outer_arrays(members[0].o, a);
        for (int round = 0; round < 3; round++) {
            train(&members[0], 0.1f);
            memcpy(theta, a[0].p, sizeof theta);
            memcpy(v, a[1].p, sizeof v);
            for (int k = 0; k < N; k++)
                delta[k] = theta[k] - members[0].theta_m[k];
            assert_int_equal(inter_outer_encode(members[0].o, 0, &codec, counts_of, &members[0],
                                                &members[0].blob),
                             NEB_OK);
            const struct inter_outer_part part = {.blob = members[0].blob.p,
                                                  .len = members[0].blob.len,
                                                  .tokens = 1000,
                                                  .clip = 1,
                                                  .mine = true,
                                                  .weight = went_on ? 500 : 1000};
            const struct inter_outer_round r = {
                .parts = &part, .n = 1, .eta = 0.9f, .mu = 0.64f, .merge = round == 2};
            assert_int_equal(inter_outer_apply(members[0].o, 0, &r, &d), NEB_OK);
        }
        for (int k = 0; k < N; k++) {
            assert_true(v[k] != 0 || delta[k] == 0);
            assert_true(a[1].p[k] == (went_on ? v[k] : 0));
            assert_true(fabsf(a[0].p[k] - (theta[k] - 1.5f * delta[k])) < 1e-5f);
        }
        stop(1);
    }
}

// Without any tokens all members count the same, as if all had seen the same number.
static void test_no_tokens(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d[2];
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    for (int rows = 0; rows < 2; rows++) {
        for (uint64_t tokens = 0; tokens < 2; tokens++) {
            start(2, 1, 1, rows);
            for (int i = 0; i < 2; i++) {
                train(&members[i], 0.01f);
                memset(members[i].counts, 0, sizeof members[i].counts);
                assert_int_equal(inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i],
                                                    &members[i].blob),
                                 NEB_OK);
            }
            struct inter_outer_part parts[2] = {
                {members[0].blob.p, members[0].blob.len, 7 * tokens, 1, true, 0},
                {members[1].blob.p, members[1].blob.len, 7 * tokens, 1, false, 0}};
            struct inter_outer_round r = {.parts = parts, .n = 2, .eta = 0.9f, .mu = 0.6f};
            assert_int_equal(inter_outer_apply(members[0].o, 0, &r, &d[tokens]), NEB_OK);
            stop(2);
        }
        assert_true(d[0].lo == d[1].lo && d[0].hi == d[1].hi);
    }
}

static void test_bad_commit_changes_nothing(void **state) {
    (void)state;
    struct cmp_codec codec;
    struct kern_digest d;
    struct inter_outer_round r = {.eta = 1, .mu = 0};
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    start(2, 1, 1, true);
    for (int i = 0; i < 2; i++) {
        train(&members[i], 0.01f);
        assert_int_equal(
            inter_outer_encode(members[i].o, 0, &codec, counts_of, &members[i], &members[i].blob),
            NEB_OK);
    }
    struct kern_digest before = inter_outer_digest(members[0].o);
    static float theta_m[N];
    memcpy(theta_m, members[0].theta_m, sizeof theta_m);
    neb_log_set_sink(testing_drop, NULL);
    for (size_t cut = 0; cut < members[1].blob.len; cut += members[1].blob.len / 37 + 1) {
        struct inter_outer_part parts[2] = {{members[0].blob.p, members[0].blob.len, 5, 1, true, 0},
                                            {members[1].blob.p, cut, 5, 1, false, 0}};
        r.parts = parts, r.n = 2;
        assert_int_equal(inter_outer_apply(members[0].o, 0, &r, &d), NEB_ERR_FORMAT);
    }
    struct inter_outer_part none[1] = {{members[0].blob.p, members[0].blob.len, 1, NAN, true, 0}};
    r.parts = none, r.n = 1;
    assert_int_equal(inter_outer_apply(members[0].o, 0, &r, &d), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    struct kern_digest after = inter_outer_digest(members[0].o);
    assert_true(after.lo == before.lo && inter_outer_in_flight(members[0].o, 0));
    assert_memory_equal(theta_m, members[0].theta_m, sizeof theta_m);
    stop(2);
}

static int set_up(void **state) {
    (void)state;
    return kern_pool_create(2, &pool) == NEB_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    kern_pool_destroy(&pool);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_members_hold_the_same_bits),
        cmocka_unit_test(test_late_update_is_not_lost),
        cmocka_unit_test(test_error_feedback_loses_nothing),
        cmocka_unit_test(test_kept_residual),
        cmocka_unit_test(test_blend),
        cmocka_unit_test(test_rows_follow_who_saw_them),
        cmocka_unit_test(test_a_returner_counts_as_its_weight),
        cmocka_unit_test(test_a_merge_round),
        cmocka_unit_test(test_no_tokens),
        cmocka_unit_test(test_bad_commit_changes_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
