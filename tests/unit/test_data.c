// SPDX-License-Identifier: Apache-2.0
// intra/data: building a corpus from text, what is held out, and how windows are drawn.
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data/data.h"
#include "intra/data/tokenizer.h"
#include "tests/corpus_token.h"
#include "tests/unit/scratch.h"

#include <string.h>
#include <unistd.h>

static char corpus_dir[NEB_PATH_MAX];
static struct intra_build_spec spec;

static void quiet(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static const char *const words[] = {"the",     "file",  "système",     "Grüße", "archivo", "año",
                                    "process", "naïve", "descripción", "über",  "kernel",  "write"};

static void write_text(const char *name, uint64_t seed, int lines) {
    char path[NEB_PATH_MAX], folder[NEB_PATH_MAX];
    struct neb_buf b = {0};
    struct neb_rng r = neb_rng_make(seed, 5);
    for (int l = 0; l < lines; l++) {
        for (int w = 0; w < 9; w++) {
            const char *word = words[neb_rng_below(&r, 12)];
            neb_buf_add(&b, word, strlen(word));
            neb_buf_u8(&b, w < 8 ? ' ' : '\n');
        }
    }
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(neb_fs_mkdirs(folder, 0755), NEB_OK);
    assert_int_equal(neb_fs_write(path, b.p, b.len, 0644), NEB_OK);
    neb_buf_free(&b);
}

static void test_build(void **state) {
    (void)state;
    bool skipped = true;
    char name[64];
    for (int i = 0; i < 120; i++) { // the same page names in both folders, as translations have
        snprintf(name, sizeof name, "one/page%d.txt", i);
        write_text(name, (uint64_t)i, 12);
        snprintf(name, sizeof name, "two/page%d.txt", i);
        write_text(name, (uint64_t)i + 1000, 12);
    }
    write_text("one/again.txt", 3, 12); // the text of page3: an exact duplicate
    spec = (struct intra_build_spec){.name = "t",
                                     .seed = 1,
                                     .vocab = 300,
                                     .type = "bpe",
                                     .character_coverage = 1,
                                     .byte_fallback = true,
                                     .train_lines = 2000,
                                     .holdout_per_mille = 200,
                                     .threads = 2,
                                     .n_sources = 2};
    snprintf(spec.sources[0].name, sizeof spec.sources[0].name, "one");
    snprintf(spec.sources[0].path, sizeof spec.sources[0].path, "%s/one", dir);
    snprintf(spec.sources[1].name, sizeof spec.sources[1].name, "two");
    snprintf(spec.sources[1].path, sizeof spec.sources[1].path, "%s/two", dir);
    snprintf(corpus_dir, sizeof corpus_dir, "%s/corpus", dir);
    assert_int_equal(intra_corpus_build(&spec, corpus_dir, quiet, NULL, &skipped), NEB_OK);
    assert_false(skipped);
    assert_int_equal(intra_corpus_build(&spec, corpus_dir, quiet, NULL, &skipped), NEB_OK);
    assert_true(skipped); // unchanged: the corpus is kept
    struct intra_corpus *c = NULL;
    assert_int_equal(intra_corpus_open(corpus_dir, true, &c), NEB_OK);
    assert_int_equal(intra_corpus_sources(c), 2);
    for (int i = 0; i < 2; i++) {
        double held = (double)intra_corpus_tokens(c, i, INTRA_VALID),
               all = held + (double)intra_corpus_tokens(c, i, INTRA_TRAIN);
        assert_true(held / all > 0.1 && held / all < 0.32);
    }
    intra_corpus_close(&c);
}

// The documents of a split, as text.
static char *split_text(const struct intra_corpus *c, int32_t source, enum intra_split split) {
    char path[NEB_PATH_MAX], *text = NULL;
    struct intra_tokenizer *t = NULL;
    uint64_t n = intra_corpus_windows(c, source, split, 1);
    int32_t *ids = malloc((n + 1) * sizeof *ids), y;
    for (uint64_t k = 0; k < n; k++)
        intra_corpus_window(c, source, split, 1, k, &ids[k], &y);
    assert_int_equal(neb_path(path, sizeof path, corpus_dir, "tokenizer.model"), NEB_OK);
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_OK);
    assert_int_equal(intra_tokenizer_decode(t, ids, n, &text), NEB_OK);
    intra_tokenizer_close(&t);
    free(ids);
    return text;
}

