// SPDX-License-Identifier: Apache-2.0
// Pairs from a TSV file become batches. They are split by message, only targets have a loss, every
// pair occurs once an epoch, and all machines make the same batches.
#include "agent/base/fs.h"
#include "intra/data/pairs.h"
#include "intra/data/tokenizer.h"
#include "kernels/kern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LINES = 400, SEQ = 48, TOKENS = 192 };
static char dir[] = "/tmp/nebula-pairs-XXXXXX";
static struct intra_corpus *corpus;

static void no_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static int setup(void **state) {
    static struct intra_build_spec spec = {.name = "pairs",
                                           .seed = 1,
                                           .vocab = 320,
                                           .type = "bpe",
                                           .character_coverage = 1,
                                           .byte_fallback = true,
                                           .train_lines = 4000,
                                           .holdout_per_mille = 100,
                                           .test_per_mille = 100,
                                           .threads = 1,
                                           .n_sources = 2};
    char path[NEB_PATH_MAX], out[NEB_PATH_MAX];
    bool skipped;
    (void)state;
    if (!mkdtemp(dir) || neb_path(path, sizeof path, dir, "pairs.tsv") != NEB_OK ||
        neb_path(out, sizeof out, dir, "corpus") != NEB_OK)
        return -1;
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < LINES; i++) {
        fprintf(f, "message %d of", i);
        for (int k = 0; k < i % 5; k++)
            fprintf(f, " several");
        fprintf(f, "\tNACHRICHT %d VON\textra\n", i);
    }
    if (!f || fclose(f) != 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        struct intra_source_spec *s = &spec.sources[i];
        snprintf(s->name, sizeof s->name, i ? "back" : "there");
        snprintf(s->path, sizeof s->path, "%s", path);
        snprintf(s->tag, sizeof s->tag, i ? "<en>" : "<de>");
        s->format = INTRA_TSV;
        s->parallel = true;
        s->target_column = 1;
        s->reverse = i == 1;
    }
    return intra_corpus_build(&spec, out, no_progress, NULL, &skipped) == NEB_OK &&
                   intra_corpus_open(out, true, &corpus) == NEB_OK
               ? 0
               : -1;
}

static int teardown(void **state) {
    (void)state;
    intra_corpus_close(&corpus);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

static struct intra_pairs *open_pairs(enum intra_split split, uint64_t seed,
                                      struct intra_pairs_config *c) {
    struct intra_pairs *p = NULL;
    *c = (struct intra_pairs_config){.seed = seed, .seq_len = SEQ, .tokens = TOKENS};
    assert_int_equal(intra_pairs_create(corpus, split, c, &p), NEB_OK);
    return p;
}

static void splits_hold_a_message_in_both_directions(void **state) {
    (void)state;
    struct intra_tokenizer *t = NULL;
    char path[NEB_PATH_MAX];
    char seen[LINES] = {0}; // split + 1 of message i
    int32_t ids[SEQ + 1], prefix, source, total = 0;
    assert_int_equal(neb_path(path, sizeof path, intra_corpus_dir(corpus), "tokenizer.model"),
                     NEB_OK);
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_OK);
    for (int split = 0; split < INTRA_SPLITS; split++) {
        struct intra_pairs_config c;
        struct intra_pairs *p = open_pairs((enum intra_split)split, 1, &c);
        assert_true(intra_pairs_count(p) > 20 && intra_pairs_skipped(p) == 0);
        for (uint64_t i = 0; i < intra_pairs_count(p); i++, total++) {
            char *from = NULL, *to = NULL;
            int a = -1, b = -1;
            int32_t n = intra_pairs_get(p, i, ids, &prefix, &source);
            assert_int_equal(intra_tokenizer_decode(t, ids, (size_t)prefix - 1, &from), NEB_OK);
            assert_int_equal(intra_tokenizer_decode(t, ids + prefix, (size_t)(n - prefix - 1), &to),
                             NEB_OK);
            const char *english = strstr(source ? to : from, "message "),
                       *german = strstr(source ? from : to, "NACHRICHT ");
            assert_true(english && german && strstr(from, source ? "<en>" : "<de>"));
            assert_int_equal(sscanf(english, "message %d", &a), 1);
            assert_int_equal(sscanf(german, "NACHRICHT %d", &b), 1);
            assert_true(a == b && (!seen[a] || seen[a] == split + 1));
            assert_int_equal(ids[n - 1], intra_tokenizer_eos(t));
            assert_int_equal(ids[prefix - 1], intra_tokenizer_bos(t));
            seen[a] = (char)(split + 1);
            free(from);
            free(to);
        }
        intra_pairs_destroy(&p);
    }
    assert_int_equal(total, 2 * LINES);
    intra_tokenizer_close(&t);
}

