// SPDX-License-Identifier: Apache-2.0
#include "inter/record/outlier.h"
#include "compress/sketch.h"
#include "inter/record/robust.h"

#include <math.h>
#include <string.h>

enum { MEMBERS_LEAST = 3, FLAGS_MAX = 20 };
static const float longer = 4;
static const double against = -0.2, agree = 0.2;

static struct member_set by_length(const struct inter_record *r, const float *norms) {
    struct member_set out = mset_none();
    float limit = longer * inter_robust_median(r, norms);
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].verdict == INTER_ACCEPTED && norms[r->entries[i].member] > limit)
            mset_add(&out, r->entries[i].member);
    return out;
}

static void add_as_long_as_any(float *sum, const float *sketch) {
    double squares = 0;
    for (int i = 0; i < CMP_SKETCH; i++)
        squares += (double)sketch[i] * (double)sketch[i];
    double length = sqrt(squares);
    for (int i = 0; length > 0 && isfinite(length) && i < CMP_SKETCH; i++)
        sum[i] += (float)((double)sketch[i] / length);
}

// Cosine between a member's update and the sum of the other updates in `set`.
static double cosine_in(struct member_set set, uint8_t who,
                        const float *const sketches[NEB_MEMBERS_MAX]) {
    float others[CMP_SKETCH] = {0};
    for (uint8_t m = 0; mset_next(set, &m); m++)
        if (m != who)
            add_as_long_as_any(others, sketches[m]);
    return cmp_sketch_cosine(sketches[who], others);
}

static bool points_away(struct member_set accepted, uint8_t who,
                        const float *const sketches[NEB_MEMBERS_MAX]) {
    struct member_set rest = mset_without(accepted, who);
    double sum = 0;
    if (cosine_in(accepted, who, sketches) >= against)
        return false;
    for (uint8_t m = 0; mset_next(rest, &m); m++)
        sum += cosine_in(rest, m, sketches);
    return sum / mset_count(rest) > agree;
}

struct member_set inter_outliers(const struct inter_record *r, const float norms[NEB_MEMBERS_MAX],
                                 const float *const sketches[NEB_MEMBERS_MAX]) {
    bool lengths = true, directions = true;
    struct member_set accepted = mset_none(), out = mset_none();
    for (uint8_t i = 0; i < r->n; i++) {
        uint8_t m = r->entries[i].member;
        if (r->entries[i].verdict != INTER_ACCEPTED)
            continue;
        mset_add(&accepted, m);
        lengths = lengths && norms[m] > 0;
        directions = directions && sketches[m];
    }
    if (mset_count(accepted) < MEMBERS_LEAST)
        return out;
    if (lengths)
        out = by_length(r, norms);
    for (uint8_t m = 0; directions && mset_next(accepted, &m); m++)
        if (points_away(accepted, m, sketches))
            mset_add(&out, m);
    return out;
}

// ---- two members --------------------------------------------------------------------------------

bool inter_pair_apart(struct inter_pair *p, const float *a, const float *b) {
    const double apart = -0.5;
    double sum = 0;
    if (!a || !b)
        return false;
    if (p->n == INTER_PAIR)
        memmove(p->cosines, p->cosines + 1, (INTER_PAIR - 1) * sizeof *p->cosines);
    else
        p->n++;
    p->cosines[p->n - 1] = (float)cmp_sketch_cosine(a, b);
    for (int i = 0; i < p->n; i++)
        sum += (double)p->cosines[i];
    return p->n == INTER_PAIR && sum / INTER_PAIR < apart;
}

// ---- a member and its own earlier updates -------------------------------------------------------

static double pace_at(const float *pace, double x) { // x: part of the job, 0..1
    double at = (x < 0 ? 0 : x > 1 ? 1 : x) * (INTER_PACE - 1);
    int i = at >= INTER_PACE - 1 ? INTER_PACE - 2 : (int)at;
    return (double)pace[i] + ((double)pace[i + 1] - (double)pace[i]) * (at - i);
}

double inter_reach(const float pace[INTER_PACE], uint64_t steps, uint64_t from, uint64_t to) {
    enum { PARTS = 8 };
    double n = to > from ? (double)(to - from) : 0, sum = 0;
    bool known = false;
    for (int i = 0; i < INTER_PACE; i++)
        known = known || pace[i] > 0;
    if (!known || !steps)
        return n;
    for (int k = 0; k < PARTS; k++)
        sum += pace_at(pace, ((double)from + n * (k + 0.5) / PARTS) / (double)steps);
    return n * sum / PARTS;
}

// The largest norm that is expected after the earlier updates.
static double expected(const struct inter_past *p, double reach) {
    double most = 0;
    for (uint8_t i = 0; i < p->n; i++) {
        double r = reach / p->reaches[i], norm = (double)p->norms[i] * (r > 1 ? r : sqrt(r));
        most = norm > most ? norm : most;
    }
    return most;
}

bool inter_past_stands_out(struct inter_past *p, float norm, double reach, uint8_t codec) {
    if (!(norm > 0) || !(reach > 0))
        return false;
    if (codec != p->codec) {
        p->codec = codec;
        p->n = p->flags = 0;
    }
    if (p->n && (double)norm > (double)longer * expected(p, reach) * ldexp(1, p->flags)) {
        p->flags = (uint8_t)(p->flags + (p->flags < FLAGS_MAX));
        return true;
    }
    p->flags = 0;
    if (p->n == INTER_PAST) {
        memmove(p->norms, p->norms + 1, (INTER_PAST - 1) * sizeof *p->norms);
        memmove(p->reaches, p->reaches + 1, (INTER_PAST - 1) * sizeof *p->reaches);
        p->n--;
    }
    p->norms[p->n] = norm;
    p->reaches[p->n++] = reach;
    return false;
}
