// See link.h. Frames inside a CURVE message, little-endian, first byte the type:
//
//     HELLO   u64 session, u8 connection    first on every connection, dialler to listener
//     RENEW   u64 session, u8 connection    the same, where the set before is kept until it is empty
//     WELCOME u64 session, u8 connection    the answer; only then the connection carries data
//     PING    i64 time     PONG i64 time, i64 day   control only; time is the asker's own
//     clock, given back; day the answerer's time of day
//     ACK     u8 connection, u64 bytes      control only; data bytes read so far from that connection
//     STRIPES u8 n                          control only; to the dialler: open n bulk connections, I could fill them
//     DATA    the caller's bytes
//
// ZeroMQ does not tell how much it holds. The ACKs do: what was sent and not acknowledged is the
// queue, wherever it sits (ZeroMQ, kernel, wire, peer), and it is bounded by bytes.
//
// ZeroMQ cannot close one connection of a ROUTER either. The link keeps a duplicate of each
// connection's descriptor: for TCP_INFO (byte counts) and to shut a revoked or stale connection
// down.
#include "inter/link.h"

#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "inter/rate_limit.h"
#include "inter/stripes.h"
#include "security/zap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ZAP_DOMAIN      "nebula"
#define PING_EVERY      (1 * NEB_S)
#define SILENCE         (4 * NEB_S) // nothing heard for so long: the set is down
#define RETRY_AFTER     (200 * NEB_MS)
#define DUPLICATE_GRACE (5 * NEB_S)
#define RECYCLE         (3600 * NEB_S) // CURVE never rekeys: connections this old are replaced
#define DRAIN_MIN       (2 * NEB_S)    // of a recycled set, from when its successor came up
#define DRAIN_MAX       (60 * NEB_S)

