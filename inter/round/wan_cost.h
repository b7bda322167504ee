// SPDX-License-Identifier: Apache-2.0
// Cost of exchanges between clusters, before anything is started: how long an update is in flight,
// how much of that time inner steps hide, how many bytes are sent. Pure functions. This is one half
// of `nebula plan`; intra/cost/cost.h is the other.
//
//     step    … │ send ────────────── τ steps ──────────────► │ merge │ …
//     worker    │encode│ trains on                    │ stall │apply  │
//     agents           │ flight ──────────► │ agree │
//
//     τ:      overlap (sync.overlap); H: interval (sync.interval)
//     flight: bytes / goodput, and round trips of TCP's slow start
//     agree:  INTER_AGREE_TRIPS round trips (tune.h), and writes to disk
//
// A cluster that is faster than the slowest one waits after its H steps: that is stall as well.
//
// Rate under packet loss: the form is that of Mathis et al. (1997), the constant that of CUBIC.
#ifndef INTER_WAN_COST_H
#define INTER_WAN_COST_H
#include <stdbool.h>
#include <stdint.h>

struct inter_wan_path {  // between any two clusters
    double bits_s;       // of the link, each direction; above 0
    double rtt_s, loss;  // loss: share of segments lost, [0, 1)
    double sync_s;       // of one fsync on a head node
    int32_t members;     // clusters that exchange; each sends to all others
    int32_t connections; // bulk connections of a pair
};

enum inter_wan_place { INTER_WAN_HOST, INTER_WAN_DEVICE }; // where the exchange's state is
// Parameters per second: of all cores of a machine, or of one device and one core.
struct inter_wan_rates {
    double encode; // with pseudo-gradient and error feedback
    double decode; // one more update, into the sum
    double settle; // rest of a merge: residual, outer step, rebase, digest
};
struct inter_wan_codec { // as measured on values like those of an update
    char name[32];
    double bits;                  // per parameter
    double rel_error;             // norm of (x - decoded) / norm of x
    double density;               // share of the entries in an update; 0 or 1: all
    bool barred;                  // never chosen: too large to send, or not allowed by the job
    struct inter_wan_rates at[2]; // by enum inter_wan_place; 0: there is no device
};

// Time of the slowest cluster's worker for all fragments, copies of parameters included.
struct inter_wan_work {
    double encode_s, merge_s;
};

struct inter_wan_load {
    double params; // trained and exchanged
    double counts; // bytes of row counts in an update
    double step_s; // of the slowest cluster
    int32_t fragments;
    const struct inter_wan_work *work; // one per codec
};

struct inter_wan_plan {
    int32_t interval, overlap, codec;            // H, τ, index of the codec
    double encode_s, travel_s, agree_s, merge_s; // of an exchange of all fragments
    double stall_s; // waiting at the merges of an interval, slowest cluster
    double bytes;   // sent by a cluster to all others in an interval, overhead included
    double busy;    // share of the link's time in use
    double step_s;  // a step with its part of the exchange
    double slower;  // inter_wan_slower of its loss (inter_wan_loss)
    double cost;    // step_s times slower
};

// Bytes/s that a transfer gets in one direction of the path.
double inter_wan_goodput(const struct inter_wan_path *p);
// Cost of an interval of H steps that merges τ steps after a send.
void inter_wan_exchange(const struct inter_wan_path *p, const struct inter_wan_load *l,
                        const struct inter_wan_codec *codecs, int32_t codec, int32_t interval,
                        int32_t overlap, struct inter_wan_plan *out);

// What inter_wan_choose may choose. It takes the H, τ and codec with the least time to a given
// loss: the time of a step, times inter_wan_slower of the scheme. Among plans whose cost is alike
// (within 0.005 nats) it takes the one with the fewest bytes. It takes a sparse codec only if the
// rounds of the run send every entry INTER_COVERAGE_MIN times or more (tune.h).
struct inter_wan_choice {
    int32_t interval; // 0: choose
    int32_t overlap;  // -1: choose
    int32_t codec;    // -1: choose
    int64_t steps;    // of the run; a chosen interval is about an eighth of it at most
    bool anticipates; // clusters train on their share of the residual (sync.anticipate)
    bool muon;        // the optimiser is Muon, else AdamW; long intervals cost AdamW more
    // A chosen H is above interval_above, at most interval_most; τ below overlap_below. 0: none.
    int32_t interval_above, interval_most, overlap_below;
};
// Measured cost of a scheme in held-out loss, in nats per token, against synchronous training with
// the same optimiser and equal steps (1.3 million parameters, two clusters).
double inter_wan_loss(const struct inter_wan_codec *codec, const struct inter_wan_choice *c,
                      int32_t interval, int32_t overlap);
// The same as a factor on the time to a given loss: e^(loss / 0.62) for 1.3 million parameters; for
// larger models the part above 1 is smaller.
double inter_wan_slower(double loss, double params);
// False: even the best plan, in *out, needs more than the link can carry. If the limits allow no
// plan, *out is unchanged.
bool inter_wan_choose(const struct inter_wan_path *p, const struct inter_wan_load *l,
                      const struct inter_wan_codec *codecs, int32_t n_codecs,
                      const struct inter_wan_choice *c, struct inter_wan_plan *out);

#endif
