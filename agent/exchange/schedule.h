// SPDX-License-Identifier: Apache-2.0
// When a worker sends and merges its fragments: pure decisions over step counters, no I/O.
//
//      step:  0 ........ o ........ o+τ ........ o+H ....... o+H+τ ...        o = offset of the fragment
//                        │ send      │ merge       │ send      │ merge
//                        └─ travels ─┘             └─ travels ─┘
//
// At a due step the fragment whose turn it is in the common order is sent, if its last outcome is known; if it still travels,
// that is a missed interval of the one that is due, whether that travels itself or waits for its turn: training goes on locally and its next send
// carries all of it. The order is the same on all
// members, whatever their step counts: otherwise one could wait for fragment 0 while another waits for fragment 1, for ever. At the last step every fragment
// is drained: merged, sent once more with what it learned since, and merged again. A cluster that has drained goes on
// answering rounds (with nothing new) until every member has declared its last one.
//
// The first early_steps steps may have a shorter interval: what that gains is in configs/COMPARE.md.
//
// Source: Streaming DiLoCo (arXiv 2501.18512) for offsets and overlap.
#ifndef AGENT_SCHEDULE_H
#define AGENT_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>

struct agent_schedule {
    int64_t steps;    // inner steps of this cluster in all
    int32_t interval; // H >= 1
    int32_t overlap;  // τ, 0 <= τ < H
    int32_t fragments;
    // interval of the first early_steps steps (overlap < early_interval, early_steps a multiple)
    int32_t early_interval;
    int64_t early_steps; // 0: one interval throughout
    int64_t base;        // step at which the present interval began to hold; at first 0
};

struct agent_fragment {
    uint32_t round; // of the next send; of the travelling update while in_flight
    bool in_flight;
    bool arrived;        // its commit record is here
    bool sent_final;     // the travelling (or last) update declared that nothing follows
    bool finished;       // every member's update in the last record was final
    int64_t send_step;   // inner step count at the send
    int64_t merge_step;  // earliest step count of the merge
    int64_t merged_step; // step count of the last merge: local progress exists beyond it
    // Step count behind what is committed of this cluster. Beyond send_step where a run is repeated that had sent more, and where it goes on from a
    // snapshot: up to there nothing has been learned that an update could hold, and an empty one would take the place of what a life before had sent.
    int64_t committed_step;
    uint32_t missed; // due sends skipped since the last send
};

// Fragment f is due after `step` steps: first at its offset, then every interval.
bool agent_schedule_due(const struct agent_schedule *s, int32_t f, int64_t step);

// Fewest inner steps that an update of some fragment can hold where nothing is late: between two of
// its sends, before its first one, or behind the last one that is due, at the job's end. (An
// absence makes it more; a cluster that goes on from a snapshot may have fewer before its next
// send.)
int64_t agent_schedule_least(const struct agent_schedule *s);
// Updates of all fragments that a cluster sends in a run without outages, in which the interval does not change (base is 0).
int64_t agent_schedule_sends(const struct agent_schedule *s);

enum agent_decision {
    AGENT_GO_ON, // nothing to do for this fragment at this step
    AGENT_SEND,
    AGENT_MERGE,
    AGENT_WAIT, // must have the commit before the next inner step
    AGENT_MISS, // due, and nothing can be sent: count a missed interval (once a due step)
};
// H as it is after `step` steps.
int32_t agent_schedule_interval(const struct agent_schedule *s, int64_t step);
// From the first fragment's send at `step` on, H is `interval`: its next send is due that much later, the others' in between.
void agent_schedule_change(struct agent_schedule *s, int64_t step, int32_t interval);
// What to do with fragment f before inner step `step` begins (so after `step` steps). peers_alive: enough members are
// reachable for a commit to be expected; without them the worker trains on instead of waiting. Call until AGENT_GO_ON or
// AGENT_WAIT. counted_miss: the last step at which a miss was counted (-1: none).
enum agent_decision agent_schedule_decide(const struct agent_schedule *s,
                                          const struct agent_fragment *frags, int32_t f,
                                          int64_t step, bool peers_alive, int64_t counted_miss);
// The worker may leave: the last round of every fragment is merged. Normally it has made all its steps then; a cluster that was
// away may find that the others have finished without it.
bool agent_schedule_finished(const struct agent_schedule *s, const struct agent_fragment *frags);

#endif
