// SPDX-License-Identifier: Apache-2.0
// Differential privacy of masked updates (inter/outer/noise.c): no update is longer than the bound;
// the noise that colluders do not know is what the job asks for; a repeated run sends the same
// bytes; the residual never holds the noise.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "inter/outer/outer.h"
#include "security/privacy.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 5, ROWS = 60, COLS = 200, SMALL = 37, N = ROWS * COLS + SMALL, FRAGMENTS = 2 };
static const float clip = 0.5f;
struct member {
    float theta_m[FRAGMENTS * N];
    struct sec_sum *sum;
    struct inter_outer *o;
    struct neb_buf blob;
};
static struct member members[MAX];
static uint8_t n_members;
static struct sec_privacy plan;
static struct sec_privacy_config wish;
static struct kern_pool *pool;
static uint8_t secrets[MAX][32], publics[MAX][32];
static const uint8_t job[SEC_SUM_JOB_BYTES] = {3};
static int16_t sent[N], integers[N], noise[N];

static float scale_of(void) { return clip / (float)plan.bound; }

static void open_outer(struct member *m) {
    struct inter_outer_unit units[2 * FRAGMENTS];
    for (int f = 0; f < FRAGMENTS; f++) {
        units[2 * f] = (struct inter_outer_unit){ROWS, COLS, false, f, m->theta_m + (size_t)f * N};
        units[2 * f + 1] =
            (struct inter_outer_unit){1, SMALL, false, f, m->theta_m + (size_t)f * N + ROWS * COLS};
    }
    struct inter_outer_config c = {.beta = 1,
                                   .kappa = 1,
                                   .fragments = FRAGMENTS,
                                   .sum = m->sum,
                                   .sum_members = n_members,
                                   .sum_scale = scale_of(),
                                   .sum_squared = plan.squared,
                                   .sum_variance = plan.variance};
    assert_int_equal(inter_outer_create(&c, units, 2 * FRAGMENTS, pool, &m->o), NEB_OK);
}

static void start_with(uint8_t n, uint8_t colluders, double z, bool own_key) {
    uint8_t least = n == 3 || colluders + 2 == n ? n : (uint8_t)(n - 1);
    n_members = n;
    wish = (struct sec_privacy_config){n, least, colluders, z, FRAGMENTS};
    assert_true(sec_privacy_plan(&wish, &plan));
    for (uint8_t k = 0; k < n; k++) {
        uint8_t keys[MAX][SEC_SUM_KEY_BYTES] = {{0}};
        struct member *m = &members[k];
        *m = (struct member){0};
        for (uint8_t j = 0; j < n; j++)
            if (j != k)
                assert_int_equal(sec_sum_pair_key(secrets[k], publics[k], publics[j], job, keys[j]),
                                 NEB_OK);
        if (own_key)
            sec_sum_own_key(secrets[k], job, keys[k]);
        assert_int_equal(sec_sum_create(n, k, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, &m->sum),
                         NEB_OK);
        open_outer(m);
    }
}
static void start(uint8_t n, uint8_t colluders, double z) { start_with(n, colluders, z, true); }
static void stop(void) {
    for (int k = 0; k < n_members; k++) {
        inter_outer_destroy(&members[k].o);
        sec_sum_destroy(&members[k].sum);
        neb_buf_free(&members[k].blob);
    }
}

static void encode(struct member *m, int32_t f, uint32_t round) {
    assert_int_equal(inter_outer_encode_masked(m->o, f, round, &m->blob), NEB_OK);
}

// Reads a member's own update: the integers as sent, the integers without noise, and the noise.
static void open_own(const struct member *m) {
    struct sec_sum_head h;
    const uint8_t *body;
    assert_int_equal(sec_sum_open(m->blob.p, m->blob.len, &h, &body), NEB_OK);
    assert_int_equal(h.count, N);
    sec_sum_take_off(m->sum, &h, body, 0, N, sent);
    memcpy(integers, sent, sizeof integers);
    sec_sum_noise(m->sum, &h, plan.variance, 0, N, true, integers);
    for (int i = 0; i < N; i++)
        noise[i] = (int16_t)(uint16_t)((uint16_t)sent[i] - (uint16_t)integers[i]);
}

