// SPDX-License-Identifier: Apache-2.0
// Groups of tensors say how a tensor is exchanged between clusters. A group is a pattern over
// names; the first pattern that matches a name counts. A job whose list does not end with "*" has
// one more group at the end, {match: "*", exchange: every}. A job without `groups` has this group
// alone.
//
// Fragments belong to groups: the fragments of a group follow each other, in the order of groups.
//
//     groups      experts (never)   *.norm.* (2 fragments)   * (3 fragments)
//     fragments          none              0  1                 2  3  4
#ifndef AGENT_GROUPS_H
#define AGENT_GROUPS_H
#include <stdbool.h>
#include <stdint.h>

enum {
    AGENT_GROUPS_MAX = 32, // of a job file; the last group is one more
    AGENT_GROUP_EVERY_MAX = 1000000
};

enum agent_group_exchange {
    AGENT_GROUP_EVERY, // the clusters exchange updates
    AGENT_GROUP_NEVER, // each cluster keeps its own tensors
    AGENT_GROUP_OWNER, // one cluster's tensors; the others take them
};

struct agent_group {
    char match[128];
    enum agent_group_exchange exchange;
    int32_t every;     // takes part in every so many rounds of the job; 1 or more
    int32_t owner;     // index of the cluster; -1: none
    char codec[32];    // "": sync.codec
    float eta, mu;     // NAN: those of sync
    int32_t fragments; // 0: sync.fragments
};

struct agent_job;
int32_t agent_job_groups(const struct agent_job *j); // with the group at the end
const struct agent_group *agent_job_group(const struct agent_job *j, int32_t g);
// The group of a tensor. A pattern has `*` (any bytes, dots too), `?` (one UTF-8 character) and
// `[a-z0-9]`, `[!a-z]` (one ASCII character).
int32_t agent_job_group_of(const struct agent_job *j, const char *tensor);

// Number of fragments of all groups that are exchanged.
int32_t agent_job_fragments(const struct agent_job *j);
int32_t agent_job_group_fragments(const struct agent_job *j, int32_t g); // of a group; never: 0
int32_t agent_job_group_first(const struct agent_job *j, int32_t g);     // its first fragment
int32_t agent_job_fragment_group(const struct agent_job *j, int32_t f);  // the group of a fragment
// Settings of a fragment, from its group or from `sync`.
const char *agent_job_fragment_codec(const struct agent_job *j, int32_t f);
float agent_job_fragment_eta(const struct agent_job *j, int32_t f);
float agent_job_fragment_mu(const struct agent_job *j, int32_t f);
int32_t agent_job_fragment_every(const struct agent_job *j, int32_t f);
int32_t agent_job_fragment_owner(const struct agent_job *j, int32_t f); // -1: none

bool agent_pattern_matches(const char *pattern, const char *name);
// What is wrong with the pattern; NULL: nothing.
const char *agent_pattern_wrong(const char *pattern);

#endif
