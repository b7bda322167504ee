// SPDX-License-Identifier: Apache-2.0
// Connections and sets: open, watch, replace, close. ZeroMQ's socket options and monitors are set
// here.
#include "agent/base/log.h"
#include "inter/link/state.h"

#include <errno.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANDSHAKE_FAILED                                                                           \
    (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |                  \
     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

struct inter_tcp_counts link_conn_counts(const struct conn *c) {
    return inter_tcp_counts(c->fd);
}

void link_counts_add(struct inter_tcp_counts *a, struct inter_tcp_counts b) {
    a->sent += b.sent;
    a->recv += b.recv;
    a->sent_segs += b.sent_segs;
    a->recv_segs += b.recv_segs;
}

// Charges what the kernel sent in addition: retransmissions, handshakes, the link's own frames.
// Queued messages were charged as full segments. A sixteenth covers the headers of smaller ones.
void link_conn_settle(struct inter_link *l, struct conn *c) {
    struct inter_tcp_counts n = link_conn_counts(c);
    uint64_t queued = c->sent > c->acked ? inter_tcp_wire_bytes(c->sent - c->acked) : 0;
    inter_meter_read(&c->meter, &l->bucket, n.sent + INTER_TCP_HEADERS * n.sent_segs,
                     queued + queued / 16);
}

// Saves the kernel's counts before the connection ends.
static void retire(struct inter_link *l, struct peer *p, struct conn *c) {
    link_conn_settle(l, c);
    link_counts_add(&p->closed, link_conn_counts(c));
    c->meter = (struct inter_meter){0};
}

// On a slow path TCP retransmits only after several round trips. Such a connection is not dead.
void link_conn_patience(const struct peer *p, const struct conn *c) {
    neb_ns least = INTER_UNACKED_MS * NEB_MS, may = 20 * p->rtt;
    inter_tcp_set_patience(c->fd, may < least ? least : may > UNACKED_MOST ? UNACKED_MOST : may);
}

void link_conn_watch(struct inter_link *l, struct peer *p, struct conn *c, int zmq_fd) {
    if (c->fd >= 0) {
        retire(l, p, c);
        close(c->fd);
    }
    c->zmq_fd = zmq_fd;
    c->fd = zmq_fd >= 0 ? fcntl(zmq_fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (c->fd >= 0 && !inter_tcp_set_congestion(c->fd, l->cfg.congestion))
        neb_debug("link to %s: the system's congestion control stays", p->member.pub.name);
    link_conn_patience(p, c);
}

// If the list is full, entry 0 becomes 0: any connection may have lost data.
static void note_lost(struct peer *p, const struct conn *c) {
    if (c->sent == c->acked)
        return;
    p->dropped += c->sent - c->acked;
    if (p->n_lost < sizeof p->lost / sizeof p->lost[0])
        p->lost[p->n_lost++] = c->way;
    else
        p->lost[0] = 0;
}

void link_conn_close(struct inter_link *l, struct peer *p, struct conn *c) {
    note_lost(p, c);
    if (c->fd >= 0) {
        retire(l, p, c);
        shutdown(c->fd, SHUT_RDWR);
        close(c->fd);
    }
    inter_monitor_close(c->mon, c->sock);
    if (c->sock)
        zmq_close(c->sock);
    *c = (struct conn){.fd = -1, .zmq_fd = -1};
}

static void tell(struct inter_link *l, struct peer *p, enum inter_link_kind kind, uint64_t way) {
    struct inter_link_event e = {.kind = kind, .peer = (uint32_t)(p - l->peers), .way = way};
    if (l->handler)
        l->handler(l->user, &e);
}

void link_report_lost(struct inter_link *l, struct peer *p) {
    for (uint32_t i = 0; i < p->n_lost; i++)
        tell(l, p, INTER_LINK_LOST, p->lost[i]);
    p->n_lost = 0;
}

void link_peer_update(struct inter_link *l, struct peer *p) {
    bool up = false;
    for (int w = 0; w < SETS; w++)
        up = up || (p->s[w].up && !p->revoked);
    if (up == p->up || !l->handler) // outside of process: the next process reports it
        return;
    p->up = up;
    p->since = neb_now();
    if (up)
        p->connects++;
    else
        p->rtt = 0;
    p->n_lost = 0; // UP and DOWN replace the LOST events
    tell(l, p, up ? INTER_LINK_UP : INTER_LINK_DOWN, 0);
}

void link_set_close(struct inter_link *l, struct peer *p, int which) {
    struct set *s = &p->s[which];
    for (uint32_t i = 0; i < CONNS; i++)
        link_conn_close(l, p, &s->c[i]);
    s->session = 0;
    s->up = false;
    if (which == DIALED)
        p->dial_at = neb_now() + RETRY_AFTER;
    link_peer_update(l, p);
}

bool link_prefers_dialed(const struct inter_link *l, const struct peer *p) {
    return memcmp(sec_identity_public(l->cfg.identity)->curve, p->member.pub.curve, SEC_KEY_BYTES) <
           0;
}

static bool set_options(const struct inter_link *l, void *s, enum inter_socket_role role) {
    return inter_socket_apply(s, role, l->cfg.chunk_bytes) == NEB_OK &&
           zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, sec_identity_curve_secret(l->cfg.identity),
                          SEC_KEY_BYTES) == 0;
}

static const char *more_files(int why) {
    return why == EMFILE   ? "; raise the limit of open files (ulimit -n) and restart the agent"
           : why == ENFILE ? "; this system has reached its limit of open files"
                           : "";
}

// Every stripe of every peer retries each second, so the log throttle is per peer.
static void warn_no_dial(struct peer *p, const char *where, int why, neb_ns now) {
    uint64_t more;
    char times[48] = "";
    if (!neb_throttle_line(&p->no_dial, now, &more))
        return;
    if (more)
        snprintf(times, sizeof times, " (%llu more times since)", (unsigned long long)more);
    neb_warn("link to %s: cannot dial %s: %s%s%s", p->member.pub.name, where, zmq_strerror(why),
             more_files(why), times);
}

static void warn_no_accept(struct inter_link *l, int why, neb_ns now) {
    uint64_t more;
    char times[48] = "";
    if (!neb_throttle_line(&l->no_accept, now, &more))
        return;
    if (more)
        snprintf(times, sizeof times, " (%llu more times since)", (unsigned long long)more);
    neb_warn("link: cannot accept a connection: %s%s%s", zmq_strerror(why), more_files(why), times);
}

void link_conn_dial(struct inter_link *l, struct peer *p, uint32_t index) {
    struct conn *c = &p->s[DIALED].c[index];
    const struct sec_public *me = sec_identity_public(l->cfg.identity);
    char where[SEC_ENDPOINT_MAX + 8];
    snprintf(where, sizeof where, "tcp://%s", p->where);
    *c = (struct conn){.fd = -1, .zmq_fd = -1, .way = ++l->last_way};
    c->sock = zmq_socket(l->ctx, ZMQ_DEALER);
    bool bad =
        !c->sock || !set_options(l, c->sock, index ? INTER_SOCKET_BULK : INTER_SOCKET_CONTROL);
    bad = bad ||
          zmq_setsockopt(c->sock, ZMQ_CURVE_SERVERKEY, p->member.pub.curve, SEC_KEY_BYTES) != 0 ||
          zmq_setsockopt(c->sock, ZMQ_CURVE_PUBLICKEY, me->curve, SEC_KEY_BYTES) != 0;
    if (!bad)
        c->mon = inter_monitor_open(l->ctx, c->sock,
                                    ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                                        ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED |
                                        HANDSHAKE_FAILED);
    if (bad || !c->mon || zmq_connect(c->sock, where) != 0) {
        warn_no_dial(p, where, zmq_errno(), neb_now());
        link_conn_close(l, p, c);
        c->retry_at = neb_now() + NEB_S;
    }
}

// Takes the result of a lookup that has ended.
static void hear_lookup(struct peer *p) {
    struct inter_addresses found;
    const char *why;
    if (!inter_lookup_ended(p->lookup, &found, &why))
        return;
    inter_lookup_destroy(&p->lookup);
    if (!found.n && !p->nowhere)
        neb_warn("link to %s: no address of %s: %s; %s", p->member.pub.name, p->member.endpoint,
                 why, p->at.n ? "dials the previous address" : "looks it up again");
    p->nowhere = !found.n;
    if (found.n)
        p->at = found;
}

// A previous address is better than none, and better than a long wait for a name server.
bool link_peer_find(struct peer *p, neb_ns now) {
    if (!inter_lookup_needed(p->member.endpoint)) {
        snprintf(p->where, sizeof p->where, "%s", p->member.endpoint);
        return true;
    }
    bool asked = p->lookup != NULL;
    if (!asked && inter_lookup_start(p->member.endpoint, &p->lookup) != NEB_OK) {
        p->dial_at = now + LOOKUP_RETRY;
        return false;
    }
    p->looked_up = asked ? p->looked_up : now;
    hear_lookup(p);
    if (p->lookup && (!p->at.n || now - p->looked_up < LOOKUP_WAIT))
        return false;
    if (!p->at.n) {
        p->dial_at = now + LOOKUP_RETRY;
        return false;
    }
    snprintf(p->where, sizeof p->where, "%s", p->at.a[p->tried++ % p->at.n]);
    return true;
}

void link_peer_moved(struct inter_link *l, struct peer *p) {
    inter_lookup_destroy(&p->lookup);
    p->at.n = p->tried = 0;
    p->nowhere = false;
    if (!p->s[DIALED].up) // a set that is up stays until it breaks
        link_set_close(l, p, DIALED);
    p->dial_at = 0;
}

void link_set_dial(struct inter_link *l, struct peer *p) {
    // Sessions only rise, so the listener can tell a new set from the rest of an old one.
    uint64_t session = (uint64_t)neb_wall_now();
    l->last_session = session > l->last_session ? session : l->last_session + 1;
    p->s[DIALED].session = l->last_session;
    p->s[DIALED].heard = p->s[DIALED].pinged = neb_now();
    for (uint32_t i = 0; i <= inter_stripes_open(&p->stripes); i++)
        link_conn_dial(l, p, i);
}

// Opens more bulk connections if either side can fill them. Unused ones stay open and idle.
void link_set_widen(struct inter_link *l, struct peer *p) {
    struct set *d = &p->s[DIALED];
    uint32_t open = inter_stripes_open(&p->stripes), want = p->asked > open ? p->asked : open;
    if (!d->up)
        return;
    for (uint32_t i = 1; i <= want; i++)
        if (!d->c[i].sock && !d->c[i].retry_at)
            link_conn_dial(l, p, i);
}

void link_set_came_up(struct inter_link *l, struct peer *p, struct set *s) {
    s->up = true;
    s->since = s->heard = neb_now();
    p->asked = p->told = 0;
    p->tried = 0;
    inter_lookup_destroy(&p->lookup); // its result would be old when this set breaks
    s->said = s->acks_at = s->since;
    s->pinged = 0; // PING at once, to know the round-trip time early
    s->pings = 0;
    link_peer_update(l, p);
}

// Moves a set aside for its successor. What is in flight on it still arrives.
void link_set_retire(struct inter_link *l, struct peer *p, int which) {
    int old = which + OLD_DIALED;
    link_set_close(l, p, old);
    p->s[old] = p->s[which];
    memset(&p->s[which], 0, sizeof p->s[which]);
    for (uint32_t i = 0; i < CONNS; i++) {
        p->s[which].c[i].fd = p->s[which].c[i].zmq_fd = -1;
        p->s[old].c[i].retry_at = 0; // no retry: the successor dials all connections
    }
}

void link_dial_events(struct inter_link *l, struct peer *p, int which, uint32_t index) {
    struct set *s = &p->s[which];
    struct conn *c = &s->c[index];
    uint16_t event;
    int value;
    while (c->mon && inter_monitor_read(c->mon, &event, &value)) {
        if (event == ZMQ_EVENT_CONNECTED)
            link_conn_watch(l, p, c, value);
        else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED && !c->hello_at) {
            uint8_t type = p->s[OLD_DIALED].up ? RENEW : HELLO;
            if (link_send_hello(l, c, type, s->session, (uint8_t)index))
                c->hello_at = neb_now();
            else
                c->lost = true;
        } else if (event == ZMQ_EVENT_DISCONNECTED && c->hello_at)
            c->lost = true;
        else if (event == ZMQ_EVENT_CONNECT_RETRIED && !c->hello_at &&
                 inter_lookup_needed(p->member.endpoint)) // the peer may have moved
            c->lost = c->denied = true;
        else if (event & HANDSHAKE_FAILED)
            // ZeroMQ never retries after this. We do: the peer may
            // add us to its list later.
            c->lost = c->denied = true;
        else if (event == ZMQ_EVENT_DISCONNECTED)
            link_conn_watch(l, p, c, -1); // refused handshake; ZeroMQ retries by itself
    }
}

