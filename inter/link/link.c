// SPDX-License-Identifier: Apache-2.0
// The link: create, poll, the pass over all peers, statistics. state.h shows the frames and the
// other files.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "inter/link/state.h"

#include <stdlib.h>
#include <string.h>

// A message counts as heard when it is complete. On a slow path that may take longer than the
// silence limit, and heartbeats wait behind it. So data that arrives in the kernel counts as heard
// too.
static void set_listen(struct set *s, neb_ns now) {
    if (!s->up || now - s->heard < LOOK_EVERY || now - s->looked_at < LOOK_EVERY)
        return;
    uint64_t arrived = 0;
    for (uint32_t i = 0; i < CONNS; i++)
        arrived += inter_tcp_data_segs(s->c[i].fd);
    if (s->looked_at >= s->heard && arrived > s->arrived)
        s->heard = now;
    s->arrived = arrived;
    s->looked_at = now;
}

// On a slow path, TCP retransmits a heartbeat only after several round trips. The mean round trip
// counts, because one long round trip may be a path that stood still.
static neb_ns silence(const struct peer *p) {
    neb_ns may = 6 * p->rtt;
    return may < SILENCE ? SILENCE : may > SILENCE_MOST ? SILENCE_MOST : may;
}

// If the control connection is lost, the whole set goes down. If a bulk connection is lost, only
// that one is dialled again. now: when this pass began to read. The handler may have run for
// seconds since then, and what arrived in that time is read only in the next pass.
static void set_clean(struct inter_link *l, struct peer *p, int which, neb_ns now) {
    struct set *s = &p->s[which];
    if (!s->session)
        return;
    neb_ns may = silence(p);
    bool down = s->c[0].lost || (s->up && now - s->heard > may);
    for (uint32_t i = 0; i < CONNS && !down; i++) {
        struct conn *c = &s->c[i];
        bool unanswered = which == DIALED && c->hello_at && !c->open && now - c->hello_at > may;
        if (unanswered && i == 0)
            down = true;
        else if (c->lost || unanswered) {
            link_conn_close(l, p, c);
            c->retry_at = which == DIALED ? now + RETRY_AFTER : 0;
        } else if (which == DIALED && c->retry_at && now >= c->retry_at) {
            link_conn_dial(l, p, i);
        }
    }
    // The control connection of this accepted set never came.
    if (which == ACCEPTED && !s->up && now - s->heard > may)
        down = true;
    bool denied = s->c[0].denied;
    if (down && !s->c[0].lost && s->up)
        neb_debug("link to %s: closed: it was silent for %.1f s", p->member.pub.name,
                  neb_seconds(now - s->heard));
    if (down)
        link_set_close(l, p, which);
    if (down && denied)
        p->dial_at = now + NEB_S;
    if (down && p->speaks.differs)
        p->dial_at = now + PROTOCOL_RETRY;
}

// PINGs are frequent at first, to get a reliable round-trip time soon.
static neb_ns ping_due(const struct set *s) {
    uint32_t doubled = s->pings > 5 ? 5 : s->pings;
    neb_ns wait = !s->pings ? 0 : PING_FIRST << (doubled - 1);
    return s->pinged + (wait < PING_LAST ? wait : PING_LAST);
}

// When the next sign of life or the next acknowledgement is due.
static neb_ns heartbeat_due(const struct set *s) {
    neb_ns due = s->said + HEARTBEAT_EVERY, owed = s->acks_at + ACK_DELAY;
    for (uint32_t i = 0; i < CONNS; i++) {
        const struct conn *c = &s->c[i];
        if (!c->open || c->recvd == c->recv_acked)
            continue;
        if (c->recvd - c->recv_acked >= ACK_BYTES)
            return 0;
        due = owed < due ? owed : due;
    }
    return due;
}

// One frame acknowledges all connections. A frame for each would cost as much as a small message.
static void set_heartbeat(struct inter_link *l, struct set *s, neb_ns now) {
    uint8_t b[1 + HEARTBEAT_ITEM * CONNS] = {HEARTBEAT};
    size_t n = 1;
    for (uint32_t i = 0; i < CONNS; i++) {
        const struct conn *c = &s->c[i];
        if (!c->open || c->recvd == c->recv_acked)
            continue;
        b[n] = (uint8_t)i;
        neb_put_u64(b + n + 1, c->recvd);
        n += HEARTBEAT_ITEM;
    }
    if (!link_send_small(l, &s->c[0], b, n))
        return;
    for (uint32_t i = 0; i < CONNS; i++)
        s->c[i].recv_acked = s->c[i].recvd;
    s->said = s->acks_at = now;
}

