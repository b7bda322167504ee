// SPDX-License-Identifier: Apache-2.0
// What cmd_pretrain.c (options, submitting, following) and the pretrain_*.c share. Nobody else includes this.
#ifndef AGENT_PRETRAIN_STATE_H
#define AGENT_PRETRAIN_STATE_H
#include "agent/cli/local.h"
#include "agent/job/config.h"
#include "agent/proc/ipc.h"
#include "agent/show/progress.h"
#include "agent/show/tensorboard.h"

enum { SETS_MAX = 64 };

struct options { // strings are argv's; out may be run.default_out
    const char *job, *out, *wan, *home, *steps, *seed;
    const char *sets[SETS_MAX];
    int n_sets, local; // local: clusters; 0: agents run elsewhere
    unsigned
        report_within_s; // of a cluster whose agent cannot be reached, where others have reported
    const char *seal_key;
    bool json, resume, tensorboard;
};

struct run {
    struct options o;
    struct agent_job job;
    json_t *spec, *quality;              // the job; what its mode adds to the summary
    json_t *missing_names;               // of clusters that have not reported; NULL: none
    char id[2 * AGENT_JOB_ID_BYTES + 1]; // "": the agent has not said it yet
    char out[NEB_PATH_MAX], socket[NEB_PATH_MAX];
    char default_out[AGENT_NAME_MAX + 8]; // out/JOB
    char model_dir[NEB_PATH_MAX];         // the job's folder at the agent that is asked
    int self; // which of the clusters is the asked agent's (synchronous: 0, one process does it all)
    struct agent_local local;
    void *zctx;
    struct agent_ipc *ipc;
    struct agent_progress *progress;
    struct agent_metrics *metrics;
    struct agent_tensorboard *tensorboard; // NULL: not asked for
    json_t *reports[AGENT_CLUSTERS_MAX];   // (expected) NULL: not here yet
    int64_t had[AGENT_CLUSTERS_MAX];       // of another cluster: the number of its last line
    int expected;                          // clusters that train, which come first
    bool made_out, made_job; // this command has made the folder of --out, and job.json in it
    bool stepped;            // some cluster has made a step
    bool asked; // the agent was asked for the job and has not refused it: it may have it
    bool over;  // the job cannot go on: it was not taken, or has failed everywhere
    neb_ns start;
    neb_ns stop_sent;  // 0: not stopped by us
    neb_ns stop_heard; // when a cluster last had something to tell since
    neb_ns away_since; // that all who have not reported are out of reach
    neb_ns next_ask;   // for the agent's status, while the run stops
    neb_ns odd_since;  // that a cluster is done and another one says that it was stopped; 0: not so
    uint64_t lines_lost;                // of metrics.jsonl: they could not be written
    neb_ns reached[AGENT_CLUSTERS_MAX]; // when a line of a cluster came, or a link to it was up
    neb_ns waits_since;                 // some have reported, others not; 0: not so
    uint16_t told_missing;              // bit each: said that its agent is out of reach
    uint16_t missing;                   // bit each: not waited for any longer
    uint16_t away;             // clusters whose link is down, bit each, as the agent last said
    neb_ns heard, next_follow; // of the job; when the agent is asked for it again
    bool detached;             // this command ends, and the job goes on
    bool silent, no_more;      // it does not answer, and we said so; it will not report
    uint16_t gone; // clusters that are no members any more, bit each: no report of theirs will come
    char ends[512]; // why the agent has ended the job since; empty: it has not
    int lock_fd; // OUT/.lock: one command a folder; released by the system however this process ends
};

// pretrain_job.c
NEB_MUST_CHECK enum neb_status pretrain_load_job(struct run *r);
// Locks --out. A new run writes job.json, the job; --resume must mean the same job, but for what
// agent_job_differs lets change, and takes its id.
NEB_MUST_CHECK enum neb_status pretrain_open_out(struct run *r);
// The agent has taken the job under this id, which follows from what was submitted, where, and by
// whom: into job.json.
NEB_MUST_CHECK enum neb_status pretrain_took(struct run *r, const char *hex);
// pretrain_mend.c: job.json of a local run that is resumed, where it is not whole.
NEB_MUST_CHECK enum neb_status pretrain_mend_job(const struct run *r);
NEB_MUST_CHECK enum neb_status pretrain_write_job(const char *path, const char *hex, json_t *spec);
// A new run that is over before it made a step is none: the folder is as it was, but for logs that say why, and takes another one.
void pretrain_undo_out(struct run *r);

// pretrain_stop.c
bool pretrain_must_stop(const struct run *r);
NEB_MUST_CHECK enum neb_status pretrain_stop(struct run *r, const char *why); // once
// Agents of --local were asked to end as we were: nobody will report.
void pretrain_all_end(struct run *r);
NEB_MUST_CHECK enum neb_status pretrain_say_stop(struct run *r); // again
void pretrain_on_status(struct run *r, const json_t *status);    // of the agent that is asked
// While a run stops. *enough: whoever has not reported is out of reach; go on without. NEB_ERR_TIMEOUT: one within reach is silent.
NEB_MUST_CHECK enum neb_status pretrain_stop_step(struct run *r, bool *enough);

// pretrain_wait.c
void pretrain_reached(struct run *r, int i, neb_ns now); // there is a sign of cluster i
// *enough: set where those that have not reported were out of reach for too long; they are r->missing then.
NEB_MUST_CHECK enum neb_status pretrain_wait_step(struct run *r, neb_ns now, bool *enough);

// pretrain_follow.c
NEB_MUST_CHECK enum neb_status pretrain_say_submit(struct run *r);
// Who is still a member, as the agent says.
void pretrain_on_members(struct run *r, const json_t *event);
// Whatever comes from the agent. NEB_ERR_STATE (logged): it has ended the job, in a former life, and no report of it will come.
NEB_MUST_CHECK enum neb_status pretrain_heard(struct run *r, const struct agent_ipc_msg *m);
void pretrain_ask_now(struct run *r); // at once: it was started again
// Asks for the job again where nothing was heard of it for a while.
NEB_MUST_CHECK enum neb_status pretrain_stay_in_touch(struct run *r);

// pretrain_result.c: the exit status. Clusters without a report are left out of the summary; then the run counts as stopped.
int pretrain_finish(struct run *r);
int pretrain_detached(const struct run *r); // likewise, where the job goes on without this command

#endif
