// SPDX-License-Identifier: Apache-2.0
// Copies between a trainer's memory and fp32 (agent/lib/copy.h).
#include "agent/lib/copy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { N = 5 };

// Blocks with gaps on both sides, in every dtype, and elements apart from each other.
static void test_blocks(void **state) {
    (void)state;
    enum { ROWS = 3, PITCH = 11, STEP = 2, HOST = 7 };
    static float there32[ROWS * PITCH];
    static uint16_t there16[ROWS * PITCH];
    for (int kind = 0; kind < 6; kind++) {
        int dtype = kind % 3, step = kind < 3 ? 1 : STEP;
        struct lib_copy_block b = {N, ROWS, (size_t)step, PITCH, HOST, dtype};
        float in[ROWS * HOST], out[ROWS * HOST];
        void *at = dtype == NEBULA_F32 ? (void *)there32 : (void *)there16;
        for (int i = 0; i < ROWS * HOST; i++)
            in[i] = (float)(i + kind), out[i] = -1;
        memset(there32, 0, sizeof there32);
        memset(there16, 0, sizeof there16);
        lib_copy_write(&b, at, in);
        lib_copy_read(&b, out, at);
        for (int i = 0; i < ROWS * HOST; i++)
            assert_true(out[i] == (i % HOST < N ? in[i] : -1));
        for (int i = 0; i < ROWS * PITCH; i++) { // gaps are not touched
            bool inside = i % PITCH % step == 0 && i % PITCH / step < N;
            assert_true(inside || (there32[i] == 0 && there16[i] == 0));
        }
    }
}

// Every value of 16 bits survives, and values between two round to the nearest, ties to even.
static void test_rounding(void **state) {
    (void)state;
    static const int dtypes[] = {NEBULA_BF16, NEBULA_F16};
    for (int d = 0; d < 2; d++)
        for (uint32_t h = 0; h < 0x7fff; h++) {
            struct lib_copy_block b = {2, 1, 1, 0, 0, dtypes[d]};
            uint16_t pair[2] = {(uint16_t)h, (uint16_t)(h + 1)}, again[2];
            float wide[2];
            lib_copy_read(&b, wide, pair);
            if (!isfinite(wide[1]))
                continue;
            lib_copy_write(&b, again, wide);
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
}

int main(void) {
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
