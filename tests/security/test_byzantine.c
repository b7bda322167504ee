// SPDX-License-Identifier: Apache-2.0
// One of five members sends scaled, flipped or random updates. With `robust` the loss ends within
// 0.05 nats of the honest run. With `trusted` it does not. Each attack is flagged, by length or
// direction, and no honest member ever is. The model is a bigram table of logits.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "compress/check.h"
#include "inter/outer/outer.h"
#include "inter/record/outlier.h"
#include "inter/record/robust.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMBERS = 5, BAD = 2, V = 32, N = V * V, ROUNDS = 30, STEPS = 10, BATCH = 64 };
enum attack { HONEST, SCALED, FLIPPED, RANDOM, TURNED }; // flipped: times -3; turned: times -1

struct member {
    float theta[N];
    struct inter_outer *o;
    struct neb_buf blob;
    struct neb_rng rng;
};
static struct kern_pool *pool;
static struct member members[MEMBERS];
static double language[V][V]; // true transition probabilities
static struct cmp_check *check;
static int flagged, flagged_wrongly; // number of rounds

static void make_language(void) {
    struct neb_rng rng = neb_rng_make(3, 0);
    for (int a = 0; a < V; a++) {
        double sum = 0;
        for (int b = 0; b < V; b++)
            sum += language[a][b] = exp(2.0 * (double)neb_rng_normal(&rng));
        for (int b = 0; b < V; b++)
            language[a][b] /= sum;
    }
}

static int next_token(struct neb_rng *rng, int a) {
    double x = (double)neb_rng_below(rng, 1u << 30) / (double)(1u << 30);
    int b = 0;
    for (; b < V - 1 && x >= language[a][b]; b++)
        x -= language[a][b];
    return b;
}

static double log_sum(const float *row) {
    double top = row[0], sum = 0;
    for (int b = 1; b < V; b++)
        top = (double)row[b] > top ? (double)row[b] : top;
    for (int b = 0; b < V; b++)
        sum += exp((double)row[b] - top);
    return top + log(sum);
}

static double held_out_nats(const float *theta) { // exact expectation, contexts uniform
    double loss = 0;
    for (int a = 0; a < V; a++) {
        double z = log_sum(theta + a * V);
        for (int b = 0; b < V; b++)
            loss += language[a][b] * (z - (double)theta[a * V + b]) / V;
    }
    return loss;
}

static void train_at(struct member *m, int steps, float lr) {
    for (int step = 0; step < steps; step++)
        for (int k = 0; k < BATCH; k++) {
            int a = (int)neb_rng_below(&m->rng, V), b = next_token(&m->rng, a);
            float *row = m->theta + a * V;
            double z = log_sum(row);
            for (int c = 0; c < V; c++)
                row[c] -= lr * (float)(exp((double)row[c] - z) - (c == b));
        }
}
static void train(struct member *m) { train_at(m, STEPS, 0.1f); }

static void corrupt(struct member *m, const float *theta, enum attack how) {
    for (int k = 0; k < N && how != HONEST; k++) {
        float delta = m->theta[k] - theta[k];
        m->theta[k] = theta[k] + (how == SCALED    ? 100 * delta
                                  : how == FLIPPED ? -3 * delta
                                  : how == TURNED  ? -delta
                                                   : 5 * neb_rng_normal(&m->rng));
    }
}

static void one_round(const float *theta, enum attack how, bool robust) {
    struct cmp_codec codec;
    struct cmp_update_stats stats;
    float sketches[MEMBERS][CMP_SKETCH];
    const float *by_member[NEB_MEMBERS_MAX] = {0};
    struct inter_record r = {.n = MEMBERS};
    float norms[NEB_MEMBERS_MAX] = {0};
    struct kern_digest d[MEMBERS];
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    for (int i = 0; i < MEMBERS; i++) {
        struct member *m = &members[i];
        train(m);
        if (i == BAD)
            corrupt(m, theta, how);
        assert_int_equal(inter_outer_encode(m->o, 0, &codec, NULL, NULL, &m->blob), NEB_OK);
        cmp_check_begin(check, N);
        cmp_check_sketch(check);
        assert_int_equal(cmp_check_feed(check, m->blob.p, m->blob.len), NEB_OK);
        assert_int_equal(cmp_check_end(check, &stats), NEB_OK);
        norms[i] = (float)stats.norm;
        memcpy(sketches[i], stats.sketch, sizeof sketches[i]);
        by_member[i] = sketches[i];
        r.entries[i] = (struct inter_entry){.member = (uint8_t)i, .clip = 1};
    }
    struct member_set odd = inter_outliers(&r, norms, by_member);
    flagged += mset_has(odd, BAD);
    flagged_wrongly += !mset_within(odd, mset_of(BAD));
    if (robust)
        inter_robust_clip(&r, norms);
    assert_true(!robust || inter_robust_agrees(&r, norms));
    for (int i = 0; i < MEMBERS; i++) {
        struct inter_outer_part parts[MEMBERS];
        for (int k = 0; k < MEMBERS; k++)
            parts[k] = (struct inter_outer_part){
                members[k].blob.p, members[k].blob.len, 640, r.entries[k].clip, k == i, 0};
        struct inter_outer_round round = {.parts = parts, .n = MEMBERS, .eta = 0.9f, .mu = 0.3f};
        assert_int_equal(inter_outer_apply(members[i].o, 0, &round, &d[i]), NEB_OK);
        assert_true(d[i].lo == d[0].lo && d[i].hi == d[0].hi);
    }
}

