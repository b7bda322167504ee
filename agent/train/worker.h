// SPDX-License-Identifier: Apache-2.0
// A worker: it trains the replica of its cluster, or its side of a stream, and exchanges updates
// with the other clusters through its agent.
//
//     worker.c           starts and ends; the loop between two exchanges
//     builtin.c          the built-in trainer of replicas: data, model, steps
//     tensors.c          tensors of an intra_trainer as units of the exchange
//     worker_eval.c      held-out loss
//     worker_text.c      checks that the corpus still holds the text that a checkpoint counts
//     worker_device.c    whether it trains on a device or on processors
//     side.c             the loop of a side of modes rtd and distill
//     worker_stream.c    its end of a stream
//     follow.c           what the other ranks do when rank 0 calls
#ifndef AGENT_WORKER_H
#define AGENT_WORKER_H
#include "agent/exchange/exchange.h"
#include "agent/train/tensors.h"
#include "intra/data/data.h"
#include "intra/train/group.h"

struct agent_worker {
    struct agent_exchange x;
    struct intra_comm *world; // borrowed; NULL: one rank
    int threads;              // per rank
    // where it trains
    struct kern *K;
    struct kern *device; // NULL: it trains on processors
    enum kern_type device_type;
    char no_device[KERN_WHY_MAX + 64]; // with device: auto, why there is no device
    bool device_gone;                  // the job trained on a device before, which is missing now
    bool lost;                         // a side's group was lost (intra_group_lost)
    struct intra_corpus *corpus;
    // The model of reports: the group's, or that of a side.
    struct intra_model *model;
    // the built-in trainer of replicas
    int n_samplers; // 1, or one per cluster in the synchronous reference
    struct intra_sampler *samplers[AGENT_CLUSTERS_MAX];
    struct intra_group *group;
    struct worker_tensors tensors;
    int32_t *tokens, *targets; // (batch, seq_len)
};

// Runs a worker. world: the ranks of this worker, which wait in intra_group_serve; NULL: one rank,
// with the threads that the job sets. threads: of each rank (0: all processors).
NEB_MUST_CHECK enum neb_status agent_worker_run(const char *socket_path, const char *job,
                                                struct intra_comm *world, int threads);
struct exchange_figures worker_figures(const struct intra_step_stats *s);
// exchange_results with w->model. eval_loss NAN: not measured.
NEB_MUST_CHECK enum neb_status worker_results(const struct agent_worker *w, const char *device,
                                              double eval_loss, bool done, json_t **out);
// Writes a model as DIR/NAME.
NEB_MUST_CHECK enum neb_status worker_write_model(struct agent_worker *w,
                                                  const struct intra_model *m, const char *name);

// builtin.c
// Opens the data and creates the trainer, as the job says; sets w->x.trainer, w->model.
NEB_MUST_CHECK enum neb_status worker_builtin_create(struct agent_worker *w);
void worker_builtin_destroy(struct agent_worker *w);
// One optimiser step. _leave_out: skips the step and its data, because the other clusters are
// faster; so cursors and schedules stay the same on all clusters.
NEB_MUST_CHECK enum neb_status worker_builtin_step(struct agent_worker *w);
NEB_MUST_CHECK enum neb_status worker_builtin_leave_out(struct agent_worker *w);

// worker_device.c
// Opens what the cluster's `device` and `precision` ask for: sets w->device and w->device_type.
// NEB_ERR_UNSUPPORTED, with a hint: `cuda` is not available. NEB_ERR_IO, and w->device_gone: the
// job trained on a device before, so processors are no substitute.
NEB_MUST_CHECK enum neb_status worker_device_open(struct agent_worker *w);
bool worker_device_optional(const struct agent_worker *w); // processors are a substitute
// st: the result of intra_group_create, or of the creation of a side. Returns it, or the error of worker_device_open if the
// device that the job had before cannot be joined.
NEB_MUST_CHECK enum neb_status worker_device_joined(struct agent_worker *w, enum neb_status st);
// Call it once there is a group: gives the device back if other ranks have none, and stores and
// reports where the worker trains.
void worker_device_settle(struct agent_worker *w, const struct intra_group *group);
// "cuda (NVIDIA …, bf16)", "cpu" or "cpu, bf16"
void worker_device_name(const struct agent_worker *w, char *out, size_t cap);

// worker_eval.c
// Mean held-out loss over all sources of the corpus, each with the same number of windows
// (eval.windows); by_source receives {source: loss}. NAN if nothing is held out.
NEB_MUST_CHECK enum neb_status worker_evaluate(struct agent_worker *w, double *loss,
                                               json_t *by_source);
// Evaluates every eval.every_steps steps and sends a metrics line.
NEB_MUST_CHECK enum neb_status worker_eval_when_due(struct agent_worker *w);

// worker_text.c
// Save the digest of the text that a checkpoint's cursors count; and warn, also in the metrics, if
// the corpus holds other text now.
NEB_MUST_CHECK enum neb_status worker_text_save(const struct agent_worker *w,
                                                struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status worker_text_compare(struct agent_worker *w,
                                                   const struct intra_ckpt *c);

#endif
