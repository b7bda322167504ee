// SPDX-License-Identifier: Apache-2.0
// The outer optimiser on the emulated device against the host, round by round: the same frames,
// digests, and bits of θ, v, residual and parameters. The cases: row weights, several members,
// merge rounds, resent updates, commits without an own update, refused updates, and state that
// moves between host and device; in the device's memory and in pinned memory of the host; with the
// calls in parts and without; and how much memory it takes.
#include "agent/base/rng.h"
#include "inter/outer/outer.h"
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;

enum { UNITS = 4, FRAGMENTS = 2, MEMBERS = 3, ROUNDS = 14 };
static const struct { // odd sizes; the first has weighted rows
    uint32_t rows, cols;
    bool weighted;
    int32_t fragment;
} shapes[UNITS] = {{37, 65, true, 0}, {64, 130, false, 0}, {1, 77, false, 1}, {90, 101, false, 1}};

struct member {
    struct inter_outer *o;
    struct kern_pool *pool;
    struct kern *D;        // NULL: on the host
    bool pinned;           // the state is in pinned memory
    float *theta_m[UNITS]; // host memory
    float *there[UNITS];   // device memory
    uint64_t counts[37];
    struct neb_buf blob[FRAGMENTS];
};

static size_t elements(int i) { return (size_t)shapes[i].rows * shapes[i].cols; }

static void to_device(struct member *m) {
    assert_int_equal(m->pinned ? inter_outer_to_pinned(m->o, m->D, m->there)
                               : inter_outer_to_device(m->o, m->D, m->there, 0),
                     NEB_OK);
}

static void create(struct member *m, bool robust, float blend, bool on_device, struct kern *D) {
    struct inter_outer_unit units[UNITS];
    struct inter_outer_config c = {.beta = 0.9f,
                                   .keep = blend > 0 ? 0 : 0.4f,
                                   .blend = blend,
                                   .kappa = 0.1f,
                                   .row_weights = true,
                                   .fragments = FRAGMENTS,
                                   .robust = robust};
    struct neb_rng r = neb_rng_make(5, 1); // all members start with the same parameters
    assert_int_equal(kern_pool_create(1, &m->pool), NEB_OK);
    for (int i = 0; i < UNITS; i++) {
        m->theta_m[i] = calloc(elements(i), sizeof(float));
        assert_non_null(m->theta_m[i]);
        for (size_t k = 0; k < elements(i); k++)
            m->theta_m[i][k] = 0.1f * neb_rng_normal(&r);
        units[i] = (struct inter_outer_unit){shapes[i].rows, shapes[i].cols, shapes[i].weighted,
                                             shapes[i].fragment, m->theta_m[i]};
    }
    assert_int_equal(inter_outer_create(&c, units, UNITS, m->pool, &m->o), NEB_OK);
    if (!on_device)
        return;
    m->D = D;
    for (int i = 0; i < UNITS; i++) {
        void *p;
        assert_int_equal(D->ops->alloc(D, elements(i) * sizeof(float), &p), NEB_OK);
        m->there[i] = p;
        D->ops->upload(D, p, m->theta_m[i], elements(i) * sizeof(float));
    }
    assert_false(inter_outer_on_device(m->o));
    to_device(m);
    assert_true(inter_outer_on_device(m->o));
}

static void destroy(struct member *m) {
    inter_outer_destroy(&m->o);
    kern_pool_destroy(&m->pool);
    for (int i = 0; i < UNITS; i++) {
        if (m->D)
            m->D->ops->release(m->D, m->there[i]);
        free(m->theta_m[i]);
    }
    for (int f = 0; f < FRAGMENTS; f++)
        neb_buf_free(&m->blob[f]);
}

// Copies the current parameters to the host.
static void see(struct member *m) {
    for (int i = 0; m->D && i < UNITS; i++)
        m->D->ops->download(m->D, m->theta_m[i], m->there[i], elements(i) * sizeof(float));
    if (m->D)
        assert_int_equal(m->D->ops->finish(m->D), NEB_OK);
    assert_int_equal(inter_outer_pull(m->o), NEB_OK);
}

static void learn(struct member *m, uint64_t seed) { // imitates inner steps
    struct neb_rng r = neb_rng_make(seed, 2);
    see(m);
    for (int i = 0; i < UNITS; i++) {
        for (size_t k = 0; k < elements(i); k++)
            m->theta_m[i][k] += 0.01f * neb_rng_normal(&r);
        if (m->D)
            m->D->ops->upload(m->D, m->there[i], m->theta_m[i], elements(i) * sizeof(float));
    }
    for (int i = 0; i < 37; i++)
        m->counts[i] = neb_rng_below(&r, 5);
}

static const uint64_t *counts_of(void *user, int32_t unit) {
    struct member *m = user;
    assert_int_equal(unit, 0);
    return m->counts;
}

