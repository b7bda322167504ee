// security/secure_sum: bit-equal to plain integer sums for 3 to 16 members, one drop-out included from four on; what must not be
// revealed is not.
#include "agent/base/rng.h"
#include "security/secure_sum.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 3001 }; // not a multiple of any block
static uint8_t secrets[SEC_MEMBERS_MAX][SEC_KEY_BYTES], publics[SEC_MEMBERS_MAX][SEC_KEY_BYTES];
static int32_t values[SEC_MEMBERS_MAX][COUNT], sum[COUNT];
static uint32_t masked[SEC_MEMBERS_MAX][COUNT];
static const uint32_t *rows[SEC_MEMBERS_MAX];
static struct sec_sum *members[SEC_MEMBERS_MAX];
static struct sec_sum_reveal reveals[SEC_MEMBERS_MAX];

static struct sec_sum *make(uint8_t n, uint8_t self, uint8_t round) {
    struct sec_sum_config c = {.n = n, .self = self, .round = {round}, .secret = secrets[self]};
    struct sec_sum *s = NULL;
    memcpy(c.publics, publics, sizeof publics);
    assert_int_equal(sec_sum_create(&c, &s), NEB_OK);
    return s;
}

static void start(uint8_t n, uint32_t attempt) {
    struct neb_rng rng = neb_rng_make(5, n);
    for (uint8_t k = 0; k < n; k++) {
        for (int i = 0; i < COUNT; i++) {
            int32_t limit = sec_sum_limit(n);
            int32_t v = (int32_t)neb_rng_below(&rng, (uint32_t)limit);
            values[k][i] = i < 3 ? (i == 0 ? limit : i == 1 ? -limit : 0) : i % 2 ? v : -v;
        }
        if (!members[k])
            members[k] = make(n, k, 1);
        assert_int_equal(sec_sum_begin(members[k], attempt), NEB_OK);
        assert_int_equal(sec_sum_mask(members[k], values[k], COUNT, masked[k]), NEB_OK);
        rows[k] = masked[k];
    }
}
static void stop(uint8_t n) {
    for (uint8_t k = 0; k < n; k++)
        sec_sum_destroy(&members[k]);
}

static enum neb_status unmask(uint8_t n, uint32_t attempt, uint16_t set) {
    for (uint8_t k = 0; k < n; k++)
        if (set >> k & 1) {
            struct neb_buf b = {0};
            struct sec_sum_reveal r;
            assert_int_equal(sec_sum_reveal(members[k], set, &r), NEB_OK);
            sec_sum_reveal_put(&b, &r);
            assert_int_equal(b.len, SEC_SUM_REVEAL_BYTES);
            assert_true(sec_sum_reveal_get(b.p, b.len, &reveals[k]));
            assert_false(sec_sum_reveal_get(b.p, b.len - 1, &r));
            neb_buf_free(&b);
        }
    return sec_sum_unmask(n, attempt, set, rows, reveals, COUNT, sum);
}

static void check_sum(uint8_t n, uint16_t set) {
    for (int i = 0; i < COUNT; i++) {
        int64_t plain = 0;
        for (uint8_t k = 0; k < n; k++)
            plain += set >> k & 1 ? values[k][i] : 0;
        assert_true(sum[i] == plain);
    }
}

static void test_equal_to_plain_sums(void **state) {
    (void)state;
    for (uint8_t n = 3; n <= SEC_MEMBERS_MAX; n++) {
        uint16_t all = (uint16_t)((1u << n) - 1);
        start(n, 1);
        assert_int_equal(unmask(n, 1, all), NEB_OK);
        check_sum(n, all);
        for (uint8_t lost = 0; n >= 4 && lost < n; lost++) {
            uint16_t set = (uint16_t)(all & ~(1u << lost));
            start(n, 2u + lost);
            memset(masked[lost], 0xa5, sizeof masked[lost]); // never arrived
            assert_int_equal(unmask(n, 2u + lost, set), NEB_OK);
            check_sum(n, set);
        }
        stop(n);
    }
}

// The masked integers of one member, of two, or of all but the own seeds, tell nothing: they look uniform even where all that was
// masked is zero, and differ between attempts.
static void test_masks_hide(void **state) {
    (void)state;
    static int32_t zeros[COUNT];
    static uint32_t a[COUNT], b[COUNT];
    struct sec_sum *s = make(3, 0, 2);
    assert_int_equal(sec_sum_begin(s, 1), NEB_OK);
    assert_int_equal(sec_sum_mask(s, zeros, COUNT, a), NEB_OK);
    assert_int_equal(sec_sum_begin(s, 2), NEB_OK);
    assert_int_equal(sec_sum_mask(s, zeros, COUNT, b), NEB_OK);
    unsigned bits = 0, same = 0;
    for (int i = 0; i < COUNT; i++) {
        bits += (unsigned)__builtin_popcount(a[i]);
        same += a[i] == b[i];
    }
    assert_true(bits > 15 * COUNT && bits < 17 * COUNT && same < 3);
    sec_sum_destroy(&s);
}

