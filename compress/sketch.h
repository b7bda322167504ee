// SPDX-License-Identifier: Apache-2.0
// A sketch of an update: a thousand numbers that give the angle between two updates, without
// keeping either.
//
//     bucket(g) += sign(i) · x_i                g: the group of element i in its unit;
//                                               sign: ±1 by a hash of i
//     <a, b> ≈ Σ buckets of a · buckets of b    exact on average, error about |a||b| / √CMP_SKETCH
//
// Units of up to CMP_SKETCH elements have groups of one element, larger units have longer groups,
// of at most 64. For every codec an element falls into the same bucket. The sketch is not on the
// exact path: it shows outliers, and members need not agree on what it shows.
//
// Source: Alon, Matias, Szegedy 1996 (tug-of-war sketch).
#ifndef CMP_SKETCH_H
#define CMP_SKETCH_H
#include "agent/base/bytes.h"

enum { CMP_SKETCH = 1024 };

// Where the elements of a unit go, for the codecs (ops.h). A group has `length` elements.
enum { CMP_GROUP_MAX = 64 };
struct cmp_place {
    float *sketch;
    uint64_t salt; // of the unit
    size_t length;
    float sign[CMP_GROUP_MAX]; // for each place in a group
};

static inline uint64_t cmp_mix(uint64_t x) { // splitmix64, as in agent/base/rng.h
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline void cmp_place_add(const struct cmp_place *p, size_t group, float sum) {
    uint64_t h = cmp_mix(p->salt + group);
    p->sketch[(p->salt + group) % CMP_SKETCH] += h & 1 ? sum : -sum;
}

struct cmp_frame;
// Adds a unit of n elements whose frame was read and checked. raw: its unpacked streams. unit: its
// number in the update.
void cmp_sketch_add(float sketch[CMP_SKETCH], uint32_t unit, const struct cmp_frame *h,
                    const struct neb_buf *raw, size_t n);
// Cosine of the angle between a and b, (CMP_SKETCH) each. 0 if one is all zeros or not finite.
double cmp_sketch_cosine(const float *a, const float *b);

#endif
