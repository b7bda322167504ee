// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange/schedule.h"
#include "agent/job/groups.h"

struct agent_schedule agent_schedule_of(const struct agent_job *job) {
    const struct agent_sync *sync = &job->sync;
    struct agent_schedule s = {.steps = job->steps,
                               .interval = sync->interval,
                               .overlap = sync->overlap,
                               .fragments = agent_job_fragments(job),
                               .early_interval = sync->early_interval,
                               .early_steps = sync->early_steps};
    for (int32_t f = 0; f < s.fragments; f++)
        s.every[f] = agent_job_fragment_every(job, f);
    return s;
}

int32_t agent_schedule_every(const struct agent_schedule *s, int32_t f) {
    return s->every[f] > 1 ? s->every[f] : 1;
}

// In [0, H): after the early steps, fragments are spread evenly over the interval H.
static int64_t offset(const struct agent_schedule *s, int32_t f) {
    return (int64_t)f * s->interval / s->fragments;
}

static int64_t early_cycles(const struct agent_schedule *s) {
    return s->early_steps ? s->early_steps / s->early_interval : 0;
}

bool agent_schedule_due(const struct agent_schedule *s, int32_t f, int64_t step) {
    int64_t base = 0, cycles = 0, o = (int64_t)f * s->early_interval / s->fragments,
            interval = s->early_interval;
    if (step <= 0)
        return false;
    if (step > s->early_steps) {
        bool changed = s->base > s->early_steps;
        base = changed ? s->base : s->early_steps;
        cycles = changed ? s->base_cycles : early_cycles(s);
        o = offset(s, f);
        interval = s->interval;
    }
    int64_t every = agent_schedule_every(s, f);
    return (step - base - o) % interval == 0 &&
           (cycles + (step - base - 1) / interval) % every == every - 1;
}

// The sends of one fragment in order: the step of the last one, and the fewest steps between two.
struct stretches {
    int64_t last, least;
};

static void send_at(struct stretches *x, int64_t step) {
    if (step > x->last && step - x->last < x->least)
        x->least = step - x->last;
    x->last = step > x->last ? step : x->last;
}

// A send every `interval` steps from `first` to `end` (inclusive).
static void sends(struct stretches *x, int64_t first, int64_t interval, int64_t end) {
    if (first > end)
        return;
    send_at(x, first);
    if (first + interval <= end)
        send_at(x, first + interval);
    send_at(x, first + (end - first) / interval * interval);
}

// The first step at which fragment f is due: among the early steps, and after them (base is 0).
static int64_t first_early(const struct agent_schedule *s, int32_t f) {
    int64_t o = (int64_t)f * s->early_interval / s->fragments;
    return (agent_schedule_every(s, f) - 1) * (int64_t)s->early_interval +
           (o ? o : s->early_interval);
}

static int64_t first_due(const struct agent_schedule *s, int32_t f) {
    int64_t o = offset(s, f), every = agent_schedule_every(s, f);
    return s->early_steps + (every - 1 - early_cycles(s) % every) * s->interval +
           (o ? o : s->interval);
}

int64_t agent_schedule_least(const struct agent_schedule *s) {
    int64_t least = s->steps;
    for (int32_t f = 0; f < s->fragments; f++) {
        struct stretches x = {0, s->steps};
        int64_t early = s->early_steps < s->steps ? s->early_steps : s->steps,
                every = agent_schedule_every(s, f);
        if (early > 0)
            sends(&x, first_early(s, f), every * s->early_interval, early);
        sends(&x, first_due(s, f), every * s->interval, s->steps);
        send_at(&x, s->steps);
        least = x.least < least ? x.least : least;
    }
    return least;
}

// How many of the numbers first, first + apart, … are at most `last`.
static int64_t count(int64_t first, int64_t apart, int64_t last) {
    return last < first ? 0 : (last - first) / apart + 1;
}

