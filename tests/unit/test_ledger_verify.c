// SPDX-License-Identifier: Apache-2.0
// inter/ledger/verify: whatever is altered, removed, inserted or swapped in a ledger is found and
// named.
#include "tests/unit/ledger_fixture.h"

#include "inter/ledger/verify.h"
#include <sqlite3.h>

enum {
    ROUNDS = 4,
    PRUNED = 1
}; // committed rounds of each fragment; fragment 0 is pruned below round 1

static char root[] = "/tmp/nebula-verify-XXXXXX";
static char dir[64];
static sqlite3 *db; // makes the alterations

struct found {
    unsigned n, kinds;             // a bit for each kind of fault
    uint64_t rounds[FX_FRAGMENTS]; // a bit for each named round
};

static void on_damage(void *user, const struct inter_damage *d) {
    struct found *f = user;
    f->n++;
    f->kinds |= 1u << d->kind;
    assert_true(d->text && *d->text);
    if (d->placed && d->fragment < FX_FRAGMENTS && d->round < 64)
        f->rounds[d->fragment] |= 1ull << d->round;
}

// tells which members a signed list removed, or which gate the job has; NULL: neither
static void (*taken)(void *user, const uint8_t job[INTER_ID_BYTES], struct inter_job_config *out);

static enum neb_status look(bool signatures, struct found *f, struct inter_ledger_counts *n) {
    struct inter_ledger *l = NULL;
    struct inter_ledger_check c = {f, signatures ? fx_verify : NULL, on_damage, taken};
    *f = (struct found){0};
    OK(inter_ledger_open_readonly(dir, &l));
    enum neb_status st = inter_ledger_verify(l, &c, n);
    assert_int_equal(f->n, n->damages);
    inter_ledger_close(&l);
    return st;
}

static void expect(uint32_t fragment, uint32_t round, enum inter_damage_kind kind) {
    struct found f;
    struct inter_ledger_counts n;
    assert_int_equal(look(true, &f, &n), NEB_ERR_CORRUPT);
    assert_true(f.rounds[fragment] >> round & 1);
    assert_true(f.kinds >> kind & 1);
}

static void expect_well(void) {
    struct found f;
    struct inter_ledger_counts n;
    OK(look(true, &f, &n));
}

static void sql(const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(db));
}

static int make_ledger(void **state) {
    (void)state;
    static int made;
    struct inter_ledger *l = NULL;
    char path[96];
    snprintf(dir, sizeof dir, "%s/%d", root, made++);
    OK(inter_ledger_open(dir, &l));
    for (uint32_t r = 0; r < ROUNDS; r++)
        for (uint32_t f = 0; f < FX_FRAGMENTS; f++)
            OK(fx_round(l, f, r));
    OK(inter_ledger_prune(l, fx_job, 0, PRUNED));
    OK(fx_put_own(l, 1, ROUNDS)); // round 4 is open
    OK(fx_put_manifest(l, 1, ROUNDS, 0));
    OK(fx_put_manifest(l, 1, ROUNDS, 1));
    OK(fx_put_vote(l, 1, ROUNDS));
    inter_ledger_close(&l);
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sql("PRAGMA synchronous=OFF");
    return 0;
}

static int drop_ledger(void **state) {
    (void)state;
    return sqlite3_close(db);
}

static void test_intact(void **state) {
    (void)state;
    struct found f;
    struct inter_ledger_counts n;
    OK(look(true, &f, &n));
    assert_int_equal(n.fragments, 2);
    assert_int_equal(n.records, 2 * ROUNDS);
    assert_int_equal(n.manifests, 2 * (2 * ROUNDS - PRUNED) + 2);
    assert_int_equal(n.votes, 2 * ROUNDS - PRUNED + 1);
    assert_int_equal(n.signatures, 3 * n.records + n.manifests + n.votes); // a record has two votes
    assert_int_equal(n.blobs, 2 * (2 * ROUNDS - PRUNED) + 1);
    assert_int_equal(n.blob_bytes,
                     (2 * ROUNDS - PRUNED) * (FX_OWN_BYTES + FX_PEER_BYTES) + FX_OWN_BYTES);
    assert_int_equal(n.strays, 0);
    OK(look(false, &f, &n));
    assert_int_equal(n.signatures, 0);
}

