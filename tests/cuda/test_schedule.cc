// SPDX-License-Identifier: Apache-2.0
// Host logic of the CUDA kernels: the tiles that attention visits, compared with a loop over all
// pairs. Also the emulator's tensor core, compared with a plain product.
#include "kernels/cuda/attn.cuh"

#include <cuda_runtime.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

static void test_masks(void **) {
    static const enum kern_mask kinds[] = {KERN_MASK_CAUSAL, KERN_MASK_BIDIRECTIONAL,
                                           KERN_MASK_PREFIX};
    int cases = 0;
    for (int T = 1; T < 40; T += 3)
        for (enum kern_mask kind : kinds)
            for (int32_t prefix = -1; prefix <= T + 1; prefix += 2) {
                struct attn_mask m = attn_mask_of(T, kind, &prefix, 0);
                for (int i = 0; i < T; i++)
                    for (int j = 0; j < T; j++)
                        assert_int_equal(attn_sees(m, i, j),
                                         j <= i || kind == KERN_MASK_BIDIRECTIONAL ||
                                             (kind == KERN_MASK_PREFIX && j < prefix));
                for (int i = 0; i < T + 3; i++) // also rows and keys that do not exist
                    for (int j = 0; j < T + 3; j++) {
                        assert_int_equal(j < attn_row_end(m, i), attn_sees(m, i, j));
                        assert_true(i >= T || (i >= attn_row_start(m, j)) == attn_sees(m, i, j));
                    }
                for (int i0 = 0; i0 < T; i0 += 5)
                    for (int n = 1; n < 12; n += 3, cases++) {
                        int last = -1, first = T;
                        for (int i = i0; i < i0 + n && i < T; i++)
                            for (int j = 0; j < T; j++)
                                if (attn_sees(m, i, j))
                                    last = j > last ? j : last;
                        assert_int_equal(attn_keys_end(m, i0, n), last + 1);
                        assert_true(attn_none_seen(m, T + i0, n, 0)); // rows that do not exist
                        for (int i = 0; i < T; i++)                   // i0: the first key
                            for (int j = i0; j < i0 + n && j < T; j++)
                                if (attn_sees(m, i, j))
                                    first = i < first ? i : first;
                        assert_int_equal(attn_queries_start(m, i0), first);
                        for (int j0 = 0; j0 < T; j0++) {
                            bool all = i0 + n <= T && j0 + 4 <= T;
                            for (int i = i0; i < i0 + n; i++)
                                for (int j = j0; j < j0 + 4; j++)
                                    all = all && attn_sees(m, i, j);
                            assert_int_equal(attn_all_seen(m, i0, n, j0, 4), all);
                            assert_int_equal(attn_none_seen(m, i0, n, j0), j0 > last);
                        }
                    }
            }
    assert_true(cases > 1000);
}

static uint16_t half_of(float x) { return bf16_bits(x); }

// c (16, 8) = a (16, 16) b (16, 8) as in attention: ldmatrix reads a and b from shared memory; b is
// stored as rows of its transpose, or as its own rows.
__global__ void product(float *c, const uint16_t *a, const uint16_t *b, bool transposed) {
    KERN_DYNAMIC_SHARED(room);
    uint16_t *sa = (uint16_t *)room, *sb = sa + 16 * 16;
    for (int i = (int)threadIdx.x; i < 256; i += WARP) {
        sa[i] = a[i];
        sb[i] = b[i];
    }
    __syncthreads();
    int lane = (int)threadIdx.x, m = lane / 8, r = lane % 8;
    uint32_t fa[4], fb[4];
    ldmatrix_x4(fa, sa + (m % 2 * 8 + r) * 16 + m / 2 * 8);
    if (transposed) // b is stored as (8, 16): its rows are columns of the product
        ldmatrix_x4(fb, sb + (m / 2 * 8 + r) * 16 + m % 2 * 8);
    else
        ldmatrix_x4_trans(fb, sb + (m % 2 * 8 + r) * 16 + m / 2 * 8);
    float acc[4] = {1, 1, 1, 1};
    mma_bf16_16816(acc, fa, fb[0], fb[1]);
    for (int e = 0; e < 4; e++)
        c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = acc[e];
}

static void test_tensor_core(void **) {
    uint16_t a[256], b[256];
    float c[128], wa[256], wb[256];
    for (int i = 0; i < 256; i++) {
        wa[i] = (float)((i * 37) % 23 - 11) / 4;
        wb[i] = (float)((i * 53) % 19 - 9) / 8;
        a[i] = half_of(wa[i]);
        b[i] = half_of(wb[i]);
    }
    for (int transposed = 0; transposed < 2; transposed++) {
        KERN_LAUNCH(product, 1, WARP, 1024, nullptr, c, a, b, transposed != 0);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                float sum = 1;
                for (int k = 0; k < 16; k++)
                    sum += wa[i * 16 + k] * (transposed ? wb[j * 16 + k] : wb[k * 16 + j]);
                assert_true(fabsf(c[i * 8 + j] - sum) < 1e-4f);
            }
    }
}

static void test_bf16(void **) {
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
                 {0x3f808001, 0x3f81}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80},
                 {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0x7fffffff, 0x7fff},
                 {0xffffffff, 0xffff}, {0x00000001, 0x0000}, {0x80000000, 0x8000}};
    for (const auto &c : cases) {
        float f;
        memcpy(&f, &c.in, 4);
        assert_int_equal(bf16_bits(f), c.out);
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_tensor_core),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
