// SPDX-License-Identifier: Apache-2.0
// The window of a stream over a path with a delay: it grows only if a round trip takes longer than
// the batches of a window, so that the consumer has to wait. After that the consumer never pauses.
#include "inter/stream/wire.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool sign(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len;
    memset(sig, 7, INTER_SIG_BYTES);
    return true;
}
static bool verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)peer, (void)context, (void)msg, (void)len;
    return sig[0] == 7;
}
static const struct inter_node_crypto crypto = {NULL, sign, verify};

enum { BATCH = 100, PACKETS = 4096, RUN_MS = 20000, WARM_MS = 10000 };

static const struct scene {
    const char *what;
    uint32_t start, most, window_bytes; // of the stream
    // put_ms: time between two puts; 0: as many puts as allowed. step_ms: time to apply a batch.
    int rtt_ms, put_ms, step_ms;
    int down_ms;             // an outage in the warm-up
    uint32_t least, largest; // of the window at the end
    // batches applied after the warm-up, as a share of those that the consumer could apply
    double rate_min, rate_max;
} scenes[] = {
    {"a short path", 16, 256, 1 << 20, 20, 0, 10, 0, 16, 16, 0.99, 1.01},
    {"a round trip longer than the window", 16, 256, 1 << 20, 300, 0, 10, 0, 32, 128, 0.99, 1.01},
    {"the same, and a window that is fixed", 0, 16, 1 << 20, 300, 0, 10, 0, 16, 16, 0.2, 0.7},
    {"the same, and a bound that is near", 16, 24, 1 << 20, 300, 0, 10, 0, 24, 24, 0.5, 0.9},
    {"the same, and few bytes", 16, 256, 20 * BATCH, 300, 0, 10, 0, 16, 32, 0.3, 0.9},
    {"a fast consumer over a long path", 4, 1024, 1 << 20, 600, 0, 2, 0, 300, 1024, 0.99, 1.01},
    {"a slow consumer", 16, 256, 1 << 20, 300, 0, 100, 0, 16, 16, 0.99, 1.01},
    {"a slow producer", 16, 256, 1 << 20, 300, 60, 1, 0, 16, 16, 0.01, 0.02},
    {"an outage", 16, 256, 1 << 20, 20, 0, 10, 4000, 16, 16, 0.99, 1.01},
};

static struct packet {
    bool to_consumer, bulk;
    int at_ms;
    struct neb_buf b;
} packets[PACKETS]; // a ring, in order of `at_ms`, as all packets take the same time
static size_t first, n_packets;

static struct side {
    struct inter_stream *s;
    struct inter_stream_actions a;
} out, in;
static const struct scene *sc;
static int now_ms;
static uint64_t room, put, queued, applied, in_flight_max;
static const uint8_t text[BATCH];

static void post(bool to_consumer, bool bulk, const void *head, size_t n, const void *body,
                 size_t len) {
    assert_true(n_packets < PACKETS);
    struct packet *p = &packets[(first + n_packets++) % PACKETS];
    *p = (struct packet){to_consumer, bulk, now_ms + sc->rtt_ms / 2, {0}};
    neb_buf_add(&p->b, head, n);
    neb_buf_add(&p->b, body, len);
}

static void step(struct side *x, struct inter_stream_event e) {
    bool producer = x == &out;
    struct neb_buf b = {0};
    assert_int_equal(inter_stream_step(x->s, now_ms * NEB_MS, &e, &x->a), NEB_OK);
    for (size_t i = 0; i < x->a.n; i++) {
        const struct inter_stream_action *a = &x->a.list[i];
        if (a->kind == INTER_STREAM_ACT_FAULT &&
            !(sc->down_ms && a->fault == INTER_STREAM_FAULT_DUPLICATE))
            fail_msg("%s: %s at %d ms", sc->what, inter_stream_fault_name(a->fault), now_ms);
        if (a->kind == INTER_STREAM_ACT_SEND_CONTROL)
            post(producer, false, x->a.bytes.p + a->at, a->size, NULL, 0);
        if (a->kind == INTER_STREAM_ACT_ROOM)
            room = a->seq;
        if (a->kind == INTER_STREAM_ACT_DELIVER)
            queued = a->seq + 1;
        if (a->kind != INTER_STREAM_ACT_SEND)
            continue;
        neb_buf_clear(&b);
        assert_int_equal(inter_stream_data_header(x->s, a->seq, 0, text, BATCH, &b), NEB_OK);
        post(true, true, b.p, b.len, text, BATCH);
        if (a->seq >= applied + in_flight_max)
            in_flight_max = a->seq + 1 - applied;
    }
    neb_buf_free(&b);
}

