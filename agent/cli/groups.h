// SPDX-License-Identifier: Apache-2.0
// What `nebula check` and `nebula plan` know of a job's groups of tensors.
#ifndef AGENT_CLI_GROUPS_H
#define AGENT_CLI_GROUPS_H
#include "agent/exchange/manifest.h"
#include "agent/job/config.h"

enum { AGENT_GROUP_VIEWS_MAX = AGENT_GROUPS_MAX + 1 };

struct agent_group_view {
    const struct agent_group *group;
    int32_t fragments;
    const char *codec;
    double bits; // per parameter, measured on normally distributed values
    float eta, mu;
    // With a list of tensors. bytes: of an encoded update of one cluster.
    uint64_t tensors, parameters;
    double bytes;
};

struct agent_groups_view {
    int32_t n;
    bool sized; // the tensors are known
    struct agent_group_view groups[AGENT_GROUP_VIEWS_MAX];
    bool single;                  // gate private: rank 0 keeps the state of all ranks
    uint64_t parameters, largest; // exchanged; of the largest fragment, about
    double bytes;                 // of an exchange of all groups
};

// tensors: a file of the agent, HOME/jobs/ID/tensors.json; NULL: the sizes are not known.
// NEB_ERR_INVALID: its groups are not those of the job; and the errors of reading and encoding.
NEB_MUST_CHECK enum neb_status agent_groups_view(const struct agent_job *job, const char *tensors,
                                                 struct agent_groups_view *out);
void agent_groups_print(const struct agent_job *job, const struct agent_groups_view *v);
json_t *agent_groups_json(const struct agent_job *job, const struct agent_groups_view *v);
// Bytes that the exchange takes on each of `ranks` ranks, or on rank 0 alone (single), beside the
// model.
double agent_groups_rank_bytes(const struct agent_groups_view *v, int32_t ranks);

#endif
