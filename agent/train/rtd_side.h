// SPDX-License-Identifier: Apache-2.0
// What rtd.c (set-up, text and masks, state), rtd_generator.c and rtd_discriminator.c share.
// Private to them.
#ifndef AGENT_RTD_SIDE_H
#define AGENT_RTD_SIDE_H
#include "agent/base/clock.h"
#include "agent/train/rtd.h"
#include "agent/train/rtd_share.h"
#include "compress/replaced.h"
#include "intra/train/rtd.h"
#include "intra/train/trainer.h"

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
    struct cmp_tokens *wire;
    struct rtd_share *share;   // NULL: embeddings are not shared
    bool *embedding;           // with share, by tensor index: true for the shared embedding
    bool reply;                // discriminator: its rows must be sent
    int32_t vocab;             // of the corpus; the mask is the next id
    int32_t micro, n;          // tokens of a micro-batch, of a step
    int32_t *tokens;           // (n) text of the event
    int32_t *inputs, *targets; // (micro) for the model
    int32_t *positions;        // (micro) masked
    int32_t *masked_at;        // (n) masked positions of the whole step
    int32_t *index, *ids;      // (n) of replaced tokens: index among the masked ones, new id
    int32_t *window;           // (seq_len) scratch
    int64_t events, eval_batches;
    int64_t eval_windows[INTRA_SOURCES_MAX];
    struct agent_rtd_state s;
    struct intra_step_stats stats;
    bool fresh;
    // Evaluation.
    double eval_sum;
    int64_t eval_count, eval_right;
    float *scores; // discriminator: of all held-out positions
    int32_t *labels;
    size_t n_scores, cap_scores;
};

uint64_t rtd_seed(const struct agent_rtd_side *s, int purpose);
// trains: the generator trains in event e. emits: it makes a batch in event e.
bool rtd_trains(const struct agent_rtd_side *s, int64_t e);
bool rtd_emits(const struct agent_rtd_side *s, int64_t e);
// True if embeddings are exchanged in event e. *x: the number of the exchange. It is also set in an
// event that only completes the previous exchange.
bool rtd_shares(const struct agent_rtd_side *s, int64_t e, int64_t *x);
// Draws the windows of the next event into s->tokens; returns their number.
int32_t rtd_draw(struct agent_rtd_side *s);
// The random stream of micro-batch a of the current event.
uint64_t rtd_stream(const struct agent_rtd_side *s, int32_t a);
// Chooses the masked positions of micro-batch a, in s->positions; returns their number.
int32_t rtd_mask(struct agent_rtd_side *s, const int32_t *tokens, int32_t n, int32_t a);
// Runs the optimiser's update and records its figures.
NEB_MUST_CHECK enum neb_status rtd_took_step(struct agent_rtd_side *s);
// With a device: copies the shared rows from it before they are read, and to it after they changed.
NEB_MUST_CHECK enum neb_status rtd_share_pull(struct agent_rtd_side *s);
NEB_MUST_CHECK enum neb_status rtd_share_push(struct agent_rtd_side *s);

#endif
