// The worker of mode distill: a teacher with a stream to every student, or a student with at most one; for the reference
// (sync.scheme: synchronous), both in one process.
#include "agent/base/log.h"
#include "agent/distill_cache.h"
#include "agent/distill_run.h"
#include "kernels/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const neb_ns poll_slice = 200 * NEB_MS;

bool distill_teaches(const struct distill_run *r) {
    return r->w->job.clusters[r->w->cluster].role == AGENT_ROLE_TEACHER && !r->teacher;
}

// ---- messages from the agent ----------------------------------------------------------------------------------

bool distill_event(struct distill_run *r, const struct agent_ipc_msg *m) {
    struct agent_stream *list[DISTILL_STREAMS_MAX];
    int32_t n = distill_streams(r, list);
    for (int32_t i = 0; i < n; i++)
        if (agent_stream_event(list[i], m))
            return true;
    return false;
}

static void on_agent(struct distill_run *r, struct agent_ipc_msg *m) {
    if (!distill_event(r, m) && !strcmp(agent_ipc_str(m, "ev", ""), "stop"))
        r->w->stop = true;
    agent_ipc_msg_clear(m);
}

static enum neb_status take_all(struct distill_run *r) {
    struct agent_ipc_client nobody;
    struct agent_ipc_msg m;
    enum neb_status st;
    while ((st = agent_ipc_recv(r->w->ipc, &nobody, &m)) == NEB_OK || st == NEB_ERR_FORMAT)
        if (st == NEB_OK)
            on_agent(r, &m);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}

enum neb_status distill_drain(struct distill_run *r) {
    struct agent_stream *list[DISTILL_STREAMS_MAX];
    NEB_TRY(r->w->federated ? worker_drain(r->w) : take_all(r));
    int32_t n = distill_streams(r, list);
    for (int32_t i = 0; i < n; i++)
        if (list[i]->refused[0])
            return neb_fail(NEB_ERR_INVALID, "%s", list[i]->refused);
    return NEB_OK;
}

enum neb_status distill_wait(struct distill_run *r) {
    struct agent_ipc_msg m;
    neb_ns start = neb_now();
    if (r->w->federated)
        return worker_wait(r->w);
    enum neb_status st = agent_ipc_wait(r->w->ipc, poll_slice, &m);
    r->w->stall_s += neb_seconds(neb_now() - start);
    if (st == NEB_OK)
        on_agent(r, &m);
    return st == NEB_OK || st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED ||
                   st == NEB_ERR_FORMAT
               ? NEB_OK
               : st;
}

void distill_say_step(struct distill_run *r) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    const struct intra_step_stats *s = agent_distill_stats(r->side);
    if (x->step != 1 && x->step % r->w->job.log_every)
        return;
    worker_metrics(r->w, json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "kind", "step", "step",
                                   (json_int_t)x->step, "tokens", (json_int_t)x->tokens, "loss",
                                   isfinite(s->loss) ? s->loss : 0.0, "lr", (double)s->update.lr,
                                   "grad_norm", s->update.grad_norm, "tokens_per_s",
                                   x->train_s > 0 ? (double)x->tokens / x->train_s : 0.0, "stall_s",
                                   r->w->stall_s, "train_s", x->train_s));
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

enum neb_status distill_write(struct distill_run *r, struct intra_ckpt_writer *out) {
    struct distill_cursors at;
    distill_cursors(r, &at);
    agent_distill_state(r->side)->seq = at.labels[0];
    NEB_TRY(agent_distill_save(r->side, out));
    return intra_ckpt_add(out, "distill.cursors", INTRA_U64, DISTILL_STREAMS_MAX, 1, &at);
}

enum neb_status distill_read(struct distill_run *r, const struct intra_ckpt *c) {
    NEB_TRY(agent_distill_restore(r->side, c));
    return intra_ckpt_read(c, "distill.cursors", INTRA_U64, DISTILL_STREAMS_MAX, 1, &r->at);
}

