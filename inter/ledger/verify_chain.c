// SPDX-License-Identifier: Apache-2.0
// The chain of one fragment: records that name one another, their signatures and votes, and the
// updates that they list.
#include "inter/ledger/verify_state.h"
#include "inter/record/weights.h"
#include "security/sign.h"

#include <string.h>

static enum neb_status sign_of_record(struct check *v, const char *what,
                                      const struct inter_record *r) {
    neb_buf_clear(&v->scratch);
    inter_record_put_body(&v->scratch, r);
    NEB_TRY(neb_buf_check(&v->scratch));
    verify_signature(v, what, r->round, r->leader, SEC_CONTEXT_RECORD, r->sig);
    return NEB_OK;
}

// The number of votes that a quorum of all members needs. Removed members count too.
static uint8_t needed(const struct check *v, const struct inter_record *r) {
    struct inter_job_config c = {.n_members = r->n_plans};
    if (v->c->about)
        v->c->about(v->c->user, r->job, &c);
    c.removed = mset_none();
    return inter_job_quorum(&c);
}

// True if a quorum has accepted: of all members, or of those that are left after a signed list took
// votes away. The second quorum is enough only in a term above 0 with a remaining leader: of two
// members, member 0 leads term 0, and a survivor asks for a term of its own.
static bool enough_votes(const struct check *v, const struct inter_record *r) {
    struct inter_job_config c = {.n_members = r->n_plans};
    struct member_set all = mset_first(r->n_plans), votes = mset_none();
    if (v->c->about)
        v->c->about(v->c->user, r->job, &c);
    struct member_set left = mset_minus(all, c.removed);
    for (uint8_t i = 0; i < r->n_accepts; i++)
        mset_add(&votes, r->accepts[i].member);
    return mset_count(mset_common(votes, all)) >= needed(v, r) ||
           (!mset_equal(left, all) && r->term && mset_has(left, r->leader) &&
            mset_count(mset_common(votes, left)) >= inter_job_quorum(&c));
}

// A commit holds the accepts of a majority of the job's members.
static enum neb_status accepts_of_record(struct check *v, const struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    for (uint8_t i = 0; i < r->n_accepts; i++) {
        const struct inter_accept *a = &r->accepts[i];
        neb_buf_clear(&v->scratch);
        inter_accept_put_body(&v->scratch, r, hash, a->epoch);
        NEB_TRY(neb_buf_check(&v->scratch));
        verify_signature(v, "the vote in the record", r->round, a->member, SEC_CONTEXT_ACCEPT,
                         a->sig);
    }
    if (v->c->verify && !enough_votes(v, r))
        verify_damage(v, INTER_DAMAGE_SIGNATURE, r->round, -1,
                      "the record holds %u votes and needs %u of %u members", r->n_accepts,
                      needed(v, r), r->n_plans);
    return NEB_OK;
}

// The ledger of a witness has no updates at all.
static bool keeps_updates(struct check *v) {
    struct neb_buf b = {0};
    enum neb_status st = inter_db_fetch(v->l, &b, "SELECT body FROM manifest WHERE job=? LIMIT 1",
                                        "b", INTER_JOB(v->chain.job));
    neb_buf_free(&b);
    return st != NEB_ERR_NOT_FOUND;
}

// A record must list what the manifests of its members say.
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
        verify_damage(v, INTER_DAMAGE_MANIFEST, r->round, e->member,
                      "the record lists member %u, but its manifest is missing", e->member);
    else if (st == NEB_OK && inter_manifest_get(&rd, &m) && // otherwise verify_manifests reports it
             (m.bytes != e->bytes || m.tokens != e->tokens || m.flags != e->flags ||
              memcmp(m.sha256, e->sha256, sizeof m.sha256)))
        verify_damage(v, INTER_DAMAGE_MANIFEST, r->round, e->member,
                      "the record lists another update of member %u than its manifest describes",
                      e->member);
    neb_buf_free(&b);
    return st == NEB_ERR_NOT_FOUND || st == NEB_ERR_CORRUPT ? NEB_OK : st;
}

