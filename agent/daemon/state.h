// SPDX-License-Identifier: Apache-2.0
// The agent as a whole (struct daemon), shared by the files of this room (README.md lists them) and
// used by no others except tests.
//
// One thread, one loop: nothing here is locked. The loop waits for events only in daemon.c, and no
// handler waits for another agent, a worker or a user. Handlers do block: on the disk (the ledger
// syncs what it stores), on large files that are read, copied or hashed here (meanwhile daemon.c
// sends heartbeats, agent/base/moved.h), and on large work in a thread (for which this one waits
// and sends heartbeats, inter/service/busy.c). Some calls sleep: daemon_renew_service (up to 2 s)
// and daemon_rekey (up to 3 s), until ZeroMQ frees a port, and the end of the agent, up to 20 s for
// each worker.
//
// Two kinds of work run outside of the loop: searches for checkpoints, in threads that share
// nothing until they end (agent/daemon/snapshot.h), and the renewal of the certificate, in a
// process (renew.h).
#ifndef AGENT_DAEMON_STATE_H
#define AGENT_DAEMON_STATE_H
#include "agent/base/bucket.h"
#include "agent/base/throttle.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/jobs.h"
#include "agent/daemon/members.h"
#include "agent/daemon/ranks.h"
#include "agent/daemon/renew.h"
#include "agent/daemon/spread.h"
#include "agent/daemon/streams.h"
#include "agent/proc/gpus.h"
#include "agent/web/view.h"

// Events that members can cause without limit, logged once a minute (agent/base/throttle.h). The
// texts are in send.c.
enum daemon_throttle {
    THROTTLE_OFFERS,
    THROTTLE_LINES,
    THROTTLE_UNSTORED,
    THROTTLE_FORKED,
    THROTTLE_N
};

// Limits of what a member may ask for, in addition to those of its messages (enum
// inter_message_limit).
enum daemon_limit {
    // Offers of jobs (new, resumed, or repeated after an outage): each costs a signature, a search
    // in the ledger, and an answer. An honest member has eight at a time and repeats them with each
    // new link. Further offers are refused, or ignored if nobody asked for an answer.
    DAEMON_OFFERS_BURST = 64,
    DAEMON_OFFERS_A_SECOND = 4,
    // Messages with lines that nobody follows: each costs a synced write, and perhaps a search in
    // the ledger. An honest member sends 22 after an outage, for each of eight jobs.
    DAEMON_LATES_BURST = 200,
    DAEMON_LATES_A_SECOND = 10,
    // Refusals that are logged one by one: as many as an operator causes in a minute.
    DAEMON_OFFERS_LOGGED = 16,
    DAEMON_LINKS_LOGGED = 16, // changes of a link that are logged one by one
    // Ended jobs that are kept of each other member, with their folders: one per working day for a
    // year. A member's oldest are removed first; this site's own jobs are never removed.
    DAEMON_ENDED_MAX = 256,
};

