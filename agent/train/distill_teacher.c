// SPDX-License-Identifier: Apache-2.0
// The role of the teacher: it labels the batches of its students, as far as each has room.
#include "agent/base/log.h"
#include "agent/train/distill.h"

// True if stream i has room, and the text for its next batch is here.
static bool ready(const struct distill_run *r, int32_t i) {
    return r->streams[i]->next < r->streams[i]->limit &&
           (!r->requests[i] || r->requests[i]->next < r->requests[i]->have);
}

// The student to serve next; -1: none. A teacher that learns serves its students in turn, so that
// the order of batches is always the same. A frozen teacher serves the student with room that is
// furthest behind.
static int32_t next_student(const struct distill_run *r) {
    const struct agent_job *j = &r->side->job;
    int32_t found = -1;
    for (int32_t i = 0; i < r->n_streams; i++) {
        bool room = ready(r, i);
        if (r->labelled[i] >= j->steps || (!j->distill.learn && !room))
            continue;
        found = found < 0 || r->labelled[i] < r->labelled[found] ? i : found;
    }
    return found >= 0 && ready(r, found) ? found : -1;
}

// True if student i has ended without its last labels (distill_student.c): then it reports that it
// needs no more labels, and requests none. A teacher that learns still trains on its text, as after
// a restart. If the student sends the text, the teacher trains only as long as text comes.
static bool wants_no_more(struct distill_run *r, int32_t i) {
    const struct agent_distill_config *d = &r->side->job.distill;
    if (r->labelled[i] >= r->side->job.steps ||
        r->streams[i]->durable < (uint64_t)r->side->job.steps)
        return false;
    if (!d->learn)
        return true;
    if (!r->requests[i] || ready(r, i)) {
        r->waiting_since = 0;
        return false;
    }
    r->waiting_since = r->waiting_since ? r->waiting_since : neb_now();
    return neb_seconds(neb_now() - r->waiting_since) >= (double)d->patience_s;
}

static enum neb_status leave_out(struct distill_run *r, int32_t i) {
    int64_t left = r->side->job.steps - r->labelled[i];
    neb_info("%s needs no more labels: the last %lld are not made",
             r->side->job.clusters[r->other[i]].name, (long long)left);
    r->side->s.f.step += left;
    r->labelled[i] = r->side->job.steps;
    r->streams[i]->next = (uint64_t)r->side->job.steps;
    r->waiting_since = 0;
    return r->requests[i] ? agent_stream_skip(r->requests[i], (uint64_t)r->side->job.steps)
                          : NEB_OK;
}

// The number of labels per position in the next batch of stream i, as its link allows.
static int32_t choose_k(struct agent_side *x, int32_t i) {
    struct distill_run *r = x->own;
    struct agent_label_rate *rate = &r->rate[i];
    const struct agent_stream *t = r->streams[i];
    char reason[200];
    struct agent_label_view view = {t->next, t->arrived, t->taken, t->path};
    if (agent_label_rate_next(rate, neb_now(), &view, reason, sizeof reason))
        exchange_metrics(&x->w->x, json_pack("{s:s,s:I,s:s,s:i,s:f,s:f,s:s}", "kind", "labels",
                                             "step", (json_int_t)r->labelled[i], "student",
                                             x->w->x.job.clusters[r->other[i]].name, "k", rate->k,
                                             "goodput_bps", t->path.goodput_bps, "waited_s",
                                             neb_seconds(t->path.waited), "reason", reason));
    return rate->k;
}

// An agent that restarts after its part has ended reports nothing about its streams.
static void say_full(struct agent_side *x) {
    struct distill_run *r = x->own;
    char text[200];
    double waited = r->full_since ? neb_seconds(neb_now() - r->full_since) : 0;
    r->full_since = r->full_since ? r->full_since : neb_now();
    if (waited < (double)x->w->x.job.distill.patience_s || r->said_waiting)
        return;
    snprintf(text, sizeof text,
             "no student has had room for labels for %.0f s: if all students have ended (check "
             "with nebula jobs on their side), nebula stop ends this cluster's part",
             waited);
    exchange_fault(&x->w->x, text);
    r->said_waiting = true;
}

static bool done(const struct agent_side *x) {
    const struct distill_run *r = x->own;
    for (int32_t i = 0; i < r->n_streams; i++)
        if (r->labelled[i] < x->w->x.job.steps)
            return false;
    return !x->w->x.stop;
}

static enum neb_status take(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    for (int32_t i = 0; i < r->n_streams; i++)
        if (wants_no_more(r, i))
            NEB_TRY(leave_out(r, i));
    int32_t i = next_student(r);
    if (i < 0) {
        say_full(x);
        t->next = SIDE_WAIT;
        return NEB_OK;
    }
    r->full_since = 0;
    r->said_waiting = false;
    r->serves = i;
    if (r->requests[i])
        side_take(r->requests[i], t);
    return NEB_OK;
}

// Makes one batch. A batch that the agent has on disk under this number is not made again after a
// restart, but a teacher that learns trains on its text again.
static enum neb_status learn(struct agent_side *x, struct side_turn *t) {
    struct distill_run *r = x->own;
    int32_t i = r->serves;
    struct agent_stream *s = r->streams[i];
    bool stored = s->next < s->stored;
    uint64_t rows = r->side->s.label_rows;
    if (r->side->own.micros)
        exchange_heartbeat(&x->w->x, false, 0); // answers take longer than a step
    if (!stored || x->w->x.job.distill.learn)
        NEB_TRY(
            agent_distill_label(r->side, i, r->labelled[i], choose_k(x, i), t->p, t->n, &x->made));
    else
        r->side->s.f.step++;
    if (stored) {
        s->next++;
    } else {
        agent_label_rate_made(&r->rate[i], r->side->s.label_rows - rows, x->made.len);
        t->to = s;
    }
    r->labelled[i]++;
    t->stepped = true;
    return NEB_OK;
}

const struct side_role side_teacher = {DISTILL_ROLE_OPS,       .is = AGENT_ROLE_TEACHER,
                                       .file = "teacher.ckpt", .done = done,
                                       .take = take,           .learn = learn};
