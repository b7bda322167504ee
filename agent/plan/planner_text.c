// SPDX-License-Identifier: Apache-2.0
// Finds what micro-batches of a stream's job are like, from its corpus and its teacher, if they are
// on this machine.
#include "agent/job/sides.h"
#include "agent/plan/planner_streams.h"
#include "compress/replaced.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/data/pairs.h"
#include "intra/hf/hf.h"

#include <math.h>
#include <stdlib.h>

enum { BATCHES = 64, TEXT_MAX = 1 << 16 }; // limits of what is read: batches, tokens

// Bytes of text on the wire (compress/replaced.h): encodes it as the stream does.
static enum neb_status encode(const int32_t *ids, uint32_t n, int32_t vocab, double *bytes) {
    struct cmp_tokens *wire = NULL;
    struct neb_buf frame = {0};
    NEB_TRY(cmp_tokens_create(&wire));
    enum neb_status st = cmp_text_encode(wire, ids, n, vocab, &frame);
    *bytes = (double)frame.len / n;
    neb_buf_free(&frame);
    cmp_tokens_destroy(&wire);
    return st;
}

// Windows of the training text, as many as a batch has.
static enum neb_status look_at_text(const struct intra_corpus *c, const struct agent_job *job,
                                    struct agent_planner_text *out) {
    int32_t T = job->seq_len, most = TEXT_MAX / T > 0 ? TEXT_MAX / T : 1,
            wanted = job->batch * job->accumulate < most ? job->batch * job->accumulate : most,
            n = 0;
    enum neb_status st = NEB_OK;
    int32_t *ids = calloc((size_t)wanted * (size_t)T, sizeof *ids),
            *targets = calloc((size_t)T, sizeof *targets);
    if (!ids || !targets)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory reading the corpus");
    for (int32_t i = 0; st == NEB_OK && i < intra_corpus_sources(c); i++) {
        uint64_t have = intra_corpus_windows(c, i, INTRA_TRAIN, T);
        for (uint64_t k = 0; k < have && n < wanted; k++)
            intra_corpus_window(c, i, INTRA_TRAIN, T, k, ids + (size_t)n++ * (size_t)T, targets);
    }
    if (st == NEB_OK && n)
        st = encode(ids, (uint32_t)n * (uint32_t)T, out->vocab, &out->id_bytes);
    free(ids);
    free(targets);
    return st;
}

static enum neb_status look_at_pairs(const struct intra_corpus *c, const struct agent_job *job,
                                     struct agent_planner_text *out) {
    const struct intra_pairs_config config = agent_distill_pairs(job);
    struct intra_pairs *pairs = NULL;
    struct intra_pair_batch b = {0};
    enum neb_status st = NEB_OK;
    double tokens = 0, length = 0, targets = 0;
    NEB_TRY(intra_pairs_create(c, INTRA_TRAIN, &config, &pairs));
    NEB_TRY_GOTO(intra_pair_batch_create(&config, &b), out);
    for (uint64_t k = 0; k < BATCHES; k++) {
        NEB_TRY_GOTO(intra_pairs_draw(pairs, k, &b), out);
        tokens += (double)b.B * b.T;
        length += b.T;
        targets += (double)b.n_targets;
        if (!k)
            NEB_TRY_GOTO(encode(b.tokens, (uint32_t)(b.B * b.T), out->vocab, &out->id_bytes), out);
    }
    out->tokens = tokens / BATCHES;
    out->length = length / BATCHES;
    out->targets = targets / BATCHES;
    out->known = true;
out:
    intra_pair_batch_free(&b);
    intra_pairs_destroy(&pairs);
    return st;
}

static enum neb_status corpus(const struct agent_job *job, struct agent_planner_text *out) {
    struct intra_corpus *c = NULL;
    for (int32_t i = 0; i < job->n_clusters && !out->known; i++) {
        char index[NEB_PATH_MAX];
        const char *dir = agent_job_corpus(job, i);
        if (job->distill.pushed && job->clusters[i].role == AGENT_ROLE_TEACHER)
            continue; // the students have the text
        NEB_TRY(neb_path(index, sizeof index, dir, "corpus.json"));
        if (!neb_fs_exists(index))
            continue;
        NEB_TRY(intra_corpus_open(dir, false, &c));
        out->vocab = intra_corpus_vocab(c);
        out->known = job->mode == AGENT_MODE_RTD;
        enum neb_status st = out->known ? look_at_text(c, job, out) : look_at_pairs(c, job, out);
        intra_corpus_close(&c);
        NEB_TRY(st);
    }
    return NEB_OK;
}

// The shape of the checkpoint of the first teacher, without its parameters.
static enum neb_status teacher(const struct agent_job *job, struct agent_planner_text *out) {
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    int first = agent_job_role(job, AGENT_ROLE_TEACHER);
    const char *path = first < 0 ? job->distill.teacher : agent_distill_init(job, first);
    if (job->mode != AGENT_MODE_DISTILL || !path[0] || !neb_fs_exists(path))
        return NEB_OK;
    NEB_TRY(intra_ckpt_open(path, false, &c));
    enum neb_status st = intra_hf_layout(c, &m);
    if (st == NEB_OK) {
        out->teacher = m->c;
        out->teacher.max_seq = job->seq_len;
        out->teacher.mask = agent_distill_mask(job);
    }
    intra_model_destroy(&m);
    intra_ckpt_close(&c);
    return st;
}

enum neb_status agent_planner_text(const struct agent_job *job, struct agent_planner_text *out) {
    double n = (double)job->batch * job->seq_len;
    *out = (struct agent_planner_text){.tokens = n, .length = job->seq_len, .targets = n / 2};
    NEB_TRY(corpus(job, out));
    NEB_TRY(teacher(job, out));
    if (!out->vocab && job->model.vocab) // mode rtd: the model has one more than the corpus
        out->vocab = job->model.vocab - (job->mode == AGENT_MODE_RTD);
    if (!out->vocab)
        return neb_fail(NEB_ERR_INVALID,
                        "plan: the size of the models depends on their vocabulary, which is not "
                        "known: set model.vocab, or plan on a machine that has the corpus");
    if (!(out->id_bytes > 0))
        out->id_bytes = log2(out->vocab) / 8;
    return NEB_OK;
}
