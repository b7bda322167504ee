// SPDX-License-Identifier: Apache-2.0
// inter/ledger: what is promised stays promised when the ledger is closed and opened again.
#include "tests/unit/ledger_each.h"

#include <sqlite3.h>

static void sql(const char *text) { // runs it from outside, while the ledger is closed
    char path[NEB_PATH_MAX];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static const char *const tables[] = {"manifest", "vote",  "promise",  "record",
                                     "chain",    "saved", "standing", "job"};
enum { TABLES = sizeof tables / sizeof *tables };

// Counts the rows of a job in each table. The ledger is closed.
static void rows_of(const uint8_t job[INTER_ID_BYTES], int rows[TABLES]) {
    char path[NEB_PATH_MAX], text[128];
    sqlite3 *db;
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (int i = 0; i < TABLES; i++) {
        sqlite3_stmt *q;
        snprintf(text, sizeof text, "SELECT count(*) FROM %s WHERE %s=?", tables[i],
                 strcmp(tables[i], "job") != 0 ? "job" : "id");
        assert_int_equal(sqlite3_prepare_v2(db, text, -1, &q, NULL), SQLITE_OK);
        sqlite3_bind_blob(q, 1, job, INTER_ID_BYTES, SQLITE_STATIC);
        assert_int_equal(sqlite3_step(q), SQLITE_ROW);
        rows[i] = sqlite3_column_int(q, 0);
        sqlite3_finalize(q);
    }
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void expect_rows(const uint8_t job[INTER_ID_BYTES], const int want[TABLES]) {
    int rows[TABLES];
    rows_of(job, rows);
    for (int i = 0; i < TABLES; i++)
        if (rows[i] != want[i])
            fail_msg("table %s has %d rows of the job, not %d", tables[i], rows[i], want[i]);
}

static void write_file(const struct inter_key *k, const char *suffix) {
    char path[NEB_PATH_MAX];
    fx_file(dir, k, suffix, path);
    OK(neb_fs_write(path, "left", 4, 0600));
}

static bool same_record(const struct inter_record *a, const struct inter_record *b) {
    struct neb_buf x = {0}, y = {0};
    inter_record_put(&x, a);
    inter_record_put(&y, b);
    bool same = x.len == y.len && !memcmp(x.p, y.p, x.len);
    neb_buf_free(&x);
    neb_buf_free(&y);
    return same;
}

static void test_a_round(void **state) {
    (void)state;
    struct inter_key k = fx_key(1, 0, 1);
    struct inter_manifest m, want = fx_manifest(&k);
    struct inter_record r, committed = fx_chain(1, 0);
    uint32_t got;
    assert_int_equal(inter_ledger_get_manifest(l, &k, &m), NEB_ERR_NOT_FOUND);
    OK(fx_put_own(l, 1, 0));
    OK(fx_put_manifest(l, 1, 0, 0));
    reopen();
    fx_check_blob(l, 1, 0, 0);
    OK(fx_put_manifest(l, 1, 0, 1));
    reopen();
    OK(inter_ledger_get_manifest(l, &k, &m));
    assert_memory_equal(m.sha256, want.sha256, sizeof m.sha256);
    assert_memory_equal(m.sig, want.sig, sizeof m.sig);
    assert_int_equal(m.tokens, want.tokens);
    assert_false(inter_ledger_has_blob(l, &k));
    OK(fx_part_open(l, 1, 0, &got));
    assert_int_equal(got, 0);
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 1, 0, 2 - c));
    assert_false(inter_ledger_has_blob(l, &k));
    OK(fx_part_finish(l, 1, 0));
    OK(fx_part_finish(l, 1, 0)); // a repetition is harmless
    reopen();
    fx_check_blob(l, 1, 0, 1);
    assert_false(fx_has_file(dir, 1, 0, 1, ".part") || fx_has_file(dir, 1, 0, 1, ".map"));
    assert_int_equal(inter_ledger_get_vote(l, fx_job, 1, 0, &r), NEB_ERR_NOT_FOUND);
    OK(fx_put_vote(l, 1, 0));
    reopen();
    OK(inter_ledger_get_vote(l, fx_job, 1, 0, &r));
    struct inter_record proposal = committed;
    proposal.n_accepts = 0;
    assert_true(same_record(&r, &proposal));
    assert_int_equal(inter_ledger_last_commit(l, fx_job, 1, &r), NEB_ERR_NOT_FOUND);
    OK(fx_put_commit(l, 1, 0));
    reopen();
    OK(inter_ledger_last_commit(l, fx_job, 1, &r));
    assert_true(same_record(&r, &committed));
    OK(inter_ledger_get_commit(l, fx_job, 1, 0, &r));
    assert_int_equal(inter_ledger_get_commit(l, fx_job, 0, 0, &r), NEB_ERR_NOT_FOUND);
    assert_int_equal(inter_ledger_get_commit(l, fx_job, 1, 1, &r), NEB_ERR_NOT_FOUND);
    assert_int_equal(inter_ledger_used(l), FX_OWN_BYTES + FX_PEER_BYTES);
}