void link_router_events(struct inter_link *l) {
    uint16_t event;
    int fd;
    while (l->router_mon && inter_monitor_read(l->router_mon, &event, &fd)) {
        if (event == ZMQ_EVENT_ACCEPT_FAILED) {
            warn_no_accept(l, fd, neb_now()); // the event's value is errno, no descriptor
            continue;
        }
        if (event == ZMQ_EVENT_ACCEPTED || event == ZMQ_EVENT_LISTENING) {
            (event == ZMQ_EVENT_ACCEPTED ? link_guard_accepted : link_guard_listens)(l, fd);
            continue;
        }
        link_guard_left(l, fd);
        for (uint32_t i = 0; i < l->n_peers; i++)
            for (uint32_t k = 0; k < 2 * CONNS; k++) {
                struct conn *c = &l->peers[i].s[k < CONNS ? ACCEPTED : OLD_ACCEPTED].c[k % CONNS];
                if (c->open && c->zmq_fd == fd && fd >= 0)
                    c->lost = true;
            }
    }
}

void link_peer_close(struct inter_link *l, struct peer *p) {
    p->parts_at = 0;
    for (int w = 0; w < SETS; w++)
        link_set_close(l, p, w);
}

// ZeroMQ drops what it has not given to the kernel when a connection closes, and cannot be asked
// how much that is. So the peer is cut off only after PARTING.
void link_peer_revoke(struct inter_link *l, struct peer *p) {
    p->revoked = true;
    p->parts_at = neb_now() + PARTING;
    link_peer_update(l, p);
}

