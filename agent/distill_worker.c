// The worker of mode distill: a teacher with a stream to every student, or a student with at most one; for the reference
// (sync.scheme: synchronous), both in one process.
#include "agent/base/log.h"
#include "agent/distill.h"
#include "agent/distill_cache.h"
#include "agent/worker_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_ID = 16 };

struct distill_run {
    struct agent_worker *w;
    struct worker_side x; // streams of a teacher: by student; of a student: the first
    struct agent_distill_side *side, *teacher; // teacher: where both are here
    int64_t labelled[AGENT_CLUSTERS_MAX];      // teacher: next step of each student
    struct neb_buf batch;
    neb_ns waiting_since; // student; 0: it does not
    bool said_waiting;
    uint64_t alone; // steps that were made without labels that should have come
    int32_t k;
    json_t *quality;
    double eval_loss;
    char cache[NEB_PATH_MAX]; // empty: none
};

static bool teaches(const struct distill_run *r) {
    return r->w->job.clusters[r->w->cluster].role == AGENT_ROLE_TEACHER && !r->teacher;
}

static void show(struct distill_run *r) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    struct agent_worker *w = r->w;
    w->step = x->step;
    w->all_tokens = x->tokens;
    w->loss_first = x->loss_first;
    w->loss_last = x->loss_last;
    w->train_s = x->train_s;
    w->payload_bytes = x->label_bytes;
    w->model = agent_distill_model(r->side);
}

static void say_step(struct distill_run *r) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    struct intra_step_stats s = *agent_distill_stats(r->side);
    s.loss = isfinite(s.loss) ? s.loss : 0;
    show(r);
    if (x->step == 1 || x->step % r->w->job.log_every == 0)
        worker_say_step(r->w, &s, x->train_s > 0 ? (double)x->tokens / x->train_s : 0);
}

// ---- checkpoints ----------------------------------------------------------------------------------------------

static enum neb_status add_state(void *user, struct intra_ckpt_writer *out) {
    struct distill_run *r = user;
    uint64_t puts[AGENT_CLUSTERS_MAX] = {0};
    for (int32_t i = 0; i < r->x.n_streams; i++)
        puts[i] = r->x.streams[i]->next;
    agent_distill_state(r->side)->seq = puts[0];
    NEB_TRY(agent_distill_save(r->side, out));
    return intra_ckpt_add(out, "distill.puts", INTRA_U64, AGENT_CLUSTERS_MAX, 1, puts);
}

static enum neb_status save(struct distill_run *r, bool final) {
    if (r->teacher) // the reference is repeated from its start
        return NEB_OK;
    return worker_side_save(&r->x, agent_distill_state(r->side)->step, final, add_state, r);
}