static void test_one_digest_a_key(void **state) {
    (void)state;
    struct inter_key k = fx_key(0, 0, 0);
    struct inter_manifest m, other = fx_manifest(&k), kept = other;
    uint8_t blob[FX_PEER_BYTES];
    size_t n = fx_blob(&k, blob);
    OK(inter_ledger_put_blob(l, &k, blob, n));
    OK(inter_ledger_put_blob(l, &k, blob, n));
    blob[n - 1] ^= 1;
    assert_int_equal(inter_ledger_put_blob(l, &k, blob, n), NEB_ERR_EXISTS);
    assert_int_equal(inter_ledger_put_blob(l, &k, blob, n - 1), NEB_ERR_EXISTS);
    fx_check_blob(l, 0, 0, 0);
    // the update is not promised yet: after a crash here the worker may compute other bytes
    reopen();
    assert_false(inter_ledger_has_blob(l, &k));
    assert_int_equal(inter_ledger_used(l), 0);
    OK(inter_ledger_put_blob(l, &k, blob, n));
    reopen();
    OK(fx_put_own(l, 0, 0));
    OK(inter_ledger_put_manifest(l, &other));
    reopen();
    assert_true(inter_ledger_has_blob(l, &k));
    OK(inter_ledger_put_manifest(l, &other));
    other.sha256[5] ^= 4;
    fx_sign_manifest(&other);
    assert_int_equal(inter_ledger_put_manifest(l, &other), NEB_ERR_EXISTS);
    reopen();
    assert_int_equal(inter_ledger_put_manifest(l, &other), NEB_ERR_EXISTS);
    OK(inter_ledger_get_manifest(l, &k, &m));
    assert_memory_equal(m.sha256, kept.sha256, sizeof m.sha256);
    // a lost file may be replaced only by the promised bytes
    char path[NEB_PATH_MAX];
    fx_file(dir, &k, ".blob", path);
    OK(neb_fs_remove(path));
    assert_int_equal(inter_ledger_put_blob(l, &k, blob, n), NEB_ERR_EXISTS);
    OK(fx_put_own(l, 0, 0));
    // another attempt is another key
    other.key.attempt = 1;
    OK(inter_ledger_put_manifest(l, &other));
    OK(inter_ledger_get_manifest(l, &k, &m));
    assert_int_equal(m.key.attempt, 1);
}

static void test_one_vote_a_term(void **state) {
    (void)state;
    struct inter_record first = fx_chain(0, 0), second = first, r;
    second.entries[1].tokens++;
    fx_sign_record(&second);
    OK(inter_ledger_put_vote(l, &first));
    OK(inter_ledger_put_vote(l, &first));
    assert_int_equal(inter_ledger_put_vote(l, &second), NEB_ERR_EXISTS);
    reopen();
    assert_int_equal(inter_ledger_put_vote(l, &second), NEB_ERR_EXISTS);
    OK(inter_ledger_get_vote(l, fx_job, 0, 0, &r));
    assert_true(same_record(&r, &first));
    second.term = 3;
    second.leader = 1;
    fx_sign_record(&second);
    OK(inter_ledger_put_vote(l, &second));
    reopen();
    assert_int_equal(inter_ledger_put_vote(l, &first), NEB_ERR_EXISTS); // a lower term
    first.term = 2;
    assert_int_equal(inter_ledger_put_vote(l, &first), NEB_ERR_EXISTS);
    first.term = 3; // the other leader of this term
    assert_int_equal(inter_ledger_put_vote(l, &first), NEB_ERR_EXISTS);
    OK(inter_ledger_get_vote(l, fx_job, 0, 0, &r));
    assert_true(same_record(&r, &second));
    OK(fx_put_vote(l, 1, 0)); // another fragment or round has its own vote
    first = fx_chain(0, 1);
    OK(inter_ledger_put_vote(l, &first));
}

