// SPDX-License-Identifier: Apache-2.0
// A model and what runs passes over it: processors (kern.h, activations) or a device (device.h). What modes rtd and distill do with a
// model, in training or not, is said once, here and in rtd.h and distill.h, for both.
#ifndef INTRA_RUNNER_H
#define INTRA_RUNNER_H
#include "intra/train/trainer.h"

struct intra_runner { // all borrowed
    struct kern *K;
    struct intra_model *model;
    struct intra_acts *acts;     // NULL with a device
    struct intra_device *device; // NULL on processors
};

// Of a model in training; good as long as it is.
struct intra_runner intra_trainer_runner(const struct intra_trainer *t);
// A pass without gradients. Sum of losses and counted targets; both may be NULL where b has no targets.
NEB_MUST_CHECK enum neb_status intra_run(const struct intra_runner *r, const struct intra_batch *b,
                                         double *loss, int64_t *count);
// A discriminator's scores of the first n positions of the last pass.
NEB_MUST_CHECK enum neb_status intra_run_scores(const struct intra_runner *r, int32_t n,
                                                float *out);

#endif