static void set_pulse(struct inter_link *l, struct set *s, neb_ns now, bool pings) {
    if (!s->up)
        return;
    if (pings && now >= ping_due(s) && link_send_time(l, &s->c[0], PING, (uint64_t)now)) {
        s->pinged = s->said = now;
        s->pings++;
    }
    if (now >= heartbeat_due(s))
        set_heartbeat(l, s, now);
}

// When to look at this set again, even if nothing arrives.
static neb_ns set_due(const struct peer *p, const struct set *s, neb_ns now) {
    if (!s->up)
        return now + RETRY_AFTER;
    neb_ns ping = ping_due(s), heartbeat = heartbeat_due(s), silent = s->heard + silence(p) + 1,
           due = ping < heartbeat ? ping : heartbeat;
    due = silent < due ? silent : due;
    return due > now ? due : now + 20 * NEB_MS; // overdue: the send failed
}

// Replaces old connections. The old set closes when nothing is in flight on it.
static void peer_recycle(struct inter_link *l, struct peer *p, neb_ns now) {
    struct set *d = &p->s[DIALED], *old = &p->s[OLD_DIALED];
    if (d->up && old->session) {
        neb_ns age = now - d->since;
        bool quiet = !link_set_queued(old) && now - old->data_at > NEB_S;
        if ((age > DRAIN_MIN && quiet) || age > DRAIN_MAX || !old->up)
            link_set_close(l, p, OLD_DIALED);
    } else if (d->up && now - d->since >= l->cfg.recycle) {
        link_set_retire(l, p, DIALED);
        p->recycled++;
        p->dial_at = now;
    }
}

// The overlap of a rotation is over. The previous keys are no longer admitted.
static void peer_forget_former(struct inter_link *l, struct peer *p, neb_ns now) {
    if (!p->former_until || now < p->former_until)
        return;
    p->former_until = 0;
    link_admit(l);
    link_peer_close(l, p); // a peer with its new keys comes back at once
}

// True: more than a first window waits. While it is not known whether the path is fast or slow,
// perhaps no complete message has arrived. So this counts the bytes that the peer's kernel
// acknowledged.
static bool peer_first_look(struct inter_link *l, struct peer *p, const struct set *s, neb_ns now) {
    uint64_t taken = 0, waits = 0;
    for (uint32_t i = 1; i < CONNS; i++) {
        uint64_t n = inter_tcp_acked(s->c[i].fd);
        taken += n;
        waits += s->c[i].framed > n ? s->c[i].framed - n : 0;
    }
    if (!taken) // this kernel does not report it
        return link_set_queued(s) > ACK_BYTES;
    p->bulk_acked = s->session == p->taken_of && taken > p->taken ? taken - p->taken : 0;
    p->taken = taken;
    p->taken_of = s->session;
    if (waits > FIRST_WINDOW && now + FIRST_LOOK < l->deadline)
        l->deadline = now + FIRST_LOOK;
    return waits > FIRST_WINDOW;
}

// Steps the number of bulk connections. The dialler opens more itself; the listener asks for them.
static void peer_stripes(struct inter_link *l, struct peer *p, neb_ns now) {
    struct set *s = link_active(l, p);
    uint64_t queued = 0;
    for (uint32_t i = 1; s && i < CONNS; i++)
        queued += s->c[i].sent - s->c[i].acked;
    bool busy = queued > ACK_BYTES;
    neb_ns rtt = p->rtt, least = 0;
    if (queued && p->stripes.first) {
        busy = peer_first_look(l, p, s, now);
        // The first answers wait behind this link's own handshakes, so their round trip is too
        // long.
        least = inter_tcp_least_rtt_of_queue(s->c[1].fd);
        rtt = least && least < rtt ? least : rtt;
    }
    if (inter_stripes_step(&p->stripes, now, p->bulk_acked, busy, rtt))
        neb_debug("link to %s: sends on %u bulk connections (%.1f Mbit/s before)",
                  p->member.pub.name, p->stripes.use, p->stripes.rate / 1e6);
    p->bulk_acked = 0;
    if (s == &p->s[DIALED])
        link_set_widen(l, p);
    else if (s && p->told != inter_stripes_open(&p->stripes)) {
        uint8_t b[2] = {STRIPES, (uint8_t)inter_stripes_open(&p->stripes)};
        if (link_send_small(l, &s->c[0], b, sizeof b))
            p->told = b[1];
    }
}

