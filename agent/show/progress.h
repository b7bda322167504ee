// SPDX-License-Identifier: Apache-2.0
// Shows the progress of a job on a terminal (redrawn in place) or as plain lines. In JSON mode it
// draws nothing: the output is the lines of metrics.jsonl (agent_metrics_show).
#ifndef AGENT_PROGRESS_H
#define AGENT_PROGRESS_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum agent_progress_kind { AGENT_PROGRESS_TERMINAL, AGENT_PROGRESS_PLAIN, AGENT_PROGRESS_JSON };

struct agent_sample { // the latest state of one cluster
    char name[64];
    int64_t step, tokens;
    double loss, tokens_per_s;
    double stall_s, train_s;
    int64_t round;
    uint64_t sent_bytes, recv_bytes; // on the socket
    double goodput_bps;              // 0: not measured yet
    bool link_known, link_up;
    bool out; // it failed or left; the others can end without it
};

struct agent_progress;
NEB_MUST_CHECK enum neb_status agent_progress_create(enum agent_progress_kind kind, FILE *out,
                                                     int n_clusters, int64_t total_steps,
                                                     neb_ns now, struct agent_progress **out_p);
void agent_progress_destroy(struct agent_progress **p);
// Borrowed; the caller fills it in.
struct agent_sample *agent_progress_sample(struct agent_progress *p, int cluster);
// Updates a cluster's sample from a metrics line.
void agent_progress_metrics(struct agent_progress *p, int cluster, const json_t *line);
// Redraws if the interval has passed, or if `force`.
void agent_progress_draw(struct agent_progress *p, neb_ns now, bool force);
// Writes one row of at most `width` characters. Drops the least important fields until it fits;
// "LINK DOWN" always stays.
void agent_progress_line(const struct agent_sample *s, int64_t total_steps, int width, char *out,
                         size_t cap);
// Prints an event on its own line: link down, worker restarted. JSON mode: {"kind": "note", "text":
// ...}.
void agent_progress_note(struct agent_progress *p, const char *text);

// "1.53 MB", "3:07", "12.4 Mbit/s": decimal units, three digits.
const char *agent_human_bytes(double bytes, char *buf, size_t cap);
const char *agent_human_rate(double bits_per_s, char *buf, size_t cap);
const char *agent_human_time(double seconds, char *buf, size_t cap);

#endif
