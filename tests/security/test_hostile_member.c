// SPDX-License-Identifier: Apache-2.0
// A member that misbehaves after authentication makes another one hold memory: by silent
// connections, and by one endless message, before HELLO and after it. The connections of strangers
// must not push out a member's connection. The hostile side is another process, so that its memory
// is not counted.
#include "agent/base/bytes.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "inter/link/socket_profile.h"
#include "inter/link/state.h"
#include "tests/testing.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    ANNA,
    BERT,
    MALLORY,
    N,
    SILENT = 300,
    PARTS = 400,
    PART = 1 << 20,
    FLOOD = 1200,
    ADDRESSES = 4
};
static char dir[] = "/tmp/nebula-hostile-XXXXXX";
static struct sec_identity *ids[N];
static struct inter_link *links[2]; // of anna, who listens, and bert
static uint32_t index_of[2][N];     // of each member in their lists
static int orders = -1;             // to the hostile process
static pid_t hostile;
static unsigned honest_ups, honest_downs;
static uint64_t got;

// ---- the hostile process ------------------------------------------------------------------------

static void *dial(void *ctx, uint32_t port) {
    char where[64];
    void *s = zmq_socket(ctx, ZMQ_DEALER);
    int never = -1, at_once = 0;
    snprintf(where, sizeof where, "tcp://127.0.0.1:%u", port);
    zmq_setsockopt(s, ZMQ_RECONNECT_IVL, &never, sizeof never);
    zmq_setsockopt(s, ZMQ_LINGER, &at_once, sizeof at_once);
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, sec_identity_public(ids[ANNA])->curve, SEC_KEY_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, sec_identity_public(ids[MALLORY])->curve, SEC_KEY_BYTES);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, sec_identity_curve_secret(ids[MALLORY]), SEC_KEY_BYTES);
    if (zmq_connect(s, where) != 0)
        _exit(1);
    return s;
}

static void keep(void *data, void *hint) { (void)data, (void)hint; }

// ZeroMQ sends nothing of a message before its last part is there. So the parts are not copied: on
// a busy machine the link would close the connection meanwhile, because it is silent.
static void one_message_in_parts(void *s) {
    static uint8_t part[PART];
    for (int i = 0; i < PARTS; i++) {
        zmq_msg_t m;
        if (zmq_msg_init_data(&m, part, sizeof part, keep, NULL) != 0 ||
            zmq_msg_send(&m, s, i + 1 < PARTS ? ZMQ_SNDMORE : 0) < 0)
            _exit(1);
    }
}

// FLOOD silent connections from ADDRESSES addresses, new ones each time. A single address would be
// blocked before it has filled the table (test_flood.c).
static void flood(uint32_t port) {
    static uint32_t first = 0x7f000002;
    struct sockaddr_in from = {.sin_family = AF_INET},
                       to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    static int fds[FLOOD];
    first += ADDRESSES;
    for (int i = 0; i < FLOOD; i++) {
        if (fds[i]) // of the flood before, which the other side has closed
            close(fds[i]);
        int fd = fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        from.sin_addr.s_addr = htonl(first + (uint32_t)(i % ADDRESSES));
        if (fd < 0 || bind(fd, (struct sockaddr *)&from, sizeof from) != 0 ||
            connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
            _exit(1);
    }
}

static void misbehave(char what, uint32_t port) {
    static void *s[SILENT];
    if (what == 'f') {
        flood(port);
        return;
    }
    void *ctx = zmq_ctx_new();
    for (int i = 0; i < (what == 'i' ? SILENT : 1); i++)
        s[i] = dial(ctx, port);
    if (what == 'h') { // HELLO of connection 0, as a link sends it
        uint8_t b[HELLO_MAX], welcome[HELLO_MAX];
        size_t n =
            link_hello_make(NEB_PROTOCOL, neb_build(), HELLO, (uint64_t)neb_wall_now(), 0, b);
        if (zmq_send(s[0], b, n, 0) < 0 || zmq_recv(s[0], welcome, sizeof welcome, 0) <= 0)
            _exit(1);
    }
    if (what != 'i')
        one_message_in_parts(s[0]);
    // The context and its connections stay until the process ends.
}

static void serve(int in) {
    struct {
        char what;
        uint32_t port;
    } order;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(in, &order, sizeof order) == (ssize_t)sizeof order)
        misbehave(order.what, order.port);
    _exit(0);
}

static void order(char what) {
    struct {
        char what;
        uint32_t port;
    } o = {what, inter_link_port(links[ANNA])};
    assert_int_equal(write(orders, &o, sizeof o), sizeof o);
}

// ---- the honest pair ----------------------------------------------------------------------------

static void on_event(void *user, const struct inter_link_event *e) {
    int self = *(int *)user;
    bool honest = e->peer == index_of[self][self == ANNA ? BERT : ANNA];
    honest_ups += honest && e->kind == INTER_LINK_UP;
    honest_downs += honest && e->kind == INTER_LINK_DOWN;
    got += honest && e->kind == INTER_LINK_MSG ? e->len : 0;
}

