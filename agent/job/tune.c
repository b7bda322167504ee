// SPDX-License-Identifier: Apache-2.0
#include "agent/job/tune.h"
#include "agent/job/groups.h"

#include <string.h>

bool agent_tune_admits(const struct agent_tune *t, const char *codec) {
    int level = cmp_level_of(codec);
    return level && level >= t->finest && level <= t->coarsest; // finest 0: the job's own
}

static double sent_in_an_interval(const struct agent_job *job) {
    double sum = 0;
    for (int32_t f = 0; f < agent_job_fragments(job); f++)
        sum += 1.0 / agent_job_fragment_every(job, f);
    return sum;
}

struct inter_tune_config agent_tune_config(const struct agent_job *job) {
    const struct agent_sync *s = &job->sync;
    const struct agent_tune *t = &s->tune;
    const int first = cmp_level_of(s->codec);
    int32_t overlap_max = t->overlap_max ? t->overlap_max : s->interval / 2;
    return (struct inter_tune_config){
        .on = t->mode == AGENT_TUNE_AUTO,
        .codec = t->codec,
        .overlap = t->overlap,
        .interval = t->interval,
        .balance = t->balance && job->mode == AGENT_MODE_REPLICAS,
        .finest = (uint8_t)(t->finest ? t->finest : first),
        .coarsest = (uint8_t)t->coarsest,
        .first = (uint8_t)first,
        .start_interval = (uint32_t)s->interval,
        .start_overlap = (uint32_t)s->overlap,
        .overlap_max = (uint32_t)(overlap_max > s->overlap ? overlap_max : s->overlap),
        .interval_max = (uint32_t)(t->interval_max ? t->interval_max : 2 * (int64_t)s->interval),
        .fragments = sent_in_an_interval(job),
        .steps = (uint64_t)job->steps,
        .error_max = t->error_max};
}

void agent_tune_pace(const struct agent_job *job, float pace[INTER_PACE]) {
    struct intra_schedule s = job->optim.schedule;
    s.steps = job->steps;
    memset(pace, 0, INTER_PACE * sizeof *pace);
    for (int k = 0; k < job->n_clusters; k++)
        if (job->clusters[k].launcher == AGENT_LAUNCHER_ATTACH)
            return; // an attached trainer has its own schedule
    for (int i = 0; i < INTER_PACE && job->steps > 0; i++) {
        int64_t t = job->steps * i / (INTER_PACE - 1);
        pace[i] = intra_schedule_lr(&s, t < job->steps ? t : job->steps - 1);
    }
}