#define HANDSHAKE_FAILED                                                                           \
    (ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |                  \
     ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

enum { HELLO = 1, WELCOME, PING, PONG, ACK, DATA, RENEW, STRIPES };
enum {
    DIALED,
    ACCEPTED,
    OLD_DIALED,   // being recycled: its successor is up or on its way
    OLD_ACCEPTED,
    SETS,
    RID_BYTES = 5,
    BURST = 256,
    CONNS = 1 + INTER_LINK_MAX_BULK,
    RCV_HWM = 64
};

struct conn {
    void *sock, *mon;       // DEALER and its monitor; NULL on the listener's side
    uint8_t rid[RID_BYTES]; // listener's side: the ROUTER's own name for the connection
    int fd, zmq_fd;         // our duplicate, and the number ZeroMQ reports; -1: none
    bool open;              // HELLO and WELCOME done
    bool denied;            // dialler: the peer refused the handshake
    bool lost;              // found broken; cleaned up by the next process
    neb_ns hello_at;        // dialler: when HELLO went out; 0: not yet
    neb_ns retry_at;        // dialler: open again at; 0: not waiting
    uint64_t sent, acked;   // data bytes
    uint64_t recvd, recv_acked;
};

struct set {
    struct conn c[CONNS]; // [0] control
    uint64_t session;     // 0: no set
    bool up;
    neb_ns since, heard, pinged, data_at;
};

struct peer {
    struct sec_member member;
    struct sec_public former; // keys before a rotation, good until former_until (0: none)
    neb_ns former_until;
    bool self, revoked, up;
    struct set s[SETS];
    neb_ns dial_at, since, rtt, clock_offset;
    struct inter_stripes stripes; // this side sends on the first of them
    uint32_t asked, told;         // connections that the peer wants; that it was asked for
    uint64_t bulk_acked;          // since the last look at the stripes
    struct inter_tcp_counts closed; // of connections that are gone
    uint64_t connects, refused, dropped, recycled;
};

struct inter_link {
    struct inter_link_config cfg;
    struct sec_members members; // newest, by index of peer; of a revoked one all zero
    void *ctx;
    bool own_ctx;
    struct sec_zap *zap;
    void *router, *router_mon;
    uint32_t port, n_peers, self, mon_serial;
    uint64_t last_session;
    neb_ns deadline;
    struct inter_bucket bucket;
    uint64_t charged; // IP bytes taken from the bucket
    neb_ns settle_at;
    bool limited; // bulk was refused for the bucket
    inter_link_handler *handler; // during process
    void *user;
    struct peer peers[SEC_MEMBERS_MAX];
};

static int set_int(void *s, int option, int v) { return zmq_setsockopt(s, option, &v, sizeof v); }

static int set_i64(void *s, int option, int64_t v) {
    return zmq_setsockopt(s, option, &v, sizeof v);
}

// --- byte counts
// -------------------------------------------------------------------------------------------

static struct inter_tcp_counts conn_counts(const struct conn *c) { return inter_tcp_counts(c->fd); }

static void counts_add(struct inter_tcp_counts *a, struct inter_tcp_counts b) {
    a->sent += b.sent;
    a->recv += b.recv;
    a->sent_segs += b.sent_segs;
    a->recv_segs += b.recv_segs;
}

static void conn_watch(const struct inter_link *l, struct peer *p, struct conn *c, int zmq_fd) {
    if (c->fd >= 0) {
        counts_add(&p->closed, conn_counts(c));
        close(c->fd);
    }
    c->zmq_fd = zmq_fd;
    c->fd = zmq_fd >= 0 ? fcntl(zmq_fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (c->fd >= 0 && !inter_tcp_set_congestion(c->fd, l->cfg.congestion))
        neb_debug("link to %s: congestion control stays the system's", p->member.pub.name);
}

// --- who may connect
// ------------------------------------------------------------------------------------------

// Tells ZAP: everybody on the list, and those whose rotation overlaps with their former keys too.
static void admit(struct inter_link *l) {
    struct sec_members m = {.version = l->members.version};
    for (uint32_t i = 0; i < l->n_peers; i++)
        if (l->members.m[i].pub.name[0])
            m.m[m.n++] = l->members.m[i];
    for (uint32_t i = 0; i < l->n_peers; i++) {
        if (!l->peers[i].former_until)
            continue;
        if (m.n == SEC_MEMBERS_MAX) {
            neb_warn("the list is full: the former keys of %s are not admitted during its rotation",
                     l->peers[i].member.pub.name);
            continue;
        }
        m.m[m.n] = l->peers[i].member;
        m.m[m.n++].pub = l->peers[i].former;
    }
    sec_zap_set(l->zap, &m);
}

static void peer_init(const struct inter_link *l, struct peer *p, const struct sec_member *x) {
    uint32_t fixed = l->cfg.n_bulk;
    memset(p, 0, sizeof *p);
    inter_stripes_init(&p->stripes, fixed ? fixed : 2, fixed ? fixed : INTER_LINK_MAX_BULK);
    p->member = *x;
    p->revoked = !x->pub.name[0];
    for (int w = 0; w < SETS; w++)
        for (int k = 0; k < CONNS; k++)
            p->s[w].c[k].fd = p->s[w].c[k].zmq_fd = -1;
}

// --- opening and closing
// -----------------------------------------------------------------------------------

// Ends a connection and forgets it; its final byte count is kept.
static void conn_close(struct peer *p, struct conn *c) {
    p->dropped += c->sent - c->acked;
    if (c->fd >= 0) {
        counts_add(&p->closed, conn_counts(c));
        shutdown(c->fd, SHUT_RDWR);
        close(c->fd);
    }
    if (c->sock) {
        zmq_socket_monitor(c->sock, NULL, 0);
        zmq_close(c->sock);
    }
    if (c->mon)
        zmq_close(c->mon);
    *c = (struct conn){.fd = -1, .zmq_fd = -1};
}

static void tell(struct inter_link *l, struct peer *p, enum inter_link_kind kind) {
    struct inter_link_event e = {.kind = kind, .peer = (uint32_t)(p - l->peers)};
    if (l->handler)
        l->handler(l->user, &e);
}

// Reports the change when the last set went down or the first came up.
static void peer_update(struct inter_link *l, struct peer *p) {
    bool up = false;
    for (int w = 0; w < SETS; w++)
        up = up || p->s[w].up;
    if (up == p->up || !l->handler) // outside of process: told by the next one
        return;
    p->up = up;
    p->since = neb_now();
    if (up)
        p->connects++;
    else
        p->rtt = 0;
    tell(l, p, up ? INTER_LINK_UP : INTER_LINK_DOWN);
}

static void set_close(struct inter_link *l, struct peer *p, int which) {
    struct set *s = &p->s[which];
    for (uint32_t i = 0; i < CONNS; i++)
        conn_close(p, &s->c[i]);
    s->session = 0;
    s->up = false;
    if (which == DIALED)
        p->dial_at = neb_now() + RETRY_AFTER;
    peer_update(l, p);
}

static bool prefers_dialed(const struct inter_link *l, const struct peer *p) {
    return memcmp(sec_identity_public(l->cfg.identity)->curve, p->member.pub.curve, SEC_KEY_BYTES) <
           0;
}

static int common_options(const struct inter_link *l, void *s) {
    int bad = set_i64(s, ZMQ_MAXMSGSIZE, (int64_t)l->cfg.chunk_bytes + INTER_LINK_SLACK);
    bad |= set_int(s, ZMQ_HANDSHAKE_IVL, 3000) | set_int(s, ZMQ_LINGER, 0) |
           set_int(s, ZMQ_IMMEDIATE, 1);
    bad |= set_int(s, ZMQ_RECONNECT_IVL, 200) | set_int(s, ZMQ_RECONNECT_IVL_MAX, 400);
    bad |= set_int(s, ZMQ_CONNECT_TIMEOUT, 1000) | set_int(s, ZMQ_TCP_MAXRT, 10000);
    bad |= set_int(s, ZMQ_RCVHWM, RCV_HWM) | set_int(s, ZMQ_IPV6, 1);
    bad |= zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, sec_identity_curve_secret(l->cfg.identity),
                          SEC_KEY_BYTES);
    return bad;
}

static void *monitor(struct inter_link *l, void *s, int events) {
    char name[64];
    snprintf(name, sizeof name, "inproc://nebula.mon.%p.%u", (void *)l, l->mon_serial++);
    if (zmq_socket_monitor(s, name, events) != 0)
        return NULL;
    void *m = zmq_socket(l->ctx, ZMQ_PAIR);
    if (m && (set_int(m, ZMQ_LINGER, 0) != 0 || zmq_connect(m, name) != 0)) {
        zmq_close(m);
        m = NULL;
    }
    return m;
}

static void conn_dial(struct inter_link *l, struct peer *p, uint32_t index) {
    struct conn *c = &p->s[DIALED].c[index];
    const struct sec_public *me = sec_identity_public(l->cfg.identity);
    char where[SEC_ENDPOINT_MAX + 8];
    snprintf(where, sizeof where, "tcp://%s", p->member.endpoint);
    *c = (struct conn){.fd = -1, .zmq_fd = -1};
    c->sock = zmq_socket(l->ctx, ZMQ_DEALER);
    int bad = !c->sock || common_options(l, c->sock) != 0;
    bad = bad ||
          zmq_setsockopt(c->sock, ZMQ_CURVE_SERVERKEY, p->member.pub.curve, SEC_KEY_BYTES) != 0 ||
          zmq_setsockopt(c->sock, ZMQ_CURVE_PUBLICKEY, me->curve, SEC_KEY_BYTES) != 0;
    if (!bad && index == 0) // pings on a bulk connection queue behind data and expire
        bad = set_int(c->sock, ZMQ_HEARTBEAT_IVL, 1000) |
              set_int(c->sock, ZMQ_HEARTBEAT_TIMEOUT, 4000) |
              set_int(c->sock, ZMQ_HEARTBEAT_TTL, 4000);
    if (!bad)
        c->mon = monitor(l, c->sock,
                         ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                             ZMQ_EVENT_DISCONNECTED | HANDSHAKE_FAILED);
    if (bad || !c->mon || zmq_connect(c->sock, where) != 0) {
        neb_warn("link to %s: cannot dial %s: %s", p->member.pub.name, where,
                 zmq_strerror(zmq_errno()));
        conn_close(p, c);
        c->retry_at = neb_now() + NEB_S;
    }
}

static void set_dial(struct inter_link *l, struct peer *p) {
    // Sessions rise, so that a listener can tell a new set from what is left of an old one.
    uint64_t session = (uint64_t)neb_wall_now();
    l->last_session = session > l->last_session ? session : l->last_session + 1;
    p->s[DIALED].session = l->last_session;
    p->s[DIALED].heard = p->s[DIALED].pinged = neb_now();
    for (uint32_t i = 0; i <= p->stripes.use; i++)
        conn_dial(l, p, i);
}

// More bulk connections, when either side could fill them. Those that are not needed any more stay open, idle.
static void set_widen(struct inter_link *l, struct peer *p) {
    struct set *d = &p->s[DIALED];
    uint32_t want = p->asked > p->stripes.use ? p->asked : p->stripes.use;
    if (!d->up)
        return;
    for (uint32_t i = 1; i <= want; i++)
        if (!d->c[i].sock && !d->c[i].retry_at)
            conn_dial(l, p, i);
}

// --- sending
// -----------------------------------------------------------------------------------------------

// Sends and gives the message away; false: it was not taken (AGAIN), or the connection is lost.
static bool conn_send(struct inter_link *l, struct conn *c, zmq_msg_t *m) {
    void *s = c->sock ? c->sock : l->router;
    bool ok = c->sock || zmq_send(s, c->rid, RID_BYTES, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0;
    if (!ok && zmq_errno() == EHOSTUNREACH)
        c->lost = true;
    ok = ok && zmq_msg_send(m, s, ZMQ_DONTWAIT) >= 0;
    if (!ok)
        zmq_msg_close(m);
    return ok;
}

static bool conn_send_small(struct inter_link *l, struct conn *c, const uint8_t *p, size_t n) {
    zmq_msg_t m;
    if (zmq_msg_init_size(&m, n) != 0)
        return false;
    memcpy(zmq_msg_data(&m), p, n);
    return conn_send(l, c, &m);
}

static bool send_hello(struct inter_link *l, struct conn *c, uint8_t type, uint64_t session,
                       uint8_t index) {
    uint8_t b[10] = {type};
    neb_put_u64(b + 1, session);
    b[9] = index;
    return conn_send_small(l, c, b, sizeof b);
}

static bool send_time(struct inter_link *l, struct conn *c, uint8_t type, uint64_t t) {
    uint8_t b[9] = {type};
    neb_put_u64(b + 1, t);
    return conn_send_small(l, c, b, sizeof b);
}

static bool send_pong(struct inter_link *l, struct conn *c, uint64_t t) {
    uint8_t b[17] = {PONG};
    neb_put_u64(b + 1, t);
    neb_put_u64(b + 9, (uint64_t)neb_wall_now());
    return conn_send_small(l, c, b, sizeof b);
}

static struct set *active(const struct inter_link *l, struct peer *p) {
    int want = prefers_dialed(l, p) ? DIALED : ACCEPTED, other = DIALED + ACCEPTED - want;
    const int order[SETS] = {want, want + OLD_DIALED, other, other + OLD_DIALED};
    for (int i = 0; i < SETS; i++)
        if (p->s[order[i]].up)
            return &p->s[order[i]];
    return NULL;
}

enum neb_status inter_link_send2(struct inter_link *l, uint32_t peer, enum inter_channel channel,
                                 const void *hdr, size_t hlen, const void *data, size_t len) {
    if (peer >= l->n_peers || l->peers[peer].self)
        return neb_fail(NEB_ERR_INVALID, "link: no peer %u", peer);
    size_t limit =
        channel == INTER_CONTROL ? INTER_LINK_CONTROL_MAX : l->cfg.chunk_bytes + INTER_LINK_SLACK;
    if (limit > l->cfg.chunk_bytes + INTER_LINK_SLACK)
        limit = l->cfg.chunk_bytes + INTER_LINK_SLACK;
    if (hlen >= limit || len >= limit - hlen)
        return neb_fail(NEB_ERR_LIMIT, "link: message of %zu bytes, at most %zu", hlen + len,
                        limit - 1);
    struct set *s = active(l, &l->peers[peer]);
    if (!s)
        return NEB_ERR_AGAIN;
    size_t n = 1 + hlen + len;
    uint64_t queued = 0, least = UINT64_MAX;
    struct conn *c = NULL;
    bool bulk = channel == INTER_BULK;
    uint32_t first = bulk, last = bulk ? INTER_LINK_MAX_BULK : 0, used = 0;
    for (uint32_t i = first; i <= last; i++) {
        uint64_t q = s->c[i].sent - s->c[i].acked;
        if (!s->c[i].open || s->c[i].lost)
            continue;
        queued += q;
        if (q < least && (!bulk || used++ < l->peers[peer].stripes.use))
            least = q, c = &s->c[i];
    }
    if (c && bulk && !inter_bucket_ready(&l->bucket, neb_now())) {
        l->limited = true;
        return NEB_ERR_AGAIN;
    }
    if (!c || (queued && queued + n > (channel == INTER_BULK ? l->cfg.bulk_queue_bytes
                                                             : l->cfg.control_queue_bytes)))
        return NEB_ERR_AGAIN;
    zmq_msg_t m;
    if (zmq_msg_init_size(&m, n) != 0)
        return neb_fail(NEB_ERR_NOMEM, "link: message of %zu bytes", n);
    uint8_t *b = zmq_msg_data(&m);
    b[0] = DATA;
    if (hlen)
        memcpy(b + 1, hdr, hlen);
    if (len)
        memcpy(b + 1 + hlen, data, len);
    if (!conn_send(l, c, &m))
        return NEB_ERR_AGAIN;
    c->sent += n;
    l->charged += inter_tcp_wire_bytes(n);
    inter_bucket_take(&l->bucket, inter_tcp_wire_bytes(n));
    return NEB_OK;
}

enum neb_status inter_link_send(struct inter_link *l, uint32_t peer, enum inter_channel channel,
                                const void *data, size_t len) {
    return inter_link_send2(l, peer, channel, NULL, 0, data, len);
}

// --- receiving
// ---------------------------------------------------------------------------------------------

static void set_came_up(struct inter_link *l, struct peer *p, struct set *s) {
    s->up = true;
    s->since = s->heard = neb_now();
    p->asked = p->told = 0;
    s->pinged = 0; // the first PING now: the round-trip time is known early
    peer_update(l, p);
}

// A frame on an open connection; false: refused.
static bool on_frame(struct inter_link *l, struct peer *p, int which, uint32_t index,
                     const uint8_t *b, size_t n) {
    struct set *s = &p->s[which];
    struct conn *c = &s->c[index];
    struct neb_rd r = neb_rd_make(b + 1, n - 1);
    s->heard = neb_now();
    if (b[0] == DATA) {
        if (index == 0 && n > INTER_LINK_CONTROL_MAX)
            return false;
        c->recvd += n;
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
    if (index != 0)
        return false;
    if (b[0] == PING && n == 9)
        return send_pong(l, c, neb_rd_u64(&r)), true;
    if (b[0] == PONG && n == 17) {
        neb_ns rtt = neb_now() - neb_rd_i64(&r), day = neb_rd_i64(&r);
        if (rtt < 0 || rtt > 60 * NEB_S || day < 0)
            return false;
        p->clock_offset = day + rtt / 2 - neb_wall_now();
        p->rtt = p->rtt ? (7 * p->rtt + rtt) / 8 : rtt;
        return true;
    }
    if (b[0] == ACK && n == 10) {
        uint8_t i = neb_rd_u8(&r);
        uint64_t bytes = neb_rd_u64(&r);
        if (i >= CONNS || bytes > s->c[i].sent) // may be of a connection before this one: no harm
            return false;
        if (bytes > s->c[i].acked) {
            p->bulk_acked += i ? bytes - s->c[i].acked : 0;
            s->c[i].acked = bytes;
        }
        return true;
    }
    if (b[0] == STRIPES && n == 2 && which == DIALED) {
        uint8_t want = neb_rd_u8(&r);
        p->asked = want > p->stripes.max ? p->stripes.max : want;
        return true;
    }
    return false;
}

static void dealer_read(struct inter_link *l, struct peer *p, int which, uint32_t index) {
    struct set *s = &p->s[which];
    for (int k = 0; k < BURST && s->c[index].sock; k++) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, s->c[index].sock, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            return;
        }
        const uint8_t *b = zmq_msg_data(&m);
        size_t n = zmq_msg_size(&m);
        struct neb_rd r = neb_rd_make(b, n);
        bool ok = n > 0 && !zmq_msg_more(&m);
        if (ok && !s->c[index].open) {
            ok = neb_rd_u8(&r) == WELCOME && neb_rd_u64(&r) == s->session &&
                 neb_rd_u8(&r) == index && neb_rd_done(&r);
            s->c[index].open = ok;
            if (ok && index == 0)
                set_came_up(l, p, s);
        } else if (ok) {
            ok = on_frame(l, p, which, index, b, n);
        }
        p->refused += !ok;
        zmq_msg_close(&m);
    }
}

// Sets a set aside for its successor; what travels on it still arrives.
static void set_retire(struct inter_link *l, struct peer *p, int which) {
    int old = which + OLD_DIALED;
    set_close(l, p, old);
    p->s[old] = p->s[which];
    memset(&p->s[which], 0, sizeof p->s[which]);
    for (uint32_t i = 0; i < CONNS; i++)
        p->s[which].c[i].fd = p->s[which].c[i].zmq_fd = -1;
}

// HELLO or RENEW from an admitted member: takes the connection into its set, a newer session
// replaces the whole set.
static bool on_hello(struct inter_link *l, struct peer *p, const uint8_t *rid, int fd,
                     const uint8_t *b, size_t n) {
    struct set *s = &p->s[ACCEPTED];
    struct neb_rd r = neb_rd_make(b, n);
    uint8_t type = neb_rd_u8(&r);
    bool ok = type == HELLO || type == RENEW;
    uint64_t session = neb_rd_u64(&r);
    uint8_t index = neb_rd_u8(&r);
    if (!ok || !neb_rd_done(&r) || index >= CONNS || session == 0 || session < s->session)
        return false;
    if (session > s->session && type == RENEW && s->up)
        set_retire(l, p, ACCEPTED);
    else if (session > s->session)
        set_close(l, p, ACCEPTED);
    s->session = session;
    struct conn *c = &s->c[index];
    if (c->open)
        conn_close(p, c);
    *c = (struct conn){.fd = -1, .zmq_fd = -1, .open = true};
    memcpy(c->rid, rid, RID_BYTES);
    conn_watch(l, p, c, fd);
    if (!send_hello(l, c, WELCOME, session, index))
        return conn_close(p, c), false;
    s->heard = neb_now();
    if (index == 0)
        set_came_up(l, p, s);
    return true;
}

// Which member a message is from: by what ZAP admitted its connection as.
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
    if (!p) { // its key has left the list since the handshake
        kick(fd);
        return;
    }
    // Names the ROUTER gives start with 0; any other was chosen by the peer, who could then take
    // over another's.
    if (p->revoked || p->member.connect == SEC_CONNECT_OUT || rid_len != RID_BYTES || rid[0] != 0 ||
        n == 0) {
        p->refused++;
        kick(fd);
        return;
    }
    for (int w = ACCEPTED; w < SETS; w += OLD_ACCEPTED - ACCEPTED)
        for (uint32_t i = 0; i < CONNS; i++)
            if (p->s[w].c[i].open && !memcmp(p->s[w].c[i].rid, rid, RID_BYTES)) {
                p->refused += !on_frame(l, p, w, i, b, n);
                return;
            }
    if (!on_hello(l, p, rid, fd, b, n)) {
        p->refused++;
        kick(fd);
    }
}

