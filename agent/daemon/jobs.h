// SPDX-License-Identifier: Apache-2.0
// The jobs of an agent: their state, their worker, and who receives messages about them.
#ifndef AGENT_JOBS_H
#define AGENT_JOBS_H
#include "agent/base/bucket.h"
#include "agent/base/throttle.h"
#include "agent/daemon/judge.h"
#include "agent/daemon/life.h"
#include "agent/daemon/policy.h"
#include "agent/daemon/tensor_list.h"
#include "agent/job/config.h"
#include "agent/proc/child.h"
#include "agent/proc/credential.h"
#include "agent/proc/ipc.h"
#include "inter/record/types.h"
#include "inter/service/service.h"

enum { AGENT_JOBS_MAX = 8, AGENT_WATCHERS_MAX = 8, AGENT_RESTARTS_MAX = 3 };

// Replaces a peer index if the member of the cluster, or the submitter, is no longer on the list.
// An index from NEB_MEMBERS_MAX on also means that, but what this member signed can still be
// verified (inter_service_removed_member).
enum { AGENT_PEER_NONE = INTER_PEER_NONE };

struct agent_wan_bytes {
    uint64_t sent, recv; // on the sockets
    // Part of `sent` that was given to the links; the rest is encryption, framing and keep-alives.
    uint64_t messages;
    // part of `messages`: updates, batches, snapshots; the rest is headers and control
    uint64_t payload;
};

// ---- parts of a job at this agent; each belongs to the file that it names ----

struct agent_jobworker { // worker.c. While nothing runs, these are the values of the last worker.
    struct agent_child child;
    // owned: of the present worker, or of the next trainer that attaches
    struct agent_credential *credential;
    struct agent_ipc_client client; // once it is attached
    pid_t trainer;                  // with launcher attach: the trainer's process; 0: none
    int end_status;                 // exit status, once it has ended
    int kill_signal;                // agent_launch.kill
    uint64_t gpus;                  // that it has, a bit per GPU
    bool queues;                    // its launcher may still wait for hosts
    bool replaced;                  // killed to start with another state: that is not a crash
    int restarts, failed_starts;    // failed_starts: failed attempts to start one, in a row
    char unstarted[400];            // why none could be started, until the next attempt
    double allow_s;                 // how long it may be silent (AGENT_TIMER_SILENT)
    // When it last reported that bytes of a file move, and the bytes left of its checkpoint (0:
    // unknown). given_up: the checkpoint is not waited for any more. (stop.c)
    neb_ns moved_at;
    uint64_t left;
    bool given_up;
    // Its step, the highest step that any incarnation of it reported, and the highest that one
    // saved. A new highest is progress, and resets the count of restarts. (A worker that always
    // dies before its first checkpoint makes none.)
    int64_t last_step, farthest, saved_step;
    bool progress;
    int64_t newest_step; // highest in any message: for AGENT_TIMER_IDLE
};

struct agent_jobrounds { // rounds.c
    // Per fragment: the open round of the worker plus one (0: unknown, or it has the commit).
    // undelivered: a bit per commit that could not be sent to it.
    uint32_t wants[INTER_FRAGMENTS_MAX];
    uint64_t undelivered;
    uint64_t finals;   // of a witness: a bit per fragment whose last round it has seen
    bool updates_stay; // a member catches up: updates that a checkpoint replaces stay for it
};

struct agent_jobtensors { // manifest.c
    struct agent_tensor_list list;
    struct member_set agreed; // clusters whose agents have the same list
    int reference;            // the cluster that was asked last
    bool told;                // the present trainer knows that it may begin
    // Digest of its first values, in hex; "": it continues. equal, unequal: as the cluster in
    // `init` answers.
    char values[2 * NEB_SHA256_BYTES + 1];
    bool equal, unequal;
    neb_ns asked_at;
    struct neb_bucket asked; // limits the messages of others about it
};

struct agent_jobfetch { // snapshot_flow.c; AGENT_TIMER_BEHIND is set while the worker waits
    // The commits that the worker asked for and whose updates are gone: their fragments, a bit
    // each. any: with `private`, any later commit helps.
    uint64_t gone;
    uint32_t gone_rounds[INTER_FRAGMENTS_MAX];
    bool any;
    struct agent_join join;              // the snapshot that is being fetched
    neb_ns ask_at;                       // no member is asked for a state before this time
    struct neb_throttle log, failed_log; // of the messages about it
    // since when no member has a state to which the worker can return; 0: there is one
    neb_ns hopeless_since;
    // Since when no member has a state to give, and the rounds in the ledger at that time.
    neb_ns nowhere_since;
    uint64_t nowhere_rounds;
};

