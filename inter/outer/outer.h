// SPDX-License-Identifier: Apache-2.0
// The outer optimiser of one member. It turns what a cluster has learned into an update, and it
// applies committed updates to the global parameters. It runs on the worker, where the parameters
// are.
//
//     Δ_m = θ − θ_m                  what this cluster learned since the round began
//     u_m = (β − ρ)·e_m + Δ_m        plus the residual (error feedback); Δ_m holds ρ·e_m already
//     c_m = C(u_m)                   encode; u_m is kept until the round's outcome is known
//     Δ   = Σ w_m·D(c_m)             over the committed set, in member order
//     v   = μ·v + Δ;  θ = θ − η·(Δ + μ·v)
//     e_m = u_m − D(c_m)             if c_m was committed, otherwise e_m = u_m
//     θ_m = θ + (θ_m − θ_m at the send) − ρ·e_m
//                                    rebase: keeps the progress since the send and ρ·e_m
//
//     θ_m = θ + α·(θ_m − θ)          blend (Streaming DiLoCo): used instead if α is not 0; ρ is 0
//
// With blend, an update in the paper is the complete difference between θ_m and θ. Here an update
// holds only what was learned since the last one, so that nothing is sent twice.
//
// e_m is what sparse codecs leave for later rounds. With ρ = 0 a cluster trains on the common
// parameters, as if it had not learned the rest. With ρ = 1/M, its share of the sum of M members,
// it trains where θ will be once its own residual has been sent; the residuals of the others are
// not known. configs/COMPARE.md shows the effect.
//
// Weights. An update counts by its tokens. Each row of an embedding or output matrix counts by the
// tokens seen of that row: w_row = (n_m,row + κ·share_m) / Σ, in fp32, members in order. If a
// record weighs a member by less than its tokens, the row counts are scaled down as well.
//
// Everything from decode to digest is on the exact path: all members compute the same bits. Memory:
// four floats per parameter (θ, v, u or e, θ_m at the send). Calls come from one thread; the pool
// works on units in parallel.
//
// Shards. Several processes may hold the units, each with an inter_outer for its own units
// (agent/exchange/shards.h). What such a process encodes and applies is an update of its own units
// (cmp_update_cut, cmp_update_join). The digests of the parts add up.
//
// Waves. The units of a fragment need scratch, and θ_m has to be in memory. A caller that cannot
// spare either for a whole fragment goes through it in waves of units (inter_outer_wave).
//
// Sources: DiLoCo (arXiv 2311.08105), Streaming DiLoCo (2501.18512), SparseLoCo (2508.15706).
#ifndef INTER_OUTER_H
#define INTER_OUTER_H
#include "compress/update.h"
#include "kernels/exact.h"
#include "kernels/pool.h"
#include "security/secure_sum.h"

enum { INTER_PARTS_MAX = 16 };

struct inter_outer_unit {
    uint32_t rows, cols;
    bool row_weights; // each row counts by the tokens seen of it
    int32_t fragment;
    float *theta_m; // (rows, cols) the worker's own parameters, borrowed
};

struct inter_outer_position { // place of a unit in the full list
    uint32_t number;
    uint64_t at; // elements before it
};

struct inter_outer_config {
    float beta;       // β: decay of the residual; 1: no decay
    float keep;       // ρ: share of the residual that stays in θ_m
    float blend;      // α; 0: rebase. If not 0, keep is 0
    float kappa;      // κ: tokens that each row counts for before any was seen
    bool row_weights; // false: no unit uses row weights
    int32_t fragments;
    // Profile `private`: updates are masked 16-bit integers on one scale, and all members count
    // alike. Borrowed; NULL: not masked.
    const struct sec_sum *sum;
    uint8_t sum_members;
    float sum_scale; // value of the integer 1
    // Differential privacy (security/privacy.h): upper bound of Σ q² over a fragment's integers,
    // and the variance of the noise added to each. 0: none.
    uint64_t sum_squared;
    uint32_t sum_variance;
    // Trimmed mean instead of the mean (inter/record/robust.h). A commit then needs memory for all
    // updates of a unit.
    bool robust;
    // If the units are part of a longer list: (n) their places there, ascending; inter_outer_create
    // alone reads them. Fragments may then be empty, and digests cover the units only: the caller
    // adds inter_outer_version_digest. NULL: the units are the full list.
    const struct inter_outer_position *places;
    // The most units of a wave: there is scratch for so many. 0: as many as a fragment has.
    int32_t wave;
};

struct inter_outer;
// θ starts as a copy of theta_m: all members must start from the same parameters. With places, θ
// starts as zero and the caller fills it in, because one buffer may be the theta_m of one fragment
// after the other. pool is borrowed. NEB_ERR_NOMEM; NEB_ERR_INVALID: a fragment without units.
NEB_MUST_CHECK enum neb_status inter_outer_create(const struct inter_outer_config *c,
                                                  const struct inter_outer_unit *units, int32_t n,
                                                  struct kern_pool *pool, struct inter_outer **out);
