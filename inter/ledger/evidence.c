// SPDX-License-Identifier: Apache-2.0
// Evidence against members (inter/record/evidence.h): the first of each member and job is kept as
// long as the ledger exists.
#include "inter/record/evidence.h"
#include "inter/ledger/db.h"

// Created at first use: most ledgers never have any.
static const char make[] =
    "CREATE TABLE IF NOT EXISTS evidence(job BLOB, member INT, body BLOB NOT "
    "NULL, PRIMARY KEY(job, member)) WITHOUT ROWID";

enum neb_status inter_ledger_put_evidence(struct inter_ledger *l, const struct inter_evidence *e) {
    struct neb_buf b = {0};
    inter_evidence_put(&b, e);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = inter_db_run(l, "make a table", make, "");
    if (st == NEB_OK)
        st = inter_db_run(l, "keep evidence", "INSERT OR IGNORE INTO evidence VALUES(?,?,?)", "bib",
                          INTER_JOB(e->a.job), (int64_t)inter_evidence_member(e), (const void *)b.p,
                          b.len);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_evidence(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                      uint8_t member, struct inter_evidence *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        inter_db_fetch(l, &b, "SELECT 1 FROM sqlite_schema WHERE name='evidence'", "");
    if (st == NEB_OK)
        st = inter_db_fetch(l, &b, "SELECT body FROM evidence WHERE job=? AND member=?", "bi",
                            INTER_JOB(job), (int64_t)member);
    struct neb_rd r = neb_rd_make(b.p, b.len);
    if (st == NEB_OK &&
        (!inter_evidence_get(&r, out) || !neb_rd_done(&r) || inter_evidence_member(out) != member))
        st = neb_fail(NEB_ERR_CORRUPT, "ledger %s: stored evidence does not parse", l->dir);
    neb_buf_free(&b);
    return st;
}

enum neb_status inter_ledger_all_evidence(struct inter_ledger *l, inter_ledger_each_evidence *fn,
                                          void *user) {
    sqlite3_stmt *s = NULL;
    struct inter_evidence e;
    struct neb_buf b = {0};
    bool row = false;
    enum neb_status st =
        inter_db_fetch(l, &b, "SELECT 1 FROM sqlite_schema WHERE name='evidence'", "");
    neb_buf_free(&b);
    if (st != NEB_OK)
        return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
    NEB_TRY(inter_db_prepare(l, &s, "SELECT body FROM evidence ORDER BY job, member", ""));
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row) {
        struct neb_rd r =
            neb_rd_make(sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0));
        if (!inter_evidence_get(&r, &e) || !neb_rd_done(&r)) {
            st = neb_fail(NEB_ERR_CORRUPT, "ledger %s: stored evidence does not parse", l->dir);
            break;
        }
        fn(user, &e);
    }
    sqlite3_finalize(s);
    return st;
}

// ---- job ids that were signed over another text -------------------------------------------------

static const char make_misnamed[] =
    "CREATE TABLE IF NOT EXISTS misnamed(job BLOB, member TEXT, text TEXT NOT NULL, "
    "PRIMARY KEY(job, member)) WITHOUT ROWID";

static enum neb_status is_there(struct inter_ledger *l, bool *out) {
    struct neb_buf b = {0};
    enum neb_status st =
        inter_db_fetch(l, &b, "SELECT 1 FROM sqlite_schema WHERE name='misnamed'", "");
    neb_buf_free(&b);
    *out = st == NEB_OK;
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

static enum neb_status count_of(struct inter_ledger *l, const char *member, size_t *n) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(l, &s, "SELECT count(*) FROM misnamed WHERE member=?", "t", member));
    enum neb_status st = inter_db_next(l, s, &row);
    *n = row ? (size_t)sqlite3_column_int64(s, 0) : 0;
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_ledger_put_misnamed(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                          const char *member, const char *text, size_t most,
                                          bool *fresh) {
    bool was;
    size_t n;
    *fresh = false;
    NEB_TRY(inter_db_run(l, "make a table", make_misnamed, ""));
    NEB_TRY(inter_ledger_was_misnamed(l, job, member, &was));
    NEB_TRY(count_of(l, member, &n));
    if (was || (most && n >= most))
        return NEB_OK;
    NEB_TRY(inter_db_run(l, "keep evidence", "INSERT INTO misnamed VALUES(?,?,?)", "btt",
                         INTER_JOB(job), member, text));
    *fresh = true;
    return NEB_OK;
}

enum neb_status inter_ledger_was_misnamed(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                          const char *member, bool *out) {
    struct neb_buf b = {0};
    bool there;
    *out = false;
    NEB_TRY(is_there(l, &there));
    if (!there)
        return NEB_OK;
    enum neb_status st = inter_db_fetch(l, &b, "SELECT 1 FROM misnamed WHERE job=? AND member=?",
                                        "bt", INTER_JOB(job), member);
    neb_buf_free(&b);
    *out = st == NEB_OK;
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status inter_ledger_all_misnamed(struct inter_ledger *l, inter_ledger_each_misnamed *fn,
                                          void *user) {
    sqlite3_stmt *s = NULL;
    bool there, row = false;
    enum neb_status st;
    NEB_TRY(is_there(l, &there));
    if (!there)
        return NEB_OK;
    NEB_TRY(
        inter_db_prepare(l, &s, "SELECT job, member, text FROM misnamed ORDER BY job, member", ""));
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row) {
        const char *member = (const char *)sqlite3_column_text(s, 1),
                   *text = (const char *)sqlite3_column_text(s, 2);
        if (sqlite3_column_bytes(s, 0) != INTER_ID_BYTES || !member || !text) {
            st = neb_fail(NEB_ERR_CORRUPT, "ledger %s: stored evidence does not parse", l->dir);
            break;
        }
        fn(user, sqlite3_column_blob(s, 0), member, text);
    }
    sqlite3_finalize(s);
    return st;
}
