// SPDX-License-Identifier: Apache-2.0
// A model on a device, or the part of it that a rank of a mesh holds: passes, updates and
// evaluations. The device is an accelerator or the processors (kernels/kern.h).
//
//     device   fp32   master parameters, gradients, moments, the residual stream and its gradient
//              T      activations, and with bf16 a working copy of the parameters for products
//     host     fp32   intra_model.params and intra_optim.m, v, as last pulled
//
// On processors the device's parameters, gradients and moments are those of the host, and T is
// fp32: pull and push do nothing.
//
// All device memory is taken at set-up, in one piece. A step copies tokens through two pinned
// buffers in turn. It waits for the device once, for norms and loss; the host then decides on
// clipping.
//
// Each rank has its own device. Collectives work on device memory (over NCCL on accelerators).
// Those between tensor-parallel ranks are in the queue of an accelerator (rows.c): the host waits
// for none of them, and detects a hanging rank where it waits for the queue. The host calls all
// other collectives; it calls those between replicas while backward runs (update.c). Before such a
// call the queue has passed all ops that write its operands, and no op that writes them is enqueued
// until it returns.
#ifndef INTRA_DEVICE_H
#define INTRA_DEVICE_H
#include "agent/base/rng.h"
#include "intra/model/batch.h"
#include "intra/model/optim.h"
#include "intra/model/pipe.h"
#include "kernels/device.h"

struct intra_device;

// Whether an accelerator records parts of a step and replays them (kern_ops.record). The results
// have the same bits. With tensor parallelism nothing is recorded.
enum intra_graphs {
    INTRA_GRAPHS_AUTO, // if the first passes show that it is faster
    INTRA_GRAPHS_ON,
    INTRA_GRAPHS_OFF,
};

// Positions whose logits exist at the same time on processors with a cut vocabulary.
enum { INTRA_VOCAB_ROWS = 256 };

struct intra_device_config {
    struct kern *D; // borrowed
    enum intra_graphs graphs;
    enum kern_type type; // T
    int32_t batch, seq_len;
    int32_t micros; // of a step; a pipeline keeps some of them in flight; 0: 1
    bool learn;     // gradients are computed; implied by an optimiser
    bool recompute; // backward computes each block again from its input, which saves most memory
    // Most ids per position for draws, labels or a teacher; 0: none, except on one rank of
    // processors
    int32_t soft_k;
    // the mesh of the model, but over communicators that take device memory; borrowed; NULL: one
    // rank
    const struct intra_mesh *mesh;
    size_t least_bytes; // memory of the smallest device of its ranks; 0: that of D
};
// m and o are borrowed; their parameters and moments are pushed. o NULL: there are no updates.
// NEB_ERR_NOMEM: the message tells how much memory is needed and how
// much there is; NEB_ERR_UNSUPPORTED: the kernels do not take the model; NEB_ERR_INVALID: seq_len
// is above max_seq.
NEB_MUST_CHECK enum neb_status intra_device_create(const struct intra_device_config *c,
                                                   struct intra_model *m, struct intra_optim *o,
                                                   struct intra_device **out);
void intra_device_destroy(struct intra_device **d); // NULL-safe
// The same on processors, for passes of one micro-batch of at most (B, T).
NEB_MUST_CHECK enum neb_status intra_device_on_host(struct kern *K, struct intra_model *m, int B,
                                                    int T, bool learn, bool recompute,
                                                    struct intra_device **out);
// A pass over a micro-batch: forward, and with grad_scale > 0 backward: gradients of (sum of losses
// * grad_scale) are added to those of the step. *loss: the sum of losses in nats; *count: targets
// that count; both may be NULL if b has no targets. Only with one pipeline stage. Tensor-parallel
// ranks call it together with the same tokens. It waits for the device unless there are no targets.
NEB_MUST_CHECK enum neb_status intra_device_pass(struct intra_device *d,
                                                 const struct intra_batch *b, float grad_scale,
                                                 double *loss, int64_t *count);
// From the last pass, on one rank of processors: hidden states after the final norm, (B * T, d);
// out (n, V): logits at n rows from `row` on.
const float *intra_device_hidden(const struct intra_device *d);
void intra_device_logits(struct intra_device *d, int row, int n, float *out);
// For tests. bytes: all device memory. graph_ops: ops of a training pass (with several stages: of
// its forward) that are replayed; 0: ops are launched one by one.
size_t intra_device_bytes(const struct intra_device *d);
int intra_device_graph_ops(const struct intra_device *d);