static void test_held_out_pages(void **state) {
    (void)state;
    struct intra_corpus *c = NULL;
    int held = 0;
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_OK);
    char *text[2][2];
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < 2; k++)
            text[s][k] = split_text(c, s, (enum intra_split)k);
    for (int i = 0; i < 120; i++) {
        bool in[2][2];
        for (int s = 0; s < 2; s++) {
            struct neb_buf page = {0};
            char path[NEB_PATH_MAX];
            snprintf(path, sizeof path, "%s/%s/page%d.txt", dir, s ? "two" : "one", i);
            assert_int_equal(neb_fs_read(path, 1 << 20, &page), NEB_OK);
            page.p[page.len - 2] = 0; // without the last newline, which the builder drops
            for (int k = 0; k < 2; k++)
                in[s][k] = strstr(text[s][k], (char *)page.p + 40) != NULL;
            neb_buf_free(&page);
            if (s == 0 && i == 3)
                continue;                      // page 3 has a duplicate of another name
            assert_true(in[s][0] != in[s][1]); // in exactly one split
        }
        if (i != 3)
            assert_true(in[0][1] == in[1][1]); // both translations in the same split
        held += in[0][1];
    }
    assert_in_range(held, 10, 45);
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < 2; k++)
            free(text[s][k]);
    intra_corpus_close(&c);
}

static void test_tokenizer_round_trip(void **state) {
    (void)state;
    static const char *const texts[] = {"Grüße über naïve système", "año: descripción\narchivo",
                                        "日本語 and emoji 🙂 by bytes", "a  b   c"};
    char path[NEB_PATH_MAX];
    struct intra_tokenizer *t = NULL;
    assert_int_equal(neb_path(path, sizeof path, corpus_dir, "tokenizer.model"), NEB_OK);
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int32_t *ids = NULL;
        size_t n = 0;
        char *back = NULL;
        assert_int_equal(intra_tokenizer_encode(t, texts[i], strlen(texts[i]), &ids, &n), NEB_OK);
        assert_int_equal(intra_tokenizer_decode(t, ids, n, &back), NEB_OK);
        assert_string_equal(back, texts[i]);
        free(back);
        free(ids);
    }
    intra_tokenizer_close(&t);
}

enum { T = 64 }; // so long that no two windows of the text are equal

// The number of this window in the source.
static uint64_t window_id(const struct intra_corpus *c, int32_t source, const int32_t *tokens) {
    int32_t x[T], y[T];
    for (uint64_t k = 0; k < intra_corpus_windows(c, source, INTRA_TRAIN, T); k++) {
        intra_corpus_window(c, source, INTRA_TRAIN, T, k, x, y);
        if (!memcmp(x, tokens, sizeof x))
            return k;
    }
    return UINT64_MAX;
}

static void test_clusters_are_disjoint_and_cover_an_epoch(void **state) {
    (void)state;
    struct intra_corpus *c = NULL;
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_OK);
    uint64_t windows = intra_corpus_windows(c, 0, INTRA_TRAIN, T);
    uint8_t *seen = calloc(windows, 1);
    for (int cluster = 0; cluster < 3; cluster++) {
        struct intra_sampler_config cfg = {.seed = 7,
                                           .seq_len = T,
                                           .cluster = cluster,
                                           .shares = {{.index = cluster, .n = 3}},
                                           .n_sources = 1,
                                           .sources = {0},
                                           .weights = {1}};
        struct intra_sampler *s = NULL;
        int32_t x[T], y[T];
        assert_int_equal(intra_sampler_create(c, &cfg, &s), NEB_OK);
        uint64_t own = (windows + 2 - (uint64_t)cluster) / 3;
        for (uint64_t i = 0; i < own; i++) {
            intra_sampler_next(s, x, y);
            assert_memory_equal(x + 1, y, (T - 1) * sizeof *x);
            uint64_t k = window_id(c, 0, x);
            assert_true(k < windows);
            seen[k]++;
        }
        intra_sampler_destroy(&s);
    }
    for (uint64_t k = 0; k < windows; k++)
        assert_int_equal(seen[k], 1); // exactly once, by one cluster
    free(seen);
    intra_corpus_close(&c);
}

