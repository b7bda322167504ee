// SPDX-License-Identifier: Apache-2.0
// inter/tune: a table of decisions, and the controller in a closed loop with a changing link, in
// virtual time.
#include "inter/record/tune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define LEVEL(name) ((uint8_t)cmp_level_of(name))

static struct inter_tune_config config(void) {
    return (struct inter_tune_config){.on = true,
                                      .codec = true,
                                      .overlap = true,
                                      .finest = LEVEL("int4"),
                                      .coarsest = LEVEL("topk:64/4096"),
                                      .first = LEVEL("int4"),
                                      .start_interval = 30,
                                      .start_overlap = 5,
                                      .interval_max = 60,
                                      .overlap_max = 15,
                                      .fragments = 1,
                                      .steps = 300000,
                                      .error_max = 0.65f};
}

// 4 MB as int4, steps of 0.2 s: 5 steps take 1 s.
static struct inter_measure measure(double mbit, double rtt_ms, double step_s) {
    return (struct inter_measure){.goodput_kbps = (uint32_t)(mbit * 1e3),
                                  .rtt_us = (uint32_t)(rtt_ms * 1e3),
                                  .step_us = (uint32_t)(step_s * 1e6),
                                  .error = 0.15f,
                                  .codec = LEVEL("int4"),
                                  .full = true};
}
enum { BYTES = 4000000 };

struct row {
    const char *what;
    double mbit, rtt_ms, step_s;
    float error;   // measured; 0: as usual
    uint64_t done; // steps made
    bool no_codec, no_overlap, interval;
    uint8_t coarsest; // 0: as configured
    uint8_t codec;    // the expected level
    uint32_t overlap, interval_wanted;
    uint8_t reason;
};

