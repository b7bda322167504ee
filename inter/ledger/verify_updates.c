// SPDX-License-Identifier: Apache-2.0
// The updates of one fragment: manifests, their blobs, and what was noted of each round (how many
// manifests, which vote).
#include "agent/base/sha256.h"
#include "inter/ledger/verify_state.h"
#include "security/sign.h"

#include <string.h>

static enum neb_status sign_of_manifest(struct check *v, const struct inter_manifest *m) {
    neb_buf_clear(&v->scratch);
    inter_manifest_put_body(&v->scratch, m);
    NEB_TRY(neb_buf_check(&v->scratch));
    verify_signature(v, "the manifest", m->key.round, m->key.member, SEC_CONTEXT_MANIFEST, m->sig);
    return NEB_OK;
}

// True if a running agent has dropped the round since the database was read. A second handle reads
// the present state.
static bool dropped_since(struct check *v, uint32_t round) {
    struct inter_ledger *now = NULL;
    uint32_t kept = 0;
    bool gone = inter_ledger_open_readonly(v->l->dir, &now) == NEB_OK &&
                inter_ledger_floor(now, v->chain.job, v->chain.fragment, &kept) == NEB_OK &&
                round < kept;
    inter_ledger_close(&now);
    return gone;
}

static void check_blob(struct check *v, const struct inter_manifest *m, bool needed) {
    uint8_t sha[INTER_SHA_BYTES];
    struct neb_map map;
    const struct inter_key *k = &m->key;
    bool here = inter_ledger_has_blob(v->l, k);
    enum neb_status st = here ? inter_ledger_map_blob(v->l, k, &map) : NEB_ERR_NOT_FOUND;
    if (st == NEB_ERR_DENIED || st == NEB_ERR_CORRUPT) {
        verify_damage(v, INTER_DAMAGE_BLOB, k->round, k->member, "the blob of member %u %s",
                      k->member,
                      st == NEB_ERR_DENIED ? "is sealed with a key that was not given (--seal-key)"
                                           : "was changed or truncated after it was sealed");
        return;
    }
    if (st != NEB_OK) {
        if (needed && !dropped_since(v, k->round))
            verify_damage(v, INTER_DAMAGE_BLOB, k->round, k->member,
                          "the blob of member %u is missing", k->member);
        return;
    }
    v->n->blobs++;
    v->n->blob_bytes += map.len;
    neb_sha256(map.p, map.len, sha);
    if (map.len != m->bytes)
        verify_damage(v, INTER_DAMAGE_BLOB, k->round, k->member,
                      "the blob of member %u has %zu bytes, its manifest says %u", k->member,
                      map.len, m->bytes);
    else if (memcmp(sha, m->sha256, sizeof sha))
        verify_damage(v, INTER_DAMAGE_BLOB, k->round, k->member,
                      "the blob of member %u does not have the SHA-256 of its manifest", k->member);
    neb_map_close(&map);
}

// True if the record of the manifest's round lists it.
static bool is_listed(struct check *v, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    struct inter_record r;
    bool listed = false;
    if (inter_db_fetch(v->l, &b, "SELECT body FROM record WHERE job=? AND fragment=? AND round=?",
                       "bii", INTER_JOB(m->key.job), (int64_t)m->key.fragment,
                       (int64_t)m->key.round) == NEB_OK) {
        struct neb_rd rd = neb_rd_make(b.p, b.len);
        if (inter_record_get(&rd, &r))
            for (uint8_t i = 0; i < r.n; i++)
                listed |=
                    r.entries[i].member == m->key.member && r.entries[i].attempt == m->key.attempt;
    }
    neb_buf_free(&b);
    return listed;
}

