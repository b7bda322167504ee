// SPDX-License-Identifier: Apache-2.0
#include "agent/job/model.h"
#include "agent/base/bytes.h"

#include <string.h>

enum neb_status agent_job_vocabulary(const struct agent_job *job, int cluster,
                                     const struct intra_corpus *corpus) {
    uint8_t sha[INTRA_SHA_BYTES];
    char hex[2 * INTRA_SHA_BYTES + 1];
    if (!job->tokenizer_sha256[0])
        return NEB_OK;
    NEB_TRY(intra_corpus_tokenizer_digest(corpus, sha));
    neb_hex(sha, sizeof sha, hex);
    if (!strcmp(hex, job->tokenizer_sha256))
        return NEB_OK;
    return neb_fail(NEB_ERR_INVALID,
                    "cluster %s: the corpus %s has another vocabulary than the job (digest %.12s; "
                    "the job's is %.12s): build the corpora of all clusters with one tokenizer "
                    "(tokenizer: FILE in the spec)",
                    job->clusters[cluster].name, intra_corpus_dir(corpus), hex,
                    job->tokenizer_sha256);
}

enum neb_status agent_job_corpus_fits(const struct agent_job *job, int cluster,
                                      const struct intra_corpus *corpus) {
    const struct agent_cluster *k = &job->clusters[cluster];
    const char *dir = intra_corpus_dir(corpus);
    int32_t vocab = intra_corpus_vocab(corpus);
    if (job->model.vocab && job->model.vocab < vocab)
        return neb_fail(NEB_ERR_INVALID,
                        "model.vocab: %d is below the %d pieces of %s; remove it or raise it",
                        job->model.vocab, vocab, dir);
    if (job->mode == AGENT_MODE_RTD && job->model.vocab && job->model.vocab != vocab + 1)
        return neb_fail(NEB_ERR_INVALID,
                        "model.vocab: %d; mode rtd needs the %d pieces of %s and one more for the "
                        "mask: remove it, or set %d",
                        job->model.vocab, vocab, dir, vocab + 1);
    for (int32_t i = 0; i < k->n_sources; i++)
        if (intra_corpus_find(corpus, k->sources[i].name) < 0)
            return neb_fail(NEB_ERR_INVALID,
                            "cluster %s: corpus %s has no source '%s'; 'nebula data build' printed "
                            "the sources that it has",
                            k->name, dir, k->sources[i].name);
    return NEB_OK;
}

static bool draws_from(const struct agent_cluster *c, const char *source) {
    if (c->witness || c->launcher == AGENT_LAUNCHER_ATTACH) // such a trainer may read any data
        return false;
    bool does = c->n_sources == 0;
    for (int32_t i = 0; i < c->n_sources; i++)
        does |= !strcmp(c->sources[i].name, source);
    return does;
}

struct intra_share agent_job_share(const struct agent_job *job, int cluster, const char *source) {
    struct intra_share share = {.index = 0, .n = 0};
    const char *corpus = agent_job_corpus(job, cluster);
    if (job->mode != AGENT_MODE_REPLICAS) // the clusters train on the same windows
        return share;
    for (int i = 0; i < job->n_clusters; i++) {
        const char *at = agent_job_corpus(job, i);
        bool does = draws_from(&job->clusters[i], source), here = does && !strcmp(at, corpus),
             first = does; // first: of the clusters with this corpus folder
        share.index += here && i < cluster;
        share.n += here;
        for (int k = 0; k < i; k++)
            first &=
                !(draws_from(&job->clusters[k], source) && !strcmp(agent_job_corpus(job, k), at));
        if (first && here)
            share.part = share.parts;
        share.parts += first;
    }
    share.parts = share.parts > 1 ? share.parts : 0;
    return share;
}

enum neb_status agent_job_sampler(const struct agent_job *job, int cluster,
                                  const struct intra_corpus *corpus, struct intra_sampler **out) {
    const struct agent_cluster *c = &job->clusters[cluster];
    struct intra_sampler_config s = {.seed = (uint64_t)job->seed,
                                     .seq_len = job->seq_len,
                                     .cluster = cluster,
                                     .n_sources = c->n_sources};
    for (int32_t i = 0; i < c->n_sources; i++) {
        s.sources[i] = intra_corpus_find(corpus, c->sources[i].name);
        s.weights[i] = c->sources[i].weight;
        if (s.sources[i] < 0)
            return neb_fail(NEB_ERR_NOT_FOUND, "cluster %s: the corpus %s has no source \"%s\"",
                            c->name, intra_corpus_dir(corpus), c->sources[i].name);
        s.shares[i] = agent_job_share(job, cluster, c->sources[i].name);
    }
    for (int32_t i = 0; c->n_sources == 0 && i < intra_corpus_sources(corpus); i++)
        s.shares[i] = agent_job_share(job, cluster, intra_corpus_source_name(corpus, i));
    return intra_sampler_create(corpus, &s, out);
}

// In mode rtd both sides use the generator's sources. Mode distill uses all sources.
static bool counts(const struct agent_job *job, int cluster, const char *source) {
    if (job->mode == AGENT_MODE_DISTILL)
        return true;
    if (job->mode == AGENT_MODE_RTD)
        return draws_from(&job->clusters[agent_job_role(job, AGENT_ROLE_GENERATOR)], source);
    bool does = false, all = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    for (int i = 0; i < job->n_clusters; i++)
        does |= (all || i == cluster) && draws_from(&job->clusters[i], source);
    return does;
}

enum neb_status agent_job_text_digest(const struct agent_job *job, int cluster,
                                      const struct intra_corpus *corpus,
                                      uint8_t out[INTRA_SHA_BYTES]) {
    int32_t sources[INTRA_SOURCES_MAX], n = 0;
    for (int32_t i = 0; i < intra_corpus_sources(corpus); i++)
        if (counts(job, cluster, intra_corpus_source_name(corpus, i)))
            sources[n++] = i;
    return intra_corpus_text_digest(corpus, sources, n, out);
}
