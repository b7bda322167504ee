// SPDX-License-Identifier: Apache-2.0
// compress/sketch and inter/outlier: angles between updates of any codec, and the outliers by these
// angles.
#include "agent/base/rng.h"
#include "compress/check.h"
#include "inter/record/outlier.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UNITS = 4 };
// Groups of one, of two and of 64 rows, and a last group that is cut short.
static const struct cmp_unit_shape shapes[UNITS] = {
    {0, 7, 9, false}, {1, 10, 150, false}, {2, 500, 300, false}, {5, 1, 70001, false}};
static struct cmp_work *work;
static struct cmp_check *check;

static size_t elements(void) {
    size_t n = 0;
    for (int u = 0; u < UNITS; u++)
        n += (size_t)shapes[u].rows * shapes[u].cols;
    return n;
}

// The sketch that the gate sees of an update of x, encoded with `codec`.
static void sketch_of(const float *x, const char *codec, float *out) {
    struct cmp_codec c;
    struct cmp_update_stats stats;
    struct neb_buf b = {0};
    size_t at = 0;
    assert_int_equal(cmp_codec_parse(codec, &c), NEB_OK);
    cmp_update_begin(&b, UNITS);
    for (int u = 0; u < UNITS; u++) {
        assert_int_equal(
            cmp_update_add(work, &b, &shapes[u], &c, &(struct cmp_source){.x = x + at}, NULL),
            NEB_OK);
        at += (size_t)shapes[u].rows * shapes[u].cols;
    }
    cmp_check_begin(check, elements());
    cmp_check_sketch(check);
    for (size_t k = 0; k < b.len; k += 1000) // as it arrives
        assert_int_equal(cmp_check_feed(check, b.p + k, b.len - k < 1000 ? b.len - k : 1000),
                         NEB_OK);
    assert_int_equal(cmp_check_end(check, &stats), NEB_OK);
    memcpy(out, stats.sketch, CMP_SKETCH * sizeof *out);
    neb_buf_free(&b);
}

// (1 − mix)·a + mix·b, scaled
static float *blend(const float *a, const float *b, float mix, float scale) {
    float *x = malloc(elements() * sizeof *x);
    for (size_t i = 0; i < elements(); i++)
        x[i] = scale * ((1 - mix) * a[i] + mix * b[i]);
    return x;
}

static float *noise(uint64_t seed) {
    struct neb_rng r = neb_rng_make(seed, 0);
    float *x = malloc(elements() * sizeof *x);
    for (size_t i = 0; i < elements(); i++)
        x[i] = 1e-3f * neb_rng_normal(&r);
    return x;
}

static double cosine(const float *a, const float *b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < elements(); i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

static void test_angles(void **state) {
    (void)state;
    static const char *const codecs[] = {"fp32", "bf16", "int8", "int4"};
    float *a = noise(1), *b = noise(2), left[CMP_SKETCH], right[CMP_SKETCH];
    for (int k = 0; k < 4; k++)
        for (int mix = 0; mix <= 4; mix++)
            for (int sign = -1; sign <= 1; sign += 2) {
                float *x = blend(a, b, (float)mix / 4, 100 * (float)sign);
                sketch_of(a, codecs[k], left);
                sketch_of(x, codecs[(k + mix) % 4], right);
                double got = cmp_sketch_cosine(left, right), want = cosine(a, x);
                if (fabs(got - want) > 0.12)
                    fail_msg("%s against %s: cosine %g, sketched %g", codecs[k],
                             codecs[(k + mix) % 4], want, got);
                free(x);
            }
    free(a);
    free(b);
}

// Top-k entries go into the buckets of their elements. So their sketch matches the dense sketch of
// the entries that are kept.
static void test_sparse(void **state) {
    (void)state;
    float *a = noise(3), *other = noise(4), dense[CMP_SKETCH], sparse[CMP_SKETCH],
          apart[CMP_SKETCH];
    for (size_t i = 0; i < elements(); i += 50)
        a[i] *= 100; // a few elements carry nearly all of the length
    sketch_of(a, "int8", dense);
    sketch_of(a, "topk:256/4096", sparse);
    sketch_of(other, "topk:64/4096", apart);
    assert_true(cmp_sketch_cosine(dense, sparse) > 0.85);
    assert_true(fabs(cmp_sketch_cosine(apart, sparse)) < 0.12);
    for (int i = 0; i < CMP_SKETCH; i++)
        sparse[i] = -sparse[i];
    assert_true(cmp_sketch_cosine(dense, sparse) < -0.85);
    memset(sparse, 0, sizeof sparse);
    assert_true(cmp_sketch_cosine(dense, sparse) == 0);
    sparse[7] = INFINITY;
    assert_true(cmp_sketch_cosine(dense, sparse) == 0);
    free(a);
    free(other);
}

// Members 0, 2 and 3 learned similar things; the update of 5 changes.
static void test_outliers(void **state) {
    (void)state;
    static const uint8_t who[] = {0, 2, 3, 5};
    struct inter_record r = {.n = 4};
    float sketches[4][CMP_SKETCH],
        norms[NEB_MEMBERS_MAX] = {[0] = 1, [2] = 1.2f, [3] = 0.9f, [5] = 1};
    const float *by_member[NEB_MEMBERS_MAX] = {0};
    float *common = noise(10);
    for (int i = 0; i < 4; i++) {
        float *own = noise(20 + (uint64_t)i), *x = blend(common, own, 0.6f, 1);
        sketch_of(x, "int4", sketches[i]);
        r.entries[i] = (struct inter_entry){.member = who[i], .clip = 1};
        by_member[who[i]] = sketches[i];
        free(own);
        free(x);
    }
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 0);
    norms[5] = 5;
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 1 << 5); // too long
    norms[5] = 1;
    for (int i = 0; i < CMP_SKETCH; i++)
        sketches[3][i] = -1000 * sketches[3][i]; // only the norm gives the length
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 1 << 5);
    by_member[2] = NULL; // without the direction of one member, nobody is flagged
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 0);
    norms[5] = 0;
    norms[3] = 100;
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 0);
    by_member[2] = sketches[1];
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 1 << 5);
    r.entries[0].verdict = INTER_REJECTED;
    r.entries[1].verdict = INTER_REJECTED;
    // with two members left it is not clear which one is the outlier
    assert_int_equal(mset_bits(inter_outliers(&r, norms, by_member)), 0);
    free(common);
}

