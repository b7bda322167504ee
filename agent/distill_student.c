// The student of mode distill: learns from text and labels, from the cache, or alone.
#include "agent/base/log.h"
#include "agent/distill_cache.h"
#include "agent/distill_run.h"

// In the log too: lines of metrics are lost where they go to the teacher's side.
static void say_waiting(struct distill_run *r, double waited) {
    char text[160];
    snprintf(text, sizeof text, "no labels for %.0f s at step %lld: %s", waited,
             (long long)agent_distill_state(r->side)->step,
             r->w->job.distill.when_lost == AGENT_LOST_WAIT ? "waiting for the teacher"
                                                            : "going on with cross-entropy");
    neb_warn("%s", text);
    worker_metrics(r->w, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
}

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
        say_waiting(r, waited);
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
        return distill_wait(r);
    r->alone++;
    r->streams[0]->waits = 0; // it works
    return agent_distill_learn(r->side, NULL, 0);
}

enum neb_status distill_learn(struct distill_run *r) {
    struct agent_distill_state *x = agent_distill_state(r->side);
    while (!r->w->stop && x->step < r->w->job.steps) {
        int64_t was = x->step;
        NEB_TRY(distill_drain(r));
        NEB_TRY(learn_once(r));
        if (x->step == was)
            continue;
        distill_say_step(r);
        NEB_TRY(distill_maybe_save(r));
    }
    // Labels that come too late, of steps made alone: the teacher shall be able to end.
    while (!r->w->stop && r->n_streams && r->streams[0]->next < (uint64_t)r->w->job.steps) {
        const uint8_t *p;
        size_t n;
        NEB_TRY(distill_drain(r));
        enum neb_status st = agent_stream_next(r->streams[0], &p, &n);
        NEB_TRY(st == NEB_ERR_AGAIN ? distill_wait(r)
                : st == NEB_OK      ? agent_stream_applied(r->streams[0])
                                    : st);
    }
    return NEB_OK;
}
