// SPDX-License-Identifier: Apache-2.0
// Shared by panel_avx512bf16.c and panel_amx.c.
#ifndef KERN_PANEL_AVX512_H
#define KERN_PANEL_AVX512_H
#include "kernels/panel.h"

#include <immintrin.h>
#include <string.h>

// Mask of the first n of 16 lanes; no lane if n is below 0.
static inline __mmask16 panel_mask(int n) {
    return (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
}

// Puts 16 sums into c at row and col, as m->how says.
static inline void panel_put(const struct panel_mul *m, int row, int col, __m512 sum) {
    float *c = m->c + (size_t)row * m->ldc + col;
    __mmask16 mask = panel_mask(m->cols - col);
    sum = _mm512_mul_ps(sum, _mm512_set1_ps(m->alpha));
    if (m->how == PANEL_ADD)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), sum);
    if (m->how == PANEL_STREAM && mask == 0xffff)
        _mm512_stream_ps(c, sum);
    else
        _mm512_mask_storeu_ps(c, mask, sum);
}

void panel_pack_avx512(uint16_t *block, enum panel_form form, const float *x, size_t ld,
                       bool across, int side, int depth);

#endif
