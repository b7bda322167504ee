// SPDX-License-Identifier: Apache-2.0
// Soft labels: decoded values are within the grid, sizes are bounded, hostile frames are refused,
// and k follows the link.
#include "agent/base/rng.h"
#include "compress/softlabel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 500, K = 8, VOCAB = 32768 };

struct labels {
    int32_t ids[ROWS * CMP_SOFT_K_MAX];
    float logp[ROWS * CMP_SOFT_K_MAX], tail[ROWS];
};

// Random distributions: a softmax of k falling logits and a tail. The ids are uniform, which is the
// worst case.
static void fill(struct labels *l, int32_t k, int32_t vocab, uint64_t seed) {
    struct neb_rng rng = neb_rng_make(seed, 3);
    for (size_t i = 0; i < ROWS; i++) {
        double p[CMP_SOFT_K_MAX], sum = 0, at = 0, tail = pow(neb_rng_unit(&rng), 3);
        for (int32_t j = 0; j < k; j++) {
            at -= j ? 3 * neb_rng_unit(&rng) : 0;
            sum += p[j] = exp(at);
            bool fresh;
            int32_t *id = &l->ids[i * (size_t)k + (size_t)j];
            do {
                *id = (int32_t)(neb_rng_unit(&rng) * vocab);
                fresh = true;
                for (int32_t b = 0; b < j; b++)
                    fresh = fresh && l->ids[i * (size_t)k + (size_t)b] != *id;
            } while (!fresh);
        }
        for (int32_t j = 0; j < k; j++)
            l->logp[i * (size_t)k + (size_t)j] = (float)log(p[j] / sum * (1 - tail));
        l->tail[i] = (float)tail;
    }
}

// Row i has the same tokens, and probabilities within the grid. Tokens of equal probability may
// have changed places.
static void row_is_near(const struct labels *in, const struct labels *out, size_t i, int32_t k) {
    size_t at = i * (size_t)k;
    double apart = (double)in->tail[i] * log(((double)in->tail[i] + 1e-9) / (double)out->tail[i]);
    assert_true(fabsf(in->tail[i] - out->tail[i]) < 0.02f);
    for (size_t j = at; j < at + (size_t)k; j++) {
        size_t same = at;
        while (same < at + (size_t)k && out->ids[same] != in->ids[j])
            same++;
        assert_true(same < at + (size_t)k && (j == at || out->logp[j] <= out->logp[j - 1]));
        float error = fabsf(in->logp[j] - out->logp[same]);
        apart += exp((double)in->logp[j]) * (double)(in->logp[j] - out->logp[same]);
        if (in->tail[i] < 0.95f) // else these probabilities are small, and their grid is coarse
            assert_true(error < (in->logp[at] - in->logp[j] < 1.9f ? 0.14f : 0.21f));
    }
    assert_true(apart < 0.01); // nats: what the student's loss is off by
}

static void comes_back(void **state) {
    (void)state;
    static struct labels in, out;
    struct cmp_soft *s = NULL;
    static const int32_t ks[] = {1, 4, 8, 64};
    assert_int_equal(cmp_soft_create(&s), NEB_OK);
    for (size_t t = 0; t < sizeof ks / sizeof *ks; t++) {
        int32_t k = ks[t], vocab = t % 2 ? VOCAB : 300;
        struct neb_buf b = {0};
        fill(&in, k, vocab, t);
        struct cmp_soft_head h = {ROWS, k, vocab, 2}, got = {.rows = ROWS, .vocab = vocab};
        assert_int_equal(cmp_soft_encode(s, &h, in.ids, in.logp, in.tail, &b), NEB_OK);
        struct neb_rd r = neb_rd_make(b.p, b.len);
        assert_int_equal(cmp_soft_decode(s, &r, &got, out.ids, out.logp, out.tail), NEB_OK);
        assert_true(neb_rd_done(&r) && got.k == k && got.temperature == 2);
        for (size_t i = 0; i < ROWS; i++)
            row_is_near(&in, &out, i, k);
        neb_buf_free(&b);
    }
    cmp_soft_destroy(&s);
}

static void size_is_bounded(void **state) {
    (void)state;
    static struct labels in;
    struct cmp_soft *s = NULL;
    struct neb_buf b = {0};
    struct cmp_soft_head h = {ROWS, K, VOCAB, 1};
    assert_int_equal(cmp_soft_create(&s), NEB_OK);
    fill(&in, K, VOCAB, 7);
    assert_int_equal(cmp_soft_encode(s, &h, in.ids, in.logp, in.tail, &b), NEB_OK);
    print_message("k 8, vocabulary 32768, uniform ids: %.2f bytes a token\n", (double)b.len / ROWS);
    assert_true((double)b.len / ROWS < 23.2);
    neb_buf_free(&b);
    cmp_soft_destroy(&s);
}