// Two sites with the same text begin an epoch at different places, and each sees all of it.
static void test_sites_begin_apart(void **state) {
    (void)state;
    struct intra_corpus *c = NULL;
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_OK);
    uint64_t windows = intra_corpus_windows(c, 0, INTRA_TRAIN, T), half = windows / 2;
    uint8_t *early = calloc(windows, 1), *seen = calloc(windows, 1);
    for (int cluster = 0; cluster < 2; cluster++) {
        struct intra_sampler_config cfg = {.seed = 7,
                                           .seq_len = T,
                                           .cluster = cluster,
                                           .shares = {{0, 1, cluster, 2}},
                                           .n_sources = 1,
                                           .sources = {0},
                                           .weights = {1}};
        struct intra_sampler *s = NULL;
        int32_t x[T], y[T];
        assert_int_equal(intra_sampler_create(c, &cfg, &s), NEB_OK);
        for (uint64_t i = 0; i < windows; i++) {
            intra_sampler_next(s, x, y);
            uint64_t k = window_id(c, 0, x);
            assert_true(k < windows);
            early[k] = (uint8_t)(early[k] + (i < half));
            seen[k]++;
        }
        intra_sampler_destroy(&s);
    }
    for (uint64_t k = 0; k < windows; k++) {
        assert_true(early[k] <= 1);
        assert_int_equal(seen[k], 2);
    }
    free(early);
    free(seen);
    intra_corpus_close(&c);
}

static void test_resume_and_weights(void **state) {
    (void)state;
    struct intra_corpus *c = NULL;
    struct intra_sampler *a = NULL, *b = NULL;
    struct intra_sampler_config cfg = {.seed = 7,
                                       .seq_len = T,
                                       .cluster = 1,
                                       .shares = {{.index = 1, .n = 2}, {.index = 1, .n = 2}},
                                       .n_sources = 2,
                                       .sources = {0, 1},
                                       .weights = {3, 1}};
    uint64_t cursor[INTRA_CURSOR_WORDS];
    int32_t x[T], y[T], x2[T], y2[T];
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_OK);
    assert_int_equal(intra_sampler_create(c, &cfg, &a), NEB_OK);
    assert_int_equal(intra_sampler_create(c, &cfg, &b), NEB_OK);
    for (int i = 0; i < 777; i++)
        intra_sampler_next(a, x, y);
    intra_sampler_save(a, cursor);
    assert_int_equal(cursor[0], 777);
    assert_in_range(cursor[1], 536, 629); // three to one: 583 expected
    intra_sampler_restore(b, cursor);
    for (int i = 0; i < 2000; i++) { // past the end of an epoch
        intra_sampler_next(a, x, y);
        intra_sampler_next(b, x2, y2);
        assert_memory_equal(x, x2, sizeof x);
        assert_memory_equal(y, y2, sizeof y);
    }
    intra_sampler_destroy(&a);
    intra_sampler_destroy(&b);
    intra_corpus_close(&c);
}

static void test_damaged_shards(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct neb_buf good = {0};
    struct intra_corpus *c = NULL;
    assert_int_equal(neb_path(path, sizeof path, corpus_dir, "one/train-00000.bin"), NEB_OK);
    assert_int_equal(neb_fs_read(path, 1 << 26, &good), NEB_OK);
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(neb_fs_write(path, good.p, good.len - 10, 0644), NEB_OK);
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_ERR_CORRUPT);
    assert_non_null(strstr(message, "cut short"));
    good.p[0] ^= 1;
    assert_int_equal(neb_fs_write(path, good.p, good.len, 0644), NEB_OK);
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_ERR_FORMAT);
    good.p[0] ^= 1;
    good.p[good.len / 2] ^= 1;
    assert_int_equal(neb_fs_write(path, good.p, good.len, 0644), NEB_OK);
    assert_int_equal(intra_corpus_open(corpus_dir, true, &c), NEB_ERR_CORRUPT);
    assert_non_null(strstr(message, "digest does not match"));
    assert_int_equal(neb_fs_remove(path), NEB_OK);
    assert_int_equal(intra_corpus_open(corpus_dir, false, &c), NEB_ERR_NOT_FOUND);
    assert_non_null(strstr(message, "train-00000.bin does not exist, but corpus.json lists it"));
    assert_non_null(strstr(message, "rebuild the corpus with nebula data build"));
    assert_int_equal(intra_corpus_open("/nonexistent", false, &c), NEB_ERR_NOT_FOUND);
    assert_non_null(strstr(message, "nebula data build"));
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&good);
}

