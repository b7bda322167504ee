// SPDX-License-Identifier: Apache-2.0
// The role of the student: it learns from text and labels, from the cache, or alone. With
// distill.when_lost: alone it goes on without the labels of a teacher that sends none for
// patience_s, and ends without the last ones. It then reports that it needs no more
// (agent_stream_skip), so a teacher that comes back leaves them out.
#include "agent/base/log.h"
#include "agent/train/distill.h"

static void say_waiting(struct agent_side *x, int32_t i, double waited) {
    const struct distill_run *r = x->own;
    char text[160 + AGENT_NAME_MAX], of[AGENT_NAME_MAX + 8] = "";
    if (r->n_streams > 1)
        snprintf(of, sizeof of, " of %s", x->w->x.job.clusters[r->other[i]].name);
    snprintf(text, sizeof text, "no labels%s for %.0f s at step %lld: %s", of, waited,
             (long long)x->figures->step,
             x->w->x.job.distill.when_lost == AGENT_LOST_WAIT ? "waiting for the teacher"
             : r->n_streams > 1                               ? "continuing without them"
                                                              : "continuing with cross-entropy");
    exchange_fault(&x->w->x, text);
}

// The student waits for labels of teacher i. Logs that once. True if it should continue without
// them.
static bool patience_over(struct agent_side *x, int32_t i) {
    const struct agent_distill_config *d = &x->w->x.job.distill;
    struct distill_run *r = x->own;
    neb_ns now = neb_now();
    if (!r->waits_since[i])
        r->waits_since[i] = now;
    double waited = neb_seconds(now - r->waits_since[i]);
    if (waited < (double)d->patience_s)
        return false;
    if (!r->said_lost[i])
        say_waiting(x, i, waited);
    r->said_lost[i] = true;
    return d->when_lost == AGENT_LOST_ALONE;
}

// Labels of teacher i are here.
static void end_wait(struct agent_side *x, int32_t i) {
    struct distill_run *r = x->own;
    if (r->said_lost[i])
        exchange_metrics(&x->w->x,
                         json_pack("{s:s,s:s}", "kind", "note", "text", "labels are coming again"));
    r->waits_since[i] = 0;
    r->said_lost[i] = false;
}

