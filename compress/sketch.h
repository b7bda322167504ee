// SPDX-License-Identifier: Apache-2.0
// A sketch of an update: a thousand numbers from which the angle between two updates is known, without keeping either.
//
//     bucket(g) += sign(i) · x_i        g: which group of its unit element i is in; sign: ±1 by a hash of i
//     <a, b> ≈ Σ buckets of a · buckets of b           exact on average, off by about |a||b| / √CMP_SKETCH
//
// Units of up to CMP_SKETCH elements have groups of one, larger ones longer groups, 64 at most. Whatever codec an update came in, its
// elements fall into the same buckets. Not on the exact path: it tells what stands out, and decides nothing that members must agree on.
//
// Source: Alon, Matias, Szegedy 1996 (tug-of-war sketch).
#ifndef CMP_SKETCH_H
#define CMP_SKETCH_H
#include "agent/base/bytes.h"

enum { CMP_SKETCH = 1024 };

struct cmp_frame;
// Adds a unit of n elements, whose frame was read and checked: raw are its streams, unpacked. `unit` is its number in the update.
void cmp_sketch_add(float sketch[CMP_SKETCH], uint32_t unit, const struct cmp_frame *h,
                    const struct neb_buf *raw, size_t n);
// Cosine of the angle between a and b, each (CMP_SKETCH); 0 where one is all zeros, or not finite.
double cmp_sketch_cosine(const float *a, const float *b);

#endif
