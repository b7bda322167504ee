// The CUDA kernels on the emulated device: the op matrix, in several orders of the threads, each of which must give the same
// bits; and that the emulator itself notices what it is there for.
#include "tests/cuda/device_matrix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;
extern unsigned long long emu_seed;

static struct kern_device *open_emulated(void) {
    struct kern_device *D = NULL;
    char text[256] = "";
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    return D;
}

static void test_matrix(void **state) {
    (void)state;
    struct kern_device *D = open_emulated();
#ifdef __SANITIZE_ADDRESS__
    const unsigned long long seeds = 1; // it is what looks then, and slow
#else
    const unsigned long long seeds = 4;
#endif
    for (unsigned long long seed = 0; seed < seeds; seed++) {
        int n = 0;
        emu_seed = seed;
        assert_int_equal(device_matrix_run(D, false, NULL, &n), 0);
        assert_true(n > 100);
    }
    kern_device_close(&D);
    assert_null(D);
}

static void test_exact(void **state) {
    (void)state;
    struct kern_device *D = open_emulated();
#ifdef __SANITIZE_ADDRESS__
    const unsigned long long last = 1;
#else
    const unsigned long long last = 2; // warps apart, and in step
#endif
    for (unsigned long long seed = 1; seed <= last; seed++) {
        int n = 0;
        emu_seed = seed;
        assert_int_equal(device_exact_run(D, false, NULL, &n), 0);
        assert_true(n > 500);
    }
    emu_seed = 1;
    kern_device_close(&D);
}

static void test_open(void **state) {
    (void)state;
    struct kern_device *D = NULL;
    char text[256] = "";
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION + 1, 0, &D, text, sizeof text),
                     NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(text, "another build"));
    assert_null(D);
    // The sixth process on a machine with one device shares it.
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 5, &D, text, sizeof text), NEB_OK);
    assert_int_equal(D->index, 0);
    assert_int_equal(D->count, 1);
    kern_device_close(&D);
}

// Shapes that no kernel takes end in an error that stays; so does a mask without its lengths.
static void sticky(enum kern_type t, struct kern_attn s) {
    struct kern_device *D = open_emulated();
    void *p;
    assert_int_equal(D->ops->alloc(D, 1 << 16, &p), NEB_OK);
    int ld = s.head_dim;
    D->ops->attn_fwd(D, t, &s, p, ld, p, p, ld, p, ld, p, ld);
    assert_int_equal(D->ops->finish(D), NEB_ERR_IO);
    D->ops->zero(D, p, 16);
    assert_int_equal(D->ops->finish(D), NEB_ERR_IO);
    D->ops->release(D, p);
    kern_device_close(&D);
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
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_sticky_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
