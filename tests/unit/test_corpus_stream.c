// SPDX-License-Identifier: Apache-2.0
// A corpus that streams has the shards of the same corpus on disk, by digest. Each epoch draws each
// window once. Any position resumes with the same windows, also in another process. The cache stays
// small, mends itself, and a source that has changed is an error.
#include "intra/data/data.h"
#include "tests/corpus_token.h"
#include "tests/unit/scratch.h"

#include <dirent.h>
#include <ftw.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { FILES = 6, DOCS = 120, T = 31, SHUFFLE = 3, SHARD = 1500 };

static void put(const char *name, const void *p, size_t n) {
    char path[NEB_PATH_MAX], folder[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    neb_path_folder(folder, sizeof folder, path);
    assert_int_equal(neb_fs_mkdirs(folder, 0755), NEB_OK);
    assert_int_equal(neb_fs_write(path, p, n, 0644), NEB_OK);
}

// Tokens are bytes.
static void make_vocabulary(void) {
    static const char config[] = "{\"eos_token\": \"<eos>\"}";
    json_t *vocab = json_object();
    for (int b = 0, more = 256; b < 256; b++) {
        int c = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad) ? b : more++;
        char name[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            name[0] = (char)(0xc0 | c >> 6);
            name[1] = (char)(0x80 | (c & 0x3f));
        }
        json_object_set_new(vocab, name, json_integer(b));
    }
    json_t *o =
        json_pack("{s:[{s:i,s:s,s:b}],s:{s:s,s:b,s:b},s:{s:s},s:{s:s,s:o,s:[]}}", "added_tokens",
                  "id", 256, "content", "<eos>", "special", 1, "pre_tokenizer", "type", "ByteLevel",
                  "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel", "model",
                  "type", "BPE", "vocab", vocab, "merges");
    char *text = json_dumps(o, 0);
    put("v/tokenizer.json", text, strlen(text));
    put("v/tokenizer_config.json", config, sizeof config - 1);
    free(text);
    json_decref(o);
}

// One file with blank lines between documents, in which a shard begins anywhere.
static void make_text(void) {
    struct neb_buf b = {0};
    char line[128];
    for (int i = 0; i < 500; i++) {
        int n = snprintf(line, sizeof line, "%s%d: %d\n%d\r\n\n", i ? "" : "\xef\xbb\xbf", i,
                         i * 7919, i % 9 ? i * 31 : 5);
        neb_buf_add(&b, line, (size_t)n);
    }
    put("text", b.p, b.len);
    neb_buf_free(&b);
}

// Lines with duplicates and empty texts, in several files; every second file is packed.
static void make_sources(void) {
    for (int f = 0; f < FILES; f++) {
        struct neb_buf b = {0};
        char line[256], name[64], path[NEB_PATH_MAX];
        for (int i = 0; i < DOCS; i++) {
            int id = f * DOCS + i, n;
            n = i % 17 == 3   ? snprintf(line, sizeof line, "{\"text\": \"\"}\n")
                : i % 13 == 5 ? snprintf(line, sizeof line, "{\"text\": \"the same again\"}\n")
                              : snprintf(line, sizeof line, "{\"text\": \"%d-%d-%d-%.*d\"}\n", id,
                                         id * 7919, id * 104729, 1 + id * 31 % 12, id);
            neb_buf_add(&b, line, (size_t)n);
        }
        snprintf(name, sizeof name, "lines/%d.jsonl", f);
        put(name, b.p, b.len);
        if (f % 2) {
            snprintf(path, sizeof path, "%s/%s", dir, name);
            gzFile z = gzopen(path, "w");
            assert_true(z && gzwrite(z, b.p, (unsigned)b.len) == (int)b.len);
            gzclose(z);
        }
        for (int i = 0; i < 40; i++) {
            snprintf(name, sizeof name, "files/%d-%02d.txt", f, i);
            int n = snprintf(line, sizeof line, "file %d of %d\nsecond line %d\n", i, f, i * f);
            put(name, line, (size_t)n);
        }
        neb_buf_free(&b);
    }
}

