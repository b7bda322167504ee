// SPDX-License-Identifier: Apache-2.0
// Sketches of updates (sketch.h).
#include "compress/sketch.h"
#include "compress/frame.h"
#include "kernels/clones.h"
#include "kernels/exact.h"
#include "kernels/quant.h"

#include <math.h>

enum { GROUP_MAX = 64, PIECE = 4096, LANES = 8 };

static uint64_t mix(uint64_t x) { // splitmix64, as in agent/base/rng.h
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static size_t group_length(size_t n) {
    size_t g = 1;
    while (g < GROUP_MAX && n > g * CMP_SKETCH)
        g *= 2;
    return g;
}

struct place {
    float *sketch;
    uint64_t salt;         // of the unit
    size_t length;         // elements of a group
    float sign[GROUP_MAX]; // for each place in a group
};

static void put(const struct place *p, size_t group, float sum) {
    uint64_t h = mix(p->salt + group);
    p->sketch[(p->salt + group) % CMP_SKETCH] += h & 1 ? sum : -sum;
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
static void add_floats(const struct place *p, const float *x, size_t at, size_t n) {
    for (size_t k = 0; k < n; k += p->length)
        put(p, (at + k) / p->length,
            signed_sum(x + k, p->sign, n - k < p->length ? n - k : p->length));
}

static void add_topk(const struct place *p, const struct cmp_frame *h, const struct neb_buf *raw,
                     size_t n) {
    unsigned bits = (unsigned)h->codec.bits, each = 8 / bits;
    const uint8_t *gap = raw[1].p;
    size_t e = 0;
    for (size_t at = 0, chunk = 0; at < n; at += h->codec.chunk, chunk++) {
        size_t len = n - at < h->codec.chunk ? n - at : h->codec.chunk, i = at;
        float scale = kern_scale_value(raw[0].p[chunk], h->top);
        for (size_t k = cmp_frame_chunk_k(&h->codec, len); k > 0; k--, e++, i++) {
            for (; *gap == CMP_GAP_ESCAPE; gap++)
                i += CMP_GAP_ESCAPE;
            i += *gap++;
            unsigned code = raw[2].p[e / each] >> (e % each * bits) & ((1u << bits) - 1);
            float v = h->mags[code >> 1] * scale;
            put(p, i / p->length, p->sign[i % p->length] * (code & 1 ? -v : v));
        }
    }
}

void cmp_sketch_add(float sketch[CMP_SKETCH], uint32_t unit, const struct cmp_frame *h,
                    const struct neb_buf *raw, size_t n) {
    struct place p = {.sketch = sketch, .salt = mix(unit) >> 32, .length = group_length(n)};
    float x[PIECE];
    uint64_t signs = mix(0);
    for (int i = 0; i < GROUP_MAX; i++)
        p.sign[i] = signs >> i & 1 ? 1.0f : -1.0f;
    if (h->codec.id == CMP_TOPK) {
        add_topk(&p, h, raw, n);
        return;
    }
    for (size_t at = 0; at < n; at += PIECE) {
        size_t k = n - at < PIECE ? n - at : PIECE;
        if (h->codec.id == CMP_FP32)
            cmp_frame_floats(x, raw[0].p + 4 * at, k);
        else if (h->codec.id == CMP_BF16)
            kern_bf16_join(x, raw[0].p + at, raw[1].p + at, k);
        else
            cmp_blocks_read(h, raw, at, x, k);
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
