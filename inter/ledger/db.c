// SPDX-License-Identifier: Apache-2.0
#include "inter/ledger/db.h"
#include "agent/base/fault.h"
#include "agent/base/fs.h"

#include <stdarg.h>

enum neb_status inter_db_fail(const struct inter_ledger *l, const char *what) {
    int code = sqlite3_errcode(l->db);
    enum neb_status st = code == SQLITE_FULL                               ? NEB_ERR_NOSPC
                         : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? NEB_ERR_CORRUPT
                                                                           : NEB_ERR_IO;
    return neb_fail(st, "ledger %s/ledger.db: cannot %s: %s", l->dir, what, sqlite3_errmsg(l->db));
}

enum neb_status inter_db_private(const char *path) {
    static const char *const suffix[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++) {
        char name[NEB_PATH_MAX + 8];
        snprintf(name, sizeof name, "%s%s", path, suffix[i]);
        NEB_TRY(neb_fs_private(name, i == 0));
    }
    return NEB_OK;
}

static enum neb_status prepare(struct inter_ledger *l, sqlite3_stmt **out, const char *sql,
                               const char *types, va_list ap) {
    int rc = sqlite3_prepare_v2(l->db, sql, -1, out, NULL);
    for (int i = 0; rc == SQLITE_OK && types[i]; i++) {
        if (types[i] == 'b') {
            const void *p = va_arg(ap, const void *);
            size_t n = va_arg(ap, size_t);
            rc = sqlite3_bind_blob64(*out, i + 1, p ? p : "", n, SQLITE_STATIC);
        } else if (types[i] == 'i') {
            rc = sqlite3_bind_int64(*out, i + 1, va_arg(ap, int64_t));
        } else {
            rc = sqlite3_bind_text(*out, i + 1, va_arg(ap, const char *), -1, SQLITE_STATIC);
        }
    }
    if (rc == SQLITE_OK)
        return NEB_OK;
    enum neb_status st = inter_db_fail(l, "prepare a statement");
    sqlite3_finalize(*out);
    *out = NULL;
    return st;
}

enum neb_status inter_db_prepare(struct inter_ledger *l, sqlite3_stmt **out, const char *sql,
                                 const char *types, ...) {
    va_list ap;
    va_start(ap, types);
    enum neb_status st = prepare(l, out, sql, types, ap);
    va_end(ap);
    return st;
}

enum neb_status inter_db_next(struct inter_ledger *l, sqlite3_stmt *s, bool *row) {
    int rc = sqlite3_step(s);
    *row = rc == SQLITE_ROW;
    return *row || rc == SQLITE_DONE ? NEB_OK : inter_db_fail(l, "read");
}

enum neb_status inter_db_run(struct inter_ledger *l, const char *what, const char *sql,
                             const char *types, ...) {
    sqlite3_stmt *s = NULL;
    va_list ap;
    if (neb_fault("ledger.write"))
        return neb_fail(NEB_ERR_NOSPC, "ledger %s/ledger.db: cannot %s: disk full", l->dir, what);
    va_start(ap, types);
    enum neb_status st = prepare(l, &s, sql, types, ap);
    va_end(ap);
    NEB_TRY(st);
    int rc = sqlite3_step(s);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        st = inter_db_fail(l, what);
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_db_fetch(struct inter_ledger *l, struct neb_buf *out, const char *sql,
                               const char *types, ...) {
    sqlite3_stmt *s = NULL;
    bool row;
    va_list ap;
    va_start(ap, types);
    enum neb_status st = prepare(l, &s, sql, types, ap);
    va_end(ap);
    NEB_TRY(st);
    neb_buf_clear(out);
    st = inter_db_next(l, s, &row);
    if (st == NEB_OK && !row)
        st = NEB_ERR_NOT_FOUND;
    if (st == NEB_OK) {
        neb_buf_add(out, sqlite3_column_blob(s, 0), (size_t)sqlite3_column_bytes(s, 0));
        st = neb_buf_check(out);
    }
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_db_begin(struct inter_ledger *l) {
    return inter_db_run(l, "begin a transaction", "BEGIN IMMEDIATE", "");
}

enum neb_status inter_db_end(struct inter_ledger *l, enum neb_status st) {
    if (st == NEB_OK)
        st = inter_db_run(l, "commit a transaction", "COMMIT", "");
    // A full disk may have rolled the transaction back already.
    if (st != NEB_OK && !sqlite3_get_autocommit(l->db))
        sqlite3_exec(l->db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

enum neb_status inter_db_forget(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                uint32_t fragment, uint32_t round) {
    static const char *const tables[] = {"manifest", "vote", "promise"};
    enum neb_status st = NEB_OK;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && st == NEB_OK; i++) {
        char sql[96];
        snprintf(sql, sizeof sql, "DELETE FROM %s WHERE job=? AND fragment=? AND round<?",
                 tables[i]);
        st = inter_db_run(l, "forget old rounds", sql, "bii", INTER_JOB(job), (int64_t)fragment,
                          (int64_t)round);
    }
    return st;
}
