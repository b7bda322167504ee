// The worker of mode distill: a teacher with a stream to every student, or a student with at most one; for the reference
// (sync.scheme: synchronous), both in one process.
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "agent/distill.h"
#include "agent/distill_cache.h"
#include "agent/worker.h"
#include "agent/worker_stream.h"
#include "compress/softlabel.h"
#include "kernels/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPOOL_BATCHES = 4096, STREAM_ID = 16 };
static const uint64_t spool_bytes = 256ull << 20;
static const neb_ns poll_slice = 200 * NEB_MS;

struct distill_run {
    struct agent_worker *w;
    struct agent_distill_side *side, *teacher; // teacher: where both are here
    int32_t n_streams;
    struct agent_stream *streams[AGENT_CLUSTERS_MAX]; // teacher: by student; student: the first
    int64_t labelled[AGENT_CLUSTERS_MAX];             // teacher: next step of each student
    struct neb_buf batch;
    neb_ns waiting_since; // student; 0: it does not
    bool said_waiting;
    uint64_t alone; // steps that were made without labels that should have come
    int64_t saved_step;
    int32_t k;
    json_t *quality;
    double eval_loss;
    char cache[NEB_PATH_MAX]; // empty: none
};

static bool teaches(const struct distill_run *r) {
    return r->w->job.clusters[r->w->cluster].role == AGENT_ROLE_TEACHER && !r->teacher;
}

// ---- messages from the agent ----------------------------------------------------------------------------------

static void on_agent(struct distill_run *r, struct agent_ipc_msg *m) {
    for (int32_t i = 0; i < r->n_streams; i++)
        if (agent_stream_event(r->streams[i], m))
            goto taken;
    if (!strcmp(agent_ipc_str(m, "ev", ""), "stop"))
        r->w->stop = true;
taken:
    agent_ipc_msg_clear(m);
}

static enum neb_status drain(struct distill_run *r) {
    struct agent_ipc_client nobody;
    struct agent_ipc_msg m;
    enum neb_status st;
    while ((st = agent_ipc_recv(r->w->ipc, &nobody, &m)) == NEB_OK || st == NEB_ERR_FORMAT)
        if (st == NEB_OK)
            on_agent(r, &m);
    NEB_TRY(st == NEB_ERR_AGAIN ? NEB_OK : st);
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->streams[i]->refused[0])
            return neb_fail(NEB_ERR_INVALID, "%s", r->streams[i]->refused);
    return NEB_OK;
}

static enum neb_status wait_agent(struct distill_run *r) {
    struct agent_ipc_msg m;
    neb_ns start = neb_now();
    enum neb_status st = agent_ipc_wait(r->w->ipc, poll_slice, &m);
    r->w->stall_s += neb_seconds(neb_now() - start);
    if (st == NEB_OK)
        on_agent(r, &m);
    return st == NEB_OK || st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED ||
                   st == NEB_ERR_FORMAT
               ? NEB_OK
               : st;
}

