// SPDX-License-Identifier: Apache-2.0
// The row of each fragment's chain: where its records begin and end, and which blobs are kept.
#include "inter/ledger/db.h"

#include <string.h>

static const char chain_columns[] =
    "SELECT job, fragment, first, floor, kept, next, base, head FROM chain";

static bool column_bytes(sqlite3_stmt *s, int i, void *out, size_t n) {
    if ((size_t)sqlite3_column_bytes(s, i) != n)
        return false;
    memcpy(out, sqlite3_column_blob(s, i), n);
    return true;
}

static enum neb_status read_chain(const struct inter_ledger *l, sqlite3_stmt *s,
                                  struct inter_chain *c) {
    c->fragment = (uint32_t)sqlite3_column_int64(s, 1);
    c->first = (uint32_t)sqlite3_column_int64(s, 2);
    c->floor = (uint32_t)sqlite3_column_int64(s, 3);
    c->kept = (uint32_t)sqlite3_column_int64(s, 4);
    c->next = (uint32_t)sqlite3_column_int64(s, 5);
    if (column_bytes(s, 0, c->job, sizeof c->job) && column_bytes(s, 6, c->base, sizeof c->base) &&
        column_bytes(s, 7, c->head, sizeof c->head) && c->first <= c->floor &&
        c->floor <= c->kept && c->kept <= c->next)
        return NEB_OK;
    return neb_fail(NEB_ERR_CORRUPT, "ledger %s/ledger.db: the chain of fragment %u is damaged",
                    l->dir, c->fragment);
}

enum neb_status inter_ledger_chain(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                   uint32_t fragment, struct inter_chain *out) {
    sqlite3_stmt *s = NULL;
    char sql[160];
    bool row = false;
    snprintf(sql, sizeof sql, "%s WHERE job=? AND fragment=?", chain_columns);
    NEB_TRY(inter_db_prepare(l, &s, sql, "bi", INTER_JOB(job), (int64_t)fragment));
    enum neb_status st = inter_db_next(l, s, &row);
    if (st == NEB_OK)
        st = row ? read_chain(l, s, out) : NEB_ERR_NOT_FOUND;
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_ledger_chains(struct inter_ledger *l, inter_ledger_each_chain *fn,
                                    void *user) {
    sqlite3_stmt *s = NULL;
    struct inter_chain c;
    char sql[160];
    bool row = false;
    enum neb_status st;
    snprintf(sql, sizeof sql, "%s ORDER BY job, fragment", chain_columns);
    NEB_TRY(inter_db_prepare(l, &s, sql, ""));
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row &&
           (st = read_chain(l, s, &c)) == NEB_OK)
        fn(user, &c);
    sqlite3_finalize(s);
    return st;
}

static enum neb_status altered(const struct inter_ledger *l, const char *what,
                               const uint8_t job[INTER_ID_BYTES], uint32_t fragment) {
    char hex[2 * INTER_ID_BYTES + 1];
    neb_hex(job, INTER_ID_BYTES, hex);
    return neb_fail(NEB_ERR_CORRUPT,
                    "ledger %s/ledger.db: the %s of job %.8s, fragment %u, is not the one that was "
                    "stored, so the job cannot continue; nebula ledger verify names all that was "
                    "changed",
                    l->dir, what, hex, fragment);
}

enum neb_status inter_ledger_is_head(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                     uint32_t fragment, const struct inter_record *r) {
    struct inter_chain c;
    uint8_t hash[INTER_SHA_BYTES];
    enum neb_status st = inter_ledger_chain(l, job, fragment, &c);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    bool known = st == NEB_OK, same = !known || c.next == c.first; // no record yet
    if (r) {
        inter_record_hash(r, hash);
        same = known && r->round + 1 == c.next && !memcmp(hash, c.head, sizeof hash);
    }
    return same ? NEB_OK : altered(l, "newest record", job, fragment);
}

enum neb_status inter_ledger_is_vote(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                     uint32_t fragment, uint32_t round,
                                     const struct inter_record *r) {
    struct neb_buf b = {0};
    uint8_t hash[INTER_SHA_BYTES];
    enum neb_status st = inter_db_fetch(l, &b,
                                        "SELECT vote FROM promise WHERE job=? AND fragment=? AND "
                                        "round=? AND vote IS NOT NULL",
                                        "bii", INTER_JOB(job), (int64_t)fragment, (int64_t)round);
    bool same = st == NEB_ERR_NOT_FOUND && !r;
    if (r) {
        inter_record_hash(r, hash);
        same = st == NEB_OK && b.len == sizeof hash && !memcmp(b.p, hash, sizeof hash);
    }
    neb_buf_free(&b);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    return same ? NEB_OK : altered(l, "vote", job, fragment);
}

