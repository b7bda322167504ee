// SPDX-License-Identifier: Apache-2.0
// Block quantisers in one pass, and checks and sums over their codes (blocks.h).
#include "kernels/blocks.h"
#include "kernels/clones.h"
#include "kernels/quant.h"
#include "kernels/scale.h"

#include <string.h>

enum {
    USUAL_BLOCK = KERN_DEFAULT_BLOCK,
    NORMAL_MIN = 8, // smaller grid indices belong to denormal scales
};
#define INLINED static inline __attribute__((always_inline))

// u = beta*u + (theta - theta_m); sent = theta_m unless sent is NULL.
INLINED void learn(float *restrict u, const float *restrict theta, const float *restrict theta_m,
                   float *restrict sent, float beta, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float d = theta[i] - theta_m[i];
        float r = beta * u[i];
        u[i] = r + d;
    }
    for (size_t i = 0; sent && i < n; i++)
        sent[i] = theta_m[i];
}

// Returns the bits of the largest magnitude. A NaN or an infinity gives 0x7f800000 or more.
INLINED uint32_t largest(const float *x, size_t n) {
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = kern_bits_of(x[i]) & 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    return max;
}

// round(x * inverse) to nearest even, clamped to [-limit, limit]. After adding 1.5 * 2^23, the low
// bits of the mantissa hold the integer. A NaN becomes limit.
INLINED void codes_of(int8_t *restrict q, const float *restrict x, float inverse, float limit,
                      size_t n) {
    for (size_t i = 0; i < n; i++) {
        float r = x[i] * inverse;
        r = r < limit ? r : limit;
        r = r > -limit ? r : -limit;
        q[i] = (int8_t)(uint8_t)kern_bits_of(r + 12582912.0f);
    }
}

INLINED void pack(uint8_t *restrict out, const int8_t *restrict q, size_t n) {
    for (size_t i = 0; i < n / 2; i++) {
        uint8_t low = (uint8_t)q[2 * i], high = (uint8_t)q[2 * i + 1];
        out[i] = (uint8_t)(((low & 15) | high << 4) ^ 0x88); // a nibble holds q + 8
    }
}

// The scale that suits a block: max / levels, but max / 5.5 for 6 levels and the root mean square
// for 1 level.
static float block_step(const float *x, size_t n, int levels, float max) {
    float rms = levels == 1 ? kern_rms(x, n) : 0;
    return rms > 0 && rms < max ? rms : max / (levels == 6 ? 5.5f : (float)levels);
}

// Returns the smallest scale that is not below want, as an index on the absolute grid: eight steps
// per octave, 0 at the exponent of zero.
INLINED uint32_t step_index(float want) {
    return (kern_bits_of(want) >> 23) * 8 + kern_grid_above(want);
}
INLINED float inverse_of(uint32_t index) {
    return index < NORMAL_MIN ? 0 : 1.0f / (kern_float_of(index >> 3 << 23) * kern_grid[index & 7]);
}

// Encodes the full blocks of 128. Their data stays in registers and the first-level cache.
INLINED uint32_t usual_blocks(const struct kern_blocks *b, bool four, bool learned, bool keep) {
    uint32_t max = 0;
    float limit = (float)b->levels, divisor = b->levels == 6 ? 5.5f : limit;
    for (size_t k = 0; k < b->n / USUAL_BLOCK; k++) {
        size_t at = k * USUAL_BLOCK;
        int8_t q[USUAL_BLOCK];
        const float *x = learned ? b->u + at : b->x + at;
        if (learned)
            learn(b->u + at, b->theta + at, b->theta_m + at, keep ? b->sent + at : NULL, b->beta,
                  USUAL_BLOCK);
        uint32_t m = largest(x, USUAL_BLOCK), index = step_index(kern_float_of(m) / divisor);
        max = m > max ? m : max;
        b->steps[k] = (uint16_t)index;
        if (four) {
            codes_of(q, x, inverse_of(index), limit, USUAL_BLOCK);
            pack(b->codes + at / 2, q, USUAL_BLOCK);
        } else {
            codes_of((int8_t *)b->codes + at, x, inverse_of(index), limit, USUAL_BLOCK);
        }
    }
    return max;
}
KERN_CLONES static uint32_t usual4(const struct kern_blocks *b) {
    return usual_blocks(b, true, false, false);
}
KERN_CLONES static uint32_t usual4_learned(const struct kern_blocks *b) {
    return usual_blocks(b, true, true, false);
}
KERN_CLONES static uint32_t usual4_keep(const struct kern_blocks *b) {
    return usual_blocks(b, true, true, true);
}
KERN_CLONES static uint32_t usual8(const struct kern_blocks *b) {
    return usual_blocks(b, false, false, false);
}
KERN_CLONES static uint32_t usual8_learned(const struct kern_blocks *b) {
    return usual_blocks(b, false, true, false);
}
KERN_CLONES static uint32_t usual8_keep(const struct kern_blocks *b) {
    return usual_blocks(b, false, true, true);
}

