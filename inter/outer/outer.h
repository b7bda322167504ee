// SPDX-License-Identifier: Apache-2.0
// The outer optimiser of one member: turns what a cluster learned into an update, and committed updates into the next
// global parameters. Runs on the worker, where the parameters are.
//
//     Δ_m = θ − θ_m                      what this cluster learned since the round began
//     u_m = (β − ρ)·e_m + Δ_m            plus what it could not send before (error feedback), as far as Δ_m does not hold it
//     c_m = C(u_m)                       encode; u_m is kept until the round's outcome is known
//     Δ   = Σ w_m·D(c_m)                 over the committed set, in member order
//     v   = μ·v + Δ;  θ = θ − η·(Δ + μ·v)
//     e_m = u_m − D(c_m)                 if c_m was committed;  e_m = u_m if it was not
//     θ_m = θ + (θ_m − θ_m at the send) + ρ·e_m
//                                        rebase: local progress since the send is kept, and of what was not sent the share ρ
//
//     θ_m = θ + α·(θ_m − θ)              blend, instead of it, where α is not 0 (Streaming DiLoCo); ρ is then 0. Where the paper makes
//                                        the next update of all that θ_m then differs by, this sends what was learned, each once
//
// e_m is what sparse codecs leave for later rounds. With ρ 0 a cluster trains on what all have, as if it had
// not learned the rest. With ρ its share of the sum, 1/M of M members, it trains where θ will be once the residual was sent, as far as
// it can know: the others' residuals it cannot. configs/COMPARE.md has what that is worth. Signs: code keeps u and e as θ − θ_m.
//
// Weights: by tokens; rows of embedding and output matrices by the tokens seen of that row,
// w_row = (n_m,row + κ·share_m) / Σ, in fp32, members in order. Where a record weighs a member by less than its tokens, its
// row counts are scaled alike.
//
// Everything from decode to digest is on the exact path: all members compute the same bits. Memory: four floats a
// parameter (θ, v, u or e, θ_m at the send). One thread calls; work is spread over the pool by units.
//
// The state may be cut by units over several processes, the owners (agent/exchange/shards.h), each with an inter_outer of its own units: what
// one encodes and applies is an update of those alone (cmp_update_cut, cmp_update_join), and digests of parts add up.
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
    bool row_weights; // rows count by the tokens seen of each
    int32_t fragment;
    float *theta_m; // (rows, cols) the worker's own parameters, borrowed
};

struct inter_outer_position { // of a unit in the whole list
    uint32_t number;
    uint64_t at; // elements before it
};

struct inter_outer_config {
    float beta;       // decay of the residual, 1: nothing is forgotten
    float keep;       // ρ: share of it that the cluster goes on training on
    float blend;      // α; 0: rebase. With it keep is 0
    float kappa;      // tokens that every row is worth before any was seen
    bool row_weights; // of units that ask for it; false: nobody's
    int32_t fragments;
    // Profile `private`: updates are integers of 16 bits on one scale, which travel masked; each member counts alike. Borrowed;
    // NULL: not masked.
    const struct sec_sum *sum;
    uint8_t sum_members;
    float sum_scale; // what an integer stands for
    // Differential privacy (security/privacy.h): of a fragment's integers, Σ q² at most, and the variance of what is added to each.
    // 0: none.
    uint64_t sum_squared;
    uint32_t sum_variance;
    // trimmed mean in place of the mean (inter/record/robust.h); a commit then needs memory for all updates of a unit
    bool robust;
    // Where the units are some of a longer list: (n) which, ascending; read by inter_outer_create alone. Fragments may then be empty, and
    // digests are of the units alone: inter_outer_version_digest is still to be added. NULL: they are the whole list.
    const struct inter_outer_position *places;
};

struct inter_outer;
// θ starts as a copy of theta_m: all members must start from the same parameters. With places it starts as zero (the memory of theta_m may
// serve one fragment after the other): fill it in. pool is borrowed. NEB_ERR_NOMEM; NEB_ERR_INVALID: a fragment without units.
NEB_MUST_CHECK enum neb_status inter_outer_create(const struct inter_outer_config *c,
                                                  const struct inter_outer_unit *units, int32_t n,
                                                  struct kern_pool *pool, struct inter_outer **out);
void inter_outer_destroy(struct inter_outer **o);

// Moves everything to an accelerator, before the first encode: θ, v, u, θ_m at the send and the arithmetic, the codecs' too,
// are there from now on, with the same bits. theta_m: (units) the worker's parameters there, in place of those of the units.
// What crosses the bus in a round is the encoded updates and a few numbers a row; the entropy stage stays on the host.
// Device memory: five floats a parameter and one of the largest unit; beside them spare_bytes and the codecs' room are to be free, 0: whatever
// is. NEB_ERR_NOMEM: nothing has changed. D is borrowed.
struct kern_device;
NEB_MUST_CHECK enum neb_status inter_outer_to_device(struct inter_outer *o, struct kern_device *D,
                                                     float *const *theta_m, size_t spare_bytes);
// For who may choose another place: what training still takes once the exchange has its memory. Kernels that a worker of one rank loads at their
// first use, the libraries' too (some 100 MB), partial sums, graphs.
enum {
    INTER_OUTER_SPARE_BYTES = 512 << 20,
    // beside other ranks, whose communicators take their buffers with their first collectives
    INTER_OUTER_SPARE_RANKS_BYTES = 1536 << 20
};
// And back to the host, with what is there; the parameters of the units are then again what inter_outer_create was given. Nothing to do on
// the host.
NEB_MUST_CHECK enum neb_status inter_outer_to_host(struct inter_outer *o);

