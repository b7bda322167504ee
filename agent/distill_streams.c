// The streams of mode distill.
//
//     labels      teacher ──► every student; with distill.relay to the first one only
//     requests    every student ──► teacher, with distill.push_text
//     followers   the first student ──► the others: the teacher's labels as they came, with distill.relay
#include "agent/base/sha256.h"
#include "agent/distill_run.h"

#include <string.h>

enum { SPOOL_BATCHES = 4096, STREAM_ID = 16, REQUEST_ID = 32, FOLLOW_ID = 48 };
static const uint64_t spool_bytes = 256ull << 20;

static enum neb_status set_terms(const struct distill_run *r, struct inter_stream_config *c) {
    char path[NEB_PATH_MAX];
    struct neb_map map;
    NEB_TRY(neb_path(path, sizeof path, intra_corpus_dir(r->w->corpus), "tokenizer.model"));
    NEB_TRY(neb_map_open(path, &map));
    snprintf(c->terms[0].name, sizeof c->terms[0].name, "vocabulary");
    neb_sha256(map.p, map.len, c->terms[0].sha256);
    neb_map_close(&map);
    c->n_terms = 1;
    if (r->w->job.distill.pushed)
        return NEB_OK;
    snprintf(c->terms[1].name, sizeof c->terms[1].name, "shards");
    intra_corpus_digest(r->w->corpus, c->terms[1].sha256);
    c->n_terms = 2;
    return NEB_OK;
}

// Between this cluster and `peer`; c: key.id, type and role. most: bytes of a batch.
static enum neb_status open_one(struct distill_run *r, struct inter_stream_config *c, int peer,
                                double most, uint64_t next, struct agent_stream **out) {
    const struct agent_job *j = &r->w->job;
    if (most > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "a step of %d x %d x %d tokens with %d labels each makes batches of up to "
                        "%.0f bytes, a stream takes %d; lower data.batch, data.accumulate or "
                        "distill.k_max",
                        j->accumulate, j->batch, j->seq_len, agent_distill_k_max(&j->distill), most,
                        INTER_STREAM_BATCH_MAX);
    c->peer = (uint32_t)peer;
    c->batch_bytes = (uint32_t)most;
    c->window_batches = (uint32_t)j->distill.ahead;
    c->window_bytes = 16 << 20;
    c->spool_batches = SPOOL_BATCHES;
    c->spool_bytes = spool_bytes;
    NEB_TRY(set_terms(r, c));
    return agent_stream_open(r->w->ipc, c, next, out);
}

// Labels, from `from` to the cluster `to` of a student.
static enum neb_status open_labels(struct distill_run *r, int id, int from, int to, uint64_t next,
                                   struct agent_stream **out) {
    const struct agent_job *j = &r->w->job;
    int32_t k_max = agent_distill_k_max(&j->distill);
    bool produce = r->w->cluster == from;
    struct inter_stream_config c = {.key = {.id = (uint16_t)(id + to)},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                                    .measured = id == STREAM_ID &&
                                                agent_distill_k_min(&j->distill) < k_max};
    // At most 15 to 24 bits an id, a byte a gap, a byte a tail; zstd never makes a part longer.
    double most = (double)j->batch * j->seq_len * j->accumulate * (4.0 * k_max + 1) + 4096;
    return open_one(r, &c, produce ? to : from, most, next, out);
}

static enum neb_status open_requests(struct distill_run *r, int teacher, int student, uint64_t next,
                                     struct agent_stream **out) {
    bool produce = r->w->cluster == student;
    struct inter_stream_config c = {.key = {.id = (uint16_t)(REQUEST_ID + student)},
                                    .type = INTER_STREAM_REQUESTS,
                                    .role =
                                        produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER};
    return open_one(r, &c, produce ? teacher : student, (double)agent_distill_request_most(r->side),
                    next, out);
}

