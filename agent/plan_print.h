// What `nebula plan` found, for people and as JSON.
#ifndef AGENT_PLAN_PRINT_H
#define AGENT_PLAN_PRINT_H
#include "agent/planner.h"

struct plan_machines {
    struct agent_profile here;
    bool kept; // rates of an earlier measurement
    struct agent_site sites[AGENT_CLUSTERS_MAX];
    struct agent_wan link;
    bool assumed; // nobody said what the link is
};
struct plan_roles {
    bool wanted, serves, possible;
    int32_t stream; // cluster that streams
    double token_s; // of the slower side
};
typedef void plan_printer(const struct agent_job *job, const struct plan_machines *m,
                          const struct agent_planner *written, const struct agent_planner *proposed,
                          const struct plan_roles *roles);
plan_printer plan_print, plan_print_json;

#endif
