// SPDX-License-Identifier: Apache-2.0
// What ledger_verify.c (the whole, how damage is told), ledger_verify_chain.c and ledger_verify_updates.c share. Nobody else
// includes this.
#ifndef INTER_LEDGER_VERIFY_STATE_H
#define INTER_LEDGER_VERIFY_STATE_H
#include "inter/ledger/db.h"
#include "inter/ledger/verify.h"

struct check {
    struct inter_ledger *l;
    const struct inter_ledger_check *c;
    struct inter_ledger_counts *n;
    struct inter_chain chain; // of the fragment that is checked
    struct neb_buf scratch;   // what a signature is of
};

// ledger_verify.c
__attribute__((format(printf, 5, 6))) void verify_damage(struct check *v,
                                                         enum inter_damage_kind kind,
                                                         uint32_t round, int member, // -1: none
                                                         const char *fmt, ...);
// Ends a statement. One that met damaged pages is one more damage, and NEB_OK: the next check goes on.
NEB_MUST_CHECK enum neb_status verify_ended(struct check *v, sqlite3_stmt *s, enum neb_status st);
// Whether `member` signed v->scratch for this context; damage if not. what: names it in the text.
void verify_signature(struct check *v, const char *what, uint32_t round, uint8_t member,
                      const char *context, const uint8_t sig[INTER_SIG_BYTES]);
bool verify_body(sqlite3_stmt *s, int column, struct neb_rd *out); // false: not a blob

// The parts of v->chain. Errors: the database cannot be read.
NEB_MUST_CHECK enum neb_status verify_records(struct check *v); // ledger_verify_chain.c
NEB_MUST_CHECK enum neb_status verify_votes(struct check *v);
NEB_MUST_CHECK enum neb_status verify_manifests(struct check *v); // ledger_verify_updates.c
NEB_MUST_CHECK enum neb_status verify_promises(struct check *v);

#endif
