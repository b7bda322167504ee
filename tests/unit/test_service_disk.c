// SPDX-License-Identifier: Apache-2.0
// inter/service over disks that are full, that fail, or that return other bytes than those written.
#include "inter/ledger/db.h"
#include "tests/unit/service_fixture.h"

#include <sqlite3.h>

static int logged_full, logged_room;
static void count_room(void *user, enum neb_log_level level, const char *line) {
    (void)user, (void)level;
    logged_full += strstr(line, "updates of others cannot be kept (no room on the disk") != NULL;
    logged_room += strstr(line, "updates of others can be kept again") != NULL;
}

// There is no room for updates of others: when one is opened, when chunks are written, and at the
// start. The agents stay, log it once, and go on when there is room. They refuse updates of their
// own worker.
static void test_full_disk(void **state) {
    (void)state;
    struct inter_manifest own = {.key = {.round = 1}, .tokens = 1, .step = 20, .steps = 10};
    memcpy(own.key.job, job, sizeof job);
    logged_full = logged_room = 0;
    neb_log_set_sink(count_room, NULL);
    open_job(&anna);
    open_job(&bert);
    submit(&anna, 0, 0);
    submit(&bert, 0, 0);
    submit(&anna, 1, 0);
    submit(&bert, 1, 0);
    neb_fault_arm("ledger.blob:*");
    UNTIL(anna.no_room == 2 && bert.no_room == 2);
    neb_fault_arm("ledger.room:*");
    stop(&bert);
    start(&bert);
    open_job(&bert);
    go_for(NEB_S);
    assert_int_equal(anna.commits[0] + anna.commits[1] + bert.commits[0] + bert.commits[1], 0);
    neb_fault_arm(NULL);
    UNTIL(anna.commits[0] && anna.commits[1] && bert.commits[0] && bert.commits[1]);
    assert_int_equal(logged_full, 3); // once for each run of an agent
    assert_int_equal(logged_room, 2);
    neb_fault_arm("ledger.room:*");
    assert_int_equal(inter_service_submit(anna.s, &own, "x", 1), NEB_ERR_NOSPC);
    neb_fault_arm(NULL);
    submit(&anna, 0, 1);
    submit(&bert, 0, 1);
    UNTIL(anna.commits[0] == 2 && bert.commits[0] == 2);
    neb_log_set_sink(testing_drop, NULL);
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 3);
    expect_sound(&bert, 3);
}

static int logged_sick;
static void count_sick(void *user, enum neb_log_level level, const char *line) {
    (void)user, (void)level;
    logged_sick += strstr(line, "updates of others cannot be kept (") != NULL;
    logged_room += strstr(line, "updates of others can be kept again") != NULL;
}

// A disk fails where updates of others are opened, synced or renamed: the agents log the fault and
// retry.
static void test_failing_disk(void **state) {
    static const char *const points[] = {"ledger.sync:*", "ledger.rename:*", "fs.folder:*",
                                         "ledger.sync:*,ledger.unlink:*"};
    (void)state;
    open_job(&anna);
    open_job(&bert);
    for (uint32_t i = 0; i < sizeof points / sizeof *points; i++) {
        int before[2] = {anna.no_room, bert.no_room};
        logged_sick = logged_room = 0;
        neb_log_set_sink(count_sick, NULL);
        submit(&anna, 0, i);
        submit(&bert, 0, i);
        neb_fault_arm(points[i]);
        UNTIL(anna.no_room > before[0] || bert.no_room > before[1]);
        neb_fault_arm(NULL);
        UNTIL(anna.commits[0] == i + 1 && bert.commits[0] == i + 1);
        neb_log_set_sink(testing_drop, NULL);
        assert_true(logged_sick || i); // the log throttle drops the later lines
        assert_true(logged_room);
    }
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 4);
    expect_sound(&bert, 4);
}

static int logged_damaged;
static void count_damaged(void *user, enum neb_log_level level, const char *line) {
    (void)user, (void)level;
    logged_damaged += strstr(line, "is damaged and is not used") != NULL;
}

static void flip_byte(const struct site *x, struct inter_key k) { // in the middle of an update
    char path[NEB_PATH_MAX];
    struct inter_manifest m;
    struct neb_buf b = {0};
    struct inter_ledger *l = NULL;
    OK(inter_ledger_open(x->dir, &l));
    OK(inter_ledger_get_manifest(l, &k, &m));
    OK(inter_blob_path(l, &m.key, ".blob", path, sizeof path));
    inter_ledger_close(&l);
    OK(neb_fs_read(path, 1ull << 26, &b));
    b.p[b.len / 2] ^= 1;
    OK(neb_fs_write(path, b.p, b.len, 0600));
    neb_buf_free(&b);
}

static struct inter_key key_of(uint8_t member, uint32_t round) {
    struct inter_key k = {.member = member, .round = round};
    memcpy(k.job, job, sizeof job);
    return k;
}

static bool has_update(const struct site *x, uint8_t member, uint32_t round) {
    struct inter_key k = key_of(member, round);
    struct inter_manifest m;
    return inter_ledger_get_manifest(inter_service_ledger(x->s), &k, &m) == NEB_OK &&
           inter_ledger_has_blob(inter_service_ledger(x->s), &m.key);
}