static void test_one_record_a_round(void **state) {
    (void)state;
    struct inter_record r, a = fx_chain(0, 0), b = a, next = fx_chain(0, 1);
    struct inter_chain c;
    // there is a gap before this record
    assert_int_equal(inter_ledger_put_commit(l, &next), NEB_ERR_STATE);
    OK(inter_ledger_put_commit(l, &a));
    OK(inter_ledger_put_commit(l, &a));
    b.term = 2; // the same value, proposed again by a later leader
    OK(inter_ledger_put_commit(l, &b));
    reopen();
    b = a;
    b.entries[0].tokens++;
    assert_int_equal(inter_ledger_put_commit(l, &b), NEB_ERR_EXISTS);
    b = next;
    b.previous[31] ^= 1;
    assert_int_equal(inter_ledger_put_commit(l, &b), NEB_ERR_STATE);
    b = fx_chain(0, 2);
    assert_int_equal(inter_ledger_put_commit(l, &b), NEB_ERR_STATE);
    OK(inter_ledger_last_commit(l, fx_job, 0, &r));
    assert_true(same_record(&r, &a));
    OK(inter_ledger_put_commit(l, &next));
    OK(inter_ledger_put_commit(l, &a)); // an old record, put again
    OK(inter_ledger_last_commit(l, fx_job, 0, &r));
    assert_int_equal(r.round, 1);
    OK(inter_ledger_chain(l, fx_job, 0, &c));
    assert_int_equal(c.first, 0);
    assert_int_equal(c.next, 2);
    uint8_t head[INTER_SHA_BYTES];
    inter_record_hash(&next, head);
    assert_memory_equal(c.head, head, sizeof head);
    assert_int_equal(inter_ledger_chain(l, fx_job, 1, &c), NEB_ERR_NOT_FOUND);
}

static void test_begin_at(void **state) {
    (void)state;
    struct inter_record r, far = fx_chain(0, 9);
    struct inter_chain c;
    uint32_t floor, got;
    for (uint32_t i = 0; i < 3; i++)
        OK(fx_round(l, 0, i));
    OK(fx_put_manifest(l, 0, 3, 1));
    OK(fx_part_open(l, 0, 3, &got));
    assert_int_equal(inter_ledger_begin_at(l, fx_job, 0, 3, far.previous), NEB_ERR_STATE);
    assert_int_equal(inter_ledger_put_commit(l, &far), NEB_ERR_STATE);
    OK(inter_ledger_begin_at(l, fx_job, 0, 9, far.previous));
    OK(inter_ledger_begin_at(l, fx_job, 0, 9, far.previous));
    assert_int_equal(inter_ledger_used(l), 0);
    reopen();
    assert_int_equal(inter_ledger_last_commit(l, fx_job, 0, &r), NEB_ERR_NOT_FOUND);
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 9);
    assert_int_equal(inter_ledger_used(l), 0);
    OK(fx_round(l, 0, 9));
    OK(inter_ledger_chain(l, fx_job, 0, &c));
    assert_int_equal(c.first, 9);
    assert_int_equal(c.next, 10);
}