static uint64_t squares(const int16_t *q) {
    uint64_t all = 0;
    for (int i = 0; i < N; i++)
        all += (uint64_t)((int32_t)q[i] * q[i]);
    return all;
}
static double variance_of(const int16_t *x) {
    double all = 0;
    for (int i = 0; i < N; i++)
        all += (double)x[i] * x[i];
    return all / N;
}

static float value_of(int kind, int i, struct neb_rng *rng) {
    float s = scale_of();
    switch (kind) {
    case 0: return neb_rng_normal(rng);  // much too long, of similar size everywhere
    case 1: return i == 77 ? -1e30f : 0; // one element
    case 2: return 0.5f * s;             // rounding lengthens this most
    case 3: return (i % 2 ? 0.499f : -0.501f) * s;
    case 4: return i < ROWS * COLS ? 0 : 3e10f; // all in the small tensor
    case 5: return (float)(plan.bound - 1) * s * (i % 1000 ? 0 : 1);
    case 6: return neb_rng_normal(rng) * 1e-30f;
    default: return i % 3 ? 40 * s : -1e-3f * s;
    }
}

// For any update, the integers of a fragment are not longer than its share of the bound, over both
// tensors. If there is more to send, they are not much shorter.
static void test_length(void **state) {
    (void)state;
    const double noises[] = {0.3, 1, 5, 40};
    for (size_t z = 0; z < sizeof noises / sizeof *noises; z++)
        for (int kind = 0; kind < 8; kind++) {
            struct neb_rng rng = neb_rng_make(8, (uint64_t)kind);
            start(kind % 2 ? 4 : 3, 1, noises[z]);
            struct member *m = &members[1];
            double length2 = 0;
            for (int i = 0; i < N; i++) {
                float v = value_of(kind, i, &rng);
                m->theta_m[i] -= v;
                length2 += (double)v * (double)v / scale_of() / scale_of();
            }
            encode(m, 0, 3);
            open_own(m);
            uint64_t is = squares(integers);
            assert_true(is <= plan.squared);
            if (kind != 1 && kind != 4 && length2 > 4.0 * plan.bound * plan.bound)
                assert_true((double)is > 0.9 * (double)plan.squared - 200);
            stop();
        }
}

// Values smaller than an integer are sent too, on average, so nothing waits for ever.
static void test_small_ones_are_sent(void **state) {
    (void)state;
    start(3, 1, 1);
    struct member *m = &members[0];
    float v = 0.3f * scale_of();
    int64_t all = 0;
    for (int i = 0; i < N; i++)
        m->theta_m[i] -= i % 2 ? v : -v;
    encode(m, 0, 0);
    open_own(m);
    for (int i = 0; i < N; i++) {
        assert_true(integers[i] == 0 || integers[i] == (i % 2 ? 1 : -1));
        all += i % 2 ? integers[i] : -integers[i];
    }
    double expected = 0.3 * N, error = sqrt(N * 0.3 * 0.7);
    assert_true(fabs((double)all - expected) < 5 * error);
    stop();
}

static enum neb_status apply(struct member *m, int32_t f, uint16_t set,
                             const struct sec_sum_seeds *seeds, struct kern_digest *d) {
    struct inter_outer_part parts[MAX];
    struct inter_outer_round r = {.parts = parts, .eta = 1, .seeds = seeds};
    for (int k = 0; k < n_members; k++)
        if (set >> k & 1)
            parts[r.n++] = (struct inter_outer_part){
                members[k].blob.p, members[k].blob.len, 100, 1, &members[k] == m, 0};
    return inter_outer_apply(m->o, f, &r, d);
}

static void seeds_of(uint16_t set, struct sec_sum_seeds *seeds, const uint8_t **bodies) {
    struct sec_sum_head heads[NEB_MEMBERS_MAX];
    struct sec_sum_reveal reveals[NEB_MEMBERS_MAX];
    for (int k = 0; k < n_members; k++)
        assert_int_equal(
            sec_sum_open(members[k].blob.p, members[k].blob.len, &heads[k], &bodies[k]), NEB_OK);
    for (int k = 0; k < n_members; k++)
        assert_int_equal(sec_sum_reveal(members[k].sum, mset_from_bits(set), heads, &reveals[k]),
                         NEB_OK);
    assert_int_equal(
        sec_sum_gather(n_members, mset_from_bits(set), heads, reveals, mset_from_bits(set), seeds),
        NEB_OK);
}