static void same(struct member *a, struct member *b, const char *when, int round) {
    struct inter_outer_array x[INTER_OUTER_ARRAYS], y[INTER_OUTER_ARRAYS];
    see(a);
    see(b);
    inter_outer_arrays(a->o, x);
    inter_outer_arrays(b->o, y);
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        if (memcmp(x[i].p, y[i].p, x[i].n * sizeof(float)))
            fail_msg("round %d, %s: %s differs", round, when, x[i].name);
    for (int i = 0; i < UNITS; i++)
        if (memcmp(a->theta_m[i], b->theta_m[i], elements(i) * sizeof(float)))
            fail_msg("round %d, %s: parameters of unit %d differ", round, when, i);
    struct kern_digest p = inter_outer_digest(a->o), q = inter_outer_digest(b->o);
    assert_true(p.lo == q.lo && p.hi == q.hi);
}

static void encode(struct member *m, int f, const struct cmp_codec *codec) {
    assert_int_equal(inter_outer_encode(m->o, f, codec, counts_of, m, &m->blob[f]), NEB_OK);
}

// On a device: after inter_outer_form the parameters may change before they are encoded.
static void encode_in_parts(struct member *m, int f, const struct cmp_codec *codec) {
    see(m);
    inter_outer_form(m->o, f);
    for (int i = 0; i < UNITS; i++)
        m->D->ops->zero(m->D, m->there[i], elements(i) * sizeof(float));
    encode(m, f, codec);
    for (int i = 0; i < UNITS; i++)
        m->D->ops->upload(m->D, m->there[i], m->theta_m[i], elements(i) * sizeof(float));
    assert_int_equal(m->D->ops->finish(m->D), NEB_OK);
}

static void apply(struct member *m, int f, const struct inter_outer_round *r, bool in_parts,
                  struct kern_digest *d) {
    if (!m->D || !in_parts) {
        assert_int_equal(inter_outer_apply(m->o, f, r, d), NEB_OK);
        return;
    }
    assert_int_equal(inter_outer_open(m->o, f, r), NEB_OK);
    assert_int_equal(inter_outer_settle(m->o, f, r), NEB_OK);
    assert_int_equal(inter_outer_settled(m->o, f, d), NEB_OK);
}

// Four floats per parameter, in the device's memory or pinned, and some units of scratch; and once
// there were commits (frames), those of the largest one, unpacked.
static void takes_four_floats(const struct member *m, bool robust, bool frames) {
    size_t all = 0, largest = 0, fragment[FRAGMENTS] = {0}, codec = 3, more = 0;
    for (int i = 0; i < UNITS; i++) {
        all += elements(i);
        fragment[shapes[i].fragment] += elements(i);
        largest = elements(i) > largest ? elements(i) : largest;
    }
    size_t most = fragment[0] > fragment[1] ? fragment[0] : fragment[1],
           state = (m->pinned ? 6 * largest : 4 * all + 2 * largest) * sizeof(float);
    uint64_t bytes = inter_outer_device_bytes(m->o);
    if (frames) // at most four bytes per element of each update, rounded up; row weights
        more = (MEMBERS * (most + 3 * 64) + codec * largest + (robust ? most : 0)) * sizeof(float) +
               (64 << 10);
    if (bytes < state || bytes > state + more)
        fail_msg("%llu bytes of the device, not %zu to %zu", (unsigned long long)bytes, state,
                 state + more);
}

// Merges fragment f in this round; both of ms have sent before.
static void outcome(struct member *ms[2], const struct member *peer, int f, int round) {
    for (int i = 0; i < 2; i++) {
        struct kern_digest d;
        struct neb_buf *mine = &ms[i]->blob[f];
        struct inter_outer_part parts[MEMBERS] = {
            {.blob = peer->blob[f].p, .len = peer->blob[f].len, .tokens = 900, .clip = 1},
            {.blob = mine->p,
             .len = mine->len,
             .tokens = 1100,
             .weight = round % 4 == 2 ? 700 : 0,
             .clip = round % 5 == 4 ? 0.7f : 1,
             .mine = true},
            {.blob = peer->blob[f].p, .len = peer->blob[f].len, .tokens = 50, .clip = 0.3f}};
        struct inter_outer_round r = {parts, MEMBERS, 0.9f, 0.6f, round % 6 == 5, false, NULL};
        switch (round % 7) {
        case 1: // our update was late: only the updates of the others
            parts[1] = parts[2];
            r.n = 2;
            break;
        case 2: inter_outer_skip(ms[i]->o, f, &d); continue;
        case 3: // refused; once after its commit was opened, as one of a former incarnation
            if (round > 7 && ms[i]->D)
                assert_int_equal(inter_outer_open(ms[i]->o, f, &r), NEB_OK);
            inter_outer_reject(ms[i]->o, f);
            if (round < 7)
                continue;
            parts[1].mine = false;
            break;
        case 6: r.parts = parts + 1, r.n = 1; break; // only our own update
        default: break;
        }
        apply(ms[i], f, &r, round % 2, &d);
        if (round % 7 == 5) { // then a second merge round, without an update in flight
            parts[1] = parts[2];
            r.n = 2;
            apply(ms[i], f, &r, false, &d);
        }
        struct kern_digest now = inter_outer_fragment_digest(ms[i]->o, f);
        assert_true(d.lo == now.lo && d.hi == now.hi);
    }
}

