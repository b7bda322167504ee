// SPDX-License-Identifier: Apache-2.0
#include "agent/train/worker.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/proc/harden.h"
#include "agent/proc/launch.h"
#include "agent/train/side.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

// ---- what trainers of this program tell ---------------------------------------------------------

struct exchange_figures worker_figures(const struct intra_step_stats *s) {
    return (struct exchange_figures){s->loss, (double)s->update.lr, s->update.grad_norm};
}

enum neb_status worker_results(const struct agent_worker *w, const char *device, double eval_loss,
                               bool done, json_t **out) {
    const struct intra_model *m = w->model;
    struct exchange_results r = {.device = device,
                                 .eval_loss = eval_loss,
                                 .done = done,
                                 .params = m->n_params,
                                 .trainable = m->n_trainable};
    if (!w->x.federated)
        r.digest = kern_digest_part(m->params, m->params, 0, m->n_params);
    return exchange_results(&w->x, &r, out);
}

static enum neb_status write_model(void *user, struct intra_ckpt_writer *out) {
    return intra_model_save(user, out);
}

enum neb_status worker_write_model(struct agent_worker *w, const struct intra_model *m,
                                   const char *name) {
    return exchange_write_model(&w->x, name, write_model, (void *)m);
}

// ---- the loop of replicas -----------------------------------------------------------------------

static enum neb_status train(struct agent_worker *w) {
    while (!exchange_finished(&w->x) && !w->x.stop) {
        bool ready;
        NEB_TRY(exchange_drain(&w->x));
        NEB_TRY(exchange_saved(&w->x));
        NEB_TRY(exchange_step(&w->x, &ready));
        if (w->x.stop || exchange_finished(&w->x))
            break;
        if (!ready || w->x.step >= w->x.job.steps) {
            NEB_TRY(exchange_wait(&w->x));
            continue;
        }
        NEB_TRY(exchange_leaves_out(&w->x) ? worker_builtin_leave_out(w) : worker_builtin_step(w));
        if (w->x.shards && !w->x.federated)
            NEB_TRY(exchange_alone(&w->x));
        NEB_TRY(worker_eval_when_due(w));
        if (w->x.job.checkpoint_every && w->x.step % w->x.job.checkpoint_every == 0)
            NEB_TRY(exchange_save(&w->x));
    }
    return NEB_OK;
}

// ---- the end ------------------------------------------------------------------------------------

static enum neb_status write_trained(void *user, struct intra_ckpt_writer *out) {
    return intra_group_save_model(user, out);
}

static enum neb_status report(struct agent_worker *w) {
    double loss = NAN;
    char device[96];
    json_t *by_source = json_object();
    bool done = exchange_finished(&w->x);
    enum neb_status st = done ? worker_evaluate(w, &loss, by_source) : NEB_OK;
    if (done && st == NEB_OK)
        exchange_send_eval(&w->x, w->x.step, loss, by_source);
    if (st == NEB_OK && !w->x.federated) // the digest covers the parameters themselves
        st = intra_group_pull(w->group, NULL);
    if (st != NEB_OK) {
        json_decref(by_source);
        return st;
    }
    worker_device_name(w, device, sizeof device);
    json_t *more = json_pack("{s:o}", "eval_by_source", by_source), *results;
    if ((st = worker_results(w, device, loss, done, &results)) != NEB_OK) {
        json_decref(more);
        return st;
    }
    return exchange_report(&w->x, results, more);
}

// The other ranks wait for this one, so it reports that it is at work.
static void at_work(void *user) {
    struct intra_comm *world = user;
    if (world && world->ops->alive)
        world->ops->alive(world);
}