static void bucket_settle(struct inter_link *l, neb_ns now) {
    if (!l->bucket.bps || now < l->settle_at)
        return;
    l->settle_at = now + 100 * NEB_MS;
    inter_bucket_settle(&l->bucket);
    for (uint32_t i = 0; i < l->n_peers; i++)
        for (int w = 0; w < SETS; w++)
            for (uint32_t k = 0; k < CONNS; k++)
                if (l->peers[i].s[w].c[k].fd >= 0)
                    link_conn_settle(l, &l->peers[i].s[w].c[k]);
}

// Cuts a revoked peer off when earlier messages have had time to leave.
static void peer_part(struct inter_link *l, struct peer *p, neb_ns now) {
    if (p->parts_at && now >= p->parts_at)
        link_peer_close(l, p);
    else if (p->parts_at && p->parts_at < l->deadline)
        l->deadline = p->parts_at;
}

// When a bulk message that the limit refused may pass.
static neb_ns limit_over(const struct inter_link *l) {
    neb_ns paid = inter_bucket_when(&l->bucket);
    return l->bucket.backlog > l->bucket.bps / 8 && paid < l->settle_at ? l->settle_at : paid;
}

static void peer_dialing(struct inter_link *l, struct peer *p, neb_ns now) {
    struct set *d = &p->s[DIALED], *a = &p->s[ACCEPTED];
    bool may = p->member.endpoint[0] && p->member.connect != SEC_CONNECT_IN;
    if (!d->session && may && !a->up && now >= p->dial_at && link_peer_find(p, now))
        link_set_dial(l, p);
    if (!d->session || !a->up || link_prefers_dialed(l, p))
        return;
    if (!d->up || (now - a->since > NEB_S && !link_set_queued(d)) ||
        now - a->since > DUPLICATE_GRACE)
        link_set_close(l, p, DIALED); // the peer's own set is kept: its key is lower
}

void inter_link_heartbeat(struct inter_link *l) {
    neb_ns now = neb_now();
    for (uint32_t i = 0; i < l->n_peers; i++)
        for (int w = 0; w < SETS && !l->peers[i].revoked; w++)
            // no PING: its answer would be read too late
            set_pulse(l, &l->peers[i].s[w], now, false);
}

enum neb_status inter_link_process(struct inter_link *l, inter_link_handler *handler, void *user) {
    neb_ns began = neb_now();
    l->handler = handler;
    l->user = user;
    link_router_events(l);
    for (uint32_t i = 0; i < l->n_peers; i++)
        for (uint32_t k = 0; k < 2 * CONNS; k++) {
            int which = k < CONNS ? OLD_DIALED : DIALED; // older messages first
            if (!l->peers[i].s[which].c[k % CONNS].sock)
                continue;
            link_dial_events(l, &l->peers[i], which, k % CONNS);
            link_dealer_read(l, &l->peers[i], which, k % CONNS);
        }
    if (l->router)
        link_router_read(l);
    neb_ns now = neb_now();
    l->deadline = now + NEB_S;
    for (uint32_t i = 0; i < l->n_peers; i++) {
        struct peer *p = &l->peers[i];
        peer_forget_former(l, p, now);
        if (p->self)
            continue;
        link_peer_update(l, p);
        if (p->revoked) {
            peer_part(l, p, now);
            continue;
        }
        for (int w = 0; w < SETS; w++) {
            set_listen(&p->s[w], now);
            set_clean(l, p, w, began);
            set_pulse(l, &p->s[w], now, true);
            neb_ns next = set_due(p, &p->s[w], now);
            if (next < l->deadline)
                l->deadline = next;
        }
        peer_recycle(l, p, now);
        peer_dialing(l, p, now);
        link_twins_look(p, now);
        peer_stripes(l, p, now);
        link_report_lost(l, p);
    }
    link_guard(l, began);
    bucket_settle(l, now);
    if (l->limited && limit_over(l) < l->deadline)
        l->deadline = limit_over(l);
    l->handler = NULL;
    return NEB_OK;
}

// Bytes sent before the limit existed are no debt. Queued bytes count when they leave.
static void meters_start(struct inter_link *l) {
    for (uint32_t i = 0; i < l->n_peers; i++)
        for (int w = 0; w < SETS; w++)
            for (uint32_t k = 0; k < CONNS; k++) {
                struct conn *c = &l->peers[i].s[w].c[k];
                struct inter_tcp_counts n = link_conn_counts(c);
                c->meter.charged = n.sent + INTER_TCP_HEADERS * n.sent_segs;
            }
    inter_bucket_settle(&l->bucket);
}

