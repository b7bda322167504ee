// SPDX-License-Identifier: Apache-2.0
// The producer's endpoint: the spool, the consumer's grants, what may be sent.
#include "inter/stream/state.h"

// Batches without progress for this long count as lost. All batches in flight share the link, so
// the first may arrive last. The margin is for other traffic, and because the measured rate is a
// maximum.
static const neb_ns patience_least = 20 * NEB_S, patience_most = 600 * NEB_S;
static const double patience_margin = 3, unknown_bps = 256e3; // before the first acknowledgement
enum { VAIN_MAX = 5, MENDS_MAX = 8 };
static const neb_ns mend_pause = 500 * NEB_MS; // doubles after each resend, up to half a minute
// Each drop from the spool is a synced write, so a consumer must not be able to cause many.
static const neb_ns drop_pause = NEB_S;

static uint64_t room_limit(const struct inter_stream *s) {
    uint64_t most = s->applied + s->window_batches, disk = s->base + s->c.spool_batches;
    uint64_t left = s->c.spool_bytes > s->ring_bytes
                        ? (s->c.spool_bytes - s->ring_bytes) / s->c.batch_bytes
                        : 0;
    if (s->base == s->next &&
        s->have > s->next) { // the spool was lost: it begins again with the next put
        disk = s->have + 1;
        left = disk - s->next;
    }
    most = disk < most ? disk : most;
    return s->next + left < most ? s->next + left : most;
}

void stream_report_room(struct inter_stream *s, bool always) {
    uint64_t limit = room_limit(s);
    if (!always && limit == s->room_said && s->durable == s->durable_said &&
        s->next == s->stored_said)
        return;
    struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_ROOM);
    a->seq = s->room_said = limit;
    a->durable = s->durable_said = s->durable;
    a->stored = s->stored_said = s->next;
}

// The first batch that was sent and is not acknowledged, and whether batch i was sent.
static uint64_t first_flying(const struct inter_stream *s) {
    return s->have > s->base ? s->have : s->base;
}

static bool has_left(const struct inter_stream *s, uint64_t i) {
    return i < s->sent && i < s->next;
}

// If connections keep breaking under the same batch, it is resent less and less often.
static void mends_first(struct inter_stream *s) {
    bool anew = s->mended != s->have || !s->mends;
    s->mends = anew ? 1 : s->mends + (s->mends < MENDS_MAX);
    s->mended = s->have;
    s->moved = s->now;
    s->mend_at = anew ? 0 : s->now + (mend_pause << (s->mends - 2));
}

// Resends what broken connections carried. The other connections may still deliver theirs.
static void mend_holes(struct inter_stream *s) {
    if (s->now < s->mend_at)
        return;
    for (uint64_t i = first_flying(s); s->holes && has_left(s, i); i++) {
        if (stream_entry_of(s, i)->way)
            continue;
        // Only the first one is known to be missing.
        if (i == first_flying(s))
            mends_first(s);
        s->stats.batches++;
        s->stats.bytes += stream_entry_of(s, i)->bytes;
        s->stats.resent++;
        inter_stream_path_retry(s->path, s->now, i);
        stream_act(s, INTER_STREAM_ACT_SEND)->seq = i;
    }
    s->holes = false;
}

void stream_pump(struct inter_stream *s) {
    if (!s->up || !s->met || s->refused || !s->session || s->now < s->blocked)
        return;
    if (s->sent < s->base)
        s->sent = s->base;
    s->fresh = s->sent;
    mend_holes(s);
    uint64_t bytes = 0;
    for (uint64_t i = s->applied > s->base ? s->applied : s->base; has_left(s, i); i++)
        bytes += stream_entry_of(s, i)->bytes;
    while (s->sent < s->next && s->sent < s->applied + s->window_batches) {
        uint32_t n = stream_entry_of(s, s->sent)->bytes;
        if (s->sent > s->applied && bytes + n > s->window_bytes)
            break;
        bytes += n;
        if (s->sent == s->have)
            s->moved = s->now;
        s->stats.batches++;
        s->stats.bytes += n;
        s->stats.resent += s->sent < s->high;
        inter_stream_path_sent(s->path, s->now, s->sent, n);
        stream_act(s, INTER_STREAM_ACT_SEND)->seq = s->sent++;
        s->high = s->sent > s->high ? s->sent : s->high;
    }
}

void stream_send_failed(struct inter_stream *s, uint64_t seq) {
    inter_stream_path_unsent(s->path, seq);
    s->holes = s->holes || seq < s->fresh;
    seq = seq < s->fresh ? s->fresh : seq; // the new batches came after the resent ones
    s->sent = seq < s->sent ? seq : s->sent;
    s->blocked = s->now + 20 * NEB_MS;
}

void inter_stream_sent_on(struct inter_stream *s, uint64_t seq, uint64_t way) {
    stream_entry_of(s, seq)->way = way;
}

void stream_way_lost(struct inter_stream *s, uint64_t way) {
    for (uint64_t i = first_flying(s); has_left(s, i); i++) {
        struct stream_entry *e = stream_entry_of(s, i);
        e->way = way && e->way != way ? e->way : 0;
        s->holes = s->holes || !e->way;
    }
    if (!s->lost)
        stream_pump(s);
}

