// SPDX-License-Identifier: Apache-2.0
// How ranks find and authenticate each other:
//
//     rank i ── connects to rank 0's host:port ── proof ── its own listening port ──► rank 0
//     rank i ◄── once all have come: address and port of each ── rank 0
//     rank i ── connects to ranks 1..i-1 ── proof;  accepts i+1.. ── proof;  closes its listener
//
// The proof, from the side that connects:
//
//     hello: magic, my rank, ranks, yours, my port, nonce ──►
//     ◄── nonce | HMAC(token, 'a' hello nonce)
//     HMAC(token, 'c' hello nonce) ──►
//
// The accepting side serves many connections at a time, each for a few seconds, so a silent one
// blocks nobody.
//
// Ranks of a large job come minutes apart, when a hundred of them load a program from a slow disk.
// So the time limit counts from the last rank that came, and the missing ranks are logged
// meanwhile. A rank that is connected to rank 0 waits as long as rank 0 does, and notices if rank 0
// ends.
#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "intra/ranks/comm_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    MAGIC = 0x3152424e, // "NBR1"
    NONCE = 32,
    MAC = NEB_SHA256_BYTES,
    HELLO = 5 * 4 + NONCE,
    ENTRY = SOCKET_ENTRY_BYTES,
    PENDING_MAX = 64,
    PENDING_MS = 5000,
    RETRY_MS = 50,
    ROOT_ADDRESSES = 8,
    STRANGERS_TOLD = 3,
    ROOT_TIMES = 5,  // times start_ms to wait for rank 0, since progress of others is not visible
    TELL_MS = 10000, // or start_ms / 4: first log of missing ranks; the interval then doubles
    TELL_MOST_MS = 120000,
    ALIVE_AFTER_S = 15, // TCP keepalive, to notice a host that vanished
    ALIVE_EACH_S = 5,
    ALIVE_TIMES = 4,
};

struct start {
    struct socket_hub *hub;
    const struct intra_comm_socket_config *c;
    neb_ns begin, end;
    neb_ns came;             // when the last rank came, or the wait began
    neb_ns tell, tell_after; // next log of missing ranks; interval
    int listener;
    int *ports;                         // (size) on rank 0: ports of the other ranks
    struct sockaddr_storage *addresses; // (size) their addresses, as seen from here
    int strangers;
};

static int left_ms(neb_ns end) {
    int64_t ms = (end - neb_now()) / NEB_MS;
    return ms < 0 ? 0 : ms < 1000000 ? (int)ms : 1000000;
}

// Restarts the time limit: `ms` from now, but not beyond start_max_ms.
static void wait_on(struct start *s, int64_t ms) {
    neb_ns now = neb_now(), most = s->begin + s->c->start_max_ms * NEB_MS;
    s->came = now;
    s->end = now + ms * NEB_MS;
    s->end = s->end < most ? s->end : most;
}

// True if it is time to log what is missing.
static bool tells(struct start *s) {
    neb_ns now = neb_now();
    if (now < s->tell)
        return false;
    s->tell_after =
        2 * s->tell_after < TELL_MOST_MS * NEB_MS ? 2 * s->tell_after : TELL_MOST_MS * NEB_MS;
    s->tell = now + s->tell_after;
    return true;
}

// ---- proofs -------------------------------------------------------------------------------------

static enum neb_status proof(const uint8_t *token, char side, const uint8_t *hello,
                             const uint8_t *nonce, uint8_t out[MAC]) { // RFC 2104
    enum { BLOCK = 64 };
    struct neb_sha256 *h = NULL;
    uint8_t pad[BLOCK], inner[MAC];
    NEB_TRY(neb_sha256_create(&h));
    for (int turn = 0; turn < 2; turn++) {
        memset(pad, turn ? 0x5c : 0x36, sizeof pad);
        for (int i = 0; i < SOCKET_TOKEN_BYTES; i++)
            pad[i] ^= token[i];
        neb_sha256_add(h, pad, sizeof pad);
        if (turn) {
            neb_sha256_add(h, inner, sizeof inner);
        } else {
            neb_sha256_add(h, &side, 1);
            neb_sha256_add(h, hello, HELLO);
            neb_sha256_add(h, nonce, NONCE);
        }
        neb_sha256_finish(h, turn ? out : inner);
    }
    neb_sha256_destroy(&h);
    explicit_bzero(pad, sizeof pad);
    return NEB_OK;
}

