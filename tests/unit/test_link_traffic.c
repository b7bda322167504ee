// SPDX-License-Identifier: Apache-2.0
// inter/link: throughput and latency, under a limit and while connections are replaced.
#include "tests/unit/link_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

// A rate limit holds on the wire and does not delay control. Without a limit everything passes.
static void test_rate_limit(void **state) {
    (void)state;
    static uint8_t chunk[32 * 1024];
    for (size_t i = 0; i < sizeof chunk; i++)
        chunk[i] = (uint8_t)(i * 7);
    const uint64_t bps = 16000000;
    struct site a, b;
    struct inter_link_stats before, after;
    pair_up(&a, &b);
    inter_link_limit(a.l, bps);
    assert_int_equal(inter_link_stats(a.l, a.peer, &before), NEB_OK);
    neb_ns begin = neb_now(), said = 0;
    uint64_t refused = 0;
    unsigned asked = 0, prompt = 0;
    while (neb_now() - begin < 3 * NEB_S) {
        enum neb_status st;
        while ((st = inter_link_send(a.l, a.peer, INTER_BULK, chunk, sizeof chunk)) == NEB_OK)
            ;
        assert_int_equal(st, NEB_ERR_AGAIN);
        refused++;
        // there must be little control traffic here. It never waits, so a processor could send
        // enough of it to exceed the limit
        bool next = b.control == asked && neb_now() - said > 10 * NEB_MS;
        if (next && inter_link_send(a.l, a.peer, INTER_CONTROL, "hello", 5) == NEB_OK) {
            prompt += said && b.control_at - said < NEB_S / 4;
            said = neb_now();
            asked++;
        }
        step(&a, &b);
        (void)inter_link_resumes(a.l);
    }
    double took = neb_seconds(neb_now() - begin);
    assert_int_equal(inter_link_stats(a.l, a.peer, &after), NEB_OK);
    double sent = (double)(after.sent_bytes - before.sent_bytes) +
                  INTER_TCP_HEADERS * (double)(after.sent_segs - before.sent_segs),
           // the limit does not hold control back, but counts it
        allowed = (double)bps / 8 * (took + 0.02) + sizeof chunk + 20000;
    if (sent > allowed || sent < 0.8 * (double)bps / 8 * took)
        fail_msg("%g bytes in %g s at %g Mbit/s", sent, took, (double)bps / 1e6);
    // most messages: a test that gets no processor for a while is late with one or two
    assert_true(refused > 0 && asked > 4 && prompt > asked / 2);
    assert_int_equal(b.bad, 0);
    inter_link_limit(a.l, 0);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_BULK, chunk, sizeof chunk), NEB_OK);
    close_pair(&a, &b);
}

// 64 MiB of bulk one way while control goes back and forth; the byte counters agree.
static void test_bulk_and_control(void **state) {
    (void)state;
    static uint8_t chunk[256 * 1024];
    for (size_t i = 0; i < sizeof chunk; i++)
        chunk[i] = (uint8_t)(i * 7);
    struct site a, b;
    pair_up(&a, &b);
    const uint64_t total = 64ull << 20;
    uint64_t sent = 0;
    unsigned asked = 0;
    neb_ns worst = 0, at = 0, end = neb_now() + 60 * NEB_S;
    bool full = false;
    while (b.bulk_bytes < total && neb_now() < end) {
        while (sent < total) {
            enum neb_status st = inter_link_send2(a.l, a.peer, INTER_BULK, chunk, 1000,
                                                  chunk + 1000, sizeof chunk - 1000);
            if (st != NEB_OK) {
                assert_int_equal(st, NEB_ERR_AGAIN);
                full = true;
                break;
            }
            sent += sizeof chunk;
        }
        if (b.control == asked) {
            if (at && b.control_at - at > worst)
                worst = b.control_at - at;
            at = neb_now();
            asked += inter_link_send(a.l, a.peer, INTER_CONTROL, "hello", 5) == NEB_OK;
        }
        step(&a, &b);
    }
    assert_int_equal(b.bulk_bytes, total);
    assert_int_equal(b.bad, 0);
    assert_true(full); // the limit of the queue was reached
    assert_true(b.control > 5);
    assert_true(worst < NEB_S);
    struct inter_link_stats sa, sb;
    UNTIL(&a, &b,
          (assert_int_equal(inter_link_stats(a.l, a.peer, &sa), NEB_OK), sa.queued_bytes == 0), 8);
    assert_int_equal(inter_link_stats(b.l, b.peer, &sb), NEB_OK);
    assert_true(sa.sent_bytes > total && sa.sent_bytes < total + total / 20);
    assert_true(sb.recv_bytes > total && sb.recv_bytes <= sa.sent_bytes);
    assert_true(sa.recv_bytes > 0 && sa.rtt > 0 && sa.up);
    // 1000 bytes of each message are its header, and one more byte is the link's own
    assert_int_equal(sa.payload_bytes, total - total / sizeof chunk * 1000);
    assert_true(sa.message_bytes > total && sa.message_bytes < total + total / 20);
    assert_true(sa.message_bytes < sa.sent_bytes);
    close_pair(&a, &b);
}

struct gap {
    neb_ns last[2], most; // arrival of the last message at a and at b
    uint64_t bytes[2];
};

