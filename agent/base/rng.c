#include "agent/base/rng.h"

#include <math.h>

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

// Lemire's multiply-shift with rejection: unbiased, almost never a second draw.
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

// log and cos of our own: + - x / and frexp only, so that a model's first parameters have the same bits on all clusters. A
// C library's may differ in the last place between releases, and between processors with and without FMA.
static double exact_log(double x) { // x in (0, 1], normal
    int e;
    double m = frexp(x, &e), sum = 0; // m in [0.5, 1)
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s; // |s| < 0.172: log m = 2 (s + s^3/3 + s^5/5 + ...)
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return e * 0.69314718055994531 + 2 * s * sum;
}

static double exact_cos_turns(double v) { // cos(2 pi v), v in [0, 1)
    int quarter = (int)(v * 4 + 0.5);
    // |x| <= pi / 4
    double x = 6.2831853071795865 * (v - quarter * 0.25), x2 = x * x, cosine = 0, sine = 0;
    for (int k = 18; k >= 2; k -= 2) {
        cosine = (1 + cosine) * -x2 / (k * (k - 1));
        sine = (1 + sine) * -x2 / (k * (k + 1));
    }
    cosine += 1;
    sine = x * (1 + sine);
    switch (quarter & 3) {
    case 0: return cosine;
    case 1: return -sine;
    case 2: return -cosine;
    default: return sine;
    }
}

float neb_rng_normal(struct neb_rng *r) {
    double u = 1.0 - neb_rng_unit(r), v = neb_rng_unit(r); // u in (0, 1]
    return (float)(sqrt(-2.0 * exact_log(u)) * exact_cos_turns(v));
}
