// SPDX-License-Identifier: Apache-2.0
// Decoding against the plain forward pass, chrF against values computed by sacrebleu 2.4, and
// labels against their logits.
#include "agent/base/rng.h"
#include "intra/model/device.h"
#include "intra/model/translate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 40, SEQ = 24, EOS = 2 };

static struct intra_model *make(struct kern *K, bool lora, enum kern_mask mask) {
    struct intra_model_config c = {.vocab = V,
                                   .d_model = 32,
                                   .n_layers = 3,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 8,
                                   .d_ff = 48,
                                   .max_seq = SEQ,
                                   .rope_theta = 10000,
                                   .norm_eps = 1e-5f,
                                   .tied = true,
                                   .qkv_bias = true,
                                   .mask = mask};
    struct intra_trainable t = {.mode = lora ? INTRA_TRAIN_LORA : INTRA_TRAIN_FULL,
                                .lora_rank = lora ? 3 : 0,
                                .lora_alpha = 6,
                                .lora_targets = lora ? 127 : 0};
    struct intra_model *m = NULL;
    struct neb_rng rng = neb_rng_make(11, 4);
    (void)K;
    assert_int_equal(intra_model_create(&c, &t, 3, &m), NEB_OK);
    for (size_t i = 0; i < m->n_params; i++) // large enough that tokens differ
        m->params[i] += 0.15f * neb_rng_normal(&rng);
    return m;
}

static double log_prob(struct intra_device *a, const int32_t *tokens, int32_t n, int32_t prefix,
                       int32_t next, int32_t *best) {
    float z[V];
    double sum = 0;
    assert_int_equal(intra_device_pass(
                         a,
                         &(struct intra_batch){.tokens = tokens, .B = 1, .T = n, .prefix = &prefix},
                         0, NULL, NULL),
                     NEB_OK);
    intra_device_logits(a, n - 1, 1, z);
    *best = 0;
    for (int32_t i = 0; i < V; i++) {
        sum += exp((double)z[i]);
        *best = z[i] > z[*best] ? i : *best;
    }
    return (double)z[next < 0 ? *best : next] - log(sum);
}

// Greedy decoding gives the most likely token of the forward pass at each step.
static void greedy_is_the_forward_pass(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    for (int kind = 0; kind < 4; kind++) {
        struct intra_model *m = make(K, kind & 1, kind & 2 ? KERN_MASK_CAUSAL : KERN_MASK_PREFIX);
        struct intra_decoder *d = NULL;
        struct intra_device *a = NULL;
        assert_int_equal(intra_decoder_create(K, m, 1, m->c.max_seq, &d), NEB_OK);
        assert_int_equal(intra_device_on_host(K, m, 1, SEQ, false, false, &a), NEB_OK);
        for (int32_t n = 1; n < SEQ; n += 5) {
            int32_t tokens[SEQ + 1], out[SEQ], got, best, len = n;
            for (int32_t i = 0; i < n; i++)
                tokens[i] = (i * 7 + n + kind) % V;
            struct intra_beam_config c = {1, SEQ, 1, EOS};
            assert_int_equal(intra_decode(d, tokens, n, &c, out, &got), NEB_OK);
            for (int32_t i = 0; len < SEQ; i++, len++) {
                log_prob(a, tokens, len, n, -1, &best);
                if (best == EOS) {
                    assert_int_equal(i, got);
                    break;
                }
                assert_true(i < got);
                assert_int_equal(out[i], best);
                tokens[len] = best;
            }
            assert_true(got == len - n);
        }
        intra_device_destroy(&a);
        intra_decoder_destroy(&d);
        intra_model_destroy(&m);
    }
    kern_destroy(&K);
}

static double score_of(struct intra_device *a, const int32_t *prefix, int32_t n, const int32_t *out,
                       int32_t got, int32_t limit) {
    int32_t tokens[SEQ + 1], best;
    double sum = 0;
    memcpy(tokens, prefix, sizeof(int32_t) * (size_t)n);
    for (int32_t i = 0; i < got; i++) {
        sum += log_prob(a, tokens, n + i, n, out[i], &best);
        tokens[n + i] = out[i];
    }
    if (got < limit)
        sum += log_prob(a, tokens, n + got, n, EOS, &best);
    return sum;
}

