// SPDX-License-Identifier: Apache-2.0
// What the roles of generator and discriminator share: streams, checkpoints, report.
#include "agent/job/json.h"
#include "agent/train/rtd.h"

#include <stddef.h>

enum {
    STREAM_ID = 1,
    BACK_ID = 2, // the discriminator's embeddings
};

enum neb_status rtd_role_create(struct agent_side *x) {
    struct agent_worker *w = x->w;
    struct agent_rtd_side *s = NULL;
    NEB_TRY(agent_rtd_create(&w->x.job, x->role->is, w->corpus, &x->at, &s));
    x->own = s;
    x->group = s->group;
    x->learns = true;
    x->model = intra_group_model(s->group);
    x->figures = &s->s.f;
    x->stats = &s->stats;
    return NEB_OK;
}

void rtd_role_destroy(struct agent_side *x) {
    struct agent_rtd_side *s = x->own;
    agent_rtd_destroy(&s);
    x->own = NULL;
}

enum neb_status rtd_role_open(struct agent_side *x) {
    struct agent_rtd_side *s = x->own, *other = x->second ? x->second->own : NULL;
    const struct agent_rtd_config *r = &s->job.rtd;
    bool generator = s->role == AGENT_ROLE_GENERATOR;
    struct inter_stream_config c = {
        .key = {.id = STREAM_ID},
        .type = INTER_STREAM_REPLACEMENTS,
        .role = generator ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
        .peer = (uint32_t)agent_job_role(&s->job, generator ? AGENT_ROLE_DISCRIMINATOR
                                                            : AGENT_ROLE_GENERATOR),
        .window_start = (uint32_t)r->ahead,
        .window_batches = agent_rtd_ahead_max(&s->job)};
    NEB_TRY(side_stream(x, &c, agent_rtd_batch_max(&s->job), !r->push_text, s->s.seq - s->held,
                        &s->batches));
    if (r->share_embeddings) {
        c.key.id = BACK_ID;
        c.type = INTER_STREAM_EMBEDDINGS;
        c.role = generator ? INTER_STREAM_CONSUMER : INTER_STREAM_PRODUCER;
        NEB_TRY(side_stream(x, &c, RTD_SHARE_FRAME_MAX, !r->push_text, s->back_next, &s->back));
    }
    x->to = s->held ? s->batches : NULL;
    if (other) {
        other->batches = s->batches;
        other->back = s->back;
    }
    return NEB_OK;
}

bool rtd_role_done(const struct agent_side *x) {
    return ((const struct agent_rtd_side *)x->own)->s.done;
}
int64_t rtd_role_at(const struct agent_side *x) {
    return ((const struct agent_rtd_side *)x->own)->s.event;
}

// Events of an unfinished evaluation. A restart repeats them, because a checkpoint holds the state
// before them.
static int64_t repeated(const struct agent_rtd_side *s) {
    return s->s.event > s->events && !s->s.done ? s->s.event - s->events : 0;
}

enum side_save rtd_when_to_save(struct agent_side *x, bool trained) {
    const struct agent_rtd_side *s = x->own;
    // All that the generator consumes comes before its evaluation, so it takes nothing again.
    x->again = s->role == AGENT_ROLE_DISCRIMINATOR ? (uint64_t)repeated(s) : 0;
    if (!agent_rtd_trained(s))
        return SIDE_SAVE_DUE;
    return trained ? SIDE_SAVE_NOT : SIDE_SAVE_NOW;
}

// ---- checkpoints --------------------------------------------------------------------------------

#define FIELD(kind, name)                                                                          \
    { kind, offsetof(struct agent_rtd_state, name) }
static const struct side_layout layout = {
    "rtd.state",
    "rtd",
    1,
    15,
    {FIELD('b', done), FIELD('i', event), FIELD('u', seq), FIELD('i', f.step), FIELD('u', f.tokens),
     FIELD('u', f.batch_bytes), FIELD('u', batch_tokens), FIELD('u', masked), FIELD('u', replaced),
     FIELD('f', f.loss_first), FIELD('f', f.loss_last), FIELD('f', f.train_s),
     FIELD('f', eval_loss), FIELD('f', eval_accuracy), FIELD('f', eval_auc)}};

