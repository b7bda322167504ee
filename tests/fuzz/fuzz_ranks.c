// SPDX-License-Identifier: Apache-2.0
// Messages between ranks over TCP: connections at the start, rank 0's table of addresses, and the
// frames afterwards. A connection without the token is not a rank. Nothing is written outside the
// messages that a rank waits for. Bytes that are kept are counted. Input: a byte that chooses, then
//    0  steps of four connections to rank 0. The low two bits of a byte: which one. It says hello
//       as a rank (u8 rank, u8 size), proves itself, sends bytes (u8 length), or closes
//    1  an entry of the table, and whether this rank is on rank 0's host
//    2  steps of a rank: its peer sends a frame (u8 group, kind, tag, size, number of bytes that
//       follow), or the rank itself acts
#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "intra/ranks/comm_socket.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 3, KNOCKERS = 4, STEPS_MAX = 32, NONCE = 32, HELLO = 20 + NONCE, WAIT_MS = 10 };
static uint8_t token[SOCKET_TOKEN_BYTES] = {1, 2, 3};

// ---- connections ----

struct knockers {
    struct neb_rd r;
    struct sockaddr_un at;
    socklen_t at_len;
    int fd[KNOCKERS];
    uint8_t hello[KNOCKERS][HELLO];
    bool proved[RANKS]; // a connection has proved that it is this rank
};

static void mac(const struct knockers *k, int who, char side, const uint8_t nonce[NONCE],
                uint8_t out[crypto_auth_hmacsha256_BYTES]) {
    crypto_auth_hmacsha256_state s;
    crypto_auth_hmacsha256_init(&s, token, sizeof token);
    crypto_auth_hmacsha256_update(&s, (const uint8_t *)&side, 1);
    crypto_auth_hmacsha256_update(&s, k->hello[who], HELLO);
    crypto_auth_hmacsha256_update(&s, nonce, NONCE);
    crypto_auth_hmacsha256_final(&s, out);
}

