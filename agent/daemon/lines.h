// SPDX-License-Identifier: Apache-2.0
// Lines of metrics for another agent, in order, through outages. Each line has a number. It is kept
// until the other agent's link has acknowledged it. Nothing is sent before the other agent reports
// the last number that it has, after a start or an outage; the later lines follow, including those
// that were sent into a dead link. Pure: no clock, no socket.
//
// Memory is bounded: at most AGENT_LINES_MAX lines are kept. When there are too many, every second
// step is dropped, and later steps are thinned in the same way, so that the whole outage stays
// visible. The same happens if lines come faster than they may be sent. Lines of other kinds have
// half of the space and what steps leave free: the oldest are dropped first.
#ifndef AGENT_LINES_H
#define AGENT_LINES_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>

enum agent_lines_limit {
    AGENT_LINES_MAX = 1024, // lines kept
    AGENT_LINES_BYTES_MAX = 1 << 20,
    // Limits of what is sent per job: at once twice the lines that are kept in an outage, then a
    // fixed number per second. With log_every 1 a job has a line of 200 to 300 bytes per step, so
    // steps of a millisecond fit. Faster lines are thinned as in an outage.
    AGENT_LINES_BURST = 2 * AGENT_LINES_MAX,
    AGENT_LINES_A_SECOND = 1000,
    AGENT_LINES_BYTES_BURST = 2 * AGENT_LINES_BYTES_MAX,
    AGENT_LINES_BYTES_A_SECOND = 256 << 10,
    AGENT_LINES_MESSAGES_BURST = 80, // of 48 KiB each: twice the lines that are kept in an outage
    AGENT_LINES_MESSAGES_A_SECOND = 20,
    // Factor: a receiver accepts so many times these limits per job and member, and drops the rest.
    // The clocks may differ, and lines of two seconds may arrive in one.
    AGENT_LINES_TAKEN = 2,
};

struct agent_lines; // one job at one agent; one thread. up: the link is up now. NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status agent_lines_create(bool up, neb_ns now, struct agent_lines **out);
void agent_lines_destroy(struct agent_lines **l); // NULL-safe

// Borrows line. unix_ms: numbers are at least this, so that they rise across restarts of the agent.
// Without memory the line is lost.
void agent_lines_add(struct agent_lines *l, const json_t *line, neb_ns now, int64_t unix_ms);
// At first, and once the link goes down, lines wait for agent_lines_had, or until the link has been
// up for ten seconds without it.
void agent_lines_link(struct agent_lines *l, bool up, neb_ns now);
// The other agent has all lines up to number `had`. 0: it does not know; it then gets all that are
// kept.
void agent_lines_had(struct agent_lines *l, int64_t had);

// The next lines that are due, at most max_bytes as text (but at least one): [{"n", "line"}]. Lines
// that waited, or may have been sent before, have "late_s", their age in seconds. They stay kept.
// Call agent_lines_sent or agent_lines_back then. NULL: none is due, or the limits (enum
// agent_lines_limit) do not allow it yet: ask again later.
json_t *agent_lines_next(struct agent_lines *l, neb_ns now, size_t max_bytes);
// The link took the lines of agent_lines_next as part of the first `sent` bytes on connection `way`
// (struct inter_link_control).
void agent_lines_sent(struct agent_lines *l, uint64_t way, uint64_t sent);
// The other agent's link has read the first `acked` bytes on this connection.
void agent_lines_acked(struct agent_lines *l, uint64_t way, uint64_t acked, neb_ns now);
// The last n lines of agent_lines_next or agent_lines_take were not taken: they are due again.
void agent_lines_back(struct agent_lines *l, int n);
// As agent_lines_next, without limits, for a caller that stores the lines: from the oldest that the
// other agent may lack. agent_lines_stored forgets them.
json_t *agent_lines_take(struct agent_lines *l, neb_ns now, size_t max_bytes);
void agent_lines_stored(struct agent_lines *l);

#endif
