// SPDX-License-Identifier: Apache-2.0
// Bounds what an authenticated peer can make this side hold. ZeroMQ counts complete messages of
// each connection, so many connections, or one endless message, would grow memory without limit.
// TCP_INFO tells the bytes that arrived, and the link knows the bytes that it read. The difference
// is held.
//
//   accepted ── authenticated (ZeroMQ: within 8 s) ── HELLO ──► a peer's connection: its bytes are
//      │                                                        counted, the peer's sum is bounded
//      └── no HELLO within 8 s, or over 64 KiB before it ──► cut; over 1024 of these, the oldest of
//                                                            the source that has most is cut
//
// A stranger's handshake costs processor time on the I/O thread that also carries members' data. So
// accept_limit.h limits sources that never reach HELLO, and all strangers together.
#include "agent/base/log.h"
#include "inter/link/state.h"
#include "security/source.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const neb_ns guard_every = 100 * NEB_MS;
// Lower bounds of what ZMTP and CURVE add to a message, and to a connection.
enum { FRAMING = 128, FIRST = 4096 };

// The peer's connection with this ZeroMQ descriptor; NULL: none.
static const struct conn *named(const struct inter_link *l, int zmq_fd, uint32_t *peer) {
    for (*peer = 0; *peer < l->n_peers; ++*peer)
        for (int w = ACCEPTED; w < SETS; w += OLD_ACCEPTED - ACCEPTED)
            for (uint32_t k = 0; k < CONNS; k++) {
                const struct conn *c = &l->peers[*peer].s[w].c[k];
                if (c->open && c->zmq_fd == zmq_fd)
                    return c;
            }
    return NULL;
}

static void forget(struct inter_link *l, uint32_t i, bool cut) {
    if (cut)
        shutdown(l->unidentified[i].fd, SHUT_RDWR);
    close(l->unidentified[i].fd);
    l->unidentified[i] = l->unidentified[--l->n_unidentified];
}

// True if the connection has said HELLO. It is a member's then and does not count against its
// source. Its descriptor number may belong to another connection by now, so the source is compared.
static bool is_known(struct inter_link *l, uint32_t i) {
    uint32_t peer;
    const struct conn *c = named(l, l->unidentified[i].zmq_fd, &peer);
    const struct inter_incoming *v = &l->unidentified[i].visitor;
    if (!c)
        return false;
    if (c->fd < 0 || sec_source_of_peer(c->fd) == v->from)
        inter_accept_limit_welcome(&l->accept_limit, v, peer, neb_now());
    forget(l, i, false);
    return true;
}

// The oldest connection of the source with the most connections. Counters are found by a secret
// hash of the source: one pass counts all, and strangers cannot choose whose counter they share.
static uint32_t worst(const struct inter_link *l) {
    enum { BITS = 12 };
    uint16_t count[1 << BITS] = {0};
    uint32_t best = 0, most = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < l->n_unidentified; i++) {
            uint64_t h = l->unidentified[i].visitor.from ^ (uint64_t)(uintptr_t)l;
            h = (h * 0x9e3779b97f4a7c15u ^ h >> 29) * 0xd6e8feb86659fd93u;
            uint32_t n = pass ? count[h >> (64 - BITS)] : ++count[h >> (64 - BITS)];
            if (pass &&
                (n > most || (n == most && l->unidentified[i].at < l->unidentified[best].at))) {
                most = n;
                best = i;
            }
        }
    return best;
}

// A connection without HELLO takes two descriptors, ZeroMQ's and ours. All such connections
// together get half of the descriptors that members do not need, so that enough are left for files
// and workers during a flood.
uint32_t link_guard_most(uint32_t peers) {
    struct rlimit r;
    const uint64_t own = INTER_DESCRIPTORS_OWN + (uint64_t)peers * INTER_DESCRIPTORS_PEER;
    uint64_t left = getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur > own ? r.rlim_cur - own : 0,
             most = left / 4;
    return most < INTER_UNIDENTIFIED_LEAST ? INTER_UNIDENTIFIED_LEAST
           : most > INTER_UNIDENTIFIED_MAX ? INTER_UNIDENTIFIED_MAX
                                           : (uint32_t)most;
}

void link_guard_listens(struct inter_link *l, int zmq_fd) {
    inter_accept_limit_listens(&l->accept_limit, zmq_fd);
}

// Members' endpoints are known sources, so members get through a flood, also after a restart.
void link_guard_expects(struct inter_link *l) {
    for (uint32_t i = 0; i < l->n_peers; i++)
        if (!l->members.m[i].pub.name[0])
            inter_accept_limit_forget(&l->accept_limit, i); // revoked
        else if (!l->peers[i].self)
            inter_accept_limit_know(&l->accept_limit,
                                    sec_source_of_endpoint(l->members.m[i].endpoint), i, neb_now());
}

