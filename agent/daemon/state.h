// SPDX-License-Identifier: Apache-2.0
// The agent as a whole (struct daemon), shared by the daemon_*.c files and by nobody else but tests. Which file has what:
//
//     daemon.c           set-up, the loop, signals, the second's telemetry
//     daemon_local.c     requests on agent.sock: nebula's commands and workers       ── in
//     daemon_peers.c     messages of other agents, links that come and go            ── in
//     daemon_rounds.c    commits, rounds of a job, members that differ               ── in
//     snapshot_flow.c  snapshots given and taken                                   ── in
//     daemon_proof.c     whether a state that was taken is the others'
//     daemon_streams.c   streams (a narrow header of its own)                        ── in
//     job_life.c      the life of a job
//     daemon_worker.c    the life of its worker: started, ended, started again
//     daemon_rejoin.c    a job whose state is given up for the others'
//     daemon_hang.c      workers that hang
//     daemon_stop.c      how long an agent that is told to end waits for checkpoints
//     daemon_ended.c     jobs of others that have ended, and how many are kept
//     member_changes.c   member lists and keys that change
//     daemon_send.c      what is told: to clients, workers, other agents, the page   ── out
//
// One thread, one loop: nothing here is locked, and no call blocks. What takes long has a thread of its own, which either shares
// nothing with it until it has ended (snapshots, agent/daemon/snapshot.h), or is waited for, beating (inter/service/busy.c).
#ifndef AGENT_DAEMON_STATE_H
#define AGENT_DAEMON_STATE_H
#include "agent/base/bucket.h"
#include "agent/base/throttle.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/jobs.h"
#include "agent/daemon/members.h"
#include "agent/daemon/renew.h"
#include "agent/daemon/spread.h"
#include "agent/daemon/streams.h"
#include "agent/proc/gpus.h"
#include "agent/web/view.h"

// What members can make happen without end, and is said once a minute (agent/base/throttle.h); texts in daemon_send.c.
enum daemon_throttle {
    THROTTLE_OFFERS,
    THROTTLE_LINES,
    THROTTLE_UNSTORED,
    THROTTLE_FORKED,
    THROTTLE_N
};

// What a member may ask for of jobs, beside its messages as such (enum inter_message_limit).
enum daemon_limit {
    // Jobs that it offers, goes on with, or offers again after an outage: each costs a signature, a look through the ledger, an answer. An honest
    // one has eight at a time, and offers them again with each new link; what is more is refused, or not answered where it comes unasked.
    DAEMON_OFFERS_BURST = 64,
    DAEMON_OFFERS_A_SECOND = 4,
    // Refusals that are said in the log one by one: what an operator tries in a minute.
    DAEMON_OFFERS_LOGGED = 16,
    DAEMON_LINKS_LOGGED = 16, // times that one came or went
    // Jobs of each other member that have ended and are kept, with their folders: one a working day for a year. Its oldest go, no other's, and
    // none of this site's.
    DAEMON_ENDED_MAX = 256,
};

struct daemon {
    const struct agent_daemon_config *c;
    struct agent_gpus gpus; // of this host, that workers are given
    void *zctx;
    struct sec_identity *identity;
    struct sec_vault *vault; // of what lies on disk; NULL: in clear
    // local messages refused: of processes that are not the worker they claim to be
    uint64_t strangers, sums_refused; // the second: of jobs that are forgotten
    struct agent_members *trust;
    struct sec_members members; // of trust, as the service has it
    bool members_due; // trust holds members that only a new service can take, or this one no more
    struct agent_spread spread;
    struct agent_renew renew;
    neb_ns rekey_at; // our own keys were rotated: when to look for them; 0: they were not
    struct inter_service *service;
    int snapshots_given; // pinned now
    struct inter_dropped
        blobs_told; // what of the ledger's blobs went for --blobs-max, as last said
    neb_ns blobs_told_at, blobs_over_at; // when that, and that they are over it, was said; 0: never
    struct agent_streams streams;
    struct agent_snapshot_search
        *searches[INTER_SNAPSHOT_JOBS]; // threads, for those who ask for a snapshot
    struct agent_ipc *ipc;
    char socket_path[NEB_PATH_MAX], exe[NEB_PATH_MAX];
    int signal_fd;
    int home_fd; // agent/proc/home_lock.h
    struct agent_jobrun jobs[AGENT_JOBS_MAX];
    bool up[INTER_PEERS_MAX]; // false for who is on the list no more
    uint64_t faults[INTER_FAULTS];
    struct neb_throttle fault_throttles[INTER_FAULTS], throttle[THROTTLE_N];
    struct neb_throttle links[INTER_PEERS_MAX]; // that came and went
    struct neb_bucket offers[SEC_MEMBERS_MAX],
        overs[SEC_MEMBERS_MAX]; // the second: daemon_job_over
    // Of each member its newest stops of jobs that are not known here (yet: the job waits at another agent).
    struct daemon_early_stop {
        char hex[2 * AGENT_JOB_ID_BYTES + 1];
        int64_t run;
    } early_stops[SEC_MEMBERS_MAX][AGENT_JOBS_MAX];
    unsigned n_early_stops[SEC_MEMBERS_MAX];
    neb_ns next_telemetry, looked_at; // looked_at: for workers that hang
    neb_ns heartbeat_at;              // in the midst of something long, last
    struct agent_view *view;          // what status, page and metrics show
    struct agent_web *web;            // NULL: no page
    bool stopping, stop_now;          // told to end; and a second time: at once
    bool parent_told;                 // by who started it
    neb_ns stop_at;                   // told first
    bool ended_due;                   // a job of another member has ended, or did before this start
    json_t
        *aside; // owned: jobs that are held or have failed, as agent_jobs_attention; NULL: none yet
    bool aside_due; // it may be another one by now
    struct {
        struct agent_policy is;
        neb_ns read_at;
    } policy;     // for trainers that wait, which ask again and again
    bool changes; // a peer's list was taken; acted upon outside of the service's own calls
    struct agent_members_change change;
};

