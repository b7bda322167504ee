// SPDX-License-Identifier: Apache-2.0
// Copies between a trainer's CUDA memory and the host (agent/lib/copy.h), over a fake driver
// (fake_cuda.h): copies use the context of the memory, or the device's primary context if the
// memory has none. They keep the thread's current context. Other memory is reported.
#include "agent/base/log.h"
#include "agent/lib/copy.h"
#include "tests/unit/fake_cuda.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N = 5 };
static float there[4][N], back[N];
static uint16_t half[N];
static const float x[N] = {1, -2, 3.5f, 0, 1024};

static char said[1024];
static void listen(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(said, sizeof said, "%s", text);
}

static struct lib_copy *start(void) {
    struct lib_copy *c;
    neb_log_set_sink(listen, NULL);
    assert_int_equal(lib_copy_create(&c), NEB_OK);
    return c;
}

static enum neb_status copy_in(struct lib_copy *c, float *dst, const void *src, int dtype) {
    struct lib_copy_block b = {.len = N, .runs = 1, .step = 1, .dtype = dtype};
    b.place = NEBULA_CUDA;
    return lib_copy_read(c, &b, dst, src);
}
static enum neb_status copy_out(struct lib_copy *c, void *dst, const float *src, int dtype) {
    struct lib_copy_block b = {.len = N, .runs = 1, .step = 1, .dtype = dtype};
    b.place = NEBULA_CUDA;
    return lib_copy_write(c, &b, dst, src);
}

// Writes and reads back while `current` is the current context.
static void both_ways(struct lib_copy *c, void *device, int dtype, int current) {
    fake_cuda_make_current(current);
    int was = fake_cuda_current();
    assert_int_equal(lib_copy_check(c, device), NEB_OK);
    memset(back, 0, sizeof back);
    assert_int_equal(copy_out(c, device, x, dtype), NEB_OK);
    assert_int_equal(copy_in(c, back, device, dtype), NEB_OK);
    assert_memory_equal(back, x, sizeof x);
    assert_int_equal(fake_cuda_current(), was);
}

static void test_contexts(void **state) {
    (void)state;
    struct lib_copy *c = start();
    fake_cuda_add(there[0], sizeof there[0], FAKE_OF_CONTEXT, 0);
    fake_cuda_add(there[1], sizeof there[1], FAKE_OF_CONTEXT, 1);
    fake_cuda_add(there[2], sizeof there[2], FAKE_OF_DEVICE, 2);
    fake_cuda_add(half, sizeof half, FAKE_OF_DEVICE, 3);
    for (int current = -1; current < 3; current++) {
        both_ways(c, there[0], NEBULA_F32, current);
        both_ways(c, there[1], NEBULA_F32, current);
    }
    for (int d = 0; d < 4; d++) // memory with a context needs no primary context
        assert_int_equal(fake_cuda_held(d), 0);
    for (int current = -1; current < 3; current++) {
        both_ways(c, there[2], NEBULA_F32, current);
        both_ways(c, half, NEBULA_BF16, current);
    }
    assert_int_equal(fake_cuda_held(2), 1); // it is retained once, and until the end
    assert_int_equal(fake_cuda_held(3), 1);
    lib_copy_destroy(&c);
    assert_null(c);
    assert_int_equal(fake_cuda_held(2) + fake_cuda_held(3), 0);
    for (int i = 0; i < 3; i++)
        fake_cuda_forget(there[i]);
    fake_cuda_forget(half);
}

static void refused(enum neb_status got, enum neb_status st, const char *why) {
    assert_int_equal(got, st);
    if (!strstr(said, why))
        fail_msg("log: \"%s\", want \"%s\"", said, why);
    said[0] = 0;
}

static void test_no_device_memory(void **state) {
    (void)state;
    struct lib_copy *c = start();
    fake_cuda_add(there[0], sizeof there[0], FAKE_PINNED, 0);
    fake_cuda_add(there[1], sizeof there[1], FAKE_OF_DEVICE, 1);
    refused(lib_copy_check(c, there[0]), NEB_ERR_INVALID, "pinned host memory");
    refused(lib_copy_check(c, there[2]), NEB_ERR_INVALID, "the driver does not know it");
    assert_int_equal(lib_copy_check(c, there[1]), NEB_OK);
    assert_int_equal(copy_out(c, there[1], x, NEBULA_F32), NEB_OK);
    fake_cuda_forget(there[1]); // the trainer has freed it
    refused(copy_in(c, back, there[1], NEBULA_F32), NEB_ERR_INVALID, "or it was freed");
    lib_copy_destroy(&c);
    fake_cuda_forget(there[0]);
}

