// SPDX-License-Identifier: Apache-2.0
// inter/round/estimate on synthetic paths with a rate and a delay. The sender fills its window or
// does not.
#include "inter/round/transfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

// A path in virtual time: chunks leave one by one at `bps`; each is acknowledged `rtt` later, in
// bursts of `burst`.
struct path {
    struct inter_estimate e;
    neb_ns now, line_free;
    double bps;
    neb_ns rtt;
    int burst;
    // one of this many chunks is lost, and later chunks wait for its repair; 0: none is lost
    int lost_every;
    int sent;
    neb_ns held;
    neb_ns dead_for; // once, after the fourth chunk
};

// Sends a blob; returns the time it took.
static neb_ns move(struct path *p, uint32_t bytes, uint32_t chunk) {
    struct inter_sender s;
    enum { MAX = 4096 };
    static neb_ns due[MAX];
    assert_int_equal(inter_sender_init(&s, bytes, chunk), NEB_OK);
    assert_true(s.acked.n <= MAX);
    memset(due, 0, sizeof due);
    s.ready = true;
    neb_ns begin = p->now;
    while (!inter_sender_done(&s)) {
        for (int64_t c;
             (c = inter_sender_next(&s, inter_estimate_window(&p->e), 0, &p->e, p->now)) >= 0;) {
            p->line_free = p->line_free > p->now ? p->line_free : p->now;
            p->line_free += (neb_ns)(8e9 * inter_chunk_length(bytes, chunk, (uint32_t)c) / p->bps);
            if (p->dead_for && ++p->sent == 4) {
                p->line_free += p->dead_for;
                p->dead_for = 0;
            }
            due[c] = p->line_free + p->rtt;
            if (p->lost_every && ++p->sent % p->lost_every == 0)
                p->held = due[c] + 3 * p->rtt;
            if (due[c] < p->held)
                // the path delivers the held chunks one after the other
                due[c] = p->held += 100 * NEB_US;
        }
        neb_ns next = INT64_MAX;
        for (uint32_t i = 0; i < s.acked.n; i++)
            if (inter_bitmap_has(&s.flying, i) && due[i] < next)
                next = due[i];
        assert_true(next < INT64_MAX);
        p->now = next + (p->burst > 1 ? p->burst * 5 * NEB_MS : 0);
        for (uint32_t i = 0; i < s.acked.n; i++)
            if (inter_bitmap_has(&s.flying, i) && due[i] <= p->now)
                assert_true(inter_sender_ack(&s, i, 0, &p->e, p->now));
    }
    inter_sender_free(&s);
    return p->now - begin;
}

static void near(double got, double want, double within) {
    if (got < want * (1 - within) || got > want * (1 + within))
        fail_msg("%g is not within %g of %g", got, within, want);
}

static void test_rates_and_delays(void **state) {
    (void)state;
    const struct {
        double bps;
        neb_ns rtt;
    } paths[] = {{2e6, 300 * NEB_MS},
                 {20e6, 200 * NEB_MS},
                 {100e6, 100 * NEB_MS},
                 {500e6, 100 * NEB_MS},
                 {1e9, 5 * NEB_MS}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct path p = {.now = NEB_S, .bps = paths[i].bps, .rtt = paths[i].rtt, .burst = 1};
        uint32_t bytes = (uint32_t)(paths[i].bps / 8 * 10); // as many bytes as ten seconds take
        uint32_t chunk = inter_estimate_chunk(&p.e, bytes);
        while (inter_chunks(bytes, chunk) > 4096)
            chunk *= 2;
        neb_ns took = move(&p, bytes, chunk);
        near(p.e.goodput_bps, paths[i].bps, 0.05);
        assert_true(p.e.full);
        near(neb_seconds(p.e.rtt), neb_seconds(paths[i].rtt) + chunk * 8 / paths[i].bps, 0.1);
        assert_true(neb_seconds(took) < 12.5); // the window opens fast enough
    }
}

// Acknowledgements in bursts do not make the path look faster.
static void test_bursts_of_acknowledgements(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 20e6, .rtt = 50 * NEB_MS, .burst = 20};
    move(&p, 40 << 20, 64 << 10);
    assert_true(p.e.goodput_bps < 20e6 * 1.05);
    assert_true(p.e.goodput_bps > 20e6 * 0.5);
}