// ---- tokens of 32 bits: a vocabulary of more than 65,536

enum { WIDE_VOCAB = 70000, WIDE_TOKENS = 40 * T + 1 };

static int32_t wide_id(uint64_t at) {
    return (int32_t)(at * 7919 % WIDE_VOCAB);
} // about 7 % are above 65,535

// Writes a corpus in the format of data.h by hand, so that the test of the reader does not depend
// on our own writer.
static void write_wide_corpus(const char *folder) {
    char path[NEB_PATH_MAX], hex[65];
    uint8_t sha[INTRA_SHA_BYTES];
    struct neb_buf tokens = {0}, shard = {0};
    char text[512];
    for (uint64_t k = 0; k < WIDE_TOKENS; k++)
        neb_buf_u32(&tokens, (uint32_t)wide_id(k));
    neb_sha256(tokens.p, tokens.len, sha);
    neb_hex(sha, sizeof sha, hex);
    neb_buf_add(&shard, "NEBSHRD", 8);
    neb_buf_u32(&shard, 1); // version
    neb_buf_u32(&shard, 4); // bytes of a token
    neb_buf_u64(&shard, WIDE_TOKENS);
    neb_buf_add(&shard, sha, sizeof sha);
    neb_buf_u64(&shard, 0);
    neb_buf_add(&shard, tokens.p, tokens.len);
    assert_int_equal(neb_path(path, sizeof path, folder, "s"), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(path, 0755), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, folder, "s/train-00000.bin"), NEB_OK);
    assert_int_equal(neb_fs_write(path, shard.p, shard.len, 0644), NEB_OK);
    int n = snprintf(
        text, sizeof text,
        "{\"version\": 1, \"vocab\": %d, \"sources\": [{\"name\": \"s\", \"valid\": [], "
        "\"train\": [{\"file\": \"s/train-00000.bin\", \"tokens\": %d, \"sha256\": \"%s\"}]}]}",
        WIDE_VOCAB, WIDE_TOKENS, hex);
    assert_int_equal(neb_path(path, sizeof path, folder, "corpus.json"), NEB_OK);
    assert_int_equal(neb_fs_write(path, text, (size_t)n, 0644), NEB_OK);
    neb_buf_free(&tokens);
    neb_buf_free(&shard);
}

static void test_wide_tokens_are_read(void **state) {
    (void)state;
    char folder[NEB_PATH_MAX];
    struct intra_corpus *c = NULL;
    struct intra_sampler *s = NULL;
    struct intra_sampler_config cfg = {.seed = 3, .seq_len = T};
    int32_t x[T], y[T];
    int wide = 0;
    bool seen[40] = {false};
    snprintf(folder, sizeof folder, "%s/wide", dir);
    write_wide_corpus(folder);
    assert_int_equal(intra_corpus_open(folder, true, &c), NEB_OK);
    assert_int_equal(intra_corpus_vocab(c), WIDE_VOCAB);
    assert_int_equal(intra_sampler_create(c, &cfg, &s), NEB_OK);
    for (int i = 0; i < 40; i++) {
        intra_sampler_next(s, x, y);
        uint64_t k = 0;
        while (k < 40 && wide_id(k * T) != x[0])
            k++;
        assert_true(k < 40 && !seen[k]); // an epoch: each window once
        seen[k] = true;
        for (uint64_t j = 0; j < T; j++) {
            assert_int_equal(x[j], wide_id(k * T + j));
            assert_int_equal(y[j], wide_id(k * T + j + 1));
            wide += x[j] > 65535;
        }
    }
    assert_true(wide > 50);
    intra_sampler_destroy(&s);
    intra_corpus_close(&c);
}

