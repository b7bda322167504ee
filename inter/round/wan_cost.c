// SPDX-License-Identifier: Apache-2.0
#include "inter/round/wan_cost.h"
#include "inter/record/tune.h"

#include <math.h>
#include <stddef.h>

enum {
    SEGMENT = 1448,
    FIRST_WINDOW = 10,    // of TCP: segments sent at once after a pause
    CONTROL_BYTES = 6000, // per round and fragment: manifest, states, record, votes
    ALIVE_BYTES = 300,    // per second: pings, acknowledgements, heartbeats
    SYNCS = 5,            // in sequence until a commit is on disk
};
static const double FRAMING = 1.06;   // TCP, IP, ZMTP, CURVE and chunk headers on a payload
static const double FULL = 0.94;      // share of a link's rate that a transfer gets
static const double LOSS_CONST = 2.4; // of CUBIC

// Held-out loss that a scheme costs against synchronous training with the same optimiser, in nats
// per token, fitted to the runs that tests/unit/test_wan_cost.c lists. Each optimiser has its best
// recipe (AdamW: beta1 0.8, sync.outer.lr 1.414; Muon: sync.outer.lr 1).
static const struct known {
    double free, knee, doubling; // of H: doubling * log2(1 + (H - free) / knee); up to free: 0
    double error;                // dense codec: times its squared relative error
    double halving;              // sparse codec: times log2(1 / density)
    double shortage; // sparse codec: times (ENOUGH / (rounds * density) - 1), if positive
} adamw = {3, 4, 0.05, 0.01, 0, 0.016}, muon = {1, 20, 0.06, 0.023, 0.009, 0.045};
static const double ENOUGH = 10;
static const double WAITING = 0.05; // without sync.anticipate: times the squared relative error
static const double LATE = 0.085;   // times the square of τ / H
// From synchronous AdamW with 500 and with 1,500 steps: log(3) for the difference of their losses.
static const double NATS_PER_E_FOLD = 0.62;
// The part of its time that a gap costs falls with the size of a model (M = 2, H 30, dense, in
// arXiv 2503.09799). It never falls below SIZE_LEAST, because sparse updates and longer intervals
// were not measured there.
static const double SIZE = 1.3e6, SIZE_POWER = 0.4, SIZE_LEAST = 0.2;
static const double ALIKE = 0.005; // nats that the runs cannot tell apart
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
    double agree_s = INTER_AGREE_TRIPS * p->rtt_s + SYNCS * p->sync_s;
    out->agree_s = agree_s * parts;
    // Fragments are sent at different times; each may be late by itself.
    out->stall_s = parts * fmax(0, part_s + agree_s - overlap * l->step_s);
    double interval_s = interval * l->step_s + out->encode_s + out->merge_s + out->stall_s;
    out->step_s = interval_s / interval;
    out->bytes = others * (payload * FRAMING + parts * CONTROL_BYTES + ALIVE_BYTES * interval_s);
    out->busy = others * payload / goodput / interval_s;
}

static bool is_sparse(const struct inter_wan_codec *c) { return c->density > 0 && c->density < 1; }

// How often the rounds of the run send every entry; infinite: no end is known.
static double coverage(const struct inter_wan_codec *codec, const struct inter_wan_choice *c,
                       int32_t interval) {
    return c->steps > 0 ? (double)c->steps / interval * codec->density : INFINITY;
}

double inter_wan_loss(const struct inter_wan_codec *codec, const struct inter_wan_choice *c,
                      int32_t interval, int32_t overlap) {
    const struct known *k = c->muon ? &muon : &adamw;
    double error = codec->rel_error * codec->rel_error, late = (double)overlap / interval,
           loss = k->doubling * log2(1 + fmax(0, interval - k->free) / k->knee);
    if (is_sparse(codec))
        loss += k->halving * log2(1 / codec->density) +
                k->shortage * fmax(0, ENOUGH / coverage(codec, c, interval) - 1);
    else
        loss += k->error * error;
    return loss + (c->anticipates ? 0 : WAITING * error) + LATE * late * late;
}

