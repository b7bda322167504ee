// SPDX-License-Identifier: Apache-2.0
// inter/outer with masked updates: the result equals, bit for bit, that of a plain sum of the same
// integers. The part that an update could not hold stays in the residual.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "inter/outer/outer.h"
#include "kernels/exact.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMBERS = 4, ROWS = 70, COLS = 100, SMALL = 37, N = ROWS * COLS + SMALL };
static const float scale = 0.001f, eta = 0.9f, mu = 0.6f;
struct member {
    float theta_m[N];
    struct sec_sum *sum;
    struct inter_outer *o;
    struct neb_buf blob;
};
static struct member members[MEMBERS];
static struct kern_pool *pool;
static uint8_t secrets[MEMBERS][32], publics[MEMBERS][32];
static const uint8_t job[SEC_SUM_JOB_BYTES] = {3};

static void open_outer(struct member *m) {
    struct inter_outer_unit units[2] = {{ROWS, COLS, false, 0, m->theta_m},
                                        {1, SMALL, false, 0, m->theta_m + ROWS * COLS}};
    struct inter_outer_config c = {.beta = 1,
                                   .kappa = 1,
                                   .fragments = 1,
                                   .sum = m->sum,
                                   .sum_members = MEMBERS,
                                   .sum_scale = scale};
    assert_int_equal(inter_outer_create(&c, units, 2, pool, &m->o), NEB_OK);
}

static int set_up(void **state) {
    (void)state;
    for (uint8_t k = 0; k < MEMBERS; k++) {
        uint8_t keys[MEMBERS][SEC_SUM_KEY_BYTES] = {{0}};
        struct member *m = &members[k];
        *m = (struct member){0};
        for (int i = 0; i < N; i++)
            m->theta_m[i] = 0.01f * (float)(i % 97);
        for (uint8_t j = 0; j < MEMBERS; j++)
            if (j != k)
                assert_int_equal(sec_sum_pair_key(secrets[k], publics[k], publics[j], job, keys[j]),
                                 NEB_OK);
        assert_int_equal(
            sec_sum_create(MEMBERS, k, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, &m->sum), NEB_OK);
        open_outer(m);
    }
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    for (int k = 0; k < MEMBERS; k++) {
        inter_outer_destroy(&members[k].o);
        sec_sum_destroy(&members[k].sum);
        neb_buf_free(&members[k].blob);
    }
    return 0;
}

static void seeds_of(uint16_t set, struct sec_sum_seeds *seeds) {
    struct sec_sum_head heads[NEB_MEMBERS_MAX];
    struct sec_sum_reveal reveals[NEB_MEMBERS_MAX];
    const uint8_t *body;
    for (int k = 0; k < MEMBERS; k++)
        assert_int_equal(sec_sum_open(members[k].blob.p, members[k].blob.len, &heads[k], &body),
                         NEB_OK);
    for (int k = 0; k < MEMBERS; k++)
        assert_int_equal(sec_sum_reveal(members[k].sum, mset_from_bits(set), heads, &reveals[k]),
                         NEB_OK);
    assert_int_equal(
        sec_sum_gather(MEMBERS, mset_from_bits(set), heads, reveals, mset_from_bits(set), seeds),
        NEB_OK);
}

static enum neb_status apply(struct member *m, uint16_t set, const struct sec_sum_seeds *seeds,
                             struct kern_digest *d) {
    struct inter_outer_part parts[MEMBERS];
    struct inter_outer_round r = {.parts = parts, .eta = eta, .mu = mu, .seeds = seeds};
    for (int k = 0; k < MEMBERS; k++)
        if (set >> k & 1)
            parts[r.n++] = (struct inter_outer_part){
                members[k].blob.p, members[k].blob.len, 100, 1, &members[k] == m, 0};
    return inter_outer_apply(m->o, 0, &r, d);
}