// A restart removes everything of one job and nothing of another, and the job can begin again.
static void test_restart_job(void **state) {
    (void)state;
    struct inter_standing st = {.epoch = 77}, got;
    struct inter_record r;
    struct inter_chain c;
    uint32_t arrived;
    uint64_t used;
    memcpy(st.job, fx_job, sizeof st.job);
    for (uint32_t i = 0; i < 3; i++)
        OK(fx_round(l, 0, i));
    OK(fx_round(l, 1, 0));
    OK(fx_put_own(l, 0, 3));
    OK(fx_put_manifest(l, 0, 3, 0));
    OK(fx_put_manifest(l, 0, 3, 1));
    OK(fx_part_open(l, 0, 3, &arrived));
    OK(fx_put_vote(l, 0, 3));
    OK(inter_ledger_put_job(l, fx_job, "spec", "failed"));
    st.job[0] ^= 1;
    OK(inter_ledger_reset_job(l, &st)); // a job without data
    used = inter_ledger_used(l);
    assert_true(used > 0);
    OK(inter_ledger_last_commit(l, fx_job, 0, &r));
    st.job[0] ^= 1;
    inter_ledger_parts_close(l, fx_job);
    OK(inter_ledger_reset_job(l, &st));
    for (int again = 0; again < 2; again++) {
        assert_int_equal(inter_ledger_used(l), 0);
        assert_int_equal(inter_ledger_last_commit(l, fx_job, 0, &r), NEB_ERR_NOT_FOUND);
        assert_int_equal(inter_ledger_get_vote(l, fx_job, 0, 3, &r), NEB_ERR_NOT_FOUND);
        assert_int_equal(inter_ledger_chain(l, fx_job, 1, &c), NEB_ERR_NOT_FOUND);
        OK(inter_ledger_get_standing(l, fx_job, &got));
        assert_true(got.epoch == 77 && !got.joined && !got.term);
        reopen();
    }
    memcpy(st.job, fx_job, sizeof st.job);
    st.term = INTER_TERM_MAX + 1; // a term above the largest is corrupt
    OK(inter_ledger_put_standing(l, &st));
    assert_int_equal(inter_ledger_get_standing(l, fx_job, &got), NEB_ERR_CORRUPT);
    for (uint32_t i = 0; i < 2; i++)
        OK(fx_round(l, 0, i));
}

static void count_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                      const char *state) {
    (void)id, (void)spec, (void)state;
    ++*(int *)user;
}

// Dropping a job removes all of it and nothing of another.
static void test_drop_job(void **state) {
    (void)state;
    uint8_t other[INTER_ID_BYTES];
    struct inter_standing st = {.epoch = 77};
    struct inter_record r;
    static const int none[TABLES];
    int jobs = 0, before[TABLES];
    bool dropped;
    memcpy(st.job, fx_job, sizeof st.job);
    memcpy(other, fx_job, sizeof other);
    other[0] ^= 1;
    for (uint32_t i = 0; i < 2; i++)
        OK(fx_round(l, 0, i));
    OK(fx_put_vote(l, 0, 2));
    OK(inter_ledger_saved(l, fx_job, (uint32_t[]){1}, 1));
    OK(inter_ledger_put_standing(l, &st));
    OK(inter_ledger_put_job(l, fx_job, "spec", "stopped"));
    OK(inter_ledger_put_job(l, other, "spec", "stopped"));
    inter_ledger_close(&l);
    rows_of(fx_job, before);
    for (int i = 0; i < TABLES; i++)
        assert_true(before[i] > 0);
    OK(inter_ledger_open(dir, &l));
    OK(inter_ledger_drop_job(l, other, false));
    OK(inter_ledger_last_commit(l, fx_job, 0, &r));
    assert_true(inter_ledger_used(l) > 0);
    inter_ledger_close(&l);
    expect_rows(fx_job, before);
    OK(inter_ledger_open(dir, &l));
    OK(inter_ledger_was_dropped(l, fx_job, &dropped));
    assert_false(dropped);
    OK(inter_ledger_drop_job(l, fx_job, true));
    OK(inter_ledger_drop_job(l, fx_job, true)); // a repetition is harmless
    inter_ledger_close(&l);
    expect_rows(fx_job, none);
    OK(inter_ledger_open(dir, &l));
    OK(inter_ledger_was_dropped(l, fx_job, &dropped));
    assert_true(dropped);
    assert_int_equal(inter_ledger_used(l), 0);
    assert_int_equal(inter_ledger_last_commit(l, fx_job, 0, &r), NEB_ERR_NOT_FOUND);
    assert_int_equal(inter_ledger_get_standing(l, fx_job, &st), NEB_ERR_NOT_FOUND);
    OK(inter_ledger_jobs(l, count_job, &jobs));
    assert_int_equal(jobs, 0);
    OK(fx_round(l, 0, 0)); // as if it had never existed
}

