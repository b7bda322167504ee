// SPDX-License-Identifier: Apache-2.0
// Finds the sender of a message, answers HELLO, and handles frames of open connections.
#include "agent/base/log.h"
#include "inter/link/state.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static bool on_data(struct inter_link *l, struct peer *p, struct set *s, uint32_t index,
                    const uint8_t *b, size_t n) {
    if (index == 0 && n > INTER_LINK_CONTROL_MAX)
        return false;
    s->c[index].recvd += n;
    s->data_at = s->heard;
    struct inter_link_event e = {.kind = INTER_LINK_MSG,
                                 .peer = (uint32_t)(p - l->peers),
                                 .channel = index ? INTER_BULK : INTER_CONTROL,
                                 .data = b + 1,
                                 .len = n - 1};
    if (l->handler && s->up)
        l->handler(l->user, &e);
    return s->up;
}

static bool on_pong(struct peer *p, const struct set *s, struct neb_rd *r) {
    neb_ns now = neb_now(), asked = neb_rd_i64(r), day = neb_rd_i64(r);
    if (asked < now - 60 * NEB_S || asked > now || day < 0 || day > INT64_MAX / 2)
        return false; // no answer to a PING of ours
    neb_ns rtt = now - asked;
    p->clock_offset = day + rtt / 2 - neb_wall_now();
    p->rtt = p->rtt ? (7 * p->rtt + rtt) / 8 : rtt;
    for (uint32_t i = 0; i < CONNS; i++)
        link_conn_patience(p, &s->c[i]);
    return true;
}

static bool on_heartbeat(struct peer *p, struct set *s, struct neb_rd *r) {
    bool good = true;
    while (neb_rd_left(r) > 0) {
        uint8_t i = neb_rd_u8(r);
        uint64_t bytes = neb_rd_u64(r);
        if (r->bad || i >= CONNS)
            return false;
        if (bytes > s->c[i].sent) // harmless: it may be about an earlier connection
            good = false;
        else if (bytes > s->c[i].acked) {
            p->bulk_acked += i ? bytes - s->c[i].acked : 0;
            s->c[i].acked = bytes;
        }
    }
    return good;
}

bool link_on_frame(struct inter_link *l, struct peer *p, int which, uint32_t index,
                   const uint8_t *b, size_t n) {
    struct set *s = &p->s[which];
    struct neb_rd r = neb_rd_make(b + 1, n - 1);
    if (p->revoked)
        return false;
    s->heard = neb_now();
    if (b[0] == DATA)
        return on_data(l, p, s, index, b, n);
    if (index != 0)
        return false;
    if (b[0] == PING && n == 9)
        return link_send_pong(l, s, neb_rd_u64(&r)), true;
    if (b[0] == PONG && n == 17)
        return on_pong(p, s, &r);
    if (b[0] == HEARTBEAT && n <= 1 + HEARTBEAT_ITEM * CONNS)
        return on_heartbeat(p, s, &r);
    if (b[0] != STRIPES || n != 2 || which != DIALED)
        return false;
    uint8_t want = neb_rd_u8(&r);
    p->asked = want > p->stripes.max ? p->stripes.max : want;
    return true;
}

struct hello {
    uint8_t type, index;
    uint64_t session;
    uint32_t protocol;
    char build[NEB_BUILD_MAX];
};

// These fields are the same in every protocol. Only what follows them may differ.
static bool get_hello(struct neb_rd *r, struct hello *h) {
    h->type = neb_rd_u8(r);
    h->session = neb_rd_u64(r);
    h->index = neb_rd_u8(r);
    h->protocol = neb_rd_u32(r);
    neb_rd_str(r, h->build, sizeof h->build);
    for (char *c = h->build; *c; c++) // it goes into logs, JSON and terminals
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    return !r->bad;
}

// Keeps what the peer reported about itself. False: it speaks another protocol.
static bool speaks_ours(struct inter_link *l, struct peer *p, const struct hello *h) {
    uint64_t more;
    p->speaks.differs = h->protocol != l->protocol;
    p->speaks.protocol = h->protocol;
    memcpy(p->speaks.build, h->build, sizeof p->speaks.build);
    if (p->speaks.differs && neb_throttle_line(&p->speaks.said, neb_now(), &more))
        neb_warn("link to %s: cut: it speaks protocol %u (nebula %s), this agent protocol %u "
                 "(nebula %s): install the same version of nebula at both",
                 p->member.pub.name, (unsigned)h->protocol, h->build, (unsigned)l->protocol,
                 l->build);
    return !p->speaks.differs;
}

// The listener's answer to HELLO.
static bool on_welcome(struct inter_link *l, struct peer *p, int which, uint32_t index,
                       const uint8_t *b, size_t n) {
    struct set *s = &p->s[which];
    struct neb_rd r = neb_rd_make(b, n);
    struct hello h;
    if (!get_hello(&r, &h) || h.type != WELCOME || h.session != s->session || h.index != index)
        return false;
    if (!speaks_ours(l, p, &h)) {
        s->c[0].lost = true; // takes the whole set down
        return true;
    }
    if (!neb_rd_done(&r))
        return false;
    s->c[index].open = true;
    if (index == 0)
        link_set_came_up(l, p, s);
    return true;
}

void link_dealer_read(struct inter_link *l, struct peer *p, int which, uint32_t index) {
    struct set *s = &p->s[which];
    for (int k = 0; k < BURST && s->c[index].sock && !link_conn_waits(s, index); k++) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, s->c[index].sock, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            return;
        }
        const uint8_t *b = zmq_msg_data(&m);
        size_t n = zmq_msg_size(&m);
        link_guard_read(&s->c[index], n);
        bool ok = n > 0 && !zmq_msg_more(&m);
        if (ok)
            ok = s->c[index].open ? link_on_frame(l, p, which, index, b, n)
                                  : on_welcome(l, p, which, index, b, n);
        p->refused += !ok;
        zmq_msg_close(&m);
    }
}