// Labels of one student, whoever it gets them from, and its requests.
static enum neb_status open_student(struct distill_run *r, int teacher, int from, int student,
                                    const struct distill_cursors *at) {
    const struct agent_job *j = &r->w->job;
    int32_t n = r->n_streams;
    NEB_TRY(open_labels(r, from == teacher ? STREAM_ID : FOLLOW_ID, from, student, at->labels[n],
                        &r->streams[n]));
    agent_label_rate_init(&r->rate[n], j->distill.k, agent_distill_k_min(&j->distill),
                          agent_distill_k_max(&j->distill), (uint32_t)j->distill.ahead);
    r->labelled[n] = (int64_t)at->labels[n];
    r->student_of[n] = student;
    r->n_streams++;
    return j->distill.pushed ? open_requests(r, teacher, student, at->requests[n], &r->requests[n])
                             : NEB_OK;
}

enum neb_status distill_open_streams(struct distill_run *r) {
    const struct agent_job *j = &r->w->job;
    const struct distill_cursors *at = &r->at;
    int teacher = agent_job_role(j, AGENT_ROLE_TEACHER), self = r->w->cluster,
        first = agent_job_role(j, AGENT_ROLE_STUDENT);
    if (teacher < 0 || r->teacher)
        return NEB_OK;
    if (!distill_teaches(r))
        NEB_TRY(open_student(r, teacher, j->distill.relay && self != first ? first : teacher, self,
                             at));
    for (int i = 0; i < j->n_clusters; i++) {
        bool relayed = j->distill.relay && i != first;
        if (j->clusters[i].role != AGENT_ROLE_STUDENT)
            continue;
        if (distill_teaches(r) && !relayed)
            NEB_TRY(open_student(r, teacher, teacher, i, at));
        if (relayed && self == first) {
            NEB_TRY(open_labels(r, FOLLOW_ID, self, i, at->followers[r->n_followers],
                                &r->followers[r->n_followers]));
            r->n_followers++;
        }
    }
    return NEB_OK;
}

int32_t distill_streams(const struct distill_run *r, struct agent_stream **list) {
    int32_t n = 0;
    for (int32_t i = 0; i < AGENT_CLUSTERS_MAX; i++) {
        struct agent_stream *const all[] = {r->streams[i], r->requests[i], r->followers[i]};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k])
                list[n++] = all[k];
    }
    return n;
}

void distill_cursors(const struct distill_run *r, struct distill_cursors *out) {
    *out = (struct distill_cursors){{0}, {0}, {0}};
    for (int32_t i = 0; i < AGENT_CLUSTERS_MAX; i++) {
        out->labels[i] = r->streams[i] ? r->streams[i]->next : 0;
        out->requests[i] = r->requests[i] ? r->requests[i]->next : 0;
        out->followers[i] = r->followers[i] ? r->followers[i]->next : 0;
    }
}

static enum neb_status wait_below(struct distill_run *r, bool durable) {
    struct agent_stream *list[DISTILL_STREAMS_MAX];
    int32_t n = distill_streams(r, list);
    for (int32_t i = 0; i < n; i++)
        while (list[i]->c.role == INTER_STREAM_PRODUCER && !(durable && r->w->stop) &&
               (durable ? list[i]->durable : list[i]->stored) < list[i]->next) {
            NEB_TRY(distill_drain(r));
            NEB_TRY(distill_wait(r));
        }
    return NEB_OK;
}

enum neb_status distill_wait_stored(struct distill_run *r) { return wait_below(r, false); }
enum neb_status distill_wait_taken(struct distill_run *r) { return wait_below(r, true); }

enum neb_status distill_streams_saved(struct distill_run *r, bool final) {
    struct agent_stream *list[DISTILL_STREAMS_MAX];
    int32_t n = distill_streams(r, list);
    for (int32_t i = 0; i < n; i++)
        if (list[i]->c.role == INTER_STREAM_CONSUMER)
            NEB_TRY(agent_stream_saved(list[i], r->w->job.checkpoint_keep, final));
    return NEB_OK;
}
