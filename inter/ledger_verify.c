#include "inter/ledger_verify.h"
#include "agent/base/sha256.h"
#include "inter/ledger_db.h"
#include "inter/weights.h"
#include "security/sign.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>

struct check {
    struct inter_ledger *l;
    const struct inter_ledger_check *c;
    struct inter_ledger_counts *n;
    struct inter_chain chain; // of the fragment that is checked
    struct neb_buf scratch;
};

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

__attribute__((format(printf, 5, 6))) static void damage(struct check *v,
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

// A statement that meets damaged pages ends; that is one more damage, and the next check goes on.
static enum neb_status ended(struct check *v, sqlite3_stmt *s, enum neb_status st) {
    if (st == NEB_ERR_CORRUPT)
        damage_db(v, "%s", sqlite3_errmsg(v->l->db));
    sqlite3_finalize(s);
    return st == NEB_ERR_CORRUPT ? NEB_OK : st;
}

// ---- signatures -----------------------------------------------------------------------------------------------

static void check_signature(struct check *v, const char *what, uint32_t round, uint8_t member,
                            const char *context, const uint8_t sig[INTER_SIG_BYTES]) {
    if (!v->c->verify)
        return;
    v->n->signatures++;
    enum neb_status st =
        v->c->verify(v->c->user, v->chain.job, member, context, v->scratch.p, v->scratch.len, sig);
    if (st == NEB_ERR_NOT_FOUND)
        damage(v, INTER_DAMAGE_SIGNATURE, round, member,
               "the signer of %s, member %u, is not known", what, member);
    else if (st != NEB_OK)
        damage(v, INTER_DAMAGE_SIGNATURE, round, member,
               "%s does not carry the signature of member %u", what, member);
}

static enum neb_status sign_of_record(struct check *v, const char *what,
                                      const struct inter_record *r) {
    neb_buf_clear(&v->scratch);
    inter_record_put_body(&v->scratch, r);
    NEB_TRY(neb_buf_check(&v->scratch));
    check_signature(v, what, r->round, r->leader, SEC_CONTEXT_RECORD, r->sig);
    return NEB_OK;
}

// A commit carries the word of a majority of the job's members that they had it on disk.
static enum neb_status accepts_of_record(struct check *v, const struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    for (uint8_t i = 0; i < r->n_accepts; i++) {
        const struct inter_accept *a = &r->accepts[i];
        neb_buf_clear(&v->scratch);
        inter_accept_put_body(&v->scratch, r, hash, a->epoch);
        NEB_TRY(neb_buf_check(&v->scratch));
        check_signature(v, "the vote in the record", r->round, a->member, SEC_CONTEXT_ACCEPT, a->sig);
    }
    if (v->c->verify && r->n_accepts <= r->n_plans / 2)
        damage(v, INTER_DAMAGE_SIGNATURE, r->round, -1,
               "the record carries %u votes, which is no majority of %u members", r->n_accepts,
               r->n_plans);
    return NEB_OK;
}

// The ledger of a witness has no updates at all.
static bool keeps_updates(struct check *v) {
    struct neb_buf b = {0};
    enum neb_status st = inter_db_fetch(v->l, &b, "SELECT body FROM manifest WHERE job=? LIMIT 1", "b",
                                        INTER_JOB(v->chain.job));
    neb_buf_free(&b);
    return st != NEB_ERR_NOT_FOUND;
}

static enum neb_status sign_of_manifest(struct check *v, const struct inter_manifest *m) {
    neb_buf_clear(&v->scratch);
    inter_manifest_put_body(&v->scratch, m);
    NEB_TRY(neb_buf_check(&v->scratch));
    check_signature(v, "the manifest", m->key.round, m->key.member, SEC_CONTEXT_MANIFEST, m->sig);
    return NEB_OK;
}

// ---- blobs ----------------------------------------------------------------------------------------------------

// An agent that goes on may have dropped a round since the database was read: what it says now, through a second handle.
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
        damage(v, INTER_DAMAGE_BLOB, k->round, k->member, "the blob of member %u %s", k->member,
               st == NEB_ERR_DENIED ? "is sealed with a key that was not given (--seal-key)"
                                    : "was changed or cut after it was sealed");
        return;
    }
    if (st != NEB_OK) {
        if (needed && !dropped_since(v, k->round))
            damage(v, INTER_DAMAGE_BLOB, k->round, k->member, "the blob of member %u is missing",
                   k->member);
        return;
    }
    v->n->blobs++;
    v->n->blob_bytes += map.len;
    neb_sha256(map.p, map.len, sha);
    if (map.len != m->bytes)
        damage(v, INTER_DAMAGE_BLOB, k->round, k->member,
               "the blob of member %u has %zu bytes, its manifest says %u", k->member, map.len,
               m->bytes);
    else if (memcmp(sha, m->sha256, sizeof sha))
        damage(v, INTER_DAMAGE_BLOB, k->round, k->member,
               "the blob of member %u is not the one whose SHA-256 its manifest gives", k->member);
    neb_map_close(&map);
}

