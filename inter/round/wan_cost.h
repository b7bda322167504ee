// SPDX-License-Identifier: Apache-2.0
// What exchanges between clusters cost, before anything is started: how long an update is on its way, how much of it inner
// steps hide, how many bytes cross. Pure; the other half of `nebula plan` (intra/cost/cost.h is the first).
//
//     step    … │ send ────────────── τ steps ──────────────► │ merge │ …
//     worker    │encode│ trains on                    │ stall │apply  │
//     agents           │ travel: bytes / goodput │ agree │
//                       starts slowly: log2 of     3 round trips: manifest, proposal and vote,
//                       its segments round trips   commit; and what must be on disk first
//
// A cluster whose steps are faster than the slowest one's makes its H steps and waits: that is stall as well.
//
// Sources: Mathis et al. (1997) for the form of the rate that loss allows, with the constant that CUBIC showed here.
#ifndef INTER_WAN_COST_H
#define INTER_WAN_COST_H
#include <stdbool.h>
#include <stdint.h>

struct inter_wan_path {  // between any two clusters
    double bits_s;       // of the link, each way; above 0
    double rtt_s, loss;  // loss: share of segments, [0, 1)
    double sync_s;       // of one fsync of a head node's disk
    int32_t members;     // that exchange; everybody sends to every other
    int32_t connections; // bulk connections a pair
};

enum inter_wan_place { INTER_WAN_HOST, INTER_WAN_DEVICE }; // where the exchange's state is
// Parameters/s: of all processors of a machine; of one device and a processor beside it.
struct inter_wan_rates {
    double encode; // with the pseudo-gradient and error feedback
    double decode; // one update more, into the sum
    double settle; // the rest of a merge: residual, outer step, rebase, digest
};
struct inter_wan_codec { // as measured on values like those of an update
    char name[32];
    double bits;                  // a parameter
    double rel_error;             // norm of (x - decoded) / norm of x
    double density;               // share of the entries that an update holds; 0 or 1: all of them
    bool barred;                  // not chosen: too large to be sent, or not what the job admits
    struct inter_wan_rates at[2]; // by enum inter_wan_place; 0: there is no device
};

// Of the slowest cluster's worker in an exchange, all fragments, the way of parameters included.
struct inter_wan_work {
    double encode_s, merge_s;
};

struct inter_wan_load {
    double params; // that learn, and travel
    double counts; // bytes of row counts with an update
    double step_s; // of the slowest cluster
    int32_t fragments;
    const struct inter_wan_work *work; // (codecs)
};

struct inter_wan_plan {
    int32_t interval, overlap, codec;            // H, τ, index of the codec
    double encode_s, travel_s, agree_s, merge_s; // of a whole exchange: all fragments
    double stall_s; // waiting at the merges of an interval, slowest cluster
    double bytes;   // sent by a cluster in an interval, to all others, everything included
    double busy;    // share of the link's time that is used
    double step_s;  // a step with its part of the exchange
    double cost;    // that, longer by what the scheme is known to cost in loss
};

// Bytes/s that one direction of the path gives to a transfer.
double inter_wan_goodput(const struct inter_wan_path *p);
// An interval of H steps that merges τ steps after a send.
void inter_wan_exchange(const struct inter_wan_path *p, const struct inter_wan_load *l,
                        const struct inter_wan_codec *codecs, int32_t codec, int32_t interval,
                        int32_t overlap, struct inter_wan_plan *out);

// Which H, τ and codec: the shortest step, where a step counts as longer the more its scheme is known to cost in loss
// (long intervals, late merges, coarse codecs; the weights are in wan_cost.c). A sparse codec is not chosen for a run too short for it: its
// rounds shall touch every entry about four times (rounds × density, as in tune.h). fixed_*: 0 / -1 / -1 choose.
struct inter_wan_choice {
    int32_t interval; // 0: choose
    int32_t overlap;  // -1: choose
    int32_t codec;    // -1: choose
    int64_t steps;    // of the run: an interval is at most an eighth of it, where it is chosen
    bool anticipates; // clusters train on their share of what they have not sent (sync.anticipate)
    // Bounds of an interval and an overlap that are chosen; 0: none.
    int32_t interval_above, interval_most, overlap_below;
};
// false: even the best uses more than the link can carry; *out is the best all the same, untouched where the bounds leave none.
bool inter_wan_choose(const struct inter_wan_path *p, const struct inter_wan_load *l,
                      const struct inter_wan_codec *codecs, int32_t n_codecs,
                      const struct inter_wan_choice *c, struct inter_wan_plan *out);

#endif