static void router_read(struct inter_link *l) {
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
            if (part == 0 && !more) // more parts than one are not of this protocol
                router_message(l, rid, (size_t)n, &m);
            zmq_msg_close(&m);
        }
    }
}

// One monitor event: event number (u16) and value (u32), then the address. false: none.
static bool monitor_read(void *mon, uint16_t *event, int *value) {
    uint8_t b[6], address[256];
    if (zmq_recv(mon, b, sizeof b, ZMQ_DONTWAIT) != (int)sizeof b)
        return false;
    zmq_recv(mon, address, sizeof address, ZMQ_DONTWAIT);
    memcpy(event, b, 2); // in the byte order of this host, which wrote it
    memcpy(value, b + 2, 4);
    return true;
}

// --- the pass
// ----------------------------------------------------------------------------------------------

static void dial_events(struct inter_link *l, struct peer *p, int which, uint32_t index) {
    struct set *s = &p->s[which];
    struct conn *c = &s->c[index];
    uint16_t event;
    int value;
    while (c->mon && monitor_read(c->mon, &event, &value)) {
        if (event == ZMQ_EVENT_CONNECTED)
            conn_watch(l, p, c, value);
        else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED && !c->hello_at) {
            uint8_t type = p->s[OLD_DIALED].up ? RENEW : HELLO;
            if (send_hello(l, c, type, s->session, (uint8_t)index))
                c->hello_at = neb_now();
            else
                c->lost = true;
        } else if (event == ZMQ_EVENT_DISCONNECTED && c->hello_at)
            c->lost = true;
        else if (event & HANDSHAKE_FAILED) // ZeroMQ gives up for good then; the peer may yet add us
                                           // to its list
            c->lost = c->denied = true;
        else if (event == ZMQ_EVENT_DISCONNECTED)
            conn_watch(l, p, c, -1); // refused handshake; ZeroMQ tries again by itself
    }
}

