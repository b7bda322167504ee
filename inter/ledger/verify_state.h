// SPDX-License-Identifier: Apache-2.0
// Shared by verify.c (the whole check, reports of damage), verify_chain.c and verify_updates.c. No
// other file includes it.
#ifndef INTER_LEDGER_VERIFY_STATE_H
#define INTER_LEDGER_VERIFY_STATE_H
#include "inter/ledger/db.h"
#include "inter/ledger/verify.h"

struct check {
    struct inter_ledger *l;
    const struct inter_ledger_check *c;
    struct inter_ledger_counts *n;
    struct inter_chain chain; // of the fragment that is checked
    struct neb_buf scratch;   // the bytes that a signature covers
};

// verify.c
__attribute__((format(printf, 5, 6))) void verify_damage(struct check *v,
                                                         enum inter_damage_kind kind,
                                                         uint32_t round, int member, // -1: none
                                                         const char *fmt, ...);
// Ends a statement. If it met damaged pages, that is one more damage and the result is NEB_OK, so
// that the next check continues.
NEB_MUST_CHECK enum neb_status verify_ended(struct check *v, sqlite3_stmt *s, enum neb_status st);
// Reports damage unless `member` signed v->scratch for this context. what: names it in the text.
void verify_signature(struct check *v, const char *what, uint32_t round, uint8_t member,
                      const char *context, const uint8_t sig[INTER_SIG_BYTES]);
bool verify_body(sqlite3_stmt *s, int column, struct neb_rd *out); // false: not a blob

// Check the parts of v->chain. Errors: the database cannot be read.
NEB_MUST_CHECK enum neb_status verify_records(struct check *v); // verify_chain.c
NEB_MUST_CHECK enum neb_status verify_votes(struct check *v);
NEB_MUST_CHECK enum neb_status verify_manifests(struct check *v); // verify_updates.c
NEB_MUST_CHECK enum neb_status verify_promises(struct check *v);

#endif