static void say_step(struct distill_run *r) {
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

static enum neb_status save(struct distill_run *r, bool final) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    struct agent_distill_state *x = agent_distill_state(r->side);
    uint64_t puts[AGENT_CLUSTERS_MAX] = {0};
    if (r->teacher) // the reference is repeated from its start
        return NEB_OK;
    NEB_TRY(neb_path(dir, sizeof dir, r->w->dir, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(intra_ckpt_step_path(dir, x->step, path, sizeof path));
    for (int32_t i = 0; i < r->n_streams; i++) {
        puts[i] = r->streams[i]->next;
        while (teaches(r) && r->streams[i]->stored < puts[i]) { // must not be lost with the agent
            NEB_TRY(drain(r));
            NEB_TRY(wait_agent(r));
        }
    }
    x->seq = puts[0];
    NEB_TRY(intra_ckpt_create_in(worker_vault(r->w), path, &out));
    enum neb_status st = agent_distill_save(r->side, out);
    if (st == NEB_OK)
        st = intra_ckpt_add(out, "distill.puts", INTRA_U64, AGENT_CLUSTERS_MAX, 1, puts);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    NEB_TRY(st);
    NEB_TRY(intra_ckpt_prune(dir, r->w->job.checkpoint_keep));
    r->saved_step = x->step;
    return !teaches(r) && r->n_streams
               ? agent_stream_saved(r->streams[0], r->w->job.checkpoint_keep, final)
               : NEB_OK;
}

// puts: where each stream goes on.
static enum neb_status restore(struct distill_run *r, uint64_t puts[AGENT_CLUSTERS_MAX]) {
    char dir[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    memset(puts, 0, sizeof *puts * AGENT_CLUSTERS_MAX);
    NEB_TRY(neb_path(dir, sizeof dir, r->w->dir, "checkpoint"));
    enum neb_status st = intra_ckpt_open_latest_in(worker_vault(r->w), dir, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st == NEB_OK)
        st = agent_distill_restore(r->side, c);
    if (st == NEB_OK)
        st = intra_ckpt_read(c, "distill.puts", INTRA_U64, AGENT_CLUSTERS_MAX, 1, puts);
    intra_ckpt_close(&c);
    for (int i = 0; i < AGENT_CLUSTERS_MAX; i++)
        r->labelled[i] = (int64_t)puts[i];
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)agent_distill_state(r->side)->step);
    return st;
}

static enum neb_status save_model(struct distill_run *r, struct agent_distill_side *side,
                                  const char *name) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(neb_path(path, sizeof path, r->w->dir, name));
    NEB_TRY(intra_ckpt_create_in(worker_vault(r->w), path, &out));
    enum neb_status st = intra_model_save(agent_distill_model(side), out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    return st;
}

static enum neb_status maybe_save(struct distill_run *r) {
    int64_t step = agent_distill_state(r->side)->step;
    bool due = r->w->job.checkpoint_every && step % r->w->job.checkpoint_every == 0, asked = false;
    for (int32_t i = 0; i < r->n_streams; i++)
        asked = asked || r->streams[i]->want_checkpoint;
    return step != r->saved_step && (due || asked) ? save(r, false) : NEB_OK;
}

// ---- the teacher ----------------------------------------------------------------------------------------------

// The student to serve next: one that learns from a teacher in training is served in turn, so that the order of batches is
// always the same; a frozen teacher serves whoever has room, the furthest behind first. -1: none.
static int32_t next_student(const struct distill_run *r) {
    const struct agent_job *j = &r->w->job;
    int32_t found = -1;
    for (int32_t i = 0; i < r->n_streams; i++) {
        bool room = r->streams[i]->next < r->streams[i]->limit;
        if (r->labelled[i] >= j->steps || (!j->distill.learn && !room))
            continue;
        found = found < 0 || r->labelled[i] < r->labelled[found] ? i : found;
    }
    return found >= 0 && r->streams[found]->next < r->streams[found]->limit ? found : -1;
}

static bool all_labelled(const struct distill_run *r) {
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->labelled[i] < r->w->job.steps)
            return false;
    return true;
}

static enum neb_status teach(struct distill_run *r) {
    while (!r->w->stop && !all_labelled(r)) {
        NEB_TRY(drain(r));
        int32_t i = next_student(r);
        if (i < 0) {
            NEB_TRY(wait_agent(r));
            continue;
        }
        NEB_TRY(agent_distill_label(r->side, i, r->labelled[i], r->k, &r->batch));
        NEB_TRY(agent_stream_put(r->streams[i], r->batch.p, r->batch.len));
        r->labelled[i]++;
        say_step(r);
        NEB_TRY(maybe_save(r));
    }
    return NEB_OK;
}

static enum neb_status wait_taken(struct distill_run *r) {
    for (int32_t i = 0; i < r->n_streams; i++)
        while (!r->w->stop && r->streams[i]->durable < r->streams[i]->next) {
            NEB_TRY(drain(r));
            NEB_TRY(wait_agent(r));
        }
    return NEB_OK;
}

// ---- the student ----------------------------------------------------------------------------------------------

// Labels have been waited for: says so once, and tells whether to go on without them.
static bool patience_over(struct distill_run *r) {
    const struct agent_distill_config *d = &r->w->job.distill;
    neb_ns now = neb_now();
    if (!r->waiting_since)
        r->waiting_since = now;
    double waited = neb_seconds(now - r->waiting_since);
    if (waited < (double)d->patience_s)
        return false;
    if (!r->said_waiting)
        worker_metrics(r->w, json_pack("{s:s,s:o}", "kind", "fault", "text",
                                       json_sprintf("no labels for %.0f s at step %lld: %s", waited,
                                                    (long long)agent_distill_state(r->side)->step,
                                                    d->when_lost == AGENT_LOST_WAIT
                                                        ? "waiting for the teacher"
                                                        : "going on with cross-entropy")));
    r->said_waiting = true;
    return d->when_lost == AGENT_LOST_ALONE;
}

// Labels that are here: of this step, or of one that was made without them, which are dropped.
static enum neb_status take_labels(struct distill_run *r, const uint8_t *p, size_t n, bool *used) {
    int64_t step = agent_distill_step_of(p, n), now = agent_distill_state(r->side)->step;
    if (r->said_waiting)
        worker_metrics(r->w, json_pack("{s:s,s:s}", "kind", "note", "text", "labels come again"));
    r->waiting_since = 0;
    r->said_waiting = false;
    *used = step < 0 || step >= now; // what does not fit is refused where it is read
    if (*used)
        NEB_TRY(agent_distill_learn(r->side, p, n));
    if (r->cache[0] && step >= 0)
        NEB_TRY(agent_distill_cache_write(r->cache, step, p, n));
    return agent_stream_applied(r->streams[0]);
}