// ---- manifests ------------------------------------------------------------------------------------------------

// Whether the record of the manifest's round lists it.
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

static bool column_body(sqlite3_stmt *s, int i, struct neb_rd *out) {
    *out = neb_rd_make(sqlite3_column_blob(s, i), (size_t)sqlite3_column_bytes(s, i));
    return sqlite3_column_type(s, i) == SQLITE_BLOB;
}

static enum neb_status check_manifest(struct check *v, sqlite3_stmt *s) {
    int64_t round = sqlite3_column_int64(s, 0), member = sqlite3_column_int64(s, 1),
            attempt = sqlite3_column_int64(s, 2);
    struct inter_manifest m;
    struct neb_rd rd;
    v->n->manifests++;
    if (!column_body(s, 3, &rd) || !inter_manifest_get(&rd, &m) || !neb_rd_done(&rd)) {
        damage(v, INTER_DAMAGE_MANIFEST, (uint32_t)round, (int)member,
               "the manifest of member %lld cannot be read", (long long)member);
        return NEB_OK;
    }
    if (m.key.round != round || m.key.member != member || m.key.attempt != attempt ||
        m.key.fragment != v->chain.fragment || memcmp(m.key.job, v->chain.job, sizeof m.key.job)) {
        damage(v, INTER_DAMAGE_MANIFEST, (uint32_t)round, (int)member,
               "under the key of member %lld is the manifest of another update", (long long)member);
        return NEB_OK;
    }
    if (m.key.round < v->chain.floor)
        damage(v, INTER_DAMAGE_MANIFEST, m.key.round, m.key.member,
               "there is a manifest of member %u, but this round was pruned", m.key.member);
    else if (m.key.round > v->chain.next)
        damage(v, INTER_DAMAGE_MANIFEST, m.key.round, m.key.member,
               "there is a manifest of member %u, but round %u is open", m.key.member,
               v->chain.next);
    NEB_TRY(sign_of_manifest(v, &m));
    if (m.key.round >= v->chain.kept)
        check_blob(v, &m, m.key.round < v->chain.next && is_listed(v, &m));
    return NEB_OK;
}

static enum neb_status check_manifests(struct check *v) {
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
    return ended(v, s, st);
}

// What a record lists must be what its members said.
static enum neb_status check_entry(struct check *v, const struct inter_record *r,
                                   const struct inter_entry *e) {
    struct neb_buf b = {0};
    struct inter_manifest m;
    enum neb_status st = inter_db_fetch(v->l, &b,
                                        "SELECT body FROM manifest WHERE job=? AND fragment=? AND "
                                        "round=? AND member=? AND attempt=?",
                                        "biiii", INTER_JOB(r->job), (int64_t)r->fragment,
                                        (int64_t)r->round, (int64_t)e->member, (int64_t)e->attempt);
    struct neb_rd rd = neb_rd_make(b.p, b.len);
    if (st == NEB_ERR_NOT_FOUND)
        damage(v, INTER_DAMAGE_MANIFEST, r->round, e->member,
               "the record lists member %u, but its manifest is missing", e->member);
    else if (st == NEB_OK && inter_manifest_get(&rd, &m) && // else check_manifests() names it
             (m.bytes != e->bytes || m.tokens != e->tokens || m.flags != e->flags ||
              memcmp(m.sha256, e->sha256, sizeof m.sha256)))
        damage(v, INTER_DAMAGE_MANIFEST, r->round, e->member,
               "the record lists another update of member %u than its manifest describes",
               e->member);
    neb_buf_free(&b);
    return st == NEB_ERR_NOT_FOUND || st == NEB_ERR_CORRUPT ? NEB_OK : st;
}

