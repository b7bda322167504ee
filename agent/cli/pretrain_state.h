// SPDX-License-Identifier: Apache-2.0
// Shared by cmd_pretrain.c (options, submitting, following) and pretrain_*.c only.
#ifndef AGENT_PRETRAIN_STATE_H
#define AGENT_PRETRAIN_STATE_H
#include "agent/cli/cmd_options.h"
#include "agent/cli/local.h"
#include "agent/job/config.h"
#include "agent/proc/ipc.h"
#include "agent/show/progress.h"
#include "agent/show/tensorboard.h"

struct options {                 // strings belong to argv; out may be run.default_out
    struct agent_options common; // its argument: the job file
    const char *out, *wan, *steps, *seed;
    struct agent_list sets;
    int local;           // number of clusters; 0: agents run elsewhere
    int report_within_s; // wait for the report of an unreachable cluster after others reported
    bool resume, tensorboard;
};

struct run {
    struct options o;
    struct agent_job job;
    json_t *spec, *quality;              // the job; the mode's part of the summary
    json_t *missing_names;               // clusters without a report; NULL: none
    char id[2 * AGENT_JOB_ID_BYTES + 1]; // "": the agent has not sent it yet
    char out[NEB_PATH_MAX], socket[NEB_PATH_MAX];
    char default_out[AGENT_NAME_MAX + 8]; // out/JOB
    char model_dir[NEB_PATH_MAX];         // the job's folder at the asked agent
    int self; // the cluster of the asked agent (synchronous: 0, one process does everything)
    struct agent_local local;
    void *zctx;
    struct agent_ipc *ipc;
    struct agent_progress *progress;
    struct agent_metrics *metrics;
    struct agent_tensorboard *tensorboard; // NULL: not wanted
    json_t *reports[AGENT_CLUSTERS_MAX];   // (expected) NULL: not here yet
    int64_t had[AGENT_CLUSTERS_MAX];       // number of the last line of a cluster
    int expected;                          // clusters that train; they come first
    bool made_out, made_job;               // this command made the folder --out; and job.json in it
    bool stepped;                          // a cluster has made a step
    bool asked;                            // the agent has not refused the job: it may have it
    bool over; // the job cannot continue: it was refused, or has failed everywhere
    neb_ns start;
    neb_ns stop_sent;    // 0: this command has not stopped it
    neb_ns stop_heard;   // last sign of a cluster after the stop
    neb_ns away_since;   // all clusters without a report are out of reach since then
    neb_ns next_ask;     // when to ask for the agent's status
    neb_ns odd_since;    // one cluster is done and another was stopped since then; 0: no
    uint64_t lines_lost; // of metrics.jsonl, which could not be written
    neb_ns reached[AGENT_CLUSTERS_MAX]; // last line of a cluster, or last time with its link up
    neb_ns waits_since;                 // some have reported and others have not; 0: no
    struct member_set told_missing;     // clusters reported to the user as out of reach
    struct member_set missing;          // clusters that are no longer waited for
    struct member_set away;             // clusters whose link is down, by the agent's last status
    neb_ns heard, next_follow; // last message about the job; when to ask the agent for it again
    bool detached;             // this command ends and the job continues
    bool silent, no_more;      // the agent does not answer, and the user knows; no report will come
    struct member_set gone;    // clusters that are no members any more, and send no report
    char ends[512];            // why the agent has ended the job; empty: it has not
    // OUT/.lock: one command per folder; the system releases it at the end of the process
    int lock_fd;
};

// pretrain_job.c
NEB_MUST_CHECK enum neb_status pretrain_load_job(struct run *r);
// Locks --out. A new run writes job.json. --resume must name the same job, except for what
// agent_job_differs allows, and takes its id.
NEB_MUST_CHECK enum neb_status pretrain_open_out(struct run *r);
// The agent has taken the job under this id, which depends on the job, the site and the submitter.
// Writes it into job.json.
NEB_MUST_CHECK enum neb_status pretrain_took(struct run *r, const char *hex);
// pretrain_mend.c: writes a missing or damaged job.json of a local run again at --resume.
NEB_MUST_CHECK enum neb_status pretrain_mend_job(const struct run *r);
NEB_MUST_CHECK enum neb_status pretrain_write_job(const char *path, const char *hex, json_t *spec);
// Undoes a new run that ended before its first step: the folder can take another run. Logs that
// explain the failure stay.
void pretrain_undo_out(struct run *r);

// pretrain_stop.c
bool pretrain_must_stop(const struct run *r);
NEB_MUST_CHECK enum neb_status pretrain_stop(struct run *r, const char *why); // once
// Agents of --local were asked to end like this process: no report will come.
void pretrain_all_end(struct run *r);
NEB_MUST_CHECK enum neb_status pretrain_say_stop(struct run *r); // again
void pretrain_on_status(struct run *r, const json_t *status);    // of the asked agent
// While a run stops. *enough: all clusters without a report are out of reach; continue without
// them. NEB_ERR_TIMEOUT: a cluster within reach is silent.
NEB_MUST_CHECK enum neb_status pretrain_stop_step(struct run *r, bool *enough);

// pretrain_wait.c
void pretrain_reached(struct run *r, int i, neb_ns now); // there is a sign of cluster i
// Sets *enough if the clusters without a report were out of reach for too long. They are r->missing
// then.
NEB_MUST_CHECK enum neb_status pretrain_wait_step(struct run *r, neb_ns now, bool *enough);

// pretrain_follow.c
NEB_MUST_CHECK enum neb_status pretrain_say_submit(struct run *r);
// The agent tells who is still a member.
void pretrain_on_members(struct run *r, const json_t *event);
// For every message of the agent. NEB_ERR_STATE (logged): a previous incarnation of the agent has
// ended the job, or it refuses, and no report will come.
NEB_MUST_CHECK enum neb_status pretrain_heard(struct run *r, const struct agent_ipc_msg *m);
void pretrain_ask_now(struct run *r); // at once: the agent was restarted
// Asks for the job again after some time without a message about it.
NEB_MUST_CHECK enum neb_status pretrain_stay_in_touch(struct run *r);

// pretrain_result.c: returns the exit status. The summary leaves out clusters without a report;
// then the run counts as stopped.
int pretrain_finish(struct run *r);
int pretrain_detached(const struct run *r); // the same, when the job continues without this command

#endif
