// SPDX-License-Identifier: Apache-2.0
// Masked sums (security/secure_sum.h) equal plain integer sums, for 3 to 16 members. From four
// members on, one may be missing, and one may fall silent afterwards. Secrets stay hidden, and
// false reveals are found.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "security/secure_sum.h"
#include "tests/sum_mask.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 5003, ROUND = 9, FRAGMENT = 2 }; // not a multiple of any block
static const uint8_t job[SEC_SUM_JOB_BYTES] = {1, 2, 3};
static uint8_t secrets[NEB_MEMBERS_MAX][SEC_KEY_BYTES], publics[NEB_MEMBERS_MAX][SEC_KEY_BYTES];
static int16_t values[NEB_MEMBERS_MAX][COUNT], sum[COUNT];
static struct sec_sum *members[NEB_MEMBERS_MAX];
static struct neb_buf blobs[NEB_MEMBERS_MAX];
static struct sec_sum_head heads[NEB_MEMBERS_MAX];
static const uint8_t *bodies[NEB_MEMBERS_MAX];
static struct sec_sum_reveal reveals[NEB_MEMBERS_MAX];

static struct sec_sum *make(uint8_t n, uint8_t self) {
    uint8_t keys[NEB_MEMBERS_MAX][SEC_SUM_KEY_BYTES] = {{0}};
    struct sec_sum *s = NULL;
    for (uint8_t k = 0; k < n; k++)
        if (k != self)
            assert_int_equal(
                sec_sum_pair_key(secrets[self], publics[self], publics[k], job, keys[k]), NEB_OK);
    assert_int_equal(sec_sum_create(n, self, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys, &s),
                     NEB_OK);
    return s;
}

static void mask(uint8_t k) {
    assert_int_equal(sum_mask(members[k], FRAGMENT, ROUND, values[k], COUNT, &blobs[k]), NEB_OK);
    assert_int_equal(sec_sum_open(blobs[k].p, blobs[k].len, &heads[k], &bodies[k]), NEB_OK);
    assert_int_equal(blobs[k].len, sec_sum_bytes(heads[k].n, COUNT));
}

static void start(uint8_t n) {
    struct neb_rng rng = neb_rng_make(5, n);
    int32_t limit = sec_sum_limit(n);
    for (uint8_t k = 0; k < n; k++) {
        for (int i = 0; i < COUNT; i++) {
            int16_t v = (int16_t)neb_rng_below(&rng, (uint32_t)limit);
            values[k][i] = (int16_t)(i < 3   ? (i == 0   ? limit
                                                : i == 1 ? -limit
                                                         : 0)
                                     : i % 2 ? v
                                             : -v);
        }
        members[k] = make(n, k);
        mask(k);
    }
    for (uint8_t k = 0; k < n; k++)
        for (uint8_t j = 0; j < n; j++)
            assert_int_equal(sec_sum_agrees(members[k], &heads[j]), NEB_OK);
}
static void stop(uint8_t n) {
    for (uint8_t k = 0; k < n; k++) {
        sec_sum_destroy(&members[k]);
        neb_buf_free(&blobs[k]);
    }
}

// `say`: the members whose reveals arrive. They go through their bytes and back.
static enum neb_status gather(uint8_t n, uint16_t set, uint16_t say, struct sec_sum_seeds *seeds) {
    for (uint8_t k = 0; k < n; k++) {
        struct neb_buf b = {0};
        struct sec_sum_reveal r;
        if (!(say >> k & 1))
            continue;
        assert_int_equal(sec_sum_reveal(members[k], mset_from_bits(set), heads, &r), NEB_OK);
        sec_sum_reveal_put(&b, &r);
        struct neb_rd in = neb_rd_make(b.p, b.len), cut = neb_rd_make(b.p, b.len - 1);
        assert_true(sec_sum_reveal_get(&in, &reveals[k]) && neb_rd_done(&in));
        assert_false(sec_sum_reveal_get(&cut, &r));
        assert_true(sec_sum_reveal_fits(&reveals[k], heads));
        neb_buf_free(&b);
    }
    return sec_sum_gather(n, mset_from_bits(set), heads, reveals, mset_from_bits(say), seeds);
}

