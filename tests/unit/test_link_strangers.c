// SPDX-License-Identifier: Apache-2.0
// inter/link: what strangers and Byzantine members cannot do to it.
#include "tests/unit/link_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static unsigned refused_lines;

static void sink(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    (void)level;
    refused_lines += strstr(text, "link refused") != NULL;
}

static void test_unknown_key(void **state) {
    (void)state;
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    struct sec_members m = {.n = 0};
    add(&m, 1);
    add(&m, 2);
    endpoint(&m, 1, inter_link_port(b.l));
    refused_lines = 0;
    neb_log_set_sink(sink, NULL);
    struct site c = open_site(2, &m, 1, NULL);
    UNTIL(&b, &c, inter_link_refused(b.l) >= 5, 30);
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(refused_lines, 1); // one line for five or more refusals
    assert_true(c.up == 0 && b.up == 0);
    close_pair(&c, &b);
}

static void test_wrong_server_key(void **state) {
    (void)state;
    struct sec_members m = {.n = 0}; // carl's list has bert's port as anna's; bert even admits carl
    add(&m, 0);
    add(&m, 1);
    add(&m, 2);
    struct site b = open_site(1, &m, 2, "127.0.0.1:*");
    endpoint(&m, 0, inter_link_port(b.l));
    struct site c = open_site(2, &m, 0, NULL);
    neb_ns end = neb_now() + 2 * NEB_S;
    while (neb_now() < end)
        step(&b, &c);
    assert_true(c.up == 0 && b.up == 0);
    close_pair(&c, &b);
}

// A raw DEALER with a member's keys. It sends messages that a link never sends.
static void *raw_dealer(void *ctx, int who, int server, uint32_t port, const char *rid) {
    char where[64];
    int linger = 0;
    snprintf(where, sizeof where, "tcp://127.0.0.1:%u", port);
    void *s = zmq_socket(ctx, ZMQ_DEALER);
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s, ZMQ_CURVE_SERVERKEY, sec_identity_public(ids[server])->curve, 32);
    zmq_setsockopt(s, ZMQ_CURVE_PUBLICKEY, sec_identity_public(ids[who])->curve, 32);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, sec_identity_curve_secret(ids[who]), 32);
    if (rid)
        zmq_setsockopt(s, ZMQ_ROUTING_ID, rid, strlen(rid));
    assert_int_equal(zmq_connect(s, where), 0);
    return s;
}

static uint64_t refused_of(struct site *s, uint32_t peer) {
    struct inter_link_stats st;
    assert_int_equal(inter_link_stats(s->l, peer, &st), NEB_OK);
    return st.refused;
}

// Member carl takes a routing id like anna's, replays a HELLO and sends data before a HELLO:
// nothing arrives as anna's, and her link stays up.
static void test_spoof(void **state) {
    (void)state;
    struct sec_members m = list;
    add(&m, 2);
    struct site b = open_site(1, &m, 0, "127.0.0.1:*");
    uint32_t port = inter_link_port(b.l), carl = index_of(&m, 2);
    struct sec_members ma = m;
    endpoint(&ma, 1, port);
    struct site a = open_site(0, &ma, 1, NULL);
    UNTIL(&a, &b, a.up && b.up, 20);
    void *ctx = zmq_ctx_new();
    uint8_t hello[HELLO_MAX], data[] = {6, 'e', 'v', 'i', 'l'};
    void *named = raw_dealer(ctx, 2, 1, port, "anna");
    size_t hello_n = link_hello_make(NEB_PROTOCOL, "carl's", HELLO, INT64_MAX, 0, hello);
    zmq_send(named, hello, hello_n, 0);
    UNTIL(&a, &b, refused_of(&b, carl) >= 1, 20);
    void *early = raw_dealer(ctx, 2, 1, port, NULL);
    zmq_send(early, data, sizeof data, 0);
    UNTIL(&a, &b, refused_of(&b, carl) >= 2, 20);
    assert_int_equal(b.up, 1);
    // with a correct HELLO carl comes up as carl; anna's session number stays hers
    void *proper = raw_dealer(ctx, 2, 1, port, NULL);
    zmq_send(proper, hello, hello_n, 0);
    UNTIL(&a, &b, b.up == 2, 20);
    assert_true(b.down == 0 && a.down == 0 && b.control == 0);
    assert_int_equal(refused_of(&b, index_of(&m, 0)), 0);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "anna", 4), NEB_OK);
    UNTIL(&a, &b, !strcmp(b.last, "anna"), 20);
    zmq_close(named);
    zmq_close(early);
    zmq_close(proper);
    zmq_ctx_term(ctx);
    close_pair(&a, &b);
}