static void test_arriving_blob(void **state) {
    (void)state;
    struct inter_key k = fx_key(0, 0, 1);
    struct inter_manifest m = fx_manifest(&k);
    uint8_t big[INTER_CHUNK_MIN] = {9};
    uint32_t got;
    // 40 chunks, so that the bitmap is saved twice. The saved chunks are there again
    struct inter_key far = fx_key(0, 0, 2);
    struct inter_manifest many = fx_manifest(&far);
    struct inter_bitmap had;
    many.bytes = 40 * INTER_CHUNK_MIN;
    OK(inter_ledger_put_manifest(l, &many));
    OK(inter_bitmap_init(&had, 40));
    OK(inter_ledger_part_open(l, &many, &had));
    assert_int_equal(inter_ledger_used(l), many.bytes);
    for (uint32_t c = 0; c < 37; c++)
        OK(inter_ledger_part_write(l, &far, (uint64_t)c * INTER_CHUNK_MIN, big, sizeof big));
    reopen();
    OK(inter_ledger_part_open(l, &many, &had));
    assert_int_equal(had.set, 32);
    assert_true(inter_bitmap_has(&had, 31) && !inter_bitmap_has(&had, 32));
    inter_bitmap_free(&had);
    // if the bytes are not the promised ones, the part is emptied and filled again
    OK(inter_ledger_put_manifest(l, &m));
    OK(fx_part_open(l, 0, 0, &got));
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    OK(inter_ledger_part_write(l, &k, 0, big, sizeof big));
    assert_int_equal(fx_part_finish(l, 0, 0), NEB_ERR_CORRUPT);
    assert_false(inter_ledger_has_blob(l, &k));
    for (uint32_t c = 1; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    assert_int_equal(fx_part_finish(l, 0, 0), NEB_ERR_CORRUPT); // chunk 0 is missing
    for (uint32_t c = 0; c < 2; c++)
        OK(fx_part_write(l, 0, 0, c));
    assert_int_equal(fx_part_finish(l, 0, 0), NEB_ERR_CORRUPT); // too short
    for (uint32_t c = 0; c < 3; c++)
        OK(fx_part_write(l, 0, 0, c));
    OK(fx_part_finish(l, 0, 0));
    fx_check_blob(l, 0, 0, 1);
}

static void test_swept_at_opening(void **state) {
    (void)state;
    struct inter_key nobody = fx_key(0, 7, 1), mine = fx_key(0, 0, 1);
    char foreign[NEB_PATH_MAX];
    uint32_t got;
    OK(fx_round(l, 0, 0));
    OK(fx_put_manifest(l, 0, 1, 1));
    OK(fx_part_open(l, 0, 1, &got));
    inter_ledger_close(&l);
    write_file(&mine, ".map"); // as after a crash that follows the rename
    write_file(&mine, ".blob.tmp");
    write_file(&nobody, ".blob"); // without a manifest
    write_file(&nobody, ".part");
    write_file(&nobody, ".map");
    snprintf(foreign, sizeof foreign, "%s/blobs/notes.txt", dir);
    OK(neb_fs_write(foreign, "mine", 4, 0600));
    OK(inter_ledger_open(dir, &l));
    assert_false(fx_has_file(dir, 0, 0, 1, ".map") || fx_has_file(dir, 0, 0, 1, ".blob.tmp"));
    assert_false(fx_has_file(dir, 0, 7, 1, ".blob") || fx_has_file(dir, 0, 7, 1, ".part") ||
                 fx_has_file(dir, 0, 7, 1, ".map"));
    assert_true(fx_has_file(dir, 0, 1, 1, ".part"));
    assert_true(neb_fs_exists(foreign));
    fx_check_blob(l, 0, 0, 0);
    fx_check_blob(l, 0, 0, 1);
    assert_int_equal(inter_ledger_used(l), FX_OWN_BYTES + FX_PEER_BYTES);
}

static void test_prune(void **state) {
    (void)state;
    struct inter_record r;
    struct inter_manifest m;
    struct inter_key k = fx_key(0, 3, 0);
    uint32_t floor, got;
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 0);
    OK(inter_ledger_prune(l, fx_job, 0, 5)); // nothing is committed
    for (uint32_t i = 0; i < 6; i++)
        OK(fx_round(l, 0, i));
    OK(fx_round(l, 1, 0));
    // never complete: its round was committed without this update
    struct inter_key late = fx_key(0, 2, 2);
    struct inter_manifest lm = fx_manifest(&late);
    struct inter_bitmap none;
    OK(inter_ledger_put_manifest(l, &lm));
    OK(inter_bitmap_init(&none, inter_chunks(lm.bytes, lm.chunk_bytes)));
    OK(inter_ledger_part_open(l, &lm, &none));
    inter_bitmap_free(&none);
    write_file(&late, ".map");
    OK(inter_ledger_prune(l, fx_job, 0, 4));
    for (int again = 0; again < 2; again++, reopen()) {
        for (uint32_t i = 0; i < 6; i++) {
            assert_int_equal(fx_has_file(dir, 0, i, 0, ".blob"), i >= 4);
            assert_int_equal(fx_has_file(dir, 0, i, 1, ".blob"), i >= 4);
            OK(inter_ledger_get_commit(l, fx_job, 0, i, &r)); // records stay
            assert_int_equal(inter_ledger_get_vote(l, fx_job, 0, i, &r),
                             i >= 4 ? NEB_OK : NEB_ERR_NOT_FOUND);
        }
        assert_false(fx_has_file(dir, 0, 2, 2, ".part") || fx_has_file(dir, 0, 2, 2, ".map"));
        assert_int_equal(inter_ledger_get_manifest(l, &k, &m), NEB_ERR_NOT_FOUND);
        assert_true(fx_has_file(dir, 1, 0, 0, ".blob"));
        OK(inter_ledger_floor(l, fx_job, 0, &floor));
        assert_int_equal(floor, 4);
        assert_int_equal(inter_ledger_used(l), 3 * (FX_OWN_BYTES + FX_PEER_BYTES));
    }
    // open rounds always stay, and a lower floor changes nothing
    OK(fx_put_own(l, 0, 6));
    OK(fx_put_manifest(l, 0, 6, 0));
    OK(fx_put_manifest(l, 0, 6, 1));
    OK(fx_part_open(l, 0, 6, &got));
    OK(fx_put_vote(l, 0, 6));
    OK(inter_ledger_prune(l, fx_job, 0, UINT32_MAX));
    OK(inter_ledger_prune(l, fx_job, 0, 1));
    reopen();
    fx_check_blob(l, 0, 6, 0);
    assert_true(fx_has_file(dir, 0, 6, 1, ".part"));
    OK(inter_ledger_get_vote(l, fx_job, 0, 6, &r));
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 6);
}

