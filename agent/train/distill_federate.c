// SPDX-License-Identifier: Apache-2.0
// Students that are one model: they average by rounds as replicas do (worker_link.c and what it
// calls), between their own steps, while labels come over streams. The teacher's agent votes in
// these rounds like a witness; it holds no updates.
#include "agent/base/log.h"
#include "agent/train/distill_run.h"
#include "intra/train/trainer.h"

#include <string.h>

static enum neb_status save(struct agent_worker *w, struct intra_ckpt_writer *out) {
    return distill_write(w->distill, out);
}

static enum neb_status restore(struct agent_worker *w, const struct intra_ckpt *c) {
    return distill_read(w->distill, c);
}

static enum neb_status pull(struct agent_worker *w, const bool *wanted) {
    return intra_trainer_pull(w->trainer, wanted);
}
static enum neb_status push(struct agent_worker *w, const bool *wanted) {
    return intra_trainer_push(w->trainer, wanted);
}

// Labels of skipped steps come late, and are dropped (distill_student.c).
static enum neb_status skip(struct agent_worker *w, int64_t n) {
    struct agent_distill_state *x = agent_distill_state(w->distill->side);
    x->step += n;
    intra_optim_skip(agent_distill_trainer(w->distill->side)->optim, n);
    return NEB_OK;
}

enum neb_status distill_federate(struct distill_run *r) {
    struct agent_worker *w = r->w;
    w->distill = r;
    w->federated = true;
    w->trainer = agent_distill_trainer(r->side);
    w->model = w->trainer->model;
    w->job.model = w->model->c;
    // Without a checkpoint the student may have learned before its disk was lost, and the teacher
    // may have forgotten those labels since.
    r->at.labels[0] = INTER_STREAM_ANYWHERE;
    w->ops = (struct worker_ops){.pull = w->device ? pull : NULL,
                                 .push = w->device ? push : NULL,
                                 .save = save,
                                 .restore = restore,
                                 .skip = skip};
    NEB_TRY(worker_sync_create(w));
    NEB_TRY(worker_device_place(w));
    return worker_send_shape(w);
}

enum neb_status distill_federate_restore(struct distill_run *r) {
    struct agent_worker *w = r->w;
    enum neb_status st = worker_restore(w);
    w->restored = st == NEB_OK;
    worker_set_lost(w, w->lost && !w->restored);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)w->step);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status distill_federate_begin(struct distill_run *r) {
    struct agent_worker *w = r->w;
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        NEB_TRY(w->frags[f].in_flight ? worker_resubmit(w, f) : worker_request_commit(w, f));
    return worker_wait_for_peers(w);
}

void distill_federate_stepped(struct distill_run *r, double seconds) {
    worker_step_took(r->w, seconds);
}