// A lost segment delays the segments behind it. After the repair they are acknowledged together,
// which does not raise the rate much.
static void test_repaired_losses(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 20e6, .rtt = 200 * NEB_MS, .burst = 1, .lost_every = 97};
    move(&p, 100 << 20, 32 << 10);
    assert_true(p.e.goodput_bps < 20e6 * 1.25);
    assert_true(p.e.goodput_bps > 20e6 * 0.5);
}

// The estimate follows a tenfold drop within a few seconds of traffic, and the recovery too.
static void test_drop_and_recovery(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 100e6, .rtt = 100 * NEB_MS, .burst = 1};
    move(&p, 100 << 20, 256 << 10);
    near(p.e.goodput_bps, 100e6, 0.05);
    p.bps = 10e6;
    move(&p, 12 << 20, 256 << 10);
    near(p.e.goodput_bps, 10e6, 0.1);
    p.bps = 100e6;
    move(&p, 30 << 20, 256 << 10);
    near(p.e.goodput_bps, 100e6, 0.1);
}

// In a transfer of many minutes the path gets longer. The estimate does not mistake the sender's
// own queue for delay.
static void test_window_does_not_run_away(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 20e6, .rtt = 100 * NEB_MS, .burst = 1};
    move(&p, 900u << 20, 512 << 10);
    assert_true(inter_estimate_window(&p.e) < 16 << 20);
    assert_true(p.e.rtt < 900 * NEB_MS);
    p.rtt = 300 * NEB_MS; // another route
    move(&p, 400u << 20, 512 << 10);
    assert_true(p.e.rtt >= 300 * NEB_MS && p.e.rtt < 900 * NEB_MS);
    near(p.e.goodput_bps, 20e6, 0.05);
}

// Pauses keep the estimate. A small transfer does not lower the rate that a large one has shown,
// but it may raise it.
static void test_small_transfers_and_pauses(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 100e6, .rtt = 100 * NEB_MS, .burst = 1};
    move(&p, 100 << 20, 256 << 10);
    for (int i = 0; i < 100; i++) {
        p.now += 60 * NEB_S;
        move(&p, 40000, 16 << 10);
    }
    assert_true(p.e.goodput_bps > 90e6);
    struct path q = {.now = NEB_S, .bps = 100e6, .rtt = 100 * NEB_MS, .burst = 1};
    move(&q, 40000, 16 << 10);
    assert_false(q.e.full); // 40 KB in 100 ms prove little about 100 Mbit/s
    double first = q.e.goodput_bps;
    move(&q, 400000, 16 << 10);
    assert_true(q.e.goodput_bps > first);
}

// With transfers too small to fill the window, a tenfold drop shows within three, and so does the
// recovery.
static void test_small_transfers_see_a_drop(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 20e6, .rtt = 40 * NEB_MS, .burst = 1};
    for (int i = 0; i < 20; i++, p.now += NEB_S)
        move(&p, 150000, 16 << 10);
    assert_true(p.e.goodput_bps > 10e6);
    p.bps = 2e6;
    for (int i = 0; i < 3; i++, p.now += NEB_S)
        move(&p, 150000, 16 << 10);
    near(p.e.goodput_bps, 2e6, 0.25);
    p.bps = 20e6;
    for (int i = 0; i < 3; i++, p.now += NEB_S)
        move(&p, 150000, 16 << 10);
    assert_true(p.e.goodput_bps > 10e6);
}

// The first transfer after a tenfold drop already shows it. A path that stalls once during a
// transfer does not count as slower.
static void test_drop_in_one_transfer(void **state) {
    (void)state;
    const struct {
        double bps;
        neb_ns rtt;
        uint32_t bytes;
    } rows[] = {{20e6, 80 * NEB_MS, 530000},
                {100e6, 80 * NEB_MS, 530000},
                {100e6, 100 * NEB_MS, 4000000},
                {500e6, 20 * NEB_MS, 4000000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct path p = {.now = NEB_S, .bps = rows[i].bps, .rtt = rows[i].rtt, .burst = 1};
        for (int k = 0; k < 10; k++, p.now += NEB_S)
            move(&p, rows[i].bytes, inter_estimate_chunk(&p.e, rows[i].bytes));
        double before = p.e.goodput_bps;
        struct path hole = p;
        hole.dead_for = 5 * NEB_S;
        move(&hole, rows[i].bytes, inter_estimate_chunk(&p.e, rows[i].bytes));
        assert_true(hole.e.goodput_bps >= before);
        p.bps /= 10;
        move(&p, rows[i].bytes, inter_estimate_chunk(&p.e, rows[i].bytes));
        if (p.e.goodput_bps < p.bps * 0.7 || p.e.goodput_bps > p.bps * 1.3)
            fail_msg("%g of %g bit/s after one transfer, %g before", p.e.goodput_bps, p.bps,
                     before);
    }
}

// After a full path measured a low rate, a smaller transfer soon shows that the path is faster
// again.
static void test_faster_after_full(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 2e6, .rtt = 80 * NEB_MS, .burst = 1};
    for (int i = 0; i < 10; i++, p.now += NEB_S)
        move(&p, 2000000, 16 << 10);
    assert_true(p.e.full);
    near(p.e.goodput_bps, 2e6, 0.1);
    p.bps = 20e6;
    move(&p, 80000, 16 << 10);
    if (p.e.goodput_bps < 5e6)
        fail_msg("%g bit/s after 80 KB on a path of 20 Mbit/s", p.e.goodput_bps);
}

