// SPDX-License-Identifier: Apache-2.0
// The attached trainer as a worker: copies its tensors in and out, saves its checkpoints, and does
// what is due between its steps.
#include "agent/base/log.h"
#include "agent/lib/state.h"

#include <string.h>

static enum neb_status copy_shards(struct nebula *n, bool write, const bool *wanted) {
    for (size_t i = 0; i < n->n_shards; i++) {
        const struct shard *s = &n->shards[i];
        const struct intra_tensor *t = n->tensors[s->tensor];
        float *here = intra_param(n->w.model, t) + (size_t)s->row0 * (size_t)t->cols;
        size_t count = (size_t)s->rows * (size_t)t->cols;
        if (wanted && !wanted[t->index])
            continue;
        NEB_TRY(write ? lib_copy_write(n->copy, s->data, here, count, s->dtype, s->place)
                      : lib_copy_read(n->copy, here, s->data, count, s->dtype, s->place));
    }
    return NEB_OK;
}

// Calls the hook once for each run of adjacent tensors.
static enum neb_status call_move(struct nebula *n, bool write, const bool *wanted) {
    for (int32_t i = 0, first; n->hooks.move && i < n->n_tensors; i++) {
        if (wanted && !wanted[n->tensors[i]->index])
            continue;
        for (first = i; i + 1 < n->n_tensors && (!wanted || wanted[n->tensors[i + 1]->index]);)
            i++;
        if (n->hooks.move(n->hooks.user, write, first, i + 1 - first) != 0)
            return neb_fail(NEB_ERR_IO, "the trainer's move hook failed at %s",
                            n->tensors[first]->name);
    }
    return NEB_OK;
}

static enum neb_status pull(struct agent_worker *w, const bool *wanted) {
    struct nebula *n = w->foreign;
    n->reads++;
    NEB_TRY(call_move(w->foreign, false, wanted));
    return copy_shards(w->foreign, false, wanted);
}

static enum neb_status push(struct agent_worker *w, const bool *wanted) {
    NEB_TRY(copy_shards(w->foreign, true, wanted));
    return call_move(w->foreign, true, wanted);
}

static enum neb_status save(struct agent_worker *w, struct intra_ckpt_writer *out) {
    uint64_t V = (uint64_t)w->trainer->c.model.vocab;
    NEB_TRY(pull(w, NULL));
    NEB_TRY(
        intra_ckpt_add(out, "attached.params", INTRA_F32, w->model->n_params, 1, w->model->params));
    NEB_TRY(intra_ckpt_add(out, "attached.inputs", INTRA_U64, V, 1, w->trainer->input_counts));
    return intra_ckpt_add(out, "attached.targets", INTRA_U64, V, 1, w->trainer->target_counts);
}

static enum neb_status restore(struct agent_worker *w, const struct intra_ckpt *c) {
    uint64_t V = (uint64_t)w->trainer->c.model.vocab;
    struct nebula *n = w->foreign;
    n->reads++;
    NEB_TRY(
        intra_ckpt_read(c, "attached.params", INTRA_F32, w->model->n_params, 1, w->model->params));
    NEB_TRY(intra_ckpt_read(c, "attached.inputs", INTRA_U64, V, 1, w->trainer->input_counts));
    return intra_ckpt_read(c, "attached.targets", INTRA_U64, V, 1, w->trainer->target_counts);
}

// The trainer moves its own data cursor: nebula_info tells it the step.
static enum neb_status skip(struct agent_worker *w, int64_t n) {
    neb_warn("%lld steps of this cluster are lost; the trainer continues from step %lld",
             (long long)n, (long long)(w->step + n));
    return NEB_OK;
}

enum neb_status lib_idle(struct agent_worker *w) {
    const struct nebula *n = w->foreign;
    return n->hooks.wait && n->hooks.wait(n->hooks.user) != 0
               ? neb_fail(NEB_ERR_INTERRUPTED, "the trainer's wait hook ended the wait")
               : NEB_OK;
}

