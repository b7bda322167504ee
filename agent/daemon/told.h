// SPDX-License-Identifier: Apache-2.0
// What of a cluster's losses leaves its site for another member, which submitted the job and gets
// its metrics and its report.
//
// A loss in full, of every step, tells whether a text that somebody has was in the step's batch:
// whoever knows the parameters can compute what it would be. So what leaves is the mean over a
// stretch of steps, none of which is in two of them, to three digits behind the point (four in
// all); lines between have null. A held-out loss is as coarse, at most one a stretch, and null
// where it would rest on fewer than AGENT_TOLD_TOKENS tokens: that of one token names it. Whatever
// else a line or a report has as a fraction is as coarse, but for times, rates and lr.
//
//     lines of the worker ─┬─► watchers, page, files of this site: as they are
//                          └─► agent_told_line ─► the member that submitted the job
//
// Pure: no clock, no socket. One of a job and life of its worker's agent.
#ifndef AGENT_TOLD_H
#define AGENT_TOLD_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum agent_losses { AGENT_LOSSES_NEVER, AGENT_LOSSES_ROUNDED, AGENT_LOSSES_EXACT };
enum { AGENT_TOLD_TOKENS = 512, AGENT_TOLD_STEPS = 10 };

struct agent_told_rules {
    enum agent_losses losses;
    int64_t every; // steps of a stretch
    bool held_out; // those rest on enough tokens
};

struct agent_told_sums { // of the steps of a worker so far, as its lines have them
    double loss, grad_norm;
    int64_t losses, norms, steps;
};

struct agent_told {
    struct agent_told_sums now, said; // said: at the end of the last stretch
    double first, last; // mean losses of the first and the last stretch; none: any is false
    bool any;
    int64_t next_eval; // step from which on the next held-out loss is told
};

// Takes the worker's sums out of a line of it, which nobody else is to see.
void agent_told_take(struct agent_told *t, json_t *line);
// What leaves of a line, or of a report. New reference; NULL: nothing does, or out of memory.
json_t *agent_told_line(struct agent_told *t, const struct agent_told_rules *r, const json_t *line);
json_t *agent_told_report(const struct agent_told *t, const struct agent_told_rules *r,
                          const json_t *report);
// Three digits behind the point, and four in all. What is not finite stays.
double agent_told_round(double x);

#endif