// ---- altered bytes

// Flips every byte of a row's body in turn.
static void flip_body(const char *table, const char *where, uint32_t fragment, uint32_t round) {
    char text[512];
    sqlite3_stmt *get, *put;
    struct found f;
    struct inter_ledger_counts n;
    snprintf(text, sizeof text, "SELECT body FROM %s WHERE %s", table, where);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &get, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(get), SQLITE_ROW);
    int len = sqlite3_column_bytes(get, 0);
    uint8_t body[1024];
    assert_in_range(len, 100, sizeof body);
    memcpy(body, sqlite3_column_blob(get, 0), (size_t)len);
    sqlite3_finalize(get);
    snprintf(text, sizeof text, "UPDATE %s SET body=? WHERE %s", table, where);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &put, NULL), SQLITE_OK);
    for (int i = 0; i <= len; i++) { // the last pass restores the row
        if (i < len)
            body[i] ^= (uint8_t)(1 << (i % 8));
        sqlite3_reset(put);
        sqlite3_bind_blob(put, 1, body, len, SQLITE_STATIC);
        assert_int_equal(sqlite3_step(put), SQLITE_DONE);
        sqlite3_reset(put); // ends the transaction
        if (i == len)
            break;
        if (look(true, &f, &n) != NEB_ERR_CORRUPT || !(f.rounds[fragment] >> round & 1))
            fail_msg("%s, %s: altered byte %d was not found", table, where, i);
        body[i] ^= (uint8_t)(1 << (i % 8));
    }
    sqlite3_finalize(put);
    expect_well();
}

static void test_altered_record(void **state) {
    (void)state;
    flip_body("record", "fragment=1 AND round=0", 1, 0);
    flip_body("record", "fragment=0 AND round=2", 0, 2);
    // only the row of the chain names the newest record
    flip_body("record", "fragment=1 AND round=3", 1, 3);
}

static void first_taken(void *user, const uint8_t id[INTER_ID_BYTES],
                        struct inter_job_config *out) {
    (void)user, (void)id;
    out->removed = mset_from_bits(1);
}
static void second_taken(void *user, const uint8_t id[INTER_ID_BYTES],
                         struct inter_job_config *out) {
    (void)user, (void)id;
    out->removed = mset_from_bits(2);
}
static void masked_with_two(void *user, const uint8_t id[INTER_ID_BYTES],
                            struct inter_job_config *out) {
    (void)user, (void)id;
    out->masked = true;
    out->colluders = 2;
}

static enum neb_status with_one_vote(struct inter_record *r, struct found *f) {
    struct inter_ledger_counts n;
    struct neb_buf b = {0};
    sqlite3_stmt *put;
    inter_record_put(&b, r);
    assert_int_equal(sqlite3_prepare_v2(db, "UPDATE record SET body=? WHERE fragment=1 AND round=3",
                                        -1, &put, NULL),
                     SQLITE_OK);
    sqlite3_bind_blob(put, 1, b.p, (int)b.len, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(put), SQLITE_DONE);
    sqlite3_finalize(put);
    neb_buf_free(&b);
    return look(true, f, &n);
}