const struct worker_ops lib_worker_ops = {
    .pull = pull, .push = push, .save = save, .restore = restore, .skip = skip, .idle = lib_idle};

enum neb_status lib_save_now(struct nebula *n) {
    NEB_TRY(worker_save(&n->w));
    if (n->hooks.checkpoint && n->hooks.checkpoint(n->hooks.user, n->w.dir, n->w.step) != 0)
        return neb_fail(NEB_ERR_IO, "the trainer's checkpoint hook failed at step %lld",
                        (long long)n->w.step);
    return NEB_OK;
}

// Attaches again to an agent that was restarted.
static enum neb_status attach_again(struct nebula *n) {
    struct agent_worker *w = &n->w;
    w->orphan = false;
    return worker_hello(w, n->job);
}

static enum neb_status on_return(struct nebula *n) {
    struct agent_worker *w = &n->w;
    w->returned = false;
    neb_info("attached again to the agent");
    if (!w->federated)
        return NEB_OK;
    NEB_TRY(worker_send_shape(w));
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        NEB_TRY(w->frags[f].in_flight && !w->frags[f].arrived ? worker_resubmit(w, f)
                                                              : worker_request_commit(w, f));
    return NEB_OK;
}

// Queries a silent agent from time to time. While it does not answer, no commit is expected, so
// that training continues.
static enum neb_status tend_agent(struct nebula *n) {
    struct agent_worker *w = &n->w;
    neb_ns now = neb_now();
    if (w->returned)
        NEB_TRY(on_return(n));
    if (w->orphan || now - w->asked > n->ask_after) {
        w->asked = now;
        w->unanswered = w->unanswered ? w->unanswered : now;
        enum neb_status st =
            w->orphan ? attach_again(n)
                      : agent_ipc_send(w->ipc, NULL, json_pack("{s:s}", "op", "hello"), NULL, 0);
        if (st != NEB_OK && st != NEB_ERR_AGAIN)
            return st;
    }
    // counted from the query: a trainer that was busy has sent none
    if (w->expected && w->unanswered && now - w->unanswered > n->silent_after) {
        neb_warn("the agent at %s has not answered for %d s; training continues without exchanges "
                 "until it does",
                 n->socket, (int)((now - w->unanswered) / NEB_S));
        w->expected = false;
        w->alive = 0;
    }
    return NEB_OK;
}

enum neb_status lib_settle(struct nebula *n) {
    struct agent_worker *w = &n->w;
    for (bool ready = false;;) {
        NEB_TRY(worker_drain(w));
        NEB_TRY(tend_agent(n));
        NEB_TRY(worker_exchange(w, &ready));
        if (w->reattach)
            return neb_fail(
                NEB_ERR_STATE,
                "the state of the other clusters replaces that of this cluster: close the handle, "
                "attach again, and continue from the step that nebula_begin gives");
        if (worker_finished(w)) {
            n->state = NEBULA_DONE;
            return NEB_OK;
        }
        if (w->stop) {
            n->state = NEBULA_STOP;
            return NEB_OK;
        }
        if (ready && w->step < w->job.steps)
            return NEB_OK;
        NEB_TRY(worker_wait(w));
    }
}

enum neb_status lib_begin(struct nebula *n) {
    struct agent_worker *w = &n->w;
    enum neb_status st = worker_restore(w);
    memset(n->digests, 0, sizeof n->digests);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)w->step);
    else if (st != NEB_ERR_NOT_FOUND)
        return st;
    w->restored = st == NEB_OK;
    worker_set_lost(w, w->lost && !w->restored);
    NEB_TRY(push(w, NULL));
    // with the hook, the caller waits for the disk: it saves its own state after the checkpoint
    if (!n->hooks.checkpoint)
        NEB_TRY(worker_save_start(w));
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++)
        NEB_TRY(w->frags[f].in_flight ? worker_resubmit(w, f) : worker_request_commit(w, f));
    if (w->federated)
        NEB_TRY(worker_wait_for_peers(w));
    w->asked = neb_now();
    return lib_settle(n);
}