// ---- records and votes ----------------------------------------------------------------------------------------

static bool read_record(const struct check *v, sqlite3_stmt *s, int64_t round,
                        struct inter_record *r) {
    struct neb_rd rd;
    return column_body(s, 1, &rd) && inter_record_get(&rd, r) && neb_rd_done(&rd) &&
           r->round == round && r->fragment == v->chain.fragment &&
           !memcmp(r->job, v->chain.job, sizeof r->job);
}

struct walk {                      // along a chain
    int64_t next;                  // round that should come
    uint8_t hash[INTER_SHA_BYTES]; // of the record before
    bool known;                    // false: that one could not be read
    bool weighs;                   // absences are those of the record before
    struct inter_absence absences[INTER_MEMBERS_MAX];
};

static void missing(struct check *v, int64_t from, int64_t to) {
    if (to - from == 1)
        damage(v, INTER_DAMAGE_CHAIN, (uint32_t)from, -1, "the record is missing");
    else
        damage(v, INTER_DAMAGE_CHAIN, (uint32_t)from, -1,
               "the records of rounds %u to %u are missing", (uint32_t)from, (uint32_t)(to - 1));
}

static enum neb_status check_record(struct check *v, sqlite3_stmt *s, struct walk *w) {
    struct inter_record r;
    int64_t round = sqlite3_column_int64(s, 0);
    v->n->records++;
    if (round < v->chain.first || round >= v->chain.next) {
        damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
               "there is a record, but the chain has rounds %u up to %u only", v->chain.first,
               v->chain.next);
        return NEB_OK;
    }
    if (round > w->next) {
        missing(v, w->next, round);
        w->known = false;
    }
    w->next = round + 1;
    if (!read_record(v, s, round, &r)) {
        damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
               "the record cannot be read, or is that of another round");
        w->known = false;
        return NEB_OK;
    }
    if (w->known && memcmp(r.previous, w->hash, sizeof w->hash)) {
        if (round > v->chain.first)
            damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round - 1, -1,
                   "the record is not the one that the record of round %u names", (uint32_t)round);
        else
            damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
                   "the record does not begin the chain");
    }
    if (w->known && w->weighs && !inter_weights_agree(&r, w->absences))
        damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
               "the record weighs its updates otherwise than the records before it ask for");
    inter_record_hash(&r, w->hash);
    memcpy(w->absences, r.absences, sizeof w->absences);
    w->known = w->weighs = true;
    NEB_TRY(sign_of_record(v, "the record", &r));
    NEB_TRY(accepts_of_record(v, &r));
    bool entries = r.round >= v->chain.floor && keeps_updates(v);
    for (uint8_t i = 0; i < r.n && entries; i++)
        if (r.entries[i].verdict == INTER_ACCEPTED) // a refused one may not have come here
            NEB_TRY(check_entry(v, &r, &r.entries[i]));
    return NEB_OK;
}

