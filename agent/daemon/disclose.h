// SPDX-License-Identifier: Apache-2.0
// What a site sends of its cluster's losses to another member, which submitted the job and receives
// its metrics and its report.
//
// An exact loss of every step reveals whether a known text was in the batch of that step: anyone
// who has the parameters can compute what the loss would be. So the site sends the mean over a
// stretch of steps, with three digits after the point (four in all); stretches do not overlap, and
// lines in between have null. A held-out loss is rounded in the same way, is sent at most once per
// stretch, and is null if fewer than AGENT_DISCLOSED_TOKENS tokens are behind it: the loss of a
// single token identifies it. All other fractions in a line or report are rounded too, except
// times, rates and lr.
//
//     lines of the worker ─┬─► watchers, page, files of this site: unchanged
//                          └─► agent_disclosed_line ─► the member that submitted the job
//
// Pure: no clock, no socket. One object per job and incarnation of its worker's agent.
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
    bool held_out; // held-out losses have enough tokens behind them
};

struct agent_disclosed_sums { // over the steps of a worker so far, from its lines
    double loss, grad_norm;
    int64_t losses, norms, steps;
};

struct agent_disclosed {
    struct agent_disclosed_sums now, said; // said: at the end of the last stretch
    double first, last; // mean losses of the first and the last stretch; any false: none
    bool any;
    int64_t next_eval; // step from which on the next held-out loss may be sent
};

// Removes the worker's sums from one of its lines: nobody else may see them.
void agent_disclosed_take(struct agent_disclosed *t, json_t *line);
// What the site sends of a line or a report. New reference; NULL: nothing, or out of memory.
json_t *agent_disclosed_line(struct agent_disclosed *t, const struct agent_disclosed_rules *r,
                             const json_t *line);
json_t *agent_disclosed_report(const struct agent_disclosed *t,
                               const struct agent_disclosed_rules *r, const json_t *report);
// Rounds to three digits after the point, and to four digits in all. Values that are not finite
// stay.
double agent_disclosed_round(double x);

#endif