// The sum of the smallest set, without the noise of its colluders, varies by no less than the job
// asks for.
static void left_of_the_noise(uint8_t n, uint8_t colluders, double z) {
    static int16_t sum[N];
    struct sec_sum_seeds seeds;
    const uint8_t *bodies[NEB_MEMBERS_MAX];
    start(n, colluders, z);
    uint16_t set = (uint16_t)((1u << n) - 1);
    if (wish.least < n)
        set &= (uint16_t) ~(1u << 1);
    for (int k = 0; k < n; k++) // nothing was learned, so the sum is only noise
        encode(&members[k], 0, 5);
    seeds_of(set, &seeds, bodies);
    assert_int_equal(sec_sum_unmask(&seeds, bodies, 0, N, sum), NEB_OK);
    uint8_t told = 0;
    for (int k = 0; k < n && told < colluders; k++)
        if (set >> k & 1) {
            open_own(&members[k]);
            for (int i = 0; i < N; i++)
                sum[i] = (int16_t)(sum[i] - noise[i]);
            told++;
        }
    double asked = z * plan.bound, is = variance_of(sum);
    assert_true(is >= asked * asked * (1 - 5 * sqrt(2.0 / N)));
    assert_true(is <= (double)(wish.least - colluders) * plan.variance * (1 + 5 * sqrt(2.0 / N)));
    stop();
}
static void test_noise_that_is_left(void **state) {
    (void)state;
    left_of_the_noise(3, 1, 1);
    left_of_the_noise(4, 1, 3);
    left_of_the_noise(5, 1, 0.5);
    left_of_the_noise(5, 2, 1);
    left_of_the_noise(5, 3, 1);
}

// A run that is repeated from a checkpoint sends the same bytes. Another round, fragment or update
// has other noise.
static void test_repeated(void **state) {
    (void)state;
    static int16_t first[N];
    struct neb_buf before = {0};
    struct neb_rng rng = neb_rng_make(1, 1);
    start(3, 1, 2);
    struct member *m = &members[2];
    for (int i = 0; i < N; i++)
        m->theta_m[i] -= 0.01f * neb_rng_normal(&rng);
    encode(m, 0, 4);
    neb_buf_add(&before, m->blob.p, m->blob.len);
    open_own(m);
    memcpy(first, noise, sizeof first);
    assert_true(variance_of(first) > 0.9 * plan.variance);
    for (int turn = 0; turn < 4; turn++) {
        static float theta_m[FRAGMENTS * N];
        memcpy(theta_m, m->theta_m, sizeof theta_m);
        inter_outer_destroy(&m->o);
        memset(m->theta_m, 0, sizeof m->theta_m);
        open_outer(m);
        memcpy(m->theta_m, theta_m, sizeof theta_m);
        if (turn == 3) {
            m->theta_m[5] -= 1; // the member has learned more since
            memcpy(m->theta_m + N, m->theta_m, N * sizeof(float));
        }
        encode(m, turn == 2, turn == 1 ? 5 : 4);
        if (turn == 0) {
            assert_int_equal(m->blob.len, before.len);
            assert_memory_equal(m->blob.p, before.p, before.len);
            memcpy(m->theta_m + N, m->theta_m,
                   N * sizeof(float)); // the other fragment holds the same
            continue;
        }
        open_own(m);
        double both = 0;
        for (int i = 0; i < N; i++)
            both += (double)noise[i] * first[i] / plan.variance;
        assert_true(fabs(both) < 6 * sqrt(N));
    }
    neb_buf_free(&before);
    stop();
}

