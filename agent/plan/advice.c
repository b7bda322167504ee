// SPDX-License-Identifier: Apache-2.0
// Advice on a job's scheme. The recipes are those of configs/COMPARE.md: two clusters train a model
// from random values.
#include "agent/plan/plan.h"
#include "compress/codec.h"

enum {
    OFTEN = 4,        // largest interval of a recipe with a sparse codec
    RARELY = 8,       // smallest interval that costs AdamW much
    STEPS_SHORT = 300 // shorter runs are too short for a warm-up of 120 steps
};

// True if the recipes were measured with jobs like this one.
static bool applies(const struct agent_job *job) {
    bool built_in = !job->attached;
    for (int32_t i = 0; i < job->n_clusters; i++)
        built_in = built_in && job->clusters[i].launcher != AGENT_LAUNCHER_ATTACH;
    return built_in && job->mode == AGENT_MODE_REPLICAS &&
           job->sync.scheme == AGENT_SCHEME_FEDERATED && job->sync.gate != AGENT_GATE_PRIVATE &&
           agent_job_exchanging(job) > 1 && job->trainable.mode == INTRA_TRAIN_FULL &&
           !job->trainable.freeze_embeddings && !job->init_from[0] && !job->model_init[0] &&
           job->steps >= STEPS_SHORT && !(job->autos & (AGENT_AUTO_INTERVAL | AGENT_AUTO_CODEC));
}

static const char *of_muon(const struct agent_sync *s, bool sparse) {
    if (s->mu > 0 || s->eta < 0.9F || s->eta > 1.1F)
        return "Muon is best without an outer optimiser: sync.outer {lr: 1, momentum: 0}";
    return sparse && s->interval <= OFTEN
               ? "Muon loses less with a dense codec: sync.codec int2 with sync.interval 16 "
                 "sends about as many bytes as topk:128/4096 with 3"
               : NULL;
}

static const char *of_adamw(const struct agent_job *job, bool sparse) {
    const struct agent_sync *s = &job->sync;
    const struct intra_optim_config *o = &job->optim;
    if (s->interval >= RARELY)
        return "long intervals cost AdamW much: optim.name muon loses less (optim.lr about 0.004, "
               "sync.interval 16, sync.codec int2, sync.outer {lr: 1, momentum: 0})";
    // With a beta1 near 0 all momentum is outer momentum: another recipe.
    if (!sparse || s->interval > OFTEN || agent_job_exchanging(job) != 2 || o->beta1 < 0.5F)
        return NULL;
    return o->beta1 > 0.85F || o->schedule.warmup < 100 || s->mu > 0 || s->eta < 1.3F ||
                   s->eta > 1.5F
               ? "AdamW with a sparse codec every few steps loses least with optim.beta1 0.8, "
                 "optim.warmup 120, the optim.lr of synchronous training, and sync.outer {lr: "
                 "1.414, momentum: 0}"
               : NULL;
}

const char *agent_plan_advice(const struct agent_job *job) {
    struct cmp_codec codec;
    if (!applies(job) || cmp_codec_parse(job->sync.codec, &codec) != NEB_OK)
        return NULL;
    bool sparse = cmp_codec_density(&codec) < 1;
    return job->optim.kind == INTRA_OPTIM_MUON ? of_muon(&job->sync, sparse)
                                               : of_adamw(job, sparse);
}