static void test_table(void **state) {
    (void)state;
    const struct row rows[] = {
        {"fits", 100, 20, 0.2, 0, 0, 0, 0, 0, 0, LEVEL("int4"), 5, 30, INTER_REASON_KEPT},
        // 32 Mbit at 20 Mbit/s take 1.6 s and a little. With the margin of 1.2 this is 1.97 s, or
        // 10 steps
        {"longer overlap", 20, 10, 0.2, 0, 0, 0, 0, 0, 0, LEVEL("int4"), 10, 30, INTER_REASON_LATE},
        {"a long way counts", 100, 500, 0.2, 0, 0, 0, 0, 0, 0, LEVEL("int4"), 12, 30,
         INTER_REASON_LATE},
        // with the margin, 3.2 s is more than 15 steps; int3 takes 2.3 s
        {"coarser codec", 10, 10, 0.2, 0, 0, 0, 0, 0, 0, LEVEL("int3"), 15, 30, INTER_REASON_LATE},
        {"tenfold slower", 2.2, 10, 0.2, 0, 0, 0, 0, 0, 0, LEVEL("topk:256/4096"), 14, 30,
         INTER_REASON_CAPACITY},
        {"a quarter of the rate", 3.6, 10, 0.2, 0, 0, 0, 0, 0, 0, LEVEL("topk:512/4096"), 15, 30,
         INTER_REASON_CAPACITY},
        {"codec loses too much", 7, 10, 0.2, 0.30f, 0, 0, 0, 0, LEVEL("int2"), LEVEL("int3"), 15,
         30, INTER_REASON_LIMIT},
        {"a short run never goes sparse", 2, 10, 0.2, 0, 299500, 0, 0, 0, 0, LEVEL("int2"), 15, 30,
         INTER_REASON_LIMIT},
        {"the user says no sparse", 2, 10, 0.2, 0, 0, 0, 0, 0, LEVEL("int2"), LEVEL("int2"), 15, 30,
         INTER_REASON_LIMIT},
        {"codec pinned", 10, 10, 0.2, 0, 0, true, 0, 0, 0, LEVEL("int4"), 15, 30,
         INTER_REASON_LIMIT},
        {"overlap pinned", 20, 10, 0.2, 0, 0, 0, true, 0, 0, LEVEL("topk:512/4096"), 5, 30,
         INTER_REASON_LATE},
        {"both pinned", 20, 10, 0.2, 0, 0, true, true, 0, 0, LEVEL("int4"), 5, 30,
         INTER_REASON_KEPT},
        // Codec and overlap are fixed, and H is free. H helps capacity, but not lateness: 32 Mbit
        // need 8 s at 4 Mbit/s, and 30 steps take 6 s.
        {"interval", 4, 10, 0.2, 0, 0, true, 0, true, 0, LEVEL("int4"), 15, 60, INTER_REASON_LIMIT},
        {"error of a codec in use", 100, 10, 0.2, 0.7f, 0, 0, 0, 0, 0, LEVEL("int4"), 5, 30,
         INTER_REASON_KEPT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        struct inter_tune_config c = config();
        struct inter_measure m = measure(r->mbit, r->rtt_ms, r->step_s);
        struct inter_tuner t = {0};
        c.codec = !r->no_codec;
        c.overlap = !r->no_overlap;
        c.interval = r->interval;
        c.coarsest = r->coarsest ? r->coarsest : c.coarsest;
        m.error = r->error > 0 ? r->error : m.error;
        (void)inter_tune(
            &t, &c,
            &(struct inter_tune_update){.measure = m, .bytes = BYTES, .steps_done = r->done});
        if (t.plan.codec != r->codec || t.plan.overlap != r->overlap ||
            t.plan.interval != r->interval_wanted ||
            (r->reason != INTER_REASON_KEPT && t.plan.reason != r->reason &&
             t.plan.reason != INTER_REASON_KEPT))
            fail_msg("%s: codec %d, overlap %u, interval %u, %s", r->what, t.plan.codec,
                     t.plan.overlap, t.plan.interval, inter_reason_text(t.plan.reason));
    }
}

// Without measurements, or with tuning off, the job's own values hold.
static void test_off_and_unknown(void **state) {
    (void)state;
    struct inter_tune_config c = config();
    struct inter_tune_update none = {.bytes = BYTES},
                             slow = {.measure = measure(0.1, 10, 0.2), .bytes = BYTES};
    struct inter_tuner t = {0};
    assert_false(inter_tune(&t, &c, &none));
    assert_int_equal(t.plan.codec, LEVEL("int4"));
    assert_int_equal(t.plan.overlap, 5);
    c.on = false;
    for (int i = 0; i < 10; i++) {
        assert_false(inter_tune(&t, &c, &slow));
        assert_int_equal(t.plan.codec, CMP_LEVEL_JOB);
        assert_int_equal(t.plan.overlap, 5);
        assert_int_equal(t.plan.interval, 30);
        assert_int_equal(t.plan.reason, INTER_REASON_JOB);
    }
}

// A goodput that varies by a quarter changes the plan twice at most.
static void test_no_flapping(void **state) {
    (void)state;
    struct inter_tune_config c = config();
    struct inter_tuner t = {0};
    int changes = 0;
    for (int i = 0; i < 200; i++) {
        struct inter_measure m = measure(i % 2 ? 20 : 16, 50, 0.2);
        m.codec = t.plan.interval ? t.plan.codec : LEVEL("int4");
        uint32_t bytes = m.codec == LEVEL("int4") ? BYTES : BYTES * 7 / 10;
        changes += inter_tune(&t, &c, &(struct inter_tune_update){.measure = m, .bytes = bytes});
    }
    assert_in_range(changes, 1, 2);
}

// ---- in a closed loop ----

static double bits(int level) { return cmp_level(level)->bits; }

struct loop {
    struct inter_tune_config c;
    struct inter_tuner t;
    struct inter_plan next[2]; // for round r, r + 1
    double goodput_seen;       // Mbit/s: the member's estimate after its update has arrived
    double stall_share;        // share of the last round's training time
    double rtt_s;
    double overestimate; // the estimate is this many times the real rate; 0: 1
    double outage_s;     // the next update meets an outage of this length
};

// One round: send by the plan of two rounds ago, wait if late, measure, plan. The link carries
// `mbit` Mbit/s.
static void play(struct loop *l, double mbit, uint64_t done) {
    const double step_s = 0.2;
    struct inter_plan p = l->next[0];
    uint32_t bytes = (uint32_t)(BYTES * bits(p.codec) / bits(LEVEL("int4")));
    double took = 8.0 * bytes / (mbit * 1e6) + l->rtt_s + l->outage_s;
    double flight = took + 3 * l->rtt_s, overlap = p.overlap * step_s;
    l->outage_s = 0;
    l->stall_share = flight > overlap ? (flight - overlap) / (p.interval * step_s) : 0;
    bool fills = 8.0 * bytes > mbit * 1e6 * l->rtt_s;
    double sample = fills ? mbit : 8.0 * bytes / l->rtt_s / 1e6;
    if (fills || sample > l->goodput_seen)
        l->goodput_seen = sample;
    // The decision uses this round's transfer. full: the update fills the path; a smaller one has
    // left before.
    struct inter_measure m = measure(l->goodput_seen * (l->overestimate > 0 ? l->overestimate : 1),
                                     l->rtt_s * 1e3, step_s);
    m.codec = p.codec;
    m.full = fills;
    inter_tune(&l->t, &l->c,
               &(struct inter_tune_update){
                   .measure = m, .bytes = bytes, .took = (neb_ns)(took * 1e9), .steps_done = done});
    l->next[0] = l->next[1];
    l->next[1] = l->t.plan;
}

static struct loop start(double mbit) {
    struct loop l = {.c = config(), .goodput_seen = mbit, .rtt_s = 0.1};
    l.next[0] = l.next[1] = inter_tune_first(&l.c);
    return l;
}

// The rate falls to a tenth and recovers: at most three rounds stall by more than 2 %, and the
// finer codec is back after three rounds, as plans are for the round after the next.
static void test_drop_and_recovery(void **state) {
    (void)state;
    const double rates[] = {100, 50, 200, 20}; // the last case falls to 2 Mbit/s
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct loop l = start(rates[i]);
        uint64_t done = 0;
        for (int r = 0; r < 20; r++, done += 30) {
            play(&l, rates[i], done);
            assert_true(r < 3 || l.stall_share <= 0.01);
        }
        int codec = l.next[0].codec;
        assert_int_equal(codec, LEVEL("int4"));
        for (int r = 0; r < 20; r++, done += 30) {
            play(&l, rates[i] / 10, done);
            if (r >= 3 && l.stall_share > 0.02)
                fail_msg("%g Mbit/s: round %d after the drop stalls %g", rates[i], r,
                         l.stall_share);
        }
        int rounds = 0;
        for (; rounds < 20 && l.next[0].codec != codec; rounds++, done += 30)
            play(&l, rates[i], done);
        if (rounds > 3)
            fail_msg("%g Mbit/s: finer again only %d rounds after the recovery", rates[i], rounds);
        for (int r = 0; r < 20; r++, done += 30) {
            play(&l, rates[i], done);
            assert_true(l.stall_share <= 0.01);
        }
    }
}

