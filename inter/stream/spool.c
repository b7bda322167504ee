// SPDX-License-Identifier: Apache-2.0
#include "inter/stream/spool.h"
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/vault.h"
#include "inter/ledger/db.h"
#include "security/seal_stream.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] = "CREATE TABLE IF NOT EXISTS batch(job BLOB NOT NULL, stream INTEGER "
                             "NOT NULL, seq INTEGER NOT NULL, body BLOB NOT "
                             "NULL, UNIQUE(job, stream, seq));"
                             "CREATE TABLE IF NOT EXISTS base(job BLOB NOT NULL, stream INTEGER "
                             "NOT NULL, seq INTEGER NOT NULL, "
                             "PRIMARY KEY(job, stream)) WITHOUT ROWID;";
static const char pragmas[] =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF;";

struct inter_spool {
    sqlite3 *db;
    char path[NEB_PATH_MAX];
    const struct sec_seal_key *key; // NULL: in clear
    struct neb_buf scratch;
};

static enum neb_status db_fail(const struct inter_spool *s, const char *what) {
    int code = sqlite3_errcode(s->db) & 0xff;
    enum neb_status st = code == SQLITE_FULL                               ? NEB_ERR_NOSPC
                         : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? NEB_ERR_CORRUPT
                                                                           : NEB_ERR_IO;
    return neb_fail(st, "%s: cannot %s: %s", s->path, what, sqlite3_errmsg(s->db));
}

enum neb_status inter_spool_open(const char *dir, struct inter_spool **out) {
    struct inter_spool *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a spool");
    enum neb_status st = neb_path(s->path, sizeof s->path, dir, "streams.db");
    if (st == NEB_OK)
        st = inter_db_private(s->path);
    if (st == NEB_OK &&
        (sqlite3_open_v2(s->path, &s->db,
                         SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                         NULL) != SQLITE_OK ||
         sqlite3_exec(s->db, pragmas, NULL, NULL, NULL) != SQLITE_OK ||
         sqlite3_exec(s->db, schema, NULL, NULL, NULL) != SQLITE_OK))
        st = db_fail(s, "open it");
    if (st != NEB_OK)
        inter_spool_close(&s);
    *out = s;
    return st;
}

void inter_spool_close(struct inter_spool **sp) {
    struct inter_spool *s = *sp;
    if (!s)
        return;
    sqlite3_close(s->db);
    neb_buf_free(&s->scratch);
    free(s);
    *sp = NULL;
}

void inter_spool_seal(struct inter_spool *s, const struct sec_seal_key *key) { s->key = key; }