static double run(enum attack how, bool robust, float beta) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    flagged = flagged_wrongly = 0;
    for (int i = 0; i < MEMBERS; i++) {
        struct member *m = &members[i];
        memset(m->theta, 0, sizeof m->theta);
        m->rng = neb_rng_make(11, (uint64_t)i);
        struct inter_outer_unit unit = {V, V, false, 0, m->theta};
        struct inter_outer_config c = {.beta = beta, .kappa = 1, .fragments = 1, .robust = robust};
        assert_int_equal(inter_outer_create(&c, &unit, 1, pool, &m->o), NEB_OK);
    }
    inter_outer_arrays(members[0].o, arrays);
    for (int k = 0; k < ROUNDS; k++) {
        float theta[N];
        memcpy(theta, arrays[0].p, sizeof theta);
        one_round(theta, how, robust);
    }
    double loss = held_out_nats(arrays[0].p);
    for (int i = 0; i < MEMBERS; i++) {
        inter_outer_destroy(&members[i].o);
        neb_buf_free(&members[i].blob);
    }
    return loss;
}

// beta 0: no error feedback; 1: the default of a job.
static void test_byzantine(void **state) {
    (void)state;
    static const char *const names[] = {"honest", "scaled", "flipped", "random", "turned"};
    for (int beta = 0; beta < 2; beta++) {
        double honest = run(HONEST, false, (float)beta);
        printf("beta %d: held-out loss: %.3f before, honest %.4f\n", beta, log(V), honest);
        assert_true(honest < log(V) - 0.5);
        assert_int_equal(flagged + flagged_wrongly, 0);
        for (int how = HONEST; how <= TURNED; how++) {
            double robust = run((enum attack)how, true, (float)beta),
                   trusted = run((enum attack)how, false, (float)beta);
            printf("%s: robust %.4f trusted %.4f, flagged in %d of %d rounds\n", names[how], robust,
                   trusted, flagged, ROUNDS);
            assert_true(fabs(robust - honest) < 0.05);
            // the turned updates cost steps, but the model still learns
            if (how != HONEST && how != TURNED)
                assert_true(trusted > honest + 0.05);
            assert_true(how == HONEST ? flagged == 0 : flagged >= ROUNDS / 2);
            assert_int_equal(flagged_wrongly, 0);
        }
    }
}

// ---- two members: there are no others, so each is compared with its own past ------------------

enum { PAIR = 2, PAIR_ROUNDS = 60, FROM = 20 };
struct script {
    const char *name;
    enum attack how; // by member 1, from round FROM on
    bool warm_up;    // the learning rate rises over 10 rounds and falls to a tenth
    // Member 1 is away in some rounds. Its next update holds all that it has trained since its last
    // one.
    bool late;
    bool codecs; // the codec changes: int8, then one in sixteen, then int4
};

static float pair_lr(const struct script *x, double round) {
    if (!x->warm_up)
        return 0.1f;
    return (float)(0.1 * (round < 10 ? round / 10 : 1 - 0.9 * (round - 10) / (PAIR_ROUNDS - 10)));
}

static void train_over(struct member *m, const struct script *x, int from, int to) {
    for (int step = from; step < to; step++)
        train_at(m, 1, pair_lr(x, (double)step / STEPS));
}

