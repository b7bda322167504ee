// SPDX-License-Identifier: Apache-2.0
// What of a cluster's losses leaves its site for another member, which submitted the job and gets
// its metrics and its report.
//
// A loss in full, of every step, tells whether a text that somebody has was in the step's batch:
// whoever knows the parameters can compute what it would be. So what leaves is the mean over a
// stretch of steps, none of which is in two of them, to three digits behind the point (four in
// all); lines between have null. A held-out loss is as coarse, at most one a stretch, and null
// where it would rest on fewer than AGENT_DISCLOSED_TOKENS tokens: that of one token names it. Whatever
// else a line or a report has as a fraction is as coarse, but for times, rates and lr.
//
//     lines of the worker ─┬─► watchers, page, files of this site: as they are
//                          └─► agent_disclosed_line ─► the member that submitted the job
//
// Pure: no clock, no socket. One of a job and life of its worker's agent.
#ifndef AGENT_DISCLOSED_H
#define AGENT_DISCLOSED_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum agent_losses { AGENT_LOSSES_NEVER, AGENT_LOSSES_ROUNDED, AGENT_LOSSES_EXACT };
enum { AGENT_DISCLOSED_TOKENS = 512, AGENT_DISCLOSED_STEPS = 10 };

struct agent_disclosed_rules {
    enum agent_losses losses;
    int64_t every; // steps of a stretch
    bool held_out; // those rest on enough tokens
};

struct agent_disclosed_sums { // of the steps of a worker so far, as its lines have them
    double loss, grad_norm;
    int64_t losses, norms, steps;
};

struct agent_disclosed {
    struct agent_disclosed_sums now, said; // said: at the end of the last stretch
    double first, last; // mean losses of the first and the last stretch; none: any is false
    bool any;
    int64_t next_eval; // step from which on the next held-out loss is told
};

// Takes the worker's sums out of a line of it, which nobody else is to see.
void agent_disclosed_take(struct agent_disclosed *t, json_t *line);
// What leaves of a line, or of a report. New reference; NULL: nothing does, or out of memory.
json_t *agent_disclosed_line(struct agent_disclosed *t, const struct agent_disclosed_rules *r,
                             const json_t *line);
json_t *agent_disclosed_report(const struct agent_disclosed *t,
                               const struct agent_disclosed_rules *r, const json_t *report);
// Three digits behind the point, and four in all. What is not finite stays.
double agent_disclosed_round(double x);

#endif
