// SPDX-License-Identifier: Apache-2.0
// The role of the student: it learns from text and labels, from the cache, or alone. With
// distill.when_lost: alone it ends without the last labels if none come for patience_s. It then
// reports that it needs no more (agent_stream_skip), so a teacher that comes back leaves them out.
#include "agent/base/log.h"
#include "agent/train/distill.h"

static void say_waiting(struct agent_side *x, double waited) {
    char text[160];
    snprintf(text, sizeof text, "no labels for %.0f s at step %lld: %s", waited,
             (long long)x->figures->step,
             x->w->x.job.distill.when_lost == AGENT_LOST_WAIT ? "waiting for the teacher"
                                                              : "continuing with cross-entropy");
    exchange_fault(&x->w->x, text);
}

// The student waits for labels. Logs that once. True if it should continue without them.
static bool patience_over(struct agent_side *x) {
    const struct agent_distill_config *d = &x->w->x.job.distill;
    struct distill_run *r = x->own;
    neb_ns now = neb_now();
    if (!r->waiting_since)
        r->waiting_since = now;
    double waited = neb_seconds(now - r->waiting_since);
    if (waited < (double)d->patience_s)
        return false;
    if (!r->said_waiting)
        say_waiting(x, waited);
    r->said_waiting = true;
    return d->when_lost == AGENT_LOST_ALONE;
}

// Requests labels ahead, as long as the stream has room: at most distill.ahead of them in one call.
static enum neb_status ask(struct agent_side *x) {
    struct distill_run *r = x->own;
    struct agent_stream *t = r->requests[0];
    uint64_t steps = (uint64_t)x->w->x.job.steps,
             end = t ? t->next + (uint64_t)x->w->x.job.distill.ahead : 0;
    end = end < steps ? end : steps;
    while (t && t->next < t->limit && t->next < end) {
        if (t->next < t->stored) { // put before a restart, and stored by the agent
            t->next++;
            continue;
        }
        NEB_TRY(agent_distill_request(r->side, (int64_t)t->next, &x->made));
        enum neb_status st = agent_stream_put(t, x->made.p, x->made.len);
        if (st != NEB_OK)
            return st == NEB_ERR_AGAIN ? NEB_OK : st; // the socket is full
    }
    return NEB_OK;
}

// Forwards labels to each follower that has room. *all: all followers have batch `next`, so it may
// be dropped.
static enum neb_status pass_on(struct distill_run *r, bool *all) {
    const struct agent_stream *from = r->streams[0];
    *all = true;
    for (int32_t i = 0; i < r->n_followers; i++) {
        struct agent_stream *t = r->followers[i];
        while (t->next < t->limit && t->next < from->have && t->next >= from->next) {
            const struct neb_buf *b = &from->queue[t->next % from->c.window_batches];
            enum neb_status st = agent_stream_put(t, b->p, b->len);
            if (st == NEB_ERR_AGAIN) // the socket is full
                break;
            NEB_TRY(st);
        }
        *all = *all && t->next > from->next;
    }
    return NEB_OK;
}

// Labels of this step are forgotten: a previous incarnation of this student, whose disk was lost,
// had learned from them. The student skips them if it continues after them; otherwise it learns
// these steps again, from the text.
static bool labels_gone(struct agent_side *x) {
    struct distill_run *r = x->own;
    const struct agent_stream *s = r->streams[0];
    int64_t step = x->figures->step;
    char text[160];
    if (s->anywhere || (uint64_t)step >= s->next)
        return false;
    snprintf(text, sizeof text,
             "labels of steps %lld to %llu are gone: a previous incarnation of this student took "
             "them. It learns these steps from the text alone",
             (long long)step, (unsigned long long)s->next - 1);
    if (!r->said_gone)
        exchange_fault(&x->w->x, text);
    r->said_gone = true;
    return true;
}

// Takes the next labels that are here and that every follower has.
static enum neb_status next_labels(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    bool all;
    NEB_TRY(ask(x));
    NEB_TRY(pass_on(r, &all));
    if (side_take(r->streams[0], t) && !all)
        t->next = SIDE_WAIT;
    return NEB_OK;
}

// No labels have come for so long that the student goes on without them. If labels are here, it
// waits for followers to have room.
static bool gives_up(struct agent_side *x) {
    const struct agent_stream *s = ((struct distill_run *)x->own)->streams[0];
    return s->next >= s->have && patience_over(x);
}

static bool finished(const struct agent_side *x) {
    return x->w->x.federated ? exchange_finished(&x->w->x) : x->figures->step >= x->w->x.job.steps;
}

static bool done(const struct agent_side *x) {
    const struct distill_run *r = x->own;
    bool late = r->n_streams && r->streams[0]->next < (uint64_t)x->w->x.job.steps;
    return finished(x) && !late && !x->w->x.stop;
}

// ---- take ---------------------------------------------------------------------------------------