static inline const char *daemon_name(const struct daemon *d) {
    return sec_identity_public(d->identity)->name;
}

// daemon.c
NEB_MUST_CHECK enum neb_status daemon_start_service(struct daemon *d);

// daemon_send.c. What is said is stolen (json_t *).
void daemon_send(struct daemon *d, const struct agent_ipc_client *to, json_t *head);
void daemon_answer(struct daemon *d, const struct agent_ipc_client *to, bool ok, const char *text);
// False: the link does not take it now, or it could not be stored.
bool daemon_post(struct daemon *d, uint32_t peer, enum agent_message kind, json_t *body,
                 bool reliable);
json_t *daemon_stop_message(const struct agent_jobrun *j);
// The job goes on: a stop that an outage kept from the others must not reach them later.
void daemon_withdraw_stop(struct daemon *d, const struct agent_jobrun *j);
// A line of metrics for everybody who follows the job: local watchers, and the agent where it was submitted.
void daemon_publish_line(struct daemon *d, struct agent_jobrun *j, json_t *line);
// One of another cluster, for local watchers: by its number there, made so long ago.
void daemon_pass_line(struct daemon *d, struct agent_jobrun *j, json_t *line, int64_t n,
                      double late_s);
void daemon_witness_report(struct daemon *d, struct agent_jobrun *j, bool stopped);
void daemon_publish_report(struct daemon *d, struct agent_jobrun *j, json_t *report);
void daemon_lines_due(struct daemon *d, struct agent_jobrun *j); // those that wait no more
// Lines that wait for a link go into the ledger: this agent, or the job, comes to its end.
void daemon_store_lines(struct daemon *d, struct agent_jobrun *j);
// A line of metrics that says so: of kind "note", or "fault" where somebody should look; the last one also warns in the log.
void daemon_note(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_note_fault(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_report_fault(struct daemon *d, struct agent_jobrun *j, const char *text);
// It happens; true: to be said in full.
bool daemon_throttle_allows(struct daemon *d, enum daemon_throttle what);
void daemon_send_protocols(struct daemon *d, struct agent_jobrun *j);
void daemon_log_suppressed(struct daemon *d); // once a second: what is due of that
// Other clusters that are heard; *expected: enough of them for a commit.
int daemon_peers_alive(const struct daemon *d, const struct agent_jobrun *j, bool *expected);
// other clusters that are still members
int daemon_peers_left(const struct daemon *d, const struct agent_jobrun *j);
// The disk was lost, and what the others have committed is not all here yet.
bool daemon_catching_up(const struct daemon *d, const struct agent_jobrun *j);
// First attempt of the present ledger (inter_job_status); 0: the job takes part in no rounds yet.
uint32_t daemon_attempts(const struct daemon *d, const struct agent_jobrun *j);
// to the worker: who is there, when it has changed or was asked for
void daemon_send_alive(struct daemon *d, struct agent_jobrun *j, bool asked);
void daemon_send_link(struct daemon *d, struct agent_jobrun *j);  // a line of metrics
void daemon_send_waits(struct daemon *d, struct agent_jobrun *j); // whom rounds wait for
void daemon_send_blobs(struct daemon *d); // what --blobs-max costs, in the log
// of its peers' links
struct agent_wan_bytes daemon_link_totals(struct daemon *d, const struct agent_jobrun *j);
// of the job
struct agent_wan_bytes daemon_wan_bytes(struct daemon *d, const struct agent_jobrun *j);
json_t *daemon_status(struct daemon *d); // for nebula status and the page

// job_life.c
struct agent_jobrun *daemon_job(struct daemon *d, const char *hex); // NULL: none; hex may be NULL
struct agent_jobrun *daemon_job_by_id(struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES]);
// The job that runs here, or has ended here, under this id; to be cleared. NEB_ERR_NOT_FOUND; NEB_ERR_INVALID: no id.
NEB_MUST_CHECK enum neb_status daemon_job_recall(struct daemon *d, const char *hex,
                                                 struct agent_job_record *out);
// An id belongs to the member that used it first (home, UINT32_MAX: this one), and to its specification, but for what agent_job_differs
// lets change. False: *why.
NEB_MUST_CHECK bool daemon_job_is_same(const struct daemon *d, const struct agent_job_record *r,
                                       const json_t *spec, uint32_t home, char *why, size_t cap);
// Goes on with one that ran or has ended, for the member that submitted it, if list and policy admit it as they are now. asked: by this
// site's operator, whose word counts where that member is on the list no more. False: *why.
NEB_MUST_CHECK bool daemon_job_resume(struct daemon *d, const struct agent_job_record *r,
                                      bool asked, char *why, size_t cap);
// A job that is done here, and is not among those in memory since this agent was started anew: its rounds are opened, as they stay after a job,
// for a member that was away and asks for the last ones. Nothing is begun; no place is taken from what ended just now.
void daemon_job_reopen(struct daemon *d, const struct agent_job_record *r);
void daemon_job_resume_due(struct daemon *d, struct agent_jobrun *j); // if it is, and has ended
bool daemon_busy(const struct daemon *d);                             // some job has not ended
void daemon_job_dir(const struct daemon *d, const struct agent_jobrun *j, char *out, size_t cap);
void daemon_job_save(struct daemon *d, struct agent_jobrun *j, const char *state); // to the ledger
// Takes a job over: from the command line (home UINT32_MAX) or from another agent. NULL: *why.
struct agent_jobrun *daemon_job_accept(struct daemon *d, const char *hex, json_t *spec,
                                       uint32_t home, char *why, size_t cap);
void daemon_job_set_home(struct daemon *d, struct agent_jobrun *j, uint32_t home, const char *sig);
void daemon_job_stop(struct daemon *d, struct agent_jobrun *j); // after a checkpoint
// Because somebody wants it: it stays stopped, also where it stops already and was to go on, as where this agent goes down.
void daemon_job_stop_asked(struct daemon *d, struct agent_jobrun *j);
// It was submitted anew, or gone on with, as run `run`: a stop that waits for a link is taken back.
void daemon_job_resumed(struct daemon *d, struct agent_jobrun *j, int64_t run);
// The same of a job that is known, while this agent ends: it goes on with the next start. spec, sig: as it was said now.
void daemon_job_later(struct daemon *d, const struct agent_job_record *known, json_t *spec,
                      const char *sig, int64_t run);
void daemon_job_end(struct daemon *d, struct agent_jobrun *j, const char *state);
// A job that is in the ledger only is stopped, and where it was submitted that is heard.
NEB_MUST_CHECK enum neb_status daemon_job_end_known(struct daemon *d, struct agent_job_record *r,
                                                    const char *why);
// stopped before a worker was there to say so; suspended: nobody hears of it
void daemon_job_end_untrained(struct daemon *d, struct agent_jobrun *j, const char *why);
// says so; does not end it
void daemon_job_fail(struct daemon *d, struct agent_jobrun *j, const char *text);
// It fails here, with a checkpoint where there is a worker; whoever follows it stops the others.
void daemon_job_give_up(struct daemon *d, struct agent_jobrun *j, const char *text);
// This cluster's part of it ends with an error, and the others go on.
void daemon_job_leave(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_job_forget(struct daemon *d, struct agent_jobrun *j); // frees its place
// Which member each of the job's clusters is. known: this agent has run it before; AGENT_PEER_NONE then where a member is on the list no
// more. NEB_ERR_NOT_FOUND, NEB_ERR_INVALID, NEB_ERR_DENIED (too few are left): *why.
NEB_MUST_CHECK enum neb_status daemon_map_clusters(const struct daemon *d, struct agent_jobrun *j,
                                                   bool known, char *why, size_t cap);
// those that ran when the agent last went down
NEB_MUST_CHECK enum neb_status daemon_resume_jobs(struct daemon *d);

// daemon_worker.c
NEB_MUST_CHECK enum neb_status daemon_worker_start(struct daemon *d, struct agent_jobrun *j);
// The first one of a job here. waits: one that cannot be started now is started later, as after a crash.
NEB_MUST_CHECK enum neb_status daemon_worker_begin(struct daemon *d, struct agent_jobrun *j,
                                                   bool waits);
// The keys of the workers that run may open this agent's socket, and that of `starting` (NULL: none), which is not among the jobs yet.
void daemon_workers_admit(struct daemon *d, const struct agent_jobrun *starting);
// Another one is started, now or later (daemon_worker_due), or the job ends.
void daemon_worker_ended(struct daemon *d, struct agent_jobrun *j, int status);
void daemon_worker_due(struct daemon *d, struct agent_jobrun *j); // at each turn of the loop
// Its worker begins again with another state; an attached trainer is told to attach again.
void daemon_worker_replace(struct daemon *d, struct agent_jobrun *j);
void daemon_gpus_back(struct daemon *d, struct agent_jobrun *j); // its worker is gone

// daemon_rounds.c
uint16_t daemon_removed_clusters(const struct daemon *d, const struct agent_jobrun *j); // bit each
uint16_t daemon_gone_clusters(const struct daemon *d, const struct agent_jobrun *j);    // revoked
NEB_MUST_CHECK enum neb_status daemon_open_rounds(struct daemon *d, struct agent_jobrun *j);
// A witness trains nothing: for it the job is over when every fragment has seen its last round.
void daemon_witness_ends(struct daemon *d, struct agent_jobrun *j);
enum inter_screen daemon_on_screen(void *user, const struct inter_manifest *m, const uint8_t *p,
                                   size_t n);
void daemon_on_commit(void *user, const struct inter_record *r, const struct neb_map *blobs);
// What could not be handed to the worker, each second.
void daemon_deliver_retry(struct daemon *d, struct agent_jobrun *j);
// The worker waits for a round that cannot be handed to it: its updates are gone, or the ledger began behind it. A snapshot is fetched.
void daemon_commit_gone(struct daemon *d, struct agent_jobrun *j, uint32_t fragment,
                        uint32_t round);

// snapshot_flow.c
void daemon_on_lost(void *user, const struct inter_key *key);
void daemon_on_behind(void *user, const uint8_t job[INTER_ID_BYTES]);
enum neb_status daemon_on_snapshot_open(void *user, const uint8_t job[INTER_ID_BYTES],
                                        struct inter_snapshot_source *out);
void daemon_on_snapshot_close(void *user, struct inter_snapshot_source *s);
void daemon_end_searches(struct daemon *d);
void daemon_on_snapshot_done(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                             const char *part, uint64_t header_bytes, uint32_t giver);

// daemon_proof.c
// What was taken is compared with what the others say, and the worker begins with it when they bear it out. asks: it has to be; giver: a
// peer, UINT32_MAX: several.
void daemon_proof_begin(struct daemon *d, struct agent_jobrun *j, uint32_t giver, bool asks);
// once a second, and when a record has come: acts on what they have said by now
void daemon_proof_look(struct daemon *d, struct agent_jobrun *j);
void daemon_proof_look_at(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r);
static inline bool daemon_proof_waits(const struct agent_jobrun *j) {
    return j->proof.open && !j->proof.begun;
}
// Clusters that are not asked for a state, bit each: theirs were false, and there are others.
uint16_t daemon_false_givers(const struct daemon *d, const struct agent_jobrun *j);
// The worker has found that it is not even what it says: it ends, and begins again without.
void daemon_proof_bad(struct daemon *d, struct agent_jobrun *j, const char *what);
// At the start of a job: nobody knows any more who gave what was not borne out yet.
NEB_MUST_CHECK enum neb_status daemon_proof_forget(const struct daemon *d,
                                                   const struct agent_jobrun *j);

// daemon_rejoin.c
// Gives up what is here of a job that does not run, rounds and checkpoints: resumed, it begins with the others' state. False: *why.
NEB_MUST_CHECK bool daemon_job_renew(struct daemon *d, const struct agent_job_record *r, char *why,
                                     size_t cap);

// The worker is at a round beyond the ledger's, which has lost commits since, and may have lost
// votes: this cluster's side is given up, and it goes on with what the others have, once its worker
// has ended; or the job fails, and says why. False: the ledger is as far.
bool daemon_ledger_behind(struct daemon *d, struct agent_jobrun *j, uint32_t fragment,
                          uint32_t round);
// That worker has ended, or attaches again. False: the job has failed.
bool daemon_ledger_behind_done(struct daemon *d, struct agent_jobrun *j);

// A job of rounds that is new to the ledger, which may have been lost without the job's folder: its checkpoints say nothing then.
NEB_MUST_CHECK enum neb_status daemon_job_without_ledger(struct daemon *d,
                                                         const struct agent_jobrun *j);

// daemon_peers.c
// The job is offered again to clusters whose links came up, as far as they take it.
void daemon_offer_retry(struct daemon *d, struct agent_jobrun *j);
// Whether the job is done here, and the peer a cluster of it, which waits for this one to take what its streams brought.
bool daemon_job_over(void *user, const uint8_t id[AGENT_JOB_ID_BYTES], uint32_t peer);
// Whether the member that now has the name of the one who submitted it signed it.
bool daemon_job_is_of_owner(const struct daemon *d, const struct agent_job_record *r);
// {"id", "spec", "home", "sig", "run"}; NULL: out of memory
json_t *daemon_signed_job(struct daemon *d, const struct agent_jobrun *j);
void daemon_on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n);
void daemon_on_peer(void *user, uint32_t peer, bool up);
void daemon_on_fault(void *user, uint32_t peer, enum inter_fault f);
void daemon_on_equivocation(void *user, uint32_t peer, const struct inter_evidence *e);
void daemon_on_divergence(void *user, uint32_t peer, const struct inter_key *round);

// daemon_misnamed.c
// Bound into ids and signatures of jobs. A pair without a CA has none: its sites may know
// different sets of others.
const uint8_t *daemon_federation(const struct daemon *d);
// Whether the id is that of this text, submitted by that member (job_id.h).
bool daemon_id_fits(const struct daemon *d, const char *submitter, const char *hex,
                    const json_t *spec);
// Whether this version takes it for a job's: another one may make other ids of it, and is no equivocator.
bool daemon_spec_is_read(const json_t *spec);
// `by` has signed an id over a text that is not its own, and `peer` tells of it: kept, said, passed
// on; the job, if it is by's, ends. why: for who told.
void daemon_on_misnamed(struct daemon *d, uint32_t peer, const char *by, const char *hex,
                        const json_t *body, char *why, size_t cap);
// Whether that was seen of this job and the member that submitted it. True: *why.
bool daemon_was_misnamed(const struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES],
                         const char *submitter, char *why, size_t cap);