struct daemon {
    const struct agent_daemon_config *c;
    struct agent_gpus gpus; // GPUs of this host, which workers get
    void *zctx;
    struct sec_identity *identity;
    struct sec_vault *vault; // seals files on disk; NULL: they are not sealed
    // Local messages that were refused (strangers: from processes that are not the worker they
    // claim to be), and refused messages about sums of jobs that are forgotten.
    uint64_t strangers, sums_refused;
    struct agent_members *trust;
    struct sec_members members; // of trust, as the service has them
    bool members_due; // trust has members that only a new service can take, or lacks this one
    struct agent_spread spread;
    struct agent_renew renew;
    neb_ns rekey_at; // own keys were rotated: when to look for them; 0: they were not
    struct inter_service *service;
    int snapshots_given;                 // sources that are open now
    struct inter_dropped blobs_told;     // what was last reported as dropped because of --blobs-max
    neb_ns blobs_told_at, blobs_over_at; // when that, and an excess, was last reported; 0: never
    struct agent_streams streams;
    struct agent_snapshot_search
        *searches[INTER_SNAPSHOT_JOBS]; // threads for members that ask for a snapshot
    struct agent_ipc *ipc;
    char socket_path[NEB_PATH_MAX], exe[NEB_PATH_MAX];
    int signal_fd;
    int home_fd; // agent/proc/home_lock.h
    struct agent_jobrun jobs[AGENT_JOBS_MAX];
    bool up[INTER_PEERS_MAX]; // false for a member that is no longer on the list
    uint64_t faults[INTER_FAULTS];
    struct neb_throttle fault_throttles[INTER_FAULTS], throttle[THROTTLE_N];
    struct neb_throttle links[INTER_PEERS_MAX]; // throttles of links that come and go
    struct neb_bucket offers[NEB_MEMBERS_MAX],
        overs[NEB_MEMBERS_MAX], // daemon_job_over
        lates[NEB_MEMBERS_MAX]; // messages with lines that are kept (late.h)
    // The newest stops from each member of jobs that are not known here (the job itself may still
    // wait at another agent).
    struct daemon_early_stop {
        char hex[2 * AGENT_JOB_ID_BYTES + 1];
        int64_t run;
    } early_stops[NEB_MEMBERS_MAX][AGENT_JOBS_MAX];
    unsigned n_early_stops[NEB_MEMBERS_MAX];
    neb_ns next_telemetry, looked_at; // looked_at: last look at the jobs
    neb_ns heartbeat_at;              // last heartbeat sent during long work
    struct agent_view *view;          // data of status, page and metrics
    struct agent_web *web;            // NULL: no page
    bool stopping, stop_now;          // asked to end; and a second time: end at once
    bool parent_told;                 // the parent process has asked
    neb_ns stop_at;                   // first request to end
    bool ended_due;                   // a job of another member may have ended since the last look
    json_t *aside;  // owned: held or failed jobs, as agent_jobs_attention; NULL: none yet
    bool aside_due; // `aside` may be outdated
    struct {
        struct agent_policy is;
        neb_ns read_at;
    } policy;     // cache for waiting trainers, which ask again and again
    bool changes; // a peer's list was taken; handled between the service's calls
    struct agent_members_change change;
};

static inline const char *daemon_name(const struct daemon *d) {
    return sec_identity_public(d->identity)->name;
}

// A time that a worker or the policy names, within 0 and thirty years.
static inline neb_ns daemon_span(double s) {
    const double most = 1e9;
    return s > 0 ? (neb_ns)((s < most ? s : most) * (double)NEB_S) : 0;
}

// daemon.c
NEB_MUST_CHECK enum neb_status daemon_start_service(struct daemon *d);

// send.c. Takes ownership of a json_t * that is sent.
void daemon_send(struct daemon *d, const struct agent_ipc_client *to, json_t *head);
void daemon_answer(struct daemon *d, const struct agent_ipc_client *to, bool ok, const char *text);
// False: the link does not take it now, or it could not be stored.
bool daemon_post(struct daemon *d, uint32_t peer, enum agent_message kind, json_t *body,
                 bool reliable);
json_t *daemon_stop_message(const struct agent_jobrun *j);
// The job continues: removes stops that still wait for a link, so that they do not arrive later.
void daemon_withdraw_stop(struct daemon *d, const struct agent_jobrun *j);
// Sends a line of metrics to everybody who follows the job: local watchers, and the agent where the
// job was submitted.
void daemon_publish_line(struct daemon *d, struct agent_jobrun *j, json_t *line);
// The same for a line of another cluster, to local watchers: n is its number there, late_s its age.
// False: there are none.
bool daemon_pass_line(struct daemon *d, struct agent_jobrun *j, json_t *line, int64_t n,
                      double late_s);