static bool equal(const uint8_t *a, const uint8_t *b) { // in constant time
    unsigned differ = 0;
    for (int i = 0; i < MAC; i++)
        differ |= (unsigned)(a[i] ^ b[i]);
    return differ == 0;
}

static enum neb_status draw(uint8_t nonce[NONCE]) {
    return getrandom(nonce, NONCE, 0) == NONCE
               ? NEB_OK
               : neb_fail_errno("ranks: no random bytes from the kernel");
}

// ---- sockets ------------------------------------------------------------------------------------

static void set_up(int fd) {
    const int one = 1, after = ALIVE_AFTER_S, each = ALIVE_EACH_S, times = ALIVE_TIMES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after, sizeof after);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

static socklen_t size_of(const struct sockaddr_storage *a) {
    return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void set_port(struct sockaddr_storage *a, int port) {
    if (a->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)a)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)a)->sin_port = htons((uint16_t)port);
}

static int port_of(const struct sockaddr_storage *a) {
    return ntohs(a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port
                                          : ((const struct sockaddr_in *)a)->sin_port);
}

static bool loopback(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
}

static bool names_loopback(const char *host) {
    struct sockaddr_storage a = {.ss_family = AF_INET};
    if (inet_pton(AF_INET, host, &((struct sockaddr_in *)&a)->sin_addr) != 1) {
        a.ss_family = AF_INET6;
        if (inet_pton(AF_INET6, host, &((struct sockaddr_in6 *)&a)->sin6_addr) != 1)
            return !strcmp(host, "localhost");
    }
    return loopback(&a);
}

// Turns an IPv4 address that an IPv6 socket reports (::ffff:a.b.c.d) into plain IPv4.
static void plain(struct sockaddr_storage *a) {
    const struct in6_addr *six = &((struct sockaddr_in6 *)a)->sin6_addr;
    if (a->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(six))
        return;
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_port = ((struct sockaddr_in6 *)a)->sin6_port};
    memcpy(&four.sin_addr, six->s6_addr + 12, sizeof four.sin_addr);
    memset(a, 0, sizeof *a);
    memcpy(a, &four, sizeof four);
}

// The *n addresses of rank 0, at most ROOT_ADDRESSES: a name may have several, and some may not
// work.
static enum neb_status resolve(const struct intra_comm_socket_config *c,
                               struct sockaddr_storage *out, int *n) {
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    int rc = getaddrinfo(c->host, NULL, &hints, &found);
    if (rc != 0)
        return neb_fail(NEB_ERR_NOT_FOUND, "ranks: rank 0's host %s has no address: %s", c->host,
                        gai_strerror(rc));
    *n = 0;
    for (const struct addrinfo *f = found; f && *n < ROOT_ADDRESSES; f = f->ai_next) {
        memset(&out[*n], 0, sizeof *out);
        memcpy(&out[*n], f->ai_addr, f->ai_addrlen);
        set_port(&out[(*n)++], c->port);
    }
    freeaddrinfo(found);
    return NEB_OK;
}

static int listener(struct sockaddr_storage *a, int port) { // -1: see errno
    const int one = 1, off = 0;
    set_port(a, port);
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (struct sockaddr *)a, size_of(a)) == 0 && listen(fd, 1024) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

// Listens at this address. NULL: at all addresses, because a host may resolve its own name to a
// loopback address (127.0.1.1 on Debian). That is safe: a connecting process must prove the token.
static enum neb_status listen_at(const struct sockaddr_storage *address, int port, int *out) {
    struct sockaddr_storage a = {.ss_family = AF_INET6};
    if (address)
        a = *address;
    int fd = listener(&a, port);
    if (fd < 0 && !address) { // a host without IPv6
        a = (struct sockaddr_storage){.ss_family = AF_INET};
        fd = listener(&a, port);
    }
    if (fd < 0)
        return neb_fail_errno("ranks: cannot listen at port %d", port);
    *out = fd;
    return NEB_OK;
}

// Not logged: NEB_ERR_AGAIN (the connection ended) and NEB_ERR_TIMEOUT.
static enum neb_status move_all(int fd, void *x, size_t n, bool out, neb_ns end) {
    for (size_t done = 0; done < n;) {
        uint8_t *at = (uint8_t *)x + done;
        ssize_t k = out ? send(fd, at, n - done, MSG_NOSIGNAL) : recv(fd, at, n - done, 0);
        if (k > 0) {
            done += (size_t)k;
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EINTR))
            return NEB_ERR_AGAIN;
        struct pollfd p = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        if (left_ms(end) == 0)
            return NEB_ERR_TIMEOUT;
        (void)poll(&p, 1, left_ms(end));
    }
    return NEB_OK;
}