// daemon_ended.c
void daemon_drop_ended(struct daemon *d); // once a second
// Removes what is here of a job that has ended: by its operator's word. False: *why.
bool daemon_job_forgotten(struct daemon *d, const struct agent_job_record *r, char *why,
                          size_t cap);

// daemon_hang.c
void daemon_look_for_hangs(struct daemon *d); // once a second
// The worker is ended, with all its ranks, and begins again from its checkpoint.
void daemon_worker_retry(struct daemon *d, struct agent_jobrun *j, const char *why);
// With all its ranks, and reaped when they are gone: those that begin in their place find memory and devices free.
void daemon_worker_kill(struct agent_jobrun *j);

// daemon_stop.c
void daemon_stop(struct daemon *d, bool from_parent); // told to end
bool daemon_stop_waits(struct daemon *d);             // for a job to end, which still may
void daemon_send_stop(struct daemon *d);              // once a second

// daemon_local.c
void daemon_on_local(struct daemon *d, const struct agent_ipc_client *from,
                     struct agent_ipc_msg *m);
// Its worker has made so many steps.
void daemon_note_step(struct agent_jobrun *j, int64_t step);
void daemon_trainer_left(struct daemon *d, struct agent_jobrun *j, bool said_so);

// member_changes.c. Changes are gathered, and acted upon between the service's own calls.
void daemon_merge_change(struct agent_members_change *all, const struct agent_members_change *c);
NEB_MUST_CHECK enum neb_status daemon_take_members(struct daemon *d); // the newer list
// for one that needs new links, when no job runs
NEB_MUST_CHECK enum neb_status daemon_renew_service(struct daemon *d);
void daemon_warn_unlinked(const struct daemon *d); // of members with whom neither side can connect
NEB_MUST_CHECK enum neb_status daemon_rekey(struct daemon *d); // this member's own new keys
// Says to who follows a job which of its clusters are no members any more, so that nobody waits for their reports, and, where this
// ends the job here, why.
void daemon_send_members(struct daemon *d, const struct agent_jobrun *j,
                         const struct agent_ipc_client *to);

#endif