void daemon_publish_report(struct daemon *d, struct agent_jobrun *j, json_t *report);
void daemon_lines_due(struct daemon *d, struct agent_jobrun *j);  // sends those that are due
void daemon_lines_soon(struct daemon *d, struct agent_jobrun *j); // the same, 4 times a second
// False (logged): out of memory for lines that go to the agent where the job was submitted.
NEB_MUST_CHECK bool daemon_need_lines(struct daemon *d, struct agent_jobrun *j);
// Stores the lines that its agent may lack in the ledger: this agent or the job ends.
void daemon_store_lines(struct daemon *d, struct agent_jobrun *j);
// Sends a text as a line of metrics, of kind "note", or "fault" if somebody should look.
// daemon_report_fault also logs a warning.
void daemon_note(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_note_fault(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_report_fault(struct daemon *d, struct agent_jobrun *j, const char *text);
// Counts the event. True: log it in full.
bool daemon_throttle_allows(struct daemon *d, enum daemon_throttle what);
void daemon_send_protocols(struct daemon *d, struct agent_jobrun *j);
void daemon_log_suppressed(struct daemon *d); // once a second: logs the counts that are due
// All 0 (leader -1) without rounds.
struct inter_job_status daemon_rounds(const struct daemon *d, const struct agent_jobrun *j);
// What the worker is told about the other members; kept as said. changed: since the last call.
json_t *daemon_take_alive(struct daemon *d, struct agent_jobrun *j, bool *changed);
// Sends the worker which members are reachable, if that has changed or was asked for.
void daemon_send_alive(struct daemon *d, struct agent_jobrun *j, bool asked);
void daemon_send_link(struct daemon *d, struct agent_jobrun *j); // a line of metrics
// the clusters that rounds wait for
void daemon_send_waits(struct daemon *d, struct agent_jobrun *j);
void daemon_send_blobs(struct daemon *d); // logs what --blobs-max drops
// Totals of the links to the job's clusters.
struct agent_wan_bytes daemon_link_totals(struct daemon *d, const struct agent_jobrun *j);
// Bytes of the job, over all its runs.
struct agent_wan_bytes daemon_wan_bytes(struct daemon *d, const struct agent_jobrun *j);
json_t *daemon_status(struct daemon *d); // for nebula status and the page

// job_life.c
// The next entry in use; after NULL the first. NULL: there is none.
struct agent_jobrun *daemon_next_job(const struct daemon *d, const struct agent_jobrun *after);
#define EACH_JOB(d, j) for (struct agent_jobrun *j = NULL; (j = daemon_next_job(d, j)) != NULL;)
struct agent_jobrun *daemon_job(struct daemon *d, const char *hex); // NULL: none; hex may be NULL
struct agent_jobrun *daemon_job_by_id(struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES]);
bool daemon_busy(const struct daemon *d);                       // some job has not ended
void daemon_job_save(struct daemon *d, struct agent_jobrun *j); // its state, to the ledger
// Changes the state of the job and carries out the actions (life.h). Owns report, which is kept and
// published if the table says so; NULL for events without one.
void daemon_job_event(struct daemon *d, struct agent_jobrun *j, enum agent_job_event e,
                      json_t *report);
void daemon_job_timers(struct daemon *d, struct agent_jobrun *j); // handles those that are due
void daemon_job_moved(struct agent_jobrun *j);                    // it made a step, or starts
// Stops it after a checkpoint. asked: by a user; then it stays stopped, even if it is stopping
// already because the agent ends.
static inline void daemon_job_stop(struct daemon *d, struct agent_jobrun *j) {
    daemon_job_event(d, j, AGENT_EV_STOP, NULL);
}
static inline void daemon_job_stop_asked(struct daemon *d, struct agent_jobrun *j) {
    daemon_job_event(d, j, AGENT_EV_ASKED, NULL);
}
// Ends a stopping job that has no worker to report. If it is suspended, nothing is reported.
void daemon_job_alone(struct daemon *d, struct agent_jobrun *j, const char *why);
// If there is a report: ends the job as it says. False: there is none.
bool daemon_job_said(struct daemon *d, struct agent_jobrun *j);
// The job fails here, with a checkpoint if there is a worker; the submitter stops the other
// clusters. give_up also notes and logs the text.
void daemon_job_fail(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_job_give_up(struct daemon *d, struct agent_jobrun *j, const char *text);
// The same without a checkpoint, because no worker can be started any more.
void daemon_job_worn(struct daemon *d, struct agent_jobrun *j, const char *text);
// A witness trains nothing: it reports and ends here. stopped: before the last round.
void daemon_witness_report(struct daemon *d, struct agent_jobrun *j, bool stopped);
// This cluster's part ends with an error, and the other clusters continue.
void daemon_job_leave(struct daemon *d, struct agent_jobrun *j, const char *text);
void daemon_job_forget(struct daemon *d, struct agent_jobrun *j); // frees its entry

// job_accept.c
// Takes a job from the command line (home UINT32_MAX) or from another agent. NULL: *why.
struct agent_jobrun *daemon_job_accept(struct daemon *d, const char *hex, json_t *spec,
                                       uint32_t home, char *why, size_t cap);
void daemon_job_set_home(struct daemon *d, struct agent_jobrun *j, uint32_t home, const char *sig);
// The job was submitted again or resumed, as run `run`: withdraws a stop that waits for a link.
void daemon_job_resumed(struct daemon *d, struct agent_jobrun *j, int64_t run);
// Resumes a job that ran or has ended, for the member that submitted it, if list and policy admit
// it now. asked: this site's operator asked for it, which suffices if that member is no longer on
// the list. False: *why.
NEB_MUST_CHECK bool daemon_job_resume(struct daemon *d, const struct agent_job_record *r,
                                      bool asked, char *why, size_t cap);
// Opens the rounds of a job that is done here but not in memory since a restart of the agent, for a
// member that was away and asks for the last ones. Starts nothing, and does not displace a job that
// ended just now.
void daemon_job_reopen(struct daemon *d, const struct agent_job_record *r);
// Resumes a job that has ended, because that was requested while it still stopped.
void daemon_job_resume_again(struct daemon *d, struct agent_jobrun *j);
// Finds the member of each of the job's clusters. known: this agent has run the job before; then a
// member that is no longer on the list becomes AGENT_PEER_NONE. NEB_ERR_NOT_FOUND, NEB_ERR_INVALID,
// NEB_ERR_DENIED (too few are left): *why.
NEB_MUST_CHECK enum neb_status daemon_map_clusters(const struct daemon *d, struct agent_jobrun *j,
                                                   bool known, char *why, size_t cap);

// job_known.c
// The job with this id that runs here or has ended here; the caller clears *out. NEB_ERR_NOT_FOUND;
// NEB_ERR_INVALID: not an id.
NEB_MUST_CHECK enum neb_status daemon_job_recall(struct daemon *d, const char *hex,
                                                 struct agent_job_record *out);
// True if `home` (UINT32_MAX: this member) may use this id for this specification: an id belongs to
// the member that used it first and to its specification, except for changes that agent_job_differs
// allows. False: *why.
NEB_MUST_CHECK bool daemon_job_is_same(const struct daemon *d, const struct agent_job_record *r,
                                       const json_t *spec, uint32_t home, char *why, size_t cap);
// A known job was resumed while this agent ends: it continues with the next start. spec, sig: as
// received now.
void daemon_job_later(struct daemon *d, const struct agent_job_record *known, json_t *spec,
                      const char *sig, int64_t run);
// Stops a job that is in the ledger only, and reports that to its submitter.
NEB_MUST_CHECK enum neb_status daemon_job_end_known(struct daemon *d, struct agent_job_record *r,
                                                    const char *why);
// Resumes the jobs that ran when the agent last ended.
NEB_MUST_CHECK enum neb_status daemon_resume_jobs(struct daemon *d);
void daemon_drop_ended(struct daemon *d); // once a second
// Removes all data of an ended job, at its operator's request. False: *why.
bool daemon_job_forgotten(struct daemon *d, const struct agent_job_record *r, char *why,
                          size_t cap);

// worker.c
// Starts the first worker of a job here. waits: if it cannot be started now, it is started later,
// as after a crash.
NEB_MUST_CHECK enum neb_status daemon_worker_begin(struct daemon *d, struct agent_jobrun *j,
                                                   bool waits);
void daemon_workers_admit(struct daemon *d);      // lets the workers' keys open this agent's socket
void daemon_worker_look(struct agent_jobrun *j);  // at each turn of the loop
void daemon_worker_heard(struct agent_jobrun *j); // it sent something: it may be silent again
void daemon_worker_restart(struct daemon *d, struct agent_jobrun *j); // sets its timer
// Timers: it has ended; another one is started; it is silent; it survives being killed.
void daemon_worker_ended(struct daemon *d, struct agent_jobrun *j);
void daemon_worker_due(struct daemon *d, struct agent_jobrun *j);
void daemon_worker_silent(struct daemon *d, struct agent_jobrun *j);
void daemon_worker_survives(struct daemon *d, struct agent_jobrun *j);
// Kills the worker with all its ranks; it restarts from its checkpoint.
void daemon_worker_retry(struct daemon *d, struct agent_jobrun *j, const char *why);
// Kills all ranks and reaps the worker only when they are gone, so that the next ones find memory
// and devices free.
void daemon_worker_kill(struct agent_jobrun *j);
// Restarts the worker with another state; an attached trainer is asked to attach again.
void daemon_worker_replace(struct daemon *d, struct agent_jobrun *j);
void daemon_gpus_back(struct daemon *d, struct agent_jobrun *j); // its worker is gone

// rounds.c
// Clusters without a vote (nebula promote), and revoked ones, a bit each.
struct member_set daemon_removed_clusters(const struct daemon *d, const struct agent_jobrun *j);
struct member_set daemon_gone_clusters(const struct daemon *d, const struct agent_jobrun *j);
NEB_MUST_CHECK enum neb_status daemon_open_rounds(struct daemon *d, struct agent_jobrun *j);
// A witness trains nothing: its job is done when every fragment has had its last round.
void daemon_witness_ends(struct daemon *d, struct agent_jobrun *j);
enum inter_screen daemon_on_screen(void *user, const struct inter_manifest *m, const uint8_t *p,
                                   size_t n);
void daemon_on_commit(void *user, const struct inter_record *r, const struct neb_map *blobs);
// Once a second: sends the commits that the worker could not take.
void daemon_deliver_retry(struct daemon *d, struct agent_jobrun *j);
// The worker waits for a round that cannot be delivered, because its updates are gone or the ledger
// begins later. Fetches a snapshot.
void daemon_commit_gone(struct daemon *d, struct agent_jobrun *j, uint32_t fragment,
                        uint32_t round);

// snapshot_flow.c
void daemon_on_lost(void *user, const struct inter_key *key);
void daemon_on_gone(void *user, const struct inter_key *key, const char *text);
void daemon_on_behind(void *user, const uint8_t job[INTER_ID_BYTES]);
// The worker needs a snapshot: asks for one, now and every five seconds.
void daemon_ask_snapshot(struct daemon *d, struct agent_jobrun *j);
enum neb_status daemon_on_snapshot_open(void *user, const uint8_t job[INTER_ID_BYTES],
                                        struct inter_snapshot_source *out);
void daemon_on_snapshot_close(void *user, struct inter_snapshot_source *s);
void daemon_end_searches(struct daemon *d);
void daemon_on_snapshot_done(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                             const char *part, uint64_t header_bytes, uint32_t giver);

// proof.c
// Compares a snapshot with what the others have, and starts the worker with it when they confirm
// it. asks: the comparison is required. giver: a peer, UINT32_MAX: several.
void daemon_proof_begin(struct daemon *d, struct agent_jobrun *j, uint32_t giver, bool asks);
// Act on the answers so far: once a second, and after each record.
void daemon_proof_look(struct daemon *d, struct agent_jobrun *j);
void daemon_proof_look_at(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r);
static inline bool daemon_proof_waits(const struct agent_jobrun *j) {
    return j->doubt.proof.open && !j->doubt.proof.begun;
}
// Clusters that are not asked for a state, a bit each: theirs was false, and there are others.
struct member_set daemon_false_givers(const struct daemon *d, const struct agent_jobrun *j);
// The worker found that the snapshot does not match its own digests: it ends, and starts without
// it.
void daemon_proof_bad(struct daemon *d, struct agent_jobrun *j, const char *what);

// rejoin.c
// Gives up this cluster's rounds and checkpoints of a job that does not run: when resumed, the job
// starts with the others' state. False: *why.
NEB_MUST_CHECK bool daemon_job_renew(struct daemon *d, const struct agent_job_record *r, char *why,
                                     size_t cap);

// Checks for a worker that is at a round beyond the ledger, which has then lost commits and perhaps
// votes. If so, gives up this cluster's side, and continues with the others' state once the worker
// has ended; or the job fails with a reason. False: the ledger is as far as the worker.
bool daemon_ledger_behind(struct daemon *d, struct agent_jobrun *j, uint32_t fragment,
                          uint32_t round);
// Called when that worker has ended or attaches again. False: the job has failed.
bool daemon_ledger_behind_done(struct daemon *d, struct agent_jobrun *j);

// For a job with rounds that the ledger does not know: moves its old checkpoints away, because the
// ledger may have been lost, and then they prove nothing.
NEB_MUST_CHECK enum neb_status daemon_job_without_ledger(const struct agent_jobrun *j);

// peers.c
// Offers the job again to clusters whose links came up, until they take it.
void daemon_offer_retry(struct daemon *d, struct agent_jobrun *j);
// If it was submitted here: reports to a cluster, or to all (UINT32_MAX), which of its lines are
// here. It sends the later ones.
void daemon_say_had(struct daemon *d, struct agent_jobrun *j, uint32_t peer);
// True if the job is done here and the peer is one of its clusters, which waits for this one to
// take batches of its streams.
bool daemon_job_over(void *user, const uint8_t id[AGENT_JOB_ID_BYTES], uint32_t peer);
// True if the present holder of the submitter's name signed the job.
bool daemon_job_is_of_owner(const struct daemon *d, const struct agent_job_record *r);
// {"id", "spec", "home", "sig", "run"}; NULL: out of memory
json_t *daemon_signed_job(struct daemon *d, const struct agent_jobrun *j);
void daemon_on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n);
void daemon_on_peer(void *user, uint32_t peer, bool up);
void daemon_on_fault(void *user, uint32_t peer, enum inter_fault f);
void daemon_on_equivocation(void *user, uint32_t peer, const struct inter_evidence *e);
void daemon_on_divergence(void *user, uint32_t peer, const struct inter_key *round);

// misnamed.c
// The federation that job ids and signatures are bound to. A pair without a CA has none, because
// its sites may know different other members.
const uint8_t *daemon_federation(const struct daemon *d);
// True if the id belongs to this specification of that submitter (agent/job/id.h).
bool daemon_id_fits(const struct daemon *d, const char *submitter, const char *hex,
                    const json_t *spec);
// True if this version can read the specification: another version may make other ids of it, and is
// no equivocator.
bool daemon_spec_is_read(const json_t *spec);
// `peer` proves that `by` has signed an id over a specification that does not belong to it: stores,
// logs and passes on the proof, and ends the job if `by` submitted it. why: for the answer to
// `peer`.
void daemon_on_misnamed(struct daemon *d, uint32_t peer, const char *by, const char *hex,
                        const json_t *body, char *why, size_t cap);
// True if there is such a proof about this job and its submitter: *why.
bool daemon_was_misnamed(const struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES],
                         const char *submitter, char *why, size_t cap);