// The listener's set is up before the dialler's. So its bulk data may arrive before the answer on
// control. The data waits for that answer, and the wait uses no processor time.
static void test_early_bulk(void **state) {
    (void)state;
    enum { EACH = 3 };
    int one = 1, linger = 0;
    char where[64];
    uint8_t rid[5], control[5], b[HELLO_MAX + 1], welcome[HELLO_MAX],
        data[EACH + 1] = {6, 0, 0, 0}; // as on_event expects
    size_t n = sizeof where;
    void *ctx = zmq_ctx_new(), *s = zmq_socket(ctx, ZMQ_ROUTER);
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s, ZMQ_CURVE_SERVER, &one, sizeof one);
    zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, sec_identity_curve_secret(ids[1]), 32);
    assert_int_equal(zmq_bind(s, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, where, &n), 0);
    struct sec_members m = list;
    endpoint(&m, 1, (uint32_t)strtoul(strrchr(where, ':') + 1, NULL, 10));
    struct site a = open_site(0, &m, 1, NULL);
    bool asked = false;
    size_t welcome_n = 0;
    unsigned bulk = 0;
    for (neb_ns end = neb_now() + 20 * NEB_S; (!asked || bulk < 3) && neb_now() < end;) {
        step(&a, NULL);
        if (zmq_recv(s, rid, sizeof rid, ZMQ_DONTWAIT) != sizeof rid)
            continue;
        int got = zmq_recv(s, b, sizeof b, 0);
        assert_in_range(got, 16, sizeof welcome);
        memcpy(welcome, b, welcome_n = (size_t)got);
        welcome[0] = 2;
        if (b[9] == 0) {
            memcpy(control, rid, sizeof rid);
            asked = true;
            continue;
        }
        zmq_send(s, rid, sizeof rid, ZMQ_SNDMORE);
        zmq_send(s, welcome, welcome_n, 0);
        zmq_send(s, rid, sizeof rid, ZMQ_SNDMORE);
        zmq_send(s, data, sizeof data, 0);
        bulk++;
    }
    assert_true(asked && bulk == 3);
    unsigned steps = 0;
    for (neb_ns end = neb_now() + 500 * NEB_MS; neb_now() < end; steps++)
        step(&a, NULL);
    assert_true(a.up == 0 && a.bulk_bytes == 0);
    assert_in_range(steps, 1, 200); // the link polls and finds nothing
    welcome[9] = 0;
    zmq_send(s, control, sizeof control, ZMQ_SNDMORE);
    zmq_send(s, welcome, welcome_n, 0);
    UNTIL(&a, NULL, a.up == 1 && a.bulk_bytes == 3 * EACH, 20);
    assert_int_equal(refused_of(&a, a.peer), 0);
    inter_link_destroy(&a.l);
    zmq_close(s);
    zmq_ctx_term(ctx);
}

static long resident_kib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*s %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

// Raw TCP with noise, a greeting that announces a huge frame, or half-open connections does not
// disturb a link.
static void test_garbage(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    long before = resident_kib();
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)inter_link_port(b.l))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fds[8];
    for (int i = 0; i < 8; i++) {
        uint8_t junk[4096];
        for (size_t k = 0; k < sizeof junk; k++)
            junk[k] = (uint8_t)(k * 31 + (size_t)i);
        if (i % 2) { // a valid ZMTP 3.0 CURVE greeting, then a command of 2^40 bytes
            memset(junk, 0, 64);
            junk[0] = 0xff, junk[9] = 0x7f, junk[10] = 3;
            memcpy(junk + 12, "CURVE", 5);
            junk[64] = 6;
            memset(junk + 65, 0, 8);
            junk[67] = 1;
        }
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fds[i], (struct sockaddr *)&to, sizeof to), 0);
        if (i < 6)
            assert_true(send(fds[i], junk, sizeof junk, MSG_NOSIGNAL) > 0);
    }
    neb_ns end = neb_now() + NEB_S;
    while (neb_now() < end)
        step(&a, &b);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "still", 5), NEB_OK);
    UNTIL(&a, &b, !strcmp(b.last, "still"), 20);
    // on a loaded machine both sets may come up before one is chosen. Then the test sees one
    // change-over
    assert_true(a.down <= 1 && b.down <= 1 && a.up == a.down + 1 && b.up == b.down + 1);
    assert_true(resident_kib() - before < 32 * 1024);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    close_pair(&a, &b);
}

