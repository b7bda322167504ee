// SPDX-License-Identifier: Apache-2.0
// The logarithmic grid of block scales (quant.h), for the files that quantise.
#ifndef KERN_SCALE_H
#define KERN_SCALE_H
#include <stdint.h>
#include <string.h>

// 2^(j/8) rounded to fp32. Written out, since libraries differ in the last bit of exp2.
static const float kern_grid[8] = {0x1.000000p+0f, 0x1.172b84p+0f, 0x1.306fe0p+0f, 0x1.4bfdaep+0f,
                                   0x1.6a09e6p+0f, 0x1.8ace54p+0f, 0x1.ae89fap+0f, 0x1.d5818ep+0f};

static inline uint32_t kern_bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float kern_float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

// Returns how many grid steps lie below the mantissa of want: 0..8, where 8 means the next octave.
// Without branches.
static inline uint32_t kern_grid_above(float want) {
    float mantissa = kern_float_of((kern_bits_of(want) & 0x7fffffu) | 127u << 23);
    uint32_t j = 0;
    for (int i = 0; i < 8; i++)
        j += kern_grid[i] < mantissa;
    return j;
}

#endif