// stop.c
void daemon_stop(struct daemon *d, bool from_parent); // a signal asks the agent to end
bool daemon_stop_waits(struct daemon *d);             // for a job that can still end in time
void daemon_extend_stop(struct daemon *d);            // once a second
static const neb_ns daemon_left_every = 10 * NEB_S;   // a shorter stop is not reported
void daemon_say_left(struct daemon *d, struct agent_jobrun *j); // a timer

// updates.c: messages of the worker
void daemon_on_shape(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m);
void daemon_on_update(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m);
void daemon_on_ready(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m);
void daemon_on_checkpoint(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m);
// Takes the shape in DIR/shape.json, if there is one.
void daemon_recall_shape(struct daemon *d, const struct agent_jobrun *j);

// manifest.c: the tensors of attached trainers
void daemon_on_manifest(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m);
// A message of cluster k about its tensors.
void daemon_on_tensors(struct daemon *d, struct agent_jobrun *j, int k, const json_t *body);
void daemon_tensors_look(struct daemon *d, struct agent_jobrun *j); // once a second
// True if the job waits for the first parameters of another cluster, before its first round.
bool daemon_start_missing(const struct daemon *d, const struct agent_jobrun *j);
// A snapshot has arrived. True: it holds the first parameters, and the trainer may begin.
bool daemon_start_arrived(struct daemon *d, struct agent_jobrun *j);
// Takes the list in DIR/tensors.json, if there is one.
void daemon_recall_tensors(struct agent_jobrun *j);

// local.c
// Counts a refused local message, and logs the first.
void daemon_count_stranger(struct daemon *d, const char *what);
void daemon_on_local(struct daemon *d, const struct agent_ipc_client *from,
                     struct agent_ipc_msg *m);
// The worker has made so many steps.
void daemon_note_step(struct agent_jobrun *j, int64_t step);
void daemon_trainer_left(struct daemon *d, struct agent_jobrun *j, bool said_so);

// member_changes.c. Changes are collected, and handled between the service's own calls.
void daemon_merge_change(struct agent_members_change *all, const struct agent_members_change *c);
NEB_MUST_CHECK enum neb_status daemon_take_members(struct daemon *d); // the newer list
// Replaces the service for a list that needs new links, when no job runs.
NEB_MUST_CHECK enum neb_status daemon_renew_service(struct daemon *d);
void daemon_warn_unlinked(const struct daemon *d); // members with which neither side can connect
NEB_MUST_CHECK enum neb_status daemon_rekey(struct daemon *d); // to this member's own new keys
// Sends a watcher the clusters of a job that are no longer members, so that it does not wait for
// their reports; and why, if that ends the job here.
void daemon_send_members(struct daemon *d, const struct agent_jobrun *j,
                         const struct agent_ipc_client *to);

#endif