// After `promote` the survivor commits with its own vote alone. One vote is enough only if a signed
// list removed the other member.
static void test_promoted_survivor(void **state) {
    (void)state;
    struct found f;
    struct inter_record r = fx_chain(1, 3), both = r;
    assert_true(r.leader == 0 && r.term > 0);
    r.n_accepts = 1;
    assert_int_equal(with_one_vote(&r, &f), NEB_ERR_CORRUPT);
    assert_true(f.rounds[1] >> 3 & 1);
    taken = second_taken;
    OK(with_one_vote(&r, &f));
    taken = first_taken; // the voter is the removed member
    assert_int_equal(with_one_vote(&r, &f), NEB_ERR_CORRUPT);
    taken = second_taken; // a vote of the removed member does not count
    r.accepts[0] = both.accepts[1];
    assert_int_equal(with_one_vote(&r, &f), NEB_ERR_CORRUPT);
    OK(with_one_vote(&both, &f));
    taken = NULL;
    OK(with_one_vote(&both, &f));
}

// A majority of two is not enough for a masked job with two colluders.
static void test_masked_job_needs_more_votes(void **state) {
    (void)state;
    taken = masked_with_two;
    expect(1, 3, INTER_DAMAGE_SIGNATURE);
    taken = NULL;
    expect_well();
}

static void test_altered_manifest(void **state) {
    (void)state;
    flip_body("manifest", "fragment=0 AND round=1 AND member=1", 0, 1);
    flip_body("manifest", "fragment=1 AND round=4 AND member=0", 1, 4); // open
}

static void test_altered_vote(void **state) {
    (void)state;
    flip_body("vote", "fragment=1 AND round=4", 1, 4);
}

// Without keys the chain still finds an altered record, but not an altered signature.
static void test_altered_without_keys(void **state) {
    (void)state;
    struct found f;
    struct inter_ledger_counts n;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct neb_buf b = {0};
        struct inter_record r = fx_chain(1, round);
        sqlite3_stmt *put;
        r.entries[0].tokens ^= 1;
        inter_record_put(&b, &r);
        assert_int_equal(sqlite3_prepare_v2(db,
                                            "UPDATE record SET body=? WHERE fragment=1 AND round=?",
                                            -1, &put, NULL),
                         SQLITE_OK);
        sqlite3_bind_blob(put, 1, b.p, (int)b.len, SQLITE_STATIC);
        sqlite3_bind_int(put, 2, (int)round);
        assert_int_equal(sqlite3_step(put), SQLITE_DONE);
        sqlite3_finalize(put);
        neb_buf_free(&b);
        assert_int_equal(look(false, &f, &n), NEB_ERR_CORRUPT);
        assert_true(f.rounds[1] >> round & 1);
        assert_true(f.kinds & 1u << INTER_DAMAGE_CHAIN);
        assert_int_equal(f.rounds[0], 0);
    }
}

// ---- rows

static void test_removed_rows(void **state) {
    (void)state;
    for (uint32_t f = 0; f < FX_FRAGMENTS; f++)
        for (uint32_t r = 0; r < ROUNDS; r++) {
            sql("CREATE TEMP TABLE old AS SELECT * FROM record WHERE fragment=%u AND round=%u", f,
                r);
            sql("DELETE FROM record WHERE fragment=%u AND round=%u", f, r);
            expect(f, r, INTER_DAMAGE_CHAIN);
            sql("INSERT INTO record SELECT * FROM old; DROP TABLE old");
            for (uint32_t m = 0; m < 2 && (f || r >= PRUNED); m++) {
                sql("CREATE TEMP TABLE old AS SELECT * FROM manifest WHERE fragment=%u AND "
                    "round=%u AND member=%u",
                    f, r, m);
                sql("DELETE FROM manifest WHERE fragment=%u AND round=%u AND member=%u", f, r, m);
                expect(f, r, INTER_DAMAGE_MANIFEST);
                sql("INSERT INTO manifest SELECT * FROM old; DROP TABLE old");
            }
            expect_well();
        }
    // a row of the open round: it stops the node from promising something else
    sql("CREATE TEMP TABLE old AS SELECT * FROM manifest WHERE round=%u AND member=1", ROUNDS);
    sql("DELETE FROM manifest WHERE round=%u AND member=1", ROUNDS);
    expect(1, ROUNDS, INTER_DAMAGE_MANIFEST);
    sql("INSERT INTO manifest SELECT * FROM old; DROP TABLE old");
    for (int r = PRUNED; r <= ROUNDS; r++) {
        sql("CREATE TEMP TABLE old AS SELECT * FROM vote WHERE fragment=1 AND round=%d", r);
        sql("DELETE FROM vote WHERE fragment=1 AND round=%d", r);
        expect(1, (uint32_t)r, INTER_DAMAGE_VOTE);
        sql("INSERT INTO vote SELECT * FROM old; DROP TABLE old");
    }
    expect_well();
    sql("CREATE TEMP TABLE old AS SELECT * FROM promise WHERE fragment=1 AND round=%u", ROUNDS);
    sql("DELETE FROM promise WHERE fragment=1 AND round=%u", ROUNDS);
    expect(1, ROUNDS, INTER_DAMAGE_MANIFEST);
    sql("INSERT INTO promise SELECT * FROM old; DROP TABLE old");
    expect_well();
    sql("DELETE FROM record WHERE fragment=0 AND round>1"); // several rows at the end
    expect(0, 2, INTER_DAMAGE_CHAIN);
    sql("DELETE FROM chain WHERE fragment=1");
    expect(1, 0, INTER_DAMAGE_CHAIN);
    expect(1, 3, INTER_DAMAGE_CHAIN);
}

