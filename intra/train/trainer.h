// SPDX-License-Identifier: Apache-2.0
// A model in training: parameters, optimiser and token counts. A worker drives it step by step:
//
//     for each micro-batch of the step:  intra_trainer_micro(t, tokens, targets)
//     intra_trainer_update(t, &stats)
//
// The caller loops over the micro-batches of a step, from one source or from those of several
// clusters.
//
// On a mesh every rank makes these calls in the same order. The ranks of one replica (equal
// mesh->dp_rank) pass the same micro-batches; different replicas pass different ones. A step's
// gradient is the mean over all replicas. With several pipeline stages intra_trainer_update does
// the work, and needs all micro-batches of the step. When a collective fails, the statistics carry
// its status, and the ranks must restart from a checkpoint.
#ifndef INTRA_TRAINER_H
#define INTRA_TRAINER_H
#include "agent/base/sha256.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/model/device.h"
#include "intra/model/optim.h"
#include "intra/model/pipe.h"

enum { INTRA_MICRO_TOKENS_MAX = 1 << 24 }; // batch x seq_len

struct intra_trainer_config {
    struct intra_model_config model;
    struct intra_trainable trainable;
    struct intra_optim_config optim;
    int32_t batch;   // sequences in a micro-batch
    int32_t seq_len; // tokens in a sequence
    // Micro-batches per step and replica: gradients are means over all their targets.
    int32_t accumulate;
    // Micro-batches have any shape of at most batch x seq_len tokens. For a group: its replicas may
    // get parts of them.
    bool varied;
    // No gradients, no optimiser: parameters stay what the caller makes them (push). They are zero
    // at first.
    bool frozen;
    float weight; // of the gradients; 0: 1
    bool recompute;
    uint64_t seed;                 // of the initial parameters: the same on all clusters
    const struct intra_mesh *mesh; // borrowed; NULL: one rank
    struct kern *device;           // borrowed; NULL: the CPU
    bool device_optional; // for a group: train on the CPU if not all of its ranks have a device
    enum intra_graphs device_graphs;
    // on a device: the storage type; on the CPU: the type of products (kern_cpu_bf16)
    enum kern_type device_type;
    int32_t soft_k; // as intra_device_config.soft_k
    // With a device and a mesh: the same mesh over communicators that take device memory; borrowed.
    const struct intra_mesh *device_mesh;
    size_t device_least; // memory of the smallest device among the ranks; 0: that of `device`
};

struct intra_step_stats { // the same on all ranks of a mesh
    double loss;          // mean, nats per token
    int64_t tokens;       // over all replicas
    struct intra_update update;
    enum neb_status status; // of the mesh's collectives; NEB_OK with one rank
};

// State that the ranks of a mesh hold beside the trainer, and that checkpoints must keep: that of
// the exchange (agent/exchange/shards.h).
struct intra_trainer_extra {
    void *user;
    // about how much rank `rank` holds; the same answer on all ranks
    uint64_t (*bytes)(void *user, int rank);
    // Adds what rank r holds to the writer of rank writer[r]. w: this rank's writer, NULL if it
    // writes nothing. Collective. A failure to write goes to *written and does not stop the call.
    enum neb_status (*put)(void *user, const int32_t *writer, struct intra_ckpt_writer *w,
                           enum neb_status *written);
};

struct intra_trainer {
    struct intra_trainer_config c;
    struct kern *K; // borrowed
    struct intra_model *model;
    struct intra_optim *optim;   // NULL: frozen
    struct intra_pipe *pipe;     // NULL with one stage
    struct intra_device *device; // c.device, or the processors
    // On a mesh: layout of the whole model; on rank 0, while needed, also its parameters.
    struct intra_model *whole;
    struct intra_part_saver *part_saver;     // on a rank of a mesh (trainer_parts.h)
    const struct intra_trainer_extra *extra; // borrowed, set by the caller; NULL: nothing
    // The key of this rank's part of a sealed checkpoint. Borrowed, set by the caller, outlives the
    // trainer. NULL: this rank writes no sealed part.
    const struct neb_vault *vault;
    float weight;                   // of the next micro-batches' gradients
    bool resting;                   // parameters do not change now, and the backend knows it
    bool caches;                    // between two calls of intra_trainer_cache
    int64_t loss_count, eval_count; // targets of the step, and of the evaluation, in progress
    // (V) Tokens that this replica has seen as input and as target since the job began.
    uint64_t *input_counts, *target_counts;
};

// c is copied. NEB_ERR_INVALID: batch, seq_len, model or trainable set out of range (logged).
// NEB_ERR_NOMEM. With a device also the device's errors.
NEB_MUST_CHECK enum neb_status intra_trainer_create(const struct intra_trainer_config *c,
                                                    struct kern *K, struct intra_trainer **out);
void intra_trainer_destroy(struct intra_trainer **t);
// tokens, targets: (batch, seq_len)
void intra_trainer_micro(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets);
// A micro-batch of another shape (at most batch x seq_len tokens), with prefixes, with a teacher,
// or with picks (NULL: none), whose results are there after intra_trainer_run. It does not count
// tokens, because only the caller knows which of them are padding. With several stages a teacher's
// labels and the picks are borrowed until intra_trainer_run.
void intra_trainer_micro_batch(struct intra_trainer *t, const struct intra_batch *b,
                               const struct intra_picks *picks);
// Makes the passes of the micro-batches so far, if that was not done yet. The update calls it.
void intra_trainer_run(struct intra_trainer *t);
// Only counts n tokens, in training data without padding. micro does it itself.
void intra_trainer_count(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets,
                         int32_t n);
