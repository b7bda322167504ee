// SPDX-License-Identifier: Apache-2.0
// The pure parts of wanlink: link model, ring buffer, cutting of super-packets, control commands.
// No other code may use them, so they are compiled into this test and are not a library.
#include "agent/wan/gso.c"
#include "agent/wan/link.c"
#include "agent/wan/mesh.c"

#include <linux/virtio_net.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct wan_params plain = {
    .rate_bps = 100000000, .delay = 40 * NEB_MS, .queue_bytes = 1 << 30};

static void test_rate_and_delay(void **state) {
    (void)state;
    static const uint64_t rates[] = {2000000, 100000000, 333000000, 1000000000};
    for (unsigned i = 0; i < 4; i++) {
        struct wan_params p = plain;
        p.rate_bps = rates[i];
        struct wan_link l = wan_link_make(&p, 1, 0, 1);
        neb_ns at = 0;
        enum { N = 1000 };
        for (unsigned k = 0; k < N; k++)
            assert_int_equal(wan_link_offer(&l, NEB_S, 1500, &at), WAN_PASS);
        double line = neb_seconds(at - NEB_S - p.delay);
        assert_true(fabs(N * 1500 * 8 / line / (double)rates[i] - 1) < 1e-4);
        // The time of each packet is rounded to nanoseconds. The error is half a nanosecond a
        // packet, in all the time of 63 bytes at 1 Gbit/s.
        assert_in_range(wan_link_backlog_bytes(&l, NEB_S), N * 1500 - 63, N * 1500 + 63);
        // An idle line starts at once.
        assert_int_equal(wan_link_offer(&l, 100 * NEB_S, 1500, &at), WAN_PASS);
        assert_int_equal(at, 100 * NEB_S + wan_line_time(rates[i], 1500) + p.delay);
    }
}

static void test_queue_and_black_hole(void **state) {
    (void)state;
    struct wan_params p = plain;
    p.queue_bytes = 15000;
    struct wan_link l = wan_link_make(&p, 1, 0, 1);
    neb_ns at;
    for (unsigned k = 0; k < 10; k++)
        assert_int_equal(wan_link_offer(&l, 0, 1500, &at), WAN_PASS);
    assert_int_equal(wan_link_offer(&l, 0, 1500, &at), WAN_QUEUE_FULL);
    assert_int_equal(wan_link_offer(&l, wan_line_time(p.rate_bps, 1500), 1500, &at), WAN_PASS);
    p.down = true;
    wan_link_set(&l, &p, 0);
    assert_int_equal(wan_link_offer(&l, NEB_S, 1500, &at), WAN_DOWN);
    assert_int_equal(l.stats.offered_packets, 13);
    assert_int_equal(l.stats.dropped_bytes, 3000);
    p = (struct wan_params){.rate_bps = 100000000, .delay = 40 * NEB_MS, .queue_bdp = 2};
    assert_int_equal(wan_link_queue_limit(&p), 2000000);
}

static void test_loss_depends_on_seed_and_order(void **state) {
    (void)state;
    struct wan_params p = plain;
    p.rate_bps = 0;
    p.loss = 0.05;
    enum { N = 20000 };
    struct wan_link a = wan_link_make(&p, 7, 0, 1), b = a, back = wan_link_make(&p, 7, 1, 0);
    unsigned differ = 0;
    neb_ns at;
    for (unsigned k = 0; k < N; k++) {
        enum wan_fate fate = wan_link_offer(&a, k * NEB_US, 1500, &at);
        assert_int_equal(wan_link_offer(&b, k * NEB_MS, 40 + k % 1400, &at), fate);
        differ += wan_link_offer(&back, k * NEB_US, 1500, &at) != fate;
    }
    // mean 1,000, deviation 31; two independent directions differ in 2·0.05·0.95·N = 1,900,
    // deviation 41
    assert_in_range(a.stats.lost_packets, 850, 1150);
    assert_in_range(differ, 1700, 2100);
}

