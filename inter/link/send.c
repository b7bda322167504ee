// SPDX-License-Identifier: Apache-2.0
// Sends the link's own frames and the caller's messages. Unacknowledged bytes are bounded.
#include "inter/link/state.h"

#include <errno.h>
#include <string.h>

// Sends the message and takes ownership, also on failure. False: the queue is full, or the
// connection is lost.
static bool conn_send(struct inter_link *l, struct conn *c, zmq_msg_t *m) {
    void *s = c->sock ? c->sock : l->router;
    size_t n = zmq_msg_size(m);
    bool ok = c->sock || zmq_send(s, c->rid, RID_BYTES, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0;
    if (!ok && zmq_errno() == EHOSTUNREACH)
        c->lost = true;
    ok = ok && zmq_msg_send(m, s, ZMQ_DONTWAIT) >= 0;
    if (ok)
        c->framed += inter_tcp_frame_bytes(n);
    else
        zmq_msg_close(m);
    return ok;
}

bool link_send_small(struct inter_link *l, struct conn *c, const uint8_t *p, size_t n) {
    zmq_msg_t m;
    if (zmq_msg_init_size(&m, n) != 0)
        return false;
    memcpy(zmq_msg_data(&m), p, n);
    return conn_send(l, c, &m);
}

size_t link_hello_make(uint32_t protocol, const char *build, uint8_t type, uint64_t session,
                       uint8_t index, uint8_t *p) {
    size_t n = strnlen(build, NEB_BUILD_MAX - 1);
    p[0] = type;
    neb_put_u64(p + 1, session);
    p[9] = index;
    neb_put_u32(p + 10, protocol);
    p[14] = (uint8_t)n; // a u16
    p[15] = 0;
    memcpy(p + 16, build, n);
    return 16 + n;
}

bool link_send_hello(struct inter_link *l, struct conn *c, uint8_t type, uint64_t session,
                     uint8_t index) {
    uint8_t b[HELLO_MAX];
    return link_send_small(l, c, b,
                           link_hello_make(l->protocol, l->build, type, session, index, b));
}

bool link_send_time(struct inter_link *l, struct conn *c, uint8_t type, uint64_t t) {
    uint8_t b[9] = {type};
    neb_put_u64(b + 1, t);
    return link_send_small(l, c, b, sizeof b);
}

void link_send_pong(struct inter_link *l, struct set *s, uint64_t t) {
    uint8_t b[17] = {PONG};
    neb_put_u64(b + 1, t);
    neb_put_u64(b + 9, (uint64_t)neb_wall_now());
    if (link_send_small(l, &s->c[0], b, sizeof b))
        s->said = neb_now();
}

struct set *link_active(const struct inter_link *l, struct peer *p) {
    int want = link_prefers_dialed(l, p) ? DIALED : ACCEPTED, other = DIALED + ACCEPTED - want;
    const int order[SETS] = {want, want + OLD_DIALED, other, other + OLD_DIALED};
    for (int i = 0; i < SETS && !p->revoked; i++)
        if (p->s[order[i]].up)
            return &p->s[order[i]];
    return NULL;
}

// Unacknowledged bytes by the reports of the peer's link. If that link acknowledges more than it
// has read, the bytes that its kernel has not acknowledged count instead. The kernel's figure may
// be ACK_BYTES behind, because it is not read for every message.
static uint64_t conn_queued(struct conn *c) {
    uint64_t claimed = c->sent - c->acked;
    if (c->fd < 0 || c->framed - c->taken <= claimed + ACK_BYTES)
        return claimed;
    c->taken = inter_tcp_acked(c->fd);
    if (!c->taken) // this kernel does not report it
        return claimed;
    if (c->taken > c->framed) // it includes the handshake, which `framed` lacks
        c->framed = c->taken;
    uint64_t held = c->framed - c->taken;
    return held > claimed + ACK_BYTES ? held : claimed;
}

// Picks the connection for a message: of the bulk connections in use, the one with the shortest
// queue. *queued: the queues of all connections of the channel. NULL: none is open.
static struct conn *choose(const struct peer *p, struct set *s, bool bulk, uint64_t *queued) {
    uint64_t least = UINT64_MAX;
    uint32_t last = bulk ? INTER_LINK_MAX_BULK : 0, used = 0;
    struct conn *c = NULL;
    *queued = 0;
    for (uint32_t i = bulk; i <= last; i++) {
        uint64_t q = conn_queued(&s->c[i]);
        if (!s->c[i].open || s->c[i].lost)
            continue;
        *queued += q;
        if (used++ < (bulk ? p->stripes.use : 1) && q < least)
            least = q, c = &s->c[i];
    }
    return c;
}

enum neb_status inter_link_send_on(struct inter_link *l, uint32_t peer, enum inter_channel channel,
                                   const void *hdr, size_t hlen, const void *data, size_t len,
                                   uint64_t *way) {
    if (peer >= l->n_peers || l->peers[peer].self)
        return neb_fail(NEB_ERR_INVALID, "link: no peer %u", peer);
    bool bulk = channel == INTER_BULK;
    size_t limit = l->cfg.chunk_bytes + INTER_LINK_SLACK, n = 1 + hlen + len;
    if (!bulk && limit > INTER_LINK_CONTROL_MAX)
        limit = INTER_LINK_CONTROL_MAX;
    if (hlen >= limit || len >= limit - hlen)
        return neb_fail(NEB_ERR_LIMIT, "link: message of %zu bytes, at most %zu", hlen + len,
                        limit - 1);
    struct set *s = link_active(l, &l->peers[peer]);
    uint64_t queued = 0;
    struct conn *c = s ? choose(&l->peers[peer], s, bulk, &queued) : NULL;
    if (c && bulk && !inter_bucket_ready(&l->bucket, neb_now())) {
        l->limited = true;
        return NEB_ERR_AGAIN;
    }
    uint64_t room = bulk ? inter_stripes_room(&l->peers[peer].stripes, l->cfg.bulk_queue_bytes)
                         : l->cfg.control_queue_bytes;
    if (!c || (queued && queued + n > room))
        return NEB_ERR_AGAIN;
    zmq_msg_t m;
    if (zmq_msg_init_size(&m, n) != 0)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: link: message of %zu bytes", n);
    uint8_t *b = zmq_msg_data(&m);
    b[0] = DATA;
    if (hlen)
        memcpy(b + 1, hdr, hlen);
    if (len)
        memcpy(b + 1 + hlen, data, len);
    if (!conn_send(l, c, &m))
        return NEB_ERR_AGAIN;
    if (c->sent - c->acked < ACK_BYTES)
        s->said = neb_now();
    c->sent += n;
    l->peers[peer].message_bytes += n;
    l->peers[peer].payload_bytes += bulk ? len : 0;
    inter_meter_add(&c->meter, &l->bucket, inter_tcp_wire_bytes(n));
    *way = c->way;
    return NEB_OK;
}

enum neb_status inter_link_send2(struct inter_link *l, uint32_t peer, enum inter_channel channel,
                                 const void *hdr, size_t hlen, const void *data, size_t len) {
    uint64_t way;
    return inter_link_send_on(l, peer, channel, hdr, hlen, data, len, &way);
}

enum neb_status inter_link_send(struct inter_link *l, uint32_t peer, enum inter_channel channel,
                                const void *data, size_t len) {
    return inter_link_send2(l, peer, channel, NULL, 0, data, len);
}

uint64_t link_set_queued(const struct set *s) {
    uint64_t queued = 0;
    for (uint32_t i = 0; i < CONNS; i++)
        queued += s->c[i].sent - s->c[i].acked;
    return queued;
}
