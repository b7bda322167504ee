// SPDX-License-Identifier: Apache-2.0
// A block quantiser that passes over memory once: forms what a member has to send, finds each block's scale and writes its
// codes while the block is in the first cache.
//
//     θ, θ_m, e ──► u = β·e + (θ − θ_m) ──► scale of the block ──► codes        read 12 bytes, write 4.5 a parameter
//                   in place of e           relative to the
//                                           frame's largest value, known at the end only
//
// While it runs, scales are indices of the absolute grid; they become bytes relative to `top` afterwards, and the few blocks
// whose scale the byte cannot hold (below 2^-31 of the largest) are done again. The bits are those of the functions in
// quant.h and exact.h called one after the other (tests/unit/test_blocks.c). The caller has called kern_exact_enter.
#ifndef KERN_BLOCKS_H
#define KERN_BLOCKS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kern_blocks {
    const float *x; // (n) what is encoded; or NULL, and then:
    float *u;       // (n) the residual, replaced by beta*u + (theta - theta_m), which is encoded
    const float *theta, *theta_m; // (n)
    float *sent;                  // (n) becomes a copy of theta_m; or NULL
    float beta;
    size_t n, block;
    int levels;      // codes in [-levels, levels]; 4 bits: at most 7, otherwise 127
    bool four;       // two codes a byte, low nibble first, as kern_pack4
    uint16_t *steps; // (blocks) scratch
    int8_t *room;    // (2 * block) scratch, when four
    uint8_t *scales; // (blocks) out
    uint8_t *codes;  // (n), or (n + 1) / 2 when four, out
};
// What a block's scale is made of: max / levels, but max / 5.5 for 6 levels, and the root mean square for one.
float kern_block_step(const float *x, size_t n, int levels, float max);
// Returns `top`. *finite false: some u is NaN or infinite; u is set, codes mean nothing.
int kern_blocks_encode(const struct kern_blocks *b, bool *finite);

// ---- back -----------------------------------------------------------------------------------------------------

enum { KERN_DEFAULT_BLOCK = 128 };
// The elements of n / 128 whole blocks of 128, from codes as above. Codes must be in range.
void kern_blocks_decode(float *out, const uint8_t *scales, const uint8_t *codes, size_t n,
                        bool four, int top);
// False when a nibble of n codes, two a byte, is 0 (no code is -8), or the padding of an odd last one is not code 0.
bool kern_check4(const uint8_t *codes, size_t n);
// sums (blocks): of the squared codes of whole blocks of 128, as kern_blocks_decode takes them. Exact. False: a code out of range
// (-8 of 4 bits, -128 of 8).
bool kern_blocks_squares(uint32_t *sums, const uint8_t *codes, size_t blocks, bool four);
// Both codes of every byte, as kern_unpack4 without its check.
void kern_expand4(int8_t *out, const uint8_t *codes, size_t bytes);
// 8-bit codes as two planes of nibbles, two a byte, the low nibble first: q + 8 = 16 * high + low (mod 256), so that small codes of
// either sign have high 0. An odd last one is paired with 0. / Back.
void kern_split8(uint8_t *low, uint8_t *high, const uint8_t *codes, size_t n);
void kern_join8(uint8_t *codes, const uint8_t *low, const uint8_t *high, size_t n);

#endif
