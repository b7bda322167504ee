// SPDX-License-Identifier: Apache-2.0
// Masked sums of one job: which seeds a member reveals, when, and to whom. Pure: no clock, socket
// or file inside; its caller passes events in and gets callbacks.
//
//     member 0                       member 1                       member 2
//     record r committed here        record r committed here        record r committed here
//       ── SEEDS (own, signed) ───────►◄──────────────────────────────►
//     all seeds of the record's set are here: stored, the sum can be read (ready)
//
//       ── WANT ──────────────────────►      a message was lost, or a member fell silent: each
//       ◄──────── SEEDS (of all it has) ─    second, to members with missing seeds and one other
//
// Only the set of the committed record is summed. Two sets of one round would expose the update of
// any member that is in only one of them. So a record needs the votes of a quorum, and its leader
// needs the promises of a quorum. Any two quorums share a member that does not collude
// (inter_job_quorum), so at most one record of a round gets the votes. Besides, a member reveals
// for one record of a round only. It stores which one before it reveals anything (keep), whatever
// its ledger says later.
//
// Seeds are signed by their owner over the record's hash and may come from any member; a false one
// is dropped. What a member reveals follows from its keys, the record and the updates. So after a
// restart it reveals the same again.
#ifndef INTER_SUMS_H
#define INTER_SUMS_H
#include "agent/base/clock.h"
#include "inter/round/node.h"
#include "security/secure_sum.h"

enum { INTER_SUMS_MESSAGE_MAX = 12 << 10, INTER_SUMS_OPEN_MAX = 4096 };

struct inter_sums_ops {
    void *user;
    void (*send)(void *user, uint8_t member, const void *p, size_t n); // may be lost
    // Called before anything is revealed for r. After NEB_OK it is on disk that r is the record of
    // its round. NEB_ERR_EXISTS: seeds were revealed for another record of this round.
    enum neb_status (*keep)(void *user, const struct inter_record *r);
    // The seeds of a sum are complete. `p` is the `kept` of inter_sums_commit after a restart. It
    // need not be durable, because the seeds can be asked for again.
    void (*ready)(void *user, uint32_t fragment, uint32_t round, const void *p, size_t n);
    // `member` asks for a round that is not open here. If it is committed here, call
    // inter_sums_commit, or send what ready gave for it, as it is.
    void (*look_up)(void *user, uint8_t member, uint32_t fragment, uint32_t round);
};
struct inter_sums_config {
    uint8_t job[INTER_ID_BYTES], n, self, colluders;
    uint32_t peers[NEB_MEMBERS_MAX];
    const struct inter_node_crypto *crypto; // borrowed
    const struct sec_sum *sum;              // borrowed
    struct inter_sums_ops ops;
};

struct inter_sums;
// c is copied. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_sums_create(const struct inter_sums_config *c,
                                                 struct inter_sums **out);
void inter_sums_destroy(struct inter_sums **s);

// Least number of updates in a sum that may be read: as many as the shares need (sec_sum_least),
// and at least two of members that do not collude.
static inline uint8_t inter_sums_least(uint8_t n, uint8_t colluders) {
    uint8_t least = sec_sum_least(n);
    return colluders + 2 > least ? (uint8_t)(colluders + 2) : least;
}
// True if a record accepts enough updates for a sum that may be read.
bool inter_sums_allowed(const struct inter_record *r, uint8_t n, uint8_t colluders);
// True if, besides, at least colluders + 2 of the updates come from training (they claim tokens).
// Only then do members reveal seeds. A member without anything new sends zeros, and the sum of
// zeros and one update is that update. A record that is not readable changes nothing: each member
// drops its update, as after a rejection.
bool inter_sums_readable(const struct inter_record *r, uint8_t n, uint8_t colluders);
// Enters a record of this member's ledger. blobs: (r->n) its updates by entry; p NULL: rejected.
// kept: what ready gave for this record, or NULL. Calling it again does nothing. NEB_ERR_DENIED:
// the sum may not be read, or seeds were revealed for another record. NEB_ERR_FORMAT: malformed
// updates. NEB_ERR_LIMIT: too many sums wait for seeds. Other errors come from keep: nothing was
// revealed, and the caller may retry.
struct inter_sums_blob {
    const uint8_t *p;
    size_t len;
};
NEB_MUST_CHECK enum neb_status inter_sums_commit(struct inter_sums *s, neb_ns now,
                                                 const struct inter_record *r,
                                                 const struct inter_sums_blob *blobs,
                                                 const void *kept, size_t kept_len);
// A message of another member, hostile or not. Malformed and false ones are counted.
void inter_sums_message(struct inter_sums *s, neb_ns now, uint8_t member, const void *p, size_t n);
void inter_sums_tick(struct inter_sums *s, neb_ns now); // call it every 200 ms or so
// Seeds of a sum, by member. False: not complete yet.
bool inter_sums_seeds(const struct inter_sums *s, uint32_t fragment, uint32_t round,
                      struct sec_sum_seeds *out);
// Since when the oldest incomplete sum waits for seeds; 0: all are complete.
neb_ns inter_sums_waits(const struct inter_sums *s);
// Drops the sums of a fragment's rounds below this one. No checkpoint needs them any more.
void inter_sums_forget(struct inter_sums *s, uint32_t fragment, uint32_t below_round);
uint64_t inter_sums_faults(const struct inter_sums *s); // malformed or false messages

#endif
