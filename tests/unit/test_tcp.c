// SPDX-License-Identifier: Apache-2.0
// inter/tcp on connections over loopback: a restart resets the estimates of the congestion control,
// and nothing else.
#include "inter/link/tcp.h"

#include <linux/inet_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void connection(int *from, int *to) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, n), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&a, &n), 0);
    assert_int_equal(connect(*from, (struct sockaddr *)&a, n), 0);
    assert_true((*to = accept(l, NULL, NULL)) >= 0);
    close(l);
}

static void carry(int from, int to, size_t bytes) {
    char b[65536] = {0};
    for (size_t done = 0; done < bytes;) {
        assert_int_equal(send(from, b, sizeof b, 0), sizeof b);
        for (size_t got = 0; got < sizeof b;) {
            ssize_t n = recv(to, b, sizeof b - got, 0);
            assert_true(n > 0);
            got += (size_t)n;
        }
        done += sizeof b;
    }
}

static uint64_t bbr_learned(int fd) { // bytes a second
    union tcp_cc_info i = {.bbr = {0}};
    socklen_t n = sizeof i;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CC_INFO, &i, &n), 0);
    return (uint64_t)i.bbr.bbr_bw_hi << 32 | i.bbr.bbr_bw_lo;
}

static void test_bbr_forgets(void **state) {
    (void)state;
    int from, to;
    if (!inter_tcp_may_use("bbr"))
        skip();
    connection(&from, &to);
    assert_true(inter_tcp_set_congestion(from, NULL));
    carry(from, to, 4 << 20);
    assert_true(bbr_learned(from) > 0);
    inter_tcp_restart(from);
    assert_int_equal(bbr_learned(from), 0);
    carry(from, to, 4 << 20); // the connection still works
    assert_true(bbr_learned(from) > 0);
    close(from);
    close(to);
}

// The connection keeps its algorithm. The test uses each algorithm that this process may use.
static void test_algorithm_stays(void **state) {
    (void)state;
    static const char *const names[] = {"reno", "cubic", "bbr"};
    int tried = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[INTER_TCP_NAME_MAX];
        int from, to;
        if (!inter_tcp_may_use(names[i]))
            continue;
        connection(&from, &to);
        assert_true(inter_tcp_set_congestion(from, names[i]));
        carry(from, to, 1 << 20);
        inter_tcp_restart(from);
        inter_tcp_congestion(from, name);
        assert_string_equal(name, names[i]);
        carry(from, to, 1 << 20);
        close(from);
        close(to);
        tried++;
    }
    assert_true(tried > 0);
    inter_tcp_restart(-1); // no connection: nothing happens
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bbr_forgets),
                                       cmocka_unit_test(test_algorithm_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
