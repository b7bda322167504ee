// SPDX-License-Identifier: Apache-2.0
// The character n-gram F-score. Each n-gram becomes a 64-bit hash of its code points. The hashes of
// both sentences are sorted and merged, so the clipped matches need no table.
#include "agent/base/rng.h"
#include "intra/model/score.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ORDERS = 6 };

bool intra_score_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= ' ') || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

uint32_t intra_score_char(const unsigned char **p) {
    unsigned char b = *(*p)++;
    int more = b < 0x80 ? 0 : b >> 5 == 6 ? 1 : b >> 4 == 14 ? 2 : b >> 3 == 30 ? 3 : 0;
    uint32_t c = more == 0 ? b : b & (0x3fu >> more);
    for (; more > 0 && **p >> 6 == 2; more--)
        c = c << 6 | (*(*p)++ & 0x3f);
    return c;
}

// The *n code points of a UTF-8 string, without white space. malloc'ed; NULL: out of memory.
static uint32_t *code_points(const char *s, size_t *n) {
    uint32_t *out = malloc((strlen(s) + 1) * sizeof *out);
    *n = 0;
    for (const unsigned char *p = (const unsigned char *)s; out && *p;) {
        uint32_t c = intra_score_char(&p);
        if (!intra_score_space(c))
            out[(*n)++] = c;
    }
    return out;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static size_t grams(const uint32_t *c, size_t n, size_t order, uint64_t *out) {
    size_t k = n >= order ? n - order + 1 : 0;
    for (size_t i = 0; i < k; i++) {
        uint64_t h = order;
        for (size_t j = 0; j < order; j++)
            h = neb_mix64(h * 0x9e3779b97f4a7c15ull + c[i + j]);
        out[i] = h;
    }
    qsort(out, k, sizeof *out, by_value);
    return k;
}

enum neb_status intra_chrf_add(struct intra_chrf *c, const char *hypothesis,
                               const char *reference) {
    size_t n = 0, m = 0;
    uint32_t *h = code_points(hypothesis, &n), *r = code_points(reference, &m);
    uint64_t *a = malloc((n + 1) * sizeof *a), *b = malloc((m + 1) * sizeof *b);
    bool good = h && r && a && b;
    for (size_t order = 1; good && order <= ORDERS; order++) {
        size_t x = grams(h, n, order, a), y = grams(r, m, order, b), match = 0;
        for (size_t i = 0, j = 0; i < x && j < y;) {
            match += a[i] == b[j];
            bool equal = a[i] == b[j], less = a[i] < b[j];
            i += equal || less;
            j += equal || !less;
        }
        c->match[order - 1] += (double)match;
        // A reference without n-grams of this order does not count against the hypothesis.
        c->hypothesis[order - 1] += y ? (double)x : 0;
        c->reference[order - 1] += (double)y;
    }
    free(h);
    free(r);
    free(a);
    free(b);
    return good ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory comparing a translation");
}

double intra_chrf_score(const struct intra_chrf *c) {
    double precision = 0, recall = 0;
    int orders = 0;
    for (int i = 0; i < ORDERS; i++) {
        if (!(c->hypothesis[i] > 0) || !(c->reference[i] > 0))
            continue;
        precision += c->match[i] / c->hypothesis[i];
        recall += c->match[i] / c->reference[i];
        orders++;
    }
    if (!orders || !(precision + recall > 0))
        return 0;
    precision /= orders;
    recall /= orders;
    return 100 * 5 * precision * recall / (4 * precision + recall);
}
