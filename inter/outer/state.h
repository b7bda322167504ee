// SPDX-License-Identifier: Apache-2.0
// Inside of inter_outer. outer.c: the state, and rounds without an update; encode.c and apply.c: a
// round; device.c: memory on an accelerator; masked.c: masked updates; noise.c: their noise.
//
// The ops of one device, `now`, do all arithmetic. On the host units run in parallel and are
// settled in strips that fit into the cache. On an accelerator the units follow each other in its
// one queue. The state lies in its memory, or in pinned memory of the host: then a task copies the
// arrays of its unit to scratch of the accelerator (outer_in), and those that it changes back
// (outer_out).
#ifndef INTER_OUTER_STATE_H
#define INTER_OUTER_STATE_H
#include "compress/device.h"
#include "compress/reader.h"
#include "inter/outer/outer.h"

// What a unit needs during a call. The k-th units of all waves share it.
struct outer_buffers {
    struct cmp_work *work;
    struct neb_buf frame; // encoded unit, before it is joined to the update
    // one for each update that is being applied; kept for later commits
    struct cmp_reader *readers[INTER_PARTS_MAX];
};

struct outer_slot { // one unit
    struct inter_outer_unit u;
    struct cmp_unit_shape shape;
    size_t at, n;   // place in the arrays
    float *theta_m; // (n) the worker's parameters, in the memory of `now`
    uint64_t place; // in the full list of units
    size_t from;    // place among the elements of its fragment
    struct outer_buffers *b;
    // Elements settled at a time: complete rows with row weights, all elements if masked.
    size_t strip;
    float *acc, *part;    // (strip) scratch on the host: weighted sum, one decoded update
    float *mean;          // (n) profile `robust`: the trimmed mean
    float *weights;       // (parts, rows)
    uint32_t *row_counts; // (parts, rows)
    struct cmp_update_unit views[INTER_PARTS_MAX];
    enum neb_status st;
    double length2;     // squared length of this unit's part of an update
    uint64_t integers2; // the same of its integers
};

struct outer_fragment {
    uint32_t version;
    bool in_flight;
    bool formed; // on an accelerator: θ_m at the send is noted, and is not encoded yet
    int32_t n;
    size_t elements;
    int32_t first, count;          // the present wave, in `units`
    bool begins, completes;        // it is the first wave of the fragment, or the last
    int32_t *units;                // indices of its units, ascending
    struct cmp_unit_shape *shapes; // what an update of it must hold
};

struct outer_place { // the state, and the device that computes with it
    struct kern *K;
    float *theta, *v, *u, *sent; // (n)
    struct kern_digest *digests; // (n_units) zeros, or those of one fragment
};

enum { OUTER_THETA = 1, OUTER_V = 2, OUTER_U = 4, OUTER_SENT = 8 };
struct outer_arrays { // of one unit
    float *theta, *v, *u, *sent;
};

struct outer_kept { // one unit of an update that is applied
    struct cmp_device_frame frame;
    float *weights; // (rows); NULL: no row weights
};

struct outer_device { // scratch on an accelerator
    struct cmp_device *codec;
    float *acc, *part;        // (largest unit) weighted sum, one decoded update
    bool pinned;              // the state is in pinned memory of the host, which this owns
    struct outer_arrays unit; // pinned: (largest unit)
    float *image;             // (largest unit) on the host
    bool copies;              // the arrays on the host may have content
    size_t bytes;             // of its memory: state, scratch and frames
    // The frames of a commit, unpacked, and its row weights. They grow to the largest commit.
    uint8_t *frames;
    size_t frames_bytes;
    struct outer_kept *kept; // (n_units, INTER_PARTS_MAX)
    float *means; // (elements of the largest fragment) profile `robust`: trimmed means; else NULL
    const struct outer_fragment *opened; // `kept` has its commit; NULL: none
};

struct inter_outer {
    struct inter_outer_config c;
    bool part;              // the units are part of a longer list
    struct kern_pool *pool; // borrowed
    int32_t n_units;
    struct outer_slot *slots;
    struct outer_fragment *fragments;
    struct outer_buffers *buffers; // (most_units)
    int32_t most_units;            // of a wave
    size_t n;
    struct outer_place host;     // if the state is in an accelerator's memory: as last pulled
    struct outer_place now;      // where the state is
    struct outer_device *device; // NULL: now is host
    struct cmp_update_unit *views;
};