// An estimate stays at twice the real rate. After two late updates, no plan contradicts what they
// showed.
static void test_overestimated_rate(void **state) {
    (void)state;
    const double rates[] = {50, 20, 10, 5};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct loop l = start(rates[i]);
        uint64_t done = 0;
        l.overestimate = 2;
        for (int r = 0; r < 100; r++, done += 30) {
            play(&l, rates[i], done);
            if (r >= 4 && l.stall_share > 0.02)
                fail_msg("%g Mbit/s: round %d stalls %g", rates[i], r, l.stall_share);
        }
    }
}

// An update that one outage delays by a minute does not change the plan.
static void test_one_outage(void **state) {
    (void)state;
    struct loop l = start(20);
    uint64_t done = 0;
    for (int r = 0; r < 20; r++, done += 30)
        play(&l, 20, done);
    struct inter_plan before = l.t.plan;
    l.outage_s = 60;
    for (int r = 0; r < 5; r++, done += 30) {
        play(&l, 20, done);
        assert_int_equal(l.t.plan.codec, before.codec);
        assert_int_equal(l.t.plan.overlap, before.overlap);
        assert_int_equal(l.t.plan.interval, before.interval);
    }
}

// Two members with different links: the faster one's overlap waits for the slower one's update, and
// its codec stays as fine as its own link allows.
static void test_unlike_links(void **state) {
    (void)state;
    const double mbit[2] = {100, 12}, step_s[2] = {0.2, 0.1}, rtt_s = 0.05;
    struct inter_tune_config c = config();
    struct inter_tuner t[2] = {{.plan = {0}}, {.plan = {0}}};
    c.overlap_max = 25;
    for (int r = 0; r < 8; r++) {
        struct inter_tune_update u[2];
        double slowest = 0;
        for (int m = 0; m < 2; m++) {
            int codec = t[m].plan.interval ? t[m].plan.codec : LEVEL("int4");
            double bytes = BYTES * bits(codec) / bits(LEVEL("int4"));
            u[m] = (struct inter_tune_update){.measure = measure(mbit[m], rtt_s * 1e3, step_s[m]),
                                              .bytes = (uint32_t)bytes};
            u[m].measure.codec = (uint8_t)codec;
            double flight = 8 * bytes / (mbit[m] * 1e6) + 4 * rtt_s;
            slowest = flight > slowest ? flight : slowest;
        }
        for (int m = 0; m < 2; m++) {
            u[m].others = inter_tune_flight(&t[!m], &u[!m]);
            assert_true(r < 2 || t[m].plan.overlap * step_s[m] >= slowest);
        }
        for (int m = 0; m < 2; m++)
            (void)inter_tune(&t[m], &c, &u[m]);
    }
    assert_int_equal(t[0].plan.codec, LEVEL("int4"));
    assert_true(t[1].plan.codec > LEVEL("int4"));
    // the faster member cannot help, so it does not choose a coarser codec in vain
    c.overlap_max = 5;
    struct inter_tuner fast = {.plan = {0}};
    struct inter_tune_update u = {
        .measure = measure(100, 10, 0.2), .bytes = BYTES, .others = 10 * NEB_S};
    (void)inter_tune(&fast, &c, &u);
    assert_int_equal(fast.plan.codec, LEVEL("int4"));
    assert_int_equal(fast.plan.overlap, 5);
}

