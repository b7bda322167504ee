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

struct intra_optim_config {
    struct intra_schedule schedule;
    struct intra_clip clip;
    float beta1, beta2, eps, weight_decay; // decay on matrices only
};

// With data parallelism each of the dp ranks keeps the moments of an equal shard of the gradient
// arena (ZeRO stage 1, Rajbhandari et al. 2020): gradients are reduce-scattered, each rank updates
// its shard of the parameters, and these are all-gathered. Norms are summed over the whole mesh, so
// clipping is the same on every mesh, except for rounding.
struct intra_optim {
    struct intra_optim_config c;
    int64_t t; // updates made; the position in the schedules
    // value of t at which the moments start; above 0 if steps were skipped before the first update
    int64_t born;
    float *m, *v;      // (n) first and second moments of gradients at..at+n
    float *gamma;      // (n_tensors) AdaGC's norm; 0: no gradient so far, clipped globally
    double *sums;      // (n_tensors + 2) of squared gradients, loss, targets, during an update
    float *factors;    // (n_tensors) of clipping, during an update
    size_t at, n;      // n_trainable on one rank; else n_grads / dp
    int32_t n_tensors; // of the full model, by index
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
// Parts of an update (intra_device_update). part: this rank updates the elements *from ...
// *from + n of tensor t; returns n. decide: computes the norm and o->factors from o->sums; false:
// the norm is not finite, or a collective failed. adamw: the constants of step o->t, without
// clipping and decay.
size_t intra_optim_part(const struct intra_optim *o, const struct intra_tensor *t, size_t *from);
bool intra_optim_decide(struct intra_optim *o, const struct intra_model *m,
                        struct intra_update *out);
struct kern_adamw intra_optim_adamw(const struct intra_optim *o, float lr);

#endif