// puts: where each stream goes on.
static enum neb_status restore(struct distill_run *r, uint64_t puts[AGENT_CLUSTERS_MAX]) {
    struct intra_ckpt *c = NULL;
    memset(puts, 0, sizeof *puts * AGENT_CLUSTERS_MAX);
    enum neb_status st = worker_side_newest(&r->x, &c);
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

static enum neb_status maybe_save(struct distill_run *r) {
    return worker_side_due(&r->x, agent_distill_state(r->side)->step) ? save(r, false) : NEB_OK;
}

// ---- the teacher ----------------------------------------------------------------------------------------------

// The student to serve next: one that learns from a teacher in training is served in turn, so that the order of batches is
// always the same; a frozen teacher serves whoever has room, the furthest behind first. -1: none.
static int32_t next_student(const struct distill_run *r) {
    const struct agent_job *j = &r->w->job;
    int32_t found = -1;
    for (int32_t i = 0; i < r->x.n_streams; i++) {
        bool room = r->x.streams[i]->next < r->x.streams[i]->limit;
        if (r->labelled[i] >= j->steps || (!j->distill.learn && !room))
            continue;
        found = found < 0 || r->labelled[i] < r->labelled[found] ? i : found;
    }
    return found >= 0 && r->x.streams[found]->next < r->x.streams[found]->limit ? found : -1;
}

static bool all_labelled(const struct distill_run *r) {
    for (int32_t i = 0; i < r->x.n_streams; i++)
        if (r->labelled[i] < r->w->job.steps)
            return false;
    return true;
}

static enum neb_status teach(struct distill_run *r) {
    while (!r->w->stop && !all_labelled(r)) {
        NEB_TRY(worker_drain(r->w));
        int32_t i = next_student(r);
        if (i < 0) {
            NEB_TRY(worker_wait(r->w));
            continue;
        }
        NEB_TRY(agent_distill_label(r->side, i, r->labelled[i], r->k, &r->batch));
        NEB_TRY(agent_stream_put(r->x.streams[i], r->batch.p, r->batch.len));
        r->labelled[i]++;
        say_step(r);
        NEB_TRY(maybe_save(r));
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
    return agent_stream_applied(r->x.streams[0]);
}

static enum neb_status learn_once(struct distill_run *r) {
    const uint8_t *p;
    size_t n;
    bool used = true;
    int64_t step = agent_distill_state(r->side)->step;
    enum neb_status st;
    if (r->teacher)
        return agent_distill_learn_from(r->side, r->teacher);
    if (r->cache[0] && !r->x.n_streams) {
        st = agent_distill_cache_read(r->cache, step, &r->batch);
        if (st == NEB_ERR_NOT_FOUND)
            return neb_fail(st,
                            "distill.cache: no labels of step %lld in %s, and the job has no "
                            "teacher; run it with one to fill the cache",
                            (long long)step, r->cache);
        NEB_TRY(st);
        return agent_distill_learn(r->side, r->batch.p, r->batch.len);
    }
    if (!r->x.n_streams)
        return agent_distill_learn(r->side, NULL, 0);
    st = agent_stream_next(r->x.streams[0], &p, &n);
    if (st == NEB_OK)
        return take_labels(r, p, n, &used);
    NEB_TRY(st == NEB_ERR_AGAIN ? NEB_OK : st);
    if (!patience_over(r))
        return worker_wait(r->w);
    r->alone++;
    return agent_distill_learn(r->side, NULL, 0);
}

static enum neb_status learn(struct distill_run *r) {
    struct agent_distill_state *x = agent_distill_state(r->side);
    while (!r->w->stop && x->step < r->w->job.steps) {
        int64_t was = x->step;
        NEB_TRY(worker_drain(r->w));
        NEB_TRY(learn_once(r));
        if (x->step == was)
            continue;
        say_step(r);
        NEB_TRY(maybe_save(r));
    }
    // Labels that come too late, of steps made alone: the teacher shall be able to end.
    while (!r->w->stop && r->x.n_streams && r->x.streams[0]->next < (uint64_t)r->w->job.steps) {
        const uint8_t *p;
        size_t n;
        NEB_TRY(worker_drain(r->w));
        enum neb_status st = agent_stream_next(r->x.streams[0], &p, &n);
        NEB_TRY(st == NEB_ERR_AGAIN ? worker_wait(r->w)
                : st == NEB_OK      ? agent_stream_applied(r->x.streams[0])
                                    : st);
    }
    return NEB_OK;
}

// ---- start and end --------------------------------------------------------------------------------------------

static enum neb_status open_stream(struct distill_run *r, int teacher, int student, uint64_t next) {
    const struct agent_job *j = &r->w->job;
    bool produce = r->w->cluster == teacher;
    // At most 15 to 24 bits an id, a byte a gap, a byte a tail; zstd never makes a part longer.
    double most = (double)j->batch * j->seq_len * j->accumulate * (4.0 * j->distill.k + 1) + 4096;
    struct inter_stream_config c = {.key = {.id = (uint16_t)(STREAM_ID + student)},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                                    .peer = (uint32_t)(produce ? student : teacher),
                                    .window_batches = (uint32_t)j->distill.ahead};
    return worker_side_stream(&r->x, &c, most, true, next);
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
            NEB_TRY(open_stream(r, teacher, i, puts[r->x.n_streams]));
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
    r->k = w->job.distill.k;
    NEB_TRY(worker_side_open(&r->x, w));
    NEB_TRY(agent_distill_create(&w->job, both ? AGENT_ROLE_STUDENT : c->role, student, w->corpus,
                                 w->K, &r->side));
    if (both)
        return agent_distill_create(&w->job, AGENT_ROLE_TEACHER, 0, w->corpus, w->K, &r->teacher);
    NEB_TRY(open_cache(r));
    NEB_TRY(restore(r, puts));
    return open_streams(r, puts);
}

static enum neb_status report(struct distill_run *r, bool done) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    show(r);
    return worker_report(r->w, worker_results(r->w, "cpu", r->eval_loss, done),
                         json_pack("{s:s,s:i,s:I,s:I,s:O?}", "role",
                                   teaches(r) ? "teacher" : "student", "vocab",
                                   r->w->model->c.vocab, "steps_alone", (json_int_t)r->alone,
                                   "label_rows", (json_int_t)x->label_rows, "quality", r->quality));
}

static bool trained(const struct distill_run *r) {
    return teaches(r) ? all_labelled(r) : agent_distill_state(r->side)->step >= r->w->job.steps;
}

static enum neb_status run(struct distill_run *r) {
    r->eval_loss = NAN;
    NEB_TRY(set_up(r));
    NEB_TRY(teaches(r) ? teach(r) : learn(r));
    bool done = trained(r) && !r->w->stop;
    if (agent_distill_state(r->side)->step != r->x.saved || done)
        NEB_TRY(save(r, done));
    NEB_TRY(worker_side_wait_taken(&r->x));
    done = done && !r->w->stop;
    if (!done)
        return report(r, false);
    NEB_TRY(worker_write_model(r->w, agent_distill_model(r->side), "model.ckpt"));
    if (r->teacher)
        NEB_TRY(worker_write_model(r->w, agent_distill_model(r->teacher), "teacher.ckpt"));
    NEB_TRY(agent_distill_evaluate(r->side, &r->eval_loss, &r->quality));
    return report(r, true);
}

enum neb_status agent_distill_run(struct agent_worker *w) {
    struct distill_run *r = calloc(1, sizeof *r);
    if (!r)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting");
    r->w = w;
    enum neb_status st = run(r);
    worker_side_close(&r->x);
    agent_distill_destroy(&r->teacher);
    agent_distill_destroy(&r->side);
    neb_buf_free(&r->batch);
    json_decref(r->quality);
    free(r);
    return st;
}