static void test_cap(void **state) {
    (void)state;
    const uint64_t a_round = FX_OWN_BYTES + FX_PEER_BYTES;
    const uint32_t all[2] = {UINT32_MAX, UINT32_MAX};
    uint32_t floor, got;
    for (uint32_t i = 0; i < 4; i++) // rounds of both fragments in turn
        for (uint32_t f = 0; f < 2; f++)
            OK(fx_round(l, f, i));
    assert_int_equal(inter_ledger_used(l), 8 * a_round);
    // without a checkpoint the worker would begin at round 0 and need all of them
    OK(inter_ledger_set_cap(l, 1));
    assert_int_equal(inter_ledger_used(l), 8 * a_round);
    OK(inter_ledger_set_cap(l, 0));
    OK(inter_ledger_saved(l, fx_job, all, 2));
    OK(inter_ledger_set_cap(l, 5 * a_round));
    // all but the three that were committed first
    assert_int_equal(inter_ledger_used(l), 5 * a_round);
    assert_false(fx_has_file(dir, 0, 0, 0, ".blob") || fx_has_file(dir, 1, 0, 0, ".blob"));
    assert_false(fx_has_file(dir, 0, 1, 1, ".blob"));
    assert_true(fx_has_file(dir, 1, 1, 1, ".blob"));
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 2);
    OK(inter_ledger_floor(l, fx_job, 1, &floor));
    assert_int_equal(floor, 1);
    // the ledger makes room before a blob arrives
    OK(fx_put_manifest(l, 0, 4, 1));
    OK(fx_part_open(l, 0, 4, &got));
    assert_true(inter_ledger_used(l) <= 5 * a_round);
    OK(inter_ledger_floor(l, fx_job, 1, &floor));
    assert_int_equal(floor, 2);
    // the remains of a dropped round are removed when the ledger opens
    struct inter_key k = fx_key(0, 0, 0);
    inter_ledger_close(&l);
    write_file(&k, ".blob");
    OK(inter_ledger_open(dir, &l));
    assert_false(fx_has_file(dir, 0, 0, 0, ".blob"));
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 2);
    // the newest commit of a fragment and open rounds stay, however small the cap
    OK(fx_put_own(l, 0, 4));
    OK(fx_put_manifest(l, 0, 4, 0));
    OK(inter_ledger_set_cap(l, 1));
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 3);
    fx_check_blob(l, 0, 3, 0);
    fx_check_blob(l, 1, 3, 1);
    fx_check_blob(l, 0, 4, 0);
    assert_int_equal(inter_ledger_used(l), 2 * a_round + FX_OWN_BYTES);
    OK(inter_ledger_prune(l, fx_job, 0, 4)); // prunes below and above the dropped rounds
    OK(inter_ledger_prune(l, fx_job, 1, 1));
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 4);
    OK(inter_ledger_floor(l, fx_job, 1, &floor));
    assert_int_equal(floor, 3);
}