static void check_sum(uint8_t n, uint16_t set, const struct sec_sum_seeds *seeds) {
    static int16_t part[COUNT];
    assert_int_equal(sec_sum_unmask(seeds, bodies, 0, COUNT, sum), NEB_OK);
    for (int i = 0; i < COUNT; i++) {
        int32_t plain = 0;
        for (uint8_t k = 0; k < n; k++)
            plain += set >> k & 1 ? values[k][i] : 0;
        assert_true(sum[i] == plain);
    }
    // From the middle too, because several threads read units.
    assert_int_equal(sec_sum_unmask(seeds, bodies, 1237, 2900, part), NEB_OK);
    assert_memory_equal(part, sum + 1237, 2900 * sizeof *part);
}

static void test_equal_to_plain_sums(void **state) {
    (void)state;
    struct sec_sum_seeds seeds;
    for (uint8_t n = 3; n <= NEB_MEMBERS_MAX; n++) {
        uint16_t all = (uint16_t)((1u << n) - 1);
        start(n);
        assert_int_equal(gather(n, all, all, &seeds), NEB_OK);
        check_sum(n, all, &seeds);
        // the sum needs no reveal of the lost member
        for (uint8_t lost = 0; n >= 4 && lost < n; lost++) {
            uint16_t set = (uint16_t)(all & ~(1u << lost));
            assert_int_equal(gather(n, set, set, &seeds), NEB_OK);
            check_sum(n, set, &seeds);
        }
        // The silent member is in the sum, but reveals nothing.
        for (uint8_t silent = 0; silent < n; silent++) {
            uint16_t say = (uint16_t)(all & ~(1u << silent));
            assert_int_equal(gather(n, all, say, &seeds), NEB_OK);
            check_sum(n, all, &seeds);
        }
        stop(n);
    }
}

// A member can take its own masks off, but nobody else's.
static void test_own(void **state) {
    (void)state;
    static int16_t own[COUNT];
    start(3);
    sec_sum_take_off(members[1], &heads[1], bodies[1], 7, COUNT - 7, own);
    assert_memory_equal(own, values[1] + 7, (COUNT - 7) * sizeof *own);
    sec_sum_take_off(members[0], &heads[1], bodies[1], 0, COUNT, own);
    int same = 0;
    for (int i = 0; i < COUNT; i++)
        same += own[i] == values[1][i];
    assert_true(same < 10);
    stop(3);
}

static double chi_square(const uint8_t *p, size_t n) { // against 256 equally likely values
    size_t seen[256] = {0};
    double x = 0, want = (double)n / 256;
    for (size_t i = 0; i < n; i++)
        seen[p[i]]++;
    for (int i = 0; i < 256; i++)
        x += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
    return x;
}

// Masked integers look uniform even if all of them are zero: chi-square with 255 degrees of
// freedom, mean 255, deviation 22.6. So does what is left after only one's own seed is revealed.
static void test_masks_hide(void **state) {
    (void)state;
    struct sec_sum_seeds seeds;
    enum { N = 5 };
    start(N);
    for (uint8_t k = 0; k < N; k++) {
        memset(values[k], 0, sizeof values[k]);
        mask(k);
        double x = chi_square(bodies[k], 2 * COUNT);
        assert_true(x > 140 && x < 400);
    }
    assert_memory_not_equal(bodies[0], bodies[1], 64);
    assert_int_equal(gather(N, 0x1f, 0x1f, &seeds), NEB_OK);
    // Reads one member alone with its own seed. The masks of its pairs remain.
    uint8_t rest[2 * COUNT];
    struct sec_sum_seeds lone = seeds;
    memset(lone.own, 0, sizeof lone.own);
    memcpy(lone.own[2], seeds.own[2], sizeof lone.own[2]);
    static const uint8_t nothing[2 * COUNT];
    const uint8_t *only[NEB_MEMBERS_MAX] = {nothing, nothing, bodies[2], nothing, nothing};
    // The result is larger than five members can give.
    assert_int_equal(sec_sum_unmask(&lone, only, 0, COUNT, sum), NEB_ERR_DENIED);
    for (int i = 0; i < COUNT; i++) {
        rest[2 * i] = (uint8_t)((uint16_t)sum[i] & 255);
        rest[2 * i + 1] = (uint8_t)((uint16_t)sum[i] >> 8);
    }
    double x = chi_square(rest, sizeof rest);
    assert_true(x > 140 && x < 400);
    stop(N);
}