static float norm_of(const struct member *m, float sketch[CMP_SKETCH]) {
    struct cmp_update_stats stats;
    cmp_check_begin(check, N);
    cmp_check_sketch(check);
    assert_int_equal(cmp_check_feed(check, m->blob.p, m->blob.len), NEB_OK);
    assert_int_equal(cmp_check_end(check, &stats), NEB_OK);
    memcpy(sketch, stats.sketch, CMP_SKETCH * sizeof *sketch);
    return (float)stats.norm;
}

// Runs a script. flags: the number of rounds in which each member was flagged. first: the first
// such round.
static void run_pair(const struct script *x, int flags[PAIR], int first[PAIR], int *apart) {
    static const char *const codecs[] = {"int8", "topk:256/4096", "int4"};
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    struct inter_past past[PAIR] = {{0}};
    float pace[INTER_PACE];
    int since[PAIR] = {0};
    struct inter_pair pair = {0};
    static float sketches[PAIR][CMP_SKETCH];
    *apart = -1;
    flags[0] = flags[1] = 0;
    first[0] = first[1] = -1;
    for (int i = 0; i < INTER_PACE; i++)
        pace[i] = pair_lr(x, (double)i / (INTER_PACE - 1) * PAIR_ROUNDS);
    for (int i = 0; i < PAIR; i++) {
        struct member *m = &members[i];
        memset(m->theta, 0, sizeof m->theta);
        m->rng = neb_rng_make(17, (uint64_t)i);
        struct inter_outer_unit unit = {V, V, false, 0, m->theta};
        struct inter_outer_config c = {.beta = 1, .kappa = 1, .fragments = 1};
        assert_int_equal(inter_outer_create(&c, &unit, 1, pool, &m->o), NEB_OK);
    }
    inter_outer_arrays(members[0].o, arrays);
    for (int k = 0; k < PAIR_ROUNDS; k++) {
        int codec_now = x->codecs ? k / 15 % 3 : 0;
        struct inter_outer_part parts[PAIR];
        struct cmp_codec codec;
        float theta[N];
        memcpy(theta, arrays[0].p, sizeof theta);
        assert_int_equal(cmp_codec_parse(codecs[codec_now], &codec), NEB_OK);
        bool away = x->late && k > 4 && k % 12 > 6; // five rounds of twelve
        int n = 0;
        for (int i = 0; i < PAIR; i++) {
            struct member *m = &members[i];
            if (i == 1 && away)
                continue;
            train_over(m, x, since[i], (k + 1) * STEPS);
            if (i == 1 && k >= FROM)
                corrupt(m, theta, x->how);
            assert_int_equal(inter_outer_encode(m->o, 0, &codec, NULL, NULL, &m->blob), NEB_OK);
            double reach = inter_reach(pace, PAIR_ROUNDS * STEPS, (uint64_t)since[i],
                                       (uint64_t)(k + 1) * STEPS);
            if (inter_past_stands_out(&past[i], norm_of(m, sketches[i]), reach,
                                      (uint8_t)codec_now)) {
                flags[i]++;
                first[i] = first[i] < 0 ? k : first[i];
            }
            since[i] = (k + 1) * STEPS;
            parts[n++] = (struct inter_outer_part){m->blob.p, m->blob.len, 640, 1, false, 0};
        }
        if (n == PAIR && inter_pair_apart(&pair, sketches[0], sketches[1]) && *apart < 0)
            *apart = k;
        for (int i = 0, own = 0; i < PAIR; i++) {
            struct kern_digest d;
            struct inter_outer_round round = {.parts = parts, .n = n, .eta = 0.9f, .mu = 0.6f};
            for (int p = 0; p < n; p++)
                parts[p].mine = !(i == 1 && away) && p == own;
            own += !(i == 1 && away);
            assert_int_equal(inter_outer_apply(members[i].o, 0, &round, &d), NEB_OK);
        }
    }
    for (int i = 0; i < PAIR; i++) {
        inter_outer_destroy(&members[i].o);
        neb_buf_free(&members[i].blob);
    }
}

