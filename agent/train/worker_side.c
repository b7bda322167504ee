// SPDX-License-Identifier: Apache-2.0
#include "agent/train/worker_side.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"

enum { SPOOL_BATCHES = 4096, WINDOW_BYTES = WORKER_SIDE_WINDOW_BYTES };
static const uint64_t spool_bytes = 256ull << 20;

static enum neb_status on_event(struct agent_worker *w, const struct agent_ipc_msg *m,
                                bool *taken) {
    struct worker_side *x = w->side;
    for (int32_t i = 0; i < x->n_streams && !*taken; i++) {
        *taken = agent_stream_event(x->streams[i], m);
        if (*taken && x->streams[i]->refused[0])
            return neb_fail(NEB_ERR_INVALID, "%s", x->streams[i]->refused);
    }
    return NEB_OK;
}

enum neb_status worker_side_open(struct worker_side *x, struct agent_worker *w) {
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    *x = (struct worker_side){.w = w, .saved = -1};
    w->on_event = on_event;
    w->side = x;
    // The digest is compared with the peer's, so the shards must match it.
    NEB_TRY(intra_corpus_open(agent_job_corpus(&w->job, w->cluster), true, &w->corpus));
    NEB_TRY(kern_cpu_create(c->threads, &w->K));
    if (agent_job_takes_devices(&w->job))
        NEB_TRY(worker_device_open(w));
    if (!w->device && c->precision == AGENT_PRECISION_BF16)
        NEB_TRY(kern_cpu_bf16(w->K));
    x->at = (struct intra_place){.K = w->K,
                                 .device = w->device,
                                 .type = w->device ? w->device_type : KERN_F32,
                                 .graphs = (enum intra_graphs)c->cuda_graphs};
    return NEB_OK;
}

enum neb_status worker_side_check_device(struct worker_side *x, enum neb_status st) {
    const struct kern *D = x->w->device;
    // the device itself failed, not a file or a setting
    if (st != NEB_OK && D && D->ops->finish(x->w->device) != NEB_OK)
        st = worker_device_joined(x->w, st);
    NEB_TRY(st);
    worker_device_report(x->w);
    return NEB_OK;
}

void worker_side_close(struct worker_side *x) {
    for (int32_t i = 0; i < x->n_streams; i++)
        agent_stream_close(&x->streams[i]);
    x->n_streams = 0;
}

static enum neb_status set_terms(const struct intra_corpus *corpus, bool shards,
                                 struct inter_stream_config *c) {
    snprintf(c->terms[0].name, sizeof c->terms[0].name, "vocabulary");
    NEB_TRY(intra_corpus_tokenizer_digest(corpus, c->terms[0].sha256));
    snprintf(c->terms[1].name, sizeof c->terms[1].name, "shards");
    intra_corpus_digest(corpus, c->terms[1].sha256);
    c->n_terms = shards ? 2 : 1;
    return NEB_OK;
}

enum neb_status worker_side_stream(struct worker_side *x, const struct inter_stream_config *given,
                                   double batch_bytes, bool shards, uint64_t next,
                                   struct agent_stream **out) {
    const struct agent_job *j = &x->w->job;
    struct inter_stream_config c = *given;
    if (batch_bytes > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "a step of %d x %d x %d tokens makes batches of up to %.0f bytes, but a "
                        "stream takes at most %d: lower data.batch, data.accumulate%s",
                        j->accumulate, j->batch, j->seq_len, batch_bytes, INTER_STREAM_BATCH_MAX,
                        j->mode != AGENT_MODE_DISTILL ? " or data.seq_len"
                        : j->distill.k_max            ? " or distill.k_max"
                                                      : " or distill.k");
    NEB_ASSERT(x->n_streams < WORKER_SIDE_STREAMS_MAX);
    c.batch_bytes = (uint32_t)batch_bytes;
    c.window_bytes = WINDOW_BYTES;
    if (c.window_start && c.window_batches > WINDOW_BYTES / c.batch_bytes)
        c.window_batches = WINDOW_BYTES / c.batch_bytes > c.window_start
                               ? WINDOW_BYTES / c.batch_bytes
                               : c.window_start;
    c.spool_batches = SPOOL_BATCHES;
    c.spool_bytes = spool_bytes;
    NEB_TRY(set_terms(x->w->corpus, shards, &c));
    NEB_TRY(agent_stream_open(x->w->ipc, &c, next, out));
    x->streams[x->n_streams++] = *out;
    return NEB_OK;
}

