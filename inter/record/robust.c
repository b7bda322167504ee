// SPDX-License-Identifier: Apache-2.0
#include "inter/record/robust.h"

#include "kernels/exact.h"
#include "kernels/pool.h"

#include <math.h>
#include <string.h>

static const float clip_least = 1e-6f; // a clip factor in a record is never 0
static const float agree_within = 1e-3f;

float inter_robust_median(const struct inter_record *r, const float norms[NEB_MEMBERS_MAX]) {
    float v[NEB_MEMBERS_MAX];
    size_t n = 0;
    for (uint8_t i = 0; i < r->n; i++) {
        if (r->entries[i].verdict != INTER_ACCEPTED)
            continue;
        float x = norms[r->entries[i].member];
        size_t at = n++;
        for (; at > 0 && v[at - 1] > x; at--)
            v[at] = v[at - 1];
        v[at] = x;
    }
    return n ? v[(n - 1) / 2] : 0;
}

static float factor(float median, float norm) {
    float f = norm > median ? median / norm : 1;
    return f > clip_least ? f : clip_least;
}

void inter_robust_clip(struct inter_record *r, const float norms[NEB_MEMBERS_MAX]) {
    float median = inter_robust_median(r, norms);
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].verdict == INTER_ACCEPTED)
            r->entries[i].clip = factor(median, norms[r->entries[i].member]);
}

bool inter_robust_agrees(const struct inter_record *r, const float norms[NEB_MEMBERS_MAX]) {
    float median = inter_robust_median(r, norms);
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        float want = factor(median, norms[e->member]);
        if (e->verdict == INTER_ACCEPTED && !(fabsf(e->clip - want) <= agree_within * want))
            return false;
    }
    return true;
}

// Bit p is set if x[p] is neither among the `trim` smallest nor among the `trim` largest of n.
static uint32_t keep(const float *x, size_t n, size_t trim) {
    uint8_t order[NEB_MEMBERS_MAX] = {0};
    uint32_t kept = 0;
    for (size_t p = 0; p < n; p++) { // stable insertion sort: equal values stay in member order
        size_t at = p;
        for (; at > 0 && x[order[at - 1]] > x[p]; at--)
            order[at] = order[at - 1];
        order[at] = (uint8_t)p;
    }
    for (size_t k = trim; k < n - trim; k++)
        kept |= 1u << order[k];
    return kept;
}

void inter_robust_mean(float *acc, const float *x, const float *w, const float *clip, size_t n,
                       size_t rows, size_t cols) {
    size_t trim = inter_robust_trim(n);
    unsigned was = kern_exact_enter();
    for (size_t i = 0; i < rows * cols; i++) {
        float v[NEB_MEMBERS_MAX], sum = 0, weight = 0;
        for (size_t p = 0; p < n; p++)
            v[p] = x[p * rows * cols + i] * clip[p];
        uint32_t kept = keep(v, n, trim);
        for (size_t p = 0; p < n; p++)
            if (kept >> p & 1) {
                float share = w[p * rows + i / cols];
                sum = sum + share * v[p];
                weight = weight + share;
            }
        acc[i] = weight > 0 ? sum / weight : 0;
    }
    kern_exact_leave(was);
}