static void test_pair(void **state) {
    (void)state;
    static const struct script scripts[] = {
        {"honest", HONEST, false, false, false},
        {"honest, warm-up and decay", HONEST, true, false, false},
        {"honest, late updates of more steps", HONEST, true, true, false},
        {"honest, other codecs", HONEST, true, false, true},
        {"honest, all of it", HONEST, true, true, true},
        {"scaled", SCALED, false, false, false},
        {"scaled, late, other codecs", SCALED, true, true, true},
        {"flipped", FLIPPED, false, false, false},
        {"random", RANDOM, true, false, false},
        {"turned", TURNED, false, false, false},
    };
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        const struct script *x = &scripts[i];
        int flags[PAIR], first[PAIR], apart;
        run_pair(x, flags, first, &apart);
        printf(
            "pair, %s: flagged %d and %d of %d rounds, first in %d; against each other from %d\n",
            x->name, flags[0], flags[1], PAIR_ROUNDS, first[1], apart);
        // A turned update shows only as a difference between the two members, and only after some
        // rounds.
        bool turned = x->how == FLIPPED || x->how == TURNED;
        // TURNED (times -1) shows later, when little is left to learn.
        int latest = x->how == TURNED ? FROM + 20 : FROM + 6;
        assert_true(turned ? apart >= FROM + 3 && apart <= latest : apart < 0);
        if (x->how == HONEST || turned) { // nobody can tell which of the two is wrong
            assert_int_equal(flags[0] + flags[1], 0);
        } else { // flagged at its first bad update; it may be away before that
            assert_true(first[1] >= FROM && first[1] <= FROM + 7);
            // The honest member may stand out later, while it learns again what the attack
            // destroyed.
            assert_true(first[0] < 0 || first[0] > first[1]);
        }
    }
}

// The others have trained all their steps (tokens 0), and only one still sends. Nobody can vouch
// for it, so it must not decide alone, however many tokens it claims.
static void test_alone_at_the_end(void **state) {
    (void)state;
    struct inter_record r = {.n = 5};
    const float norms[NEB_MEMBERS_MAX] = {1e-3f, 1e-3f, 1e-3f, 1e-3f, 1000};
    const float x[] = {0, 0, 0, 0, 1000}, w[] = {1e-6f, 1e-6f, 1e-6f, 1e-6f, 1};
    float clip[5], acc;
    for (uint8_t i = 0; i < 5; i++)
        r.entries[i] =
            (struct inter_entry){.member = i, .clip = 1, .tokens = i == 4 ? 1u << 30 : 0};
    inter_robust_clip(&r, norms);
    for (int i = 0; i < 5; i++)
        clip[i] = r.entries[i].clip;
    assert_true(clip[4] <= 1e-6f);
    inter_robust_mean(&acc, x, w, clip, 5, 1, 1);
    assert_true(acc == 0);
}

// Clip factors and trimming, with numbers that can be checked by hand.
static void test_by_hand(void **state) {
    (void)state;
    struct inter_record r = {.n = 5};
    const float norms[NEB_MEMBERS_MAX] = {1, 2, 4, 8, 400};
    const float want[] = {1, 1, 1, 0.5f, 0.01f};
    for (uint8_t i = 0; i < 5; i++)
        r.entries[i] = (struct inter_entry){.member = i, .clip = 1};
    assert_false(inter_robust_agrees(&r, norms));
    inter_robust_clip(&r, norms);
    for (int i = 0; i < 5; i++)
        assert_true(r.entries[i].clip == want[i]);
    assert_true(inter_robust_agrees(&r, norms));
    r.entries[4].clip = 0.02f; // a leader that favours one member
    assert_false(inter_robust_agrees(&r, norms));
    r.entries[4].verdict = INTER_REJECTED;
    inter_robust_clip(&r, norms);
    assert_true(r.entries[3].clip == 0.25f); // the lower median of four is 2
    const float x[] = {1, -1e30f, 5, 5, 2, 5, 3, 5, 1e30f, 5}, one[] = {1, 1, 1, 1, 1};
    const float w[] = {1, 1, 2, 1, 1};
    float acc[2];
    // (parts 5, rows 1, cols 2): element 0 is 1 5 2 3 1e30, element 1 is -1e30 5 5 5 5
    inter_robust_mean(acc, x, w, one, 5, 1, 2);
    assert_true(acc[0] == (5.0f + 2 * 2.0f + 3.0f) / 4 && acc[1] == 5);
    inter_robust_mean(acc, x, w, one, 4, 1, 2); // four: nothing is trimmed
    assert_true(acc[0] == (1.0f + 5.0f + 2 * 2.0f + 3.0f) / 5);
}

static int setup(void **state) {
    (void)state;
    make_language();
    return kern_pool_create(2, &pool) == NEB_OK && cmp_check_create(&check) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    kern_pool_destroy(&pool);
    cmp_check_destroy(&check);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_alone_at_the_end),
        cmocka_unit_test(test_pair), cmocka_unit_test(test_byzantine)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
