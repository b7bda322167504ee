// SPDX-License-Identifier: Apache-2.0
// Which cluster does what in a job of mode distill.
#ifndef AGENT_JOB_SIDES_H
#define AGENT_JOB_SIDES_H
#include "agent/job/config.h"
#include "intra/data/pairs.h"

// The number of students in a job. _student: a cluster's index among them, in the order of the
// clusters; -1: not a student.
int32_t agent_distill_students(const struct agent_job *j);
int32_t agent_distill_student(const struct agent_job *j, int cluster);
// Which batches are a student's: batch number *student of every *n. With distill.relay all students
// have the same batches.
void agent_distill_batches_of(const struct agent_job *j, int32_t *student, int32_t *n);
// federates: true if the students exchange rounds with each other. only_votes: true for a cluster
// that only votes in the rounds of a job: a witness, or the teacher of such students.
bool agent_distill_federates(const struct agent_job *j);
bool agent_job_only_votes(const struct agent_job *j, int cluster);

// The batches of distill.task: how they are drawn, and which positions see which.
struct intra_pairs_config agent_distill_pairs(const struct agent_job *j);
enum kern_mask agent_distill_mask(const struct agent_job *j);
// Checks the shape of a teacher's checkpoint against the job and the corpus's vocabulary.
// NEB_ERR_INVALID (logged).
NEB_MUST_CHECK enum neb_status agent_distill_teacher_fits(const struct agent_job *j, int32_t vocab,
                                                          const struct intra_model_config *m);

// Streams of mode distill: each has the number of its student's cluster added.
enum { AGENT_LABELS_ID = 16, AGENT_REQUESTS_ID = 32, AGENT_FOLLOWERS_ID = 48 };
// The most bytes of a step's labels.
double agent_distill_labels_most(const struct agent_job *j);

// Bounds of the number of labels per position; both are k if the job has no k_min and k_max.
int32_t agent_distill_k_min(const struct agent_distill_config *d);
int32_t agent_distill_k_max(const struct agent_distill_config *d);

#endif
