// SPDX-License-Identifier: Apache-2.0
// Dispatches what arrives on the links. Messages between agents are kept until the peer has them,
// and each is taken exactly once.
#include "agent/base/log.h"
#include "inter/service/state.h"
#include "inter/stream/wire.h"

#include <string.h>

enum { MSG_APP = 32, MSG_APP_ACK = 33, MSG_TELL = 34 };
static const neb_ns resend_first = 3 * NEB_S, resend_last = 48 * NEB_S;

// | MSG_APP u8 | epoch of the sender's ledger u64 | seq u64 | previous u64 | kind u32 | body |
// previous: the waiting message before this one, 0: none. A receiver that has not taken `previous`
// drops this message without an acknowledgement. It overtook one that the link refused.
struct resend {
    struct inter_service *s;
    uint32_t peer;
    uint64_t previous; // the waiting message before this one
    uint32_t n;        // messages of the window so far
};

static bool resend_one(void *user, uint64_t seq, uint32_t kind, const uint8_t *p, size_t n) {
    struct resend *r = user;
    struct service_mail *mail = &r->s->mail[r->peer];
    struct neb_buf *b = &r->s->out;
    if (r->n++ == INTER_RESEND_MESSAGES)
        return false; // the rest follows after acknowledgements
    if (seq > mail->at) {
        mail->held = !inter_service_may_send_telemetry(r->s, r->peer);
        if (mail->held)
            return false;
        neb_buf_clear(b);
        neb_buf_u8(b, MSG_APP);
        neb_buf_u64(b, inter_ledger_epoch(r->s->ledger));
        neb_buf_u64(b, seq);
        neb_buf_u64(b, r->previous);
        neb_buf_u32(b, kind);
        neb_buf_add(b, p, n);
        mail->held =
            b->oom || inter_link_send(r->s->link, r->peer, INTER_CONTROL, b->p, b->len) != NEB_OK;
        if (mail->held) {
            neb_debug("a message waits for the link");
            return false;
        }
        mail->at = seq;
        mail->sent = seq > mail->sent ? seq : mail->sent;
    }
    r->previous = seq;
    return true;
}

// Sends what the link has not taken yet of the window.
static enum neb_status send_window(struct inter_service *s, uint32_t peer) {
    struct resend r = {.s = s, .peer = peer};
    s->mail[peer].held = false;
    return inter_ledger_pending(s->ledger, s->members.m[peer].pub.name, resend_one, &r);
}

static enum neb_status send_window_restart(struct inter_service *s, uint32_t peer) {
    s->mail[peer].at = 0;
    return send_window(s, peer);
}

// The link came up, or something was acknowledged: repeat lost messages soon.
static void soon_again(struct inter_service *s, uint32_t peer) {
    s->mail[peer].wait = resend_first;
    s->mail[peer].next = neb_now() + resend_first;
}

enum neb_status service_resend(struct inter_service *s, uint32_t peer) {
    struct service_mail *m = &s->mail[peer];
    neb_ns now = neb_now();
    bool tells = inter_service_may_send_telemetry(s, peer);
    if (m->held && tells)
        NEB_TRY(send_window(s, peer));
    if (now < m->next || !tells) // what was sent may still be in flight
        return NEB_OK;
    m->wait = m->wait && m->wait < resend_last ? 2 * m->wait : m->wait ? m->wait : resend_first;
    m->next = now + m->wait;
    return send_window_restart(s, peer);
}

enum neb_status inter_service_send(struct inter_service *s, uint32_t peer, uint32_t kind,
                                   const void *p, size_t n) {
    static const struct inter_outbox_limit most = {INTER_OUTBOX_MESSAGES, INTER_OUTBOX_BYTES,
                                                   INTER_OUTBOX_MESSAGES_ALL,
                                                   INTER_OUTBOX_BYTES_ALL};
    uint64_t seq, previous;
    if (n > INTER_MESSAGE_MAX || peer >= s->members.n || peer == s->self)
        return neb_fail(NEB_ERR_LIMIT, "cannot send a message of %zu bytes to member %u", n, peer);
    NEB_TRY(inter_ledger_post(s->ledger, s->members.m[peer].pub.name, kind, p, n, &most, &seq,
                              &previous));
    if (!previous) // no other message is waiting and sets the pace
        soon_again(s, peer);
    return s->up[peer] ? send_window(s, peer) : NEB_OK;
}

enum neb_status inter_service_unsend(struct inter_service *s, uint32_t peer, uint32_t kind,
                                     const void *p, size_t n) {
    if (peer >= s->members.n || peer == s->self)
        return neb_fail(NEB_ERR_LIMIT, "cannot take back a message to member %u", peer);
    return inter_ledger_unpost(s->ledger, s->members.m[peer].pub.name, kind, p, n);
}