// A split that is only measured may be empty. The training split may not.
static void no_pair_is_short_enough(void **state) {
    (void)state;
    struct intra_pairs_config c = {.seed = 1, .seq_len = 2, .tokens = TOKENS};
    struct intra_pairs *p = NULL;
    assert_int_equal(intra_pairs_create(corpus, INTRA_TRAIN, &c, &p), NEB_ERR_INVALID);
    assert_null(p);
    c.may_be_empty = true;
    assert_int_equal(intra_pairs_create(corpus, INTRA_VALID, &c, &p), NEB_OK);
    assert_true(intra_pairs_count(p) == 0 && intra_pairs_batches(p) == 0);
    assert_true(intra_pairs_skipped(p) > 20);
    intra_pairs_destroy(&p);
}

static void batches_hold_every_pair_once(void **state) {
    (void)state;
    struct intra_pairs_config c;
    struct intra_pairs *p = open_pairs(INTRA_TRAIN, 3, &c), *q = open_pairs(INTRA_TRAIN, 3, &c);
    struct intra_pair_batch b, again;
    assert_int_equal(intra_pair_batch_create(&c, &b), NEB_OK);
    assert_int_equal(intra_pair_batch_create(&c, &again), NEB_OK);
    uint64_t rows = 0, padding = 0, tokens = 0, per = intra_pairs_batches(p);
    uint64_t sum[2] = {0, 0};
    for (uint64_t k = 0; k < 2 * per; k++) {
        assert_int_equal(intra_pairs_draw(p, k, &b), NEB_OK);
        assert_true(b.T <= SEQ && b.B * (b.T > 16 ? b.T : 16) <= TOKENS);
        int64_t targets = 0;
        for (int32_t r = 0; r < b.B; r++) {
            const int32_t *x = b.tokens + r * b.T, *y = b.targets + r * b.T;
            int32_t end = 0;
            for (int32_t t = 0; t < b.T; t++) {
                assert_true(y[t] == KERN_IGNORE || t >= b.prefix[r] - 1); // no loss on the source
                assert_true(y[t] == KERN_IGNORE || t + 1 >= b.T || y[t + 1] == KERN_IGNORE ||
                            y[t] == x[t + 1]);
                end = y[t] != KERN_IGNORE ? t + 1 : end;
                targets += y[t] != KERN_IGNORE;
                sum[k / per] += t < end || !end ? (uint64_t)x[t] * (uint64_t)(t + 1) : 0;
            }
            assert_int_equal(y[end - 1], intra_pairs_eos(p));
            rows += k < per;
            padding += (uint64_t)(b.T - end);
            tokens += (uint64_t)b.T;
        }
        assert_int_equal(targets, b.n_targets);
    }
    assert_int_equal(rows, intra_pairs_count(p));
    assert_true(sum[0] == sum[1]);         // the second epoch holds the same pairs
    assert_true(padding * 4 < tokens);     // grouped by length
    for (uint64_t k = 2 * per; k-- > 0;) { // the same batch in any order, and from any instance
        assert_int_equal(intra_pairs_draw(p, k, &b), NEB_OK);
        assert_int_equal(intra_pairs_draw(q, k, &again), NEB_OK);
        assert_true(b.B == again.B && b.T == again.T);
        assert_memory_equal(b.tokens, again.tokens, sizeof(int32_t) * (size_t)(b.B * b.T));
    }
    intra_pair_batch_free(&b);
    intra_pair_batch_free(&again);
    intra_pairs_destroy(&p);
    intra_pairs_destroy(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_hold_a_message_in_both_directions),
        cmocka_unit_test(batches_hold_every_pair_once),
        cmocka_unit_test(no_pair_is_short_enough),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