// Several rounds, with θ, v and the residuals computed here from plain integers.
static void test_bits_of_the_plain_sum(void **state) {
    (void)state;
    static float theta[N], v[N], delta[N], u[MEMBERS][N], e[MEMBERS][N], part[N];
    static int16_t q[MEMBERS][N];
    struct neb_rng rng = neb_rng_make(4, 4);
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    memcpy(theta, members[0].theta_m, sizeof theta);
    memset(v, 0, sizeof v);
    memset(e, 0, sizeof e);
    for (uint32_t round = 0; round < 12; round++) {
        uint16_t set = round % 3 == 1 ? 0xb : round % 3 == 2 ? 0xe : 0xf;
        struct sec_sum_seeds seeds;
        struct kern_digest d[MEMBERS];
        int n = __builtin_popcount(set);
        for (int k = 0; k < MEMBERS; k++) {
            struct member *m = &members[k];
            for (int i = 0; i < N; i++) // every 50th moves further than an update can hold
                m->theta_m[i] += neb_rng_normal(&rng) * (i % 50 ? 0.2f : 6.0f);
            memcpy(u[k], e[k], sizeof u[k]);
            kern_exact_pseudo_gradient(u[k], theta, m->theta_m, 1, N);
            sec_sum_quantise(u[k], N, scale, MEMBERS, q[k]);
            assert_int_equal(inter_outer_encode_masked(m->o, 0, round, &m->blob), NEB_OK);
        }
        seeds_of(set, &seeds);
        memset(delta, 0, sizeof delta);
        for (int i = 0; i < N; i++) {
            int32_t sum = 0;
            for (int k = 0; k < MEMBERS; k++)
                sum += set >> k & 1 ? q[k][i] : 0;
            part[i] = (float)sum;
        }
        kern_exact_add_scaled(delta, part, scale / (float)n, N);
        kern_exact_outer_step(theta, v, delta, eta, mu, N);
        for (int k = 0; k < MEMBERS; k++) {
            assert_int_equal(apply(&members[k], set, &seeds, &d[k]), NEB_OK);
            assert_true(d[k].lo == d[0].lo && d[k].hi == d[0].hi);
            memcpy(e[k], u[k], sizeof e[k]);
            for (int i = 0; i < N; i++) // a committed update is subtracted
                e[k][i] = set >> k & 1 ? u[k][i] - (float)q[k][i] * scale : u[k][i];
            inter_outer_arrays(members[k].o, a);
            assert_memory_equal(a[0].p, theta, sizeof theta);
            assert_memory_equal(a[1].p, v, sizeof v);
            assert_memory_equal(a[2].p, e[k], sizeof e[k]);
        }
    }
    float most = 0;
    for (int i = 0; i < N; i++)
        most = fabsf(e[0][i]) > most ? fabsf(e[0][i]) : most;
    assert_true(most > 1); // the residual was used
}

// A newer update replaces an update. Whichever is committed, the residual is the part that it did
// not hold.
static void test_taken_back(void **state) {
    (void)state;
    struct member *m = &members[1];
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    struct sec_sum_seeds seeds;
    struct kern_digest d;
    struct neb_buf first = {0};
    inter_outer_arrays(m->o, a);
    for (int k = 0; k < MEMBERS; k++) {
        members[k].theta_m[5] -= 0.5f;
        assert_int_equal(inter_outer_encode_masked(members[k].o, 0, 0, &members[k].blob), NEB_OK);
    }
    neb_buf_add(&first, m->blob.p, m->blob.len);
    m->theta_m[5] -= 0.25f;
    assert_int_equal(inter_outer_encode_masked(m->o, 0, 0, &m->blob), NEB_OK);
    assert_memory_not_equal(first.p, m->blob.p, first.len);
    struct neb_buf newer = m->blob;
    m->blob = first; // the older update was committed
    seeds_of(0xf, &seeds);
    assert_int_equal(apply(m, 0xf, &seeds, &d), NEB_OK);
    assert_true(fabsf(a[2].p[5] - 0.25f) < 1e-6f);
    neb_buf_free(&newer);
}

static void test_bad_commit_changes_nothing(void **state) {
    (void)state;
    struct sec_sum_seeds seeds, other;
    struct kern_digest d, before, after;
    for (int k = 0; k < MEMBERS; k++) {
        members[k].theta_m[9] += 0.1f;
        assert_int_equal(inter_outer_encode_masked(members[k].o, 0, 0, &members[k].blob), NEB_OK);
    }
    seeds_of(0xf, &seeds);
    before = inter_outer_digest(members[0].o);
    assert_int_equal(apply(&members[0], 0xf, NULL, &d), NEB_ERR_FORMAT);
    // A set whose seeds are missing.
    assert_int_equal(apply(&members[0], 0x7, &seeds, &d), NEB_ERR_FORMAT);
    other = seeds;
    other.own[2][0] ^= 1;
    assert_int_equal(apply(&members[0], 0xf, &other, &d), NEB_ERR_DENIED);
    members[3].blob.len--;
    assert_int_equal(apply(&members[0], 0xf, &seeds, &d), NEB_ERR_FORMAT);
    members[3].blob.len++;
    after = inter_outer_digest(members[0].o);
    assert_true(after.lo == before.lo && after.hi == before.hi &&
                inter_outer_in_flight(members[0].o, 0));
    assert_int_equal(apply(&members[0], 0xf, &seeds, &d), NEB_OK);
    members[0].theta_m[3] = NAN;
    assert_int_equal(inter_outer_encode_masked(members[0].o, 0, 1, &members[0].blob),
                     NEB_ERR_INVALID);
}

static int setup(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    testing_key_pairs(MEMBERS, secrets, publics);
    return kern_pool_create(2, &pool) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    kern_pool_destroy(&pool);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bits_of_the_plain_sum, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_taken_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_commit_changes_nothing, set_up, tear_down)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
