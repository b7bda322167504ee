// SPDX-License-Identifier: Apache-2.0
// Sketches of updates (sketch.h).
#include "compress/ops.h"
#include "kernels/clones.h"

#include <math.h>

enum { PIECE = 4096, LANES = 8 };

static size_t group_length(size_t n) {
    size_t g = 1;
    while (g < CMP_GROUP_MAX && n > g * CMP_SKETCH)
        g *= 2;
    return g;
}

KERN_CLONES static float signed_sum(const float *x, const float *sign, size_t n) {
    float lane[LANES] = {0}, sum = 0;
    size_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (size_t j = 0; j < LANES; j++)
            lane[j] += sign[k + j] * x[k + j];
    for (size_t j = 0; k + j < n; j++)
        lane[j] += sign[k + j] * x[k + j];
    for (size_t j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

// Adds elements [at, at + n) of the unit. A group begins at `at`.
static void add_floats(const struct cmp_place *p, const float *x, size_t at, size_t n) {
    for (size_t k = 0; k < n; k += p->length)
        cmp_place_add(p, (at + k) / p->length,
                      signed_sum(x + k, p->sign, n - k < p->length ? n - k : p->length));
}

void cmp_sketch_add(float sketch[CMP_SKETCH], uint32_t unit, const struct cmp_frame *h,
                    const struct neb_buf *raw, size_t n) {
    struct cmp_place p = {.sketch = sketch, .salt = cmp_mix(unit) >> 32, .length = group_length(n)};
    const struct cmp_codec_ops *ops = cmp_ops(&h->codec);
    float x[PIECE];
    uint64_t signs = cmp_mix(0);
    for (int i = 0; i < CMP_GROUP_MAX; i++)
        p.sign[i] = signs >> i & 1 ? 1.0f : -1.0f;
    if (ops->sketch) {
        ops->sketch(&p, h, raw, n);
        return;
    }
    for (size_t at = 0; at < n; at += PIECE) {
        size_t k = n - at < PIECE ? n - at : PIECE;
        ops->read(h, raw, at, x, k);
        add_floats(&p, x, at, k);
    }
}

double cmp_sketch_cosine(const float *a, const float *b) {
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < CMP_SKETCH; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    double norms = sqrt(aa) * sqrt(bb);
    return norms > 0 && isfinite(norms) && isfinite(ab) ? ab / norms : 0;
}