// A path with less than half of its earlier rate asks for a restart of its connections during
// pauses. It asks often at first, and no more after an hour or when the rate is back.
static void test_restarts(void **state) {
    (void)state;
    struct path p = {.now = NEB_S, .bps = 20e6, .rtt = 80 * NEB_MS, .burst = 1};
    int often = 0, seldom = 0;
    for (int i = 0; i < 20; i++, p.now += NEB_S) {
        assert_false(inter_estimate_restart(&p.e, p.now));
        move(&p, 500000, 16 << 10);
    }
    p.bps = 2e6;
    for (int i = 0; i < 3; i++, p.now += NEB_S)
        move(&p, 500000, 16 << 10);
    struct inter_estimate busy = p.e;
    assert_false(inter_estimate_restart(&busy, busy.delivered_at + 100 * NEB_MS)); // no pause
    struct path fast = p;
    for (neb_ns end = p.now + 3600 * NEB_S; p.now < end; p.now += 5 * NEB_S) {
        bool anew = inter_estimate_restart(&p.e, p.now);
        often += anew && end - p.now > 3540 * NEB_S;
        seldom += anew && end - p.now < 1800 * NEB_S;
        move(&p, 80000, 16 << 10);
    }
    assert_in_range(often, 8, 12);  // in a minute, with transfers 5 s apart
    assert_in_range(seldom, 8, 15); // in half an hour
    for (int i = 0; i < 100; i++, p.now += 5 * NEB_S) {
        assert_false(inter_estimate_restart(&p.e, p.now)); // the low rate is now the normal one
        move(&p, 80000, 16 << 10);
    }
    fast.bps = 20e6;
    assert_true(inter_estimate_restart(&fast.e, fast.now));
    move(&fast, 500000, 16 << 10);
    fast.now += NEB_S;
    move(&fast, 500000, 16 << 10);
    fast.now += 60 * NEB_S;
    assert_false(inter_estimate_restart(&fast.e, fast.now));
}

// TCP stalls longer than a chunk's timeout: all chunks are sent twice, and then the first copies
// are acknowledged together. Those acknowledgements do not change the estimate.
static void test_chunks_that_left_twice(void **state) {
    (void)state;
    enum { CHUNK = 16 << 10, N = 20 }; // less than a window
    struct path p = {.now = NEB_S, .bps = 2e6, .rtt = 200 * NEB_MS, .burst = 1};
    struct inter_sender s;
    int64_t c;
    uint32_t flown = 0, again = 0;
    move(&p, 4 << 20, CHUNK);
    double goodput = p.e.goodput_bps;
    neb_ns rtt = p.e.rtt;
    uint64_t window = inter_estimate_window(&p.e);
    assert_int_equal(inter_sender_init(&s, N * CHUNK, CHUNK), NEB_OK);
    s.ready = true;
    for (; (c = inter_sender_next(&s, window, 0, &p.e, p.now)) >= 0; flown++) {
        inter_sender_unsend(&s,
                            (uint32_t)c); // the link refused the chunk: no trace of it remains
        assert_int_equal(inter_sender_next(&s, window, 0, &p.e, p.now), c);
        assert_false(inter_sender_repeats(&s, (uint32_t)c));
    }
    assert_int_equal(flown, N);
    p.now += 15 * NEB_S;
    inter_sender_expire(&s, p.now, 10 * NEB_S);
    assert_int_equal(s.flying.set, 0);
    for (; (c = inter_sender_next(&s, 2 * window, 0, &p.e, p.now)) >= 0; again++)
        assert_true(inter_sender_repeats(&s, (uint32_t)c));
    assert_int_equal(again, N);
    p.now += NEB_MS;
    for (uint32_t i = 0; i < N; i++, p.now += 10 * NEB_US)
        assert_true(inter_sender_ack(&s, i, 0, &p.e, p.now));
    assert_true(inter_sender_done(&s));
    assert_int_equal(p.e.rtt, rtt);
    assert_true(p.e.goodput_bps <= goodput);
    inter_sender_free(&s);
    move(&p, 4 << 20, CHUNK); // chunks sent once are measured as before
    near(p.e.goodput_bps, goodput, 0.1);
    assert_int_equal(p.e.rtt, rtt);
}

