// SPDX-License-Identifier: Apache-2.0
// When a worker sends and merges its fragments: pure decisions over step counters, without I/O.
//
//      step:  0 ........ o ........... o+τ ........ o+H ......... o+H+τ ...
//                        │ send         │ merge       │ send         │ merge
//                        └─ in flight ──┘             └─ in flight ──┘
//             o = offset of the fragment
//
// All members send in one common order, whatever their step counts are. Otherwise one member could
// wait for fragment 0 while another waits for fragment 1, for ever. At a due step the worker sends
// the fragment whose turn it is, if the outcome of its last update is known. If that fragment is
// still in flight, the fragment that is due has missed an interval: training continues, and its
// next update carries everything that was learned.
//
// At the last step every fragment is drained: merged, sent once more with what was learned since,
// and merged again. A cluster that has drained answers rounds with empty updates until every member
// has declared its last one.
//
// The first early_steps steps may have a shorter interval.
//
// A fragment of a group with `exchange: {every: K}` is due in each K-th cycle. A cycle is H steps;
// it ends with the first fragment's place. With H 10 and two fragments (fragment 1 has K 3):
//
//     step       5    10    15    20    25    30    35  …
//     cycle    └── 0 ───┘ └── 1 ───┘ └── 2 ───┘ └─ 3
//     due             f0          f0    f1    f0
//
// The common order goes by the cycle of an update, (round + 1)·K − 1, so it is the same for all
// members, whatever they have missed.
//
// Source: Streaming DiLoCo (arXiv 2501.18512) for offsets and overlap.
#ifndef AGENT_SCHEDULE_H
#define AGENT_SCHEDULE_H
#include "agent/job/config.h"
#include "inter/record/types.h"

struct agent_schedule {
    int64_t steps;    // inner steps of this cluster in total
    int32_t interval; // H >= 1, in steps
    int32_t overlap;  // τ in steps, 0 <= τ < H
    int32_t fragments;
    // Interval of the first early_steps steps. overlap < early_interval; early_steps is a multiple
    // of it.
    int32_t early_interval;
    int64_t early_steps;                // 0: one interval throughout
    int64_t base;                       // step from which the present interval holds; 0 at first
    int64_t base_cycles;                // cycles up to it
    int32_t every[INTER_FRAGMENTS_MAX]; // K of each fragment; 0 is 1
};

struct agent_fragment {
    uint32_t round; // of the update in flight, or of the next send
    bool in_flight;
    bool arrived;        // its commit record has arrived
    bool sent_final;     // the update in flight, or the last one, declared itself the last
    bool finished;       // every update in the last record was declared the last
    int64_t send_step;   // step count at the send
    int64_t merge_step;  // earliest step count of the merge
    int64_t merged_step; // step count of the last merge
    // The commits contain this cluster's work up to this step count. It exceeds send_step after a
    // start from a snapshot, and in a repeated run if the first run had sent more. Up to this step
    // there is nothing new to send, and an empty update would replace what the previous incarnation
    // sent.
    int64_t committed_step;
    uint32_t missed; // due sends skipped since the last send
};

// The schedule of a job before its first step.
struct agent_schedule agent_schedule_of(const struct agent_job *job);

// K of fragment f: it is due every K intervals.
int32_t agent_schedule_every(const struct agent_schedule *s, int32_t f);
// True if fragment f is due after `step` steps: at its offset in every K-th cycle.
bool agent_schedule_due(const struct agent_schedule *s, int32_t f, int64_t step);

// Fewest inner steps that an update of some fragment can hold when nothing is late: between two
// sends, before the first send, or after the last due send at the end of the job. (An absence makes
// the number larger. A cluster that continues from a snapshot may have fewer steps before its next
// send.)
int64_t agent_schedule_least(const struct agent_schedule *s);
// Number of updates, over all fragments, that a cluster sends in a run without outages and with a
// constant interval (base is 0).
int64_t agent_schedule_sends(const struct agent_schedule *s);

enum agent_decision {
    AGENT_GO_ON, // nothing to do for this fragment at this step
    AGENT_SEND,
    AGENT_MERGE,
    AGENT_WAIT, // the commit must arrive before the next inner step
    AGENT_MISS, // due, but nothing can be sent: count one missed interval
};
// The interval H after `step` steps.
int32_t agent_schedule_interval(const struct agent_schedule *s, int64_t step);
// Call it when the first fragment is sent at `step`. From then on H is `interval`: the first
// fragment is due again `interval` steps later, the others in between.
void agent_schedule_change(struct agent_schedule *s, int64_t step, int32_t interval);
// What to do with fragment f after `step` steps, before the next one begins. Call until the result
// is AGENT_GO_ON or AGENT_WAIT. peers_alive: enough members are reachable for a commit; if not, the
// worker trains on instead of waiting. counted_miss: the last step at which a miss was counted (-1:
// none); so that a due step counts only one miss.
enum agent_decision agent_schedule_decide(const struct agent_schedule *s,
                                          const struct agent_fragment *frags, int32_t f,
                                          int64_t step, bool peers_alive, int64_t counted_miss);
// True if the last round of every fragment is merged, so that the worker may leave. Usually it has
// then made all its steps; a cluster that was away may find that the others finished without it.
bool agent_schedule_finished(const struct agent_schedule *s, const struct agent_fragment *frags);

#endif
