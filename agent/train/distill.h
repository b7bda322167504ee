// SPDX-License-Identifier: Apache-2.0
// The two sides of mode `distill`, without a transport: a teacher labels batches of parallel text,
// a student learns from text and labels. Their roles (side.h) put streams between them. In the
// reference the student asks the teacher in its own process.
//
//     teacher, step s                                       student, step s
//       draw batches of pairs                                 draw the same batches (same shards)
//       forward (and train on them: `learn`)
//       top k of each target position ──── labels s ────►     loss = (1 - λ) CE
//                                                                    + λ T² KL(teacher || student)
//
// Student i of n takes the batches i, i + n, i + 2n … of the corpus. A step's labels:
//
//     | step u64 | id u64 | for each micro-batch: text, frame of labels (compress/softlabel.h) |
//
// id and text are there in some of the steps only. distill.source says who writes their text:
//
//     student   continues the prompts of its batch `ahead` steps early, and asks for labels of that
//               (a request); labels have the id of the request. It learns them by KL alone.
//     teacher   continues them, and sends this text (label_request.h: a batch) with its labels
//
// With several teachers each labels all batches. The student learns from the mixture of their
// distributions, weighted (cmp_soft_mix).
//
// A student without a teacher, or one that has lost its teacher, trains on cross-entropy alone. So
// does a student of a federation (distill.federate) that has lost its disk, for steps whose labels
// the teacher has forgotten.
#ifndef AGENT_DISTILL_H
#define AGENT_DISTILL_H
#include "agent/job/label_request.h"
#include "agent/job/sides.h"
#include "agent/train/label_rate.h"
#include "agent/train/side.h"
#include "compress/softlabel.h"
#include "intra/data/pairs.h"
#include "intra/model/device.h"
#include "intra/train/decode.h"

struct agent_distill_state {              // part of a checkpoint
    struct side_figures f;                // step: the next one; batch_bytes: of labels
    uint64_t seq;                         // next labels; in checkpoints also among the cursors
    uint64_t targets, taught, label_rows; // target tokens; those with labels; rows of labels
};

struct agent_distill_side;
// index: which of the job's teachers or students this side is. corpus and what `at` names are
// borrowed. NEB_ERR_INVALID: a model or corpus does not fit the job (the log says
// what differs). NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status agent_distill_create(const struct agent_job *job,
                                                    enum agent_role role, int32_t index,
                                                    const struct intra_corpus *corpus,
                                                    const struct intra_place *at,
                                                    struct agent_distill_side **out);
void agent_distill_destroy(struct agent_distill_side **s);

// Teacher: makes the labels of step `step` of `student`, k for each position, into out (cleared
// first). With `learn` it also trains on these batches with the same forward pass, so steps must
// come in order. request (n bytes): the student's text (label_request.h), or NULL if both sides
// read the same shards. NEB_ERR_FORMAT: the request does not fit the job.
NEB_MUST_CHECK enum neb_status agent_distill_label(struct agent_distill_side *s, int32_t student,
                                                   int64_t step, int32_t k, const uint8_t *request,
                                                   size_t n, struct neb_buf *out);
// Student: writes the request for step `step` into out (cleared first).
NEB_MUST_CHECK enum neb_status agent_distill_request(struct agent_distill_side *s, int64_t step,
                                                     struct neb_buf *out);
// Student: trains one step with the labels of n teachers, or without (n 0). NEB_ERR_FORMAT: the
// labels do not fit.
struct agent_distill_labels {
    const uint8_t *p; // (n) bytes
    size_t n;
    float weight;
};
NEB_MUST_CHECK enum neb_status agent_distill_learn(struct agent_distill_side *s,
                                                   const struct agent_distill_labels *l, int32_t n);
// The same in one process, with the teacher's probabilities as they are; all of them with distill.k
// 0.
NEB_MUST_CHECK enum neb_status agent_distill_learn_from(struct agent_distill_side *student,
                                                        struct agent_distill_side *teacher);
// The step that labels are for; -1: not labels.
int64_t agent_distill_step_of(const uint8_t *p, size_t n);

