// SPDX-License-Identifier: Apache-2.0
// Packing by AVX-512, for AMX too, and products by vdpbf16ps: 8 rows by 48 columns of sums in
// registers.
#if defined(__x86_64__)
#include "kernels/panel.h"
#include "kernels/panel_avx512.h"
#include "kernels/unroll.h"

enum { ROWS = 8, GROUP = 3 }; // registers: 24 sums + 3 of b + 1 of a, of 32

// Transposes 16 x 16 dwords.
static inline void transpose(__m512i *r) {
    __m512i t[16];
    KERN_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    KERN_UNROLL
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    KERN_UNROLL
    for (int i = 0; i < 4; i++) { // transposes 4 x 4 pieces of 128 bits, in two steps
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    KERN_UNROLL
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

void panel_pack_avx512(uint16_t *block, enum panel_form form, const float *x, size_t ld,
                       bool across, int side, int depth) {
    __m512i r[16];
    if (!across) { // each row of x is one of the side
        __mmask16 low = panel_mask(depth), high = panel_mask(depth - 16);
        KERN_UNROLL
        for (int i = 0; i < 16; i++, x += ld)
            r[i] = i < side ? (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + 16),
                                                           _mm512_maskz_loadu_ps(low, x))
                            : _mm512_setzero_si512();
    } else { // each pair of rows of x is one pair of the depth
        static const uint16_t zip[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                         21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                         11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        __m512i order = _mm512_loadu_si512(zip);
        __mmask16 mask = panel_mask(side);
        KERN_UNROLL
        for (int i = 0; i < 16; i++, x += 2 * ld) {
            __m512 even = 2 * i < depth ? _mm512_maskz_loadu_ps(mask, x) : _mm512_setzero_ps(),
                   odd = 2 * i + 1 < depth ? _mm512_maskz_loadu_ps(mask, x + ld)
                                           : _mm512_setzero_ps();
            r[i] = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
        }
    }
    if (across != (form == PANEL_B))
        transpose(r);
    KERN_UNROLL
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(block + i * PANEL_DEPTH, r[i]);
}

// Computes 8 rows by n panels of b.
static inline __attribute__((always_inline)) void tile(const struct panel_mul *m, int row, int col,
                                                       const int n) {
    __m512 sum[ROWS][GROUP];
    const uint16_t *a = m->a + (size_t)(row / PANEL_SIDE) * m->a_next +
                        (size_t)(row % PANEL_SIDE) * PANEL_DEPTH,
                   *b = m->b + (size_t)(col / PANEL_SIDE) * m->b_next;
    KERN_UNROLL
    for (int i = 0; i < ROWS; i++) {
        KERN_UNROLL
        for (int j = 0; j < n; j++)
            sum[i][j] = _mm512_setzero_ps();
    }
    for (int t = 0; t < m->depth; t++, a += PANEL_BLOCK, b += PANEL_BLOCK)
        for (int d = 0; d < PANEL_DEPTH; d += 2) {
            __m512bh y[GROUP];
            KERN_UNROLL
            for (int j = 0; j < n; j++)
                y[j] = (__m512bh)_mm512_load_si512(b + (size_t)j * m->b_next + d * PANEL_SIDE);
            KERN_UNROLL
            for (int i = 0; i < ROWS; i++) {
                int32_t pair;
                memcpy(&pair, a + i * PANEL_DEPTH + d, sizeof pair);
                __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                KERN_UNROLL
                for (int j = 0; j < n; j++)
                    sum[i][j] = _mm512_dpbf16_ps(sum[i][j], x, y[j]);
            }
        }
    KERN_UNROLL
    for (int i = 0; i < ROWS; i++) {
        KERN_UNROLL
        for (int j = 0; j < n; j++)
            if (row + i < m->rows)
                panel_put(m, row + i, col + j * PANEL_SIDE, sum[i][j]);
    }
}

static void mul(const struct panel_mul *m) {
    for (int j = 0; j < m->cols; j += GROUP * PANEL_SIDE)
        for (int i = 0; i < m->rows; i += ROWS)
            switch ((m->cols - j + PANEL_SIDE - 1) / PANEL_SIDE) {
            case 1: tile(m, i, j, 1); break;
            case 2: tile(m, i, j, 2); break;
            default: tile(m, i, j, GROUP); break;
            }
    if (m->how == PANEL_STREAM)
        _mm_sfence(); // another thread may read c next
}

const struct panel_isa panel_avx512 = {"AVX-512", panel_pack_avx512, mul};
#else
typedef int panel_nothing_here; // ISO C requires a declaration in every file
#endif