// A large vocabulary of whole words, which is quick to make. The text of a built corpus comes back.
static void test_wide_tokens_are_written(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], prefix[NEB_PATH_MAX], model[NEB_PATH_MAX], word[32];
    struct neb_buf lines = {0};
    struct intra_build_spec s = {.name = "words", .seed = 1, .threads = 2, .n_sources = 1};
    struct intra_tokenizer_train train = {
        .vocab = WIDE_VOCAB + 16, .type = "word", .character_coverage = 1, .threads = 2};
    struct intra_tokenizer *t = NULL;
    struct intra_corpus *c = NULL;
    bool skipped;
    for (int i = 0; i < WIDE_VOCAB; i++) {
        snprintf(word, sizeof word, "w%d%c", i, i % 50 == 49 ? '\n' : ' ');
        neb_buf_add(&lines, word, strlen(word));
    }
    snprintf(path, sizeof path, "%s/words.txt", dir);
    snprintf(prefix, sizeof prefix, "%s/words", dir);
    snprintf(model, sizeof model, "%s/words.model", dir);
    assert_int_equal(neb_fs_write(path, lines.p, lines.len, 0644), NEB_OK);
    assert_int_equal(intra_tokenizer_train(path, prefix, &train), NEB_OK);
    // the document has no line ends: a word ends at a space
    for (size_t i = 0; i + 1 < lines.len; i++)
        lines.p[i] = lines.p[i] == '\n' ? ' ' : lines.p[i];
    assert_int_equal(neb_fs_write(path, lines.p, lines.len, 0644), NEB_OK);
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s", model);
    snprintf(s.sources[0].name, sizeof s.sources[0].name, "s");
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s", path);
    snprintf(path, sizeof path, "%s/wide-words", dir);
    assert_int_equal(intra_corpus_build(&s, path, quiet, NULL, &skipped), NEB_OK);
    assert_int_equal(intra_corpus_open(path, true, &c), NEB_OK);
    assert_true(intra_corpus_vocab(c) > 65536);
    uint64_t n = intra_corpus_tokens(c, 0, INTRA_TRAIN), wide = 0;
    int32_t *ids = malloc(n * sizeof *ids);
    for (uint64_t k = 0; k < n; k++) {
        ids[k] = corpus_token(c, 0, INTRA_TRAIN, k);
        wide += ids[k] > 65535;
    }
    assert_true(wide > 1000);
    char *text = NULL;
    assert_int_equal(intra_tokenizer_open(model, &t), NEB_OK);
    assert_int_equal(intra_tokenizer_decode(t, ids, n, &text), NEB_OK);
    assert_int_equal(strlen(text), lines.len - 1); // without the last newline
    assert_memory_equal(text, lines.p, lines.len - 1);
    free(text);
    free(ids);
    intra_tokenizer_close(&t);
    intra_corpus_close(&c);
    neb_buf_free(&lines);
}