static void router_events(struct inter_link *l) {
    uint16_t event;
    int fd;
    while (l->router_mon && monitor_read(l->router_mon, &event, &fd))
        for (uint32_t i = 0; i < l->n_peers; i++)
            for (uint32_t k = 0; k < 2 * CONNS; k++) {
                struct conn *c =
                    &l->peers[i].s[k < CONNS ? ACCEPTED : OLD_ACCEPTED].c[k % CONNS];
                if (c->open && c->zmq_fd == fd && fd >= 0)
                    c->lost = true;
            }
}

// Lost connections: control takes its set down, a bulk connection is dialled again alone.
static void set_clean(struct inter_link *l, struct peer *p, int which, neb_ns now) {
    struct set *s = &p->s[which];
    if (!s->session)
        return;
    bool down = s->c[0].lost || (s->up && now - s->heard > SILENCE);
    for (uint32_t i = 0; i < CONNS && !down; i++) {
        struct conn *c = &s->c[i];
        bool unanswered = which == DIALED && c->hello_at && !c->open && now - c->hello_at > SILENCE;
        if (unanswered && i == 0)
            down = true;
        else if (c->lost || unanswered) {
            conn_close(p, c);
            c->retry_at = which == DIALED ? now + RETRY_AFTER : 0;
        } else if (c->retry_at && now >= c->retry_at) {
            conn_dial(l, p, i);
        }
    }
    // Accepted bulk connections whose control never came are given up too.
    if (which == ACCEPTED && !s->up && now - s->heard > SILENCE)
        down = true;
    bool denied = s->c[0].denied;
    if (down)
        set_close(l, p, which);
    if (down && denied)
        p->dial_at = now + NEB_S;
}

