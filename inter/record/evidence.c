// SPDX-License-Identifier: Apache-2.0
#include "inter/record/evidence.h"
#include "security/sign.h"

#include <stdio.h>
#include <string.h>

static struct inter_statement statement_of_accept(const struct inter_record *r,
                                                  const struct inter_accept *a) {
    struct inter_statement s = {
        .kind = INTER_STATEMENT_ACCEPT,
        .fragment = r->fragment,
        .term = r->term,
        .promise = {.member = a->member, .epoch = a->epoch, .round = r->round}};
    memcpy(s.job, r->job, sizeof s.job);
    inter_record_hash(r, s.promise.vote_hash);
    memcpy(s.promise.sig, a->sig, sizeof a->sig);
    return s;
}

static struct inter_statement statement_of_promise(const struct inter_record *r,
                                                   const struct inter_promise *p) {
    struct inter_statement s = {
        .kind = INTER_STATEMENT_PROMISE, .fragment = r->fragment, .term = p->term, .promise = *p};
    memcpy(s.job, r->job, sizeof s.job);
    return s;
}

struct inter_statement inter_statement_of_update(const struct inter_manifest *m) {
    struct inter_statement s = {.kind = INTER_STATEMENT_UPDATE,
                                .fragment = m->key.fragment,
                                .promise = {.member = m->key.member, .round = m->key.round},
                                .update = *m};
    memcpy(s.job, m->key.job, sizeof s.job);
    memcpy(s.promise.sig, m->sig, sizeof m->sig);
    return s;
}

// ---- what was signed ----------------------------------------------------------------------------

static void put_accept(struct neb_buf *b, const struct inter_statement *s) {
    struct inter_record r = {.round = s->promise.round, .fragment = s->fragment, .term = s->term};
    memcpy(r.job, s->job, sizeof r.job);
    inter_accept_put_body(b, &r, s->promise.vote_hash, s->promise.epoch);
}

void inter_statement_put_signed(struct neb_buf *b, const struct inter_statement *s) {
    if (s->kind == INTER_STATEMENT_ACCEPT)
        put_accept(b, s);
    else if (s->kind == INTER_STATEMENT_PROMISE)
        inter_promise_put_body(b, s->job, s->fragment, &s->promise);
    else
        inter_manifest_put_body(b, &s->update);
}

const char *inter_statement_context(const struct inter_statement *s) {
    static const char *const contexts[INTER_STATEMENT_KINDS] = {
        SEC_CONTEXT_ACCEPT, SEC_CONTEXT_PROMISE, SEC_CONTEXT_MANIFEST};
    return contexts[s->kind];
}

// ---- conflicts ----------------------------------------------------------------------------------

static bool same_manifest(const struct inter_manifest *a, const struct inter_manifest *b) {
    struct neb_buf x = {0}, y = {0};
    inter_manifest_put_body(&x, a);
    inter_manifest_put_body(&y, b);
    bool same = x.oom || y.oom || (x.len == y.len && !memcmp(x.p, y.p, x.len));
    neb_buf_free(&x);
    neb_buf_free(&y);
    return same;
}

static bool same_value(const struct inter_promise *a, const struct inter_promise *b) {
    return !memcmp(a->vote_hash, b->vote_hash, sizeof a->vote_hash);
}

// True if the promise does not report a vote that its member had signed before.
static bool forgets(const struct inter_statement *promise, const struct inter_statement *accept) {
    const struct inter_promise *p = &promise->promise, *v = &accept->promise;
    if (accept->term >= promise->term || p->round > v->round)
        return false;
    return p->round < v->round || !p->voted || p->vote_term < accept->term ||
           (p->vote_term == accept->term && !same_value(p, v));
}

bool inter_statements_conflict(const struct inter_statement *a, const struct inter_statement *b) {
    if (a->promise.member != b->promise.member || a->fragment != b->fragment ||
        memcmp(a->job, b->job, sizeof a->job))
        return false;
    if (a->kind == INTER_STATEMENT_UPDATE || b->kind == INTER_STATEMENT_UPDATE)
        return a->kind == b->kind && inter_key_equal(&a->update.key, &b->update.key) &&
               !same_manifest(&a->update, &b->update);
    if (a->promise.epoch != b->promise.epoch)
        return false;
    if (a->kind == INTER_STATEMENT_PROMISE)
        return b->kind == INTER_STATEMENT_ACCEPT && forgets(a, b);
    if (b->kind == INTER_STATEMENT_PROMISE)
        return forgets(b, a);
    return a->term == b->term && a->promise.round == b->promise.round &&
           !same_value(&a->promise, &b->promise);
}

enum { STATEMENTS_MAX = NEB_MEMBERS_MAX + INTER_PROMISES_MAX }; // of one record

static size_t statements(const struct inter_record *r, struct inter_statement *out) {
    size_t n = 0;
    for (uint8_t i = 0; i < r->n_accepts; i++)
        out[n++] = statement_of_accept(r, &r->accepts[i]);
    for (uint8_t i = 0; i < r->n_promises; i++)
        out[n++] = statement_of_promise(r, &r->promises[i]);
    return n;
}