static void test_jsonl_and_tsv(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], out[NEB_PATH_MAX];
    static const char jsonl[] =
        "{\"id\": 1, \"text\": \"the file system\"}\n{\"id\": 2, \"text\": \"über den Kernel\"}\n";
    static const char tsv[] = "1\tel archivo\tthe file\n2\tel año\tthe year\n",
                      broken[] = "{\"id\": 1}\n";
    struct intra_build_spec s = spec;
    struct intra_corpus *c = NULL;
    bool skipped;
    snprintf(path, sizeof path, "%s/a.jsonl", dir);
    assert_int_equal(neb_fs_write(path, jsonl, sizeof jsonl - 1, 0644), NEB_OK);
    s.sources[0].format = INTRA_JSONL;
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s/a.jsonl", dir);
    snprintf(s.sources[0].field, sizeof s.sources[0].field, "text");
    snprintf(path, sizeof path, "%s/b.tsv", dir);
    assert_int_equal(neb_fs_write(path, tsv, sizeof tsv - 1, 0644), NEB_OK);
    s.sources[1].format = INTRA_TSV;
    s.sources[1].column = 1;
    snprintf(s.sources[1].path, sizeof s.sources[1].path, "%s/b.tsv", dir);
    // the vocabulary of the first corpus
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/corpus/tokenizer.model", dir);
    s.holdout_per_mille = 0;
    snprintf(out, sizeof out, "%s/lines", dir);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_int_equal(intra_corpus_open(out, true, &c), NEB_OK);
    assert_true(intra_corpus_tokens(c, 0, INTRA_TRAIN) > 6 &&
                intra_corpus_tokens(c, 1, INTRA_TRAIN) > 4);
    assert_int_equal(intra_corpus_tokens(c, 0, INTRA_VALID), 0);
    intra_corpus_close(&c);
    snprintf(path, sizeof path, "%s/a.jsonl", dir);
    assert_int_equal(neb_fs_write(path, broken, sizeof broken - 1, 0644), NEB_OK);
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_ERR_FORMAT);
    assert_non_null(strstr(message, "a.jsonl:1: no text in field \"text\""));
    neb_log_set_sink(NULL, NULL);
    // the old corpus is still there and complete
    assert_int_equal(intra_corpus_open(out, true, &c), NEB_OK);
    intra_corpus_close(&c);
}

static void put(const char *name, const char *text) {
    char path[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0644), NEB_OK);
}

static bool is_kept(const struct intra_build_spec *s) { // true if the existing corpus is kept
    char out[NEB_PATH_MAX];
    bool skipped;
    snprintf(out, sizeof out, "%s/anew", dir);
    assert_int_equal(intra_corpus_build(s, out, quiet, NULL, &skipped), NEB_OK);
    return skipped;
}

// A build is repeated if the vocabulary at the same path is another one, if a page has another name
// (it decides the split), or if documents end differently.
static void test_rebuild_causes(void **state) {
    (void)state;
    char from[NEB_PATH_MAX], to[NEB_PATH_MAX];
    struct intra_build_spec s = spec;
    struct intra_tokenizer_train train = {
        .vocab = 290, .type = "bpe", .character_coverage = 1, .byte_fallback = true, .threads = 1};
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/given.model", dir);
    assert_int_equal(neb_path(from, sizeof from, corpus_dir, "tokenizer.model"), NEB_OK);
    assert_int_equal(neb_fs_copy(from, s.tokenizer, 0644), NEB_OK);
    write_text("pages/a.txt", 1, 12);
    write_text("pages/b.txt", 2, 12);
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s/pages", dir);
    snprintf(s.sources[1].path, sizeof s.sources[1].path, "%s/ends.txt", dir);
    put("ends.txt", "the file\n\nthe kernel\n");
    assert_false(is_kept(&s));
    assert_true(is_kept(&s));
    snprintf(from, sizeof from, "%s/pages/a.txt", dir);
    snprintf(to, sizeof to, "%s/given", dir);
    assert_int_equal(intra_tokenizer_train(from, to, &train), NEB_OK);
    assert_false(is_kept(&s));
    assert_true(is_kept(&s));
    snprintf(to, sizeof to, "%s/pages/aa.txt", dir); // the order stays
    assert_int_equal(rename(from, to), 0);
    assert_false(is_kept(&s));
    assert_true(is_kept(&s));
    put("ends.txt", "the filethe kernel\n");
    assert_false(is_kept(&s));
}

static struct neb_buf read_of(const char *folder, const char *file) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    assert_int_equal(neb_path(path, sizeof path, folder, file), NEB_OK);
    assert_int_equal(neb_fs_read(path, 1 << 26, &b), NEB_OK);
    return b;
}

static void put_in(const char *folder, const char *file, const struct neb_buf *b) {
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, folder, file), NEB_OK);
    assert_int_equal(b ? neb_fs_write(path, b->p, b->len, 0644) : neb_fs_remove(path), NEB_OK);
}

