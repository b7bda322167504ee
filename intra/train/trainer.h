// SPDX-License-Identifier: Apache-2.0
// A model in training: parameters, optimiser, token counts; the unit that a worker drives step by step.
//
//     for each micro-batch of the step:  intra_trainer_micro(t, tokens, targets, B)
//     intra_trainer_update(t, &stats)
//
// So accumulation over micro-batches (of one source or of several clusters' sources) is the caller's loop.
//
// On a mesh every rank makes these calls in the same order. The ranks of one replica (equal mesh->dp_rank) pass the same
// micro-batches; different replicas pass different ones, and a step's gradient is the mean over all of them. With several
// pipeline stages the work is done in intra_trainer_update, which needs all micro-batches of the step. When a collective
// fails, statistics carry its status, and the ranks have to start again from a checkpoint.
#ifndef INTRA_TRAINER_H
#define INTRA_TRAINER_H
#include "agent/base/sha256.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/device/device.h"
#include "intra/model/optim.h"
#include "intra/model/pipe.h"

enum { INTRA_MICRO_TOKENS_MAX = 1 << 24 }; // batch x seq_len

struct intra_trainer_config {
    struct intra_model_config model;
    struct intra_trainable trainable;
    struct intra_optim_config optim;
    int32_t batch;   // sequences of a micro-batch
    int32_t seq_len; // tokens of a sequence
    // micro-batches of a step and replica: gradients are means over all their targets
    int32_t accumulate;
    bool recompute;
    uint64_t seed;                 // of the initial parameters: the same on all clusters
    const struct intra_mesh *mesh; // borrowed; NULL: one rank
    struct kern_device *device;    // borrowed; NULL: on the CPU
    bool device_optional; // of a group: without devices for all of its ranks it trains on the CPU
    enum intra_graphs device_graphs;
    enum kern_type device_type; // T; without a device: of products (kern_cpu_bf16)
    int32_t soft_k;             // with a device: as intra_device_config.soft_k
    // with a device and a mesh: the same mesh over communicators that take device memory; borrowed
    const struct intra_mesh *device_mesh;
    size_t device_least; // memory of the smallest of its ranks' devices; 0: of `device`
};

struct intra_step_stats { // the same on all ranks of a mesh
    double loss;          // mean, nats per token
    int64_t tokens;       // of all replicas
    struct intra_update update;
    enum neb_status status; // of a mesh's collectives; NEB_OK on one rank
};

// What the ranks of a mesh hold beside the trainer, for its checkpoints: the exchange's state (agent/exchange/shards.h).
struct intra_trainer_extra {
    void *user;
    uint64_t (*bytes)(void *user, int rank); // of that rank, about; the same answer on all ranks
    // Adds what rank r holds to the writer of rank writer[r]; w: this rank's, NULL where it writes nothing. Collective; a failure to write
    // goes to *written and stops nobody.
    enum neb_status (*put)(void *user, const int32_t *writer, struct intra_ckpt_writer *w,
                           enum neb_status *written);
};

struct intra_trainer {
    struct intra_trainer_config c;
    struct kern *K; // borrowed
    struct intra_model *model;
    struct intra_optim *optim;
    struct intra_acts *acts;
    struct intra_pipe *pipe;     // NULL with one stage
    struct intra_device *device; // NULL on the CPU; with one there are no acts
    // on a mesh: layout of the whole model; at the owner, while needed, its parameters
    struct intra_model *whole;
    struct intra_part_saver *part_saver;     // of a rank of a mesh (trainer_parts.h)
    const struct intra_trainer_extra *extra; // borrowed, set by whoever has it; NULL: nothing
    // What this rank's part of a sealed checkpoint is sealed with: borrowed, set by whoever has the key, outlives the trainer. NULL: it writes none
    const struct neb_vault *vault;
    float weight; // of the gradients of the next micro-batches; 1 at first. Not with several stages
    bool resting; // parameters do not change now, and the backend knows
    double loss_sum; // of the step in progress
    int64_t loss_count;
    // (V) tokens seen as input and as target, ever, by this replica
    uint64_t *input_counts, *target_counts;
};

// c is copied. NEB_ERR_INVALID: batch, seq_len, model or trainable set out of range (which is logged); NEB_ERR_NOMEM; with a device
// also its errors.
NEB_MUST_CHECK enum neb_status intra_trainer_create(const struct intra_trainer_config *c,
                                                    struct kern *K, struct intra_trainer **out);
void intra_trainer_destroy(struct intra_trainer **t);
// tokens, targets: (batch, seq_len)
void intra_trainer_micro(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets);
// One of another shape, of at most batch x seq_len tokens, or with prefixes, or a teacher. Returns the targets that count. Its tokens are not
// counted: which of them are padding is the caller's to know. Not with several stages.
int64_t intra_trainer_micro_batch(struct intra_trainer *t, const struct intra_batch *b);
// Parameters stay as they are until the next update or evaluation: passes over the model may be faster (kern_ops.weights). Micro
// says so itself.
void intra_trainer_freeze_params(struct intra_trainer *t);
// Only counts the tokens of a micro-batch, which another replica trains on (micro counts its own).
void intra_trainer_count(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets);
void intra_trainer_update(struct intra_trainer *t, struct intra_step_stats *out);
// The loss of the first step and of the last ones, as a mean: a single step is noisy. NAN: none yet. A loss that is not finite, whose step
// was skipped, leaves both alone.
void intra_loss_add(double *first, double *last, double loss);
// Mean loss over n windows of seq_len, with the present parameters; training state is untouched (activations are not kept
// across calls). tokens, targets: (n, seq_len). On a mesh all ranks pass all windows, and replicas share the work.
double intra_trainer_eval(struct intra_trainer *t, const int32_t *tokens, const int32_t *targets,
                          int n);

