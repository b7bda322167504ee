// SPDX-License-Identifier: Apache-2.0
// inter/rate_limit: the limits that operators write, and the token bucket under a virtual clock.
#include "inter/link/rate_limit.h"

#include "agent/base/log.h"
#include "agent/base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_text(void **state) {
    (void)state;
    struct inter_rate_limit l;
    assert_int_equal(inter_rate_limit_parse("", &l), NEB_OK);
    assert_false(inter_rate_limit_any(&l));
    assert_int_equal(inter_rate_limit_parse("none", &l), NEB_OK);
    assert_int_equal(inter_rate_limit_at(&l, 5), 0);
    assert_int_equal(inter_rate_limit_parse("1.5mbit", &l), NEB_OK);
    assert_int_equal(inter_rate_limit_at(&l, 600), 1500000);
    assert_int_equal(inter_rate_limit_parse("100mbit 08:00-18:00=20mbit, 22:30-06:00=none", &l),
                     NEB_OK);
    assert_int_equal(inter_rate_limit_at(&l, 8 * 60 - 1), 100000000);
    assert_int_equal(inter_rate_limit_at(&l, 8 * 60), 20000000);
    assert_int_equal(inter_rate_limit_at(&l, 18 * 60), 100000000);
    assert_int_equal(inter_rate_limit_at(&l, 22 * 60 + 30), 0);
    assert_int_equal(inter_rate_limit_at(&l, 0), 0);
    assert_int_equal(inter_rate_limit_at(&l, 6 * 60), 100000000);
    assert_int_equal(inter_rate_limit_parse("00:00-24:00=9600", &l), NEB_OK);
    assert_int_equal(inter_rate_limit_at(&l, 1439), 9600);
    const char *bad[] = {
        "fast",
        "-1mbit",
        "20 mbit",
        "20mbit 8:00-18:00=1mbit",
        "20mbit 08:00-18:00",
        "1kbit",
        "08:00-08:00=20mbit",
        "25:00-26:00=20mbit",
        "nan",
        "infmbit",
        "1e30gbit",
        "0x10mbit",
        "08:61-09:00=1mbit",
        "20mbit 08:00-09:00=20mbit 08:00-09:00=20mbit 08:00-09:00=20mbit 08:00-09:00=20mbit "
        "08:00-09:00=20mbit 08:00-09:00=20mbit 08:00-09:00=20mbit 08:00-09:00=20mbit "
        "08:00-09:00=20mbit"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (inter_rate_limit_parse(bad[i], &l) != NEB_ERR_INVALID)
            fail_msg("\"%s\" was accepted", bad[i]);
}

// For any load and any clock, no interval carries more than rate x time + depth + one message. A
// sender that always has data gets the full rate.
static void test_bucket_is_exact(void **state) {
    (void)state;
    enum { N = 20000 };
    const uint64_t bps = 20000000;
    static neb_ns at[N];
    static double sum[N + 1];
    uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 7;
    struct neb_rng r = neb_rng_make(seed, 1);
    struct inter_bucket b = {0};
    neb_ns now = 12345;
    double largest = 0;
    inter_bucket_set(&b, now, bps);
    for (int i = 0; i < N;) {
        if (!inter_bucket_ready(&b, now)) {
            neb_ns when = inter_bucket_when(&b);
            assert_true(when > now && when < now + NEB_S);
            // the sender wakes up in time, or it polls
            now = neb_rng_below(&r, 4) ? when : now + NEB_MS;
            continue;
        }
        double n = 100 + (double)neb_rng_below(&r, 65000);
        largest = n > largest ? n : largest;
        inter_bucket_take(&b, (uint64_t)n);
        at[i] = now;
        sum[i + 1] = sum[i] + (double)(uint64_t)n;
        i++;
    }
    double rate = (double)bps / 8, depth = rate * 0.02;
    for (int i = 0; i < N; i += 37)
        for (int k = i; k < N; k += 101) {
            double passed = sum[k + 1] - sum[i],
                   allowed = rate * neb_seconds(at[k] - at[i]) + depth + largest;
            if (passed > allowed)
                fail_msg("seed %llu: %g bytes in %g s, allowed %g", (unsigned long long)seed,
                         passed, neb_seconds(at[k] - at[i]), allowed);
        }
    double mean = sum[N] * 8 / neb_seconds(at[N - 1] - at[0]);
    assert_true(mean > 0.97 * (double)bps && mean < 1.01 * (double)bps);
}

// ---- on the wire ----

enum { CONNS = 3, SECONDS = 120, MS = 1000 * SECONDS, WINDOW = 16 << 20, MESSAGE = 64 << 10 };

static const struct weather { // from this second on
    int from;
    double path, repeats;          // capacity in bit/s; retransmitted bytes for each new one
} weathers[] = {{0, 100e6, 0.01},  // above the limit
                {20, 5e6, 0.01},   // below it: data queues up
                {40, 100e6, 0.01}, // the queue drains at once
                {60, 0, 0}, // dead; after four seconds connections break, and the queue is lost
                {65, 100e6, 0.25}, // many losses
                {90, 100e6, 0.01}};