static void arrive(bool up) {
    for (; n_packets && packets[first].at_ms <= now_ms;
         n_packets--, first = (first + 1) % PACKETS) {
        struct packet *p = &packets[first];
        if (up)
            step(p->to_consumer ? &in : &out,
                 (struct inter_stream_event){.kind = INTER_STREAM_EV_MESSAGE,
                                             .bulk = p->bulk,
                                             .data = p->b.p,
                                             .len = p->b.len});
        neb_buf_free(&p->b);
    }
}

static void say(struct side *x, enum inter_stream_event_kind kind, uint64_t seq) {
    step(x, (struct inter_stream_event){
                .kind = kind, .seq = seq, .session = 1, .data = text, .len = BATCH});
}

static void begin(void) {
    struct inter_stream_config c = {.key = {.id = 3},
                                    .type = INTER_STREAM_REPLACEMENTS,
                                    .peer = 1,
                                    .batch_bytes = BATCH,
                                    .window_batches = sc->most,
                                    .window_start = sc->start,
                                    .window_bytes = sc->window_bytes,
                                    .spool_batches = 1 << 14,
                                    .spool_bytes = 16 << 20};
    first = n_packets = 0;
    now_ms = 0;
    room = put = queued = applied = in_flight_max = 0;
    c.role = INTER_STREAM_PRODUCER;
    assert_int_equal(inter_stream_create(&c, &crypto, &out.s), NEB_OK);
    c.role = INTER_STREAM_CONSUMER;
    assert_int_equal(inter_stream_create(&c, &crypto, &in.s), NEB_OK);
    say(&in, INTER_STREAM_EV_ATTACH, 0);
    say(&out, INTER_STREAM_EV_ATTACH, 0);
}

// The link is up except for an outage after 3 s. Changes are reported to both sides.
static bool link_at(bool was) {
    bool up = now_ms < 3000 || now_ms >= 3000 + sc->down_ms;
    if (up != was || now_ms == 0) {
        say(&out, up ? INTER_STREAM_EV_PEER_UP : INTER_STREAM_EV_PEER_DOWN, 0);
        say(&in, up ? INTER_STREAM_EV_PEER_UP : INTER_STREAM_EV_PEER_DOWN, 0);
    }
    return up;
}

static uint64_t run(void) {
    int free_at = 0;
    uint64_t warm = 0;
    bool up = true;
    begin();
    for (; now_ms < RUN_MS; now_ms++) {
        up = link_at(up);
        arrive(up);
        for (int k = 0; put < room && (sc->put_ms ? now_ms % sc->put_ms == 0 && k < 1 : k < 64);
             k++)
            say(&out, INTER_STREAM_EV_PUT, put++);
        if (now_ms >= free_at && applied < queued) { // one batch is done, the next begins
            say(&in, INTER_STREAM_EV_APPLIED, ++applied);
            if (applied % 500 == 0)
                say(&in, INTER_STREAM_EV_DURABLE, applied);
            free_at = now_ms + sc->step_ms;
        }
        if (now_ms % 200 == 0) {
            say(&out, INTER_STREAM_EV_TICK, 0);
            say(&in, INTER_STREAM_EV_TICK, 0);
        }
        if (now_ms == WARM_MS)
            warm = applied;
    }
    now_ms = RUN_MS + sc->rtt_ms; // drop the packets in flight
    arrive(false);
    return applied - warm;
}

static void test_scenes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        struct inter_stream_stats t;
        sc = &scenes[i];
        double rate = (double)run() * sc->step_ms / (RUN_MS - WARM_MS);
        inter_stream_stats(out.s, &t);
        if (t.window < sc->least || t.window > sc->largest || rate < sc->rate_min ||
            rate > sc->rate_max)
            fail_msg("%s: a window of %u, at %.3f of the consumer's rate", sc->what, t.window,
                     rate);
        assert_true(in_flight_max <= sc->most && in_flight_max * BATCH <= sc->window_bytes);
        inter_stream_destroy(&out.s);
        inter_stream_destroy(&in.s);
    }
}

// ---- a slow link ----

enum { LARGE = 1 << 20, SIDE_BY_SIDE = 8 };

