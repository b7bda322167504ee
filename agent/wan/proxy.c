// SPDX-License-Identifier: Apache-2.0
// A TCP relay with rate and delay: see proxy.h.
#include "agent/wan/proxy.h"

#include "agent/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNS_MAX = 256,
    PIECE = 16 * 1024, // bytes of one read: connections take turns on a line in such pieces
    // bytes that the kernel may take from a sender before the relay reads them
    SOCKET_BUFFER = 64 * 1024
};
#define LINE_AHEAD (10 * NEB_MS) // do not read while the line has more than this left to send

// One direction of a connection: read from fd[side], written to fd[1 - side].
struct half {
    struct wan_fifo *fifo;
    size_t written;     // bytes of the oldest record already sent
    bool eof, finished; // the sender has closed; the close is passed on
    bool blocked;       // the receiver takes no more at present
};

struct conn {
    int fd[2]; // accepted, connected; -1 = slot free
    bool connecting;
    uint32_t mask[2]; // epoll events that are set now
    const struct wan_proxy_pair *pair;
    struct half half[2];
};

struct wan_proxy {
    struct wan_mesh *mesh;
    int epoll_fd;
    unsigned n_pair;
    struct wan_proxy_pair pair[WAN_PROXY_PAIRS_MAX];
    int listen_fd[WAN_PROXY_PAIRS_MAX];
    struct addrinfo *target[WAN_PROXY_PAIRS_MAX]; // owned
    struct conn conn[CONNS_MAX];
    unsigned last_read; // slot of the connection that read last
    uint8_t piece[PIECE];
};

static struct wan_link *link_of(struct wan_proxy *p, const struct conn *c, unsigned side) {
    unsigned from = side == 0 ? c->pair->from : c->pair->to;
    return &p->mesh->link[from][side == 0 ? c->pair->to : c->pair->from];
}

// A stream cannot lose or reorder bytes. Back pressure makes the sender's buffer its queue.
static void stream_params(struct wan_link *l) {
    l->p.loss = l->p.reorder = 0;
    l->p.queue_bdp = 0;
    l->p.queue_bytes = UINT64_MAX / 4;
}

static size_t half_bytes(const struct wan_link *l) {
    struct wan_params q = l->p;
    q.queue_bytes = 4 * PIECE + (uint64_t)((double)q.rate_bps / 8 * neb_seconds(LINE_AHEAD));
    return wan_link_buffer_bytes(&q);
}

static void on_change(void *ctx, unsigned from, unsigned to) {
    struct wan_proxy *p = ctx;
    struct wan_link *l = &p->mesh->link[from][to];
    stream_params(l);
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &p->conn[i];
        for (unsigned s = 0; s < 2; s++) {
            if (c->fd[0] >= 0 && link_of(p, c, s) == l &&
                wan_fifo_reserve(c->half[s].fifo, half_bytes(l)) != NEB_OK)
                neb_warn("wanlink: a connection keeps its smaller buffer");
        }
    }
}

static uint64_t in_flight(void *ctx, unsigned from, unsigned to) {
    struct wan_proxy *p = ctx;
    uint64_t sum = 0;
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &p->conn[i];
        for (unsigned s = 0; s < 2; s++) {
            if (c->fd[0] >= 0 && link_of(p, c, s) == &p->mesh->link[from][to])
                sum += wan_fifo_bytes(c->half[s].fifo);
        }
    }
    return sum;
}

static enum neb_status resolve(const char *text, bool passive, struct addrinfo **out) {
    char host[128];
    const char *colon = strrchr(text, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof host)
        return neb_fail(NEB_ERR_INVALID, "wanlink: '%s': expected HOST:PORT", text);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    int rc = getaddrinfo(host, colon + 1, &hints, out);
    return rc == 0 ? NEB_OK
                   : neb_fail(NEB_ERR_INVALID, "wanlink: '%s': %s", text, gai_strerror(rc));
}

static void tune(int fd) {
    int one = 1, size = SOCKET_BUFFER;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
}

static enum neb_status listen_on(struct wan_proxy *p, unsigned i) {
    struct addrinfo *a = NULL;
    int one = 1;
    NEB_TRY(resolve(p->pair[i].connect, false, &p->target[i]));
    NEB_TRY(resolve(p->pair[i].listen, true, &a));
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = WAN_TAG_ENGINE + i};
    p->listen_fd[i] = fd;
    enum neb_status st = NEB_OK;
    if (fd >= 0)
        tune(fd); // accepted sockets inherit the options
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 64) != 0 ||
        epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        st = neb_fail_errno("wanlink: cannot listen on %s", p->pair[i].listen);
    freeaddrinfo(a);
    return st;
}