// Sends bulk to a peer as long as it is accepted, at most 256 MiB, while the peer claims after each
// message that it has read everything. Returns the accepted bytes.
static uint64_t feed(struct site *b, uint32_t peer, void *control) {
    enum { MESSAGE = 1 << 20, MOST = 256 };
    static uint8_t data[MESSAGE];
    uint64_t taken = 0;
    for (neb_ns end = neb_now() + 2 * NEB_S; neb_now() < end && taken < (uint64_t)MOST * MESSAGE;) {
        if (inter_link_send(b->l, peer, INTER_BULK, data, sizeof data) == NEB_OK)
            taken += sizeof data;
        uint8_t heartbeat[10] = {HEARTBEAT, 1};
        neb_put_u64(heartbeat + 2, b->l->peers[peer].s[ACCEPTED].c[1].sent);
        zmq_send(control, heartbeat, sizeof heartbeat, ZMQ_DONTWAIT);
        step(b, NULL);
    }
    return taken;
}

// A member that acknowledges messages it has not read gets no more than a member that acknowledges
// nothing.
static void test_acknowledges_all(void **state) {
    (void)state;
    enum { QUEUE = 8 << 20, KERNEL = 24 << 20 }; // the bytes that its own side has taken count too
    struct site b = {.id = ids[1], .peer = index_of(&list, 0)};
    struct inter_link_config cfg = {.identity = ids[1],
                                    .members = &list,
                                    .listen = "127.0.0.1:*",
                                    .n_bulk = 1,
                                    .bulk_queue_bytes = QUEUE};
    assert_int_equal(inter_link_create(&cfg, &b.l), NEB_OK);
    void *ctx = zmq_ctx_new(), *s[2];
    for (uint8_t i = 0; i < 2; i++) {
        uint8_t hello[HELLO_MAX], answer[HELLO_MAX];
        size_t n = link_hello_make(NEB_PROTOCOL, "", HELLO, 1, i, hello);
        int one = 1;
        s[i] = raw_dealer(ctx, 0, 1, inter_link_port(b.l), NULL);
        zmq_setsockopt(s[i], ZMQ_RCVHWM, &one, sizeof one);
        zmq_send(s[i], hello, n, 0);
        bool welcome = false;
        UNTIL(&b, NULL, welcome |= zmq_recv(s[i], answer, sizeof answer, ZMQ_DONTWAIT) > 0, 20);
    }
    assert_in_range(feed(&b, b.peer, s[0]), QUEUE, QUEUE + KERNEL);
    zmq_close(s[0]);
    zmq_close(s[1]);
    zmq_ctx_term(ctx);
    inter_link_destroy(&b.l);
}

// A member that begins one session after another comes up a few times, and then once a second.
static void test_flapping(void **state) {
    (void)state;
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    void *ctx = zmq_ctx_new();
    neb_ns from = neb_now();
    for (uint8_t k = 1; k <= 150; k++) {
        uint8_t hello[HELLO_MAX];
        size_t n = link_hello_make(NEB_PROTOCOL, "", HELLO, k, 0, hello);
        void *s = raw_dealer(ctx, 0, 1, inter_link_port(b.l), NULL);
        zmq_send(s, hello, n, 0);
        uint64_t before = b.up + refused_of(&b, b.peer);
        neb_ns at = neb_now(); // until it was heard; on a busy machine this takes a while
        while (neb_now() < at + 40 * NEB_MS ||
               (neb_now() < at + 400 * NEB_MS && b.up + refused_of(&b, b.peer) == before))
            step(&b, NULL);
        zmq_close(s);
    }
    assert_in_range(b.up, 1,
                    SESSIONS_BURST + 1 + neb_seconds(neb_now() - from) * SESSIONS_A_SECOND);
    assert_true(refused_of(&b, b.peer) > 0);
    zmq_ctx_term(ctx);
    inter_link_destroy(&b.l);
}

