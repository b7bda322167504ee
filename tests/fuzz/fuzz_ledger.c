// SPDX-License-Identifier: Apache-2.0
// Altered rows of a ledger on disk: any value in any column. Reading returns an error or values
// within their limits. The full check finds a change of anything signed or chained (all but numbers
// of attempts and messages). The round core accepts what was read. Input: a byte for the column,
// then a byte. If it is odd, the rest (i64, then bytes) replaces the value. If it is even, one byte
// changes (u16 where, u8 xor).
#include "inter/ledger/verify.h"
#include "tests/fuzz/trusting.h"
#include "tests/unit/ledger_fixture.h"

#include <sqlite3.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct column {
    const char *table, *name, *which;
    bool number, covered; // covered: the full check must find any other value
} columns[] = {
    {"manifest", "body", "round=1 AND member=1", false, true},
    {"manifest", "body", "round=2 AND member=0", false, true},
    {"record", "body", "round=0 AND fragment=0", false, true},
    {"record", "body", "round=1 AND fragment=0", false, true},
    {"vote", "body", "1", false, true},
    {"standing", "body", "1", false, false},
    {"chain", "base", "fragment=0", false, true},
    {"chain", "head", "fragment=0", false, true},
    {"chain", "first", "fragment=0", true, false},
    {"chain", "next", "fragment=0", true, false},
    {"chain", "floor", "fragment=0", true, false},
    {"chain", "kept", "fragment=0", true, false},
    {"promise", "manifests", "round=2 AND fragment=0", true, false},
    {"promise", "vote", "round=2 AND fragment=0", false, false},
    {"manifest", "round", "round=1 AND member=1", true, false},
    {"record", "round", "round=1 AND fragment=0", true, false},
    {"outbox", "body", "1", false, false},
    {"outbox", "kind", "1", true, false},
    {"inbox", "seq", "1", true, false},
    {"job", "state", "1", false, false},
    {"meta", "value", "1", false, false},
};

static char dir[] = "/tmp/nebula-fuzz-ledger-XXXXXX", path[96];
static struct neb_buf whole; // the undamaged database

static void remove_all(void) {
    if (neb_fs_remove_tree(dir) != NEB_OK)
        neb_warn("%s stays", dir);
}

static void put_round(struct inter_ledger *l, uint32_t round, bool commit) {
    uint32_t got;
    NEB_ASSERT(fx_put_own(l, 0, round) == NEB_OK && fx_put_manifest(l, 0, round, 0) == NEB_OK);
    NEB_ASSERT(fx_put_manifest(l, 0, round, 1) == NEB_OK);
    NEB_ASSERT(fx_part_open(l, 0, round, &got) == NEB_OK);
    for (uint32_t i = 0; i < inter_chunks(FX_PEER_BYTES, INTER_CHUNK_MIN); i++)
        NEB_ASSERT(fx_part_write(l, 0, round, i) == NEB_OK);
    NEB_ASSERT(fx_part_finish(l, 0, round) == NEB_OK);
    struct inter_record r = fx_chain(0, round);
    r.n_accepts = commit ? r.n_accepts : 0;
    NEB_ASSERT((commit ? inter_ledger_put_commit(l, &r) : inter_ledger_put_vote(l, &r)) == NEB_OK);
}

// The state: two committed rounds, a third one with a vote, one message that waits, and one
// received.
static void make(void) {
    struct inter_ledger *l = NULL;
    struct inter_standing st = {.term = 1, .joined = true, .epoch = 70, .epochs = {0, 71}};
    uint64_t seq, previous;
    sqlite3 *db = NULL;
    memcpy(st.job, fx_job, sizeof st.job);
    NEB_ASSERT(mkdtemp(dir) && atexit(remove_all) == 0);
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    NEB_ASSERT(inter_ledger_open(dir, &l) == NEB_OK);
    NEB_ASSERT(inter_ledger_put_standing(l, &st) == NEB_OK);
    NEB_ASSERT(inter_ledger_put_job(l, fx_job, "{\"job\": \"x\"}", "{\"state\": \"running\"}") ==
               NEB_OK);
    NEB_ASSERT(inter_ledger_post(l, "paris", 34, "stop", 4, NULL, &seq, &previous) == NEB_OK);
    for (uint32_t round = 0; round < 3; round++)
        put_round(l, round, round < 2);
    inter_ledger_close(&l);
    NEB_ASSERT(sqlite3_open(path, &db) == SQLITE_OK);
    NEB_ASSERT(sqlite3_exec(db,
                            "PRAGMA journal_mode=DELETE; INSERT INTO inbox(peer, epoch, seq) "
                            "VALUES('paris', 71, 3)",
                            NULL, NULL, NULL) == SQLITE_OK);
    sqlite3_close(db);
    NEB_ASSERT(neb_fs_read(path, 1 << 24, &whole) == NEB_OK);
}

static void put_back(void) {
    char side[112];
    static const char *const ends[] = {"-wal", "-shm", "-journal"};
    for (int i = 0; i < 3; i++) {
        snprintf(side, sizeof side, "%s%s", path, ends[i]);
        (void)unlink(side);
    }
    FILE *f = fopen(path, "wb"); // no fsync: there are thousands of them
    NEB_ASSERT(f && fwrite(whole.p, 1, whole.len, f) == whole.len && fclose(f) == 0);
}