enum neb_status wan_proxy_create(struct wan_mesh *mesh, const struct wan_proxy_pair *pair,
                                 unsigned n_pair, int epoll_fd, struct wan_proxy **out) {
    *out = NULL;
    struct wan_proxy *p = calloc(1, sizeof *p);
    if (p == NULL)
        return neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for the proxy");
    enum neb_status st = NEB_OK;
    p->mesh = mesh;
    p->epoll_fd = epoll_fd;
    p->n_pair = n_pair;
    memcpy(p->pair, pair, n_pair * sizeof *pair);
    for (unsigned i = 0; i < CONNS_MAX; i++)
        p->conn[i].fd[0] = p->conn[i].fd[1] = -1;
    for (unsigned i = 0; i < n_pair; i++)
        p->listen_fd[i] = -1;
    for (unsigned i = 0; i < mesh->sites; i++) {
        for (unsigned j = 0; j < mesh->sites; j++) {
            if (mesh->link[i][j].p.loss > 0 || mesh->link[i][j].p.reorder > 0) {
                st = neb_fail(NEB_ERR_INVALID,
                              "wanlink: proxy: a TCP relay cannot lose or reorder packets "
                              "(leave out --loss and --reorder, or use wanlink run)");
                goto out;
            }
            stream_params(&mesh->link[i][j]);
        }
    }
    for (unsigned i = 0; i < n_pair; i++)
        NEB_TRY_GOTO(listen_on(p, i), out);
    mesh->changed = on_change;
    mesh->in_flight = in_flight;
    mesh->ctx = p;
out:
    if (st != NEB_OK)
        wan_proxy_destroy(&p);
    *out = p;
    return st;
}

static void hang_up(struct conn *c) {
    for (unsigned s = 0; s < 2; s++) {
        if (c->fd[s] >= 0)
            close(c->fd[s]);
        c->fd[s] = -1;
        wan_fifo_destroy(&c->half[s].fifo);
    }
}

void wan_proxy_destroy(struct wan_proxy **pp) {
    struct wan_proxy *p = *pp;
    if (p == NULL)
        return;
    for (unsigned i = 0; i < CONNS_MAX; i++)
        hang_up(&p->conn[i]);
    for (unsigned i = 0; i < p->n_pair; i++) {
        if (p->listen_fd[i] >= 0)
            close(p->listen_fd[i]);
        if (p->target[i])
            freeaddrinfo(p->target[i]);
    }
    p->mesh->changed = NULL;
    p->mesh->in_flight = NULL;
    free(p);
    *pp = NULL;
}

