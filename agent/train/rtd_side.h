// SPDX-License-Identifier: Apache-2.0
// What the two sides of mode rtd share: rtd.c (set-up, text and masks, state), rtd_generator.c, rtd_discriminator.c. Nobody
// else includes this.
#ifndef AGENT_RTD_SIDE_H
#define AGENT_RTD_SIDE_H
#include "agent/base/clock.h"
#include "agent/train/rtd.h"
#include "agent/train/rtd_share.h"
#include "compress/replaced.h"
#include "intra/train/rtd.h"
#include "intra/train/runner.h"

enum { FLAG_EVAL = 1, FLAG_LAST = 2, FLAG_TEXT = 4, FLAG_SHARE = 8 }; // of a batch
// Streams of random numbers, by purpose.
enum { SEED_MASK = 1, SEED_SAMPLE, SEED_GENERATOR, SEED_DISCRIMINATOR };

struct agent_rtd_side {
    struct agent_job job;
    enum agent_role role;
    const struct intra_corpus *corpus;
    struct intra_place at;
    struct intra_sampler *sampler;
    struct intra_trainer *trainer;
    struct intra_mask_sampler *draws; // generator
    struct cmp_tokens *wire;
    struct rtd_share *share;   // NULL: embeddings are apart
    bool *embedding;           // with share: by index, true of the tensor whose rows these are
    bool reply;                // discriminator: its rows are to be sent
    int32_t vocab;             // of the corpus; the mask is the id after it
    int32_t micro, n;          // tokens of a micro-batch, of a step
    int32_t *tokens;           // (n) text of the event
    int32_t *inputs, *targets; // (micro) what the model gets
    int32_t *positions;        // (micro) masked
    int32_t *masked_at;        // (n) masked positions of the whole step
    int32_t *index, *ids;      // (n) replaced among the masked; what was drawn
    int32_t *window;           // (seq_len) scratch
    int64_t events, eval_batches;
    int64_t eval_windows[INTRA_SOURCES_MAX];
    struct agent_rtd_state s;
    struct intra_step_stats stats;
    bool fresh;
    // evaluation
    double eval_sum;
    int64_t eval_count, eval_right;
    float *scores; // discriminator: of all held-out positions
    int32_t *labels;
    size_t n_scores, cap_scores;
};

uint64_t rtd_seed(const struct agent_rtd_side *s, int purpose);
// Whether the generator trains in event e, and whether a batch is made of it.
bool rtd_trains(const struct agent_rtd_side *s, int64_t e);
bool rtd_emits(const struct agent_rtd_side *s, int64_t e);
// Whether embeddings are exchanged in event e; *x: which exchange, also where an earlier one ends.
bool rtd_shares(const struct agent_rtd_side *s, int64_t e, int64_t *x);
// Windows of the next event, in s->tokens; returns how many.
int32_t rtd_draw(struct agent_rtd_side *s);
// Random stream of micro-batch a of the present event.
uint64_t rtd_stream(const struct agent_rtd_side *s, int32_t a);
// Masked positions of micro-batch a, in s->positions; returns how many.
int32_t rtd_mask(struct agent_rtd_side *s, const int32_t *tokens, int32_t n, int32_t a);
// The optimiser's update, and what is remembered of it.
NEB_MUST_CHECK enum neb_status rtd_took_step(struct agent_rtd_side *s);
// With a device: the rows that are shared, from it before they are read and to it when they have changed.
NEB_MUST_CHECK enum neb_status rtd_share_pull(struct agent_rtd_side *s);
NEB_MUST_CHECK enum neb_status rtd_share_push(struct agent_rtd_side *s);

#endif
