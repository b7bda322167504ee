// SPDX-License-Identifier: Apache-2.0
// AdamW with clipping over the trainable tensors of a model, and learning-rate schedules.
#ifndef INTRA_OPTIM_H
#define INTRA_OPTIM_H
#include "intra/model/model.h"

enum intra_schedule_kind { INTRA_SCHEDULE_COSINE, INTRA_SCHEDULE_WSD, INTRA_SCHEDULE_CONSTANT };
struct intra_schedule {
    enum intra_schedule_kind kind;
    float lr;             // peak
    float min_ratio;      // lr at the end / peak
    float decay_fraction; // WSD: share of all steps that decays (linearly) at the end
    int64_t warmup, steps;
};
// Learning rate of step t in [0, steps): linear warm-up, then cosine, or stable and decay (WSD), or constant.
float intra_schedule_lr(const struct intra_schedule *s, int64_t t);

enum intra_clip_kind { INTRA_CLIP_NONE, INTRA_CLIP_GLOBAL_NORM, INTRA_CLIP_ADAGC };
struct intra_clip {
    enum intra_clip_kind kind;
    float max_norm; // global norm; also AdaGC's warm-up
    // AdaGC: clip a tensor to ratio * gamma; gamma follows by beta (arXiv 2502.11034: 1.04, 0.99)
    float ratio, beta;
    int64_t warmup; // AdaGC: steps of global clipping first (100)
};

struct intra_optim_config {
    struct intra_schedule schedule;
    struct intra_clip clip;
    float beta1, beta2, eps, weight_decay; // decay on matrices only
};

// With data parallelism each of the dp ranks keeps the moments of an equal part of the gradient arena (ZeRO stage 1,
// Rajbhandari et al. 2020): gradients are reduce-scattered, each rank updates its part of the parameters, and these are
// all-gathered. Norms are summed over the whole mesh, so clipping does the same on every mesh but for rounding.
struct intra_optim {
    struct intra_optim_config c;
    int64_t t; // updates made: where the schedules are
    // updates before the moments' first one: not 0 after steps were skipped with nothing learned yet
    int64_t born;
    float *m, *v; // (n) first and second moments of gradients at..at+n
    float *gamma; // (n_tensors) AdaGC's norm per tensor; 0: no gradient seen yet, clipped globally
    double *sums; // (n_tensors) of squared gradients, in an update
    float *factors; // (n_tensors) of clipping, in an update
    // (n_partial) gradients of which each tensor-parallel rank has a part, in an update
    float *partial;
    size_t n_partial;
    size_t at, n;      // all of n_trainable on one rank; else n_grads / dp
    int32_t n_tensors; // of the whole model, by index
};
// Moments are zero. c is copied. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_optim_create(const struct intra_optim_config *c,
                                                  const struct intra_model *m,
                                                  struct intra_optim **out);
void intra_optim_destroy(struct intra_optim **o);
// As if n more updates had been made: schedules go on from there. Moments stay; where there are none yet, they begin there.
void intra_optim_skip(struct intra_optim *o, int64_t n);

struct intra_update { // what one update did
    float lr;
    double grad_norm; // global, before clipping
    int32_t clipped;  // tensors scaled down
};
// Clips, updates the parameters from m->grads and zeroes the gradients. A non-finite gradient norm skips the update
// (grad_norm says so) but counts the step, so that schedules of all clusters stay together. On a mesh: collective over
// its world, gradients are summed over dp first; a failure is kept in m->failed and nothing is updated.
void intra_optim_update(struct intra_optim *o, struct kern *K, struct intra_model *m,
                        struct intra_update *out);
// Its parts, for updates elsewhere (device.h). decide: from o->sums the norm, and o->factors; false: the norm is not finite.
// adamw: what all tensors of the step at o->t share, without clipping and decay.
// part: of tensor t this rank updates elements *from ... *from + n; returns n.
size_t intra_optim_part(const struct intra_optim *o, const struct intra_tensor *t, size_t *from);
bool intra_optim_decide(struct intra_optim *o, const struct intra_model *m,
                        struct intra_update *out);
struct kern_adamw intra_optim_adamw(const struct intra_optim *o, float lr);

#endif