// One member is compared with its own past. Its update has this norm, and this reach in steps.
static bool odd(struct inter_past *p, float n, double reach) {
    return inter_past_stands_out(p, n, reach, 0);
}

static void test_past(void **state) {
    (void)state;
    static const struct {
        float norm;
        double reach;
        bool odd;
        const char *what;
    } table[] = {
        {1, 10, false, "the first says nothing"},
        {3.9f, 10, false, "within four times"},
        {16, 10, true, "above four times the longest"},
        {31, 10, false, "the next may be twice as long"},
        {31, 10, false, "it is the measure now"},
        {1, 10, false, "shorter is never odd"},
        {620, 50, false, "late: five times the steps"},
        {5000, 50, true, "and beyond those"},
        {600, 50, false, "back to usual: the history stands"},
        {0, 10, false, "not known"},
        {600, 5, false, "fewer steps"},
        {60000, 5, true, "too long for those"},
    };
    struct inter_past p = {0};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (odd(&p, table[i].norm, table[i].reach) != table[i].odd)
            fail_msg("%s", table[i].what);
    // If steps disagree, the norm grows with the root of their number. A tenth of the steps gives a
    // third of the norm.
    p = (struct inter_past){0};
    assert_false(odd(&p, 1, 100) || odd(&p, 1, 100));
    assert_true(odd(&p, 1.3f, 10));
    p.flags = 0;
    assert_false(odd(&p, 1.2f, 10));
    // Another codec starts a new history.
    assert_false(inter_past_stands_out(&p, 100, 10, 3));
    assert_true(inter_past_stands_out(&p, 500, 10, 3));
    // A lasting change is flagged only for some rounds: 1e6 is 2^18 times the limit, which is four
    // times 1.
    int flagged = 0;
    p = (struct inter_past){0};
    (void)odd(&p, 1, 10);
    while (odd(&p, 1e6f, 10) && flagged < 100)
        flagged++;
    assert_int_equal(flagged, 18);
    assert_false(odd(&p, 1e6f, 10));
}

static void test_reach(void **state) {
    (void)state;
    float pace[INTER_PACE] = {0};
    assert_true(inter_reach(pace, 640, 20, 50) == 30); // the pace is not known
    for (int i = 0; i < INTER_PACE; i++)
        pace[i] = (float)i / 64; // the pace rises to the end
    assert_true(fabs(inter_reach(pace, 640, 0, 640) - 320) < 1);
    assert_true(fabs(inter_reach(pace, 640, 320, 330) - 5.08) < 0.1);
    assert_true(inter_reach(pace, 640, 50, 50) == 0 && inter_reach(pace, 640, 50, 20) == 0);
    // beyond the end: as at the end
    assert_true(fabs(inter_reach(pace, 640, 640, 650) - 10) < 1e-6);
    assert_true(inter_reach(pace, 0, 0, 7) == 7);
}

static int setup(void **state) {
    (void)state;
    return cmp_work_create(&work) == NEB_OK && cmp_check_create(&check) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    cmp_work_destroy(&work);
    cmp_check_destroy(&check);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_angles), cmocka_unit_test(test_sparse),
                                       cmocka_unit_test(test_outliers), cmocka_unit_test(test_past),
                                       cmocka_unit_test(test_reach)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
