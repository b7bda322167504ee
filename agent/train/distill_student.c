// SPDX-License-Identifier: Apache-2.0
// The student of mode distill: learns from text and labels, from the cache, or alone. With
// distill.when_lost: alone it ends without the last labels if none come for patience_s. It then
// reports that it needs no more (agent_stream_skip), so a teacher that comes back leaves them out.
#include "agent/base/log.h"
#include "agent/train/distill_cache.h"
#include "agent/train/distill_run.h"

// Also in the log: metrics are lost if they go to the teacher's side.
static void say_waiting(struct distill_run *r, double waited) {
    char text[160];
    snprintf(text, sizeof text, "no labels for %.0f s at step %lld: %s", waited,
             (long long)agent_distill_state(r->side)->step,
             r->w->x.job.distill.when_lost == AGENT_LOST_WAIT ? "waiting for the teacher"
                                                              : "continuing with cross-entropy");
    neb_warn("%s", text);
    exchange_metrics(&r->w->x, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
}

// The student waits for labels. Logs that once. True if it should continue without them.
static bool patience_over(struct distill_run *r) {
    const struct agent_distill_config *d = &r->w->x.job.distill;
    neb_ns now = neb_now();
    if (!r->waiting_since)
        r->waiting_since = now;
    double waited = neb_seconds(now - r->waiting_since);
    if (waited < (double)d->patience_s)
        return false;
    if (!r->said_waiting)
        say_waiting(r, waited);
    r->said_waiting = true;
    return d->when_lost == AGENT_LOST_ALONE;
}

// Requests labels ahead, as long as the stream has room: at most distill.ahead of them in one call.
static enum neb_status ask(struct distill_run *r) {
    struct agent_stream *t = r->requests[0];
    uint64_t end = t ? t->next + (uint64_t)r->w->x.job.distill.ahead : 0;
    end = end < (uint64_t)r->w->x.job.steps ? end : (uint64_t)r->w->x.job.steps;
    while (t && t->next < t->limit && t->next < end) {
        if (t->next < t->stored) { // put before a restart, and stored by the agent
            t->next++;
            continue;
        }
        NEB_TRY(agent_distill_request(r->side, (int64_t)t->next, &r->batch));
        NEB_TRY(agent_stream_put(t, r->batch.p, r->batch.len));
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
            NEB_TRY(agent_stream_put(t, b->p, b->len));
        }
        *all = *all && t->next > from->next;
    }
    return NEB_OK;
}

// Labels of this step are forgotten: a previous incarnation of this student, whose disk was lost,
// had learned from them. The student skips them if it continues after them; otherwise it learns
// these steps again, from the text.
static bool labels_gone(struct distill_run *r, int64_t step) {
    const struct agent_stream *s = r->streams[0];
    char text[160];
    if (s->anywhere || (uint64_t)step >= s->next)
        return false;
    snprintf(text, sizeof text,
             "labels of steps %lld to %llu are gone: a previous incarnation of this student took "
             "them. It learns these steps from the text alone",
             (long long)step, (unsigned long long)s->next - 1);
    if (!r->said_gone) {
        neb_warn("%s", text);
        exchange_metrics(&r->w->x, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
    }
    r->said_gone = true;
    return true;
}

// The next labels that are here and that every follower has. NEB_ERR_AGAIN: none.
static enum neb_status next_labels(struct distill_run *r, const uint8_t **p, size_t *n) {
    bool all;
    NEB_TRY(ask(r));
    NEB_TRY(pass_on(r, &all));
    enum neb_status st = agent_stream_next(r->streams[0], p, n);
    return st == NEB_OK && !all ? NEB_ERR_AGAIN : st;
}

// Labels are here, but followers have no room.
static bool waits_for_followers(const struct distill_run *r) {
    return r->streams[0]->next < r->streams[0]->have;
}

// Handles labels that are here: it learns from those of this step, and drops those of a step that
// was made without them.
static enum neb_status take_labels(struct distill_run *r, const uint8_t *p, size_t n, bool *used) {
    int64_t step = agent_distill_step_of(p, n), now = agent_distill_state(r->side)->step;
    if (r->said_waiting)
        exchange_metrics(&r->w->x,
                         json_pack("{s:s,s:s}", "kind", "note", "text", "labels are coming again"));
    r->waiting_since = 0;
    r->said_waiting = false;
    *used = step < 0 || step >= now; // labels that do not fit are refused where they are read
    if (*used)
        NEB_TRY(agent_distill_learn(r->side, p, n));
    if (r->cache[0] && step >= 0)
        NEB_TRY(agent_distill_cache_write(r->cache, step, p, n));
    return agent_stream_applied(r->streams[0]);
}

static enum neb_status learn_alone(struct distill_run *r) {
    r->alone++;
    r->streams[0]->waits = 0; // it is not waiting
    NEB_TRY(ask(r));
    return agent_distill_learn(r->side, NULL, 0);
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
                            "distill.cache: there are no labels of step %lld in %s, and the job "
                            "has no teacher: run the job with a teacher to fill the cache",
                            (long long)step, r->cache);
        NEB_TRY(st);
        return agent_distill_learn(r->side, r->batch.p, r->batch.len);
    }
    if (!r->n_streams)
        return agent_distill_learn(r->side, NULL, 0);
    if (labels_gone(r, step))
        return learn_alone(r);
    st = next_labels(r, &p, &n);
    if (st == NEB_OK)
        return take_labels(r, p, n, &used);
    NEB_TRY(st == NEB_ERR_AGAIN ? NEB_OK : st);
    if (waits_for_followers(r) || !patience_over(r))
        return exchange_wait(&r->w->x);
    return learn_alone(r);
}

