// SPDX-License-Identifier: Apache-2.0
// How often strangers may connect to a port: the rate of each source and of all together, and the
// kernel's filter against sources that come too often, by IPv4 and IPv6. Open connections are not
// touched.
#include "agent/base/log.h"
#include "inter/link/accept_limit.h"
#include "inter/link/socket_profile.h"
#include "security/identity.h"
#include "security/source.h"
#include "tests/testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void test_rate(void **state) {
    (void)state;
    static struct sec_source_rate r;
    neb_ns now = 1000 * NEB_S;
    int n = 0;
    assert_int_equal(sec_init(), NEB_OK);
    sec_source_rate_init(&r, INTER_UNIDENTIFIED_SECOND, INTER_UNIDENTIFIED_BURST);
    for (int i = 0; i < 2 * INTER_UNIDENTIFIED_BURST; i++)
        n += sec_source_rate_take(&r, 7, now);
    assert_int_equal(n, INTER_UNIDENTIFIED_BURST);
    assert_true(sec_source_rate_take(&r, 8, now)); // another source
    sec_source_rate_give_back(&r, 7);
    assert_true(sec_source_rate_take(&r, 7, now));
    assert_false(sec_source_rate_take(&r, 7, now));
    n = 0;
    for (int ms = 0; ms < 10000; ms++)
        n += sec_source_rate_take(&r, 7, now + ms * NEB_MS);
    assert_in_range(n, 10 * INTER_UNIDENTIFIED_SECOND - 1, 10 * INTER_UNIDENTIFIED_SECOND);
    // fifteen members connect at once, each up to its HELLO, many times
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 15 * 33; i++)
            assert_true(sec_source_rate_take(&r, 9, now));
        for (int i = 0; i < 15 * 33; i++)
            sec_source_rate_give_back(&r, 9);
    }
}

static int listen_on(int family) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    bool is_four = family == AF_INET;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0;
    if (fd < 0)
        return -1;
    if (!is_four)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, is_four ? (void *)&four : (void *)&six, is_four ? sizeof four : sizeof six) != 0 ||
        listen(fd, 64) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static struct sockaddr_storage address_of(const char *text, uint16_t port) {
    struct sockaddr_storage a = {0};
    struct sockaddr_in *four = (void *)&a;
    struct sockaddr_in6 *six = (void *)&a;
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        a.ss_family = AF_INET;
        four->sin_port = port;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &six->sin6_addr), 1);
        a.ss_family = AF_INET6;
        six->sin6_port = port;
    }
    return a;
}

static uint64_t source(const char *text) {
    struct sockaddr_storage a = address_of(text, 0);
    return sec_source_of(&a);
}

// Begins a connection from `from` to the listener at `to`.
static int dial(int listener, const char *from, const char *to) {
    struct sockaddr_storage l, a = address_of(from, 0);
    socklen_t n = sizeof l, size = a.ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                          : sizeof(struct sockaddr_in6);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&l, &n), 0);
    struct sockaddr_storage b = address_of(to, ((struct sockaddr_in *)(void *)&l)->sin_port);
    int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, size), 0);
    if (connect(fd, (struct sockaddr *)&b, size) != 0)
        assert_int_equal(errno, EINPROGRESS);
    return fd;
}

static bool is_there(int fd, int ms) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof error;
    return poll(&p, 1, ms) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && !error;
}

static bool comes(int listener, const char *from, const char *to) {
    int fd = dial(listener, from, to);
    bool there = is_there(fd, 400);
    close(fd);
    return there;
}

static bool can_filter(int listener) {
    uint64_t from = source("127.0.0.2");
    if (inter_syn_filter(listener, INTER_SYN_NOT_FROM, &from, 1))
        return true;
    printf("skipped: this kernel cannot filter sockets\n");
    return false;
}