// Enqueues one micro-batch: adds up gradients, and the sum of losses on the device. Returns the
// number of targets that count. Only with one stage; with several, a pipe drives the engine below.
int64_t intra_device_micro(struct intra_device *d, const struct intra_batch *b, float grad_scale);
struct intra_pipe_engine intra_device_pipe(struct intra_device *d); // d outlives it
// Ends a step: clips, updates the parameters and zeroes the gradients; collective over the mesh. A
// gradient norm that is not finite (out->grad_norm) skips the update but counts the step, so that
// the schedules of all clusters stay equal. Gradients are scaled by full / *count first. *loss: sum
// of the losses of all ranks. *count: on entry the targets of this rank's micro-batches, on return
// those of all ranks.
NEB_MUST_CHECK enum neb_status intra_device_update(struct intra_device *d, double full,
                                                   double *loss, int64_t *count,
                                                   struct intra_update *out);
// Makes a cache for passes that decode (intra_batch.slot): `slots` sequences of at most `longest`
// positions. 0 slots: frees it. Parameters must not change while there is one. NEB_ERR_INVALID:
// longest is above seq_len; NEB_ERR_NOMEM. _bytes: device memory of one slot.
NEB_MUST_CHECK enum neb_status intra_device_cache(struct intra_device *d, int32_t slots,
                                                  int32_t longest);
size_t intra_device_cache_bytes(const struct intra_device *d, int32_t longest);
// Losses without gradients. A step in progress stays as it is. Call begin, then micro for each
// batch (or a pipe's eval), then end. *loss: their sum, of this rank.
void intra_device_eval_begin(struct intra_device *d);
int64_t intra_device_eval_micro(struct intra_device *d, const struct intra_batch *b);
NEB_MUST_CHECK enum neb_status intra_device_eval_end(struct intra_device *d, double *loss);

// The next three calls read the last pass or micro-batch, and must come before the next update.
// They wait for the device. Only ranks of the last stage call them; tensor-parallel ranks together,
// and all get the result. scores: a discriminator's scores of its first n positions.
NEB_MUST_CHECK enum neb_status intra_device_scores(struct intra_device *d, int32_t n, float *out);
// Draws ids (n) below n_ids at positions (n): kern_ops.sample_rows.
NEB_MUST_CHECK enum neb_status intra_device_sample(struct intra_device *d, int32_t n_ids,
                                                   const int32_t *positions, int32_t n,
                                                   float temperature, const double *u,
                                                   int32_t *ids);
// Soft labels at rows (n): kern_ops.label_rows. k is at most soft_k on an accelerator.
NEB_MUST_CHECK enum neb_status intra_device_labels(struct intra_device *d, const int32_t *rows,
                                                   int32_t n, int32_t k, float temperature,
                                                   int32_t *ids, float *logp, float *tail);
NEB_MUST_CHECK enum neb_status intra_device_pick(struct intra_device *d,
                                                 const struct intra_picks *p);

// Copies the parameters of tensors with wanted[index] (NULL: all) from the device to the model's
// host memory (pull), or back (push). pull copies trainable tensors only; the others never change
// here.
NEB_MUST_CHECK enum neb_status intra_device_pull(struct intra_device *d, const bool *wanted);
NEB_MUST_CHECK enum neb_status intra_device_push(struct intra_device *d, const bool *wanted);
// The master parameters of a trainable tensor on the device. A caller that changes them must call
// changed, or products use the old values. The host memory is then outdated until the next pull.
float *intra_device_param(const struct intra_device *d, const struct intra_tensor *t);
NEB_MUST_CHECK enum neb_status intra_device_changed(struct intra_device *d, const bool *wanted);
// Seconds that the iterations of Muon took so far, on processors (on a device: their enqueuing).
double intra_device_muon_seconds(const struct intra_device *d);
// FLOPs of the products of these iterations in one update, on this rank.
double intra_device_muon_flops(const struct intra_device *d);
// The same for the optimiser's moments.
NEB_MUST_CHECK enum neb_status intra_device_pull_moments(struct intra_device *d);
NEB_MUST_CHECK enum neb_status intra_device_push_moments(struct intra_device *d);

#endif
