// SPDX-License-Identifier: Apache-2.0
// What a stream between two clusters carries, before anything is started: batches/s, who waits for whom, bytes. Pure; for
// modes rtd and distill what wan_cost.h is for rounds.
//
//     producer   │ make │ make │ …            a batch is put as soon as the consumer has granted room for it
//     link             │ bytes │ bytes │ …     rtt/2 later it is there
//     consumer                 │ apply │ …     a grant when half of the window was applied, rtt/2 on its way
//
// In one turn of the window half of it is granted at once; its first batch is there a round trip and a batch's own time after, the others
// as fast as the slowest of the three. So window / (rtt + what a batch takes + (half - 1) x slowest) batches/s are possible at most.
#ifndef INTER_STREAM_COST_H
#define INTER_STREAM_COST_H
#include "inter/round/wan_cost.h"

enum inter_stream_bound {
    INTER_STREAM_BOUND_PRODUCER,
    INTER_STREAM_BOUND_CONSUMER,
    INTER_STREAM_BOUND_LINK,  // its rate
    INTER_STREAM_BOUND_WINDOW // too few batches under way for its round trip
};
const char *inter_stream_bound_name(enum inter_stream_bound b);

struct inter_stream_load {
    double producer_s, consumer_s; // a batch; above 0
    double bytes, back_bytes;      // of a batch, and of what answers it
    double window;                 // batches that the producer may be ahead
    double window_max;             // where it widens while it is short; else as window
    int32_t streams;               // that leave the producer over one uplink
};

struct inter_stream_flow {
    double rate; // batches/s
    enum inter_stream_bound bound;
    double window;                       // as it ends up
    double producer_wait, consumer_wait; // shares of their time
    double travel_s;                     // of a batch, put to there
    double sent_s, back_s;               // bytes/s on the line, everything included, one stream
    double busy, back_busy;              // shares of the link's rate, all streams
    double producer_rate, consumer_rate, link_rate, window_rate; // batches/s: what each would allow
};
void inter_stream_cost(const struct inter_wan_path *p, const struct inter_stream_load *l,
                       struct inter_stream_flow *out);

#endif
