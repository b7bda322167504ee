// SPDX-License-Identifier: Apache-2.0
// Corpora of hundreds of gigabytes, as far as a small machine can show: many shards, and many
// skipped draws.
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data/data.h"
#include "tests/corpus_token.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

// thousands of small files are in memory; one corpus is on a disk
static char dir[] = "/dev/shm/nebula-scale-XXXXXX", disk[] = "/tmp/nebula-scale-XXXXXX";
static char message[1024];

static void capture(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- corpora written by hand, in the format of data.h

struct made {
    char folder[NEB_PATH_MAX];
    int32_t vocab, sources;
    uint64_t seed;
    size_t shards;
    bool on_disk;
    bool one_file; // every shard entry names the same file
    // the number of tokens of shard k, for any source
    uint64_t (*size)(size_t k);
};

// The stored id; a few are not in the vocabulary.
static uint32_t raw_id(const struct made *m, int32_t source, uint64_t at) {
    uint64_t most = (uint64_t)(m->vocab + m->vocab / 64);
    if (m->vocab <= 65536 && most > 65536)
        most = 65536;
    return (uint32_t)(neb_mix64(m->seed + at * 64 + (uint64_t)source) % most);
}
static int32_t id(const struct made *m, int32_t source, uint64_t at) {
    uint32_t raw = raw_id(m, source, at);
    return raw < (uint32_t)m->vocab ? (int32_t)raw : 0;
}

// without fsync, because there are thousands of files
static void write_plain(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_shard(const struct made *m, int32_t source, size_t k, uint64_t at,
                        struct neb_buf *json) {
    char path[NEB_PATH_MAX + 64], file[64], hex[65], entry[256];
    uint8_t sha[INTRA_SHA_BYTES];
    struct neb_buf tokens = {0}, shard = {0};
    uint64_t n = m->size(k);
    for (uint64_t i = 0; i < n; i++)
        if (m->vocab <= 65536)
            neb_buf_u16(&tokens, (uint16_t)raw_id(m, source, at + i));
        else
            neb_buf_u32(&tokens, raw_id(m, source, at + i));
    neb_sha256(tokens.p, tokens.len, sha);
    neb_hex(sha, sizeof sha, hex);
    neb_buf_add(&shard, "NEBSHRD", 8);
    neb_buf_u32(&shard, 1);
    neb_buf_u32(&shard, m->vocab <= 65536 ? 2 : 4);
    neb_buf_u64(&shard, n);
    neb_buf_add(&shard, sha, sizeof sha);
    neb_buf_u64(&shard, 0);
    neb_buf_add(&shard, tokens.p, tokens.len);
    snprintf(file, sizeof file, "s%d/train-%05zu.bin", source, m->one_file ? 0 : k);
    snprintf(path, sizeof path, "%s/%s", m->folder, file);
    if (!m->one_file || k == 0)
        write_plain(path, shard.p, shard.len);
    int len =
        snprintf(entry, sizeof entry, "%s{\"file\": \"%s\", \"tokens\": %llu, \"sha256\": \"%s\"}",
                 k ? ", " : "", file, (unsigned long long)n, hex);
    neb_buf_add(json, entry, (size_t)len);
    neb_buf_free(&tokens);
    neb_buf_free(&shard);
}

static uint64_t make(struct made *m, const char *name) {
    char path[NEB_PATH_MAX + 64], head[128];
    struct neb_buf json = {0};
    uint64_t at = 0;
    snprintf(m->folder, sizeof m->folder, "%s/%s", m->on_disk ? disk : dir, name);
    int n = snprintf(head, sizeof head, "{\"version\": 1, \"vocab\": %d, \"sources\": [", m->vocab);
    neb_buf_add(&json, head, (size_t)n);
    for (int32_t s = 0; s < m->sources; s++) {
        snprintf(path, sizeof path, "%s/s%d", m->folder, s);
        assert_int_equal(neb_fs_mkdirs(path, 0755), NEB_OK);
        n = snprintf(head, sizeof head, "%s{\"name\": \"s%d\", \"valid\": [], \"train\": [",
                     s ? ", " : "", s);
        neb_buf_add(&json, head, (size_t)n);
        at = 0;
        for (size_t k = 0; k < m->shards; at += m->size(k++))
            write_shard(m, s, k, at, &json);
        neb_buf_add(&json, "]}", 2);
    }
    neb_buf_add(&json, "]}", 2);
    snprintf(path, sizeof path, "%s/corpus.json", m->folder);
    write_plain(path, json.p, json.len);
    neb_buf_free(&json);
    return at;
}

static struct intra_corpus *opened(const struct made *m) {
    struct intra_corpus *c = NULL;
    assert_int_equal(intra_corpus_open(m->folder, false, &c), NEB_OK);
    return c;
}

// ---- windows over the ends of shards

enum { T = 64 };

static uint64_t ragged(size_t k) { return neb_mix64(k) % 3 ? neb_mix64(k) % 97 : 0; }

static void check_windows(int32_t vocab, const char *name) {
    struct made m = {.vocab = vocab, .sources = 1, .seed = 5, .shards = 200, .size = ragged};
    uint64_t tokens = make(&m, name);
    struct intra_corpus *c = opened(&m);
    int32_t x[T], y[T];
    assert_int_equal(intra_corpus_tokens(c, 0, INTRA_TRAIN), tokens);
    uint64_t windows = intra_corpus_windows(c, 0, INTRA_TRAIN, T);
    assert_true(windows > 50);
    for (uint64_t k = 0; k < windows; k++) {
        intra_corpus_window(c, 0, INTRA_TRAIN, T, k, x, y);
        for (uint64_t i = 0; i < T; i++) {
            assert_int_equal(x[i], id(&m, 0, k * T + i));
            assert_int_equal(y[i], id(&m, 0, k * T + i + 1));
        }
    }
    for (uint64_t at = 0; at < tokens; at++)
        assert_int_equal(corpus_token(c, 0, INTRA_TRAIN, at), id(&m, 0, at));
    intra_corpus_window(c, 0, INTRA_TRAIN, 1, 3, x, y); // the shortest window
    assert_int_equal(x[0], id(&m, 0, 3));
    assert_int_equal(y[0], id(&m, 0, 4));
    intra_corpus_close(&c);
}

static void test_windows_over_shards(void **state) {
    (void)state;
    check_windows(500, "narrow");
    check_windows(65536, "full"); // all 16-bit values are ids
    check_windows(90000, "wide");
}

static uint64_t few_tokens(size_t k) {
    (void)k;
    return 33;
}
static uint64_t all_tokens(size_t k) {
    (void)k;
    return 4000 * 33;
}

static double seconds_a_pass(const struct made *m, int passes) {
    struct intra_corpus *c = opened(m);
    uint64_t windows = intra_corpus_windows(c, 0, INTRA_TRAIN, T);
    int32_t x[T], y[T];
    double start = cpu_seconds();
    for (int i = 0; i < passes; i++)
        for (uint64_t k = 0; k < windows; k++)
            intra_corpus_window(c, 0, INTRA_TRAIN, T, k, x, y);
    double seconds = (cpu_seconds() - start) / passes;
    intra_corpus_close(&c);
    return seconds;
}

// A window costs little in a corpus of many shards: 1e11 tokens are 1,500 shards.
static void test_many_shards_cost_little(void **state) {
    (void)state;
    struct made one = {.vocab = 500, .sources = 1, .shards = 1, .size = all_tokens},
                many = {.vocab = 500, .sources = 1, .shards = 4000, .size = few_tokens};
    assert_int_equal(make(&one, "one"), make(&many, "many"));
    double in_one = seconds_a_pass(&one, 20), in_many = seconds_a_pass(&many, 5);
    print_message("a window takes %.0f ns in 1 shard, %.0f ns in 4000 shards of half a window\n",
                  1e9 * in_one / (4000 * 33 / T), 1e9 * in_many / (4000 * 33 / T));
    assert_true(in_many < 60 * in_one);
}

static uint64_t one_token(size_t k) {
    (void)k;
    return 1;
}

// A corpus may have INTRA_SHARDS_MAX shards, and not one more.
static void test_limit_of_shards(void **state) {
    (void)state;
    struct made most = {.vocab = 500,
                        .sources = 2,
                        .shards = INTRA_SHARDS_MAX / 2,
                        .one_file = true,
                        .size = one_token},
                more = most;
    more.sources = 1;
    more.shards = INTRA_SHARDS_MAX + 1;
    make(&most, "most");
    struct intra_corpus *c = opened(&most);
    assert_int_equal(intra_corpus_tokens(c, 1, INTRA_TRAIN), INTRA_SHARDS_MAX / 2);
    assert_int_equal(corpus_token(c, 1, INTRA_TRAIN, 9999), id(&most, 1, 0));
    intra_corpus_close(&c);
    make(&more, "more");
    assert_int_equal(intra_corpus_open(more.folder, false, &c), NEB_ERR_LIMIT);
    assert_non_null(strstr(message, "more than 32768 shards"));
}

// ---- skipped draws

static uint64_t some_tokens(size_t k) { return 300 + 40 * k; }

static void assert_same(struct intra_sampler *a, struct intra_sampler *b) {
    uint64_t x[INTRA_CURSOR_WORDS], y[INTRA_CURSOR_WORDS];
    intra_sampler_save(a, x);
    intra_sampler_save(b, y);
    assert_memory_equal(x, y, sizeof x);
}

static void check_skip(const struct intra_corpus *c, const struct intra_sampler_config *cfg) {
    static const uint64_t lengths[] = {1, 0, 2, 63, 64, 1000, 4097, 1, 20000};
    struct intra_sampler *drawn = NULL, *skipped = NULL;
    int32_t x[T], y[T], x2[T], y2[T];
    assert_int_equal(intra_sampler_create(c, cfg, &drawn), NEB_OK);
    assert_int_equal(intra_sampler_create(c, cfg, &skipped), NEB_OK);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (uint64_t k = 0; k < lengths[i]; k++)
            intra_sampler_next(drawn, x, y);
        intra_sampler_skip(skipped, lengths[i]);
        assert_same(drawn, skipped);
        for (int k = 0; k < 5; k++) {
            intra_sampler_next(drawn, x, y);
            intra_sampler_next(skipped, x2, y2);
            assert_memory_equal(x, x2, (size_t)cfg->seq_len * sizeof *x);
            assert_memory_equal(y, y2, (size_t)cfg->seq_len * sizeof *y);
        }
    }
    assert_same(drawn, skipped);
    intra_sampler_destroy(&drawn);
    intra_sampler_destroy(&skipped);
}

static void test_skip_equals_draws(void **state) {
    (void)state;
    struct made m = {.vocab = 500, .sources = 64, .seed = 9, .shards = 3, .size = some_tokens};
    make(&m, "sources");
    struct intra_corpus *c = opened(&m);
    struct intra_sampler_config all = {.seed = 11, .seq_len = 32},
                                one = {.seed = 3,
                                       .seq_len = T,
                                       .cluster = 2,
                                       .shares = {{.index = 2, .n = 3}},
                                       .n_sources = 1,
                                       .sources = {7},
                                       .weights = {0.1f}},
                                three = {.seed = 12,
                                         .seq_len = T,
                                         .cluster = 1,
                                         .shares = {{.index = 1, .n = 2},
                                                    {0},
                                                    {.index = 1, .n = 2}},
                                         .n_sources = 3,
                                         .sources = {5, 0, 9},
                                         .weights = {0.7f, 1e-7f, 0.3f}},
                                uneven = {.seed = 4, .seq_len = 16, .n_sources = 64};
    for (int i = 0; i < 64; i++) {
        uneven.sources[i] = 63 - i;
        uneven.weights[i] = i % 9 ? 1.0f / (float)(1 + i * i) : 0.05f * (float)i;
    }
    check_skip(c, &all);
    check_skip(c, &one);
    check_skip(c, &three);
    check_skip(c, &uneven);
    intra_corpus_close(&c);
}

// Skipping far ahead is quick and exact: a cluster that lost its disk may be 10^12 tokens behind.
static void test_skipping_reads_nothing(void **state) {
    (void)state;
    struct made m = {.vocab = 500, .sources = 3, .seed = 2, .shards = 3, .size = some_tokens};
    make(&m, "behind");
    struct intra_corpus *c = opened(&m);
    struct intra_sampler_config cfg = {.seed = 1, .seq_len = T, .n_sources = 1};
    struct intra_sampler *s = NULL;
    uint64_t cursor[INTRA_CURSOR_WORDS];
    cfg.weights[0] = 1;
    assert_int_equal(intra_sampler_create(c, &cfg, &s), NEB_OK);
    intra_sampler_skip(s, 1ull << 50);
    intra_sampler_skip(s, 3);
    intra_sampler_save(s, cursor);
    assert_int_equal(cursor[0], (1ull << 50) + 3);
    assert_int_equal(cursor[1], (1ull << 50) + 3);
    intra_sampler_destroy(&s);
    cfg.n_sources = 0; // of all three
    assert_int_equal(intra_sampler_create(c, &cfg, &s), NEB_OK);
    double start = cpu_seconds();
    intra_sampler_skip(s, 10000000);
    double seconds = cpu_seconds() - start;
    intra_sampler_save(s, cursor);
    assert_int_equal(cursor[0], 10000000);
    assert_int_equal(cursor[1] + cursor[2] + cursor[3], 10000000);
    print_message("skipping 10^7 draws of a mixture took %.0f ms\n", 1e3 * seconds);
    intra_sampler_destroy(&s);
    intra_corpus_close(&c);
}

// ---- reading ahead

enum { WIDE_T = 2048, DISK_SHARDS = 3 };

static uint64_t large(size_t k) { return 6000000 + k; }

static size_t cold_pages(uint8_t *const *maps, const size_t *lens) { // of all shards
    static unsigned char in[4096];
    size_t cold = 0;
    for (int k = 0; k < DISK_SHARDS; k++) {
        assert_int_equal(mincore(maps[k], lens[k], in), 0);
        for (size_t i = 0; i < (lens[k] + 4095) / 4096; i++)
            cold += !(in[i] & 1);
    }
    return cold;
}

// Pages of the next draws are read before they are drawn, and the pages around them are not.
static void test_read_ahead(void **state) {
    (void)state;
    struct made m = {.vocab = 500, .sources = 1, .seed = 2, .shards = DISK_SHARDS, .size = large};
    struct intra_sampler_config cfg = {.seed = 1, .seq_len = WIDE_T};
    struct intra_sampler *s = NULL;
    uint8_t *maps[DISK_SHARDS];
    size_t lens[DISK_SHARDS], all = 0;
    int32_t x[WIDE_T], y[WIDE_T];
    m.on_disk = true;
    make(&m, "corpus");
    for (int k = 0; k < DISK_SHARDS; k++) {
        char path[NEB_PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/s0/train-%05d.bin", m.folder, k);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(fdatasync(fd), 0); // dirty pages stay in memory
        (void)!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        lens[k] = 64 + 2 * large((size_t)k);
        maps[k] = mmap(NULL, lens[k], PROT_READ, MAP_SHARED, fd, 0);
        assert_true(maps[k] != MAP_FAILED);
        close(fd);
        all += (lens[k] + 4095) / 4096;
    }
    struct intra_corpus *c = opened(&m);
    assert_int_equal(intra_sampler_create(c, &cfg, &s), NEB_OK);
    size_t before = cold_pages(maps, lens), after = before;
    bool cold = before >= all / 2;
    if (!cold) {
        print_message("skipped: this file system keeps its files in memory: %zu of %zu pages\n",
                      all - before, all);
    } else {
        intra_sampler_prefetch(s, 8);
        for (int i = 0; i < 1000 && before - after < 8;
             i++) { // 8 windows of 4 KiB are 16 pages at most
            neb_sleep(10 * NEB_MS);
            after = cold_pages(maps, lens);
        }
        neb_sleep(50 * NEB_MS);
        size_t ahead = cold_pages(maps, lens);
        for (int i = 0; i < 8; i++)
            intra_sampler_next(s, x, y);
        size_t drawn = cold_pages(maps, lens);
        print_message("%zu of %zu pages were cold, %zu after the read-ahead, %zu after the draws\n",
                      before, all, ahead, drawn);
        assert_in_range(before - ahead, 8, 64); // not megabytes
        assert_true(drawn >= ahead);
    }
    for (int k = 0; k < DISK_SHARDS; k++)
        munmap(maps[k], lens[k]);
    intra_sampler_destroy(&s);
    intra_corpus_close(&c);
    if (!cold)
        skip();
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(capture, NULL);
    return mkdtemp(dir) && mkdtemp(disk) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return neb_fs_remove_tree(dir) == NEB_OK && neb_fs_remove_tree(disk) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_over_shards),
        cmocka_unit_test(test_many_shards_cost_little),
        cmocka_unit_test(test_limit_of_shards),
        cmocka_unit_test(test_skip_equals_draws),
        cmocka_unit_test(test_skipping_reads_nothing),
        cmocka_unit_test(test_read_ahead),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
