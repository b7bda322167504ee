// SPDX-License-Identifier: Apache-2.0
// What strangers can do to two members before any key is checked: hold connections open, and
// announce huge frames.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "inter/link/link.h"
#include "tests/testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { IDLE = 200, CLAIMS = 32, MESSAGES = 200 };

struct site {
    struct inter_link *l;
    uint32_t peer;
    unsigned up, down, got;
};

static char dir[] = "/tmp/nebula-handshake-XXXXXX";
static struct sec_identity *ids[2];
static struct site a, b;

static void on_event(void *user, const struct inter_link_event *e) {
    struct site *s = user;
    s->up += e->kind == INTER_LINK_UP;
    s->down += e->kind == INTER_LINK_DOWN;
    s->got += e->kind == INTER_LINK_MSG;
}

static void step(void) {
    zmq_pollitem_t items[64];
    size_t n = inter_link_poll_items(a.l, items, 32);
    assert_true(n <= 32);
    n += inter_link_poll_items(b.l, items + n, 64 - n);
    assert_true(n <= 64);
    zmq_poll(items, (int)n, 10);
    assert_int_equal(inter_link_process(a.l, on_event, &a), NEB_OK);
    assert_int_equal(inter_link_process(b.l, on_event, &b), NEB_OK);
}

// Both members send MESSAGES bulk messages to each other. All must arrive within ten seconds.
static void exchange(void) {
    static uint8_t data[64 * 1024];
    unsigned sent_a = 0, sent_b = 0, want_a = a.got + MESSAGES, want_b = b.got + MESSAGES;
    neb_ns end = neb_now() + 10 * NEB_S;
    while ((a.got < want_a || b.got < want_b) && neb_now() < end) {
        if (sent_a < MESSAGES)
            sent_a += inter_link_send(a.l, a.peer, INTER_BULK, data, sizeof data) == NEB_OK;
        if (sent_b < MESSAGES)
            sent_b += inter_link_send(b.l, b.peer, INTER_BULK, data, sizeof data) == NEB_OK;
        step();
    }
    assert_int_equal(a.got, want_a);
    assert_int_equal(b.got, want_b);
    assert_true(a.up == 1 && b.up == 1 && a.down == 0 && b.down == 0);
}

static int stranger(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)inter_link_port(b.l))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        assert_int_equal(errno, EINPROGRESS);
    return fd;
}

// True if the other side has ended this connection. Drops what it sent before.
static bool ended(int fd) {
    char skip[512];
    ssize_t n;
    while ((n = recv(fd, skip, sizeof skip, 0)) > 0)
        ;
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static unsigned count_ended(const int *fds, int n) {
    unsigned k = 0;
    for (int i = 0; i < n; i++)
        k += ended(fds[i]);
    return k;
}

struct memory {
    long size_kib, resident_kib;
};

static struct memory memory_now(void) {
    struct memory m = {0};
    long kib = sysconf(_SC_PAGESIZE) / 1024;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &m.size_kib, &m.resident_kib), 2);
    fclose(f);
    return (struct memory){m.size_kib * kib, m.resident_kib * kib};
}

static void test_idle_connections(void **state) {
    (void)state;
    int fds[IDLE];
    for (int i = 0; i < IDLE; i++) {
        fds[i] = stranger();
        step();
    }
    assert_int_equal(count_ended(fds, IDLE), 0); // they are open
    exchange();
    neb_ns end = neb_now() + 10 * NEB_S; // cut when the time for a handshake is over
    while (count_ended(fds, IDLE) < IDLE && neb_now() < end)
        step();
    assert_int_equal(count_ended(fds, IDLE), IDLE);
    exchange();
    for (int i = 0; i < IDLE; i++)
        close(fds[i]);
}

// A correct ZMTP 3.0 CURVE greeting, then a command (even) or message (odd) that claims 512 MiB and
// sends 16 KiB. The claim alone must not allocate.
static void test_huge_claim(void **state) {
    (void)state;
    static uint8_t out[64 + 9 + 16 * 1024];
    int fds[CLAIMS];
    size_t done[CLAIMS] = {0};
    exchange(); // allocates lasting buffers before the count starts
    struct memory before = memory_now();
    for (int i = 0; i < CLAIMS; i++)
        fds[i] = stranger();
    neb_ns end = neb_now() + 2 * NEB_S;
    while (neb_now() < end) {
        for (int i = 0; i < CLAIMS; i++) {
            memset(out, 0, sizeof out);
            out[0] = 0xff, out[9] = 0x7f, out[10] = 3;
            memcpy(out + 12, "CURVE", 5);
            out[64] = i % 2 ? 2 : 6; // long frame
            out[69] = 0x20;          // big-endian 2^29
            ssize_t n = send(fds[i], out + done[i], sizeof out - done[i], MSG_NOSIGNAL);
            if (n > 0)
                done[i] += (size_t)n;
        }
        step();
        struct memory now = memory_now();
        assert_true(now.resident_kib - before.resident_kib < 16 * 1024);
        assert_true(now.size_kib - before.size_kib < 256 * 1024);
    }
    for (int i = 0; i < CLAIMS; i++)
        assert_true(done[i] > 64 + 9); // the claim was sent
    // A busy machine cuts somewhat later. All silent connections are cut after
    // INTER_UNIDENTIFIED_MS.
    for (end = neb_now() + 5 * NEB_S; count_ended(fds, CLAIMS) < CLAIMS && neb_now() < end;)
        step();
    assert_int_equal(count_ended(fds, CLAIMS), CLAIMS);
    exchange();
    for (int i = 0; i < CLAIMS; i++)
        close(fds[i]);
}

static struct site open_site(int i, const struct sec_members *m, const char *listen) {
    const uint8_t *other = sec_identity_public(ids[1 - i])->curve;
    struct site s = {.peer = (uint32_t)(sec_members_by_curve(m, other) - m->m)};
    struct inter_link_config cfg = {.identity = ids[i], .members = m, .listen = listen};
    assert_int_equal(inter_link_create(&cfg, &s.l), NEB_OK);
    return s;
}

static int pair_up(void **state) {
    (void)state;
    struct sec_members m = {.n = 0};
    for (int i = 0; i < 2; i++) {
        struct sec_member x = {.pub = *sec_identity_public(ids[i])};
        assert_int_equal(sec_members_add(&m, &x), NEB_OK);
    }
    b = open_site(1, &m, "127.0.0.1:*");
    struct sec_member x = {.pub = *sec_identity_public(ids[1])};
    snprintf(x.endpoint, sizeof x.endpoint, "127.0.0.1:%u", inter_link_port(b.l));
    assert_int_equal(sec_members_add(&m, &x), NEB_OK);
    a = open_site(0, &m, NULL);
    neb_ns end = neb_now() + 5 * NEB_S;
    while (!(a.up && b.up) && neb_now() < end)
        step();
    return a.up && b.up ? 0 : -1;
}

static int part(void **state) {
    (void)state;
    inter_link_destroy(&a.l);
    inter_link_destroy(&b.l);
    return 0;
}

static int setup(void **state) {
    static const char *const names[] = {"anna", "bert"};
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        char home[NEB_PATH_MAX];
        assert_int_equal(neb_path(home, sizeof home, dir, names[i]), NEB_OK);
        assert_int_equal(sec_identity_create(home, names[i], &ids[i]), NEB_OK);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    sec_identity_destroy(&ids[0]);
    sec_identity_destroy(&ids[1]);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_huge_claim, pair_up, part),
        cmocka_unit_test_setup_teardown(test_idle_connections, pair_up, part),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
