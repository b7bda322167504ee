#include "inter/outlier.h"
#include "compress/sketch.h"
#include "inter/robust.h"

#include <math.h>

enum { MEMBERS_LEAST = 3 };
static const float longer = 4, against = -0.1f;

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

static bool points_away(const struct inter_record *r, uint8_t who,
                        const float *const sketches[INTER_MEMBERS_MAX]) {
    float others[CMP_SKETCH] = {0};
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].verdict == INTER_ACCEPTED && r->entries[i].member != who)
            add_as_long_as_any(others, sketches[r->entries[i].member]);
    return cmp_sketch_cosine(sketches[who], others) < (double)against;
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
        if (accepted >> m & 1 && points_away(r, m, sketches))
            out |= (uint16_t)(1u << m);
    return out;
}