static void test_refusals(void **state) {
    (void)state;
    struct sec_sum_reveal r;
    uint32_t out[COUNT];
    start(4, 1);
    const uint16_t too_few[] = {0x0, 0x1, 0x3, 0x5, 0x9, 0x1f, 0x800f};
    for (size_t i = 0; i < sizeof too_few / sizeof too_few[0]; i++)
        assert_int_equal(sec_sum_reveal(members[0], too_few[i], &r), NEB_ERR_DENIED);
    assert_int_equal(sec_sum_reveal(members[0], 0xe, &r), NEB_ERR_DENIED); // lacks member 0
    assert_int_equal(sec_sum_reveal(members[0], 0x7, &r), NEB_OK);         // member 3 dropped out
    assert_int_equal(sec_sum_reveal(members[0], 0x7, &r), NEB_OK);
    // The late one is not let in: with both seeds of it the rest could take its integers apart.
    assert_int_equal(sec_sum_reveal(members[0], 0xf, &r), NEB_ERR_DENIED);
    assert_int_equal(sec_sum_reveal(members[0], 0xb, &r), NEB_ERR_DENIED);
    // An abandoned attempt stays closed, and its number is not used again.
    assert_int_equal(sec_sum_begin(members[0], 2), NEB_OK);
    assert_int_equal(sec_sum_reveal(members[0], 0x7, &r), NEB_ERR_DENIED); // nothing masked yet
    assert_int_equal(sec_sum_begin(members[0], 2), NEB_ERR_STATE);
    assert_int_equal(sec_sum_begin(members[0], 1), NEB_ERR_STATE);
    assert_int_equal(sec_sum_mask(members[0], values[0], COUNT, out), NEB_OK);
    assert_int_equal(sec_sum_mask(members[0], values[0], COUNT, out), NEB_ERR_STATE); // once
    assert_int_equal(sec_sum_reveal(members[0], 0xf, &r), NEB_OK);
    assert_int_equal(r.attempt, 2);
    values[1][7] = sec_sum_limit(4) + 1;
    assert_int_equal(sec_sum_begin(members[1], 2), NEB_OK);
    assert_int_equal(sec_sum_mask(members[1], values[1], COUNT, out), NEB_ERR_INVALID);
    stop(4);
    start(3, 1); // of three none may be missing
    assert_int_equal(sec_sum_reveal(members[0], 0x3, &r), NEB_ERR_DENIED);
    stop(3);
}

static void test_false_reveals(void **state) {
    (void)state;
    start(5, 1);
    assert_int_equal(unmask(5, 1, 0x1f), NEB_OK);
    reveals[2].own[5] ^= 1;
    assert_int_equal(sec_sum_unmask(5, 1, 0x1f, rows, reveals, COUNT, sum), NEB_ERR_DENIED);
    reveals[2].own[5] ^= 1;
    reveals[2].attempt = 2;
    assert_int_equal(sec_sum_unmask(5, 1, 0x1f, rows, reveals, COUNT, sum), NEB_ERR_FORMAT);
    reveals[2].attempt = 1;
    reveals[2].member = 3;
    assert_int_equal(sec_sum_unmask(5, 1, 0x1f, rows, reveals, COUNT, sum), NEB_ERR_FORMAT);
    reveals[2].member = 2;
    assert_int_equal(sec_sum_unmask(5, 1, 0x1f, rows, reveals, COUNT, sum), NEB_OK);
    assert_int_equal(sec_sum_unmask(5, 1, 0x3, rows, reveals, COUNT, sum), NEB_ERR_FORMAT);
    stop(5);
    struct sec_sum_config c = {.n = 3, .self = 0, .secret = secrets[0]};
    struct sec_sum *s = NULL; // keys of all zero: no shared secret
    assert_int_equal(sec_sum_create(&c, &s), NEB_ERR_INVALID);
    c.n = 2;
    assert_int_equal(sec_sum_create(&c, &s), NEB_ERR_INVALID);
}

static void test_quantise(void **state) {
    (void)state;
    const float x[] = {0.5f, -0.26f, 0.0f / 1.0f, 1e30f, -1e30f, __builtin_nanf("")};
    int32_t q[6];
    sec_sum_quantise(x, 6, 0.25f, 3, q);
    assert_true(q[0] == 2 && q[1] == -1 && q[2] == 0 && q[3] == sec_sum_limit(3) &&
                q[4] == -sec_sum_limit(3) && q[5] == 0);
}

static int setup(void **state) {
    (void)state;
    if (sec_init() != NEB_OK)
        return -1;
    for (int k = 0; k < SEC_MEMBERS_MAX; k++) {
        randombytes_buf(secrets[k], SEC_KEY_BYTES);
        crypto_scalarmult_base(publics[k], secrets[k]);
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_to_plain_sums), cmocka_unit_test(test_masks_hide),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_false_reveals),
        cmocka_unit_test(test_quantise)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
