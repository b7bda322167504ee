// SPDX-License-Identifier: Apache-2.0
// BLEU with the 13a tokenizer. Its rules concern ASCII characters only, so they work on the bytes
// of UTF-8. Each rule reads what the rule before it wrote:
//
//     <skipped> goes; a hyphen before a newline goes; a newline is a space; entities are replaced
//     a symbol other than . , - '                              gets spaces on both sides
//     . or , after a non-digit; then before one; - after a digit   get spaces on both sides
#include "agent/base/bytes.h"
#include "agent/base/rng.h"
#include "intra/model/score.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ORDERS = 4 };

static bool digit(int c) { return c >= '0' && c <= '9'; }
static bool stop(int c) { return c == '.' || c == ','; }
static bool symbol(int c) {
    return (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') || c == '/' || (c >= ':' && c <= '@') ||
           (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

static void put(struct neb_buf *b, const void *text, size_t n) { neb_buf_add(b, text, n); }

static void replace(struct neb_buf *out, const char *from, const char *to,
                    const struct neb_buf *in) {
    size_t n = strlen(from);
    neb_buf_clear(out);
    for (size_t i = 0; i < in->len;) {
        bool is = in->len - i >= n && !memcmp(in->p + i, from, n);
        put(out, is ? (const void *)to : in->p + i, is ? strlen(to) : 1);
        i += is ? n : 1;
    }
}

static void symbols(struct neb_buf *out, const struct neb_buf *in) {
    neb_buf_clear(out);
    for (size_t i = 0; i < in->len; i++) {
        size_t around = symbol(in->p[i]);
        put(out, " ", around);
        put(out, in->p + i, 1);
        put(out, " ", around);
    }
}

enum rule { STOP_AFTER, STOP_BEFORE, HYPHEN_AFTER };

// Parts two neighbours. Matches do not overlap.
static void neighbours(struct neb_buf *out, enum rule rule, const struct neb_buf *in) {
    neb_buf_clear(out);
    for (size_t i = 0; i < in->len; i++) {
        const uint8_t *p = in->p + i;
        bool is = i + 1 < in->len && (rule == STOP_AFTER    ? !digit(p[0]) && stop(p[1])
                                      : rule == STOP_BEFORE ? stop(p[0]) && !digit(p[1])
                                                            : digit(p[0]) && p[1] == '-');
        put(out, " ", is && rule == STOP_BEFORE);
        put(out, p, 1);
        put(out, " ", is);
        put(out, p + 1, is);
        put(out, " ", is && rule != STOP_BEFORE);
        i += is;
    }
}

// Makes words with spaces between them of a text; b: scratch. The result is NUL-terminated in *a.
static enum neb_status tokenize(const char *text, struct neb_buf *a, struct neb_buf *b) {
    static const char *const pairs[][2] = {{"<skipped>", ""}, {"-\n", ""},    {"\n", " "},
                                           {"&quot;", "\""},  {"&amp;", "&"}, {"&lt;", "<"},
                                           {"&gt;", ">"}};
    struct neb_buf *from = a, *to = b;
    put(from, " ", 1);
    put(from, text, strlen(text));
    put(from, " ", 1);
    NEB_TRY(neb_buf_check(from));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs + 4; i++) {
        size_t rule = i - sizeof pairs / sizeof *pairs;
        if (i < sizeof pairs / sizeof *pairs)
            replace(to, pairs[i][0], pairs[i][1], from);
        else if (rule == 0)
            symbols(to, from);
        else
            neighbours(to, (enum rule)(rule - 1), from);
        NEB_TRY(neb_buf_check(to));
        struct neb_buf *swap = from;
        from = to;
        to = swap;
    }
    NEB_ASSERT(from == b); // an odd number of rules
    neb_buf_clear(a);
    put(a, b->p, b->len);
    put(a, "", 1);
    return neb_buf_check(a);
}

// Hashes of the words of a text: *n of them, malloc'ed. NULL: out of memory.
static uint64_t *words(const char *text, size_t *n) {
    struct neb_buf a = {0}, b = {0};
    uint64_t *out = NULL, h = 0;
    *n = 0;
    if (tokenize(text, &a, &b) == NEB_OK)
        out = malloc(a.len * sizeof *out);
    for (const unsigned char *p = a.p; out && *p;) {
        uint32_t c = intra_score_char(&p);
        bool space = intra_score_space(c);
        if (space && h)
            out[(*n)++] = h;
        h = space ? 0 : neb_mix64((h + 1) * 0x9e3779b97f4a7c15ull + c) | 1;
    }
    neb_buf_free(&a);
    neb_buf_free(&b);
    return out;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static size_t grams(const uint64_t *w, size_t n, size_t order, uint64_t *out) {
    size_t k = n >= order ? n - order + 1 : 0;
    for (size_t i = 0; i < k; i++) {
        uint64_t h = order;
        for (size_t j = 0; j < order; j++)
            h = neb_mix64(h * 0x9e3779b97f4a7c15ull + w[i + j]);
        out[i] = h;
    }
    qsort(out, k, sizeof *out, by_value);
    return k;
}

enum neb_status intra_bleu_add(struct intra_bleu *c, const char *hypothesis,
                               const char *reference) {
    size_t n = 0, m = 0;
    uint64_t *h = words(hypothesis, &n), *r = words(reference, &m),
             *a = malloc((n + 1) * sizeof *a), *b = malloc((m + 1) * sizeof *b);
    bool good = h && r && a && b;
    for (size_t order = 1; good && order <= ORDERS; order++) {
        size_t x = grams(h, n, order, a), y = grams(r, m, order, b), match = 0;
        for (size_t i = 0, j = 0; i < x && j < y;) {
            bool equal = a[i] == b[j], less = a[i] < b[j];
            match += equal;
            i += equal || less;
            j += equal || !less;
        }
        c->match[order - 1] += (int64_t)match;
        c->hypothesis[order - 1] += (int64_t)x;
    }
    c->hypothesis_words += (int64_t)n;
    c->reference_words += (int64_t)m;
    free(h);
    free(r);
    free(a);
    free(b);
    return good ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory comparing a translation");
}

double intra_bleu_score(const struct intra_bleu *c) {
    double sum = 0, smooth = 1, words_ = (double)c->hypothesis_words;
    for (int i = 0; i < ORDERS; i++) {
        double all = (double)c->hypothesis[i], match = (double)c->match[i];
        if (!c->match[0] || !c->hypothesis[i])
            return 0;
        if (!c->match[i])
            smooth *= 2; // halves the share of each further order without a match
        sum += log(100 * (c->match[i] ? match : 1 / smooth) / all);
    }
    double brevity =
        words_ < (double)c->reference_words ? exp(1 - (double)c->reference_words / words_) : 1;
    return brevity * exp(sum / ORDERS);
}
