// SPDX-License-Identifier: Apache-2.0
#include "agent/job/sides.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "agent/job/label_request.h"
#include "intra/train/decode.h"

static int32_t count_before(const struct agent_job *j, enum agent_role role, int end) {
    int32_t n = 0;
    for (int i = 0; i < end; i++)
        n += j->clusters[i].role == role;
    return n;
}

int32_t agent_distill_students(const struct agent_job *j) {
    return count_before(j, AGENT_ROLE_STUDENT, j->n_clusters);
}

int32_t agent_distill_teachers(const struct agent_job *j) {
    return count_before(j, AGENT_ROLE_TEACHER, j->n_clusters);
}

int32_t agent_distill_index(const struct agent_job *j, int cluster) {
    return count_before(j, j->clusters[cluster].role, cluster);
}

int32_t agent_distill_student(const struct agent_job *j, int cluster) {
    return j->clusters[cluster].role == AGENT_ROLE_STUDENT ? agent_distill_index(j, cluster) : -1;
}

int agent_distill_teacher(const struct agent_job *j, int32_t i) {
    for (int c = 0; c < j->n_clusters; c++)
        if (j->clusters[c].role == AGENT_ROLE_TEACHER && i-- == 0)
            return c;
    return -1;
}

const char *agent_distill_init(const struct agent_job *j, int cluster) {
    const char *own = j->clusters[cluster].init;
    return own[0] ? own : j->distill.teacher;
}

float agent_distill_weight(const struct agent_job *j, int cluster) {
    float w = j->clusters[cluster].weight;
    return w > 0 ? w : 1;
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

int32_t agent_distill_decodes(const struct agent_job *j, int cluster) {
    int64_t dp = j->clusters[cluster].mesh.dp > 1 ? j->clusters[cluster].mesh.dp : 1,
            beam = j->distill.beam > 1 ? j->distill.beam : 1,
            pairs = j->eval_windows ? (j->eval_windows + dp - 1) / dp : INTRA_DECODE_ROWS;
    if (j->distill.task != AGENT_TASK_TRANSLATE)
        return 0;
    return pairs * beam < INTRA_DECODE_ROWS ? (int32_t)(pairs * beam) : INTRA_DECODE_ROWS;
}

bool agent_distill_sampled(const struct agent_job *j, int64_t step) {
    struct neb_rng r = neb_rng_make((uint64_t)j->seed ^ 0x73616d706c656473ull, (uint64_t)step);
    return j->distill.source != AGENT_TEXT_CORPUS && neb_rng_unit(&r) < (double)j->distill.mix;
}

bool agent_distill_names_text(const struct agent_job *j, int64_t step) {
    return j->distill.source == AGENT_TEXT_STUDENT && agent_distill_sampled(j, step);
}

uint64_t agent_distill_text_id(const uint8_t *request, size_t n) {
    uint8_t sha[NEB_SHA256_BYTES];
    neb_sha256(request, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

enum neb_status agent_distill_teacher_fits(const struct agent_job *j, int cluster, int32_t vocab,
                                           const struct intra_model_config *m) {
    const char *path = agent_distill_init(j, cluster);
    int32_t student = j->model.vocab ? j->model.vocab : vocab;
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
    return intra_mesh_check(&j->clusters[cluster].mesh, m);
}

uint16_t agent_distill_stream_id(const struct agent_job *j, int kind, int teacher, int student) {
    return (uint16_t)(64 * agent_distill_index(j, teacher) + kind + student);
}

double agent_distill_requests_most(const struct agent_job *j) {
    const struct agent_request_limits l = {.seq_len = j->seq_len, .tokens = j->batch * j->seq_len};
    return (double)agent_request_most(&l, j->accumulate);
}

// 24 bits per id, one byte per gap, one byte per tail. zstd never makes a part longer.
double agent_distill_labels_most(const struct agent_job *j) {
    return (double)j->batch * j->seq_len * j->accumulate *
               (4.0 * agent_distill_k_max(&j->distill) + 1) +
           4096 + (j->distill.source == AGENT_TEXT_TEACHER ? agent_distill_requests_most(j) : 0);
}
