// SPDX-License-Identifier: Apache-2.0
// inter/ledger with sealed blobs. The same bytes come back after reopening, no bytes are on disk in
// clear, and another key opens nothing. An arriving blob goes on after a restart, also if sealing
// is switched on or off in between.
#include "security/seal_key.h"
#include "tests/unit/ledger_fixture.h"

static char root[] = "/tmp/nebula-sealed-XXXXXX", dir[64];
static struct inter_ledger *l;
static struct sec_seal_key *keys[2];

static void reopen(const struct sec_seal_key *k) {
    inter_ledger_close(&l);
    OK(inter_ledger_open(dir, &l));
    inter_ledger_seal(l, k);
}

static int open_fresh(void **state) {
    (void)state;
    static int n;
    snprintf(dir, sizeof dir, "%s/%d", root, n++);
    reopen(keys[0]);
    return 0;
}
static int close_it(void **state) {
    (void)state;
    inter_ledger_close(&l);
    return 0;
}

// True if a file of an update holds any of its bytes in clear.
static bool in_clear(uint8_t member, const char *suffix) {
    uint8_t bytes[FX_PEER_BYTES];
    struct inter_key k = fx_key(0, 0, member);
    char path[NEB_PATH_MAX];
    struct neb_map m;
    size_t n = fx_blob(&k, bytes);
    bool found = false;
    fx_file(dir, &k, suffix, path);
    OK(neb_map_open(path, &m));
    for (size_t i = 0; i + 32 <= n && !found; i += 1000)
        found = memmem(m.p, m.len, bytes + i, 32) != NULL;
    neb_map_close(&m);
    return found;
}

static void test_own(void **state) {
    (void)state;
    struct inter_key k = fx_key(0, 0, 0);
    struct neb_map m;
    OK(fx_put_own(l, 0, 0));
    OK(fx_put_own(l, 0, 0)); // a repetition is harmless
    OK(fx_put_manifest(l, 0, 0, 0));
    fx_check_blob(l, 0, 0, 0);
    assert_false(in_clear(0, ".blob"));
    uint64_t used = inter_ledger_used(l);
    reopen(keys[0]);
    assert_int_equal(inter_ledger_used(l), used);
    fx_check_blob(l, 0, 0, 0);
    uint8_t other[] = "other bytes";
    assert_int_equal(inter_ledger_put_blob(l, &k, other, sizeof other), NEB_ERR_EXISTS);
    reopen(keys[1]);
    assert_int_equal(inter_ledger_map_blob(l, &k, &m), NEB_ERR_DENIED);
    reopen(NULL);
    assert_int_equal(inter_ledger_map_blob(l, &k, &m), NEB_ERR_DENIED);
}

// Chunk 2 arrives, and all chunks arrive after a restart. `then` is the key after the restart.
static void arrive(const struct sec_seal_key *first, const struct sec_seal_key *then,
                   uint32_t expected) {
    struct inter_manifest m = {.key = fx_key(0, 0, 1)};
    uint32_t got = 0;
    reopen(first);
    OK(fx_put_manifest(l, 0, 0, 1));
    OK(fx_part_open(l, 0, 0, &got));
    assert_int_equal(got, 0);
    for (int i = 0; i < 16; i++) // the map is written with every 16th chunk
        OK(fx_part_write(l, 0, 0, 2));
    assert_int_equal(in_clear(1, ".part"), first == NULL);
    reopen(then);
    OK(fx_part_open(l, 0, 0, &got));
    assert_int_equal(got, expected);
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    OK(fx_part_finish(l, 0, 0));
    OK(fx_part_finish(l, 0, 0)); // a repetition is harmless
    fx_check_blob(l, 0, 0, 1);
    assert_int_equal(in_clear(1, ".blob"), then == NULL);
    char path[NEB_PATH_MAX];
    fx_file(dir, &m.key, ".part", path);
    assert_false(neb_fs_exists(path));
    reopen(then);
    fx_check_blob(l, 0, 0, 1);
}

static void test_arrives(void **state) {
    (void)state;
    arrive(keys[0], keys[0], 1);
}
static void test_begins_to_seal(void **state) {
    (void)state;
    arrive(NULL, keys[0], 0); // chunks in clear are fetched again
}
static void test_ends_to_seal(void **state) {
    (void)state;
    arrive(keys[0], NULL, 0);
}
static void test_another_key(void **state) {
    (void)state;
    arrive(keys[0], keys[1], 0);
}

// A chunk that changes on disk empties the part, which is then filled again.
static void test_changed_on_disk(void **state) {
    (void)state;
    struct inter_key k = fx_key(0, 0, 1);
    char path[NEB_PATH_MAX];
    uint32_t got = 0;
    OK(fx_put_manifest(l, 0, 0, 1));
    OK(fx_part_open(l, 0, 0, &got));
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    fx_file(dir, &k, ".part", path);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 500, SEEK_SET), 0);
    assert_int_equal(fputs("changed", f) >= 0, 1);
    fclose(f);
    // this site sealed the chunk, so the sender is not blamed
    assert_int_equal(fx_part_finish(l, 0, 0), NEB_ERR_IO);
    assert_false(inter_ledger_has_blob(l, &k));
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    OK(fx_part_finish(l, 0, 0));
    fx_check_blob(l, 0, 0, 1);
}

static int setup(void **state) {
    neb_log_set_sink(testing_drop, NULL);
    (void)state;
    if (!mkdtemp(root))
        return -1;
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%d.key", root, i);
        OK(sec_seal_key_make(path, NULL, &keys[i]));
    }
    return 0;
}
static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        sec_seal_key_destroy(&keys[i]);
    return neb_fs_remove_tree(root) == NEB_OK ? 0 : -1;
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_fresh, close_it)
    const struct CMUnitTest tests[] = {
        TEST(test_own),          TEST(test_arrives),     TEST(test_begins_to_seal),
        TEST(test_ends_to_seal), TEST(test_another_key), TEST(test_changed_on_disk)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