static enum neb_status check_manifest(struct check *v, sqlite3_stmt *s) {
    int64_t round = sqlite3_column_int64(s, 0), member = sqlite3_column_int64(s, 1),
            attempt = sqlite3_column_int64(s, 2);
    struct inter_manifest m;
    struct neb_rd rd;
    v->n->manifests++;
    if (!verify_body(s, 3, &rd) || !inter_manifest_get(&rd, &m) || !neb_rd_done(&rd)) {
        verify_damage(v, INTER_DAMAGE_MANIFEST, (uint32_t)round, (int)member,
                      "the manifest of member %lld cannot be read", (long long)member);
        return NEB_OK;
    }
    if (m.key.round != round || m.key.member != member || m.key.attempt != attempt ||
        m.key.fragment != v->chain.fragment || memcmp(m.key.job, v->chain.job, sizeof m.key.job)) {
        verify_damage(v, INTER_DAMAGE_MANIFEST, (uint32_t)round, (int)member,
                      "under the key of member %lld there is the manifest of another update",
                      (long long)member);
        return NEB_OK;
    }
    if (m.key.round < v->chain.floor)
        verify_damage(v, INTER_DAMAGE_MANIFEST, m.key.round, m.key.member,
                      "there is a manifest of member %u, but this round was pruned", m.key.member);
    else if (m.key.round > v->chain.next)
        verify_damage(v, INTER_DAMAGE_MANIFEST, m.key.round, m.key.member,
                      "there is a manifest of member %u, but round %u is open", m.key.member,
                      v->chain.next);
    NEB_TRY(sign_of_manifest(v, &m));
    if (m.key.round >= v->chain.kept)
        check_blob(v, &m, m.key.round < v->chain.next && is_listed(v, &m));
    return NEB_OK;
}

enum neb_status verify_manifests(struct check *v) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(v->l, &s,
                             "SELECT round, member, attempt, body FROM manifest WHERE job=? AND "
                             "fragment=? ORDER BY round, member, attempt",
                             "bi", INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    enum neb_status st;
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row &&
           (st = check_manifest(v, s)) == NEB_OK)
        ;
    return verify_ended(v, s, st);
}

static enum neb_status count_of(struct check *v, const char *sql, uint32_t round, int64_t *out) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    *out = 0;
    NEB_TRY(inter_db_prepare(v->l, &s, sql, "bii", INTER_JOB(v->chain.job),
                             (int64_t)v->chain.fragment, (int64_t)round));
    enum neb_status st = inter_db_next(v->l, s, &row);
    if (row)
        *out = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return st;
}

static enum neb_status check_promise(struct check *v, sqlite3_stmt *s) {
    uint32_t round = (uint32_t)sqlite3_column_int64(s, 0);
    int64_t promised = sqlite3_column_int64(s, 1), have;
    bool voted = sqlite3_column_type(s, 2) != SQLITE_NULL, same = false;
    struct inter_record r;
    struct neb_buf b = {0};
    uint8_t hash[INTER_SHA_BYTES];
    NEB_TRY(count_of(v, "SELECT count(*) FROM manifest WHERE job=? AND fragment=? AND round=?",
                     round, &have));
    if (have != promised)
        verify_damage(v, INTER_DAMAGE_MANIFEST, round, -1,
                      "%lld manifests were stored, %lld are here", (long long)promised,
                      (long long)have);
    enum neb_status st =
        inter_db_fetch(v->l, &b, "SELECT body FROM vote WHERE job=? AND fragment=? AND round=?",
                       "bii", INTER_JOB(v->chain.job), (int64_t)v->chain.fragment, (int64_t)round);
    if (st == NEB_OK) {
        struct neb_rd rd = neb_rd_make(b.p, b.len);
        if (inter_record_get(&rd, &r)) {
            inter_record_hash(&r, hash);
            same = sqlite3_column_bytes(s, 2) == INTER_SHA_BYTES &&
                   !memcmp(sqlite3_column_blob(s, 2), hash, sizeof hash);
        }
    }
    neb_buf_free(&b);
    if (voted && !same)
        verify_damage(v, INTER_DAMAGE_VOTE, round, -1, "the stored vote is missing or was changed");
    else if (!voted && st == NEB_OK)
        verify_damage(v, INTER_DAMAGE_VOTE, round, -1,
                      "there is a vote that this agent has not stored");
    return st == NEB_ERR_NOT_FOUND || st == NEB_ERR_CORRUPT ? NEB_OK : st;
}

enum neb_status verify_promises(struct check *v) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(
        v->l, &s, "SELECT round, manifests, vote FROM promise WHERE job=? AND fragment=?", "bi",
        INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    enum neb_status st;
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row &&
           (st = check_promise(v, s)) == NEB_OK)
        ;
    NEB_TRY(verify_ended(v, s, st));
    NEB_TRY(inter_db_prepare(v->l, &s,
                             "SELECT round FROM (SELECT job, fragment, round FROM manifest UNION "
                             "SELECT job, fragment, round FROM vote) WHERE job=?1 AND fragment=?2 "
                             "EXCEPT SELECT round FROM promise WHERE job=?1 AND fragment=?2",
                             "bi", INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row)
        verify_damage(v, INTER_DAMAGE_MANIFEST, (uint32_t)sqlite3_column_int64(s, 0), -1,
                      "there are manifests or votes that this agent has not stored");
    return verify_ended(v, s, st);
}
