// SPDX-License-Identifier: Apache-2.0
// The two sides of mode `rtd`, without a transport: a generator turns text into batches, a
// discriminator learns from them. Their roles (side.h) put a stream between them, or a queue if
// both are in one process.
//
//     generator, event e                                   discriminator
//       draw windows, mask, train on the masked tokens
//       sample the masked tokens  ──── batch ────────►     draw the same windows, mask the same
//                                                          positions, put the replaced tokens
//                                                          there, train on detection
//
// Events are the common time of both sides. With `generator_steps: g, discriminator_steps: d`, in
// each max(g, d) events the generator trains in the first g, and makes a batch in the first d.
// After the last event the generator masks the held-out split in the same way, so that both sides
// are measured on the same text.
//
// A batch (rtd_share.h, compress/replaced.h):
//
//     | flags u8 | windows u32 | if shared, rows of embeddings: bytes u32, frame |
//     | frame of replacements | if pushed, text |
#ifndef AGENT_RTD_H
#define AGENT_RTD_H
#include "agent/base/clock.h"
#include "agent/train/rtd_share.h"
#include "agent/train/side.h"
#include "compress/replaced.h"
#include "intra/train/rtd.h"

enum { AGENT_RTD_EVAL_BATCHES_MAX = 1024 };

struct agent_rtd_side;
// Makes the side of cluster role `role`, with its model. corpus and what `at` names are borrowed.
// The vocabulary is that of the corpus and one more id, the mask. NEB_ERR_INVALID: the job's
// model.vocab has another value.
NEB_MUST_CHECK enum neb_status agent_rtd_create(const struct agent_job *job, enum agent_role role,
                                                const struct intra_corpus *corpus,
                                                const struct intra_place *at,
                                                struct agent_rtd_side **out);
void agent_rtd_destroy(struct agent_rtd_side **s); // NULL-safe

// Generator: runs the next event. *made: `batch` (cleared first) holds the next batch.
NEB_MUST_CHECK enum neb_status agent_rtd_produce(struct agent_rtd_side *s, struct neb_buf *batch,
                                                 bool *made);
// Discriminator: takes the next batch. NEB_ERR_FORMAT: malformed, or not the batch that is due.
NEB_MUST_CHECK enum neb_status agent_rtd_consume(struct agent_rtd_side *s, const uint8_t *p,
                                                 size_t n);

// Shared embeddings (rtd_share.h). awaits: the generator's next event waits for the discriminator's
// rows. answer: gives it these rows; NEB_ERR_FORMAT: they are not such rows. reply: the
// discriminator's answer to the batch that it has just taken (once), or NULL.
bool agent_rtd_awaits(const struct agent_rtd_side *s);
NEB_MUST_CHECK enum neb_status agent_rtd_answer(struct agent_rtd_side *s, const uint8_t *p,
                                                size_t n);
const struct neb_buf *agent_rtd_reply(struct agent_rtd_side *s);

struct agent_rtd_state { // the state of a side; plain data
    int64_t event;       // the next one: of training, then of evaluation
    uint64_t seq;        // next batch
    struct side_figures f;
    uint64_t batch_tokens;     // of the text of batches that were trained on
    uint64_t masked, replaced; // of these tokens
    bool done;                 // training and evaluation are over; the results are below
    double eval_loss, eval_accuracy, eval_auc; // auc: discriminator only
};
bool agent_rtd_trained(const struct agent_rtd_side *s); // all training events are over

// The most bytes of a batch; the most batches that the generator's window may grow to.
double agent_rtd_batch_max(const struct agent_job *job);
uint32_t agent_rtd_ahead_max(const struct agent_job *job);

// ---- between the files of the mode: rtd.c (set-up, text, masks, figures), rtd_role.c (streams,
// checkpoints, report), rtd_generator.c, rtd_discriminator.c ----

enum { FLAG_EVAL = 1, FLAG_LAST = 2, FLAG_TEXT = 4, FLAG_SHARE = 8 }; // of a batch
// Streams of random numbers, by purpose.
enum { SEED_MASK = 1, SEED_SAMPLE, SEED_GENERATOR, SEED_DISCRIMINATOR };

struct agent_rtd_side {
    struct agent_job job;
    enum agent_role role;
    const struct intra_corpus *corpus;
    struct intra_place at;
    struct intra_sampler *sampler;
    struct intra_group *group;
    struct cmp_tokens *wire;
    struct rtd_share *share;   // NULL: embeddings are not shared
    bool *embedding;           // with share, by tensor index: true for the shared embedding
    bool reply;                // discriminator: its rows must be sent
    int32_t vocab;             // of the corpus; the mask is the next id
    int32_t micro, n;          // tokens of a micro-batch, of a step
    int32_t *tokens;           // (n) text of the event
    int32_t *inputs, *targets; // (micro) for the model
    int32_t *positions;        // (micro) masked
    // (n) masked positions: discriminator, in the step; generator, each in its micro-batch
    int32_t *masked_at;
    int32_t *index, *ids; // (n) of replaced tokens: index among the masked ones, new id
    // Generator: what each micro-batch asks for (accumulate); (n) draws and their numbers, by index
    // among the masked positions.
    struct intra_picks *picks;
    int32_t *drawn;
    double *u;
    int32_t *window; // (seq_len) scratch
    int64_t events, eval_batches;
    int64_t eval_windows[INTRA_SOURCES_MAX];
    struct agent_rtd_state s;
    struct intra_step_stats stats;
    // Streams; NULL without a transport, and `back` if embeddings are not shared.
    struct agent_stream *batches, *back;
    uint64_t back_next; // from the checkpoint
    bool held;          // the checkpoint holds a batch that had no room
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
// Counts a batch that was trained on.
void rtd_count_batch(struct agent_rtd_side *s, size_t bytes, uint32_t masked, uint32_t replaced);
// Begins the evaluation, if this is its first event; ends it.
void rtd_eval_begin(struct agent_rtd_side *s);
void rtd_eval_end(struct agent_rtd_side *s, double auc);
// The event is over. batch: it had one. start: when it began.
void rtd_event_over(struct agent_rtd_side *s, bool batch, neb_ns start);

// In rtd_role.c: slots of struct side_role that both roles share.
NEB_MUST_CHECK enum neb_status rtd_role_create(struct agent_side *x);
void rtd_role_destroy(struct agent_side *x);
NEB_MUST_CHECK enum neb_status rtd_role_open(struct agent_side *x);
bool rtd_role_done(const struct agent_side *x);
int64_t rtd_role_at(const struct agent_side *x);
NEB_MUST_CHECK enum neb_status rtd_role_save(const struct agent_side *x,
                                             struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status rtd_role_restore(struct agent_side *x, const struct intra_ckpt *c);
NEB_MUST_CHECK enum neb_status rtd_role_report(struct agent_side *x, bool done, double *loss,
                                               json_t **more);
#define RTD_ROLE_OPS                                                                               \
    .create = rtd_role_create, .destroy = rtd_role_destroy, .open = rtd_role_open,                 \
    .done = rtd_role_done, .at = rtd_role_at, .save = rtd_role_save, .restore = rtd_role_restore,  \
    .report = rtd_role_report
// When to save after a turn: at the end of training, and not in the evaluation, which a restart
// repeats. trained: training was over before the turn.
enum side_save rtd_when_to_save(struct agent_side *x, bool trained);

#endif
