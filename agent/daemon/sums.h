// SPDX-License-Identifier: Apache-2.0
// Masked sums of a job at its agent (gate profile `private`): the keys with which its worker masks,
// what is revealed after a commit, and the seeds that the worker gets with the commit. The protocol
// is inter/round/sums.h.
//
//     worker ── masked update ──► agent ══ like any update ══► others
//                                 (the agent never sees the integers)
//     ledger: record committed ──► own seeds to the others; their seeds arrive
//                              ──► commit + seeds to the worker, which computes the sum
//
// Keys are made once per job, from this member's key and the present list, and kept in DIR/sum.keys
// (0600), so that a key rotation does not change masks during a job. Collected seeds are kept in
// DIR/sums/FRAGMENT.ROUND for a thousand rounds before the worker's oldest checkpoint, because a
// member that was away asks for them. They reveal the sum, but no member's part of it.
#ifndef AGENT_SUMS_H
#define AGENT_SUMS_H
#include "agent/daemon/jobs.h"
#include "inter/service/service.h"

struct agent_sums;
struct agent_sums_config {
    struct inter_service *const *service; // borrowed, as all; the service may be replaced
    const struct sec_identity *identity;
    const struct sec_members *members;
    const struct agent_jobrun *job; // profile `private`
    const char *dir;                // of the job
};
// NEB_ERR_INVALID: a member's key is not valid.
NEB_MUST_CHECK enum neb_status agent_sums_open(const struct agent_sums_config *c,
                                               struct agent_sums **out);
void agent_sums_close(struct agent_sums **s);
// This member has new keys: what it reveals from now on is signed with them. The keys of the pairs
// stay those of the start of the job.
void agent_sums_rekey(struct agent_sums *s, const struct sec_identity *identity);

// For the worker: one key per cluster, in locked memory of s. At the index of this cluster is the
// key of its noise. 0 bytes if s is NULL.
const uint8_t *agent_sums_keys(const struct agent_sums *s, size_t *len);
// Handles a commit with its updates (one per entry). True: the seeds are complete; *seeds (new
// reference) goes to the worker with the commit. False: not yet; the commit will be delivered
// again.
bool agent_sums_commit(struct agent_sums *s, const struct inter_record *r,
                       const struct neb_map *blobs, json_t **seeds);
void agent_sums_message(struct agent_sums *s, uint32_t peer, const uint8_t *p, size_t n);
// The job of such a message. False: it is not one.
bool agent_sums_about(const uint8_t *p, size_t n, uint8_t job[AGENT_JOB_ID_BYTES]);
// True: seeds have been missing for so long that perhaps nobody has them: a snapshot is needed.
bool agent_sums_tick(struct agent_sums *s);
// True while a commit is delivered only because another member asked for its seeds.
bool agent_sums_looks_up(const struct agent_sums *s);
// Number of messages that were malformed or false; NULL: 0.
uint64_t agent_sums_refused(const struct agent_sums *s);
void agent_sums_prune(struct agent_sums *s, uint32_t fragment, uint32_t below_round);
// The gate of this profile: checks member, fragment, round, and that the masks are those of the
// pairs.
bool agent_sums_admits(const struct agent_sums *s, const struct inter_manifest *m, const uint8_t *p,
                       size_t n);

#endif
