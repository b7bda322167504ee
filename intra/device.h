// A model in training on an accelerator (kernels/device.h): one rank, the whole model. The trainer hands over to it when its
// configuration names a device; what it computes is what forward.c and optim.c compute, drawn there.
//
//     on the device   master parameters, gradients, moments, the residual stream and its gradient   fp32
//                     activations, and with bf16 a working copy of the parameters for products       T
//     on the host     intra_model.params and intra_optim.m, v: as last pulled
//
// All memory is taken at set-up, in one piece. A step copies tokens in through two pinned buffers that take turns, and waits
// for the device once, for its norms and loss; the host then decides on clipping as on any device. Parameters and moments
// pass through pinned buffers too.
#ifndef INTRA_DEVICE_H
#define INTRA_DEVICE_H
#include "intra/optim.h"
#include "kernels/device.h"

struct intra_device;

struct intra_device_config {
    struct kern_device *D; // borrowed
    enum kern_type type;   // T
    int32_t batch, seq_len;
    bool recompute;
};
// m and o are borrowed; parameters and moments are pushed. NEB_ERR_NOMEM says how much is wanted and how much there is;
// NEB_ERR_UNSUPPORTED for a model that the kernels do not take.
NEB_MUST_CHECK enum neb_status intra_device_create(const struct intra_device_config *c,
                                                   struct intra_model *m, struct intra_optim *o,
                                                   struct intra_device **out);
void intra_device_destroy(struct intra_device **d);      // NULL-safe
size_t intra_device_bytes(const struct intra_device *d); // of device memory, all together

// One micro-batch, enqueued: gradients are added up, and the sum of losses on the device. Returns how many targets count.
int64_t intra_device_micro(struct intra_device *d, const int32_t *tokens, const int32_t *targets,
                           float grad_scale);
// Ends a step: *loss the sum of its losses. Gradients are scaled by `scale` first.
NEB_MUST_CHECK enum neb_status intra_device_update(struct intra_device *d, float scale,
                                                   double *loss, struct intra_update *out);
// Losses of n windows (tokens, targets: (n, seq_len)), without gradients; a step in progress is left alone.
NEB_MUST_CHECK enum neb_status intra_device_eval(struct intra_device *d, const int32_t *tokens,
                                                 const int32_t *targets, int n, double *loss,
                                                 int64_t *count);

// Parameters of tensors with wanted[index] (NULL: all) between the device and the model's host memory.
NEB_MUST_CHECK enum neb_status intra_device_pull(struct intra_device *d, const bool *wanted);
NEB_MUST_CHECK enum neb_status intra_device_push(struct intra_device *d, const bool *wanted);
// Where a trainable tensor's master parameters are on the device. Who changes them there says so, or products go on with the old
// ones; the model's host memory is then behind until it is pulled.
float *intra_device_param(const struct intra_device *d, const struct intra_tensor *t);
NEB_MUST_CHECK enum neb_status intra_device_changed(struct intra_device *d, const bool *wanted);
// Likewise the optimiser's moments.
NEB_MUST_CHECK enum neb_status intra_device_pull_moments(struct intra_device *d);
NEB_MUST_CHECK enum neb_status intra_device_push_moments(struct intra_device *d);

#endif