static void test_inserted_rows(void **state) {
    (void)state;
    // a signed record after the newest one, as in a ledger assembled from two
    struct inter_record next = fx_chain(0, ROUNDS);
    struct neb_buf b = {0};
    sqlite3_stmt *put;
    inter_record_put(&b, &next);
    assert_int_equal(
        sqlite3_prepare_v2(db, "INSERT INTO record(job, fragment, round, body) VALUES(?,0,?,?)", -1,
                           &put, NULL),
        SQLITE_OK);
    sqlite3_bind_blob(put, 1, fx_job, INTER_ID_BYTES, SQLITE_STATIC);
    sqlite3_bind_int(put, 2, ROUNDS);
    sqlite3_bind_blob(put, 3, b.p, (int)b.len, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(put), SQLITE_DONE);
    sqlite3_finalize(put);
    neb_buf_free(&b);
    expect(0, ROUNDS, INTER_DAMAGE_CHAIN);
    sql("DELETE FROM record WHERE fragment=0 AND round=%u", ROUNDS);
    // rows under wrong keys
    sql("INSERT INTO manifest SELECT job, fragment, 2, member, 7, body FROM manifest WHERE "
        "fragment=1 AND round=1 AND member=0");
    expect(1, 2, INTER_DAMAGE_MANIFEST);
    sql("DELETE FROM manifest WHERE attempt=7");
    sql("INSERT INTO vote SELECT job, 0, 0, body FROM vote WHERE fragment=1 AND round=4");
    expect(0, 0, INTER_DAMAGE_VOTE);
    sql("DELETE FROM vote WHERE fragment=0 AND round=0");
    expect_well();
    sql("INSERT INTO record(job, fragment, round, body) SELECT x'00', 0, 0, body FROM record WHERE "
        "fragment=0 AND round=0");
    struct found f;
    struct inter_ledger_counts n;
    assert_int_equal(look(true, &f, &n), NEB_ERR_CORRUPT);
    assert_true(f.kinds & 1u << INTER_DAMAGE_DATABASE);
}

static void test_swapped_rows(void **state) {
    (void)state;
    sql("UPDATE record SET round=99 WHERE fragment=0 AND round=1;"
        "UPDATE record SET round=1 WHERE fragment=0 AND round=2;"
        "UPDATE record SET round=2 WHERE fragment=0 AND round=99");
    expect(0, 1, INTER_DAMAGE_CHAIN);
    expect(0, 2, INTER_DAMAGE_CHAIN);
}