// One slow uplink needs a longer interval: both members use it, and the faster one's overlap may
// grow with it, so that neither waits. It ends when the link recovers or the member leaves.
static void test_common_interval(void **state) {
    (void)state;
    struct inter_tune_config c = config();
    struct inter_tuner t[2] = {{.plan = {0}}, {.plan = {0}}};
    struct inter_record r = {.n = 2, .entries = {{.member = 0}, {.member = 1}}, .n_plans = 2};
    struct inter_plan plan[2];
    uint32_t largest = 0;
    c.codec = false;
    c.interval = true;
    c.overlap_max = 50;
    for (; r.round < 60; r.round++) {
        const double mbit[2] = {100, r.round < 30 ? 4 : 100};
        struct inter_tune_update u[2];
        uint32_t before = 0;
        for (int m = 0; m < 2; m++) {
            u[m] = (struct inter_tune_update){.measure = measure(mbit[m], 20, 0.2), .bytes = BYTES};
            before = t[m].plan.interval > before ? t[m].plan.interval : before;
        }
        for (int m = 0; m < 2; m++) {
            u[m].others = inter_tune_flight(&t[!m], &u[!m]);
            u[m].interval = before;
        }
        for (uint8_t m = 0; m < 2; m++) {
            (void)inter_tune(&t[m], &c, &u[m]);
            r.plans[m] = t[m].plan;
            r.absences[m].base = r.round + 1;
        }
        for (uint8_t m = 0; m < 2; m++)
            plan[m] = inter_tune_planned(&r, m);
        assert_int_equal(plan[0].interval, plan[1].interval);
        largest = plan[0].interval > largest ? plan[0].interval : largest;
        if (r.round == 29) { // 32 Mbit take 8 s, 40 steps of 0.2 s
            assert_true(plan[0].interval >= 41);
            assert_int_equal(plan[0].reason, INTER_REASON_OTHERS);
            assert_true(plan[0].overlap >= 40 && plan[1].overlap >= 40);
            assert_int_equal(t[0].plan.interval, 30); // the link of this member alone needs no more
        }
    }
    assert_true(largest <= c.interval_max);
    assert_int_equal(plan[0].interval, 30);
    r.plans[1].interval = 60; // the other member is away: the rounds wait for it during two rounds
    r.n = 1;
    for (uint32_t missed = 1; missed < 5; missed++) {
        r.absences[1].base = r.round + 1 - missed;
        assert_int_equal(inter_tune_planned(&r, 0).interval, missed <= 2 ? 60 : 30);
    }
    assert_int_equal(inter_tune_planned(&r, 1).interval, 60);
}