static void test_only_reorder_reorders(void **state) {
    (void)state;
    struct wan_params p = plain;
    p.jitter = 10 * NEB_MS;
    struct wan_link l = wan_link_make(&p, 3, 0, 1);
    neb_ns last = 0, at, low = INT64_MAX, high = 0;
    double sum = 0;
    enum { N = 20000 };
    for (unsigned k = 0; k < N; k++) {
        neb_ns now = k * NEB_MS;
        assert_int_equal(wan_link_offer(&l, now, 100, &at), WAN_PASS);
        assert_true(at >= last);
        last = at;
        neb_ns way = at - now;
        low = way < low ? way : low, high = way > high ? way : high;
        sum += neb_seconds(way);
    }
    assert_true(low >= 30 * NEB_MS && low < 33 * NEB_MS);
    assert_true(high <= 50 * NEB_MS + 10 * NEB_US && high > 47 * NEB_MS);
    assert_true(fabs(sum / N - 0.040) < 0.002);
    p.delay = p.jitter = 0; // a shorter path does not overtake packets on the longer one
    wan_link_set(&l, &p, (N - 1) * NEB_MS);
    assert_int_equal(wan_link_offer(&l, (N - 1) * NEB_MS, 100, &at), WAN_PASS);
    assert_int_equal(at, last);
    p.reorder = 0.1;
    wan_link_set(&l, &p, 0);
    unsigned late = 0;
    for (unsigned k = 0; k < N; k++)
        late += wan_link_offer(&l, (N + k) * NEB_MS, 100, &at) == WAN_LATE;
    assert_in_range(late, 1830, 2170); // mean 2,000, deviation 42
}

// The ring against a plain queue of numbers, with growth in between.
static void test_ring(void **state) {
    (void)state;
    struct wan_fifo *f = NULL;
    assert_int_equal(wan_fifo_create(4000, &f), NEB_OK);
    uint64_t in = 0, out = 0, x = 9;
    unsigned full = 0;
    for (unsigned step = 0; step < 200000; step++) {
        x = neb_mix64(x + 1);
        uint32_t len = (uint32_t)(neb_mix64(in) % 700);
        if (x % 100 < 52) {
            bool fits = wan_fifo_fits(f, len);
            uint8_t *data =
                wan_fifo_push(f, (struct wan_record){.deliver = (neb_ns)in, .len = len});
            assert_int_equal(fits, data != NULL);
            if (data != NULL)
                memset(data, (int)(in++ & 255), len);
            else
                full++;
            continue;
        }
        struct wan_record r;
        uint8_t *data = NULL;
        assert_int_equal(wan_fifo_head(f, &r, &data), in != out);
        if (in == out)
            continue;
        assert_int_equal(r.deliver, out);
        assert_int_equal(r.len, neb_mix64(out) % 700);
        for (uint32_t i = 0; i < r.len; i++)
            assert_int_equal(data[i], out & 255);
        wan_fifo_pop(f);
        out++;
        if (step % 50000 == 49999)
            assert_int_equal(wan_fifo_reserve(f, 4000 + step / 10), NEB_OK);
    }
    assert_true(full > 100 && out > 10000);
    wan_fifo_destroy(&f);
    wan_fifo_destroy(&f);
}

enum { SEG = 100, SEGS = 5, TAIL = 37, HDR = 40, BYTES = SEG * (SEGS - 1) + TAIL };

static void make_super(uint8_t f[WAN_VNET + HDR + BYTES]) {
    struct virtio_net_hdr v = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                               .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                               .hdr_len = HDR,
                               .gso_size = SEG,
                               .csum_start = 20,
                               .csum_offset = 16};
    memset(f, 0, WAN_VNET + HDR);
    memcpy(f, &v, WAN_VNET);
    uint8_t *ip = f + WAN_VNET;
    ip[0] = 0x45, ip[8] = 64, ip[9] = IPPROTO_TCP;
    put16(ip + 2, HDR + BYTES), put16(ip + 4, 0xfffe);
    memcpy(ip + 12, "\x0a\x4d\0\x01\x0a\x4d\0\x02", 8);
    put32(ip + 24, 0xffffff80);              // the sequence number wraps inside
    ip[32] = 0x50, ip[33] = 0x80 | 0x18 | 1; // CWR ACK PSH FIN
    for (unsigned i = 0; i < BYTES; i++)
        ip[HDR + i] = (uint8_t)(i * 7);
}

