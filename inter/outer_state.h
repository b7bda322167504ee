// What the outer optimiser holds, shared by outer.c and outer_masked.c and by nobody else.
#ifndef INTER_OUTER_STATE_H
#define INTER_OUTER_STATE_H
#include "inter/outer.h"

struct outer_slot { // one unit
    struct inter_outer_unit u;
    size_t at, n; // place in the arenas
    size_t from;  // place among the elements of its fragment
    struct cmp_work *work;
    struct neb_buf frame; // encoded unit, before it is joined to the update
    float *acc, *part;    // (n) scratch of apply: weighted sum, one decoded update
    float *weights;       // (rows) of one part
    uint32_t *row_counts; // (parts, rows)
    struct cmp_update_unit views[INTER_PARTS_MAX];
    enum neb_status st;
    struct kern_digest digest;
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
    struct kern_pool *pool; // borrowed
    int32_t n_units;
    struct outer_slot *slots;
    struct outer_fragment *fragments;
    size_t n;
    float *theta, *v, *u, *sent;
    struct cmp_update_unit *views;
};

struct outer_apply {
    struct inter_outer *o;
    const struct outer_fragment *g;
    const struct inter_outer_round *r;
    float share[INTER_PARTS_MAX]; // tokens of a part / all tokens
    bool mine;
    struct sec_sum_head heads[INTER_PARTS_MAX]; // masked parts: by part,
    const uint8_t *bodies[SEC_MEMBERS_MAX];     // and by member
};

// outer_masked.c: the profile `private`
NEB_MUST_CHECK enum neb_status outer_mask(struct inter_outer *o, int32_t f, uint32_t round, struct neb_buf *out);
// What masked parts hold: they must be this fragment's, and those whose seeds are there.
NEB_MUST_CHECK enum neb_status outer_masked_open(int32_t f, struct outer_apply *j);
void outer_masked_sum(struct outer_apply *j, struct outer_slot *s);  // s->acc = mean; s->st
void outer_masked_own(struct outer_apply *j, struct outer_slot *s, size_t part); // s->part = what that part held

#endif
