// SPDX-License-Identifier: Apache-2.0
// Checks a complete ledger: its database, each fragment (verify_chain.c, verify_updates.c), and
// files that belong to no update.
#include "inter/ledger/verify_state.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>

const char *inter_damage_name(enum inter_damage_kind k) {
    static const char *const names[] = {"database", "chain", "signature",
                                        "manifest", "vote",  "blob"};
    return (size_t)k < sizeof names / sizeof names[0] ? names[k] : "unknown";
}

static void report(struct check *v, struct inter_damage *d, const char *fmt, va_list ap) {
    char text[256];
    vsnprintf(text, sizeof text, fmt, ap);
    d->text = text;
    v->n->damages++;
    if (v->c->damage)
        v->c->damage(v->c->user, d);
}

__attribute__((format(printf, 5, 6))) void verify_damage(struct check *v,
                                                         enum inter_damage_kind kind,
                                                         uint32_t round, int member,
                                                         const char *fmt, ...) {
    struct inter_damage d = {.kind = kind,
                             .placed = true,
                             .fragment = v->chain.fragment,
                             .round = round,
                             .member = member};
    va_list ap;
    memcpy(d.job, v->chain.job, sizeof d.job);
    va_start(ap, fmt);
    report(v, &d, fmt, ap);
    va_end(ap);
}

__attribute__((format(printf, 2, 3))) static void damage_db(struct check *v, const char *fmt, ...) {
    struct inter_damage d = {.kind = INTER_DAMAGE_DATABASE, .member = -1};
    va_list ap;
    va_start(ap, fmt);
    report(v, &d, fmt, ap);
    va_end(ap);
}

enum neb_status verify_ended(struct check *v, sqlite3_stmt *s, enum neb_status st) {
    if (st == NEB_ERR_CORRUPT)
        damage_db(v, "%s", sqlite3_errmsg(v->l->db));
    sqlite3_finalize(s);
    return st == NEB_ERR_CORRUPT ? NEB_OK : st;
}

void verify_signature(struct check *v, const char *what, uint32_t round, uint8_t member,
                      const char *context, const uint8_t sig[INTER_SIG_BYTES]) {
    if (!v->c->verify)
        return;
    v->n->signatures++;
    enum neb_status st =
        v->c->verify(v->c->user, v->chain.job, member, context, v->scratch.p, v->scratch.len, sig);
    if (st == NEB_ERR_NOT_FOUND)
        verify_damage(v, INTER_DAMAGE_SIGNATURE, round, member,
                      "the signer of %s, member %u, is not known", what, member);
    else if (st != NEB_OK)
        verify_damage(v, INTER_DAMAGE_SIGNATURE, round, member,
                      "%s does not carry the signature of member %u", what, member);
}

bool verify_body(sqlite3_stmt *s, int i, struct neb_rd *out) {
    *out = neb_rd_make(sqlite3_column_blob(s, i), (size_t)sqlite3_column_bytes(s, i));
    return sqlite3_column_type(s, i) == SQLITE_BLOB;
}

static enum neb_status check_fragment(struct check *v, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment) {
    enum neb_status st = inter_ledger_chain(v->l, job, fragment, &v->chain);
    if (st != NEB_OK) { // none yet, or unreadable: check against an empty chain
        v->chain = (struct inter_chain){.fragment = fragment};
        memcpy(v->chain.job, job, INTER_ID_BYTES);
    }
    if (st == NEB_ERR_CORRUPT)
        verify_damage(v, INTER_DAMAGE_CHAIN, 0, -1, "the chain's own row is damaged");
    else if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    v->n->fragments++;
    NEB_TRY(verify_records(v));
    NEB_TRY(verify_manifests(v));
    NEB_TRY(verify_votes(v));
    return verify_promises(v);
}

static enum neb_status check_fragments(struct check *v) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    enum neb_status st;
    NEB_TRY(inter_db_prepare(v->l, &s,
                             "SELECT job, fragment FROM chain UNION SELECT job, fragment FROM "
                             "record UNION SELECT job, fragment FROM manifest UNION SELECT job, "
                             "fragment FROM vote UNION SELECT job, fragment FROM promise",
                             ""));
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row) {
        int64_t fragment = sqlite3_column_int64(s, 1);
        uint8_t job[INTER_ID_BYTES];
        if (sqlite3_column_bytes(s, 0) != INTER_ID_BYTES || fragment < 0 ||
            fragment >= INTER_FRAGMENTS_MAX) {
            damage_db(v, "a row has an impossible key (fragment %lld)", (long long)fragment);
            continue;
        }
        memcpy(job, sqlite3_column_blob(s, 0), sizeof job);
        if ((st = check_fragment(v, job, (uint32_t)fragment)) != NEB_OK)
            break;
    }
    return verify_ended(v, s, st);
}

static enum neb_status check_database(struct check *v) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    enum neb_status st = inter_db_prepare(v->l, &s, "PRAGMA integrity_check(20)", "");
    while (st == NEB_OK && (st = inter_db_next(v->l, s, &row)) == NEB_OK && row) {
        const char *text = (const char *)sqlite3_column_text(s, 0);
        if (!text || strcmp(text, "ok") != 0)
            damage_db(v, "%s", text ? text : "the integrity check gave no answer");
    }
    return verify_ended(v, s, st);
}

static enum neb_status count_strays(struct check *v) {
    DIR *d = opendir(v->l->blobs);
    if (!d) {
        damage_db(v, "cannot open the folder of the blobs: %s", strerror(errno));
        return NEB_OK;
    }
    for (struct dirent *e; (e = readdir(d));) {
        struct inter_key k;
        struct neb_buf b = {0};
        const char *suffix;
        if (e->d_name[0] == '.')
            continue;
        if (!inter_blob_parse(e->d_name, &k, &suffix) ||
            inter_db_fetch(v->l, &b,
                           "SELECT 1 FROM manifest WHERE job=? AND fragment=? AND round=? AND "
                           "member=? AND attempt=?",
                           "biiii", INTER_JOB(k.job), (int64_t)k.fragment, (int64_t)k.round,
                           (int64_t)k.member, (int64_t)k.attempt) != NEB_OK)
            v->n->strays++;
        neb_buf_free(&b);
    }
    closedir(d);
    return NEB_OK;
}

enum neb_status inter_ledger_verify(struct inter_ledger *l, const struct inter_ledger_check *c,
                                    struct inter_ledger_counts *out) {
    struct check v = {.l = l, .c = c, .n = out};
    *out = (struct inter_ledger_counts){0};
    if (sqlite3_exec(l->db, "BEGIN", NULL, NULL, NULL) != SQLITE_OK) // one moment for all reads
        return inter_db_fail(l, "begin reading");
    enum neb_status st = check_database(&v);
    if (st == NEB_OK)
        st = check_fragments(&v);
    if (st == NEB_OK)
        st = count_strays(&v);
    if (!sqlite3_get_autocommit(l->db))
        sqlite3_exec(l->db, "ROLLBACK", NULL, NULL, NULL);
    neb_buf_free(&v.scratch);
    return st == NEB_OK && out->damages ? NEB_ERR_CORRUPT : st;
}