struct wire {
    struct inter_bucket b;
    struct {
        struct inter_meter m;
        double queued, sent;
    } c[CONNS];
    double total[MS + 1]; // bytes on the wire up to each millisecond
};

static void hand_over(struct wire *w, neb_ns now) {
    for (double all = 0;;) {
        int least = 0;
        all = 0;
        for (int i = 0; i < CONNS; i++) {
            all += w->c[i].queued;
            least = w->c[i].queued < w->c[least].queued ? i : least;
        }
        if (all + MESSAGE > WINDOW || !inter_bucket_ready(&w->b, now))
            return;
        w->c[least].queued += MESSAGE;
        inter_meter_add(&w->c[least].m, &w->b, MESSAGE);
    }
}

static void settle(struct wire *w, bool broken) {
    if (!broken)
        inter_bucket_settle(&w->b);
    for (int i = 0; i < CONNS; i++) {
        inter_meter_read(&w->c[i].m, &w->b, (uint64_t)w->c[i].sent, (uint64_t)w->c[i].queued + 1);
        if (!broken)
            continue;
        memset(&w->c[i], 0, sizeof w->c[i]);
    }
}

static void play(struct wire *w, double bps) {
    inter_bucket_set(&w->b, NEB_S, (uint64_t)bps);
    for (int ms = 0, k = 0; ms < MS; ms++) {
        k += k + 1 < (int)(sizeof weathers / sizeof *weathers) && ms == 1000 * weathers[k + 1].from;
        double room = weathers[k].path / 8e3, out = 0;
        hand_over(w, NEB_S + ms * NEB_MS);
        for (int i = 0; i < CONNS; i++) {
            double n = room / CONNS / (1 + weathers[k].repeats);
            n = n < w->c[i].queued ? n : w->c[i].queued;
            w->c[i].queued -= n;
            w->c[i].sent += n * (1 + weathers[k].repeats);
            out += n * (1 + weathers[k].repeats);
        }
        w->total[ms + 1] = w->total[ms] + out;
        if (ms % 100 == 0)
            settle(w, false);
        if (ms == 64000)
            settle(w, true);
    }
}

// On any path, no interval carries more than the limit, one second of the limit, and its
// retransmissions. A path that can carry the limit is used up to it.
static void test_limit_holds_on_the_wire(void **state) {
    (void)state;
    static struct wire w;
    const double bps = 20e6, rate = bps / 8,
                 unseen = 0.1 * 100e6 / 8 * 0.25; // retransmissions between two readings
    play(&w, bps);
    for (int a = 0; a < MS; a += 50)
        for (int b = a + 50; b <= MS; b += 250) {
            double took = (b - a) / 1e3, most = rate * (took + 1.25 + 0.02) + MESSAGE + unseen;
            if (w.total[b] - w.total[a] > most)
                fail_msg("%g bytes from %d to %d ms, at most %g", w.total[b] - w.total[a], a, b,
                         most);
        }
    static const int full[][2] = {{1, 20}, {43, 60}, {67, 89}, {92, 120}};
    for (size_t i = 0; i < sizeof full / sizeof *full; i++) {
        double took = full[i][1] - full[i][0],
               share = (w.total[1000 * full[i][1]] - w.total[1000 * full[i][0]]) / rate / took;
        if (share < 0.95 || share > 1.05)
            fail_msg("from %d to %d s: %.3f of the limit", full[i][0], full[i][1], share);
    }
    double slow = (w.total[40000] - w.total[21000]) * 8 / 19;
    assert_true(slow > 0.98 * 5e6); // a slower path is used fully, too
}

// A change of the rate keeps the debt and saves nothing up. Without a limit everything passes.
static void test_bucket_changes(void **state) {
    (void)state;
    struct inter_bucket b = {0};
    assert_true(inter_bucket_ready(&b, 1));
    inter_bucket_take(&b, 1 << 30); // there is no limit, so this is not counted
    inter_bucket_set(&b, NEB_S, 8000000);
    assert_true(inter_bucket_ready(&b, NEB_S));
    inter_bucket_take(&b, 1000000); // one second's worth
    assert_false(inter_bucket_ready(&b, NEB_S + 400 * NEB_MS));
    // Half of the debt is left, and the rate is a tenth of the old one.
    inter_bucket_set(&b, NEB_S + 500 * NEB_MS, 800000);
    assert_false(inter_bucket_ready(&b, NEB_S + 5400 * NEB_MS));
    assert_true(inter_bucket_ready(&b, NEB_S + 5600 * NEB_MS));
    assert_true(inter_bucket_ready(&b, 1000 * NEB_S));
    inter_bucket_take(&b, 3000); // a long pause saves up 20 ms, 2,000 bytes
    assert_false(inter_bucket_ready(&b, 1000 * NEB_S));
    inter_bucket_set(&b, 1000 * NEB_S, 0);
    assert_true(inter_bucket_ready(&b, 1000 * NEB_S));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_bucket_is_exact),
        cmocka_unit_test(test_limit_holds_on_the_wire), cmocka_unit_test(test_bucket_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
