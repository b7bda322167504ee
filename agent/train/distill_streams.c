// SPDX-License-Identifier: Apache-2.0
// Opens the streams of mode distill.
//
//     labels      every teacher ──► every student; with distill.relay to the first one only
//     requests    every student ──► every teacher, with distill.push_text
//     followers   first student ──► the others, with distill.relay: the teacher's labels, unchanged
#include "agent/train/distill.h"

// Opens a stream between this cluster and `peer`. c: key.id, type and role. most: bytes of a batch.
static enum neb_status open_one(struct agent_side *x, struct inter_stream_config *c, int peer,
                                double most, uint64_t next, struct agent_stream **out) {
    const struct agent_distill_config *d = &x->w->x.job.distill;
    c->peer = (uint32_t)peer;
    c->window_batches = (uint32_t)d->ahead;
    return side_stream(x, c, most, !d->pushed, next, out);
}

// Opens a stream of labels of `teacher` from cluster `from` to the student's cluster `to`.
static enum neb_status open_labels(struct agent_side *x, int kind, int teacher, int from, int to,
                                   uint64_t next, struct agent_stream **out) {
    const struct agent_job *j = &x->w->x.job;
    int32_t k_max = agent_distill_k_max(&j->distill);
    bool produce = x->w->x.cluster == from;
    struct inter_stream_config c = {.key = {.id = agent_distill_stream_id(j, kind, teacher, to)},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                                    .measured = kind == AGENT_LABELS_ID &&
                                                agent_distill_k_min(&j->distill) < k_max};
    return open_one(x, &c, produce ? to : from, agent_distill_labels_most(j), next, out);
}

static enum neb_status open_requests(struct agent_side *x, int teacher, int student, uint64_t next,
                                     struct agent_stream **out) {
    const struct agent_job *j = &x->w->x.job;
    bool produce = x->w->x.cluster == student;
    struct inter_stream_config c = {
        .key = {.id = agent_distill_stream_id(j, AGENT_REQUESTS_ID, teacher, student)},
        .type = INTER_STREAM_REQUESTS,
        .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER};
    return open_one(x, &c, produce ? teacher : student, agent_distill_requests_most(j), next, out);
}

// Opens the labels of a teacher for a student, from the teacher or the relay, and the student's
// requests.
static enum neb_status open_pair(struct agent_side *x, int teacher, int from, int student) {
    const struct agent_job *j = &x->w->x.job;
    struct distill_run *r = x->own;
    const struct distill_cursors *at = &r->at;
    int32_t n = r->n_streams;
    NEB_TRY(open_labels(x, from == teacher ? AGENT_LABELS_ID : AGENT_FOLLOWERS_ID, teacher, from,
                        student, at->labels[n], &r->streams[n]));
    agent_label_rate_init(&r->rate[n], j->distill.k, agent_distill_k_min(&j->distill),
                          agent_distill_k_max(&j->distill), (uint32_t)j->distill.ahead);
    r->labelled[n] = (int64_t)at->labels[n];
    r->other[n] = x->role->is == AGENT_ROLE_TEACHER ? student : teacher;
    r->n_streams++;
    return j->distill.pushed ? open_requests(x, teacher, student, at->requests[n], &r->requests[n])
                             : NEB_OK;
}

static enum neb_status open_teacher(struct agent_side *x, int self, int first) {
    const struct agent_job *j = &x->w->x.job;
    for (int i = 0; i < j->n_clusters; i++) {
        bool relayed = j->distill.relay && i != first;
        if (j->clusters[i].role == AGENT_ROLE_STUDENT && !relayed)
            NEB_TRY(open_pair(x, self, self, i));
    }
    return NEB_OK;
}

static enum neb_status open_student(struct agent_side *x, int self, int first) {
    const struct agent_job *j = &x->w->x.job;
    struct distill_run *r = x->own;
    bool relayed = j->distill.relay && self != first, relays = j->distill.relay && !relayed;
    for (int i = 0; i < agent_distill_teachers(j); i++) {
        int teacher = agent_distill_teacher(j, i);
        NEB_TRY(open_pair(x, teacher, relayed ? first : teacher, self));
    }
    for (int i = 0; relays && i < j->n_clusters; i++) {
        if (j->clusters[i].role != AGENT_ROLE_STUDENT || i == self)
            continue;
        NEB_TRY(open_labels(x, AGENT_FOLLOWERS_ID, r->other[0], self, i,
                            r->at.followers[r->n_followers], &r->followers[r->n_followers]));
        r->n_followers++;
    }
    return NEB_OK;
}

enum neb_status distill_open_streams(struct agent_side *x) {
    const struct agent_job *j = &x->w->x.job;
    int self = x->w->x.cluster, first = agent_job_role(j, AGENT_ROLE_STUDENT);
    if (!agent_distill_teachers(j) || x->second)
        return NEB_OK;
    return x->role->is == AGENT_ROLE_TEACHER ? open_teacher(x, self, first)
                                             : open_student(x, self, first);
}