// ---- connecting ---------------------------------------------------------------------------------

// NEB_ERR_AGAIN (not logged): no process listens there yet.
static enum neb_status dial(const struct sockaddr_storage *a, neb_ns end, int *out) {
    int error = 0;
    socklen_t len = sizeof error;
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 && errno == EAFNOSUPPORT) // a host without IPv6: another address may work
        return NEB_ERR_AGAIN;
    if (fd < 0)
        return neb_fail_errno("ranks: cannot create a socket");
    set_up(fd);
    if (connect(fd, (const struct sockaddr *)a, size_of(a)) != 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        error = errno;
        if (error == EINPROGRESS && (poll(&p, 1, left_ms(end)) != 1 ||
                                     getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0))
            error = ETIMEDOUT;
    }
    if (error) {
        close(fd);
        return NEB_ERR_AGAIN;
    }
    *out = fd;
    return NEB_OK;
}

// Proves to rank `to` that this is rank hub->rank, and checks its proof.
static enum neb_status introduce(struct start *s, int fd, int to, int port, neb_ns end) {
    uint8_t hello[HELLO], answer[NONCE + MAC], mac[MAC];
    const uint32_t words[] = {MAGIC, (uint32_t)s->hub->rank, (uint32_t)s->hub->size, (uint32_t)to,
                              (uint32_t)port};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        neb_put_u32(hello + 4 * i, words[i]);
    NEB_TRY(draw(hello + HELLO - NONCE));
    NEB_TRY(move_all(fd, hello, sizeof hello, true, end));
    NEB_TRY(move_all(fd, answer, sizeof answer, false, end));
    NEB_TRY(proof(s->c->token, 'a', hello, answer, mac));
    if (!equal(mac, answer + NONCE))
        return neb_fail(NEB_ERR_DENIED,
                        "ranks: rank %d: the process that listens as rank %d does not know the "
                        "token of these ranks; it may be of another job",
                        s->hub->rank, to);
    NEB_TRY(proof(s->c->token, 'c', hello, answer, mac));
    return move_all(fd, mac, sizeof mac, true, end);
}

// Connects to rank `to` at one of n addresses, with retries until the time limit. listens: also
// opens this rank's listener.
static enum neb_status join(struct start *s, const struct sockaddr_storage *addresses, int n,
                            int to, bool listens) {
    const struct intra_comm_socket_config *c = s->c;
    for (int turn = 0;; turn++) {
        const struct sockaddr_storage *a = &addresses[turn % n];
        struct sockaddr_storage own;
        socklen_t len = sizeof own;
        int fd = -1;
        neb_ns end = neb_now() + PENDING_MS * NEB_MS;
        end = end < s->end ? end : s->end;
        enum neb_status st = dial(a, end, &fd);
        if (st == NEB_OK && listens && s->listener < 0) {
            memset(&own, 0, sizeof own);
            if (getsockname(fd, (struct sockaddr *)&own, &len) != 0)
                st = neb_fail_errno("ranks: cannot get the address of a connection");
            else
                st = listen_at(c->one_host ? &own : NULL, 0, &s->listener);
        }
        int port = 0;
        if (st == NEB_OK && s->listener >= 0) {
            len = sizeof own;
            if (getsockname(s->listener, (struct sockaddr *)&own, &len) != 0)
                st = neb_fail_errno("ranks: cannot get the address of a listener");
            port = port_of(&own);
        }
        if (st == NEB_OK)
            st = introduce(s, fd, to, port, end);
        if (st == NEB_OK) {
            s->hub->peers[to].fd = fd;
            return NEB_OK;
        }
        if (fd >= 0)
            close(fd);
        if (st != NEB_ERR_AGAIN && st != NEB_ERR_TIMEOUT)
            return st;
        neb_ns now = neb_now();
        if (now >= s->end)
            return neb_fail(NEB_ERR_TIMEOUT,
                            "ranks: rank %d of %d could not reach rank %d (port %d%s%s) in %.1f s: "
                            "it was not started, or a firewall blocks it",
                            s->hub->rank, s->hub->size, to, port_of(a), to ? "" : " of ",
                            to ? "" : c->host, neb_seconds(now - s->came));
        if (tells(s))
            neb_info("ranks: rank %d of %d waits for rank %d (port %d%s%s), which does not answer "
                     "yet: %.0f s so far, %.0f s at most",
                     s->hub->rank, s->hub->size, to, port_of(a), to ? "" : " of ",
                     to ? "" : c->host, neb_seconds(now - s->came), neb_seconds(s->end - s->came));
        neb_sleep(RETRY_MS * NEB_MS);
    }
}

