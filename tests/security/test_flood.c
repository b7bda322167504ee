// What a stranger who cannot authenticate costs two members that exchange data: 500 idle connections (less than twice the time, under 64
// MiB), half-finished greetings, and frames of 512 MiB claimed before authentication (under 16 MiB).
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "inter/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { IDLE = 500, CLAIMS = 16, CHUNK = 256 << 10 };
static char dir[] = "/tmp/nebula-flood-XXXXXX";
static struct sec_identity *ids[2];
static struct inter_link *links[2];
static uint32_t peers[2];
static uint64_t got;
static unsigned ups, downs;

static void on_event(void *user, const struct inter_link_event *e) {
    (void)user;
    ups += e->kind == INTER_LINK_UP;
    downs += e->kind == INTER_LINK_DOWN;
    got += e->kind == INTER_LINK_MSG ? e->len : 0;
}

static void step(void) {
    zmq_pollitem_t items[64];
    size_t n = inter_link_poll_items(links[0], items, 32);
    n += inter_link_poll_items(links[1], items + n, 64 - n);
    zmq_poll(items, (int)n, 5);
    for (int i = 0; i < 2; i++)
        assert_int_equal(inter_link_process(links[i], on_event, NULL), NEB_OK);
}

// Seconds that 48 MiB take from one member to the other.
static double exchange(void) {
    static uint8_t chunk[CHUNK];
    const uint64_t total = 48ull << 20;
    uint64_t sent = 0;
    neb_ns start = neb_now();
    got = 0;
    while (got < total) {
        while (sent < total &&
               inter_link_send(links[0], peers[0], INTER_BULK, chunk, sizeof chunk) == NEB_OK)
            sent += sizeof chunk;
        step();
        assert_true(neb_now() - start < 50 * NEB_S);
    }
    return neb_seconds(neb_now() - start);
}

static double best_exchange(int times) {
    double best = exchange();
    for (int i = 1; i < times; i++) {
        double s = exchange();
        best = s < best ? s : best;
    }
    return best;
}

static double resident_mib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*s %ld", &pages), 1);
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static int dial(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)inter_link_port(links[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        assert_int_equal(errno, EINPROGRESS);
    return fd;
}

static void test_idle_connections(void **state) {
    (void)state;
    static int fds[IDLE];
    best_exchange(2);
    double before = resident_mib(), quiet = best_exchange(3);
    for (int i = 0; i < IDLE; i++) {
        fds[i] = dial();
        if (i % 3 == 0) // one in three has begun a greeting
            (void)!send(fds[i], "\xff\0\0\0\0\0\0\0\1\x7f\3", 11, MSG_NOSIGNAL);
        if (i % 50 == 49)
            step();
    }
    double flooded = best_exchange(3), after = resident_mib();
    printf("48 MiB: %.3f s alone, %.3f s beside %d idle connections; %.1f MiB more\n", quiet,
           flooded, IDLE, after - before);
    assert_true(flooded < 2 * quiet + 0.05);
    assert_true(after - before < 64);
    assert_true(ups == 2 && downs == 0);
    for (int i = 0; i < IDLE; i++)
        close(fds[i]);
}

// A true ZMTP 3.0 CURVE greeting, then a frame said to have 512 MiB, and as much of it as the other side takes.
static void test_claimed_frames(void **state) {
    (void)state;
    uint8_t greeting[64 + 9] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3};
    static uint8_t filler[64 << 10];
    int fds[CLAIMS];
    uint64_t taken = 0;
    memcpy(greeting + 12, "CURVE", 5);
    greeting[64] = 6;        // a long command frame
    greeting[65 + 4] = 0x20; // of 0x20000000 bytes, big-endian
    best_exchange(2);
    double before = resident_mib();
    for (int i = 0; i < CLAIMS; i++)
        fds[i] = dial();
    neb_ns end = neb_now() + 2 * NEB_S;
    for (int i = 0; i < 20; i++)
        step();
    for (int i = 0; i < CLAIMS; i++)
        (void)!send(fds[i], greeting, sizeof greeting, MSG_NOSIGNAL);
    while (neb_now() < end) {
        for (int i = 0; i < CLAIMS; i++) {
            ssize_t n = send(fds[i], filler, sizeof filler, MSG_NOSIGNAL);
            taken += n > 0 ? (uint64_t)n : 0;
        }
        step();
    }
    double after = resident_mib();
    printf("%d claims of 512 MiB: %.1f MiB taken from them, %.1f MiB more\n", CLAIMS,
           (double)taken / (1 << 20), after - before);
    assert_true(after - before < 16);
    exchange();
    assert_true(ups == 2 && downs == 0);
    for (int i = 0; i < CLAIMS; i++)
        close(fds[i]);
}

static int setup(void **state) {
    struct rlimit r;
    struct sec_members m[1] = {{.n = 0}};
    (void)state;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < 4096) {
        r.rlim_cur = r.rlim_max < 4096 ? r.rlim_max : 4096;
        (void)!setrlimit(RLIMIT_NOFILE, &r);
    }
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        char home[NEB_PATH_MAX];
        struct sec_member x = {.connect = SEC_CONNECT_AUTO};
        assert_int_equal(neb_path(home, sizeof home, dir, i ? "b" : "a"), NEB_OK);
        assert_int_equal(sec_identity_create(home, i ? "bert" : "anna", &ids[i]), NEB_OK);
        x.pub = *sec_identity_public(ids[i]);
        assert_int_equal(sec_members_add(&m[0], &x), NEB_OK);
    }
    for (int i = 1; i >= 0; i--) {
        for (uint32_t k = 0; k < 2; k++)
            if (strcmp(m[0].m[k].pub.name, i ? "bert" : "anna") != 0)
                peers[i] = k;
        if (i == 0)
            snprintf(m[0].m[peers[0]].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u",
                     inter_link_port(links[1]));
        struct inter_link_config c = {
            .identity = ids[i], .members = &m[0], .listen = i ? "127.0.0.1:*" : NULL, .n_bulk = 2};
        assert_int_equal(inter_link_create(&c, &links[i]), NEB_OK);
    }
    neb_ns end = neb_now() + 20 * NEB_S;
    while (ups < 2 && neb_now() < end)
        step();
    return ups == 2 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        inter_link_destroy(&links[i]);
        sec_identity_destroy(&ids[i]);
    }
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_idle_connections),
                                       cmocka_unit_test(test_claimed_frames)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