struct agent_jobdoubt { // proof.c: which states of the parameters can be trusted
    // Checkpoints of a fragment at this round and later are not trusted; 0: all are.
    uint32_t suspect[INTER_FRAGMENTS_MAX];
    int divergences; // of this cluster (rounds.c)
    bool all;        // no side had a majority in the last divergence: all members compute again
    uint64_t taken;  // fragments in which the job's snapshot.bin is ahead, a bit each
    // The proof of the last snapshot's state; clusters whose state was false, and which are not
    // asked again.
    struct agent_proof proof;
    struct member_set false_givers;
    int disputes;      // how often in a row no other cluster could be believed
    bool short_ledger; // the ledger lost commits that the worker has merged (rejoin.c)
};

struct agent_jobsaid {         // send.c: what was said last
    int alive, others;         // to the worker (daemon_send_alive)
    bool expected, lost;       // to the worker too
    neb_ns link_at;            // when the last line about the link was sent to another cluster,
    uint64_t link_bytes;       // the bytes sent and received by then,
    bool link_up;              // and whether all others were connected
    struct member_set owing;   // clusters reported because a round waited for their update
    struct member_set waits;   // clusters reported because rounds wait for them
    struct member_set differs; // clusters whose agents speak another protocol
    bool room;                 // that this site cannot keep others' updates
    neb_ns room_at;            // when that, or the opposite, was last reported
    // Since when a round waits for a cluster's update, without a break; 0: it does not.
    neb_ns owing_since[AGENT_CLUSTERS_MAX];
};

struct agent_lines;
struct agent_ranks;
struct agent_sums;
struct agent_jobrun {
    enum agent_job_state state; // AGENT_JOB_NONE: the entry is free, and all else is 0
    struct agent_timers timers;
    neb_ns over_at; // when it ended
    // The run: when the job was last submitted or resumed, at any site, in ms since 1970, each
    // later than the previous; 0: unknown. Stops and resumes of earlier runs may arrive late and
    // are ignored.
    int64_t run;

    uint8_t id[AGENT_JOB_ID_BYTES];
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    char dir[NEB_PATH_MAX]; // HOME/jobs/ID
    struct agent_job job;
    json_t *spec;                       // owned
    int self;                           // cluster index of this agent
    uint32_t peers[AGENT_CLUSTERS_MAX]; // link peer of each cluster (unused for self)
    bool federated;                     // it exchanges rounds
    bool linked;                        // it exchanges with other clusters, by rounds or by streams

    // Its submitter.
    bool local;                        // submitted here: reports of all clusters come here
    uint32_t home;                     // peer that submitted it, unless local
    char owner[SEC_NAME_MAX];          // name of the submitter, kept if it is revoked; "": local
    char sig[2 * INTER_SIG_BYTES + 1]; // the submitter's signature of the job; "" if local
    bool adopted;  // the owner is not a member any more, and this site's operator resumed the job
    bool orphaned; // the operator was told that the owner is not a member any more
    struct agent_terms terms;         // if not local: terms of the policy that admitted it
    struct agent_disclosed disclosed; // what was sent of its losses to the submitter
    struct agent_lines *lines;        // owned: lines of metrics for home; NULL: local, or none yet
    neb_ns lines_at;                  // until then more lines are gathered
    struct {
        bool listed; // the policy lets the submitter's jobs take waiting trainers
        bool told;   // the operator was told that a waiting trainer was not given to this job
    } attach;

    // Its other clusters.
    struct member_set offers_due; // clusters to which the job is still to be offered again
    struct member_set removed;    // clusters that a membership version removed, a bit each
    struct member_set gone;       // with `robust`: revoked clusters that the operator was told of
    // If local: limits of the lines and reports of each cluster (AGENT_LINES_TAKEN), in number and
    // bytes, and the number of its last line (0: none).
    struct neb_bucket told_lines[AGENT_CLUSTERS_MAX], told_bytes[AGENT_CLUSTERS_MAX];
    int64_t had[AGENT_CLUSTERS_MAX];
    bool had_due; // had[] has changed since it was saved
    // Bytes of earlier runs of the job; totals of its links when this run began.
    struct agent_wan_bytes wan_before, wan_base;

