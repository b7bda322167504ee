// SPDX-License-Identifier: Apache-2.0
// chrF and BLEU against values computed by sacrebleu 2.4, and labels against their logits.
#include "agent/base/rng.h"
#include "intra/model/device.h"
#include "intra/model/score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 40, SEQ = 24 };

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

static void bleu_is_sacrebleus(void **state) {
    (void)state;
    static const struct {
        const char *hypothesis, *reference;
        double want;
    } cases[] = {
        {"the cat sat on the mat today", "the cat sat on a mat today", 48.8923},
        {"Sie zahlten 1,000.50 Euro, oder 3-4 Tage -- &quot;fast&quot; alles.",
         "Sie zahlten 1,000.50 Euro oder 3-4 Tage - \"fast\" alles!", 53.7285},
        {"Öffnen Sie die Datei „a.txt“ nicht, bitte.", "Öffnen Sie die Datei „a.txt“ bitte nicht.",
         62.3899},
        {"a.. b,c 5. 6,x [y]{z} <p> it's e-mail", "a. . b, c 5.6 ,x [y] {z} <p> it's email",
         72.4551},
        {"x", "x y", 0},
        {"", "empty one", 0},
        {"ungültige Option\u00a0: -x", "ungültige Option : -x &amp; mehr", 60.6531},
        {"auto-\nmatic <skipped>and new\nline", "automatic and new line", 100},
    };
    struct intra_bleu all = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct intra_bleu one = {0};
        assert_int_equal(intra_bleu_add(&one, cases[i].hypothesis, cases[i].reference), NEB_OK);
        assert_int_equal(intra_bleu_add(&all, cases[i].hypothesis, cases[i].reference), NEB_OK);
        if (!(fabs(intra_bleu_score(&one) - cases[i].want) < 5e-4))
            fail_msg("%s: %.4f", cases[i].hypothesis, intra_bleu_score(&one));
    }
    assert_true(fabs(intra_bleu_score(&all) - 65.1811) < 5e-4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_is_not_seen), cmocka_unit_test(labels_are_the_largest),
        cmocka_unit_test(chrf_is_sacrebleus),  cmocka_unit_test(chrf_passes_over_white_space),
        cmocka_unit_test(bleu_is_sacrebleus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