// Steps the producer alone. Returns the number of batches that it sends.
static unsigned send_some(struct inter_stream_event e) {
    unsigned sent = 0;
    assert_int_equal(inter_stream_step(out.s, now_ms * NEB_MS, &e, &out.a), NEB_OK);
    for (size_t i = 0; i < out.a.n; i++)
        sent += out.a.list[i].kind == INTER_STREAM_ACT_SEND;
    return sent;
}

static unsigned message(const struct neb_buf *b) {
    return send_some(
        (struct inter_stream_event){.kind = INTER_STREAM_EV_MESSAGE, .data = b->p, .len = b->len});
}

static unsigned granted(uint64_t have) {
    const struct inter_stream_key key = {.id = 3};
    struct neb_buf b = {0};
    inter_stream_put_grant(&b, &key,
                           &(struct inter_stream_grant){1, have, have, 0, SIDE_BY_SIDE, 8 * LARGE});
    unsigned sent = message(&b);
    neb_buf_free(&b);
    return sent;
}

static unsigned tick_until(int ms) {
    unsigned sent = 0;
    for (; now_ms < ms; now_ms += 200)
        sent += send_some((struct inter_stream_event){.kind = INTER_STREAM_EV_TICK});
    return sent;
}

static void begin_large(void) {
    const struct inter_stream_config c = {.key = {.id = 3},
                                          .type = INTER_STREAM_REPLACEMENTS,
                                          .role = INTER_STREAM_PRODUCER,
                                          .peer = 1,
                                          .batch_bytes = LARGE,
                                          .window_batches = SIDE_BY_SIDE,
                                          .window_bytes = 8 * LARGE,
                                          .spool_batches = 64,
                                          .spool_bytes = 64 * LARGE};
    const struct inter_stream_hello hello = {
        .role = INTER_STREAM_CONSUMER, .type = INTER_STREAM_REPLACEMENTS, .batch_bytes = LARGE};
    static const uint8_t large[LARGE];
    struct neb_buf b = {0};
    now_ms = 1000;
    assert_int_equal(inter_stream_create(&c, &crypto, &out.s), NEB_OK);
    send_some((struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP});
    inter_stream_put_hello(&b, &c.key, &hello);
    message(&b);
    neb_buf_free(&b);
    for (uint64_t i = 0; i < 40; i++)
        send_some((struct inter_stream_event){
            .kind = INTER_STREAM_EV_PUT, .seq = i, .data = large, .len = LARGE});
}

// Eight batches of 1 MiB share 2 Mbit/s, so all of them arrive after 33 seconds. None is sent
// twice.
static void test_slow_link(void **state) {
    (void)state;
    const int all_ms = (int)(8e3 * SIDE_BY_SIDE * LARGE / 2e6);
    struct inter_stream_stats t;
    begin_large();
    assert_int_equal(granted(0), SIDE_BY_SIDE);
    // The link refuses them at first, so their time counts from when they are really sent.
    for (uint64_t i = 0; i < SIDE_BY_SIDE; i++)
        assert_int_equal(
            send_some((struct inter_stream_event){.kind = INTER_STREAM_EV_SEND_FAILED, .seq = i}),
            0);
    now_ms += 100;
    assert_int_equal(tick_until(now_ms + 200), SIDE_BY_SIDE);
    for (uint64_t have = SIDE_BY_SIDE; have <= 4 * SIDE_BY_SIDE; have += SIDE_BY_SIDE) {
        assert_int_equal(tick_until(now_ms + all_ms), 0);
        assert_int_equal(granted(have), SIDE_BY_SIDE);
        inter_stream_stats(out.s, &t);
        assert_true(t.path.goodput_bps > 1e6 && t.path.goodput_bps < 3e6);
    }
    // The producer also waits out a tenfold drop of the rate. Lost batches are resent in the end.
    assert_int_equal(tick_until(now_ms + 100 * 1000), 0);
    unsigned again = 0;
    for (int end = now_ms + 60 * 1000; !again && now_ms < end;)
        again = tick_until(now_ms + 200);
    assert_int_equal(again, SIDE_BY_SIDE);
    // If the first copies are acknowledged right after the resend, this says nothing about the
    // path.
    inter_stream_stats(out.s, &t);
    struct inter_stream_measure before = t.path;
    now_ms += 10;
    assert_int_equal(granted(5 * SIDE_BY_SIDE), 0);
    inter_stream_stats(out.s, &t);
    assert_int_equal(t.path.rtt, before.rtt);
    assert_true(t.path.goodput_bps <= before.goodput_bps);
    inter_stream_destroy(&out.s);
}

