// SPDX-License-Identifier: Apache-2.0
#include "inter/link/stripes.h"

static const neb_ns hold = 60 * NEB_S, least_measured = 2 * NEB_S, first_trips = 8,
                    first_least_trips = 5, first_least = NEB_S / 2, first_most = 3 * NEB_S,
                    first_pass = 200 * NEB_MS;
static const uint64_t first_bytes = 32 << 10;
enum { HOLD_DOUBLINGS = 4 };                   // up to 16 minutes
static const uint64_t least_bytes = 256 << 10; // less data says nothing about the path
static const double gain = 1.10, clear_gain = 1.4, linear = 1.7, fall = 0.67, loss = 0.9,
                    slow_bps = 4e6;
enum { QUEUE_MOST = 4, SEGMENT = 1448, SEGMENTS = 4, SEGMENTS_LIKELY = 32 };

void inter_stripes_init(struct inter_stripes *s, uint32_t first, uint32_t max, bool likely) {
    bool pinned = first >= max;
    *s = (struct inter_stripes){.use = pinned ? max : 1,
                                .first = !pinned && first > 1 ? first : 0,
                                .max = max,
                                .likely = likely};
}

static neb_ns starting(neb_ns rtt) { return 10 * rtt < NEB_S ? NEB_S : 10 * rtt; }

static void change(struct inter_stripes *s, uint32_t use, neb_ns rtt) {
    s->use = use;
    s->bytes = 0;
    s->busy = 0;
    s->skip = starting(rtt);
}

// The number of connections that have enough in flight on a slow link.
static uint32_t most(const struct inter_stripes *s, uint32_t segments) {
    double least = (double)SEGMENT * segments, n = s->rate / 8 * neb_seconds(s->rtt) / least;
    return s->rate >= slow_bps || n >= s->max ? s->max : n < 1 ? 1 : (uint32_t)n;
}

static bool try_more(struct inter_stripes *s, neb_ns now, uint32_t times, neb_ns rtt) {
    if (s->use >= s->max || now < s->hold_until ||
        (now >= s->fewer_at && times * s->use > most(s, SEGMENTS)))
        return false;
    s->before = s->rate;
    s->trying = true;
    s->from = s->use;
    change(s, times * s->use > s->max ? s->max : times * s->use, rtt);
    return true;
}

// A trial gained nothing. The next one waits, longer each time.
static void hold_on(struct inter_stripes *s, neb_ns now) {
    s->hold_until = now + (hold << s->failed);
    s->failed += s->failed < HOLD_DOUBLINGS;
}

static bool try_fewer(struct inter_stripes *s, neb_ns now, neb_ns rtt) {
    uint32_t n = most(s, s->likely ? SEGMENTS_LIKELY : SEGMENTS);
    if (s->use <= n || now < s->fewer_at)
        return false;
    s->before = s->rate;
    s->fewer = true;
    s->from = s->use;
    change(s, n, rtt);
    return true;
}

static bool measured(struct inter_stripes *s, neb_ns now, double rate, neb_ns rtt) {
    double last = s->rate;
    s->rate = rate;
    s->slow = false;
    if (s->fewer) {
        s->fewer = false;
        if (rate >= s->before * loss)
            return false;
        s->fewer_at = now + (hold << HOLD_DOUBLINGS);
        s->rate = s->before;
        change(s, s->from, rtt);
        return true;
    }
    if (s->trying && rate < s->before * gain) { // the trial failed
        s->trying = false;
        hold_on(s, now);
        s->rate = s->before;
        change(s, s->from, rtt);
        return true;
    }
    if (s->again) {
        s->again = false;
        if (s->tried < rate * gain) { // the gain was chance: fewer do as well
            hold_on(s, now);
            return false;
        }
        s->rate = s->tried;
        s->hold_until = 0;
        s->failed = 0;
        change(s, s->more, rtt);
        return true;
    }
    if (s->trying && rate < s->before * clear_gain) {
        s->trying = false;
        s->again = true;
        s->tried = rate;
        s->more = s->use;
        change(s, s->from, rtt);
        return true;
    }
    bool tried = s->trying;
    uint32_t times = tried && rate > s->before * linear ? 4 : 2;
    s->trying = false;
    if (tried)
        s->failed = 0;
    if (last > 0 && rate < last * fall) { // the link has changed
        s->hold_until = 0;
        s->failed = 0;
    }
    if (try_fewer(s, now, rtt))
        return true;
    if (last <= 0 || (!tried && rate > last * gain))
        return false; // the rate still rises by itself: any trial would look good
    return try_more(s, now, times, rtt);
}

// TCP begins with ten segments, so first_bytes takes three round trips on a fast path. A late pass
// counts as at most first_pass of busy time. If a path only looks slow, more connections are tried
// without the first hold.
static bool first_look(struct inter_stripes *s, neb_ns now, uint64_t acked, bool busy, neb_ns rtt) {
    neb_ns since = s->last ? now - s->last : 0, may = first_least + first_trips * rtt;
    may = !rtt || may > first_most ? first_most : may;
    may = may < first_least_trips * rtt ? first_least_trips * rtt : may;
    s->last = now;
    if (!s->bytes && !s->was_busy) // nothing was sent
        s->busy = since = 0;
    s->bytes += acked;
    s->busy += s->was_busy && since > first_pass ? first_pass : since;
    s->was_busy = busy;
    bool fast = s->bytes >= first_bytes && s->busy <= may, slow = !fast && busy && s->busy > may;
    if (!fast && !slow && !busy && s->busy > may) // too little was sent
        s->bytes = 0, s->busy = 0;
    if (!fast && !slow)
        return false;
    s->likely = s->likely && fast;
    s->slow = slow;
    s->fewer_at = slow ? now + 4 * hold : 0;
    s->use = fast ? s->first : 1;
    s->bytes = 0;
    s->busy = s->last = 0;
    s->first = 0;
    s->was_busy = false;
    return fast;
}

bool inter_stripes_step(struct inter_stripes *s, neb_ns now, uint64_t acked, bool busy,
                        neb_ns rtt) {
    if (s->first)
        return first_look(s, now, acked, busy, rtt);
    neb_ns since = s->last ? now - s->last : 0;
    bool counts = s->was_busy;
    // the first connections are still starting: a rate measured now would be too low
    if (!s->last) {
        s->skip = starting(rtt);
        s->hold_until = s->likely ? now + hold : 0;
    }
    if (rtt > 0 && (!s->rtt || rtt < s->rtt))
        s->rtt = rtt;
    // A queue makes the round trip long. It must not make the measurement longer too.
    if (rtt > QUEUE_MOST * s->rtt)
        rtt = QUEUE_MOST * s->rtt;
    s->last = now;
    s->was_busy = busy;
    if (!counts || since <= 0)
        return false;
    if (s->skip > 0) {
        s->skip -= since;
        return false;
    }
    s->busy += since;
    s->bytes += acked;
    int times = s->doubted || s->again ? 3 : 1;
    if (s->busy < times * least_measured || s->busy < times * 10 * rtt || s->bytes < least_bytes)
        return false;
    double rate = 8.0 * (double)s->bytes / neb_seconds(s->busy);
    // losses come in bursts: measure longer
    if (s->trying && !s->doubted && rate < s->before * clear_gain) {
        s->doubted = true;
        return false;
    }
    s->doubted = false;
    s->bytes = 0;
    s->busy = 0;
    return measured(s, now, rate, rtt);
}