// The same integers give the same bytes. Other integers share no mask with them, even in the same
// round with the same keys: the difference of the masked bytes does not show the difference of the
// integers.
static void test_again(void **state) {
    (void)state;
    struct neb_buf first = {0};
    uint8_t rest[2 * COUNT];
    start(4);
    neb_buf_add(&first, blobs[0].p, blobs[0].len);
    mask(0);
    assert_int_equal(first.len, blobs[0].len);
    assert_memory_equal(first.p, blobs[0].p, first.len);
    struct sec_sum_head old = heads[0];
    values[0][77] ^= 1;
    mask(0);
    assert_memory_not_equal(old.nonce, heads[0].nonce, sizeof old.nonce);
    assert_memory_equal(old.pair, heads[0].pair, sizeof old.pair);
    const uint8_t *was = first.p + (first.len - 2 * COUNT);
    for (int i = 0; i < COUNT; i++) {
        uint16_t a = (uint16_t)(bodies[0][2 * i] | bodies[0][2 * i + 1] << 8);
        uint16_t b = (uint16_t)(was[2 * i] | was[2 * i + 1] << 8);
        rest[2 * i] = (uint8_t)((a - b) & 255);
        rest[2 * i + 1] = (uint8_t)((uint16_t)(a - b) >> 8);
    }
    double x = chi_square(rest, sizeof rest);
    assert_true(x > 140 && x < 400);
    neb_buf_free(&first);
    stop(4);
}

static void test_refusals(void **state) {
    (void)state;
    struct sec_sum_reveal r;
    struct sec_sum_seeds seeds;
    start(4);
    const uint16_t too_few[] = {0x0, 0x1, 0x3, 0x5, 0x9, 0x1f, 0x800f};
    for (size_t i = 0; i < sizeof too_few / sizeof too_few[0]; i++) {
        assert_int_equal(sec_sum_reveal(members[0], mset_from_bits(too_few[i]), heads, &r),
                         NEB_ERR_DENIED);
        assert_int_equal(sec_sum_gather(4, mset_from_bits(too_few[i]), heads, reveals,
                                        mset_from_bits(0xf), &seeds),
                         NEB_ERR_FORMAT);
    }
    // A member that is not in the set reveals neither its own seed nor a pair's. Both would open
    // its update.
    assert_int_equal(sec_sum_reveal(members[3], mset_from_bits(0x7), heads, &r), NEB_OK);
    assert_true(sodium_is_zero(r.own, sizeof r.own) && sodium_is_zero(r.pair, sizeof r.pair));
    assert_int_equal(sec_sum_reveal(members[0], mset_from_bits(0x7), heads, &r), NEB_OK);
    assert_true(sodium_is_zero(r.shares[3], sizeof r.shares[3]));
    assert_false(sodium_is_zero(r.pair, sizeof r.pair));
    assert_int_equal(sec_sum_reveal(members[0], mset_from_bits(0xf), heads, &r), NEB_OK);
    assert_true(sodium_is_zero(r.pair, sizeof r.pair));
    // One member is not in the set and another is silent: the rest is not enough.
    assert_int_equal(gather(4, 0x7, 0x3, &seeds), NEB_ERR_AGAIN);
    assert_int_equal(gather(4, 0xf, 0x3, &seeds), NEB_ERR_AGAIN);
    int16_t keep = values[1][7];
    values[1][7] = (int16_t)(sec_sum_limit(4) + 1);
    struct neb_buf b = {0};
    assert_int_equal(sum_mask(members[1], FRAGMENT, ROUND, values[1], COUNT, &b), NEB_ERR_INVALID);
    values[1][7] = keep;
    // A mask that the other half of the pair does not have, and a header that does not fit the job.
    struct sec_sum_head h = heads[1];
    h.pair[0][3] ^= 1;
    assert_int_equal(sec_sum_agrees(members[0], &h), NEB_ERR_DENIED);
    h.n = 5;
    assert_int_equal(sec_sum_agrees(members[0], &h), NEB_ERR_DENIED);
    const uint8_t *body;
    for (size_t cut = 0; cut < 300; cut++)
        assert_int_equal(sec_sum_open(blobs[0].p, cut, &h, &body), NEB_ERR_FORMAT);
    assert_int_equal(sec_sum_open(blobs[0].p, blobs[0].len - 1, &h, &body), NEB_ERR_FORMAT);
    neb_buf_free(&b);
    stop(4);
    start(3); // three members may lose none
    assert_int_equal(sec_sum_reveal(members[0], mset_from_bits(0x3), heads, &r), NEB_ERR_DENIED);
    stop(3);
}