static enum neb_status learn_once(struct distill_run *r) {
    const uint8_t *p;
    size_t n;
    bool used = true;
    int64_t step = agent_distill_state(r->side)->step;
    enum neb_status st;
    if (r->teacher)
        return agent_distill_learn_from(r->side, r->teacher);
    if (r->cache[0] && !r->n_streams) {
        st = agent_distill_cache_read(r->cache, step, &r->batch);
        if (st == NEB_ERR_NOT_FOUND)
            return neb_fail(st,
                            "distill.cache: no labels of step %lld in %s, and the job has no "
                            "teacher; run it with one to fill the cache",
                            (long long)step, r->cache);
        NEB_TRY(st);
        return agent_distill_learn(r->side, r->batch.p, r->batch.len);
    }
    if (!r->n_streams)
        return agent_distill_learn(r->side, NULL, 0);
    st = agent_stream_next(r->streams[0], &p, &n);
    if (st == NEB_OK)
        return take_labels(r, p, n, &used);
    NEB_TRY(st == NEB_ERR_AGAIN ? NEB_OK : st);
    if (!patience_over(r))
        return wait_agent(r);
    r->alone++;
    return agent_distill_learn(r->side, NULL, 0);
}

static enum neb_status learn(struct distill_run *r) {
    struct agent_distill_state *x = agent_distill_state(r->side);
    while (!r->w->stop && x->step < r->w->job.steps) {
        int64_t was = x->step;
        NEB_TRY(drain(r));
        NEB_TRY(learn_once(r));
        if (x->step == was)
            continue;
        say_step(r);
        NEB_TRY(maybe_save(r));
    }
    // Labels that come too late, of steps made alone: the teacher shall be able to end.
    while (!r->w->stop && r->n_streams && r->streams[0]->next < (uint64_t)r->w->job.steps) {
        const uint8_t *p;
        size_t n;
        NEB_TRY(drain(r));
        enum neb_status st = agent_stream_next(r->streams[0], &p, &n);
        NEB_TRY(st == NEB_ERR_AGAIN ? wait_agent(r)
                : st == NEB_OK      ? agent_stream_applied(r->streams[0])
                                    : st);
    }
    return NEB_OK;
}

// ---- start and end --------------------------------------------------------------------------------------------

static enum neb_status set_terms(const struct distill_run *r, struct inter_stream_config *c) {
    char path[NEB_PATH_MAX];
    struct neb_map map;
    NEB_TRY(neb_path(path, sizeof path, intra_corpus_dir(r->w->corpus), "tokenizer.model"));
    NEB_TRY(neb_map_open(path, &map));
    snprintf(c->terms[0].name, sizeof c->terms[0].name, "vocabulary");
    neb_sha256(map.p, map.len, c->terms[0].sha256);
    neb_map_close(&map);
    snprintf(c->terms[1].name, sizeof c->terms[1].name, "shards");
    intra_corpus_digest(r->w->corpus, c->terms[1].sha256);
    c->n_terms = 2;
    return NEB_OK;
}

static enum neb_status open_stream(struct distill_run *r, int teacher, int student, uint64_t next) {
    const struct agent_job *j = &r->w->job;
    bool produce = r->w->cluster == teacher;
    // At most 15 to 24 bits an id, a byte a gap, a byte a tail; zstd never makes a part longer.
    double most = (double)j->batch * j->seq_len * j->accumulate * (4.0 * j->distill.k + 1) + 4096;
    if (most > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "a step of %d x %d x %d tokens with %d labels each makes batches of up to "
                        "%.0f bytes, a stream takes %d; lower data.batch, data.accumulate or "
                        "distill.k",
                        j->accumulate, j->batch, j->seq_len, j->distill.k, most,
                        INTER_STREAM_BATCH_MAX);
    struct inter_stream_config c = {.key = {.id = (uint16_t)(STREAM_ID + student)},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                                    .peer = (uint32_t)(produce ? student : teacher),
                                    .batch_bytes = (uint32_t)most,
                                    .window_batches = (uint32_t)j->distill.ahead,
                                    .window_bytes = 16 << 20,
                                    .spool_batches = SPOOL_BATCHES,
                                    .spool_bytes = spool_bytes};
    NEB_TRY(set_terms(r, &c));
    NEB_TRY(agent_stream_open(r->w->ipc, &c, next, &r->streams[r->n_streams]));
    r->n_streams++;
    return NEB_OK;
}