static void step(void) {
    static int self[2] = {ANNA, BERT};
    zmq_pollitem_t items[256];
    size_t n = inter_link_poll_items(links[0], items, 128);
    n += inter_link_poll_items(links[1], items + n, 256 - n);
    zmq_poll(items, (int)n, 5);
    for (int i = 0; i < 2; i++)
        assert_int_equal(inter_link_process(links[i], on_event, &self[i]), NEB_OK);
}

static double resident_mib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*s %ld", &pages), 1);
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static int descriptors(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

// Runs for `seconds`, while bert sends to anna. Returns the most memory above `before`.
static double run(double seconds, double before) {
    static uint8_t chunk[64 << 10];
    double most = 0;
    for (neb_ns end = neb_now() + (neb_ns)(seconds * 1e9); neb_now() < end;) {
        (void)!inter_link_send(links[BERT], index_of[BERT][ANNA], INTER_BULK, chunk, 1000);
        step();
        double now = resident_mib() - before;
        most = now > most ? now : most;
    }
    assert_int_equal(honest_downs, 0);
    return most;
}

static struct inter_link_stats stats_of_mallory(void) {
    struct inter_link_stats s;
    assert_int_equal(inter_link_stats(links[ANNA], index_of[ANNA][MALLORY], &s), NEB_OK);
    return s;
}

// The honest link still carries data.
static void check_honest(void) {
    uint64_t was = got;
    for (neb_ns end = neb_now() + 20 * NEB_S; got == was && neb_now() < end;)
        run(0.1, 0);
    assert_true(got > was);
}

static void say_hello(void *s) {
    uint8_t b[HELLO_MAX];
    int wait_ms = 1000; // a connection that was cut would not accept this message
    zmq_setsockopt(s, ZMQ_SNDTIMEO, &wait_ms, sizeof wait_ms);
    size_t n = link_hello_make(NEB_PROTOCOL, neb_build(), HELLO, (uint64_t)neb_wall_now(), 0, b);
    (void)!zmq_send(s, b, n, 0);
}

// True: the answer to HELLO came. False: the time is over, or the connection was cut. The socket
// never redials.
static bool is_welcomed(void *s, neb_ns within) {
    uint8_t welcome[HELLO_MAX];
    for (neb_ns end = neb_now() + within; neb_now() < end; step())
        if (zmq_recv(s, welcome, sizeof welcome, ZMQ_DONTWAIT) > 0)
            return true;
    return false;
}

// A few addresses open more connections than may stay without a name. A member at another address
// connected before them, and its handshake takes all that time. It must not be cut in their favour.
// False: this machine was too slow, so there were too few connections, or the member's own time was
// over.
static bool outlives_flood(void *ctx) {
    neb_ns start = neb_now();
    int quiet = descriptors(), most = 0;
    void *early = dial(ctx, inter_link_port(links[ANNA]));
    run(0.3, 0); // it has authenticated, but is still silent
    order('f');
    while (most < 2 * INTER_UNIDENTIFIED_MAX &&
           neb_now() - start < 3 * NEB_S) { // ours and ZeroMQ's
        run(0.02, 0);
        int n = descriptors() - quiet;
        most = n > most ? n : most;
    }
    run(0.5, 0); // time for the rest of the connections
    // the member's own time is over
    bool slow = neb_now() - start > (INTER_UNIDENTIFIED_MS - 500) * NEB_MS;
    say_hello(early);
    bool welcomed = is_welcomed(early, 2 * NEB_S);
    zmq_close(early);
    printf("%d connections of %d addresses: %d descriptors here\n", FLOOD, ADDRESSES, most);
    bool full = most >= 2 * INTER_UNIDENTIFIED_MAX;
    if (full && !slow)
        assert_true(welcomed);
    return full && welcomed;
}

static void test_flood_of_few_addresses(void **state) {
    (void)state;
    void *ctx = zmq_ctx_new();
    int quiet = descriptors(), tries = 0;
    for (bool done = false; !done; tries++) {
        if (tries == 5) {
            printf(
                "skipped: this machine is too slow to fill the table within a handshake's time\n");
            skip();
        }
        done = outlives_flood(ctx);
        for (neb_ns end = neb_now() + 20 * NEB_S; descriptors() > quiet + 8 && neb_now() < end;)
            run(0.1, 0); // silent ones are cut after 8 s
    }
    order('f');
    // On a loaded machine they come slowly, so wait until they are there.
    for (neb_ns end = neb_now() + 20 * NEB_S;
         descriptors() < quiet + INTER_UNIDENTIFIED_MAX && neb_now() < end;)
        run(0.02, 0);
    neb_ns start = neb_now();
    // a connection that comes while they are open
    void *late = dial(ctx, inter_link_port(links[ANNA]));
    say_hello(late);
    assert_true(is_welcomed(late, 60 * NEB_S));
    printf("a member's connection beside them is up after %.2f s\n",
           neb_seconds(neb_now() - start));
    zmq_close(late);
    zmq_ctx_term(ctx);
    for (neb_ns end = neb_now() + 60 * NEB_S; descriptors() > quiet + 8 && neb_now() < end;)
        run(0.1, 0);
    assert_true(descriptors() <= quiet + 8); // the next tests count from here
    check_honest();
}

static void test_silent_connections(void **state) {
    (void)state;
    run(0.5, 0);
    double before = resident_mib();
    int quiet = descriptors(), most = 0;
    order('i');
    double more = 0;
    neb_ns end = neb_now() + 40 * NEB_S;
    bool all_gone = false;
    while (neb_now() < end && !all_gone) {
        double m = run(0.1, before);
        int n = descriptors() - quiet;
        more = m > more ? m : more;
        most = n > most ? n : most;
        all_gone = most > 20 && n <= 4; // they were here and have left
    }
    printf(
        "%d silent connections of a member: %.1f MiB more, %d descriptors at most, %d at the end\n",
        SILENT, more, most, descriptors() - quiet);
    assert_true(all_gone);
#ifdef TESTING_SANITIZED
    puts("not checked in this build, because freed memory is kept: the memory used");
#else
    assert_true(more < 64);
#endif
    check_honest();
}

static void test_parts_before_hello(void **state) {
    (void)state;
    double before = resident_mib();
    order('b');
    double more = run(4, before);
    printf("%d MiB in one message before HELLO: %.1f MiB more\n", PARTS, more);
    assert_true(more < 128);
    assert_true(resident_mib() - before < 64); // freed again
    check_honest();
}

static void test_parts_after_hello(void **state) {
    (void)state;
    double before = resident_mib();
    order('h');
    double more = 0;
    neb_ns end = neb_now() + 60 * NEB_S; // usually much sooner
    while (!stats_of_mallory().cut && neb_now() < end) {
        double m = run(0.1, before);
        more = m > more ? m : more;
    }
    double m = run(1, before);
    more = m > more ? m : more;
    printf(
        "%d MiB in one message on a connection that is up: %.1f MiB more, connections cut: %llu\n",
        PARTS, more, (unsigned long long)stats_of_mallory().cut);
    assert_true(stats_of_mallory().cut >= 1);
    assert_true(more < 256); // 97 MiB, and what arrives between two checks
    check_honest();
}

static int setup(void **state) {
    struct sec_members m = {.n = 0};
    struct rlimit r;
    int ends[2];
    (void)state;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < 4096) {
        r.rlim_cur = r.rlim_max < 4096 ? r.rlim_max : 4096;
        (void)!setrlimit(RLIMIT_NOFILE, &r);
    }
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < N; i++) {
        static const char *const names[] = {"anna", "bert", "mallory"};
        char home[NEB_PATH_MAX];
        struct sec_member x = {.connect = SEC_CONNECT_AUTO};
        assert_int_equal(neb_path(home, sizeof home, dir, names[i]), NEB_OK);
        assert_int_equal(sec_identity_create(home, names[i], &ids[i]), NEB_OK);
        x.pub = *sec_identity_public(ids[i]);
        assert_int_equal(sec_members_add(&m, &x), NEB_OK);
    }
    assert_int_equal(pipe(ends), 0);
    hostile = fork();
    if (hostile == 0) {
        close(ends[1]);
        serve(ends[0]);
    }
    close(ends[0]);
    orders = ends[1];
    for (int i = 0; i < 2; i++)
        for (uint32_t k = 0; k < N; k++)
            for (int w = 0; w < N; w++)
                if (!strcmp(m.m[k].pub.name, sec_identity_public(ids[w])->name))
                    index_of[i][w] = k;
    for (int i = 0; i < 2; i++) {
        if (i == BERT)
            snprintf(m.m[index_of[BERT][ANNA]].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u",
                     inter_link_port(links[ANNA]));
        struct inter_link_config c = {.identity = ids[i],
                                      .members = &m,
                                      .listen = i == ANNA ? "127.0.0.1:*" : NULL,
                                      .n_bulk = 2};
        assert_int_equal(inter_link_create(&c, &links[i]), NEB_OK);
    }
    for (neb_ns end = neb_now() + 20 * NEB_S; honest_ups < 2 && neb_now() < end;)
        step();
    return honest_ups == 2 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    close(orders);
    kill(hostile, SIGKILL);
    waitpid(hostile, NULL, 0);
    for (int i = 0; i < 2; i++)
        inter_link_destroy(&links[i]);
    for (int i = 0; i < N; i++)
        sec_identity_destroy(&ids[i]);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flood_of_few_addresses), cmocka_unit_test(test_silent_connections),
        cmocka_unit_test(test_parts_before_hello), cmocka_unit_test(test_parts_after_hello)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