static void quiet(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static struct intra_corpus *build(const char *name, int32_t shuffle) {
    struct intra_build_spec s = {.name = "t",
                                 .threads = 2,
                                 .n_sources = 3,
                                 .holdout_per_mille = 100,
                                 .shard_tokens = SHARD,
                                 .shuffle = shuffle};
    char out[NEB_PATH_MAX];
    struct intra_corpus *c = NULL;
    bool skipped;
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/v/tokenizer.json", dir);
    strcpy(s.sources[0].name, "lines");
    strcpy(s.sources[1].name, "files");
    strcpy(s.sources[2].name, "text");
    strcpy(s.sources[0].field, "text");
    s.sources[0].format = INTRA_JSONL;
    for (int i = 0; i < 3; i++)
        snprintf(s.sources[i].path, sizeof s.sources[i].path, "%s/%s", dir, s.sources[i].name);
    snprintf(out, sizeof out, "%s/%s", dir, name);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_int_equal(intra_corpus_open(out, true, &c), NEB_OK);
    return c;
}

static struct intra_corpus *reopen(const char *name) {
    char path[NEB_PATH_MAX];
    struct intra_corpus *c = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(intra_corpus_open(path, true, &c), NEB_OK);
    return c;
}

static struct intra_sampler *sample(const struct intra_corpus *c, int32_t n_sources,
                                    struct intra_share share) {
    struct intra_sampler *s = NULL;
    struct intra_sampler_config g = {.seed = 7, .seq_len = T, .n_sources = n_sources};
    for (int32_t i = 0; i < n_sources; i++) {
        g.sources[i] = i;
        g.weights[i] = 1;
        g.shares[i] = share;
    }
    assert_int_equal(intra_sampler_create(c, &g, &s), NEB_OK);
    return s;
}

static int n_files;
static int count_file(const char *path, const struct stat *info, int type, struct FTW *ftw) {
    (void)info, (void)ftw;
    n_files += type == FTW_F && strstr(path, ".bin") != NULL;
    return 0;
}
static int cached(const char *name) {
    char path[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/cache", dir, name);
    n_files = 0;
    (void)nftw(path, count_file, 8, FTW_PHYS);
    return n_files;
}

// The split of the corpus as one array.
static int32_t *all_tokens(const struct intra_corpus *c, int32_t source, enum intra_split split) {
    uint64_t n = intra_corpus_tokens(c, source, split);
    int32_t *ids = calloc(n + 1, sizeof *ids);
    assert_non_null(ids);
    intra_corpus_copy(c, source, split, 0, n, ids);
    return ids;
}

static void test_same_tokens(void **state) {
    struct intra_corpus *disk = build("disk", 0), *feed = build("feed", SHUFFLE);
    uint8_t a[INTRA_SHA_BYTES], b[INTRA_SHA_BYTES];
    static const int32_t all[] = {0, 1, 2};
    char path[NEB_PATH_MAX];
    (void)state;
    assert_true(intra_corpus_streams(feed) && !intra_corpus_streams(disk));
    assert_int_equal(intra_corpus_text_digest(disk, all, 3, a), NEB_OK);
    assert_int_equal(intra_corpus_text_digest(feed, all, 3, b), NEB_OK);
    assert_memory_equal(a, b, sizeof a);
    snprintf(path, sizeof path, "%s/feed/lines/train-00000.bin", dir);
    assert_false(neb_fs_exists(path));
    assert_int_equal(cached("feed"), 0);
    for (int32_t source = 0; source < 3; source++)
        for (int split = INTRA_TRAIN; split <= INTRA_VALID; split++) {
            uint64_t n = intra_corpus_tokens(disk, source, (enum intra_split)split);
            int32_t *x = all_tokens(disk, source, (enum intra_split)split),
                    *y = all_tokens(feed, source, (enum intra_split)split);
            assert_true(n > T && n == intra_corpus_tokens(feed, source, (enum intra_split)split));
            assert_memory_equal(x, y, n * sizeof *x);
            free(x);
            free(y);
        }
    assert_int_equal(intra_corpus_failed(feed), NEB_OK);
    intra_corpus_close(&disk);
    intra_corpus_close(&feed);
}

// Where in the source the window is. The documents differ, so a window occurs once.
static uint64_t find(const int32_t *all, uint64_t n, const int32_t *window) {
    for (uint64_t at = 0; at + T <= n; at++)
        if (!memcmp(all + at, window, T * sizeof *window))
            return at;
    fail_msg("a window that is not in the source");
    return 0;
}

static void test_epochs(void **state) {
    struct intra_corpus *c = build("feed", SHUFFLE);
    int32_t *all = all_tokens(c, 0, INTRA_TRAIN), x[T], y[T];
    uint64_t n = intra_corpus_tokens(c, 0, INTRA_TRAIN),
             windows = intra_corpus_windows(c, 0, INTRA_TRAIN, T), first = 0, moved = 0;
    uint8_t *seen = calloc(n, 1);
    struct intra_sampler *half[2] = {sample(c, 1, (struct intra_share){.index = 0, .n = 2}),
                                     sample(c, 1, (struct intra_share){.index = 1, .n = 2})};
    (void)state;
    assert_true(seen && windows > 10 * SHUFFLE && windows <= (n - 1) / T);
    for (int epoch = 0; epoch < 2; epoch++) { // two clusters share the windows
        memset(seen, 0, n);
        for (uint64_t k = 0; k < windows; k++) {
            intra_sampler_next(half[k % 2], x, y);
            intra_sampler_prefetch(half[k % 2], 4);
            assert_memory_equal(x + 1, y, (T - 1) * sizeof *x);
            uint64_t at = find(all, n, x);
            assert_int_equal(seen[at]++, 0);
            first = k == 0 && epoch == 0 ? at : first;
            moved += k == 0 && epoch == 1 && at != first;
        }
        usleep(100000);                                 // the thread removes what is not needed
        assert_true(cached("feed") <= 2 * 2 * SHUFFLE); // two samplers
    }
    assert_int_equal(moved, 1); // another order in each epoch
    assert_int_equal(intra_corpus_failed(c), NEB_OK);
    free(all);
    free(seen);
    intra_sampler_destroy(&half[0]);
    intra_sampler_destroy(&half[1]);
    intra_corpus_close(&c);
}

static void test_resume(void **state) {
    enum { DRAWS = 700 };
    struct intra_corpus *c = build("feed", SHUFFLE);
    struct intra_sampler *s = sample(c, 3, (struct intra_share){0});
    static int32_t want[DRAWS][T], x[T], y[T];
    static uint64_t cursors[DRAWS][INTRA_CURSOR_WORDS];
    (void)state;
    for (int i = 0; i < DRAWS; i++) {
        intra_sampler_save(s, cursors[i]);
        intra_sampler_next(s, want[i], y);
    }
    intra_sampler_destroy(&s);
    intra_corpus_close(&c);
    for (int from = 0; from < DRAWS; from += 99) { // a process that starts at this position
        char cache[NEB_PATH_MAX];
        snprintf(cache, sizeof cache, "%s/feed/cache", dir);
        if (from % 2)
            assert_int_equal(neb_fs_remove_tree(cache), NEB_OK);
        c = reopen("feed");
        s = sample(c, 3, (struct intra_share){0});
        from % 3 ? intra_sampler_restore(s, cursors[from]) : intra_sampler_skip(s, (uint64_t)from);
        for (int i = from; i < from + 30 && i < DRAWS; i++) {
            intra_sampler_next(s, x, y);
            assert_memory_equal(x, want[i], sizeof x);
        }
        intra_sampler_destroy(&s);
        intra_corpus_close(&c);
    }
}

// A cut file in the cache is made again; a source that has changed is an error.
static void test_faults(void **state) {
    struct intra_corpus *c = build("feed", SHUFFLE);
    char path[NEB_PATH_MAX];
    int32_t id, *all = all_tokens(c, 0, INTRA_TRAIN);
    (void)state;
    id = all[0];
    free(all);
    intra_corpus_close(&c);
    snprintf(path, sizeof path, "%s/feed/cache/lines/train-00000.bin", dir);
    assert_true(neb_fs_exists(path));
    assert_int_equal(truncate(path, 100), 0);
    c = reopen("feed");
    assert_int_equal(corpus_token(c, 0, INTRA_TRAIN, 0), id);
    assert_int_equal(intra_corpus_failed(c), NEB_OK);
    intra_corpus_close(&c);
    assert_int_equal(unlink(path), 0);
    put("lines/0.jsonl", "{\"text\": \"other\"}\n", 18);
    c = reopen("feed");
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_equal(corpus_token(c, 0, INTRA_TRAIN, 0), 0);
    assert_int_equal(intra_corpus_failed(c), NEB_ERR_STATE);
    assert_non_null(strstr(message, "has changed since the corpus was built"));
    neb_log_set_sink(NULL, NULL);
    intra_corpus_close(&c);
    snprintf(path, sizeof path, "%s/feed/cache", dir);
    assert_int_equal(neb_fs_remove_tree(path), NEB_OK);
    static const char *const damaged[] = {"{}", "{\"sources\": []}"};
    for (int i = 0; i < 2; i++) {
        put("feed/stream.json", damaged[i], strlen(damaged[i]));
        c = reopen("feed");
        assert_int_equal(corpus_token(c, 0, INTRA_TRAIN, 0), 0);
        assert_int_equal(intra_corpus_failed(c), NEB_ERR_FORMAT);
        intra_corpus_close(&c);
    }
}

// stream.json cannot name such a path.
static void test_path(void **state) {
    struct intra_build_spec s = {
        .name = "t", .threads = 2, .n_sources = 1, .shard_tokens = SHARD, .shuffle = SHUFFLE};
    char out[NEB_PATH_MAX];
    bool skipped;
    (void)state;
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/v/tokenizer.json", dir);
    strcpy(s.sources[0].name, "latin");
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s/\xe9t\xe9", dir);
    snprintf(out, sizeof out, "%s/latin", dir);
    put("\xe9t\xe9", "one\n\ntwo\n", 9);
    neb_log_set_sink(scratch_keep, NULL);
    assert_int_not_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    neb_log_set_sink(NULL, NULL);
    assert_non_null(strstr(message, "may not be UTF-8"));
    assert_false(neb_fs_exists(out));
}

// The same text at another path is read there, and a stream is not taken for a corpus with a test
// split.
static void test_rebuilt(void **state) {
    struct intra_build_spec s = {
        .name = "t", .threads = 2, .n_sources = 1, .shard_tokens = SHARD, .shuffle = SHUFFLE};
    char out[NEB_PATH_MAX], to[NEB_PATH_MAX];
    struct intra_corpus *c = NULL;
    bool skipped;
    (void)state;
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/v/tokenizer.json", dir);
    strcpy(s.sources[0].name, "text");
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s/text", dir);
    snprintf(out, sizeof out, "%s/moved", dir);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_true(skipped);
    snprintf(to, sizeof to, "%s/text-2", dir);
    assert_int_equal(rename(s.sources[0].path, to), 0);
    strcpy(s.sources[0].path, to);
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_false(skipped);
    assert_int_equal(intra_corpus_open(out, true, &c), NEB_OK);
    free(all_tokens(c, 0, INTRA_TRAIN));
    assert_int_equal(intra_corpus_failed(c), NEB_OK);
    intra_corpus_close(&c);
    s.shuffle = 0;
    s.test_per_mille = SHUFFLE;
    assert_int_equal(intra_corpus_build(&s, out, quiet, NULL, &skipped), NEB_OK);
    assert_false(skipped);
}

static int set_up(void **state) {
    if (scratch_make(state))
        return -1;
    make_vocabulary();
    make_sources();
    make_text();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_tokens), cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_resume),      cmocka_unit_test(test_faults),
        cmocka_unit_test(test_path),        cmocka_unit_test(test_rebuilt)};
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
