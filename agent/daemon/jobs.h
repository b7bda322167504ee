// SPDX-License-Identifier: Apache-2.0
// The jobs of an agent: their state, their worker, and who is told about them.
#ifndef AGENT_JOBS_H
#define AGENT_JOBS_H
#include "agent/base/bucket.h"
#include "agent/base/throttle.h"
#include "agent/daemon/join_rate.h"
#include "agent/daemon/policy.h"
#include "agent/daemon/snapshot_proof.h"
#include "agent/job/config.h"
#include "agent/proc/child.h"
#include "agent/proc/credential.h"
#include "agent/proc/ipc.h"
#include "inter/record/types.h"
#include "inter/service/service.h"

enum { AGENT_JOBS_MAX = 8, AGENT_WATCHERS_MAX = 8, AGENT_RESTARTS_MAX = 3 };

// In the place of a peer: the cluster's member, or the submitter, is on the list no more. From SEC_MEMBERS_MAX on likewise, but what that
// member signed can be checked (inter_service_removed_member).
enum { AGENT_PEER_NONE = INTER_PEER_NONE };

enum agent_job_state { AGENT_JOB_RUNNING, AGENT_JOB_STOPPING, AGENT_JOB_ENDED };

struct agent_wan_bytes {
    uint64_t sent, recv; // on the sockets
    // of `sent`: what was handed to the links; the rest is encryption, framing, liveness
    uint64_t messages;
    uint64_t payload; // of `messages`: updates, batches, snapshots; the rest is headers and control
};