static enum neb_status open_streams(struct distill_run *r,
                                    const uint64_t puts[AGENT_CLUSTERS_MAX]) {
    const struct agent_job *j = &r->w->job;
    int teacher = agent_job_role(j, AGENT_ROLE_TEACHER);
    if (teacher < 0 || r->teacher)
        return NEB_OK;
    if (!teaches(r))
        return open_stream(r, teacher, r->w->cluster, puts[0]);
    for (int i = 0; i < j->n_clusters; i++)
        if (j->clusters[i].role == AGENT_ROLE_STUDENT)
            NEB_TRY(open_stream(r, teacher, i, puts[r->n_streams]));
    return NEB_OK;
}

static enum neb_status open_cache(struct distill_run *r) {
    uint8_t digest[INTRA_SHA_BYTES];
    const struct agent_job *j = &r->w->job;
    if (!j->distill.cache[0] || teaches(r) || r->teacher)
        return NEB_OK;
    NEB_TRY(neb_path(r->cache, sizeof r->cache, j->distill.cache, j->clusters[r->w->cluster].name));
    intra_corpus_digest(r->w->corpus, digest);
    return agent_distill_cache_open(r->cache, j, digest);
}

static enum neb_status set_up(struct distill_run *r) {
    struct agent_worker *w = r->w;
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    uint64_t puts[AGENT_CLUSTERS_MAX] = {0};
    bool both = w->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS &&
                agent_job_role(&w->job, AGENT_ROLE_TEACHER) >= 0;
    int32_t student = both ? 0 : agent_distill_student(&w->job, w->cluster);
    r->saved_step = -1;
    r->k = w->job.distill.k;
    // The digest that is compared is worth what the shards are: they are read against it.
    NEB_TRY(intra_corpus_open(c->corpus[0] ? c->corpus : w->job.corpus, true, &w->corpus));
    NEB_TRY(kern_cpu_create(c->threads, &w->K));
    NEB_TRY(agent_distill_create(&w->job, both ? AGENT_ROLE_STUDENT : c->role, student, w->corpus,
                                 w->K, &r->side));
    if (both)
        return agent_distill_create(&w->job, AGENT_ROLE_TEACHER, 0, w->corpus, w->K, &r->teacher);
    NEB_TRY(open_cache(r));
    NEB_TRY(restore(r, puts));
    return open_streams(r, puts);
}

static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static enum neb_status report(struct distill_run *r, bool done) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    const struct intra_model *m = agent_distill_model(r->side);
    struct kern_digest d = kern_digest_part(m->params, m->params, 0, m->n_params);
    uint8_t bytes[16];
    char hex[33];
    neb_put_u64(bytes, d.lo);
    neb_put_u64(bytes + 8, d.hi);
    neb_hex(bytes, sizeof bytes, hex);
    json_t *o = json_pack(
        "{s:s,s:s,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:s,s:I,s:I,s:I,s:I,s:I,s:b,s:i,s:i,s:I,s:I,s:O?"
        "}",
        "device", "cpu", "role", teaches(r) ? "teacher" : "student", "steps", (json_int_t)x->step,
        "tokens", (json_int_t)x->tokens, "loss_first", number(x->loss_first), "loss_last",
        number(x->loss_last), "eval_loss", number(r->eval_loss), "stall_s", r->w->stall_s,
        "train_s", x->train_s, "sync_s", 0.0, "params_digest", hex, "params",
        (json_int_t)m->n_params, "trainable_params", (json_int_t)m->n_trainable, "rounds",
        (json_int_t)0, "payload_bytes", (json_int_t)x->label_bytes, "payload_params", (json_int_t)0,
        "stopped", !done, "threads", kern_pool_threads(r->w->K->pool), "vocab", m->c.vocab,
        "steps_alone", (json_int_t)r->alone, "label_rows", (json_int_t)x->label_rows, "quality",
        r->quality);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory reporting");
    return agent_ipc_send(r->w->ipc, NULL, json_pack("{s:s,s:o}", "op", "report", "report", o),
                          NULL, 0);
}

static bool trained(const struct distill_run *r) {
    return teaches(r) ? all_labelled(r) : agent_distill_state(r->side)->step >= r->w->job.steps;
}

static enum neb_status run(struct distill_run *r) {
    r->eval_loss = NAN;
    NEB_TRY(set_up(r));
    NEB_TRY(teaches(r) ? teach(r) : learn(r));
    bool done = trained(r) && !r->w->stop;
    if (agent_distill_state(r->side)->step != r->saved_step || done)
        NEB_TRY(save(r, done));
    if (teaches(r))
        NEB_TRY(wait_taken(r));
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
    for (int32_t i = 0; i < r->n_streams; i++)
        agent_stream_close(&r->streams[i]);
    agent_distill_destroy(&r->teacher);
    agent_distill_destroy(&r->side);
    neb_buf_free(&r->batch);
    json_decref(r->quality);
    free(r);
    return st;
}