static void look(struct gap *g, const struct site *a, const struct site *b) {
    const uint64_t bytes[2] = {a->bulk_bytes, b->bulk_bytes};
    neb_ns now = neb_now();
    for (int i = 0; i < 2; i++) {
        neb_ns since = g->last[i] ? now - g->last[i] : 0;
        g->most = since > g->most ? since : g->most;
        if (bytes[i] != g->bytes[i] || !g->last[i])
            g->last[i] = now;
        g->bytes[i] = bytes[i];
    }
}

// Sends in bursts, which fill the connections and leave most of the processor to others.
static void both_send(struct site *a, struct site *b, const void *p, size_t n, uint64_t *sent,
                      uint64_t *back) {
    enum { CHUNKS = 16 };
    static int left;
    static neb_ns next;
    if (!left && neb_now() >= next) {
        left = CHUNKS;
        next = neb_now() + 50 * NEB_MS;
    }
    if (left) {
        left--;
        *sent += inter_link_send(a->l, a->peer, INTER_BULK, p, n) == NEB_OK;
        *back += inter_link_send(b->l, b->peer, INTER_BULK, p, n) == NEB_OK;
    }
    step(a, b);
}

// Connections are replaced again and again under traffic. There is no DOWN, no pause, no loss, no
// duplicate.
static void test_recycle(void **state) {
    (void)state;
    static uint8_t chunk[64 * 1024];
    for (size_t i = 0; i < sizeof chunk; i++)
        chunk[i] = (uint8_t)(i * 7);
    struct site a, b = open_site(1, &list, 0, "127.0.0.1:*");
    struct sec_members m = list;
    endpoint(&m, 1, inter_link_port(b.l));
    a = (struct site){.id = ids[0], .peer = index_of(&m, 1)};
    struct inter_link_config cfg = {
        .identity = ids[0], .members = &m, .n_bulk = 3, .recycle = 500 * NEB_MS};
    assert_int_equal(inter_link_create(&cfg, &a.l), NEB_OK);
    UNTIL(&a, &b, a.up == 1 && b.up == 1, 5);
    struct inter_link_stats st = {.recycled = 0};
    uint64_t sent = 0, back = 0;
    // The longest time without a message, each way: first without replacement, then while four sets
    // follow each other. One set takes seconds, because nobody answers at first. Other load on this
    // machine shows in both measurements.
    struct gap quiet = {.last = {0}}, gap = {.last = {0}};
    a.l->cfg.recycle = 3600 * NEB_S;
    for (neb_ns end = neb_now() + 3 * NEB_S; neb_now() < end;) {
        both_send(&a, &b, chunk, sizeof chunk, &sent, &back);
        look(&quiet, &a, &b);
    }
    a.l->cfg.recycle = cfg.recycle;
    int mute = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_len = sizeof at;
    assert_int_equal(bind(mute, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(mute, 16), 0);
    assert_int_equal(getsockname(mute, (struct sockaddr *)&at, &at_len), 0);
    char *where = a.l->peers[a.peer].member.endpoint;
    neb_ns missing = 0;
    for (neb_ns end = neb_now() + 60 * NEB_S; st.recycled < 4 && neb_now() < end;) {
        const struct set *d = &a.l->peers[a.peer].s[DIALED];
        snprintf(where, SEC_ENDPOINT_MAX, "127.0.0.1:%u",
                 st.recycled == 1 && d->up ? ntohs(at.sin_port) : inter_link_port(b.l));
        neb_ns now = neb_now();
        both_send(&a, &b, chunk, sizeof chunk, &sent, &back);
        look(&gap, &a, &b);
        missing += d->up ? 0 : neb_now() - now;
        assert_int_equal(inter_link_stats(a.l, a.peer, &st), NEB_OK);
    }
    close(mute);
    assert_true(st.recycled >= 4 && missing > 2 * NEB_S);
    printf("longest time without a message: %.0f ms while connections are replaced, %.0f ms "
           "otherwise\n",
           neb_seconds(gap.most) * 1e3, neb_seconds(quiet.most) * 1e3);
    assert_true(gap.most < 3 * quiet.most + 250 * NEB_MS); // waiting for a set would take 3 s
    neb_ns end;
    for (end = neb_now() + 20 * NEB_S; neb_now() < end && (b.bulk_bytes != sent * sizeof chunk ||
                                                           a.bulk_bytes != back * sizeof chunk);)
        step(&a, &b);
    if (b.bulk_bytes != sent * sizeof chunk || a.bulk_bytes != back * sizeof chunk) {
        assert_int_equal(inter_link_stats(a.l, a.peer, &st), NEB_OK);
        fail_msg("forward %.2f of %llu chunks, back %.2f of %llu; recycled %llu, connected %llu, "
                 "dropped %llu, "
                 "cut %llu; down %d and %d times",
                 (double)b.bulk_bytes / sizeof chunk, (unsigned long long)sent,
                 (double)a.bulk_bytes / sizeof chunk, (unsigned long long)back,
                 (unsigned long long)st.recycled, (unsigned long long)st.connects,
                 (unsigned long long)st.dropped, (unsigned long long)st.cut, a.down, b.down);
    }
    assert_true(a.up == 1 && b.up == 1 && a.down == 0 && b.down == 0);
    assert_true(a.bad == 0 && b.bad == 0 && st.dropped == 0);
    close_pair(&a, &b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_limit),
        cmocka_unit_test(test_bulk_and_control),
        cmocka_unit_test(test_recycle),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