// A damaged update is refused and changes nothing.
static void refuses(struct member *m, const struct member *peer, int f) {
    struct kern_digest before = inter_outer_fragment_digest(m->o, f), d;
    struct neb_buf bad = {0};
    neb_buf_add(&bad, peer->blob[f].p, peer->blob[f].len);
    bad.p[bad.len - 3] ^= 0x55;
    bad.p[bad.len - 40] ^= 0x55;
    struct inter_outer_part parts[2] = {
        {.blob = m->blob[f].p, .len = m->blob[f].len, .tokens = 10, .clip = 1, .mine = true},
        {.blob = bad.p, .len = bad.len - 1, .tokens = 10, .clip = 1}};
    struct inter_outer_round r = {parts, 2, 0.9f, 0.6f, false, false, NULL};
    assert_int_not_equal(inter_outer_apply(m->o, f, &r, &d), NEB_OK);
    d = inter_outer_fragment_digest(m->o, f);
    assert_true(d.lo == before.lo && d.hi == before.hi);
    assert_true(inter_outer_in_flight(m->o, f));
    neb_buf_free(&bad);
}

// The host sends an update, and the device takes the state over while it is in flight.
static void leave_and_return(struct member *host, struct member *on, int f,
                             const struct cmp_codec *codec) {
    see(on);
    assert_int_equal(inter_outer_to_host(on->o), NEB_OK);
    assert_false(inter_outer_on_device(on->o));
    assert_int_equal(inter_outer_to_host(on->o), NEB_OK); // already on the host
    encode(host, f, codec);
    encode(on, f, codec);
    assert_int_equal(host->blob[f].len, on->blob[f].len);
    assert_memory_equal(host->blob[f].p, on->blob[f].p, host->blob[f].len);
    to_device(on);
    same(host, on, "left and came back", -1);
}

static void run(const char *name, bool robust, float blend, bool pinned) {
    struct member host = {0}, on = {.pinned = pinned}, peer = {0};
    struct member *both[2] = {&host, &on};
    struct kern *D = NULL;
    struct cmp_codec codec;
    char text[256];
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    assert_int_equal(cmp_codec_parse(name, &codec), NEB_OK);
    create(&host, robust, blend, false, NULL);
    create(&on, robust, blend, true, D);
    create(&peer, robust, blend, false, NULL);
    takes_four_floats(&on, robust, false);
    for (int round = 0; round < ROUNDS; round++) {
        int f = round % FRAGMENTS;
        learn(&host, 100 + (uint64_t)round);
        learn(&on, 100 + (uint64_t)round);
        learn(&peer, 200 + (uint64_t)round);
        encode(&peer, f, &codec);
        if (round == 9)
            leave_and_return(&host, &on, f, &codec);
        for (int again = 0; again < (round % 4 == 3 ? 2 : 1); again++) {
            for (int i = 0; i < 2; i++) {
                if (both[i]->D && (round / 2) % 2)
                    encode_in_parts(both[i], f, &codec);
                else
                    encode(both[i], f, &codec);
                learn(both[i], 300 + (uint64_t)round);
            }
            assert_int_equal(host.blob[f].len, on.blob[f].len);
            assert_memory_equal(host.blob[f].p, on.blob[f].p, host.blob[f].len);
        }
        float a = inter_outer_unit_error(host.o, f, 0, host.blob[f].p, host.blob[f].len),
              b = inter_outer_unit_error(on.o, f, 0, on.blob[f].p, on.blob[f].len);
        assert_true(a == b);
        refuses(&on, &peer, f);
        outcome(both, &peer, f, round);
        same(&host, &on, name, round);
        if (round == 8) { // to the host and back, as for a checkpoint
            assert_int_equal(inter_outer_pull(on.o), NEB_OK);
            assert_int_equal(inter_outer_push(on.o), NEB_OK);
            struct inter_outer_array x[INTER_OUTER_ARRAYS];
            see(&peer);
            inter_outer_arrays(peer.o, x);
            for (int i = 0; i < 2; i++)
                inter_outer_adopt(both[i]->o, 1, x[0].p, x[1].p, 40);
            same(&host, &on, "a snapshot", round);
        }
    }
    for (int f = 0; f < FRAGMENTS; f++)
        for (int i = 0; i < 2; i++)
            inter_outer_finish(both[i]->o, f);
    same(&host, &on, "finished", ROUNDS);
    takes_four_floats(&on, robust, true);
    destroy(&host);
    destroy(&on);
    destroy(&peer);
    kern_destroy(&D);
}

static void test_every_codec(void **state) {
    (void)state;
    const char *const names[] = {"fp32", "bf16", "int8", "int4", "int2:130", "topk", "topk:1/64"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        run(names[i], false, i % 2 ? 0.3f : 0, false);
    run("int8", false, 0, true);
    run("topk", false, 0.3f, true);
}
static void test_robust(void **state) {
    (void)state;
    run("int4", true, 0, false);
    run("int4", true, 0, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_codec),
                                       cmocka_unit_test(test_robust)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
