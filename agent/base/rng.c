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

float neb_rng_normal(struct neb_rng *r) {
    double u = 1.0 - neb_rng_unit(r), v = neb_rng_unit(r); // u in (0, 1]
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
