// SPDX-License-Identifier: Apache-2.0
#include "inter/round/wan_cost.h"

#include <math.h>
#include <stddef.h>

enum {
    SEGMENT = 1448,
    FIRST_WINDOW = 10,    // of TCP: segments sent at once after a pause
    CONTROL_BYTES = 6000, // per round and fragment: manifest, states, record, votes
    ALIVE_BYTES = 300,    // per second: pings, acknowledgements, heartbeats
    SYNCS = 5,            // in sequence until a commit is on disk
    AGREE_TRIPS = 3,
};
static const double FRAMING = 1.06;   // TCP, IP, ZMTP, CURVE and chunk headers on a payload
static const double FULL = 0.94;      // share of a link's rate that a transfer gets
static const double LOSS_CONST = 2.4; // of CUBIC

// Cost of a scheme in loss, as a factor on the time to a given loss: per doubling of H, per share
// of H that a merge is late, per squared error of the codec (less with sync.anticipate). These are
// judgements from the runs in configs/COMPARE.md.
static const double PER_DOUBLING = 0.05, INTERVAL_KNEE = 4, PER_LATENESS = 0.10, PER_ERROR = 0.04,
                    PER_ERROR_WAITING = 0.10;
// Times that a sparse codec must have touched every entry by the end of a run.
static const double COVERAGE = 3.75;
static const double BUSY_MAX = 0.9;

double inter_wan_goodput(const struct inter_wan_path *p) {
    double rate = p->bits_s / 8 * FULL;
    if (p->loss > 0 && p->rtt_s > 0)
        rate = fmin(rate, p->connections * LOSS_CONST * SEGMENT / (p->rtt_s * sqrt(p->loss)));
    return rate / FRAMING;
}

// Time until the window covers the transfer or the path, whichever is smaller.
static double slow_start_s(const struct inter_wan_path *p, double bytes, double goodput) {
    double first = (double)FIRST_WINDOW * SEGMENT * p->connections,
           window = fmin(bytes, goodput * p->rtt_s);
    return window > first ? p->rtt_s * log2(window / first) : 0;
}

void inter_wan_exchange(const struct inter_wan_path *p, const struct inter_wan_load *l,
                        const struct inter_wan_codec *codecs, int32_t codec, int32_t interval,
                        int32_t overlap, struct inter_wan_plan *out) {
    const struct inter_wan_codec *c = &codecs[codec];
    double others = p->members - 1, parts = l->fragments, goodput = inter_wan_goodput(p),
           payload = c->bits / 8 * l->params + l->counts * parts;
    *out = (struct inter_wan_plan){.interval = interval, .overlap = overlap, .codec = codec};
    out->encode_s = l->work[codec].encode_s;
    out->merge_s = l->work[codec].merge_s;
    double part_s = others * payload / parts / goodput +
                    slow_start_s(p, others * payload / parts, goodput) + p->rtt_s / 2;
    out->travel_s = part_s * parts;
    double agree_s = AGREE_TRIPS * p->rtt_s + SYNCS * p->sync_s;
    out->agree_s = agree_s * parts;
    // Fragments are sent at different times; each may be late by itself.
    out->stall_s = parts * fmax(0, part_s + agree_s - overlap * l->step_s);
    double interval_s = interval * l->step_s + out->encode_s + out->merge_s + out->stall_s;
    out->step_s = interval_s / interval;
    out->bytes = others * (payload * FRAMING + parts * CONTROL_BYTES + ALIVE_BYTES * interval_s);
    out->busy = others * payload / goodput / interval_s;
}

static double weight(const struct inter_wan_codec *c, int32_t interval, int32_t overlap,
                     bool anticipates) {
    double error = c->rel_error * c->rel_error;
    return 1 + PER_DOUBLING * log2(1 + interval / INTERVAL_KNEE) +
           PER_LATENESS * overlap / interval +
           (anticipates ? PER_ERROR : PER_ERROR_WAITING) * error;
}

static bool too_short(const struct inter_wan_codec *codec, const struct inter_wan_choice *c,
                      int32_t interval) {
    return codec->density > 0 && codec->density < 1 && c->steps > 0 &&
           (double)c->steps / interval * codec->density < COVERAGE;
}

// The shortest interval to choose: one offset per fragment, and the merge before the next send.
static int32_t shortest(const struct inter_wan_load *l, const struct inter_wan_choice *c) {
    int32_t most = c->interval_above > c->overlap ? c->interval_above : c->overlap;
    return most + 1 > l->fragments ? most + 1 : l->fragments;
}

bool inter_wan_choose(const struct inter_wan_path *p, const struct inter_wan_load *l,
                      const struct inter_wan_codec *codecs, int32_t n_codecs,
                      const struct inter_wan_choice *c, struct inter_wan_plan *out) {
    static const int32_t intervals[] = {2,  3,  4,  5,  6,   8,   10,  15,  20,
                                        30, 40, 50, 75, 100, 150, 200, 300, 500};
    const size_t n = sizeof intervals / sizeof *intervals;
    const int32_t from = shortest(l, c);
    double least = INFINITY;
    bool carried = false;
    for (size_t i = 0; i < n; i++) {
        int32_t interval = c->interval ? c->interval : intervals[i] > from ? intervals[i] : from;
        if (!c->interval && ((i + 1 < n && intervals[i + 1] <= from) ||
                             (c->interval_most && interval > c->interval_most)))
            continue;
        for (int32_t k = 0; k < n_codecs; k++)
            for (int32_t overlap = 0; overlap < interval && overlap <= interval / 2 + 1;
                 overlap++) {
                struct inter_wan_plan x;
                if (c->codec >= 0 ? k != c->codec
                                  : codecs[k].barred || too_short(&codecs[k], c, interval))
                    continue;
                if (c->overlap < 0 && c->overlap_below && overlap >= c->overlap_below)
                    break;
                int32_t late = c->overlap >= 0 ? c->overlap : overlap;
                inter_wan_exchange(p, l, codecs, k, interval, late, &x);
                x.cost = x.step_s * weight(&codecs[k], interval, late, c->anticipates);
                bool carries = x.busy <= BUSY_MAX;
                if (carries < carried || (carries == carried && x.cost >= least))
                    continue;
                least = x.cost;
                carried = carries;
                *out = x;
                if (c->overlap >= 0)
                    break;
            }
        // A long interval needs a long run: at least some exchanges.
        if (c->interval || intervals[i] * 8 > c->steps)
            break;
    }
    return carried;
}