static enum neb_status run(struct agent_worker *w, const char *socket_path, const char *job) {
    char folder[NEB_PATH_MAX];
    agent_harden_keys(w->world && w->world->size > 1); // exec has undone what the agent had set
    const struct agent_credential_wait wait = {.limit = 10 * 60 * NEB_S, at_work, w->world};
    NEB_TRY(agent_credential_folder(socket_path, job, folder));
    NEB_TRY(agent_credential_read(STDIN_FILENO, folder, &wait, &w->x.link.credential));
    NEB_TRY(exchange_attach(&w->x, socket_path, job));
    exchange_report_moves(&w->x);
    neb_log_set_name(w->x.job.clusters[w->x.cluster].name);
    if (w->x.job.mode != AGENT_MODE_REPLICAS)
        return agent_side_run(w);
    w->x.federated = w->x.job.sync.scheme == AGENT_SCHEME_FEDERATED && w->x.job.n_clusters > 1;
    NEB_TRY(worker_builtin_create(w));
    if (w->x.federated || agent_job_steps_alone(&w->x.job)) {
        NEB_TRY(exchange_join(&w->x));
        worker_tensors_add_shards(&w->tensors, w->x.shards);
    }
    NEB_TRY(exchange_save_start(&w->x));
    NEB_TRY(exchange_resume(&w->x));
    NEB_TRY(exchange_announce(&w->x));
    w->x.said_step = w->x.step;
    NEB_TRY(train(w));
    if (exchange_finished(&w->x) && w->x.step < w->x.job.steps)
        neb_warn("the other clusters have finished the job without this one, which made %lld of "
                 "its %lld steps",
                 (long long)w->x.step, (long long)w->x.job.steps);
    // also at the end, so that a run that dies before its report can continue
    NEB_TRY(exchange_save(&w->x));
    NEB_TRY(exchange_save_wait(&w->x));
    if (exchange_finished(&w->x))
        NEB_TRY(exchange_write_model(&w->x, "model.ckpt", write_trained, w->group));
    return report(w);
}

// True if it failed because another rank did. Then the other rank's failure counts: it is treated
// as a crash, after which all ranks restart.
static bool for_others(const struct agent_worker *w, enum neb_status st) {
    struct intra_comm *world = w->world;
    return (st == NEB_ERR_IO || st == NEB_ERR_TIMEOUT || st == NEB_ERR_STATE) && world &&
           !w->device_gone && // then the failed device is known
           (w->lost || intra_group_lost(w->group) || (world->ops->lost && world->ops->lost(world)));
}

// True if the device failed after at least one good step, in this process or an earlier one. A new
// process opens it again; if that fails too, the metrics have this error.
static bool device_lost(struct agent_worker *w, enum neb_status st) {
    char text[1024];
    bool here = st == NEB_ERR_IO && w->device && w->x.stepped &&
                w->device->ops->finish(w->device) != NEB_OK;
    if (!here && !w->device_gone)
        return false;
    neb_last_error(text, sizeof text);
    exchange_metrics(&w->x, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
    return true;
}

enum neb_status agent_worker_run(const char *socket_path, const char *job, struct intra_comm *world,
                                 int threads) {
    struct agent_worker *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting a worker");
    exchange_init(&w->x);
    w->world = w->x.link.world = world;
    w->x.isa = kern_cpu_isa();
    w->threads = threads;
    agent_launch_signals(world != NULL);
    enum neb_status st = run(w, socket_path, job);
    // An error, not a crash: the same would happen after a restart, so the user is told at once.
    if (st != NEB_OK && st != NEB_ERR_AGAIN && w->x.link.ipc && !for_others(w, st) &&
        !device_lost(w, st)) {
        char text[1024];
        neb_last_error(text, sizeof text);
        if (exchange_report(&w->x,
                            json_pack("{s:s}", "error", text[0] ? text : neb_status_name(st)),
                            NULL) != NEB_OK)
            neb_warn("cannot report this error to the agent");
    }
    if (w->x.saves.saver) // completes a checkpoint in progress
        intra_ckpt_async_wait(w->x.saves.saver);
    exchange_report_moves(NULL);
    exchange_destroy(&w->x);
    worker_builtin_destroy(w);
    kern_destroy(&w->device);
    intra_corpus_close(&w->corpus);
    kern_destroy(&w->K);
    exchange_leave(&w->x);
    (void)neb_fault("worker.end"); // an end that hangs
    free(w);
    return st;
}
