// SPDX-License-Identifier: Apache-2.0
// The reference's ops on a cache of keys and values.
#include "kernels/ref.h"

#include <math.h>
#include <string.h>

static size_t width_of(const struct kern_cache *c) {
    return (size_t)c->n_kv_heads * (size_t)c->head_dim;
}
static float *row_of(const struct kern_cache *c, void *x, int32_t slot, int32_t position) {
    NEB_ASSERT(position >= 0 && position < c->longest);
    return (float *)x + ((size_t)slot * (size_t)c->longest + (size_t)position) * width_of(c);
}

void ref_cache_put(struct kern *K, enum kern_type t, const struct kern_cache *c, int B, int T,
                   const int32_t *slot, const int32_t *at, const void *k, const void *v, int ld) {
    size_t bytes = width_of(c) * sizeof(float);
    (void)K, (void)t;
    for (int b = 0; b < B; b++)
        for (int i = 0; i < T; i++) {
            size_t from = (size_t)(b * T + i) * (size_t)ld;
            memcpy(row_of(c, c->k, slot[b], at[b] + i), (const float *)k + from, bytes);
            memcpy(row_of(c, c->v, slot[b], at[b] + i), (const float *)v + from, bytes);
        }
}

void ref_cache_copy(struct kern *K, enum kern_type t, const struct kern_cache *c,
                    const int32_t *pairs, int m, int n) {
    (void)K, (void)t;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            int32_t from = pairs[2 * i], to = pairs[2 * i + 1];
            memcpy(row_of(c, c->k, to, j), row_of(c, c->k, from, j), width_of(c) * sizeof(float));
            memcpy(row_of(c, c->v, to, j), row_of(c, c->v, from, j), width_of(c) * sizeof(float));
        }
}

static double score(const struct kern_cache *c, const float *q, const float *k) {
    double dot = 0;
    for (int e = 0; e < c->head_dim; e++)
        dot += (double)q[e] * (double)k[e];
    return dot / sqrt((double)c->head_dim);
}

void ref_cache_attn(struct kern *K, enum kern_type t, const struct kern_cache *c, int B,
                    const int32_t *slot, const int32_t *at, void *out, int ldo, const void *q,
                    int ldq) {
    int D = c->head_dim, group = c->n_heads / c->n_kv_heads;
    (void)K, (void)t;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < c->n_heads; h++) {
            const float *qh = (const float *)q + (size_t)b * (size_t)ldq + h * D;
            float *oh = (float *)out + (size_t)b * (size_t)ldo + h * D;
            double max = -INFINITY, sum = 0, acc[256] = {0};
            for (int j = 0; j <= at[b]; j++)
                max = fmax(max, score(c, qh, row_of(c, c->k, slot[b], j) + h / group * D));
            for (int j = 0; j <= at[b]; j++) {
                double p = exp(score(c, qh, row_of(c, c->k, slot[b], j) + h / group * D) - max);
                sum += p;
                for (int e = 0; e < D; e++)
                    acc[e] += p * (double)row_of(c, c->v, slot[b], j)[h / group * D + e];
            }
            for (int e = 0; e < D; e++)
                oh[e] = (float)(acc[e] / sum);
        }
}
