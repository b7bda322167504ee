// SPDX-License-Identifier: Apache-2.0
// Two statements that one member has signed, of which an honest one signs at most one: proof of a lie to whoever knows its key. Pure.
//
//     accept, accept      of one round, term and ledger, two values. A vote is on disk before it is said. Leaders vote for what they
//                         propose, and a proposal brings that vote: so two proposals of one term are this, too.
//     promise, accept     a promise for a later term that does not tell of the vote: it names an earlier open round, or in this
//                         round none, one of an earlier term, or one for another value. A voter that says that it stored what it did not.
//     update, update      one key, two manifests. A manifest is on disk before its first chunk leaves.
//
// A ledger that was lost and made anew has another epoch, and attempts of its own: its member is not caught for what the former one said.
#ifndef INTER_EVIDENCE_H
#define INTER_EVIDENCE_H
#include "inter/record/types.h"

enum inter_statement_kind {
    INTER_STATEMENT_ACCEPT,
    INTER_STATEMENT_PROMISE,
    INTER_STATEMENT_UPDATE,
    INTER_STATEMENT_KINDS
};

struct inter_statement {
    enum inter_statement_kind kind;
    uint8_t job[INTER_ID_BYTES];
    uint32_t fragment, term; // of an update: no term
    // ACCEPT: round, epoch, and in vote_hash the value
    struct inter_promise promise; // its sig: of any kind; its member: who said it
    struct inter_manifest update;
};
struct inter_evidence {
    struct inter_statement a, b;
};

struct inter_statement inter_statement_of_accept(const struct inter_record *r,
                                                 const struct inter_accept *a);
struct inter_statement inter_statement_of_promise(const struct inter_record *r,
                                                  const struct inter_promise *p);
struct inter_statement inter_statement_of_update(const struct inter_manifest *m);

static inline uint8_t inter_evidence_member(const struct inter_evidence *e) {
    return e->a.promise.member;
}
// What its member signed, appended, and under which context.
void inter_statement_put_signed(struct neb_buf *out, const struct inter_statement *s);
const char *inter_statement_context(const struct inter_statement *s);
// Whether no honest member signs both; signatures are the caller's to check.
bool inter_statements_conflict(const struct inter_statement *a, const struct inter_statement *b);
// What the accepts and promises of two records of one fragment prove; at most a pair a member. Returns how many.
size_t inter_evidence_find(const struct inter_record *x, const struct inter_record *y,
                           struct inter_evidence out[INTER_MEMBERS_MAX]);

void inter_evidence_put(struct neb_buf *out, const struct inter_evidence *e);
// False: malformed, or no conflict.
NEB_MUST_CHECK bool inter_evidence_get(struct neb_rd *r, struct inter_evidence *e);
// One line: who said what. cap 256 is enough.
void inter_evidence_text(const struct inter_evidence *e, char *out, size_t cap);

#endif
