// SPDX-License-Identifier: Apache-2.0
// Masked sums of a job at its agent (gate profile `private`): the keys that its worker masks with, what is revealed once a round is
// committed, and the seeds that go to the worker with the commit. The protocol is inter/round/sums.h; this is its shell.
//
//     worker ── masked update ──► agent ══ as any update ══► others       (the agent never sees the integers)
//     ledger: record committed ──► own seeds to the others; theirs arrive ──► commit + seeds ──► worker: the sum
//
// Keys are made once a job, from this member's key and the list as it was then, and kept in DIR/sum.keys (0600), so that a
// rotation of keys does not change masks half way. Seeds that were gathered lie in DIR/sums/FRAGMENT.ROUND for a thousand rounds
// beyond the worker's checkpoints, since a member that was away asks for them; they open the sum and nobody's part of it.
#ifndef AGENT_SUMS_H
#define AGENT_SUMS_H
#include "agent/daemon/jobs.h"
#include "inter/service/service.h"

struct agent_sums;
struct agent_sums_config {
    struct inter_service *const *service; // borrowed, as all; it may be replaced by another one
    const struct sec_identity *identity;
    const struct sec_members *members;
    const struct agent_jobrun *job; // profile `private`
    const char *dir;                // of the job
};
// NEB_ERR_INVALID: a member's key is none.
NEB_MUST_CHECK enum neb_status agent_sums_open(const struct agent_sums_config *c,
                                               struct agent_sums **out);
void agent_sums_close(struct agent_sums **s);
// This member's new keys: what it reveals from now on is signed with them. The keys of the pairs stay those that the job began with.
void agent_sums_rekey(struct agent_sums *s, const struct sec_identity *identity);

// For the worker: a key a cluster, in locked memory of s (in its own place, what it draws noise from). 0 bytes where s is NULL.
const uint8_t *agent_sums_keys(const struct agent_sums *s, size_t *len);
// A commit with its updates (by entry). True: the seeds are here, *seeds (new reference) goes to the worker with it. False: not yet, it
// will be delivered again then.
bool agent_sums_commit(struct agent_sums *s, const struct inter_record *r,
                       const struct neb_map *blobs, json_t **seeds);
void agent_sums_message(struct agent_sums *s, uint32_t peer, const uint8_t *p, size_t n);
// The job that such a message is about. False: it is none.
bool agent_sums_about(const uint8_t *p, size_t n, uint8_t job[AGENT_JOB_ID_BYTES]);
// True: seeds are missing for so long that nobody may have them any more: a snapshot is needed.
bool agent_sums_tick(struct agent_sums *s);
// A commit is delivered for another member's sake alone.
bool agent_sums_looks_up(const struct agent_sums *s);
// messages that were malformed, or false; NULL: 0
uint64_t agent_sums_refused(const struct agent_sums *s);
void agent_sums_prune(struct agent_sums *s, uint32_t fragment, uint32_t below_round);
// The gate of this profile: whose it is, of which round, that masks are those of the pairs.
bool agent_sums_admits(const struct agent_sums *s, const struct inter_manifest *m, const uint8_t *p,
                       size_t n);

#endif
