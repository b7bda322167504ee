// SPDX-License-Identifier: Apache-2.0
// inter/service after a disk lost complete updates: the service asks the other member for them by
// their signed digest.
#include "inter/ledger/db.h"
#include "tests/unit/service_fixture.h"

#include <sys/stat.h>

enum harm { EMPTIED, CUT, REMOVED, ALTERED, HARMS };

static struct inter_key key_of(uint8_t member, uint32_t round) {
    struct inter_key k = {.member = member, .round = round};
    memcpy(k.job, job, sizeof job);
    return k;
}

static void path_of(struct site *x, uint8_t member, uint32_t round, char path[NEB_PATH_MAX]) {
    struct inter_key k = key_of(member, round);
    struct inter_manifest m;
    OK(inter_ledger_get_manifest(inter_service_ledger(x->s), &k, &m));
    OK(inter_ledger_blob_path(inter_service_ledger(x->s), &m.key, path, NEB_PATH_MAX));
}

static bool has_update(struct site *x, uint8_t member, uint32_t round) {
    struct inter_key k = key_of(member, round);
    struct inter_manifest m;
    return inter_ledger_get_manifest(inter_service_ledger(x->s), &k, &m) == NEB_OK &&
           inter_ledger_holds(inter_service_ledger(x->s), &m);
}

static void harm(struct site *x, uint8_t member, uint32_t round, enum harm how) {
    char path[NEB_PATH_MAX];
    struct stat info;
    struct neb_buf b = {0};
    path_of(x, member, round, path);
    assert_int_equal(stat(path, &info), 0);
    switch (how) {
    case EMPTIED: assert_int_equal(truncate(path, 0), 0); break;
    case CUT: assert_int_equal(truncate(path, info.st_size / 2), 0); break;
    case REMOVED: assert_int_equal(unlink(path), 0); break;
    default:
        OK(neb_fs_read(path, 1ull << 26, &b));
        b.p[b.len / 2] ^= 1;
        OK(neb_fs_write(path, b.p, b.len, 0600));
        neb_buf_free(&b);
    }
}

static void round_of(uint32_t round) {
    submit(&anna, 0, round);
    submit(&bert, 0, round);
    UNTIL(anna.commits[0] == round + 1 && bert.commits[0] == round + 1);
}

// An update of a past round was harmed in some way. Whether it is this member's own or not, it is
// fetched again before the worker gets the commit.
static void test_fetched_from_the_other(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    round_of(1);
    for (int how = 0; how < HARMS; how++)
        for (uint8_t member = 0; member < 2; member++) {
            uint32_t before = bert.commits[0];
            harm(&bert, member, 0, (enum harm)how);
            OK(inter_service_deliver(bert.s, job, 0, 0));
            assert_int_equal(bert.commits[0], before); // not after half of it
            UNTIL(bert.commits[0] == before + 1);      // the commit callback checks the digests
        }
    harm(&bert, 0, 0, EMPTIED); // harms all updates of a round
    harm(&bert, 1, 0, REMOVED);
    OK(inter_service_deliver(bert.s, job, 0, 0));
    UNTIL(bert.commits[0] == 2 + 2 * HARMS + 1);
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 2);
    expect_sound(&bert, 2);
}

// While rounds go on, the updates of the open round and an update that is fetched again do not
// replace each other.
static void test_beside_the_open_round(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    harm(&bert, 0, 0, EMPTIED);
    submit(&anna, 0, 1);
    OK(inter_service_deliver(bert.s, job, 0, 0));
    submit(&bert, 0, 1);
    UNTIL(bert.commits[0] == 3 && anna.commits[0] == 2);
    assert_true(has_update(&bert, 0, 0) && has_update(&bert, 0, 1));
}

// The other member has lost it too, and says so. Then the commit comes with the updates that are
// here. An update that was computed again is accepted if its digest is right.
static void test_computed_again(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    round_of(1);
    harm(&bert, 0, 0, EMPTIED);
    harm(&anna, 0, 0, CUT);
    anna.may_miss = bert.may_miss = true; // either may be asked before the update is here again
    OK(inter_service_deliver(bert.s, job, 0, 0));
    UNTIL(bert.missing == 1); // no member has it
    uint32_t hers = anna.commits[0];
    submit(&anna, 0, 0); // as a worker does after a restart
    UNTIL(anna.commits[0] > hers && has_update(&bert, 0, 0));
    assert_true(has_update(&anna, 0, 0));
    anna.may_miss = false;
}