// Exchanges rounds between steps. *ready: the next step may begin.
static enum neb_status exchange(struct distill_run *r, bool *ready) {
    *ready = true;
    if (!r->w->x.federated)
        return NEB_OK;
    NEB_TRY(exchange_step(&r->w->x, ready));
    *ready = *ready && agent_distill_state(r->side)->step < r->w->x.job.steps;
    return NEB_OK;
}

static bool done(const struct distill_run *r) {
    return r->w->x.federated ? exchange_finished(&r->w->x)
                             : agent_distill_state(r->side)->step >= r->w->x.job.steps;
}

// The teacher is gone and may never come back. If it does, it learns that no more labels are wanted
// (distill_teacher.c).
static enum neb_status let_go(struct distill_run *r) {
    uint64_t steps = (uint64_t)r->w->x.job.steps;
    neb_warn("all steps are made and no labels come: this student ends without the last %llu",
             (unsigned long long)(steps - r->streams[0]->next));
    if (r->requests[0])
        r->requests[0]->let_go = true;
    return agent_stream_skip(r->streams[0], steps);
}

// Handles labels that come too late: of steps made alone, or of steps that the other students made
// without this one. They are only kept in the cache.
static enum neb_status drop_labels(struct distill_run *r, const uint8_t *p, size_t n) {
    int64_t step = agent_distill_step_of(p, n);
    r->waiting_since = 0;
    if (r->cache[0] && step >= 0)
        NEB_TRY(agent_distill_cache_write(r->cache, step, p, n));
    return agent_stream_applied(r->streams[0]);
}

// Takes the remaining labels, so that the teacher can end.
static enum neb_status late_labels(struct distill_run *r) {
    r->waiting_since = 0; // discards the wait during steps made alone
    while (!r->w->x.stop && r->n_streams && r->streams[0]->next < (uint64_t)r->w->x.job.steps) {
        const uint8_t *p;
        size_t n;
        NEB_TRY(exchange_drain(&r->w->x));
        enum neb_status st = next_labels(r, &p, &n);
        if (st == NEB_OK)
            NEB_TRY(drop_labels(r, p, n));
        else if (st != NEB_ERR_AGAIN)
            return st;
        else if (!waits_for_followers(r) && patience_over(r))
            return let_go(r);
        else
            NEB_TRY(exchange_wait(&r->w->x));
    }
    return NEB_OK;
}

enum neb_status distill_learn(struct distill_run *r) {
    struct agent_distill_state *x = agent_distill_state(r->side);
    while (!r->w->x.stop && !done(r)) {
        bool ready;
        NEB_TRY(exchange_drain(&r->w->x));
        NEB_TRY(exchange(r, &ready));
        if (r->w->x.stop || done(r))
            break;
        if (!ready) {
            NEB_TRY(exchange_wait(&r->w->x));
            continue;
        }
        int64_t was = x->step;
        double trained_s = x->train_s;
        NEB_TRY(learn_once(r));
        if (x->step == was)
            continue;
        if (r->w->x.federated)
            exchange_step_took(&r->w->x, x->train_s - trained_s);
        distill_say_step(r);
        NEB_TRY(distill_maybe_save(r));
    }
    return late_labels(r);
}