// A member's connection ends, and its next one gets the same descriptor. The link reads the HELLO
// of the next one before the end of the first, as it does if a handler took long in between. The
// next one stays up.
static void test_descriptor_reused(void **state) {
    (void)state;
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    const struct conn *c = &b.l->peers[b.peer].s[ACCEPTED].c[0];
    void *ctx = zmq_ctx_new(), *s = NULL;
    int was = -1;
    for (uint8_t k = 1; k <= 2; k++) {
        uint8_t hello[HELLO_MAX];
        size_t n = link_hello_make(NEB_PROTOCOL, "", HELLO, k, 0, hello);
        if (s) {
            was = c->zmq_fd;
            zmq_close(s);
            neb_sleep(NEB_S); // ZeroMQ's threads close it at both ends
        }
        s = raw_dealer(ctx, 0, 1, inter_link_port(b.l), NULL);
        zmq_send(s, hello, n, 0);
        if (k == 1)
            UNTIL(&b, NULL, b.up == 1, 20);
    }
    for (neb_ns end = neb_now() + 20 * NEB_S; b.l->peers[b.peer].s[ACCEPTED].session != 2;) {
        assert_true(neb_now() < end);
        neb_sleep(10 * NEB_MS);
        link_router_read(b.l);
    }
    assert_int_equal(c->zmq_fd, was); // else nothing is tested
    for (neb_ns end = neb_now() + NEB_S; neb_now() < end;)
        step(&b, NULL);
    assert_true(c->open && c->zmq_fd == was);
    zmq_close(s);
    zmq_ctx_term(ctx);
    inter_link_destroy(&b.l);
}

// The link knows the exact size of ZeroMQ's frames, to tell the kernel's bytes from those in
// ZeroMQ.
static void test_frames_to_the_byte(void **state) {
    (void)state;
    struct site a, b;
    static const uint8_t data[600];
    pair_up(&a, &b);
    struct conn *c = &link_active(b.l, &b.l->peers[b.peer])->c[1];
    UNTIL(&a, &b, c->open, 20);
    b.l->peers[b.peer].stripes.use = 1;
    for (neb_ns end = neb_now() + 500 * NEB_MS; neb_now() < end;) // its WELCOME is acknowledged
        step(&a, &b);
    uint64_t before = inter_tcp_acked(c->fd) - c->framed;
    for (size_t n = 1; n <= sizeof data; n++)
        assert_int_equal(inter_link_send(b.l, b.peer, INTER_BULK, data, n), NEB_OK);
    UNTIL(&a, &b, inter_tcp_acked(c->fd) - c->framed == before, 20);
    assert_true(c->sent > sizeof data * sizeof data / 2);
    close_pair(&a, &b);
}

#ifdef __SANITIZE_ADDRESS__ // keeps freed memory for a while
enum { OVERSIZE_KIB = 640 * 1024 };
#else
enum { OVERSIZE_KIB = 160 * 1024 };
#endif

// A message of an admitted member above the limit breaks only that member's connection.
static void test_oversize(void **state) {
    (void)state;
    struct sec_members m = list;
    add(&m, 2);
    struct site b = open_site(1, &m, 0, "127.0.0.1:*");
    struct sec_members ma = m;
    endpoint(&ma, 1, inter_link_port(b.l));
    struct site a = open_site(0, &ma, 1, NULL);
    UNTIL(&a, &b, a.up && b.up, 20);
    void *ctx = zmq_ctx_new(), *s = raw_dealer(ctx, 2, 1, inter_link_port(b.l), NULL);
    size_t n = (size_t)64 << 20;
    uint8_t *big = calloc(1, n);
    long before = resident_kib();
    zmq_send(s, big, n, 0);
    neb_ns end = neb_now() + NEB_S;
    while (neb_now() < end)
        step(&a, &b);
    // on a loaded machine both sets may come up before one is chosen. Then the test sees one
    // change-over
    assert_true(a.down <= 1 && b.down <= 1 && a.up == a.down + 1 && b.up == b.down + 1);
    // the sender is in this process too. It holds up to four copies until it has encrypted them,
    // which takes time on a loaded machine
    UNTIL(&a, &b, resident_kib() - before < OVERSIZE_KIB, 20);
    assert_int_equal(refused_of(&b, index_of(&m, 2)), 0); // these bytes never became a message
    free(big);
    zmq_close(s);
    zmq_ctx_term(ctx);
    close_pair(&a, &b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_key),
        cmocka_unit_test(test_wrong_server_key),
        cmocka_unit_test(test_spoof),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_oversize),
        cmocka_unit_test(test_early_bulk),
        cmocka_unit_test(test_flapping),
        cmocka_unit_test(test_descriptor_reused),
        cmocka_unit_test(test_acknowledges_all),
        cmocka_unit_test(test_frames_to_the_byte),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
