// SPDX-License-Identifier: Apache-2.0
#include "agent/job/sides.h"
#include "agent/base/log.h"

int32_t agent_distill_students(const struct agent_job *j) {
    int32_t n = 0;
    for (int i = 0; i < j->n_clusters; i++)
        n += j->clusters[i].role == AGENT_ROLE_STUDENT;
    return n;
}

int32_t agent_distill_student(const struct agent_job *j, int cluster) {
    int32_t n = 0;
    for (int i = 0; i < cluster; i++)
        n += j->clusters[i].role == AGENT_ROLE_STUDENT;
    return j->clusters[cluster].role == AGENT_ROLE_STUDENT ? n : -1;
}

void agent_distill_batches_of(const struct agent_job *j, int32_t *student, int32_t *n) {
    *student = j->distill.relay ? 0 : *student;
    *n = j->distill.relay ? 1 : agent_distill_students(j);
}

int32_t agent_distill_k_min(const struct agent_distill_config *d) {
    return d->k_min ? d->k_min : d->k;
}
int32_t agent_distill_k_max(const struct agent_distill_config *d) {
    return d->k_max ? d->k_max : d->k;
}

bool agent_distill_federates(const struct agent_job *j) {
    return j->mode == AGENT_MODE_DISTILL && j->distill.federate && agent_distill_students(j) > 1;
}

bool agent_job_only_votes(const struct agent_job *j, int cluster) {
    const struct agent_cluster *c = &j->clusters[cluster];
    return c->witness || (agent_distill_federates(j) && c->role == AGENT_ROLE_TEACHER);
}

struct intra_pairs_config agent_distill_pairs(const struct agent_job *j) {
    return (struct intra_pairs_config){.seed = (uint64_t)j->seed,
                                       .seq_len = j->seq_len,
                                       .tokens = j->batch * j->seq_len,
                                       .windows = j->distill.task == AGENT_TASK_TEXT};
}

enum kern_mask agent_distill_mask(const struct agent_job *j) {
    return j->distill.task == AGENT_TASK_TRANSLATE ? KERN_MASK_PREFIX : KERN_MASK_CAUSAL;
}

enum neb_status agent_distill_teacher_fits(const struct agent_job *j, int32_t vocab,
                                           const struct intra_model_config *m) {
    const char *path = j->distill.teacher;
    int32_t student = j->model.vocab ? j->model.vocab : vocab,
            i = agent_job_role(j, AGENT_ROLE_TEACHER);
    if (m->vocab < vocab)
        return neb_fail(NEB_ERR_INVALID, "%s has a vocabulary of %d, but the corpus has %d pieces",
                        path, m->vocab, vocab);
    // both sides must have the same ids, and so the same width of labels
    if (m->vocab != student && j->model_init[0])
        return neb_fail(NEB_ERR_INVALID,
                        "%s has a vocabulary of %d, but the student (from %s) has one of %d: pad "
                        "both to the same width",
                        path, m->vocab, j->model_init, student);
    if (m->vocab != student)
        return neb_fail(
            NEB_ERR_INVALID,
            "%s has a vocabulary of %d, but the student has one of %d: set model.vocab: %d", path,
            m->vocab, student, m->vocab);
    if (m->max_seq < j->seq_len)
        return neb_fail(NEB_ERR_INVALID, "%s takes at most %d tokens, but data.seq_len is %d", path,
                        m->max_seq, j->seq_len);
    return i >= 0 ? intra_mesh_check(&j->clusters[i].mesh, m) : NEB_OK;
}

// 24 bits per id, one byte per gap, one byte per tail. zstd never makes a part longer.
double agent_distill_labels_most(const struct agent_job *j) {
    return (double)j->batch * j->seq_len * j->accumulate *
               (4.0 * agent_distill_k_max(&j->distill) + 1) +
           4096;
}
