// SPDX-License-Identifier: Apache-2.0
// Differential privacy of a masked update (security/privacy.h): the integers are shortened to the
// bound, then noise is added.
//
//     q = ⌊f·u / scale + r⌋          r in [0, 1), so that q is f·u / scale on average;
//                                    f ≤ 1, the largest found with ‖q‖ ≤ B
//     sent: q + x                    x is drawn from the noise seed
//     e = u − scale·q
//
// The length that counts is that of the integers, in integer arithmetic, over the whole fragment.
// So neither floating point nor rounding can make it longer. r needs no secrecy, because the bound
// holds for any r.
//
// The residual holds what was clipped and rounded, never the noise: the next sum would lose noise
// that was fed back. Every update obeys the same bound, whatever residual it holds.
#include "agent/base/rng.h"
#include "inter/outer/state.h"

#include <math.h>

enum { PART = 1 << 16 }; // integers of one task

struct rounding {
    struct inter_outer *o;
    const struct outer_fragment *g;
    uint64_t key; // for r
    double factor;
    int16_t *q;
};

static void measure_unit(void *arg, size_t i) {
    const struct rounding *j = arg;
    struct outer_slot *s = &j->o->slots[j->g->units[i]];
    const float *u = j->o->now.u + s->at;
    double all = 0;
    for (size_t k = 0; k < s->n; k++)
        all += (double)u[k] * (double)u[k];
    s->length2 = all; // a NaN or an infinity remains
}

static void round_unit(void *arg, size_t i) {
    const struct rounding *j = arg;
    struct outer_slot *s = &j->o->slots[j->g->units[i]];
    const float *u = j->o->now.u + s->at;
    double factor = j->factor / (double)j->o->c.sum_scale;
    uint64_t all = 0;
    for (size_t k = 0; k < s->n; k++) {
        double r = (double)(neb_mix64(j->key + s->from + k) >> 11) * 0x1p-53;
        int16_t q = (int16_t)floor((double)u[k] * factor + r);
        j->q[s->from + k] = q;
        all += (uint64_t)((int32_t)q * q);
    }
    s->integers2 = all;
}

enum neb_status outer_noise_round(struct inter_outer *o, int32_t f, uint32_t round, int16_t *q) {
    const struct outer_fragment *g = &o->fragments[f];
    uint64_t where = (uint64_t)f << 32 | round, all;
    struct rounding job = {.o = o, .g = g, .q = q, .factor = 1};
    double length2 = 0, squared = (double)o->c.sum_squared,
           scale2 = (double)o->c.sum_scale * (double)o->c.sum_scale;
    if (!sec_sum_has_own_key(o->c.sum))
        return neb_fail(NEB_ERR_INVALID, "the agent sent no key to draw privacy noise from");
    job.key = neb_mix64(neb_mix64(where) + sec_sum_self(o->c.sum));
    kern_pool_run(o->pool, (size_t)g->n, measure_unit, &job);
    for (int32_t i = 0; i < g->n; i++)
        length2 += o->slots[g->units[i]].length2;
    if (!isfinite(length2))
        return neb_fail(NEB_ERR_INVALID,
                        "the update has a NaN or an infinity; has training diverged?");
    if (length2 > squared * scale2)
        job.factor = sqrt(squared * scale2 / length2);
    for (;;) { // rounding may lengthen q
        all = 0;
        kern_pool_run(o->pool, (size_t)g->n, round_unit, &job);
        for (int32_t i = 0; i < g->n; i++)
            all += o->slots[g->units[i]].integers2;
        if (all <= o->c.sum_squared)
            return NEB_OK;
        job.factor *= 0.999 * sqrt(squared / (double)all);
    }
}

struct noising {
    const struct inter_outer *o;
    const struct sec_sum_head *h;
    int16_t *q;
};

static void noise_part(void *arg, size_t i) {
    const struct noising *j = arg;
    size_t at = i * PART, n = j->h->count - at < PART ? j->h->count - at : PART;
    sec_sum_noise(j->o->c.sum, j->h, j->o->c.sum_variance, at, n, false, j->q + at);
}

void outer_noise_add(const struct inter_outer *o, const struct sec_sum_head *h, int16_t *q) {
    struct noising job = {o, h, q};
    kern_pool_run(o->pool, ((size_t)h->count + PART - 1) / PART, noise_part, &job);
}
