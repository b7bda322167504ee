// SPDX-License-Identifier: Apache-2.0
// Decoding on processors: ops on a cache of keys and values. A task is one head of one sequence. It
// goes through the keys in blocks, whose scores stay in the first-level cache, with a running
// maximum and sum.
#include "kernels/clones.h"
#include "kernels/cpu.h"

#include <math.h>
#include <string.h>

enum { KEYS = 64, LANES = 16, DIMS_MOST = 256 };

static size_t width_of(const struct kern_cache *c) {
    return (size_t)c->n_kv_heads * (size_t)c->head_dim;
}
static size_t slot_at(const struct kern_cache *c, int32_t slot, int32_t position) {
    return ((size_t)slot * (size_t)c->longest + (size_t)position) * width_of(c);
}

void cpu_cache_put(struct kern *K, enum kern_type t, const struct kern_cache *c, int B, int T,
                   const int32_t *slot, const int32_t *at, const void *k, const void *v, int ld) {
    size_t bytes = width_of(c) * sizeof(float);
    (void)K;
    NEB_ASSERT(t == KERN_F32);
    for (int b = 0; b < B; b++) {
        NEB_ASSERT(at[b] >= 0 && at[b] + T <= c->longest);
        for (int i = 0; i < T; i++) {
            size_t from = (size_t)(b * T + i) * (size_t)ld, to = slot_at(c, slot[b], at[b] + i);
            memcpy((float *)c->k + to, (const float *)k + from, bytes);
            memcpy((float *)c->v + to, (const float *)v + from, bytes);
        }
    }
}

void cpu_cache_copy(struct kern *K, enum kern_type t, const struct kern_cache *c,
                    const int32_t *pairs, int m, int n) {
    size_t bytes = (size_t)n * width_of(c) * sizeof(float);
    (void)K;
    NEB_ASSERT(t == KERN_F32 && n <= c->longest);
    for (int i = 0; i < m; i++) {
        size_t from = slot_at(c, pairs[2 * i], 0), to = slot_at(c, pairs[2 * i + 1], 0);
        memcpy((float *)c->k + to, (float *)c->k + from, bytes);
        memcpy((float *)c->v + to, (float *)c->v + from, bytes);
    }
}

struct attn_job {
    const struct kern_cache *c;
    const int32_t *slot, *at;
    float *out;
    const float *q;
    int ldo, ldq;
};

// The sums of LANES columns are kept apart, so the order of the additions does not depend on the
// width of vectors.
static inline float dot(const float *a, const float *b, int D) {
    float s[LANES] = {0}, sum = 0;
    int e = 0;
    for (; e + LANES <= D; e += LANES)
        for (int i = 0; i < LANES; i++)
            s[i] += a[e + i] * b[e + i];
    for (int i = 0; e < D; e++, i++)
        s[i] += a[e] * b[e];
    for (int i = 0; i < LANES; i++)
        sum += s[i];
    return sum;
}

KERN_CLONES static void head(const struct attn_job *j, int b, int h) {
    const struct kern_cache *c = j->c;
    int D = c->head_dim, n = j->at[b] + 1;
    size_t width = width_of(c),
           first = slot_at(c, j->slot[b], 0) + (size_t)(h / (c->n_heads / c->n_kv_heads) * D);
    const float *q = j->q + (size_t)b * (size_t)j->ldq + (size_t)(h * D),
                *k = (const float *)c->k + first, *v = (const float *)c->v + first;
    float *out = j->out + (size_t)b * (size_t)j->ldo + (size_t)(h * D), acc[DIMS_MOST] = {0},
          scale = 1 / sqrtf((float)D), max = -INFINITY, sum = 0;
    for (int from = 0; from < n; from += KEYS) {
        int keys = n - from < KEYS ? n - from : KEYS;
        float s[KEYS], top = max;
        for (int i = 0; i < keys; i++) {
            s[i] = scale * dot(q, k + (size_t)(from + i) * width, D);
            top = s[i] > top ? s[i] : top;
        }
        float shrink = expf(max - top);
        sum *= shrink;
        for (int e = 0; e < D; e++)
            acc[e] *= shrink;
        for (int i = 0; i < keys; i++) {
            const float *row = v + (size_t)(from + i) * width;
            float p = expf(s[i] - top);
            sum += p;
            for (int e = 0; e < D; e++)
                acc[e] += p * row[e];
        }
        max = top;
    }
    for (int e = 0; e < D; e++)
        out[e] = acc[e] / sum;
}

static void attend(void *arg, size_t i) {
    const struct attn_job *j = arg;
    head(j, (int)(i / (size_t)j->c->n_heads), (int)(i % (size_t)j->c->n_heads));
}

void cpu_cache_attn(struct kern *K, enum kern_type t, const struct kern_cache *c, int B,
                    const int32_t *slot, const int32_t *at, void *out, int ldo, const void *q,
                    int ldq) {
    struct attn_job j = {c, slot, at, out, q, ldo, ldq};
    NEB_ASSERT(t == KERN_F32 && c->head_dim <= DIMS_MOST);
    for (int b = 0; b < B; b++)
        NEB_ASSERT(at[b] >= 0 && at[b] < c->longest);
    kern_pool_run(K->pool, (size_t)B * (size_t)c->n_heads, attend, &j);
}