// Rounds of training: later updates carry what was clipped, but never a member's noise. All members
// compute the same bits.
static void test_residual(void **state) {
    (void)state;
    static float u[N], theta[N];
    struct sec_sum_seeds seeds;
    const uint8_t *bodies[NEB_MEMBERS_MAX];
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    struct neb_rng rng = neb_rng_make(2, 9);
    start(4, 1, 1);
    for (uint32_t round = 0; round < 6; round++) {
        uint16_t set = round % 2 ? 0xf : 0xd;
        struct kern_digest d[MAX];
        for (int k = 0; k < n_members; k++) {
            for (int i = 0; i < N; i++)
                members[k].theta_m[i] += 0.02f * neb_rng_normal(&rng);
            encode(&members[k], 0, round);
        }
        inter_outer_arrays(members[0].o, a);
        memcpy(u, a[2].p, sizeof u);
        memcpy(theta, a[0].p, sizeof theta);
        open_own(&members[0]);
        seeds_of(set, &seeds, bodies);
        for (int k = 0; k < n_members; k++) {
            assert_int_equal(apply(&members[k], 0, set, &seeds, &d[k]), NEB_OK);
            assert_true(d[k].lo == d[0].lo && d[k].hi == d[0].hi);
        }
        double moved = 0;
        for (int i = 0; i < N; i++) {
            assert_true(a[2].p[i] == u[i] - (float)integers[i] * scale_of());
            moved += pow((double)(a[0].p[i] - theta[i]), 2);
        }
        // θ moves by the mean of the noises, which is large beside what was learned.
        double of_noise = N * (double)plan.variance / __builtin_popcount(set) * (double)scale_of() *
                          (double)scale_of();
        assert_true(moved > 0.8 * of_noise && moved < 1.3 * of_noise);
    }
    stop();
}

// An observer knows a member's update, and colludes with one of three members. It projects the sum
// on that update. The result with the update and the result without it differ by 1 / z deviations.
// ε allows this.
static double seen_along(uint32_t round, bool present) {
    static int16_t sum[N];
    struct sec_sum_seeds seeds;
    const uint8_t *bodies[NEB_MEMBERS_MAX];
    double along = 0;
    for (int k = 0; k < n_members; k++) {
        struct member *m = &members[k];
        inter_outer_reject(m->o, 0);
        for (int i = 0; k == 1 && present && i < SMALL; i++)
            m->theta_m[ROWS * COLS + i] -= (i % 2 ? 7 : -7) * clip; // much longer than allowed
        encode(m, 0, round);
    }
    seeds_of(7, &seeds, bodies);
    assert_int_equal(sec_sum_unmask(&seeds, bodies, ROWS * COLS, SMALL, sum), NEB_OK);
    open_own(&members[0]);
    for (int i = 0; i < SMALL; i++)
        along += (i % 2 ? 1 : -1) * (sum[i] - noise[ROWS * COLS + i]);
    return along / sqrt(SMALL);
}
static void test_what_an_observer_sees(void **state) {
    (void)state;
    enum { TURNS = 150 };
    const double z = 0.7;
    double mean[2] = {0, 0}, square[2] = {0, 0}, root = sqrt(TURNS);
    start(3, 1, z);
    for (uint32_t i = 0; i < 2 * TURNS; i++) {
        double x = seen_along(i, i & 1);
        mean[i & 1] += x / TURNS;
        square[i & 1] += x * x / TURNS;
    }
    double length = sqrt((double)plan.squared), deviation = sqrt(square[0] - mean[0] * mean[0]);
    assert_true(fabs(mean[0]) < 5 * deviation / root);
    assert_true(fabs(mean[1] - mean[0] - length) < 0.05 * length + 7 * deviation / root);
    assert_true(deviation > z * plan.bound * (1 - 5 / sqrt(2 * TURNS)));
    assert_true(fabs(sqrt(square[1] - mean[1] * mean[1]) / deviation - 1) < 5 / root);
    stop();
}

static void test_refused(void **state) {
    (void)state;
    start_with(3, 1, 1, false);
    assert_int_equal(inter_outer_encode_masked(members[0].o, 0, 0, &members[0].blob),
                     NEB_ERR_INVALID); // without an own key the others would know its noise
    stop();
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        start(3, 1, 1);
        members[0].theta_m[N - 1] = bad[i];
        assert_int_equal(inter_outer_encode_masked(members[0].o, 0, 0, &members[0].blob),
                         NEB_ERR_INVALID);
        stop();
    }
}

static int setup(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    testing_key_pairs(MAX, secrets, publics);
    return kern_pool_create(2, &pool) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    kern_pool_destroy(&pool);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_length),
                                       cmocka_unit_test(test_small_ones_are_sent),
                                       cmocka_unit_test(test_noise_that_is_left),
                                       cmocka_unit_test(test_repeated),
                                       cmocka_unit_test(test_residual),
                                       cmocka_unit_test(test_what_an_observer_sees),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