static void test_ipv4(void **state) {
    (void)state;
    int l = listen_on(AF_INET);
    assert_true(l >= 0);
    int before = dial(l, "127.0.0.2", "127.0.0.1");
    assert_true(is_there(before, 5000));
    int held = accept(l, NULL, NULL);
    assert_true(held >= 0);
    if (!can_filter(l))
        skip();
    int late = dial(l, "127.0.0.2", "127.0.0.1");
    assert_false(is_there(late, 400));
    assert_true(comes(l, "127.0.0.3", "127.0.0.1"));
    char b[2];
    assert_int_equal(send(before, "x", 1, 0), 1); // the existing connection goes on
    assert_int_equal(recv(held, b, sizeof b, 0), 1);
    assert_true(inter_syn_filter(l, INTER_SYN_NOT_FROM, NULL, 0));
    assert_true(is_there(late, 5000)); // the kernel of the sender repeats the request
    uint64_t many[INTER_SYN_FILTER_MAX];
    for (uint32_t i = 0; i < INTER_SYN_FILTER_MAX; i++) {
        char text[32];
        snprintf(text, sizeof text, i % 2 ? "127.0.1.%u" : "2001:db8:0:%u::1", i);
        many[i] = source(text);
    }
    assert_true(inter_syn_filter(l, INTER_SYN_NOT_FROM, many, INTER_SYN_FILTER_MAX));
    assert_false(comes(l, "127.0.1.63", "127.0.0.1"));
    assert_true(comes(l, "127.0.1.62", "127.0.0.1"));
    assert_true(inter_syn_filter(l, INTER_SYN_ONLY_FROM, many, INTER_SYN_FILTER_MAX));
    assert_true(comes(l, "127.0.1.63", "127.0.0.1"));
    assert_false(comes(l, "127.0.1.62", "127.0.0.1"));
    close(before), close(held), close(late), close(l);
}

static void test_ipv6(void **state) {
    (void)state;
    int l = listen_on(AF_INET6);
    if (l < 0 || !can_filter(l) || !comes(l, "::1", "::1")) {
        printf("skipped: no IPv6 on this machine\n");
        skip();
    }
    assert_false(comes(l, "127.0.0.2", "127.0.0.1")); // a listener for both families
    assert_true(comes(l, "127.0.0.3", "127.0.0.1"));
    uint64_t from[2] = {source("::7"), source("2001:db8::1")}; // ::1 is in the network ::/64
    assert_true(inter_syn_filter(l, INTER_SYN_NOT_FROM, from, 2));
    assert_false(comes(l, "::1", "::1"));
    assert_true(comes(l, "127.0.0.2", "127.0.0.1"));
    assert_true(inter_syn_filter(l, INTER_SYN_NOT_FROM, from + 1, 1));
    assert_true(comes(l, "::1", "::1"));
    uint64_t only = source("127.0.0.3"); // and the only source, this host
    assert_true(inter_syn_filter(l, INTER_SYN_ONLY_FROM, &only, 1));
    assert_true(comes(l, "::1", "::1"));
    assert_true(comes(l, "127.0.0.3", "127.0.0.1"));
    assert_false(comes(l, "127.0.0.2", "127.0.0.1"));
    close(l);
}

// ---- the accept limiter

static const struct inter_accept_limit_rate few = {.burst = 8,
                                                   .second = 4,
                                                   .all_burst = 20,
                                                   .all_second = 10,
                                                   .known = INTER_ACCEPT_LIMIT_KNOWN_MAX};
static struct inter_accept_limit accept_limit;

static bool take(uint64_t from, neb_ns now, struct inter_incoming *v) {
    return inter_accept_limit_take(&accept_limit, from, NULL, now, v);
}

// A flood from many addresses, each within its own rate, gets the shared rate of strangers. Known
// sources do not count as strangers.
static void test_shared_rate(void **state) {
    (void)state;
    const neb_ns start = 1000 * NEB_S;
    struct inter_incoming anna, bert;
    int n = 0;
    inter_accept_limit_init(&accept_limit, "test", &few);
    assert_true(take(1, start, &anna) && anna.counted);
    inter_accept_limit_welcome(&accept_limit, &anna, 0, start);
    for (uint64_t from = 100; from < 200; from++)
        n += take(from, start, NULL);
    assert_int_equal(n, few.all_burst); // what anna took was given back
    assert_int_equal(accept_limit.refused_all, 100 - n);
    assert_true(take(1, start, &anna) && !anna.counted);
    assert_false(take(2, start, &bert)); // not known yet
    n = 0;
    for (int ms = 1; ms <= 10000; ms++)
        for (uint64_t from = 200; from < 210; from++)
            n += take(from + (uint64_t)ms * 10, start + ms * NEB_MS, NULL);
    assert_in_range(n, 10 * few.all_second - 1, 10 * few.all_second + 1);
    for (uint32_t i = 1; i < few.burst; i++) // a known address still has its own limit
        assert_true(take(1, start + 10 * NEB_S, NULL));
    assert_false(take(1, start + 10 * NEB_S, NULL) && take(1, start + 10 * NEB_S, NULL));
    // a refusal by the shared limit does not charge the source
    assert_true(take(2, start + 20 * NEB_S, &bert) && bert.counted);
    inter_accept_limit_welcome(&accept_limit, &bert, 1, start + 20 * NEB_S);
    for (uint32_t i = 0; i < few.burst; i++)
        assert_true(take(2, start + 20 * NEB_S, NULL));
    assert_true(take(0, start, NULL)); // a connection from the host itself
    inter_accept_limit_end(&accept_limit);
}