static void set_pulse(struct inter_link *l, struct set *s, neb_ns now) {
    if (!s->up)
        return;
    if (now - s->pinged >= PING_EVERY && send_time(l, &s->c[0], PING, (uint64_t)now))
        s->pinged = now;
    for (uint32_t i = 0; i < CONNS; i++) {
        struct conn *c = &s->c[i];
        if (!c->open || c->recvd == c->recv_acked)
            continue;
        uint8_t b[10] = {ACK, (uint8_t)i};
        neb_put_u64(b + 2, c->recvd);
        if (conn_send_small(l, &s->c[0], b, sizeof b))
            c->recv_acked = c->recvd;
    }
}

static uint64_t set_queued(const struct set *s) {
    uint64_t queued = 0;
    for (uint32_t i = 0; i < CONNS; i++)
        queued += s->c[i].sent - s->c[i].acked;
    return queued;
}

// Replaces connections that are old by fresh ones, and closes the old once nothing travels on them.
static void peer_recycle(struct inter_link *l, struct peer *p, neb_ns now) {
    struct set *d = &p->s[DIALED], *old = &p->s[OLD_DIALED];
    if (d->up && old->session) {
        neb_ns age = now - d->since;
        bool quiet = !set_queued(old) && now - old->data_at > NEB_S;
        if ((age > DRAIN_MIN && quiet) || age > DRAIN_MAX || !old->up)
            set_close(l, p, OLD_DIALED);
    } else if (d->up && now - d->since >= l->cfg.recycle) {
        set_retire(l, p, DIALED);
        p->recycled++;
        p->dial_at = now;
    }
}