static void test_cut_super_packet(void **state) {
    (void)state;
    uint8_t f[WAN_VNET + HDR + BYTES], out[sizeof f];
    struct wan_gso g;
    make_super(f);
    assert_true(wan_gso_parse(f, sizeof f, &g));
    assert_int_equal(g.segs, SEGS);
    assert_int_equal(wan_gso_seg_bytes(&g, 0), HDR + SEG);
    assert_int_equal(wan_gso_seg_bytes(&g, SEGS - 1), HDR + TAIL);
    for (unsigned from = 0; from < SEGS; from++) {
        for (unsigned to = from + 1; to <= SEGS; to++) {
            size_t n = wan_gso_run_bytes(&g, from, to);
            const uint8_t *ip = out + WAN_VNET;
            struct virtio_net_hdr v;
            wan_gso_run_write(&g, from, to, out);
            memcpy(&v, out, WAN_VNET);
            assert_memory_equal(ip + HDR, f + WAN_VNET + HDR + from * SEG, n - WAN_VNET - HDR);
            assert_int_equal(get32(ip + 24), (uint32_t)(0xffffff80u + from * SEG));
            if (from == 0 && to == SEGS)
                continue; // passed on unchanged
            assert_int_equal(get16(ip + 2), n - WAN_VNET);
            assert_int_equal(get16(ip + 4), (uint16_t)(0xfffe + from));
            assert_int_equal(sum16(ip, 20, 0), 0xffff);
            assert_int_equal(v.gso_type,
                             to - from > 1 ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_NONE);
            assert_int_equal((ip[33] & 0x80) != 0, from == 0);
            assert_int_equal((ip[33] & 0x09) == 0x09, to == SEGS);
            assert_true((ip[33] & 0x10) != 0);
            // 10.77.0.1 + 10.77.0.2 + 6 + length
            uint32_t pseudo = 0x0a4d + 1 + 0x0a4d + 2 + 6 + (uint32_t)(n - WAN_VNET - 20);
            assert_int_equal(get16(ip + 36), pseudo);
        }
    }
}

static void test_refuse_bad_frames(void **state) {
    (void)state;
    uint8_t f[WAN_VNET + HDR + BYTES];
    struct wan_gso g;
    make_super(f);
    for (size_t n = 0; n < WAN_VNET + HDR; n++)
        assert_false(wan_gso_parse(f, n, &g));
    f[WAN_VNET] = 0x60; // IPv6
    assert_false(wan_gso_parse(f, sizeof f, &g));
    make_super(f);
    f[WAN_VNET + 32] = 0x40; // a TCP header of 16 bytes
    assert_false(wan_gso_parse(f, sizeof f, &g));
    make_super(f);
    f[4] = f[5] = 0; // segments of no bytes
    assert_false(wan_gso_parse(f, sizeof f, &g));
}

static bool says(struct wan_mesh *m, const char *command, const char *start) {
    struct neb_buf b = {0};
    wan_mesh_command(m, command, 0, &b);
    bool ok =
        b.len > strlen(start) && memcmp(b.p, start, strlen(start)) == 0 && b.p[b.len - 1] == '\n';
    neb_buf_free(&b);
    return ok;
}

static void test_commands(void **state) {
    (void)state;
    static struct wan_mesh m = {.sites = 3};
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned j = 0; j < 3; j++)
            m.link[i][j] = wan_link_make(&plain, 1, i, j);
    }
    assert_true(says(&m, "rate 1.5mbit", "ok"));
    assert_int_equal(m.link[2][1].p.rate_bps, 1500000);
    assert_true(says(&m, "delay-oneway 200ms 0 1\r", "ok"));
    assert_int_equal(m.link[0][1].p.delay, 200 * NEB_MS);
    assert_int_equal(m.link[1][0].p.delay, 40 * NEB_MS);
    assert_true(says(&m, "loss 0.5% 1 2", "ok"));
    assert_true(m.link[1][2].p.loss == 0.005 && m.link[2][1].p.loss == 0.005);
    assert_true(m.link[0][1].p.loss == 0);
    assert_true(says(&m, "down 0 2", "ok"));
    assert_true(m.link[0][2].p.down && m.link[2][0].p.down && !m.link[0][1].p.down);
    assert_true(says(&m, "up", "ok"));
    assert_false(m.link[0][2].p.down);
    assert_true(says(&m, "stats", "{\"uptime_s\""));
    static const char *const bad[] = {"",           " ",           "up 0",
                                      "down 0 3",   "down 1 1",    "rate",
                                      "rate x",     "rate -1mbit", "rate 1m",
                                      "rate nan",   "loss 1.01",   "queue 100",
                                      "queue 0bdp", "delay 1h",    "rate-oneway 1mbit",
                                      "-oneway",    "delay 5",     "rate 1mbit 0 1 2",
                                      "down -1 0"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (!says(&m, bad[i], "error: "))
            fail_msg("accepted: '%s'", bad[i]);
    }
    assert_int_equal(m.link[0][1].p.rate_bps, 1500000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_and_delay),
        cmocka_unit_test(test_queue_and_black_hole),
        cmocka_unit_test(test_loss_depends_on_seed_and_order),
        cmocka_unit_test(test_only_reorder_reorders),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_cut_super_packet),
        cmocka_unit_test(test_refuse_bad_frames),
        cmocka_unit_test(test_commands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