// A wide beam finds scores at least as good as greedy decoding; the caches follow their beams.
static void wide_beam_is_exhaustive(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    struct intra_model *m = make(K, false, KERN_MASK_PREFIX);
    struct intra_decoder *d = NULL;
    struct intra_device *a = NULL;
    assert_int_equal(intra_decoder_create(K, m, INTRA_BEAM_MAX, m->c.max_seq, &d), NEB_OK);
    assert_int_equal(intra_device_on_host(K, m, 1, SEQ, false, false, &a), NEB_OK);
    int better = 0;
    for (int32_t seed = 0; seed < 12; seed++) {
        int32_t prefix[4] = {seed, 3 * seed % V, 7, 1}, one[6], wide[6], n1, n2;
        struct intra_beam_config c = {1, 6, 0, EOS};
        assert_int_equal(intra_decode(d, prefix, 4, &c, one, &n1), NEB_OK);
        c.beam = INTRA_BEAM_MAX;
        assert_int_equal(intra_decode(d, prefix, 4, &c, wide, &n2), NEB_OK);
        double g = score_of(a, prefix, 4, one, n1, 6), w = score_of(a, prefix, 4, wide, n2, 6);
        // both hypotheses have ended, or neither has: their sums can be compared
        if (n2 < 6 || n1 == 6)
            assert_true(w >= g - 1e-3 || n1 < 6);
        better += w > g + 1e-3;
    }
    assert_true(better > 0); // otherwise the search proves nothing
    // A decoder for fewer tokens than the model takes ends at its limit. Its tokens are the same
    // until then.
    struct intra_decoder *brief = NULL;
    assert_int_equal(intra_decoder_create(K, m, 2, 4 + 3, &brief), NEB_OK);
    for (int32_t seed = 0; seed < 12; seed++) {
        int32_t prefix[4] = {seed, 3 * seed % V, 7, 1}, one[6], cut[6], n1, n2;
        struct intra_beam_config c = {1, 6, 0, EOS};
        assert_int_equal(intra_decode(d, prefix, 4, &c, one, &n1), NEB_OK);
        assert_int_equal(intra_decode(brief, prefix, 4, &c, cut, &n2), NEB_OK);
        assert_int_equal(n2, n1 < 3 ? n1 : 3);
        assert_memory_equal(cut, one, (size_t)n2 * sizeof *cut);
    }
    intra_decoder_destroy(&brief);
    struct intra_beam_config bad = {INTRA_BEAM_MAX + 1, 6, 0, EOS};
    int32_t p[SEQ] = {1}, out[6], n;
    assert_int_equal(intra_decode(d, p, 2, &bad, out, &n), NEB_ERR_INVALID);
    bad.beam = 1;
    assert_int_equal(intra_decode(d, p, SEQ, &bad, out, &n), NEB_ERR_INVALID);
    p[0] = V;
    assert_int_equal(intra_decode(d, p, 2, &bad, out, &n), NEB_ERR_INVALID);
    intra_device_destroy(&a);
    intra_decoder_destroy(&d);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

// Padding after a sequence and other rows of the batch do not change the loss.
static void padding_is_not_seen(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    struct intra_model *m = make(K, false, KERN_MASK_PREFIX);
    struct intra_device *a = NULL;
    int32_t tokens[2 * 10] = {5, 6, 1, 9, 8}, targets[2 * 10], prefix[2] = {3, 4};
    double losses[3];
    int64_t count;
    assert_int_equal(intra_device_on_host(K, m, 2, 10, true, false, &a), NEB_OK);
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < 20; i++) {
            targets[i] = i >= 2 && i < 5 ? 11 : KERN_IGNORE;
            tokens[i] = i < 5 ? tokens[i] : pass == 1 ? 30 : 31 + i % 7;
        }
        tokens[0] = pass == 2 ? 4 : 5; // the prefix does change it
        targets[3] = targets[4] = KERN_IGNORE;
        assert_int_equal(
            intra_device_pass(
                a,
                &(struct intra_batch){
                    .tokens = tokens, .targets = targets, .B = 2, .T = 10, .prefix = prefix},
                0, &losses[pass], &count),
            NEB_OK);
        assert_int_equal(count, 1);
    }
    assert_true(fabs(losses[0] - losses[1]) < 1e-6);
    assert_true(fabs(losses[0] - losses[2]) > 1e-4);
    intra_device_destroy(&a);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

