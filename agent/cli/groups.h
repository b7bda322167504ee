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
    uint64_t parameters;   // that are exchanged
    double bytes, largest; // of an exchange of all groups; of the largest fragment, about
};

// tensors: a file of the agent, HOME/jobs/ID/tensors.json; NULL: the sizes are not known.
// NEB_ERR_INVALID: its groups are not those of the job; and the errors of reading and encoding.
NEB_MUST_CHECK enum neb_status agent_groups_view(const struct agent_job *job, const char *tensors,
                                                 struct agent_groups_view *out);
void agent_groups_print(const struct agent_job *job, const struct agent_groups_view *v);
json_t *agent_groups_json(const struct agent_job *job, const struct agent_groups_view *v);
// Bytes of the state of the exchange, beside the model, on all ranks together.
double agent_groups_state_bytes(const struct agent_groups_view *v);
// Bytes that libnebula takes on the fullest of `ranks` ranks with so many threads, beside the model
// and the frames. tensors: as above. And the errors of agent_groups_view.
NEB_MUST_CHECK enum neb_status agent_groups_rank_bytes(const struct agent_job *job,
                                                       const char *tensors, int32_t ranks,
                                                       int32_t threads, uint64_t *bytes);
// The most bytes of frames on each of `ranks` ranks: its part of an update of the largest fragment,
// and of all updates of a commit.
double agent_groups_frame_bytes(const struct agent_job *job, const struct agent_groups_view *v,
                                int32_t ranks);
// The same for a rank whose tensors are on a CUDA device: memory of the device. state: as the
// cluster's outer_state says (auto: it fits there), and scratch. gathered: besides, if units are
// not fp32 without gaps on one rank. frames: of a commit, unpacked.
struct agent_groups_device {
    uint64_t state, gathered, frames;
};
NEB_MUST_CHECK enum neb_status
agent_groups_device_bytes(const struct agent_job *job, const char *tensors,
                          const struct agent_groups_view *v, int32_t cluster, int32_t ranks,
                          int32_t threads, struct agent_groups_device *out);

#endif