KERN_CLONES static void learn_any(const struct kern_blocks *b, size_t at, size_t n) {
    learn(b->u + at, b->theta + at, b->theta_m + at, b->sent ? b->sent + at : NULL, b->beta, n);
}
KERN_CLONES static uint32_t largest_any(const float *x, size_t n) { return largest(x, n); }
KERN_CLONES static void codes_any(int8_t *q, const float *x, float inverse, float limit, size_t n) {
    codes_of(q, x, inverse, limit, n);
}
KERN_CLONES static void pack_any(uint8_t *out, const int8_t *q, size_t n) {
    pack(out, q, n);
    if (n % 2)
        out[n / 2] = (uint8_t)((q[n - 1] + 8) | 8 << 4);
}

// A group is one block, or two where the block length is odd and two codes share a byte. No byte of
// codes holds codes of two groups.
static size_t group_of(const struct kern_blocks *b) {
    return b->four && b->block % 2 ? 2 * b->block : b->block;
}

// Encodes one group. In the second pass u is already formed, and scales are bytes relative to top.
static uint32_t encode_group(const struct kern_blocks *b, size_t at, bool second_pass, int top) {
    size_t end = at + group_of(b) < b->n ? at + group_of(b) : b->n;
    uint32_t max = 0;
    for (size_t i = at; i < end; i += b->block) {
        size_t len = end - i < b->block ? end - i : b->block, k = i / b->block;
        const float *x = b->x ? b->x + i : b->u + i;
        if (!b->x && !second_pass)
            learn_any(b, i, len);
        uint32_t m = largest_any(x, len);
        float want = block_step(x, len, b->levels, kern_float_of(m)), inverse;
        max = m > max ? m : max;
        if (second_pass) {
            b->scales[k] = kern_scale_code(want, top);
            float scale = kern_scale_value(b->scales[k], top);
            inverse = scale == 0 ? 0 : 1.0f / scale;
        } else {
            b->steps[k] = (uint16_t)step_index(want);
            inverse = inverse_of(b->steps[k]);
        }
        codes_any(b->four ? b->room + (i - at) : (int8_t *)b->codes + i, x, inverse,
                  (float)b->levels, len);
    }
    if (b->four)
        pack_any(b->codes + at / 2, b->room, end - at);
    return max;
}

static uint32_t usual(const struct kern_blocks *b) {
    if (b->four)
        return b->x ? usual4(b) : b->sent ? usual4_keep(b) : usual4_learned(b);
    return b->x ? usual8(b) : b->sent ? usual8_keep(b) : usual8_learned(b);
}

// Turns indices into scale bytes, now that the largest value is known. A byte cannot hold the
// scales of some blocks: their groups are encoded a second time.
static void settle_scales(const struct kern_blocks *b, int top) {
    int base = 8 * (top - 31 + 127);
    for (size_t at = 0, k = 0; at < b->n; at += b->block, k++) {
        int code = (int)b->steps[k] - base;
        b->scales[k] = (uint8_t)code;
        if (b->steps[k] < NORMAL_MIN)
            b->scales[k] = 0; // the block's codes are 0 already
        else if (code < 1 || code > 255)
            (void)encode_group(b, at / group_of(b) * group_of(b), true, top);
    }
}

int kern_blocks_encode(const struct kern_blocks *b, bool *finite) {
    uint32_t max = 0;
    size_t at = 0;
    if (b->block == USUAL_BLOCK && b->levels > 1) {
        max = usual(b);
        at = b->n / USUAL_BLOCK * USUAL_BLOCK;
    }
    for (; at < b->n; at += group_of(b)) {
        uint32_t m = encode_group(b, at, false, 0);
        max = m > max ? m : max;
    }
    *finite = max < 0x7f800000u;
    if (!*finite || max == 0) {
        memset(b->scales, 0, (b->n + b->block - 1) / b->block);
        return 0;
    }
    int top = kern_scale_top(kern_float_of(max), b->levels);
    settle_scales(b, top);
    return top;
}

// ---- decoding

INLINED void expand(int8_t *restrict out, const uint8_t *restrict codes, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = (int8_t)((codes[i] & 15) - 8);
        out[2 * i + 1] = (int8_t)((codes[i] >> 4) - 8);
    }
}

KERN_CLONES static void usual_back(float *restrict out, const uint8_t *restrict codes,
                                   size_t blocks, const float *restrict scales, bool four) {
    for (size_t b = 0; b < blocks; b++) {
        int8_t room[USUAL_BLOCK];
        if (four)
            expand(room, codes + b * USUAL_BLOCK / 2, USUAL_BLOCK / 2);
        else
            memcpy(room, codes + b * USUAL_BLOCK, USUAL_BLOCK);
        for (size_t i = 0; i < USUAL_BLOCK; i++)
            out[b * USUAL_BLOCK + i] = (float)room[i] * scales[b];
    }
}