void inter_outer_destroy(struct inter_outer **o);

// Moves the state to an accelerator, before the first encode. From then on θ, v, u, θ_m at the send
// and all arithmetic, also that of the codecs, are there, with the same bits. theta_m: (units) the
// worker's parameters on the device, which replace those of the units. In a round only encoded
// updates and a few numbers per row cross the bus. The entropy stage stays on the host.
//
// Device memory: four floats per parameter, two per element of the largest unit, and from the first
// commit on the frames of the largest commit, unpacked (with `robust` one more float per element of
// the largest fragment). spare_bytes and the memory of the codecs must be free besides; 0: no
// check. NEB_ERR_NOMEM: nothing has changed. D is borrowed.
struct kern;
NEB_MUST_CHECK enum neb_status inter_outer_to_device(struct inter_outer *o, struct kern *D,
                                                     float *const *theta_m, size_t spare_bytes);
// The same with the state in pinned memory of the host, four floats per parameter. The accelerator
// does all arithmetic: each task copies what it needs of a unit there and back, in the queue.
// Device memory: six floats per element of the largest unit, and frames as above. NEB_ERR_NOMEM:
// not so much memory can be pinned, nothing has changed.
NEB_MUST_CHECK enum neb_status inter_outer_to_pinned(struct inter_outer *o, struct kern *D,
                                                     float *const *theta_m);
// Device memory that training still needs once the exchange has taken its own: kernels and
// libraries that are loaded at first use, partial sums, graphs. For a caller that can also leave
// the exchange on the host.
enum {
    INTER_OUTER_SPARE_BYTES = 512 << 20,
    // for one of several ranks: communicators allocate buffers at their first collective
    INTER_OUTER_SPARE_RANKS_BYTES = 1536 << 20
};
// Moves the state back to the host with its current values. The units' parameters are again those
// given to inter_outer_create. Does nothing on the host.
NEB_MUST_CHECK enum neb_status inter_outer_to_host(struct inter_outer *o);

bool inter_outer_on_device(const struct inter_outer *o); // or computes there
// Bytes of the state on the host: arrays (copies too, while there are any) and scratch, without
// buffers that grow with the updates.
uint64_t inter_outer_bytes(const struct inter_outer *o);
// Bytes of the accelerator's memory that it has now, with frames.
uint64_t inter_outer_device_bytes(const struct inter_outer *o);

// The next calls about fragment f (encode, apply, skip, finish, reject, reset) take only the units
// [first, first + n) of it, until the next inter_outer_wave. A fragment is encoded or applied by
// one call for each wave, in order, with the same other arguments. The call with `begins` begins
// the update and the digest, the call with `completes` completes them. A wave may be empty. Without
// this function a wave is the whole fragment. After an error in a later wave the fragment is
// undefined.
void inter_outer_wave(struct inter_outer *o, int32_t f, int32_t first, int32_t n, bool begins,
                      bool completes);

// Encodes fragment f into out, whose content it replaces. counts(user, unit) returns (rows) the
// tokens seen of each row of a row-weighted unit since the member's last commit. A fragment in
// flight is encoded again, with what was learned since the send on top. If the earlier bytes are
// committed instead, they settle as well. NEB_ERR_INVALID: a NaN or an infinity.
typedef const uint64_t *inter_outer_counts(void *user, int32_t unit);
NEB_MUST_CHECK enum neb_status inter_outer_encode(struct inter_outer *o, int32_t f,
                                                  const struct cmp_codec *codec,
                                                  inter_outer_counts *counts, void *user,
                                                  struct neb_buf *out);
// The same for a masked update of a round. NEB_ERR_INVALID: a NaN or an infinity.
NEB_MUST_CHECK enum neb_status inter_outer_encode_masked(struct inter_outer *o, int32_t f,
                                                         uint32_t round, struct neb_buf *out);

// Relative error of the update in flight, for the controller: ‖u − D(c)‖ / ‖u‖ over one unit. That
// is the smallest unit with 64k elements or more; if there is none, the largest unit. 0: not
// measured. sample: the index of that unit among a fragment's units; -1: there is none. unit_error:
// the error of the k-th of o's units of fragment f.
int32_t inter_outer_sample(const struct cmp_unit_shape *shapes, int32_t n);
float inter_outer_unit_error(struct inter_outer *o, int32_t f, int32_t k, const uint8_t *blob,
                             size_t len);

