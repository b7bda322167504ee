// SPDX-License-Identifier: Apache-2.0
// Two signed statements of one member, and no honest member signs both. They prove equivocation to
// anyone who has the member's key. Pure.
//
//     accept, accept      same round, term and ledger, two values. A voter stores a vote before it
//                         sends it. A proposal holds its leader's own vote, so two proposals of one
//                         term are this case too.
//     promise, accept     the promise is for a later term but does not report the vote: it names an
//                         earlier open round, or for this round no vote, a vote of an earlier term,
//                         or a vote of this term for another value. Its member did not keep a vote
//                         that it signed.
//     update, update      one key, two manifests. A member stores a manifest before it sends the
//                         first chunk.
//
// A new ledger has another epoch and other attempts. So a member is not accused because of what it
// signed with a ledger that is lost.
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
    uint32_t fragment, term; // term: 0 for an update
    // member and sig: of every kind of statement. ACCEPT: round, epoch, and vote_hash is the value.
    struct inter_promise promise;
    struct inter_manifest update;
};
struct inter_evidence {
    struct inter_statement a, b;
};

struct inter_statement inter_statement_of_update(const struct inter_manifest *m);

static inline uint8_t inter_evidence_member(const struct inter_evidence *e) {
    return e->a.promise.member;
}
// Appends what the member signed; and the context under which it signed.
void inter_statement_put_signed(struct neb_buf *out, const struct inter_statement *s);
const char *inter_statement_context(const struct inter_statement *s);
// True if no honest member signs both. The caller checks the signatures.
bool inter_statements_conflict(const struct inter_statement *a, const struct inter_statement *b);
// Finds conflicts between the accepts and promises of two records of one fragment, at most one pair
// for each member. Returns the number of pairs. The caller checks the signatures.
size_t inter_evidence_find(const struct inter_record *x, const struct inter_record *y,
                           struct inter_evidence out[NEB_MEMBERS_MAX]);

void inter_evidence_put(struct neb_buf *out, const struct inter_evidence *e);
// False: malformed, or no conflict.
NEB_MUST_CHECK bool inter_evidence_get(struct neb_rd *r, struct inter_evidence *e);
// One line of text: what the member signed. cap 256 is enough.
void inter_evidence_text(const struct inter_evidence *e, char *out, size_t cap);

#endif
