// SPDX-License-Identifier: Apache-2.0
// Inside of inter_outer: outer.c its state, outer_encode.c and outer_apply.c a round on the host, outer_device.c on an accelerator,
// outer_masked.c for masked updates, outer_noise.c for their noise.
#ifndef INTER_OUTER_STATE_H
#define INTER_OUTER_STATE_H
#include "compress/device.h"
#include "compress/reader.h"
#include "inter/outer/outer.h"

struct outer_slot { // one unit
    struct inter_outer_unit u;
    size_t at, n; // place in the arenas
    uint32_t number;
    uint64_t place; // in the whole list of units, of which these may be some
    size_t from;    // place among the elements of its fragment
    struct cmp_work *work;
    struct neb_buf frame; // encoded unit, before it is joined to the update
    // elements that are settled at a time; whole rows where rows are weighted, all where masked
    size_t strip;
    float *acc, *part; // (strip) scratch of apply: weighted sum, one decoded update
    float *mean;       // (n) profile `robust`: the trimmed mean; on an accelerator: scratch
    // of the updates being applied, as many as there ever were
    struct cmp_reader *readers[INTER_PARTS_MAX];
    float *weights;       // (parts, rows)
    uint32_t *row_counts; // (parts, rows)
    struct cmp_update_unit views[INTER_PARTS_MAX];
    enum neb_status st;
    struct kern_digest digest;
    double length2;     // of the part of an update that this unit is, squared,
    uint64_t integers2; // and of its integers
};

struct outer_fragment {
    uint32_t version;
    bool in_flight;
    int32_t n;
    size_t elements;
    int32_t *units;                // indices of its units, ascending
    struct cmp_unit_shape *shapes; // what an update of it must hold
};

struct inter_outer {
    struct inter_outer_config c;
    bool part;              // of a longer list
    struct kern_pool *pool; // borrowed
    int32_t n_units;
    struct outer_slot *slots;
    struct outer_fragment *fragments;
    size_t n;
    float *theta, *v, *u, *sent; // (n); on an accelerator: as last pulled
    struct outer_device *device; // NULL: on the host
    struct cmp_update_unit *views;
};

struct outer_apply { // one commit that is being applied
    struct inter_outer *o;
    const struct outer_fragment *g;
    const struct inter_outer_round *r;
    float share[INTER_PARTS_MAX]; // weight of a part / all weights
    float scale[INTER_PARTS_MAX]; // weight of a part / its tokens: of its row counts
    bool mine;
    struct sec_sum_head heads[INTER_PARTS_MAX]; // masked parts: by part,
    const uint8_t *bodies[SEC_MEMBERS_MAX];     // and by member
};

// What of the residual is in u and in θ_m, both, when the next update is made.
static inline float outer_held(const struct inter_outer *o) {
    return o->c.blend > 0 ? 0 : o->c.keep;
}

// outer.c
// Of the units' digests, as they were last taken.
struct kern_digest outer_fragment_digest(const struct inter_outer *o,
                                         const struct outer_fragment *g);

// outer_encode.c
// Unpacks and checks a part's frame of this unit.
NEB_MUST_CHECK enum neb_status outer_open_part(struct outer_slot *s, size_t p);

// outer_apply.c
// Elements [at, at + n) of a unit: θ_m moves onto the new θ.
void outer_merge_strip(const struct inter_outer *o, const struct outer_fragment *g,
                       const struct outer_slot *s, size_t at, size_t n);
// Weights of part p, from s->row_counts.
void outer_row_weights(const struct outer_apply *j, struct outer_slot *s, size_t p);
// Row counts of all parts, and the weights they make.
NEB_MUST_CHECK enum neb_status outer_read_counts(const struct outer_apply *j, struct outer_slot *s);
// The robust mean of all parts into s->mean.
NEB_MUST_CHECK enum neb_status outer_sum_robust(const struct outer_apply *j, struct outer_slot *s);

// outer_masked.c: the profile `private`
NEB_MUST_CHECK enum neb_status outer_mask(struct inter_outer *o, int32_t f, uint32_t round,
                                          struct neb_buf *out);
// What masked parts hold: they must be this fragment's, and those whose seeds are there.
NEB_MUST_CHECK enum neb_status outer_masked_open(int32_t f, struct outer_apply *j);
void outer_masked_sum(struct outer_apply *j, struct outer_slot *s); // s->acc = mean; s->st
// s->part = what that part held, without its noise
void outer_masked_own(const struct outer_apply *j, struct outer_slot *s, size_t part);

// outer_noise.c: where c.sum_squared is set
// The update in u as integers, no longer than the bound. NEB_ERR_INVALID: a NaN or an infinity; no key to draw noise from.
NEB_MUST_CHECK enum neb_status outer_noise_round(struct inter_outer *o, int32_t f, uint32_t round,
                                                 int16_t *q);
// What is sent in place of q, whose head this is.
void outer_noise_add(const struct inter_outer *o, const struct sec_sum_head *h, int16_t *q);

// outer_device.c: what those do unit by unit, for whole fragments; digests of the units are left in their slots.
void outer_device_destroy(struct outer_device **d);
NEB_MUST_CHECK enum neb_status outer_device_encode(struct inter_outer *o, int32_t f,
                                                   const struct cmp_codec *codec,
                                                   inter_outer_counts *counts, void *user);
// may fail: nothing has changed
NEB_MUST_CHECK enum neb_status outer_device_sum(struct outer_apply *j);
// only the device can fail
NEB_MUST_CHECK enum neb_status outer_device_settle(struct outer_apply *j);
void outer_device_skip(struct inter_outer *o, int32_t f);
void outer_device_finish(struct inter_outer *o, int32_t f);
void outer_device_reject(struct inter_outer *o, int32_t f);
void outer_device_adopt(struct inter_outer *o, int32_t f, const float *theta, const float *v);
void outer_device_digests(const struct inter_outer *o, int32_t f);
// u of one unit into its s->mean.
NEB_MUST_CHECK enum neb_status outer_device_fetch_u(struct inter_outer *o, struct outer_slot *s);

#endif