// Prepares a statement with job. Binds stream and seq unless they are negative.
static enum neb_status prepare(struct inter_spool *s, const char *sql,
                               const uint8_t job[INTER_ID_BYTES], int64_t id, int64_t seq,
                               sqlite3_stmt **out) {
    int rc = sqlite3_prepare_v2(s->db, sql, -1, out, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(*out, 1, job, INTER_ID_BYTES, SQLITE_STATIC);
    if (rc == SQLITE_OK && id >= 0)
        rc = sqlite3_bind_int64(*out, 2, id);
    if (rc == SQLITE_OK && seq >= 0)
        rc = sqlite3_bind_int64(*out, 3, seq);
    if (rc == SQLITE_OK)
        return NEB_OK;
    enum neb_status st = db_fail(s, "prepare a statement");
    sqlite3_finalize(*out);
    *out = NULL;
    return st;
}

static enum neb_status run(struct inter_spool *s, const char *what, const char *sql,
                           const uint8_t job[INTER_ID_BYTES], int64_t id, int64_t seq) {
    sqlite3_stmt *q = NULL;
    NEB_TRY(prepare(s, sql, job, id, seq, &q));
    enum neb_status st = sqlite3_step(q) == SQLITE_DONE ? NEB_OK : db_fail(s, what);
    sqlite3_finalize(q);
    return st;
}

static enum neb_status begin_transaction(struct inter_spool *s) {
    return sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK
               ? NEB_OK
               : db_fail(s, "begin a transaction");
}

static enum neb_status end_transaction(struct inter_spool *s, enum neb_status st) {
    if (st == NEB_OK && sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        st = db_fail(s, "commit a transaction");
    if (st != NEB_OK && !sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

enum neb_status inter_spool_put(struct inter_spool *s, const struct inter_stream_key *k,
                                uint64_t seq, const void *p, size_t n) {
    sqlite3_stmt *q = NULL;
    if (neb_fault("spool.write"))
        return neb_fail(NEB_ERR_NOSPC, "%s: cannot store a batch: disk full", s->path);
    // The ledger is on the same disk, and the agent ends when it cannot write the ledger.
    if (neb_fault("spool.room") || !neb_fs_fits(s->path, n + INTER_LEDGER_RESERVE_OWN))
        return neb_fail(NEB_ERR_NOSPC,
                        "%s: a batch of %zu bytes would leave less than %d MiB free on the disk",
                        s->path, n, INTER_LEDGER_RESERVE_OWN >> 20);
    if (s->key) {
        NEB_TRY(inter_stream_seal(s->key, k, seq, p, n, &s->scratch));
        p = s->scratch.p;
        n = s->scratch.len;
    }
    NEB_TRY(prepare(s, "INSERT OR REPLACE INTO batch(job, stream, seq, body) VALUES(?,?,?,?)",
                    k->job, k->id, (int64_t)seq, &q));
    enum neb_status st = sqlite3_bind_blob64(q, 4, p, n, SQLITE_STATIC) == SQLITE_OK &&
                                 sqlite3_step(q) == SQLITE_DONE
                             ? NEB_OK
                             : db_fail(s, "store a batch");
    sqlite3_finalize(q);
    return st;
}

enum neb_status inter_spool_drop(struct inter_spool *s, const struct inter_stream_key *k,
                                 uint64_t seq) {
    NEB_TRY(begin_transaction(s));
    enum neb_status st =
        run(s, "drop batches", "DELETE FROM batch WHERE job=? AND stream=? AND seq<?", k->job,
            k->id, (int64_t)seq);
    if (st == NEB_OK)
        st = run(s, "store the base", "INSERT OR REPLACE INTO base(job, stream, seq) VALUES(?,?,?)",
                 k->job, k->id, (int64_t)seq);
    return end_transaction(s, st);
}

enum neb_status inter_spool_get(struct inter_spool *s, const struct inter_stream_key *k,
                                uint64_t seq, struct neb_buf *out) {
    sqlite3_stmt *q = NULL;
    NEB_TRY(prepare(s, "SELECT body FROM batch WHERE job=? AND stream=? AND seq=?", k->job, k->id,
                    (int64_t)seq, &q));
    int rc = neb_fault("spool.read") ? SQLITE_IOERR : sqlite3_step(q);
    enum neb_status st = rc == SQLITE_ROW    ? NEB_OK
                         : rc == SQLITE_DONE ? NEB_ERR_NOT_FOUND
                                             : db_fail(s, "read a batch");
    neb_buf_clear(out);
    if (st == NEB_OK)
        st = inter_stream_unseal(s->key, s->path, k, seq, sqlite3_column_blob(q, 0),
                                 (size_t)sqlite3_column_bytes(q, 0), out);
    sqlite3_finalize(q);
    return st;
}

enum neb_status inter_spool_restore(struct inter_spool *s, struct inter_stream *stream) {
    const struct inter_stream_key *k = &inter_stream_config_of(stream)->key;
    sqlite3_stmt *q = NULL;
    enum neb_status st = NEB_OK;
    int rc;
    uint64_t base = 0;
    NEB_TRY(prepare(s, "SELECT seq FROM base WHERE job=? AND stream=?", k->job, k->id, -1, &q));
    if ((rc = sqlite3_step(q)) == SQLITE_ROW)
        base = (uint64_t)sqlite3_column_int64(q, 0);
    else if (rc != SQLITE_DONE)
        st = db_fail(s, "read the base");
    sqlite3_finalize(q);
    NEB_TRY(st);
    inter_stream_restore_base(stream, base);
    NEB_TRY(prepare(s,
                    "SELECT seq, body FROM batch WHERE job=? AND stream=? AND seq>=? ORDER BY seq",
                    k->job, k->id, (int64_t)base, &q));
    while (st == NEB_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        uint64_t seq = (uint64_t)sqlite3_column_int64(q, 0);
        st = inter_stream_unseal(s->key, s->path, k, seq, sqlite3_column_blob(q, 1),
                                 (size_t)sqlite3_column_bytes(q, 1), &s->scratch);
        if (st == NEB_OK)
            st = inter_stream_restore(stream, seq, s->scratch.p, s->scratch.len);
    }
    if (st == NEB_OK && rc != SQLITE_DONE)
        st = db_fail(s, "read batches");
    sqlite3_finalize(q);
    return st;
}

enum neb_status inter_spool_forget(struct inter_spool *s, const uint8_t job[INTER_ID_BYTES]) {
    NEB_TRY(begin_transaction(s));
    enum neb_status st = run(s, "forget a job", "DELETE FROM batch WHERE job=?", job, -1, -1);
    if (st == NEB_OK)
        st = run(s, "forget a job", "DELETE FROM base WHERE job=?", job, -1, -1);
    return end_transaction(s, st);
}

// ---- sealed batches -----------------------------------------------------------------------------

enum { PLACE = 8 + 8 };

static void put_place(const struct inter_stream_key *k, uint64_t seq, uint8_t out[PLACE]) {
    neb_put_u64(out, k->id);
    neb_put_u64(out + 8, seq);
}

static enum neb_status keep(void *user, const void *p, size_t n) {
    struct neb_buf *out = user;
    neb_buf_add(out, p, n);
    return neb_buf_check(out);
}

enum neb_status inter_stream_seal(const struct sec_seal_key *key, const struct inter_stream_key *k,
                                  uint64_t seq, const void *p, size_t n, struct neb_buf *out) {
    struct sec_stream_writer *w = NULL;
    uint8_t place[PLACE];
    put_place(k, seq, place);
    neb_buf_clear(out);
    NEB_TRY(sec_stream_create(key, k->job, keep, out, &w));
    enum neb_status st = sec_stream_add(w, place, sizeof place);
    if (st == NEB_OK)
        st = sec_stream_add(w, p, n);
    if (st == NEB_OK)
        st = sec_stream_end(w);
    sec_stream_destroy(&w);
    return st;
}

static enum neb_status read_batch(struct sec_stream_reader *r, const char *name,
                                  const struct inter_stream_key *k, uint64_t seq,
                                  struct neb_buf *out) {
    uint64_t len = sec_stream_len(r);
    uint8_t want[PLACE], place[PLACE] = {0};
    put_place(k, seq, want);
    if (len >= PLACE)
        NEB_TRY(sec_stream_read(r, 0, place, PLACE));
    if (len <= PLACE || len > PLACE + INTER_STREAM_BATCH_MAX || memcmp(place, want, PLACE))
        return neb_fail(NEB_ERR_CORRUPT,
                        "%s: the place of batch %llu of stream %u holds another batch", name,
                        (unsigned long long)seq, k->id);
    size_t n = (size_t)(len - PLACE);
    neb_buf_clear(out);
    NEB_TRY(neb_buf_reserve(out, n));
    NEB_TRY(sec_stream_read(r, PLACE, out->p, n));
    out->len = n;
    return NEB_OK;
}

enum neb_status inter_stream_unseal(const struct sec_seal_key *key, const char *name,
                                    const struct inter_stream_key *k, uint64_t seq, const void *p,
                                    size_t n, struct neb_buf *out) {
    struct sec_stream_reader *r = NULL;
    if (!neb_is_sealed(p, n)) { // from before this site sealed
        neb_buf_clear(out);
        neb_buf_add(out, p, n);
        return neb_buf_check(out);
    }
    if (!key)
        return neb_fail(NEB_ERR_DENIED,
                        "%s: its batches are sealed; start the agent with --seal-key, or restore "
                        "HOME/seal.json",
                        name);
    NEB_TRY(sec_stream_open(key, name, p, n, &r));
    enum neb_status st = sec_stream_len(r)
                             ? read_batch(r, name, k, seq, out)
                             : neb_fail(NEB_ERR_CORRUPT, "%s: a sealed batch is empty", name);
    sec_stream_close(&r);
    return st;
}