void stream_put(struct inter_stream *s, const struct inter_stream_event *e) {
    if (e->len < 1 || e->len > s->c.batch_bytes) {
        stream_fault(s, INTER_STREAM_FAULT_OVERSIZE);
        return;
    }
    if (e->seq < s->base) { // the consumer has saved it
        stream_report_room(s, true);
        return;
    }
    uint64_t tag = stream_tag_of(e->data, e->len);
    if (e->seq < s->next) { // a worker repeats its steps after a restart
        if (stream_entry_of(s, e->seq)->tag != tag)
            stream_fault(s, INTER_STREAM_FAULT_CONFLICT);
        stream_report_room(s, true);
        return;
    }
    // The spool was lost, and the consumer has all earlier batches. The new base is stored with the
    // batch, because a restore begins there.
    bool moved = e->seq > s->next && s->base == s->next && e->seq <= s->have;
    if (moved)
        s->base = s->next = e->seq;
    if (e->seq > s->next || e->seq >= s->base + s->c.spool_batches ||
        s->ring_bytes + e->len > s->c.spool_bytes) {
        stream_fault(s, INTER_STREAM_FAULT_OUTSIDE);
        return;
    }
    if (moved)
        stream_act(s, INTER_STREAM_ACT_DROP)->seq = s->base;
    struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_STORE);
    a->seq = e->seq;
    a->view = e->data;
    a->len = e->len;
    stream_ring_add(s, e->len, tag);
    stream_pump(s);
    stream_report_room(s, true);
}

// Marks the batch that the window holds back. If the consumer then applies everything before it and
// has nothing more, it waited for credit: the window doubles. The next doubling needs a grant for
// batches sent after this one.
static void widen(struct inter_stream *s, const struct inter_stream_grant *g) {
    uint32_t n = s->c.window_batches;
    if (s->sent >= s->applied + s->window_batches)
        s->waited[s->sent % n] = s->sent;
    if (g->applied != g->have || g->applied <= s->widened || s->waited[g->have % n] != g->have ||
        s->window >= n)
        return;
    s->window = 2 * s->window < s->c.window_batches ? 2 * s->window : s->c.window_batches;
    s->widened = s->sent;
}

static void drop_saved(struct inter_stream *s) {
    if (s->durable <= s->base || (s->dropped && s->now - s->dropped < drop_pause))
        return;
    s->dropped = s->now;
    stream_ring_drop(s, s->durable);
    stream_act(s, INTER_STREAM_ACT_DROP)->seq = s->base;
}

void stream_on_grant(struct inter_stream *s, const struct inter_stream_grant *g) {
    if (g->session < s->session)
        return;
    if (g->session > s->session) { // the consumer attached again at its cursor
        s->session = g->session;
        s->have = g->have;
        s->applied = g->applied;
        s->sent = g->have;
        s->widened = s->high;
        s->lost = false;
        s->moved = s->now;
        s->vain = 0;
        inter_stream_path_reset(s->path, g->have);
    }
    if (g->have > s->have) {
        s->moved = s->now;
        s->vain = s->mends = 0;
        s->mend_at = 0;
    }
    s->have = g->have > s->have ? g->have : s->have;
    inter_stream_path_acked(s->path, s->now, s->have);
    widen(s, g);
    s->applied = g->applied > s->applied ? g->applied : s->applied;
    s->sent = s->sent < s->have ? s->have : s->sent;
    s->window_batches = g->window_batches < s->window ? g->window_batches : s->window;
    s->window_bytes = g->window_bytes < s->c.window_bytes ? g->window_bytes : s->c.window_bytes;
    s->durable = g->durable > s->durable ? g->durable : s->durable;
    drop_saved(s);
    s->lost = s->lost && s->have < s->base;
    if (s->have < s->base && !s->lost) { // its checkpoint is older than the oldest that it reported
        struct inter_stream_action *a = stream_act(s, INTER_STREAM_ACT_LOST);
        a->seq = s->have;
        a->durable = s->base;
        s->lost = true;
    }
    if (!s->lost)
        stream_pump(s);
    stream_report_room(s, s->c.measured);
}

static neb_ns patience(const struct inter_stream *s) {
    double bps = inter_stream_path_measure(s->path, s->now).goodput_bps, bits = 0;
    for (uint64_t i = first_flying(s); has_left(s, i); i++)
        bits += 8.0 * stream_entry_of(s, i)->bytes;
    double own = bps > 0 ? patience_margin * bits / bps : bits / unknown_bps,
           all = (neb_seconds(patience_least) + own) * (1 << s->vain);
    return all < neb_seconds(patience_most) ? (neb_ns)(all * 1e9) : patience_most;
}

void stream_producer_tick(struct inter_stream *s) {
    if (s->up && !s->met && s->now - s->hello_at >= STREAM_HELLO_EVERY)
        stream_send_hello(s, true);
    if (s->sent > s->have && s->now - s->moved >= patience(s)) {
        s->sent = s->have;
        s->moved = s->now;
        s->vain += s->vain < VAIN_MAX;
    }
    drop_saved(s);
    if (!s->lost)
        stream_pump(s);
    stream_report_room(s, false);
}