size_t inter_evidence_find(const struct inter_record *x, const struct inter_record *y,
                           struct inter_evidence out[NEB_MEMBERS_MAX]) {
    struct inter_statement a[STATEMENTS_MAX], b[STATEMENTS_MAX];
    size_t n_a = statements(x, a), n_b = statements(y, b), found = 0;
    struct member_set named = mset_none();
    for (size_t i = 0; i < n_a; i++)
        for (size_t k = 0; k < n_b; k++) {
            uint8_t m = a[i].promise.member;
            if (mset_has(named, m) || !inter_statements_conflict(&a[i], &b[k]))
                continue;
            mset_add(&named, m);
            out[found++] = (struct inter_evidence){a[i], b[k]};
        }
    return found;
}

// ---- bytes --------------------------------------------------------------------------------------

//     evidence: two times [ kind u8 ][ member u8 ][ what was signed ][ signature ]
static void put_statement(struct neb_buf *b, const struct inter_statement *s) {
    neb_buf_u8(b, (uint8_t)s->kind);
    neb_buf_u8(b, s->promise.member);
    inter_statement_put_signed(b, s);
    neb_buf_add(b, s->promise.sig, sizeof s->promise.sig);
}

void inter_evidence_put(struct neb_buf *b, const struct inter_evidence *e) {
    put_statement(b, &e->a);
    put_statement(b, &e->b);
}

static void get_accept(struct neb_rd *r, struct inter_statement *s) {
    neb_rd_copy(r, s->job, sizeof s->job);
    s->promise.round = neb_rd_u32(r);
    s->fragment = neb_rd_u32(r);
    s->term = neb_rd_u32(r);
    neb_rd_copy(r, s->promise.vote_hash, sizeof s->promise.vote_hash);
    s->promise.epoch = neb_rd_u64(r);
}

static bool get_promise(struct neb_rd *r, struct inter_statement *s) {
    neb_rd_copy(r, s->job, sizeof s->job);
    s->fragment = neb_rd_u32(r);
    s->term = s->promise.term = neb_rd_u32(r);
    s->promise.epoch = neb_rd_u64(r);
    s->promise.round = neb_rd_u32(r);
    uint8_t voted = neb_rd_u8(r);
    s->promise.voted = voted == 1;
    s->promise.vote_term = neb_rd_u32(r);
    neb_rd_copy(r, s->promise.vote_hash, sizeof s->promise.vote_hash);
    return voted <= 1;
}

static bool get_statement(struct neb_rd *r, struct inter_statement *s) {
    *s = (struct inter_statement){0};
    uint8_t kind = neb_rd_u8(r), member = neb_rd_u8(r);
    if (r->bad || kind >= INTER_STATEMENT_KINDS || member >= NEB_MEMBERS_MAX)
        return false;
    if (kind == INTER_STATEMENT_UPDATE) { // a manifest ends with its signature
        struct inter_manifest m;
        if (!inter_manifest_get(r, &m) || m.key.member != member)
            return false;
        *s = inter_statement_of_update(&m);
        return true;
    }
    s->kind = (enum inter_statement_kind)kind;
    s->promise.member = member;
    if (kind == INTER_STATEMENT_ACCEPT)
        get_accept(r, s);
    else if (!get_promise(r, s))
        return false;
    neb_rd_copy(r, s->promise.sig, sizeof s->promise.sig);
    return !r->bad && s->fragment < INTER_FRAGMENTS_MAX && s->term <= INTER_TERM_MAX &&
           s->promise.vote_term <= INTER_TERM_MAX;
}

bool inter_evidence_get(struct neb_rd *r, struct inter_evidence *e) {
    return get_statement(r, &e->a) && get_statement(r, &e->b) &&
           inter_statements_conflict(&e->a, &e->b);
}

void inter_evidence_text(const struct inter_evidence *e, char *out, size_t cap) {
    const struct inter_statement *a = &e->a, *b = &e->b;
    char x[17], y[17];
    if (a->kind == INTER_STATEMENT_PROMISE || b->kind == INTER_STATEMENT_PROMISE) {
        const struct inter_statement *p = a->kind == INTER_STATEMENT_PROMISE ? a : b,
                                     *v = a->kind == INTER_STATEMENT_PROMISE ? b : a;
        snprintf(out, cap,
                 "it signed a vote in round %u of fragment %u at term %u, and a promise for term "
                 "%u that does not report this vote",
                 v->promise.round, v->fragment, v->term, p->term);
        return;
    }
    bool update = a->kind == INTER_STATEMENT_UPDATE;
    neb_hex(update ? a->update.sha256 : a->promise.vote_hash, 8, x);
    neb_hex(update ? b->update.sha256 : b->promise.vote_hash, 8, y);
    snprintf(out, cap, "it signed two %s for round %u of fragment %u: %s… and %s…",
             update ? "updates under one key" : "records or votes of one term", a->promise.round,
             a->fragment, x, y);
}