enum neb_status inter_chain_put(struct inter_ledger *l, const struct inter_chain *c) {
    return inter_db_run(l, "store a chain", "INSERT OR REPLACE INTO chain VALUES(?,?,?,?,?,?,?,?)",
                        "biiiiibb", INTER_JOB(c->job), (int64_t)c->fragment, (int64_t)c->first,
                        (int64_t)c->floor, (int64_t)c->kept, (int64_t)c->next,
                        (const void *)c->base, sizeof c->base, (const void *)c->head,
                        sizeof c->head);
}

enum neb_status inter_ledger_begin_at(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment, uint32_t round,
                                      const uint8_t previous[INTER_SHA_BYTES]) {
    struct inter_chain old,
        c = {.fragment = fragment, .first = round, .floor = round, .kept = round, .next = round};
    memcpy(c.job, job, sizeof c.job);
    memcpy(c.base, previous, sizeof c.base);
    memcpy(c.head, previous, sizeof c.head);
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = inter_ledger_chain(l, job, fragment, &old);
    if (st == NEB_OK && old.first == round && !memcmp(old.base, previous, sizeof old.base))
        return inter_db_end(l, st); // an earlier call has done it
    if (st == NEB_OK &&
        (old.next > round || (old.next == round && memcmp(old.head, previous, sizeof old.head))))
        st = neb_fail(NEB_ERR_STATE,
                      "ledger %s: fragment %u is already at round %u, by another history than that "
                      "of round %u",
                      l->dir, fragment, old.next, round);
    if (st == NEB_OK || st == NEB_ERR_NOT_FOUND)
        st = inter_chain_put(l, &c);
    if (st == NEB_OK)
        st = inter_db_run(l, "begin a chain",
                          "DELETE FROM record WHERE job=? AND fragment=? AND round<?", "bii",
                          INTER_JOB(job), (int64_t)fragment, (int64_t)round);
    if (st == NEB_OK)
        st = inter_db_forget(l, job, fragment, round);
    NEB_TRY(inter_db_end(l, st));
    return inter_blob_sweep(l);
}

// Removes the rounds of a job. Call it within a transaction.
static enum neb_status clear_job(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES]) {
    static const char *const tables[] = {"record", "chain", "manifest", "vote", "promise", "saved"};
    char sql[64];
    enum neb_status rc = NEB_OK;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && rc == NEB_OK; i++) {
        snprintf(sql, sizeof sql, "DELETE FROM %s WHERE job=?", tables[i]);
        rc = inter_db_run(l, "clear a job", sql, "b", INTER_JOB(job));
    }
    return rc;
}

static enum neb_status note_dropped(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                    bool for_ever) {
    NEB_TRY(inter_db_run(l, "note a job that is dropped",
                         "INSERT OR IGNORE INTO dropped(job, for_ever) VALUES(?,?)", "bi",
                         INTER_JOB(job), (int64_t)for_ever));
    return inter_db_run(l, "forget jobs that were dropped",
                        "DELETE FROM dropped WHERE for_ever=0 AND seq<=(SELECT max(seq) FROM "
                        "dropped)-?",
                        "i", (int64_t)INTER_DROPPED_MAX);
}

enum neb_status inter_ledger_was_dropped(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                         bool *out) {
    sqlite3_stmt *s = NULL;
    *out = false;
    NEB_TRY(inter_db_prepare(l, &s, "SELECT 1 FROM dropped WHERE job=?", "b", INTER_JOB(job)));
    enum neb_status st = inter_db_next(l, s, out);
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_ledger_drop_job(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                      bool for_ever) {
    NEB_TRY(inter_db_begin(l));
    enum neb_status rc = note_dropped(l, job, for_ever);
    if (rc == NEB_OK)
        rc = clear_job(l, job);
    if (rc == NEB_OK && for_ever)
        rc = inter_db_forget_reveals(l, job);
    if (rc == NEB_OK)
        rc = inter_db_run(l, "drop a job", "DELETE FROM standing WHERE job=?", "b", INTER_JOB(job));
    if (rc == NEB_OK)
        rc = inter_db_run(l, "drop a job", "DELETE FROM job WHERE id=?", "b", INTER_JOB(job));
    NEB_TRY(inter_db_end(l, rc));
    return inter_blob_sweep(l);
}

enum neb_status inter_ledger_reset_job(struct inter_ledger *l, const struct inter_standing *st) {
    NEB_TRY(inter_db_begin(l));
    enum neb_status rc = clear_job(l, st->job);
    if (rc == NEB_OK)
        rc = inter_ledger_put_standing(l, st);
    NEB_TRY(inter_db_end(l, rc));
    return inter_blob_sweep(l);
}

enum neb_status inter_ledger_floor(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES],
                                   uint32_t fragment, uint32_t *round) {
    struct inter_chain c;
    enum neb_status st = inter_ledger_chain(l, job, fragment, &c);
    *round = st == NEB_OK ? c.kept : 0;
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}
