// SPDX-License-Identifier: Apache-2.0
#include "inter/record/tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double margin_change = 1.2, margin_dearer = 1.5, optimism = 4, recovery = 2,
                    hardly = 1.1; // a flight this much longer does not count
enum {
    WISHES = 2,
    BELATED = 2,
    TRIAL_BLIND = 2,
    TRIAL_LENGTH = 5,
    TRIAL_WAIT = 4,
    FAILURES_MAX = 4
};

const char *inter_reason_text(enum inter_reason r) {
    static const char *const text[INTER_REASONS] = {
        "the job's own values",
        "the previous plan still fits",
        "updates would arrive after their merge step",
        "the link cannot carry all fragments of an interval",
        "the codec loses too much",
        "the link can carry a finer codec or an earlier merge",
        "updates are too small to measure the link, so a finer codec is tried",
        "no plan within the bounds fits; the fastest one is used",
        "its speed relative to the fastest cluster has changed",
        "another cluster needs a longer interval"};
    return r < INTER_REASONS ? text[r] : "unknown";
}

struct view { // the facts of one decision
    const struct inter_tune_config *c;
    const struct inter_tuner *t;
    const struct inter_measure *m;
    double bytes, goodput, step_s, steps_left;
    uint32_t common; // longest interval of all members: no overlap is longer
    double others;   // seconds until the update of the slowest other member has arrived
    double met;      // goodput that the update itself met; infinite: not known
};

static const struct cmp_variant *row(int level) {
    static const struct cmp_variant job = {.bits = 32, .density = 1};
    return level == CMP_LEVEL_JOB ? &job : cmp_level(level);
}

// The size that a codec gave this member's own updates is more accurate than the table.
static double bytes_as(const struct view *v, int level) {
    if (v->t->bytes[level])
        return v->t->bytes[level];
    return v->bytes * row(level)->bits / row(v->m->codec)->bits;
}

// Seconds from the send until the commit arrives.
static double travel(const struct view *v, int level, double goodput) {
    return 8 * bytes_as(v, level) / goodput + (1 + INTER_AGREE_TRIPS) * v->m->rtt_us * 1e-6;
}

static bool carries(const struct view *v, const struct inter_plan *p, double goodput,
                    double margin) {
    return v->c->fragments * 8 * bytes_as(v, p->codec) / goodput * margin <=
           p->interval * v->step_s;
}

static uint32_t overlap_most(const struct view *v, uint32_t interval) {
    uint32_t h = v->common > interval ? v->common : interval;
    return v->c->overlap_max < h - 1 ? v->c->overlap_max : h - 1;
}

// Least overlap in steps. The updates of others count only as far as an overlap can be that long.
static double steps_needed(const struct view *v, int level, uint32_t interval, double goodput,
                           double margin) {
    double own = ceil(travel(v, level, goodput / margin) / v->step_s),
           others = ceil(v->others * margin / v->step_s), most = overlap_most(v, interval);
    return fmax(own, v->c->overlap ? fmin(others, most) : 0);
}

static bool arrives(const struct view *v, const struct inter_plan *p, double goodput,
                    double margin) {
    return steps_needed(v, p->codec, p->interval, goodput, margin) <= p->overlap;
}

static bool too_lossy(const struct view *v, int level) {
    const struct cmp_variant *now = row(v->m->codec), *then = row(level);
    if (then->density < 1 || !(v->m->error > 0) || now->error <= 0 || now->density < 1)
        return false;
    return (double)v->m->error * then->error / now->error > (double)v->c->error_max;
}

static bool allowed(const struct view *v, int level, uint32_t interval) {
    if (level < v->c->finest || level > v->c->coarsest)
        return false;
    double density = row(level)->density, rounds = v->steps_left / interval;
    if (density < 1 && level != v->c->first && rounds * density < INTER_COVERAGE_MIN)
        return false;
    return !too_lossy(v, level);
}

// Finds the smallest τ, at least the job's own, with which the codec arrives in time. False: the
// codec does not fit, even with the longest overlap.
static bool place_codec(const struct view *v, int level, uint32_t interval, double goodput,
                        double margin, struct inter_plan *out) {
    const struct inter_tune_config *c = v->c;
    double steps = steps_needed(v, level, interval, goodput, margin);
    uint32_t most = overlap_most(v, interval);
    *out = (struct inter_plan){
        .interval = interval, .overlap = c->start_overlap, .codec = (uint8_t)level};
    if (c->overlap && steps > c->start_overlap)
        out->overlap = steps > most ? most : (uint32_t)steps;
    return steps <= out->overlap && carries(v, out, goodput, margin);
}

