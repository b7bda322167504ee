// SPDX-License-Identifier: Apache-2.0
// Masked sums of one job: who reveals what, when, and to whom. Pure: no clock, socket or file inside; a shell calls, and is called.
//
//     member 0                       member 1                       member 2
//     record r committed here        record r committed here        record r committed here
//       ── SEEDS (own, signed) ───────►◄──────────────────────────────►
//     all seeds of the record's set are here: kept, the sum can be read (ready)
//
//       ── WANT ──────────────────────►      one message was lost, or a member fell silent:
//       ◄──────── SEEDS (of all it has) ─    asked again each second: them, and each other one in turn
//
// The set whose sum is read is that of the committed record, and of no other. Two sets of one round
// would open the update of whoever is in one of them only. So a record needs votes (and its leader
// promises) of so many that any two such sets share a member which is none of the colluders
// (inter_job_quorum): no two records of a round get them. And a member reveals for one record a
// round, ever: that is on its disk before it says anything (keep), whatever its ledger says later.
//
// Seeds are signed by their owner over the record's hash and may come from anybody; a false one is
// dropped. What a member reveals follows from its keys, the record and the updates: after a restart
// it reveals the same again.
#ifndef INTER_SUMS_H
#define INTER_SUMS_H
#include "agent/base/clock.h"
#include "inter/round/node.h"
#include "security/secure_sum.h"

enum { INTER_SUMS_MESSAGE_MAX = 12 << 10, INTER_SUMS_OPEN_MAX = 4096 };

struct inter_sums_ops {
    void *user;
    void (*send)(void *user, uint8_t member, const void *p, size_t n); // once, or not at all
    // Before anything is revealed: that it is for this record, on disk when this returns.
    // NEB_ERR_EXISTS: for another one of the round something was revealed already.
    enum neb_status (*keep)(void *user, const struct inter_record *r);
    // The seeds of a sum are complete: `p` is what inter_sums_commit takes back after a restart. Durable or not: they can be asked for again.
    void (*ready)(void *user, uint32_t fragment, uint32_t round, const void *p, size_t n);
    // `member` asks for a round that is not open here: inter_sums_commit, if it is committed here; or what ready gave for it, which may be
    // sent as it is.
    void (*look_up)(void *user, uint8_t member, uint32_t fragment, uint32_t round);
};
struct inter_sums_config {
    uint8_t job[INTER_ID_BYTES], n, self, colluders;
    uint32_t peers[INTER_MEMBERS_MAX];
    const struct inter_node_crypto *crypto; // borrowed
    const struct sec_sum *sum;              // borrowed
    struct inter_sums_ops ops;
};

struct inter_sums;
// c is copied. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_sums_create(const struct inter_sums_config *c,
                                                 struct inter_sums **out);
void inter_sums_destroy(struct inter_sums **s);

// Updates that a sum must hold so that it may be read: those that the shares bear (sec_sum_least),
// and of two members that are none of the colluders.
static inline uint8_t inter_sums_least(uint8_t n, uint8_t colluders) {
    uint8_t least = sec_sum_least(n);
    return colluders + 2 > least ? (uint8_t)(colluders + 2) : least;
}
// Whether a record's accepted updates make a sum that may be read.
bool inter_sums_allowed(const struct inter_record *r, uint8_t n, uint8_t colluders);
// And whether anybody reveals for it: f + 2 of its updates must rest on training (tokens). Who has
// nothing new any more sends zeros, and the sum of zeros and one update is that update. A record
// that is not readable changes nothing: each member drops its update, as one that a gate refused.
bool inter_sums_readable(const struct inter_record *r, uint8_t n, uint8_t colluders);
// A record of this member's ledger, with the updates that it accepts (by entry; p NULL: rejected).
// Again is fine. kept: what ready gave once, or NULL. NEB_ERR_DENIED: a record whose sum may not be
// read, or another one than was revealed for. NEB_ERR_FORMAT: updates that are none. NEB_ERR_LIMIT:
// too many sums wait for seeds. What keep gives otherwise: nothing was revealed, and it may be
// tried again.
struct inter_sums_blob {
    const uint8_t *p;
    size_t len;
};
NEB_MUST_CHECK enum neb_status inter_sums_commit(struct inter_sums *s, neb_ns now,
                                                 const struct inter_record *r,
                                                 const struct inter_sums_blob *blobs,
                                                 const void *kept, size_t kept_len);
// What came for send of another member, hostile or not: counted (inter_sums_faults) where it is malformed or false.
void inter_sums_message(struct inter_sums *s, neb_ns now, uint8_t member, const void *p, size_t n);
void inter_sums_tick(struct inter_sums *s, neb_ns now); // every 200 ms or so
// Seeds of a sum by member; false: not complete yet.
bool inter_sums_seeds(const struct inter_sums *s, uint32_t fragment, uint32_t round,
                      struct sec_sum_seeds *out);
// Since when seeds are waited for that nobody has given; 0: all are here.
neb_ns inter_sums_waits(const struct inter_sums *s);
// Rounds of a fragment below this one: no checkpoint needs their sums any more.
void inter_sums_forget(struct inter_sums *s, uint32_t fragment, uint32_t below_round);
uint64_t inter_sums_faults(const struct inter_sums *s); // messages that were malformed, or false

#endif
