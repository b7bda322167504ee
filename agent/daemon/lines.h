// SPDX-License-Identifier: Apache-2.0
// Lines of metrics that go to another agent, in order, through outages. A line is numbered and kept; while the link is down nothing is
// sent. When it is up again, the other agent says which number it had last, and what came after follows: also what was sent into
// a link that was dead already. No clock and no socket inside.
//
// Memory is bounded: while the link is up a line that was sent is kept for half a minute, longer than it takes to notice that it is not. In an outage
// at most AGENT_LINES_MAX are kept: when they are too many, every second step is dropped, and of those to come as well, so
// that the whole outage stays visible. So it is where lines are made quicker than they may be sent. Other lines have half of the room, and whatever steps leave: the oldest go first.
#ifndef AGENT_LINES_H
#define AGENT_LINES_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>

enum agent_lines_limit {
    AGENT_LINES_MAX = 1024, // kept
    AGENT_LINES_BYTES_MAX = 1 << 20,
    // Sent of one job: at once what an outage has kept, twice, and then so much a second. A job with log_every 1 has a line a step, of 200 to 300
    // bytes: steps of a millisecond, of a model of some thousand parameters, fit in. Where they are quicker the lines that wait are thinned as
    // in an outage: the other agent can take more (below) for what no honest one sends.
    AGENT_LINES_BURST = 2 * AGENT_LINES_MAX,
    AGENT_LINES_A_SECOND = 1000,
    AGENT_LINES_BYTES_BURST = 2 * AGENT_LINES_BYTES_MAX,
    AGENT_LINES_BYTES_A_SECOND = 256 << 10,
    AGENT_LINES_MESSAGES_BURST = 80, // of 48 KiB each: twice what an outage has kept
    AGENT_LINES_MESSAGES_A_SECOND = 20,
    // Taken of one job and member, and dropped beyond: so many times the above. The clocks may differ, and the last of an earlier second may come
    // with this one's.
    AGENT_LINES_TAKEN = 2,
};

struct agent_lines; // one job at one agent; one thread. up: the link, now. NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status agent_lines_create(bool up, neb_ns now, struct agent_lines **out);
void agent_lines_destroy(struct agent_lines **l); // NULL is allowed

// Borrows line. unix_ms: numbers begin there, so that those of an agent that was started anew go on. Out of memory: it is lost.
void agent_lines_add(struct agent_lines *l, const json_t *line, neb_ns now, int64_t unix_ms);
// Lines wait from a link that goes down until agent_lines_had, or until the link has been up for ten seconds without it.
void agent_lines_link(struct agent_lines *l, bool up, neb_ns now);
// The other agent has what it had up to this number; 0: it does not know, and gets what was made since the link went down, and in the
// five seconds before, in which it may have been dead already.
void agent_lines_had(struct agent_lines *l, int64_t had);

// The next of those that are due, at most max_bytes as text (but one, however long): [{"n", "line"}], of those that
// waited, or may have been sent before, with "late_s", how long ago they were made. They stay kept, and are not due again but by agent_lines_had. NULL: none are, or
// not so soon (enum agent_lines_limit): asked again from time to time.
json_t *agent_lines_next(struct agent_lines *l, neb_ns now, size_t max_bytes);
// The last n that it gave were not taken by the link: they are due again.
void agent_lines_back(struct agent_lines *l, int n);
// What follows must not overtake the lines: all that are due may be sent now.
void agent_lines_unlimit(struct agent_lines *l);
// The same, without a pace, for who stores them: of those that wait for the link, as for one that does not know what it had, and they are
// forgotten; while it is up, of those that it has not taken.
json_t *agent_lines_take(struct agent_lines *l, neb_ns now, size_t max_bytes);

#endif
