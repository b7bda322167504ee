// SPDX-License-Identifier: Apache-2.0
// Seeded random numbers, equal on every machine (xoshiro256**, seeded by splitmix64). The state is
// plain data; checkpoints save it field by field. Not for secrets: libsodium makes those. Source:
// Blackman and Vigna, "Scrambled linear pseudorandom number generators", ACM TOMS 2021.
#ifndef NEB_RNG_H
#define NEB_RNG_H
#include <stddef.h>
#include <stdint.h>

struct neb_rng {
    uint64_t s[4];
};

// Independent streams from one seed. `stream` identifies the purpose (cluster, layer, sampler).
struct neb_rng neb_rng_make(uint64_t seed, uint64_t stream);
uint64_t neb_rng_u64(struct neb_rng *r);
uint64_t neb_rng_below(struct neb_rng *r, uint64_t n); // uniform in [0, n), n > 0
double neb_rng_unit(struct neb_rng *r);                // uniform in [0, 1), 53 bits
float neb_rng_normal(struct neb_rng *r);               // mean 0, deviation 1; same bits everywhere
void neb_rng_normals(struct neb_rng *r, float *out, size_t n); // n of these, but faster
void neb_rng_skip_normals(struct neb_rng *r, uint64_t n);      // as if n of them were drawn

// Mixes one 64-bit number without state (splitmix64's finaliser), for hashes and per-index
// randomness.
static inline uint64_t neb_mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

#endif
