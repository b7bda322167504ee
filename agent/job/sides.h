// SPDX-License-Identifier: Apache-2.0
// Which cluster does what in a job of mode distill.
#ifndef AGENT_JOB_SIDES_H
#define AGENT_JOB_SIDES_H
#include "agent/job/config.h"

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

// Bounds of the number of labels per position; both are k if the job has no k_min and k_max.
int32_t agent_distill_k_min(const struct agent_distill_config *d);
int32_t agent_distill_k_max(const struct agent_distill_config *d);

#endif