// The source of a member is known if its endpoint in the list is a numeric address.
static void test_endpoints(void **state) {
    (void)state;
    static const struct {
        const char *endpoint, *source; // NULL: none
    } x[] = {{"192.0.2.7:9400", "192.0.2.7"},
             {"[2001:db8::1]:9400", "2001:db8::2"}, // the network
             {"[::ffff:192.0.2.7]:1", "192.0.2.7"},
             {"hub.example.org:9400", NULL},
             {"", NULL},
             {":9400", NULL},
             {"[]:1", NULL},
             {"]:1", NULL},
             {"[", NULL},
             {"192.0.2.7", NULL},
             {"2001:db8::1:9400", "2001:db8::1"}, // an endpoint never has this form
             {"127.0.0.2:0;192.0.2.7:9400", NULL}};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        assert_true(sec_source_of_endpoint(x[i].endpoint) ==
                    (x[i].source ? source(x[i].source) : 0));
}

// The oldest known source is dropped first.
static void test_known_sources(void **state) {
    (void)state;
    struct inter_incoming v;
    neb_ns now = 1000 * NEB_S;
    inter_accept_limit_init(&accept_limit, "test", &few);
    for (uint64_t from = 1; from <= INTER_ACCEPT_LIMIT_KNOWN_MAX + 1; from++) {
        now += NEB_S;
        assert_true(take(from, now, &v));
        inter_accept_limit_welcome(&accept_limit, &v, 0, now);
        if (from == INTER_ACCEPT_LIMIT_KNOWN_MAX / 2) { // source 1 has come again since
            assert_true(take(1, now, &v));
            inter_accept_limit_welcome(&accept_limit, &v, 0, now);
        }
    }
    for (uint64_t from = 1; from <= INTER_ACCEPT_LIMIT_KNOWN_MAX + 1; from++) {
        assert_true(take(from, now, &v));
        assert_int_equal(v.counted, from == 2);
    }
    inter_accept_limit_end(&accept_limit);
}

// A member has a few places, and cannot take the places of others. Its revocation frees them.
static void test_places_of_a_member(void **state) {
    (void)state;
    enum { EACH = 4, HOSTILE = 1, HONEST = 0, ADDRESSES = 200 };
    const struct inter_accept_limit_rate r = {
        .burst = 8, .second = 4, .all_burst = 20, .all_second = 10, .known = EACH};
    struct inter_incoming v;
    neb_ns now = 1000 * NEB_S;
    int n = 0;
    inter_accept_limit_init(&accept_limit, "test", &r);
    for (uint64_t from = 1; from <= EACH; from++)
        inter_accept_limit_know(&accept_limit, from, HONEST, now);
    for (uint64_t from = 100; from < 100 + ADDRESSES; from++) {
        now += NEB_S;
        assert_true(take(from, now, &v));
        inter_accept_limit_welcome(&accept_limit, &v, HOSTILE, now);
    }
    for (uint64_t from = 1; from < 100 + ADDRESSES; from++)
        n += take(from, now += NEB_S, &v) && !v.counted;
    assert_int_equal(n, 2 * EACH);
    // the newest of the member's own sources
    assert_true(take(100 + ADDRESSES - 1, now, &v) && !v.counted);
    inter_accept_limit_forget(&accept_limit, HOSTILE);
    assert_int_equal(accept_limit.n_known, EACH);
    assert_true(take(100 + ADDRESSES - 1, now, &v) && v.counted);
    assert_true(take(EACH, now, &v) && !v.counted);
    inter_accept_limit_end(&accept_limit);
}

