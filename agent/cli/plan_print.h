// SPDX-License-Identifier: Apache-2.0
// Prints the result of `nebula plan` as text and as JSON.
#ifndef AGENT_PLAN_PRINT_H
#define AGENT_PLAN_PRINT_H
#include "agent/plan/planner_streams.h"

struct plan_machines {
    bool kept; // the rates are from an earlier measurement
    struct agent_site sites[AGENT_CLUSTERS_MAX];
    struct agent_wan link;
    // The link is assumed; the agent has measured it.
    bool assumed, measured;
    int32_t vocab_assumed; // pieces, if no corpus of the job is here; 0: known
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

// Shared by both. plan_ms gives "12.3 ms", "1.2 s" or "unknown", and returns buf.
const char *plan_ms(double s, char *buf, size_t cap);
void plan_print_machines(const struct agent_job *job, const struct plan_machines *m, int32_t n);
void plan_print_exchange(const struct agent_job *job, const struct agent_planner *p);
json_t *plan_exchange_json(const struct agent_job *job,
                           const struct agent_planner *p); // null: no exchanges
json_t *plan_machines_json(const struct plan_machines *m, int32_t n);
json_t *plan_link_json(const struct plan_machines *m, int32_t n); // the worst link, and each
json_t *plan_vocab_json(const struct plan_machines *m);           // null: known
// " on NAME in bf16", or "" on processors. Returns buf.
const char *plan_on(const struct intra_cost_job *j, const struct agent_site *s, char *buf,
                    size_t cap);
// Prints what is in a device's memory and on its host; acts: name for the memory of passes. Does
// not end the line.
void plan_print_device_memory(const struct intra_cost_job *j, const struct intra_cost *c,
                              const char *acts);
// Prints which settings the figures leave out. no_device, no_bf16: as in agent_planned.
void plan_print_not_reckoned(bool no_device, bool no_bf16);
// Writes the same into o, and the device that the figures are for.
void plan_where_json(const struct intra_cost_job *j, const struct agent_site *s, bool no_device,
                     bool no_bf16, json_t *o);
// Writes the figures of a step into o.
void plan_cost_json(const struct intra_cost *c, json_t *o);

// plan_attached.c. tensors: a file as agent_groups_view() takes, or NULL.
NEB_MUST_CHECK enum neb_status plan_attached(const struct agent_job *job,
                                             const struct plan_machines *m, const char *tensors,
                                             bool json);

#endif
