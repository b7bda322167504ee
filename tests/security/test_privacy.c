// SPDX-License-Identifier: Apache-2.0
// security/privacy.h: ε agrees with a reference accountant and is never below what the Gaussian
// mechanism needs. The integers of a plan hold what they promise, for every possible job.
#include "security/noise.h"
#include "security/privacy.h"
#include "security/secure_sum.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

// tests/peers/privacy/run makes this table with dp-accounting 0.6.0 of PyPI (RDP), and compares.
static const struct {
    double noise;
    int releases;
    double delta, epsilon;
} reference[] = {
    {0.5, 1, 1e-06, 11.688596},    {1, 1, 1e-05, 4.728397},    {1, 30, 1e-06, 42.367697},
    {1, 1000, 1e-06, 663.350062},  {2, 20, 1e-06, 13.373675},  {4, 20, 1e-06, 5.926825},
    {5, 100, 1e-05, 10.724825},    {10, 100, 1e-09, 6.474098}, {10, 1, 1e-05, 0.375262},
    {30, 10000, 1e-06, 21.975563}, {100, 10, 1e-05, 0.108112}, {100, 1000, 1e-09, 1.881662},
};

static void test_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof reference / sizeof *reference; i++) {
        double rho = reference[i].releases / (2 * reference[i].noise * reference[i].noise);
        double is = sec_privacy_epsilon(rho, reference[i].delta);
        assert_true(fabs(is / reference[i].epsilon - 1) < 1e-4);
    }
}

static double phi(double t) { return erfc(-t / sqrt(2)) / 2; }

// δ of releases that add up to one Gaussian mechanism (Balle and Wang 2018). ε must be enough for
// it, but at most half above it.
static void test_not_below_the_gaussian(void **state) {
    (void)state;
    for (double rho = 0.001; rho < 100; rho *= 3)
        for (double delta = 1e-2; delta > 1e-12; delta /= 100) {
            double m = sqrt(2 * rho), epsilon = sec_privacy_epsilon(rho, delta);
            double is = phi(m / 2 - epsilon / m) - exp(epsilon) * phi(-m / 2 - epsilon / m);
            assert_true(is <= delta);
            epsilon *= 2.0 / 3;
            is = phi(m / 2 - epsilon / m) - exp(epsilon) * phi(-m / 2 - epsilon / m);
            assert_true(is > delta || epsilon < 0.1);
        }
    assert_true(sec_privacy_epsilon(0, 1e-6) == 0);
    assert_true(isinf(sec_privacy_epsilon(INFINITY, 1e-6)));
    assert_true(isinf(sec_privacy_epsilon(NAN, 1e-6)));
    double before = 0;
    for (double rho = 1e-9; rho < 1e9; rho *= 2) {
        double epsilon = sec_privacy_epsilon(rho, 1e-6);
        assert_true(epsilon >= before && isfinite(epsilon));
        before = epsilon;
    }
}

static void check_plan(const struct sec_privacy_config *c, const struct sec_privacy *p) {
    double honest = c->least - c->colluders, least = c->noise * p->bound,
           limit = sec_sum_limit(c->members);
    // The fewest members without the colluders add the noise that the job asks for.
    assert_true(honest * p->variance >= least * least);
    assert_int_equal(sec_noise_variance(p->variance), p->variance);
    // All fragments of an update together are not longer than the bound.
    assert_true(p->squared >= 1 &&
                p->squared * (uint64_t)c->fragments <= (uint64_t)p->bound * p->bound);
    double at_most = 1 / (2 * c->noise * c->noise * c->fragments);
    assert_true(p->rho > 0 && p->rho <= at_most * (1 + 1e-9));
    // The noise of a sum has room, for every possible size of the set.
    for (int n = c->least; n <= c->members; n++)
        assert_true(n * (limit - p->bound) >= 6 * sqrt((double)n * p->variance));
}

static void test_plans(void **state) {
    (void)state;
    int planned = 0;
    for (uint8_t n = 3; n <= NEB_MEMBERS_MAX; n++)
        for (uint8_t f = 1; f + 2 <= n; f++)
            for (double z = 0.05; z <= 100; z *= 1.9)
                for (int32_t fragments = 1; fragments <= 64; fragments *= 4) {
                    uint8_t least = n == 3 || f + 2 == n ? n : (uint8_t)(n - 1);
                    struct sec_privacy_config c = {n, least, f, z, fragments};
                    struct sec_privacy p;
                    if (sec_privacy_plan(&c, &p))
                        check_plan(&c, &p), planned++;
                    else
                        assert_true(z > 10 && fragments > 1); // no room
                }
    assert_true(planned > 3000);
    struct sec_privacy p;
    const struct sec_privacy_config bad[] = {{2, 2, 0, 1, 1},   {3, 3, 2, 1, 1}, {5, 6, 1, 1, 1},
                                             {17, 16, 1, 1, 1}, {5, 4, 1, 0, 1}, {5, 4, 1, NAN, 1},
                                             {5, 4, 1, 1, 0},   {5, 4, 5, 1, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(sec_privacy_plan(&bad[i], &p));
}

// With more colluders each member adds more, and the sum still has what the job asks for.
static void test_colluders(void **state) {
    (void)state;
    struct sec_privacy few, many;
    struct sec_privacy_config c = {8, 7, 1, 2, 1};
    assert_true(sec_privacy_plan(&c, &few));
    c.colluders = 5;
    assert_true(sec_privacy_plan(&c, &many));
    assert_true((double)many.variance / many.bound / many.bound >
                2.9 * few.variance / few.bound / few.bound);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_not_below_the_gaussian),
        cmocka_unit_test(test_plans), cmocka_unit_test(test_colluders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