static bool read_record(const struct check *v, sqlite3_stmt *s, int64_t round,
                        struct inter_record *r) {
    struct neb_rd rd;
    return verify_body(s, 1, &rd) && inter_record_get(&rd, r) && neb_rd_done(&rd) &&
           r->round == round && r->fragment == v->chain.fragment &&
           !memcmp(r->job, v->chain.job, sizeof r->job);
}

struct walk {                      // along a chain
    int64_t next;                  // round that should come next
    uint8_t hash[INTER_SHA_BYTES]; // of the previous record
    bool known;                    // false: the previous record could not be read
    bool weighs;                   // absences are those of the previous record
    struct inter_absence absences[NEB_MEMBERS_MAX];
};

static void missing(struct check *v, int64_t from, int64_t to) {
    if (to - from == 1)
        verify_damage(v, INTER_DAMAGE_CHAIN, (uint32_t)from, -1, "the record is missing");
    else
        verify_damage(v, INTER_DAMAGE_CHAIN, (uint32_t)from, -1,
                      "the records of rounds %u to %u are missing", (uint32_t)from,
                      (uint32_t)(to - 1));
}

static enum neb_status check_record(struct check *v, sqlite3_stmt *s, struct walk *w) {
    struct inter_record r;
    int64_t round = sqlite3_column_int64(s, 0);
    v->n->records++;
    if (round < v->chain.first || round >= v->chain.next) {
        verify_damage(
            v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
            "there is a record, but the chain begins at round %u and ends before round %u",
            v->chain.first, v->chain.next);
        return NEB_OK;
    }
    if (round > w->next) {
        missing(v, w->next, round);
        w->known = false;
    }
    w->next = round + 1;
    if (!read_record(v, s, round, &r)) {
        verify_damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
                      "the record cannot be read, or is of another round");
        w->known = false;
        return NEB_OK;
    }
    if (w->known && memcmp(r.previous, w->hash, sizeof w->hash)) {
        if (round > v->chain.first)
            verify_damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round - 1, -1,
                          "the record is not the one that the record of round %u names",
                          (uint32_t)round);
        else
            verify_damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
                          "the record does not follow from the start of the chain");
    }
    if (w->known && w->weighs && !inter_weights_agree(&r, w->absences))
        verify_damage(v, INTER_DAMAGE_CHAIN, (uint32_t)round, -1,
                      "the weights in the record do not follow from the records before it");
    inter_record_hash(&r, w->hash);
    memcpy(w->absences, r.absences, sizeof w->absences);
    w->known = w->weighs = true;
    NEB_TRY(sign_of_record(v, "the record", &r));
    NEB_TRY(accepts_of_record(v, &r));
    bool entries = r.round >= v->chain.floor && keeps_updates(v);
    for (uint8_t i = 0; i < r.n && entries; i++)
        if (r.entries[i].verdict == INTER_ACCEPTED) // a rejected one may not have arrived here
            NEB_TRY(check_entry(v, &r, &r.entries[i]));
    return NEB_OK;
}

enum neb_status verify_records(struct check *v) {
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
    NEB_TRY(verify_ended(v, s, st));
    if (w.next < v->chain.next)
        missing(v, w.next, v->chain.next);
    else if (w.known && memcmp(w.hash, v->chain.head, sizeof w.hash))
        verify_damage(v, INTER_DAMAGE_CHAIN, v->chain.next ? v->chain.next - 1 : 0, -1,
                      "the newest record is not the one that was stored last");
    return NEB_OK;
}

enum neb_status verify_votes(struct check *v) {
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
            verify_damage(v, INTER_DAMAGE_VOTE, (uint32_t)round, -1,
                          "the vote cannot be read, or is of another round");
        else if (round < v->chain.floor || round > v->chain.next)
            verify_damage(v, INTER_DAMAGE_VOTE, (uint32_t)round, -1,
                          "there is a vote, but this round %s",
                          round < v->chain.floor ? "was pruned" : "is not open yet");
        else if ((st = sign_of_record(v, "the vote", &r)) != NEB_OK)
            break;
    }
    return verify_ended(v, s, st);
}