static void test_false_reveals(void **state) {
    (void)state;
    struct sec_sum_seeds seeds;
    start(5);
    assert_int_equal(gather(5, 0x1f, 0x1f, &seeds), NEB_OK);
    reveals[2].own[5] ^= 1;
    assert_false(sec_sum_reveal_fits(&reveals[2], heads));
    // The shares of the others replace it.
    assert_int_equal(
        sec_sum_gather(5, mset_from_bits(0x1f), heads, reveals, mset_from_bits(0x1b), &seeds),
        NEB_OK);
    check_sum(5, 0x1f, &seeds);
    reveals[0].shares[2][1] ^= 1;
    assert_int_equal(
        sec_sum_gather(5, mset_from_bits(0x1f), heads, reveals, mset_from_bits(0x1b), &seeds),
        NEB_ERR_DENIED);
    assert_int_equal(gather(5, 0xf, 0xf, &seeds), NEB_OK);
    reveals[1].pair[0] ^= 1;
    assert_false(sec_sum_reveal_fits(&reveals[1], heads));
    seeds.own[0][0] ^= 1; // a mask that was false from the start
    assert_int_equal(sec_sum_unmask(&seeds, bodies, 0, COUNT, sum), NEB_ERR_DENIED);
    stop(5);
    uint8_t zero[SEC_KEY_BYTES] = {0}, key[SEC_SUM_KEY_BYTES]; // gives no shared secret
    assert_int_equal(sec_sum_pair_key(secrets[0], publics[0], zero, job, key), NEB_ERR_INVALID);
    struct sec_sum *s = NULL;
    assert_int_equal(sec_sum_create(2, 0, (const uint8_t(*)[SEC_SUM_KEY_BYTES])secrets, &s),
                     NEB_ERR_INVALID);
    assert_int_equal(sec_sum_create(3, 3, (const uint8_t(*)[SEC_SUM_KEY_BYTES])secrets, &s),
                     NEB_ERR_INVALID);
}

static void test_quantise(void **state) {
    (void)state;
    const float x[] = {0.5f, -0.26f, 0.0f / 1.0f, 1e30f, -1e30f, __builtin_nanf("")};
    int16_t q[6];
    sec_sum_quantise(x, 6, 0.25f, 3, q);
    assert_true(q[0] == 2 && q[1] == -1 && q[2] == 0 && q[3] == sec_sum_limit(3) &&
                q[4] == -sec_sum_limit(3) && q[5] == 0);
    for (uint8_t n = 3; n <= NEB_MEMBERS_MAX; n++)
        assert_true(n * sec_sum_limit(n) <= INT16_MAX / 2 && sec_sum_limit(n) > 1000);
}

static int setup(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    testing_key_pairs(NEB_MEMBERS_MAX, secrets, publics);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_to_plain_sums),
                                       cmocka_unit_test(test_own),
                                       cmocka_unit_test(test_masks_hide),
                                       cmocka_unit_test(test_again),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_false_reveals),
                                       cmocka_unit_test(test_quantise)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
