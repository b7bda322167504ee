// SPDX-License-Identifier: Apache-2.0
// A block quantiser that passes over memory once. It forms what a member has to send, finds each
// block's scale, and writes the block's codes while the block is in the first-level cache.
//
//     θ, θ_m, e ──► u = β·e + (θ − θ_m) ──► scale of the block ──► codes   reads 12 bytes,
//                   in place of e           relative to the               writes 4.5 per parameter
//                                           frame's largest value,
//                                           known at the end only
//
// During the pass a scale is an index on an absolute grid. At the end it becomes a byte relative to
// `top`. The byte cannot hold a scale below 2^-31 of the largest: those few blocks are encoded a
// second time. The bits equal those of the functions in quant.h and exact.h called one after the
// other (tests/unit/test_blocks.c). The caller must have called kern_exact_enter.
#ifndef KERN_BLOCKS_H
#define KERN_BLOCKS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kern_blocks {
    const float *x; // (n) the values to encode. NULL: encode u, formed from the next fields
    float *u;       // (n) the residual; becomes beta*u + (theta - theta_m)
    const float *theta, *theta_m; // (n)
    float *sent;                  // (n) becomes a copy of theta_m; may be NULL
    float beta;
    size_t n, block;
    int levels;      // codes lie in [-levels, levels]; at most 7 if four, else at most 127
    bool four;       // two codes per byte, the low nibble first
    uint16_t *steps; // (blocks) scratch
    int8_t *room;    // (2 * block) scratch; used if four
    uint8_t *scales; // (blocks) output
    uint8_t *codes;  // (n) output; (n + 1) / 2 bytes if four
};
// Returns `top`. If *finite is false, a value is NaN or infinite: u is updated, and the codes mean
// nothing.
int kern_blocks_encode(const struct kern_blocks *b, bool *finite);

// ---- decoding

enum { KERN_DEFAULT_BLOCK = 128 };
// Decodes n / 128 full blocks of 128 elements. The codes must be in range.
void kern_blocks_decode(float *out, const uint8_t *scales, const uint8_t *codes, size_t n,
                        bool four, int top);
// Checks n codes, two per byte. Returns false if a nibble is 0 (no code is -8) or if the padding
// after an odd last code is not code 0.
bool kern_check4(const uint8_t *codes, size_t n);
// sums (blocks): the exact sum of the squared codes of each full block of 128. The codes lie as in
// kern_blocks_decode. Returns false if a code is out of range (-8 in 4 bits, -128 in 8 bits).
bool kern_blocks_squares(uint32_t *sums, const uint8_t *codes, size_t blocks, bool four);
// Expands both codes of each byte, without a check.
void kern_expand4(int8_t *out, const uint8_t *codes, size_t bytes);
// kern_split8 splits 8-bit codes into two planes of nibbles, two per byte, the low nibble first:
// q + 8 = 16 * high + low (mod 256). So small codes of either sign have high 0. An odd last code is
// paired with 0. kern_join8 is the inverse.
void kern_split8(uint8_t *low, uint8_t *high, const uint8_t *codes, size_t n);
void kern_join8(uint8_t *codes, const uint8_t *low, const uint8_t *high, size_t n);

#endif
