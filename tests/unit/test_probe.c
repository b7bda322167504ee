// SPDX-License-Identifier: Apache-2.0
// The probe's layer learns a linear signal, finds nothing in noise, and gives the same result
// twice.
#include "agent/base/rng.h"
#include "agent/cli/probe.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { D = 8, CLASSES = 3, MANY = 600 };

// A row has class k if its k-th feature is the largest; noise is added. With `signal` 0 the labels
// are independent of x.
static struct agent_probe_set make(uint64_t seed, float signal) {
    struct agent_probe_set s = {
        .n = MANY, .labels = calloc(MANY, sizeof *s.labels), .x = calloc(MANY * D, sizeof *s.x)};
    struct neb_rng r = neb_rng_make(seed, 1);
    for (size_t i = 0; i < MANY; i++) {
        s.labels[i] = (int32_t)(neb_rng_below(&r, 6) ? neb_rng_below(&r, CLASSES) : 0);
        for (int k = 0; k < D; k++)
            s.x[i * D + (size_t)k] =
                100 + 5 * neb_rng_normal(&r) + (k == s.labels[i] ? 5 * signal : 0);
    }
    return s;
}

static void test_fit(void **state) {
    (void)state;
    struct intra_model model = {.c = {.d_model = D}};
    struct agent_probe p = {.model = &model, .n_classes = CLASSES};
    struct agent_probe_set train = make(1, 4), test[2] = {make(2, 4), make(3, 0)};
    struct agent_probe_result r[2], again[2];
    assert_int_equal(agent_probe_fit(&p, &train, test, 2, 1e-3, r), NEB_OK);
    assert_true(r[0].accuracy > 0.95 && r[0].balanced > 0.95);
    assert_true(r[0].majority > 0.33 && r[0].majority < 0.55);
    assert_true(r[1].balanced < 0.45); // chance is a third
    assert_int_equal(agent_probe_fit(&p, &train, test, 2, 1e-3, again), NEB_OK);
    assert_true(again[0].accuracy == r[0].accuracy && again[1].accuracy == r[1].accuracy);
    agent_probe_set_free(&train);
    agent_probe_set_free(&test[0]);
    agent_probe_set_free(&test[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
