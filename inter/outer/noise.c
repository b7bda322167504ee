// SPDX-License-Identifier: Apache-2.0
// Differential privacy of a masked update (security/privacy.h): as integers it is no longer than the bound, then noise is added.
//
//     f ≤ 1, the largest that is found with ‖q‖ ≤ B        q = ⌊f·u / scale + r⌋, r in [0, 1): u on average
//     sent: q + x, x from the noise's seed                  e = u − scale·q
//
// The length that counts is that of the integers, in integer arithmetic, over all that the fragment exchanges: what a float or the
// rounding gets wrong cannot lengthen it. r is no secret, as the bound holds whichever way it falls.
//
// The residual is what was clipped and rounded, never the noise: fed back, it would be taken out of the next sum. Every update
// is as short as the others, whatever of a residual it carries.
#include "agent/base/rng.h"
#include "inter/outer/state.h"

#include <math.h>

enum { PART = 1 << 16 }; // integers of a task

struct rounding {
    struct inter_outer *o;
    const struct outer_fragment *g;
    uint64_t key; // of r
    double factor;
    int16_t *q;
};

static void measure_unit(void *arg, size_t i) {
    const struct rounding *j = arg;
    struct outer_slot *s = &j->o->slots[j->g->units[i]];
    const float *u = j->o->u + s->at;
    double all = 0;
    for (size_t k = 0; k < s->n; k++)
        all += (double)u[k] * (double)u[k];
    s->length2 = all; // a NaN or an infinity stays one
}

static void round_unit(void *arg, size_t i) {
    const struct rounding *j = arg;
    struct outer_slot *s = &j->o->slots[j->g->units[i]];
    const float *u = j->o->u + s->at;
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
        return neb_fail(NEB_ERR_INVALID, "the agent gave no key to draw noise from");
    job.key = neb_mix64(neb_mix64(where) + sec_sum_self(o->c.sum));
    kern_pool_run(o->pool, (size_t)g->n, measure_unit, &job);
    for (int32_t i = 0; i < g->n; i++)
        length2 += o->slots[g->units[i]].length2;
    if (!isfinite(length2))
        return neb_fail(NEB_ERR_INVALID,
                        "the update has a NaN or an infinity; has training diverged?");
    if (length2 > squared * scale2)
        job.factor = sqrt(squared * scale2 / length2);
    for (;;) { // rounding may lengthen
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
