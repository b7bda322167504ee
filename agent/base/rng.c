// SPDX-License-Identifier: Apache-2.0
#include "agent/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct neb_rng neb_rng_make(uint64_t seed, uint64_t stream) {
    struct neb_rng r;
    uint64_t x =
        neb_mix64(seed + 0x9e3779b97f4a7c15ull) ^ neb_mix64(stream * 0xd1342543de82ef95ull + 1);
    for (int i = 0; i < 4; i++) {
        x += 0x9e3779b97f4a7c15ull;
        r.s[i] = neb_mix64(x);
    }
    return r;
}

static inline uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

uint64_t neb_rng_u64(struct neb_rng *r) {
    uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

__extension__ typedef unsigned __int128 wide;

// Lemire's multiply-shift with rejection: unbiased, and almost never a second draw.
uint64_t neb_rng_below(struct neb_rng *r, uint64_t n) {
    wide m = (wide)neb_rng_u64(r) * n;
    if ((uint64_t)m < n) {
        uint64_t threshold = -n % n;
        while ((uint64_t)m < threshold)
            m = (wide)neb_rng_u64(r) * n;
    }
    return (uint64_t)(m >> 64);
}

double neb_rng_unit(struct neb_rng *r) { return (double)(neb_rng_u64(r) >> 11) * 0x1p-53; }

// Our own log and cos use only + - x /, so that a model's initial parameters have the same bits on
// all clusters. The results of a C library may differ in the last bit between releases and
// processors. The loops run over many numbers, term by term, so that a compiler can vectorise them.
enum { LANES = 64 };

static inline void exact_log(double *x, int n) { // x in (0, 1], normal; n <= LANES
    static const double term[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                  1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    double e[LANES], s[LANES], s2[LANES], sum[LANES];
    for (int i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        int exponent = (int)(bits >> 52) - 1022;
        bits = (bits & 0xfffffffffffffull) | 0x3fe0000000000000ull;
        double m, twice; // m in [0.5, 1), x = m 2^exponent
        memcpy(&m, &bits, sizeof m);
        twice = 2 * m;
        bool low = m < 0.70710678118654752;
        m = low ? twice : m;
        e[i] = exponent - low;
        s[i] = (m - 1) / (m + 1); // |s| < 0.172: log m = 2 (s + s^3/3 + s^5/5 + ...)
        s2[i] = s[i] * s[i];
        sum[i] = 0;
    }
    for (size_t k = 0; k < sizeof term / sizeof *term; k++)
        for (int i = 0; i < n; i++)
            sum[i] = sum[i] * s2[i] + term[k];
    for (int i = 0; i < n; i++)
        x[i] = e[i] * 0.69314718055994531 + 2 * s[i] * sum[i];
}

// cos(2 pi v), v in [0, 1). x lies within pi / 4 of a quarter turn. The loop computes the series of
// the cosine or of the sine there; they differ only in their divisors.
static inline void exact_cos_turns(double *v, int n) {
    double x[LANES], x2[LANES], sum[LANES], sine[LANES]; // sine: 1 or 0
    int32_t quarter[LANES];
    for (int i = 0; i < n; i++) {
        quarter[i] = (int32_t)(v[i] * 4 + 0.5);
        x[i] = 6.2831853071795865 * (v[i] - quarter[i] * 0.25);
        x2[i] = x[i] * x[i];
        sine[i] = quarter[i] & 1;
        sum[i] = 0;
    }
    for (int k = 18; k >= 2; k -= 2) {
        double cosine_by = k * (k - 1), more = 2 * k;
        for (int i = 0; i < n; i++)
            sum[i] = (1 + sum[i]) * -x2[i] / (cosine_by + more * sine[i]);
    }
    for (int i = 0; i < n; i++) {
        double y = (quarter[i] & 1 ? x[i] : 1) * (1 + sum[i]);
        v[i] = (quarter[i] + 1) & 2 ? -y : y;
    }
}

// Each normal number uses two draws.
static inline void normals(struct neb_rng *r, float *out, int n) {
    double u[LANES], v[LANES];
    for (int i = 0; i < n; i++) {
        u[i] = 1.0 - neb_rng_unit(r); // in (0, 1]
        v[i] = neb_rng_unit(r);
    }
    exact_log(u, n);
    exact_cos_turns(v, n);
    for (int i = 0; i < n; i++)
        out[i] = (float)(sqrt(-2.0 * u[i]) * v[i]);
}

void neb_rng_normals(struct neb_rng *r, float *out, size_t n) {
    for (; n >= LANES; n -= LANES, out += LANES)
        normals(r, out, LANES);
    normals(r, out, (int)n);
}

void neb_rng_skip_normals(struct neb_rng *r, uint64_t n) {
    for (uint64_t i = 0; i < 2 * n; i++)
        neb_rng_u64(r);
}

float neb_rng_normal(struct neb_rng *r) {
    float x;
    normals(r, &x, 1);
    return x;
}
