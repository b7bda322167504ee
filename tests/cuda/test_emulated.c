// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels on the emulated device. The op matrix runs in several thread orders, which must
// all give the same bits. It also runs when cuBLASLt refuses to launch, and with CUDA's NaNs. A
// failed or lost device costs the matrix one case only. The emulator itself must detect the errors
// that it exists for.
#include "tests/cuda/device_matrix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;
extern unsigned long long emu_seed;
extern long emu_launch_fails;
extern int emu_launch_loses, emu_lost;

static enum neb_status again(struct kern **D) {
    char text[256] = "";
    return kern_cuda_open(KERN_DEVICE_VERSION, 0, D, text, sizeof text);
}
static struct kern *open_emulated(void) {
    struct kern *D = NULL;
    assert_int_equal(again(&D), NEB_OK);
    return D;
}

static void test_matrix(void **state) {
    (void)state;
    struct device_checks c = {.D = open_emulated(), .reopen = again};
    const char *tests = getenv("NEBULA_TESTS");
    // By seed warps run apart, and copies happen at once. The older card has the order of seed 0.
    unsigned long long first = tests && !strcmp(tests, "nightly") ? 0 : 1, last = 3;
    int least = 200;
#ifdef __SANITIZE_ADDRESS__
    // one order is enough: the sanitizer finds the errors, and it is slow
    first = last = 0;
#endif
    if (getenv("EMU_MAJOR")) {
        first = last = 0;
        least = 30;
        c.per_card = true;
    }
    for (unsigned long long seed = first; seed <= last; seed++) {
        int n = 0;
        emu_seed = seed;
        assert_int_equal(device_matrix_run(&c, &n), 0);
        assert_true(n > least);
    }
    kern_destroy(&c.D);
    assert_null(c.D);
}

static void test_exact(void **state) {
    (void)state;
    struct device_checks c = {.D = open_emulated(), .reopen = again};
#ifdef __SANITIZE_ADDRESS__
    const unsigned long long last = 1;
#else
    const unsigned long long last = 2; // warps one by one, and in lockstep
#endif
    for (unsigned long long seed = 1; seed <= last; seed++) {
        int n = 0;
        emu_seed = seed;
        assert_int_equal(device_exact_run(&c, &n), 0);
        assert_true(n > 500);
    }
    emu_seed = 1;
    kern_destroy(&c.D);
}

// CUDA has one NaN, 0x7fffffff; this processor has others. Repeats the exact path with CUDA's.
static const struct kern_ops *plain;
static void as_cuda(struct kern *D, float *x, size_t n) {
    const uint32_t nan = 0x7fffffff;
    assert_int_equal(plain->finish(D), NEB_OK);
    for (size_t i = 0; i < n; i++)
        if (x[i] != x[i])
            memcpy(&x[i], &nan, sizeof nan); // device memory of the emulator is host memory
}
static void add_rows(struct kern *D, float *acc, const float *x, const float *w, size_t rows,
                     size_t cols) {
    plain->exact_add_rows(D, acc, x, w, rows, cols);
    as_cuda(D, acc, rows * cols);
}
static void add_scaled(struct kern *D, float *acc, const float *x, float w, size_t n) {
    plain->exact_add_scaled(D, acc, x, w, n);
    as_cuda(D, acc, n);
}
static void outer_step(struct kern *D, float *theta, float *v, const float *delta, float eta,
                       float mu, size_t n) {
    plain->exact_outer_step(D, theta, v, delta, eta, mu, n);
    as_cuda(D, theta, n);
    as_cuda(D, v, n);
}
static void pseudo_gradient(struct kern *D, float *u, const float *theta, const float *theta_m,
                            float beta, size_t n) {
    plain->exact_pseudo_gradient(D, u, theta, theta_m, beta, n);
    as_cuda(D, u, n);
}
static void residual(struct kern *D, float *u, const float *d, size_t n) {
    plain->exact_residual(D, u, d, n);
    as_cuda(D, u, n);
}
static void rebase(struct kern *D, float *theta_m, const float *theta, const float *sent,
                   size_t n) {
    plain->exact_rebase(D, theta_m, theta, sent, n);
    as_cuda(D, theta_m, n);
}
static void test_nans(void **state) {
    (void)state;
    struct device_checks c = {.D = open_emulated(), .reopen = again};
    plain = c.D->ops;
    struct kern_ops other = *plain;
    other.exact_add_rows = add_rows;
    other.exact_add_scaled = add_scaled;
    other.exact_outer_step = outer_step;
    other.exact_pseudo_gradient = pseudo_gradient;
    other.exact_residual = residual;
    other.exact_rebase = rebase;
    c.D->ops = &other;
    int n = 0;
    assert_int_equal(device_exact_run(&c, &n), 0);
    c.D->ops = plain;
    kern_destroy(&c.D);
}