// A chunk's timeout doubles each time, so that a very slow path is not filled with copies.
static void test_patience_doubles(void **state) {
    (void)state;
    struct inter_estimate e = {0};
    struct inter_sender s;
    neb_ns now = NEB_S;
    int left = 0;
    assert_int_equal(inter_sender_init(&s, 10 << 10, 16 << 10), NEB_OK);
    s.ready = true;
    for (; now < 400 * NEB_S; now += NEB_S) {
        inter_sender_expire(&s, now, 10 * NEB_S);
        left += inter_sender_next(&s, 1 << 20, 0, &e, now) >= 0;
    }
    assert_in_range(left, 7, 9); // after 10, 20 and 40 s, and then every 80 s
    assert_true(inter_sender_ack(&s, 0, 0, &e, now));
    assert_int_equal(e.rtt, 0);
    inter_sender_free(&s);
}

// ---- a path slower than every expectation

// As in the link: connections share the line, and a message takes the connection with the shortest
// queue. A tick is 200 ms.
enum { LINES = 8, QUEUED_MAX = 8192 };
struct slow_path {
    struct inter_estimate e;
    neb_ns now;
    double bps;
    struct {
        struct {
            int blob;
            uint32_t chunk;
            double left, bytes;
        } q[QUEUED_MAX];
        int n;
        double queued;
    } lines[LINES];
    double sent;
};

static void put(struct slow_path *p, int blob, uint32_t chunk, uint32_t bytes) {
    int l = 0;
    for (int i = 1; i < LINES; i++)
        l = p->lines[i].queued < p->lines[l].queued ? i : l;
    assert_true(p->lines[l].n < QUEUED_MAX);
    p->lines[l].q[p->lines[l].n].blob = blob;
    p->lines[l].q[p->lines[l].n].chunk = chunk;
    p->lines[l].q[p->lines[l].n].bytes = bytes;
    p->lines[l].q[p->lines[l].n++].left = bytes;
    p->lines[l].queued += bytes;
    p->sent += bytes;
}

// Chunks that arrive in a tick are acknowledged at its end.
static void tick(struct slow_path *p, struct inter_sender *s, int blob) {
    int busy = 0;
    for (int i = 0; i < LINES; i++)
        busy += p->lines[i].n > 0;
    p->now += 200 * NEB_MS;
    for (int i = 0; i < LINES && busy; i++)
        for (double may = p->bps / 8 * 0.2 / busy; may > 0 && p->lines[i].n;) {
            double part = may < p->lines[i].q[0].left ? may : p->lines[i].q[0].left;
            may -= part;
            p->lines[i].q[0].left -= part;
            if (p->lines[i].q[0].left > 0)
                break;
            if (p->lines[i].q[0].blob == blob)
                (void)inter_sender_ack(s, p->lines[i].q[0].chunk, 0, &p->e, p->now);
            p->lines[i].queued -= p->lines[i].q[0].bytes;
            memmove(p->lines[i].q, p->lines[i].q + 1,
                    (size_t)--p->lines[i].n * sizeof p->lines[i].q[0]);
        }
}

// Returns the seconds that a blob takes.
static double pass_slowly(struct slow_path *p, int blob, uint32_t bytes, uint32_t chunk) {
    struct inter_sender s;
    neb_ns begin = p->now;
    assert_int_equal(inter_sender_init(&s, bytes, chunk), NEB_OK);
    s.ready = true;
    while (!inter_sender_done(&s) && p->now - begin < 20000 * NEB_S) {
        inter_sender_expire(&s, p->now, inter_estimate_patience(&p->e));
        for (int64_t c;
             (c = inter_sender_next(&s, inter_estimate_window(&p->e), 0, &p->e, p->now)) >= 0;)
            put(p, blob, (uint32_t)c, inter_chunk_length(bytes, chunk, (uint32_t)c));
        tick(p, &s, blob);
    }
    inter_sender_free(&s);
    return neb_seconds(p->now - begin);
}