// Text-like labels: a row belongs to one of 60 contexts, whose tokens have logits of their own; the
// row adds noise. Also a frame of one row, and an empty one.
static void likely_tokens_are_cheap(void **state) {
    (void)state;
    enum { CONTEXTS = 60, TOKENS = 48, RATHER = 16 };
    static struct labels in, out;
    struct neb_rng rng = neb_rng_make(5, 3);
    struct cmp_soft *s = NULL;
    assert_int_equal(cmp_soft_create(&s), NEB_OK);
    for (size_t i = 0; i < ROWS; i++) {
        int32_t context = (int32_t)(neb_rng_unit(&rng) * CONTEXTS), *id = in.ids + i * RATHER;
        float *p = in.logp + i * RATHER;
        for (int32_t t = 0, n = 0; t < TOKENS; t++) { // the best RATHER of TOKENS
            float logit = (float)(-0.15 * t + neb_rng_unit(&rng) * 2);
            int32_t j = n < RATHER ? n++ : RATHER;
            for (; j > 0 && p[j - 1] < logit; j--)
                if (j < RATHER)
                    p[j] = p[j - 1], id[j] = id[j - 1];
            if (j < RATHER)
                p[j] = logit, id[j] = (context * 61 + t * t * 3) % 4096;
        }
        double sum = 0;
        for (int32_t j = 0; j < RATHER; j++)
            sum += exp((double)p[j]);
        in.tail[i] = 0.3f;
        for (int32_t j = 0; j < RATHER; j++)
            p[j] += (float)log(0.7 / sum);
    }
    for (uint32_t rows = 0; rows <= ROWS; rows = rows ? rows * ROWS : 1) {
        struct neb_buf b = {0};
        struct cmp_soft_head h = {rows, RATHER, 4096, 1}, got = {.rows = rows, .vocab = 4096};
        assert_int_equal(cmp_soft_encode(s, &h, in.ids, in.logp, in.tail, &b), NEB_OK);
        struct neb_rd r = neb_rd_make(b.p, b.len);
        assert_int_equal(cmp_soft_decode(s, &r, &got, out.ids, out.logp, out.tail), NEB_OK);
        assert_true(neb_rd_done(&r));
        for (size_t i = 0; i < rows; i++)
            row_is_near(&in, &out, i, RATHER);
        print_message("k 16, text-like, %u rows: %zu bytes\n", rows, b.len);
        assert_true(rows < ROWS || (double)b.len < 15.6 * ROWS);
        neb_buf_free(&b);
    }
    cmp_soft_destroy(&s);
}

static void bad_labels_are_not_sent(void **state) {
    (void)state;
    struct cmp_soft *s = NULL;
    struct neb_buf b = {0};
    assert_int_equal(cmp_soft_create(&s), NEB_OK);
    struct {
        int32_t ids[2];
        float logp[2], tail;
        int32_t k;
        float temperature;
    } cases[] = {
        {{1, 2}, {-2, -1}, 0.1f, 2, 1},        // not sorted
        {{1, 1}, {-1, -2}, 0.1f, 2, 1},        // twice the same id
        {{1, 100}, {-1, -2}, 0.1f, 2, 1},      // beyond the vocabulary
        {{-1, 2}, {-1, -2}, 0.1f, 2, 1},       // negative id
        {{1, 2}, {NAN, -2}, 0.1f, 2, 1},       // not a number
        {{1, 2}, {-1, -INFINITY}, 0.1f, 2, 1}, // not finite
        {{1, 2}, {1, -2}, 0.1f, 2, 1},         // above certainty
        {{1, 2}, {-1, -2}, NAN, 2, 1},         // not a number
        {{1, 2}, {-1, -2}, 1.5f, 2, 1},        // tail above 1
        {{1, 2}, {-1, -2}, -0.5f, 2, 1},       // negative tail
        {{1, 2}, {-1, -2}, 0.1f, 65, 1},       // k above the limit
        {{1, 2}, {-1, -2}, 0.1f, 0, 1},        // k is 0
        {{1, 2}, {-1, -2}, 0.1f, 2, 0},        // temperature is 0
        {{1, 2}, {-1, -2}, 0.1f, 2, NAN},      // not a number
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cmp_soft_head h = {1, cases[i].k, 100, cases[i].temperature};
        assert_int_equal(cmp_soft_encode(s, &h, cases[i].ids, cases[i].logp, &cases[i].tail, &b),
                         NEB_ERR_INVALID);
        assert_int_equal(b.len, 0);
    }
    neb_buf_free(&b);
    cmp_soft_destroy(&s);
}