// The set of batches that the step sends, with bit 0 for the first batch.
static uint64_t sends(struct inter_stream_event e) {
    uint64_t bits = 0, before = 0;
    send_some(e);
    for (size_t i = 0; i < out.a.n; i++)
        if (out.a.list[i].kind == INTER_STREAM_ACT_SEND) {
            assert_true(!bits || out.a.list[i].seq > before); // in order
            before = out.a.list[i].seq;
            bits |= UINT64_C(1) << before;
        }
    return bits;
}

static uint64_t lost(uint64_t way) {
    return sends((struct inter_stream_event){.kind = INTER_STREAM_EV_CONN_LOST, .way = way});
}

static void sent_on(uint64_t batches, uint64_t way) {
    for (uint64_t i = 0; i < 40; i++)
        if (batches >> i & 1)
            inter_stream_sent_on(out.s, i, way);
}

// One of several connections breaks: the batches sent on it are resent at once, and no others.
static void test_connection_lost(void **state) {
    (void)state;
    struct inter_stream_stats t;
    begin_large();
    assert_int_equal(granted(0), SIDE_BY_SIDE);
    sent_on(0x55, 1);
    sent_on(0xaa, 2);
    assert_int_equal(lost(9), 0); // a connection of another stream
    assert_int_equal(lost(2), 0xaa);
    // The link takes two of them. The others are not forgotten, and no new batch overtakes them.
    sent_on(0x0a, 3);
    send_some((struct inter_stream_event){.kind = INTER_STREAM_EV_SEND_FAILED, .seq = 5});
    assert_int_equal(granted(1), 0); // the link has just refused
    now_ms += 30;
    assert_int_equal(sends((struct inter_stream_event){.kind = INTER_STREAM_EV_TICK}), 0x1a0);
    sent_on(0x120, 3);
    send_some((struct inter_stream_event){.kind = INTER_STREAM_EV_SEND_FAILED, .seq = 7});
    now_ms += 30;
    assert_int_equal(sends((struct inter_stream_event){.kind = INTER_STREAM_EV_TICK}), 0x180);
    sent_on(0x180, 3);
    assert_int_equal(lost(2), 0);
    // Acknowledged batches are not resent. After a loss on an unknown connection all other batches
    // are.
    assert_int_equal(granted(4), 3);
    sent_on(0xe00, 4);
    assert_int_equal(lost(3), 0x1a0);
    sent_on(0x1a0, 4);
    assert_int_equal(lost(0), 0xff0);
    sent_on(0xff0, 5);
    inter_stream_stats(out.s, &t);
    assert_int_equal(t.resent, 4 + 2 + 2 + 3 + 8); // the ninth had not been sent before
    // The resend timeout starts again with the resend.
    assert_int_equal(tick_until(now_ms + 19 * 1000), 0);
    inter_stream_destroy(&out.s);
}

// If one connection after another breaks under a batch, the batch is resent more and more rarely
// until it arrives.
static void test_connections_lost_again_and_again(void **state) {
    (void)state;
    unsigned sent = 0;
    begin_large();
    assert_int_equal(granted(0), SIDE_BY_SIDE);
    for (int end = now_ms + 60 * 1000; now_ms < end; now_ms += 200) {
        sent_on(0xff, 1);
        sent += (unsigned)(lost(1) & 1);
    }
    assert_in_range(sent, 4, 10); // of 300
    sent_on(0xff, 1);
    assert_int_equal(granted(1), 1); // the next batch goes at once
    sent_on(0x1ff, 2);
    assert_int_equal(lost(2), 0x1fe);
    inter_stream_destroy(&out.s);
}

// Without any acknowledgement, copies get rarer: after five minutes, and then every ten minutes.
static void test_copies_get_rare(void **state) {
    (void)state;
    begin_large();
    assert_int_equal(granted(0), SIDE_BY_SIDE);
    unsigned sent = tick_until(now_ms + 3600 * 1000);
    assert_in_range(sent, 4 * SIDE_BY_SIDE, 7 * SIDE_BY_SIDE);
    inter_stream_destroy(&out.s);
}

static int tear_down(void **state) {
    (void)state;
    inter_stream_actions_free(&out.a);
    inter_stream_actions_free(&in.a);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scenes),
                                       cmocka_unit_test(test_slow_link),
                                       cmocka_unit_test(test_connection_lost),
                                       cmocka_unit_test(test_connections_lost_again_and_again),
                                       cmocka_unit_test(test_copies_get_rare)};
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
