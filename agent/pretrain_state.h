// What cmd_pretrain.c (options, submitting, following), pretrain_job.c and pretrain_result.c share. Nobody else includes this.
#ifndef AGENT_PRETRAIN_STATE_H
#define AGENT_PRETRAIN_STATE_H
#include "agent/config.h"
#include "agent/ipc.h"
#include "agent/local.h"
#include "agent/progress.h"
#include "agent/tensorboard.h"

enum { SETS_MAX = 64 };

struct options { // strings are argv's
    const char *job, *out, *wan, *home, *steps, *seed;
    const char *sets[SETS_MAX];
    int n_sets, local; // local: clusters; 0: agents run elsewhere
    const char *seal_key;
    bool json, resume, tensorboard;
};

struct run {
    struct options o;
    struct agent_job job;
    json_t *spec, *quality; // the job; what its mode adds to the summary
    char id[2 * AGENT_JOB_ID_BYTES + 1];
    char out[NEB_PATH_MAX], socket[NEB_PATH_MAX];
    char model_dir[NEB_PATH_MAX]; // the job's folder at the agent that is asked
    struct agent_local local;
    void *zctx;
    struct agent_ipc *ipc;
    struct agent_progress *progress;
    struct agent_metrics *metrics;
    struct agent_tensorboard *tensorboard; // NULL: not asked for
    json_t *reports[AGENT_CLUSTERS_MAX];   // (expected) NULL: not here yet
    int expected;                          // clusters that train, which come first
    neb_ns start;
    bool stop_sent;
    int lock_fd; // OUT/.lock: one command a folder; released by the system however this process ends
};

// pretrain_job.c
NEB_MUST_CHECK enum neb_status pretrain_load_job(struct run *r);
// Locks --out. A new run writes job.json, id and job; --resume must mean the same job, and takes its id.
NEB_MUST_CHECK enum neb_status pretrain_open_out(struct run *r);

// pretrain_result.c: the exit status.
int pretrain_finish(struct run *r);

#endif
