// SPDX-License-Identifier: Apache-2.0
// agent/base/member_set: sets against plain arrays of bools, and their bytes on the wire.
#include "agent/base/member_set.h"
#include "agent/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N = NEB_MEMBERS_MAX };

static struct member_set random_set(struct neb_rng *r, bool in[N]) {
    struct member_set s = mset_none();
    for (int m = 0; m < N; m++)
        mset_assign(&s, m, in[m] = neb_rng_below(r, 2));
    return s;
}

static void check(struct member_set s, const bool in[N]) {
    int n = 0, seen = 0, lowest = N;
    for (int m = 0; m < N; m++) {
        assert_int_equal(mset_has(s, m), in[m]);
        n += in[m];
        lowest = in[m] && lowest == N ? m : lowest;
    }
    for (uint8_t m = 0; mset_next(s, &m); m++, seen++)
        assert_true(in[m]);
    assert_int_equal(seen, n);
    assert_int_equal(mset_count(s), n);
    assert_int_equal(mset_lowest(s), lowest);
    assert_int_equal(mset_empty(s), !n);
}

static void test_against_arrays(void **state) {
    struct neb_rng r = neb_rng_make(46, 1);
    (void)state;
    for (int turn = 0; turn < 500; turn++) {
        bool a[N], b[N], either[N], both[N], minus[N];
        struct member_set x = random_set(&r, a), y = random_set(&r, b);
        int meet = 0, of = 0;
        for (int m = 0; m < N; m++) {
            either[m] = a[m] || b[m];
            both[m] = a[m] && b[m];
            minus[m] = a[m] && !b[m];
            meet += both[m];
            of += b[m];
        }
        check(x, a);
        check(mset_union(x, y), either);
        check(mset_common(x, y), both);
        check(mset_minus(x, y), minus);
        assert_int_equal(mset_meets(x, y), meet > 0);
        assert_int_equal(mset_within(y, x), meet == of);
        assert_int_equal(mset_majority(x, y), 2 * meet > of);
        assert_true(mset_equal(mset_union(mset_minus(x, y), mset_common(x, y)), x));
        int m = (int)neb_rng_below(&r, N);
        assert_true(mset_has(mset_with(x, m), m) && !mset_has(mset_without(x, m), m));
        mset_add(&x, m);
        a[m] = true;
        check(x, a);
        mset_remove(&x, m);
        a[m] = false;
        check(x, a);
    }
}

// Numbers from outside never become another member.
static void test_bounds(void **state) {
    struct member_set all = mset_first(N), none = mset_none();
    (void)state;
    assert_int_equal(mset_count(all), N);
    assert_true(mset_equal(mset_first(N + 1), all) && mset_equal(mset_first(1000), all));
    assert_true(mset_empty(mset_first(0)) && mset_empty(mset_first(-1)));
    assert_true(mset_equal(mset_first(1), mset_of(0)));
    const int outside[] = {-1, N, N + 1, 31, 32, 63, 64, 65, 255, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        if (outside[i] >= 0 && outside[i] < N)
            continue;
        struct member_set s = none;
        assert_false(mset_has(all, outside[i]));
        mset_add(&s, outside[i]);
        assert_true(mset_empty(s));
        s = all;
        mset_remove(&s, outside[i]);
        assert_true(mset_equal(s, all));
    }
    assert_int_equal(mset_lowest(none), N);
    assert_false(mset_majority(none, none));
    assert_true(mset_within(none, none) && mset_within(none, all) && !mset_within(all, none));
}

// Two bytes, the lower members first: records and votes on disk depend on it.
static void test_wire(void **state) {
    struct neb_buf b = {0};
    (void)state;
    mset_write(&b, mset_with(mset_with(mset_of(0), 9), 15));
    assert_int_equal(b.len, 2);
    assert_int_equal(b.p[0], 0x01);
    assert_int_equal(b.p[1], 0x82);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    assert_int_equal(mset_bits(mset_read(&r)), 0x8201);
    assert_true(neb_rd_done(&r));
    assert_true(mset_empty(mset_read(&r)) && r.bad);
    neb_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_arrays),
                                       cmocka_unit_test(test_bounds), cmocka_unit_test(test_wire)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
