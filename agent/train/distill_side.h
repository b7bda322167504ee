// SPDX-License-Identifier: Apache-2.0
// What distill.c (steps) and distill_side.c (set-up, evaluation, checkpoints) share. Private to
// them.
#ifndef AGENT_DISTILL_SIDE_H
#define AGENT_DISTILL_SIDE_H
#include "agent/train/distill.h"
#include "agent/train/label_request.h"
#include "compress/softlabel.h"

struct agent_distill_side {
    struct agent_job job;
    enum agent_role role;
    int32_t student, n_students; // it draws batches as this student of so many
    int32_t budget;              // tokens of a micro-batch
    // added to the seed of its parameters: with distill.relay students differ only by it
    uint64_t init;
    const struct intra_corpus *corpus;
    struct intra_place at;
    struct intra_pairs *pairs;
    struct intra_pair_batch batch;
    struct intra_trainer *trainer; // NULL: a frozen teacher
    struct intra_model *frozen;    // NULL: it learns
    // over the trainer's model and activations, or over the frozen model and its own activations
    struct intra_device *passes; // of the trainer or of the frozen teacher
    struct cmp_soft *wire;
    struct cmp_tokens *text; // of requests
    struct agent_request_limits limits;
    int32_t *request_ids;
    int32_t *rows; // (budget) positions with a target
    // Labels by position, as the loss needs them, and by row, as they are sent. With k 0, k is the
    // whole vocabulary.
    int32_t *ids, *row_ids; // (budget, k)
    float *logp, *row_logp; // (budget, k)
    float *tail, *row_tail; // (budget)
    struct agent_distill_state s;
    struct intra_step_stats stats;
};

// The drawn batch as input of a pass.
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
