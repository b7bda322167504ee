// SPDX-License-Identifier: Apache-2.0
// What the sides of modes rtd and distill refuse before their first step, for `nebula check` and
// for the run itself.
#include "agent/train/side_check.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/job/model.h"
#include "agent/train/distill.h"
#include "agent/train/rtd.h"

enum neb_status agent_side_batch_fits(const struct agent_job *j, double bytes) {
    if (bytes <= INTER_STREAM_BATCH_MAX)
        return NEB_OK;
    return neb_fail(NEB_ERR_LIMIT,
                    "a step of %d x %d x %d tokens makes batches of up to %.0f bytes, but a "
                    "stream takes at most %d: lower data.batch, data.accumulate%s",
                    j->accumulate, j->batch, j->seq_len, bytes, INTER_STREAM_BATCH_MAX,
                    j->mode != AGENT_MODE_DISTILL ? " or data.seq_len"
                    : j->distill.k_max            ? " or distill.k_max"
                                                  : " or distill.k");
}

enum neb_status agent_side_streams_fit(const struct agent_job *j) {
    bool travels = j->sync.scheme == AGENT_SCHEME_FEDERATED;
    if (j->mode == AGENT_MODE_RTD && travels)
        return agent_side_batch_fits(j, agent_rtd_batch_max(j));
    if (j->mode != AGENT_MODE_DISTILL || !travels || !agent_distill_teachers(j))
        return NEB_OK;
    NEB_TRY(agent_side_batch_fits(j, agent_distill_labels_most(j)));
    return j->distill.pushed ? agent_side_batch_fits(j, agent_distill_requests_most(j)) : NEB_OK;
}

enum neb_status agent_side_corpus_fits(const struct agent_job *j, int cluster,
                                       const struct intra_corpus *corpus) {
    if (j->mode == AGENT_MODE_REPLICAS)
        return NEB_OK;
    if (intra_corpus_streams(corpus))
        return neb_fail(NEB_ERR_INVALID,
                        "cluster %s: modes rtd and distill take no corpus that streams: build it "
                        "without `stream`",
                        j->clusters[cluster].name);
    NEB_TRY(agent_job_corpus_fits(j, cluster, corpus));
    int generator = agent_job_role(j, AGENT_ROLE_GENERATOR);
    bool reads = cluster == generator || !j->rtd.push_text; // else the text comes with the batches
    if (j->mode != AGENT_MODE_RTD || generator < 0 || !reads)
        return NEB_OK;
    struct intra_sampler *windows = NULL; // the sources have text for windows of this length
    NEB_TRY(agent_job_sampler(j, generator, corpus, &windows));
    intra_sampler_destroy(&windows);
    return NEB_OK;
}

// A job without a teacher learns from stored labels, so those of the first and the last step must
// be there.
static enum neb_status stored_labels(const struct agent_job *j, const char *dir) {
    const int64_t steps[] = {0, j->steps - 1};
    for (int i = 0; i < 2; i++)
        if (!agent_distill_cache_has(dir, steps[i]))
            return neb_fail(NEB_ERR_NOT_FOUND,
                            "distill.cache: there are no labels of step %lld in %s, and the job "
                            "has no teacher: run the job with a teacher to fill the cache",
                            (long long)steps[i], dir);
    return NEB_OK;
}

enum neb_status agent_side_cache_fits(const struct agent_job *j, int cluster,
                                      const struct intra_corpus *corpus) {
    char dir[NEB_PATH_MAX];
    uint8_t digest[INTRA_SHA_BYTES];
    if (j->mode != AGENT_MODE_DISTILL || !j->distill.cache[0] ||
        j->clusters[cluster].role != AGENT_ROLE_STUDENT || !neb_fs_exists(j->distill.cache))
        return NEB_OK;
    NEB_TRY(neb_path(dir, sizeof dir, j->distill.cache, j->clusters[cluster].name));
    intra_corpus_digest(corpus, digest);
    if (neb_fs_exists(dir)) // else it is made by the run
        NEB_TRY(agent_distill_cache_open(dir, j, agent_distill_student(j, cluster), digest));
    return agent_distill_teachers(j) ? NEB_OK : stored_labels(j, dir);
}