struct inter_link_control inter_service_control(const struct inter_service *s, uint32_t peer) {
    return inter_link_control(s->link, peer);
}

static uint64_t control_queued(const struct inter_service *s, uint32_t peer) {
    struct inter_link_control c = inter_link_control(s->link, peer);
    return c.sent - c.acked;
}

bool inter_service_may_send_telemetry(const struct inter_service *s, uint32_t peer) {
    return peer < s->members.n && s->up[peer] && control_queued(s, peer) <= INTER_TELEMETRY_QUEUED;
}

enum neb_status inter_service_send_telemetry(struct inter_service *s, uint32_t peer, uint32_t kind,
                                             const void *p, size_t n) {
    if (n > INTER_MESSAGE_MAX)
        return neb_fail(NEB_ERR_LIMIT, "cannot send a message of %zu bytes to member %u", n, peer);
    if (peer >= s->members.n || !s->up[peer])
        return NEB_ERR_AGAIN;
    neb_buf_clear(&s->out);
    neb_buf_u8(&s->out, MSG_TELL);
    neb_buf_u32(&s->out, kind);
    neb_buf_add(&s->out, p, n);
    NEB_TRY(neb_buf_check(&s->out));
    return inter_link_send(s->link, peer, INTER_CONTROL, s->out.p, s->out.len);
}

// True if one more message of n bytes is taken from the peer (enum inter_message_limit).
static bool affordable(struct inter_service *s, uint32_t peer, bool told, size_t n) {
    double most = told ? INTER_TELEMETRY_BURST : INTER_TAKEN_BURST,
           a_second = told ? INTER_TELEMETRY_A_SECOND : INTER_TAKEN_A_SECOND,
           most_bytes = told ? INTER_TELEMETRY_BYTES_BURST : INTER_TAKEN_BYTES_BURST,
           bytes_a_second = told ? INTER_TELEMETRY_BYTES_A_SECOND : INTER_TAKEN_BYTES_A_SECOND;
    struct service_mail *m = &s->mail[peer];
    neb_ns now = neb_now();
    if (neb_bucket_left(&m->bytes[told], now, most_bytes, bytes_a_second) >= (double)n &&
        neb_bucket_take(&m->messages[told], now, 1, most, a_second)) {
        neb_bucket_use(&m->bytes[told], now, (double)n, most_bytes, bytes_a_second);
        return true;
    }
    s->cb.fault(s->cb.user, peer, INTER_FAULT_FLOOD);
    return false;
}

// The same for control messages of rounds, streams and snapshots, and for updates that bring their
// manifest, because its signature is checked.
static bool keeps_pace(struct inter_service *s, uint32_t peer) {
    if (neb_bucket_take(&s->mail[peer].rounds, neb_now(), 1, INTER_ROUNDS_BURST,
                        INTER_ROUNDS_A_SECOND))
        return true;
    s->cb.fault(s->cb.user, peer, INTER_FAULT_FLOOD);
    return false;
}

void service_charge_fault(struct inter_service *s, uint32_t peer, enum inter_fault f) {
    if (peer >= NEB_MEMBERS_MAX || (f != INTER_FAULT_MALFORMED && f != INTER_FAULT_DENIED))
        return;
    // The debt is bounded: bulk messages count too, but a debt does not stop them, so it could grow
    // without limit.
    if (neb_bucket_left(&s->mail[peer].rounds, neb_now(), INTER_ROUNDS_BURST,
                        INTER_ROUNDS_A_SECOND) > -INTER_ROUNDS_BAD)
        neb_bucket_use(&s->mail[peer].rounds, neb_now(), INTER_ROUNDS_BAD, INTER_ROUNDS_BURST,
                       INTER_ROUNDS_A_SECOND);
}

