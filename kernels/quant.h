// SPDX-License-Identifier: Apache-2.0
// Block quantisers: the arithmetic of the codecs, without their byte format. Bit-exact like kernels/exact.h, in both
// directions: quantising gives the same codes on every processor, dequantising the same floats. The caller has called
// kern_exact_enter.
//
// Scales are bytes on a logarithmic grid of eight steps an octave, relative to the frame's largest exponent:
//     scale(b) = 2^(top - 31 + (b >> 3)) * mantissa[b & 7],  b = 0 means an all-zero block
// so that one byte covers 32 octaves and no logarithm is ever computed.
#ifndef KERN_QUANT_H
#define KERN_QUANT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Largest |x[i]|; *finite false when some x is NaN or infinite.
float kern_absmax(const float *x, size_t n, bool *finite);
// Root mean square of finite x (n >= 1), summed in sixteen fixed lanes. 0 when the squares leave fp32's range.
float kern_rms(const float *x, size_t n);
// Exponent for `top` such that max/qmax lies on the grid: 2^(top+1) > max/qmax.
int kern_scale_top(float max, int qmax);
// Smallest grid scale >= want; 0 when want is 0 or too small for the grid.
uint8_t kern_scale_code(float want, int top);
float kern_scale_value(uint8_t code, int top);

// codes[i] = round(x[i] / scale) to nearest even, clamped to [-qmax, qmax]; scale 0 gives 0.
void kern_quantise(int8_t *codes, const float *x, float scale, int qmax, size_t n);
// out[i] = codes[i] * scale
void kern_dequantise(float *out, const int8_t *codes, float scale, size_t n);
// Two codes in [-7, 7] a byte, low nibble first, stored + 8; an odd last one is padded with code 0.
void kern_pack4(uint8_t *out, const int8_t *codes, size_t n);
// False when a nibble is 0 (no code is -8).
bool kern_unpack4(int8_t *codes, const uint8_t *in, size_t n);

// Finite fp32 to finite bfloat16, nearest even, as two byte planes (high bytes compress, low ones hardly); and back.
void kern_bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n);
void kern_bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n);

// Indices of the k largest |x| of n <= 65536, ascending; ties go to the lower index. scratch: 2n words.
void kern_topk(uint16_t *idx, const float *x, size_t n, size_t k, uint32_t *scratch);

#endif