// With a device: parameters of tensors with wanted[index] (NULL: all) from it into the model before they are read, and to it
// after they have been changed. Nothing to do on the CPU.
NEB_MUST_CHECK enum neb_status intra_trainer_pull(struct intra_trainer *t, const bool *wanted);
NEB_MUST_CHECK enum neb_status intra_trainer_push(struct intra_trainer *t, const bool *wanted);

// With a device: its copy of a trainable tensor (NULL on the CPU), and what to call after changing it there (device.h).
float *intra_trainer_on_device(const struct intra_trainer *t, const struct intra_tensor *x);
NEB_MUST_CHECK enum neb_status intra_trainer_changed(struct intra_trainer *t, const bool *wanted);

// The exchanged units: row ranges of trainable tensors in canonical order, at most INTRA_UNIT_ELEMENTS each.
enum { INTRA_UNIT_ELEMENTS = 16 << 20 };
struct intra_unit {
    const struct intra_tensor *tensor;
    int32_t row0, rows, cols;
    // (rows, cols) in the parameter arena: read it, overwrite it; NULL where there is none
    float *data;
};
// Allocates *out (free()).
NEB_MUST_CHECK enum neb_status intra_units(const struct intra_model *m, struct intra_unit **out,
                                           int32_t *n);

// Model shape and parameters only: what evaluation, generation and export need.
NEB_MUST_CHECK enum neb_status intra_model_save(const struct intra_model *m,
                                                struct intra_ckpt_writer *w);
// The shape of the model that a checkpoint holds, and what of it learns, as intra_model_save() wrote them. NEB_ERR_NOT_FOUND: it
// holds none; NEB_ERR_FORMAT: no description of this version, nor of an earlier one. Whether such a model can be built is not asked.
NEB_MUST_CHECK enum neb_status intra_model_read_config(const struct intra_ckpt *c,
                                                       struct intra_model_config *mc,
                                                       struct intra_trainable *t);
// Builds the model that a checkpoint describes, with its parameters, to be used and not to be trained (no gradients).
// NEB_ERR_FORMAT when the description is malformed or a tensor is missing; no memory is spent on the description's word.
NEB_MUST_CHECK enum neb_status intra_model_load(const struct intra_ckpt *c,
                                                struct intra_model **out);
// Of names, shapes and bytes of the parameters that a checkpoint holds, and of nothing else in it (moments, cursors). NEB_ERR_NOT_FOUND: no model.
NEB_MUST_CHECK enum neb_status intra_model_params_digest(const struct intra_ckpt *c,
                                                         uint8_t out[NEB_SHA256_BYTES]);
// That a checkpoint holds a model of this shape. NEB_ERR_INVALID: of another (which key, both values).
NEB_MUST_CHECK enum neb_status intra_model_same_shape(const struct intra_ckpt *c,
                                                      const struct intra_model_config *is);
// Copies the parameters into m; adapters that the checkpoint lacks keep their initial values. NEB_ERR_INVALID when the
// checkpoint holds another model (which key, both values), adapters that m has no place for, or adapters of another alpha;
// another rope_theta, rope_scaling, norm_eps or mask warns.
NEB_MUST_CHECK enum neb_status intra_model_load_params(const struct intra_ckpt *c,
                                                       struct intra_model *m);
// Tokens seen by all replicas: (V) each. Collective over the data-parallel ranks.
NEB_MUST_CHECK enum neb_status intra_trainer_counts(const struct intra_trainer *t, uint64_t *input,
                                                    uint64_t *target);
// Everything that the next step depends on, but for the data cursor (the caller's). The file does not depend on the mesh:
// it can be restored on any other. On a mesh both are collective; the owner (intra_mesh_is_root) writes and reads, w and c
// are NULL on the other ranks, and all return the same status. Where w may be split (intra_ckpt_split) the others write
// parts of it beside the owner's file.
NEB_MUST_CHECK enum neb_status intra_trainer_save(const struct intra_trainer *t,
                                                  struct intra_ckpt_writer *w);
// Restore wants the same model and trainable set; after a failure the trainer is to be destroyed.
NEB_MUST_CHECK enum neb_status intra_trainer_restore(struct intra_trainer *t,
                                                     const struct intra_ckpt *c);

// Continues `tokens` (n of at most cap) until cap or eos; temperature 0 is greedy; top_k 0 means all. *out_n: the new count.
// NEB_ERR_INVALID: no prompt, or a token that is not in the vocabulary; NEB_ERR_NOMEM.
struct intra_sampling {
    float temperature;
    int32_t top_k;
    uint64_t seed;
    int32_t eos; // -1: none
};
NEB_MUST_CHECK enum neb_status intra_generate(struct kern *K, struct intra_model *m,
                                              const struct intra_sampling *s, int32_t *tokens,
                                              int n, int cap, int *out_n);

#endif
