// SPDX-License-Identifier: Apache-2.0
// The profile `private` on the worker: members send masked updates, and apply their sum.
//
//     q_m = round(u_m / scale)  within ±limit
//     Δ   = (scale / |S|) · Σ_S q_m
//     e_m = u_m − scale · q_m
//
// All members count alike. Tokens are public, but a member would have to multiply by its weight
// before it knows the others' tokens. Values beyond the limit stay in the residual. With noise
// (noise.c), what exceeds the bound on the length stays there too. The integers of a sent update
// are not kept. Instead the member takes its own masks off the committed bytes, which also works
// after a restart.
#include "inter/outer/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PART = 4096 }; // integers on the stack

static enum neb_status quantise(const struct inter_outer *o, const struct outer_fragment *g,
                                int16_t *q) {
    for (int32_t i = 0; i < g->n; i++) {
        const struct outer_slot *s = &o->slots[g->units[i]];
        for (size_t k = 0; k < s->n; k++)
            if (!isfinite(o->now.u[s->at + k]))
                return neb_fail(NEB_ERR_INVALID,
                                "the update has a NaN or an infinity; has training diverged?");
        sec_sum_quantise(o->now.u + s->at, s->n, o->c.sum_scale, o->c.sum_members, q + s->from);
    }
    return NEB_OK;
}

enum neb_status outer_mask(struct inter_outer *o, int32_t f, uint32_t round, struct neb_buf *out) {
    const struct outer_fragment *g = &o->fragments[f];
    bool noised = o->c.sum_squared > 0;
    struct sec_sum_head h;
    int16_t *q = malloc(g->elements * sizeof *q);
    enum neb_status st = q ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a masked update");
    if (st == NEB_OK)
        st = noised ? outer_noise_round(o, f, round, q) : quantise(o, g, q);
    if (st == NEB_OK)
        st = sec_sum_begin(o->c.sum, (uint32_t)f, round, q, g->elements, &h);
    if (st == NEB_OK && noised)
        outer_noise_add(o, &h, q);
    if (st == NEB_OK)
        st = sec_sum_finish(o->c.sum, &h, q, out);
    free(q);
    return st;
}

enum neb_status outer_masked_open(int32_t f, struct outer_apply *j) {
    const struct inter_outer_round *r = j->r;
    struct member_set seen = mset_none();
    if (!r->seeds || r->seeds->n != j->o->c.sum_members)
        return neb_fail(NEB_ERR_FORMAT,
                        "commit: the seeds of the masked sum are missing or do not fit");
    for (size_t p = 0; p < r->n; p++) {
        struct sec_sum_head *h = &j->heads[p];
        const uint8_t *body;
        NEB_TRY(sec_sum_open(r->parts[p].blob, r->parts[p].len, h, &body));
        if (h->n != r->seeds->n || h->fragment != (uint32_t)f || h->count != j->g->elements ||
            mset_has(seen, h->member) || !mset_has(r->seeds->set, h->member) ||
            r->parts[p].clip != 1 || (r->parts[p].mine && h->member != sec_sum_self(j->o->c.sum)))
            return neb_fail(
                NEB_ERR_FORMAT,
                "commit: a masked update (member %u of %u, fragment %u, %u integers) does not fit "
                "fragment %d with %zu integers; do all members run the same job?",
                h->member, h->n, h->fragment, h->count, f, j->g->elements);
        j->bodies[h->member] = body;
        mset_add(&seen, h->member);
    }
    return mset_equal(seen, r->seeds->set)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT,
                          "commit: the seeds are of members %#llx, the updates of members %#llx",
                          (unsigned long long)mset_bits(r->seeds->set),
                          (unsigned long long)mset_bits(seen));
}

enum neb_status outer_masked_sum(struct outer_apply *j, struct outer_slot *s) {
    int16_t sum[PART];
    float weight = j->o->c.sum_scale / (float)j->r->n;
    memset(s->acc, 0, s->n * sizeof(float));
    for (size_t at = 0; at < s->n; at += PART) {
        size_t n = s->n - at < PART ? s->n - at : PART;
        NEB_TRY(sec_sum_unmask(j->r->seeds, j->bodies, s->from + at, n, sum));
        for (size_t i = 0; i < n; i++)
            s->part[at + i] = (float)sum[i]; // exact
    }
    kern_exact_add_scaled(s->acc, s->part, weight, s->n);
    return NEB_OK;
}

void outer_masked_own(const struct outer_apply *j, struct outer_slot *s, size_t part) {
    int16_t q[PART];
    const struct sec_sum_head *h = &j->heads[part];
    unsigned was = kern_exact_enter();
    for (size_t at = 0; at < s->n; at += PART) {
        size_t n = s->n - at < PART ? s->n - at : PART;
        sec_sum_take_off(j->o->c.sum, h, j->bodies[h->member], s->from + at, n, q);
        if (j->o->c.sum_squared)
            sec_sum_noise(j->o->c.sum, h, j->o->c.sum_variance, s->from + at, n, true, q);
        for (size_t i = 0; i < n; i++)
            s->part[at + i] = (float)q[i] * j->o->c.sum_scale;
    }
    kern_exact_leave(was);
}
