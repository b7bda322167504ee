// SPDX-License-Identifier: Apache-2.0
// inter/ledger: blobs that arrive, many at the same time, and which blob replaces another.
#include "tests/unit/ledger_each.h"

// Many blobs arrive at once. Of one member and fragment only the newest key is kept.
static void test_arriving_at_once(void **state) {
    (void)state;
    enum { MANY = 200 }; // more than the files kept open
    uint32_t got;
    for (uint32_t f = 0; f < MANY; f++) {
        OK(fx_put_manifest(l, f, 0, 1));
        OK(fx_part_open(l, f, 0, &got));
        OK(fx_part_open(l, f, 0, &got)); // a repetition is harmless
    }
    for (uint32_t c = 0; c < 2; c++)
        for (uint32_t f = 0; f < MANY; f++)
            OK(fx_part_write(l, f, 0, c));
    OK(fx_part_open(l, 9, 0, &got));
    assert_int_equal(got, 2);
    assert_int_equal(inter_ledger_used(l), MANY * FX_PEER_BYTES);
    inter_ledger_parts_close(l, fx_job);
    assert_int_equal(inter_ledger_used(l), 0);
    assert_int_equal(fx_part_write(l, 3, 0, 2), NEB_ERR_NOT_FOUND);
    assert_int_equal(fx_part_finish(l, 3, 0), NEB_ERR_NOT_FOUND);
    for (uint32_t f = 0; f < MANY; f++) { // no chunk was forgotten
        OK(fx_part_open(l, f, 0, &got));
        assert_int_equal(got, 2);
        OK(fx_part_write(l, f, 0, 2));
        OK(fx_part_finish(l, f, 0));
        fx_check_blob(l, f, 0, 1);
    }
    // a round that was committed without this update, and another attempt
    struct inter_key again = fx_key(0, 1, 1);
    struct inter_manifest m = fx_manifest(&again);
    struct inter_bitmap none = {0};
    OK(fx_put_manifest(l, 0, 1, 1));
    OK(fx_part_open(l, 0, 1, &got));
    OK(fx_part_write(l, 0, 1, 0));
    m.key.attempt = 7;
    OK(inter_ledger_put_manifest(l, &m));
    OK(inter_ledger_part_open(l, &m, &none));
    assert_false(fx_has_file(dir, 0, 1, 1, ".part"));
    assert_int_equal(fx_part_write(l, 0, 1, 1), NEB_ERR_NOT_FOUND);
    OK(fx_put_manifest(l, 0, 2, 1));
    OK(fx_part_open(l, 0, 2, &got));
    assert_int_equal(inter_ledger_used(l), (MANY + 1) * FX_PEER_BYTES);
    fx_check_blob(l, 0, 0, 1);
}

static void test_arriving_limit(void **state) {
    (void)state;
    struct inter_key k = fx_key(0, 0, 1);
    struct inter_manifest m = fx_manifest(&k);
    struct inter_bitmap got = {0};
    for (m.key.fragment = 0; m.key.fragment < 8 * 64 * 16; m.key.fragment++)
        OK(inter_ledger_part_open(l, &m, &got));
    assert_int_equal(inter_ledger_part_open(l, &m, &got), NEB_ERR_LIMIT);
    m.key.fragment = 5;
    m.key.round = 1; // replaces the part of the round before
    OK(inter_ledger_part_open(l, &m, &got));
}

// A record lists another digest than the stored manifest. The record's manifest and blob then
// replace the stored ones, and the old manifest is kept as evidence.
static void test_replaced_manifest(void **state) {
    (void)state;
    struct inter_key k = fx_key(0, 0, 1);
    struct inter_manifest x = fx_manifest(&k), y = x, there;
    uint32_t got;
    y.sha256[0] ^= 1;
    y.bytes -= 100;
    fx_sign_manifest(&y);
    // there is nothing to replace, so it is stored as usual
    OK(inter_ledger_replace_manifest(l, &x));
    OK(inter_ledger_replace_manifest(l, &x));
    assert_int_equal(inter_ledger_replaced(l, &k, &there), NEB_ERR_NOT_FOUND);
    OK(fx_part_open(l, 0, 0, &got));
    OK(fx_part_write(l, 0, 0, 0));
    OK(inter_ledger_replace_manifest(l, &y));
    assert_false(fx_has_file(dir, 0, 0, 1, ".part"));
    assert_int_equal(inter_ledger_used(l), 0);
    OK(inter_ledger_find_manifest(l, &k, &there));
    assert_memory_equal(there.sha256, y.sha256, sizeof y.sha256);
    OK(inter_ledger_replace_manifest(l, &x)); // and back again, now with a complete blob
    OK(fx_part_open(l, 0, 0, &got));
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    OK(fx_part_finish(l, 0, 0));
    assert_int_equal(inter_ledger_put_manifest(l, &y), NEB_ERR_EXISTS);
    OK(inter_ledger_replace_manifest(l, &y));
    reopen();
    assert_false(inter_ledger_has_blob(l, &k));
    OK(inter_ledger_find_manifest(l, &k, &there));
    assert_memory_equal(there.sha256, y.sha256, sizeof y.sha256);
    OK(inter_ledger_replaced(l, &k, &there));
    assert_int_equal(inter_ledger_used(l), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_arriving_at_once), TEST(test_arriving_limit),
                                       TEST(test_replaced_manifest)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