static enum neb_status on_app(struct inter_service *s, uint32_t peer, struct neb_rd *r) {
    const char *name = s->members.m[peer].pub.name;
    uint64_t epoch = neb_rd_u64(r), seq = neb_rd_u64(r), previous = neb_rd_u64(r), last;
    uint32_t kind = neb_rd_u32(r);
    size_t n = neb_rd_left(r);
    const uint8_t *p = neb_rd_view(r, n);
    if (r->bad || seq == 0 || seq > INT64_MAX || previous >= seq || !affordable(s, peer, false, n))
        return NEB_OK;
    NEB_TRY(inter_ledger_taken(s->ledger, name, epoch, &last));
    if (seq > last && previous > last)
        return NEB_OK; // it overtook another message, which is sent again
    if (seq > last) {
        // Record it before the callback. A crash in between loses the message, and the sender's
        // caller asks again. Taking it twice would be worse, except for the kind `repeats`.
        bool first = s->repeats && kind == s->repeats;
        if (first)
            s->cb.message(s->cb.user, peer, kind, p, n);
        enum neb_status took = inter_ledger_take(s->ledger, name, epoch, seq);
        if (took == NEB_ERR_NOSPC)
            return NEB_OK; // no acknowledgement, so it is sent again
        NEB_TRY(took);
        if (!first)
            s->cb.message(s->cb.user, peer, kind, p, n);
    }
    neb_buf_clear(&s->out);
    neb_buf_u8(&s->out, MSG_APP_ACK);
    neb_buf_u64(&s->out, epoch);
    neb_buf_u64(&s->out, seq);
    enum neb_status st = inter_link_send(s->link, peer, INTER_CONTROL, s->out.p, s->out.len);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}

static void on_link(struct inter_service *s, uint32_t peer, bool up) {
    s->up[peer] = up;
    service_step(
        s, &(struct inter_event){.kind = up ? INTER_EV_PEER_UP : INTER_EV_PEER_DOWN, .peer = peer});
    if (up && s->st == NEB_OK) {
        soon_again(s, peer);
        s->st = send_window_restart(s, peer);
    }
    if (s->st == NEB_OK)
        s->st = inter_streams_peer(s->streams, peer, up);
    s->cb.peer(s->cb.user, peer, up);
}

static void on_lost(struct inter_service *s, uint32_t peer, uint64_t way) {
    service_step(s, &(struct inter_event){.kind = INTER_EV_CONN_LOST, .peer = peer, .way = way});
    if (s->st == NEB_OK)
        s->st = inter_streams_lost(s->streams, peer, way);
}

// Acknowledges only messages that were sent. For others there is nothing to remove.
static enum neb_status on_ack(struct inter_service *s, uint32_t peer, uint64_t seq) {
    struct service_mail *m = &s->mail[peer];
    if (seq > m->sent || seq <= m->acked)
        return NEB_OK;
    enum neb_status st = inter_ledger_posted(s->ledger, s->members.m[peer].pub.name, seq);
    if (st == NEB_ERR_NOSPC)
        return NEB_OK; // it is sent and acknowledged once more
    NEB_TRY(st);
    m->acked = seq;
    soon_again(s, peer);
    return send_window(s, peer);
}

// MSG_APP, MSG_APP_ACK and MSG_TELL.
static enum neb_status on_own(struct inter_service *s, const struct inter_link_event *e) {
    struct neb_rd r = neb_rd_make(e->data, e->len);
    switch (neb_rd_u8(&r)) {
    case MSG_APP: return on_app(s, e->peer, &r);
    case MSG_APP_ACK: {
        uint64_t epoch = neb_rd_u64(&r), seq = neb_rd_u64(&r);
        bool ours = neb_rd_done(&r) && epoch == inter_ledger_epoch(s->ledger);
        return ours ? on_ack(s, e->peer, seq) : NEB_OK;
    }
    case MSG_TELL: {
        uint32_t kind = neb_rd_u32(&r);
        size_t n = neb_rd_left(&r);
        const uint8_t *p = neb_rd_view(&r, n);
        if (!r.bad && affordable(s, e->peer, true, n))
            s->cb.message(s->cb.user, e->peer, kind, p, n);
        return NEB_OK;
    }
    default: return NEB_OK;
    }
}

void service_on_event(void *user, const struct inter_link_event *e) {
    struct inter_service *s = user;
    bool bulk = e->channel == INTER_BULK;
    uint8_t type = e->len ? e->data[0] : 0;
    if (s->st != NEB_OK)
        return;
    bool own = type >= MSG_APP && type <= MSG_TELL;
    if (e->kind == INTER_LINK_LOST)
        on_lost(s, e->peer, e->way);
    else if (e->kind != INTER_LINK_MSG)
        on_link(s, e->peer, e->kind == INTER_LINK_UP);
    else if ((!bulk || inter_node_is_update(type)) && !own && !keeps_pace(s, e->peer))
        return;
    else if (type == INTER_MSG_STREAM)
        s->st = inter_streams_message(s->streams, e->peer, bulk, e->data, e->len);
    else if (inter_snapshot_is(type))
        s->st = inter_snapshots_message(s->snapshots, neb_now(), e->peer, bulk, e->data, e->len);
    else if (type < MSG_APP || bulk)
        service_step(s, &(struct inter_event){.kind = INTER_EV_MESSAGE,
                                              .peer = e->peer,
                                              .bulk = bulk,
                                              .data = e->data,
                                              .len = e->len});
    else
        s->st = on_own(s, e);
}