// Cuts a peer off, with every connection.
static void peer_close(struct inter_link *l, struct peer *p) {
    for (int w = 0; w < SETS; w++)
        set_close(l, p, w);
}

// The overlap of a rotation is over: the keys before it open nothing any more.
static void peer_forget_former(struct inter_link *l, struct peer *p, neb_ns now) {
    if (!p->former_until || now < p->former_until)
        return;
    p->former_until = 0;
    admit(l);
    peer_close(l, p); // who still uses the old keys does not come back; others do at once
}

// Do more connections fill the link better? The dialler opens them, the listener asks for them.
static void peer_stripes(struct inter_link *l, struct peer *p, neb_ns now) {
    struct set *s = active(l, p);
    uint64_t queued = 0;
    for (uint32_t i = 1; s && i < CONNS; i++)
        queued += s->c[i].sent - s->c[i].acked;
    if (inter_stripes_step(&p->stripes, now, p->bulk_acked, queued > 0, p->rtt))
        neb_debug("link to %s: sends on %u bulk connections (%.1f Mbit/s before)",
                  p->member.pub.name, p->stripes.use, p->stripes.rate / 1e6);
    p->bulk_acked = 0;
    if (s == &p->s[DIALED])
        set_widen(l, p);
    else if (s && p->told != p->stripes.use) {
        uint8_t b[2] = {STRIPES, (uint8_t)p->stripes.use};
        if (conn_send_small(l, &s->c[0], b, sizeof b))
            p->told = p->stripes.use;
    }
}

static uint64_t sent_ip_bytes(const struct inter_link *l) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < l->n_peers; i++) {
        struct inter_tcp_counts n = l->peers[i].closed;
        for (int w = 0; w < SETS; w++)
            for (uint32_t k = 0; k < CONNS; k++)
                counts_add(&n, conn_counts(&l->peers[i].s[w].c[k]));
        total += n.sent + INTER_TCP_HEADERS * n.sent_segs;
    }
    return total;
}

// What the kernel sent beyond what was charged: repetitions, handshakes, small talk.
static void bucket_settle(struct inter_link *l, neb_ns now) {
    if (!l->bucket.bps || now < l->settle_at)
        return;
    l->settle_at = now + 100 * NEB_MS;
    uint64_t sent = sent_ip_bytes(l);
    if (sent <= l->charged)
        return;
    inter_bucket_take(&l->bucket, sent - l->charged);
    l->charged = sent;
}

static void peer_dialing(struct inter_link *l, struct peer *p, neb_ns now) {
    struct set *d = &p->s[DIALED], *a = &p->s[ACCEPTED];
    bool may = p->member.endpoint[0] && p->member.connect != SEC_CONNECT_IN && !p->revoked;
    if (!d->session && may && !a->up && now >= p->dial_at)
        set_dial(l, p);
    if (!d->session || !a->up || prefers_dialed(l, p))
        return;
    if (!d->up || (now - a->since > NEB_S && !set_queued(d)) || now - a->since > DUPLICATE_GRACE)
        set_close(l, p, DIALED); // the peer's own set is kept: its key is lower
}

enum neb_status inter_link_process(struct inter_link *l, inter_link_handler *handler, void *user) {
    l->handler = handler;
    l->user = user;
    router_events(l);
    for (uint32_t i = 0; i < l->n_peers; i++)
        for (uint32_t k = 0; k < 2 * CONNS; k++) {
            int which = k < CONNS ? OLD_DIALED : DIALED; // what is older is read first
            if (!l->peers[i].s[which].c[k % CONNS].sock)
                continue;
            dial_events(l, &l->peers[i], which, k % CONNS);
            dealer_read(l, &l->peers[i], which, k % CONNS);
        }
    if (l->router)
        router_read(l);
    neb_ns now = neb_now();
    l->deadline = now + NEB_S;
    for (uint32_t i = 0; i < l->n_peers; i++) {
        struct peer *p = &l->peers[i];
        peer_forget_former(l, p, now);
        if (p->self)
            continue;
        peer_update(l, p);
        for (int w = 0; w < SETS; w++) {
            set_clean(l, p, w, now);
            set_pulse(l, &p->s[w], now);
            neb_ns next = p->s[w].up ? p->s[w].pinged + PING_EVERY : now + RETRY_AFTER;
            if (next < l->deadline)
                l->deadline = next;
        }
        peer_recycle(l, p, now);
        peer_dialing(l, p, now);
        peer_stripes(l, p, now);
    }
    bucket_settle(l, now);
    if (l->limited && inter_bucket_when(&l->bucket) < l->deadline)
        l->deadline = inter_bucket_when(&l->bucket);
    l->handler = NULL;
    return NEB_OK;
}