struct outer_apply { // a commit that is being applied
    struct inter_outer *o;
    const struct outer_fragment *g;
    const struct inter_outer_round *r;
    float share[INTER_PARTS_MAX]; // weight of a part / all weights
    float scale[INTER_PARTS_MAX]; // factor of a part's row counts: weight / tokens
    bool went_on; // a part has less weight than tokens: others have committed since its last one
    struct sec_sum_head heads[INTER_PARTS_MAX]; // masked parts: by part
    const uint8_t *bodies[NEB_MEMBERS_MAX];     // by member
};

// Share of the residual that θ_m holds. The next Δ brings it, so u must not add it again.
static inline float outer_held(const struct inter_outer *o) {
    return o->c.blend > 0 ? 0 : o->c.keep;
}

// outer.c
// Runs a task for each unit of a fragment's wave. Returns the first failure; many tasks cannot
// fail.
typedef enum neb_status outer_task(void *arg, struct outer_slot *s);
enum neb_status outer_each(const struct inter_outer *o, const struct outer_fragment *g,
                           outer_task *task, void *arg);
// A view of the fragment with all its units as the wave. On the host its tasks have no buffers.
struct outer_fragment outer_whole(const struct outer_fragment *g);
// The digests of a fragment: outer_digests_zero, then outer_digest for all elements of its units,
// then outer_digests_sum. Only the first and the last are called between tasks.
void outer_digests_zero(const struct inter_outer *o);
void outer_digest(const struct inter_outer *o, const struct outer_slot *s,
                  const struct outer_arrays *m, size_t at, size_t n);
struct kern_digest outer_digests_sum(const struct inter_outer *o, const struct outer_fragment *g);

// encode.c
// Unpacks and checks this unit's frame of part p.
NEB_MUST_CHECK enum neb_status outer_open_part(struct outer_slot *s, size_t p);

// apply.c
// Elements [at, at + n) of a unit: moves θ_m onto the new θ.
void outer_merge(const struct inter_outer *o, const struct outer_fragment *g,
                 const struct outer_slot *s, const struct outer_arrays *m, size_t at, size_t n);

// masked.c: the profile `private`
NEB_MUST_CHECK enum neb_status outer_mask(struct inter_outer *o, int32_t f, uint32_t round,
                                          struct neb_buf *out);
// Opens the masked parts. They must be of this fragment and of exactly the members with seeds.
NEB_MUST_CHECK enum neb_status outer_masked_open(int32_t f, struct outer_apply *j);
NEB_MUST_CHECK enum neb_status outer_masked_sum(struct outer_apply *j,
                                                struct outer_slot *s); // s->acc = mean
// s->part = what the part held before noise was added.
void outer_masked_own(const struct outer_apply *j, struct outer_slot *s, size_t part);

// noise.c: used if c.sum_squared is set
// Rounds u to integers no longer than the bound. NEB_ERR_INVALID: a NaN or an infinity, or no key
// to draw noise from.
NEB_MUST_CHECK enum neb_status outer_noise_round(struct inter_outer *o, int32_t f, uint32_t round,
                                                 int16_t *q);
// Adds the noise to q. h: the head of this update.
void outer_noise_add(const struct inter_outer *o, const struct sec_sum_head *h, int16_t *q);

// device.c
void outer_device_destroy(struct inter_outer *o);
uint64_t outer_device_host_bytes(const struct inter_outer *o); // its memory on the host
// The arrays of a unit, which its task computes with, and may set as a whole. `uses` names those
// that it reads. out: `changed` names those that it has changed. The host does not wait.
struct outer_arrays outer_in(const struct inter_outer *o, const struct outer_slot *s, int uses);
void outer_out(const struct inter_outer *o, const struct outer_slot *s, int changed);
// Copies n values of the host into an array of the state.
void outer_set(const struct inter_outer *o, float *to, const float *from, size_t n);
// Room for `bytes` in d->frames, and with profile `robust` for d->means.
NEB_MUST_CHECK enum neb_status outer_device_room(struct inter_outer *o, size_t bytes);
// u of one unit, on the host.
NEB_MUST_CHECK enum neb_status outer_device_fetch_u(struct inter_outer *o,
                                                    const struct outer_slot *s, const float **u);

#endif
