// SPDX-License-Identifier: Apache-2.0
// What a job of mode rtd or distill will do on given machines and links: joins intra/cost/cost.h (what a generator, discriminator,
// teacher or student does with a batch) with inter/stream/cost.h (what their stream carries), and who should take which part.
//
// Both modes train on one rank a cluster, on its processors or a device, so there are no meshes to choose from.
#ifndef AGENT_PLANNER_STREAMS_H
#define AGENT_PLANNER_STREAMS_H
#include "agent/plan/planner.h"
#include "inter/stream/cost.h"

struct agent_planner_text { // what micro-batches are like
    int32_t vocab;          // of the corpus; 0: not known
    // distill, of a micro-batch: tokens with padding, length of its sequences, target tokens. Of the first batches of the
    // corpus; where it is not here, as if half of every sequence were its target.
    double tokens, length, targets;
    double id_bytes; // of a token of text on the wire
    bool known;
    // of the teacher's checkpoint; vocab 0: there is none here, and the job's shape is taken
    struct intra_model_config teacher;
};
// NEB_ERR_INVALID: the vocabulary is not known, or a corpus of another kind.
NEB_MUST_CHECK enum neb_status agent_planner_text(const struct agent_job *job,
                                                  struct agent_planner_text *out);

struct agent_planned_side {
    enum agent_role role;
    struct intra_cost_job job;
    struct intra_cost cost; // of a step that learns, if it learns
    double batch_s;         // for one batch of one stream; of a generator with its ratio of steps
    double rate;            // batches/s of its stream: a teacher's, of all
    double wait;            // share of its time
    bool learns, fits;
    bool no_device, no_bf16; // as agent_planned
};

struct agent_planner_streams {
    struct agent_wan link;
    int32_t n;        // clusters
    int32_t producer; // that generates or teaches; -1: students alone
    int32_t served;   // streams that leave it
    struct agent_planned_side sides[AGENT_CLUSTERS_MAX];
    int64_t batches;                // of a stream in the run
    double batch_bytes, back_bytes; // of a batch, payload; rtd: with its share of embeddings
    double unit;                    // tokens (rtd) or target tokens (distill) of a batch
    bool travels;                   // false: one process (sync.scheme: synchronous), or no stream
    struct inter_stream_flow flow;  // of the slowest stream
    double exchange_wait_s;         // rtd.share_embeddings: waited for at each exchange
    // of students that are one model (distill.federate): rounds.n above 0
    struct agent_planner rounds;
    double wall_s;                 // of the run, without start and final evaluation
    double sent_bytes, came_bytes; // of the run: by the producer to all, and back
};
// Roles are as the job says: none may be auto. sites[i] belongs to cluster i.
NEB_MUST_CHECK enum neb_status agent_planner_streams(const struct agent_job *job,
                                                     const struct agent_planner_text *text,
                                                     const struct agent_site *sites,
                                                     const struct agent_wan *link,
                                                     struct agent_planner_streams *out);

// The part of every cluster that lets the slower side be fastest. free: clusters whose role may change; others keep theirs.
// Writes n_clusters roles; false: no choice fits into memory, and nothing is written.
bool agent_planner_cast(const struct agent_job *job, const struct agent_planner_text *text,
                        const struct agent_site *sites, const bool *free, enum agent_role *roles);

// What would not hold up the slower side: a window for the round trip, as many labels as the link carries, recomputation where
// memory is short. Written into *job, whose roles are set.
NEB_MUST_CHECK enum neb_status agent_planner_streams_improve(const struct agent_planner_text *text,
                                                             const struct agent_site *sites,
                                                             const struct agent_wan *link,
                                                             struct agent_job *job);

#endif