void inter_link_limit(struct inter_link *l, uint64_t bps) {
    if (bps && !l->bucket.bps) // what was sent without a limit is no debt
        l->charged = sent_ip_bytes(l);
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
            const struct conn *c =
                &l->peers[i].s[j < CONNS ? DIALED : OLD_DIALED].c[j % CONNS];
            if (c->sock && n++ < cap)
                items[n - 1] = (zmq_pollitem_t){.socket = c->sock, .events = ZMQ_POLLIN};
            if (c->mon && n++ < cap)
                items[n - 1] = (zmq_pollitem_t){.socket = c->mon, .events = ZMQ_POLLIN};
        }
    return n;
}

neb_ns inter_link_next_deadline(const struct inter_link *l) { return l->deadline; }
uint32_t inter_link_port(const struct inter_link *l) { return l->port; }
uint64_t inter_link_refused(const struct inter_link *l) { return sec_zap_refused(l->zap); }

enum neb_status inter_link_stats(struct inter_link *l, uint32_t peer,
                                 struct inter_link_stats *out) {
    if (peer >= l->n_peers)
        return neb_fail(NEB_ERR_INVALID, "link: no peer %u", peer);
    struct peer *p = &l->peers[peer];
    struct inter_tcp_counts n = p->closed;
    uint64_t queued = 0;
    uint32_t open = 0;
    struct set *s = active(l, p);
    for (uint32_t i = 1; s && i < CONNS; i++)
        open += s->c[i].open && !s->c[i].lost;
    for (int w = 0; w < SETS; w++)
        for (uint32_t i = 0; i < CONNS; i++) {
            counts_add(&n, conn_counts(&p->s[w].c[i]));
            queued += p->s[w].c[i].sent - p->s[w].c[i].acked;
        }
    *out = (struct inter_link_stats){.up = p->up,
                                     .since = p->since,
                                     .rtt = p->rtt,
                                     .clock_offset = p->clock_offset,
                                     .sent_bytes = n.sent,
                                     .recv_bytes = n.recv,
                                     .sent_segs = n.sent_segs,
                                     .recv_segs = n.recv_segs,
                                     .bulk_open = open,
                                     .bulk_used = open < p->stripes.use ? open : p->stripes.use,
                                     .queued_bytes = queued,
                                     .connects = p->connects,
                                     .recycled = p->recycled,
                                     .refused = p->refused,
                                     .dropped = p->dropped};
    inter_tcp_congestion(s ? s->c[0].fd : -1, out->congestion);
    return NEB_OK;
}

// Index of the peer that is or was called so; n_peers: none.
static uint32_t peer_named(const struct inter_link *l, const char *name) {
    uint32_t i = 0;
    while (i < l->n_peers && strcmp(l->peers[i].member.pub.name, name) != 0)
        i++;
    return i;
}

// One member of a newer list: known, with other keys, or new.
static void reload_member(struct inter_link *l, const struct sec_member *x, bool keep_former,
                          neb_ns overlap) {
    uint32_t i = peer_named(l, x->pub.name);
    struct peer *p = &l->peers[i];
    if (i == l->n_peers) {
        l->n_peers++;
        peer_init(l, p, x);
    }
    l->members.m[i] = *x;
    bool same = !memcmp(&x->pub, &p->member.pub, sizeof x->pub);
    if (!same && keep_former && !p->revoked) { // of this member itself too: what it has signed stands
        p->former = p->member.pub;
        p->former_until = neb_now() + overlap;
    } else if (!same) {
        p->former_until = 0;
        peer_close(l, p);
    }
    p->revoked = false;
    p->member = *x;
}

enum neb_status inter_link_reload(struct inter_link *l, const struct sec_members *m,
                                  const char *rotated, neb_ns overlap) {
    uint32_t added = 0;
    if (m->version <= l->members.version)
        return neb_fail(NEB_ERR_DENIED, "member list: version %llu is not newer than %llu",
                        (unsigned long long)m->version, (unsigned long long)l->members.version);
    for (uint32_t k = 0; k < m->n; k++)
        added += peer_named(l, m->m[k].pub.name) == l->n_peers;
    if (l->n_peers + added > SEC_MEMBERS_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "member list: %u members came and went while this link ran, at most %d",
                        l->n_peers + added, SEC_MEMBERS_MAX);
    memset(&l->members, 0, sizeof l->members);
    l->members.version = m->version;
    memcpy(l->members.federation, m->federation, sizeof m->federation);
    for (uint32_t k = 0; k < m->n; k++)
        reload_member(l, &m->m[k], rotated && !strcmp(rotated, m->m[k].pub.name), overlap);
    l->members.n = l->n_peers;
    for (uint32_t i = 0; i < l->n_peers; i++)
        if (!l->members.m[i].pub.name[0] && !l->peers[i].self) {
            l->peers[i].revoked = true;
            l->peers[i].former_until = 0;
            peer_close(l, &l->peers[i]);
        }
    admit(l);
    return NEB_OK;
}

const struct sec_members *inter_link_members(const struct inter_link *l) { return &l->members; }