// Answers a peer that speaks another protocol. The connection is cut when the answer had time to
// arrive.
static bool tell_apart(struct inter_link *l, struct peer *p, const uint8_t *rid, int fd,
                       const struct hello *h) {
    struct conn c = {.fd = -1, .zmq_fd = -1};
    if (!neb_bucket_take(&p->sessions, neb_now(), 1, SESSIONS_BURST, SESSIONS_A_SECOND))
        return false; // the peer dials again
    memcpy(c.rid, rid, RID_BYTES);
    link_guard_differs(l, p, fd);
    return link_send_hello(l, &c, WELCOME, h->session, h->index);
}

bool link_on_hello(struct inter_link *l, struct peer *p, const uint8_t *rid, int fd,
                   const uint8_t *b, size_t n) {
    struct set *s = &p->s[ACCEPTED];
    struct neb_rd r = neb_rd_make(b, n);
    struct hello h;
    if (!get_hello(&r, &h) || (h.type != HELLO && h.type != RENEW))
        return false;
    if (!speaks_ours(l, p, &h))
        return tell_apart(l, p, rid, fd, &h);
    uint8_t type = h.type, index = h.index;
    uint64_t session = h.session;
    if (!neb_rd_done(&r) || index >= CONNS || session == 0 || session < s->session)
        return false;
    if (session > s->session &&
        !neb_bucket_take(&p->sessions, neb_now(), 1, SESSIONS_BURST, SESSIONS_A_SECOND))
        return false; // the peer dials again
    if (session > s->session && type == RENEW && s->up) {
        link_set_retire(l, p, ACCEPTED);
    } else if (session > s->session) {
        if (s->up && neb_now() - s->heard < 2 * HEARTBEAT_EVERY)
            link_twins_displaced(p, neb_now());
        link_set_close(l, p, ACCEPTED);
    }
    s->session = session;
    struct conn *c = &s->c[index];
    if (c->open)
        link_conn_close(l, p, c);
    *c = (struct conn){.fd = -1, .zmq_fd = -1, .open = true, .way = ++l->last_way};
    memcpy(c->rid, rid, RID_BYTES);
    link_conn_watch(l, p, c, fd);
    if (!link_send_hello(l, c, WELCOME, session, index))
        return link_conn_close(l, p, c), false;
    s->heard = neb_now();
    if (index == 0)
        link_set_came_up(l, p, s);
    return true;
}

// The member that sent a message, by the key that ZAP admitted.
static struct peer *sender(struct inter_link *l, zmq_msg_t *m) {
    const char *who = zmq_msg_gets(m, "User-Id");
    uint8_t key[SEC_KEY_BYTES];
    if (!who || strlen(who) != SEC_KEY_BYTES / 4 * 5 || !zmq_z85_decode(key, who))
        return NULL;
    for (uint32_t i = 0; i < l->n_peers; i++) {
        struct peer *p = &l->peers[i];
        if (p->self)
            continue;
        if (!memcmp(key, p->member.pub.curve, sizeof key) ||
            (p->former_until && !memcmp(key, p->former.curve, sizeof key)))
            return p;
    }
    return NULL;
}

static void kick(int fd) {
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
}

static void router_message(struct inter_link *l, const uint8_t *rid, size_t rid_len, zmq_msg_t *m) {
    struct peer *p = sender(l, m);
    const uint8_t *b = zmq_msg_data(m);
    size_t n = zmq_msg_size(m);
    int fd = zmq_msg_get(m, ZMQ_SRCFD);
    if (!p) { // its key left the list after the handshake
        kick(fd);
        return;
    }
    // The ROUTER's own routing ids start with 0. Any other id was chosen by the peer, which could
    // take over the id of another peer's connection.
    if ((p->revoked && !p->parts_at) || p->member.connect == SEC_CONNECT_OUT ||
        rid_len != RID_BYTES || rid[0] != 0 || n == 0) {
        p->refused++;
        kick(fd);
        return;
    }
    for (int w = ACCEPTED; w < SETS; w += OLD_ACCEPTED - ACCEPTED)
        for (uint32_t i = 0; i < CONNS; i++)
            if (p->s[w].c[i].open && !memcmp(p->s[w].c[i].rid, rid, RID_BYTES)) {
                link_guard_read(&p->s[w].c[i], n);
                p->refused += !link_on_frame(l, p, w, i, b, n);
                return;
            }
    // The end of an earlier connection with the same descriptor number must be read before this.
    link_router_events(l);
    if (p->revoked || !link_on_hello(l, p, rid, fd, b, n)) {
        p->refused++;
        kick(fd);
    }
}

void link_router_read(struct inter_link *l) {
    for (int k = 0; k < BURST; k++) {
        uint8_t rid[256];
        int n = zmq_recv(l->router, rid, sizeof rid, ZMQ_DONTWAIT);
        if (n < 0)
            return;
        bool more = true;
        for (int part = 0; more; part++) {
            zmq_msg_t m;
            zmq_msg_init(&m);
            if (zmq_msg_recv(&m, l->router, ZMQ_DONTWAIT) < 0) {
                zmq_msg_close(&m);
                return;
            }
            more = zmq_msg_more(&m);
            if (part == 0 && !more) // this protocol has only single-part messages
                router_message(l, rid, (size_t)n, &m);
            zmq_msg_close(&m);
        }
    }
}