// One estimate was bad, and sparse updates are five times as large as in the table, as with small
// models. Plans must not flip from round to round, although each decision sees the size of another
// codec.
static void test_sizes_unlike_the_table(void **state) {
    (void)state;
    struct inter_tune_config c = config();
    for (double mbit = 1.5; mbit < 40; mbit *= 1.1) {
        struct inter_tuner t = {.plan = {0}};
        struct inter_plan next[2] = {inter_tune_first(&c), inter_tune_first(&c)};
        int changes = 0;
        for (int r = 0; r < 60; r++) {
            struct inter_plan p = next[0];
            double bytes = BYTES * bits(p.codec) / bits(LEVEL("int4"));
            bytes *= p.codec >= LEVEL("topk:512/4096") ? 5 : 1;
            struct inter_tune_update u = {.measure = measure(r == 4 ? mbit / 8 : mbit, 40, 0.2),
                                          .bytes = (uint32_t)bytes};
            u.measure.codec = p.codec;
            bool changed = inter_tune(&t, &c, &u);
            changes += changed && r >= 10;
            next[0] = next[1];
            next[1] = t.plan;
        }
        if (changes > 1)
            fail_msg("%g Mbit/s: %d changes", mbit, changes);
    }
}

static void test_slow_members_make_fewer_steps(void **state) {
    (void)state;
    const struct {
        double slower; // how many times slower than the fastest
        int left_out;  // of 64
    } rows[] = {{1, 0}, {1.1, 0}, {1.25, 13}, {2, 32}, {3, 43}, {100, INTER_LEFT_OUT_MAX}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct inter_tune_config c = config();
        struct inter_tuner t = {.plan = {0}};
        struct inter_tune_update u = {.measure = measure(100, 20, 0.2 * rows[i].slower),
                                      .bytes = BYTES,
                                      .fastest = 200 * NEB_MS};
        (void)inter_tune(&t, &c, &u);
        assert_int_equal(t.plan.left_out, 0); // balancing is off
        c.balance = true;
        t = (struct inter_tuner){.plan = {0}};
        for (int r = 0; r < 5; r++) {
            bool changed = inter_tune(&t, &c, &u);
            assert_int_equal(t.plan.left_out, r < 1 ? 0 : rows[i].left_out);
            assert_int_equal(changed && t.plan.reason == INTER_REASON_SPEED,
                             r == 1 && rows[i].left_out > 0);
        }
        // With the steps that it leaves out, it is as fast as the fastest member. Its overlap
        // covers as much time.
        assert_true(t.plan.overlap >= 5);
        for (int r = 0; r < 40; r++) { // speeds that vary by a twentieth change nothing
            u.measure.step_us = (uint32_t)(2e5 * rows[i].slower * (r % 2 ? 1.05 : 0.95));
            (void)inter_tune(&t, &c, &u);
            assert_int_equal(t.plan.left_out, rows[i].left_out);
        }
        u.measure.step_us = 200000; // it is as fast now
        for (int r = 0; r < 2; r++)
            (void)inter_tune(&t, &c, &u);
        assert_int_equal(t.plan.left_out, 0);
    }
}

