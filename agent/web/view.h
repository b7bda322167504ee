// SPDX-License-Identifier: Apache-2.0
// What an agent remembers of its jobs for the people who watch: the last figures of each cluster, their course over time, and the
// last faults. Fed with the metrics lines that pass through the daemon; no clock and no socket inside.
//
// Memory is bounded: a curve holds AGENT_VIEW_POINTS points. When it is full every second one is dropped and the spacing doubles,
// so that a curve always reaches back to its beginning.
#ifndef AGENT_VIEW_H
#define AGENT_VIEW_H
#include "agent/base/clock.h"
#include "agent/job/config.h"

enum { AGENT_VIEW_POINTS = 400, AGENT_VIEW_EVENTS = 50, AGENT_VIEW_JOBS = 8 };

struct agent_view; // one thread. NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status agent_view_create(struct agent_view **out);
void agent_view_destroy(struct agent_view **v);

// A metrics line ("step", "round", "link", "eval", "checkpoint", "tune", "labels", "fault", "note") of a job's cluster; the line names the cluster. `interval`: the job's H, until
// a round says what it has become. What is malformed is left out. unix_s: time of day, for the axes; steady_s: of a clock that
// nobody sets, for ages and distances.
void agent_view_line(struct agent_view *v, const char *job, int interval, const json_t *line,
                     double unix_s, double steady_s);
// Something that went wrong or changed, for the list of events. job may be NULL.
void agent_view_event(struct agent_view *v, const char *job, const char *cluster, const char *text,
                      double unix_s);

// Bits/s of a link from its byte counters, over the time since the last call for this peer (at least half a second).
struct agent_view_rate {
    double tx_bps, rx_bps;
};
struct agent_view_rate agent_view_rate(struct agent_view *v, uint32_t peer, uint64_t sent,
                                       uint64_t recv, neb_ns now);

// New references; NULL when out of memory.
// [{name, device, step, loss, eval_loss, tokens_per_s, stall_s, train_s, round, codec, interval, sent_bytes, recv_bytes, goodput_bps, age_s, counted}]; age_s:
// since its worker's last line (not the agent's own: link, fault, note); counted: {stall_s, train_s, sent_bytes, recv_bytes}, by how much they grew since the first line: these never fall.
json_t *agent_view_clusters(const struct agent_view *v, const char *job, double steady_s);
json_t *agent_view_events(const struct agent_view *v); // [{t, job, cluster, text}], newest last
// {"version": 1, "jobs": [{"id", "clusters": [{"name", "t": […], "loss": […], …}]}], "events"}: columns of equal length, null where
// nothing is known. As text, malloc: points are turned into text once, since a page asks again every two seconds.
char *agent_view_history(struct agent_view *v);

#endif
