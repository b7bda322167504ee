// SPDX-License-Identifier: Apache-2.0
// Which cluster does what in a job of mode distill.
#ifndef AGENT_JOB_SIDES_H
#define AGENT_JOB_SIDES_H
#include "agent/job/config.h"
#include "intra/data/pairs.h"

// The number of students or teachers in a job. _index: a cluster's index among those of its role,
// in the order of the clusters. _student: its index among the students; -1: not a student.
int32_t agent_distill_students(const struct agent_job *j);
int32_t agent_distill_teachers(const struct agent_job *j);
int32_t agent_distill_index(const struct agent_job *j, int cluster);
int32_t agent_distill_student(const struct agent_job *j, int cluster);
// The cluster that is teacher number i. _init: the checkpoint that it starts from; "": none.
// _weight: of its labels.
int agent_distill_teacher(const struct agent_job *j, int32_t i);
const char *agent_distill_init(const struct agent_job *j, int cluster);
float agent_distill_weight(const struct agent_job *j, int cluster);
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
// Sequences that a replica of a side decodes at once for the report, at most; 0: it decodes none.
int32_t agent_distill_decodes(const struct agent_job *j, int cluster);
// True if the text of a step comes from distill.source: a share distill.mix of all steps, drawn by
// the job's seed, so that all sides agree. Else it is the corpus's.
bool agent_distill_sampled(const struct agent_job *j, int64_t step);
// True if the labels of a step name the text they belong to: that of a student's samples, which may
// differ after a restart without its checkpoint. agent_distill_text_id() of the request follows the
// step.
bool agent_distill_names_text(const struct agent_job *j, int64_t step);
uint64_t agent_distill_text_id(const uint8_t *request, size_t n);

// Checks the shape of the checkpoint of teacher `cluster` against the job and the corpus's
// vocabulary. NEB_ERR_INVALID (logged).
NEB_MUST_CHECK enum neb_status agent_distill_teacher_fits(const struct agent_job *j, int cluster,
                                                          int32_t vocab,
                                                          const struct intra_model_config *m);

// Streams of mode distill. _stream_id: the stream of one kind between a teacher and a student, both
// clusters; followers are streams of the first teacher's labels.
enum {
    AGENT_LABELS_ID = 16,
    AGENT_REQUESTS_ID = 32,
    AGENT_FOLLOWERS_ID = 48,
    AGENT_STREAM_IDS = 64 * AGENT_CLUSTERS_MAX
};
uint16_t agent_distill_stream_id(const struct agent_job *j, int kind, int teacher, int student);
// The most bytes of a step's labels, with the text if it is a teacher's; and of a step's request.
double agent_distill_labels_most(const struct agent_job *j);
double agent_distill_requests_most(const struct agent_job *j);

// Bounds of the number of labels per position; both are k if the job has no k_min and k_max.
int32_t agent_distill_k_min(const struct agent_distill_config *d);
int32_t agent_distill_k_max(const struct agent_distill_config *d);

#endif
