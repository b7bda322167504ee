// SPDX-License-Identifier: Apache-2.0
// The block quantiser in plain steps, to compare kernels/blocks.c and the device with.
#ifndef TESTS_QUANT_REFERENCE_H
#define TESTS_QUANT_REFERENCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// codes[i] = round(x[i] / scale) to nearest even, clamped to [-qmax, qmax]. Scale 0 gives codes 0.
static inline void reference_quantise(int8_t *codes, const float *x, float scale, int qmax,
                                      size_t n) {
    float inverse = scale == 0 ? 0 : 1.0f / scale, limit = (float)qmax;
    for (size_t i = 0; i < n; i++) {
        float q = scale == 0 ? 0 : x[i] * inverse;
        q = q > limit ? limit : q < -limit ? -limit : q;
        float r = q + 12582912.0f; // 1.5 * 2^23: rounds, and the low bits hold the integer
        codes[i] = (int8_t)(int32_t)(r - 12582912.0f);
    }
}

// Stores codes in [-7, 7] as code + 8, two per byte, low nibble first. Code 0 pads an odd last one.
static inline void reference_pack4(uint8_t *out, const int8_t *codes, size_t n) {
    for (size_t i = 0; i < n; i += 2)
        out[i / 2] = (uint8_t)((codes[i] + 8) | (i + 1 < n ? codes[i + 1] + 8 : 8) << 4);
}

// Returns false if a nibble is 0 (no code is -8) or if the padding is not code 0.
static inline bool reference_unpack4(int8_t *codes, const uint8_t *in, size_t n) {
    bool good = n % 2 == 0 || in[n / 2] >> 4 == 8;
    for (size_t i = 0; i < n; i++) {
        int nibble = in[i / 2] >> (i % 2 ? 4 : 0) & 15;
        good = good && nibble != 0;
        codes[i] = (int8_t)(nibble - 8);
    }
    return good;
}

#endif