static void labels_are_the_largest(void **state) {
    (void)state;
    struct kern *K = NULL;
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    struct intra_model *m = make(K, false, KERN_MASK_PREFIX);
    struct intra_device *a = NULL;
    enum { N = 3, TOP = 5 };
    int32_t tokens[SEQ], rows[N] = {2, 9, 20}, ids[N * TOP];
    float logp[N * TOP], tail[N], z[V];
    static float all[N * V];
    for (int32_t i = 0; i < SEQ; i++)
        tokens[i] = i * 5 % V;
    assert_int_equal(intra_device_on_host(K, m, 1, SEQ, false, false, &a), NEB_OK);
    assert_int_equal(intra_device_pass(a, &(struct intra_batch){.tokens = tokens, .B = 1, .T = SEQ},
                                       0, NULL, NULL),
                     NEB_OK);
    assert_int_equal(intra_device_labels(a, rows, N, TOP, 2, ids, logp, tail), NEB_OK);
    assert_int_equal(intra_device_labels(a, rows, N, 0, 2, NULL, all, NULL), NEB_OK);
    for (int32_t i = 0; i < N; i++) {
        double sum = 0, rest = 1;
        intra_device_logits(a, rows[i], 1, z);
        for (int32_t c = 0; c < V; c++)
            sum += exp((double)z[c] / 2);
        for (int32_t c = 0; c < V; c++)
            assert_true(fabs((double)z[c] / 2 - log(sum) - (double)all[i * V + c]) < 1e-4);
        for (int32_t k = 0; k < TOP; k++) {
            int32_t larger = 0;
            for (int32_t c = 0; c < V; c++)
                larger += z[c] > z[ids[i * TOP + k]];
            assert_int_equal(larger, k);
            assert_true(fabsf(logp[i * TOP + k] - all[i * V + ids[i * TOP + k]]) < 1e-5f);
            rest -= exp((double)logp[i * TOP + k]);
        }
        assert_true(fabs(rest - (double)tail[i]) < 1e-5);
    }
    intra_device_destroy(&a);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

static double chrf(const char *hypothesis, const char *reference) {
    struct intra_chrf c = {{0}, {0}, {0}};
    assert_int_equal(intra_chrf_add(&c, hypothesis, reference), NEB_OK);
    return intra_chrf_score(&c);
}

static void chrf_is_sacrebleus(void **state) {
    (void)state;
    struct intra_chrf c = {{0}, {0}, {0}};
    assert_true(fabs(chrf("the cat sat", "the cat sat") - 100) < 1e-9);
    assert_true(chrf("", "the cat") == 0 && chrf("xyz", "abc") == 0);
    static const struct {
        const char *hypothesis, *reference;
        double want;
    } cases[] = {
        {"the cat sat on the mat", "the cat is on the mat", 64.5779},
        {"kann Datei nicht öffnen", "Datei %s kann nicht geöffnet werden", 35.5850},
        {"ungültige Option", "unbekannte Option „%s“", 30.0416},
        {"a", "abcdef", 20.0000},
        {"falsch: x y z", "a", 35.7143},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(fabs(chrf(cases[i].hypothesis, cases[i].reference) - cases[i].want) < 5e-4);
        assert_int_equal(intra_chrf_add(&c, cases[i].hypothesis, cases[i].reference), NEB_OK);
    }
    assert_true(fabs(intra_chrf_score(&c) - 38.7528) < 5e-4);
}

static void chrf_passes_over_white_space(void **state) {
    (void)state;
    // python3 -c 'print(*(hex(c) for c in range(0x110000) if chr(c).isspace()), sep=", ")'
    static const uint32_t spaces[] = {
        0x9,    0xa,    0xb,    0xc,    0xd,    0x1c,   0x1d,   0x1e,   0x1f,   0x20,
        0x85,   0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006,
        0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
    for (uint32_t c = 1, next = 0; c < 0x10000; c++) {
        bool space = next < sizeof spaces / sizeof *spaces && spaces[next] == c;
        char text[8] = "a";
        size_t n = 1;
        if (c < 0x80) {
            text[n++] = (char)c;
        } else {
            if (c >= 0x800)
                text[n++] = (char)(0xe0 | c >> 12);
            text[n++] = (char)(c >= 0x800 ? 0x80 | (c >> 6 & 0x3f) : 0xc0 | c >> 6);
            text[n++] = (char)(0x80 | (c & 0x3f));
        }
        text[n] = 'b';
        next += space;
        if ((chrf(text, "ab") > 99.9) != space)
            fail_msg("U+%04X is %s as white space", c, space ? "not taken" : "taken");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_the_forward_pass),
        cmocka_unit_test(wide_beam_is_exhaustive),
        cmocka_unit_test(padding_is_not_seen),
        cmocka_unit_test(labels_are_the_largest),
        cmocka_unit_test(chrf_is_sacrebleus),
        cmocka_unit_test(chrf_passes_over_white_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