void inter_link_limit(struct inter_link *l, uint64_t bps) {
    if (bps && !l->bucket.bps)
        meters_start(l);
    inter_bucket_set(&l->bucket, neb_now(), bps);
}

bool inter_link_resumes(struct inter_link *l) {
    bool now = l->limited && inter_bucket_ready(&l->bucket, neb_now());
    l->limited = l->limited && !now;
    return now;
}

size_t inter_link_poll_items(const struct inter_link *l, zmq_pollitem_t *items, size_t cap) {
    size_t n = 0;
    void *pair[2] = {l->router, l->router_mon};
    for (int k = 0; k < 2; k++)
        if (pair[k] && n++ < cap)
            items[n - 1] = (zmq_pollitem_t){.socket = pair[k], .events = ZMQ_POLLIN};
    for (uint32_t i = 0; i < l->n_peers; i++)
        for (uint32_t j = 0; j < 2 * CONNS; j++) {
            const struct set *s = &l->peers[i].s[j < CONNS ? DIALED : OLD_DIALED];
            const struct conn *c = &s->c[j % CONNS];
            if (c->sock && !link_conn_waits(s, j % CONNS) && n++ < cap)
                items[n - 1] = (zmq_pollitem_t){.socket = c->sock, .events = ZMQ_POLLIN};
            if (c->mon && n++ < cap)
                items[n - 1] = (zmq_pollitem_t){.socket = c->mon, .events = ZMQ_POLLIN};
        }
    return n < cap ? n : cap;
}

neb_ns inter_link_next_deadline(const struct inter_link *l) { return l->deadline; }

uint32_t inter_link_port(const struct inter_link *l) { return l->port; }

uint32_t inter_link_protocol(const struct inter_link *l) { return l->protocol; }

uint64_t inter_link_refused(const struct inter_link *l) { return sec_zap_refused(l->zap); }

enum neb_status inter_link_stats(struct inter_link *l, uint32_t peer,
                                 struct inter_link_stats *out) {
    if (peer >= l->n_peers)
        return neb_fail(NEB_ERR_INVALID, "link: no peer %u", peer);
    struct peer *p = &l->peers[peer];
    struct inter_tcp_counts n = p->closed;
    uint64_t queued = 0;
    uint32_t open = 0;
    struct set *s = link_active(l, p);
    for (uint32_t i = 1; s && i < CONNS; i++)
        open += s->c[i].open && !s->c[i].lost;
    for (int w = 0; w < SETS; w++)
        for (uint32_t i = 0; i < CONNS; i++) {
            link_counts_add(&n, link_conn_counts(&p->s[w].c[i]));
            queued += p->s[w].c[i].sent - p->s[w].c[i].acked;
        }
    *out = (struct inter_link_stats){.up = p->up,
                                     .since = p->since,
                                     .rtt = p->rtt,
                                     .clock_offset = p->clock_offset,
                                     .sent_bytes = n.sent,
                                     .recv_bytes = n.recv,
                                     .message_bytes = p->message_bytes,
                                     .payload_bytes = p->payload_bytes,
                                     .sent_segs = n.sent_segs,
                                     .recv_segs = n.recv_segs,
                                     .bulk_open = open,
                                     .bulk_used = open < p->stripes.use ? open : p->stripes.use,
                                     .queued_bytes = queued,
                                     .connects = p->connects,
                                     .recycled = p->recycled,
                                     .refused = p->refused,
                                     .dropped = p->dropped,
                                     .twins = p->twins.minutes,
                                     .differs = p->speaks.differs,
                                     .protocol = p->speaks.protocol,
                                     .held = p->held,
                                     .cut = p->cut};
    memcpy(out->build, p->speaks.build, sizeof out->build);
    inter_tcp_congestion(s ? s->c[0].fd : -1, out->congestion);
    return NEB_OK;
}

struct inter_link_control inter_link_control(struct inter_link *l, uint32_t peer) {
    const struct set *s = peer < l->n_peers ? link_active(l, &l->peers[peer]) : NULL;
    return s ? (struct inter_link_control){s->c[0].way, s->c[0].sent, s->c[0].acked}
             : (struct inter_link_control){0};
}