// False: the value is unchanged, or the table refuses the change.
static bool alter(const struct column *c, const uint8_t *p, size_t n) {
    char sql[256];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    struct neb_buf v = {0};
    bool replace = p[0] & 1, same = true;
    int64_t number = 0;
    for (size_t i = 0; i < 8 && i + 1 < n; i++)
        number |= (int64_t)((uint64_t)p[i + 1] << (8 * i));
    NEB_ASSERT(sqlite3_open(path, &db) == SQLITE_OK);
    NEB_ASSERT(sqlite3_exec(db, "PRAGMA synchronous=OFF; PRAGMA journal_mode=MEMORY", NULL, NULL,
                            NULL) == SQLITE_OK);
    snprintf(sql, sizeof sql, "SELECT %s FROM %s WHERE %s LIMIT 1", c->name, c->table, c->which);
    NEB_ASSERT(sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK);
    NEB_ASSERT(sqlite3_step(s) == SQLITE_ROW);
    int64_t was = sqlite3_column_int64(s, 0);
    struct neb_buf old = {0};
    neb_buf_add(&old, sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0));
    sqlite3_finalize(s);
    if (replace && n > 9)
        neb_buf_add(&v, p + 9, n - 9);
    if (!replace) {
        neb_buf_add(&v, old.p, old.len);
        if (v.len && n > 3)
            v.p[(p[1] | p[2] << 8) % v.len] ^= p[3];
    }
    snprintf(sql, sizeof sql, "UPDATE %s SET %s=?1 WHERE %s", c->table, c->name, c->which);
    NEB_ASSERT(sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK);
    if (c->number) {
        sqlite3_bind_int64(s, 1, replace ? number : was + p[0] - 8);
        same = (replace ? number : was + p[0] - 8) == was;
    } else {
        sqlite3_bind_blob(s, 1, v.p ? v.p : (const uint8_t *)"", (int)v.len, SQLITE_TRANSIENT);
        same = v.len == old.len && (!v.len || !memcmp(v.p, old.p, v.len));
    }
    bool taken = sqlite3_step(s) == SQLITE_DONE;
    sqlite3_finalize(s);
    sqlite3_close(db);
    neb_buf_free(&v);
    neb_buf_free(&old);
    return taken && !same;
}

static void on_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                   const char *state) {
    (void)user;
    NEB_ASSERT(id && spec && state && strlen(spec) + 1 && strlen(state) + 1);
}
static void on_chain(void *user, const struct inter_chain *c) { (void)user, (void)c; }

// Reads the job as inter_service_job_open does.
static void restore(struct inter_ledger *l) {
    struct inter_job_config c = {.n_members = 2,
                                 .fragments = 2,
                                 .merge_after = 4,
                                 .epoch = 70,
                                 .peers = {0, 1},
                                 .tune = {.start_interval = 4}};
    struct inter_node *n = NULL;
    struct inter_standing st;
    struct inter_record r;
    struct inter_manifest m;
    struct inter_actions a = {0};
    memcpy(c.id, fx_job, sizeof c.id);
    if (inter_ledger_get_standing(l, fx_job, &st) != NEB_OK)
        st = (struct inter_standing){.epoch = 70};
    c.epoch = st.epoch ? st.epoch : 70;
    NEB_ASSERT(inter_node_create(&trusting, &n) == NEB_OK);
    NEB_ASSERT(inter_node_job_open(n, &c) == NEB_OK);
    inter_node_restore_standing(n, &st);
    for (uint32_t f = 0; f < c.fragments; f++) {
        if (inter_ledger_last_commit(l, fx_job, f, &r) == NEB_OK) {
            NEB_ASSERT(r.n <= NEB_MEMBERS_MAX && r.n_plans <= NEB_MEMBERS_MAX);
            inter_node_restore_commit(n, &r);
        }
        uint32_t round = inter_node_round(n, fx_job, f);
        for (uint8_t i = 0; i < c.n_members; i++) {
            struct inter_key k = fx_key(f, round, i);
            if (inter_ledger_get_manifest(l, &k, &m) == NEB_OK)
                (void)!inter_node_restore_manifest(n, &m, INTER_HOLD_COMPLETE, NULL);
        }
        if (inter_ledger_get_vote(l, fx_job, f, round, &r) == NEB_OK)
            inter_node_restore_vote(n, &r);
    }
    for (int i = 0; i < 20; i++)
        (void)!inter_node_step(
            n, (neb_ns)(i + 1) * NEB_S,
            &(struct inter_event){.kind = i ? INTER_EV_TICK : INTER_EV_PEER_UP, .peer = 1}, &a);
    inter_actions_free(&a);
    inter_node_destroy(&n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct inter_ledger *l = NULL;
    struct inter_ledger_counts counts;
    struct inter_ledger_check check = {NULL, fx_verify, NULL, NULL};
    if (!whole.len)
        make();
    if (size < 2)
        return 0;
    const struct column *c = &columns[data[0] % (sizeof columns / sizeof columns[0])];
    put_back();
    bool altered = alter(c, data + 1, size - 1);
    if (inter_ledger_open_readonly(dir, &l) != NEB_OK)
        return 0;
    enum neb_status st = inter_ledger_verify(l, &check, &counts);
    NEB_ASSERT(!altered || !c->covered || st != NEB_OK);
    NEB_ASSERT(altered || st == NEB_OK);
    (void)!inter_ledger_jobs(l, on_job, NULL);
    (void)!inter_ledger_chains(l, on_chain, NULL);
    restore(l);
    inter_ledger_close(&l);
    return 0;
}
