// SPDX-License-Identifier: Apache-2.0
// Messages that must arrive, and the numbers of those taken from others.
#include "inter/ledger/db.h"
#include "security/members.h"

#include <stdio.h>

enum { EPOCHS_KEPT = 16 };

uint64_t inter_ledger_epoch(const struct inter_ledger *l) { return l->epoch; }

static enum neb_status fetch_u64(struct inter_ledger *l, const char *sql, const char *peer,
                                 int64_t arg, uint64_t *out) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    *out = 0;
    NEB_TRY(inter_db_prepare(l, &s, sql, "ti", peer, arg));
    enum neb_status st = inter_db_next(l, s, &row);
    if (row)
        *out = (uint64_t)sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return st;
}

static enum neb_status has_room(struct inter_ledger *l, const char *peer, size_t n,
                                const struct inter_outbox_limit *most) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(
        inter_db_prepare(l, &s,
                         "SELECT count(*), total(length(body)), count(*) FILTER (WHERE peer=?1), "
                         "total(length(body)) FILTER (WHERE peer=?1) FROM outbox",
                         "t", peer));
    enum neb_status st = inter_db_next(l, s, &row);
    if (st == NEB_OK && row &&
        ((uint64_t)sqlite3_column_int64(s, 0) >= most->messages_all ||
         (uint64_t)sqlite3_column_int64(s, 1) + n > most->bytes_all ||
         (uint64_t)sqlite3_column_int64(s, 2) >= most->messages ||
         (uint64_t)sqlite3_column_int64(s, 3) + n > most->bytes))
        st = NEB_ERR_LIMIT;
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_ledger_post(struct inter_ledger *l, const char *peer, uint32_t kind,
                                  const void *p, size_t n, const struct inter_outbox_limit *most,
                                  uint64_t *seq, uint64_t *previous) {
    if (most)
        NEB_TRY(has_room(l, peer, n, most));
    NEB_TRY(fetch_u64(l, "SELECT max(seq) FROM outbox WHERE peer=? AND seq<=?", peer, INT64_MAX,
                      previous));
    NEB_TRY(inter_db_run(l, "store a message", "INSERT INTO outbox(peer, kind, body) VALUES(?,?,?)",
                         "tib", peer, (int64_t)kind, p, n));
    *seq = (uint64_t)sqlite3_last_insert_rowid(l->db);
    return NEB_OK;
}

enum neb_status inter_ledger_posted(struct inter_ledger *l, const char *peer, uint64_t seq) {
    return inter_db_run(l, "remove a message", "DELETE FROM outbox WHERE peer=? AND seq<=?", "ti",
                        peer, (int64_t)(seq > INT64_MAX ? INT64_MAX : seq));
}

enum neb_status inter_ledger_unpost(struct inter_ledger *l, const char *peer, uint32_t kind,
                                    const void *p, size_t n) {
    return inter_db_run(l, "take a message back",
                        "DELETE FROM outbox WHERE peer=? AND kind=? AND body=?", "tib", peer,
                        (int64_t)kind, p, n);
}

enum neb_status inter_ledger_outbox_sweep(struct inter_ledger *l, inter_ledger_listed *listed,
                                          void *user) {
    char peer[SEC_NAME_MAX] = "";
    enum neb_status st = NEB_OK;
    bool row = true;
    for (int64_t from = 0; st == NEB_OK && row;
         from = 1) { // peers by name; the first name may be empty
        sqlite3_stmt *s = NULL;
        NEB_TRY(inter_db_prepare(l, &s,
                                 "SELECT min(peer) FROM outbox WHERE peer>?1 OR ?2=0 HAVING "
                                 "min(peer) IS NOT NULL",
                                 "ti", peer, from));
        st = inter_db_next(l, s, &row);
        if (st == NEB_OK && row)
            snprintf(peer, sizeof peer, "%s", (const char *)sqlite3_column_text(s, 0));
        sqlite3_finalize(s);
        if (st == NEB_OK && row && !listed(user, peer))
            st = inter_ledger_posted(l, peer, UINT64_MAX);
    }
    return st;
}

enum neb_status inter_ledger_pending(struct inter_ledger *l, const char *peer,
                                     inter_ledger_message *fn, void *user) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(l, &s, "SELECT seq, kind, body FROM outbox WHERE peer=? ORDER BY seq",
                             "t", peer));
    enum neb_status st;
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row)
        if (!fn(user, (uint64_t)sqlite3_column_int64(s, 0), (uint32_t)sqlite3_column_int64(s, 1),
                sqlite3_column_blob(s, 2), (size_t)sqlite3_column_bytes(s, 2)))
            break;
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_ledger_outbox(struct inter_ledger *l, inter_ledger_each_peer *fn,
                                    void *user) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(l, &s,
                             "SELECT peer, count(*), sum(length(body)) FROM outbox GROUP BY peer "
                             "ORDER BY peer",
                             ""));
    enum neb_status st;
    while ((st = inter_db_next(l, s, &row)) == NEB_OK && row)
        fn(user, (const char *)sqlite3_column_text(s, 0), (uint64_t)sqlite3_column_int64(s, 1),
           (uint64_t)sqlite3_column_int64(s, 2));
    sqlite3_finalize(s);
    return st;
}

enum neb_status inter_ledger_taken(struct inter_ledger *l, const char *peer, uint64_t epoch,
                                   uint64_t *seq) {
    return fetch_u64(l, "SELECT seq FROM inbox WHERE peer=? AND epoch=?", peer, (int64_t)epoch,
                     seq);
}

enum neb_status inter_ledger_take(struct inter_ledger *l, const char *peer, uint64_t epoch,
                                  uint64_t seq) {
    if (seq > INT64_MAX)
        return neb_fail(NEB_ERR_INVALID, "message number %llu of %s is out of range",
                        (unsigned long long)seq, peer);
    NEB_TRY(inter_db_begin(l));
    enum neb_status st = inter_db_run(
        l, "store a receipt",
        "INSERT INTO inbox(peer, epoch, seq) VALUES(?,?,?) ON CONFLICT(peer, epoch) DO UPDATE SET "
        "seq=max(seq, excluded.seq)",
        "tii", peer, (int64_t)epoch, (int64_t)seq);
    if (st == NEB_OK) // a peer that invents epochs must not fill the disk
        st = inter_db_run(l, "forget old receipts",
                          "DELETE FROM inbox WHERE peer=?1 AND id <= (SELECT id FROM inbox WHERE "
                          "peer=?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                          "ti", peer, (int64_t)EPOCHS_KEPT);
    return inter_db_end(l, st);
}