int64_t agent_schedule_sends(const struct agent_schedule *s) {
    int64_t all = 0, last = s->steps - 1, early = s->early_steps < last ? s->early_steps : last;
    for (int32_t f = 0; f < s->fragments; f++) {
        int64_t every = agent_schedule_every(s, f);
        if (s->early_steps)
            all += count(first_early(s, f), every * s->early_interval, early);
        all += count(first_due(s, f), every * s->interval, last);
        all++; // the final send, at the last step
    }
    return all;
}

int32_t agent_schedule_interval(const struct agent_schedule *s, int64_t step) {
    return step < s->early_steps ? s->early_interval : s->interval;
}

void agent_schedule_change(struct agent_schedule *s, int64_t step, int32_t interval) {
    if (interval == s->interval)
        return;
    int64_t base = s->base > s->early_steps ? s->base : s->early_steps,
            before = s->base > s->early_steps ? s->base_cycles : early_cycles(s);
    if (step > base) // the first fragment ends a cycle
        s->base_cycles = before + (step - base - 1) / s->interval + 1;
    s->interval = interval;
    s->base = step;
}

// Position of a fragment's next update in the order in which all members send: by cycle, then by
// offset. The first fragment (offset 0) closes a cycle. So a member that lags, or that ran alone
// for a while, still offers the update that the others wait for.
static int64_t next_in_order(const struct agent_schedule *s, const struct agent_fragment *g,
                             int32_t f) {
    int64_t round = (int64_t)g->round + (g->in_flight ? 1 : 0),
            cycle = (round + 1) * agent_schedule_every(s, f);
    return cycle * s->fragments + (f == 0 ? s->fragments - 1 : f - 1);
}

// True if some fragment is due at this step, nothing was sent at this step yet, and f has its turn.
static bool turn_of(const struct agent_schedule *s, const struct agent_fragment *frags, int32_t f,
                    int64_t step) {
    bool any = false;
    for (int32_t g = 0; g < s->fragments; g++) {
        if (frags[g].send_step >= step ||
            next_in_order(s, &frags[g], g) < next_in_order(s, &frags[f], f))
            return false;
        any = any || agent_schedule_due(s, g, step);
    }
    return any;
}

// True if fragment f is due and nothing can be sent at this step: the fragment that has its turn is
// still in flight, and the worker does not wait for it. (If the worker waits, it sends at this
// step.)
static bool missed(const struct agent_schedule *s, const struct agent_fragment *frags, int32_t f,
                   int64_t step, bool peers_alive) {
    int32_t turn = 0;
    for (int32_t g = 0; g < s->fragments; g++) {
        if (frags[g].send_step >= step)
            return false;
        if (next_in_order(s, &frags[g], g) < next_in_order(s, &frags[turn], turn))
            turn = g;
    }
    const struct agent_fragment *t = &frags[turn];
    bool merges = (t->arrived || peers_alive) && step >= t->merge_step;
    return agent_schedule_due(s, f, step) && t->in_flight && !merges;
}

enum agent_decision agent_schedule_decide(const struct agent_schedule *s,
                                          const struct agent_fragment *frags, int32_t f,
                                          int64_t step, bool peers_alive, int64_t counted_miss) {
    const struct agent_fragment *frag = &frags[f];
    bool last = step >= s->steps;
    if (frag->finished)
        return AGENT_GO_ON;
    if (frag->in_flight) {
        bool ripe = last || step >= frag->merge_step;
        if (ripe && frag->arrived)
            return AGENT_MERGE;
        if (last || (ripe && peers_alive))
            return AGENT_WAIT;
    } else if (last || (turn_of(s, frags, f, step) && step > frag->committed_step)) {
        return AGENT_SEND;
    }
    return counted_miss != step && missed(s, frags, f, step, peers_alive) ? AGENT_MISS
                                                                          : AGENT_GO_ON;
}

bool agent_schedule_finished(const struct agent_schedule *s, const struct agent_fragment *frags) {
    for (int32_t f = 0; f < s->fragments; f++)
        if (!frags[f].finished)
            return false;
    return true;
}
