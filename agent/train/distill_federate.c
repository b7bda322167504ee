// SPDX-License-Identifier: Apache-2.0
// Students that train one model together: they average it in rounds, as replicas do
// (agent/exchange), between their own steps, while labels come over streams. The teacher's agent
// votes in these rounds like a witness; it holds no updates.
#include "agent/train/distill_run.h"

static struct distill_run *owner(void *user) { return ((struct worker_tensors *)user)->owner; }

static enum neb_status save(void *user, struct intra_ckpt_writer *out) {
    return distill_write(owner(user), out);
}

static enum neb_status restore(void *user, const struct intra_ckpt *c) {
    return distill_read(owner(user), c);
}

// Labels of skipped steps come late, and are dropped (distill_student.c).
static enum neb_status skip(void *user, int64_t n) {
    struct distill_run *r = owner(user);
    agent_distill_state(r->side)->step += n;
    intra_optim_skip(agent_distill_trainer(r->side)->optim, n);
    return NEB_OK;
}

static enum neb_status durable(void *user) { return worker_side_durable(&owner(user)->x); }

static const struct agent_trainer_ops ops = {WORKER_TENSORS_OPS, .save = save, .restore = restore,
                                             .skip = skip, .durable = durable};

enum neb_status distill_federate_trainer(struct distill_run *r) {
    struct agent_worker *w = r->w;
    NEB_TRY(worker_tensors_create(NULL, agent_distill_trainer(r->side), &w->tensors));
    w->tensors.owner = r;
    w->model = agent_distill_model(r->side);
    w->x.trainer = worker_tensors_trainer(&w->tensors, &ops);
    return NEB_OK;
}

enum neb_status distill_federate(struct distill_run *r) {
    // Without a checkpoint the student may have learned before its disk was lost, and the teacher
    // may have forgotten those labels since.
    r->at.labels[0] = INTER_STREAM_ANYWHERE;
    r->w->x.federated = true;
    NEB_TRY(distill_federate_trainer(r));
    r->w->x.job.model = r->w->model->c;
    return exchange_join(&r->w->x);
}
