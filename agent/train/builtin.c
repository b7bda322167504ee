// SPDX-License-Identifier: Apache-2.0
// The built-in trainer of replicas: its data, its model on one rank or on a mesh, and its steps.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/job/init_digest.h"
#include "agent/job/model.h"
#include "agent/train/follow.h"
#include "agent/train/worker.h"

#include <stdlib.h>

// ---- as the exchange calls it -------------------------------------------------------------------

static struct agent_worker *owner(void *user) { return ((struct worker_tensors *)user)->owner; }

static enum neb_status save(void *user, struct intra_ckpt_writer *out) {
    struct agent_worker *w = owner(user);
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

static enum neb_status restore(void *user, const struct intra_ckpt *c) {
    struct agent_worker *w = owner(user);
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

// Moves on as if n steps were drawn, but reads nothing: a cluster that lost its disk may skip a
// million steps.
static enum neb_status skip(void *user, int64_t n) {
    struct agent_worker *w = owner(user);
    for (int i = 0; i < w->n_samplers; i++)
        intra_sampler_skip(w->samplers[i],
                           (uint64_t)n * (uint64_t)w->x.job.accumulate * (uint64_t)w->x.job.batch);
    return intra_group_skip(w->group, n);
}

static const struct agent_trainer_ops ops = {WORKER_TENSORS_OPS, .save = save, .restore = restore,
                                             .skip = skip};

// ---- set-up -------------------------------------------------------------------------------------

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
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    cut_steps(&w->x.job, c);
    NEB_TRY(intra_corpus_open(agent_job_corpus(&w->x.job, w->x.cluster), false, &w->corpus));
    NEB_TRY(agent_job_vocabulary(&w->x.job, w->x.cluster, w->corpus));
    bool all = w->x.job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    int n = all ? agent_job_training(&w->x.job) : 1; // witnesses are last and draw nothing
    for (; w->n_samplers < n; w->n_samplers++)
        NEB_TRY(agent_job_sampler(&w->x.job, all ? w->n_samplers : w->x.cluster, w->corpus,
                                  &w->samplers[w->n_samplers]));
    size_t tokens = (size_t)w->x.job.batch * (size_t)w->x.job.seq_len;
    w->tokens = calloc(tokens, sizeof *w->tokens);
    w->targets = calloc(tokens, sizeof *w->targets);
    return w->tokens && w->targets
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for a batch of %zu tokens", tokens);
}

static enum neb_status set_up_trainer(struct agent_worker *w) {
    struct agent_job *j = &w->x.job;
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
    const struct agent_cluster *c = &j->clusters[w->x.cluster];
    if (w->world && w->world->size != agent_cluster_ranks(c))
        return neb_fail(NEB_ERR_STATE, "cluster %s has a mesh of %d ranks, but %d were started",
                        c->name, agent_cluster_ranks(c), w->world->size);
    NEB_TRY(kern_cpu_create(w->world ? w->threads : c->threads, &w->K));
    NEB_TRY(worker_device_open(w));
    t.device = w->device;
    t.device_type = w->device_type;
    _Static_assert((int)AGENT_GRAPHS_ON == (int)INTRA_GRAPHS_ON &&
                       (int)AGENT_GRAPHS_OFF == (int)INTRA_GRAPHS_OFF,
                   "both enums have the same order");
    t.device_graphs = (enum intra_graphs)c->cuda_graphs;
    t.device_optional = worker_device_optional(w);
    NEB_TRY(worker_device_joined(w, intra_group_create(&t, &c->mesh, w->world, w->K, &w->group)));
    worker_device_settle(w, w->group);
    w->model = intra_group_model(w->group);
    if (w->world && w->x.vault)
        NEB_TRY(agent_follow_seal(w->group, w->x.vault)); // each rank seals what it writes
    if (w->world)
        neb_info("%d ranks: dp %d, pp %d, tp %d, %d threads each", w->world->size, c->mesh.dp,
                 c->mesh.pp, c->mesh.tp, kern_pool_threads(w->K->pool));
    if (!w->world || j->init_from[0]) // parameters that init_from lacks keep their initial values
        NEB_TRY(intra_group_pull(w->group, NULL));
    if (!j->init_from[0])
        return NEB_OK;
    NEB_TRY(intra_ckpt_open_in(exchange_vault(&w->x), j->init_from, true, &init));
    enum neb_status st = agent_job_init_same(j, w->x.cluster, init);
    if (st == NEB_OK)
        st = intra_model_load_params(init, w->model);
    if (st == NEB_OK)
        st = intra_group_push(w->group, NULL);
    intra_ckpt_close(&init);
    intra_group_release(w->group); // no rank holds the whole model while it trains
    return st;
}

enum neb_status worker_builtin_create(struct agent_worker *w) {
    NEB_TRY(set_up_data(w));
    NEB_TRY(set_up_trainer(w));
    NEB_TRY(worker_tensors_create(w->group, intra_group_trainer(w->group), &w->tensors));
    w->tensors.owner = w;
    w->x.trainer = worker_tensors_trainer(&w->tensors, &ops);
    return NEB_OK;
}

void worker_builtin_destroy(struct agent_worker *w) {
    worker_tensors_destroy(&w->tensors);
    intra_group_destroy(&w->group);
    for (int i = 0; i < w->n_samplers; i++)
        intra_sampler_destroy(&w->samplers[i]);
    free(w->tokens);
    free(w->targets);
}

// ---- steps --------------------------------------------------------------------------------------

static enum neb_status draw(struct agent_worker *w, struct intra_sampler *s) {
    for (int32_t b = 0; b < w->x.job.batch; b++)
        intra_sampler_next(s, w->tokens + (size_t)b * w->x.job.seq_len,
                           w->targets + (size_t)b * w->x.job.seq_len);
    intra_sampler_prefetch(s, w->x.job.batch); // read while this batch trains
    return intra_corpus_failed(w->corpus);
}

enum neb_status worker_builtin_leave_out(struct agent_worker *w) {
    NEB_TRY(skip(&w->tensors, 1));
    w->x.step++;
    w->x.steps_left_out++;
    return NEB_OK;
}

enum neb_status worker_builtin_step(struct agent_worker *w) {
    struct intra_step_stats s;
    neb_ns start = neb_now();
    exchange_heartbeat(&w->x, true, 1);
    for (int32_t a = 0; a < w->x.job.accumulate; a++)
        // several samplers: the synchronous reference averages over all clusters
        for (int i = 0; i < w->n_samplers; i++) {
            NEB_TRY(draw(w, w->samplers[i]));
            intra_group_micro(w->group, w->tokens, w->targets);
        }
    NEB_TRY(intra_group_update(w->group, &s));
    (void)neb_fault("worker.step"); // a step that takes longer
    intra_loss_add(&w->x.loss_first, &w->x.loss_last, s.loss);
    const struct exchange_figures f = worker_figures(&s);
    exchange_made_step(&w->x, &f, (uint64_t)s.tokens, neb_seconds(neb_now() - start));
    return NEB_OK;
}