// Damages the file (NULL: removes it; otherwise flips a bit of the last byte of `at`). Building
// again restores it.
static void restores(const struct intra_build_spec *s, const char *out, const char *file,
                     const char *at) {
    struct neb_buf was = read_of(out, file), bad = read_of(out, file);
    bool skipped = true;
    if (at) {
        uint8_t *p = memmem(bad.p, bad.len, at, strlen(at));
        assert_non_null(p);
        p[strlen(at) - 1] ^= 1;
    }
    put_in(out, file, at ? &bad : NULL);
    assert_int_equal(intra_corpus_build(s, out, quiet, NULL, &skipped), NEB_OK);
    assert_false(skipped);
    struct neb_buf now = read_of(out, file);
    assert_int_equal(now.len, was.len);
    assert_memory_equal(now.p, was.p, was.len);
    neb_buf_free(&was);
    neb_buf_free(&bad);
    neb_buf_free(&now);
    assert_int_equal(intra_corpus_build(s, out, quiet, NULL, &skipped), NEB_OK);
    assert_true(skipped);
}

// Errors about a damaged corpus advise the user to build it again. This test shows that the advice
// helps.
static void test_damage_is_repaired(void **state) {
    (void)state;
    static const char *const files[] = {"tokenizer.model", "tokenizer.vocab",
                                        "two/train-00000.bin"};
    char out[NEB_PATH_MAX];
    struct intra_build_spec s = spec;
    bool skipped;
    neb_log_set_sink(scratch_keep, NULL);
    snprintf(out, sizeof out, "%s/mended", dir);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    for (int i = 0; i < 3; i++)
        restores(&s, out, files[i], NULL);
    restores(&s, out, files[0], "è");
    assert_non_null(strstr(message, "mended/tokenizer.model differ from those of "));
    restores(&s, out, files[2], "NEBSHRD");
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/corpus/tokenizer.model", dir);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_false(skipped);
    // a vocabulary that the user gives must be the same everywhere
    restores(&s, out, files[0], "/sample.txt");
    neb_log_set_sink(NULL, NULL);
}

// A corpus that cannot be read is kept: a failing disk is no reason to replace it.
static void test_unreadable_is_kept(void **state) {
    (void)state;
    char out[NEB_PATH_MAX], shard[NEB_PATH_MAX], aside[NEB_PATH_MAX];
    bool skipped;
    snprintf(out, sizeof out, "%s/kept", dir);
    assert_int_equal(intra_corpus_build(&spec, out, quiet, NULL, &skipped), NEB_OK);
    assert_int_equal(neb_path(shard, sizeof shard, out, "two/train-00000.bin"), NEB_OK);
    snprintf(aside, sizeof aside, "%s/aside", dir);
    assert_int_equal(rename(shard, aside), 0);
    // a folder in place of the file, because permissions would not stop root
    assert_int_equal(neb_fs_mkdirs(shard, 0755), NEB_OK);
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(intra_corpus_build(&spec, out, quiet, NULL, &skipped), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    assert_false(skipped);
    assert_non_null(strstr(message, "two/train-00000.bin is not a regular file"));
    assert_int_equal(rmdir(shard), 0);
    assert_int_equal(rename(aside, shard), 0);
    assert_int_equal(intra_corpus_build(&spec, out, quiet, NULL, &skipped), NEB_OK);
    assert_true(skipped);
}

// A vocabulary's model contains the path of its input, and jobs identify a vocabulary by the
// model's bytes. So a rebuild at the same path must give the same model, also for paths with commas
// and quotes, at which SentencePiece splits a list of files.
static void test_vocabulary_paths(void **state) {
    (void)state;
    static const char *const names[] = {"en,de", "en\"de", "en,\"de\""};
    char out[NEB_PATH_MAX], as[128];
    struct neb_buf there = read_of(corpus_dir, "tokenizer.vocab");
    bool skipped;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(out, sizeof out, "%s/%s", dir, names[i]);
        assert_int_equal(intra_corpus_build(&spec, out, quiet, NULL, &skipped), NEB_OK);
        struct neb_buf here = read_of(out, "tokenizer.vocab"),
                       model = read_of(out, "tokenizer.model");
        assert_int_equal(here.len, there.len);
        assert_memory_equal(here.p, there.p, here.len);
        snprintf(as, sizeof as, "%s/%s.nebula-building/sample.txt", dir, names[i]);
        assert_non_null(memmem(model.p, model.len, as, strlen(as)));
        neb_buf_free(&here);
        neb_buf_free(&model);
    }
    neb_buf_free(&there);
}

