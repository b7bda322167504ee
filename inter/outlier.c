#include "inter/outlier.h"
#include "compress/sketch.h"
#include "inter/robust.h"

#include <math.h>

enum { MEMBERS_LEAST = 3 };
static const float longer = 4;
static const double against = -0.2, agree = 0.2;

static uint16_t by_length(const struct inter_record *r, const float *norms) {
    uint16_t out = 0;
    float limit = longer * inter_robust_median(r, norms);
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].verdict == INTER_ACCEPTED && norms[r->entries[i].member] > limit)
            out |= (uint16_t)(1u << r->entries[i].member);
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

// Cosine between a member's update and the sum of the others of a set (a bit each).
static double cosine_in(uint16_t set, uint8_t who, const float *const sketches[INTER_MEMBERS_MAX]) {
    float others[CMP_SKETCH] = {0};
    for (uint8_t m = 0; m < INTER_MEMBERS_MAX; m++)
        if (set >> m & 1 && m != who)
            add_as_long_as_any(others, sketches[m]);
    return cmp_sketch_cosine(sketches[who], others);
}

static bool points_away(uint16_t accepted, uint8_t who,
                        const float *const sketches[INTER_MEMBERS_MAX]) {
    uint16_t rest = (uint16_t)(accepted & ~(1u << who));
    double sum = 0;
    if (cosine_in(accepted, who, sketches) >= against)
        return false;
    for (uint8_t m = 0; m < INTER_MEMBERS_MAX; m++)
        if (rest >> m & 1)
            sum += cosine_in(rest, m, sketches);
    return sum / __builtin_popcount(rest) > agree;
}

uint16_t inter_outliers(const struct inter_record *r, const float norms[INTER_MEMBERS_MAX],
                        const float *const sketches[INTER_MEMBERS_MAX]) {
    bool lengths = true, directions = true;
    uint16_t accepted = 0, out = 0;
    for (uint8_t i = 0; i < r->n; i++) {
        uint8_t m = r->entries[i].member;
        if (r->entries[i].verdict != INTER_ACCEPTED)
            continue;
        accepted |= (uint16_t)(1u << m);
        lengths = lengths && norms[m] > 0;
        directions = directions && sketches[m];
    }
    if (__builtin_popcount(accepted) < MEMBERS_LEAST)
        return 0;
    if (lengths)
        out |= by_length(r, norms);
    for (uint8_t m = 0; directions && m < INTER_MEMBERS_MAX; m++)
        if (accepted >> m & 1 && points_away(accepted, m, sketches))
            out |= (uint16_t)(1u << m);
    return out;
}
