// SPDX-License-Identifier: Apache-2.0
#include "inter/round/estimate.h"
#include "inter/record/types.h"

#include <string.h>

static const neb_ns slot = NEB_S / 2, rtt_old = 30 * NEB_S, peak_old = 3600 * NEB_S,
                    pause = NEB_S / 2;
static const double fallen = 0.5, about = 0.8, slow_burst = 1.5, steadily_slow = 2,
                    repair_trips = 7, repair_s = 0.2, patience_s = 5, patience_trips = 2;
enum { STEADY = 6 }; // acknowledgements that tell a low rate from one silence

static void summarise(struct inter_estimate *e, int64_t epoch) {
    double full = 0, any = 0;
    for (int i = 0; i < INTER_ESTIMATE_SLOTS; i++) {
        const struct inter_estimate_slot *s = &e->slots[i];
        if (!s->epoch || s->epoch + INTER_ESTIMATE_SLOTS <= epoch)
            continue;
        any = s->rate > any ? s->rate : any;
        full = s->full > full ? s->full : full;
    }
    // Only small transfers lately: the older value stands, unless even these exceed it.
    if (full > 0) {
        e->goodput_bps = full > any ? full : any;
        e->full = full >= about * any;
    } else if (any > e->goodput_bps) {
        e->goodput_bps = any;
        e->full = false;
    }
}

static void round_trip(struct inter_estimate *e, neb_ns now, const struct inter_sent *sent) {
    neb_ns rtt = now - sent->at;
    if (!e->rtt || rtt <= e->rtt) {
        e->rtt = rtt;
        e->rtt_at = now;
        e->drain_from = 0;
    } else if (e->drain_from &&
               sent->at > e->drain_from + e->rtt) { // chunks queued before have left
        e->rtt = rtt;
        e->rtt_at = now;
        e->drain_from = 0;
    } else if (!e->drain_from && now - e->rtt_at > rtt_old) {
        e->drain_from = now;
    }
}

struct inter_sent inter_estimate_sent(struct inter_estimate *e, neb_ns now, uint64_t flying) {
    if (!flying || !e->delivered_at) {
        memset(&e->burst, 0, sizeof e->burst);
        e->burst.from = now;
        // after a pause both clocks start with this chunk
        e->delivered_at = e->newest_sent = now;
    }
    return (struct inter_sent){.at = now,
                               .delivered_at = e->delivered_at,
                               .newest_sent = e->newest_sent,
                               .delivered = e->delivered};
}

static void replace(struct inter_estimate *e, double rate) {
    memset(e->slots, 0, sizeof e->slots);
    e->goodput_bps = rate;
    e->full = false;
    e->slow = 0;
}

// A chunk of a burst was acknowledged. last: nothing of the burst is in flight any more.
static void judge_burst(struct inter_estimate *e, neb_ns now, bool last) {
    neb_ns took = now - e->burst.from, distance = e->rtt < took / 2 ? e->rtt : took / 2;
    double bits = 8.0 * (double)e->burst.bytes, rate = bits / neb_seconds(took - distance);
    double expected = neb_seconds(e->rtt) + bits / e->goodput_bps;
    if (e->burst.filled || !e->burst.bytes || took <= 0)
        return;
    if (e->burst.chunks >= STEADY &&
        neb_seconds(took - e->burst.silence) > steadily_slow * expected + 0.05) {
        replace(e, rate);
        return;
    }
    if (!last)
        return;
    if (neb_seconds(took) < slow_burst * expected + 0.01) {
        e->slow = 0;
        return;
    }
    e->bursts[e->slow++ % 2] = rate;
    if (e->slow == 2)
        replace(e, e->bursts[0] > e->bursts[1] ? e->bursts[0] : e->bursts[1]);
}

static void remember(struct inter_estimate *e, neb_ns now) {
    if (e->goodput_bps >= e->peak_bps || now - e->peak_at > peak_old) {
        e->peak_bps = e->goodput_bps;
        e->peak_at = now;
    }
    if (e->goodput_bps >= e->peak_bps * fallen)
        e->fell_at = 0;
    else if (!e->fell_at)
        e->fell_at = now;
}

