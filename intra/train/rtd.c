// SPDX-License-Identifier: Apache-2.0
#include "intra/train/rtd.h"
#include "agent/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int32_t intra_mask_positions(uint64_t seed, uint64_t index, double rate, int32_t n_special,
                             const int32_t *tokens, int32_t n, int32_t *positions) {
    struct neb_rng rng = neb_rng_make(seed, index);
    int32_t count = 0, first = -1;
    for (int32_t i = 0; i < n; i++) {
        double u = neb_rng_unit(&rng);
        if (tokens[i] < n_special)
            continue;
        first = first < 0 ? i : first;
        if (u < rate)
            positions[count++] = i;
    }
    if (!count && first >= 0)
        positions[count++] = first;
    return count;
}

void intra_mask_apply(const int32_t *tokens, int32_t n, const int32_t *positions, int32_t n_masked,
                      int32_t mask_id, int32_t *inputs, int32_t *targets) {
    memcpy(inputs, tokens, (size_t)n * sizeof *inputs);
    for (int32_t i = 0; i < n; i++)
        targets[i] = KERN_IGNORE;
    for (int32_t i = 0; i < n_masked; i++) {
        targets[positions[i]] = tokens[positions[i]];
        inputs[positions[i]] = mask_id;
    }
}

int32_t intra_rtd_apply(const int32_t *tokens, int32_t n, const int32_t *positions,
                        const int32_t *ids, int32_t n_masked, int32_t *inputs, int32_t *labels) {
    int32_t replaced = 0;
    memcpy(inputs, tokens, (size_t)n * sizeof *inputs);
    memset(labels, 0, (size_t)n * sizeof *labels);
    for (int32_t i = 0; i < n_masked; i++) {
        int32_t at = positions[i];
        inputs[at] = ids[i];
        labels[at] = ids[i] != tokens[at];
        replaced += labels[at];
    }
    return replaced;
}

void intra_mask_draws(uint64_t seed, uint64_t index, int32_t n, double *u) {
    struct neb_rng rng = neb_rng_make(seed, index);
    for (int32_t i = 0; i < n; i++)
        u[i] = neb_rng_unit(&rng);
}

// ---- detection ----------------------------------------------------------------------------------

struct scored {
    float score;
    int32_t label;
};

static int by_score(const void *a, const void *b) {
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return (x > y) - (x < y);
}

double intra_rtd_auc(const float *scores, const int32_t *labels, size_t n) {
    struct scored *s = malloc((n + 1) * sizeof *s);
    double above = 0; // pairs in the right order
    size_t ones = 0, zeros = 0;
    bool ordered = s != NULL;
    for (size_t i = 0; ordered && i < n; i++) {
        s[i] = (struct scored){scores[i], labels[i]};
        ordered = !isnan(scores[i]);
    }
    if (!ordered) {
        free(s);
        return NAN;
    }
    qsort(s, n, sizeof *s, by_score);
    for (size_t i = 0, end; i < n; i = end) { // equal scores together
        size_t one = 0, zero = 0;
        for (end = i; end < n && s[end].score == s[i].score; end++)
            s[end].label == 1 ? one++ : zero++;
        above += (double)one * ((double)zeros + (double)zero / 2);
        ones += one;
        zeros += zero;
    }
    free(s);
    return ones && zeros ? above / ((double)ones * (double)zeros) : NAN;
}