struct agent_lines;
struct agent_sums;
struct agent_jobrun {
    bool used;
    uint8_t id[AGENT_JOB_ID_BYTES];
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    struct agent_job job;
    json_t *spec;                       // owned
    int self;                           // cluster index of this agent
    uint32_t peers[AGENT_CLUSTERS_MAX]; // link peer of each cluster (of self: unused)
    bool federated;                     // rounds are exchanged
    struct agent_sums *sums;            // profile `private` (agent/daemon/sums.h); NULL otherwise
    bool linked;               // other clusters are exchanged with: by rounds, or by streams
    bool local;                // submitted here: reports of all clusters come here
    uint32_t home;             // peer that submitted it, unless local
    struct agent_lines *lines; // owned: of metrics, for home; NULL: local, or none yet
    // local: what each cluster's lines and reports may still cost (AGENT_LINES_TAKEN): by number, by bytes
    struct neb_bucket told_lines[AGENT_CLUSTERS_MAX], told_bytes[AGENT_CLUSTERS_MAX];
    int64_t had[AGENT_CLUSTERS_MAX]; // local: the last line of each cluster, by its number; 0: none
    char owner[SEC_NAME_MAX]; // that member's name, which stays when it is revoked; "": local
    bool adopted; // the owner is no member any more, and this site's operator has gone on with it
    struct agent_terms terms;    // of a job of another member: of the policy that let it begin
    struct agent_disclosed told; // of its losses, to that member
    neb_ns progress_at;          // when its worker last came farther than ever before: to step
    int64_t progress_step;       // this one
    bool attach_listed;          // the policy lets waiting trainers be taken by that member's jobs
    bool attach_told;            // the operator was told of one that this job was not given
    bool orphaned;               // the operator was told that the owner is no member any more
    enum agent_job_state state;
    bool
        reopened; // it had ended before this agent was started: only its rounds are open, and no report is here
    bool unable;     // it ends because it cannot go on, not because somebody said so
    bool suspended;  // stopped because the agent goes down: goes on when it is back
    char stored[12]; // its state in the ledger, as agent_job_record
    neb_ns over_at;  // since when it has ended
    // When it was submitted, or gone on with, last, wherever that was, ms since 1970, each later than the one before; 0: not known. Stops of
    // the runs before, and other sites' words that they have gone on with those, may come late and do not count.
    int64_t run;
    struct agent_child worker;
    struct agent_credential *credential; // owned: of the present worker, or of whoever attaches
    int end_status;                      // of a worker that has ended,
    neb_ns ended_at;                     // then; 0: it runs, or its end was dealt with
    struct agent_ipc_client client;      // the worker, once attached
    pid_t trainer;                       // with launcher attach: its process; 0: none
    int restarts, failed_starts;         // the second: times in a row that none could be started
    neb_ns retry_at;                     // when the next one is; 0: one runs, or none is to
    char unstarted[400];                 // why none could be, while that is tried again
    // of the worker: when it last said something, for how long it may then say nothing, and when it was killed (0: it was not)
    neb_ns heartbeat_at, killed_at;
    int kill_signal; // agent_launch.kill
    uint64_t gpus;   // that it was given, bit each
    double allow_s;
    // of the worker: when it last said that bytes of a file move; of its checkpoint, those that are left (0: not known), and when that was said
    neb_ns moved_at, left_said;
    uint64_t left;
    bool given_up; // its checkpoint is not waited for any more
    bool queues;   // the worker's launcher may still wait for hosts
    // of the worker: where it is, and the farthest that any of its lives has come, and has saved. Beyond either is progress: it resets the
    // count of restarts at its end. (Who dies again and again before a checkpoint, now at step 150, now at 120, makes none.)
    int64_t last_step, farthest, saved_step;
    bool progress;
    int told_alive, told_others; // to the worker
    neb_ns link_told;            // when the line about the link last went to another cluster
    uint64_t link_told_bytes;    // sent and received by then
    bool link_told_up;           // and whether all others were connected
    uint16_t offers_due; // clusters whose link has not taken yet that the job is offered again
    uint16_t removed;    // clusters that a membership version removed, bit each
    uint16_t gone;       // of `robust`: revoked ones that the operator was told of
    uint16_t owing_told; // and whose update a round waited for
    // since when it has, without a break; 0: of whom it does not
    neb_ns owing_since[AGENT_CLUSTERS_MAX];
    bool room_told;      // that others' updates cannot be kept here,
    neb_ns room_said;    // or that they can again, then
    uint16_t waits_told; // clusters that the operator was told rounds wait for
    // of the job, by the member that submitted it; "" where that is this one
    char sig[2 * INTER_SIG_BYTES + 1];
    bool told_expected, told_lost;
    bool
        updates_stay; // somebody is catching up: what a checkpoint leaves over is removed at a later one
    uint64_t taken; // fragments that the job's snapshot.bin is ahead in, bit each
    // checkpoints of a fragment from this round on are not trusted; 0: all are
    uint32_t suspect[INTER_FRAGMENTS_MAX];
    int divergences;        // of this cluster
    bool all_doubt;         // in the last one nobody had a majority on its side: all compute again
    neb_ns hopeless_since;  // nobody has a state to go back to; 0: not so
    struct agent_join join; // the snapshot that is being fetched
    uint16_t told_differs;  // clusters whose agents speak another protocol
    struct neb_throttle fetching, fetch_failed; // and what is said of that
    // the state that came with the last one, and clusters whose states were not the others': not asked again, bit each
    struct agent_proof proof;
    uint16_t false_givers;
    neb_ns ask_at; // nobody is asked for a state before
    int disputes;  // times that no other cluster could be believed, since one could
    // when to look again for a snapshot that the worker needs; 0: it needs none
    // no member has a state to give: since when, and rounds of the ledger then
    neb_ns nowhere_since;
    uint64_t nowhere_rounds;
    bool short_ledger; // it has lost commits that the worker has merged (agent/daemon/rejoin.c)
    neb_ns behind_until;
    // the commit that it asked for and that is gone; round UINT32_MAX: any
    uint64_t behind; // fragments that it asked so for, bit each
    bool behind_any; // some commit, of `private`: any later one helps
    uint32_t behind_rounds[INTER_FRAGMENTS_MAX];
    // by fragment: the open round of the worker, plus one (0: it has not said, or has its commit); its commit could not be handed to it, bit each
    uint32_t wants[INTER_FRAGMENTS_MAX];
    uint64_t undelivered;
    bool replaced;   // the worker was killed to begin with another state: that is no crash
    uint64_t finals; // of a witness: fragments whose last round it has seen, bit each
    bool resume_due; // asked for while it was still stopping: it goes on once it has ended
    bool reported;
    // owned, kept for watchers that come late: of this cluster, of the others (n_clusters)
    json_t *report, *others[AGENT_CLUSTERS_MAX];
    struct agent_ipc_client watchers[AGENT_WATCHERS_MAX];
    // by earlier runs of the job; of its links when this run began
    struct agent_wan_bytes wan_before, wan_base;
};