// Rounds after the newest checkpoint stay, however small the cap: a worker that restarts from it
// needs them, and so does a member that fetches its snapshot.
static void test_cap_and_checkpoints(void **state) {
    (void)state;
    const uint64_t a_round = FX_OWN_BYTES + FX_PEER_BYTES;
    struct inter_dropped d;
    uint32_t floor, got;
    for (uint32_t i = 0; i < 5; i++)
        OK(fx_round(l, 0, i));
    // the others committed these rounds, and they are incomplete here, as when this member catches
    // up
    OK(fx_put_own(l, 0, 5));
    OK(fx_put_manifest(l, 0, 5, 0));
    OK(fx_put_manifest(l, 0, 5, 1));
    OK(fx_part_open(l, 0, 5, &got));
    OK(fx_put_commit(l, 0, 5));
    OK(fx_put_own(l, 0, 6)); // this update is in flight
    OK(fx_put_manifest(l, 0, 6, 0));
    OK(inter_ledger_saved(l, fx_job, (uint32_t[]){2, 0}, 2));
    OK(inter_ledger_set_cap(l, 1));
    for (int again = 0; again < 2; again++, reopen(), OK(inter_ledger_set_cap(l, 1))) {
        OK(inter_ledger_floor(l, fx_job, 0, &floor));
        assert_int_equal(floor, 2);
        for (uint32_t i = 0; i < 5; i++)
            assert_int_equal(fx_has_file(dir, 0, i, 1, ".blob"), i >= 2);
        assert_true(fx_has_file(dir, 0, 5, 1, ".part") && fx_has_file(dir, 0, 5, 0, ".blob"));
        fx_check_blob(l, 0, 6, 0);
        inter_ledger_dropped(l, &d); // the numbers since this ledger was opened
        assert_int_equal(d.rounds, again ? 0 : 2);
        assert_int_equal(d.bytes, again ? 0 : 2 * a_round);
    }
    // the next checkpoint frees its rounds when room is needed
    OK(inter_ledger_saved(l, fx_job, (uint32_t[]){4, 0}, 2));
    OK(fx_part_open(l, 0, 5, &got));
    OK(inter_ledger_floor(l, fx_job, 0, &floor));
    assert_int_equal(floor, 4);
    // a restarted job has no checkpoint
    struct inter_standing st = {.epoch = 5};
    memcpy(st.job, fx_job, sizeof st.job);
    inter_ledger_parts_close(l, fx_job);
    OK(inter_ledger_reset_job(l, &st));
    for (uint32_t i = 0; i < 3; i++)
        OK(fx_round(l, 0, i));
    assert_int_equal(inter_ledger_used(l), 3 * a_round);
}

