// SPDX-License-Identifier: Apache-2.0
// Job files: no crash, and an accepted job is unchanged after a round trip through JSON.
#include "agent/job/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct agent_job job, back; // large
    if (n > 1 << 16 || agent_job_parse((const char *)data, n, "fuzz.yaml", &job) != NEB_OK)
        return 0;
    const struct intra_model_config *m = &job.model;
    if (job.model_init[0] && !(m->n_layers && m->d_model && m->n_heads && m->d_ff))
        // its sizes come from the checkpoint, which a submit reads before it sends the job
        return 0;
    json_t *json = agent_job_to_json(&job);
    char *text = json_dumps(json, JSON_COMPACT);
    NEB_ASSERT(text);
    json_t *travelled = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    NEB_ASSERT(travelled);
    NEB_ASSERT(agent_job_from_json(travelled, &back) == NEB_OK);
    memset(job.lines, 0, sizeof job.lines); // line numbers of the file: they are not sent
    job.clusters_line = 0;
    memset(job.cluster_lines, 0, sizeof job.cluster_lines);
    job.groups_line = 0;
    memset(job.group_lines, 0, sizeof job.group_lines);
    memset(job.given, 0, sizeof job.given);
    NEB_ASSERT(!memcmp(&job, &back, sizeof job));
    json_decref(travelled);
    json_decref(json);
    free(text);
    return 0;
}
