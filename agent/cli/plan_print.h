// SPDX-License-Identifier: Apache-2.0
// What `nebula plan` found, for people and as JSON.
#ifndef AGENT_PLAN_PRINT_H
#define AGENT_PLAN_PRINT_H
#include "agent/plan/planner_streams.h"

struct plan_machines {
    bool kept; // rates of an earlier measurement
    struct agent_site sites[AGENT_CLUSTERS_MAX];
    struct agent_wan link;
    // nobody said what the link is; the agent did, from what it has sent
    bool assumed, measured;
    int32_t vocab_assumed; // pieces, where no corpus of the job is here; 0: known
};

typedef void plan_printer(const struct agent_job *job, const struct plan_machines *m,
                          const struct agent_planner *written,
                          const struct agent_planner *proposed);
plan_printer plan_print, plan_print_json;

struct plan_streams { // modes rtd and distill
    const struct agent_job *job, *best;
    const struct plan_machines *machines;
    struct agent_planner_text text;
    struct agent_planner_streams written, proposed;
};
void plan_streams_print(const struct plan_streams *p);
void plan_streams_print_json(const struct plan_streams *p);

// What both print. ms: "12.3 ms", "1.2 s", "unknown"; buf is returned.
const char *plan_ms(double s, char *buf, size_t cap);
void plan_print_machines(const struct agent_job *job, const struct plan_machines *m, int32_t n);
void plan_print_exchange(const struct agent_job *job, const struct agent_planner *p);
json_t *plan_exchange_json(const struct agent_job *job,
                           const struct agent_planner *p); // null: no exchanges
json_t *plan_machines_json(const struct plan_machines *m, int32_t n);
json_t *plan_link_json(const struct plan_machines *m, int32_t n); // the worst, and each
json_t *plan_vocab_json(const struct plan_machines *m);           // null: known
// " on NAME in bf16", or on processors ""; buf is returned.
const char *plan_on(const struct intra_cost_job *j, const struct agent_site *s, char *buf,
                    size_t cap);
// On a device: what is in its memory, acts of it for passes, and on the host. No line is ended.
void plan_print_device_memory(const struct intra_cost_job *j, const struct intra_cost *c,
                              const char *acts);
// What was asked for and is not in the figures; no_device, no_bf16: as agent_planned.
void plan_print_not_reckoned(bool no_device, bool no_bf16);
// The same into o, and whose rates the figures are of.
void plan_where_json(const struct intra_cost_job *j, const struct agent_site *s, bool no_device,
                     bool no_bf16, json_t *o);
// Figures of a step, into o.
void plan_cost_json(const struct intra_cost *c, json_t *o);

#endif