// When an update of this member should be sent in the open round, it is found lost. The worker
// submits it again.
static void test_lost_before_it_was_sent(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    for (int how = 0; how < REMOVED + 1; how++) {
        uint32_t round = 1 + (uint32_t)how;
        stop(&bert);
        UNTIL(!anna.up); // otherwise it would be in flight
        submit(&anna, 0, round);
        harm(&anna, 0, round, (enum harm)how);
        int lost = anna.lost;
        start(&bert);
        open_job(&bert);
        submit(&bert, 0, round);

        UNTIL(anna.lost == lost + 1);
        submit(&anna, 0, round);
        UNTIL(anna.commits[0] == round + 1 && bert.commits[0] == round + 1);
    }
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 4);
    expect_sound(&bert, 4);
}

// A restarted worker computes other bytes, as devices do. The new update is sent as a later
// attempt, whether or not the first one had arrived. Two updates are never signed as one attempt.
static void test_other_bytes(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    for (int k = 0; k < 2 * HARMS; k++) {
        bool sent = k % 2;
        uint32_t round = 1 + (uint32_t)k;
        if (!sent) {
            stop(&bert);
            UNTIL(!anna.up);
        }
        submit(&anna, 0, round);
        if (sent)
            UNTIL(has_update(&bert, 0, round));
        harm(&anna, 0, round, (enum harm)(k / 2));
        restart(&anna);
        anna.run++;
        submit(&anna, 0, round);
        if (!sent) {
            start(&bert);
            open_job(&bert);
        }
        submit(&bert, 0, round);
        UNTIL(anna.commits[0] == round + 1 && bert.commits[0] == round + 1);
    }
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 1 + 2 * HARMS);
    expect_sound(&bert, 1 + 2 * HARMS);
}

// The disk loses every attempt. After the last allowed attempt, no other is signed.
static void test_lost_each_time(void **state) {
    struct inter_key k;
    struct inter_manifest m;
    (void)state;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    stop(&bert);
    for (uint32_t i = 0; i <= INTER_RETRIES_MAX; i++) {
        anna.run = i;
        submit(&anna, 0, 1);
        harm(&anna, 0, 1, EMPTIED);
        restart(&anna);
    }
    k = key_of(0, 1);
    OK(inter_ledger_get_manifest(inter_service_ledger(anna.s), &k, &m));
    assert_int_equal(m.key.attempt % (INTER_RETRIES_MAX + 1), INTER_RETRIES_MAX);
    m.bytes = 4;
    m.key.attempt = 0;
    assert_int_equal(inter_service_submit(anna.s, &m, "none", 4), NEB_ERR_EXISTS);
}

// A masked update is never replaced. It is fetched from the other member, or the job ends there
// with a message.
static void test_masked(void **state) {
    (void)state;
    anna.masked = bert.masked = true;
    open_job(&anna);
    open_job(&bert);
    round_of(0);
    submit(&anna, 0, 1);
    UNTIL(has_update(&bert, 0, 1));
    harm(&anna, 0, 1, CUT);
    restart(&anna);
    anna.run++;
    submit(&anna, 0, 1);
    assert_int_equal(anna.s->n_owed, 1);
    UNTIL(has_update(&anna, 0, 1));
    submit(&bert, 0, 1);
    UNTIL(anna.commits[0] == 2 && bert.commits[0] == 2 && !anna.s->n_owed);
    assert_int_equal(anna.gone, 0);

    stop(&bert);
    UNTIL(!anna.up);
    submit(&anna, 0, 2);
    harm(&anna, 0, 2, EMPTIED);
    restart(&anna);
    anna.run++;
    submit(&anna, 0, 2);
    start(&bert);
    open_job(&bert);
    UNTIL(anna.up);
    assert_int_equal(anna.s->n_owed, 1);
    anna.s->owed[0].until = 0;
    UNTIL(anna.gone == 1);
    assert_false(has_update(&bert, 0, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_other_bytes),
                                       TEST(test_lost_each_time),
                                       TEST(test_masked),
                                       TEST(test_fetched_from_the_other),
                                       TEST(test_beside_the_open_round),
                                       TEST(test_computed_again),
                                       TEST(test_lost_before_it_was_sent)};
    if (!set_up())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return !tear_down() || failed;
}