    struct agent_jobworker worker;
    struct agent_ranks *ranks; // owned; of an attached trainer that has several; else NULL
    struct agent_jobrounds rounds;
    struct agent_sums *sums; // profile `private` (agent/daemon/sums.h); else NULL
    struct agent_jobtensors tensors;
    struct agent_jobfetch fetch;
    struct agent_jobdoubt doubt;
    struct agent_jobsaid said;
    // Owned; kept for watchers that come late. report: the last of this cluster's worker, or the
    // failure that the agent reported for it; NULL: none yet. others: (n_clusters).
    json_t *report, *others[AGENT_CLUSTERS_MAX];
    struct agent_ipc_client watchers[AGENT_WATCHERS_MAX];
};

// True if `cluster` is another cluster whose member is on the list.
static inline bool agent_job_has_peer(const struct agent_jobrun *j, int cluster) {
    return cluster != j->self && j->peers[cluster] < NEB_MEMBERS_MAX;
}

// All jobs in the ledger: [{id, job, state, home, why, sent_bytes, recv_bytes}]. home: who
// submitted it, "" for this site; why: the reason if it is held.
NEB_MUST_CHECK enum neb_status agent_jobs_list(struct inter_ledger *l, json_t **out);
// The jobs that need attention: those held or failed, at most the AGENT_ASIDE_MAX written last, in
// the form of nebula status: [{id, job, state, outcome, why, step, steps, clusters}]. state is
// "held", or "ended" with the outcome "failed"; step is null, clusters is [].
enum { AGENT_ASIDE_MAX = 32 };
NEB_MUST_CHECK enum neb_status agent_jobs_attention(struct inter_ledger *l, json_t **out);
// A job in the ledger.
struct agent_job_record {
    char hex[2 * AGENT_JOB_ID_BYTES + 1];
    json_t *spec;                      // owned
    char home[SEC_NAME_MAX];           // who submitted it; "": this site
    char sig[2 * INTER_SIG_BYTES + 1]; // its submitter's signature; "": this site
    bool adopted;                      // as in struct agent_jobrun
    // running, stopping, done, stopped, failed; held: it would run, but this site does not let it
    // start.
    char state[12];
    int64_t run; // as in struct agent_jobrun
    struct agent_wan_bytes wan;
    // Owned. By the name of each other cluster, the number of its last line here; NULL: none.
    json_t *had;
};
// Writes a job. why: the reason if it is held, else NULL.
NEB_MUST_CHECK enum neb_status agent_jobs_put(struct inter_ledger *l,
                                              const struct agent_job_record *r, const char *why);
// Finds the one job whose id has this prefix; the caller clears *out. NEB_ERR_NOT_FOUND;
// NEB_ERR_INVALID: more than one; and the errors of the ledger.
NEB_MUST_CHECK enum neb_status agent_jobs_find(struct inter_ledger *l, const char *prefix,
                                               struct agent_job_record *out);
// The same for a user's input: *why explains what is wrong with it and which jobs match.
NEB_MUST_CHECK enum neb_status agent_jobs_choose(struct inter_ledger *l, const char *prefix,
                                                 struct agent_job_record *out, char *why,
                                                 size_t cap);
// Reads a row of the ledger; the caller clears *out. spec NULL: the row is damaged.
void agent_job_record_read(const uint8_t id[INTER_ID_BYTES], const char *spec, const char *state,
                           struct agent_job_record *out);
// Ended jobs of other members, except the `most` newest of each by the time of writing: *n of them,
// which the caller frees; NULL: none. Jobs that run or are held, this member's own, and adopted
// ones are not listed.
struct agent_ended_job {
    uint8_t id[AGENT_JOB_ID_BYTES];
    char home[SEC_NAME_MAX];
    int64_t at; // ms since 1970; 0: unknown
};
NEB_MUST_CHECK enum neb_status agent_jobs_ended(struct inter_ledger *l, size_t most,
                                                struct agent_ended_job **out, size_t *n);
void agent_job_record_clear(struct agent_job_record *r);

#endif