// The connection may be gone when its event is read, and its number may belong to another
// connection. Then that source is charged. It is usually the same stranger, and the charge expires
// soon.
void link_guard_accepted(struct inter_link *l, int zmq_fd) {
    link_guard_left(l, zmq_fd); // the number is in use again
    int fd = fcntl(zmq_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return; // gone already
    neb_ns now = neb_now();
    struct inter_incoming visitor;
    if (!inter_accept_limit_accepted(&l->accept_limit, fd, now, &visitor)) {
        close(fd);
        return;
    }
    if (l->n_unidentified >= l->nameless_most) {
        uint32_t i = worst(l);
        if (!is_known(l, i)) {
            forget(l, i, true);
            l->cut_nameless++;
        }
    }
    l->unidentified[l->n_unidentified].visitor = visitor;
    l->unidentified[l->n_unidentified].zmq_fd = zmq_fd;
    l->unidentified[l->n_unidentified].fd = fd;
    l->unidentified[l->n_unidentified++].at = now;
}

static void cut_differing(struct peer *p) {
    if (!p->speaks.at)
        return;
    shutdown(p->speaks.fd, SHUT_RDWR);
    close(p->speaks.fd);
    p->speaks.at = 0;
}

void link_guard_differs(struct inter_link *l, struct peer *p, int zmq_fd) {
    for (uint32_t i = 0; i < l->n_unidentified; i++) {
        if (l->unidentified[i].zmq_fd != zmq_fd)
            continue;
        const struct inter_incoming *v = &l->unidentified[i].visitor;
        if (sec_source_of_peer(l->unidentified[i].fd) == v->from)
            inter_accept_limit_welcome(&l->accept_limit, v, (uint32_t)(p - l->peers), neb_now());
        cut_differing(p); // cut the earlier one: the peer opens one for each stripe
        p->speaks.fd = l->unidentified[i].fd;
        p->speaks.at = neb_now() + PROTOCOL_CUT;
        l->unidentified[i] = l->unidentified[--l->n_unidentified];
        return;
    }
}

void link_guard_left(struct inter_link *l, int zmq_fd) {
    for (uint32_t i = 0; i < l->n_unidentified; i++)
        if (l->unidentified[i].zmq_fd == zmq_fd) {
            if (!is_known(l, i))
                forget(l, i, false);
            i--;
        }
}

void link_guard_read(struct conn *c, size_t n) { c->read += n + FRAMING; }

// Bytes of one connection that arrived and are unread.
static uint64_t held(struct conn *c) {
    uint64_t come = c->fd >= 0 ? inter_tcp_counts(c->fd).recv : 0;
    if (come <= c->read + FIRST) {
        c->read = come > FIRST && c->read > come
                      ? come
                      : c->read; // FRAMING may exceed the true overhead; that gives no credit
        return 0;
    }
    return come - c->read - FIRST;
}

static void guard_peer(struct inter_link *l, struct peer *p) {
    uint64_t sum = 0, most = 0,
             limit = l->cfg.bulk_queue_bytes + l->cfg.control_queue_bytes + INTER_PEER_SLACK_BYTES;
    struct conn *fullest = NULL;
    for (int w = 0; w < SETS; w++)
        for (uint32_t k = 0; k < CONNS; k++) {
            struct conn *c = &p->s[w].c[k];
            uint64_t h = held(c);
            sum += h;
            if (h > most) {
                most = h;
                fullest = c;
            }
        }
    p->held = sum;
    if (sum <= limit || !fullest)
        return;
    shutdown(fullest->fd, SHUT_RDWR); // ZeroMQ then frees its bytes
    fullest->lost = true;
    if (p->cut++ == 0)
        neb_warn(
            "link to %s: %llu MiB from it are unread here, more than an honest peer sends: one "
            "connection is cut; further cuts are only counted",
            p->member.pub.name, (unsigned long long)(sum >> 20));
    p->refused++;
}

void link_guard(struct inter_link *l, neb_ns now) {
    bool due = now >= l->guard_at;
    if (due)
        l->guard_at = now + guard_every;
    // An endless message makes no socket readable, and neither does a limit that expires. So the
    // clock must find them.
    if (l->guard_at < l->deadline)
        l->deadline = l->guard_at;
    if (!due)
        return;
    for (uint32_t i = 0; i < l->n_unidentified; i++) {
        if (is_known(l, i)) {
            i--;
            continue;
        }
        if (now - l->unidentified[i].at <= INTER_UNIDENTIFIED_MS * NEB_MS &&
            inter_tcp_counts(l->unidentified[i].fd).recv <= INTER_UNIDENTIFIED_BYTES)
            continue;
        if (l->cut_nameless++ == 0)
            neb_warn("link: a connection is cut: no HELLO for %d s, or too many bytes before it; "
                     "further cuts are only counted",
                     INTER_UNIDENTIFIED_MS / 1000);
        forget(l, i--, true);
    }
    inter_accept_limit_tick(&l->accept_limit, now);
    for (uint32_t i = 0; i < l->n_peers; i++) {
        if (!l->peers[i].self)
            guard_peer(l, &l->peers[i]);
        if (l->peers[i].speaks.at && now >= l->peers[i].speaks.at)
            cut_differing(&l->peers[i]);
    }
}

void link_guard_end(struct inter_link *l) {
    while (l->n_unidentified)
        forget(l, 0, false);
    for (uint32_t i = 0; i < l->n_peers; i++)
        cut_differing(&l->peers[i]);
    inter_accept_limit_end(&l->accept_limit);
}