static void test_failures(void **state) {
    (void)state;
    static const struct {
        const char *call, *why;
    } cases[] = {{"cuDevicePrimaryCtxRetain",
                  "context of device 1 of a CUDA tensor: CUDA reports CUDA_ERROR_UNKNOWN (999)"},
                 {"cuCtxPushCurrent_v2", "cannot copy 20 bytes of a CUDA tensor: CUDA reports"},
                 {"cuMemcpy2DUnaligned_v2", "cannot copy 20 bytes of a CUDA tensor: CUDA reports"}};
    struct lib_copy *c = start();
    fake_cuda_add(there[0], sizeof there[0], FAKE_OF_CONTEXT, 0);
    fake_cuda_add(there[1], sizeof there[1], FAKE_OF_DEVICE, 1);
    both_ways(c, there[0], NEBULA_F32, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_cuda_make_current(0);
        fake_cuda_fail(cases[i].call);
        refused(copy_in(c, back, there[1], NEBULA_F32), NEB_ERR_IO, cases[i].why);
        fake_cuda_fail(NULL);
        assert_int_equal(fake_cuda_current(), 1);
    }
    both_ways(c, there[1], NEBULA_F32, 0); // later calls work
    lib_copy_destroy(&c);
    for (int i = 0; i < 2; i++)
        fake_cuda_forget(there[i]);
}

// Blocks with gaps on both sides, in every dtype and place, and elements apart from each other.
static void test_blocks(void **state) {
    (void)state;
    enum { ROWS = 3, PITCH = 11, STEP = 2, HOST = 7 };
    struct lib_copy *c = start();
    static float there32[ROWS * PITCH];
    static uint16_t there16[ROWS * PITCH];
    fake_cuda_add(there32, sizeof there32, FAKE_OF_DEVICE, 0);
    fake_cuda_add(there16, sizeof there16, FAKE_OF_DEVICE, 0);
    assert_int_equal(lib_copy_check(c, there32), NEB_OK);
    for (int kind = 0; kind < 12; kind++) {
        int dtype = kind % 3, place = kind / 3 % 2, step = kind < 6 ? 1 : STEP;
        struct lib_copy_block b = {N, ROWS, (size_t)step, PITCH, HOST, dtype, place};
        float in[ROWS * HOST], out[ROWS * HOST];
        void *at = dtype == NEBULA_F32 ? (void *)there32 : (void *)there16;
        for (int i = 0; i < ROWS * HOST; i++)
            in[i] = (float)(i + kind), out[i] = -1;
        memset(there32, 0, sizeof there32);
        memset(there16, 0, sizeof there16);
        assert_int_equal(lib_copy_write(c, &b, at, in), NEB_OK);
        assert_int_equal(lib_copy_read(c, &b, out, at), NEB_OK);
        for (int i = 0; i < ROWS * HOST; i++)
            assert_true(out[i] == (i % HOST < N ? in[i] : -1));
        for (int i = 0; i < ROWS * PITCH; i++) { // gaps are not touched
            bool inside = i % PITCH % step == 0 && i % PITCH / step < N;
            assert_true(inside || (there32[i] == 0 && there16[i] == 0));
        }
    }
    lib_copy_destroy(&c);
    fake_cuda_forget(there32);
    fake_cuda_forget(there16);
}

// Every value of 16 bits survives, and values between two round to the nearest, ties to even.
static void test_rounding(void **state) {
    (void)state;
    static const int dtypes[] = {NEBULA_BF16, NEBULA_F16};
    struct lib_copy *c = start();
    for (int d = 0; d < 2; d++)
        for (uint32_t h = 0; h < 0x7fff; h++) {
            struct lib_copy_block b = {2, 1, 1, 0, 0, dtypes[d], NEBULA_HOST};
            uint16_t pair[2] = {(uint16_t)h, (uint16_t)(h + 1)}, again[2];
            float wide[2];
            assert_int_equal(lib_copy_read(c, &b, wide, pair), NEB_OK);
            if (!isfinite(wide[1]))
                continue;
            assert_int_equal(lib_copy_write(c, &b, again, wide), NEB_OK);
            assert_memory_equal(pair, again, sizeof pair);
            float middle = (float)(((double)wide[0] + (double)wide[1]) / 2);
            float even = h % 2 ? wide[1] : wide[0];
            assert_true(lib_copy_rounded(middle, dtypes[d]) == even);
            assert_true(lib_copy_rounded(-middle, dtypes[d]) == -even);
            assert_true(lib_copy_rounded(nextafterf(middle, 0), dtypes[d]) == wide[0]);
            assert_true(lib_copy_rounded(nextafterf(middle, INFINITY), dtypes[d]) == wide[1]);
        }
    assert_true(isinf(lib_copy_rounded(65520, NEBULA_F16)));
    assert_true(lib_copy_rounded(65519, NEBULA_F16) == 65504);
    assert_true(isnan(lib_copy_rounded(NAN, NEBULA_F16)));
    lib_copy_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_no_device_memory),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