// Requests labels ahead from a teacher, as long as its stream has room: at most distill.ahead of
// them in one call.
static enum neb_status ask_one(struct agent_side *x, struct agent_stream *t) {
    struct distill_run *r = x->own;
    uint64_t steps = (uint64_t)x->w->x.job.steps,
             end = t->next + (uint64_t)x->w->x.job.distill.ahead,
             written = distill_own_end(r->side);
    end = end < steps ? end : steps;
    end = end < written ? end : written;
    while (t->next < t->limit && t->next < end) {
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

static enum neb_status ask(struct agent_side *x) {
    struct distill_run *r = x->own;
    if (distill_writes(r->side)) {
        exchange_heartbeat(&x->w->x, false, 0); // samples are no step
        NEB_TRY(distill_write_ahead(r->side));
    }
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->requests[i])
            NEB_TRY(ask_one(x, r->requests[i]));
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
// these steps again, from the text or from the other teachers' labels.
static bool labels_gone(struct agent_side *x, const struct agent_stream *s) {
    struct distill_run *r = x->own;
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

// Drops labels of steps before `end`, which this student has made without them, that are here and
// that every follower has. They only go into the cache.
static enum neb_status drop_late(struct agent_side *x, int64_t end, bool *dropped) {
    struct distill_run *r = x->own;
    const uint8_t *p;
    size_t n;
    for (int32_t i = 0; i < r->n_streams; i++) {
        struct agent_stream *s = r->streams[i];
        while (!s->anywhere && s->next < (uint64_t)end && agent_stream_next(s, &p, &n) == NEB_OK) {
            bool all;
            NEB_TRY(pass_on(r, &all));
            if (!all)
                return NEB_OK;
            int64_t step = agent_distill_step_of(p, n);
            if (r->cache[0] && step >= 0)
                NEB_TRY(agent_distill_cache_write(r->cache, step, p, n));
            NEB_TRY(agent_stream_applied(s));
            *dropped = true;
            end_wait(x, i);
        }
    }
    return NEB_OK;
}

// Looks for the labels of the step that is due. *waits: a teacher's are not here, but may come; or
// a follower has no room for them.
static enum neb_status look(struct agent_side *x, bool *waits) {
    struct distill_run *r = x->own;
    const uint8_t *p;
    size_t n;
    bool all, dropped = false;
    NEB_TRY(ask(x));
    NEB_TRY(drop_late(x, x->figures->step, &dropped));
    NEB_TRY(pass_on(r, &all));
    *waits = false;
    for (int32_t i = 0; i < r->n_streams; i++) {
        bool gone = labels_gone(x, r->streams[i]),
             here = !gone && agent_stream_next(r->streams[i], &p, &n) == NEB_OK;
        r->taken[i] = here && all;
        *waits |= here ? !all : !gone && !patience_over(x, i);
    }
    return NEB_OK;
}

static bool finished(const struct agent_side *x) {
    return x->w->x.federated ? exchange_finished(&x->w->x) : x->figures->step >= x->w->x.job.steps;
}

static bool has_late(const struct agent_side *x) {
    const struct distill_run *r = x->own;
    bool late = false;
    for (int32_t i = 0; i < r->n_streams; i++)
        late |= r->streams[i]->next < (uint64_t)x->w->x.job.steps;
    return late;
}

static bool done(const struct agent_side *x) {
    return finished(x) && !has_late(x) && !x->w->x.stop;
}

// ---- take ---------------------------------------------------------------------------------------

// Teachers are gone and may never come back. If one does, it learns that no more labels are wanted
// (distill_teacher.c).
static enum neb_status let_go(struct agent_side *x, uint64_t steps) {
    struct distill_run *r = x->own;
    for (int32_t i = 0; i < r->n_streams; i++) {
        if (r->streams[i]->next >= steps || r->streams[i]->next < r->streams[i]->have ||
            !patience_over(x, i))
            continue;
        neb_warn("all steps are made and no labels come: this student ends without the last %llu",
                 (unsigned long long)(steps - r->streams[i]->next));
        if (r->requests[i])
            r->requests[i]->let_go = true;
        NEB_TRY(agent_stream_skip(r->streams[i], steps));
    }
    return NEB_OK;
}

// All steps are made. Takes the remaining labels, so that the teachers can end. They belong to
// steps that this student made alone, or that the other students made without it.
static enum neb_status take_late(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    bool dropped = false;
    for (int32_t i = 0; i < r->n_streams && !r->late; i++)
        r->waits_since[i] = 0; // discards the wait during steps made alone
    r->late = true;
    NEB_TRY(ask(x));
    NEB_TRY(drop_late(x, x->w->x.job.steps, &dropped));
    t->next = dropped ? SIDE_OVER : SIDE_WAIT;
    return dropped ? NEB_OK : let_go(x, (uint64_t)x->w->x.job.steps);
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
    bool waits;
    if (finished(x))
        return take_late(x, t);
    if (x->w->x.federated)
        NEB_TRY(exchange(x, t));
    if (t->next != SIDE_LEARN || x->second)
        return NEB_OK;
    if (!r->n_streams)
        return r->cache[0] ? take_stored(x, t) : NEB_OK;
    NEB_TRY(look(x, &waits));
    if (waits)
        t->next = SIDE_WAIT;
    return NEB_OK;
}

// ---- learn --------------------------------------------------------------------------------------

static int32_t list_labels(const struct agent_side *x, struct agent_distill_labels *out) {
    const struct distill_run *r = x->own;
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->taken[i] && agent_stream_next(r->streams[i], &out[n].p, &out[n].n) == NEB_OK)
            out[n++].weight = agent_distill_weight(&x->w->x.job, r->other[i]);
    return n;
}

// Learns from the labels of this step that are here.
static enum neb_status use_labels(struct agent_side *x, const struct agent_distill_labels *l,
                                  int32_t n) {
    struct distill_run *r = x->own;
    int64_t step = x->figures->step;
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->taken[i])
            end_wait(x, i);
    NEB_TRY(agent_distill_learn(r->side, l, n));
    if (r->cache[0])
        NEB_TRY(agent_distill_cache_write(r->cache, step, l->p, l->n));
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->taken[i])
            NEB_TRY(agent_stream_applied(r->streams[i]));
    return NEB_OK;
}

static enum neb_status learn_alone(struct agent_side *x) {
    struct distill_run *r = x->own;
    r->alone++;
    for (int32_t i = 0; i < r->n_streams; i++)
        r->streams[i]->waits = 0; // it is not waiting
    return agent_distill_learn(r->side, NULL, 0);
}

static enum neb_status learn_step(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    struct agent_distill_labels l[AGENT_CLUSTERS_MAX] = {{.p = t->p, .n = t->n, .weight = 1}};
    if (x->second)
        return agent_distill_learn_from(r->side, ((struct distill_run *)x->second->own)->side);
    if (!r->n_streams)
        return agent_distill_learn(r->side, l, t->p != NULL);
    int32_t n = list_labels(x, l);
    return n ? use_labels(x, l, n) : learn_alone(x);
}

static enum neb_status learn(struct agent_side *x, struct side_turn *t) {
    NEB_TRY(learn_step(x, t));
    t->stepped = true;
    t->save = SIDE_SAVE_DUE;
    return NEB_OK;
}

// Labels of skipped steps come late, and are dropped.
static enum neb_status skip(struct agent_side *x, int64_t n) {
    ((struct distill_run *)x->own)->side->s.f.step += n;
    return NEB_OK;
}

const struct side_role side_student = {DISTILL_ROLE_OPS, .is = AGENT_ROLE_STUDENT, .done = done,
                                       .take = take,     .learn = learn,           .skip = skip};
