// SPDX-License-Identifier: Apache-2.0
// What distill.c (steps) and distill_side.c (set-up, evaluation, checkpoints) share. Nobody else includes this.
#ifndef AGENT_DISTILL_SIDE_H
#define AGENT_DISTILL_SIDE_H
#include "agent/train/distill.h"
#include "agent/train/label_request.h"
#include "compress/softlabel.h"
#include "intra/train/distill.h"

struct agent_distill_side {
    struct agent_job job;
    enum agent_role role;
    int32_t student, n_students; // that it draws batches as, of how many
    int32_t budget;              // tokens of a micro-batch
    uint64_t init; // added to the seed of its parameters: with distill.relay students differ by it
    const struct intra_corpus *corpus;
    struct intra_place at;
    struct intra_pairs *pairs;
    struct intra_pair_batch batch;
    struct intra_trainer *trainer; // NULL: a frozen teacher
    struct intra_model *frozen;    // NULL: it learns
    struct intra_runner passes;    // over the one or the other; of the frozen one, its own
    struct intra_labeller *labeller;
    struct cmp_soft *wire;
    struct cmp_tokens *text; // of requests
    struct agent_request_limits limits;
    int32_t *request_ids;
    int32_t *rows; // (budget) positions with a target
    // Labels by position, as the loss wants them, and by row, as they travel; k 0: all of the vocabulary.
    int32_t *ids, *row_ids; // (budget, k)
    float *logp, *row_logp; // (budget, k)
    float *tail, *row_tail; // (budget)
    struct agent_distill_state s;
    struct intra_step_stats stats;
};

// What is drawn, as a pass takes it.
static inline struct intra_batch distill_batch(const struct agent_distill_side *s,
                                               const struct kern_soft *teacher) {
    return (struct intra_batch){.tokens = s->batch.tokens,
                                .targets = s->batch.targets,
                                .B = s->batch.B,
                                .T = s->batch.T,
                                .prefix = s->batch.prefix,
                                .teacher = teacher};
}

#endif
