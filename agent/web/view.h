// SPDX-License-Identifier: Apache-2.0
// What an agent remembers of its jobs for viewers: the latest values of each cluster, their curves
// and the last faults. Its input is the metrics lines that pass through the daemon. It reads no
// clock and no socket.
//
// Memory is bounded: a curve holds AGENT_VIEW_POINTS points. A full curve drops every second point
// and doubles its spacing, so it always reaches back to its start.
#ifndef AGENT_VIEW_H
#define AGENT_VIEW_H
#include "agent/base/clock.h"
#include "agent/job/config.h"

enum { AGENT_VIEW_POINTS = 400, AGENT_VIEW_EVENTS = 50, AGENT_VIEW_JOBS = 8 };

struct agent_view; // for one thread
NEB_MUST_CHECK enum neb_status agent_view_create(struct agent_view **out);
void agent_view_destroy(struct agent_view **v);

// Takes a metrics line of kind step, round, link, eval, checkpoint, tune, labels, fault or note;
// the line names its cluster. interval: the job's H until a round gives the current one. Ignores
// malformed values. unix_s: time of day, for the axes; steady_s: a clock that nobody sets, for ages
// and distances.
void agent_view_line(struct agent_view *v, const char *job, int interval, const json_t *line,
                     double unix_s, double steady_s);
// Adds a fault or a change to the list of events. job and cluster may be NULL.
void agent_view_event(struct agent_view *v, const char *job, const char *cluster, const char *text,
                      double unix_s);

// The bits/s of a link, from its byte counters since the last call for this peer; unchanged if that
// is less than half a second ago.
struct agent_view_rate {
    double tx_bps, rx_bps;
};
struct agent_view_rate agent_view_rate(struct agent_view *v, uint32_t peer, uint64_t sent,
                                       uint64_t recv, neb_ns now);

// New references; NULL if out of memory.
//     [{name, device, step, loss, eval_loss, tokens_per_s, stall_s, train_s, round, codec,
//       interval, sent_bytes, recv_bytes, goodput_bps, age_s,
//       counted: {stall_s, train_s, sent_bytes, recv_bytes}}]
// age_s: since the last line of the worker (link, fault and note lines are its agent's). counted:
// growth since the first line, which never falls.
json_t *agent_view_clusters(const struct agent_view *v, const char *job, double steady_s);
json_t *agent_view_events(const struct agent_view *v); // [{t, job, cluster, text}], newest last
// {"version": 1, "jobs": [{"id", "clusters": [{"name", "t": […], "loss": […], …}]}], "events"}:
// columns of equal length, null for unknown values; and "rounds", the last merges of the cluster, each
// [round, fragment, begins to encode, sent, commit is here, begins to merge, merged, seconds that
// training waited], with times of day. Text, which the caller frees; NULL: out of
// memory. Each point becomes text only once, since a page asks every two seconds.
char *agent_view_history(struct agent_view *v);

#endif