// The finest codec that the link carries and that arrives hardly later than the coarsest one.
static int as_early(const struct view *v, int coarsest, uint32_t interval, double goodput) {
    double most = hardly * travel(v, coarsest, goodput);
    int level = v->c->finest;
    for (; level < coarsest; level++) {
        struct inter_plan p = {.interval = interval, .codec = (uint8_t)level};
        if (allowed(v, level, interval) && travel(v, level, goodput) <= most &&
            carries(v, &p, goodput, 1))
            break;
    }
    return level;
}

// Finds the best plan that fits. False: none fits; *out is the coarsest one, or one that arrives
// hardly later.
static bool best(const struct view *v, int keep, double goodput, double margin,
                 struct inter_plan *out) {
    const struct inter_tune_config *c = v->c;
    uint32_t interval = c->start_interval;
    for (;;) {
        int coarsest = keep;
        for (int level = c->codec ? c->finest : keep; level <= (c->codec ? c->coarsest : keep);
             level++) {
            if (c->codec && !allowed(v, level, interval))
                continue;
            coarsest = level;
            if (place_codec(v, level, interval, goodput, margin, out))
                return true;
        }
        if (!c->interval || interval >= c->interval_max) {
            if (c->codec)
                coarsest = as_early(v, coarsest, interval, goodput);
            (void)place_codec(v, coarsest, interval, goodput, margin, out);
            return false;
        }
        uint32_t next = interval + interval / 2 + 1;
        interval = next < c->interval_max ? next : c->interval_max;
    }
}

// Less than 0: a loads the link more than b.
static int compare(const struct inter_plan *a, const struct inter_plan *b) {
    if (a->interval != b->interval)
        return a->interval < b->interval ? -1 : 1;
    if (a->codec != b->codec)
        return a->codec < b->codec ? -1 : 1;
    return a->overlap < b->overlap ? -1 : a->overlap > b->overlap;
}

static bool set(struct inter_tuner *t, struct inter_plan p, enum inter_reason why) {
    bool changed = compare(&p, &t->plan) != 0, speed = t->left_out != t->plan.left_out;
    t->plan = p;
    t->plan.left_out = t->left_out;
    t->plan.reason = (uint8_t)(changed ? why : speed ? INTER_REASON_SPEED : INTER_REASON_KEPT);
    return changed || speed;
}

// A change to a smaller τ alone must make it a good deal smaller.
static bool worth(const struct inter_plan *p, const struct inter_plan *now) {
    if (p->interval != now->interval || p->codec != now->codec)
        return compare(p, now) < 0;
    return p->overlap + 2 <= now->overlap && p->overlap * 4 <= now->overlap * 3;
}

static void trial_over(struct inter_tuner *t, bool held) {
    t->failures = held ? 0 : t->failures < FAILURES_MAX ? (uint8_t)(t->failures + 1) : t->failures;
    t->wait = (uint16_t)(held ? 0 : TRIAL_WAIT << t->failures);
    t->trial = 0;
}

// If the plan would fit with two thirds of the goodput too, the link has recovered. No second
// decision is needed to confirm it.
static bool sure(const struct view *v, int keep, const struct inter_plan *p) {
    struct inter_plan q;
    return best(v, keep, v->goodput / 1.5, margin_dearer, &q) && q.codec == p->codec &&
           q.interval == p->interval;
}

// The link got slow, and now carries twice as much as then: the plan that fitted before is tried at
// once.
static bool recovered(struct inter_tuner *t, const struct view *v, int keep) {
    struct inter_plan p, before = t->fell_from;
    if (!before.interval || t->trial || v->goodput < recovery * 1e3 * t->fell_kbps ||
        !best(v, keep, v->goodput * optimism, margin_dearer, &p) || compare(&p, &before) > 0 ||
        !allowed(v, before.codec, before.interval))
        return false;
    t->wishes = 0;
    t->trial = 1;
    return set(t, before, INTER_REASON_TRIAL);
}