// ---- between the files of the mode: distill.c (steps), distill_text.c (text of its own),
// distill_side.c (set-up), distill_role.c (checkpoints, report), distill_streams.c,
// distill_teacher.c, distill_student.c ----

struct distill_own {                 // the text that this side writes itself (distill_text.c)
    struct intra_pair_batch *micros; // (accumulate); NULL: it writes none
    struct intra_prompt *prompts;    // of a step
    // Of each micro-batch, with room for its sequences: ids, and their number.
    int32_t *ids, *n;
    struct neb_buf text; // of a teacher's step
    // Student: requests of the steps before `made` that are not learned yet, step s at s % n_ahead.
    struct neb_buf *ahead;
    int32_t n_ahead;
    int64_t made;
};

struct agent_distill_side {
    struct agent_job job;
    enum agent_role role;
    // this student and their number: they decide which batches it draws
    int32_t student, n_students;
    int32_t budget;               // tokens of a micro-batch
    int cluster;                  // of a teacher
    char init_from[NEB_PATH_MAX]; // of a teacher: its checkpoint; "": none
    // added to the seed of its parameters: teachers, and students with distill.relay, differ by it
    uint64_t init;
    const struct intra_corpus *corpus;
    struct intra_place at;
    struct intra_pairs *pairs;
    struct intra_pair_batch batch;
    bool learns; // false: a frozen teacher
    struct intra_group *group;
    struct cmp_soft *wire;
    struct cmp_tokens *text; // of requests
    struct agent_request_limits limits;
    int32_t *request_ids;
    struct distill_own own;
    // Of each micro-batch: positions with a target, and their labels, as they are sent. A student
    // has those of one micro-batch at a time, from each teacher; with several teachers the mixture
    // is the last. With k 0, k is the whole vocabulary.
    int32_t *rows;             // (micros, budget)
    int32_t *row_ids;          // (micros, budget, k)
    float *row_logp;           // (micros, budget, k)
    float *row_tail;           // (micros, budget)
    struct intra_picks *picks; // (micros) what a teacher's passes make
    // labels by position, as the loss needs them
    int32_t *ids; // (budget, k)
    float *logp;  // (budget, k)
    float *tail;  // (budget)
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

struct distill_cursors { // in a checkpoint: the next batch of each stream, or INTER_STREAM_ANYWHERE
    uint64_t labels[AGENT_CLUSTERS_MAX], requests[AGENT_CLUSTERS_MAX],
        followers[AGENT_CLUSTERS_MAX];
};

struct distill_run { // a side with its streams
    struct agent_distill_side *side;
    int32_t n_streams;
    // Labels. Teacher: one stream for each student. Student: one for each teacher.
    struct agent_stream *streams[AGENT_CLUSTERS_MAX];
    // With distill.push_text: the requests, one stream in the other direction for each of these.
    struct agent_stream *requests[AGENT_CLUSTERS_MAX];
    // With distill.relay, first student only: labels to the other students.
    struct agent_stream *followers[AGENT_CLUSTERS_MAX];
    int32_t n_followers;
    int other[AGENT_CLUSTERS_MAX];        // cluster at the other end of each stream
    bool taken[AGENT_CLUSTERS_MAX];       // student: whose labels of this turn are here
    int64_t labelled[AGENT_CLUSTERS_MAX]; // teacher: next step of each student
    // teacher: labels per position, for each student
    struct agent_label_rate rate[AGENT_CLUSTERS_MAX];
    int32_t serves;       // teacher: the stream of this turn
    neb_ns waiting_since; // teacher: for text that may not come; 0: it does not wait
    // Student: since when it waits for each teacher's labels (0: it does not), and whether it said
    // so.
    neb_ns waits_since[AGENT_CLUSTERS_MAX];
    bool said_lost[AGENT_CLUSTERS_MAX];
    bool said_waiting, said_gone;
    neb_ns full_since;        // teacher: since when no student has had room for labels
    bool late;                // student: all steps are made, and the remaining labels are taken
    uint64_t alone;           // steps without labels that should have had some
    char cache[NEB_PATH_MAX]; // empty: none
    // from the checkpoint: where the streams that are not open yet continue
    struct distill_cursors at;
};

// In distill_cache.c: keeps soft labels on disk, one file per step, so that a student can replay
// them without the teacher.
//
//     DIR/key            digest of what labels depend on: shards, seed, batch, temperature, and
//                        the student's share of the batches
//     DIR/00000042.soft  the labels of step 42
//
// dir: a folder of this student; student: which of the job's. NEB_ERR_INVALID: it holds labels of
// something else (logs both digests).
NEB_MUST_CHECK enum neb_status agent_distill_cache_open(const char *dir, const struct agent_job *j,
                                                        int32_t student, const uint8_t corpus[32]);
bool agent_distill_cache_has(const char *dir, int64_t step);
// NEB_ERR_NOT_FOUND (not logged): no labels of this step.
NEB_MUST_CHECK enum neb_status agent_distill_cache_read(const char *dir, int64_t step,
                                                        struct neb_buf *out);
// Atomic and durable. If the folder holds other labels of this step, they come from another teacher
// or have another k: they are replaced, and the labels of later steps are removed.
NEB_MUST_CHECK enum neb_status agent_distill_cache_write(const char *dir, int64_t step,
                                                         const void *p, size_t n);

// In distill_text.c. _create: NEB_ERR_NOMEM. _write: appends the text of a step to out, for each
// micro-batch one (label_request.h); asked: the student's request, at its first micro-batch, or
// NULL for the corpus. _ahead: a student writes the steps that are due.
NEB_MUST_CHECK enum neb_status distill_own_create(struct agent_distill_side *s);
void distill_own_destroy(struct agent_distill_side *s);
NEB_MUST_CHECK enum neb_status distill_write(struct agent_distill_side *s, int32_t student,
                                             int64_t step, struct neb_rd *asked,
                                             struct neb_buf *out);
NEB_MUST_CHECK enum neb_status distill_write_ahead(struct agent_distill_side *s);
// True if the next call of distill_write_ahead will write. _end: requests of steps below are known.
bool distill_writes(const struct agent_distill_side *s);
uint64_t distill_own_end(const struct agent_distill_side *s);
// The student's own text of this step, as a request; NULL: it is the corpus's.
const struct neb_buf *distill_own_text(const struct agent_distill_side *s, int64_t step);
// The requests in a checkpoint. NEB_ERR_FORMAT: they do not fit the job.
NEB_MUST_CHECK enum neb_status distill_own_save(const struct agent_distill_side *s,
                                                struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status distill_own_restore(struct agent_distill_side *s,
                                                   const struct intra_ckpt *c);
// Draws micro-batch `micro` of a step from the corpus into b.
NEB_MUST_CHECK enum neb_status distill_draw(struct agent_distill_side *s, int32_t student,
                                            int64_t step, int32_t micro,
                                            struct intra_pair_batch *b);

struct intra_model *distill_model(const struct agent_distill_side *s);

// In distill_eval.c: held-out loss, and translations of up to eval.windows test pairs a source:
// {"eval_loss", "chrf", "pairs", ...}. NAN and null if there are no pairs to measure.
NEB_MUST_CHECK enum neb_status distill_evaluate(struct agent_distill_side *s, double *loss,
                                                json_t **quality);

// In distill_streams.c: opens the streams at run->at.
NEB_MUST_CHECK enum neb_status distill_open_streams(struct agent_side *x);

// In distill_role.c: slots of struct side_role that both roles share.
NEB_MUST_CHECK enum neb_status distill_role_create(struct agent_side *x);
void distill_role_destroy(struct agent_side *x);
NEB_MUST_CHECK enum neb_status distill_role_save(const struct agent_side *x,
                                                 struct intra_ckpt_writer *w);
NEB_MUST_CHECK enum neb_status distill_role_restore(struct agent_side *x,
                                                    const struct intra_ckpt *c);
NEB_MUST_CHECK enum neb_status distill_role_report(struct agent_side *x, bool done, double *loss,
                                                   json_t **more);
#define DISTILL_ROLE_OPS                                                                           \
    .create = distill_role_create, .destroy = distill_role_destroy, .open = distill_open_streams,  \
    .save = distill_role_save, .restore = distill_role_restore, .report = distill_role_report

#endif