// ZeroMQ may report a descriptor after its connection was closed and another one got the number.
// The new connection is left alone.
static void test_foreign_descriptor(void **state) {
    (void)state;
    struct inter_incoming v;
    neb_ns now = 1000 * NEB_S;
    int l = listen_on(AF_INET), other = listen_on(AF_INET);
    assert_true(l >= 0 && other >= 0);
    inter_accept_limit_init(&accept_limit, "test", &few);
    inter_accept_limit_listens(&accept_limit, l);
    int own = dial(l, "127.0.0.2", "127.0.0.1"), away = dial(other, "127.0.0.3", "127.0.0.1");
    assert_true(is_there(own, 5000) && is_there(away, 5000));
    int came = accept(l, NULL, NULL), strange = accept(other, NULL, NULL);
    assert_true(came >= 0 && strange >= 0);
    for (int i = 0; i < 100; i++) {
        assert_false(inter_accept_limit_accepted(&accept_limit, strange, now, &v));
        assert_false(inter_accept_limit_accepted(&accept_limit, away, now, &v));
    }
    assert_int_equal(accept_limit.refused, 0);
    assert_true(inter_accept_limit_accepted(&accept_limit, came, now, &v));
    for (int i = 0; i < 100; i++)
        (void)!inter_accept_limit_accepted(&accept_limit, came, now, &v);
    assert_true(accept_limit.refused > 0);
    char b;
    struct pollfd cut = {.fd = own, .events = POLLIN};
    assert_int_equal(poll(&cut, 1, 5000), 1);
    assert_int_equal(recv(own, &b, 1, 0), 0);
    assert_int_equal(send(away, "x", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(strange, &b, 1, 0), 1);
    close(own), close(away), close(came), close(strange), close(other);
    inter_accept_limit_end(&accept_limit);
    close(l);
}

// While the limiter is closed, the kernel drops all requests except those from known sources. A
// second later it drops none.
static void test_closed_limiter(void **state) {
    (void)state;
    struct inter_incoming v;
    neb_ns now = 1000 * NEB_S;
    int l = listen_on(AF_INET);
    assert_true(l >= 0);
    if (!can_filter(l))
        skip();
    inter_accept_limit_init(&accept_limit, "test", &few);
    inter_accept_limit_listens(&accept_limit, l);
    const char *const friends[] = {"127.0.0.2", "127.0.0.3"};
    for (int i = 0; i < 2; i++) {
        assert_true(take(source(friends[i]), now, &v));
        inter_accept_limit_welcome(&accept_limit, &v, 0, now);
    }
    for (uint64_t from = 100; accept_limit.refused_all == 0; from++)
        take(from, now, NULL);
    assert_true(comes(l, "127.0.0.2", "127.0.0.1"));
    assert_true(comes(l, "127.0.0.3", "127.0.0.1"));
    assert_false(comes(l, "127.0.0.4", "127.0.0.1"));
    while (take(source("127.0.0.3"), now, NULL)) // one of the known sources floods
        ;
    assert_true(comes(l, "127.0.0.2", "127.0.0.1"));
    assert_false(comes(l, "127.0.0.3", "127.0.0.1"));
    inter_accept_limit_tick(&accept_limit, now + 999 * NEB_MS);
    assert_false(comes(l, "127.0.0.4", "127.0.0.1"));
    inter_accept_limit_tick(&accept_limit, now + 1000 * NEB_MS);
    assert_true(comes(l, "127.0.0.4", "127.0.0.1"));
    assert_true(comes(l, "127.0.0.3", "127.0.0.1"));
    while (take(source("127.0.0.3"), now + NEB_S, NULL))
        ;
    assert_false(comes(l, "127.0.0.3", "127.0.0.1"));
    assert_true(comes(l, "127.0.0.4", "127.0.0.1"));
    inter_accept_limit_end(&accept_limit);
    close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rate),
                                       cmocka_unit_test(test_ipv4),
                                       cmocka_unit_test(test_ipv6),
                                       cmocka_unit_test(test_shared_rate),
                                       cmocka_unit_test(test_known_sources),
                                       cmocka_unit_test(test_endpoints),
                                       cmocka_unit_test(test_places_of_a_member),
                                       cmocka_unit_test(test_foreign_descriptor),
                                       cmocka_unit_test(test_closed_limiter)};
    neb_log_set_sink(testing_drop, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