static void say(struct knockers *k, int who, const void *p, size_t n) {
    if (k->fd[who] < 0) {
        k->fd[who] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        NEB_ASSERT(k->fd[who] >= 0);
        (void)!connect(k->fd[who], (const struct sockaddr *)&k->at, k->at_len);
    }
    (void)!send(k->fd[who], p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void go(struct knockers *k, int who) {
    if (k->fd[who] >= 0)
        close(k->fd[who]);
    k->fd[who] = -1;
}

static void say_hello(struct knockers *k, int who) {
    const uint32_t words[] = {0x3152424e, neb_rd_u8(&k->r), neb_rd_u8(&k->r), 0, 4711};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        neb_put_u32(k->hello[who] + 4 * i, words[i]);
    go(k, who); // the first message of a connection
    say(k, who, k->hello[who], HELLO);
}

static void prove(struct knockers *k, int who) {
    struct neb_rd hello = neb_rd_make(k->hello[who], HELLO);
    uint8_t answer[NONCE + crypto_auth_hmacsha256_BYTES], own[crypto_auth_hmacsha256_BYTES];
    struct pollfd p = {.fd = k->fd[who], .events = POLLIN};
    (void)neb_rd_u32(&hello);
    uint32_t rank = neb_rd_u32(&hello);
    if (k->fd[who] < 0 || poll(&p, 1, WAIT_MS) != 1 ||
        recv(k->fd[who], answer, sizeof answer, MSG_DONTWAIT) != sizeof answer)
        return;
    mac(k, who, 'a', answer, own);
    NEB_ASSERT(rank >= RANKS || !memcmp(own, answer + NONCE, sizeof own));
    if (rank < RANKS)
        k->proved[rank] = true;
    mac(k, who, 'c', answer, own);
    say(k, who, own, sizeof own);
}

static void *knock(void *user) {
    struct knockers *k = user;
    for (int i = 0; i < STEPS_MAX && neb_rd_left(&k->r); i++) {
        uint8_t what = neb_rd_u8(&k->r);
        int who = what % KNOCKERS;
        size_t n;
        switch (what / KNOCKERS % 4) {
        case 0: say_hello(k, who); break;
        case 1: prove(k, who); break;
        case 2:
            n = neb_rd_u8(&k->r);
            n = n < neb_rd_left(&k->r) ? n : neb_rd_left(&k->r);
            say(k, who, neb_rd_view(&k->r, n), n);
            break;
        default: go(k, who);
        }
    }
    return NULL;
}

static void start(struct neb_rd *r) {
    struct knockers k = {.r = *r, .at = {.sun_family = AF_UNIX}, .fd = {-1, -1, -1, -1}};
    struct socket_hub *hub = NULL;
    struct intra_comm_socket_config c = {
        .size = RANKS, .token = token, .start_ms = WAIT_MS, .start_max_ms = 3 * WAIT_MS};
    pthread_t thread;
    // The kernel may give a freed name to another process; its connections must not count as ours.
    pid_t self = getpid();
    memcpy(token, &self, sizeof self);
    c.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    k.at_len = sizeof k.at;
    NEB_ASSERT(c.listener >= 0);
    // the kernel chooses the name
    NEB_ASSERT(bind(c.listener, (struct sockaddr *)&k.at, sizeof k.at.sun_family) == 0 &&
               listen(c.listener, KNOCKERS) == 0 &&
               getsockname(c.listener, (struct sockaddr *)&k.at, &k.at_len) == 0);
    NEB_ASSERT(socket_hub_create(0, RANKS, WAIT_MS, &hub) == NEB_OK);
    NEB_ASSERT(pthread_create(&thread, NULL, knock, &k) == 0);
    enum neb_status st = socket_start(hub, &c);
    NEB_ASSERT(pthread_join(thread, NULL) == 0);
    for (int i = 1; i < RANKS; i++)
        NEB_ASSERT(hub->peers[i].fd < 0 ? st != NEB_OK : k.proved[i]);
    for (int i = 0; i < KNOCKERS; i++)
        go(&k, i);
    socket_hub_destroy(&hub, false);
}

// ---- the table ----

static struct sockaddr_storage address(bool loopback) {
    struct sockaddr_storage a = {.ss_family = AF_INET};
    ((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(loopback ? 0x7f000001 : 0x0a000001);
    return a;
}

static void entry(struct neb_rd *r) {
    bool here = neb_rd_u8(r) & 1;
    struct sockaddr_storage own = address(here), root = address(false), a;
    uint8_t e[SOCKET_ENTRY_BYTES];
    neb_rd_copy(r, e, sizeof e);
    if (r->bad || socket_start_entry(e, &own, &root, &a) != NEB_OK)
        return;
    NEB_ASSERT(a.ss_family == AF_INET || a.ss_family == AF_INET6);
    bool nowhere =
        a.ss_family == AF_INET && ntohl(((struct sockaddr_in *)&a)->sin_addr.s_addr) >> 24 == 127;
    NEB_ASSERT(here || !nowhere); // a rank on another host has no loopback address
}

// ---- frames ----

enum { WAITS = 4, ROOM = 300 };
struct pair {
    struct socket_hub *hub;
    int other;
    struct socket_recv recv[WAITS];
    uint8_t *x[WAITS]; // of exact size; NULL: no message is expected
};

// Some frames claim bytes that never come.
static uint64_t size_of(uint8_t code) {
    static const uint64_t large[] = {ROOM, SOCKET_EARLY_SOFT, SOCKET_EARLY_ALONE + 1,
                                     SOCKET_MESSAGE_MAX + 1};
    return code < 252 ? code : large[code - 252];
}

static void speak(struct pair *p, struct neb_rd *r) {
    uint8_t frame[SOCKET_HEADER_BYTES];
    neb_put_u32(frame, neb_rd_u8(r) % 4);
    neb_put_u32(frame + 4, neb_rd_u8(r) % 8);
    neb_put_u32(frame + 8, neb_rd_u8(r) % 4);
    neb_put_u64(frame + 12, size_of(neb_rd_u8(r)));
    size_t n = neb_rd_u8(r);
    n = n < neb_rd_left(r) ? n : neb_rd_left(r);
    if (p->other >= 0 && send(p->other, frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        (void)!send(p->other, neb_rd_view(r, n), n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void wait_for(struct pair *p, int k, struct neb_rd *r) {
    uint32_t group = neb_rd_u8(r) % 4;
    enum socket_kind kind = neb_rd_u8(r) % 2 ? SOCKET_MESSAGE : SOCKET_COLLECTIVE;
    int32_t tag = neb_rd_u8(r) % 4;
    size_t n = neb_rd_u8(r);
    if (p->x[k] && p->recv[k].pending)
        return;
    free(p->x[k]);
    NEB_ASSERT((p->x[k] = malloc(n ? n : 1)));
    socket_post_recv(p->hub, 1, group, kind, tag, p->x[k], n, &p->recv[k]);
}

static void expect_counted(const struct socket_hub *hub) {
    for (int i = 0; i < hub->size; i++) {
        const struct socket_peer *p = &hub->peers[i];
        size_t bytes = 0;
        for (const struct socket_early *e = p->early; e; e = e->next) {
            bytes += e->bytes;
            NEB_ASSERT(e->have <= e->bytes);
        }
        NEB_ASSERT(bytes == p->early_bytes && bytes <= SOCKET_EARLY_MAX);
    }
}

static void step(struct pair *p, struct neb_rd *r) {
    uint8_t what = neb_rd_u8(r);
    int k = what / 8 % WAITS;
    bool there;
    switch (what % 8) {
    case 0:
    case 1: speak(p, r); break;
    case 2: wait_for(p, k, r); break;
    case 3:
        if (p->x[k])
            (void)!socket_wait_recv(p->hub, 1, &p->recv[k], "a message");
        break;
    case 4: (void)!socket_poll_message(p->hub, 1, (uint32_t)k, neb_rd_u8(r) % 4, &there); break;
    case 5: socket_forget(p->hub, (uint32_t)k); break;
    default:
        if (k == 0 && p->other >= 0) {
            close(p->other);
            p->other = -1;
        }
    }
    (void)!socket_poll_all(p->hub);
    expect_counted(p->hub);
}

static void frames(struct neb_rd *r) {
    struct pair p = {.other = -1};
    int fds[2];
    NEB_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    NEB_ASSERT(socket_hub_create(0, 2, WAIT_MS, &p.hub) == NEB_OK);
    p.hub->peers[1].fd = fds[0];
    p.other = fds[1];
    for (int i = 0; i < STEPS_MAX && neb_rd_left(r) && socket_usable(p.hub) == NEB_OK; i++)
        step(&p, r);
    if (p.other >= 0)
        close(p.other);
    socket_hub_destroy(&p.hub, false);
    for (int k = 0; k < WAITS; k++)
        free(p.x[k]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const all[])(struct neb_rd *) = {start, entry, frames};
    struct neb_rd r = neb_rd_make(data, size);
    NEB_ASSERT(sodium_init() >= 0);
    all[neb_rd_u8(&r) % 3](&r);
    return 0;
}