void inter_estimate_ack(struct inter_estimate *e, neb_ns now, uint32_t bytes, bool last,
                        const struct inter_sent *sent) {
    neb_ns since = now - e->delivered_at;
    e->delivered += bytes;
    e->burst.bytes += bytes;
    if (e->burst.chunks++ && since > e->burst.silence)
        e->burst.silence = since;
    if (e->delivered_at && since > 0)
        e->busy += since;
    e->delivered_at = now;
    if (!sent || now <= sent->at)
        return;
    neb_ns arriving = now - sent->delivered_at, leaving = sent->at - sent->newest_sent;
    double rate = 8.0 * (double)(e->delivered - sent->delivered) /
                  neb_seconds(arriving > leaving ? arriving : leaving);
    e->newest_sent = sent->at > e->newest_sent ? sent->at : e->newest_sent;
    int64_t epoch = e->busy / slot + 1;
    struct inter_estimate_slot *s = &e->slots[epoch % INTER_ESTIMATE_SLOTS];
    if (s->epoch != epoch)
        *s = (struct inter_estimate_slot){.epoch = epoch};
    bool filled = e->full_at && e->full_at >= sent->at;
    s->rate = rate > s->rate ? rate : s->rate;
    if (filled)
        s->full = rate > s->full ? rate : s->full;
    e->burst.filled = e->burst.filled || filled;
    round_trip(e, now, sent);
    summarise(e, epoch);
    judge_burst(e, now, last);
    remember(e, now);
}

bool inter_estimate_restart(struct inter_estimate *e, neb_ns now) {
    if (!e->fell_at || !e->delivered_at || now - e->delivered_at < pause ||
        now - e->fell_at > peak_old || now - e->restart_at < (now - e->fell_at) / 16)
        return false;
    e->restart_at = now;
    return true;
}

void inter_estimate_full(struct inter_estimate *e, neb_ns now) { e->full_at = now; }

void inter_estimate_lost(struct inter_estimate *e) { e->delivered_at = 0; }

uint32_t inter_estimate_chunk(const struct inter_estimate *e, uint32_t blob_bytes) {
    double want = e->goodput_bps > 0 ? e->goodput_bps / 8 / 4 : 64 << 10;
    double share = 2 * e->goodput_bps / 8 * neb_seconds(e->rtt) / 32; // of the window
    want = share > 0 && share < want ? share : want;
    uint32_t chunk = INTER_CHUNK_MIN;
    while (chunk < INTER_CHUNK_MAX &&
           (chunk * 2 <= want || inter_chunks(blob_bytes, chunk) > INTER_CHUNKS_MAX))
        chunk *= 2;
    return chunk;
}

uint64_t inter_estimate_window(const struct inter_estimate *e) {
    const double low = 64 << 10, high = 64 << 20, unknown = 1 << 20;
    const uint32_t usual = 1u << 30; // larger updates have larger chunks on slow paths
    if (e->goodput_bps <= 0 || !e->rtt)
        return (uint64_t)unknown;
    double bytes_s = e->goodput_bps / 8, chunk = inter_estimate_chunk(e, usual),
           trip = neb_seconds(e->rtt) - chunk / bytes_s; // without its own transmission time
    double bytes = e->drain_from
                       ? bytes_s * neb_seconds(e->rtt)
                       : bytes_s * (repair_trips * (trip > 0 ? trip : 0) + repair_s) + 2 * chunk;
    // If transmission makes up most of the round trip, chunks must not queue until they count as
    // lost.
    double most = bytes_s * (patience_s + patience_trips * neb_seconds(e->rtt));
    bytes = bytes > most ? most : bytes;
    return (uint64_t)(bytes < low ? low : bytes > high ? high : bytes);
}

neb_ns inter_estimate_patience(const struct inter_estimate *e) {
    return e->rtt ? 10 * NEB_S + 4 * e->rtt : 30 * NEB_S;
}