static bool dearer(struct inter_tuner *t, const struct view *v, int keep) {
    struct inter_plan p;
    if (v->c->codec && !v->m->full && recovered(t, v, keep))
        return true;
    if (best(v, keep, fmin(v->goodput, v->met), margin_dearer, &p) && worth(&p, &t->plan)) {
        bool other = p.codec != t->plan.codec || p.interval != t->plan.interval;
        if (++t->wishes < WISHES && !(other && sure(v, keep, &p)))
            return set(t, t->plan, INTER_REASON_KEPT);
        t->wishes = 0;
        return set(t, p, INTER_REASON_ROOM);
    }
    if (v->m->full || t->wait || t->trial || !v->c->codec ||
        !best(v, keep, v->goodput * optimism, margin_dearer, &p) || p.codec >= t->plan.codec) {
        t->wishes = 0;
        return set(t, t->plan, INTER_REASON_KEPT);
    }
    if (++t->wishes < WISHES)
        return set(t, t->plan, INTER_REASON_KEPT);
    t->wishes = 0;
    t->trial = 1;
    // One level at a time: each level's transfer gives a better measurement for the next one.
    for (int r = t->plan.codec - 1; r >= p.codec; r--)
        if (allowed(v, r, t->plan.interval)) {
            p = t->plan;
            p.codec = (uint8_t)r;
            break;
        }
    return set(t, p, INTER_REASON_TRIAL);
}

// A small update takes mostly round trips, so its time tells nothing about the link.
static double goodput_met(const struct inter_tune_update *u) {
    double s = neb_seconds(u->took), rtt = u->measure.rtt_us * 1e-6;
    return s > 2 * rtt ? 8.0 * u->bytes / (s - rtt) : INFINITY;
}

static bool says_nothing(const struct inter_measure *m) {
    return !cmp_level(m->codec) || !m->goodput_kbps || !m->step_us;
}

static struct view view_of(const struct inter_tuner *t, const struct inter_tune_config *c,
                           const struct inter_tune_update *u) {
    return (struct view){.c = c,
                         .t = t,
                         .m = &u->measure,
                         .bytes = u->bytes,
                         .goodput = u->measure.goodput_kbps * 1e3,
                         .step_s = u->measure.step_us * 1e-6 * (INTER_STEPS_CYCLE - t->left_out) /
                                   INTER_STEPS_CYCLE,
                         .common = u->interval,
                         .others = neb_seconds(u->others),
                         .met = goodput_met(u)};
}

neb_ns inter_tune_flight(const struct inter_tuner *t, const struct inter_tune_update *u) {
    if (says_nothing(&u->measure) || !t->plan.interval)
        return 0;
    struct view v = view_of(t, NULL, u);
    int level = t->plan.codec == CMP_LEVEL_JOB ? u->measure.codec : t->plan.codec;
    return (neb_ns)(travel(&v, level, v.goodput) * 1e9);
}

struct inter_plan inter_tune_first(const struct inter_tune_config *c) {
    return (struct inter_plan){.interval = c->start_interval,
                               .overlap = c->start_overlap,
                               .codec = c->on ? c->first : CMP_LEVEL_JOB};
}

// True if the others wait for the member: its update is in this record or in one of the last two.
static bool waited_for(const struct inter_record *r, uint8_t member) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == member)
            return true;
    return r->round < r->absences[member].base + 2;
}

struct inter_plan inter_tune_planned(const struct inter_record *r, uint8_t member) {
    struct inter_plan p = r->plans[member];
    for (uint8_t m = 0; m < r->n_plans; m++)
        if (waited_for(r, m) && r->plans[m].interval > p.interval) {
            p.interval = r->plans[m].interval;
            p.reason = INTER_REASON_OTHERS;
        }
    return p;
}

void inter_tune_adopt(struct inter_tuner *t, const struct inter_plan *plan) {
    t->plan = *plan;
    t->left_out = plan->left_out;
}

// Finds how many of INTER_STEPS_CYCLE steps this member makes while the fastest member makes all of
// them. A change must be at least a tenth, twice in a row.
static void balance(struct inter_tuner *t, const struct inter_tune_config *c,
                    const struct inter_tune_update *u) {
    int makes = INTER_STEPS_CYCLE - t->left_out, want = INTER_STEPS_CYCLE;
    if (c->balance && u->fastest > 0)
        want =
            (int)lround(INTER_STEPS_CYCLE * neb_seconds(u->fastest) / (u->measure.step_us * 1e-6));
    if (want > INTER_STEPS_CYCLE * 7 / 8)
        want = INTER_STEPS_CYCLE;
    if (want < INTER_STEPS_CYCLE - INTER_LEFT_OUT_MAX)
        want = INTER_STEPS_CYCLE - INTER_LEFT_OUT_MAX;
    if (10 * abs(want - makes) < makes) {
        t->uneven = 0;
    } else if (++t->uneven >= WISHES) {
        t->uneven = 0;
        t->left_out = (uint8_t)(INTER_STEPS_CYCLE - want);
    }
}

