// SPDX-License-Identifier: Apache-2.0
// Predicts a job of mode rtd or distill on given machines and links, and chooses the roles. It
// joins intra/cost/cost.h (what a side does with a batch) with inter/stream/cost.h (what their
// stream carries). Each side has the mesh that the job gives it.
#ifndef AGENT_PLANNER_STREAMS_H
#define AGENT_PLANNER_STREAMS_H
#include "agent/plan/planner.h"
#include "inter/stream/cost.h"

struct agent_planner_text { // what micro-batches are like
    int32_t vocab;          // of the corpus; 0: not known
    // distill, per micro-batch: tokens with padding, length of a sequence, target tokens; measured
    // on the first batches of the corpus. Without a corpus here, half of each sequence counts as
    // target.
    double tokens, length, targets;
    double id_bytes; // bytes of a token of text on the wire
    bool known;
    // From the teacher's checkpoint. vocab 0: there is none here, and the job's shape is used.
    struct intra_model_config teacher;
};
// NEB_ERR_INVALID: the vocabulary is not known, or the corpus is of another kind.
NEB_MUST_CHECK enum neb_status agent_planner_text(const struct agent_job *job,
                                                  struct agent_planner_text *out);

struct agent_planned_side {
    enum agent_role role;
    struct intra_cost_job job;
    struct intra_cost cost; // of a step (with learning, if this side learns)
    double batch_s;         // one batch of one stream; for a generator with its ratio of steps
    double rate;            // batches/s of its stream; for a teacher, of all its streams
    double wait;            // share of its time
    bool learns, fits;
    bool no_device, no_bf16; // as in agent_planned
};

struct agent_planner_streams {
    struct agent_wan link;
    int32_t n;        // clusters
    int32_t producer; // the cluster that generates or teaches; -1: only students
    int32_t served;   // streams that leave the producer
    struct agent_planned_side sides[AGENT_CLUSTERS_MAX];
    int64_t batches; // of a stream in the run
    // payload of a batch and of its answer; rtd: with a share of the embeddings
    double batch_bytes, back_bytes;
    double unit;                   // tokens (rtd) or target tokens (distill) of a batch
    bool travels;                  // false: one process (sync.scheme: synchronous), or no stream
    struct inter_stream_flow flow; // of the slowest stream
    double exchange_wait_s;        // rtd.share_embeddings: wait at each exchange
    // Federated students (distill.federate): rounds.n is above 0.
    struct agent_planner rounds;
    double wall_s;                 // of the run, without start and final evaluation
    double sent_bytes, came_bytes; // of the run: by the producer to all, and back
};
// Roles are those of the job: none may say auto. sites[i] belongs to cluster i.
NEB_MUST_CHECK enum neb_status agent_planner_streams(const struct agent_job *job,
                                                     const struct agent_planner_text *text,
                                                     const struct agent_site *sites,
                                                     const struct agent_wan *link,
                                                     struct agent_planner_streams *out);

// Chooses the roles that make the slower side as fast as possible. free: clusters whose role may
// change; the others keep theirs. Writes n_clusters roles. False: no choice fits into memory, and
// nothing is written.
bool agent_planner_cast(const struct agent_job *job, const struct agent_planner_text *text,
                        const struct agent_site *sites, const bool *free, enum agent_role *roles);

// Changes *job so that the stream does not hold up the slower side: a window for the round trip, as
// many labels as the link carries, recomputation if memory is short. The roles of *job are set.
NEB_MUST_CHECK enum neb_status agent_planner_streams_improve(const struct agent_planner_text *text,
                                                             const struct agent_site *sites,
                                                             const struct agent_wan *link,
                                                             struct agent_job *job);

#endif