static enum neb_status check_records(struct check *v) {
    sqlite3_stmt *s = NULL;
    struct walk w = {.next = v->chain.first, .known = true, .weighs = v->chain.first == 0};
    bool row = false;
    memcpy(w.hash, v->chain.base, sizeof w.hash);
    NEB_TRY(inter_db_prepare(v->l, &s,
                             "SELECT round, body FROM record WHERE job=? AND fragment=? ORDER BY "
                             "round",
                             "bi", INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    enum neb_status st;
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row &&
           (st = check_record(v, s, &w)) == NEB_OK)
        ;
    NEB_TRY(ended(v, s, st));
    if (w.next < v->chain.next)
        missing(v, w.next, v->chain.next);
    else if (w.known && memcmp(w.hash, v->chain.head, sizeof w.hash))
        damage(v, INTER_DAMAGE_CHAIN, v->chain.next ? v->chain.next - 1 : 0, -1,
               "the newest record is not the one that was stored last");
    return NEB_OK;
}

static enum neb_status check_votes(struct check *v) {
    sqlite3_stmt *s = NULL;
    struct inter_record r;
    bool row = false;
    NEB_TRY(inter_db_prepare(v->l, &s, "SELECT round, body FROM vote WHERE job=? AND fragment=?",
                             "bi", INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    enum neb_status st;
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row) {
        int64_t round = sqlite3_column_int64(s, 0);
        v->n->votes++;
        if (!read_record(v, s, round, &r))
            damage(v, INTER_DAMAGE_VOTE, (uint32_t)round, -1,
                   "the vote cannot be read, or is that of another round");
        else if (round < v->chain.floor || round > v->chain.next)
            damage(v, INTER_DAMAGE_VOTE, (uint32_t)round, -1, "there is a vote, but this round %s",
                   round < v->chain.floor ? "was pruned" : "is not open yet");
        else if ((st = sign_of_record(v, "the vote", &r)) != NEB_OK)
            break;
    }
    return ended(v, s, st);
}

// ---- what is gone without a trace elsewhere --------------------------------------------------------------------

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
        damage(v, INTER_DAMAGE_MANIFEST, round, -1, "%lld manifests were stored, %lld are here",
               (long long)promised, (long long)have);
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
        damage(v, INTER_DAMAGE_VOTE, round, -1, "the vote that was stored is not here");
    else if (!voted && st == NEB_OK)
        damage(v, INTER_DAMAGE_VOTE, round, -1, "there is a vote, but none was stored");
    return st == NEB_ERR_NOT_FOUND || st == NEB_ERR_CORRUPT ? NEB_OK : st;
}

static enum neb_status check_promises(struct check *v) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    NEB_TRY(inter_db_prepare(
        v->l, &s, "SELECT round, manifests, vote FROM promise WHERE job=? AND fragment=?", "bi",
        INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    enum neb_status st;
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row &&
           (st = check_promise(v, s)) == NEB_OK)
        ;
    NEB_TRY(ended(v, s, st));
    NEB_TRY(inter_db_prepare(v->l, &s,
                             "SELECT round FROM (SELECT job, fragment, round FROM manifest UNION "
                             "SELECT job, fragment, round FROM vote) WHERE job=?1 AND fragment=?2 "
                             "EXCEPT SELECT round FROM promise WHERE job=?1 AND fragment=?2",
                             "bi", INTER_JOB(v->chain.job), (int64_t)v->chain.fragment));
    while ((st = inter_db_next(v->l, s, &row)) == NEB_OK && row)
        damage(v, INTER_DAMAGE_MANIFEST, (uint32_t)sqlite3_column_int64(s, 0), -1,
               "there are manifests or votes, but none were stored");
    return ended(v, s, st);
}

// ---- all of it ------------------------------------------------------------------------------------------------

static enum neb_status check_fragment(struct check *v, const uint8_t job[INTER_ID_BYTES],
                                      uint32_t fragment) {
    enum neb_status st = inter_ledger_chain(v->l, job, fragment, &v->chain);
    if (st != NEB_OK) { // none yet, or unreadable: then everything in it is
        v->chain = (struct inter_chain){.fragment = fragment};
        memcpy(v->chain.job, job, INTER_ID_BYTES);
    }
    if (st == NEB_ERR_CORRUPT)
        damage(v, INTER_DAMAGE_CHAIN, 0, -1, "the chain's own row is damaged");
    else if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    v->n->fragments++;
    NEB_TRY(check_records(v));
    NEB_TRY(check_manifests(v));
    NEB_TRY(check_votes(v));
    return check_promises(v);
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
            damage_db(v, "a row has a key that no update has (fragment %lld)", (long long)fragment);
            continue;
        }
        memcpy(job, sqlite3_column_blob(s, 0), sizeof job);
        if ((st = check_fragment(v, job, (uint32_t)fragment)) != NEB_OK)
            break;
    }
    return ended(v, s, st);
}

static enum neb_status check_database(struct check *v) {
    sqlite3_stmt *s = NULL;
    bool row = false;
    enum neb_status st = inter_db_prepare(v->l, &s, "PRAGMA integrity_check(20)", "");
    while (st == NEB_OK && (st = inter_db_next(v->l, s, &row)) == NEB_OK && row) {
        const char *text = (const char *)sqlite3_column_text(s, 0);
        if (!text || strcmp(text, "ok") != 0)
            damage_db(v, "%s", text ? text : "integrity check without an answer");
    }
    return ended(v, s, st);
}

static enum neb_status count_strays(struct check *v) {
    DIR *d = opendir(v->l->blobs);
    if (!d) {
        damage_db(v, "the folder of the blobs cannot be opened: %s", strerror(errno));
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