void intra_trainer_update(struct intra_trainer *t, struct intra_step_stats *out);
// Keeps the loss of the first step, and a running mean of the last steps, since a single step is
// noisy. NAN: none yet. A loss that is not finite changes neither: its step is skipped.
void intra_loss_add(double *first, double *last, double loss);
// Mean loss over n windows of seq_len with the current parameters. Training state does not change,
// but activations of an earlier pass are lost. tokens, targets: (n, seq_len). On a mesh all ranks
// pass all windows, and the replicas share the work.
double intra_trainer_eval(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets,
                          int n);
// The same over batches that the caller passes: begin, batch for each batch of this replica, end.
// Results of picks are there when batch returns. *loss, *count: sums over all ranks. _end is
// collective.
void intra_trainer_eval_begin(struct intra_trainer *t);
void intra_trainer_eval_batch(struct intra_trainer *t, const struct intra_batch *b,
                              const struct intra_picks *picks);
NEB_MUST_CHECK enum neb_status intra_trainer_eval_end(struct intra_trainer *t, double *loss,
                                                      int64_t *count);

// intra_device_cache of this rank's device, for evaluation batches that decode.
NEB_MUST_CHECK enum neb_status intra_trainer_cache(struct intra_trainer *t, int32_t slots,
                                                   int32_t longest);

// With a device: pull copies the parameters of tensors with wanted[index] (NULL: all) from it into
// the model, before the caller reads them. push copies them to it, after the caller changed them.
// On the CPU they do nothing.
NEB_MUST_CHECK enum neb_status intra_trainer_pull(struct intra_trainer *t, const bool *wanted);
NEB_MUST_CHECK enum neb_status intra_trainer_push(struct intra_trainer *t, const bool *wanted);

// With a device: its copy of a trainable tensor (NULL on the CPU), and the call to make after
// changing tensors there (device.h).
float *intra_trainer_on_device(const struct intra_trainer *t, const struct intra_tensor *x);
NEB_MUST_CHECK enum neb_status intra_trainer_changed(struct intra_trainer *t, const bool *wanted);

// The units of the exchange: row ranges of trainable tensors in canonical order, each of at most
// INTRA_UNIT_ELEMENTS.
enum { INTRA_UNIT_ELEMENTS = 16 << 20 };
struct intra_unit {
    const struct intra_tensor *tensor;
    int32_t row0, rows, cols;
    // (rows, cols) in the parameter arena, to read and overwrite; NULL without one
    float *data;
};
// Allocates *out; the caller frees it.
NEB_MUST_CHECK enum neb_status intra_units(const struct intra_model *m, struct intra_unit **out,
                                           int32_t *n);

// Model shape and parameters only: what evaluation, generation and export need.
NEB_MUST_CHECK enum neb_status intra_model_save(const struct intra_model *m,
                                                struct intra_ckpt_writer *w);
// The shape alone: for a writer that adds the tensors itself, in the order of the model.
NEB_MUST_CHECK enum neb_status intra_model_save_config(const struct intra_model *m,
                                                       struct intra_ckpt_writer *w);
// Shape and trainable set of the model in a checkpoint, as intra_model_save() wrote them.
// NEB_ERR_NOT_FOUND: the checkpoint holds no model. NEB_ERR_FORMAT: the description is malformed,
// or of another version. It does not check that such a model can be built.
NEB_MUST_CHECK enum neb_status intra_model_read_config(const struct intra_ckpt *c,
                                                       struct intra_model_config *mc,
                                                       struct intra_trainable *t);
// Builds the model that a checkpoint describes, with its parameters, for use without training (no
// gradients). NEB_ERR_FORMAT: the description is malformed or a tensor is missing. It allocates
// memory only after it has found all tensors, so a false description costs none.
NEB_MUST_CHECK enum neb_status intra_model_load(const struct intra_ckpt *c,
                                                struct intra_model **out);
// Digest of the names, shapes and bytes of a checkpoint's parameters, and of nothing else in it
// (moments, cursors). NEB_ERR_NOT_FOUND: no model.
NEB_MUST_CHECK enum neb_status intra_model_params_digest(const struct intra_ckpt *c,
                                                         uint8_t out[NEB_SHA256_BYTES]);
// Checks that a checkpoint holds a model of this shape. NEB_ERR_INVALID: another shape (logs the
// key and both values).
NEB_MUST_CHECK enum neb_status intra_model_same_shape(const struct intra_ckpt *c,
                                                      const struct intra_model_config *is);
// Copies the parameters into m. Adapters that the checkpoint lacks keep their initial values.
// NEB_ERR_INVALID: the checkpoint holds another model (logs the key and both values), adapters that
// m has no place for, or adapters of another alpha. Another rope_theta, rope_scaling, norm_eps or
// mask only warns.
NEB_MUST_CHECK enum neb_status intra_model_load_params(const struct intra_ckpt *c,
                                                       struct intra_model *m);
// The checks of load_params without the copy.
NEB_MUST_CHECK enum neb_status intra_model_check_params(const struct intra_ckpt *c,
                                                        const struct intra_model *m);
// Everything that the next step depends on, except the data cursor, which the caller keeps. The
// file does not depend on the mesh: it can be restored on any other. On a mesh both calls are
// collective: rank 0 writes and reads, w and c are NULL on the other ranks, and all ranks return
// the same status. If w may be split (intra_ckpt_split), the other ranks write parts beside rank
// 0's file.
NEB_MUST_CHECK enum neb_status intra_trainer_save(const struct intra_trainer *t,
                                                  struct intra_ckpt_writer *w);
// Requires the same model and trainable set. After a failure destroy the trainer.
NEB_MUST_CHECK enum neb_status intra_trainer_restore(struct intra_trainer *t,
                                                     const struct intra_ckpt *c);

#endif