// The teacher is gone and may never come back. If it does, it learns that no more labels are wanted
// (distill_teacher.c).
static enum neb_status let_go(struct distill_run *r, uint64_t steps) {
    neb_warn("all steps are made and no labels come: this student ends without the last %llu",
             (unsigned long long)(steps - r->streams[0]->next));
    if (r->requests[0])
        r->requests[0]->let_go = true;
    return agent_stream_skip(r->streams[0], steps);
}

// All steps are made. Takes the remaining labels, so that the teacher can end. They belong to steps
// that this student made alone, or that the other students made without it. They only go into the
// cache.
static enum neb_status take_late(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    r->waiting_since = r->late ? r->waiting_since : 0; // discards the wait during steps made alone
    r->late = true;
    NEB_TRY(next_labels(x, t));
    if (t->next == SIDE_WAIT)
        return gives_up(x) ? let_go(r, (uint64_t)x->w->x.job.steps) : NEB_OK;
    t->next = SIDE_OVER;
    int64_t step = agent_distill_step_of(t->p, t->n);
    r->waiting_since = 0;
    if (r->cache[0] && step >= 0)
        NEB_TRY(agent_distill_cache_write(r->cache, step, t->p, t->n));
    return agent_stream_applied(r->streams[0]);
}

static enum neb_status take_stored(struct agent_side *x, struct side_turn *t) {
    const struct distill_run *r = x->own;
    int64_t step = x->figures->step;
    enum neb_status st = agent_distill_cache_read(r->cache, step, &x->made);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(st,
                        "distill.cache: there are no labels of step %lld in %s, and the job has "
                        "no teacher: run the job with a teacher to fill the cache",
                        (long long)step, r->cache);
    t->p = x->made.p;
    t->n = x->made.len;
    return st;
}

// Exchanges rounds between steps.
static enum neb_status exchange(struct agent_side *x, struct side_turn *t) {
    bool ready;
    NEB_TRY(exchange_step(&x->w->x, &ready));
    if (x->w->x.stop || finished(x))
        t->next = SIDE_OVER;
    else if (!ready || x->figures->step >= x->w->x.job.steps)
        t->next = SIDE_WAIT;
    return NEB_OK;
}

static enum neb_status take(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    if (finished(x))
        return take_late(x, t);
    if (x->w->x.federated)
        NEB_TRY(exchange(x, t));
    if (t->next != SIDE_LEARN || x->second)
        return NEB_OK;
    if (!r->n_streams)
        return r->cache[0] ? take_stored(x, t) : NEB_OK;
    if (labels_gone(x))
        return NEB_OK;
    NEB_TRY(next_labels(x, t));
    if (t->next == SIDE_WAIT && gives_up(x))
        t->next = SIDE_LEARN;
    return NEB_OK;
}

// ---- learn --------------------------------------------------------------------------------------

// Learns from the labels of this step. Those of a step that was made without them are dropped.
static enum neb_status use_labels(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    int64_t step = agent_distill_step_of(t->p, t->n);
    if (r->said_waiting)
        exchange_metrics(&x->w->x,
                         json_pack("{s:s,s:s}", "kind", "note", "text", "labels are coming again"));
    r->waiting_since = 0;
    r->said_waiting = false;
    if (step < 0 ||
        step >= x->figures->step) // labels that do not fit are refused where they are read
        NEB_TRY(agent_distill_learn(r->side, t->p, t->n));
    return r->cache[0] && step >= 0 ? agent_distill_cache_write(r->cache, step, t->p, t->n)
                                    : NEB_OK;
}

static enum neb_status learn_alone(struct agent_side *x) {
    struct distill_run *r = x->own;
    r->alone++;
    r->streams[0]->waits = 0; // it is not waiting
    NEB_TRY(ask(x));
    return agent_distill_learn(r->side, NULL, 0);
}

static enum neb_status learn_step(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    if (x->second)
        return agent_distill_learn_from(r->side, ((struct distill_run *)x->second->own)->side);
    if (t->from)
        return use_labels(x, t);
    return r->n_streams ? learn_alone(x) : agent_distill_learn(r->side, t->p, t->n);
}

static enum neb_status learn(struct agent_side *x, struct side_turn *t) {
    struct side_figures was = *x->figures;
    NEB_TRY(learn_step(x, t));
    t->stepped = x->figures->step != was.step;
    t->save = t->stepped ? SIDE_SAVE_DUE : SIDE_SAVE_NOT;
    return NEB_OK;
}

// Labels of skipped steps come late, and are dropped.
static enum neb_status skip(struct agent_side *x, int64_t n) {
    ((struct distill_run *)x->own)->side->s.f.step += n;
    return NEB_OK;
}

const struct side_role side_student = {DISTILL_ROLE_OPS, .is = AGENT_ROLE_STUDENT, .done = done,
                                       .take = take,     .learn = learn,           .skip = skip};