// Every product runs in our own kernel after the library refused it. Products with sums do too.
static void test_not_launched(void **state) {
    struct device_checks c = {.D = open_emulated(), .reopen = again, .no_attention = true};
    int n = 0;
    (void)state;
    setenv("EMU_LAUNCH", "15", 1);
    assert_int_equal(device_matrix_run(&c, &n), 0);
    unsetenv("EMU_LAUNCH");
    kern_destroy(&c.D);
}

// Runs both parts. Returns how many lines of the report have `mark`.
static int run_both(struct device_checks *c, int *failed, int *n, const char *mark) {
    char *text = NULL;
    size_t bytes = 0;
    int m = 0, marks = 0;
    c->report = open_memstream(&text, &bytes);
    assert_non_null(c->report);
    *failed = device_matrix_run(c, n);
    *failed += device_exact_run(c, &m);
    *n += m;
    assert_int_equal(fclose(c->report), 0);
    for (char *at = text; (at = strstr(at, mark)); at++)
        marks++;
    free(text);
    return marks;
}
static void test_goes_on(void **state) {
    static const long places[] = {1, 900}; // launches, one in each part
    int all, n, failed, more;
    (void)state;
    emu_seed = 0;
    // The process loses its device and ends; another one continues with the next case.
    struct device_checks c = {.D = open_emulated(), .reopen = again, .no_attention = true};
    emu_launch_fails = 60;
    emu_launch_loses = 1;
    assert_int_equal(run_both(&c, &failed, &n, "**failed** |"), 1);
    assert_int_equal(failed, 1);
    assert_true(c.gone && !c.D && c.next > 1);
    emu_lost = emu_launch_loses = 0;
    struct device_checks d = {
        .D = open_emulated(), .reopen = again, .no_attention = true, .from = c.next};
    assert_int_equal(run_both(&d, &failed, &more, "**"), 0);
    assert_int_equal(failed, 0);
    assert_true(n + more > 700 && n < 100 && d.next > c.next);
    all = n + more;
    c = (struct device_checks){.D = d.D, .reopen = again, .no_attention = true};
    // A reopened device is free of the error: all other cases run.
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        c.next = 0;
        emu_launch_fails = places[i];
        assert_int_equal(run_both(&c, &failed, &n, "**failed** |"), 1);
        assert_int_equal(emu_launch_fails, 0);
        assert_int_equal(failed, 1);
        assert_int_equal(c.next, d.next);
        assert_true(n <= all && n > all - 8); // one case of the exact path is several comparisons
        assert_false(c.gone);
        assert_int_equal(c.D->ops->finish(c.D), NEB_OK);
    }
    kern_destroy(&c.D);
    emu_seed = 1;
}

static void test_open(void **state) {
    (void)state;
    struct kern *D = NULL;
    char text[256] = "";
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION + 1, 0, &D, text, sizeof text),
                     NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(text, "another build"));
    assert_null(D);
    // The sixth process on a machine with one device shares it.
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 5, &D, text, sizeof text), NEB_OK);
    assert_int_equal(D->index, 0);
    assert_int_equal(D->count, 1);
    kern_destroy(&D);
}

// A shape without a kernel, or a mask without lengths, is a permanent error.
static void sticky(enum kern_type t, struct kern_attn s) {
    struct kern *D = open_emulated();
    void *p;
    assert_int_equal(D->ops->alloc(D, 1 << 16, &p), NEB_OK);
    int ld = s.head_dim;
    D->ops->attn_fwd(D, t, &s, p, ld, p, p, ld, p, ld, p, ld);
    assert_int_equal(D->ops->finish(D), NEB_ERR_IO);
    D->ops->zero(D, p, 16);
    assert_int_equal(D->ops->finish(D), NEB_ERR_IO);
    D->ops->release(D, p);
    kern_destroy(&D);
}
static void test_sticky_errors(void **state) {
    (void)state;
    struct kern_attn s = {.B = 1, .T = 4, .n_heads = 1, .n_kv_heads = 1, .head_dim = 300};
    sticky(KERN_F32, s);
    s.head_dim = 64;
    s.mask = KERN_MASK_PREFIX;
    sticky(KERN_F32, s);
    sticky(KERN_BF16, s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),          cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_exact),         cmocka_unit_test(test_nans),
        cmocka_unit_test(test_not_launched),  cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_sticky_errors),
    };
    // Runs the ops of the matrix that use another path on an older card.
    const struct CMUnitTest older[] = {cmocka_unit_test(test_open), cmocka_unit_test(test_matrix)};
    return getenv("EMU_MAJOR") ? cmocka_run_group_tests(older, NULL, NULL)
                               : cmocka_run_group_tests(tests, NULL, NULL);
}