// A vocabulary without an EOS piece is refused, because documents end with EOS.
static void test_vocabulary_without_eos(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct neb_buf model = {0};
    struct intra_build_spec s = spec;
    bool skipped;
    assert_int_equal(neb_path(path, sizeof path, corpus_dir, "tokenizer.model"), NEB_OK);
    assert_int_equal(neb_fs_read(path, 1 << 26, &model), NEB_OK);
    char *piece = memmem(model.p, model.len, "</s>", 4);
    assert_non_null(piece);
    piece[2] = 'x';
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/endless.model", dir);
    assert_int_equal(neb_fs_write(s.tokenizer, model.p, model.len, 0644), NEB_OK);
    snprintf(path, sizeof path, "%s/endless", dir);
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(intra_corpus_build(&s, path, quiet, NULL, &skipped), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "endless.model has no EOS piece"));
    neb_log_set_sink(NULL, NULL);
    assert_false(neb_fs_exists(path));
    neb_buf_free(&model);
}

// JSON lines of other programs (intra/read/json.h) and a NUL in the text are read; a bad line is
// reported.
static void test_foreign_jsonl(void **state) {
    (void)state;
    char out[NEB_PATH_MAX];
    struct intra_build_spec s = spec;
    struct intra_tokenizer *t = NULL;
    struct intra_corpus *c = NULL;
    char *text = NULL;
    bool skipped;
    int32_t ids[64];
    s.n_sources = 1;
    s.holdout_per_mille = 0;
    s.sources[0].format = INTRA_JSONL;
    snprintf(s.sources[0].field, sizeof s.sources[0].field, "text");
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s/foreign.jsonl", dir);
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/corpus/tokenizer.model", dir);
    snprintf(out, sizeof out, "%s/foreign", dir);
    put("foreign.jsonl",
        "\xef\xbb\xbf{\"id\": 18446744073709551615, \"x\": [NaN, -Infinity, 1e999, \"\\ud83d\"], "
        "\"text\": 7, \"text\": \"the\\u0000file\\u0000\"}\n");
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_int_equal(intra_corpus_open(out, true, &c), NEB_OK);
    uint64_t n = intra_corpus_tokens(c, 0, INTRA_TRAIN);
    assert_in_range(n, 2, 64);
    intra_corpus_copy(c, 0, INTRA_TRAIN, 0, n, ids);
    assert_int_equal(intra_tokenizer_open(s.tokenizer, &t), NEB_OK);
    assert_int_equal(intra_tokenizer_decode(t, ids, n, &text), NEB_OK);
    assert_string_equal(text, "the file");
    free(text);
    intra_tokenizer_close(&t);
    intra_corpus_close(&c);
    put("foreign.jsonl", "{\"text\": \"the file\"}\n{\"text\": \"the \n");
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_ERR_FORMAT);
    assert_non_null(strstr(message, "foreign.jsonl:2: cannot be read as JSON: premature end"));
    neb_log_set_sink(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build),
        cmocka_unit_test(test_held_out_pages),
        cmocka_unit_test(test_tokenizer_round_trip),
        cmocka_unit_test(test_clusters_are_disjoint_and_cover_an_epoch),
        cmocka_unit_test(test_sites_begin_apart),
        cmocka_unit_test(test_resume_and_weights),
        cmocka_unit_test(test_jsonl_and_tsv),
        cmocka_unit_test(test_rebuild_causes),
        cmocka_unit_test(test_damage_is_repaired),
        cmocka_unit_test(test_unreadable_is_kept),
        cmocka_unit_test(test_vocabulary_paths),
        cmocka_unit_test(test_vocabulary_without_eos),
        cmocka_unit_test(test_foreign_jsonl),
        cmocka_unit_test(test_wide_tokens_are_read),
        cmocka_unit_test(test_wide_tokens_are_written),
        cmocka_unit_test(test_damaged_shards),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
