// The streams of mode distill: one from the teacher to every student.
#include "agent/base/sha256.h"
#include "agent/distill_run.h"
#include "kernels/exact.h"

#include <string.h>

enum { SPOOL_BATCHES = 4096, STREAM_ID = 16 };
static const uint64_t spool_bytes = 256ull << 20;

static enum neb_status set_terms(const struct distill_run *r, struct inter_stream_config *c) {
    char path[NEB_PATH_MAX];
    struct neb_map map;
    NEB_TRY(neb_path(path, sizeof path, intra_corpus_dir(r->w->corpus), "tokenizer.model"));
    NEB_TRY(neb_map_open(path, &map));
    snprintf(c->terms[0].name, sizeof c->terms[0].name, "vocabulary");
    neb_sha256(map.p, map.len, c->terms[0].sha256);
    neb_map_close(&map);
    snprintf(c->terms[1].name, sizeof c->terms[1].name, "shards");
    intra_corpus_digest(r->w->corpus, c->terms[1].sha256);
    c->n_terms = 2;
    return NEB_OK;
}

static enum neb_status open_stream(struct distill_run *r, int teacher, int student, uint64_t next) {
    const struct agent_job *j = &r->w->job;
    bool produce = r->w->cluster == teacher;
    int32_t k_max = agent_distill_k_max(&j->distill);
    // At most 15 to 24 bits an id, a byte a gap, a byte a tail; zstd never makes a part longer.
    double most = (double)j->batch * j->seq_len * j->accumulate * (4.0 * k_max + 1) + 4096;
    if (most > INTER_STREAM_BATCH_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "a step of %d x %d x %d tokens with %d labels each makes batches of up to "
                        "%.0f bytes, a stream takes %d; lower data.batch, data.accumulate or "
                        "distill.k_max",
                        j->accumulate, j->batch, j->seq_len, k_max, most, INTER_STREAM_BATCH_MAX);
    struct inter_stream_config c = {.key = {.id = (uint16_t)(STREAM_ID + student)},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = produce ? INTER_STREAM_PRODUCER : INTER_STREAM_CONSUMER,
                                    .peer = (uint32_t)(produce ? student : teacher),
                                    .batch_bytes = (uint32_t)most,
                                    .window_batches = (uint32_t)j->distill.ahead,
                                    .window_bytes = 16 << 20,
                                    .spool_batches = SPOOL_BATCHES,
                                    .spool_bytes = spool_bytes,
                                    .measured = agent_distill_k_min(&j->distill) < k_max};
    NEB_TRY(set_terms(r, &c));
    NEB_TRY(agent_stream_open(r->w->ipc, &c, next, &r->streams[r->n_streams]));
    agent_label_rate_init(&r->rate[r->n_streams], j->distill.k, agent_distill_k_min(&j->distill),
                          k_max, (uint32_t)j->distill.ahead);
    r->student_of[r->n_streams++] = student;
    return NEB_OK;
}

enum neb_status distill_open_streams(struct distill_run *r,
                                     const uint64_t puts[AGENT_CLUSTERS_MAX]) {
    const struct agent_job *j = &r->w->job;
    int teacher = agent_job_role(j, AGENT_ROLE_TEACHER);
    if (teacher < 0 || r->teacher)
        return NEB_OK;
    if (!distill_teaches(r))
        return open_stream(r, teacher, r->w->cluster, puts[0]);
    for (int i = 0; i < j->n_clusters; i++)
        if (j->clusters[i].role == AGENT_ROLE_STUDENT)
            NEB_TRY(open_stream(r, teacher, i, puts[r->n_streams]));
    return NEB_OK;
}