// Handles messages that have come, and waits a little for more.
static enum neb_status wait_more(struct worker_side *x) {
    NEB_TRY(worker_drain(x->w));
    return worker_wait(x->w);
}

bool worker_side_due(struct worker_side *x, int64_t at) {
    int32_t every = x->w->job.checkpoint_every;
    // events without a batch are skipped, and the event that is due may be one of them
    bool due = every && at / every != x->looked / every;
    x->looked = at;
    for (int32_t i = 0; i < x->n_streams; i++)
        due = due || x->streams[i]->want_checkpoint;
    return due && at != x->saved;
}

static bool produces(const struct agent_stream *s) { return s->c.role == INTER_STREAM_PRODUCER; }

// The checkpoint is on disk, so the producers' agents may forget what only older generations need.
static enum neb_status durable(struct agent_worker *w) {
    struct worker_side *x = w->side;
    for (int32_t i = 0; i < x->n_streams; i++)
        if (!produces(x->streams[i]))
            NEB_TRY(
                agent_stream_saved(x->streams[i], x->cursors[i], w->job.checkpoint_keep, x->final));
    return NEB_OK;
}

static enum neb_status write_state(struct agent_worker *w, struct intra_ckpt_writer *out) {
    const struct worker_side *x = w->side;
    return x->add(x->user, out);
}

enum neb_status worker_side_start(struct worker_side *x, worker_side_add *add, void *user) {
    x->add = add;
    x->user = user;
    x->w->ops.durable = durable;
    if (!x->w->federated)
        x->w->ops.save = write_state;
    for (int32_t i = 0; i < x->n_streams; i++) // batches that are held
        x->w->save_reserve += x->streams[i]->c.batch_bytes;
    return worker_save_start(x->w);
}

enum neb_status worker_side_save(struct worker_side *x, int64_t at, uint64_t again, bool final) {
    // Batches that a checkpoint counts as put must survive a crash of the agent.
    for (int32_t i = 0; i < x->n_streams; i++)
        while (produces(x->streams[i]) && x->streams[i]->stored < x->streams[i]->next)
            NEB_TRY(wait_more(x));
    NEB_TRY(worker_save_wait(x->w)); // the previous one, with its cursors
    for (int32_t i = 0; i < x->n_streams; i++) {
        x->cursors[i] = x->streams[i]->next - (produces(x->streams[i]) ? 0 : again);
        x->streams[i]->want_checkpoint = false;
    }
    x->final = final;
    x->saved = at;
    return x->w->federated ? worker_save(x->w) : worker_save_at(x->w, at);
}

enum neb_status worker_side_newest(const struct worker_side *x, struct intra_ckpt **out) {
    char dir[NEB_PATH_MAX];
    NEB_TRY(neb_path(dir, sizeof dir, x->w->dir, "checkpoint"));
    return worker_newest(x->w, dir, out);
}

static const neb_ns taken_patience = 60 * NEB_S;

static void say_untaken(struct worker_side *x, const struct agent_stream *s) {
    char text[320];
    snprintf(text, sizeof text,
             "%s has not confirmed the last %llu batches for a minute: it has not saved them yet, "
             "or it is away, or its part of the job was stopped. This cluster waits for it; nebula "
             "stop ends the wait",
             x->w->job.clusters[s->c.peer].name, (unsigned long long)(s->next - s->durable));
    neb_warn("%s", text);
    worker_metrics(x->w, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
}

static enum neb_status wait_taken(struct worker_side *x, const struct agent_stream *s) {
    uint64_t sum = 0; // of the consumer's counters
    neb_ns moved = neb_now();
    bool said = false;
    while (!x->w->stop && !s->let_go && s->durable < s->next) {
        NEB_TRY(wait_more(x));
        uint64_t now = s->durable + s->taken + s->arrived;
        moved = now == sum ? moved : neb_now();
        sum = now;
        if (!said && neb_now() - moved >= taken_patience) {
            say_untaken(x, s);
            said = true;
        }
    }
    return NEB_OK;
}

enum neb_status worker_side_wait_taken(struct worker_side *x) {
    NEB_TRY(worker_save_wait(x->w));
    for (int32_t i = 0; i < x->n_streams; i++)
        if (produces(x->streams[i]))
            NEB_TRY(wait_taken(x, x->streams[i]));
    return NEB_OK;
}
