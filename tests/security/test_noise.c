// SPDX-License-Identifier: Apache-2.0
// security/noise.h: the integers have a discrete Gaussian distribution, by their moments and by a
// chi-square test of each value. Any part can be made alone.
#include "security/noise.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 1 << 20, REACH = 1 << 14 };
static int16_t x[N];
static const uint8_t seed[SEC_NOISE_SEED_BYTES] = {7, 1};

static void make(uint32_t variance) {
    memset(x, 0, sizeof x);
    sec_noise_add(seed, variance, 0, N, false, x);
}

// Each moment is within five of its standard errors.
static void test_moments(void **state) {
    (void)state;
    const double of[] = {16, 100, 1234, 50000, 800000};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        uint32_t v = sec_noise_variance(of[k]);
        double mean = 0, square = 0, fourth = 0, beside = 0, positive = 0;
        make(v);
        for (int i = 0; i < N; i++) {
            double y = x[i] / sqrt(v);
            mean += y;
            square += y * y;
            fourth += y * y * y * y;
            beside += i ? y * x[i - 1] / sqrt(v) : 0;
            positive += x[i] > 0 ? 1 : x[i] < 0 ? -1 : 0;
        }
        double root = sqrt(N);
        assert_true(fabs(mean / root) < 5);
        assert_true(fabs((square / N - 1) * root / sqrt(2)) < 5);
        assert_true(fabs((fourth / N - 3) * root / sqrt(96)) < 5);
        assert_true(fabs(beside / root) < 5);
        assert_true(fabs(positive / root) < 5);
    }
}

// Puts values into cells that expect at least 50 draws each. For k cells chi-square has about the
// mean k and the deviation √2k.
static double chi_square(uint32_t v, double *cells) {
    static double p[2 * REACH + 1];
    static int64_t seen[2 * REACH + 1];
    double all = 0, chi = 0, expected = 0, counted = 0;
    memset(seen, 0, sizeof seen);
    for (int y = -REACH; y <= REACH; y++)
        all += p[y + REACH] = exp(-(double)y * y / (2.0 * v));
    for (int i = 0; i < N; i++)
        seen[x[i] + REACH]++;
    *cells = 0;
    for (int y = 0; y <= 2 * REACH; y++) {
        expected += p[y] / all * N;
        counted += (double)seen[y];
        if (expected < 50)
            continue;
        chi += (counted - expected) * (counted - expected) / expected;
        *cells += 1;
        expected = counted = 0;
    }
    return chi;
}

static void test_each_value_as_often(void **state) {
    (void)state;
    const double of[] = {16, 20, 33, 500, 4000, 100000};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        uint32_t v = sec_noise_variance(of[k]);
        double cells, chi;
        make(v);
        chi = chi_square(v, &cells);
        assert_true(cells > 25);
        if (fabs(chi - cells) / sqrt(2 * cells) > 5)
            fail_msg("variance %u: chi-square is %.1f, expected about %.0f", v, chi, cells);
        // the test would notice a variance that is 4 % larger
        chi = chi_square(v + v / 25 + 1, &cells);
        assert_true(fabs(chi - cells) / sqrt(2 * cells) > 5);
    }
}

static void test_parts(void **state) {
    (void)state;
    static int16_t part[1000];
    uint32_t v = sec_noise_variance(300000);
    make(v);
    const size_t at[] = {0, 1, 255, 256, 257, 5000, N - 1000};
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        memset(part, 0, sizeof part);
        sec_noise_add(seed, v, at[k], 1000, false, part);
        assert_memory_equal(part, x + at[k], sizeof part);
        sec_noise_add(seed, v, at[k], 1000, true, part);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(part[i], 0);
    }
    // A range over the end and back.
    for (int i = 0; i < 1000; i++)
        part[i] = i % 2 ? INT16_MAX : INT16_MIN;
    sec_noise_add(seed, v, 0, 1000, false, part);
    sec_noise_add(seed, v, 0, 1000, true, part);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(part[i], i % 2 ? INT16_MAX : INT16_MIN);
    // Another seed makes other noise.
    const uint8_t other[SEC_NOISE_SEED_BYTES] = {7, 2};
    double both = 0;
    memset(part, 0, sizeof part);
    sec_noise_add(other, v, 0, 1000, false, part);
    for (int i = 0; i < 1000; i++)
        both += (double)part[i] * x[i] / v;
    assert_true(fabs(both) < 5 * sqrt(1000));
}

static void test_variances(void **state) {
    (void)state;
    assert_int_equal(sec_noise_variance(0), SEC_NOISE_VARIANCE_MIN);
    for (double v = SEC_NOISE_VARIANCE_MIN; v < 1 << 25; v *= 1.37) {
        uint32_t is = sec_noise_variance(v);
        assert_true(is >= v && is <= v + 1 + 1.5 * sqrt(v));
        assert_int_equal(sec_noise_variance(is), is);
        memset(x, 0, 1000 * sizeof *x);
        sec_noise_add(seed, is, 0, 1000, false, x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moments), cmocka_unit_test(test_each_value_as_often),
        cmocka_unit_test(test_parts), cmocka_unit_test(test_variances)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