void kern_blocks_decode(float *out, const uint8_t *scales, const uint8_t *codes, size_t n,
                        bool four, int top) {
    enum { STEP = 64 }; // blocks whose scales are computed at once
    float value[STEP];
    for (size_t b = 0; b < n / USUAL_BLOCK; b += STEP) {
        size_t blocks = n / USUAL_BLOCK - b < STEP ? n / USUAL_BLOCK - b : STEP;
        for (size_t i = 0; i < blocks; i++)
            value[i] = kern_scale_value(scales[b + i], top);
        size_t at = b * USUAL_BLOCK;
        usual_back(out + at, codes + (four ? at / 2 : at), blocks, value, four);
    }
}

KERN_CLONES static unsigned zero_nibbles(const uint8_t *codes, size_t bytes) {
    uint8_t bad = 0;
    for (size_t i = 0; i < bytes; i++)
        bad |= (uint8_t)((codes[i] & 15) == 0) | (uint8_t)(codes[i] < 16);
    return bad;
}

bool kern_check4(const uint8_t *codes, size_t n) {
    return !zero_nibbles(codes, n / 2) &&
           (n % 2 == 0 || ((codes[n / 2] & 15) != 0 && codes[n / 2] >> 4 == 8));
}

KERN_CLONES static void expand_any(int8_t *out, const uint8_t *codes, size_t bytes) {
    expand(out, codes, bytes);
}

void kern_expand4(int8_t *out, const uint8_t *codes, size_t bytes) {
    expand_any(out, codes, bytes);
}

KERN_CLONES static void split_pairs(uint8_t *restrict low, uint8_t *restrict high,
                                    const uint8_t *restrict codes, size_t pairs) {
    for (size_t i = 0; i < pairs; i++) {
        uint8_t a = (uint8_t)(codes[2 * i] + 8), b = (uint8_t)(codes[2 * i + 1] + 8);
        low[i] = (uint8_t)((a & 15) | b << 4);
        high[i] = (uint8_t)(a >> 4 | (b & 0xf0));
    }
}

KERN_CLONES static void join_pairs(uint8_t *restrict codes, const uint8_t *restrict low,
                                   const uint8_t *restrict high, size_t pairs) {
    for (size_t i = 0; i < pairs; i++) {
        codes[2 * i] = (uint8_t)(((low[i] & 15) | high[i] << 4) - 8);
        codes[2 * i + 1] = (uint8_t)((low[i] >> 4 | (high[i] & 0xf0)) - 8);
    }
}

void kern_split8(uint8_t *low, uint8_t *high, const uint8_t *codes, size_t n) {
    split_pairs(low, high, codes, n / 2);
    if (n % 2) {
        uint8_t a = (uint8_t)(codes[n - 1] + 8);
        low[n / 2] = a & 15;
        high[n / 2] = a >> 4;
    }
}

void kern_join8(uint8_t *codes, const uint8_t *low, const uint8_t *high, size_t n) {
    join_pairs(codes, low, high, n / 2);
    if (n % 2)
        codes[n - 1] = (uint8_t)(((low[n / 2] & 15) | high[n / 2] << 4) - 8);
}

// Sums and checks of integers give the same result at any vector width. A nibble holds q + 8.
KERN_CLONES static bool squares4(uint32_t *restrict sums, const uint8_t *restrict codes,
                                 size_t blocks) {
    uint8_t bad = 0;
    for (size_t b = 0; b < blocks; b++, codes += USUAL_BLOCK / 2) {
        uint32_t sum = 0;
        for (size_t i = 0; i < USUAL_BLOCK / 2; i++) {
            int16_t low = (int16_t)((codes[i] & 15) - 8), high = (int16_t)((codes[i] >> 4) - 8);
            bad |= (uint8_t)((codes[i] & 15) == 0) | (uint8_t)(codes[i] < 16);
            sum += (uint32_t)(low * low + high * high);
        }
        sums[b] = sum;
    }
    return !bad;
}

KERN_CLONES static bool squares8(uint32_t *restrict sums, const uint8_t *restrict codes,
                                 size_t blocks) {
    uint8_t bad = 0;
    for (size_t b = 0; b < blocks; b++, codes += USUAL_BLOCK) {
        uint32_t sum = 0;
        for (size_t i = 0; i < USUAL_BLOCK; i++) {
            int16_t q = (int8_t)codes[i];
            bad |= (uint8_t)(codes[i] == 0x80);
            sum += (uint32_t)(q * q);
        }
        sums[b] = sum;
    }
    return !bad;
}

bool kern_blocks_squares(uint32_t *sums, const uint8_t *codes, size_t blocks, bool four) {
    return four ? squares4(sums, codes, blocks) : squares8(sums, codes, blocks);
}
