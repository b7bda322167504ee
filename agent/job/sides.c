// SPDX-License-Identifier: Apache-2.0
#include "agent/job/sides.h"

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
