// SPDX-License-Identifier: Apache-2.0
// Block quantisers: the arithmetic of the codecs, without their byte format. Bit-exact in both
// directions, like exact.h: quantising gives the same codes on every processor, dequantising the
// same floats. The caller must have called kern_exact_enter.
//
// A scale is a byte on a logarithmic grid of eight steps per octave, relative to the frame's
// largest exponent:
//     scale(b) = 2^(top - 31 + (b >> 3)) * mantissa[b & 7]     b = 0: all codes of the block are 0
// So a byte covers 32 octaves, and no logarithm is computed.
#ifndef KERN_QUANT_H
#define KERN_QUANT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returns the largest |x[i]|. *finite is false if some x is NaN or infinite.
float kern_absmax(const float *x, size_t n, bool *finite);
// Returns the root mean square of finite x (n >= 1), summed in sixteen fixed lanes. Returns 0 if
// the sum of squares is not between 1e-30 and 1e30.
float kern_rms(const float *x, size_t n);
// Returns `top`, which puts max/qmax on the grid: 2^(top+1) > max/qmax.
int kern_scale_top(float max, int qmax);
// kern_scale_code returns the smallest grid scale >= want; 0 if want is 0 or too small for the
// grid.
uint8_t kern_scale_code(float want, int top);
float kern_scale_value(uint8_t code, int top);

// out[i] = codes[i] * scale
void kern_dequantise(float *out, const int8_t *codes, float scale, size_t n);

// kern_bf16_split rounds finite fp32 to finite bfloat16, nearest even, and stores two planes of
// bytes: high bytes compress well, low ones hardly. kern_bf16_join is the inverse.
void kern_bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n);
void kern_bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n);

// Writes the indices of the k largest |x| of n <= 65536, ascending. A tie goes to the lower index.
// scratch: 2n words.
void kern_topk(uint16_t *idx, const float *x, size_t n, size_t k, uint32_t *scratch);

#endif