enum neb_status rtd_role_save(const struct agent_side *x, struct intra_ckpt_writer *w) {
    const struct agent_rtd_side *s = x->own;
    struct agent_rtd_state state = s->s;
    uint64_t cursor[INTRA_CURSOR_WORDS] = {0};
    state.event -= repeated(s);
    state.seq -= (uint64_t)repeated(s); // one batch for each event
    NEB_TRY(side_put_state(w, &layout, s->role, &state));
    if (s->sampler)
        intra_sampler_save(s->sampler, cursor);
    NEB_TRY(intra_ckpt_add(w, "data.cursor.0", INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    if (s->share)
        NEB_TRY(rtd_share_save(s->share, w));
    NEB_TRY(intra_group_save(s->group, w));
    if (x->to && !repeated(s))
        NEB_TRY(intra_ckpt_add(w, "rtd.batch", INTRA_BYTES, x->made.len, 1, x->made.p));
    return s->back ? intra_ckpt_add(w, "rtd.back", INTRA_U64, 1, 1, &s->back->next) : NEB_OK;
}

enum neb_status rtd_role_restore(struct agent_side *x, const struct intra_ckpt *c) {
    struct agent_rtd_side *s = x->own;
    uint64_t cursor[INTRA_CURSOR_WORDS];
    const struct intra_ckpt_section *held = intra_ckpt_find(c, "rtd.batch");
    NEB_TRY(side_get_state(c, &layout, s->role, &s->s));
    if (s->s.event < 0 || s->s.event > s->events + AGENT_RTD_EVAL_BATCHES_MAX + 1)
        return side_misfit(c);
    NEB_TRY(intra_ckpt_read(c, "data.cursor.0", INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    if (s->sampler)
        intra_sampler_restore(s->sampler, cursor);
    if (s->share)
        NEB_TRY(rtd_share_restore(s->share, c));
    NEB_TRY(intra_group_restore(s->group, c));
    if (s->share)
        NEB_TRY(intra_ckpt_read(c, "rtd.back", INTRA_U64, 1, 1, &s->back_next));
    if (!held)
        return NEB_OK;
    neb_buf_clear(&x->made);
    NEB_TRY(neb_buf_reserve(&x->made, held->bytes));
    NEB_TRY(intra_ckpt_range(c, held, 0, x->made.p, held->bytes));
    x->made.len = held->bytes;
    s->held = true;
    return NEB_OK;
}

// ---- the report ---------------------------------------------------------------------------------

static json_t *quality(const struct agent_rtd_side *s) {
    const struct agent_rtd_state *x = &s->s;
    double tokens = (double)x->batch_tokens;
    json_t *q =
        json_pack("{s:o,s:o,s:o,s:o,s:o}", "eval_loss",
                  x->done ? agent_json_number(x->eval_loss) : json_null(), "eval_accuracy",
                  x->done ? agent_json_number(x->eval_accuracy) : json_null(), "masked_share",
                  agent_json_number((double)x->masked / tokens), "replaced_share",
                  agent_json_number((double)x->replaced / tokens), "batch_bytes_per_token",
                  agent_json_number((double)x->f.batch_bytes / tokens));
    if (s->role == AGENT_ROLE_GENERATOR)
        return q;
    json_object_set_new(q, "eval_auc", x->done ? agent_json_number(x->eval_auc) : json_null());
    if (s->batches && s->batches->ipc)
        json_object_set_new(q, "stall", agent_stream_stall(s->batches));
    return q;
}

enum neb_status rtd_role_report(struct agent_side *x, bool done, double *loss, json_t **more) {
    const struct agent_rtd_side *s = x->own;
    bool both = s->batches && !s->batches->ipc;
    if (done)
        *loss = s->s.eval_loss;
    *more = json_pack("{s:s,s:o}", "role",
                      both                              ? "both"
                      : s->role == AGENT_ROLE_GENERATOR ? "generator"
                                                        : "discriminator",
                      "quality", quality(s));
    return *more ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
}
