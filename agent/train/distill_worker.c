// SPDX-License-Identifier: Apache-2.0
// The worker of mode distill: a teacher with a stream to every student, or a student with at most
// one. In the reference (sync.scheme: synchronous) both are in one process.
#include "agent/base/log.h"
#include "agent/train/distill_cache.h"
#include "agent/train/distill_run.h"

#include <math.h>
#include <stdlib.h>

bool distill_teaches(const struct distill_run *r) {
    return r->w->x.job.clusters[r->w->x.cluster].role == AGENT_ROLE_TEACHER && !r->teacher;
}

static void show(struct distill_run *r) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    struct agent_worker *w = r->w;
    w->x.step = x->step;
    w->x.all_tokens = x->tokens;
    w->x.loss_first = x->loss_first;
    w->x.loss_last = x->loss_last;
    w->x.train_s = x->train_s;
    w->model = agent_distill_model(r->side);
}

void distill_say_step(struct distill_run *r) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    const struct intra_step_stats *s = agent_distill_stats(r->side);
    show(r);
    worker_check_step(r->w, s);
    if (x->step == 1 || x->step % r->w->x.job.log_every == 0)
        worker_send_step(r->w, s, x->train_s > 0 ? (double)x->tokens / x->train_s : 0);
}

// ---- checkpoints --------------------------------------------------------------------------------

enum neb_status distill_write(struct distill_run *r, struct intra_ckpt_writer *out) {
    struct distill_cursors at;
    distill_cursors(r, &at);
    agent_distill_state(r->side)->seq = at.labels[0];
    NEB_TRY(worker_text_save(r->w, out));
    NEB_TRY(agent_distill_save(r->side, out));
    return intra_ckpt_add(out, "distill.cursors", INTRA_U64, sizeof at / sizeof(uint64_t), 1, &at);
}

enum neb_status distill_read(struct distill_run *r, const struct intra_ckpt *c) {
    NEB_TRY(worker_text_compare(r->w, c));
    NEB_TRY(agent_distill_restore(r->side, c));
    return intra_ckpt_read(c, "distill.cursors", INTRA_U64, sizeof r->at / sizeof(uint64_t), 1,
                           &r->at);
}

static enum neb_status add_state(void *user, struct intra_ckpt_writer *out) {
    return distill_write(user, out);
}

static enum neb_status save(struct distill_run *r, bool final) {
    if (r->teacher) // the reference starts over after a failure
        return NEB_OK;
    return worker_side_save(&r->x, agent_distill_state(r->side)->step, 0, final);
}

static enum neb_status restore(struct distill_run *r) {
    struct intra_ckpt *c = NULL;
    if (r->w->x.federated)
        return exchange_resume(&r->w->x);
    enum neb_status st = worker_side_newest(&r->x, &c);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    if (st == NEB_OK)
        st = distill_read(r, c);
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)agent_distill_state(r->side)->step);
    return st;
}

enum neb_status distill_maybe_save(struct distill_run *r) {
    return worker_side_due(&r->x, agent_distill_state(r->side)->step) ? save(r, false) : NEB_OK;
}

// ---- start and end ------------------------------------------------------------------------------

static enum neb_status open_cache(struct distill_run *r) {
    uint8_t digest[INTRA_SHA_BYTES];
    const struct agent_job *j = &r->w->x.job;
    if (!j->distill.cache[0] || distill_teaches(r) || r->teacher)
        return NEB_OK;
    NEB_TRY(
        neb_path(r->cache, sizeof r->cache, j->distill.cache, j->clusters[r->w->x.cluster].name));
    intra_corpus_digest(r->w->corpus, digest);
    return agent_distill_cache_open(r->cache, j, agent_distill_student(j, r->w->x.cluster), digest);
}

static enum neb_status set_up(struct distill_run *r) {
    struct agent_worker *w = r->w;
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    bool both = w->x.job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS &&
                agent_job_role(&w->x.job, AGENT_ROLE_TEACHER) >= 0;
    int32_t student = both ? 0 : agent_distill_student(&w->x.job, w->x.cluster);
    NEB_TRY(worker_side_open(&r->x, w));
    NEB_TRY(worker_side_check_device(
        &r->x, agent_distill_create(&w->x.job, both ? AGENT_ROLE_STUDENT : c->role, student,
                                    w->corpus, &r->x.at, &r->side)));
    if (both)
        return agent_distill_create(&w->x.job, AGENT_ROLE_TEACHER, 0, w->corpus, &r->x.at,
                                    &r->teacher);
    NEB_TRY(open_cache(r));
    if (c->role == AGENT_ROLE_STUDENT && agent_distill_federates(&w->x.job))
        NEB_TRY(distill_federate(r));
    NEB_TRY(restore(r));
    r->x.looked = agent_distill_state(r->side)->step;
    NEB_TRY(distill_open_streams(r));
    NEB_TRY(worker_side_start(&r->x, add_state, r));
    return exchange_announce(&w->x);
}

static enum neb_status report(struct distill_run *r, bool done) {
    const struct agent_distill_state *x = agent_distill_state(r->side);
    show(r);
    r->w->x.payload_bytes = x->label_bytes; // label bytes; a student's updates are not part of it
    r->w->x.payload_params = 0;
    if (r->quality && !distill_teaches(r) && r->n_streams)
        json_object_set_new(r->quality, "stall", agent_stream_stall(r->streams[0]));
    json_t *results;
    char device[96];
    worker_device_name(r->w, device, sizeof device);
    NEB_TRY(worker_results(r->w, device, r->eval_loss, done, &results));
    return exchange_report(
        &r->w->x, results,
        json_pack("{s:s,s:i,s:I,s:I,s:O?}", "role", distill_teaches(r) ? "teacher" : "student",
                  "vocab", r->w->model->c.vocab, "steps_alone", (json_int_t)r->alone, "label_rows",
                  (json_int_t)x->label_rows, "quality", r->quality));
}

static bool trained(const struct distill_run *r) {
    return distill_teaches(r)  ? distill_all_labelled(r)
           : r->w->x.federated ? exchange_finished(&r->w->x)
                               : agent_distill_state(r->side)->step >= r->w->x.job.steps;
}

static enum neb_status run(struct distill_run *r) {
    r->eval_loss = NAN;
    NEB_TRY(set_up(r));
    NEB_TRY(distill_teaches(r) ? distill_teach(r) : distill_learn(r));
    bool done = trained(r) && !r->w->x.stop;
    if (agent_distill_state(r->side)->step != r->x.saved || done)
        NEB_TRY(save(r, done));
    NEB_TRY(worker_side_wait_taken(&r->x));
    done = done && !r->w->x.stop;
    if (agent_distill_trainer(r->side)) // for the file, translations and digest
        NEB_TRY(intra_trainer_pull(agent_distill_trainer(r->side), NULL));
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
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting a worker");
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
