// SPDX-License-Identifier: Apache-2.0
// What the files of mode distill's worker share: distill_worker.c (start, end, checkpoints),
// distill_streams.c, distill_teacher.c, distill_student.c, distill_federate.c. Private to them.
#ifndef AGENT_DISTILL_RUN_H
#define AGENT_DISTILL_RUN_H
#include "agent/train/distill.h"
#include "agent/train/label_rate.h"
#include "agent/train/worker_side.h"

struct distill_cursors { // in a checkpoint: the next batch of each stream, or INTER_STREAM_ANYWHERE
    uint64_t labels[AGENT_CLUSTERS_MAX], requests[AGENT_CLUSTERS_MAX],
        followers[AGENT_CLUSTERS_MAX];
};

struct distill_run {
    struct agent_worker *w;
    struct worker_side x;                      // owns all streams
    struct agent_distill_side *side, *teacher; // teacher: only if both sides are in this process
    int32_t n_streams;
    // Labels. Teacher: one stream for each student. Student: the first.
    struct agent_stream *streams[AGENT_CLUSTERS_MAX];
    // With distill.push_text: the requests, one stream in the other direction for each of these.
    struct agent_stream *requests[AGENT_CLUSTERS_MAX];
    // With distill.relay, first student only: labels to the other students.
    struct agent_stream *followers[AGENT_CLUSTERS_MAX];
    int32_t n_followers;
    int student_of[AGENT_CLUSTERS_MAX];               // teacher: cluster of each stream
    int64_t labelled[AGENT_CLUSTERS_MAX];             // teacher: next step of each student
    struct agent_label_rate rate[AGENT_CLUSTERS_MAX]; // teacher: labels a position for each student
    struct neb_buf batch;
    neb_ns
        waiting_since; // student: for labels; teacher: for text that may not come; 0: not waiting
    bool said_waiting, said_gone;
    neb_ns full_since; // teacher: since when no student has had room for labels
    uint64_t alone;    // steps without labels that should have had some
    json_t *quality;
    double eval_loss;
    char cache[NEB_PATH_MAX]; // empty: none
    // from the checkpoint: where the streams that are not open yet continue
    struct distill_cursors at;
};

// This side's part of a checkpoint.
NEB_MUST_CHECK enum neb_status distill_write(struct distill_run *r, struct intra_ckpt_writer *out);
NEB_MUST_CHECK enum neb_status distill_read(struct distill_run *r, const struct intra_ckpt *c);
bool distill_teaches(const struct distill_run *r);
void distill_say_step(struct distill_run *r); // also sets the worker's figures to this side's
NEB_MUST_CHECK enum neb_status distill_maybe_save(struct distill_run *r);

// In distill_streams.c.
NEB_MUST_CHECK enum neb_status distill_open_streams(struct distill_run *r); // at r->at
void distill_cursors(const struct distill_run *r, struct distill_cursors *out);

// In distill_teacher.c.
NEB_MUST_CHECK enum neb_status distill_teach(struct distill_run *r);
bool distill_all_labelled(const struct distill_run *r);

// In distill_student.c.
NEB_MUST_CHECK enum neb_status distill_learn(struct distill_run *r);

// In distill_federate.c: rounds among students, with distill.federate. It creates the exchange;
// exchange_resume then reads the checkpoint, the streams are opened, and exchange_announce starts
// the rounds. _trainer: the student's trainer alone.
NEB_MUST_CHECK enum neb_status distill_federate(struct distill_run *r);
NEB_MUST_CHECK enum neb_status distill_federate_trainer(struct distill_run *r);

#endif