const struct sec_public *inter_link_former(const struct inter_link *l, uint32_t peer,
                                           neb_ns *until) {
    bool has = peer < l->n_peers && l->peers[peer].former_until;
    if (has && until)
        *until = l->peers[peer].former_until;
    return has ? &l->peers[peer].former : NULL;
}

void inter_link_keep_former(struct inter_link *l, uint32_t peer, const struct sec_public *former,
                            neb_ns until) {
    l->peers[peer].former = *former;
    l->peers[peer].former_until = until;
    admit(l);
}

static enum neb_status listen_on(struct inter_link *l, const char *where) {
    char endpoint[SEC_ENDPOINT_MAX + 16];
    if (strlen(where) >= SEC_ENDPOINT_MAX)
        return neb_fail(NEB_ERR_INVALID, "listen: '%s' is not HOST:PORT", where);
    snprintf(endpoint, sizeof endpoint, "tcp://%s", where);
    l->router = zmq_socket(l->ctx, ZMQ_ROUTER);
    if (!l->router || common_options(l, l->router) != 0 ||
        set_int(l->router, ZMQ_CURVE_SERVER, 1) != 0 ||
        set_int(l->router, ZMQ_ROUTER_MANDATORY, 1) != 0 ||
        zmq_setsockopt(l->router, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN)) != 0)
        return neb_fail(NEB_ERR_IO, "listen: socket options: %s", zmq_strerror(zmq_errno()));
#ifdef ZMQ_ZAP_ENFORCE_DOMAIN
    // A DRAFT option. Without it a listener with no ZAP handler would admit anybody: the handler is
    // bound before this socket and outlives it, and sender() refuses what carries no User-Id.
    if (set_int(l->router, ZMQ_ZAP_ENFORCE_DOMAIN, 1) != 0)
        return neb_fail(NEB_ERR_IO, "listen: ZAP_ENFORCE_DOMAIN: %s", zmq_strerror(zmq_errno()));
#endif
    l->router_mon = monitor(l, l->router, ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED);
    if (!l->router_mon || zmq_bind(l->router, endpoint) != 0)
        return neb_fail(NEB_ERR_IO, "cannot listen on %s: %s", where, zmq_strerror(zmq_errno()));
    size_t n = sizeof endpoint;
    if (zmq_getsockopt(l->router, ZMQ_LAST_ENDPOINT, endpoint, &n) == 0)
        l->port = (uint32_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
    return NEB_OK;
}

enum neb_status inter_link_create(const struct inter_link_config *cfg, struct inter_link **out) {
    enum neb_status st;
    const struct sec_public *me = sec_identity_public(cfg->identity);
    const struct sec_member *self = sec_members_by_curve(cfg->members, me->curve);
    if (cfg->n_bulk > INTER_LINK_MAX_BULK || !self || cfg->chunk_bytes > (size_t)64 << 20)
        return neb_fail(
            NEB_ERR_INVALID,
            "link: bulk connections above %d, chunk above 64 MiB, or '%s' not on the list",
            INTER_LINK_MAX_BULK, me->name);
    NEB_TRY(sec_init());
    struct inter_link *l = calloc(1, sizeof *l);
    if (!l)
        return neb_fail(NEB_ERR_NOMEM, "link");
    l->cfg = *cfg;
    l->cfg.chunk_bytes = cfg->chunk_bytes ? cfg->chunk_bytes : (size_t)1 << 20;
    l->cfg.bulk_queue_bytes = cfg->bulk_queue_bytes ? cfg->bulk_queue_bytes : (size_t)64 << 20;
    l->cfg.control_queue_bytes =
        cfg->control_queue_bytes ? cfg->control_queue_bytes : (size_t)1 << 20;
    l->cfg.recycle = cfg->recycle ? cfg->recycle : RECYCLE;
    l->members = *cfg->members;
    l->n_peers = l->members.n;
    l->self = (uint32_t)(self - cfg->members->m);
    for (uint32_t i = 0; i < l->n_peers; i++) {
        peer_init(l, &l->peers[i], &l->members.m[i]);
        l->peers[i].self = i == l->self;
    }
    l->own_ctx = !cfg->zmq_context;
    l->ctx = cfg->zmq_context ? cfg->zmq_context : zmq_ctx_new();
    if (!l->ctx) {
        st = neb_fail(NEB_ERR_NOMEM, "link: no ZeroMQ context");
        goto fail;
    }
    // Three a connection, 33 connections a peer. Without effect once the context has sockets.
    zmq_ctx_set(l->ctx, ZMQ_MAX_SOCKETS, 4096);
    NEB_TRY_GOTO(sec_zap_create(l->ctx, ZAP_DOMAIN, &l->zap), fail);
    admit(l);
    if (cfg->listen)
        NEB_TRY_GOTO(listen_on(l, cfg->listen), fail);
    *out = l;
    return NEB_OK;
fail:
    inter_link_destroy(&l);
    return st;
}

void inter_link_destroy(struct inter_link **lp) {
    struct inter_link *l = lp ? *lp : NULL;
    if (!l)
        return;
    l->handler = NULL;
    for (uint32_t i = 0; i < l->n_peers; i++)
        peer_close(l, &l->peers[i]);
    if (l->router) {
        zmq_socket_monitor(l->router, NULL, 0);
        zmq_close(l->router);
    }
    if (l->router_mon)
        zmq_close(l->router_mon);
    sec_zap_destroy(&l->zap);
    if (l->own_ctx && l->ctx)
        zmq_ctx_term(l->ctx);
    free(l);
    *lp = NULL;
}