// Updates changed on disk. An update of another member is fetched again, and the worker submits its
// own again. An update of a past round reaches the worker once it is complete again.
static void test_altered_updates(void **state) {
    (void)state;
    logged_damaged = 0;
    open_job(&anna);
    open_job(&bert);
    submit(&anna, 0, 0);
    UNTIL(has_update(&bert, 0, 0));
    neb_log_set_sink(count_damaged, NULL);
    stop(&bert);
    flip_byte(&bert, key_of(0, 0));
    start(&bert);
    open_job(&bert);
    assert_int_equal(logged_damaged, 1);
    assert_false(has_update(&bert, 0, 0));
    UNTIL(has_update(&bert, 0, 0));
    stop(&anna);
    flip_byte(&anna, key_of(0, 0));
    start(&anna);
    open_job(&anna);
    assert_int_equal(logged_damaged, 2);
    submit_of(&anna, 0, 0,
              11); // the same bytes with other metadata: the signed manifest stays valid
    submit(&bert, 0, 0);
    UNTIL(anna.commits[0] == 1 && bert.commits[0] == 1);
    assert_memory_equal(anna.last, bert.last, sizeof anna.last);
    stop(&bert);
    expect_sound(&anna, 1);
    expect_sound(&bert, 1);
    flip_byte(&bert, key_of(0, 0));
    start(&bert);
    open_job(&bert);
    OK(inter_service_deliver(bert.s, job, 0, 0));
    assert_int_equal(bert.commits[0], 1);
    assert_int_equal(logged_damaged, 3);
    UNTIL(bert.commits[0] == 2);
    neb_log_set_sink(testing_drop, NULL);
}

static void alter(const struct site *x, const char *sql) {
    char path[128];
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/ledger.db", x->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_true(sqlite3_changes(db) > 0);
    sqlite3_close(db);
}

static void refuses(struct site *x) {
    struct inter_job_config c = job_config(x);
    start(x);
    assert_int_equal(inter_service_job_open(x->s, &c), NEB_ERR_CORRUPT);
}

#define ZEROS "00000000000000000000000000000000"

static void next_round(uint32_t round) {
    submit(&anna, 0, round);
    submit(&bert, 0, round);
    UNTIL(anna.commits[0] == round + 1 && bert.commits[0] == round + 1);
}

// A manifest of the open round is not signed by its member. The true manifest is fetched.
static void altered_manifest(uint32_t round, const char *sql) {
    submit(&anna, 0, round);
    UNTIL(has_update(&bert, 0, round));
    stop(&bert);
    alter(&bert, sql);
    int asked = bert.previous_key_asked;
    start(&bert);
    open_job(&bert);
    assert_int_equal(bert.previous_key_asked, asked + 1);
    assert_false(has_update(&bert, 0, round));
    submit(&bert, 0, round);
    UNTIL(anna.commits[0] == round + 1 && bert.commits[0] == round + 1);
}

// A job does not continue from rows that were altered or removed.
static void test_altered_rows(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    next_round(0);
    stop(&bert);
    alter(&bert, "CREATE TABLE kept AS SELECT * FROM record; DELETE FROM record WHERE round=0");
    refuses(&bert); // there is no other copy
    stop(&bert);
    alter(&bert, "INSERT INTO record SELECT * FROM kept; DROP TABLE kept; UPDATE chain SET "
                 "next=next");
    start(&bert);
    open_job(&bert);
    next_round(1);
    altered_manifest(2, "UPDATE manifest SET body=CAST(substr(body,1,length(body)-1)||x'ff' AS "
                        "BLOB) WHERE round=2 AND member=0");
    // The digest follows the key of 45 bytes.
    altered_manifest(3, "UPDATE manifest SET body=CAST(substr(body,1,45)||x'" ZEROS ZEROS
                        "'||substr(body,78) AS BLOB) WHERE round=3 AND member=0");
    stop(&bert);
    expect_sound(&bert, 4);
    alter(&bert, "UPDATE record SET body=(SELECT body FROM record AS r WHERE r.round=1 AND "
                 "r.fragment=0) WHERE round=3 AND fragment=0");
    refuses(&bert);
    stop(&bert);
    alter(&bert, "DELETE FROM record WHERE round=3");
    refuses(&bert);
}

// A vote was given and then lost. It is not given again.
static void test_lost_vote(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    next_round(0);
    stop(&bert);
    alter(&bert, "INSERT INTO promise VALUES((SELECT job FROM record LIMIT 1),0,1,0,zeroblob(32))");
    refuses(&bert);
}

// The ledger holds another update of hers under this number. The service reports this reason, not a
// full disk.
static void test_two_updates_of_one_number(void **state) {
    (void)state;
    struct inter_manifest m = {
        .key = {.member = 0}, .bytes = 100, .chunk_bytes = INTER_CHUNK_MIN, .tokens = 1};
    memcpy(m.key.job, job, sizeof job);
    open_job(&anna);
    open_job(&bert);
    m.key.attempt = inter_node_attempt(anna.s->node, job);
    OK(inter_ledger_put_manifest(inter_service_ledger(bert.s), &m));
    logged_full = 0;
    neb_log_set_sink(count_room, NULL);
    submit(&anna, 0, 0);
    UNTIL(bert.no_room > 0);
    assert_non_null(inter_service_no_room(bert.s));
    assert_non_null(
        strstr(inter_service_no_room(bert.s), "member 0 has signed two updates as attempt"));
    assert_int_equal(logged_full, 0);
    neb_log_set_sink(testing_drop, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_full_disk),    TEST(test_failing_disk), TEST(test_altered_updates),
        TEST(test_altered_rows), TEST(test_lost_vote),    TEST(test_two_updates_of_one_number)};
    if (!set_up())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return !tear_down() || failed;
}