// Sparse updates are too small to measure a recovered link. Trials lead back to the finer codec. A
// failed trial makes the next one cheaper and rarer.
static void test_trials(void **state) {
    (void)state;
    struct loop l = start(9.5);
    l.rtt_s = 0.18;
    l.c.overlap = false; // 1 s, with 0.28 s left for bytes
    uint64_t done = 0;
    for (int r = 0; r < 10; r++, done += 30)
        play(&l, 9.5, done);
    int others = 0;
    for (int r = 0; r < 400; r++, done += 30) {
        play(&l, 9.5, done);
        others += l.next[0].codec != LEVEL("topk:64/4096");
    }
    assert_in_range(others, 1, 40);
    int rounds = 0;
    for (; rounds < 600 && l.next[0].codec != LEVEL("int4"); rounds++, done += 30)
        play(&l, 200, done);
    if (rounds >= 150)
        fail_msg("still codec %d at %g Mbit/s seen", l.next[0].codec, l.goodput_seen);
}

// A link has become slow. After one reading at half the rate, the next reading does not count as a
// recovery. Only a reading at twice the rate does, and it counts at once.
static void test_one_low_reading(void **state) {
    (void)state;
    struct inter_tune_config c = config();
    struct inter_tuner t = {.plan = {0}};
    c.overlap = false; // only the codec can follow
    const double mbit[] = {100, 100, 20, 10, 20};
    for (size_t i = 0; i < sizeof mbit / sizeof mbit[0]; i++) {
        struct inter_measure m = measure(mbit[i], 80, 0.2);
        m.codec = t.plan.interval ? t.plan.codec : LEVEL("int4");
        m.full = m.codec == LEVEL("int4"); // updates of other codecs are too small
        struct inter_tune_update u = {.measure = m,
                                      .bytes =
                                          (uint32_t)(BYTES * bits(m.codec) / bits(LEVEL("int4"))),
                                      .steps_done = 30 * i};
        (void)inter_tune(&t, &c, &u);
        assert_true(i < 2 || t.plan.codec > LEVEL("int4"));
    }
    struct inter_measure m = measure(45, 80, 0.2);
    m.codec = t.plan.codec;
    m.full = false;
    (void)inter_tune(&t, &c, &(struct inter_tune_update){.measure = m, .bytes = BYTES / 6});
    assert_int_equal(t.plan.codec, LEVEL("int4"));
    assert_int_equal(t.plan.reason, INTER_REASON_TRIAL);
}

