// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange/worker.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/exchange/follow.h"
#include "agent/job/init_digest.h"
#include "agent/job/model.h"
#include "agent/proc/harden.h"
#include "agent/proc/launch.h"
#include "agent/train/distill.h"
#include "agent/train/rtd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the built-in trainer, as the exchange calls it ---------------------------------------------

static enum neb_status pull(struct agent_worker *w, const bool *wanted) {
    return intra_group_pull(w->group, wanted);
}

static enum neb_status push(struct agent_worker *w, const bool *wanted) {
    return intra_group_push(w->group, wanted);
}

static enum neb_status save(struct agent_worker *w, struct intra_ckpt_writer *out) {
    char name[64];
    NEB_TRY(worker_text_save(w, out));
    for (int i = 0; i < w->n_samplers; i++) {
        uint64_t cursor[INTRA_CURSOR_WORDS];
        intra_sampler_save(w->samplers[i], cursor);
        snprintf(name, sizeof name, "data.cursor.%d", i);
        NEB_TRY(intra_ckpt_add(out, name, INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    }
    return intra_group_save(w->group, out);
}

static enum neb_status restore(struct agent_worker *w, const struct intra_ckpt *c) {
    char name[64];
    NEB_TRY(worker_text_compare(w, c));
    for (int i = 0; i < w->n_samplers; i++) {
        uint64_t cursor[INTRA_CURSOR_WORDS];
        snprintf(name, sizeof name, "data.cursor.%d", i);
        NEB_TRY(intra_ckpt_read(c, name, INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
        intra_sampler_restore(w->samplers[i], cursor);
    }
    return intra_group_restore(w->group, c);
}

// Windows are drawn one by one, so a step has the same windows however it is cut into
// micro-batches.
static void cut_steps(struct agent_job *j, const struct agent_cluster *c) {
    if (c->batch) {
        j->accumulate = (int32_t)((int64_t)j->batch * j->accumulate / c->batch);
        j->batch = c->batch;
    }
    if (c->recompute)
        j->recompute = c->recompute == AGENT_RECOMPUTE_ON;
    if (c->batch || c->recompute)
        neb_info("%s: a step has %d micro-batches of %d sequences%s", c->name, j->accumulate,
                 j->batch, j->recompute ? ", recomputing" : "");
}

static enum neb_status set_up_data(struct agent_worker *w) {
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    cut_steps(&w->job, c);
    NEB_TRY(intra_corpus_open(agent_job_corpus(&w->job, w->cluster), false, &w->corpus));
    NEB_TRY(agent_job_vocabulary(&w->job, w->cluster, w->corpus));
    bool all = w->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    int n = all ? agent_job_training(&w->job) : 1; // witnesses are last and draw nothing
    for (; w->n_samplers < n; w->n_samplers++)
        NEB_TRY(agent_job_sampler(&w->job, all ? w->n_samplers : w->cluster, w->corpus,
                                  &w->samplers[w->n_samplers]));
    size_t tokens = (size_t)w->job.batch * (size_t)w->job.seq_len;
    w->tokens = calloc(tokens, sizeof *w->tokens);
    w->targets = calloc(tokens, sizeof *w->targets);
    return w->tokens && w->targets
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for a batch of %zu tokens", tokens);
}

static enum neb_status set_up_trainer(struct agent_worker *w) {
    struct agent_job *j = &w->job;
    struct intra_ckpt *init = NULL;
    int32_t vocab = intra_corpus_vocab(w->corpus);
    if (j->model.vocab && j->model.vocab < vocab)
        return neb_fail(NEB_ERR_INVALID,
                        "model.vocab %d is smaller than the corpus's vocabulary of %d",
                        j->model.vocab, vocab);
    j->model.vocab = j->model.vocab ? j->model.vocab : vocab;
    j->model.n_kv_heads = j->model.n_kv_heads ? j->model.n_kv_heads : j->model.n_heads;
    j->model.head_dim = j->model.head_dim ? j->model.head_dim : j->model.d_model / j->model.n_heads;
    j->model.max_seq = j->seq_len;
    j->optim.schedule.steps = j->steps;
    struct intra_trainer_config t = {.model = j->model,
                                     .trainable = j->trainable,
                                     .optim = j->optim,
                                     .batch = j->batch,
                                     .seq_len = j->seq_len,
                                     .accumulate = j->accumulate * w->n_samplers,
                                     .recompute = j->recompute,
                                     .seed = (uint64_t)j->seed};
    const struct agent_cluster *c = &j->clusters[w->cluster];
    if (w->world && w->world->size != agent_cluster_ranks(c))
        return neb_fail(NEB_ERR_STATE, "cluster %s has a mesh of %d ranks, but %d were started",
                        c->name, agent_cluster_ranks(c), w->world->size);
    NEB_TRY(kern_cpu_create(w->world ? w->threads : c->threads, &w->K));
    NEB_TRY(worker_device_open(w));
    if (w->device)
        w->ops.pull = pull, w->ops.push = push;
    t.device = w->device;
    t.device_type = w->device_type;
    _Static_assert((int)AGENT_GRAPHS_ON == (int)INTRA_GRAPHS_ON &&
                       (int)AGENT_GRAPHS_OFF == (int)INTRA_GRAPHS_OFF,
                   "both enums have the same order");
    t.device_graphs = (enum intra_graphs)c->cuda_graphs;
    t.device_optional = worker_device_optional(w);
    NEB_TRY(worker_device_joined(w, intra_group_create(&t, &c->mesh, w->world, w->K, &w->group)));
    worker_device_settle(w);
    w->trainer = intra_group_trainer(w->group);
    w->model = intra_group_model(w->group);
    if (w->world && w->vault)
        NEB_TRY(agent_follow_seal(w->group, w->vault)); // each rank seals what it writes
    if (w->world)
        neb_info("%d ranks: dp %d, pp %d, tp %d, %d threads each", w->world->size, c->mesh.dp,
                 c->mesh.pp, c->mesh.tp, kern_pool_threads(w->K->pool));
    if (!w->world || j->init_from[0]) // parameters that init_from lacks keep their initial values
        NEB_TRY(intra_group_pull(w->group, NULL));
    if (!j->init_from[0])
        return NEB_OK;
    NEB_TRY(intra_ckpt_open_in(worker_vault(w), j->init_from, true, &init));
    enum neb_status st = agent_job_init_same(j, w->cluster, init);
    if (st == NEB_OK)
        st = intra_model_load_params(init, w->model);
    if (st == NEB_OK)
        st = intra_group_push(w->group, NULL);
    intra_ckpt_close(&init);
    intra_group_release(w->group); // no rank holds the whole model while it trains
    return st;
}

// ---- training -----------------------------------------------------------------------------------

static void draw(struct agent_worker *w, struct intra_sampler *s) {
    for (int32_t b = 0; b < w->job.batch; b++)
        intra_sampler_next(s, w->tokens + (size_t)b * w->job.seq_len,
                           w->targets + (size_t)b * w->job.seq_len);
    intra_sampler_prefetch(s, w->job.batch); // read while this batch trains
}

// Moves on as if n steps were drawn, but reads nothing: a cluster that lost its disk may skip a
// million steps.
static enum neb_status skip(struct agent_worker *w, int64_t n) {
    for (int i = 0; i < w->n_samplers; i++)
        intra_sampler_skip(w->samplers[i],
                           (uint64_t)n * (uint64_t)w->job.accumulate * (uint64_t)w->job.batch);
    return intra_group_skip(w->group, n);
}

// Skips a step because the other clusters are faster. It skips the step's data too, so that cursors
// and schedules stay the same on all clusters.
static enum neb_status leave_out_step(struct agent_worker *w) {
    NEB_TRY(skip(w, 1));
    w->step++;
    w->steps_left_out++;
    return NEB_OK;
}

static enum neb_status train_step(struct agent_worker *w) {
    struct intra_step_stats s;
    neb_ns start = neb_now();
    worker_heartbeat(w, true, 1);
    for (int32_t a = 0; a < w->job.accumulate; a++)
        // several samplers: the synchronous reference averages over all clusters
        for (int i = 0; i < w->n_samplers; i++) {
            draw(w, w->samplers[i]);
            intra_group_micro(w->group, w->tokens, w->targets);
        }
    NEB_TRY(intra_group_update(w->group, &s));
    (void)neb_fault("worker.step"); // a step that takes longer
    double seconds = neb_seconds(neb_now() - start);
    w->train_s += seconds;
    worker_step_took(w, seconds);
    w->all_tokens += (uint64_t)s.tokens;
    w->step++;
    intra_loss_add(&w->loss_first, &w->loss_last, s.loss);
    worker_check_step(w, &s);
    if (w->step / w->job.log_every != w->said_step / w->job.log_every || w->step == w->job.steps ||
        w->step == 1) { // skipped steps may lie between
        worker_send_step(w, &s, (double)s.tokens / seconds);
        w->said_step = w->step;
    }
    return NEB_OK;
}

static enum neb_status train(struct agent_worker *w) {
    while (!worker_finished(w) && !w->stop) {
        bool ready;
        NEB_TRY(worker_drain(w));
        NEB_TRY(worker_saved(w));
        NEB_TRY(worker_exchange(w, &ready));
        if (w->stop || worker_finished(w))
            break;
        if (!ready || w->step >= w->job.steps) {
            NEB_TRY(worker_wait(w));
            continue;
        }
        NEB_TRY(worker_leaves_out(w) ? leave_out_step(w) : train_step(w));
        NEB_TRY(worker_eval_when_due(w));
        if (w->job.checkpoint_every && w->step % w->job.checkpoint_every == 0)
            NEB_TRY(worker_save(w));
    }
    return NEB_OK;
}

// ---- the end ------------------------------------------------------------------------------------

static enum neb_status report(struct agent_worker *w) {
    double loss = NAN;
    char device[96];
    json_t *by_source = json_object();
    bool done = worker_finished(w);
    enum neb_status st = done ? worker_evaluate(w, &loss, by_source) : NEB_OK;
    if (done && st == NEB_OK)
        worker_send_eval(w, loss, by_source);
    if (st == NEB_OK && !w->federated) // the digest covers the parameters themselves
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
    return worker_report(w, results, more);
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
    NEB_TRY(agent_credential_read(STDIN_FILENO, folder, &wait, &w->credential));
    NEB_TRY(worker_attach(w, socket_path, job));
    worker_report_moves(w);
    neb_log_set_name(w->job.clusters[w->cluster].name);
    if (w->job.mode == AGENT_MODE_RTD)
        return agent_rtd_run(w);
    if (w->job.mode == AGENT_MODE_DISTILL)
        return agent_distill_run(w);
    w->federated = w->job.sync.scheme == AGENT_SCHEME_FEDERATED && w->job.n_clusters > 1;
    NEB_TRY(set_up_data(w));
    NEB_TRY(set_up_trainer(w));
    if (w->federated) {
        NEB_TRY(worker_sync_create(w));
        NEB_TRY(worker_device_place(w));
        NEB_TRY(worker_send_shape(w));
    }
    NEB_TRY(worker_save_start(w));
    enum neb_status st = worker_restore(w);
    w->restored = st == NEB_OK;
    worker_set_lost(w, w->lost && !w->restored);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)w->step);
    else if (st != NEB_ERR_NOT_FOUND)
        return st;
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++)
        NEB_TRY(w->frags[f].in_flight ? worker_resubmit(w, f) : worker_request_commit(w, f));
    if (w->federated)
        NEB_TRY(worker_wait_for_peers(w));
    w->said_step = w->step;
    NEB_TRY(train(w));
    if (worker_finished(w) && w->step < w->job.steps)
        neb_warn("the other clusters have finished the job without this one, which made %lld of "
                 "its %lld steps",
                 (long long)w->step, (long long)w->job.steps);
    // also at the end, so that a run that dies before its report can continue
    NEB_TRY(worker_save(w));
    NEB_TRY(worker_save_wait(w));
    if (worker_finished(w))
        NEB_TRY(worker_save_model(w));
    return report(w);
}

// True if it failed because another rank did. Then the other rank's failure counts: it is treated
// as a crash, after which all ranks restart.
static bool for_others(const struct agent_worker *w, enum neb_status st) {
    struct intra_comm *world = w->world;
    return (st == NEB_ERR_IO || st == NEB_ERR_TIMEOUT || st == NEB_ERR_STATE) && world &&
           !w->device_gone && // then the failed device is known
           (intra_group_lost(w->group) || (world->ops->lost && world->ops->lost(world)));
}

// True if the device failed after at least one good step, in this process or an earlier one. A new
// process opens it again; if that fails too, the metrics have this error.
static bool device_lost(struct agent_worker *w, enum neb_status st) {
    char text[1024];
    bool here =
        st == NEB_ERR_IO && w->device && w->stepped && w->device->ops->finish(w->device) != NEB_OK;
    if (!here && !w->device_gone)
        return false;
    neb_last_error(text, sizeof text);
    worker_metrics(w, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
    return true;
}

enum neb_status agent_worker_run(const char *socket_path, const char *job, struct intra_comm *world,
                                 int threads) {
    struct agent_worker *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting a worker");
    w->saved_step = -1;
    w->loss_first = w->loss_last = NAN; // no step yet
    w->world = world;
    w->mesh = world ? &worker_mesh : NULL;
    w->isa = kern_cpu_isa();
    w->ops = (struct worker_ops){.pull = world ? pull : NULL,
                                 .push = world ? push : NULL,
                                 .save = save,
                                 .restore = restore,
                                 .skip = skip};
    w->threads = threads;
    agent_launch_signals(world != NULL);
    enum neb_status st = run(w, socket_path, job);
    // An error, not a crash: the same would happen after a restart, so the user is told at once.
    if (st != NEB_OK && st != NEB_ERR_AGAIN && w->ipc && !for_others(w, st) &&
        !device_lost(w, st)) {
        char text[1024];
        neb_last_error(text, sizeof text);
        if (worker_report(w, json_pack("{s:s}", "error", text[0] ? text : neb_status_name(st)),
                          NULL) != NEB_OK)
            neb_warn("cannot report this error to the agent");
    }
    if (w->saver) // completes a checkpoint in progress
        intra_ckpt_async_wait(w->saver);
    worker_report_moves(NULL);
    intra_ckpt_async_destroy(&w->saver);
    worker_sync_destroy(w);
    intra_group_destroy(&w->group);
    kern_destroy(&w->device);
    for (int i = 0; i < w->n_samplers; i++)
        intra_sampler_destroy(&w->samplers[i]);
    intra_corpus_close(&w->corpus);
    kern_destroy(&w->K);
    agent_ipc_destroy(&w->ipc);
    if (w->zctx)
        zmq_ctx_term(w->zctx);     // waits until the report has left
    (void)neb_fault("worker.end"); // an end that hangs
    if (w->log_file)
        fclose(w->log_file);
    sec_vault_destroy(&w->vault);
    agent_credential_destroy(&w->credential);
    free(w->log);
    free(w->tokens);
    free(w->targets);
    free(w);
    return st;
}