bool inter_outer_on_device(const struct inter_outer *o);
// Bytes of the state that it holds: arrays and scratch, without what grows with the updates.
uint64_t inter_outer_bytes(const struct inter_outer *o);

// Encodes fragment f into out (replaced). counts(user, unit): pointer to (rows) tokens seen of each row of a
// row-weighted unit since the member's last commit. In flight already: again, with what was learned since the send on top; the
// former bytes may still be the ones that are committed, and settle as well. NEB_ERR_INVALID: a NaN or an infinity.
typedef const uint64_t *inter_outer_counts(void *user, int32_t unit);
NEB_MUST_CHECK enum neb_status inter_outer_encode(struct inter_outer *o, int32_t f,
                                                  const struct cmp_codec *codec,
                                                  inter_outer_counts *counts, void *user,
                                                  struct neb_buf *out);
// The same for a masked update of a round. NEB_ERR_INVALID: a NaN or an infinity.
NEB_MUST_CHECK enum neb_status inter_outer_encode_masked(struct inter_outer *o, int32_t f,
                                                         uint32_t round, struct neb_buf *out);

// What the codec lost of the update in flight: ‖u − D(c)‖ / ‖u‖ over one unit of it, the smallest of 64k elements or more
// (otherwise the largest). For the controller; 0 when nothing could be measured.
float inter_outer_error(struct inter_outer *o, int32_t f, const uint8_t *blob, size_t len);
// Which of a fragment's units that is; -1: none. And the same of the k-th unit that o has of the fragment.
int32_t inter_outer_sample(const struct cmp_unit_shape *shapes, int32_t n);
float inter_outer_unit_error(struct inter_outer *o, int32_t f, int32_t k, const uint8_t *blob,
                             size_t len);

struct inter_outer_part { // one committed update, in member order
    const uint8_t *blob;
    size_t len;
    uint64_t tokens;
    float clip; // gate's factor, 1: as sent
    bool mine;
    uint64_t
        weight; // by which it counts, as the record says (inter/record/weights.h); 0: its tokens
};
struct inter_outer_round {
    const struct inter_outer_part *parts;
    size_t n;
    float eta, mu;
    bool merge; // merge round: η 1, μ 0, v 0
    // of the fragment: inter_outer_finish follows; read by who calls, not by inter_outer_apply
    bool last;
    const struct sec_sum_seeds *seeds; // of masked parts
};
// Applies a commit to fragment f. On an error nothing has changed: NEB_ERR_FORMAT for updates, weights or seeds that do not fit,
// NEB_ERR_NOMEM. Only an accelerator that fails leaves the fragment undefined: start again from a checkpoint.
// *digest: of (version, θ, v) afterwards, where version counts the commits applied to this fragment.
NEB_MUST_CHECK enum neb_status inter_outer_apply(struct inter_outer *o, int32_t f,
                                                 const struct inter_outer_round *r,
                                                 struct kern_digest *digest);
// A commit in which every update was rejected: the version rises, θ stays; what travelled stays in the residual.
void inter_outer_skip(struct inter_outer *o, int32_t f, struct kern_digest *digest);
// The run has ended: θ_m is θ, what all have, whatever this member had not sent.
void inter_outer_finish(struct inter_outer *o, int32_t f);
// The update in flight was refused by the gate: u and e are dropped, θ_m restarts from θ.
void inter_outer_reject(struct inter_outer *o, int32_t f);

// Takes over the state of fragment f from a snapshot: θ and v (all parameters, in the order of the arrays below; they may be those arrays) after
// `version` commits. The residual is dropped, θ_m restarts from θ.
void inter_outer_adopt(struct inter_outer *o, int32_t f, const float *theta, const float *v,
                       uint32_t version);
// What the number of commits adds to the digest of a fragment.
struct kern_digest inter_outer_version_digest(uint32_t version);
// Of (version, θ, v) as they are in memory now.
struct kern_digest inter_outer_fragment_digest(const struct inter_outer *o, int32_t f);

// What an update of fragment f holds: its elements, and the digest of its units' shapes.
uint64_t inter_outer_shape(const struct inter_outer *o, int32_t f, uint8_t sha256[32]);
bool inter_outer_in_flight(const struct inter_outer *o, int32_t f);
uint32_t inter_outer_version(const struct inter_outer *o, int32_t f);
// Digest over all fragments, as in the contract's params_digest.
struct kern_digest inter_outer_digest(const struct inter_outer *o);

// State for a checkpoint: arrays to write and read back in place, in this order. Arrays stay owned by o. On an accelerator they
// are copies: pull before they are read, push after they were changed (on the host neither does anything).
NEB_MUST_CHECK enum neb_status inter_outer_pull(struct inter_outer *o);
NEB_MUST_CHECK enum neb_status inter_outer_push(struct inter_outer *o);
struct inter_outer_array {
    const char *name; // "outer.theta", "outer.v", "outer.u", "outer.sent"
    float *p;
    size_t n;
};
enum { INTER_OUTER_ARRAYS = 4 };
void inter_outer_arrays(struct inter_outer *o, struct inter_outer_array out[INTER_OUTER_ARRAYS]);
// Where the i-th unit begins in each of them.
size_t inter_outer_unit_at(const struct inter_outer *o, int32_t i);
// Per fragment, after the arrays were read back: version and whether it is in flight.
void inter_outer_set_fragment(struct inter_outer *o, int32_t f, uint32_t version, bool in_flight);

#endif
