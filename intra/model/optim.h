// SPDX-License-Identifier: Apache-2.0
// AdamW or Muon with clipping over the trainable tensors of a model, and learning-rate schedules.
//
// Muon (Jordan et al. 2024) updates the matrices of blocks, and AdamW the rest: embedding, output,
// vectors, adapters. With the clipped gradient g, momentum b and five iterations:
//
//     m = b m + (1 - b) g;  x = b m + (1 - b) g;  x = x / (|x| + 1e-7)
//     five times:  A = x x^T;  B = -4.7750 A + 2.0315 A A;  x = 3.4445 x + B x
//     W = (1 - lr decay) W - lr 0.2 sqrt(max(rows, cols)) x
//
// The factor of the last line makes the steps about as large as those of AdamW (Liu et al. 2025),
// so both use one learning rate. q, k, v, o, gate, up and down are a matrix each.
#ifndef INTRA_OPTIM_H
#define INTRA_OPTIM_H
#include "intra/model/model.h"

enum intra_schedule_kind { INTRA_SCHEDULE_COSINE, INTRA_SCHEDULE_WSD, INTRA_SCHEDULE_CONSTANT };
struct intra_schedule {
    enum intra_schedule_kind kind;
    float lr;             // peak
    float min_ratio;      // lr at the end / peak
    float decay_fraction; // WSD: share of all steps, at the end, with linear decay
    int64_t warmup, steps;
};
// Learning rate of step t in [0, steps): linear warm-up, then cosine, stable and decay (WSD), or
// constant.
float intra_schedule_lr(const struct intra_schedule *s, int64_t t);

enum intra_clip_kind { INTRA_CLIP_NONE, INTRA_CLIP_GLOBAL_NORM, INTRA_CLIP_ADAGC };
struct intra_clip {
    enum intra_clip_kind kind;
    float max_norm; // limit of the global norm, also during AdaGC's warm-up
    // AdaGC (arXiv 2502.11034) clips the norm of a tensor to ratio * gamma; gamma is a moving
    // average of the clipped norm, with weight beta. The paper uses 1.04 and 0.99.
    float ratio, beta;
    int64_t warmup; // AdaGC: first steps, with global clipping; the paper uses 100
};

enum intra_optim_kind { INTRA_OPTIM_ADAMW, INTRA_OPTIM_MUON };
enum { INTRA_OPTIM_KINDS = INTRA_OPTIM_MUON + 1 };
extern const char *const intra_optim_names[INTRA_OPTIM_KINDS + 1]; // "adamw", "muon", NULL

struct intra_optim_config {
    enum intra_optim_kind kind;
    struct intra_schedule schedule;
    struct intra_clip clip;
    float beta1, beta2, eps, weight_decay; // of AdamW; decay on matrices only
    float momentum;                        // of Muon
};

// A range of the gradient arena, which one dp rank reduces to and updates.
struct intra_shard {
    size_t at, end;
    int owner;
};

// With data parallelism each of the dp ranks keeps the moments of its shards of the gradient arena
// (ZeRO stage 1, Rajbhandari et al. 2020): gradients are reduced to the owner of each shard, each
// rank updates its shards of the parameters, and these are gathered. AdamW has equal shards, one a
// rank. With Muon a matrix is a shard, because its owner needs all of it; owners are balanced by
// the work of the iterations, and AdamW's large tensors are cut into equal parts. Norms are summed
// over the whole mesh, so clipping is the same on every mesh, except for rounding.
struct intra_optim {
    struct intra_optim_config c;
    int64_t t; // updates made; the position in the schedules
    // value of t at which the moments start; above 0 if steps were skipped before the first update
    int64_t born;
    float *m, *v;   // (n) first and (n_second) second moments of this rank's parts
    float *gamma;   // (n_tensors) AdaGC's norm; 0: no gradient so far, clipped globally
    double *sums;   // (n_tensors + 2) of squared gradients, loss, targets, during an update
    float *factors; // (n_tensors) of clipping, during an update
    size_t n, n_second;
    int32_t n_tensors; // of the full model, by index
    // of the gradient arena, in its order
    struct intra_shard *shards;
    int n_shards, rank; // rank: this one, of dp
    size_t *moment_at;  // (tensors of this rank) where the moments of this rank's part begin
};
// Moments start at zero. c is copied. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_optim_create(const struct intra_optim_config *c,
                                                  const struct intra_model *m,
                                                  struct intra_optim **out);
void intra_optim_destroy(struct intra_optim **o);
// Advances the schedules by n updates that this optimiser did not make. Moments stay; if there are
// none so far, they begin at the new step.
void intra_optim_skip(struct intra_optim *o, int64_t n);

struct intra_update { // what one update did
    float lr;
    double grad_norm; // global, before clipping
    int32_t clipped;  // tensors scaled down
};
// Muon updates t, which then has no second moment.
static inline bool intra_optim_is_muon(const struct intra_optim *o, const struct intra_tensor *t) {
    return o->c.kind == INTRA_OPTIM_MUON && t->matrix;
}
// FLOPs of an iteration on the whole matrix of which t is a part.
double intra_optim_muon_flops(const struct intra_tensor *t);
// out (m->n_tensors): positions in m->tensors of Muon's matrices, those with most work first.
// Returns their number, or -1: out of memory.
int32_t intra_optim_muon_order(const struct intra_optim *o, const struct intra_model *m,
                               int32_t *out);
// Copies this rank's moments to their places in an arena like that of the gradients, or back.
// `second`: v, else m.
void intra_optim_spread(const struct intra_optim *o, const struct intra_model *m, bool second,
                        float *arena);
void intra_optim_collect(struct intra_optim *o, const struct intra_model *m, bool second,
                         const float *arena);
// Each dp rank has filled its shards of an arena; afterwards all have all. dp NULL: one rank.
NEB_MUST_CHECK enum neb_status intra_optim_all_gather(const struct intra_optim *o,
                                                      struct intra_comm *dp, float *arena);
// Each shard becomes the sum over the dp ranks, at its owner.
NEB_MUST_CHECK enum neb_status intra_optim_reduce(const struct intra_optim *o,
                                                  struct intra_comm *dp, float *arena);

// Parts of an update (intra_device_update). part: this rank updates the elements *from ...
// *from + n of tensor t; returns n. decide: computes the norm and o->factors from o->sums; false:
// the norm is not finite, or a collective failed. adamw: the constants of step o->t, without
// clipping and decay.
size_t intra_optim_part(const struct intra_optim *o, const struct intra_tensor *t, size_t *from);
bool intra_optim_decide(struct intra_optim *o, const struct intra_model *m,
                        struct intra_update *out);
struct kern_adamw intra_optim_adamw(const struct intra_optim *o, float lr);

#endif