// The first acknowledgements come long after a chunk's timeout. Still the estimate finds the rate,
// few bytes are sent twice, and every later blob takes about the time that the path needs. The
// first chunk size is the size for an unknown path, or a size for a fast peer.
static void test_slower_than_patience(void **state) {
    (void)state;
    static struct slow_path p;
    const struct {
        double bps;
        uint32_t bytes, chunk;
        double within;
    } all[] = {{64e3, 4 << 20, 64 << 10, 0.2},
               {32e3, 4 << 20, 64 << 10, 0.2},
               {100e3, 4 << 20, 64 << 10, 0.2},
               // four times, four chunks arrive together: too few to measure better
               {64e3, 256 << 10, 64 << 10, 0.5},
               {250e3, 16 << 20, 1 << 20, 0.2},
               {100e3, 16 << 20, 1 << 20, 0.2},
               {1e6, 16 << 20, 1 << 20, 0.2}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double ideal = 8.0 * all[i].bytes / all[i].bps, took;
        memset(&p, 0, sizeof p);
        p.now = NEB_S;
        p.bps = all[i].bps;
        for (int blob = 0; blob < 6; blob++) {
            uint32_t chunk = blob ? inter_estimate_chunk(&p.e, all[i].bytes) : all[i].chunk;
            took = pass_slowly(&p, blob, all[i].bytes, chunk);
            if (took > (blob ? 1.3 : 1.4) * ideal)
                fail_msg("%g bit/s: blob %d took %g s of %g", p.bps, blob, took, ideal);
        }
        near(p.e.goodput_bps, p.bps, all[i].within);
        assert_true(p.sent < 1.1 * 6 * all[i].bytes);
    }
}

static void test_chunks_and_windows(void **state) {
    (void)state;
    struct inter_estimate e = {0};
    assert_int_equal(inter_estimate_window(&e), 1 << 20);
    assert_int_equal(inter_estimate_chunk(&e, 10 << 20), 64 << 10);
    e.goodput_bps = 2e6;
    e.rtt = 300 * NEB_MS;
    assert_int_equal(inter_estimate_chunk(&e, 10 << 20), 16 << 10);
    assert_int_equal(inter_estimate_window(&e), 7 * (75000 - (16 << 10)) + 50000 + 2 * (16 << 10));
    e.goodput_bps = 500e6;
    e.rtt = 100 * NEB_MS;
    // 32 chunks fit into the window
    assert_int_equal(inter_estimate_chunk(&e, 10 << 20), 256 << 10);
    assert_true(inter_estimate_window(&e) >= 32 * (256 << 10));
    e.goodput_bps = 10e9;
    assert_int_equal(inter_estimate_chunk(&e, 10 << 20), 1 << 20);
    assert_int_equal(inter_estimate_window(&e), 64 << 20); // memory stays bounded
    e.goodput_bps = 1e3;
    assert_int_equal(inter_estimate_chunk(&e, 1 << 20), 16 << 10);
    assert_true(inter_chunks(INTER_BLOB_MAX, inter_estimate_chunk(&e, INTER_BLOB_MAX)) <=
                INTER_CHUNKS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates_and_delays),
                                       cmocka_unit_test(test_bursts_of_acknowledgements),
                                       cmocka_unit_test(test_repaired_losses),
                                       cmocka_unit_test(test_drop_and_recovery),
                                       cmocka_unit_test(test_small_transfers_and_pauses),
                                       cmocka_unit_test(test_window_does_not_run_away),
                                       cmocka_unit_test(test_small_transfers_see_a_drop),
                                       cmocka_unit_test(test_drop_in_one_transfer),
                                       cmocka_unit_test(test_faster_after_full),
                                       cmocka_unit_test(test_restarts),
                                       cmocka_unit_test(test_chunks_that_left_twice),
                                       cmocka_unit_test(test_patience_doubles),
                                       cmocka_unit_test(test_slower_than_patience),
                                       cmocka_unit_test(test_chunks_and_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
