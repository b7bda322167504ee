// SPDX-License-Identifier: Apache-2.0
#include "security/noise.h"
#include "agent/base/bytes.h"
#include "agent/base/status.h"

#include <math.h>
#include <sodium.h>
#include <string.h>

enum { STREAM = 1024, STREAM_BLOCK = 64 };

struct bits { // random bits for one block of noise
    const uint8_t *seed;
    uint8_t nonce[crypto_stream_chacha20_NONCEBYTES];
    uint32_t next; // next block of the key stream
    size_t at;
    uint8_t p[STREAM];
};

struct shape {
    uint32_t variance, log_t, mean; // mean: V / t
};

static const uint8_t *take(struct bits *b, size_t n) {
    static const uint8_t zeros[STREAM];
    if (STREAM - b->at < n) {
        crypto_stream_chacha20_xor_ic(b->p, zeros, STREAM, b->nonce, b->next, b->seed);
        b->next += STREAM / STREAM_BLOCK;
        b->at = 0;
    }
    b->at += n;
    return b->p + b->at - n;
}

static uint32_t word(struct bits *b) {
    const uint8_t *p = take(b, 4);
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint32_t half_word(struct bits *b) { // enough bits for t
    const uint8_t *p = take(b, 2);
    return p[0] | (uint32_t)p[1] << 8;
}

// Uniform in [0, n). Draws again where the remainder would favour small results.
static uint32_t below(struct bits *b, uint32_t n) {
    for (;;) {
        uint64_t x = (uint64_t)word(b) * n;
        uint32_t low = (uint32_t)x;
        if (low >= n || low >= (uint32_t)-n % n)
            return (uint32_t)(x >> 32);
    }
}

// True with probability 1 / n.
static bool one_in(struct bits *b, uint32_t n) {
    if (n == 1)
        return true;
    if (n > UINT8_MAX)
        return below(b, n) == 0;
    for (;;) {
        uint32_t x = *take(b, 1) * n, low = x & 255;
        if (low >= n || low >= 256 % n)
            return x >> 8 == 0;
    }
}

// True with probability exp(−r / n), r below n. With g = r / n it draws with chances g/1, g/2, g/3
// … until one fails; the number of the failed draw is odd with this probability.
static bool exp_fraction(struct bits *b, uint32_t r, uint32_t n) {
    uint32_t k = 1;
    while (below(b, n) < r && one_in(b, k))
        k++;
    return k & 1;
}
static bool exp_power_of_two(struct bits *b, uint32_t r, uint32_t log_n) {
    uint32_t k = 1, mask = (1u << log_n) - 1;
    while ((half_word(b) & mask) < r && one_in(b, k))
        k++;
    return k & 1;
}
static bool exp_one(struct bits *b) {
    uint32_t k = 1;
    while (one_in(b, k))
        k++;
    return k & 1;
}

static bool exp_quotient(struct bits *b, uint64_t r, uint32_t n) {
    for (uint64_t whole = r / n; whole > 0; whole--)
        if (!exp_one(b))
            return false;
    return exp_fraction(b, (uint32_t)(r % n), n);
}

static int64_t draw(struct bits *b, const struct shape *s) {
    uint32_t mask = (1u << s->log_t) - 1;
    for (;;) {
        uint32_t u = half_word(b) & mask;
        if (!exp_power_of_two(b, u, s->log_t))
            continue;
        int64_t y = u;
        while (exp_one(b))
            y += (int64_t)1 << s->log_t;
        bool minus = *take(b, 1) & 1;
        if (minus && !y) // zero must not be drawn twice as often
            continue;
        int64_t off = y - s->mean;
        if (exp_quotient(b, (uint64_t)(off * off), 2 * s->variance))
            return minus ? -y : y;
    }
}

// log2 of the power of two nearest to the root of `variance`
static uint32_t log_of(double variance) {
    uint32_t k = 0;
    while ((double)(1ull << (2 * k + 1)) < variance)
        k++;
    return k;
}

uint32_t sec_noise_variance(double least) {
    double v = least > SEC_NOISE_VARIANCE_MIN ? ceil(least) : SEC_NOISE_VARIANCE_MIN;
    NEB_ASSERT(v <= SEC_NOISE_VARIANCE_MAX);
    uint32_t t = 1u << log_of(v);
    return ((uint32_t)v + t - 1) / t * t;
}

void sec_noise_add(const uint8_t seed[SEC_NOISE_SEED_BYTES], uint32_t variance, size_t at,
                   size_t count, bool minus, int16_t *acc) {
    struct bits b = {.seed = seed};
    struct shape s = {variance, log_of(variance), 0};
    s.mean = variance >> s.log_t;
    NEB_ASSERT(variance >= SEC_NOISE_VARIANCE_MIN && s.mean << s.log_t == variance);
    for (size_t block = at / SEC_NOISE_BLOCK; block * SEC_NOISE_BLOCK < at + count; block++) {
        neb_put_u64(b.nonce, block);
        b.next = 0;
        b.at = STREAM;
        for (size_t i = block * SEC_NOISE_BLOCK;
             i < (block + 1) * SEC_NOISE_BLOCK && i < at + count; i++) {
            uint16_t x = (uint16_t)draw(&b, &s);
            if (i >= at)
                acc[i - at] = (int16_t)(uint16_t)((uint16_t)acc[i - at] + (minus ? -x : x));
        }
    }
    sodium_memzero(&b, sizeof b);
}