enum neb_status inter_link_create(const struct inter_link_config *cfg, struct inter_link **out) {
    enum neb_status st;
    const struct sec_public *me = sec_identity_public(cfg->identity);
    const struct sec_member *self = sec_members_by_curve(cfg->members, me->curve);
    if (cfg->n_bulk > INTER_LINK_MAX_BULK || !self || cfg->chunk_bytes > (size_t)64 << 20)
        return neb_fail(NEB_ERR_INVALID,
                        "link: more than %d bulk connections, a chunk above 64 MiB, or '%s' is not "
                        "on the member list",
                        INTER_LINK_MAX_BULK, me->name);
    NEB_TRY(sec_init());
    struct inter_link *l = calloc(1, sizeof *l);
    if (!l)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: link");
    inter_accept_limit_init(
        &l->accept_limit, "link",
        &(struct inter_accept_limit_rate){INTER_UNIDENTIFIED_BURST, INTER_UNIDENTIFIED_SECOND,
                                          INTER_STRANGERS_BURST, INTER_STRANGERS_SECOND,
                                          INTER_ACCEPT_LIMIT_KNOWN_MAX / NEB_MEMBERS_MAX});
    l->cfg = *cfg;
    // A fault point, for tests of whole agents.
    uint32_t ours = NEB_PROTOCOL + (uint32_t)neb_fault("link.protocol");
    l->protocol = cfg->protocol ? cfg->protocol : ours;
    snprintf(l->build, sizeof l->build, "%s", cfg->build ? cfg->build : neb_build());
    l->cfg.chunk_bytes = cfg->chunk_bytes ? cfg->chunk_bytes : (size_t)1 << 20;
    l->cfg.bulk_queue_bytes = cfg->bulk_queue_bytes ? cfg->bulk_queue_bytes : (size_t)64 << 20;
    l->cfg.control_queue_bytes =
        cfg->control_queue_bytes ? cfg->control_queue_bytes : (size_t)1 << 20;
    l->cfg.recycle = cfg->recycle ? cfg->recycle : RECYCLE;
    l->members = *cfg->members;
    l->n_peers = l->members.n;
    l->self = (uint32_t)(self - cfg->members->m);
    char congestion[INTER_TCP_NAME_MAX];
    inter_tcp_would_use(cfg->congestion, congestion);
    l->bbr = !strcmp(congestion, "bbr");
    for (uint32_t i = 0; i < l->n_peers; i++) {
        link_peer_init(l, &l->peers[i], &l->members.m[i]);
        l->peers[i].self = i == l->self;
    }
    l->own_ctx = !cfg->zmq_context;
    l->ctx = cfg->zmq_context ? cfg->zmq_context : zmq_ctx_new();
    if (!l->ctx) {
        st = neb_fail(NEB_ERR_NOMEM, "link: cannot create a ZeroMQ context");
        goto fail;
    }
    // Each connection takes three sockets. No effect if the context has sockets already.
    zmq_ctx_set(l->ctx, ZMQ_MAX_SOCKETS, 4096);
    NEB_TRY_GOTO(sec_zap_create(l->ctx, ZAP_DOMAIN, &l->zap), fail);
    link_admit(l);
    if (cfg->listen)
        NEB_TRY_GOTO(link_listen(l, cfg->listen), fail);
    *out = l;
    return NEB_OK;
fail:
    inter_link_destroy(&l);
    return st;
}

void inter_link_restart(struct inter_link *l, uint32_t peer) {
    struct set *s = peer < l->n_peers ? link_active(l, &l->peers[peer]) : NULL;
    for (uint32_t i = 1; s && i < CONNS; i++)
        if (s->c[i].open && s->c[i].sent - s->c[i].acked < ACK_BYTES)
            inter_tcp_restart(s->c[i].fd);
    if (s)
        neb_debug("link to %s: carries less than half of its previous rate: congestion control "
                  "starts again",
                  l->peers[peer].member.pub.name);
}

void inter_link_destroy(struct inter_link **lp) {
    struct inter_link *l = lp ? *lp : NULL;
    if (!l)
        return;
    l->handler = NULL;
    for (uint32_t i = 0; i < l->n_peers; i++) {
        link_peer_close(l, &l->peers[i]);
        inter_lookup_destroy(&l->peers[i].lookup);
    }
    link_guard_end(l);
    inter_monitor_close(l->router_mon, l->router);
    if (l->router)
        zmq_close(l->router);
    sec_zap_destroy(&l->zap);
    if (l->own_ctx && l->ctx)
        zmq_ctx_term(l->ctx);
    free(l);
    *lp = NULL;
}
