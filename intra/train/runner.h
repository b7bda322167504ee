// SPDX-License-Identifier: Apache-2.0
// A model together with what runs passes over it: the CPU (kern.h, activations) or a device
// (device.h). Modes rtd and distill use it (rtd.h, distill.h), so their code is the same for both,
// and for models in training and not.
#ifndef INTRA_RUNNER_H
#define INTRA_RUNNER_H
#include "intra/train/trainer.h"

struct intra_runner { // all borrowed
    struct kern *K;
    struct intra_model *model;
    struct intra_acts *acts;     // NULL with a device
    struct intra_device *device; // NULL on the CPU
};

// The runner of a model in training. It is valid as long as the trainer is.
struct intra_runner intra_trainer_runner(const struct intra_trainer *t);
// A pass without gradients. *loss: sum of losses; *count: targets that count. Both may be NULL if b
// has no targets.
NEB_MUST_CHECK enum neb_status intra_run(const struct intra_runner *r, const struct intra_batch *b,
                                         double *loss, int64_t *count);
// A discriminator's scores at the first n positions of the last pass.
NEB_MUST_CHECK enum neb_status intra_run_scores(const struct intra_runner *r, int32_t n,
                                                float *out);

#endif