unsigned wan_proxy_port(const struct wan_proxy *p, unsigned i) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    char port[8] = "0";
    if (getsockname(p->listen_fd[i], (struct sockaddr *)&a, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&a, n, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    return (unsigned)strtoul(port, NULL, 10);
}

static void accept_one(struct wan_proxy *p, unsigned i) {
    int fd = accept4(p->listen_fd[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    unsigned slot = 0;
    if (fd < 0)
        return;
    while (slot < CONNS_MAX && p->conn[slot].fd[0] >= 0)
        slot++;
    if (slot == CONNS_MAX) {
        neb_warn("wanlink: proxy: more than %d connections: one is refused", CONNS_MAX);
        close(fd);
        return;
    }
    struct conn *c = &p->conn[slot];
    const struct addrinfo *a = p->target[i];
    *c = (struct conn){.fd = {fd, -1}, .pair = &p->pair[i], .connecting = true};
    c->fd[1] = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = c->fd[1] >= 0;
    if (ok)
        tune(c->fd[1]);
    ok = ok && (connect(c->fd[1], a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS);
    for (unsigned s = 0; s < 2 && ok; s++) {
        struct epoll_event ev = {.events = 0,
                                 .data.u64 = WAN_TAG_ENGINE + WAN_PROXY_PAIRS_MAX + 2 * slot + s};
        ok = wan_fifo_create(half_bytes(link_of(p, c, s)), &c->half[s].fifo) == NEB_OK &&
             epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, c->fd[s], &ev) == 0;
    }
    if (!ok) {
        neb_warn("wanlink: proxy: cannot relay to %s: %s", p->pair[i].connect, strerror(errno));
        hang_up(c);
    }
}

// True if this side may be read: the link is up, the line is not far behind, and a piece fits.
static bool readable(struct wan_proxy *p, struct conn *c, unsigned s, neb_ns now) {
    const struct wan_link *l = link_of(p, c, s);
    return !c->half[s].eof && !l->p.down && l->busy_until <= now + LINE_AHEAD &&
           wan_fifo_fits(c->half[s].fifo, PIECE);
}

// Reads a piece. False: the connection is broken.
static bool take_in(struct wan_proxy *p, struct conn *c, unsigned s, neb_ns now) {
    struct wan_link *l = link_of(p, c, s);
    if (!readable(p, c, s, now))
        return true;
    ssize_t n = recv(c->fd[s], p->piece, PIECE, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    neb_ns at = l->last_deliver > now + l->p.delay ? l->last_deliver : now + l->p.delay;
    if (n > 0 && wan_link_offer(l, now, (size_t)n, &at) != WAN_PASS)
        return false; // cannot happen with stream_params
    p->last_read = (unsigned)(c - p->conn);
    c->half[s].eof = n == 0; // an empty record marks the end
    uint8_t *data = wan_fifo_push(
        c->half[s].fifo, (struct wan_record){.deliver = at, .len = (uint32_t)n, .segs = 1});
    NEB_ASSERT(data != NULL); // readable() checked it
    memcpy(data, p->piece, (size_t)n);
    return true;
}

// Sends what is due. False: the connection is over or broken. *next: the time of the next record.
static bool give_out(struct wan_proxy *p, struct conn *c, unsigned s, neb_ns now, neb_ns *next) {
    struct half *h = &c->half[s];
    struct wan_link *l = link_of(p, c, s);
    struct wan_record r;
    uint8_t *data;
    h->blocked = false;
    while (!l->p.down && !c->connecting && wan_fifo_head(h->fifo, &r, &data)) {
        if (r.deliver > now) {
            *next = r.deliver < *next ? r.deliver : *next;
            break;
        }
        if (r.len == 0) {
            shutdown(c->fd[1 - s], SHUT_WR);
            h->finished = true;
        } else {
            ssize_t n = send(c->fd[1 - s], data + h->written, r.len - h->written, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                return false;
            h->written += n > 0 ? (size_t)n : 0;
            h->blocked = h->written < r.len;
            if (h->blocked)
                break;
            l->stats.delivered_packets++;
            l->stats.delivered_bytes += r.len;
        }
        h->written = 0;
        wan_fifo_pop(h->fifo);
    }
    return !(c->half[0].finished && c->half[1].finished);
}

static void on_event(void *ctx, uint64_t tag, uint32_t events) {
    struct wan_proxy *p = ctx;
    if (tag < WAN_PROXY_PAIRS_MAX) {
        accept_one(p, (unsigned)tag);
        return;
    }
    unsigned s = (unsigned)tag & 1;
    struct conn *c = &p->conn[(tag - WAN_PROXY_PAIRS_MAX) / 2];
    if (c->fd[0] < 0)
        return; // an earlier event closed it
    bool alive = (events & EPOLLERR) == 0;
    if (alive && s == 1 && c->connecting && (events & EPOLLOUT))
        c->connecting = false;
    // EPOLLHUP without EPOLLIN: both directions are shut, or a reset came. This side takes no more
    // data.
    if (alive && (events & EPOLLHUP) && !(events & EPOLLIN) && !c->connecting)
        alive = c->half[s].eof;
    if (alive && (events & EPOLLIN))
        alive = take_in(p, c, s, neb_now());
    if (!alive)
        hang_up(c);
}

static void set_interest(struct wan_proxy *p, unsigned slot, unsigned s, neb_ns now, neb_ns *next) {
    struct conn *c = &p->conn[slot];
    const struct wan_link *l = link_of(p, c, s);
    bool connecting = s == 1 && c->connecting;
    uint32_t want = (readable(p, c, s, now) ? (uint32_t)EPOLLIN : 0u) |
                    (c->half[1 - s].blocked || connecting ? (uint32_t)EPOLLOUT : 0u);
    neb_ns resume = l->busy_until - LINE_AHEAD;
    if (!c->half[s].eof && !l->p.down && resume > now && resume < *next)
        *next = resume;
    // A side that has ended in both directions reports EPOLLHUP without end, so it leaves the set.
    bool over = c->half[s].eof && c->half[1 - s].finished;
    if (over)
        want = UINT32_MAX;
    if (want == c->mask[s])
        return;
    struct epoll_event ev = {.events = want,
                             .data.u64 = WAN_TAG_ENGINE + WAN_PROXY_PAIRS_MAX + 2 * slot + s};
    if (epoll_ctl(p->epoll_fd, over ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, c->fd[s], &ev) == 0)
        c->mask[s] = want;
}

static neb_ns advance(void *ctx, neb_ns now) {
    struct wan_proxy *p = ctx;
    neb_ns next = INT64_MAX;
    // epoll reports connections in the order in which they are set here. The one that read last is
    // set last: otherwise the first slot could use the whole line.
    for (unsigned k = 0; k < CONNS_MAX; k++) {
        unsigned i = (p->last_read + 1 + k) % CONNS_MAX;
        struct conn *c = &p->conn[i];
        if (c->fd[0] < 0)
            continue;
        if (!give_out(p, c, 0, now, &next) || !give_out(p, c, 1, now, &next)) {
            hang_up(c);
            continue;
        }
        set_interest(p, i, 0, now, &next);
        set_interest(p, i, 1, now, &next);
    }
    return next;
}

struct wan_engine_ops wan_proxy_ops(struct wan_proxy *p) {
    return (struct wan_engine_ops){.event = on_event, .advance = advance, .ctx = p};
}