static enum neb_status write_checkpoint(struct distill_run *r) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(neb_path(dir, sizeof dir, r->w->dir, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(intra_ckpt_step_path(dir, agent_distill_state(r->side)->step, path, sizeof path));
    NEB_TRY(intra_ckpt_create(path, &out));
    enum neb_status st = distill_write(r, out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    NEB_TRY(st);
    return intra_ckpt_prune(dir, r->w->job.checkpoint_keep);
}

static enum neb_status save(struct distill_run *r, bool final) {
    if (r->teacher) // the reference is repeated from its start
        return NEB_OK;
    NEB_TRY(distill_wait_stored(r)); // must not be lost with the agent
    NEB_TRY(r->w->federated ? worker_save(r->w) : write_checkpoint(r));
    r->saved_step = agent_distill_state(r->side)->step;
    return distill_streams_saved(r, final);
}

static enum neb_status restore(struct distill_run *r) {
    char dir[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    if (r->w->federated)
        return distill_federate_restore(r);
    NEB_TRY(neb_path(dir, sizeof dir, r->w->dir, "checkpoint"));
    enum neb_status st = intra_ckpt_open_latest(dir, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st == NEB_OK)
        st = distill_read(r, c);
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)agent_distill_state(r->side)->step);
    return st;
}

static enum neb_status save_model(struct distill_run *r, struct agent_distill_side *side,
                                  const char *name) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(neb_path(path, sizeof path, r->w->dir, name));
    NEB_TRY(intra_ckpt_create(path, &out));
    enum neb_status st = intra_model_save(agent_distill_model(side), out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    return st;
}

enum neb_status distill_maybe_save(struct distill_run *r) {
    int64_t step = agent_distill_state(r->side)->step;
    bool due = r->w->job.checkpoint_every && step % r->w->job.checkpoint_every == 0, asked = false;
    struct agent_stream *list[DISTILL_STREAMS_MAX];
    int32_t n = distill_streams(r, list);
    for (int32_t i = 0; i < n; i++)
        asked = asked || list[i]->want_checkpoint;
    return step != r->saved_step && (due || asked) ? save(r, false) : NEB_OK;
}

// ---- start and end --------------------------------------------------------------------------------------------

static enum neb_status open_cache(struct distill_run *r) {
    uint8_t digest[INTRA_SHA_BYTES];
    const struct agent_job *j = &r->w->job;
    if (!j->distill.cache[0] || distill_teaches(r) || r->teacher)
        return NEB_OK;
    NEB_TRY(neb_path(r->cache, sizeof r->cache, j->distill.cache, j->clusters[r->w->cluster].name));
    intra_corpus_digest(r->w->corpus, digest);
    return agent_distill_cache_open(r->cache, j, digest);
}

static enum neb_status set_up(struct distill_run *r) {
    struct agent_worker *w = r->w;
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    bool both = w->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS &&
                agent_job_role(&w->job, AGENT_ROLE_TEACHER) >= 0;
    int32_t student = both ? 0 : agent_distill_student(&w->job, w->cluster);
    r->saved_step = -1;
    // The digest that is compared is worth what the shards are: they are read against it.
    NEB_TRY(intra_corpus_open(c->corpus[0] ? c->corpus : w->job.corpus, true, &w->corpus));
    NEB_TRY(kern_cpu_create(c->threads, &w->K));
    NEB_TRY(agent_distill_create(&w->job, both ? AGENT_ROLE_STUDENT : c->role, student, w->corpus,
                                 w->K, &r->side));
    if (both)
        return agent_distill_create(&w->job, AGENT_ROLE_TEACHER, 0, w->corpus, w->K, &r->teacher);
    NEB_TRY(open_cache(r));
    if (w->job.distill.federate && c->role == AGENT_ROLE_STUDENT &&
        agent_distill_students(&w->job) > 1)
        NEB_TRY(distill_federate(r));
    NEB_TRY(restore(r));
    NEB_TRY(distill_open_streams(r));
    return w->federated ? distill_federate_begin(r) : NEB_OK;
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static void params_digest(const struct distill_run *r, char hex[33]) {
    const struct intra_model *m = agent_distill_model(r->side);
    struct kern_digest d = kern_digest_part(m->params, m->params, 0, m->n_params);
    uint8_t bytes[16];
    if (r->w->federated) {
        worker_params_digest(r->w, hex);
        return;
    }
    neb_put_u64(bytes, d.lo);
    neb_put_u64(bytes + 8, d.hi);
    neb_hex(bytes, sizeof bytes, hex);
}

static enum neb_status report(struct distill_run *r, bool done) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    const struct intra_model *m = agent_distill_model(r->side);
    char hex[33];
    params_digest(r, hex);
    if (r->quality && !distill_teaches(r) && r->n_streams)
        json_object_set_new(r->quality, "stall", agent_stream_stall(r->streams[0]));
    json_t *o = json_pack(
        "{s:s,s:s,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:s,s:I,s:I,s:I,s:I,s:I,s:b,s:i,s:i,s:I,s:I,s:O?"
        "}",
        "device", "cpu", "role", distill_teaches(r) ? "teacher" : "student", "steps",
        (json_int_t)x->step, "tokens", (json_int_t)x->tokens, "loss_first", number(x->loss_first),
        "loss_last", number(x->loss_last), "eval_loss", number(r->eval_loss), "stall_s",
        r->w->stall_s, "train_s", x->train_s, "sync_s", 0.0, "params_digest", hex, "params",
        (json_int_t)m->n_params, "trainable_params", (json_int_t)m->n_trainable, "rounds",
        (json_int_t)r->w->rounds, "payload_bytes", (json_int_t)x->label_bytes, "payload_params",
        (json_int_t)0, "stopped", !done, "threads", kern_pool_threads(r->w->K->pool), "vocab",
        m->c.vocab, "steps_alone", (json_int_t)r->alone, "label_rows", (json_int_t)x->label_rows,
        "quality", r->quality);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory reporting");
    return agent_ipc_send(r->w->ipc, NULL, json_pack("{s:s,s:o}", "op", "report", "report", o),
                          NULL, 0);
}

static bool trained(const struct distill_run *r) {
    return distill_teaches(r) ? distill_all_labelled(r)
           : r->w->federated  ? worker_finished(r->w)
                              : agent_distill_state(r->side)->step >= r->w->job.steps;
}

static enum neb_status run(struct distill_run *r) {
    r->eval_loss = NAN;
    NEB_TRY(set_up(r));
    NEB_TRY(distill_teaches(r) ? distill_teach(r) : distill_learn(r));
    bool done = trained(r) && !r->w->stop;
    if (agent_distill_state(r->side)->step != r->saved_step || done)
        NEB_TRY(save(r, done));
    NEB_TRY(distill_wait_taken(r));
    done = done && !r->w->stop;
    if (!done)
        return report(r, false);
    NEB_TRY(save_model(r, r->side, "model.ckpt"));
    if (r->teacher)
        NEB_TRY(save_model(r, r->teacher, "teacher.ckpt"));
    NEB_TRY(agent_distill_evaluate(r->side, &r->eval_loss, &r->quality));
    return report(r, true);
}

enum neb_status agent_distill_run(struct agent_worker *w) {
    struct distill_run *r = calloc(1, sizeof *r);
    if (!r)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting");
    r->w = w;
    enum neb_status st = run(r);
    for (int32_t i = 0; i < AGENT_CLUSTERS_MAX; i++) {
        agent_stream_close(&r->streams[i]);
        agent_stream_close(&r->requests[i]);
        agent_stream_close(&r->followers[i]);
    }
    agent_distill_destroy(&r->teacher);
    agent_distill_destroy(&r->side);
    neb_buf_free(&r->batch);
    json_decref(r->quality);
    free(r);
    return st;
}
