// SPDX-License-Identifier: Apache-2.0
// The two sides of mode `rtd`, without a transport: a generator turns text into batches, a
// discriminator learns from them. The worker (rtd_worker.c) puts a stream between them, or runs
// both in one process.
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
#include "agent/job/config.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/data/data.h"
#include "intra/model/device.h"

#include <jansson.h>

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
    int64_t updates;     // of the optimiser
    uint64_t tokens;     // of text trained on
    double loss_first, loss_last;
    double train_s;                     // of computing
    uint64_t batch_bytes, batch_tokens; // of batches that were trained on, and of their text
    uint64_t masked, replaced;          // of these tokens
    bool done;                          // training and evaluation are over; the results are below
    double eval_loss, eval_accuracy, eval_auc; // auc: discriminator only
};
const struct agent_rtd_state *agent_rtd_state(const struct agent_rtd_side *s);
bool agent_rtd_trained(const struct agent_rtd_side *s); // all training events are over
// Events of an unfinished evaluation. A restart repeats them, because a checkpoint holds the state
// before them.
int64_t agent_rtd_repeated(const struct agent_rtd_side *s);
struct intra_trainer *agent_rtd_trainer(struct agent_rtd_side *s);
// Statistics of the last update. `fresh` is true once for each update.
const struct intra_step_stats *agent_rtd_stats(struct agent_rtd_side *s, bool *fresh);
// {"loss", "accuracy", …} of the held-out split, and figures of the batches.
json_t *agent_rtd_quality(const struct agent_rtd_side *s);
// Everything that the next event depends on. An unfinished evaluation is not saved; it is repeated.
// restore: NEB_ERR_FORMAT: the checkpoint does not fit this job; then destroy the side.
NEB_MUST_CHECK enum neb_status agent_rtd_save(const struct agent_rtd_side *s,
                                              struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status agent_rtd_restore(struct agent_rtd_side *s,
                                                 const struct intra_ckpt *c);

// The most bytes of a batch; the most batches that the generator's window may grow to.
double agent_rtd_batch_max(const struct agent_job *job);
uint32_t agent_rtd_ahead_max(const struct agent_job *job);

struct agent_worker;
// In rtd_worker.c: runs a worker of mode rtd that has attached to its agent.
NEB_MUST_CHECK enum neb_status agent_rtd_run(struct agent_worker *w);

#endif