enum neb_status link_listen(struct inter_link *l, const char *where) {
    char endpoint[SEC_ENDPOINT_MAX + 16];
    if (strlen(where) >= SEC_ENDPOINT_MAX)
        return neb_fail(NEB_ERR_INVALID, "listen: '%s' is not HOST:PORT", where);
    snprintf(endpoint, sizeof endpoint, "tcp://%s", where);
    l->router = zmq_socket(l->ctx, ZMQ_ROUTER);
    if (!l->router || !set_options(l, l->router, INTER_SOCKET_LISTEN) ||
        zmq_setsockopt(l->router, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) != 0)
        return neb_fail(NEB_ERR_IO, "listen: socket options: %s", zmq_strerror(zmq_errno()));
#ifdef ZMQ_ZAP_ENFORCE_DOMAIN
    // A DRAFT option. Without it, a listener without a ZAP handler admits everybody. Two things
    // prevent that: the handler is bound before this socket and outlives it, and sender() refuses a
    // message without a User-Id.
    int enforce = 1;
    if (zmq_setsockopt(l->router, ZMQ_ZAP_ENFORCE_DOMAIN, &enforce, sizeof enforce) != 0)
        return neb_fail(NEB_ERR_IO, "listen: ZAP_ENFORCE_DOMAIN: %s", zmq_strerror(zmq_errno()));
#endif
    l->router_mon =
        inter_monitor_open(l->ctx, l->router,
                           ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED |
                               ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED);
    if (!l->router_mon || zmq_bind(l->router, endpoint) != 0)
        return neb_fail(NEB_ERR_IO, "cannot listen on %s: %s", where, zmq_strerror(zmq_errno()));
    size_t n = sizeof endpoint;
    if (zmq_getsockopt(l->router, ZMQ_LAST_ENDPOINT, endpoint, &n) == 0)
        l->port = (uint32_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
    return NEB_OK;
}