static void test_epoch(void **state) {
    (void)state;
    uint64_t first = inter_ledger_epoch(l);
    assert_int_not_equal(first, 0);
    reopen();
    assert_true(inter_ledger_epoch(l) == first);
    inter_ledger_close(&l);
    OK(neb_fs_remove_tree(dir));
    OK(inter_ledger_open(dir, &l));
    assert_true(inter_ledger_epoch(l) != first);
}

static void on_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                   const char *state) {
    char *text = user;
    size_t at = strlen(text);
    snprintf(text + at, 64 - at, "%d %s %s;", id[0], spec, state);
}

static void test_jobs(void **state) {
    (void)state;
    uint8_t id[INTER_ID_BYTES] = {1}, other[INTER_ID_BYTES] = {2};
    char text[64] = "";
    OK(inter_ledger_put_job(l, id, "spec", "running"));
    OK(inter_ledger_put_job(l, other, "more", "running"));
    OK(inter_ledger_put_job(l, id, "spec2", "done"));
    reopen();
    OK(inter_ledger_jobs(l, on_job, text));
    assert_string_equal(text, "1 spec2 done;2 more running;");
}

static void test_one_writer(void **state) {
    (void)state;
    struct inter_ledger *second = NULL, *looks = NULL;
    struct inter_record r;
    uint64_t a, b;
    assert_int_equal(inter_ledger_open(dir, &second), NEB_ERR_STATE);
    assert_null(second);
    // a reader sees the durable state while the writer goes on, and can change nothing
    OK(fx_round(l, 0, 0));
    OK(inter_ledger_open_readonly(dir, &looks));
    OK(inter_ledger_last_commit(looks, fx_job, 0, &r));
    OK(fx_round(l, 0, 1));
    OK(inter_ledger_last_commit(looks, fx_job, 0, &r));
    assert_int_equal(r.round, 1);
    assert_true(inter_ledger_epoch(looks) == inter_ledger_epoch(l));
    assert_int_not_equal(fx_put_commit(looks, 0, 2), NEB_OK);
    assert_int_not_equal(fx_put_vote(looks, 0, 2), NEB_OK);
    assert_int_not_equal(inter_ledger_post(looks, "anna", 1, "", 0, NULL, &a, &b), NEB_OK);
    inter_ledger_close(&looks);
    OK(fx_round(l, 0, 2));
}

static void test_not_a_ledger(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct inter_ledger *other = NULL;
    snprintf(path, sizeof path, "%s/nothing", root);
    assert_int_equal(inter_ledger_open_readonly(path, &other), NEB_ERR_NOT_FOUND);
    assert_false(neb_fs_exists(path)); // a read-only open creates nothing
    inter_ledger_close(&l);
    sql("PRAGMA user_version=1");
    assert_int_equal(inter_ledger_open(dir, &l), NEB_ERR_UNSUPPORTED);
    assert_int_equal(inter_ledger_open_readonly(dir, &l), NEB_ERR_UNSUPPORTED);
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    OK(neb_fs_write(path, "this is no database, whatever its name says", 43, 0600));
    assert_int_equal(inter_ledger_open(dir, &l), NEB_ERR_CORRUPT);
    assert_null(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_a_round),
                                       TEST(test_one_digest_a_key),
                                       TEST(test_one_vote_a_term),
                                       TEST(test_one_record_a_round),
                                       TEST(test_begin_at),
                                       TEST(test_restart_job),
                                       TEST(test_drop_job),
                                       TEST(test_arriving_blob),
                                       TEST(test_swept_at_opening),
                                       TEST(test_prune),
                                       TEST(test_cap),
                                       TEST(test_cap_and_checkpoints),
                                       TEST(test_epoch),
                                       TEST(test_jobs),
                                       TEST(test_one_writer),
                                       TEST(test_not_a_ledger)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