static void hostile_frames(void **state) {
    (void)state;
    static struct labels in, out;
    struct cmp_soft *s = NULL;
    struct neb_buf b = {0};
    struct cmp_soft_head h = {ROWS, K, 300, 1};
    assert_int_equal(cmp_soft_create(&s), NEB_OK);
    fill(&in, K, 300, 9);
    assert_int_equal(cmp_soft_encode(s, &h, in.ids, in.logp, in.tail, &b), NEB_OK);
    struct cmp_soft_head other[] = {{.rows = ROWS + 1, .vocab = 300}, {.rows = ROWS, .vocab = 301}};
    for (int i = 0; i < 2; i++) {
        struct neb_rd r = neb_rd_make(b.p, b.len);
        assert_int_equal(cmp_soft_decode(s, &r, &other[i], out.ids, out.logp, out.tail),
                         NEB_ERR_FORMAT);
    }
    for (size_t cut = 0; cut < b.len; cut += 1 + cut / 16) {
        struct neb_rd r = neb_rd_make(b.p, cut);
        struct cmp_soft_head want = {.rows = ROWS, .vocab = 300};
        assert_int_equal(cmp_soft_decode(s, &r, &want, out.ids, out.logp, out.tail),
                         NEB_ERR_FORMAT);
    }
    neb_buf_free(&b);
    cmp_soft_destroy(&s);
}

static void k_follows_the_link(void **state) {
    (void)state;
    static const struct {
        int32_t now, min, max;
        double row, rate, goodput;
        int32_t want;
    } cases[] = {
        {8, 4, 64, 0, 0, 0, 8},           // nothing known yet
        {8, 4, 64, 20, 1000, 25000, 8},   // just fits: 20 kB/s of 25
        {8, 4, 64, 20, 1000, 24000, 4},   // does not fit
        {64, 4, 64, 160, 1000, 25000, 8}, // k falls as far as needed
        {64, 4, 64, 160, 1000, 100, 4},   // but not below k_min
        {64, 16, 64, 160, 1000, 100, 16}, // the same with another k_min
        {8, 4, 64, 20, 1000, 60000, 8}, // k 16 would take 40 of 48 kB/s: there is no third to spare
        {8, 4, 64, 20, 1000, 70000, 16},      // k 16 takes 40 of 56 kB/s
        {8, 4, 64, 20, 1000, 1e9, 16},        // one step at a time
        {32, 4, 48, 80, 1000, 1e9, 48},       // up to k_max
        {48, 4, 48, 120, 1000, 1e9, 48},      // not above k_max
        {2, 4, 64, 5, 1000, 1e3, 4},          // raised to k_min
        {8, 4, 64, 20, 1000, (double)NAN, 8}, // unknown goodput
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(cmp_soft_k(cases[i].now, cases[i].min, cases[i].max, cases[i].row,
                                    cases[i].rate, cases[i].goodput),
                         cases[i].want);
}

// Two teachers with weights 3 and 1, of two and three labels. Row 0: both name 7. Row 1: no common
// token.
static void teachers_are_mixed(void **state) {
    (void)state;
    const int32_t a[] = {7, 9, 1, 2}, b[] = {7, 5, 6, 3, 4, 0};
    const float pa[] = {0.5F, 0.25F, 0.6F, 0.2F}, pb[] = {0.8F, 0.1F, 0.05F, 0.9F, 0.05F, 0.05F},
                tail_a[] = {0.25F, 0.2F}, tail_b[] = {0.05F, 0};
    static const int32_t want[] = {7, 9, 5, 1, 3, 2};
    static const double p[] = {0.575, 0.1875, 0.025, 0.45, 0.225, 0.15}, tails[] = {0.2125, 0.175};
    float la[4], lb[6], logp[6], tail[2];
    int32_t ids[6];
    for (int i = 0; i < 4; i++)
        la[i] = logf(pa[i]);
    for (int i = 0; i < 6; i++)
        lb[i] = logf(pb[i]);
    const struct cmp_soft_rows in[] = {{3, 2, a, la, tail_a}, {1, 3, b, lb, tail_b}};
    assert_int_equal(cmp_soft_mix(in, 2, 2, ids, logp, tail), 3);
    assert_memory_equal(ids, want, sizeof want);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(exp((double)logp[i]) - p[i]) < 1e-6);
    for (int i = 0; i < 2; i++)
        assert_true(fabs((double)tail[i] - tails[i]) < 1e-6);
    assert_int_equal(cmp_soft_mix(in, 1, 2, ids, logp, tail), 2); // one teacher: its own labels
    assert_memory_equal(ids, a, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),
        cmocka_unit_test(size_is_bounded),
        cmocka_unit_test(likely_tokens_are_cheap),
        cmocka_unit_test(bad_labels_are_not_sent),
        cmocka_unit_test(hostile_frames),
        cmocka_unit_test(k_follows_the_link),
        cmocka_unit_test(teachers_are_mixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
