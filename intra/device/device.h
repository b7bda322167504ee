// SPDX-License-Identifier: Apache-2.0
// A model in training on an accelerator (kernels/device.h), or the part of it that a rank of a mesh holds. The trainer hands over to
// it when its configuration names a device; what it computes is what forward.c and optim.c compute, drawn there.
//
//     on the device   master parameters, gradients, moments, the residual stream and its gradient   fp32
//                     activations, and with bf16 a working copy of the parameters for products       T
//     on the host     intra_model.params and intra_optim.m, v: as last pulled
//
// All memory is taken at set-up, in one piece. A step copies tokens in through two pinned buffers that take turns, and waits
// for the device once, for its norms and loss; the host then decides on clipping as on any device. Parameters and moments
// pass through pinned buffers too.
//
// Several ranks have a device each. Collectives of a step are on device memory (NCCL). Between tensor-parallel ranks they are in the
// device's queue (device_rows.c, drawn): the host waits for none of them, and a rank that hangs is told of where it waits anyway. Others
// are called by the host: over replicas while backward runs (device_update.c, drawn). The queue has passed what these read before, and
// nothing that writes it is enqueued until they have returned.
#ifndef INTRA_DEVICE_H
#define INTRA_DEVICE_H
#include "intra/model/optim.h"
#include "intra/model/pipe.h"
#include "kernels/device.h"

struct intra_device;

// Whether parts of a step are recorded and replayed (kern_device_ops.record): the same bits. Not with tensor parallelism.
enum intra_graphs {
    INTRA_GRAPHS_AUTO, // where the first passes show that it is faster
    INTRA_GRAPHS_ON,
    INTRA_GRAPHS_OFF,
};

// Where a model is: on processors, or on a device beside them. Borrowed.
struct intra_place {
    struct kern *K;
    struct kern_device *device; // NULL: on processors
    enum kern_type type;        // T, with a device
    enum intra_graphs graphs;   // with a device
};

struct intra_device_config {
    struct kern_device *D; // borrowed
    enum intra_graphs graphs;
    enum kern_type type; // T
    int32_t batch, seq_len;
    int32_t micros; // of a step: a pipeline keeps some of them in flight
    bool recompute;
    int32_t
        soft_k; // ids a position that are drawn, labelled, or a teacher's: at most; 0: none. One rank
    // The model's mesh once more, over communicators that take device memory; borrowed. NULL: one rank
    const struct intra_mesh *mesh;
    size_t least_bytes; // memory of the smallest of its ranks' devices; 0: of D
};
// m and o are borrowed; parameters and moments are pushed. o NULL: a model that learns nothing, with memory for forward passes only. NEB_ERR_NOMEM says how much is wanted and how much there is;
// NEB_ERR_UNSUPPORTED for a model that the kernels do not take.
NEB_MUST_CHECK enum neb_status intra_device_create(const struct intra_device_config *c,
                                                   struct intra_model *m, struct intra_optim *o,
                                                   struct intra_device **out);
void intra_device_destroy(struct intra_device **d); // NULL-safe
// For tests. Bytes of device memory, all together; ops of a training pass (of several stages: of its forward half) that are
// replayed, 0: they are launched one by one.
size_t intra_device_bytes(const struct intra_device *d);
int intra_device_graph_ops(const struct intra_device *d);

// One micro-batch, enqueued: gradients are added up, and the sum of losses on the device. Returns how many targets count. Not with
// several stages, where a pipe drives the engine below.
int64_t intra_device_micro(struct intra_device *d, const struct intra_batch *b, float grad_scale);
struct intra_pipe_engine intra_device_pipe(struct intra_device *d); // d outlives it
// Ends a step: *loss the sum of its losses. *count: of its targets here; on return of all ranks, as is the loss. Gradients are scaled
// by full / *count first. Collective over the mesh.
NEB_MUST_CHECK enum neb_status intra_device_update(struct intra_device *d, double full,
                                                   double *loss, int64_t *count,
                                                   struct intra_update *out);
// Losses without gradients; a step in progress is left alone. begin, then micro for a batch at a time (or a pipe's eval), then end:
// *loss their sum, of this rank.
void intra_device_eval_begin(struct intra_device *d);
int64_t intra_device_eval_micro(struct intra_device *d, const struct intra_batch *b);
NEB_MUST_CHECK enum neb_status intra_device_eval_end(struct intra_device *d, double *loss);

// Of the last pass or micro-batch, before the next update. All wait for the device.
// A discriminator's scores of its first n positions.
NEB_MUST_CHECK enum neb_status intra_device_scores(struct intra_device *d, int32_t n, float *out);
// Draws ids (n) below n_ids at positions (n), one by each of u (n) in [0, 1).
NEB_MUST_CHECK enum neb_status intra_device_sample(struct intra_device *d, int32_t n_ids,
                                                   const int32_t *positions, int32_t n,
                                                   const float *u, int32_t *ids);
// Soft labels at rows (n), k of each: as intra_labels (distill.h).
NEB_MUST_CHECK enum neb_status intra_device_labels(struct intra_device *d, const int32_t *rows,
                                                   int32_t n, int32_t k, float temperature,
                                                   int32_t *ids, float *logp, float *tail);

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
