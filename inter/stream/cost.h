// SPDX-License-Identifier: Apache-2.0
// Predicts what a stream between two clusters will carry, before anything starts: batches/s,
// waiting times, bytes. Pure. It serves modes rtd and distill as wan_cost.h serves rounds.
//
//     producer   │ make │ make │ …            a batch is put when the consumer has granted room
//     link             │ bytes │ bytes │ …     it arrives rtt/2 later
//     consumer                 │ apply │ …     a grant after half of the window, rtt/2 in flight
//
// In one turn of the window, half of it is granted at once. Its first batch arrives after a round
// trip and the batch's own time, the others as fast as the slowest of the three. So at most window
// / (rtt + time of a batch + (half - 1) x slowest) batches/s are possible.
#ifndef INTER_STREAM_COST_H
#define INTER_STREAM_COST_H
#include "inter/round/wan_cost.h"

enum inter_stream_bound {
    INTER_STREAM_BOUND_PRODUCER,
    INTER_STREAM_BOUND_CONSUMER,
    INTER_STREAM_BOUND_LINK,  // the link's rate
    INTER_STREAM_BOUND_WINDOW // too few batches in flight for the round trip
};
const char *inter_stream_bound_name(enum inter_stream_bound b);

struct inter_stream_load {
    double producer_s, consumer_s; // per batch; above 0
    double bytes, back_bytes;      // of a batch, and of its answer
    double window;                 // batches that the producer may be ahead
    double window_max; // limit to which it may grow; if smaller than window, it does not grow
    int32_t streams;   // streams that share the producer's uplink
};

struct inter_stream_flow {
    double rate; // batches/s
    enum inter_stream_bound bound;
    double window;                       // the final window
    double producer_wait, consumer_wait; // shares of their time
    double travel_s;                     // of a batch, from put to arrival
    double sent_s, back_s;               // bytes/s on the line with all overhead, one stream
    double busy, back_busy;              // shares of the link's rate, all streams
    // batches/s that each alone would allow
    double producer_rate, consumer_rate, link_rate, window_rate;
};
void inter_stream_cost(const struct inter_wan_path *p, const struct inter_stream_load *l,
                       struct inter_stream_flow *out);

#endif