double inter_wan_slower(double loss, double params) {
    double part = fmin(1, fmax(SIZE_LEAST, pow(SIZE / fmax(params, 1), SIZE_POWER)));
    return 1 + (exp(loss / NATS_PER_E_FOLD) - 1) * part;
}

static bool too_short(const struct inter_wan_codec *codec, const struct inter_wan_choice *c,
                      int32_t interval) {
    return is_sparse(codec) && coverage(codec, c, interval) < INTER_COVERAGE_MIN;
}

// The shortest interval to choose: one offset per fragment, and the merge before the next send.
static int32_t shortest(const struct inter_wan_load *l, const struct inter_wan_choice *c) {
    int32_t most = c->interval_above > c->overlap ? c->interval_above : c->overlap;
    return most + 1 > l->fragments ? most + 1 : l->fragments;
}

struct search {
    const struct inter_wan_path *path;
    const struct inter_wan_load *load;
    const struct inter_wan_codec *codecs;
    int32_t n_codecs;
    const struct inter_wan_choice *c;
    double most; // cost of a plan; then the fewest bytes count. 0: the least cost counts
    double least;
    bool carried;
    struct inter_wan_plan *out;
};

static void try_plan(struct search *s, int32_t codec, int32_t interval, int32_t overlap) {
    struct inter_wan_plan x;
    inter_wan_exchange(s->path, s->load, s->codecs, codec, interval, overlap, &x);
    x.slower = inter_wan_slower(inter_wan_loss(&s->codecs[codec], s->c, interval, overlap),
                                s->load->params);
    x.cost = x.step_s * x.slower;
    bool carries = x.busy <= BUSY_MAX;
    double figure = s->most > 0 ? x.bytes / interval : x.cost;
    if (carries < s->carried || (s->most > 0 && x.cost > s->most) ||
        (carries == s->carried && figure >= s->least))
        return;
    s->least = figure;
    s->carried = carries;
    *s->out = x;
}

static void try_interval(struct search *s, int32_t interval) {
    const struct inter_wan_choice *c = s->c;
    for (int32_t k = 0; k < s->n_codecs; k++) {
        if (c->codec >= 0 ? k != c->codec
                          : s->codecs[k].barred || too_short(&s->codecs[k], c, interval))
            continue;
        if (c->overlap >= 0) {
            try_plan(s, k, interval, c->overlap);
            continue;
        }
        int32_t end = interval / 2 + 2 < interval ? interval / 2 + 2 : interval;
        if (c->overlap_below && c->overlap_below < end)
            end = c->overlap_below;
        for (int32_t overlap = 0; overlap < end; overlap++)
            try_plan(s, k, interval, overlap);
    }
}

static void try_all(struct search *s) {
    static const int32_t intervals[] = {2,  3,  4,  5,  6,   8,   10,  12,  16, 20,
                                        30, 40, 50, 75, 100, 150, 200, 300, 500};
    const size_t n = sizeof intervals / sizeof *intervals;
    const struct inter_wan_choice *c = s->c;
    const int32_t from = shortest(s->load, c);
    if (c->interval) {
        try_interval(s, c->interval);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t interval = intervals[i] > from ? intervals[i] : from;
        if ((i + 1 == n || intervals[i + 1] > from) &&
            (!c->interval_most || interval <= c->interval_most))
            try_interval(s, interval);
        // A long interval needs a long run: at least some exchanges.
        if (intervals[i] * 8 > c->steps)
            break;
    }
}

bool inter_wan_choose(const struct inter_wan_path *p, const struct inter_wan_load *l,
                      const struct inter_wan_codec *codecs, int32_t n_codecs,
                      const struct inter_wan_choice *c, struct inter_wan_plan *out) {
    struct search s = {.path = p,
                       .load = l,
                       .codecs = codecs,
                       .n_codecs = n_codecs,
                       .c = c,
                       .least = INFINITY,
                       .out = out};
    try_all(&s);
    if (!s.carried) // the least cost is that of the least overload
        return false;
    s.most = s.least * inter_wan_slower(ALIKE, l->params);
    s.least = INFINITY;
    try_all(&s);
    return true;
}
