// SPDX-License-Identifier: Apache-2.0
// The two sides of mode `distill`, without a transport: a teacher labels batches of parallel text,
// a student learns from text and labels. The worker (distill_worker.c) puts a stream between them,
// or runs both in one process.
//
//     teacher, step s                                       student, step s
//       draw batches of pairs                                 draw the same batches (same shards)
//       forward (and train on them: `learn`)
//       top k of each target position ──── labels s ────►     loss = (1 - λ) CE
//                                                                    + λ T² KL(teacher || student)
//
// Student i of n takes the batches i, i + n, i + 2n … of the corpus. A step's labels:
//
//     | step u64 | frames of soft labels (compress/softlabel.h), one a micro-batch |
//
// A student without a teacher, or one that has lost its teacher, trains on cross-entropy alone. So
// does a student of a federation (distill.federate) that has lost its disk, for steps whose labels
// the teacher has forgotten.
#ifndef AGENT_DISTILL_H
#define AGENT_DISTILL_H
#include "agent/job/config.h"
#include "intra/data/pairs.h"
#include "intra/model/device.h"

struct agent_worker;

struct agent_distill_state {          // part of a checkpoint
    int64_t step;                     // the next step
    uint64_t seq;                     // student: next batch of its stream; teacher: see the worker
    uint64_t tokens, targets, taught; // trained on; target tokens; target tokens with labels
    uint64_t label_bytes, label_rows;
    double loss_first, loss_last, train_s;
};

struct agent_distill_side;
// student: index of the student that gets the labels, or that this side is. corpus and what
// `at` names are borrowed. NEB_ERR_INVALID: a model or corpus does not fit the job (the log says
// what differs). NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status agent_distill_create(const struct agent_job *job,
                                                    enum agent_role role, int32_t student,
                                                    const struct intra_corpus *corpus,
                                                    const struct intra_place *at,
                                                    struct agent_distill_side **out);
void agent_distill_destroy(struct agent_distill_side **s);
struct agent_distill_state *agent_distill_state(struct agent_distill_side *s);
struct intra_model *agent_distill_model(struct agent_distill_side *s);
struct intra_trainer *agent_distill_trainer(struct agent_distill_side *s); // NULL: a frozen teacher
const struct intra_step_stats *agent_distill_stats(const struct agent_distill_side *s);

// Teacher: makes the labels of step `step` of `student`, k a position, into out (cleared first).
// With `learn` it also trains on these batches with the same forward pass, so steps must come in
// order. request (n bytes): the student's text (label_request.h), or NULL if both sides read the
// same shards. NEB_ERR_FORMAT: the request does not fit the job.
NEB_MUST_CHECK enum neb_status agent_distill_label(struct agent_distill_side *s, int32_t student,
                                                   int64_t step, int32_t k, const uint8_t *request,
                                                   size_t n, struct neb_buf *out);
// Student: writes the request for step `step` into out (cleared first). _most: the most bytes of a
// request.
NEB_MUST_CHECK enum neb_status agent_distill_request(struct agent_distill_side *s, int64_t step,
                                                     struct neb_buf *out);
size_t agent_distill_request_most(const struct agent_distill_side *s);
// Student: trains one step with labels (n bytes), or without (NULL). NEB_ERR_FORMAT: the labels do
// not fit.
NEB_MUST_CHECK enum neb_status agent_distill_learn(struct agent_distill_side *s, const uint8_t *p,
                                                   size_t n);
// The same in one process, with the teacher's probabilities as they are; all of them with distill.k
// 0.
NEB_MUST_CHECK enum neb_status agent_distill_learn_from(struct agent_distill_side *student,
                                                        struct agent_distill_side *teacher);
// The step that labels are for; -1: not labels.
int64_t agent_distill_step_of(const uint8_t *p, size_t n);

// Held-out loss, and translations of up to eval.windows test pairs a source: {"eval_loss", "chrf",
// "pairs", ...}. NAN and null if there are no pairs to measure.
NEB_MUST_CHECK enum neb_status agent_distill_evaluate(struct agent_distill_side *s, double *loss,
                                                      json_t **quality);

struct intra_ckpt_writer;
struct intra_ckpt;
// Everything that the next step depends on. restore: NEB_ERR_FORMAT: a checkpoint of another mode
// or job; then destroy the side.
NEB_MUST_CHECK enum neb_status agent_distill_save(const struct agent_distill_side *s,
                                                  struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status agent_distill_restore(struct agent_distill_side *s,
                                                     const struct intra_ckpt *c);

// The number of students in a job. _student: a cluster's index among them, in the order of the
// clusters; -1: not a student.
int32_t agent_distill_students(const struct agent_job *j);
int32_t agent_distill_student(const struct agent_job *j, int cluster);
// Which batches are a student's: number *student of every *n. With distill.relay all students have
// the same.
void agent_distill_batches_of(const struct agent_job *j, int32_t *student, int32_t *n);
// federates: the students exchange rounds among themselves. only_votes: a cluster that only votes
// in a job's rounds: a witness, or the teacher of such students.
bool agent_distill_federates(const struct agent_job *j);
bool agent_job_only_votes(const struct agent_job *j, int cluster);

// Bounds of the number of labels a position; both are k if the job has no k_min and k_max.
int32_t agent_distill_k_min(const struct agent_distill_config *d);
int32_t agent_distill_k_max(const struct agent_distill_config *d);

// In distill_worker.c: runs a worker of mode distill that has attached to its agent.
NEB_MUST_CHECK enum neb_status agent_distill_run(struct agent_worker *w);

// In distill_eval.c: translates pairs of a split and scores them. hypotheses, references, sources:
// files to write, or NULL.
struct agent_translate_options {
    int32_t beam, max_pairs; // in each source; 0: all
    int32_t longest;         // tokens of source and translation; longer pairs are left out
    int32_t max_tokens;
    float alpha;
    FILE *hypotheses, *references, *sources;
};
struct agent_translate_result {
    double chrf;
    int64_t pairs, tokens;
    double seconds;
};
// chrf: 0 to 100 (intra/model/translate.h), NAN if no pair of the split is short enough. tokens: of
// the hypotheses.
NEB_MUST_CHECK enum neb_status agent_translate(const struct intra_corpus *corpus,
                                               enum intra_split split, struct kern *K,
                                               const struct intra_model *m,
                                               const struct agent_translate_options *o,
                                               struct agent_translate_result *out);
// The split on which translations are measured: test, or the held-out one if the corpus has no test
// split.
enum intra_split agent_translate_split(const struct intra_corpus *corpus);

#endif