// ---- accepting ----------------------------------------------------------------------------------

struct pending {
    int fd; // -1: free
    neb_ns end;
    uint8_t got[HELLO + MAC], nonce[NONCE];
    size_t have;
    struct sockaddr_storage from;
};

static void refuse(struct start *s, struct pending *k, const char *why) {
    char host[64] = "?";
    (void)getnameinfo((struct sockaddr *)&k->from, size_of(&k->from), host, sizeof host, NULL, 0,
                      NI_NUMERICHOST);
    if (s->strangers++ < STRANGERS_TOLD)
        neb_warn("ranks: rank %d refused a connection from %s: %s", s->hub->rank, host, why);
    close(k->fd);
    k->fd = -1;
}

static bool wanted(const struct start *s, const uint8_t *hello, int *rank) {
    struct neb_rd rd = neb_rd_make(hello, HELLO);
    uint32_t magic = neb_rd_u32(&rd), from = neb_rd_u32(&rd), size = neb_rd_u32(&rd),
             to = neb_rd_u32(&rd);
    *rank = (int)(from & INT32_MAX);
    return magic == MAGIC && size == (uint32_t)s->hub->size && to == (uint32_t)s->hub->rank &&
           from < size && from > to && s->hub->peers[from].fd < 0;
}

static enum neb_status hear(struct start *s, struct pending *k) {
    uint8_t answer[NONCE + MAC], mac[MAC];
    int rank = 0;
    bool answered = k->have >= HELLO;
    ssize_t n = recv(k->fd, k->got + k->have, (answered ? HELLO + MAC : HELLO) - k->have, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return NEB_OK;
    if (n <= 0) {
        refuse(s, k, "it was closed early");
        return NEB_OK;
    }
    k->have += (size_t)n;
    if (!answered && k->have == HELLO) {
        if (!wanted(s, k->got, &rank)) {
            refuse(s, k, "it is not from a rank that is waited for");
            return NEB_OK;
        }
        NEB_TRY(draw(k->nonce));
        memcpy(answer, k->nonce, NONCE);
        NEB_TRY(proof(s->c->token, 'a', k->got, k->nonce, answer + NONCE));
        if (send(k->fd, answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            refuse(s, k, "it did not read the answer");
    } else if (k->have == HELLO + MAC) {
        NEB_TRY(proof(s->c->token, 'c', k->got, k->nonce, mac));
        if (!equal(mac, k->got + HELLO) || !wanted(s, k->got, &rank)) {
            refuse(s, k, "it does not know the token");
            return NEB_OK;
        }
        struct neb_rd rd = neb_rd_make(k->got + 16, 4);
        s->ports[rank] = (int)(neb_rd_u32(&rd) & 0xffff);
        s->addresses[rank] = k->from;
        s->hub->peers[rank].fd = k->fd;
        set_up(k->fd);
        k->fd = -1;
        wait_on(s, s->c->start_ms);
    }
    return NEB_OK;
}

static void take_knock(struct start *s, struct pending *knocks) {
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof from;
    int fd = accept4(s->listener, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct pending *k = &knocks[0];
    if (fd < 0)
        return;
    plain(&from);
    for (int i = 0; i < PENDING_MAX; i++) // a free slot, or else the oldest one
        if (k->fd >= 0 && (knocks[i].fd < 0 || knocks[i].end < k->end))
            k = &knocks[i];
    if (k->fd >= 0)
        refuse(s, k, "too many connections at once");
    *k = (struct pending){.fd = fd, .end = neb_now() + PENDING_MS * NEB_MS, .from = from};
}

// list: "ranks 1, 3, 7-12", with "…" if it is cut. Returns the number of missing ranks.
static int missing(const struct start *s, char *list, size_t cap) {
    const struct socket_peer *p = s->hub->peers;
    int n = 0;
    bool cut = false;
    size_t len = (size_t)snprintf(list, cap, "ranks ");
    for (int i = s->hub->rank + 1, last; i < s->hub->size; i = last + 1) {
        last = i;
        if (p[i].fd >= 0)
            continue;
        while (last + 1 < s->hub->size && p[last + 1].fd < 0)
            last++;
        cut = cut || len + 32 > cap;
        if (!cut)
            len += (size_t)snprintf(list + len, cap - len, "%s%d", n ? ", " : "", i);
        if (!cut && last > i)
            len +=
                (size_t)snprintf(list + len, cap - len, "%s%d", last == i + 1 ? ", " : "-", last);
        n += last - i + 1;
    }
    if (cut)
        snprintf(list + len, cap - len, ", …");
    return n;
}

// One turn of waiting. *more: ranks are missing.
static enum neb_status serve(struct start *s, struct pending *knocks, struct pollfd *fds,
                             bool *more) {
    struct socket_hub *hub = s->hub;
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    for (int i = 0; i < PENDING_MAX; i++)
        fds[n++] = (struct pollfd){.fd = knocks[i].fd, .events = POLLIN};
    *more = false;
    for (int i = 0; i < hub->size; i++) {
        fds[n++] = (struct pollfd){.fd = hub->peers[i].fd, .events = POLLRDHUP};
        *more = *more || (i > hub->rank && hub->peers[i].fd < 0);
    }
    if (!*more)
        return NEB_OK;
    char list[160];
    int ms = left_ms(s->end), absent = missing(s, list, sizeof list);
    if (ms == 0)
        return neb_fail(
            NEB_ERR_TIMEOUT,
            "ranks: rank %d of %d waited %.1f s for %s to connect (%d of %d are missing, none came "
            "in this time): they were not started, or have ended; their logs say why",
            hub->rank, hub->size, neb_seconds(s->end - s->came), list, absent, hub->size);
    if (tells(s))
        neb_info("ranks: rank %d waits for %s to connect (%d of %d are missing)", hub->rank, list,
                 absent, hub->size);
    (void)poll(fds, n, ms < 200 ? ms : 200);
    for (int i = 0; i < PENDING_MAX; i++)
        if (knocks[i].fd >= 0 && fds[1 + i].revents)
            NEB_TRY(hear(s, &knocks[i]));
        else if (knocks[i].fd >= 0 && neb_now() > knocks[i].end)
            refuse(s, &knocks[i], "it sent nothing");
    for (int i = 0; i < hub->size; i++)
        if (fds[1 + PENDING_MAX + i].fd >= 0 && fds[1 + PENDING_MAX + i].revents)
            return neb_fail(NEB_ERR_IO,
                            "ranks: rank %d of %d ended while rank %d waited for %s to connect; "
                            "its log says why",
                            i, hub->size, hub->rank, list);
    if (fds[0].revents)
        take_knock(s, knocks);
    return NEB_OK;
}

static enum neb_status accept_all(struct start *s) {
    struct pending *knocks = calloc(PENDING_MAX, sizeof *knocks);
    struct pollfd *fds = calloc(1 + PENDING_MAX + (size_t)s->hub->size, sizeof *fds);
    enum neb_status st =
        knocks && fds ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory waiting for ranks");
    for (int i = 0; i < PENDING_MAX && knocks; i++)
        knocks[i].fd = -1;
    for (bool more = true; more && st == NEB_OK;)
        st = serve(s, knocks, fds, &more);
    for (int i = 0; i < PENDING_MAX && knocks; i++)
        if (knocks[i].fd >= 0)
            close(knocks[i].fd);
    free(knocks);
    free(fds);
    return st;
}

// ---- the table ----------------------------------------------------------------------------------

static enum neb_status give_table(struct start *s) {
    size_t n = (size_t)s->hub->size * ENTRY;
    uint8_t *table = calloc(1, n);
    enum neb_status st =
        table ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the addresses of ranks");
    for (int i = 1; i < s->hub->size && st == NEB_OK; i++) {
        const struct sockaddr_storage *a = &s->addresses[i];
        uint8_t *e = table + (size_t)i * ENTRY;
        bool six = a->ss_family == AF_INET6;
        neb_put_u32(e, (uint32_t)s->ports[i] << 16 | (six ? 6 : 4));
        if (six)
            memcpy(e + 4, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
        else
            memcpy(e + 4, &((const struct sockaddr_in *)a)->sin_addr, 4);
    }
    for (int i = 1; i < s->hub->size && st == NEB_OK; i++) {
        st = move_all(s->hub->peers[i].fd, table, n, true, s->end);
        if (st != NEB_OK)
            st = neb_fail(NEB_ERR_IO, "ranks: rank %d of %d ended while the ranks started", i,
                          s->hub->size);
    }
    free(table);
    return st;
}

enum neb_status socket_start_entry(const uint8_t e[SOCKET_ENTRY_BYTES],
                                   const struct sockaddr_storage *own,
                                   const struct sockaddr_storage *root,
                                   struct sockaddr_storage *out) {
    struct neb_rd rd = neb_rd_make(e, ENTRY);
    uint32_t head = neb_rd_u32(&rd);
    memset(out, 0, sizeof *out);
    if ((head & 0xffff) == 6) {
        out->ss_family = AF_INET6;
        neb_rd_copy(&rd, &((struct sockaddr_in6 *)out)->sin6_addr, 16);
    } else if ((head & 0xffff) == 4) {
        out->ss_family = AF_INET;
        neb_rd_copy(&rd, &((struct sockaddr_in *)out)->sin_addr, 4);
    } else {
        return neb_fail(NEB_ERR_FORMAT, "ranks: rank 0 sent an invalid list of addresses");
    }
    if (loopback(out) && !loopback(own)) // it shares rank 0's host, and this rank does not
        *out = *root;
    set_port(out, (int)(head >> 16));
    return NEB_OK;
}

static enum neb_status join_all(struct start *s, uint8_t *table) {
    struct socket_hub *hub = s->hub;
    struct sockaddr_storage own, root, a;
    socklen_t own_len = sizeof own, root_len = sizeof root;
    int fd = hub->peers[0].fd;
    // A later limit than rank 0's, which knows more and should fail first.
    neb_ns end = neb_now() + (s->c->start_max_ms + PENDING_MS) * NEB_MS;
    enum neb_status st = move_all(fd, table, (size_t)hub->size * ENTRY, false, end);
    if (st != NEB_OK)
        return neb_fail(st == NEB_ERR_TIMEOUT ? st : NEB_ERR_IO,
                        "ranks: rank %d of %d: rank 0 %s while the ranks started; its log says why",
                        hub->rank, hub->size,
                        st == NEB_ERR_TIMEOUT ? "still waited for others" : "gave up");
    if (getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&root, &root_len) != 0)
        return neb_fail_errno("ranks: cannot get the address of a connection");
    s->begin = neb_now(); // all ranks have come
    wait_on(s, s->c->start_ms);
    for (int to = 1; to < hub->rank; to++) {
        NEB_TRY(socket_start_entry(table + (size_t)to * ENTRY, &own, &root, &a));
        NEB_TRY(join(s, &a, 1, to, false));
    }
    return NEB_OK;
}

static enum neb_status follow(struct start *s) {
    struct sockaddr_storage root[ROOT_ADDRESSES];
    int n = 0;
    NEB_TRY(resolve(s->c, root, &n));
    NEB_TRY(join(s, root, n, 0, true));
    uint8_t *table = calloc((size_t)s->hub->size, ENTRY);
    enum neb_status st = table
                             ? join_all(s, table)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory for the addresses of ranks");
    free(table);
    NEB_TRY(st);
    return accept_all(s);
}

static enum neb_status lead(struct start *s) {
    struct sockaddr_storage own[ROOT_ADDRESSES];
    int n = 0;
    if (s->listener < 0) {
        NEB_TRY(resolve(s->c, own, &n));
        bool here = s->c->one_host || names_loopback(s->c->host);
        NEB_TRY(listen_at(here ? own : NULL, s->c->port, &s->listener));
    }
    NEB_TRY(accept_all(s));
    s->begin = neb_now();
    wait_on(s, s->c->start_ms);
    return give_table(s);
}

enum neb_status socket_start(struct socket_hub *hub, const struct intra_comm_socket_config *c) {
    struct start s = {.hub = hub,
                      .c = c,
                      .begin = neb_now(),
                      .listener = c->listener,
                      .ports = calloc((size_t)hub->size, sizeof *s.ports),
                      .addresses = calloc((size_t)hub->size, sizeof *s.addresses)};
    enum neb_status st =
        s.ports && s.addresses
            ? NEB_OK
            : neb_fail(NEB_ERR_NOMEM, "out of memory starting %d ranks", hub->size);
    s.tell_after = (c->start_ms / 4 < TELL_MS ? c->start_ms / 4 : TELL_MS) * NEB_MS;
    s.tell = s.begin + s.tell_after;
    wait_on(&s, c->start_ms * (hub->rank == 0 ? 1 : ROOT_TIMES));
    if (st == NEB_OK && hub->size > 1)
        st = hub->rank == 0 ? lead(&s) : follow(&s);
    if (s.listener >= 0)
        close(s.listener);
    free(s.ports);
    free(s.addresses);
    return st;
}