static void test_chain_row(void **state) {
    (void)state;
    static const char *const changes[] = {
        "first=1", "floor=2",           "floor=9",           "kept=0",         "next=3",
        "next=5",  "head=zeroblob(32)", "head=zeroblob(31)", "base=x'000102'", "base=head"};
    // the rows look as if the cap had dropped rounds
    sql("UPDATE chain SET kept=3 WHERE fragment=1");
    sql("CREATE TEMP TABLE old AS SELECT * FROM chain");
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct found f;
        struct inter_ledger_counts n;
        sql("UPDATE chain SET %s WHERE fragment=0", changes[i]);
        if (look(true, &f, &n) != NEB_ERR_CORRUPT || !f.rounds[0])
            fail_msg("chain: %s was not found", changes[i]);
        sql("DELETE FROM chain; INSERT INTO chain SELECT * FROM old");
    }
    expect_well();
}

// ---- blobs

static void blob_file(uint32_t round, uint8_t member, char out[NEB_PATH_MAX]) {
    struct inter_key k = fx_key(1, round, member);
    fx_file(dir, &k, ".blob", out);
}

static void test_blobs(void **state) {
    (void)state;
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX], aside[96];
    struct neb_buf was = {0};
    struct found f;
    struct inter_ledger_counts n;
    blob_file(1, 1, a);
    blob_file(2, 1, b);
    snprintf(aside, sizeof aside, "%s/aside", root);
    OK(neb_fs_read(a, 1 << 20, &was));
    for (size_t at = 0; at < was.len; at += 997) { // a byte in every region
        was.p[at] ^= 0x20;
        OK(neb_fs_write(a, was.p, was.len, 0600));
        expect(1, 1, INTER_DAMAGE_BLOB);
        was.p[at] ^= 0x20;
    }
    OK(neb_fs_write(a, was.p, was.len - 1, 0600));
    expect(1, 1, INTER_DAMAGE_BLOB);
    OK(neb_fs_write(a, was.p, 0, 0600));
    expect(1, 1, INTER_DAMAGE_BLOB);
    OK(neb_fs_write(a, was.p, was.len, 0600));
    expect_well();
    // two files change places
    assert_int_equal(rename(a, aside) | rename(b, a) | rename(aside, b), 0);
    expect(1, 1, INTER_DAMAGE_BLOB);
    expect(1, 2, INTER_DAMAGE_BLOB);
    assert_int_equal(rename(a, aside) | rename(b, a) | rename(aside, b), 0);
    OK(neb_fs_remove(a));
    expect(1, 1, INTER_DAMAGE_BLOB);
    OK(neb_fs_write(a, was.p, was.len, 0600));
    // files without a promise are harmless, but counted
    blob_file(60, 1, b);
    OK(neb_fs_write(b, was.p, was.len, 0600));
    OK(look(true, &f, &n));
    assert_int_equal(n.strays, 1);
    neb_buf_free(&was);
}

// ---- the file itself

static void add_hex(struct neb_buf *out, sqlite3_stmt *s) {
    for (int i = 0; i < sqlite3_column_count(s); i++) {
        neb_buf_u32(out, (uint32_t)sqlite3_column_bytes(s, i));
        neb_buf_add(out, sqlite3_column_blob(s, i), (size_t)sqlite3_column_bytes(s, i));
    }
}