// The measured recipe of AdamW: topk:128/4096 every 3 steps, for 1,500 steps. The controller keeps
// the codec on a good link, until the last step, and where only round trips are long. On a slow
// link it takes a coarser codec, and comes back.
static void test_sparse_recipe(void **state) {
    (void)state;
    struct inter_tune_config c = config();
    const uint8_t job = LEVEL("topk:128/4096"), coarse = LEVEL("topk:64/4096");
    c.finest = c.first = job;
    c.start_interval = 3;
    c.start_overlap = c.overlap_max = 1;
    c.steps = 1500;
    const struct {
        double mbit, rtt_ms;
        uint64_t from, to; // steps
        uint8_t codec;     // at the end
    } parts[] = {
        {1000, 5, 0, 1500, job},                               // good
        {100, 400, 0, 1500, job},                              // far away: no codec is in time
        {1000, 5, 0, 300, job},    {1.5, 5, 300, 600, coarse}, // becomes slow
        {1000, 5, 600, 1500, job},
    };
    struct inter_tuner t = {.plan = {0}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!parts[i].from)
            t = (struct inter_tuner){.plan = {0}};
        for (uint64_t done = parts[i].from; done < parts[i].to; done += 3) {
            struct inter_measure m = measure(parts[i].mbit, parts[i].rtt_ms, 0.2);
            m.codec = t.plan.interval ? t.plan.codec : job;
            (void)inter_tune(
                &t, &c,
                &(struct inter_tune_update){.measure = m,
                                            .bytes = (uint32_t)(42000 * bits(m.codec) / bits(job)),
                                            .steps_done = done});
            if (parts[i].codec == job && done > parts[i].from + 30 && t.plan.codec != job)
                fail_msg("part %zu, step %d: codec %s, %s", i, (int)done,
                         cmp_level(t.plan.codec)->name, inter_reason_text(t.plan.reason));
        }
        assert_int_equal(t.plan.codec, parts[i].codec);
        assert_int_equal(t.plan.interval, 3);
    }
    // Few rounds are left, but the job's own codec with a larger τ is still a plan that fits.
    t = (struct inter_tuner){.plan = {0}};
    c.overlap_max = 2;
    struct inter_tune_update late = {
        .measure = measure(100, 60, 0.2), .bytes = 42000, .steps_done = 1400};
    late.measure.codec = job;
    (void)inter_tune(&t, &c, &late);
    assert_true(t.plan.codec == job && t.plan.overlap == 2);
    assert_int_equal(t.plan.reason, INTER_REASON_LATE);
}

static void test_names(void **state) {
    (void)state;
    // The numbers in records and checkpoints.
    static const char *const numbers[] = {
        NULL,           "int8",         "int4", "int3", "int2", "topk:512/4096", "topk:256/4096",
        "topk:64/4096", "topk:128/4096"};
    for (uint8_t i = 1; i < sizeof numbers / sizeof *numbers; i++)
        assert_string_equal(cmp_level(cmp_level_numbered(i))->name, numbers[i]);
    for (int level = 1; cmp_level(level); level++) {
        const struct cmp_variant *v = cmp_level(level), *next = cmp_level(level + 1);
        assert_int_equal(cmp_level_of(v->name), level);
        assert_int_equal(cmp_level_numbered(cmp_level_number(level)), level);
        assert_true(!next || next->bits < v->bits); // finest first
        assert_true(level <= CMP_LEVELS_MAX);
    }
    assert_int_equal(cmp_level_of("topk"), LEVEL("topk:64/4096"));
    assert_int_equal(cmp_level_of("fp32"), CMP_LEVEL_JOB);
    assert_int_equal(cmp_level_number(CMP_LEVEL_JOB), 0);
    assert_int_equal(cmp_level_numbered(255), -1);
    assert_null(cmp_level(CMP_LEVEL_JOB));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_off_and_unknown),
                                       cmocka_unit_test(test_no_flapping),
                                       cmocka_unit_test(test_drop_and_recovery),
                                       cmocka_unit_test(test_overestimated_rate),
                                       cmocka_unit_test(test_one_outage),
                                       cmocka_unit_test(test_slow_members_make_fewer_steps),
                                       cmocka_unit_test(test_unlike_links),
                                       cmocka_unit_test(test_common_interval),
                                       cmocka_unit_test(test_sizes_unlike_the_table),
                                       cmocka_unit_test(test_trials),
                                       cmocka_unit_test(test_one_low_reading),
                                       cmocka_unit_test(test_sparse_recipe),
                                       cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
