// SPDX-License-Identifier: Apache-2.0
// What the roles of teacher and student share: set-up, checkpoints, report.
#include "agent/train/distill.h"

#include <stddef.h>
#include <stdlib.h>

static enum neb_status open_cache(struct agent_side *x, struct distill_run *r, int32_t student) {
    uint8_t digest[INTRA_SHA_BYTES];
    const struct agent_job *j = &x->w->x.job;
    if (!j->distill.cache[0] || x->role->is == AGENT_ROLE_TEACHER || x->second)
        return NEB_OK;
    NEB_TRY(
        neb_path(r->cache, sizeof r->cache, j->distill.cache, j->clusters[x->w->x.cluster].name));
    intra_corpus_digest(x->w->corpus, digest);
    return agent_distill_cache_open(r->cache, j, student, digest);
}

enum neb_status distill_role_create(struct agent_side *x) {
    struct agent_worker *w = x->w;
    struct distill_run *r = calloc(1, sizeof *r);
    if (!r)
        return neb_fail(NEB_ERR_NOMEM, "out of memory starting a worker");
    x->own = r;
    // the reference has one teacher and one student
    int32_t index = x->reference ? 0 : agent_distill_index(&w->x.job, w->x.cluster);
    NEB_TRY(agent_distill_create(&w->x.job, x->role->is, index, w->corpus, &x->at, &r->side));
    x->group = r->side->group;
    x->learns = r->side->learns;
    x->model = distill_model(r->side);
    x->figures = &r->side->s.f;
    x->stats = &r->side->stats;
    // Without a checkpoint a student of rounds may have learned before its disk was lost, and the
    // teacher may have forgotten those labels since.
    for (int i = 0; i < AGENT_CLUSTERS_MAX; i++)
        if (x->role->is == AGENT_ROLE_STUDENT && agent_distill_federates(&w->x.job))
            r->at.labels[i] = INTER_STREAM_ANYWHERE;
    return open_cache(x, r, index);
}

void distill_role_destroy(struct agent_side *x) {
    struct distill_run *r = x->own;
    if (r)
        agent_distill_destroy(&r->side);
    free(r);
    x->own = NULL;
}

// ---- checkpoints --------------------------------------------------------------------------------

static uint64_t cursor(const struct agent_stream *s, uint64_t unopened) {
    return !s ? unopened : s->anywhere ? INTER_STREAM_ANYWHERE : s->next;
}

// A state that was taken over (agent/exchange/snapshot.c) can be saved before the streams are open.
static struct distill_cursors cursors(const struct distill_run *r) {
    struct distill_cursors c;
    for (int32_t i = 0; i < AGENT_CLUSTERS_MAX; i++) {
        c.labels[i] = cursor(r->streams[i], r->at.labels[i]);
        c.requests[i] = cursor(r->requests[i], r->at.requests[i]);
        c.followers[i] = cursor(r->followers[i], r->at.followers[i]);
    }
    return c;
}

#define FIELD(kind, name)                                                                          \
    { kind, offsetof(struct agent_distill_state, name) }
static const struct side_layout layout = {
    "distill.state",
    "distill",
    0,
    10,
    {FIELD('i', f.step), FIELD('u', seq), FIELD('u', f.tokens), FIELD('u', targets),
     FIELD('u', taught), FIELD('u', f.batch_bytes), FIELD('u', label_rows),
     FIELD('f', f.loss_first), FIELD('f', f.loss_last), FIELD('f', f.train_s)}};

enum neb_status distill_role_save(const struct agent_side *x, struct intra_ckpt_writer *w) {
    struct distill_run *r = x->own;
    struct distill_cursors at = cursors(r);
    r->side->s.seq = at.labels[0];
    NEB_TRY(side_put_state(w, &layout, x->role->is, &r->side->s));
    NEB_TRY(distill_own_save(r->side, w));
    if (x->learns)
        NEB_TRY(intra_group_save(x->group, w));
    return intra_ckpt_add(w, "distill.cursors", INTRA_U64, sizeof at / sizeof(uint64_t), 1, &at);
}

enum neb_status distill_role_restore(struct agent_side *x, const struct intra_ckpt *c) {
    struct distill_run *r = x->own;
    NEB_TRY(side_get_state(c, &layout, x->role->is, &r->side->s));
    if (r->side->s.f.step < 0)
        return side_misfit(c);
    NEB_TRY(distill_own_restore(r->side, c));
    if (x->learns)
        NEB_TRY(intra_group_restore(x->group, c));
    return intra_ckpt_read(c, "distill.cursors", INTRA_U64, sizeof r->at / sizeof(uint64_t), 1,
                           &r->at);
}

// ---- the report ---------------------------------------------------------------------------------

// Of the teacher that the student has waited for longest.
static const struct agent_stream *longest_stall(const struct distill_run *r) {
    const struct agent_stream *most = r->streams[0];
    for (int32_t i = 1; i < r->n_streams; i++) {
        const struct agent_stall *a = &r->streams[i]->stall, *b = &most->stall;
        most = a->peer_s + a->link_s > b->peer_s + b->link_s ? r->streams[i] : most;
    }
    return most;
}

enum neb_status distill_role_report(struct agent_side *x, bool done, double *loss, json_t **more) {
    struct distill_run *r = x->own;
    bool teacher = x->role->is == AGENT_ROLE_TEACHER;
    json_t *quality = NULL;
    if (done)
        NEB_TRY(distill_evaluate(r->side, loss, &quality));
    if (quality && !teacher && r->n_streams)
        json_object_set_new(quality, "stall", agent_stream_stall(longest_stall(r)));
    *more = json_pack("{s:s,s:i,s:I,s:I,s:o?}", "role", teacher ? "teacher" : "student", "vocab",
                      x->model->c.vocab, "steps_alone", (json_int_t)r->alone, "label_rows",
                      (json_int_t)r->side->s.label_rows, "quality", quality);
    return *more ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
}