// running, stopping; of one that has ended here done, stopped, failed or suspended: what people and their alerts are told.
const char *agent_job_state_name(const struct agent_jobrun *j);

// Whether a cluster is another one whose member is on the list.
static inline bool agent_job_has_peer(const struct agent_jobrun *j, int cluster) {
    return cluster != j->self && j->peers[cluster] < SEC_MEMBERS_MAX;
}

// All jobs that the ledger knows: [{id, job, state, home, why, sent_bytes, recv_bytes}]; home: who submitted it, "" for here; why: of one that
// is held.
NEB_MUST_CHECK enum neb_status agent_jobs_list(struct inter_ledger *l, json_t **out);
// Those of them that somebody should look at: held, and failed, the `AGENT_ASIDE_MAX` written last, in the form of nebula status: [{id, job, state,
// outcome, why, step, steps, clusters}]; state "held", or "ended" with the outcome "failed"; step: null; clusters: [].
enum { AGENT_ASIDE_MAX = 32 };
NEB_MUST_CHECK enum neb_status agent_jobs_attention(struct inter_ledger *l, json_t **out);
// A job as the ledger has it.
struct agent_job_record {
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    json_t *spec;                      // owned
    char home[SEC_NAME_MAX];           // who submitted it, "" for here
    char sig[2 * INTER_SIG_BYTES + 1]; // that member's over it; "" for here
    bool adopted;                      // as in struct agent_jobrun
    // running, stopping, done, stopped, failed; held: it would run, but this site does not let it begin again
    char state[12];
    int64_t run; // as in struct agent_jobrun
    struct agent_wan_bytes wan;
};
// Writes it. why: of a job that is held; NULL for others.
NEB_MUST_CHECK enum neb_status agent_jobs_put(struct inter_ledger *l,
                                              const struct agent_job_record *r, const char *why);
// The one job whose id begins so; to be cleared. NEB_ERR_NOT_FOUND; NEB_ERR_INVALID: more than one; and the ledger's errors.
NEB_MUST_CHECK enum neb_status agent_jobs_find(struct inter_ledger *l, const char *prefix,
                                               struct agent_job_record *out);
// The same of what somebody typed; *why says what is wrong with it, and which jobs it may mean.
NEB_MUST_CHECK enum neb_status agent_jobs_choose(struct inter_ledger *l, const char *prefix,
                                                 struct agent_job_record *out, char *why,
                                                 size_t cap);
// A row of the ledger; to be cleared. spec NULL: damaged.
void agent_job_record_read(const uint8_t id[INTER_ID_BYTES], const char *spec, const char *state,
                           struct agent_job_record *out);
// Ended jobs of other members beyond the `most` newest of each, by when they were written last: (*n) of them, to be freed; NULL: none. Those
// that run or are held, this member's own, and what its operator went on with for a member that is gone are none of them.
struct agent_ended_job {
    uint8_t id[AGENT_JOB_ID_BYTES];
    char home[SEC_NAME_MAX];
    int64_t at; // ms since 1970; 0: of a program that did not note it
};
NEB_MUST_CHECK enum neb_status agent_jobs_ended(struct inter_ledger *l, size_t most,
                                                struct agent_ended_job **out, size_t *n);
void agent_job_record_clear(struct agent_job_record *r);

#endif
