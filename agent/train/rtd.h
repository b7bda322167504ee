// SPDX-License-Identifier: Apache-2.0
// The two sides of mode `rtd`, each without its transport: a generator turns text into batches, a discriminator learns from
// them. The worker (rtd_worker.c) puts a stream between them, or nothing, when one process does both.
//
//     generator, event e                                   discriminator
//       draw windows, mask, train on the masked tokens
//       sample the masked tokens  ──── batch ────────►     draw the same windows, mask the same positions
//                                                          put the replaced tokens there, train on detection
//
// Events count both sides' time: with `generator_steps: g, discriminator_steps: d` of max(g, d) events in a row the generator
// trains in the first g and a batch is made in the first d. After the last of them the generator masks the held-out split
// likewise, so that both sides are measured on the same text.
//
// A batch: | flags u8 | windows u32 | rows of embeddings, if shared: bytes u32, frame | frame of replacements | text, if pushed |
// (rtd_share.h, compress/replaced.h)
#ifndef AGENT_RTD_H
#define AGENT_RTD_H
#include "agent/job/config.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/data/data.h"
#include "intra/device/device.h"

#include <jansson.h>

enum { AGENT_RTD_EVAL_BATCHES_MAX = 1024 };

struct agent_rtd_side;
// Of cluster role `role` of the job; the model is there; corpus and what `at` names are borrowed. The job's model.vocab becomes the corpus's and one more, the
// mask. NEB_ERR_INVALID: the model has another vocabulary.
NEB_MUST_CHECK enum neb_status agent_rtd_create(const struct agent_job *job, enum agent_role role,
                                                const struct intra_corpus *corpus,
                                                const struct intra_place *at,
                                                struct agent_rtd_side **out);
void agent_rtd_destroy(struct agent_rtd_side **s); // NULL-safe

// Generator: the next event. *made: `batch` (cleared first) is the next batch.
NEB_MUST_CHECK enum neb_status agent_rtd_produce(struct agent_rtd_side *s, struct neb_buf *batch,
                                                 bool *made);
// Discriminator: takes the next batch. NEB_ERR_FORMAT: malformed, or not what is due.
NEB_MUST_CHECK enum neb_status agent_rtd_consume(struct agent_rtd_side *s, const uint8_t *p,
                                                 size_t n);

// Shared embeddings (rtd_share.h). Generator: its next event waits for the discriminator's rows; here they are. NEB_ERR_FORMAT: not
// such rows. Discriminator: what the batch that was just taken is to be answered with (once), or NULL.
bool agent_rtd_awaits(const struct agent_rtd_side *s);
NEB_MUST_CHECK enum neb_status agent_rtd_answer(struct agent_rtd_side *s, const uint8_t *p,
                                                size_t n);
const struct neb_buf *agent_rtd_reply(struct agent_rtd_side *s);

struct agent_rtd_state { // where a side is; plain data
    int64_t event;       // next of training, then of evaluation
    uint64_t seq;        // next batch
    int64_t updates;     // of the optimiser
    uint64_t tokens;     // of text trained on
    double loss_first, loss_last;
    double train_s;                     // computing
    uint64_t batch_bytes, batch_tokens; // of batches that were trained on, and the text behind them
    uint64_t masked, replaced;          // of these
    bool done;                          // evaluated too: the results below
    double eval_loss, eval_accuracy, eval_auc; // auc: discriminator
};
const struct agent_rtd_state *agent_rtd_state(const struct agent_rtd_side *s);
bool agent_rtd_trained(const struct agent_rtd_side *s); // all training events are over
// Events of an evaluation that is not over: a checkpoint is of before them.
int64_t agent_rtd_repeated(const struct agent_rtd_side *s);
struct intra_trainer *agent_rtd_trainer(struct agent_rtd_side *s);
// Of the last update; the caller says it once (`fresh`).
const struct intra_step_stats *agent_rtd_stats(struct agent_rtd_side *s, bool *fresh);
// {"loss", "accuracy", …} of the held-out split, and what the batches were like.
json_t *agent_rtd_quality(const struct agent_rtd_side *s);
// Everything that the next event depends on. Evaluation is not saved half way: it is repeated. NEB_ERR_FORMAT: a checkpoint that does
// not fit this job; the side is to be destroyed then.
NEB_MUST_CHECK enum neb_status agent_rtd_save(const struct agent_rtd_side *s,
                                              struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status agent_rtd_restore(struct agent_rtd_side *s,
                                                 const struct intra_ckpt *c);

// Bytes of a batch at most, and how many batches the generator's window may widen to.
double agent_rtd_batch_max(const struct agent_job *job);
uint32_t agent_rtd_ahead_max(const struct agent_job *job);

struct agent_worker;
// rtd_worker.c: all of a worker's life after it has attached to its agent.
NEB_MUST_CHECK enum neb_status agent_rtd_run(struct agent_worker *w);

#endif