bool inter_tune(struct inter_tuner *t, const struct inter_tune_config *c,
                const struct inter_tune_update *u) {
    const struct inter_measure *m = &u->measure;
    if (!t->plan.interval)
        t->plan = inter_tune_first(c);
    if (!c->on) {
        t->plan = inter_tune_first(c);
        return false;
    }
    if (says_nothing(m))
        return set(t, t->plan, INTER_REASON_KEPT);
    t->bytes[m->codec] = u->bytes;
    balance(t, c, u);
    struct view v = view_of(t, c, u);
    v.steps_left = !c->steps                   ? INFINITY
                   : u->steps_done >= c->steps ? 0
                                               : (double)(c->steps - u->steps_done);
    struct inter_plan p;
    int now = t->plan.codec;
    t->wait = (uint16_t)(t->wait ? t->wait - 1 : 0);
    if (t->trial && ++t->trial > TRIAL_LENGTH)
        trial_over(t, true);
    if (now <= t->fell_from.codec)
        t->fell_from.interval = 0;
    uint32_t low = m->goodput_kbps > t->last_kbps ? m->goodput_kbps : t->last_kbps;
    // one low reading does not make the next reading look like a recovery
    t->fell_kbps = low < t->fell_kbps ? low : t->fell_kbps;
    t->last_kbps = m->goodput_kbps;
    if (arrives(&v, &t->plan, v.met, 1) && carries(&v, &t->plan, v.met, 1))
        t->belated = 0;
    else if (t->belated < BELATED) // saturates: a counter that wraps would forget
        t->belated++;
    if (t->belated >= BELATED)
        v.goodput = fmin(v.goodput, v.met);
    bool lossy = c->codec && !allowed(&v, now, t->plan.interval);
    bool late = !arrives(&v, &t->plan, v.goodput, 1), full = !carries(&v, &t->plan, v.goodput, 1);
    // A trial is judged by the transfers of its own updates, not by the old estimate.
    if ((late || full) && t->trial && t->trial <= TRIAL_BLIND)
        late = full = false;
    struct inter_plan finer; // a lossy codec is replaced only by a finer one
    lossy = lossy && best(&v, now, v.goodput, 1, &finer) && finer.codec < now;
    if (!lossy && !late && !full)
        return dearer(t, &v, now);
    t->wishes = 0;
    if (t->trial)
        trial_over(t, false);
    bool fits = best(&v, now, v.goodput, margin_change, &p);
    if (p.codec > now && (!t->fell_from.interval || now < t->fell_from.codec)) {
        t->fell_from = t->plan;
        t->fell_kbps = m->goodput_kbps;
    }
    return set(t, p,
               !fits   ? INTER_REASON_LIMIT
               : lossy ? INTER_REASON_ERROR
               : full  ? INTER_REASON_CAPACITY
                       : INTER_REASON_LATE);
}

void inter_tune_round(struct inter_tuner *t, const struct inter_tune_config *c,
                      struct inter_tune_update *u, uint8_t n) {
    neb_ns fastest = 0;
    uint32_t interval = 0; // longest of the previous plans
    for (uint8_t m = 0; m < n; m++) {
        neb_ns step = (neb_ns)u[m].measure.step_us * NEB_US;
        fastest = step && (!fastest || step < fastest) ? step : fastest;
        if (u[m].bytes && t[m].plan.interval > interval)
            interval = t[m].plan.interval;
    }
    for (uint8_t m = 0; m < n; m++) {
        for (uint8_t k = 0; k < n; k++) {
            neb_ns other = k == m ? 0 : inter_tune_flight(&t[k], &u[k]);
            u[m].others = other > u[m].others ? other : u[m].others;
        }
        u[m].fastest = fastest;
        u[m].interval = interval;
        inter_tune(&t[m], c, &u[m]);
    }
}
