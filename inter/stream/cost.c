// SPDX-License-Identifier: Apache-2.0
#include "inter/stream/cost.h"

#include <math.h>

enum {
    BATCH_BYTES = 220, // per batch, beside its payload: header, signature, CURVE, TCP and IP
    BACK_BYTES = 60,   // per batch: acknowledgements and a share of a grant
    ALIVE_BYTES = 400, // bytes/s each way: heartbeats, pings, telemetry, with headers
};
static const double FRAMING = 1.02; // headers of a payload's segments

const char *inter_stream_bound_name(enum inter_stream_bound b) {
    static const char *const names[] = {"producer", "consumer", "link", "window"};
    return names[b];
}

static double rate_of_window(const struct inter_stream_load *l, double window, double lag_s,
                             double slowest_s) {
    double half = fmax(1, floor((window + 1) / 2));
    return window / (lag_s + l->producer_s + l->consumer_s + (half - 1) * slowest_s);
}

void inter_stream_cost(const struct inter_wan_path *p, const struct inter_stream_load *l,
                       struct inter_stream_flow *out) {
    double goodput = fmax(inter_wan_goodput(p) - ALIVE_BYTES, 1),
           bytes = l->bytes * FRAMING + BATCH_BYTES,
           back = (l->back_bytes > 0 ? l->back_bytes * FRAMING + BATCH_BYTES : 0) + BACK_BYTES,
           line_s = l->streams * fmax(bytes, back) / goodput,
           slowest = fmax(line_s, fmax(l->producer_s, l->consumer_s));
    *out = (struct inter_stream_flow){.producer_rate = 1 / l->producer_s,
                                      .consumer_rate = 1 / l->consumer_s,
                                      .link_rate = 1 / line_s,
                                      .travel_s = bytes / goodput + p->rtt_s / 2 + p->sync_s,
                                      .window = l->window};
    // A consumer that asks for a batch waits for the answer, which takes one way more.
    double lag = p->rtt_s + out->travel_s - p->rtt_s / 2 +
                 (l->back_bytes > 0 ? back / goodput + p->sync_s : 0);
    while (out->window < l->window_max &&
           rate_of_window(l, out->window, lag, slowest) < 1 / slowest)
        out->window = fmin(2 * out->window, l->window_max);
    out->window_rate = rate_of_window(l, out->window, lag, slowest);
    const double rates[] = {out->producer_rate, out->consumer_rate, out->link_rate,
                            out->window_rate};
    out->bound = INTER_STREAM_BOUND_PRODUCER;
    for (int i = 1; i < 4; i++)
        if (rates[i] < rates[out->bound])
            out->bound = (enum inter_stream_bound)i;
    out->rate = rates[out->bound];
    out->producer_wait = fmax(0, 1 - out->rate * l->producer_s);
    out->consumer_wait = fmax(0, 1 - out->rate * l->consumer_s);
    out->sent_s = out->rate * bytes + ALIVE_BYTES;
    out->back_s = out->rate * back + ALIVE_BYTES;
    out->busy = l->streams * out->sent_s / (p->bits_s / 8);
    out->back_busy = l->streams * out->back_s / (p->bits_s / 8);
}
