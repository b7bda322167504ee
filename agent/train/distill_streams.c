// SPDX-License-Identifier: Apache-2.0
// Opens the streams of mode distill.
//
//     labels      teacher ──► every student; with distill.relay to the first one only
//     requests    every student ──► teacher, with distill.push_text
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

// Opens a stream of labels from cluster `from` to the student's cluster `to`.
static enum neb_status open_labels(struct agent_side *x, int id, int from, int to, uint64_t next,
                                   struct agent_stream **out) {
    const struct agent_job *j = &x->w->x.job;
    int32_t k_max = agent_distill_k_max(&j->distill);
    bool produce = x->w->x.cluster == from;
    struct inter_stream_config c = {.key = {.id = (uint16_t)(id + to)},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                                    .measured = id == AGENT_LABELS_ID &&
                                                agent_distill_k_min(&j->distill) < k_max};
    return open_one(x, &c, produce ? to : from, agent_distill_labels_most(j), next, out);
}

static enum neb_status open_requests(struct agent_side *x, int teacher, int student, uint64_t next,
                                     struct agent_stream **out) {
    const struct distill_run *r = x->own;
    bool produce = x->w->x.cluster == student;
    struct inter_stream_config c = {.key = {.id = (uint16_t)(AGENT_REQUESTS_ID + student)},
                                    .type = INTER_STREAM_REQUESTS,
                                    .role =
                                        produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER};
    return open_one(x, &c, produce ? teacher : student, (double)agent_distill_request_most(r->side),
                    next, out);
}

// Opens the labels of one student, from the teacher or the relay, and the student's requests.
static enum neb_status open_student(struct agent_side *x, int teacher, int from, int student,
                                    const struct distill_cursors *at) {
    const struct agent_job *j = &x->w->x.job;
    struct distill_run *r = x->own;
    int32_t n = r->n_streams;
    NEB_TRY(open_labels(x, from == teacher ? AGENT_LABELS_ID : AGENT_FOLLOWERS_ID, from, student,
                        at->labels[n], &r->streams[n]));
    agent_label_rate_init(&r->rate[n], j->distill.k, agent_distill_k_min(&j->distill),
                          agent_distill_k_max(&j->distill), (uint32_t)j->distill.ahead);
    r->labelled[n] = (int64_t)at->labels[n];
    r->student_of[n] = student;
    r->n_streams++;
    return j->distill.pushed ? open_requests(x, teacher, student, at->requests[n], &r->requests[n])
                             : NEB_OK;
}

enum neb_status distill_open_streams(struct agent_side *x) {
    const struct agent_job *j = &x->w->x.job;
    struct distill_run *r = x->own;
    const struct distill_cursors *at = &r->at;
    bool teaches = x->role->is == AGENT_ROLE_TEACHER;
    int teacher = agent_job_role(j, AGENT_ROLE_TEACHER), self = x->w->x.cluster,
        first = agent_job_role(j, AGENT_ROLE_STUDENT);
    if (teacher < 0 || x->second)
        return NEB_OK;
    if (!teaches)
        NEB_TRY(open_student(x, teacher, j->distill.relay && self != first ? first : teacher, self,
                             at));
    for (int i = 0; i < j->n_clusters; i++) {
        bool relayed = j->distill.relay && i != first;
        if (j->clusters[i].role != AGENT_ROLE_STUDENT)
            continue;
        if (teaches && !relayed)
            NEB_TRY(open_student(x, teacher, teacher, i, at));
        if (relayed && self == first) {
            NEB_TRY(open_labels(x, AGENT_FOLLOWERS_ID, self, i, at->followers[r->n_followers],
                                &r->followers[r->n_followers]));
            r->n_followers++;
        }
    }
    return NEB_OK;
}
