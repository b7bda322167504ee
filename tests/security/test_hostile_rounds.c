// Mallory says other things to one than to another, or says them too often: attempt upon attempt of an update, two updates signed under
// one key. Whoever was told something else than the record says takes what the record says, and everybody goes on.
#include "tests/security/hostile_fixture.h"

#include <dirent.h>

static size_t files_of(int who) {
    char path[NEB_PATH_MAX];
    size_t n = 0;
    OK(neb_path(path, sizeof path, sites[who].dir, "blobs"));
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, "-m2-") != NULL; // mallory's
    closedir(d);
    return n;
}

// ---- attempts -------------------------------------------------------------------------------------------------

// Each takes the place of the one before. What has arrived of those goes with them, and there is an end to it.
static void test_many_attempts(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    become_bare();
    make_update(GOOD, 5, &blob);
    for (int round = 0; round < 2; round++) {
        size_t before[2] = {files_of(ANNA), files_of(BERT)};
        for (uint32_t i = 1; i <= 200; i++) {
            struct inter_manifest m = manifest_of(&blob, UINT32_MAX - 300 + i);
            for (int to = ANNA; to <= BERT; to++) {
                say_manifest(to, &m);
                if (i % 7 == 0)
                    say_chunk(to, &m, &blob, 0);
            }
        }
        go_for(NEB_S);
        for (int to = ANNA; to <= BERT; to++) {
            assert_true(files_of(to) <= before[to] + 2); // one .part, perhaps a .map
            UNTIL(sites[to].faults[INTER_FAULT_FORGED] >= 150);
        }
        honest_round();
    }
    for (int k = ANNA; k <= BERT; k++) { // nor does it end who starts with what is left on disk
        inter_service_destroy(&sites[k].s);
        start(&sites[k]);
        open_job(&sites[k]);
    }
    honest_round();
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
    neb_buf_free(&blob);
}

// More missed intervals than its steps can have been would make every round a merge round.
static void test_missed(void **state) {
    (void)state;
    struct neb_buf blob = {0};
    become_bare();
    make_update(GOOD, 6, &blob);
    struct inter_manifest m = manifest_of(&blob, UINT32_MAX - 9);
    m.missed = 100;
    sign_manifest(&m);
    say_manifest(ANNA, &m);
    say_manifest(BERT, &m);
    UNTIL(sites[ANNA].faults[INTER_FAULT_FORGED] == 1 &&
          sites[BERT].faults[INTER_FAULT_FORGED] == 1);
    honest_round();
    assert_int_equal(sites[ANNA].last.flags, 0);
    neb_buf_free(&blob);
}

// ---- two digests under one key --------------------------------------------------------------------------------

// Bert gets another update of mallory's than anna, whole or in part. Anna and mallory are a majority, and the record lists anna's.
static void two_digests(uint32_t chunks, bool restart) {
    struct neb_buf x = {0}, y = {0};
    struct inter_manifest former, there;
    uint32_t before = sites[ANNA].commits;
    make_update(GOOD, 100 + before, &x);
    make_update(GOOD, 900 + before, &y);
    struct inter_manifest mx = manifest_of(&x, UINT32_MAX - 7),
                          my = manifest_of(&y, UINT32_MAX - 7);
    announce(ANNA, &my);
    announce(BERT, &mx);
    give(BERT, &mx, &x, chunks);
    give(ANNA, &my, &y, 2);
    uint64_t second = sites[BERT].faults[INTER_FAULT_SECOND];
    submit(&sites[ANNA], GOOD);
    submit(&sites[BERT], GOOD);
    UNTIL(sites[ANNA].commits == before + 1);
    const struct inter_entry *e = entry_of(&sites[ANNA].last, MALLORY);
    assert_true(e && e->verdict == INTER_ACCEPTED);
    assert_memory_equal(e->sha256, my.sha256, sizeof e->sha256);
    if (restart && sites[BERT].commits == before) { // it knows nothing any more of what was decided
        inter_service_destroy(&sites[BERT].s);
        start(&sites[BERT]);
        open_job(&sites[BERT]);
    }
    UNTIL(sites[BERT].commits == before + 1);
    assert_true(sites[BERT].faults[INTER_FAULT_SECOND] > second);
    OK(inter_ledger_find_manifest(inter_service_ledger(sites[BERT].s), &my.key, &there));
    assert_memory_equal(there.sha256, my.sha256, sizeof my.sha256);
    // Both signatures of hers are kept.
    OK(inter_ledger_second(inter_service_ledger(sites[BERT].s), &mx.key, &former));
    assert_memory_equal(former.sha256, mx.sha256, sizeof mx.sha256);
    assert_memory_equal(former.sig, mx.sig, sizeof mx.sig);
    assert_int_equal(inter_ledger_second(inter_service_ledger(sites[ANNA].s), &mx.key, &former),
                     NEB_ERR_NOT_FOUND);
    neb_buf_free(&x);
    neb_buf_free(&y);
}

static void test_two_digests(void **state) {
    (void)state;
    become_bare();
    two_digests(2, false);
    two_digests(1, false);
    two_digests(0, false);
    two_digests(2, true);
    two_digests(1, true);
    honest_round();
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_attempts, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_missed, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_two_digests, open_sites, close_sites)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