// The content of the checked tables as bytes; false: unreadable.
static bool contents(struct neb_buf *out) {
    static const char *const queries[] = {
        "SELECT job, fragment, round, body FROM record ORDER BY 1, 2, 3",
        "SELECT * FROM manifest ORDER BY 1, 2, 3, 4, 5", "SELECT * FROM vote ORDER BY 1, 2, 3",
        "SELECT * FROM chain ORDER BY 1, 2", "SELECT * FROM promise ORDER BY 1, 2, 3"};
    char path[96];
    sqlite3 *look_db;
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    bool good = sqlite3_open_v2(path, &look_db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK;
    neb_buf_clear(out);
    for (size_t i = 0; good && i < sizeof queries / sizeof queries[0]; i++) {
        sqlite3_stmt *s = NULL;
        good = sqlite3_prepare_v2(look_db, queries[i], -1, &s, NULL) == SQLITE_OK;
        int rc = SQLITE_DONE;
        while (good && (rc = sqlite3_step(s)) == SQLITE_ROW)
            add_hex(out, s);
        good = good && rc == SQLITE_DONE;
        sqlite3_finalize(s);
    }
    sqlite3_close(look_db);
    return good;
}

// The check finds an altered byte of the database file, or the byte changes nothing (free space,
// statistics).
static void test_altered_file(void **state) {
    (void)state;
    char path[96];
    struct neb_buf file = {0}, want = {0}, have = {0};
    unsigned seen = 0, harmless = 0;
    sql("PRAGMA wal_checkpoint(TRUNCATE)");
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    sqlite3_close(db);
    db = NULL;
    assert_true(contents(&want));
    OK(neb_fs_read(path, 1 << 22, &file));
    for (size_t at = 0; at < file.len; at += 61) {
        struct inter_ledger *l = NULL;
        struct inter_ledger_counts n = {0};
        struct found f = {0};
        struct inter_ledger_check c = {&f, fx_verify, on_damage, NULL};
        file.p[at] ^= 0x11;
        OK(neb_fs_write(path, file.p, file.len, 0600));
        file.p[at] ^= 0x11;
        enum neb_status st = inter_ledger_open_readonly(dir, &l);
        if (st == NEB_OK)
            st = inter_ledger_verify(l, &c, &n);
        inter_ledger_close(&l);
        seen += st != NEB_OK;
        if (st != NEB_OK)
            continue;
        harmless++;
        if (!contents(&have) || have.len != want.len || memcmp(have.p, want.p, want.len))
            fail_msg("altered byte %zu of ledger.db was not found", at);
    }
    assert_true(seen > 100 && harmless > 0);
    neb_buf_free(&file);
    neb_buf_free(&want);
    neb_buf_free(&have);
}

static void test_changes_nothing(void **state) {
    (void)state;
    char path[96];
    struct neb_buf before = {0}, after = {0};
    struct inter_ledger *l = NULL;
    struct found f;
    struct inter_ledger_counts n;
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    sqlite3_close(db);
    db = NULL;
    OK(neb_fs_read(path, 1 << 22, &before));
    expect_well();
    OK(neb_fs_read(path, 1 << 22, &after));
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.p, after.p, after.len);
    neb_buf_free(&before);
    neb_buf_free(&after);
    // the check runs beside a writing agent, whose WAL counts too
    OK(inter_ledger_open(dir, &l));
    for (uint32_t r = ROUNDS; r < ROUNDS + 3; r++) {
        OK(fx_round(l, 0, r));
        OK(look(true, &f, &n));
        assert_int_equal(n.records, 2 * ROUNDS + 1 + r - ROUNDS);
        OK(inter_ledger_prune(l, fx_job, 0, r));
        expect_well();
    }
    OK(inter_ledger_saved(l, fx_job, &(uint32_t){ROUNDS + 3}, 1));
    OK(inter_ledger_set_cap(l, 100000));
    expect_well();
    inter_ledger_close(&l);
    expect_well();
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_ledger, drop_ledger)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_intact),           TEST(test_altered_record),
        TEST(test_altered_manifest), TEST(test_promoted_survivor),
        TEST(test_altered_vote),     TEST(test_altered_without_keys),
        TEST(test_removed_rows),     TEST(test_masked_job_needs_more_votes),
        TEST(test_inserted_rows),    TEST(test_swapped_rows),
        TEST(test_chain_row),        TEST(test_blobs),
        TEST(test_altered_file),     TEST(test_changes_nothing)};
    if (!mkdtemp(root))
        return 1;
    neb_log_set_sink(testing_drop, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return neb_fs_remove_tree(root) != NEB_OK || failed;
}
