// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floats of files and of attached loops, bit by bit: exact, and the same with every
// compiler and on every device.
#ifndef KERN_HALF_H
#define KERN_HALF_H
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KERN_HALF __host__ __device__ static inline
#else
#define KERN_HALF static inline
#endif

KERN_HALF float kern_f32_of_bits(uint32_t b) {
    float f;
    memcpy(&f, &b, sizeof f);
    return f;
}

KERN_HALF float kern_f32_of_bf16(uint16_t h) { return kern_f32_of_bits((uint32_t)h << 16); }

// Rounds to nearest, ties to even. NaN keeps its sign and stays NaN, even if its payload is only in
// the bits that are cut.
KERN_HALF uint16_t kern_bf16_of_f32(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    if ((b & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

KERN_HALF float kern_f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 31) // infinite or NaN
        return kern_f32_of_bits(sign | 0x7f800000 | m << 13);
    if (e)
        return kern_f32_of_bits(sign | (e + 112) << 23 | m << 13);
    float small = (float)m * 0x1p-24f; // subnormal or zero: exact in fp32
    return sign ? -small : small;
}

// Rounds to nearest, ties to even; what is too large becomes infinite. NaN keeps its sign.
KERN_HALF uint16_t kern_f16_of_f32(float f) {
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    uint32_t sign = b >> 16 & 0x8000, x = b & 0x7fffffff;
    if (x > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (x >= 0x477ff000) // half a step above the largest
        return (uint16_t)(sign | 0x7c00);
    if (x < 0x38800000) { // subnormal: adding 0.5 leaves multiples of 2^-24 in the low bits
        float y = kern_f32_of_bits(x) + 0.5f;
        memcpy(&x, &y, sizeof x);
        return (uint16_t)(sign | (x - 0x3f000000));
    }
    return (uint16_t)(sign | (x - 0x38000000 + 0xfff + (x >> 13 & 1)) >> 13);
}

#endif