struct inter_outer_part { // one committed update, in member order
    const uint8_t *blob;
    size_t len;
    uint64_t tokens;
    float clip; // factor of the gate; 1: unchanged
    bool mine;
    uint64_t weight; // of the record (inter/record/weights.h); 0: its tokens
};
struct inter_outer_round {
    const struct inter_outer_part *parts;
    size_t n;
    float eta, mu;
    // Merge round: θ = θ − η/√(1 − μ)·Δ. v stays if other members have committed during the absence
    // (a part has less weight than tokens); otherwise it is old, and becomes 0.
    bool merge;
    // Last round of the fragment: inter_outer_finish follows. For callers; inter_outer_apply
    // ignores it.
    bool last;
    const struct sec_sum_seeds *seeds; // of masked parts
};
// Applies a commit to fragment f. *digest: of (version, θ, v) afterwards; version counts the
// commits applied to this fragment. NEB_ERR_FORMAT: updates, weights or seeds that do not fit.
// NEB_ERR_NOMEM. After an error nothing has changed. Only a failed accelerator leaves the fragment
// undefined: the caller then restarts from a checkpoint.
NEB_MUST_CHECK enum neb_status inter_outer_apply(struct inter_outer *o, int32_t f,
                                                 const struct inter_outer_round *r,
                                                 struct kern_digest *digest);
// The same in parts, for a caller that works while an accelerator does. The host waits for the
// accelerator in encode, open and settled, which may run on a thread of their own, but in no other
// call at the same time:
//
//     form ── θ_m may change ── encode         open ── settle ── θ_m may change ── settled
//
// form reads θ_m; the encode that follows does not. open checks a commit, brings its frames to the
// accelerator and changes nothing; settle then merges it. Without form and open, encode and settle
// do their work. form and settle take a wave each; open takes the fragment.
void inter_outer_form(struct inter_outer *o, int32_t f);
NEB_MUST_CHECK enum neb_status inter_outer_open(struct inter_outer *o, int32_t f,
                                                const struct inter_outer_round *r);
NEB_MUST_CHECK enum neb_status inter_outer_settle(struct inter_outer *o, int32_t f,
                                                  const struct inter_outer_round *r);
NEB_MUST_CHECK enum neb_status inter_outer_settled(struct inter_outer *o, int32_t f,
                                                   struct kern_digest *digest);
// A commit in which every update was rejected: the version rises, θ stays. An update in flight
// stays in the residual.
void inter_outer_skip(struct inter_outer *o, int32_t f, struct kern_digest *digest);
// The run has ended: θ_m becomes θ, the common parameters. What this member had not sent is
// dropped.
void inter_outer_finish(struct inter_outer *o, int32_t f);
// The gate rejected the update in flight: u and e are dropped, θ_m restarts from θ.
void inter_outer_reject(struct inter_outer *o, int32_t f);

// The residual is dropped, θ_m restarts from θ.
void inter_outer_reset(struct inter_outer *o, int32_t f);

// Takes over the state of fragment f from a snapshot, after `version` commits. theta, v: all
// parameters, in the order of the arrays below; they may be those arrays. Then it does what
// inter_outer_reset does; a caller with several waves calls that for each of them.
void inter_outer_adopt(struct inter_outer *o, int32_t f, const float *theta, const float *v,
                       uint32_t version);
// What the number of commits adds to the digest of a fragment.
struct kern_digest inter_outer_version_digest(uint32_t version);
// Digest of (version, θ, v) as they are in memory now.
struct kern_digest inter_outer_fragment_digest(const struct inter_outer *o, int32_t f);

bool inter_outer_in_flight(const struct inter_outer *o, int32_t f);
uint32_t inter_outer_version(const struct inter_outer *o, int32_t f);
// Digest over all fragments: params_digest of a report.
struct kern_digest inter_outer_digest(const struct inter_outer *o);

// State for a checkpoint: arrays to write, and to read back in place, in this order. o owns them.
// In an accelerator's memory they are copies: pull before reading them, push after changing them.
// In pinned memory pull waits for the accelerator. On the host neither call does anything.
NEB_MUST_CHECK enum neb_status inter_outer_pull(struct inter_outer *o);
NEB_MUST_CHECK enum neb_status inter_outer_push(struct inter_outer *o);
// The copies are not needed any more: gives their memory back, until the next pull. Pointers to
// the arrays are void.
void inter_outer_drop_copies(struct inter_outer *o);
struct inter_outer_array {
    const char *name; // "outer.theta", "outer.v", "outer.u", "outer.sent"
    float *p;
    size_t n;
};
enum {
    INTER_OUTER_ARRAYS = 4,
    INTER_OUTER_UNITS = 2 // scratch on an accelerator, in units, besides arrays and frames
};
void inter_outer_arrays(struct inter_outer *o, struct inter_outer_array out[INTER_OUTER_ARRAYS]);
// Where the i-th unit begins in each of them.
size_t inter_outer_unit_at(const struct inter_outer *o, int32_t i);
// Sets what the arrays do not hold, for each fragment after they were read back.
void inter_outer_set_fragment(struct inter_outer *o, int32_t f, uint32_t version, bool in_flight);

#endif
